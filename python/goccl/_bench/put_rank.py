"""One of the two ranks of ``goccl bench put``: see put.py.

An MPI's launcher starts both. For GoCCL there is a process that forks them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from goccl import _capi
from goccl._ranks import capi, wire
from goccl._ranks.adapters import Setup
from goccl._ranks.buffers import Array, ordinary
from goccl._ranks.children import fork_on_request
from goccl._ranks.libraries import BENCH_LIBRARY, CORE, Unavailable

from .adapters import MpiAdapter

_RANKS = 2
_LINE = 128  # bytes
_REMOTE_READ_WRITE = 3
_WARM_UP, _SAMPLES = 10, 50  # as of put.c
_LOOKS_A_CLOCK = 64


class End(ABC):
    """A rank's end of the library under test. Set by join(): rank, version, and kind, which says
    how it reaches its peer."""

    rank: int
    version: str
    kind = ""

    @abstractmethod
    def unique_id(self) -> bytes:
        """What both ranks are to be given by join(); asked of one of them."""

    @abstractmethod
    def join(self, unique_id: bytes) -> None:
        """Meets the other rank, and makes the buffers. Unavailable where that cannot work."""

    @abstractmethod
    def block(self, what: str, nbytes: int, iterations: int, *, attend: bool) -> list[float]:
        """Runs a block, as goccl_bench_put() does, and returns its times in µs, at rank 0."""

    @abstractmethod
    def leave(self) -> None:
        """Ends the group in good order."""


class _BenchEnd(ctypes.Structure):
    """goccl_bench_end."""

    _fields_ = (
        ("comm", ctypes.c_uint64),
        ("channel", ctypes.c_uint64),
        ("peer", ctypes.c_uint64),
        ("mine", ctypes.c_uint64),
        ("own", ctypes.c_void_p),
        ("near", ctypes.c_void_p),
        ("other", ctypes.c_void_p),
        ("shared", ctypes.c_void_p),
        ("shared_bytes", ctypes.c_uint64),
        ("socket", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("timeout_ms", ctypes.c_int64),
    )


class GocclEnd(End):
    """GoCCL by its C functions. Shared memory and the socket are what it is held to."""

    def __init__(self, setup: dict[str, Any], fds: list[int]) -> None:
        self.rank = int(setup["rank"])
        self._timeout = float(setup["timeout"])
        self._most = int(setup["most"])
        shared, connection = fds
        self._socket = socket.socket(fileno=connection)
        self._shared = mmap.mmap(shared, 0)
        os.close(shared)
        self._shared_bytes = int(setup["shared_bytes"])
        self._core = capi.Core()
        self._library = _capi.library()
        try:
            self._put = ctypes.CDLL(str(BENCH_LIBRARY)).goccl_bench_put
        except (OSError, AttributeError) as error:
            raise Unavailable(str(error)) from error
        self._put.restype = ctypes.c_char_p
        self._put.argtypes = (
            ctypes.POINTER(_BenchEnd),
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_uint64),
        )
        self.version = f"libgoccl {self._core.version}"

    def unique_id(self) -> bytes:
        return self._core.unique_id()

    def join(self, unique_id: bytes) -> None:
        self._buffers = [ordinary(self._most), ordinary(self._most)]
        for buffer in self._buffers:
            buffer.fill(1)
        comm, channel, kind = 0, ctypes.c_uint64(), ctypes.c_char_p()
        mine, both = ctypes.c_uint64(), (ctypes.c_uint64 * _RANKS)()
        try:
            comm = self._core.init(unique_id, self.rank, _RANKS, self._timeout)
            self._own = self._core.allocate(self._most)
            self._own.fill(1)
            self._call(
                "memory_register",
                ctypes.c_uint64(comm),
                ctypes.c_void_p(self._own.ctypes.data),
                ctypes.c_uint64(self._most),
                _REMOTE_READ_WRITE,
                ctypes.byref(mine),
            )
            self._call("memory_exchange", ctypes.c_uint64(comm), mine, both)
            self._call(
                "channel_open",
                ctypes.c_uint64(comm),
                1 - self.rank,
                0,
                None,
                ctypes.byref(channel),
            )
            self._call("channel_kind", channel, ctypes.byref(kind))
        except capi.Failed as error:
            raise Unavailable(str(error)) from error
        self.kind = (kind.value or b"").decode()
        shared = ctypes.addressof(ctypes.c_char.from_buffer(self._shared))
        self._end = _BenchEnd(
            comm=comm,
            channel=channel.value,
            peer=both[1 - self.rank],
            mine=mine.value,
            own=self._own.ctypes.data,
            near=self._buffers[0].ctypes.data,
            other=self._buffers[1].ctypes.data,
            shared=shared,
            shared_bytes=self._shared_bytes,
            socket=self._socket.fileno(),
            rank=self.rank,
            timeout_ms=int(self._timeout * 1000),
        )

    def block(self, what: str, nbytes: int, iterations: int, *, attend: bool) -> list[float]:
        us, samples = (ctypes.c_double * iterations)(), ctypes.c_uint64()
        problem = self._put(self._end, what.encode(), nbytes, iterations, attend, us, samples)
        if problem is not None:
            raise capi.Failed(problem.decode(errors="replace"))
        return list(us[: samples.value])

    def leave(self) -> None:
        self._call("channel_close", ctypes.c_uint64(self._end.channel))
        self._core.destroy(self._end.comm)

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, f"goccl_{name}")(*arguments):
            raise capi.Failed(self._library.goccl_last_error().decode(errors="replace"))


class MpiEnd(MpiAdapter, End):
    """A window of an MPI by mpi4py: MPI_Win_lock_all(), MPI_Put(), MPI_Win_flush(), and a flag that
    is put behind the data and flushed, too."""

    def __init__(self, name: str, setup: dict[str, Any]) -> None:
        super().__init__(name)
        self._most = int(setup["most"])
        self._timeout = float(setup["timeout"])
        self._count = 0
        self.load()
        self.meet(Setup(_RANKS, -1, "", 0, -1, {}, self._timeout))

    def unique_id(self) -> bytes:
        return b""

    def join(self, unique_id: bytes = b"") -> None:
        super().join()
        self._near, self._other = ordinary(self._most), ordinary(self._most)
        self._near.fill(1)
        self._other.fill(1)
        self._sent = np.zeros(1, np.uint64)
        self._window = self._mpi.Win.Allocate(_LINE + self._most, comm=self._comm)
        memory: Array = np.frombuffer(self._window.tomemory(), np.uint8)
        memory.fill(0)
        self._flag, self._own = memory[:8].view(np.uint64), memory[_LINE:]
        self._window.Lock_all()
        self._comm.Barrier()

    def block(self, what: str, nbytes: int, iterations: int, *, attend: bool) -> list[float]:
        if what == "put_signal":
            return self._ping_pong(nbytes, iterations)
        if self.rank != 0:
            return []
        window = self._window
        move, near = (window.Put, self._near) if what == "puts" else (window.Get, self._other)
        near, target = near[:nbytes], (_LINE, nbytes, self._mpi.BYTE)
        begun = time.perf_counter_ns()
        for _ in range(iterations):
            move([near, self._mpi.BYTE], 1, target)
        window.Flush(1)
        return [(time.perf_counter_ns() - begun) / 1e3 / iterations]

    def leave(self) -> None:
        self._window.Unlock_all()
        self._window.Free()
        super().leave()

    def _ping_pong(self, nbytes: int, iterations: int) -> list[float]:
        some = -(-iterations // _SAMPLES)
        for _ in range(_WARM_UP):
            self._there_and_back(nbytes)
        times = []
        for first in range(0, iterations, some):
            number = min(some, iterations - first)
            begun = time.perf_counter_ns()
            for _ in range(number):
                self._there_and_back(nbytes)
            times.append((time.perf_counter_ns() - begun) / 1e3 / number / 2)
        return times

    def _there_and_back(self, nbytes: int) -> None:
        self._count += 1
        if self.rank == 0:
            self._give(nbytes)
        self._take(nbytes)
        if self.rank != 0:
            self._give(nbytes)

    def _give(self, nbytes: int) -> None:
        byte, peer, near = self._mpi.BYTE, 1 - self.rank, self._near[:nbytes]
        near[-1] = self._count & 0xFF
        self._sent[0] = self._count
        self._window.Put([near, byte], peer, (_LINE, nbytes, byte))
        self._window.Flush(peer)
        self._window.Put([self._sent.view(np.uint8), byte], peer, (0, 8, byte))
        self._window.Flush(peer)

    def _take(self, nbytes: int) -> None:
        flag, window, looks, deadline = self._flag, self._window, 0, 0.0
        while flag[0] != self._count:
            window.Sync()
            looks += 1
            if looks % _LOOKS_A_CLOCK == 0:
                self._comm.Iprobe()  # an MPI may take puts in calls only
                os.sched_yield()  # the peer may have no CPU
                deadline = deadline or time.monotonic() + self._timeout
                if time.monotonic() > deadline:
                    raise TimeoutError(f"put {self._count} did not come in {self._timeout:g} s")
        window.Sync()
        if self._own[nbytes - 1] != self._count & 0xFF:
            raise ValueError(f"put {self._count} of {nbytes} bytes has brought other data")


def main(argv: list[str]) -> int:
    """Runs until the coordinator is through with it, or is gone.

    argv: the coordinator's socket, the library's name, and "fork" where ranks are to be forked.
    """
    address, name, *forks = argv
    run: Callable[[], int] = partial(_run, address, name)
    return fork_on_request(name, run) if forks else run()


def _run(address: str, name: str) -> int:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect("\0" + address)
    try:
        _, fds, _, _ = socket.recv_fds(sock, 1, _RANKS)
        setup, _ = wire.receive(sock)
        end: End = GocclEnd(setup, fds) if name == CORE else MpiEnd(name, setup)
        wire.send(sock, {"unique_id": end.unique_id().hex() if setup["rank"] == 0 else ""})
        _serve(sock, end)
    except EOFError:
        return 1
    except Unavailable as error:
        wire.send(sock, {"unavailable": str(error)})
        return 1
    except Exception as error:
        traceback.print_exc()
        wire.send(sock, {"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def _bind(rank: int) -> None:
    """Has this thread, not those of the library, stay on a CPU of its own: the scheduler would have
    ranks share one that sleep now and then, and part those that spin."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) >= _RANKS:
        os.sched_setaffinity(0, {cpus[rank]})


def _serve(sock: socket.socket, end: End) -> None:
    while True:
        request, _ = wire.receive(sock)
        match request["do"]:
            case "quit":
                end.leave()
                return
            case "join":
                end.join(bytes.fromhex(request["unique_id"]))
                _bind(end.rank)
                answer = {"rank": end.rank, "version": end.version, "kind": end.kind}
            case "block":
                what, nbytes, number = request["what"], request["bytes"], request["iterations"]
                answer = {"us": end.block(what, nbytes, number, attend=request["attend"])}
        wire.send(sock, answer)
