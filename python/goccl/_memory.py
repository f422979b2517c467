"""Tensors in memory that the ranks of a host map, so that large collectives work on them in place,
and that RDMA adapters read.

Where all ranks of a group share a host, and every buffer of a collective was made here, and the
longest part of one rank has 32 KiB or more (in a reduce or broadcast more than that, or than 128
KiB where ranks outnumber the CPUs), nothing is copied on the way: the ranks read and write each
other's tensors. Anywhere else these are tensors like all others. The ranks find out by themselves,
call by call. Several tensors reduced in one call (coalesced) go the ordinary way. Over verbs, what
a rank sends of such a tensor, 128 KiB or more at a time, its peer reads by itself; it comes without
a copy into tensors made here, and with one into others.

What one process writes to such a tensor after os.fork() its children see too, and the other way
round. When a collective has failed, a peer that is late may still read and write its tensors: make
new ones.
"""

from __future__ import annotations

import operator
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any, SupportsIndex

from goccl._native import load
from goccl._old import warn_of_old

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import torch


def _size(size: tuple[Any, ...]) -> list[int]:
    """Reads the numbers of a size; TypeError or ValueError where it is none."""
    wanted = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    try:
        numbers = [operator.index(n) for n in wanted]
    except TypeError:
        raise TypeError(
            f"size is {wanted!r}, it must be integers, or one tuple or list of them"
        ) from None
    if any(n < 0 for n in numbers):
        raise ValueError(f"size is {tuple(numbers)}, every number must be 0 or more")
    return numbers


def _tensor(given: object) -> torch.Tensor:
    """Returns the argument `tensor`; TypeError where it is none."""
    import torch

    if not isinstance(given, torch.Tensor):
        raise TypeError(f"tensor is of type {type(given).__name__}, it must be a torch.Tensor")
    return given


def empty(
    *size: SupportsIndex | Sequence[SupportsIndex],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Makes a contiguous CPU tensor in shareable memory, of undefined contents.

    Args:
        size: as of torch.empty(): integers, NumPy's too, or one tuple or list of them, such as a
        torch.Size.
        dtype: any of torch's; default torch.get_default_dtype().
        device: the CPU, or None, which is the CPU whatever torch.set_default_device() says.
        requires_grad: as of torch.empty().

    Returns:
        The tensor. Its memory is given back when the last tensor on it has gone.

    Raises:
        TypeError: `size` or `dtype` is something else.
        ValueError: a number of `size` is negative, or `device` is another one than the CPU.
        torch.distributed.DistBackendError: there is no shareable memory here, or no room.

    >>> gradients = goccl.empty(1 << 20)
    >>> dist.all_reduce(gradients)
    """
    import torch

    if device is not None and torch.device(device).type != "cpu":
        raise ValueError(
            f"device is {str(device)!r}, it must be 'cpu' or None: this is memory of the host"
        )
    if not isinstance(dtype, (torch.dtype, type(None))):
        raise TypeError(f"dtype is {dtype!r}, it must be a torch.dtype, such as torch.float32")
    made: torch.Tensor = load().empty(_size(size), dtype or torch.get_default_dtype())
    return made.requires_grad_(requires_grad)


def zeros(
    *size: SupportsIndex | Sequence[SupportsIndex],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Makes a tensor as empty() does, filled with zeros.

    Args:
        size, dtype, device, requires_grad: as of empty().

    Returns:
        The tensor.

    Raises:
        TypeError, ValueError, torch.distributed.DistBackendError: as empty().

    >>> counts = goccl.zeros(4, 1024, dtype=torch.int64)
    """
    return empty(*size, dtype=dtype, device=device).zero_().requires_grad_(requires_grad)


def empty_like(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Makes a contiguous CPU tensor in shareable memory of another one's size, of undefined
    contents.

    Args:
        tensor: on any device, and of any strides.
        dtype: any of torch's; default that of `tensor`.
        device, requires_grad: as of empty().

    Returns:
        The tensor.

    Raises:
        TypeError: `tensor` or `dtype` is something else.
        ValueError, torch.distributed.DistBackendError: as empty().

    >>> received = goccl.empty_like(sent)
    """
    like = _tensor(tensor)
    return empty(like.shape, dtype=dtype or like.dtype, device=device, requires_grad=requires_grad)


def zeros_like(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Makes a tensor as empty_like() does, filled with zeros.

    Args:
        tensor, dtype, device, requires_grad: as of empty_like().

    Returns:
        The tensor.

    Raises:
        TypeError, ValueError, torch.distributed.DistBackendError: as empty_like().

    >>> total = goccl.zeros_like(gradients)
    """
    return empty_like(tensor, dtype=dtype, device=device).zero_().requires_grad_(requires_grad)


def is_shareable(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor lies in memory that peers can map.

    Args:
        tensor: any.

    Returns:
        True for tensors that empty() or its siblings made, or torch in use_shareable_memory(), and
        for views of them. Of a tensor that was made around their memory by other means, such as
        torch.from_numpy(), it is not known.

    Raises:
        TypeError: `tensor` is something else.

    >>> goccl.is_shareable(goccl.empty(4)[1:])
    True
    """
    return load().is_shareable(_tensor(tensor))  # type: ignore[no-any-return]


def memory_stats() -> dict[str, int]:
    """Tells what RDMA adapters do with this process's shareable memory, and what is staged.

    Returns:
        Numbers of bytes, by name:

        - "registered_bytes": what adapters have access to now, which is locked; what groups over
          verbs keep for themselves counts, too.
        - "read_by_peers_bytes": what peers have read of this process's tensors without a copy,
          since the library was loaded.
        - "read_from_peers_bytes": what was read so of peers' tensors.
        - "staged_bytes": what operations on tensors of devices have in the host's memory now.
        - "staged_peak_bytes": the most that they have had.

        Where what was read stays 0 over verbs, tensors are copied: they are ordinary, too small, or
        could not be registered (see the log).

    >>> goccl.memory_stats()["registered_bytes"]
    0
    """
    return _Stats(load().memory_stats())


class _Stats(dict[str, int]):
    """Numbers by name, which can be asked for by their old names, too."""

    def __missing__(self, name: str) -> int:
        known = _OLD_STATS.get(name)
        if known is None:
            raise KeyError(name)
        warn_of_old(f'memory_stats()["{name}"]', f'memory_stats()["{known}"]')
        return self[known]


_OLD_STATS = {
    "registered": "registered_bytes",
    "given": "read_by_peers_bytes",
    "taken": "read_from_peers_bytes",
}


class use_shareable_memory(ContextDecorator):  # noqa: N801  a context, as torch.no_grad is
    """A context in which torch allocates this thread's CPU tensors of 16 KiB or more in shareable
    memory.

    DDP allocates the buckets of gradients so, and FSDP flat parameters, if they are made, and used,
    inside: DDP makes its buckets again in the second step. Tensors live on after the context.
    Contexts may be nested, and decorate functions. Where no such memory is to be had, as in a
    forked DataLoader worker, tensors are ordinary.

    >>> with goccl.use_shareable_memory():
    ...     model = DistributedDataParallel(model)
    ...     train(model)
    """

    def __enter__(self) -> use_shareable_memory:
        load().enter_pool()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        load().leave_pool()
