"""All ranks of one library: started, asked, and ended. Every wait has a limit, and nothing is left
behind."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from . import barrier, wire
from .collectives import ITEMSIZE, layout
from .libraries import Library, Unavailable

START_TIMEOUT = 120.0  # for all ranks to be ready, and then for all to have joined
_GOODBYE = 10.0  # to end in good order
_GRACE = 5.0  # for others to answer after a rank has failed, and between SIGTERM and SIGKILL
_LOG_TAIL = 2000


class GroupFailure(Exception):
    """A rank died, failed or did not answer. The text names library and rank."""


class _Folder(tempfile.TemporaryDirectory[str]):
    """Where an MPI may put its own files, so that they end with the group."""

    def __init__(self) -> None:
        super().__init__(prefix="goccl-bench-", ignore_cleanup_errors=True)


@dataclass(frozen=True)
class Seat:
    """Which rank a group starts here, where other processes start its others, and how it meets
    those.

    store: a listening socket, at rank 0 only, for libraries that have a store; store_address is
    its.
    links: to all other ranks, which have proved that they are. deadline: by time.monotonic(), for
        the start.
    """

    rank: int
    store: socket.socket | None
    store_address: tuple[str, int]
    links: Mapping[int, socket.socket]
    deadline: float


@dataclass
class _Member:
    sock: socket.socket
    pid: int
    pidfd: int
    rank: int


class RankGroup:
    """The processes of one library, or the one of this seat. Use as a context manager, or call
    close().

    A group with a seat still has to join(), at the same time as those of the other seats. version:
    of the library. init_s: how long it took to join, in seconds, from when all ranks were ready.
    """

    def __init__(
        self, library: Library, ranks: int, timeout: float, seat: Seat | None = None
    ) -> None:
        self.library = library
        self.ranks = ranks
        self._seat = seat
        self._here = [seat.rank] if seat else range(ranks)  # that this process starts
        self.version = ""
        self.init_s = 0.0
        self._timeout = timeout
        self._members: list[_Member] = []
        self._process: subprocess.Popen[bytes] | None = None  # the launcher, or who forks the ranks
        self._folder = _Folder() if library.launcher else None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  close() closes it
        self._segments: set[Path] = set()
        self._healthy = False
        try:
            self._start()
            if not seat:
                self.join()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def join(self) -> None:
        """Makes the library's group of all ranks."""
        begun = time.monotonic()
        for member in self._members:
            self._tell(member, {"do": "join"})
        answers = self._collect(begun + START_TIMEOUT)
        self.init_s = time.monotonic() - begun
        for member, (answer, _) in zip(self._members, answers, strict=True):
            member.rank = int(answer["rank"])
            self.version = str(answer["version"])
        self._note_segments()
        self._members.sort(key=lambda member: member.rank)
        self._healthy = True

    def prepare(self, collective: str, count: int, dtype: str) -> None:
        """Makes the ranks' buffers. Unavailable where the library has no such collective or
        dtype, or this host not the memory."""
        shapes = [layout(collective, rank, self.ranks, count) for rank in self._here]
        needed = sum(shape.send + shape.recv for shape in shapes) * ITEMSIZE[dtype]
        if needed > (available := _available_memory()):
            raise Unavailable(
                f"no memory for {count} elements: the buffers of all ranks here take "
                f"{needed >> 20} MiB, and {available >> 20} are available"
            )
        request = {"do": "prepare", "collective": collective, "count": count, "dtype": dtype}
        self._ask(request, self._timeout)

    def first_call(self) -> tuple[float, int]:
        """Makes a call: seconds that it took (slowest rank), and wrong elements."""
        answers = [answer for answer, _ in self._ask({"do": "first_call"}, self._timeout)]
        spent = max(int(answer["spent"]) for answer in answers) / 1e9
        return spent, sum(int(answer["wrong"]) for answer in answers)

    def pss(self) -> float | None:
        """Bytes of memory of a rank, in the mean; what processes share is divided among them.

        None where the system does not tell.
        """
        try:
            return statistics.fmean(_pss(member.pid) for member in self._members)
        except OSError:
            return None

    def block(
        self, iterations: int, warmup: int, seed: int, timeout: float
    ) -> tuple[list[int], int, float]:
        """Runs a block: time of each iteration in ns (slowest rank), wrong elements, and seconds in
        all."""
        request = {"do": "block", "iterations": iterations, "warmup": warmup, "seed": seed}
        answers = self._ask(request, timeout)
        times = [wire.unpack_times(payload) for _, payload in answers]
        wrong = sum(int(answer["wrong"]) for answer, _ in answers)
        spent = max(int(answer["spent"]) for answer, _ in answers) / 1e9
        return [max(ranks) for ranks in zip(*times, strict=True)], wrong, spent

    def close(self) -> None:
        """Ends all processes: in good order where the group is healthy, by signals where it is
        not."""
        if self._healthy:
            for member in self._members:
                with contextlib.suppress(OSError):
                    wire.send(member.sock, {"do": "quit"})
            self._wait_all(_GOODBYE)
        self._healthy = False
        if not self._all_gone():
            self._note_segments()
            if self.library.launcher:  # it gets the time to tidy up
                self._kill_all(signal.SIGTERM)
                self._wait_all(_GRACE)
        for member in self._members:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(member.pidfd, signal.SIGKILL)
        self._wait_all(0.5)  # who has forked them waits for them
        self._kill_all(signal.SIGKILL)
        if self._process:
            self._process.wait()
        for member in self._members:
            member.sock.close()
            os.close(member.pidfd)
        self._members.clear()
        self._process = None
        self._log.close()
        for segment in self._segments:
            segment.unlink(missing_ok=True)
        if self._folder:
            self._folder.cleanup()

    def _start(self) -> None:
        address = "goccl-bench-" + secrets.token_hex(16)
        deadline = self._seat.deadline if self._seat else time.monotonic() + START_TIMEOUT
        _raise_descriptor_limit()
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
            self._handed() as (setup, fds),
        ):
            listener.bind("\0" + address)
            listener.listen(len(self._here))
            self._spawn(address)
            for _ in self._here:
                member = self._accept(listener, deadline)
                socket.send_fds(member.sock, [b"F"], fds)
                wire.send(member.sock, setup)
            self._collect(deadline)

    @contextlib.contextmanager
    def _handed(self) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """What each rank is told, and the descriptors that come with it: of the store, and to meet
        by."""
        setup: dict[str, Any] = {"ranks": self.ranks, "timeout": self._timeout}
        if self._seat:
            host, port = self._seat.store_address
            setup |= {"store_host": host, "store_port": port}
            setup |= {"store_here": self._seat.store is not None, "linked": list(self._seat.links)}
            sockets = [self._seat.store] if self._seat.store else []
            yield setup, [sock.fileno() for sock in [*sockets, *self._seat.links.values()]]
            return
        with socket.create_server(("127.0.0.1", 0), backlog=self.ranks) as store:
            host, port = store.getsockname()
            setup |= {"store_host": host, "store_port": port, "store_here": True, "linked": []}
            fd = barrier.create(self.ranks)
            try:
                yield setup, [store.fileno(), fd]
            finally:
                os.close(fd)

    def _spawn(self, address: str) -> None:
        # NumPy would ask for huge pages, which other memory has only where all has.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMPY_MADVISE_HUGEPAGE": "0"}
        if self._folder:
            environment["TMPDIR"] = self._folder.name
        environment |= self.library.environment
        package = str(Path(__file__).resolve().parents[2])
        paths = [self.library.environment.get("PYTHONPATH"), package, os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        worker = [sys.executable, str(Path(__file__).with_name("standalone.py")), "worker"]
        worker += [address, self.library.name]
        ranks = [] if self.library.launcher else [str(rank) for rank in self._here]
        # A session of its own: Ctrl-C reaches the coordinator only, which then ends the ranks.
        self._process = subprocess.Popen(
            [*self.library.launcher, *worker, *ranks],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def _accept(self, listener: socket.socket, deadline: float) -> _Member:
        listener.settimeout(0.2)
        while True:
            status = self._process.poll() if self._process else None
            if status is not None:
                what = "the launcher" if self.library.launcher else "the process of all ranks"
                raise self._failure(f"{what} ended with status {status} at start-up")
            if time.monotonic() > deadline:
                raise self._failure(
                    f"{len(self._members)} of {len(self._here)} ranks started within "
                    f"{START_TIMEOUT:g} s"
                )
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            credentials = sock.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
            )
            pid, uid, _ = struct.unpack("3i", credentials)
            if uid != os.getuid():
                sock.close()
                continue
            sock.settimeout(_GRACE)
            member = _Member(sock, pid, os.pidfd_open(pid), -1)
            self._members.append(member)
            return member

    def _ask(self, request: dict[str, Any], timeout: float) -> list[tuple[dict[str, Any], bytes]]:
        # Until all have answered, a close() cannot expect them to listen.
        self._healthy = False
        for member in self._members:
            self._tell(member, request)
        try:
            answers = self._collect(time.monotonic() + timeout)
        except Unavailable:
            self._healthy = True
            raise
        self._healthy = True
        return answers

    def _tell(self, member: _Member, request: dict[str, Any]) -> None:
        try:
            wire.send(member.sock, request)
        except OSError as error:
            raise self._failure(f"{self._name(member)} is gone: {error}") from error

    def _collect(self, deadline: float) -> list[tuple[dict[str, Any], bytes]]:
        """One answer of every rank, in the order of the members."""
        answers: dict[int, tuple[dict[str, Any], bytes]] = {}
        problems: list[str] = []
        poll = select.poll()
        by_fd = {member.sock.fileno(): member for member in self._members}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while by_fd:
            left = deadline - time.monotonic()
            ready = poll.poll(max(0.0, left) * 1000)
            if not ready:
                if not problems:
                    problems = [
                        f"{self._name(member)} did not answer in time" for member in by_fd.values()
                    ]
                break
            for fd, _ in ready:
                member = by_fd.pop(fd)
                poll.unregister(fd)
                problem = self._read(member, answers)
                if problem:
                    # What the others say may be the cause; but they may wait for this one.
                    problems.append(problem)
                    deadline = min(deadline, time.monotonic() + _GRACE)
        if problems:
            raise self._failure("; ".join(problems))
        refusals = [
            str(answer["unavailable"]) for answer, _ in answers.values() if "unavailable" in answer
        ]
        if refusals:
            raise Unavailable(refusals[0])
        return [answers[member.pid] for member in self._members]

    def _read(self, member: _Member, answers: dict[int, tuple[dict[str, Any], bytes]]) -> str:
        try:
            answer = wire.receive(member.sock)
        except (EOFError, OSError, ValueError) as error:
            return f"{self._name(member)} died: {error}"
        if "error" in answer[0]:
            return f"{self._name(member)}: {answer[0]['error']}"
        answers[member.pid] = answer
        return ""

    def _name(self, member: _Member) -> str:
        return (
            f"rank {member.rank}"
            if member.rank >= 0
            else f"a rank that starts (process {member.pid})"
        )

    def _failure(self, problem: str) -> GroupFailure:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_TAIL))
        tail = self._log.read().decode(errors="replace").strip()
        output = f"\n  its output ends with:\n{tail}" if tail else ""
        return GroupFailure(f"{self.library.label}: {problem}{output}")

    def _note_segments(self) -> None:
        if self.library.launcher:
            for member in self._members:
                self._segments |= _named_segments(member.pid)

    def _all_gone(self) -> bool:
        running = self._process is not None and self._process.poll() is None
        return not running and not any(_alive(member) for member in self._members)

    def _kill_all(self, number: signal.Signals) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _wait_all(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._all_gone() and time.monotonic() < deadline:
            time.sleep(0.01)


def _named_segments(pid: int) -> set[Path]:
    """The named shared memory of a process, which an MPI leaves behind where it is killed."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return set()
    names = {line.split(maxsplit=5)[5] for line in maps.splitlines() if " /dev/shm/" in line}
    return {Path(name) for name in names if not name.endswith(" (deleted)")}


def _raise_descriptor_limit() -> None:
    """To the most that this user may have: each rank takes two, and libraries run together."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _available_memory() -> int:
    """Bytes that new buffers may take."""
    return _kilobytes("/proc/meminfo", "MemAvailable") << 10


def _pss(pid: int) -> int:
    return _kilobytes(f"/proc/{pid}/smaps_rollup", "Pss") << 10


def _kilobytes(file: str, name: str) -> int:
    lines = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _alive(member: _Member) -> bool:
    poll = select.poll()  # select() takes no descriptor from 1024 on
    poll.register(member.pidfd, select.POLLIN)
    return not poll.poll(0)
