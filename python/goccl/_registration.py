"""Makes the name "goccl" known to torch.distributed."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.util
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from goccl import _log, _side_step, _stand_in
from goccl._stay_out import stay_out

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_registered = False
_batches_end = False
_leaves = 0  # the process that leaves its groups when it ends


def register_once() -> None:
    """Registers the backend with torch.distributed, at the first call only."""
    global _registered
    import torch.distributed

    if _registered or not torch.distributed.is_available():
        return
    backend = torch.distributed.Backend
    # Other names here would make goccl the default of devices whose own backends come later.
    backend.register_backend("goccl", _create, extended_api=True, devices=["cpu"])
    backend.backend_capability["goccl"] = _Devices()
    _registered = True
    # A profile asks at its beginning who has something to show. This takes 10 ms, and runs no Go.
    # Who makes a group is told of an ImportError. It is a RuntimeError where another thread imports
    # goccl._C, and waits for torch.
    with contextlib.suppress(ImportError, RuntimeError):
        from goccl._native import load

        load()


class _Devices(list[str]):
    """The devices that a group of "goccl" is for, as torch.distributed reads the list.

    The accelerator is asked for when the list is read: torch may learn its name after this import.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(_devices())

    def __len__(self) -> int:
        return len(_devices())

    def __contains__(self, device: object) -> bool:
        return device in _devices()

    def __repr__(self) -> str:
        return repr(_devices())


def _devices() -> list[str]:
    return ["cpu", device] if (device := accelerator()) else ["cpu"]


def accelerator() -> str:
    """The type of the accelerator that torch has here, "" for none."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return "" if found is None else found.type


def _create(group: Any, options: Any) -> Any:
    """Makes the backend of one process group, as torch.distributed asks for.

    `group` is torch's description of it (store, group_rank, group_size, timeout, group_id, ...),
    `options` is what the user gave as pg_options, and stays as it is: the user may give it to
    another group. A timeout in the options wins over the group's.
    """
    try:
        native, own = _ready(group, options)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        stay_out(group.store, group.group_rank, group.group_size, group.group_id, why)
        raise
    # Newer versions of torch read them from the options of any backend; older ones have no place
    # for them.
    for name, value in (
        ("group_name", group.group_id),
        ("global_ranks_in_group", group.global_ranks_in_group),
        ("enable_reconfigure", getattr(group, "enable_reconfigure", False)),
    ):
        if hasattr(own, name):
            setattr(own, name, value)
    _leave_at_exit(native)
    watch = _stand_in.watch(group) if _stand_in.asked_for() else contextlib.nullcontext()
    try:
        with watch:
            backend = native.ProcessGroupGoccl(
                group.store,
                group.group_rank,
                group.group_size,
                options=own,
                group_name=group.group_id,
                global_ranks=list(group.global_ranks_in_group),
            )
    except Exception as error:
        # An argument that is refused, and a failure in the meeting, the library has told the
        # others. It could not where there are no threads: such an error is of the shim, or names no
        # group.
        if not isinstance(error, ValueError) and not getattr(error, "group", ""):
            stay_out(group.store, group.group_rank, group.group_size, group.group_id, str(error))
        raise
    _end_batches_on_errors()
    return backend


def _ready(group: Any, options: Any) -> tuple[ModuleType, Any]:
    """Does what can fail before the library can speak for this rank.

    Returns:
        goccl._C, with the library loaded, and the group's own options.
    """
    from goccl._native import load
    from goccl._options import check

    native = load()
    Options = native.ProcessGroupGoccl.Options  # noqa: N806
    if asked := _stand_in.asked_for():
        options = _stand_in.options_of(options)
    if options is None:
        options = Options()
    elif not isinstance(options, Options):
        raise TypeError(
            f"pg_options of backend goccl must be None or a goccl.Options, not "
            f"{type(options).__qualname__}"
        )
    own = options._for_group(check("timeout", group.timeout))
    if asked:
        own.interface = _stand_in.interface_of(own)
    _side_step.check(own, getattr(group, "enable_reconfigure", False))
    _log.attach(native)
    if asked:
        _stand_in.tell_of(group)
    return native, own


def _end_batches_on_errors() -> None:
    """Has every end of torch's _coalescing_manager() end the batch, at the first call only.

    From the start of that context on, torch.distributed keeps calls of the group in a list, or the
    backend records them, and they return with nothing done. Where an exception leaves the context,
    torch ends neither: all later calls of the group would return with nothing done. Any code may
    raise the exception, and the calls in torch's list reach no backend, so a backend alone cannot
    notice. Hence torch's function is replaced by one that runs it, and that clears up after an
    exception if the group is one of goccl.

    The first group of goccl does so: programs without one run torch as it is. It replaces the
    function in all modules that have imported it by then, for libraries take it by name.
    """
    global _batches_end
    import torch.distributed.distributed_c10d as c10d

    if _batches_end:
        return
    _batches_end = True
    original = getattr(c10d, "_coalescing_manager", None)
    if original is None:
        return

    @contextlib.contextmanager
    @functools.wraps(original)
    def coalescing_manager(*args: Any, **kwargs: Any) -> Iterator[Any]:
        group = (args[0] if args else kwargs.get("group")) or c10d._get_default_group()
        try:
            with original(*args, **kwargs) as manager:
                yield manager
        except BaseException as error:
            _drop_batch(group, error)
            raise

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("_coalescing_manager") is original:
            setattr(module, "_coalescing_manager", coalescing_manager)  # noqa: B010


def _drop_batch(group: Any, error: BaseException) -> None:
    """Forgets what torch and the backend have of a group's batch that an exception ended."""
    import torch.distributed.distributed_c10d as c10d

    from goccl._native import load

    backends = set()
    for device in getattr(group, "_device_types", ()):  # no group has none
        backend = group._get_backend(device)
        backends.add(getattr(backend, "wrapped_pg", backend))  # of TORCH_DISTRIBUTED_DEBUG=DETAIL
    calls = None
    for backend in backends:
        if isinstance(backend, load().ProcessGroupGoccl):
            calls = calls or c10d._world.pg_coalesce_state.pop(group, None)
            why = f"its batch was ended by {type(error).__name__}: {error}"
            backend._drop_batch(why, bool(calls))


def _leave_at_exit(native: ModuleType) -> None:
    """Has a child of multiprocessing leave its groups in good order when it ends.

    A child runs finalizers, but no handlers of atexit, among which goccl._C has its own. A child
    forgets the finalizers of its parent, so this one is registered when a process makes its first
    group.

    Args:
        native: goccl._C.
    """
    global _leaves
    if multiprocessing.parent_process() is not None and _leaves != os.getpid():
        _leaves = os.getpid()
        # The last of all: others may still use a group.
        multiprocessing.util.Finalize(None, _leave, (native,), exitpriority=-(1 << 30))


def _leave(native: ModuleType) -> None:
    """Leaves all groups, unless threads may still use them, for which the process waits after
    this."""
    if all(t.daemon or t is threading.current_thread() for t in threading.enumerate()):
        native.leave_groups()
