"""How a rank joins the group of a library, and how it calls each collective: GoCCL from C."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import capi, wire
from .barrier import Barrier, HostBarrier
from .buffers import FACTOR, PERIOD, Array, Buffer, ordinary
from .collectives import ROOT, Call
from .libraries import MAPPED_VARIABLE, Unavailable


@dataclass(frozen=True)
class Setup:
    """What a rank needs to meet the others.

    store_fd: for rank 0, a listening socket of its store. links: where the ranks are of several
    processes, to all others; CoreAdapter needs no store then.
    """

    ranks: int
    rank: int
    store_host: str
    store_port: int
    store_fd: int
    links: Mapping[int, socket.socket]
    timeout: float


class Adapter(ABC):
    """A rank's end of the library under test: load(), meet() and join() make it one, in turn.

    rank, ranks and version are set by join().
    """

    rank: int
    ranks: int
    version: str

    @abstractmethod
    def load(self) -> None:
        """Imports what the library needs, as far as that starts no thread."""

    @abstractmethod
    def meet(self, setup: Setup) -> None:
        """Gets what join() needs of other ranks: a store, or an id. Unavailable where there is no
        such library."""

    @abstractmethod
    def join(self) -> None:
        """Makes the group; Unavailable where that cannot work on this host."""

    def allocate(self, nbytes: int) -> Array:
        """Memory for a buffer."""
        return capi.Core().allocate(nbytes) if os.environ.get(MAPPED_VARIABLE) else ordinary(nbytes)

    @abstractmethod
    def bind(self, call: Call, send: Array, recv: Array) -> Callable[[], None]:
        """The call on these buffers, complete when it returns, or Unavailable."""

    def bring(self) -> None:  # noqa: B027  most need nothing
        """Before that call: copies these buffers to where it reads them, if that is elsewhere."""

    def take(self) -> None:  # noqa: B027
        """After that call: copies them back from there."""

    def measure(
        self,
        call: Callable[[], None],
        send: Buffer,
        result: Buffer,
        barrier: Barrier | HostBarrier,
        iterations: int,
        *,
        twice: bool,
    ) -> tuple[list[int], Array]:
        """Repeats: new values into `send`, all ranks meet, the call that bind() made last, all
        ranks meet. twice: the call is made twice, and the second one counts.

        Returns how long each call took, in ns, and the first and last elements that it left in
        `result`.
        """
        rank, meet, now, found = self.rank, barrier.wait, time.perf_counter_ns, result.array
        times = []
        ends = result.ends(iterations)
        for iteration in range(iterations):
            send.fill(rank, iteration)
            self.bring()
            meet(starts=True)
            if twice:
                call()
            begun = now()
            call()
            times.append(now() - begun)
            meet()  # nobody rewrites on a CPU that a call still needs
            self.take()
            if len(found):
                ends[iteration] = found[0], found[-1]
        return times, ends

    @abstractmethod
    def leave(self) -> None:
        """Ends the group in good order."""


class CoreAdapter(Adapter):
    """GoCCL by its C functions, which a loop in C calls. No torch is needed."""

    def load(self) -> None:
        """Nothing: the Go runtime starts its threads when the library is loaded."""

    def meet(self, setup: Setup) -> None:
        self._core = capi.Core()
        try:
            self._unique_id = self._share_id(setup)
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the group's id could not be handed on: {error}") from error
        except capi.Failed as error:
            raise Unavailable(str(error)) from error
        self.rank, self.ranks, self._timeout = setup.rank, setup.ranks, setup.timeout

    def join(self) -> None:
        try:
            self._comm = self._core.init(self._unique_id, self.rank, self.ranks, self._timeout)
        except capi.Failed as error:
            raise Unavailable(str(error)) from error
        self.version = f"libgoccl {self._core.version}"

    def bind(self, call: Call, send: Array, recv: Array) -> Callable[[], None]:
        self._loop = capi.Loop(
            collective=call.collective.encode(),
            dtype=capi.DTYPES[call.dtype],
            op=capi.OPS[call.redop],
            factor=(FACTOR, 0),
            root=call.root,
            in_=send.ctypes.data,
            out=recv.ctypes.data,
            in_count=len(send),
            out_count=len(recv),
            element=send.itemsize,
        )

        def run() -> None:
            self._run(1)

        return run

    def measure(
        self,
        call: Callable[[], None],
        send: Buffer,
        result: Buffer,
        barrier: Barrier | HostBarrier,
        iterations: int,
        *,
        twice: bool,
    ) -> tuple[list[int], Array]:
        if isinstance(barrier, HostBarrier):  # the loop in C meets in memory only
            return super().measure(call, send, result, barrier, iterations, twice=twice)
        values = send.values(self.rank)
        ends = result.ends(iterations)
        self._loop.values, self._loop.value_count = values.ctypes.data, PERIOD
        self._loop.meeting, self._loop.meeting_ms = barrier.address, int(barrier.timeout * 1000)
        self._loop.twice = twice
        try:
            return self._run(iterations, ends.ctypes.data), ends
        finally:
            self._loop.value_count, self._loop.meeting, self._loop.twice = 0, None, False

    def leave(self) -> None:
        self._core.destroy(self._comm)

    def _run(self, iterations: int, ends: int | None = None) -> list[int]:
        us = (ctypes.c_double * iterations)()
        self._core.measure(self._comm, self._loop, iterations, ctypes.addressof(us), ends)
        return [round(time * 1000) for time in us]

    def _share_id(self, setup: Setup) -> bytes:
        """The id of rank 0. It holds a secret: between hosts only a known rank gets it."""
        if setup.links:
            for link in setup.links.values():
                link.settimeout(setup.timeout)
            if setup.rank != ROOT:
                return wire.exactly(setup.links[ROOT], capi.UNIQUE_ID_SIZE)
            unique_id = self._core.unique_id()
            for link in setup.links.values():
                link.sendall(unique_id)
            return unique_id
        if setup.rank != ROOT:
            with socket.create_connection(
                (setup.store_host, setup.store_port), setup.timeout
            ) as root:
                return wire.exactly(root, capi.UNIQUE_ID_SIZE)
        unique_id = self._core.unique_id()
        with socket.socket(fileno=setup.store_fd) as listener:
            listener.settimeout(setup.timeout)
            for _ in range(setup.ranks - 1):
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(unique_id)
        return unique_id


def adapter(_library: str) -> Adapter:
    """The adapter of the library of core_library()."""
    return CoreAdapter()
