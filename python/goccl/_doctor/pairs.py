"""Which pairs of ranks are measured at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]


def rounds(ranks: Sequence[int]) -> list[list[Pair]]:
    """Makes a tournament: every pair meets once, and in a round no rank is in two pairs.

    Args:
        ranks: any numbers, each once.

    Returns:
        The rounds, each a list of pairs, the lower number first.
    """
    circle: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    made = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        facing = zip(circle[:half], reversed(circle[half:]), strict=True)
        made.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        circle[1:] = [circle[-1], *circle[1:-1]]
    return made


def batches(
    ranks: Sequence[int], hosts: Mapping[int, str], cpus: Mapping[int, int]
) -> list[list[Pair]]:
    """Makes a tournament in which no host has more ranks at work than CPUs, where they would be
    slow.

    Args:
        ranks: who takes part.
        hosts: of each rank.
        cpus: that each rank may use.

    Returns:
        As rounds(). A host has one pair at work, even if it has one CPU only.
    """
    made = []
    for pairs in rounds(ranks):
        while pairs:
            working: Counter[str] = Counter()
            batch: list[Pair] = []
            later: list[Pair] = []
            for pair in pairs:
                more = Counter(hosts[rank] for rank in pair)
                fits = all(
                    working[hosts[r]] + more[hosts[r]] <= max(cpus[r], more[hosts[r]]) for r in pair
                )
                (batch if fits else later).append(pair)
                if fits:
                    working += more
            made.append(batch)
            pairs = later
    return made
