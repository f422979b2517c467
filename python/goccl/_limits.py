"""The limits of this host and process that matter to groups, for `goccl info`."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_DESCRIPTORS = 64  # of a process besides its links
_MOST_DESCRIPTORS = 1 << 20  # to which the library raises the soft limit, as capi/api.c does
_DESCRIPTORS_OF_PEER = 4  # a link, the peer's process, and as many while they are made
_THREADS = 16  # of a rank, with those of Python and torch
_ADDRESS_SPACE = 1700 << 20  # that the library takes when it is loaded
_LOCKED = 64 << 20  # that windows and shareable memory of a rank over RDMA may lock
_BUFFERS = 1 << 20
_UNLIMITED = "unlimited"


@dataclass(frozen=True)
class Limit:
    """A limit, or another fact of that kind.

    Attributes:
        name: of it.
        value: in words, for people.
        warning: what is too low, for how many ranks, and what to do; "" where it is enough.
    """

    name: str
    value: str
    warning: str = ""


class Host:
    """Where the facts are read: this host, or files and numbers that a test has made.

    Args:
        root: of the file system.
        rlimit: as resource.getrlimit().
        cpus: that this process may use.
    """

    def __init__(
        self,
        root: Path = _ROOT,
        rlimit: Callable[[int], tuple[int, int]] = resource.getrlimit,
        cpus: int = 0,
    ) -> None:
        self.root = root
        self.rlimit = rlimit
        self.cpus = cpus or len(os.sched_getaffinity(0))

    def text(self, path: str) -> str:
        """The text of a file; "" where it cannot be read."""
        with suppress(OSError):
            return (self.root / path).read_text().strip()
        return ""

    def chosen(self, path: str) -> str:
        """The word in brackets of a file such as "always [madvise] never"; "unknown" of none."""
        words = self.text(path).split()
        return next((word.strip("[]") for word in words if word.startswith("[")), "unknown")

    def cgroup(self, controller: str, name: str) -> Iterator[tuple[Path, str]]:
        """The files of a name in this process's cgroups, from its own one up, with their texts."""
        for line in self.text("proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", controller):
                continue
            top = self.root / "sys/fs/cgroup" / controllers
            folder = top / path.lstrip("/")
            for place in (folder, *folder.parents):
                with suppress(OSError):
                    yield place, (place / name).read_text().strip()
                if place == top:
                    break


def collect(ranks: int, verbs: bool, host: Host | None = None) -> list[Limit]:
    """Finds out what holds here.

    Args:
        ranks: of a job, all on this host: what is too low for so many is warned of.
        verbs: whether RDMA devices are to be used.
        host: where to look; None for this host.

    Returns:
        The limits. What cannot be found out is "unknown".
    """
    host = host or Host()
    return [
        _descriptors(ranks, host),
        _threads(ranks, host),
        _locked(verbs, host),
        _address_space(host),
        _memory(host),
        _huge_pages(host),
        _cpus(ranks, host),
        _single_copy(host),
        _tcp(host),
    ]


def _descriptors(ranks: int, host: Host) -> Limit:
    soft, hard = host.rlimit(resource.RLIMIT_NOFILE)
    # A limit that is infinite is the number -1.
    raised = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    value = _count(soft)
    if soft != resource.RLIM_INFINITY and soft < raised:
        value += f"; a group raises them to {raised}"
        soft = raised
    warning = ""
    needed = _DESCRIPTORS + _DESCRIPTORS_OF_PEER * ranks
    if soft != resource.RLIM_INFINITY and soft < needed:
        warning = (
            f"{soft} descriptors are too few for {ranks} ranks: raise the hard limit"
            f" (ulimit -Hn {needed})"
        )
    return Limit("descriptors", value, warning)


def _threads(ranks: int, host: Host) -> Limit:
    user, _ = host.rlimit(resource.RLIMIT_NPROC)
    parts, warning = [f"{_count(user)} of the user"], ""
    needed = _THREADS * ranks
    for folder, text in host.cgroup("pids", "pids.max"):
        if text.isdecimal():
            running = host.text(str((folder / "pids.current").relative_to(host.root)))
            parts.append(f"{running or 'some'} of {text} in the cgroup")
            if int(text) - int(running or 0) < needed:
                warning = (
                    f"the cgroup has room for {int(text) - int(running or 0)} more threads, too "
                    f"few for"
                    f" {ranks} ranks: raise pids.max (podman, docker: --pids-limit)"
                )
            break
    if user != resource.RLIM_INFINITY and user < needed:
        warning = f"{user} threads are too few for {ranks} ranks: raise them (ulimit -u)"
    return Limit("threads", ", ".join(parts), warning)


