"""One class a kind of library: how a rank joins its group, and how it calls each collective."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np

from goccl._ranks.adapters import Adapter, CoreAdapter, Setup
from goccl._ranks.buffers import FACTOR, Array
from goccl._ranks.collectives import NO_OP, PLAYERS, ROOT, Call, own_block
from goccl._ranks.libraries import DEVICE_VARIABLE, Unavailable

from .libraries import ABI, CPU, GOCCL, PLANS

_TORCH_NAMES = {"bytes1": "float8_e8m0fnu"}  # of those that have another one
# The dtypes of which Gloo has collectives, through torch, and the reduce ops of each. Its sums of
# bool are other bytes than 0 and 1.
_OPS_OF_BOOL = (NO_OP, "product", "min", "max", "band", "bor", "bxor")
_GLOO = {
    **dict.fromkeys(
        ("float32", "float64", "float16", "bfloat16"),
        (NO_OP, "sum", "product", "min", "max", "avg"),
    ),
    **dict.fromkeys(("int8", "uint8", "int32", "int64"), (*_OPS_OF_BOOL, "sum")),
    **dict.fromkeys(("complex32", "complex64", "complex128"), (NO_OP, "sum")),
    "bool": _OPS_OF_BOOL,
}


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

    def bind(self, call: Call, send: Array, recv: Array) -> Callable[[], None]:
        self._refuse(call)
        dist, root = self._dist, call.root
        source, target = self._tensors(call, send, recv)
        op = self._op(call.redop)
        match call.collective:
            case "allreduce":
                return lambda: dist.all_reduce(target, op)
            case "broadcast":
                return lambda: dist.broadcast(target, root)
            case "reduce":
                return lambda: dist.reduce(source, root, op)
            case "allgather":
                return lambda: dist.all_gather_into_tensor(target, source)
            case "reduce_scatter":
                return lambda: dist.reduce_scatter_tensor(target, source, op)
            case "gather":
                parts = list(target.chunk(self.ranks)) if self.rank == root else None
                return lambda: dist.gather(source, parts, root)
            case "scatter":
                parts = list(source.chunk(self.ranks)) if self.rank == root else None
                return lambda: dist.scatter(target, parts, root)
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
        raise Unavailable(f"{self._backend} has no {call.collective}")

    def leave(self) -> None:
        self._dist.destroy_process_group()

    def _refuse(self, call: Call) -> None:
        """Raises Unavailable for what torch.distributed, or the backend, has not."""
        if call.collective in ("allreduce", "reduce") and not call.in_place:
            raise Unavailable(f"torch.distributed has {call.collective} in place only")
        if not hasattr(self._torch, _TORCH_NAMES.get(call.dtype, call.dtype)):
            raise Unavailable(f"this torch has no {call.dtype}")
        if call.redop == "premul_sum" and not hasattr(self._dist, "_make_nccl_premul_sum"):
            raise Unavailable("this torch has no premul_sum")
        is_complex = call.dtype.startswith("complex")
        if is_complex and call.redop == "product" and call.collective != "reduce_scatter":
            raise Unavailable(f"torch.distributed has no {call.collective} with product of complex")
        if self._backend != "gloo" or call.collective in ("sendrecv", "pingpong"):
            return
        if call.dtype not in _GLOO or (is_complex and call.collective == "gather"):
            raise Unavailable(f"Gloo has no {call.collective} of {call.dtype}")
        if call.redop not in _GLOO[call.dtype]:
            raise Unavailable(f"Gloo has no {call.redop} of {call.dtype}")

    def _op(self, redop: str) -> Any:
        if redop == "premul_sum":
            return self._dist._make_nccl_premul_sum(FACTOR)
        return getattr(self._dist.ReduceOp, redop.upper()) if redop != NO_OP else None

    def _tensors(self, call: Call, send: Array, recv: Array) -> tuple[Any, Any]:
        """Both buffers; in place the smaller one is a view of the larger one."""
        if not call.in_place:
            return self._tensor(send, call.dtype), self._tensor(recv, call.dtype)
        smaller, larger = sorted((send, recv), key=len)
        whole = self._tensor(larger, call.dtype)
        part = whole.narrow(0, own_block(len(smaller), len(larger), self.rank), len(smaller))
        return (whole, part) if len(send) > len(recv) else (part, whole)

    def _tensor(self, array: Array, dtype: str) -> Any:
        elements = self._torch.from_numpy(array.view(np.uint8))
        return elements.view(getattr(self._torch, _TORCH_NAMES.get(dtype, dtype)))

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

    def bind(self, call: Call, send: Array, recv: Array) -> Callable[[], None]:
        self._pairs = []
        begin, finish = super().bind(call, send, recv), self._finish

        def run() -> None:
            begin()
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

    def _tensor(self, array: Array, dtype: str) -> Any:
        ours = super()._tensor(array, dtype)
        self._pairs.append((ours, ours.to(self._device)))
        return self._pairs[-1][1]


class NumpyAdapter(CoreAdapter):
    """GoCCL by goccl.numpy. No torch is needed."""

    measure = Adapter.measure  # not the loop in C

    def load(self) -> None:
        self._numpy: Any = importlib.import_module("goccl.numpy")

    def join(self) -> None:
        try:
            self._group = self._numpy.init(
                self.rank, self.ranks, unique_id=self._unique_id, timeout=self._timeout
            )
        except Exception as error:  # its texts tell the cause and the remedy
            raise Unavailable(str(error)) from error
        self.version = f"libgoccl {self._core.version}"

    def bind(self, call: Call, send: Array, recv: Array) -> Callable[[], None]:
        comm, root, op, mine = self._group, call.root, call.redop, self.rank == call.root
        # What is not given is not named: goccl.numpy has a shorter way for fewer arguments.
        more = {"factor": FACTOR} if op == "premul_sum" else {}
        source = self._typed(send, call.dtype)
        # The same object is the operation in place.
        target = (
            source if call.in_place and len(send) == len(recv) else self._typed(recv, call.dtype)
        )
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        match call.collective:
            case "allreduce":
                return partial(comm.allreduce, source, op, out=target, **more)
            case "broadcast":
                return lambda: comm.broadcast(target, root)
            case "reduce":
                return partial(comm.reduce, source, op, root, out=target, **more)
            case "allgather":
                return lambda: comm.allgather(source, out=target)
            case "reduce_scatter":
                return partial(comm.reduce_scatter, source, op, out=target, **more)
            case "gather":
                return lambda: comm.gather(source, root, out=target)
            case "scatter":
                return lambda: comm.scatter(source if mine else None, root, out=target)
            case "alltoall":
                return lambda: comm.alltoall(source, out=target)
            case "sendrecv":

                def exchange() -> None:
                    with comm.group():
                        comm.send(source, after)
                        comm.recv(target, before)

                return exchange
            case "pingpong":
                peer = 1 - self.rank
                return _pingpong(
                    self.rank, partial(comm.send, source, peer), partial(comm.recv, target, peer)
                )
            case "barrier":
                return comm.barrier  # type: ignore[no-any-return]
        raise Unavailable(f"goccl.numpy has no {call.collective}")

    def leave(self) -> None:
        self._group.destroy()

    def _typed(self, array: Array, dtype: str) -> Array:
        """The buffer as an array of the dtype."""
        if dtype == "complex32":
            return array.view(self._numpy.complex32)
        if dtype == "bytes1":
            return array.view("V1")
        if array.dtype.name != dtype and dtype != "bool":
            try:
                return array.view(getattr(importlib.import_module("ml_dtypes"), dtype))
            except ImportError:
                raise Unavailable(f"NumPy has {dtype} by the package ml_dtypes only") from None
        return array.view(dtype)


# What an MPI's own version text begins with: two of them in one folder may have been mixed up.
_MPI_TEXTS = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel", ABI: ""}
# A reduce op of MPI by ours; of MPI's logical type others.
_MPI_OPS = {
    "sum": "SUM",
    "product": "PROD",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}
_MPI_OPS_OF_BOOL = {
    "sum": "LOR",
    "max": "LOR",
    "bor": "LOR",
    "product": "LAND",
    "min": "LAND",
    "band": "LAND",
    "bxor": "LXOR",
}


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
        if self._name == ABI and self._mpi.Get_abi_version() < (1, 0):
            raise Unavailable("mpi4py is not built for the ABI of MPI-5")
        if self.ranks != self._wanted:
            raise Unavailable(
                f"the launcher started groups of {self.ranks} ranks instead of {self._wanted}"
            )

    def bind(self, call: Call, send: Array, recv: Array) -> Callable[[], None]:
        op = self._op(call)
        comm, root, mine = self._comm, call.root, self.rank == call.root
        source, target = self._typed(send, call.dtype), self._typed(recv, call.dtype)
        given = self._mpi.IN_PLACE if call.in_place else source
        match call.collective:
            case "allreduce":
                return lambda: comm.Allreduce(given, target, op)
            case "broadcast":
                return lambda: comm.Bcast(target, root)
            case "reduce":
                if mine:
                    return lambda: comm.Reduce(given, target, op, root)
                return lambda: comm.Reduce(source, None, op, root)
            case "allgather":
                return lambda: comm.Allgather(given, target)
            case "reduce_scatter":
                if call.in_place:
                    raise Unavailable(
                        "MPI's reduce_scatter in place leaves the result in the first block"
                    )
                return lambda: comm.Reduce_scatter_block(source, target, op)
            case "gather":
                if mine:
                    return lambda: comm.Gather(given, target, root)
                return lambda: comm.Gather(source, None, root)
            case "scatter":
                if mine:
                    kept = self._mpi.IN_PLACE if call.in_place else target
                    return lambda: comm.Scatter(source, kept, root)
                return lambda: comm.Scatter(None, target, root)
            case "alltoall":
                return lambda: comm.Alltoall(source, target)
            case "sendrecv":
                after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
                return lambda: comm.Sendrecv(source, after, 0, target, before, 0)
            case "pingpong":
                peer = 1 - self.rank
                return _pingpong(
                    self.rank,
                    partial(comm.Send, source, peer, 0),
                    partial(comm.Recv, target, peer, 0),
                )
            case "barrier":
                return lambda: comm.Barrier()
        raise Unavailable(f"MPI has no {call.collective}")

    def leave(self) -> None:
        self._mpi.Finalize()

    def _op(self, call: Call) -> Any:
        if call.redop == NO_OP:
            return None
        ops = _MPI_OPS_OF_BOOL if call.dtype == "bool" else _MPI_OPS
        if call.redop not in ops:
            raise Unavailable(f"MPI has no {call.redop}")
        return getattr(self._mpi, ops[call.redop])

    def _typed(self, array: Array, dtype: str) -> Array:
        """The buffer as an array of what mpi4py takes for the dtype."""
        if dtype == "bytes1":
            return array
        if dtype not in ("bool", array.dtype.name) or dtype == "float16":
            raise Unavailable(f"MPI has no type for {dtype}")
        return array.view(dtype)


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
    if backend == GOCCL["numpy"]:
        return NumpyAdapter()
    device = os.environ.get(DEVICE_VARIABLE, "cpu")
    return TorchAdapter(backend) if device == "cpu" else DeviceAdapter(backend, device)
