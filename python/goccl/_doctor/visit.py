"""A visit of the doctor: the ranks meet at a store, rank 0 calls up the pairs, and gets all
results."""

from __future__ import annotations

import importlib
import json
import os
import platform
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import goccl
from goccl import _capi
from goccl._launch import Place
from goccl._native import load
from goccl._options import VARIABLES, shown
from goccl._records import check, loads

from .judge import MEET, STEPS, Facts, Job, Joint
from .measure import Half, copies, first_line, measure
from .pairs import Pair, batches

_STEPS = 2  # timeouts that one pair may take: to join, and in a step
_PAUSE = 0.01  # between two looks at the store
_SHORTEST = 0.001  # a timeout of 0 would be none

_T = TypeVar("_T")
_D = TypeVar("_D", Facts, Half)


@dataclass(frozen=True)
class Patience:
    """How long a visit waits, in seconds.

    Attributes:
        come: for all ranks to come.
        pair: for a pair to be joined, and for each of its steps.
        told: beyond these, for what is told through the store.
    """

    come: float
    pair: float
    told: float = 10.0

    @property
    def measure(self) -> float:
        """For all that a pair does."""
        return _STEPS * self.pair

    @property
    def batch(self) -> float:
        """For all pairs of a batch."""
        return self.measure + self.told

    def all(self, size: int) -> float:
        """For a whole visit of so many ranks, if all pairs have to be measured one by one."""
        return self.come + size * (size - 1) / 2 * self.batch + 2 * self.told


class Lost(Exception):
    """Rank 0, or the store, cannot be reached."""


class Late(Exception):
    """A call has not ended in its time."""


def within(limit: float, call: Callable[[], _T]) -> _T:
    """Calls in a thread of its own. One that does not end in time goes on there, and harms no exit.

    Torch's store waits for ever, whatever its timeout, where its host has vanished without a word.

    Args:
        limit: in seconds.
        call: what to call.

    Returns:
        What the call returns. It raises what the call raises.

    Raises:
        Late: the time is over.
    """
    ended: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ended.put((True, call()))
        except BaseException as error:
            ended.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        done, value = ended.get(timeout=limit)
    except queue.Empty:
        raise Late from None
    if not done:
        raise value
    result: _T = value
    return result


class Board:
    """What the ranks tell each other: values by names, through a store.

    Args:
        store: of torch.
        told: seconds that the store may take to answer.
    """

    def __init__(self, store: Any, told: float) -> None:
        self.store = store
        self._told = told

    def put(self, name: str, value: object) -> None:
        """Tells it to all."""
        self._ask(lambda: self.store.set(name, json.dumps(value)))

    def has(self, name: str) -> bool:
        """Whether somebody has told it."""
        return bool(self._ask(lambda: self.store.check([name])))

    def get(self, name: str, deadline: float) -> Any:
        """Waits until somebody has told it; None where nobody has, or not in JSON, by the deadline
        (time.monotonic())."""
        left = max(_SHORTEST, deadline - time.monotonic())

        def read() -> Any:
            try:
                self.store.wait([name], timedelta(seconds=left))
            except _dist().DistStoreError:  # its timeout
                return None
            try:
                return loads(self.store.get(name))
            except (ValueError, RecursionError):  # nothing that a doctor writes
                return None

        return self._ask(read, left)

    def _ask(self, call: Callable[[], _T], more: float = 0.0) -> _T:
        try:
            return within(more + self._told, call)
        except Late:
            raise Lost(f"the store has not answered for {more + self._told:.0f} s") from None
        except RuntimeError as error:
            raise Lost(f"the store is gone: {first_line(error)}") from error


def _dist() -> Any:
    return importlib.import_module("torch.distributed")


