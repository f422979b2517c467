"""What two ranks measure together: latency, bandwidth each way, and how far their clocks are apart."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any

import goccl
from goccl._native import load

from .pairs import Pair

_BYTES = 4 << 20  # of a message that tells the bandwidth
_BLOCK = 0.002  # seconds of a block of messages: few are interrupted
_ALL = 0.1  # seconds of all blocks, or calls, but for the least number
_LEAST, _MOST_BLOCKS, _MOST_CALLS = 5, 20, 5000


@dataclass(frozen=True)
class Half:
    """What one rank of a pair has measured, or why it could not.

    Attributes:
        rank: who.
        peer: with whom.
        transport: what joins them; "" where nothing does.
        reason: why it is that transport.
        interface: the network interface of this rank that listens.
        latency_us: of an exchange of 4 bytes, in microseconds.
        sent_GBps: what this rank sends to the other, in 10^9 bytes a second.
        clock_s: how far the clock of the other is ahead, in seconds; 0 at the higher rank.
        error: why it failed; "" where it did not.
    """

    rank: int
    peer: int
    transport: str = ""
    reason: str = ""
    interface: str = ""
    latency_us: float = 0.0
    sent_GBps: float = 0.0  # noqa: N815  the unit's own spelling
    clock_s: float = 0.0
    error: str = ""


def measure(store: Any, pair: Pair, rank: int, timeout: float) -> Half:
    """Joins the other rank of a pair in a group of two, and measures with it.

    Args:
        store: that both share, and nobody else uses.
        pair: the two ranks.
        rank: which of them this process is.
        timeout: seconds that joining, and each step, may take.

    Returns:
        The result. It is never an exception: where a step fails, `error` tells.
    """
    peer = pair[1] if rank == pair[0] else pair[0]
    limit = timedelta(seconds=timeout)
    try:
        group = load().ProcessGroupGoccl(
            store,
            pair.index(rank),
            2,
            options=goccl.Options(timeout=limit),
            group_name=f"doctor of ranks {pair[0]} and {pair[1]}",
            global_ranks=list(pair),
        )
        try:
            return _Two(group, rank, peer).measure()
        finally:
            group.shutdown()
    except (RuntimeError, ValueError) as error:
        return Half(rank, peer, error=str(error).splitlines()[0])


class _Two:
    """A group of two ranks."""

    def __init__(self, group: Any, rank: int, peer: int) -> None:
        import torch

        self._torch = torch
        self._group = group
        self._comm = goccl.Communicator(group)
        self._rank, self._peer = rank, peer
        self._first = self._comm.rank == 0

    def measure(self) -> Half:
        about = goccl.describe(self._group)
        clock = self._clock()
        latency = self._latency()
        sent = [self._bandwidth(sender) for sender in (0, 1)][self._comm.rank]
        self._comm.barrier()
        other = 1 - self._comm.rank
        return Half(
            self._rank,
            self._peer,
            about.transports[other],
            about.reasons[other],
            about.interface,
            latency * 1e6,
            sent / 1e9,
            clock,
        )

    def _latency(self) -> float:
        """Seconds of an exchange of 4 bytes, in the median."""
        number = self._torch.zeros(1)

        def exchange() -> float:
            start = time.perf_counter()
            self._comm.all_reduce_(number)
            return time.perf_counter() - start

        for _ in range(10):  # connects, and fills caches
            exchange()
        calls = self._agreed(_ALL / median(exchange() for _ in range(10)), _MOST_CALLS)
        return median(exchange() for _ in range(calls))

    def _bandwidth(self, sender: int) -> float:
        """Bytes a second from a rank of the group to the other one, as the sender sees it."""
        data = self._torch.ones(_BYTES, dtype=self._torch.uint8)  # zeros may share one page
        ack = self._torch.ones(1)
        other = 1 - self._comm.rank

        def message() -> None:
            if self._comm.rank == sender:
                self._group.send([data], other, 0).wait()
            else:
                self._group.recv([data], other, 0).wait()

        def messages(count: int) -> float:
            """Seconds of a message; the receiver says when it has them all."""
            self._comm.barrier()
            start = time.perf_counter()
            for _ in range(count):
                message()
            if self._comm.rank == sender:
                self._group.recv([ack], other, 0).wait()
            else:
                self._group.send([ack], other, 0).wait()
            return (time.perf_counter() - start) / count

        first = messages(2)
        blocks = self._agreed(_ALL / first, _MOST_BLOCKS)
        count = self._agreed(_BLOCK / first, _MOST_CALLS)
        return _BYTES / min(messages(count) for _ in range(blocks))

    def _clock(self) -> float:
        """How far the clock of the second rank is ahead of the first one's, as the first sees it."""
        stamp = self._torch.zeros(1, dtype=self._torch.int64)
        best, ahead = float("inf"), 0.0
        for _ in range(10):
            self._comm.barrier()
            if self._first:
                asked = time.time_ns()
                self._group.send([stamp], 1, 1).wait()
                self._group.recv([stamp], 1, 1).wait()
                answered = time.time_ns()
                if answered - asked < best:
                    best, ahead = answered - asked, int(stamp.item()) - (asked + answered) / 2
            else:
                self._group.recv([stamp], 0, 1).wait()
                stamp[0] = time.time_ns()
                self._group.send([stamp], 0, 1).wait()
        return ahead / 1e9

    def _agreed(self, number: float, most: int) -> int:
        """Rank 0's number, on both ranks, within bounds."""
        agreed = self._torch.tensor([min(most, max(_LEAST, int(number)))])
        self._comm.broadcast_(agreed, 0)
        return int(agreed.item())