def _locked(verbs: bool, host: Host) -> Limit:
    soft, _ = host.rlimit(resource.RLIMIT_MEMLOCK)
    warning = ""
    if verbs and soft != resource.RLIM_INFINITY and soft < _LOCKED:
        warning = (
            f"{_bytes(soft)} of locked memory are too little for a rank over RDMA:"
            " raise it (ulimit -l unlimited)"
        )
    return Limit(
        "locked memory", _bytes(soft) + ("" if verbs else ", used with RDMA only"), warning
    )


def _address_space(host: Host) -> Limit:
    soft, _ = host.rlimit(resource.RLIMIT_AS)
    used = 0
    for line in host.text("proc/self/status").splitlines():
        if line.startswith("VmSize:"):
            used = int(line.split()[1]) << 10
    warning = ""
    if soft != resource.RLIM_INFINITY and soft - used < _ADDRESS_SPACE:
        warning = f"{_bytes(soft)} of address space are too little for a rank: raise it (ulimit -v)"
    return Limit("address space", _bytes(soft), warning)


def _memory(host: Host) -> Limit:
    limits = [int(text) for _, text in host.cgroup("memory", "memory.max") if text.isdecimal()]
    limits += [
        int(t) for _, t in host.cgroup("memory", "memory.limit_in_bytes") if int(t) < 1 << 60
    ]
    value = f"{_bytes(min(limits, default=resource.RLIM_INFINITY))} in the cgroup"
    with suppress(OSError):
        total = _bytes(shutil.disk_usage("/dev/shm").total)
        value += f"; shared memory is memfd, not /dev/shm ({total})"
    return Limit("memory", value)


def _huge_pages(host: Host) -> Limit:
    folder = "sys/kernel/mm/transparent_hugepage"
    ordinary, shared = host.chosen(f"{folder}/enabled"), host.chosen(f"{folder}/shmem_enabled")
    return Limit("huge pages", f"{ordinary}; for shared memory: {shared}")


def _cpus(ranks: int, host: Host) -> Limit:
    value = f"{host.cpus} allowed"
    for _, text in host.cgroup("cpu", "cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal():
            value += f", quota of {int(quota) / int(period):g} in the cgroup"
            break
    nodes = [p for p in (host.root / "sys/devices/system/node").glob("node[0-9]*") if p.is_dir()]
    value += f"; {len(nodes) or 'unknown'} NUMA node{'' if len(nodes) == 1 else 's'}"
    if ranks > host.cpus:
        value += f"; {ranks} ranks outnumber them, and wait by sleeping"
    return Limit("CPUs", value)


def _single_copy(host: Host) -> Limit:
    scope = host.text("proc/sys/kernel/yama/ptrace_scope")
    meaning = {
        "": "no Yama: ranks of one user may read each other's memory",
        "0": "ptrace_scope 0: ranks of one user may read each other's memory",
        "1": "ptrace_scope 1: a process may read the memory of its children only",
        "2": "ptrace_scope 2: only with CAP_SYS_PTRACE a process may read another's memory",
        "3": "ptrace_scope 3: no process may read another's memory",
    }
    return Limit("single copy", meaning.get(scope, f"ptrace_scope {scope}"))


def _tcp(host: Host) -> Limit:
    folder = "proc/sys/net/ipv4"
    control = host.text(f"{folder}/tcp_congestion_control") or "unknown"
    most = [host.text(f"{folder}/tcp_{way}mem").split()[-1:] for way in "rw"]
    if not all(most):
        return Limit("TCP", f"congestion control {control}; buffers unknown")
    receive, send = (int(number[0]) for number in most)
    warning = ""
    if min(receive, send) < _BUFFERS:
        warning = (
            f"TCP buffers of {_bytes(min(receive, send))} are too small for 2 ranks on two hosts:"
            " raise net.ipv4.tcp_rmem and tcp_wmem (sysctl) to 4 MiB or more"
        )
    value = f"congestion control {control}; buffers up to {_bytes(receive)} in, {_bytes(send)} out"
    return Limit("TCP", value, warning)


def _count(number: int) -> str:
    return _UNLIMITED if number == resource.RLIM_INFINITY else str(number)


def _bytes(number: int) -> str:
    if number == resource.RLIM_INFINITY:
        return _UNLIMITED
    size, units = float(number), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1024 and unit != "TiB":
        size, unit = size / 1024, next(units)
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
