"""The processes of one library: started, asked, and ended. Every wait has a limit, and nothing is
left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from . import wire
from .children import Child
from .libraries import Library, Unavailable

if TYPE_CHECKING:
    from typing import Self

STANDALONE = str(Path(__file__).with_name("standalone.py"))
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


class Member(Child):
    """A rank's process, and the connection to it. rank: -1 while it is not known."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        super().__init__(pid)
        self.sock = sock
        self.rank = -1

    def close(self) -> None:
        self.sock.close()
        super().close()


class Processes:
    """The processes of one library on this host, which listen for requests. Use as a context
    manager, or call close()."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._members: list[Member] = []
        self._process: subprocess.Popen[bytes] | None = None  # the launcher, or who forks the ranks
        self._folder = _Folder() if library.launcher else None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  close() closes it
        self._segments: set[Path] = set()
        self._healthy = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes: in good order where the group is healthy, by signals where it is
        not."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
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
            member.kill()
        self._wait_all(0.5)  # who has forked them waits for them
        self._kill_all(signal.SIGKILL)
        if self._process:
            self._process.wait()
        for member in self._members:
            member.close()
        self._members.clear()
        self._process = None
        self._log.close()
        for segment in self._segments:
            segment.unlink(missing_ok=True)
        if self._folder:
            self._folder.cleanup()

    def _spawn(self, module: str, *arguments: str) -> None:
        """Starts a module, which runs a rank: by the library's launcher, or in forks of it."""
        # NumPy would ask for huge pages, which other memory has only where all has.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMPY_MADVISE_HUGEPAGE": "0"}
        if self._folder:
            environment["TMPDIR"] = self._folder.name
        environment |= self.library.environment
        if own := self.library.environment.get("PYTHONPATH"):
            paths = (own, os.environ.get("PYTHONPATH"))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        program = [sys.executable, STANDALONE, module, *arguments]
        forks = not self.library.launcher
        # A session of its own: Ctrl-C reaches the coordinator only, which then ends the ranks.
        self._process = subprocess.Popen(
            [*self.library.launcher, *program, *(["fork"] if forks else [])],
            env=environment,
            stdin=subprocess.PIPE if forks else subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def _fork(self, number: int, *, more: bool) -> None:
        """Has so many ranks forked, where there is no launcher. more: others may follow."""
        if self._process and self._process.stdin:
            with contextlib.suppress(BrokenPipeError):  # who forks them has ended: see _accept()
                os.write(self._process.stdin.fileno(), bytes(number))
            if not more:
                self._process.stdin.close()  # it ends with the last of them, then

    def _accept(self, listener: socket.socket, wanted: int, deadline: float) -> Member:
        """The next of as many ranks as are wanted."""
        listener.settimeout(0.2)
        while True:
            status = self._process.poll() if self._process else None
            if status is not None:
                what = "the launcher" if self.library.launcher else "the process of all ranks"
                raise self._failure(f"{what} ended with status {status} at start-up")
            if time.monotonic() > deadline:
                raise self._failure(
                    f"{len(self._members)} of {wanted} ranks started within {START_TIMEOUT:g} s"
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
            member = Member(pid, sock)
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

    def _tell(self, member: Member, request: dict[str, Any]) -> None:
        try:
            wire.send(member.sock, request)
        except OSError as error:
            raise self._failure(f"{self._name(member)} is gone: {error}") from error

    def _collect(
        self, deadline: float, members: Sequence[Member] | None = None
    ) -> list[tuple[dict[str, Any], bytes]]:
        """One answer of every rank, or of these, in their order."""
        members = self._members if members is None else members
        answers: dict[int, tuple[dict[str, Any], bytes]] = {}
        problems: list[str] = []
        poll = select.poll()
        by_fd = {member.sock.fileno(): member for member in members}
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
        return [answers[member.pid] for member in members]

    def _read(self, member: Member, answers: dict[int, tuple[dict[str, Any], bytes]]) -> str:
        try:
            answer = wire.receive(member.sock)
        except (EOFError, OSError, ValueError) as error:
            return f"{self._name(member)} died: {error}"
        if "error" in answer[0]:
            return f"{self._name(member)}: {answer[0]['error']}"
        answers[member.pid] = answer
        return ""

    def _name(self, member: Member) -> str:
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
        return not running and all(member.has_ended() for member in self._members)

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
