"""The ranks of a library, started by the coordinator or by an MPI's launcher, see standalone.py.

A launcher starts a process a rank. Without one there is a process that imports what the library
needs, once, and then forks a rank after the other: they share the memory of what was imported, and
begin at once. It has no thread, as those of torch and of the Go runtime would not be in the forks.

A rank meets the others, joins the library's group when it is told to, and then sleeps in a socket
read until the coordinator asks for something.
"""

from __future__ import annotations

import gc
import importlib
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import barrier, capi, wire
from .adapters import Adapter, Setup
from .buffers import DTYPES, Buffer, Values
from .children import fork_on_request
from .collectives import TWICE, Call, Segment, counted, expected, layout, own_block
from .libraries import Unavailable

_MOST_FDS = 253  # that a message can carry


@dataclass(frozen=True)
class _Prepared:
    """Buffers for a call, the call on them, and what it must lead to: nothing where that is not
    checked."""

    send: Buffer
    recv: Buffer
    call: Callable[[], None]
    wanted: list[Segment]
    collective: str


class _Rank:
    """The state of a rank between two requests."""

    def __init__(self, library: Adapter, meeting: barrier.Barrier | barrier.HostBarrier) -> None:
        self._library = library
        self._barrier = meeting
        self._prepared: _Prepared | None = None

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Makes and touches the buffers for a call; those of before are freed first."""
        self._prepared = None
        call = Call(**request["call"])
        try:
            send, recv = self._buffers(call)
        except (MemoryError, capi.Failed) as error:
            raise Unavailable(f"no memory for {call.count} elements: {error}") from error
        self._prepared = _Prepared(
            send=send,
            recv=recv,
            call=self._library.bind(call, send.array, recv.array),
            wanted=expected(call, self._library.rank) if request["check"] else [],
            collective=call.collective,
        )
        return {}

    def _buffers(self, call: Call) -> tuple[Buffer, Buffer]:
        rank, allocate = self._library.rank, self._library.allocate
        shape = layout(call, rank)
        values = Values(DTYPES[call.dtype], call.redop, call.ranks)
        if not call.in_place:
            return Buffer(values, shape.send, allocate), Buffer(values, shape.recv, allocate)
        smaller, larger = sorted((shape.send, shape.recv))
        whole = Buffer(values, larger, allocate)
        part = whole.part(own_block(smaller, larger, rank), smaller)
        return (whole, part) if shape.send > shape.recv else (part, whole)

    def first_call(self) -> dict[str, Any]:
        """A checked call, and how long it took."""
        if self._prepared is None:
            raise ValueError("first_call before prepare")
        spent, wrong = self._checked(self._prepared, 0)
        return {"wrong": wrong, "spent": spent}

    def block(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A checked iteration, some to warm up, the measured ones, and a checked one."""
        if self._prepared is None:
            raise ValueError("block before prepare")
        warmup, iterations, seed = (
            int(request["warmup"]),
            int(request["iterations"]),
            int(request["seed"]),
        )
        prepared = self._prepared
        gc.disable()
        _, wrong = self._checked(prepared, seed)
        started = time.perf_counter_ns()
        times, ends = self._library.measure(
            prepared.call,
            prepared.send,
            prepared.recv,
            self._barrier,
            warmup + iterations,
            twice=prepared.collective in TWICE,
        )
        spent = time.perf_counter_ns() - started
        wrong += prepared.recv.count_wrong_ends(prepared.wanted, ends)
        wrong += self._checked(prepared, seed + 1)[1]
        gc.enable()
        part = counted(prepared.collective, self._library.rank)
        times = [round(time * part) for time in times[warmup:]]
        return {"wrong": wrong, "spent": spent}, wire.pack_times(times)

    def _checked(self, prepared: _Prepared, seed: int) -> tuple[int, int]:
        """How long a call took, in ns, and how many elements it left wrong."""
        prepared.recv.poison()
        prepared.send.fill_pattern(self._library.rank, seed)
        self._library.bring()
        self._barrier.wait()
        begun = time.perf_counter_ns()
        prepared.call()
        spent = time.perf_counter_ns() - begun
        self._library.take()
        return spent, prepared.recv.count_wrong(prepared.wanted, seed)


def _serve(sock: socket.socket, rank: _Rank) -> None:
    while True:
        request, _ = wire.receive(sock)
        if request["do"] == "quit":
            return
        try:
            match request["do"]:
                case "prepare":
                    wire.send(sock, rank.prepare(request))
                case "first_call":
                    wire.send(sock, rank.first_call())
                case "block":
                    wire.send(sock, *rank.block(request))
        except Unavailable as error:
            wire.send(sock, {"unavailable": str(error)})


def main(argv: list[str]) -> int:
    """Runs ranks until the coordinator says that they may go, or is gone.

    argv: the coordinator's socket, the library's adapters and name, and "fork" where ranks are to
        be forked.
    """
    address, adapters, name, *forks = argv
    library: Adapter = importlib.import_module(adapters).adapter(name)
    library.load()
    run = partial(_run, address, library)
    return fork_on_request(name, run) if forks else run()


def _run(address: str, library: Adapter) -> int:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect("\0" + address)
    _, fds, _, _ = socket.recv_fds(sock, 1, _MOST_FDS)
    setup, _ = wire.receive(sock)
    store_fd = fds.pop(0) if setup["store_here"] else -1
    barrier_fd = -1 if setup["linked"] else fds.pop(0)
    links = {rank: socket.socket(fileno=fd) for rank, fd in zip(setup["linked"], fds, strict=True)}
    timeout = setup["timeout"]
    try:
        library.meet(
            Setup(
                ranks=setup["ranks"],
                rank=setup["rank"],
                store_host=setup["store_host"],
                store_port=setup["store_port"],
                store_fd=store_fd,
                links=links,
                timeout=timeout,
            )
        )
        wire.send(sock, {})
        wire.receive(sock)  # all are ready, and join
        library.join()
        meeting = (
            barrier.HostBarrier(links, timeout)
            if links
            else barrier.Barrier(barrier_fd, library.rank, library.ranks, timeout)
        )
        wire.send(sock, {"rank": library.rank, "version": library.version})
        _serve(sock, _Rank(library, meeting))
        library.leave()
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
