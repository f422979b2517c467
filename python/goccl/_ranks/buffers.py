"""The memory of one rank: how values are written into it, and how a result is checked. Needs
NumPy."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .collectives import NO_OP, Segment

Array = npt.NDArray[Any]

PERIOD = 4
"""Measured iterations after which the values of fill() come back."""

FACTOR = 2.0
"""By which premul_sum multiplies: exact in every dtype."""

_LEVELS = (0, 1, 2, 1)  # of the measured iterations: neighbours differ, by their last bit, too

# A prime, so that no slice, chunk or block of a library lines up with the pattern.
_PERIOD = 4099
_CHUNK = 256  # periods compared at a time: bounds the memory of a check


@dataclass(frozen=True)
class DType:
    """A dtype by torch's name, and the NumPy type that holds its bits.

    whole: it holds all whole numbers up to this one, or wraps around there. narrow: of a float that
    NumPy has not, the bits of its fraction and the bias of its exponent.
    """

    name: str
    storage: str
    whole: int = 1 << 20
    narrow: tuple[int, int] | None = None

    def encode(self, numbers: Array) -> Array:
        """Small numbers as elements of this dtype: whole ones, complex ones of whole parts, and for
        a narrow float none below 0."""
        if self.name == "complex32":
            parts = np.stack([numbers.real, numbers.imag], axis=-1).astype(np.float16)
            return parts.view(np.uint32)[..., 0]
        if self.narrow:
            fraction, bias = self.narrow
            bits = numbers.astype(np.float32).view(np.uint32) >> np.uint32(23 - fraction)
            lowered = bits - np.uint32((127 - bias) << fraction)
            return np.where(numbers == 0, 0, lowered).astype(self.storage)
        return numbers.astype(self.storage)


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("float32", "float32"),
        DType("float64", "float64"),
        DType("float16", "float16", 2048),
        DType("bfloat16", "uint16", 256, (7, 127)),
        DType("int8", "int8", 128),
        DType("uint8", "uint8", 128),
        *(
            DType(f"{sign}int{bits}", f"{sign}int{bits}")
            for bits in (16, 32, 64)
            for sign in ("", "u")
        ),
        DType("bool", "uint8"),
        DType("complex32", "uint32", 2048),
        DType("complex64", "complex64"),
        DType("complex128", "complex128"),
        DType("float8_e4m3fn", "uint8", 16, (3, 7)),
        DType("float8_e5m2", "uint8", 8, (2, 15)),
        DType("float8_e4m3fnuz", "uint8", 16, (3, 8)),
        DType("float8_e5m2fnuz", "uint8", 8, (2, 16)),
        DType("bytes1", "uint8"),
    )
}

# What a reduce op does with bool.
_OF_BOOL = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}
# What changes no result.
_NEUTRAL = {
    "sum": 0,
    "premul_sum": 0,
    "product": 1,
    "min": 2,
    "max": 0,
    "band": 3,
    "bor": 0,
    "bxor": 0,
}
# What a reduce op makes of the numbers of ranks, a line for each.
_REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "sum": np.add.reduce,
    "premul_sum": lambda given: np.add.reduce(given) * int(FACTOR),
    "avg": lambda given: np.add.reduce(given) / len(given),
    "product": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "band": np.bitwise_and.reduce,
    "bor": np.bitwise_or.reduce,
    "bxor": np.bitwise_xor.reduce,
}


@dataclass(frozen=True)
class Values:
    """What ranks write into their buffers, and what a call makes of it: small whole numbers, with
    results that are exact in the dtype, in whatever order ranks are combined.

    redop: of goccl._ranks.collectives.REDOPS, or NO_OP. ranks: of the call.

    Only some ranks give an element that counts, those whose turn it is, and the others what changes
    no result: else a sum of 128 ranks would be beyond an 8-bit float, and the largest element of
    them always the same.
    """

    dtype: DType
    redop: str
    ranks: int

    def pattern(self, rank: int, seed: int) -> Array:
        """A period of what a rank gives in a checked iteration: another number for every
        element."""
        return self.dtype.encode(self._pattern(rank, seed))

    def steady(self, rank: int) -> Array:
        """What a rank gives in each of PERIOD measured iterations, the same for all elements."""
        return _steady(self, rank)

    def pattern_result(self, ranks: tuple[int, ...], seed: int) -> Array:
        """A period of what comes of the patterns of these ranks."""
        return self.dtype.encode(_pattern_result(self, ranks, seed))

    def steady_result(self, ranks: tuple[int, ...]) -> Array:
        """What comes of the steady numbers of these ranks, in each of PERIOD iterations."""
        return self.dtype.encode(self._reduced([self._levels(rank) for rank in ranks]))

    def _pattern(self, rank: int, seed: int) -> Array:
        index = np.arange(_PERIOD, dtype=np.uint64)
        own = 0 if self.redop == "avg" else rank
        mixed = (index + np.uint64(1 + own * 7919 + seed * 104729)) * np.uint64(0x9E3779B97F4A7C15)
        levels = (mixed >> np.uint64(60)).astype(np.int64) % 3
        return self._given(rank, levels, index.astype(np.int64))

    def _levels(self, rank: int) -> Array:
        levels = np.array(_LEVELS)
        if self.redop == NO_OP:
            levels = np.roll(levels, -rank)
        elif self.redop == "bxor" and rank:
            levels[:] = 0  # an even number of equal values would always give 0
        return self._given(rank, levels, np.zeros_like(levels))

    def _given(self, rank: int, levels: Array, turn: Array) -> Array:
        """What a rank gives, by levels from 0 to 2. turn: whose each element is."""
        if self.redop == "avg":
            # One rank has 1 more than the mean, and another 1 less: it is a whole number.
            more = np.equal(turn % self.ranks, rank).astype(np.int64)
            less = np.equal((turn + 1) % self.ranks, rank).astype(np.int64)
            return self._typed(levels + 1 + more - less)
        if self.redop == NO_OP:
            return self._typed(levels)
        op = self._op()
        numbers = {"product": 1 << levels, "band": levels + 1}.get(op, levels)
        active = (rank + turn) % -(-self.ranks // self._most_active()) == 0
        return np.where(active, self._typed(numbers), self._typed(np.array(_NEUTRAL[op]), unit=1))

    def _typed(self, numbers: Array, unit: complex = 1 + 1j) -> Array:
        """As numbers that the dtype has. unit: by which complex ones are multiplied."""
        if self.dtype.name == "bool":
            return numbers & 1
        return numbers * unit if self.dtype.name.startswith("complex") else numbers

    def _most_active(self) -> int:
        match self._op():
            case "sum" | "premul_sum":
                return self.dtype.whole // max(_LEVELS)
            case "product":
                return 2
        return 4

    def _op(self) -> str:
        return _OF_BOOL.get(self.redop, self.redop) if self.dtype.name == "bool" else self.redop

    def _reduced(self, given: list[Array]) -> Array:
        return given[0] if len(given) == 1 else _REDUCTIONS[self._op()](np.stack(given))


@functools.lru_cache(maxsize=256)
def _steady(values: Values, rank: int) -> Array:
    return values.dtype.encode(values._levels(rank))


@functools.lru_cache(maxsize=256)
def _pattern_result(values: Values, ranks: tuple[int, ...], seed: int) -> Array:
    return values._reduced([values._pattern(rank, seed) for rank in ranks])


def ordinary(nbytes: int) -> Array:
    """Bytes of memory as any program has it."""
    return np.empty(nbytes, dtype=np.uint8)


class Buffer:
    """Elements of one dtype, aligned to a cache line and touched.

    array: what is in them. values: what ranks write into them.
    """

    def __init__(
        self, values: Values, count: int, allocate: Callable[[int], Array] = ordinary
    ) -> None:
        self._values = values
        itemsize = np.dtype(values.dtype.storage).itemsize
        raw = allocate(count * itemsize + 64)
        skip = -raw.ctypes.data % 64
        self.array: Array = raw[skip : skip + count * itemsize].view(values.dtype.storage)
        self.array.fill(0)

    def part(self, start: int, count: int) -> Buffer:
        """Some of its elements, as a buffer on the same memory."""
        part = copy.copy(self)
        part.array = self.array[start : start + count]
        return part

    def fill(self, rank: int, iteration: int) -> None:
        """The values of a measured iteration: one for all elements, another for the next
        iteration."""
        self.array.fill(self.values(rank)[iteration % PERIOD])

    def fill_pattern(self, rank: int, seed: int) -> None:
        """The values of a checked iteration: another for every element."""
        tile = self._values.pattern(rank, seed)
        full = len(self.array) // _PERIOD * _PERIOD
        self.array[:full].reshape(-1, _PERIOD)[:] = tile
        self.array[full:] = tile[: len(self.array) - full]

    def poison(self) -> None:
        """Sets all bits: no result has such elements, which are -1, or no number."""
        self.array.view(np.uint8).fill(0xFF)

    def values(self, rank: int) -> Array:
        """The values that fill() writes in one iteration after the other, until they come back."""
        return self._values.steady(rank)

    def ends(self, iterations: int) -> Array:
        """Room for the first and the last element after each of some iterations."""
        return np.zeros((iterations, 2), self.array.dtype)

    def count_wrong_ends(self, result: list[Segment], ends: Array) -> int:
        """How many of these first and last elements are not what fill() of all ranks leads to."""
        wrong = 0
        for segment, found in zip((result[0], result[-1]), ends.T, strict=True) if result else ():
            wanted = np.resize(self._values.steady_result(segment.ranks), len(found))
            wrong += int(np.count_nonzero(found != wanted))
        return wrong

    def count_wrong(self, result: list[Segment], seed: int) -> int:
        """How many elements are not what fill_pattern() of all ranks leads to."""
        wrong = 0
        position = 0
        for segment in result:
            period = self._values.pattern_result(segment.ranks, seed)
            tile = np.roll(period, -(segment.start % _PERIOD))
            part = self.array[position : position + segment.count]
            position += segment.count
            full = len(part) // _PERIOD
            rows = part[: full * _PERIOD].reshape(full, _PERIOD)
            for first in range(0, full, _CHUNK):
                wrong += int(np.count_nonzero(rows[first : first + _CHUNK] != tile))
            rest = part[full * _PERIOD :]
            wrong += int(np.count_nonzero(rest != tile[: len(rest)]))
        return wrong
