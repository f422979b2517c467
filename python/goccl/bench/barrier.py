"""A barrier of shared memory: ranks start an iteration together without help of the library under test."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

_LINE = 128  # bytes between the counters of two ranks: no line is shared, nor fetched with its neighbour
_SPINS = 200  # looks at a counter before the CPU is offered to others
_CHECK_EVERY = 1024  # looks between two looks at the clock


class BarrierTimeout(Exception):
    """Not all ranks came in time; the text names those that did not."""


def create(ranks: int) -> int:
    """Descriptor of the memory of a barrier; it has no name and goes away with its last user."""
    fd = os.memfd_create("goccl-bench-barrier", os.MFD_CLOEXEC)
    os.ftruncate(fd, ranks * _LINE)
    return fd


class SpinBarrier:
    """One rank's end of a barrier. Each rank writes its own counter only, so no atomic addition is needed.

    All of its state is in the shared memory, at `address`, where goccl_core_measure() goes on with it.
    """

    def __init__(self, fd: int, rank: int, ranks: int, timeout: float) -> None:
        self._memory = mmap.mmap(fd, ranks * _LINE)
        self._counters = memoryview(self._memory).cast("Q")
        self._slots = [peer * _LINE // 8 for peer in range(ranks)]
        self._own = self._slots[rank]
        self._others = [slot for slot in self._slots if slot != self._own]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.timeout = timeout
        # Spinning while a rank that is waited for has no CPU only keeps it from coming.
        self._spins = _SPINS if ranks <= len(os.sched_getaffinity(0)) else 0

    def wait(self) -> None:
        """Returns when all ranks have called it as often as this one."""
        counters = self._counters
        counters[self._own] = turn = counters[self._own] + 1
        looks = 0
        deadline = 0.0
        for slot in self._others:
            while counters[slot] < turn:
                looks += 1
                if looks > self._spins:
                    os.sched_yield()
                if looks % _CHECK_EVERY == 0:
                    now = time.monotonic()
                    deadline = deadline or now + self.timeout
                    if now > deadline:
                        self._give_up()

    def _give_up(self) -> None:
        turn = self._counters[self._own]
        absent = [rank for rank, slot in enumerate(self._slots) if self._counters[slot] < turn]
        raise BarrierTimeout(
            f"ranks {absent} did not come to the start of an iteration in {self.timeout:g} s"
        )
