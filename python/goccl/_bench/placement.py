"""Tells whether the CPUs share a last-level cache at the moment."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from goccl._ranks.libraries import BENCH_LIBRARY

NEAR, FAR, MIXED, UNKNOWN = "near", "far", "mixed", "unknown"
FAR_FROM_NS = 200.0

Probe = Callable[[], float | None]


def tag(before: float | None, after: float | None) -> str:
    """The placement of a block from the round trips in ns before and after it; None is a failed
    probe."""
    if before is None or after is None:
        return UNKNOWN
    ends = {FAR if ns >= FAR_FROM_NS else NEAR for ns in (before, after)}
    return ends.pop() if len(ends) == 1 else MIXED


def open_probe(library: Path = BENCH_LIBRARY) -> tuple[Probe, str]:
    """A function that measures the round trip in ns, and why it cannot, or ""."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        return no_probe, "this process may use one CPU only"
    try:
        round_trip = ctypes.CDLL(str(library)).goccl_bench_round_trip
    except (OSError, AttributeError) as error:
        return no_probe, f"no probe: {error}"
    round_trip.argtypes = [ctypes.c_int, ctypes.c_int]
    round_trip.restype = ctypes.c_double

    def probe() -> float | None:
        ns: float = round_trip(cpus[0], cpus[1])
        return ns if ns >= 0 else None

    return probe, ""


def no_probe() -> float | None:
    """Of ranks whose CPUs cannot be compared."""
    return None
