"""Runs functions on real rank processes, fast.

A fork server (``python harness.py FD``) has torch imported, has no thread, and has never loaded
the library under test. It forks ranks on request, so a rank starts in milliseconds. A World is a
set of such ranks; it runs any number of functions one after the other, brings results, exceptions
and exit codes back, and at a deadline shows every rank's stacks and kills what it started. For
ranks that are programs there are start() and finished().

A function that a rank runs is a module-level function ``fn(rank: Rank, *args)`` of a test module.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

# The backend under test. Running the suite with "gloo" checks the tests themselves.
# On which a part of the tests is run once more: "testdev" of tests/device, or one of torch's; "":
# none.
DEVICE = os.environ.get("GOCCL_TEST_DEVICE", "testdev")
BACKEND = os.environ.get("GOCCL_TEST_BACKEND", "goccl")
TRANSPORTS = tuple(
    os.environ.get("GOCCL_TEST_TRANSPORTS", "shm,tcp" if BACKEND == "goccl" else "tcp").split(",")
)

# Set where a rank's tensors are on the device if it names none.
PLACE = "GOCCL_TEST_PLACE"

# What "at once" means: by no timeout, which is longer where a test names none. How soon something
# is, is measured, not tested: a busy machine takes its time.
AT_ONCE = 25.0
# How long tests wait for what must come, on however busy a machine.
DEADLINE = 180.0

PRELOAD = (
    "torch",
    "numpy",
    "pytest",
    "torch.distributed",
    "torch.distributed.device_mesh",
    "torch.distributed._functional_collectives",
    "torch.nn.parallel",
)


@dataclass
class Outcome:
    """How a call ended on one rank."""

    rank: int
    value: Any = None
    error: str = ""  # the exception's text
    kind: str = ""  # the exception's class name
    facts: dict[str, Any] = field(default_factory=dict)  # of an exception of goccl: its attributes
    trace: str = ""
    at: float = 0.0  # time.monotonic() of the end
    exitcode: int | None = None  # set where the process ended instead

    @property
    def ok(self) -> bool:
        return not self.kind and self.exitcode is None

    @property
    def blamed(self) -> set[int]:
        """The ranks that an exception of goccl says have failed or did not arrive."""
        return set(self.facts.get("ranks", self.facts.get("absent", ())))

    def __str__(self) -> str:
        if self.ok:
            return f"rank {self.rank}: {self.value!r}"
        if self.exitcode is not None:
            return f"rank {self.rank}: process ended, exit code {self.exitcode}"
        return f"rank {self.rank}: {self.trace}"


class WorldError(AssertionError):
    """Some rank failed, died or did not come back in time."""


class Rank:
    """A rank's own view of its world, handed to the functions that it runs."""

    def __init__(self, rank: int, size: int, conn: Connection, directory: Path, store: tuple):
        self.rank, self.size, self.dir = rank, size, directory
        self._conn, self._store = conn, store

    def make_store(self, name: str = "store") -> Any:
        """A store that all ranks of this world share; the same name is the same store."""
        import torch.distributed as dist

        if self._store[0] == "file":
            return dist.FileStore(str(self.dir / name), self.size)
        tcp = dist.TCPStore(
            "127.0.0.1", self._store[1], is_master=False, timeout=timedelta(seconds=60)
        )
        return dist.PrefixStore(name, tcp)

    def init(
        self, backend: str = BACKEND, store: str = "store", timeout: float = 60, **kw: Any
    ) -> None:
        import torch.distributed as dist

        dist.init_process_group(
            backend,
            store=self.make_store(store),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=timeout),
            **kw,
        )

    def limit(self, timeout: float, group: Any = None) -> None:
        """Gives what is called from now on so long, once all have met: ranks may come apart."""
        import torch.distributed as dist

        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), group)

    def tell(self, value: Any) -> None:
        """Sends a value to the test (World.told)."""
        self._conn.send(("told", value))

    def hear(self, deadline: float = DEADLINE) -> Any:
        """Waits for a value from the test (World.say)."""
        if not self._conn.poll(deadline):
            raise TimeoutError("the test said nothing")
        return self._conn.recv()[1]


_device = "cpu"


