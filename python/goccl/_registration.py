"""Makes the name "goccl" known to torch.distributed."""

from __future__ import annotations

from typing import Any

_registered = False


def register_once() -> None:
    """Registers the backend with torch.distributed, at the first call only."""
    global _registered
    import torch.distributed

    if _registered or not torch.distributed.is_available():
        return
    torch.distributed.Backend.register_backend("goccl", _create, extended_api=True, devices=["cpu"])
    _registered = True


def _create(group: Any, options: Any) -> Any:
    """Makes the backend of one process group, as torch.distributed asks for.

    `group` is torch's description of it (store, group_rank, group_size, timeout, group_id, ...), `options` is
    what the user gave as pg_options. A timeout in the options wins over the group's.
    """
    from goccl._native import load

    native = load()
    Options = native.ProcessGroupGoccl.Options  # noqa: N806
    if options is None:
        options = Options(timeout=group.timeout)
    elif not isinstance(options, Options):
        raise TypeError(
            f"pg_options of backend goccl must be None or a goccl.Options, not {type(options).__qualname__}"
        )
    elif options.timeout == Options().timeout:
        # A copy, for the user may give the same options to another group.
        options = Options(
            timeout=group.timeout,
            transport=options.transport,
            interface=options.interface,
            liveness_grace=options.liveness_grace,
            secret=options.secret,
            alltoall_schedule=options.alltoall_schedule,
        )
    backend = native.ProcessGroupGoccl(
        group.store, group.group_rank, group.group_size, options=options, group_name=group.group_id
    )
    # Newer versions of torch read them from the options of any backend; older ones have no place for them.
    for name, value in (
        ("group_name", group.group_id),
        ("global_ranks_in_group", group.global_ranks_in_group),
    ):
        if hasattr(backend.options, name):
            setattr(backend.options, name, value)
    return backend