def join(place: Place, patience: Patience) -> Any:
    """Reaches the store of a job, which rank 0 opens unless a launcher has.

    Raises:
        Lost: it cannot be reached, or its port is taken.
    """
    dist = _dist()
    opens = place.rank == 0 and not place.served
    what = "opened (MASTER_PORT sets another port)" if opens else "reached"
    failed = f"the store at {place.store}, cannot be {what}"

    def connect() -> Any:
        return dist.TCPStore(
            place.host,
            place.port,
            is_master=opens,
            wait_for_workers=False,
            timeout=timedelta(seconds=patience.come),
        )

    try:
        store = within(patience.come + patience.told, connect)
    except Late:
        raise Lost(f"{failed}: it accepts connections, and does not answer") from None
    except RuntimeError as error:
        raise Lost(f"{failed}: {_unknown(place.host) or first_line(error)}") from error
    # torchrun keeps its store through restarts.
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"goccl-doctor {restart}", store)


def _unknown(host: str) -> str:
    """That a host's name is not known here, and why; or ""."""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return f"the name {host!r} is not known here: {error.strerror} (MASTER_ADDR)"
    return ""


def facts() -> Facts:
    """What this rank tells of itself."""
    import torch

    load()  # raises what is wrong with it
    given = {name: _capi.getenv(name) for name in VARIABLES}
    settings = {name: shown(name, value) for name, value in given.items() if value}
    return Facts(
        host=platform.node(),
        where=f"{_read('/proc/sys/kernel/random/boot_id')} {_link('/proc/self/ns/net')}",
        pid=os.getpid(),
        cpus=len(os.sched_getaffinity(0)),
        versions={
            "goccl": goccl.__version__,
            "libgoccl.so": _capi.library().goccl_version().decode(),
            "torch": str(torch.__version__),
            "Python": platform.python_version(),
        },
        settings=settings,
        load=os.getloadavg()[0],
        host_cpus=os.cpu_count() or 0,
        copy_GBps=copies() / 1e9,
    )


def made(kind: type[_D], told: Any) -> _D | None:
    """Makes a record of what another rank has told.

    Args:
        kind: a dataclass of texts, numbers and dictionaries of texts.
        told: anything. A rank with another version of goccl may tell more fields.

    Returns:
        The record; None where a field is missing, or is something else.
    """
    try:
        record = kind(**{each.name: told[each.name] for each in fields(kind) if each.name in told})
        check(record)
    except (TypeError, ValueError, OverflowError):
        return None
    return record


def lead(board: Board, size: int, patience: Patience) -> Job:
    """Rank 0: has all pairs measured, and returns what came out."""
    me = facts()
    board.put("facts 0", asdict(me))
    deadline = time.monotonic() + patience.come
    told = {rank: made(Facts, board.get(f"facts {rank}", deadline)) for rank in range(1, size)}
    job = Job(size, {0: me} | {rank: given for rank, given in told.items() if given})
    plan = batches(
        sorted(job.facts),
        {rank: given.where for rank, given in job.facts.items()},
        {rank: given.cpus for rank, given in job.facts.items()},
    )
    board.put("plan", plan)
    for number, batch in enumerate(plan):
        pairs = [pair for pair in batch if not set(job.lost) & set(pair)]
        board.put(f"start {number}", pairs)
        deadline = time.monotonic() + patience.batch
        mine = [pair for pair in pairs if 0 in pair]
        halves = {}
        if mine:
            halves[0] = _measured(board, number, mine[0], 0, patience)
        job.lost += _collect(board, number, pairs, halves, deadline, patience.told)
        for pair in batch:
            job.pairs[pair] = _joint(pair, *(halves.get(rank) for rank in pair))
        job.interfaces |= {rank: half.interface for rank, half in halves.items() if half.interface}
    board.put("end", True)
    return job