def use_device() -> None:
    """Has place() move tensors to the device of the tests, in this process."""
    global _device
    if DEVICE == "testdev":
        import device

        device.load()
        device.configure(random=20)
    _device = DEVICE


def place(tensor: Any) -> Any:
    """A tensor on the device that this process tests: usually the CPU, and then the same one."""
    return tensor.to(_device)


# What expect() has found wrong in the function that this rank runs; None: this process is no rank.
_wrong: list[str] | None = None


def expect(well: Any, what: str) -> None:
    """Asserts one cell of a table in a function that a rank runs. The function goes on with the
    next cell, so that the ranks keep the order of their calls; it fails at its end, with all such
    cells."""
    if not well and _wrong is None:
        raise AssertionError(what)
    if not well:
        _wrong.append(what)


def _told_wrong() -> str:
    """What expect() has found wrong since it was told last, one a line."""
    global _wrong
    wrong, _wrong = _wrong or [], []
    more = [f"and {len(wrong) - 100} more"] if len(wrong) > 100 else []
    return "\n".join(wrong[:100] + more)


def _serve(fd: int) -> None:
    """The fork server: one request, one answer, until the other end closes. Forked ranks return
    from here, so that they end as any Python program does."""
    for name in PRELOAD:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that collections in the ranks do not copy the pages that they share
    sock = socket.socket(fileno=fd)
    children: set[int] = set()
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 1)
        if not data:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            os._exit(0)
        request = pickle.loads(data)
        answer: Any = None
        if request[0] == "import":
            module = importlib.import_module(request[1])
            for name in getattr(module, "PRELOAD", ()):
                importlib.import_module(name)
            gc.freeze()
        elif request[0] == "call":
            getattr(importlib.import_module(request[1]), request[2])()
        elif request[0] == "reap":
            _, status = os.waitpid(request[1], 0)
            children.discard(request[1])
            answer = os.waitstatus_to_exitcode(status)
        elif request[0] == "fork":
            if threads() > 1:
                raise RuntimeError(
                    "the fork server has threads: something that it imported started them"
                )
            answer = os.fork()
            if answer == 0:
                sock.close()
                _rank_main(Connection(fds[0]), *request[1:])
                return
            children.add(answer)
            os.close(fds[0])
        sock.send(pickle.dumps(answer))


def _rank_main(
    conn: Connection,
    rank: int,
    size: int,
    directory: str,
    store: tuple,
    env: dict,
    whole_exit: bool,
) -> None:
    os.setpgid(0, 0)
    if whole_exit:
        gc.unfreeze()  # or the cycles of what the server has loaded outlive the interpreter
    else:
        _end_before_torch()
    os.environ.update(env)
    log = os.open(f"{directory}/rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    me = Rank(rank, size, conn, Path(directory), store)
    _told_wrong()
    if PLACE in os.environ:
        use_device()
        importlib.import_module("torch").set_default_device(DEVICE)
    while True:
        try:
            message = conn.recv()
        except EOFError:
            return
        if message[0] == "exit":
            return
        if message[0] == "exit fast":
            _exit_fast()
        answer: tuple[Any, ...]
        try:
            answer = ("done", message[1](me, *message[2]), time.monotonic())
            if wrong := _told_wrong():
                answer = ("failed", "AssertionError", wrong, wrong, time.monotonic(), {})
        except SystemExit:
            raise
        except BaseException as e:
            at = time.monotonic()
            facts = dict(vars(e)) if type(e).__module__ == "goccl.errors" else {}
            trace = f"{_told_wrong()}\n{traceback.format_exc()}".lstrip()
            answer = ("failed", type(e).__name__, str(e), trace, at, facts)
        try:
            conn.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return


def _end_before_torch() -> None:
    """Has exit() end the process before it comes to the destructors of what is loaded by now. Those
    of torch alone take a tenth of a second, five times what it takes to make a group."""
    libc = ctypes.CDLL(None)
    # Functions run in the reverse order in which they were given, so that those of the library
    # under test, which is not loaded yet, run before.
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)


