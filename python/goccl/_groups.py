"""What a process group is made of, as data: who is in it, what joins the ranks, and what was
set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from goccl._native import load
from goccl._options import VARIABLES
from goccl._registration import accelerator
from goccl._stand_in import stands_in_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Literal

    import torch.distributed

    from goccl._C import Communicator, ProcessGroupGoccl

    Group: TypeAlias = torch.distributed.ProcessGroup | Communicator | ProcessGroupGoccl | None
    Transport: TypeAlias = Literal["self", "mem", "shm", "tcp", "verbs"]

# Of a description that is printed.
_MOST_LINES = 32
_MOST_NUMBERS = 8  # in a line, where they are not consecutive


class Member(NamedTuple):
    """A member of a group, as its process tells of itself.

    Attributes:
        process: tells processes apart, of all hosts; it stays the same while the process lives.
        pid: of the process, as its own host numbers it.
        host: its host's name.
    """

    process: int
    pid: int
    host: str


@dataclass(frozen=True)
class Setting:
    """What an option, or a variable, is set to.

    Attributes:
        value: as it was given; "" where nothing was. A secret is "(hidden)".
        source: "option", "environment", the path of a file of settings, or "default" where nothing
            was given.
    """

    value: str
    source: str


@dataclass(frozen=True, repr=False)
class Description:
    """What a process group is made of. Lists have one entry a rank, in the order of ranks.

    Printed it is a text for people. dataclasses.asdict() makes plain data of it.

    Attributes:
        name: of the group.
        rank: of this process, in the group.
        size: how many ranks the group has.
        epoch: how often the members have changed; 0 at first.
        global_ranks: the number of each rank in the job.
        hosts: the host of each rank.
        pids: the process of each rank, as its own host numbers it.
        transports: what joins this rank to each: "mem" (threads of one process), "shm", "tcp",
            "verbs" (RDMA), or "self".
        reasons: why it is that transport, in words; "" for the own rank.
        device: of which tensors go by way of the host's memory; "" where torch has none here.
        interface: the network interface that listens; "" for a group of one, which needs none.
        addresses: that it listens on, each as "host:port".
        congestion_control: of TCP between hosts; "" for a group of one.
        oversubscribed: whether a host has more ranks than CPUs.
        thresholds: the sizes at which algorithms give way to others, in bytes, by name.
        alltoall_schedule: of an all-to-all that names none; "" is by size.
        algorithms: those that collectives may use, as GOCCL_ALGO names them; "" is any.
        timeout: of an operation that has none of its own.
        liveness_grace: how long a host may acknowledge nothing.
        stands_in_for: "gloo" where the group was asked for as that; else "".
        settings: what was set, and how, by the name of the option, or of the variable where there
            is no option.
    """

    name: str
    rank: int
    size: int
    epoch: int
    global_ranks: list[int]
    hosts: list[str]
    pids: list[int]
    transports: list[Transport]
    reasons: list[str]
    device: str
    interface: str
    addresses: list[str]
    congestion_control: str
    oversubscribed: bool
    thresholds: dict[str, int]
    alltoall_schedule: str
    algorithms: str
    timeout: timedelta
    liveness_grace: timedelta
    stands_in_for: str
    settings: dict[str, Setting]

    def __repr__(self) -> str:
        lines = [
            f"group {self.name!r}: rank {self.rank} of {self.size}, epoch {self.epoch}",
            *self._members(),
            f"interface     {self.interface or '-'}, listens at {', '.join(self.addresses) or '-'}",
            f"timeout       {self.timeout}; a host is given up after {self.liveness_grace}",
            f"algorithms    {self.algorithms or 'any'}",
            f"all-to-all    {self.alltoall_schedule or 'by size'}",
        ]
        if self.device:
            lines.append(f"device        tensors of {self.device} go by way of the host's memory")
        if self.stands_in_for:
            lines.append(f"stands in     for {self.stands_in_for}, as which it was asked for")
        if self.oversubscribed:
            lines.append("CPUs          fewer than ranks on some host: ranks wait by sleeping")
        given = {name: s for name, s in self.settings.items() if s.source != "default"}
        lines += [f"set           {name}={s.value} ({s.source})" for name, s in given.items()]
        return "\n".join(lines if given else [*lines, "set           nothing"])

    def _members(self) -> Iterator[str]:
        """Yields a line for each run of ranks that differ in nothing but their numbers."""
        ranks = enumerate(zip(self.hosts, self.transports, self.reasons, strict=True))
        runs = groupby(ranks, key=lambda numbered: numbered[1])
        for (host, transport, reason), run in islice(runs, _MOST_LINES):
            members = [rank for rank, _ in run]
            named = _numbers(members)
            if (numbers := [self.global_ranks[rank] for rank in members]) != members:
                named += f" (global {_numbers(numbers)})"
            how = f"{transport}: {reason}" if reason else "this process"
            pids = _numbers([self.pids[rank] for rank in members])
            yield f"rank {named:<8} {how}; host {host}, pid {pids}"
        if rest := sum(len(list(run)) for _, run in runs):
            yield f"and {rest} more ranks: see the attributes hosts, transports and reasons"


def _numbers(numbers: Sequence[int]) -> str:
    """Numbers as text: consecutive ones as "0-3", and the first of many others."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
        return f"{first}-{last}"
    few = ",".join(map(str, numbers[:_MOST_NUMBERS]))
    return few if len(numbers) <= _MOST_NUMBERS else f"{few},..."


