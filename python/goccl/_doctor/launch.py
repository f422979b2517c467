"""Which rank this process is, and where the ranks meet, from what launchers set in the
environment."""

from __future__ import annotations

import importlib
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from goccl._ranks.children import Child, fork

_PORT = 29500  # as of torchrun
_PORTS = 20000  # below those that systems give out by themselves
_LOOPBACK = "127.0.0.1"
_GRACE = 5.0  # seconds, for the other ranks to end after rank 0


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


def find(environ: Mapping[str, str]) -> Place | None:
    """Finds what torchrun, Open MPI, MPICH, Intel MPI or Slurm has set.

    Args:
        environ: the environment.

    Returns:
        The place; None where no launcher has started this process.

    Raises:
        ValueError: a variable is no such number, or MASTER_ADDR is missing.
    """
    known = (
        ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
    )
    names = next((names for names in known if names[0] in environ and names[1] in environ), None)
    if names is None:
        return None
    rank, size, local = names
    ranks = _number(environ, size, 1, 65536)
    return Place(
        rank=_number(environ, rank, 0, ranks - 1),
        size=ranks,
        host=environ.get("MASTER_ADDR") or _host(environ, ranks, local),
        port=_port(environ),
        served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _number(environ: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environ[name]
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(f"{name} is {text!r}, allowed are {least} to {most}")
    return int(text)


def _port(environ: Mapping[str, str]) -> int:
    if "MASTER_PORT" in environ:
        return _number(environ, "MASTER_PORT", 1, 65535)
    job = environ.get("SLURM_JOB_ID", "")
    return _PORTS + int(job) % 10000 if job.isdecimal() else _PORT


def _host(environ: Mapping[str, str], ranks: int, local: str) -> str:
    """The host of rank 0, where MASTER_ADDR does not tell."""
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    # An mpirun within a job has steps of its own, of some of the hosts, for its daemons.
    if "SLURM_PROCID" in environ and nodes and local not in environ:
        return first_host(nodes)
    if ranks == 1 or (local and environ.get(local) == str(ranks)):
        return _LOOPBACK
    raise ValueError(
        "MASTER_ADDR is not set: set it to the host of rank 0, the same on all ranks"
        " (mpirun -x MASTER_ADDR=HOST, or mpiexec -genv MASTER_ADDR HOST)"
    )


def first_host(nodes: str) -> str:
    """Returns the first host of a list as Slurm writes it, such as "node[003-005,9],other"."""
    match = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    assert match is not None  # it matches anything
    return "".join(part or "" for part in match.groups())


def start_local(size: int, run: Callable[[Place], int], limit: float) -> int:
    """Runs ranks in children of this process, and returns the exit status of rank 0.

    Args:
        size: how many.
        run: what each does; it returns the exit status.
        limit: seconds after which they are killed.
    """
    dist: Any = importlib.import_module("torch.distributed")
    children: list[Child] = []
    with socket.create_server((_LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        try:
            places = (Place(rank, size, _LOOPBACK, port, served=True) for rank in range(size))
            children.extend(Child(fork(partial(run, place))) for place in places)
            # The children have been made: a store has threads, with which a process must not fork.
            store = dist.TCPStore(
                _LOOPBACK,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=os.dup(listener.fileno()),
            )
            status = children[0].wait(limit)
            for child in children:
                child.wait(_GRACE)
            del store
        finally:
            for child in children:
                child.kill()
                child.close()
                os.waitpid(child.pid, 0)
    return status