def _exit_fast() -> None:
    """All of a normal exit (exit hooks, of Python and of C, and static destructors; see
    _end_before_torch) but the taking down of every Python module, which costs a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.PyDLL(None).exit(0)  # with the GIL, as static destructors of extensions expect


class Server:
    """The test process's end of a fork server."""

    def __init__(self, env: dict[str, str] | None = None):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        defaults = {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **defaults, **(env or {})},
            start_new_session=True,
        )
        theirs.close()
        self._sock = ours

    def ask(self, *request: Any, fds: tuple[int, ...] = ()) -> Any:
        socket.send_fds(self._sock, [pickle.dumps(request)], list(fds))
        data = self._sock.recv(1 << 16)
        if not data:
            raise WorldError(f"the fork server ended while asked to {request[0]} {request[1]}")
        return pickle.loads(data)

    def close(self) -> None:
        self._sock.close()
        self._process.wait(30)


class World:
    """`size` rank processes. Use as a context manager.

    With whole_exit their ends are those of any program, which takes longer; exit() wants it.
    """

    def __init__(
        self,
        server: Server,
        size: int,
        *,
        env: dict[str, str] | None = None,
        rank_env: dict[int, dict[str, str]] | None = None,
        store: str = "file",
        module: str | None = None,
        whole_exit: bool = False,
    ):
        import torch.distributed as dist

        self.size, self._server, self._whole_exit = size, server, whole_exit
        self.dir = Path(tempfile.mkdtemp(prefix="world-"))
        self._tcp_store = None
        where: tuple = (store,)
        if store == "tcp":
            # With the test process, as with torchrun: it outlives every rank.
            self._tcp_store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            where = (store, self._tcp_store.port)
        if module:
            server.ask("import", module)
        self.pids: list[int] = []
        self.pidfds: list[int] = []
        self.conns: list[Connection] = []
        self.exitcodes: list[int | None] = [None] * size
        self.healthy = True
        for rank in range(size):
            ours, theirs = Pipe()
            rank_vars = {**(env or {}), **(rank_env or {}).get(rank, {})}
            start = ("fork", rank, size, str(self.dir), where, rank_vars, whole_exit)
            pid = server.ask(*start, fds=(theirs.fileno(),))
            theirs.close()
            self.pids.append(pid)
            self.pidfds.append(os.pidfd_open(pid))
            self.conns.append(ours)
        self._told: list[list[Any]] = [[] for _ in range(size)]
        self._ended: dict[int, Outcome] = {}  # of ranks of which told() has seen the end, too

    def __enter__(self) -> "World":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.close(check=kind is None)

    # -- calls

    def start(self, fn: Callable, *args: Any, ranks: Any = None) -> None:
        """Starts fn(rank, *args) on every rank, or on those given."""
        for r in self._some(ranks):
            # A rank that is dead already answers with its exit code in finish().
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.conns[r].send(("call", fn, args))

    def finish(self, deadline: float = DEADLINE, ranks: Any = None) -> list[Outcome]:
        """The outcomes of what start() started, in rank order."""
        outcomes: dict[int, Outcome] = {}
        wanted = self._some(ranks)
        until = time.monotonic() + deadline
        while len(outcomes) < len(wanted):
            left = [r for r in wanted if r not in outcomes]
            for r in left:
                message = self._receive(r)
                if message is not None:
                    outcomes[r] = message
            left = [r for r in wanted if r not in outcomes]
            if left and not self._wait(left, until - time.monotonic()):
                raise WorldError(self._stuck(left, deadline, outcomes))
        if not all(o.ok for o in outcomes.values()):
            self.healthy = False
        return [outcomes[r] for r in wanted]

    def outcomes(self, fn: Callable, *args: Any, deadline: float = DEADLINE) -> list[Outcome]:
        self.start(fn, *args)
        return self.finish(deadline)

    def run(self, fn: Callable, *args: Any, deadline: float = DEADLINE) -> list[Any]:
        """Runs fn on every rank; the values in rank order, or an error that shows every failure."""
        return self.values(self.outcomes(fn, *args, deadline=deadline))

    def values(self, outcomes: list[Outcome]) -> list[Any]:
        bad = [o for o in outcomes if not o.ok]
        if bad:
            raise WorldError("\n".join(map(str, bad)) + "\n" + self.logs())
        return [o.value for o in outcomes]

    def told(self, rank: int, deadline: float = DEADLINE) -> Any:
        """The next value that a rank told; a failed call or a dead rank is an error."""
        until = time.monotonic() + deadline
        while not self._told[rank]:
            message = self._receive(rank)
            if message is not None and self._told[rank]:
                self._ended[rank] = message
            elif message is not None:
                raise WorldError(f"ended instead of telling: {message}\n{self.logs()}")
            if not self._told[rank] and not self._wait([rank], until - time.monotonic()):
                raise WorldError(self._stuck([rank], deadline, {}))
        return self._told[rank].pop(0)

    def say(self, value: Any, ranks: Any = None) -> None:
        for r in self._some(ranks):
            self.conns[r].send(("say", value))

    # -- processes

    def signal(self, rank: int, number: int) -> float:
        """Sends a signal to a rank; returns time.monotonic() just before it."""
        at = time.monotonic()
        signal.pidfd_send_signal(self.pidfds[rank], number)
        if number == signal.SIGKILL:
            self.healthy = False
        return at

    def exit(self, rank: int, deadline: float = DEADLINE) -> int:
        """Lets a rank leave through its interpreter's normal end; its exit code."""
        assert self._whole_exit, "a world whose ranks leave that way is made with whole_exit=True"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.conns[rank].send(("exit",))
        return self.exitcode(rank, deadline)

    def exitcode(self, rank: int, deadline: float = DEADLINE) -> int:
        """Waits for the end of a rank's process."""
        if not _readable(self.pidfds[rank], deadline):
            raise WorldError(self._stuck([rank], deadline, {}))
        return self._reap(rank)

    def stacks(self, ranks: Any = None) -> None:
        """Has ranks write the stacks of all their threads to their logs."""
        for r in self._some(ranks):
            log = self.dir / f"rank{r}.log"
            before = log.stat().st_size if log.exists() else 0
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfds[r], signal.SIGCONT)
                signal.pidfd_send_signal(self.pidfds[r], signal.SIGUSR1)
            with contextlib.suppress(TimeoutError):
                until(partial(_written, log, before, "most recent call first"), 5)

    def logs(self) -> str:
        text = []
        for r in range(self.size):
            log = self.dir / f"rank{r}.log"
            if log.exists() and log.stat().st_size:
                text.append(
                    f"--- log of rank {r}\n{_tail(log, max(0, log.stat().st_size - 20000))}"
                )
        return "\n".join(text)

    def close(self, check: bool = True) -> None:
        """Ends all ranks. Those of a healthy world leave by themselves, and must with exit code 0:
        so each test is also one of a clean exit."""
        problem = ""
        if self.healthy and check:
            for r in range(self.size):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.conns[r].send(("exit fast",))
            left = list(range(self.size))
            try:
                codes = [self.exitcode(r) for r in left]
                if any(codes):
                    problem = f"exit codes {codes}, wanted zeros\n{self.logs()}"
            except WorldError as e:
                problem = str(e)
        for r, pid in enumerate(self.pids):
            # The group first: what a rank forked may outlive it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            if self.exitcodes[r] is None:
                _readable(self.pidfds[r], 20)
                self._reap(r)
            os.close(self.pidfds[r])
            self.conns[r].close()
        self.pids = []
        shutil.rmtree(self.dir, ignore_errors=True)
        if problem:
            raise WorldError(problem)

    # -- inside

    def _some(self, ranks: Any) -> list[int]:
        if ranks is None:
            return list(range(self.size))
        return [ranks] if isinstance(ranks, int) else list(ranks)

    def _reap(self, rank: int) -> int:
        if self.exitcodes[rank] is None:
            self.exitcodes[rank] = self._server.ask("reap", self.pids[rank])
        code = self.exitcodes[rank]
        assert code is not None
        return code

    def _receive(self, r: int) -> Outcome | None:
        """What has come from a rank so far: None, or how its call ended."""
        if r in self._ended:
            return self._ended.pop(r)
        # Asked before reading, so that what a rank said just before its end is not lost.
        dead = self.exitcodes[r] is not None or _readable(self.pidfds[r], 0)
        try:
            while self.conns[r].poll():
                message = self.conns[r].recv()
                if message[0] == "told":
                    self._told[r].append(message[1])
                elif message[0] == "done":
                    return Outcome(r, value=message[1], at=message[2])
                else:
                    kind, error, trace, at, facts = message[1:]
                    return Outcome(r, kind=kind, error=error, trace=trace, at=at, facts=facts)
        except (EOFError, ConnectionResetError):
            _readable(self.pidfds[r], 20)
            dead = True
        return Outcome(r, exitcode=self._reap(r)) if dead else None

    def _wait(self, ranks: list[int], seconds: float) -> bool:
        things = [self.conns[r] for r in ranks] + [self.pidfds[r] for r in ranks]
        return seconds > 0 and bool(wait(things, seconds))

    def _stuck(self, ranks: list[int], deadline: float, outcomes: dict[int, Outcome]) -> str:
        self.healthy = False
        self.stacks(ranks)
        done = "\n".join(map(str, outcomes.values()))
        return f"ranks {ranks} did not end within {deadline:.0f} s\n{done}\n{self.logs()}"