def describe(group: Group = None) -> Description:
    """Tells what a process group is made of, as this rank sees it. No other rank need call it.

    Args:
        group: a process group with the backend goccl, or a goccl.Communicator; None for the default
            group.

    Returns:
        The description.

    Raises:
        TypeError: `group` is something else.
        ValueError: `group` has no backend goccl, or this rank is not a member of it.
        torch.distributed.DistBackendError: the group has been shut down.

    >>> goccl.describe().interface
    'eth0'
    >>> goccl.describe()
    group '0': rank 0 of 3, epoch 0
    rank 0        this process; host alpha, pid 4711
    rank 1,2      shm: they share a host and its memory; host alpha, pid 4712, 4713
    interface     eth0, listens at 10.0.0.7:40123
    timeout       0:30:00; a host is given up after 0:00:10
    algorithms    any
    all-to-all    by size
    set           GOCCL_DEBUG=INFO (environment)
    """
    return describe_for(group, "goccl.describe")


def transports(group: Group = None) -> dict[int, Transport]:
    """Tells which transport joins this rank to each rank of a group. No other rank need call it.

    Args:
        group: as of describe().

    Returns:
        The transport by rank in the group, one of "mem" (threads of one process), "shm", "tcp",
        "verbs" (RDMA), and "self".

    Raises:
        TypeError, ValueError, torch.distributed.DistBackendError: as describe().

    >>> goccl.transports()
    {0: 'self', 1: 'shm', 2: 'tcp', 3: 'tcp'}
    """
    return dict(enumerate(describe_for(group, "goccl.transports").transports))


def algorithm(group: Group = None, sequence: int | None = None) -> str:
    """Names the algorithm by which a collective of a group ran on this rank, such as "two_shot", or
    "plan:" and the name of a registered program.

    GOCCL_ALGO forces algorithms; the page on settings lists them.

    Args:
        group: as of describe().
        sequence: the number of the collective in the order of the group's, as errors give it; None
            for the last that was started.

    Returns:
        The name. "" where the collective has not ended well yet, where it is not among the last
        512, and of a monitored barrier.

    Raises:
        TypeError: `sequence` is no whole number of at least 0.
        TypeError, ValueError, torch.distributed.DistBackendError: as describe().

    >>> goccl.algorithm()
    'one_shot'
    """
    return str(load().algorithm(group, sequence, "goccl.algorithm"))


def describe_for(group: Group, function: str) -> Description:
    """Is describe(), for a function that errors name."""
    facts = json.loads(load().describe(group, function))
    timeout, grace = (
        timedelta(milliseconds=facts.pop(f"{name}_ms")) for name in ("timeout", "liveness_grace")
    )
    set_to = {
        VARIABLES[name].option or name: Setting(**value)
        for name, value in facts.pop("settings").items()
    }
    facts["addresses"] = facts["addresses"] or []  # of a group of one
    return Description(
        **facts,
        device=accelerator(),
        timeout=timeout,
        liveness_grace=grace,
        stands_in_for=stands_in_for(group),
        settings=set_to,
    )
