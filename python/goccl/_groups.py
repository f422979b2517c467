"""What a process group is made of, as data: who is in it, what joins the ranks, and what was
set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from goccl._native import load
from goccl._options import VARIABLES

if TYPE_CHECKING:
    from typing import Literal

    import torch.distributed

    from goccl._C import Communicator, ProcessGroupGoccl

    Group: TypeAlias = torch.distributed.ProcessGroup | Communicator | ProcessGroupGoccl | None
    Source: TypeAlias = Literal["option", "environment", "default"]


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
class Value:
    """The value of a setting.

    Attributes:
        value: as it was given; "" where nothing was. A secret is "(hidden)".
        source: "option", "environment", or "default" where nothing was given.
    """

    value: str
    source: Source


@dataclass(frozen=True)
class Description:
    """What a process group is made of. Lists have one entry a rank, in the order of ranks.

    Attributes:
        name: of the group.
        rank: of this process, in the group.
        size: how many ranks the group has.
        global_ranks: the number of each rank in the job.
        hosts: the host of each rank.
        pids: the process of each rank, as its own host numbers it.
        transports: what joins this rank to each: "mem" (threads of one process), "shm", "tcp",
            "verbs" (RDMA), or "self".
        reasons: why it is that transport, in words; "" for the own rank.
        interface: the network interface that listens; "" for a group of one, which needs none.
        addresses: that it listens on, each as "host:port".
        congestion_control: of TCP between hosts; "" for a group of one.
        oversubscribed: whether a host has more ranks than CPUs.
        thresholds: the sizes at which algorithms give way to others, in bytes, by name.
        alltoall_schedule: of an all-to-all that names none; "" is by size.
        algorithms: those that collectives may use, as GOCCL_ALGO names them; "" is any.
        timeout: of an operation that has none of its own.
        liveness_grace: how long a host may acknowledge nothing.
        settings: what was set, and how, by the name of the option, or of the variable where there
            is no option.
    """

    name: str
    rank: int
    size: int
    global_ranks: list[int]
    hosts: list[str]
    pids: list[int]
    transports: list[str]
    reasons: list[str]
    interface: str
    addresses: list[str]
    congestion_control: str
    oversubscribed: bool
    thresholds: dict[str, int]
    alltoall_schedule: str
    algorithms: str
    timeout: timedelta
    liveness_grace: timedelta
    settings: dict[str, Value]


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
    """
    return _describe(group, "goccl.describe")


def transports(group: Group = None) -> dict[int, str]:
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
    return dict(enumerate(_describe(group, "goccl.transports").transports))


def algorithm(group: Group = None, sequence: int | None = None) -> str:
    """Names the algorithm by which a collective of a group ran on this rank, such as "two_shot".

    GOCCL_ALGO forces algorithms; the page on settings lists them.

    Args:
        group: as of describe().
        sequence: the number of the collective in the order of the group's, as errors give it; None
            for the last that was started.

    Returns:
        The name. "" where the collective has not ended well yet, where it is not among the last 64,
        and of a monitored barrier.

    Raises:
        TypeError: `sequence` is no whole number of at least 0.
        TypeError, ValueError, torch.distributed.DistBackendError: as describe().

    >>> goccl.algorithm()
    'one_shot'
    """
    return str(load().algorithm(group, sequence, "goccl.algorithm"))


def _describe(group: Group, function: str) -> Description:
    facts = json.loads(load().describe(group, function))
    timeout, grace = (
        timedelta(milliseconds=facts.pop(f"{name}_ms")) for name in ("timeout", "liveness_grace")
    )
    set_to = {
        VARIABLES[name].option or name: Value(**value)
        for name, value in facts.pop("settings").items()
    }
    return Description(**facts, timeout=timeout, liveness_grace=grace, settings=set_to)
