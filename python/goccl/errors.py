"""The exceptions of goccl, for programs that act upon a failure.

All are RuntimeErrors, and once torch is imported, before or after goccl, subclasses of its
`torch.distributed.DistBackendError`.

| Exception               | Raised when                                               | Says      |
|-------------------------|-----------------------------------------------------------|-----------|
| `PeerFailedError`       | a rank's process has ended, or its host cannot be reached | `.ranks`  |
| `OperationTimeoutError` | the time of an operation, of making a group or of a wait  | `.absent` |
|                         | is over                                                   |           |
| `MismatchError`         | ranks made different calls, or were started differently   | `.calls`  |
| `AbortedError`          | a rank aborted or left the group, or this rank ended it   | `.ranks`  |
| `RevokedError`          | a rank revoked the group, or its members begin it anew    | `.ranks`  |
| `NoQuorumError`         | too few members are left, or can be reached, to go on     |           |
| `ExcludedError`         | the other members go on without this rank                 |           |
| `UnsupportedError`      | what was asked for (a transport, a feature) cannot work   |           |
| `Error`                 | all else: the system refused something, or goccl has a    |           |
|                         | defect                                                    |           |

Waits (`work.wait()`), collectives that block, `goccl.Communicator`, `init_process_group()`,
`new_group()` and DDP's backward pass raise them. Futures carry them: `fut.wait()` and `fut.value()`
raise them, in callbacks too. Torch itself changes the type in one place: what a callback of
`fut.then()` raises comes out of the future of `then()` as a RuntimeError, with the text. DDP's
communication hooks in Python have such callbacks: the next call raises the exception itself.

A bad argument is a ValueError or a TypeError. It breaks no group where all ranks are refused it.

A receive that times out, and `work.wait(timeout)`, leave the group as it was, as do failures of a
channel alone. After any other of these exceptions the group is broken on all ranks, and each later
call raises the first cause.

    try:
        dist.all_reduce(gradients)
    except goccl.PeerFailedError as error:
        left = [r for r in range(dist.get_world_size()) if r not in error.ranks]
        ...
"""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from goccl._later import when_imported

if TYPE_CHECKING:
    from torch.distributed import DistBackendError as _Base
else:

    class _Base(RuntimeError):
        """Stands for torch's exception as long as torch is not there: of the same layout."""


class Error(_Base):
    """A failure of a group of goccl: the base of all, and the type of all that have no other.

    The text has a headline, the cause, and what to do. It names ranks by their number in the group,
    by their global rank where that is another, and by their process.

    Attributes:
        operation: The operation that failed, such as "allreduce"; "init" for making a group; "" if
            none did.
        sequence: The number of the collective that failed in its group's order, which is that of
            torch's records. None for sends, receives, and calls that were not started.
        group: Torch's name of the group, "" if there is none.
    """

    operation: str
    sequence: int | None
    group: str

    def __init__(
        self, text: str = "", *, operation: str = "", sequence: int | None = None, group: str = ""
    ) -> None:
        super().__init__(text)
        self.operation, self.sequence, self.group = operation, sequence, group


class _RanksError(Error):
    """A failure that ranks are to blame for."""

    ranks: list[int]
    group_ranks: list[int]

    def __init__(
        self,
        text: str = "",
        *,
        ranks: list[int] | None = None,
        group_ranks: list[int] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(text, **more)
        self.ranks, self.group_ranks = list(ranks or ()), list(group_ranks or ())


class PeerFailedError(_RanksError):
    """A rank's process has ended without leaving the group, or its host cannot be reached.

    The ranks that are left can make a new group, or all are restarted, as by torchrun.

    Attributes:
        ranks: The global ranks that failed, as far as this rank knows; usually the first one.
        group_ranks: The same ranks by their numbers in the group.
    """


class OperationTimeoutError(Error, TimeoutError):
    """An operation, the making of a group, or a wait has not ended in time.

    It is a TimeoutError, too, as the timeouts of asyncio and concurrent.futures are.

    Attributes:
        absent: The global ranks that did not arrive; empty where all did, and where that is not
            known, as for work.wait(timeout) and receives from any rank.
        group_absent: The same ranks by their numbers in the group.
    """

    absent: list[int]
    group_absent: list[int]

    def __init__(
        self,
        text: str = "",
        *,
        absent: list[int] | None = None,
        group_absent: list[int] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(text, **more)
        self.absent, self.group_absent = list(absent or ()), list(group_absent or ())


class MismatchError(Error):
    """Ranks made different calls at one place in the order, or have different settings.

    Attributes:
        calls: What two ranks called that differ, by global rank, such as {0: "barrier", 1:
            "allreduce(float32, 8 elements, SUM)"}; empty where settings differ.
    """

    calls: dict[int, str]

    def __init__(self, text: str = "", *, calls: dict[int, str] | None = None, **more: Any) -> None:
        super().__init__(text, **more)
        self.calls = dict(calls or {})


class AbortedError(_RanksError):
    """A rank aborted the group or left it while others needed it, or this rank shut it down.

    Of a channel: the peer has closed its end.

    Attributes:
        ranks: The global ranks that aborted or left; empty after this rank's own shutdown.
        group_ranks: The same ranks by their numbers in the group.
    """


class RevokedError(_RanksError):
    """A rank has revoked the group, or its members go on in another epoch without what this was.

    Attributes:
        ranks: The global ranks that revoked it.
        group_ranks: The same ranks by their numbers in the group.
    """


class NoQuorumError(Error):
    """This rank reaches too few members for the group to go on. Others may go on without it."""


class ExcludedError(Error):
    """The other members of the group go on without this rank: they took it for dead."""


class UnsupportedError(Error):
    """A transport or a feature that was asked for cannot work here; the text says why."""


# By goccl_result.
_TYPES: dict[int, type[Error]] = {
    3: OperationTimeoutError,
    4: AbortedError,
    5: PeerFailedError,
    6: MismatchError,
    7: UnsupportedError,
    12: RevokedError,
    13: NoQuorumError,
    14: ExcludedError,
}


def _class_for(result: int, detail: str) -> type[Error]:
    """Returns a class of which a call with a text makes the exception for a failure of the library.

    For torch's C++ an exception is a class and a text. So a class is made for each, and a call
    of it returns an exception of the public type, with all that is known.

    Args:
        result: The goccl_result.
        detail: What goccl_last_error_detail() says, or "".
    """
    kind = _TYPES.get(result, Error)
    known = json.loads(detail, strict=False) if detail else {}
    fields: dict[str, Any] = {
        "operation": known.get("operation", ""),
        "sequence": known.get("sequence") or None,
        "group": known.get("group", ""),
    }
    ranks, group_ranks = known.get("ranks", []), known.get("group_ranks", [])
    if kind is OperationTimeoutError:
        fields.update(absent=ranks, group_absent=group_ranks)
    elif issubclass(kind, _RanksError):
        fields.update(ranks=ranks, group_ranks=group_ranks)
    elif kind is MismatchError:
        fields.update(calls={int(rank): call for rank, call in known.get("calls", {}).items()})

    def new(_: type, text: str) -> Error:
        return kind(text, **fields)

    # Of the same name, which pybind11 compares with that of the exception.
    return type(kind.__name__, (kind,), {"__new__": new, "__module__": kind.__module__})


def _derive_from_torch() -> None:
    # Not in `sys.modules`: another thread may be in the middle of that import.
    torch = importlib.import_module("torch")
    Error.__bases__ = (torch._C._DistBackendError,)


when_imported("torch", _derive_from_torch)
