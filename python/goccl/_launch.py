"""Which rank this process is, and where the ranks meet, from what launchers set in the
environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

_MOST = 65536  # ranks
_PORT = 29500  # as of torchrun
_PORTS = 20000  # below those that systems give out by themselves
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """A rank of a job.

    Attributes:
        rank: of this process.
        size: how many ranks there are.
        host: of the store.
        port: of the store.
        served: somebody else has the store; else rank 0 opens it.
    """

    rank: int
    size: int
    host: str
    port: int
    served: bool = False

    @property
    def store(self) -> str:
        """Where the ranks meet, in words."""
        return f"{self.host}, port {self.port}"


class _Names(NamedTuple):
    """The variables of a launcher; "" for what it has none for."""

    rank: str
    size: str
    local_rank: str
    local_size: str


_TORCH = _Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPEN_MPI = _Names(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_PMI = _Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")  # MPICH, Intel MPI
_SLURM = _Names("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "")
_KNOWN = (_TORCH, _OPEN_MPI, _PMI, _SLURM)  # the nearest to the program first


def _found(environ: Mapping[str, str]) -> list[_Names]:
    return [names for names in _KNOWN if names.rank in environ and names.size in environ]


def find(environ: Mapping[str, str], *, host: bool = True) -> Place | None:
    """Finds what torchrun, Open MPI, MPICH, Intel MPI or Slurm has set.

    Args:
        environ: the environment.
        host: where ranks meet is wanted, too. Else host and port of the place mean nothing.

    Returns:
        The place; None where no launcher has started this process.

    Raises:
        ValueError: a variable is no such number, or MASTER_ADDR is missing.
    """
    rank, size, local = next(
        ((n.rank, n.size, n.local_size) for n in _found(environ)), ("", "", "")
    )
    if not rank:
        return None
    ranks = _number(environ, size, 1, _MOST)
    return Place(
        rank=_number(environ, rank, 0, ranks - 1),
        size=ranks,
        host=(environ.get("MASTER_ADDR") or _host(environ, ranks, local)) if host else "",
        port=_port(environ) if host else 0,
        served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def local(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Finds which of the ranks of its host this process is, and how many there are.

    Args:
        environ: the environment.

    Returns:
        The number and how many; None where no launcher tells both.

    Raises:
        ValueError: a variable is no such number.
    """
    for names in _found(environ):
        if names is _SLURM:
            count = _tasks(environ)
            if count > _number(environ, names.size, 1, _MOST):
                raise ValueError(
                    f"SLURM_STEP_TASKS_PER_NODE tells {count} tasks of this host, but "
                    f"{names.size} is {environ[names.size]}"
                )
        elif names.local_rank in environ and names.local_size in environ:
            count = _number(environ, names.local_size, 1, _number(environ, names.size, 1, _MOST))
        else:
            continue  # srun --mpi=pmi2 leaves it to Slurm's own
        if count and names.local_rank in environ:
            return _number(environ, names.local_rank, 0, count - 1), count
    return None


def _tasks(environ: Mapping[str, str]) -> int:
    """The tasks of this host in a step of Slurm, which writes "2(x3),1" for 2, 2, 2, 1; 0 where it
    does not tell."""
    node = _read(environ.get("SLURM_NODEID", "0"))
    if node is None:
        return 0
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        if match is None:
            return 0
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    return 0


def check(environ: Mapping[str, str]) -> None:
    """Refuses variables that contradict each other: some are left over, or set by hand.

    Those of torchrun hold whatever started it, for it has ranks of its own. So do those of an
    mpirun in a job of Slurm, whose own are those of mpirun's daemon. Slurm sets PMI's rank and
    size, too, but no numbers within a host.

    Args:
        environ: the environment.

    Raises:
        ValueError: two launchers tell different things, or one tells only a part.
    """
    if "TORCHELASTIC_RUN_ID" in environ:
        return
    for set_, unset in (_TORCH[:2], _TORCH[1::-1]):
        if set_ in environ and unset not in environ:
            raise ValueError(f"{set_} is set, and {unset} is not: set both or none")
    found = _found(environ)
    if _OPEN_MPI in found or (_PMI in found and _PMI.local_size in environ):
        found = [names for names in found if names is not _SLURM]
    for names in found[1:]:
        for one, other in zip(found[0], names, strict=True):
            if one in environ and other in environ and environ[one] != environ[other]:
                raise ValueError(
                    f"{one} is {environ[one]!r}, but {other} is {environ[other]!r}: "
                    f"unset {one} if it is left over"
                )


def _number(environ: Mapping[str, str], name: str, least: int, most: int) -> int:
    number = _read(environ[name])
    if number is None or not least <= number <= most:
        raise ValueError(f"{name} is {environ[name][:80]!r}, allowed are {least} to {most}")
    return number


def _read(text: str) -> int | None:
    """Reads a number that is written in at most 18 digits of ASCII; None for any other text."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _port(environ: Mapping[str, str]) -> int:
    if environ.get("MASTER_PORT"):
        return _number(environ, "MASTER_PORT", 1, 65535)
    job = _read(environ.get("SLURM_JOB_ID", ""))
    return _PORT if job is None else _PORTS + job % 10000


def _host(environ: Mapping[str, str], ranks: int, local: str) -> str:
    """The host of rank 0, where MASTER_ADDR does not tell."""
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    # An mpirun within a job has steps of its own, of some of the hosts, for its daemons.
    if "SLURM_PROCID" in environ and nodes and local not in environ:
        if host := first_host(nodes):
            return host
        raise ValueError(f"SLURM_STEP_NODELIST is {nodes!r}, which begins with no host")
    if ranks == 1 or (local and environ.get(local) == str(ranks)):
        return LOOPBACK
    raise ValueError(
        "MASTER_ADDR is not set: set it to the host of rank 0, the same on all ranks"
        " (mpirun -x MASTER_ADDR=HOST, or mpiexec -genv MASTER_ADDR HOST)"
    )


def first_host(nodes: str) -> str:
    """Returns the first host of a list as Slurm writes it, such as "node[003-005,9],other"; "" for
    none."""
    match = re.match(r"(?:[^,\[\]]|\[\w+[^\]]*\])*", nodes)
    assert match is not None  # it matches anything
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", match[0])
