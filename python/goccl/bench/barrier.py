"""Barriers by which ranks start an iteration together, without help of the library under test."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import socket
import time
from collections.abc import Mapping

# bytes between the counters of two ranks: no line is shared, nor fetched with its neighbour
_LINE = 128
_LAST = _LINE // 2 // 8  # in the line of rank 0: the turn that the last rank has come to
_SPINS = 200  # looks at a counter before the CPU is offered to others
_YIELDS = 200  # before a rank sleeps at the start of a call, where ranks outnumber the CPUs
_CHECK_EVERY = 1024  # looks between two looks at the clock
# The C library has no function for it. It looks at 32 bits: on these machines, the lower half of a
# counter.
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_ALL = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class BarrierTimeout(Exception):
    """Not all ranks came in time; the text names those that did not."""


def create(ranks: int) -> int:
    """Descriptor of the memory of a barrier; it has no name and goes away with its last user."""
    fd = os.memfd_create("goccl-bench-barrier", os.MFD_CLOEXEC)
    os.ftruncate(fd, ranks * _LINE)
    return fd


class Barrier:
    """One rank's end of a barrier. Each rank counts for itself, so no atomic addition is needed.

    Where every rank has a CPU it spins, and ranks start within a microsecond of each other. Where
    they outnumber the CPUs it sleeps: a rank that spins, even one that yields, may go on for as
    long as the scheduler likes, on a CPU that those who are not done need. So may one that is woken
    before the last has come, so all sleep on one word, which changes when all have.

    All of its state is in the shared memory, at `address`, where goccl_bench_measure() goes on with
    it.
    """

    def __init__(self, fd: int, rank: int, ranks: int, timeout: float) -> None:
        self._memory = mmap.mmap(fd, ranks * _LINE)
        self._counters = memoryview(self._memory).cast("Q")
        self._slots = [peer * _LINE // 8 for peer in range(ranks)]
        self._own = self._slots[rank]
        self._others = [slot for slot in self._slots if slot != self._own]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.timeout = timeout
        self._syscall = ctypes.CDLL(None).syscall
        self._futex = _SYS_FUTEX.get(platform.machine(), 0)
        self._sleeps = ranks > len(os.sched_getaffinity(0)) and self._futex != 0

    def wait(self, starts: bool = False) -> None:
        """Returns when all ranks have called it as often as this one.

        Where something small starts ranks yield for a while before they sleep: to be woken takes
        longer, and what is measured would be that.
        """
        counters = self._counters
        counters[self._own] = turn = counters[self._own] + 1
        if self._sleeps:
            self._sleep(turn, _YIELDS if starts else 0)
        else:
            self._spin(turn)

    def _spin(self, turn: int) -> None:
        counters = self._counters
        looks = 0
        deadline = 0.0
        for slot in self._others:
            while counters[slot] < turn:
                looks += 1
                if looks > _SPINS:
                    os.sched_yield()
                if looks % _CHECK_EVERY == 0:
                    now = time.monotonic()
                    deadline = deadline or now + self.timeout
                    if now > deadline:
                        self._give_up()

    def _sleep(self, turn: int, yields: int) -> None:
        counters = self._counters
        # Wakes nobody. But before it looks for sleepers Linux has a full memory barrier: of two
        # ranks that come at once one sees the other.
        self._call(self._own, _FUTEX_WAKE, _ALL, None)
        deadline = time.monotonic() + self.timeout
        while any(counters[slot] < turn for slot in self._others):
            if yields > 0:
                yields -= 1
                os.sched_yield()
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                self._give_up()
            whole = int(left)
            limit = _Timespec(whole, int((left - whole) * 1e9))
            self._call(_LAST, _FUTEX_WAIT, (turn - 1) & 0xFFFFFFFF, ctypes.byref(limit))
        if counters[_LAST] != turn:
            counters[_LAST] = turn
            self._call(_LAST, _FUTEX_WAKE, _ALL, None)

    def _call(self, slot: int, operation: int, value: int, limit: object) -> None:
        word = ctypes.c_void_p(self.address + 8 * slot)
        self._syscall(
            ctypes.c_long(self._futex),
            word,
            ctypes.c_int(operation),
            ctypes.c_uint(value),
            limit,
            None,
            0,
        )

    def _give_up(self) -> None:
        turn = self._counters[self._own]
        absent = [rank for rank, slot in enumerate(self._slots) if self._counters[slot] < turn]
        raise _timeout(absent, self.timeout)


class HostBarrier:
    """One rank's end of a barrier of ranks that share no memory: each tells each that it has
    come."""

    def __init__(self, links: Mapping[int, socket.socket], timeout: float) -> None:
        self._links = links
        self._timeout = timeout

    def wait(self, starts: bool = False) -> None:
        """Returns when all ranks have called it as often as this one."""
        deadline = time.monotonic() + self._timeout
        for link in self._links.values():
            link.settimeout(self._timeout)
            link.sendall(b"\0")
        for rank, link in self._links.items():
            link.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                if not link.recv(1):
                    raise ConnectionError(f"rank {rank} has left the barrier")
            except TimeoutError as error:
                raise _timeout([rank], self._timeout) from error


def _timeout(absent: list[int], seconds: float) -> BarrierTimeout:
    return BarrierTimeout(
        f"ranks {absent} did not come to the start of an iteration in {seconds:g} s"
    )
