"""Barriers by which ranks start an iteration together, without help of the library under test."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import socket
import time
from collections.abc import Mapping

# bytes between two words: no line is shared, nor fetched with its neighbour
_LINE = 128
_WORD = 4
_COUNT, _TURN, _FIRST = (line * _LINE // _WORD for line in range(3))
_RANGE = 1 << 32  # of a word, where it begins anew
_SPINS = 200  # looks at the turn before the CPU is offered to others
_YIELDS = 200  # before a rank sleeps at the start of a call, where ranks outnumber the CPUs
_CHECK_EVERY = 1024  # looks between two looks at the clock
# The C library has no function for it.
_SYS_FUTEX = {"x86_64": 202}.get(platform.machine(), 98)
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAKE_OP = 0, 1, 5
_ADD_ONE = 1 << 28 | 1 << 12  # FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0)
_ALL = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class BarrierTimeout(Exception):
    """Not all ranks came in time; the text names those that did not."""


def size(ranks: int) -> int:
    """Bytes of the memory of a barrier: a line with the count, one with the turn, one a rank."""
    return (2 + ranks) * _LINE


def create(ranks: int) -> int:
    """Descriptor of the memory of a barrier; it has no name and goes away with its last user."""
    fd = os.memfd_create("goccl-bench-barrier", os.MFD_CLOEXEC)
    os.ftruncate(fd, size(ranks))
    return fd


class Barrier:
    """One rank's end of a barrier. Each rank that comes is counted; the last one sets the turn,
    for which the others wait. A rank's own word says how often it has come, for who looks for the
    absent.

    Where every rank has a CPU it spins, and ranks start within a microsecond of each other. Where
    they outnumber the CPUs it sleeps: a rank that spins, even one that yields, may go on for as
    long as the scheduler likes, on a CPU that those who are not done need. So may one that is woken
    before the last has come, so all sleep on one word, which changes when all have.

    All of its state is in the shared memory, at `address`, where goccl_bench_measure() goes on with
    it.
    """

    def __init__(self, fd: int, rank: int, ranks: int, timeout: float) -> None:
        self._memory = mmap.mmap(fd, size(ranks))
        self._words = memoryview(self._memory).cast("I")
        self._slots = [_FIRST + peer * _LINE // _WORD for peer in range(ranks)]
        self._own = self._slots[rank]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.timeout = timeout
        self._syscall = ctypes.CDLL(None).syscall
        self._sleeps = ranks > len(os.sched_getaffinity(0))

    def wait(self, starts: bool = False) -> None:
        """Returns when all ranks have called it as often as this one.

        Where something small starts ranks yield for a while before they sleep: to be woken takes
        longer, and what is measured would be that.
        """
        words = self._words
        turn = (words[self._own] + 1) % _RANGE
        words[self._own] = turn
        self._count()
        # Two that come at once may both find themselves the last: then both set the same turn.
        if (words[_COUNT] - turn * len(self._slots)) % _RANGE < _RANGE // 2:
            words[_TURN] = turn
            if self._sleeps:
                self._futex(_TURN, _FUTEX_WAKE, _ALL)
        elif self._sleeps:
            self._sleep(turn, _YIELDS if starts else 0)
        else:
            self._spin(turn)

    def _spin(self, turn: int) -> None:
        words = self._words
        looks = 0
        deadline = 0.0
        while words[_TURN] != turn:
            looks += 1
            if looks > _SPINS:
                os.sched_yield()
            if looks % _CHECK_EVERY == 0:
                now = time.monotonic()
                deadline = deadline or now + self.timeout
                if now > deadline:
                    self._look_for_absent(turn)

    def _sleep(self, turn: int, yields: int) -> None:
        words = self._words
        deadline = time.monotonic() + self.timeout
        while words[_TURN] != turn:
            if yields > 0:
                yields -= 1
                os.sched_yield()
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                self._look_for_absent(turn)
                continue
            whole = int(left)
            limit = _Timespec(whole, int((left - whole) * 1e9))
            self._futex(_TURN, _FUTEX_WAIT, (turn - 1) % _RANGE, ctypes.byref(limit))

    def _count(self) -> None:
        # An atomic addition, which Python has not. Nobody sleeps on the words that it wakes: those
        # who wait for the last rank sleep on the turn.
        self._futex(self._own, _FUTEX_WAKE_OP, 0, None, _COUNT, _ADD_ONE)

    def _futex(
        self,
        word: int,
        operation: int,
        value: int,
        limit: object = None,
        other: int = _COUNT,
        change: int = 0,
    ) -> None:
        self._syscall(
            ctypes.c_long(_SYS_FUTEX),
            ctypes.c_void_p(self.address + _WORD * word),
            ctypes.c_int(operation),
            ctypes.c_uint(value),
            limit,
            ctypes.c_void_p(self.address + _WORD * other),
            ctypes.c_uint(change),
        )

    def _look_for_absent(self, turn: int) -> None:
        absent = [rank for rank, slot in enumerate(self._slots) if self._words[slot] != turn]
        if absent:  # else the last one has come, and is about to set the turn
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
