"""Tensors in memory that the ranks of a host map, so that large collectives work on them in place, and that
RDMA adapters read.

Where all ranks of a group share a host, and every buffer of a collective was made here, and the longest
part of one rank has 32 KiB or more (in a reduce or broadcast more than that, or than 128 KiB where ranks
outnumber the CPUs), nothing is copied on the way: the ranks read and write each other's tensors. Anywhere
else these are tensors like all others. The ranks find out by themselves, call by call. Several tensors
reduced in one call (coalesced) go the ordinary way. Over verbs, what a rank sends of such a tensor, 128 KiB
or more at a time, its peer reads by itself; it comes without a copy into tensors made here, and with one into
others.

What one process writes to such a tensor after os.fork() its children see too, and the other way round. When a
collective has failed, a peer that is late may still read and write its tensors: make new ones.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from goccl._native import load

if TYPE_CHECKING:
    from types import TracebackType

    import torch


def _size(size: tuple[int | tuple[int, ...] | list[int], ...]) -> list[int]:
    wanted = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    numbers = [operator.index(n) for n in wanted]  # type: ignore[arg-type]
    if any(n < 0 for n in numbers):
        raise ValueError(f"size is {tuple(numbers)}, every number must be 0 or more")
    return numbers


def empty(*size: int | tuple[int, ...] | list[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns a contiguous CPU tensor in shareable memory, of undefined contents.

    size: as of torch.empty(): numbers, or a tuple or list of them.
    dtype: any of torch's; default torch.get_default_dtype().
    Raises ValueError for a negative size, torch.distributed.DistBackendError where there is no such
    memory, or no room.

    >>> gradients = goccl.empty(1 << 20)
    >>> dist.all_reduce(gradients)
    """
    import torch

    made: torch.Tensor = load().empty(_size(size), dtype or torch.get_default_dtype())
    return made


def zeros(*size: int | tuple[int, ...] | list[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Is empty(), filled with zeros."""
    return empty(*size, dtype=dtype).zero_()


def memory_stats() -> dict[str, int]:
    """Returns what adapters do with this process's shareable memory, in bytes.

    "registered": that adapters have access to now, and that is locked; what groups over verbs keep for
    themselves counts, too. "given": that peers have read there by themselves; "taken": that were read so of
    peers'. Where both stay 0 over verbs, tensors are copied: they are ordinary, too small, or could not be
    registered (see the log).
    """
    found: dict[str, int] = load().memory_stats()
    return found


class MemPool:
    """A context in which torch allocates this thread's CPU tensors of 16 KiB or more in shareable memory.

    So do DDP for the buckets of gradients and FSDP for flat parameters, if they are made, and used, inside:
    DDP makes its buckets anew in the second step. Tensors live on after the context. Contexts may be nested.
    Where no such memory is to be had, as in a forked DataLoader worker, tensors are ordinary.

    >>> with goccl.MemPool():
    ...     model = DistributedDataParallel(model)
    ...     train(model)
    """

    def __enter__(self) -> MemPool:
        load().enter_pool()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        load().leave_pool()
