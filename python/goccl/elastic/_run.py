"""The decorator that has a function go on after failures and with newcomers."""

from __future__ import annotations

import functools
import logging
import re
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from goccl.elastic import _torch
from goccl.elastic._state import MembershipChanged, State
from goccl.errors import AbortedError, OperationTimeoutError, PeerFailedError, RevokedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

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
) -> Callable[Concatenate[_State, _More], _Result]: ...
@overload
def run(
    *, reset_limit: int | None = None, timeout: timedelta | None = None
) -> Callable[
    [Callable[Concatenate[_State, _More], _Result]], Callable[Concatenate[_State, _More], _Result]
]: ...
def run(
    function: Any = None, /, *, reset_limit: int | None = None, timeout: timedelta | None = None
) -> Any:
    """Has a function that trains go on when members of its group die, and when others join.

    The function's first argument is its State. The decorated function makes the state the same on
    all ranks, calls the function, and returns what that returns, once all ranks have come so far.
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
        RuntimeError: The limit of resets is reached; its cause is the last failure.
        TypeError: The first argument is no State.

    Example:
        >>> @goccl.elastic.run
        ... def train(state):
        ...     while state.step < 1000:
        ...         train_one(state.model, state.optimizer)
        ...         state.step += 1
        ...         state.commit()
        >>> train(state)
    """
    if function is None:
        return functools.partial(_decorate, reset_limit=reset_limit, timeout=timeout)
    return _decorate(function, reset_limit, timeout)


def _decorate(
    function: Callable[..., _Result], reset_limit: int | None, timeout: timedelta | None
) -> Callable[..., _Result]:
    @functools.wraps(function)
    def elastic(state: State, *args: Any, **kwargs: Any) -> _Result:
        if not isinstance(state, State):
            raise TypeError(
                f"{function.__name__}: the first argument must be a goccl.elastic.State, not a "
                f"{type(state).__qualname__}"
            )
        must_recover = published = False
        while True:
            try:
                if must_recover:
                    state._comm.recover(timeout)
                if not published:
                    state._comm.publish()
                    published = True
                if must_recover or state._size != state._comm.size:  # a newcomer was alone
                    _torch.mend_tables(state._comm)
                    state.on_reset()
                    state._size = state._comm.size
                state._epoch = state._comm.epoch
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
                state.restore()
                # Not all ranks need know: the failure may be of another group, or of a receive.
                state._comm.revoke(f"{type(failure).__name__} in {function.__name__}()")
            if reset_limit is not None and state._resets >= reset_limit:
                raise RuntimeError(
                    f"{function.__name__}: the group has been reset {state._resets} times, and "
                    f"reset_limit is {reset_limit}"
                ) from cause
            must_recover = True
            state._resets += 1
            level = logging.INFO if isinstance(cause, MembershipChanged) else logging.WARNING
            _logger.log(level, "the group is reset: %s", str(cause).split("\n", 1)[0])

    return elastic


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