def _collect(
    board: Board,
    number: int,
    pairs: Sequence[Pair],
    halves: dict[int, Half],
    deadline: float,
    grace: float,
) -> list[int]:
    """Waits for the halves that the other ranks tell, and returns the ranks that told none, or
    something else.

    Where one half of a pair is a failure, the other one has failed as well, or is never told.
    """
    partner = dict(pairs) | {b: a for a, b in pairs}
    limits = dict.fromkeys((rank for rank in partner if rank not in halves), deadline)
    if 0 in halves and halves[0].failed:
        limits[partner[0]] = time.monotonic() + grace
    lost = []
    while limits:
        for rank, limit in list(limits.items()):
            if board.has(f"half {number} of {rank}"):
                half = made(Half, board.get(f"half {number} of {rank}", deadline))
                del limits[rank]
                if half is None or half.failed not in ("", *STEPS):
                    lost.append(rank)
                    continue
                halves[rank] = half
                if half.failed and partner[rank] in limits:
                    limits[partner[rank]] = min(deadline, time.monotonic() + grace)
            elif time.monotonic() > limit:
                lost.append(rank)
                del limits[rank]
        time.sleep(_PAUSE)
    return lost


def follow(board: Board, rank: int, patience: Patience) -> None:
    """The others: do what rank 0 calls them up for, until it ends the visit.

    Raises:
        Lost: rank 0 says nothing any more.
    """
    board.put(f"facts {rank}", asdict(facts()))
    plan = _from_leader(board, "plan", patience.come + patience.told)
    for number in range(len(plan)):
        for low, high in _from_leader(board, f"start {number}", patience.batch + patience.told):
            if rank in (low, high):
                pair = (low, high)
                half = _measured(board, number, pair, rank, patience)
                board.put(f"half {number} of {rank}", asdict(half))
    _from_leader(board, "end", patience.batch + patience.told)
    board.put(f"left {rank}", True)


def wait_for_others(board: Board, job: Job, patience: Patience) -> None:
    """Rank 0, which may hold the store: lets the others leave first."""
    deadline = time.monotonic() + patience.told
    for rank in job.facts:
        if rank != 0 and rank not in job.lost:
            board.get(f"left {rank}", deadline)


def _from_leader(board: Board, name: str, timeout: float) -> Any:
    value = board.get(name, time.monotonic() + timeout)
    if value is None:
        raise Lost(f"rank 0 said nothing for {timeout:.0f} s, or has ended")
    return value


def _measured(board: Board, number: int, pair: Pair, rank: int, patience: Patience) -> Half:
    store = _dist().PrefixStore(f"batch {number} pair {pair[0]} {pair[1]}", board.store)
    try:
        return within(patience.measure, lambda: measure(store, pair, rank, patience.pair))
    except Late:
        error = f"it has not ended within {patience.measure:.0f} s; --timeout gives it more"
        return Half(rank, sum(pair) - rank, failed=MEET, error=error)


def _joint(pair: Pair, low: Half | None, high: Half | None) -> Joint:
    if low is None or high is None:
        return Joint(failed=MEET, error="a rank fell silent")
    told = {rank: half.error for rank, half in zip(pair, (low, high), strict=True) if half.error}
    first = min((half.failed for half in (low, high) if half.failed), key=STEPS.index, default="")
    if len(set(told.values())) == 2:
        error = "; ".join(f"rank {rank}: {text}" for rank, text in told.items())
    else:
        error = next(iter(told.values()), "each rank says that the other has left" if first else "")
    return Joint(
        low.transport,
        low.reason,
        max(low.latency_us, high.latency_us),
        low.sent_GBps,
        high.sent_GBps,
        low.clock_s,
        first,
        error,
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def visit(place: Place, patience: Patience) -> Job | None:
    """Takes part in a visit.

    Args:
        place: this rank.
        patience: for how long.

    Returns:
        At rank 0 what came out; None at the others.

    Raises:
        Lost: the store or rank 0 cannot be reached.
    """
    board = Board(join(place, patience), patience.told)
    if place.rank != 0:
        follow(board, place.rank, patience)
        return None
    job = lead(board, place.size, patience)
    job.store = place.store
    wait_for_others(board, job, patience)
    return job
