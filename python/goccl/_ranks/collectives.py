"""What each collective moves, what comes out of it, and how its bandwidth is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ROOT = 0

ITEMSIZE = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "bool": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "bytes1": 1,
}
"""Bytes of an element of every dtype that can be benched: all of goccl_dtype."""

REDOPS = ("sum", "product", "min", "max", "avg", "band", "bor", "bxor", "premul_sum")
"""Every reduce op that can be benched: all of goccl_reduce_op."""

NO_OP, NO_ROOT = "none", -1
"""The reduce op and the root of a collective that has none."""

MOST_RANKS = 128
"""That can be benched: sums of so many values from 0 to 2, by which results are checked, are exact
in every dtype of 16 bits and more. bfloat16 holds the whole numbers up to 256."""


def has_meaning(dtype: str, redop: str) -> bool:
    """Whether a reduce op has a meaning for a dtype, as goccl.h says."""
    if dtype == "bytes1":
        return False
    if dtype == "bool":
        return redop not in ("avg", "premul_sum")
    if dtype.startswith("complex"):
        return redop in ("sum", "avg", "product", "premul_sum")
    return "float" not in dtype or redop not in ("band", "bor", "bxor")


def _whole(ranks: int) -> float:
    return 1.0


def _without_own_block(ranks: int) -> float:
    return (ranks - 1) / ranks


def _there_and_back(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


COLLECTIVES: dict[str, Callable[[int], float]] = {
    "allreduce": _there_and_back,
    "broadcast": _whole,
    "reduce": _whole,
    "allgather": _without_own_block,
    "reduce_scatter": _without_own_block,
    "gather": _without_own_block,
    "scatter": _without_own_block,
    "alltoall": _without_own_block,
    "sendrecv": _whole,
    "pingpong": _whole,
    "barrier": _whole,
}
"""Every collective that can be benched, with the factor from algorithm to bus bandwidth."""

_IN_BLOCKS = frozenset({"allgather", "reduce_scatter", "gather", "scatter", "alltoall"})

PLAYERS = (0, 1)
"""The ranks of a ping-pong; the others only come to the barrier."""

TWICE = frozenset({"pingpong"})
"""Calls of these are made twice, and the second one counts. The first one begins as ranks leave the
barrier, one after the other, and the second one as in a loop of round trips."""


def counted(collective: str, rank: int) -> float:
    """The part of a call's time that counts: of a ping-pong half of that of rank 0."""
    if collective != "pingpong":
        return 1.0
    return 0.5 if rank == ROOT else 0.0


