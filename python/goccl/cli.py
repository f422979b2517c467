"""The command `goccl`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import goccl

# Each is a module with add_arguments(parser) and main(args) -> exit status, imported when it is used.
_COMMANDS = {
    "config": ("goccl.config", "print what a C compiler needs to find goccl.h and libgoccl.so"),
    "info": ("goccl.info", "show versions, and which transports this host can use"),
    "bench": ("goccl.bench", "measure collectives, also against other libraries"),
    "tune": ("goccl.tune", "measure at which sizes algorithms should give way to others"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    parser = argparse.ArgumentParser(prog="goccl", description="Collective communication for CPU clusters.")
    parser.add_argument("--version", action="version", version=f"goccl {goccl.__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    arguments = sys.argv[1:] if argv is None else list(argv)
    for name, (module_name, help_text) in _COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=f"{help_text.capitalize()}.")
        if arguments[:1] == [name]:
            module = importlib.import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.main)
    parsed = parser.parse_args(arguments)
    status: int = parsed.run(parsed)
    return status
