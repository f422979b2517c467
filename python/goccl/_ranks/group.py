"""All ranks of one library, which measure its collectives."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import socket
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from . import barrier, wire
from .collectives import ITEMSIZE, Call, layout
from .libraries import Library, Unavailable
from .processes import START_TIMEOUT, Processes

_MIN_ITERATIONS, _MAX_ITERATIONS = 2, 1000  # of a block, where the number is chosen
_FAR_TOO_LONG = 10  # times as long as a block is to be: whatever took the CPU, no guess is needed


class Group(Protocol):
    """What a run needs of the ranks of a library: see RankGroup."""

    version: str
    init_s: float

    def prepare(self, call: Call, *, check: bool = True) -> None: ...

    def first_call(self) -> tuple[float, int]: ...

    def pss(self) -> float | None: ...

    def block(
        self, iterations: int, warmup: int, seed: int, timeout: float
    ) -> tuple[list[int], int, float]: ...

    def close(self) -> None: ...


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


class RankGroup(Processes):
    """The ranks of one library, or the one of this seat. Use as a context manager, or call close().

    A group with a seat still has to join(), at the same time as those of the other seats. version:
    of the library. init_s: how long it took to join, in seconds, from when all ranks were ready.
    """

    def __init__(
        self, library: Library, ranks: int, timeout: float, seat: Seat | None = None
    ) -> None:
        super().__init__(library)
        self.ranks = ranks
        self._seat = seat
        self._here = [seat.rank] if seat else range(ranks)  # that this process starts
        self.version = ""
        self.init_s = 0.0
        self._timeout = timeout
        try:
            self._start()
            if not seat:
                self.join()
        except BaseException:
            self.close()
            raise

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

    def prepare(self, call: Call, *, check: bool = True) -> None:
        """Makes the ranks' buffers. Unavailable where the library has no such call, or this host
        not the memory. check: that results are right."""
        shapes = [layout(call, rank) for rank in self._here]
        # In place the smaller buffer is a part of the larger one.
        together = max if call.in_place else sum
        elements = sum(together((shape.send, shape.recv)) for shape in shapes)
        needed = elements * ITEMSIZE[call.dtype]
        if needed > (available := available_memory()):
            raise Unavailable(
                f"no memory for {call.count} elements: the buffers of all ranks here take "
                f"{needed >> 20} MiB, and {available >> 20} are available"
            )
        self._ask({"do": "prepare", "call": asdict(call), "check": check}, self._timeout)

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
            library = self.library
            self._spawn("goccl._ranks.worker", address, library.adapters, library.name)
            self._fork(len(self._here), more=False)
            for rank in self._here:
                member = self._accept(listener, len(self._here), deadline)
                socket.send_fds(member.sock, [b"F"], fds)
                wire.send(member.sock, setup | {"rank": rank})
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


def iterations_of(group: Group, seconds: float, timeout: float) -> int:
    """How many iterations of what a group has prepared make a block of so many seconds, about."""
    iterations = _MIN_ITERATIONS
    if group.block(iterations, 0, 0, timeout)[2] > _FAR_TOO_LONG * seconds:
        return iterations
    # The second guess is by a block as long as the first one, where what a block takes to begin
    # weighs less.
    for _ in range(2):
        # The shortest of three, for another process may have taken the CPU in one of them.
        spent = min(group.block(iterations, 0, 0, timeout)[2] for _ in range(3))
        wanted = int(seconds * iterations / max(spent, 1e-9))
        iterations = max(_MIN_ITERATIONS, min(_MAX_ITERATIONS, wanted))
    return iterations


def _raise_descriptor_limit() -> None:
    """To the most that this user may have: each rank takes two, and libraries run together."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def available_memory() -> int:
    """Bytes that new buffers may take."""
    return _kilobytes("/proc/meminfo", "MemAvailable") << 10


def _pss(pid: int) -> int:
    return _kilobytes(f"/proc/{pid}/smaps_rollup", "Pss") << 10


def _kilobytes(file: str, name: str) -> int:
    lines = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