# -- programs


def start(*words: str | Path, cwd: Path | None = None, **env: str) -> "subprocess.Popen[str]":
    """Starts a program, which may be a rank. finished() brings what it prints and complains."""
    return subprocess.Popen(
        words, cwd=cwd, env={**os.environ, **env},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(
    *programs: "subprocess.Popen[str]", seconds: float = DEADLINE
) -> "list[subprocess.CompletedProcess[str]]":
    """Waits for programs. Those that have not ended by then are killed, with all that they have
    started."""
    end = time.monotonic() + seconds

    def result(program: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
        try:
            out, err = program.communicate(timeout=max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            for pid in [program.pid, *descendants(program.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            out, err = program.communicate()
            err += f"\nit did not end within {seconds:g} s"
        return subprocess.CompletedProcess(program.args, program.returncode, out, err)

    with ThreadPoolExecutor(len(programs)) as pool:  # so that no full pipe stops one
        return list(pool.map(result, programs))


def _readable(fd: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _written(path: Path, offset: int, text: str) -> bool:
    return text in _tail(path, offset)


def _tail(path: Path, offset: int) -> str:
    with path.open("rb") as f:
        f.seek(offset)
        return f.read().decode(errors="replace")


def until(condition: Callable[[], Any], seconds: float = DEADLINE, what: str = "") -> Any:
    """Polls until the condition is true and returns its value; TimeoutError after the deadline."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not so within {seconds} s: {what or condition}")
        time.sleep(0.002)


def interrupt(call: Callable[[], Any]) -> None:
    """Calls a Python function on the main thread, and has Ctrl-C come once that is inside."""
    main: Any = threading.main_thread().ident
    code = call.__code__

    def inside() -> Any:
        frame: Any = sys._current_frames().get(main)
        while frame and frame.f_code is not code:
            frame = frame.f_back
        return frame

    def interrupts() -> None:
        until(inside)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupts)
    thread.start()
    try:
        call()
    finally:
        thread.join()


# -- what the tests look at


def threads(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for p in found:
        found += children.get(p, [])
    return found[1:]


def descriptors(pid: int | str = "self") -> dict[str, str]:
    """The open descriptors of a process, less the one that lists them."""
    found = {}
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[fd.name] = str(fd.readlink())
    return {fd: to for fd, to in found.items() if not to.startswith("/proc/")}


def listening_ports(pid: int | str = "self") -> list[tuple[str, int]]:
    """The addresses and ports on which a process listens, IPv4 and IPv6."""
    inodes = {m[1] for to in descriptors(pid).values() if (m := re.match(r"socket:\[(\d+)\]", to))}
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                raw = bytes.fromhex(address)
                words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
                found.append((socket.inet_ntop(family, words), int(port, 16)))
    return found


def free_port() -> int:
    """A port for a server that is started later. The kernel gives those below 32768 to nobody who
    asks for any, so that no program that runs beside can have it by then."""
    while True:
        port = random.randrange(10_000, 32_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def shared_memory_names() -> set[str]:
    return {f.name for f in Path("/dev/shm").iterdir()}


if __name__ == "__main__":
    # Functions and classes must be those of the module `harness`, not of `__main__`.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    importlib.import_module("harness")._serve(int(sys.argv[1]))
