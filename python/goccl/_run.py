"""`goccl run`: becomes a program of torch.distributed, with the variables that torch reads."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from goccl import _launch
from goccl._command import add_examples

_NO_LAUNCHER = (
    "no launcher has started this process: use srun, mpirun or torchrun, or set RANK, WORLD_SIZE, "
    "MASTER_ADDR and MASTER_PORT"
)
_NOT_RUN, _NOT_FOUND = 126, 127  # as a shell says it
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python: a program would inherit it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl run`."""
    add_examples(
        parser,
        [
            "srun --nodes 2 --ntasks-per-node 8 goccl run train.py --epochs 3",
            "mpirun -n 16 -x MASTER_ADDR=node1 goccl run train.py",
            "mpiexec -n 4 goccl run -m package.train",
            "srun goccl run ./program",
        ],
        {
            2: "no launcher is known, or what it says contradicts itself",
            _NOT_RUN: "the program cannot be run",
            _NOT_FOUND: "there is no such program",
        },
    )
    parser.usage = "%(prog)s [-h] [-m] program [argument ...]"
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the program is a module of Python"
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        help="a script that ends in .py, a module, or any program, with its arguments. It gets "
        "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT from what "
        "Slurm, Open MPI, MPICH, Intel MPI or torchrun has set",
    )


def main(args: argparse.Namespace) -> int:
    """Becomes the program.

    Returns:
        The exit status, where it cannot: 2, 126 or 127.
    """
    program: Sequence[str] = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not program or not program[0]:
        return _tell("no program is given: goccl run [-m] program [argument ...]", 2)
    try:
        environ = {**os.environ, **variables(os.environ)}
    except ValueError as error:
        return _tell(str(error), 2)
    words = command(program, args.module)
    sys.stdout.flush()
    for name in _IGNORED:
        signal.signal(name, signal.SIG_DFL)
    try:
        os.execvpe(words[0], words, environ)
    except OSError as error:
        status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUN
        return _tell(f"cannot run {words[0]!r}: {error.strerror}", status)


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns torch's variables, from those of a launcher.

    Args:
        environ: the environment.

    Returns:
        The variables. LOCAL_RANK and LOCAL_WORLD_SIZE are missing where no launcher tells them.

    Raises:
        ValueError: there is no launcher, or what it says is wrong.
    """
    _launch.check(environ)
    local = _launch.local(environ)
    place = _launch.find(environ)
    if place is None:
        raise ValueError(_NO_LAUNCHER)
    found = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "MASTER_ADDR": place.host,
        "MASTER_PORT": place.port,
    }
    if local is not None:
        found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"] = local
    return {name: str(value) for name, value in found.items()}


def command(program: Sequence[str], module: bool) -> list[str]:
    """Returns the words of what is run.

    Args:
        program: a script of Python, a module or a program, and its arguments.
        module: it is a module.
    """
    if module:
        return [sys.executable, "-m", *program]
    return [sys.executable, *program] if program[0].endswith(".py") else list(program)


def _tell(text: str, status: int) -> int:
    print(f"goccl run: {text}", file=sys.stderr)
    return status
