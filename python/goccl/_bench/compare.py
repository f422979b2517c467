"""``goccl bench compare``: which rows of a run are slower or faster than those of another one.

Noise Each row holds the median of each of its blocks. A row is *slower* or *faster* where its
    median differs from the old one by more than 5 %, and a two-sided Mann-Whitney U test of the
    medians of the blocks tells them apart. Five blocks a side are the fewest by which it can. All
    else is noise. Of many rows some differ by chance: p has the limit of Benjamini and Hochberg, by
    which one in a hundred of the reported rows is noise. For one row that is 0.01.

What is compared Rows of the same library, transport, schedule, call, size, number of ranks,
    placement of CPUs, neighbours and device. Rows whose placement changed (*mixed*) are left out.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from goccl._command import add_examples

from .placement import MIXED
from .record import Run, Unreadable, read
from .report import Row, call_text, size_text
from .words import busy

SLOWER, FASTER, NOISE, UNKNOWN = "slower", "faster", "within the noise", "of too few blocks to tell"
_LEAST_CHANGE = 0.05
_MOST_P = 0.01
_MOST_EXACT = 10_000  # product of the sizes of samples
_KEYS = (
    *("library", "transport", "schedule", "collective", "dtype", "redop", "root", "in_place"),
    *("ranks", "bytes", "placement", "beside", "device"),
)
# What figures depend on, besides what tells rows apart.
_MACHINE = (
    "processor",
    "usable_cpus",
    "cpus",
    "kernel",
    "tcp_congestion_control",
    "python",
    "torch",
)
_SETTINGS = ("iters", "warmup", "blocks", "limit", "check", "plans", "environment")


@dataclass(frozen=True)
class Change:
    """Two rows of the same key, and the verdict: SLOWER, FASTER, NOISE or UNKNOWN."""

    old: Row
    new: Row
    verdict: str
    p: float

    def __str__(self) -> str:
        old, row = self.old.median_us, self.new
        parts = [f"{row.label}: {row.collective}", f"{row.ranks} ranks"]
        parts += [row.dtype + call_text(row), *(["in place"] if row.in_place else [])]
        parts += [size_text(row.bytes), row.placement]
        parts += [f"on {row.device}"] if row.device != "cpu" else []
        parts += [str(row.beside)] if row.beside else []
        return (
            f"{self.verdict:6} {row.median_us / old:6.2f} x {old:11.2f} -> {row.median_us:11.2f} us"
            f"  p {self.p:.1e}  {', '.join(parts)}"
        )


def probability(old: Sequence[float], new: Sequence[float]) -> float:
    """The two-sided p of the Mann-Whitney U test of two samples: exact for short ones, else by the
    normal distribution. Equal values count half, which errs towards noise."""
    below = sum((a < b) + (a == b) / 2 for a in new for b in old)
    return _probability_of(min(below, len(old) * len(new) - below), len(old), len(new))


def _probability_of(least: float, first: int, second: int) -> float:
    """least: the lesser U; first, second: the sizes of the samples."""
    if not first * second:
        return 1.0
    if first * second <= _MOST_EXACT:
        orders = _orders(first, second, math.ceil(least))
        return min(1.0, 2 * orders / math.comb(first + second, first))
    spread = math.sqrt(first * second * (first + second + 1) / 12)
    return min(1.0, 2 * NormalDist(first * second / 2, spread).cdf(least + 0.5))


def _orders(first: int, second: int, most: int) -> int:
    """In how many orders of two samples U is at most this: coefficients of a Gaussian binomial."""
    counts = [1] + [0] * most
    for i in range(1, first + 1):
        for u in range(most, second + i - 1, -1):
            counts[u] -= counts[u - second - i]
        for u in range(i, most + 1):
            counts[u] += counts[u - i]
    return sum(counts)


def most_p(found: Iterable[float]) -> float:
    """The greatest of these p that tells a difference, by Benjamini and Hochberg (1995); 0 for
    none."""
    ordered = sorted(found)
    limits = (_MOST_P * rank / len(ordered) for rank in range(1, len(ordered) + 1))
    return max((p for p, limit in zip(ordered, limits, strict=True) if p < limit), default=0.0)


def judge(pairs: Sequence[tuple[Row, Row]]) -> list[Change]:
    """Compares rows of the same key, the old one first."""
    found = [_probability(old, new) for old, new in pairs]
    most = most_p(p for p in found if p is not None)
    return [
        Change(old, new, UNKNOWN, 1.0)
        if p is None
        else Change(old, new, _verdict(new.median_us / old.median_us - 1, told=p <= most), p)
        for (old, new), p in zip(pairs, found, strict=True)
    ]


def _probability(old: Row, new: Row) -> float | None:
    """None where there are too few blocks to tell."""
    blocks = len(old.block_medians_us), len(new.block_medians_us)
    if _probability_of(0, *blocks) >= _MOST_P or not old.median_us:
        return None
    return probability(old.block_medians_us, new.block_medians_us)


def _verdict(change: float, *, told: bool) -> str:
    if not told or abs(change) <= _LEAST_CHANGE:
        return NOISE
    return SLOWER if change > 0 else FASTER


def key_of(row: Row) -> tuple[object, ...]:
    """What two rows have in common that are compared."""
    return tuple(getattr(row, name) for name in _KEYS)


def _by_key(rows: Iterable[Row]) -> dict[tuple[object, ...], Row]:
    return {key_of(row): row for row in rows if row.placement != MIXED}


def compare(old: Iterable[Row], new: Iterable[Row]) -> tuple[list[Change], int, int]:
    """The rows that both have, in the order of the new ones, and how many only one has."""
    before, after = _by_key(old), _by_key(new)
    both = judge([(before[key], row) for key, row in after.items() if key in before])
    return both, len(before) - len(both), len(after) - len(both)


def differences(old: Run, new: Run) -> list[str]:
    """What differs between two runs besides GoCCL: "kernel is A, and was B"."""
    return [
        f"{name} is {_shown(after.get(name))}, and was {_shown(before.get(name))}"
        for before, after, names in (
            (old.machine, new.machine, _MACHINE),
            (old.settings, new.settings, _SETTINGS),
            (old.libraries, new.libraries, _peers(old.libraries, new.libraries)),
        )
        for name in names
        if before.get(name) != after.get(name)
    ]


def _peers(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The labels that both have, without those that have the version of GoCCL, which is to
    differ."""
    return [label for label in old if label in new and not str(new[label]).startswith("libgoccl")]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items()) or "empty"
    return "unset" if value is None else str(value)


