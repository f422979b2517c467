"""The command `goccl`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import goccl
from goccl._command import to_bring

# Each is a module with add_arguments(parser) and main(args) -> exit status, imported when it is
# used.
_COMMANDS = {
    "config": ("goccl._config", "print what a C compiler needs to find goccl.h and libgoccl.so.0"),
    "build": ("goccl._build", "compile goccl's extension for a torch that this goccl has none for"),
    "info": ("goccl._info", "show versions, usable transports, settings and limits"),
    "doctor": ("goccl._doctor", "measure every pair of ranks of a job, and name what is odd"),
    "run": ("goccl._run", "become a program, with torch's variables, under srun or mpirun"),
    "ps": ("goccl._ps", "show what the groups of this host do, and who holds them up"),
    "store": ("goccl._store", "serve the store at which the processes of a job meet"),
    "bench": ("goccl._bench", "measure collectives, also against other libraries"),
    "bench compare": (
        "goccl._bench.compare",
        "tell which results of goccl bench are slower or faster than before",
    ),
    "bench plot": ("goccl._bench.plot", "draw results of goccl bench"),
    "bench put": (
        "goccl._bench.put",
        "measure puts, gets and signals of channels, also against what limits them",
    ),
    "bench-recovery": (
        "goccl._bench.recovery",
        "measure how long a group takes to go on after a death, also against other libraries",
    ),
    "simulate": ("goccl._simulate", "tell how long a collective would take in a job of any size"),
    "plan": ("goccl.plan._command", "check collectives that users have written"),
    "tune": ("goccl._tune", "measure at which sizes algorithms should give way to others"),
}
_STOPPED_BY = 128  # and the number of a signal is the status that a shell gives


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="goccl", description="Collective communication for CPU clusters."
    )
    parser.add_argument("--version", action="version", version=f"goccl {goccl.__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    arguments = sys.argv[1:] if argv is None else list(argv)
    if " ".join(arguments[:2]) in _COMMANDS:  # a command of two words
        arguments[:2] = [" ".join(arguments[:2])]
    used = parser
    for name, (module_name, help_text) in _COMMANDS.items():
        description = f"{help_text[0].upper()}{help_text[1:]}."
        absent = _absent(module_name)
        shown = f"{help_text} ({absent})".replace("%", "%%") if absent else help_text
        command = commands.add_parser(name, help=shown, description=description)
        if arguments[:1] == [name]:
            if absent:
                command.exit(1, f"goccl {name}: {absent}\n")
            used = command
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.main)
    _open_standard_streams()
    try:
        try:
            # What the command does not know is told with its own usage.
            parsed, unknown = parser.parse_known_args(arguments)
            if unknown:
                used.error(f"unrecognized arguments: {' '.join(unknown)}")
            status: int = parsed.run(parsed)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _STOPPED_BY + signal.SIGINT
    except BrokenPipeError:  # what reads the output, such as head, has read enough
        _drop_output()
        return _STOPPED_BY + signal.SIGPIPE
    except OSError as error:
        _drop_output()
        print(f"{used.prog}: {error if error.filename else error.strerror}", file=sys.stderr)
        return 1
    return status


def _absent(module: str) -> str:
    """That the part of the package is not installed that a command is of, and what to do; or ""."""
    part = ".".join(module.split(".")[:2])
    if importlib.util.find_spec(part):
        return ""
    extra = part.partition("._")[2]
    return "not installed; " + to_bring(f"'goccl[{extra}]'")


def _open_standard_streams() -> None:
    """Has all that is printed go somewhere, also where the streams were closed or know few
    characters."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  open to the end
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Has Python not try again, at its end, to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
