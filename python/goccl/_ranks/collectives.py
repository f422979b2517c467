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
    "int32": 4,
    "int64": 8,
}
"""Bytes of an element of every dtype that can be benched."""

MOST_RANKS = 128
"""That can be benched: so many values from 0 to 2, by which results are checked, have an exact sum
in every dtype. bfloat16 holds the whole numbers up to 256."""


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


@dataclass(frozen=True)
class Layout:
    """The buffers of one rank, in elements. The result is in the input buffer where in_place is
    set."""

    send: int
    recv: int
    in_place: bool


def layout(collective: str, rank: int, ranks: int, count: int) -> Layout:
    """The buffers that `rank` needs for a collective whose larger buffer has `count` elements."""
    block = count // ranks
    root = rank == ROOT
    match collective:
        case "allreduce" | "broadcast" | "reduce":
            return Layout(count, 0, True)
        case "allgather":
            return Layout(block, count, False)
        case "reduce_scatter":
            return Layout(count, block, False)
        case "gather":
            return Layout(block, count if root else 0, False)
        case "scatter":
            return Layout(count if root else 0, block, False)
        case "alltoall" | "sendrecv":
            return Layout(count, count, False)
        case "pingpong":
            return Layout(count, count, False) if rank in PLAYERS else Layout(0, 0, True)
        case "barrier":
            return Layout(0, 0, True)
    raise ValueError(f"unknown collective {collective!r}")


@dataclass(frozen=True)
class Segment:
    """A part of a result: the sum over `ranks` of `count` elements of their inputs, from `start`
    on."""

    ranks: tuple[int, ...]
    start: int
    count: int


def expected(collective: str, rank: int, ranks: int, count: int) -> list[Segment]:
    """What `rank` must hold afterwards, in order. Empty where the rank has no result."""
    everyone = tuple(range(ranks))
    block = count // ranks
    match collective:
        case "allreduce":
            return [Segment(everyone, 0, count)]
        case "reduce":
            return [Segment(everyone, 0, count)] if rank == ROOT else []
        case "broadcast":
            return [Segment((ROOT,), 0, count)]
        case "allgather":
            return [Segment((peer,), 0, block) for peer in everyone]
        case "gather":
            return [Segment((peer,), 0, block) for peer in everyone] if rank == ROOT else []
        case "reduce_scatter":
            return [Segment(everyone, rank * block, block)]
        case "scatter":
            return [Segment((ROOT,), rank * block, block)]
        case "alltoall":
            return [Segment((peer,), rank * block, block) for peer in everyone]
        case "sendrecv":
            return [Segment(((rank - 1) % ranks,), 0, count)]
        case "pingpong":
            return [Segment((1 - rank,), 0, count)] if rank in PLAYERS else []
        case "barrier":
            return []
    raise ValueError(f"unknown collective {collective!r}")


def bandwidth(collective: str, ranks: int, nbytes: int, seconds: float) -> tuple[float, float]:
    """Algorithm and bus bandwidth in GB/s."""
    if seconds <= 0:
        return 0.0, 0.0
    algorithm = nbytes / seconds / 1e9
    return algorithm, algorithm * COLLECTIVES[collective](ranks)
