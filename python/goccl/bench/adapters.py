"""One class a kind of library: how a rank joins its group, and how it calls each collective."""

from __future__ import annotations

import ctypes
import importlib
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from . import capi, wire
from .barrier import Barrier, HostBarrier
from .buffers import PERIOD, Array, Buffer, DType, ordinary
from .collectives import PLAYERS, ROOT
from .libraries import GOCCL, MAPPED_VARIABLE, Unavailable


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
    def bind(self, collective: str, dtype: DType, send: Array, recv: Array) -> Callable[[], None]:
        """A call of the collective on these buffers, complete when it returns, or Unavailable."""

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
            meet(starts=True)
            if twice:
                call()
            begun = now()
            call()
            times.append(now() - begun)
            meet()  # nobody rewrites on a CPU that a call still needs
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
        try:
            self._core = capi.Core()
        except OSError as error:
            raise Unavailable(str(error)) from error
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

    def bind(self, collective: str, dtype: DType, send: Array, recv: Array) -> Callable[[], None]:
        self._loop = capi.Loop(
            collective=collective.encode(),
            dtype=capi.DTYPES[dtype.name],
            in_=send.ctypes.data,
            out=recv.ctypes.data,
            in_count=len(send),
            out_count=len(recv),
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


class TorchAdapter(Adapter):
    """A backend of torch.distributed."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def load(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        self._torch.set_num_threads(1)
        if self._backend == "goccl":
            importlib.import_module("goccl")

    def meet(self, setup: Setup) -> None:
        self.rank, self.ranks = setup.rank, setup.ranks
        self._timeout = timedelta(seconds=setup.timeout)
        own = {"master_listen_fd": setup.store_fd} if setup.rank == ROOT else {}
        self._store = self._dist.TCPStore(
            setup.store_host,
            setup.store_port,
            setup.ranks,
            setup.rank == ROOT,
            self._timeout,
            **own,
        )

    def join(self) -> None:
        try:
            self._dist.init_process_group(
                self._backend,
                store=self._store,
                rank=self.rank,
                world_size=self.ranks,
                timeout=self._timeout,
            )
        except Exception as error:
            if self._backend != "goccl":
                raise
            # Its texts tell the cause and the remedy.
            raise Unavailable(str(error)) from error
        self.version = f"torch {self._torch.__version__}"

    def bind(self, collective: str, dtype: DType, send: Array, recv: Array) -> Callable[[], None]:
        dist = self._dist
        source, target = self._tensor(send, dtype), self._tensor(recv, dtype)
        match collective:
            case "allreduce":
                return lambda: dist.all_reduce(source)
            case "broadcast":
                return lambda: dist.broadcast(source, ROOT)
            case "reduce":
                return lambda: dist.reduce(source, ROOT)
            case "allgather":
                return lambda: dist.all_gather_into_tensor(target, source)
            case "reduce_scatter":
                return lambda: dist.reduce_scatter_tensor(target, source)
            case "gather":
                parts = list(target.chunk(self.ranks)) if self.rank == ROOT else None
                return lambda: dist.gather(source, parts, ROOT)
            case "scatter":
                parts = list(source.chunk(self.ranks)) if self.rank == ROOT else None
                return lambda: dist.scatter(target, parts, ROOT)
            case "alltoall":
                return lambda: dist.all_to_all_single(target, source)
            case "sendrecv":
                return self._sendrecv(source, target)
            case "pingpong":
                peer = 1 - self.rank
                return _pingpong(
                    self.rank, partial(dist.send, source, peer), partial(dist.recv, target, peer)
                )
            case "barrier":
                return lambda: dist.barrier()
        raise Unavailable(f"{self._backend} has no {collective}")

    def leave(self) -> None:
        self._dist.destroy_process_group()

    def _tensor(self, array: Array, dtype: DType) -> Any:
        return self._torch.from_numpy(array).view(getattr(self._torch, dtype.name))

    def _sendrecv(self, source: Any, target: Any) -> Callable[[], None]:
        dist = self._dist
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks

        def run() -> None:
            receiving = dist.irecv(target, before)
            sending = dist.isend(source, after)
            receiving.wait()
            sending.wait()

        return run


# What an MPI's own version text begins with: two of them in one folder may have been mixed up.
_MPI_TEXTS = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel"}
_WITHOUT_MPI_TYPE = ("float16", "bfloat16")


class MpiAdapter(Adapter):
    """An MPI by mpi4py. The launcher has told MPI the ranks, by which they meet in MPI_Init()."""

    def __init__(self, name: str) -> None:
        self._name = name

    def load(self) -> None:
        settings: Any = importlib.import_module("mpi4py").rc
        # MPI locks less, and is as fast as it can be, when it is told that one thread calls it.
        settings.threads = False
        settings.initialize = False
        self._mpi: Any = importlib.import_module("mpi4py.MPI")

    def meet(self, setup: Setup) -> None:
        self._wanted = setup.ranks

    def join(self) -> None:
        self._mpi.Init()
        self._comm = self._mpi.COMM_WORLD
        self.rank, self.ranks = self._comm.rank, self._comm.size
        self.version = " ".join(
            self._mpi.Get_library_version().split(",")[0].split("\n")[0].split()
        )
        if not self.version.startswith(_MPI_TEXTS[self._name]):
            raise Unavailable(
                f"MPI4PY_LIBMPI={os.environ.get('MPI4PY_LIBMPI')} is {self.version!r}"
            )
        if self.ranks != self._wanted:
            raise Unavailable(
                f"the launcher started groups of {self.ranks} ranks instead of {self._wanted}"
            )

    def bind(self, collective: str, dtype: DType, send: Array, recv: Array) -> Callable[[], None]:
        if dtype.name in _WITHOUT_MPI_TYPE and collective != "barrier":
            raise Unavailable(f"MPI has no type for {dtype.name}")
        comm, in_place = self._comm, self._mpi.IN_PLACE
        root = self.rank == ROOT
        match collective:
            case "allreduce":
                return lambda: comm.Allreduce(in_place, send)
            case "broadcast":
                return lambda: comm.Bcast(send, ROOT)
            case "reduce":
                if root:
                    return lambda: comm.Reduce(in_place, send, root=ROOT)
                return lambda: comm.Reduce(send, None, root=ROOT)
            case "allgather":
                return lambda: comm.Allgather(send, recv)
            case "reduce_scatter":
                return lambda: comm.Reduce_scatter_block(send, recv)
            case "gather":
                return lambda: comm.Gather(send, recv if root else None, ROOT)
            case "scatter":
                return lambda: comm.Scatter(send if root else None, recv, ROOT)
            case "alltoall":
                return lambda: comm.Alltoall(send, recv)
            case "sendrecv":
                after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
                return lambda: comm.Sendrecv(send, after, 0, recv, before, 0)
            case "pingpong":
                peer = 1 - self.rank
                return _pingpong(
                    self.rank, partial(comm.Send, send, peer, 0), partial(comm.Recv, recv, peer, 0)
                )
            case "barrier":
                return lambda: comm.Barrier()
        raise Unavailable(f"MPI has no {collective}")

    def leave(self) -> None:
        self._mpi.Finalize()


def _pingpong(
    rank: int, send: Callable[[], object], receive: Callable[[], object]
) -> Callable[[], None]:
    """What a rank does in a ping-pong: rank 0 sends first."""
    if rank not in PLAYERS:
        return lambda: None
    first, second = (send, receive) if rank == ROOT else (receive, send)

    def run() -> None:
        first()
        second()

    return run


def adapter(library: str) -> Adapter:
    """The adapter of a library by its name."""
    if library in _MPI_TEXTS:
        return MpiAdapter(library)
    return CoreAdapter() if library == GOCCL["c"] else TorchAdapter(library)
