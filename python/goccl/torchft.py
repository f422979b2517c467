"""torchft's managed process groups over goccl, for torchft 0.2, its nightly and 0.3:

    manager = Manager(pg=goccl.torchft.ProcessGroupGoccl(timeout=timedelta(seconds=30)), ...)

From torch 2.14 on, a Manager of the nightly and of 0.3 also takes a goccl group as it is, across
replica groups and without a store that they share:

    dist.init_process_group("goccl", enable_reconfigure=True)
    manager = Manager(pg=dist.group.WORLD, ...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from goccl._native import load

if TYPE_CHECKING:
    ProcessGroupWrapper: Any
else:
    from torchft.process_group import ProcessGroupWrapper

__all__ = ["ProcessGroupGoccl"]


class ProcessGroupGoccl(ProcessGroupWrapper):  # type: ignore[misc]
    """A group that torchft makes again, over a store, whenever its quorum changes.

    torchft's base class has what the Manager calls: `configure()` in 0.2, and `set_rank_info()`,
    `get_reconfigure_handle()` and `reconfigure()` in later versions.

    Args:
        timeout: Of making the group, and of its operations.
        pg: As of torchft's ProcessGroupWrapper.
    """

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        native = load()
        group = dist.ProcessGroup(store, rank, world_size)
        options = native.ProcessGroupGoccl.Options(timeout=self._timeout)
        backend = native.ProcessGroupGoccl(store, rank, world_size, options, "torchft")
        kind = dist.ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(kind)
        group._register_backend(torch.device("cpu"), kind, backend)
        return group

    def getBackendName(self) -> str:  # noqa: N802
        """The name that torchft shows."""
        return "torchft-goccl"
