"""The decorator that has a function go on after failures and with newcomers."""

from __future__ import annotations

import functools
import logging
import re
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

import torch

from goccl._native import load
from goccl.elastic import _torch
from goccl.elastic._state import MembershipChanged, State
from goccl.errors import AbortedError, OperationTimeoutError, PeerFailedError, RevokedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from goccl._C import Communicator

_State = TypeVar("_State", bound=State)
_Result = TypeVar("_Result")
_More = ParamSpec("_More")

_FAILURES = (PeerFailedError, OperationTimeoutError, RevokedError, AbortedError)

# What torch makes of one in a callback of a future, as hooks of DDP have them, and in callbacks of
# what such a callback ends.
_IN_CALLBACK = re.compile(
    rf"(Got the following error when running the callback: (RuntimeError: )?)+"
    rf"({'|'.join(kind.__name__ for kind in _FAILURES)}): "
)

_logger = logging.getLogger("goccl.elastic")


@overload
def run(
    function: Callable[Concatenate[_State, _More], _Result], /
) -> Callable[Concatenate[_State | Callable[[], _State], _More], _Result]: ...
@overload
def run(
    *, reset_limit: int | None = None, timeout: timedelta | None = None
) -> Callable[
    [Callable[Concatenate[_State, _More], _Result]],
    Callable[Concatenate[_State | Callable[[], _State], _More], _Result],
]: ...
def run(
    function: Any = None, /, *, reset_limit: int | None = None, timeout: timedelta | None = None
) -> Any:
    """Has a function that trains go on when members of its group die, and when others join.

    The function's first argument is its State. Callers of the decorated function give it the State,
    or a function without arguments that makes it. It makes the state the same on all ranks, calls
    the function, and returns what that returns, once all ranks have come so far.

    Give it a function, and the start is protected, too: where a member dies while that makes the
    model and the state, those that are left make them again. It uses the default group. A process
    that joins makes its state itself, in a group of one, and gives that.

    After a failure of the group (PeerFailedError, OperationTimeoutError, RevokedError or
    AbortedError) it goes back to the last commit, goes on with the members that are left, calls the
    callbacks for a reset, makes the state the same on all ranks, and calls the function again.
    After MembershipChanged it does the same from the present state. All ranks do so at the same
    time. So the function must begin where the state says, and all that it communicates with must be
    made of the group's present members.

    Other exceptions come out as they are, and the other members go on without this rank once its
    process has ended.

    Args:
        function: The function. The decorator may have arguments instead.
        reset_limit: How often the members may change before the failure is raised; None for as
            often as need be.
        timeout: How long the members have to find together after a change; one that does not come
            is left out after half of it. None for the group's timeout.

    Raises:
        goccl.NoQuorumError: Too few members are left, or can be reached. End the process: others
            may go on.
        goccl.ExcludedError: The others go on without this rank. End the process, or start it anew.
        RuntimeError: The limit of resets is reached; its cause is the last failure. Or this process
            has joined members that have not made their states.
        TypeError: The first argument is no State, and no function that makes one.
        ValueError: The state that was made is of another group than the default one.

    Example:
        >>> @goccl.elastic.run
        ... def train(state):
        ...     while state.step < 1000:
        ...         train_one(state.model, state.optimizer)
        ...         state.step += 1
        ...         state.commit()
        >>> train(make_state)
    """
    if function is None:
        return functools.partial(_decorate, reset_limit=reset_limit, timeout=timeout)
    return _decorate(function, reset_limit, timeout)


def _decorate(
    function: Callable[..., _Result], reset_limit: int | None, timeout: timedelta | None
) -> Callable[..., _Result]:
    @functools.wraps(function)
    def elastic(given: State | Callable[[], State], *args: Any, **kwargs: Any) -> _Result:
        state, make = (given, None) if isinstance(given, State) else (None, given)
        if make is not None and not callable(make):
            raise TypeError(
                f"{function.__name__}: the first argument must be a goccl.elastic.State, or a "
                f"function that makes one, not a {type(given).__qualname__}"
            )
        comm = load().Communicator() if state is None else state._comm
        must_recover = published = False
        resets = 0  # before there is a state
        while True:
            try:
                if must_recover:
                    comm.recover(timeout)
                changed = must_recover
                if state is not None:
                    changed |= state._size != comm.size  # a newcomer was alone
                if changed:
                    _torch.mend_tables(comm)
                    # Where one lacks a state nobody has trained, and all make theirs again.
                    if not _all_have_one(comm, state):
                        state = None
                epoch = comm.epoch  # survivors may complete what follows in the next one
                if state is None:
                    state = _made(comm, make, function.__name__)
                    state._resets = resets
                elif changed:
                    state.on_reset()
                    state._size = comm.size
                if not published:
                    if make is not None:
                        comm.barrier()  # newcomers bring a state along, so all have one by then
                    comm.publish()
                    published = True
                state._epoch = epoch
                state.sync()
                result = function(state, *args, **kwargs)
                _finish(state)
                return result
            except MembershipChanged as change:
                cause: Exception = change
            except RuntimeError as failure:
                if not _is_of_a_group(failure):
                    raise
                cause = failure
                if state is not None:
                    state.restore()
                # Not all ranks need know: the failure may be of another group, or of a receive.
                comm.revoke(f"{type(failure).__name__} in {function.__name__}()")
            if state is not None:
                resets = state._resets
            if reset_limit is not None and resets >= reset_limit:
                raise RuntimeError(
                    f"{function.__name__}: the group has been reset {resets} times, and "
                    f"reset_limit is {reset_limit}"
                ) from cause
            must_recover = True
            resets += 1
            if state is not None:
                state._resets = resets
            level = logging.INFO if isinstance(cause, MembershipChanged) else logging.WARNING
            _logger.log(level, "the group is reset: %s", str(cause).split("\n", 1)[0])

    return elastic


def _all_have_one(comm: Communicator, state: State | None) -> bool:
    """Tells whether all members have a state. All call it after a change of the members."""
    have = torch.tensor([state is not None], dtype=torch.int64, device="cpu")
    comm.all_reduce_(have, "min")
    return bool(have.item())


def _made(comm: Communicator, make: Callable[[], State] | None, name: str) -> State:
    """Returns the state that a function makes, or refuses what that returns."""
    if make is None:
        raise RuntimeError(
            f"{name}: the members that this process has joined have not made their states: join "
            "again once they train"
        )
    state = make()
    if not isinstance(state, State):
        raise TypeError(
            f"{name}: the function that makes the state must return a goccl.elastic.State, not a "
            f"{type(state).__qualname__}"
        )
    if state._comm._backend is not comm._backend:
        raise ValueError(
            f"{name}: a state of another group than the default one cannot be made here"
        )
    return state


def _finish(state: State) -> None:
    """Waits for the end of the function on all ranks: one that has ended is needed if another one
    fails before."""
    try:
        state._comm.barrier()
    except AbortedError as error:
        if not _shut_down(error):  # the function has done so, at its end
            raise


def _is_of_a_group(error: Exception) -> bool:
    """Tells whether an error is a failure after which a group can go on."""
    if isinstance(error, _FAILURES):
        return not _shut_down(error)
    return type(error) is RuntimeError and _IN_CALLBACK.match(str(error)) is not None


def _shut_down(failure: Exception) -> bool:
    """Tells whether this rank itself has ended the group."""
    return isinstance(failure, AbortedError) and not failure.ranks
