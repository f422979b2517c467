"""What libraries, placements and sizes are called for people who have not read the method."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from statistics import median

from .libraries import ABI, CPU, GOCCL, PLANS, SURVIVORS, is_mpi
from .placement import FAR, MIXED, NEAR
from .report import OURS, Row, base_of, call_text, ratio, size_text, way_of

_NAMES = {
    GOCCL["torch"]: "GoCCL from PyTorch",
    GOCCL["torch"] + CPU: "GoCCL with tensors of the CPU",
    GOCCL["c"]: "GoCCL from C",
    GOCCL["numpy"]: "GoCCL from NumPy",
    SURVIVORS: 'GoCCL with recovery="survivors"',
    "gloo": "Gloo",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "impi": "Intel MPI",
    ABI: "an MPI by its ABI",
}
_TRANSPORTS = {
    "shm": "shared memory",
    "tcp": "TCP",
    "verbs": "RDMA",
    "mapped": "shared buffers",
    "auto": "",
}
_PLACES = {NEAR: "CPUs that share a cache", FAR: "CPUs that share no cache"}
_COLOURS = {
    ("goccl", "shm"): "C0",
    ("goccl", "tcp"): "C9",
    ("goccl", "verbs"): "navy",
    ("goccl", "mapped"): "royalblue",
    ("goccl-c", "shm"): "C2",
    ("goccl-c", "tcp"): "C8",
    ("goccl-c", "verbs"): "darkgreen",
    ("goccl-c", "mapped"): "limegreen",
    ("goccl-numpy", "shm"): "darkorchid",
    ("goccl-numpy", "tcp"): "plum",
    ("goccl-numpy", "mapped"): "indigo",
    ("gloo", "tcp"): "C3",
    ("openmpi", "auto"): "C1",
    ("mpich", "auto"): "C4",
    ("impi", "auto"): "C5",
    (ABI, "auto"): "sienna",
}
_OTHERS = ("C6", "C7", "black", "teal", "olive", "gold")  # of schedules
_EQUAL = 0.05  # of a ratio: no difference
_BUSY = 0.5  # of the CPUs: a load that makes figures doubtful


def library(label: str) -> str:
    """Names a library by its label: "GoCCL from C, shared memory"."""
    name, _, rest = label.partition("/")
    transport, _, schedule = rest.partition("/")
    plain = name.removesuffix(PLANS)
    called = _NAMES.get(plain, plain) + (" with programs" if name != plain else "")
    parts = [called, _TRANSPORTS.get(transport, transport), schedule]
    return ", ".join(part for part in parts if part)


def place(placement: str) -> str:
    """Where the CPUs of ranks were: "CPUs that share a cache"; "" where that is not known."""
    return _PLACES.get(placement, "")


def colours(labels: Sequence[str]) -> dict[str, str]:
    """A colour for each label. Those of libraries are the same whatever else is drawn."""
    others = itertools.cycle(_OTHERS)
    found = {}
    for label in labels:
        name, _, rest = label.partition("/")
        found[label] = _COLOURS.get((name, rest)) or next(others)
    return found


def _in_words(nbytes: int) -> str:
    text = size_text(nbytes)
    return f"{text[:-1]} {text[-1]}iB" if text[-1].isalpha() else f"{text} bytes"


def conclusion(rows: Sequence[Row]) -> list[str]:
    """Says in words how GoCCL compares with each other library, a line for each and each
    collective.

    Args:
        rows: all that was measured.

    Returns:
        The lines; none where there is nothing to compare with.
    """
    lines = []
    labels = list(dict.fromkeys(row.label for row in rows))
    peers = [row for row in rows if row.library not in OURS and row.placement != MIXED]
    for call, ranks, label in dict.fromkeys((row.call, row.ranks, row.label) for row in peers):
        its = [row for row in peers if (row.call, row.ranks, row.label) == (call, ranks, label)]
        base = base_of(its[0], labels)
        if not base or (is_mpi(its[0].library) and way_of(base) != GOCCL["c"]):
            continue
        times: dict[int, list[float]] = {}
        for row in its:
            if (value := ratio(row, rows, base)) is not None:
                times.setdefault(row.bytes, []).append(value)
        if times:
            by_size = {nbytes: median(values) for nbytes, values in sorted(times.items())}
            dtype = f", {its[0].dtype}" if len({row.dtype for row in rows}) > 1 else ""
            what = f"{its[0].collective}, {ranks} ranks{dtype}{call_text(its[0], rows)}, "
            what += library(base)
            lines.append(f"{what}: {_compared(by_size, library(label))}.")
    return lines


def _compared(by_size: dict[int, float], peer: str) -> str:
    """How many times as fast as a peer, over sizes."""
    faster = {nbytes: times for nbytes, times in by_size.items() if times > 1 + _EQUAL}
    slower = {nbytes: times for nbytes, times in by_size.items() if times < 1 - _EQUAL}
    equal = [nbytes for nbytes in by_size if nbytes not in faster and nbytes not in slower]
    parts = []
    if faster:
        parts.append(f"{_range(faster.values())} times as fast as {peer}{_at(faster)}")
    if equal:
        parts.append(f"as fast as {peer}{_at(equal)}")
    if slower:
        parts.append(f"slower than {peer}{_at(slower)}, at {_range(slower.values())} of its speed")
    return "; ".join(parts)


def _range(values: Iterable[float]) -> str:
    low, high = min(values := list(values)), max(values)
    texts = list(
        dict.fromkeys(f"{value:.0f}" if value >= 10 else f"{value:.2g}" for value in (low, high))
    )
    return " to ".join(texts)


def _at(sizes: Iterable[int]) -> str:
    texts = [_in_words(nbytes) for nbytes in sizes if nbytes]
    if not texts:
        return ""
    return f" at {', '.join(texts[:-1])} and {texts[-1]}" if texts[1:] else f" at {texts[0]}"


def busy(load: float, cpus: int) -> bool:
    """Whether other programs kept a host's CPUs busy, so that figures are doubtful."""
    return load > _BUSY * cpus


def load_warning() -> str:
    """Warns of programs that keep the host's CPUs busy before the run; "" where few do."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if not busy(load, cpus):
        return ""
    return (
        f"the load of this host is {load:.1f} with {cpus} CPUs: other programs keep them busy, and "
        "the figures are not those of an idle host"
    )