def element_count(collective: str, ranks: int, nbytes: int, itemsize: int) -> int:
    """Elements of the larger buffer: nbytes, rounded up to whole elements and to equal blocks."""
    if collective == "barrier":
        return 0
    unit = itemsize * (ranks if collective in _IN_BLOCKS else 1)
    return -(-nbytes // unit) * unit // itemsize


_REDUCING = frozenset({"allreduce", "reduce", "reduce_scatter"})
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_PLACES = {
    "allreduce": (True, False),
    "broadcast": (True,),
    "reduce": (True, False),
    "allgather": (False, True),
    "reduce_scatter": (False, True),
    "gather": (False, True),
    "scatter": (False, True),
}


def places(collective: str) -> tuple[bool, ...]:
    """Whether a collective is in place, in each form that it has. The usual form is first."""
    return _PLACES.get(collective, (False,))


@dataclass(frozen=True)
class Call:
    """A collective with what all ranks give to it. count: elements of the larger buffer."""

    collective: str
    ranks: int
    count: int
    dtype: str
    redop: str
    root: int
    in_place: bool

    def __str__(self) -> str:
        """Names the table that it stands in: "allreduce, 2 ranks, float32", and what is not as
        usual."""
        parts = [self.collective, f"{self.ranks} ranks", self.dtype]
        parts += [self.redop] if self.redop not in (NO_OP, "sum") else []
        parts += [f"root {self.root}"] if self.root not in (NO_ROOT, ROOT) else []
        return ", ".join(parts)


def call_of(
    collective: str,
    ranks: int,
    count: int,
    dtype: str = "float32",
    *,
    redop: str = "sum",
    root: int = ROOT,
    in_place: bool | None = None,
) -> Call:
    """A call without what its collective has not: a dtype, a reduce op, a root, or a form in place,
    or out of it. None: in its usual form."""
    forms = places(collective)
    return Call(
        collective=collective,
        ranks=ranks,
        count=count,
        dtype="float32" if collective == "barrier" else dtype,
        redop=redop if collective in _REDUCING else NO_OP,
        root=root if collective in _ROOTED else NO_ROOT,
        in_place=forms[0] if in_place not in forms else bool(in_place),
    )


@dataclass(frozen=True)
class Layout:
    """The buffers of one rank, in elements: what it gives, and what it gets.

    In place they are one buffer. A smaller one of them is the rank's own block of the other one.
    """

    send: int
    recv: int


def layout(call: Call, rank: int) -> Layout:
    """The buffers that `rank` needs for a call."""
    count, block = call.count, call.count // call.ranks
    root = rank == call.root
    match call.collective:
        case "allreduce" | "broadcast" | "alltoall" | "sendrecv":
            return Layout(count, count)
        case "reduce":
            return Layout(count, count if root else 0)
        case "allgather":
            return Layout(block, count)
        case "reduce_scatter":
            return Layout(count, block)
        case "gather":
            return Layout(block, count if root else 0)
        case "scatter":
            return Layout(count if root else 0, block)
        case "pingpong":
            return Layout(count, count) if rank in PLAYERS else Layout(0, 0)
        case "barrier":
            return Layout(0, 0)
    raise ValueError(f"unknown collective {call.collective!r}")


def own_block(smaller: int, larger: int, rank: int) -> int:
    """Where the smaller buffer of a rank lies in the larger one, in place, in elements."""
    return rank * smaller if smaller < larger else 0


@dataclass(frozen=True)
class Segment:
    """A part of a result: what the reduce op makes of `count` elements of the inputs of `ranks`,
    from `start` on; or those of the only rank."""

    ranks: tuple[int, ...]
    start: int
    count: int


def expected(call: Call, rank: int) -> list[Segment]:
    """What `rank` must hold afterwards, in order. Empty where the rank has no result."""
    ranks, count = call.ranks, call.count
    everyone = tuple(range(ranks))
    block = count // ranks
    root = rank == call.root
    match call.collective:
        case "allreduce":
            return [Segment(everyone, 0, count)]
        case "reduce":
            return [Segment(everyone, 0, count)] if root else []
        case "broadcast":
            return [Segment((call.root,), 0, count)]
        case "allgather":
            return [Segment((peer,), 0, block) for peer in everyone]
        case "gather":
            return [Segment((peer,), 0, block) for peer in everyone] if root else []
        case "reduce_scatter":
            return [Segment(everyone, rank * block, block)]
        case "scatter":
            return [Segment((call.root,), rank * block, block)]
        case "alltoall":
            return [Segment((peer,), rank * block, block) for peer in everyone]
        case "sendrecv":
            return [Segment(((rank - 1) % ranks,), 0, count)]
        case "pingpong":
            return [Segment((1 - rank,), 0, count)] if rank in PLAYERS else []
        case "barrier":
            return []
    raise ValueError(f"unknown collective {call.collective!r}")


def bandwidth(collective: str, ranks: int, nbytes: int, seconds: float) -> tuple[float, float]:
    """Algorithm and bus bandwidth in GB/s."""
    if seconds <= 0:
        return 0.0, 0.0
    algorithm = nbytes / seconds / 1e9
    return algorithm, algorithm * COLLECTIVES[collective](ranks)
