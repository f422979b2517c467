"""One class a library whose groups go on without a dead member: what its members and newcomers
do."""

from __future__ import annotations

import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from goccl._ranks.libraries import Unavailable
from goccl._ranks.processes import STANDALONE

from .libraries import GOCCL, SURVIVORS

if TYPE_CHECKING:
    from goccl._ranks.buffers import Array


@dataclass(frozen=True)
class View:
    """A membership that is to come: the ranks it will have, and this process's; known to all that
    are in it.

    generation: counts the memberships of a group, so that each has names of its own. port: of what
    the library's class serves.
    """

    generation: int
    port: int
    ranks: int
    rank: int


@dataclass(frozen=True)
class Setup:
    """What a process is told when it starts.

    timeout: of an operation, in seconds. arguments: of standalone.py, for a process that joins.
    """

    timeout: float
    arguments: Sequence[str]


class Server:
    """What the members of a library need and none of them holds, so that it outlives each. This one
    is of libraries that need nothing."""

    def port(self) -> int:
        """Where it is found on this host, by those of the next membership."""
        return 0


class Elastic(ABC):
    """A process's end of a group whose members change.

    failures: what a call raises when a member has died. continues: calls do not fail then, but end
    with the contributions of those that are left. version is set by begin().
    """

    failures: tuple[type[BaseException], ...] = (RuntimeError,)
    continues = False
    version = ""

    @staticmethod
    def server() -> Server:
        """What the members need besides."""
        return Server()

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._timeout = timedelta(seconds=setup.timeout)
        # Who is told of a death comes to the next group at once, others after their timeout.
        self._patience = 2 * self._timeout

    @staticmethod
    @abstractmethod
    def load() -> None:
        """Imports what the library needs, as far as that starts no thread."""

    @abstractmethod
    def begin(self, view: View) -> None:
        """Makes the first group."""

    @abstractmethod
    def bind(self, buffer: Array) -> None:
        """Says what allreduce() works on."""

    @abstractmethod
    def allreduce(self) -> None:
        """Sums the buffer over all members, in place."""

    @abstractmethod
    def go_on(self, view: View) -> None:
        """After a failure: goes on with those that are left."""

    @abstractmethod
    def admit(self, view: View) -> None:
        """On a member: goes on with a newcomer, whom join() brings, as the last rank."""

    @abstractmethod
    def join(self, view: View, handle: str) -> None:
        """On a newcomer: becomes a member. handle: of a member."""

    def handle(self) -> str:
        """What a newcomer needs of a member."""
        return ""


class _TorchStore(Server):
    def __init__(self) -> None:
        dist: Any = importlib.import_module("torch.distributed")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def port(self) -> int:
        return int(self._store.port)


class _Torch(Elastic):
    """A default group of torch.distributed."""

    backend = "gloo"

    @staticmethod
    def server() -> Server:
        return _TorchStore()

    @staticmethod
    def load() -> None:
        torch: Any = importlib.import_module("torch")
        importlib.import_module("torch.distributed")
        torch.set_num_threads(1)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        self.version = f"torch {self._torch.__version__}"
        self._store: Any = None

    def bind(self, buffer: Array) -> None:
        self._tensor = self._torch.from_numpy(buffer)

    def allreduce(self) -> None:
        self._dist.all_reduce(self._tensor)

    def _init(self, view: View, store: Any, **options: Any) -> None:
        self._dist.init_process_group(
            self.backend,
            store=store,
            rank=view.rank,
            world_size=view.ranks,
            timeout=self._timeout,
            **options,
        )

    def _stored(self, view: View, name: str) -> Any:
        """The store, in which each name has keys of its own."""
        if self._store is None:
            self._store = self._dist.TCPStore(
                "127.0.0.1", view.port, is_master=False, timeout=self._patience
            )
        return self._dist.PrefixStore(name, self._store)


class Goccl(_Torch):
    """GoCCL: Communicator.recover() and Communicator.join()."""

    backend = "goccl"

    @staticmethod
    def load() -> None:
        _Torch.load()
        importlib.import_module("goccl")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._goccl: Any = importlib.import_module("goccl")
        importlib.import_module("goccl._native").load()  # starts threads

    def begin(self, view: View) -> None:
        try:
            self._init(view, self._stored(view, "first"))
        except Exception as error:
            raise Unavailable(str(error)) from error  # its texts tell the cause and the remedy
        self._comm = self._goccl.Communicator()

    def go_on(self, view: View) -> None:
        self._comm.recover()

    def admit(self, view: View) -> None:
        # As goccl.elastic's commit() does: a newcomer is let in once one member knows of it.
        waiting = self._torch.zeros(1)
        while not waiting.item():
            waiting.fill_(self._comm.num_waiting)
            self._dist.all_reduce(waiting)
        self._comm.recover()

    def join(self, view: View, handle: str) -> None:
        self._init(View(0, 0, 1, 0), self._dist.HashStore())
        self._comm = self._goccl.Communicator()
        self._comm.join([handle])

    def handle(self) -> str:
        return str(self._comm.handle)


class GocclSurvivors(Goccl):
    """GoCCL with goccl.Options(recovery="survivors"), which the environment asks for."""

    continues = True


class Gloo(_Torch):
    """Gloo, whose group is destroyed and made anew, as is done without a library for it."""

    def begin(self, view: View) -> None:
        self._init(view, self._stored(view, str(view.generation)))

    def go_on(self, view: View) -> None:
        self._dist.destroy_process_group()
        self.begin(view)

    admit = go_on

    def join(self, view: View, handle: str) -> None:
        self.begin(view)