def apart(old: Iterable[Row], new: Iterable[Row]) -> str:
    """Why no row is in both: the fields of which they have no value in common."""
    before, after = list(_by_key(old)), list(_by_key(new))
    fields = zip(_KEYS, zip(*before, strict=True), zip(*after, strict=True), strict=False)
    found = [
        f"{name} is {_listed(are)}, and was {_listed(were)}"
        for name, were, are in fields
        if not set(were) & set(are)
    ]
    return "; ".join(found) or "their rows differ in more than one way"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``goccl bench compare``."""
    add_examples(
        parser,
        [
            "goccl bench allreduce --json before.json",
            "goccl bench allreduce --json after.json",
            "goccl bench compare before.json after.json",
        ],
        {
            0: "no row is slower",
            1: "a row is slower",
            2: "wrong arguments, a file that is no result of goccl bench --json, or no row in both",
        },
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="what goccl bench --json wrote")
    parser.add_argument(
        "new",
        type=Path,
        metavar="NEW",
        help="another one. A row is slower or faster where its median differs by more than "
        f"{100 * _LEAST_CHANGE:g} %%, and a Mann-Whitney U test of the medians of the blocks, five"
        f" a side at least, tells them apart (p < {_MOST_P}, and less with many rows)."
        " Another machine, other settings and other versions of"
        " peers are warned of. Rows in whose blocks the placement of CPUs changed are left out",
    )


def main(args: argparse.Namespace) -> int:
    """Runs the command. 0: no row is slower; 1: one is; 2: there is nothing to compare."""
    try:
        old, new = read(args.old), read(args.new)
    except Unreadable as error:
        print(f"goccl bench compare: {error}", file=sys.stderr)
        return 2
    changes, only_old, only_new = compare(old.rows, new.rows)
    if not changes:
        why = apart(old.rows, new.rows)
        print(f"goccl bench compare: no row is in both files: {why}", file=sys.stderr)
        return 2
    warnings = differences(old, new)
    for path, run in ((args.old, old), (args.new, new)):
        if busy(run.machine.get("load", 0), run.machine.get("cpus", 1)):
            warnings.append(f"{path} is of a busy host: its load was {run.machine['load']}")
        if any(each.wrong for each in run.rows):
            warnings.append(f"{path} has results that were wrong")
        if run.ended is None:
            warnings.append(f"{path} is of a run that was killed, or is not over")
    for warning in warnings:
        print(f"goccl bench compare: warning: {warning}", file=sys.stderr)
    counts = Counter(change.verdict for change in changes)
    for change in changes:
        if change.verdict in (SLOWER, FASTER):
            print(change)
    told = [f"{counts[verdict]} {verdict}" for verdict in (SLOWER, FASTER, NOISE, UNKNOWN)]
    alone = f"{only_old} only in {args.old}, {only_new} only in {args.new}"
    print(f"# {len(changes)} rows compared: {', '.join(told)}; {alone}")
    return 1 if counts[SLOWER] else 0
