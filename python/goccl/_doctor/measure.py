"""What two ranks measure together: latency, bandwidth each way, and how far their clocks are
apart."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median
from typing import Any

import goccl
from goccl._native import load

from .judge import LARGE, MEET, SMALL
from .pairs import Pair

_BYTES = (64 << 10, 512 << 10, 4 << 20)  # of a message that tells the bandwidth
_LONG = 0.05  # seconds of a message: a larger one would not tell more
_BLOCK = 0.002  # seconds of a block of messages: few are interrupted
_ALL = 0.1  # seconds of all blocks, or calls, but for the least number
_COPIES = 20
_MOST_BLOCKS, _MOST_CALLS = 20, 5000


@dataclass(frozen=True)
class Half:
    """What one rank of a pair has measured, and what stopped it.

    Attributes:
        rank: who.
        peer: with whom.
        transport: what joins them; "" where nothing does.
        reason: why it is that transport.
        interface: the network interface of this rank that listens.
        latency_us: of an exchange of 4 bytes, in microseconds.
        sent_GBps: what this rank sends to the other, in 10^9 bytes a second.
        clock_s: how far the clock of the other is ahead, in seconds; 0 at the higher rank.
        failed: the step that failed: MEET, SMALL or LARGE; "" where none did.
        error: why it failed; "" where the other rank knows it.
    """

    rank: int
    peer: int
    transport: str = ""
    reason: str = ""
    interface: str = ""
    latency_us: float = 0.0
    sent_GBps: float = 0.0  # noqa: N815  the unit's own spelling
    clock_s: float = 0.0
    failed: str = ""
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
    name = f"doctor of ranks {pair[0]} and {pair[1]}"
    half = Half(rank, pair[1] if rank == pair[0] else pair[0])
    step = MEET
    try:
        group = load().ProcessGroupGoccl(
            store,
            pair.index(rank),
            2,
            options=goccl.Options(
                timeout=timedelta(seconds=timeout),
                # so that it tells why nothing answers
                liveness_grace=timedelta(seconds=timeout / 2),
            ),
            group_name=name,
            global_ranks=list(pair),
        )
        try:
            two = _Two(group)
            two.meet()
            about = goccl.describe(group)
            half = replace(
                half,
                transport=about.transports[two.other],
                reason=about.reasons[two.other],
                interface=about.interface,
            )
            step = SMALL
            half = replace(half, clock_s=two.clock(), latency_us=two.latency() * 1e6)
            step = LARGE
            half = replace(half, sent_GBps=two.bandwidth(half.latency_us / 1e6) / 1e9)
            two.meet()
        finally:
            group.shutdown()
    except (RuntimeError, ValueError) as error:
        return replace(half, failed=step, error=_cause(error, name, step, timeout))
    return half


def copies() -> float:
    """Bytes a second of this process's copies in memory, of the largest message, at their best."""
    import torch

    source = torch.ones(_BYTES[-1], dtype=torch.uint8)
    target = torch.empty_like(source)

    def spent() -> float:
        start = time.perf_counter()
        target.copy_(source)
        return time.perf_counter() - start

    return _BYTES[-1] / min(spent() for _ in range(_COPIES))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its kind where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _cause(error: Exception, group: str, step: str, timeout: float) -> str:
    """What has failed, in a line; "" where the other rank knows it."""
    if isinstance(error, goccl.AbortedError):
        return ""
    if isinstance(error, goccl.OperationTimeoutError):
        return f"{'no connection' if step == MEET else 'nothing came'} within {timeout:.0f} s"
    line = first_line(error)
    for head in (f'communicator "{group}": ', f'communicator "{group}" has failed: '):
        line = line.removeprefix(head)
    return line


class _Two:
    """A group of two ranks."""

    def __init__(self, group: Any) -> None:
        import torch

        self._torch = torch
        self._group = group
        self._comm = goccl.Communicator(group)
        self.other = 1 - self._comm.rank

    def meet(self) -> None:
        """Connects the two, or waits for the other one."""
        self._comm.barrier()

    def latency(self) -> float:
        """Seconds of an exchange of 4 bytes, in the median."""
        number = self._torch.zeros(1)

        def exchange() -> float:
            start = time.perf_counter()
            self._comm.all_reduce_(number)
            return time.perf_counter() - start

        for _ in range(10):  # connects, and fills caches
            exchange()
        calls = self._agreed(_ALL / median(exchange() for _ in range(10)), _MOST_CALLS, least=5)
        return median(exchange() for _ in range(calls))

    def bandwidth(self, latency: float) -> float:
        """Bytes a second that this rank sends to the other one, in the best block of messages."""
        return [self._sent(sender, latency) for sender in (0, 1)][self._comm.rank]

    def _sent(self, sender: int, latency: float) -> float:
        """Bytes a second from a rank of the group to the other one."""
        data = self._torch.ones(_BYTES[-1], dtype=self._torch.uint8)  # zeros may share one page
        ack = self._torch.ones(1)
        other = self.other

        def messages(size: int, count: int) -> float:
            """Seconds of a message; the receiver says when it has them all."""
            self._comm.barrier()
            start = time.perf_counter()
            for _ in range(count):
                if self._comm.rank == sender:
                    self._group.send([data[:size]], other, 0).wait()
                else:
                    self._group.recv([data[:size]], other, 0).wait()
            if self._comm.rank == sender:
                self._group.recv([ack], other, 0).wait()
            else:
                self._group.send([ack], other, 0).wait()
            return (time.perf_counter() - start) / count

        # A slow link would take minutes for messages that a fast one needs.
        for size in _BYTES:  # the last one tried is used
            first = messages(size, 2)
            if self._agreed(first > max(_LONG, 4 * latency), 1, least=0):
                break
        blocks = self._agreed(_ALL / first, _MOST_BLOCKS)
        count = self._agreed(_BLOCK / first, _MOST_CALLS)
        return size / min(messages(size, count) for _ in range(blocks))

    def clock(self) -> float:
        """How far the clock of the second rank is ahead of the first one's, as the first sees
        it."""
        stamp = self._torch.zeros(1, dtype=self._torch.int64)
        best, ahead = float("inf"), 0.0
        for _ in range(10):
            self._comm.barrier()
            if self._comm.rank == 0:
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

    def _agreed(self, number: float, most: int, least: int = 1) -> int:
        """Rank 0's number, on both ranks, within bounds."""
        agreed = self._torch.tensor([min(most, max(least, int(number)))])
        self._comm.broadcast_(agreed, 0)
        return int(agreed.item())
