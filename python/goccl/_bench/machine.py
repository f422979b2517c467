"""What figures depend on: the machine, the settings of GoCCL, and the command that measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

from goccl import _capi, errors
from goccl._options import VARIABLES, shown


def facts() -> dict[str, str | int | float]:
    """The machine, by the names that JSON has. To be called before a run, for it has the load."""
    return {
        "processor": _processor(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "cpus": os.cpu_count() or 0,
        "kernel": f"{platform.system()} {platform.release()}",
        "tcp_congestion_control": _congestion_control(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "load": round(os.getloadavg()[0], 2),
    }


def command(words: str) -> list[str]:
    """The command line. words: the names of the command below goccl."""
    names, arguments = words.split(), sys.argv[1:]
    if arguments[: len(names)] == names:
        arguments = arguments[len(names) :]
    return ["goccl", *names, *arguments]


def variables() -> dict[str, str]:
    """The variables that set GoCCL, in the environment or in files of settings; without secrets."""
    found = {name: value for name, value in os.environ.items() if name.startswith("GOCCL_")}
    with suppress(errors.Error):  # there is no library, as the ranks will tell
        found |= {name: _capi.getenv(name) for name in VARIABLES}
    return {name: shown(name, found[name]) for name in sorted(found) if found[name]}


def _processor() -> str:
    """The name, with the family and model where the kernel tells them: generations may share a
    name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    first = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    known = {name.strip(): value.strip() for name, value in first.items()}
    name = known.get("model name", platform.machine())
    numbers = [
        f"{key.removeprefix('cpu ')} {known[key]}"
        for key in ("cpu family", "model")
        if key in known
    ]
    return ", ".join([name, *numbers])


def _congestion_control() -> str:
    """What the kernel gives a new connection; it counts on the loopback interface, too."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