class GlooReconfigure(_Torch):
    """Gloo, by torch's own reconfigure."""

    def begin(self, view: View) -> None:
        self._init(view, self._stored(view, "group"), enable_reconfigure=True)
        self.go_on(view)

    def go_on(self, view: View) -> None:
        store = self._stored(view, f"handles/{view.generation}")
        store.set(str(view.rank), self._dist._get_reconfigure_handle())
        handles = [store.get(str(rank)).decode() for rank in range(view.ranks)]
        self._dist._reconfigure(view.generation, handles, timeout=self._patience).wait()

    admit = go_on

    def join(self, view: View, handle: str) -> None:
        self.begin(view)


class Torchft(_Torch):
    """torchft's ProcessGroupGloo, as its Manager uses it once the quorum is known."""

    @staticmethod
    def load() -> None:
        _Torch.load()
        importlib.import_module("torchft.process_group")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._process_group: Any = importlib.import_module("torchft.process_group")
        metadata = importlib.import_module("importlib.metadata")
        names = ("torchft", "torchft-nightly")
        found = {d.metadata["Name"]: d.version for d in metadata.distributions()}
        self.version = next(f"{name} {found[name]}" for name in names if name in found)

    def begin(self, view: View) -> None:
        self._group = self._process_group.ProcessGroupGloo(timeout=self._patience)
        self.go_on(view)

    def allreduce(self) -> None:
        options = self._dist.AllreduceOptions()
        options.timeout = self._timeout
        self._group.allreduce([self._tensor], options).wait()

    def go_on(self, view: View) -> None:
        where = f"127.0.0.1:{view.port}/{view.generation}"
        if hasattr(self._process_group, "reconfigure_with_store"):
            self._process_group.reconfigure_with_store(
                self._group, where, view.rank, view.ranks, self._patience
            )
        else:
            self._group.configure(where, str(view.rank), view.rank, view.ranks)

    admit = go_on

    def join(self, view: View, handle: str) -> None:
        self.begin(view)


class _HorovodServer(Server):
    """One for each membership, as its elastic driver clears its one."""

    def __init__(self) -> None:
        self._http: Any = importlib.import_module("horovod.runner.http.http_server")
        self._running: Any = None

    def port(self) -> int:
        if self._running:
            self._running.stop()
        self._running = self._http.RendezvousServer()
        port: int = self._running.start()
        self._running.init([])
        return port


class Horovod(_Torch):
    """Horovod with Gloo, which shuts down and begins anew, as its elastic mode does."""

    @staticmethod
    def server() -> Server:
        return _HorovodServer()

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._hvd: Any = importlib.import_module("horovod.torch")  # starts a thread
        self.version = f"Horovod {importlib.import_module('horovod').__version__}"

    def begin(self, view: View) -> None:
        settings = {
            "GLOO_RENDEZVOUS_PORT": view.port,
            "RANK": view.rank,
            "LOCAL_RANK": view.rank,
            "SIZE": view.ranks,
            "LOCAL_SIZE": view.ranks,
        }
        settings["GLOO_TIMEOUT_SECONDS"] = round(self._setup.timeout)
        os.environ.update({f"HOROVOD_{name}": str(value) for name, value in settings.items()})
        self._hvd.init()

    def allreduce(self) -> None:
        self._hvd.allreduce_(self._tensor, op=self._hvd.Sum)

    def go_on(self, view: View) -> None:
        self._hvd.shutdown()
        self.begin(view)

    admit = go_on

    def join(self, view: View, handle: str) -> None:
        self.begin(view)


class Ulfm(Elastic):
    """MPI's user-level failure mitigation, as Open MPI 5 has it: revoke, shrink, and spawn."""

    @staticmethod
    def load() -> None:
        settings: Any = importlib.import_module("mpi4py").rc
        settings.threads = False
        settings.initialize = False
        settings.finalize = False  # it may wait for who has died

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._mpi: Any = importlib.import_module("mpi4py.MPI")
        self.failures = (self._mpi.Exception,)

    def begin(self, view: View) -> None:
        self._mpi.Init()
        self._take(self._mpi.COMM_WORLD)

    def bind(self, buffer: Array) -> None:
        self._buffer = buffer

    def allreduce(self) -> None:
        self._comm.Allreduce(self._mpi.IN_PLACE, self._buffer)

    def go_on(self, view: View) -> None:
        self._comm.Revoke()
        self._take(self._comm.Shrink())

    def admit(self, view: View) -> None:
        program = [STANDALONE, *self._setup.arguments]
        between = self._comm.Spawn(sys.executable, program, maxprocs=1)
        self._take(between.Merge(high=False))

    def join(self, view: View, handle: str) -> None:
        self._mpi.Init()
        self._take(self._mpi.Comm.Get_parent().Merge(high=True))

    def _take(self, comm: Any) -> None:
        comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        self._comm = comm
        text = self._mpi.Get_library_version().split(",")[0]
        self.version = " ".join(text.split())


_CLASSES: dict[str, type[Elastic]] = {
    GOCCL["torch"]: Goccl,
    SURVIVORS: GocclSurvivors,
    "gloo": Gloo,
    "gloo-reconfigure": GlooReconfigure,
    "torchft": Torchft,
    "horovod": Horovod,
    "ulfm": Ulfm,
}


def class_of(library: str) -> type[Elastic]:
    """The class of a library by its name."""
    return _CLASSES[library]
