"""The memory of one rank: how values are written into it, and how a result is checked. Needs
NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .collectives import Segment

Array = npt.NDArray[Any]

PERIOD = 3
"""Measured iterations after which the values of fill() come back."""

# A prime, so that no slice, chunk or block of a library lines up with the pattern.
_PERIOD = 4099
_CHUNK = 256  # periods compared at a time: bounds the memory of a check
_POISON = -1  # differs from every sum of values from 0 to 2, but for one of 8 bits


@dataclass(frozen=True)
class DType:
    """A dtype by torch's name, and the NumPy type that holds its bits."""

    name: str
    storage: str
    encoded_bfloat16: bool = False

    def encode(self, values: Array) -> Array:
        """Small integers as elements of this dtype."""
        if self.encoded_bfloat16:
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(self.storage)


_STORAGE = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64")
DTYPES = {name: DType(name, name) for name in _STORAGE} | {
    "bfloat16": DType("bfloat16", "uint16", True)
}


def _pattern(rank: int, seed: int) -> Array:
    index = np.arange(_PERIOD, dtype=np.uint64)
    mixed = (index + np.uint64(1 + rank * 7919 + seed * 104729)) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(60)).astype(np.uint8) % np.uint8(3)


@functools.lru_cache(maxsize=256)
def _pattern_sum(ranks: tuple[int, ...], seed: int) -> Array:
    total = np.zeros(_PERIOD, dtype=np.int16)
    for rank in ranks:
        total += _pattern(rank, seed)
    return total


def _tag(rank: int, iteration: int) -> int:
    # From -1 to 2. Changes with every iteration, also in the sum over any number of ranks, but for
    # one of 128 in 8 bits.
    return iteration % PERIOD - rank % 2


def ordinary(nbytes: int) -> Array:
    """Bytes of memory as any program has it."""
    return np.empty(nbytes, dtype=np.uint8)


class Buffer:
    """Elements of one dtype, aligned to a cache line and touched."""

    def __init__(
        self, dtype: DType, count: int, allocate: Callable[[int], Array] = ordinary
    ) -> None:
        self._dtype = dtype
        itemsize = np.dtype(dtype.storage).itemsize
        raw = allocate(count * itemsize + 64)
        skip = -raw.ctypes.data % 64
        self.array: Array = raw[skip : skip + count * itemsize].view(dtype.storage)
        self.array.fill(0)

    def fill(self, rank: int, iteration: int) -> None:
        """The values of a measured iteration: one for all elements, another for the next
        iteration."""
        self.array.fill(self._scalar(_tag(rank, iteration)))

    def fill_pattern(self, rank: int, seed: int) -> None:
        """The values of a checked iteration: another for every element."""
        tile = self._dtype.encode(_pattern(rank, seed))
        full = len(self.array) // _PERIOD * _PERIOD
        self.array[:full].reshape(-1, _PERIOD)[:] = tile
        self.array[full:] = tile[: len(self.array) - full]

    def poison(self) -> None:
        """Overwrites all elements with a value that no result holds."""
        self.array.fill(self._scalar(_POISON))

    def values(self, rank: int) -> Array:
        """The values that fill() writes in one iteration after the other, until they come back."""
        return self._sums((rank,))

    def ends(self, iterations: int) -> Array:
        """Room for the first and the last element after each of some iterations."""
        return np.zeros((iterations, 2), self.array.dtype)

    def count_wrong_ends(self, result: list[Segment], ends: Array) -> int:
        """How many of these first and last elements are not what fill() of all ranks leads to."""
        wrong = 0
        for segment, found in zip((result[0], result[-1]), ends.T, strict=True) if result else ():
            wrong += int(
                np.count_nonzero(found != np.resize(self._sums(segment.ranks), len(found)))
            )
        return wrong

    def count_wrong(self, result: list[Segment], seed: int) -> int:
        """How many elements are not what fill_pattern() of all ranks leads to."""
        wrong = 0
        position = 0
        for segment in result:
            total = _pattern_sum(segment.ranks, seed)
            tile = self._dtype.encode(np.roll(total, -(segment.start % _PERIOD)))
            part = self.array[position : position + segment.count]
            position += segment.count
            full = len(part) // _PERIOD
            rows = part[: full * _PERIOD].reshape(full, _PERIOD)
            for first in range(0, full, _CHUNK):
                wrong += int(np.count_nonzero(rows[first : first + _CHUNK] != tile))
            rest = part[full * _PERIOD :]
            wrong += int(np.count_nonzero(rest != tile[: len(rest)]))
        return wrong

    def _sums(self, ranks: tuple[int, ...]) -> Array:
        sums = [sum(_tag(rank, iteration) for rank in ranks) for iteration in range(PERIOD)]
        return self._dtype.encode(np.array(sums))

    def _scalar(self, value: int) -> Any:
        return self._dtype.encode(np.array([value]))[0]
