"""A library whose ranks are started, and how that is done."""

from __future__ import annotations

from dataclasses import dataclass, field

from goccl._capi import LIBRARY

BENCH_LIBRARY = LIBRARY.with_name("libgoccl_bench.so")
CORE = "goccl-c"
"""The name of GoCCL as it is called from C."""
MAPPED = "mapped"
"""The name of rows of shared memory whose buffers are shareable, as those of goccl.empty()."""
MAPPED_VARIABLE = "GOCCL_BENCH_MAPPED"
DEVICE_VARIABLE = "GOCCL_BENCH_DEVICE"
SCHEDULE_VARIABLE = "GOCCL_ALLTOALL_SCHEDULE"


class Unavailable(Exception):
    """A library cannot be measured here; the text says why and what to do."""


@dataclass(frozen=True)
class Library:
    """One library with one transport.

    launcher: the command before that of the ranks, started once; empty where every rank is started
        by itself. adapters: the module whose adapter() a rank calls with the name.
    """

    name: str
    transport: str
    launcher: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    schedule: str = ""  # of GoCCL's alltoall, where it was asked for
    adapters: str = "goccl._ranks.adapters"

    @property
    def label(self) -> str:
        """The name in messages."""
        return label_of(self.name, self.transport, self.schedule)

    @property
    def device(self) -> str:
        """Where its tensors lie, by torch's name."""
        return self.environment.get(DEVICE_VARIABLE, "cpu")


def label_of(name: str, transport: str, schedule: str) -> str:
    """How a library is called in messages and tables."""
    return "/".join(part for part in (name, transport, schedule) if part)


def core_library(transport: str, schedule: str = "", *, hosts: bool = False) -> Library:
    """GoCCL called from C, with a forced transport, or MAPPED; schedule: of alltoall.

    hosts: the ranks may be on several hosts.
    """
    environment = {"GOCCL_TRANSPORT": transport}
    if not hosts:
        environment["GOCCL_SOCKET_IFNAME"] = "=lo"
    if transport == MAPPED:
        environment |= {"GOCCL_TRANSPORT": "shm", MAPPED_VARIABLE: "1"}
    if schedule:
        environment[SCHEDULE_VARIABLE] = schedule
    return Library(CORE, transport, environment=environment, schedule=schedule)
