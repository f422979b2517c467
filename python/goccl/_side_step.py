"""Collectives that another backend of torch does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from goccl import _capi
from goccl._choice import ThreadChoice

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "GOCCL_SIDE_STEP"


class side_step(ThreadChoice):  # noqa: N801  a context, as torch.autocast is
    """A context in which another backend of torch does this thread's collectives.

    The groups must have been made with the backend: see `side_step` of goccl.Options. All ranks
    side-step the same calls to the same backend: each takes a place in the order of the group, and
    one that some ranks make with goccl is an error on all. Sends, receives, programs, and calls of
    a coalesced batch stay with goccl. What the other backend makes of its arguments, dtypes and
    failures is its own.

    Collectives of one backend keep the order of their calls. Between two backends there is none:
    wait for a collective before one of another backend uses its tensors.

    Args:
        backend: "gloo", "nccl" or another backend of torch that the groups have; None for goccl,
            also for collectives that a group side-steps.

    Raises:
        TypeError: `backend` is something else.

    A collective raises ValueError where its group has no such backend.

    >>> dist.init_process_group("goccl", pg_options=goccl.Options(side_step="gloo"))
    >>> with goccl.side_step("gloo"):
    ...     dist.all_reduce(x)
    """

    def __init__(self, backend: str | None) -> None:
        if backend is not None and (not isinstance(backend, str) or not backend):
            raise TypeError(
                f"goccl.side_step: `backend` is {backend!r}, allowed are the name of a backend "
                "of torch and None"
            )
        super().__init__("exchange_side_step", backend or "goccl")


def check(options: Any, reconfigures: bool) -> None:
    """Refuses side-steps that cannot be, before the group is made. The core checks the rest.

    Args:
        options: the group's, a goccl.Options.
        reconfigures: the group's members change.

    Raises:
        ValueError: a backend is none, or the members may change.
    """
    text = options.side_step or _capi.getenv(VARIABLE)
    if not text:
        return
    what = f"side-steps (from the option or {VARIABLE}) are {text!r}"
    recovery = options.recovery or _capi.getenv("GOCCL_RECOVERY") or "step"
    if reconfigures or recovery != "step":
        how = "enable_reconfigure=True" if reconfigures else f"recovery={recovery!r}"
        raise ValueError(
            f"goccl: {what}, but those of a group with {how} would lose their members: "
            'allowed is recovery="step", without enable_reconfigure'
        )
    for name in _backends(_read(text)):
        if (why := _refusal(name)) is not None:
            raise ValueError(f"goccl: {what}, but {name!r} {why}; allowed are {_allowed()}")


def make(
    text: str, store: Any, rank: int, size: int, timeout: Any, group: str, ranks: list[int]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Makes the backends of a group; all its ranks call it.

    Args:
        text: as `side_step` of goccl.Options, checked.
        store: the group's.
        rank: this process's in the group.
        size: of the group.
        timeout: of the backends' operations, a timedelta.
        group: the group's name.
        ranks: the global ranks of the group's; empty: they are the same.

    Returns:
        The backend's name by collective, and the backends by their names.
    """
    from torch.distributed import PrefixStore

    steps = _read(text)
    made = {
        name: _creator(name)(
            PrefixStore(f"goccl_side/{name}/", store), rank, size, timeout, group, ranks
        )
        for name in _backends(steps)
    }
    return {collective: name for collective, name in steps if collective}, made


def _read(text: str) -> list[tuple[str, str]]:
    """The pairs of a collective, "" for none, and a backend."""
    pairs = [item.strip().rpartition(":") for item in text.split(";")]
    return [(collective, name) for collective, _, name in pairs]


def _backends(steps: list[tuple[str, str]]) -> list[str]:
    return sorted({name for _, name in steps if name})


def _refusal(name: str) -> str | None:
    """Why a backend of torch cannot do collectives for goccl."""
    if name == "mpi":
        return "makes groups of its own launcher's ranks only"
    try:
        _creator(name)
    except LookupError:
        return "is no backend of this torch"
    return None


def _allowed() -> str:
    from torch.distributed import Backend

    return ", ".join(n for n in Backend.backend_list if n != "goccl" and _refusal(n) is None)


def _creator(name: str) -> Callable[..., Any]:
    """What makes a backend as torch does.

    Raises:
        LookupError: torch has no such one.
    """
    import torch.distributed.distributed_c10d as c10d

    # Newer versions of torch find those that packages bring.
    if (find := getattr(c10d.Backend, "_ensure_backend_registered", None)) is not None:
        find(name)
    plugin = c10d.Backend._plugins.get(name.upper())
    if plugin is not None and name != "goccl":

        def create(store: Any, rank: int, size: int, timeout: Any, group: str, ranks: Any) -> Any:
            if not plugin.extended_api:
                return plugin.creator_fn(store, rank, size, timeout)
            options: Any = c10d._DistributedBackendOptions()
            options.store, options.group_rank, options.group_size = store, rank, size
            options.timeout, options.group_id = timeout, group
            options.global_ranks_in_group = ranks
            return plugin.creator_fn(options, None)

        return create
    # Older ones have no creators of their own backends.
    if name == "gloo" and c10d.is_gloo_available():
        return lambda store, rank, size, timeout, *_: c10d.ProcessGroupGloo(
            store, rank, size, timeout=timeout
        )
    if name == "nccl" and c10d.is_nccl_available():

        def create_nccl(store: Any, rank: int, size: int, timeout: Any, *_: Any) -> Any:
            options = c10d.ProcessGroupNCCL.Options()
            options._timeout = timeout
            return c10d.ProcessGroupNCCL(store, rank, size, options)

        return create_nccl
    raise LookupError(name)
