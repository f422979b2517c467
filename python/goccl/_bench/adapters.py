"""One class a kind of library: how a rank joins its group, and how it calls each collective."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from goccl._ranks.adapters import Adapter, Setup
from goccl._ranks.buffers import Array, DType
from goccl._ranks.collectives import PLAYERS, ROOT
from goccl._ranks.libraries import DEVICE_VARIABLE, Unavailable

from .libraries import CPU, PLANS


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


class DeviceAdapter(TorchAdapter):
    """A backend of torch.distributed, with tensors of a device. A call is complete when all is that
    the device has to do for it."""

    def __init__(self, backend: str, device: str) -> None:
        super().__init__(backend)
        self._device = device
        self._pairs: list[tuple[Any, Any]] = []  # a tensor of the CPU, and that of the device

    def meet(self, setup: Setup) -> None:
        accelerator = self._torch.accelerator
        there = accelerator.current_accelerator(check_available=True)
        if there is None or there.type != self._device:
            raise Unavailable(
                f"the device is {self._device!r}, and torch has "
                f"{f'{there.type!r}' if there else 'none besides the CPU'} here"
            )
        accelerator.set_device_index(setup.rank % accelerator.device_count())
        super().meet(setup)

    def bind(self, collective: str, dtype: DType, send: Array, recv: Array) -> Callable[[], None]:
        self._pairs = []
        call, finish = super().bind(collective, dtype, send, recv), self._finish

        def run() -> None:
            call()
            finish()

        return run

    def bring(self) -> None:
        for ours, its in self._pairs:
            its.copy_(ours)
        self._finish()

    def take(self) -> None:
        for ours, its in self._pairs:
            ours.copy_(its)

    def _finish(self) -> None:
        self._torch.accelerator.synchronize()

    def _tensor(self, array: Array, dtype: DType) -> Any:
        ours = super()._tensor(array, dtype)
        self._pairs.append((ours, ours.to(self._device)))
        return self._pairs[-1][1]


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
    backend = library.removesuffix(CPU).removesuffix(PLANS)
    device = os.environ.get(DEVICE_VARIABLE, "cpu")
    return TorchAdapter(backend) if device == "cpu" else DeviceAdapter(backend, device)
