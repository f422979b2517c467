"""``goccl doctor``: whether all ranks of a job reach each other, how fast, and what is odd.

Each pair of ranks is joined in a group of its own, as a job would join them, and measures the
latency of an exchange of 4 bytes, the bandwidth each way, and how far its clocks are apart. Pairs
that share no rank are measured at the same time, as far as their hosts have CPUs. A rank that does
not come, or falls silent, is named; all other pairs are measured none the less.

A pair is odd beside the pairs of its kind, which have the same transport and share a host, or do
not: with more than three times their median latency, or less than half of their median bandwidth.
A pair is also odd by itself: beyond a limit that idle hosts keep, or with less than half of the
bandwidth one way. Where other programs kept a host busy, the finding is about that host.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from goccl import _launch
from goccl._command import add_examples

from .local import start_local
from .visit import Patience

_MOST_RANKS = 64


def _number(low: int, high: int, text: str) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
    return int(text)


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file in a folder that exists")
    return path


def _picture(text: str) -> Path:
    """Refuses what could not be drawn once all is measured."""
    from goccl._command import missing

    path = _file(text)
    if path.suffix.lower() not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .png or .svg")
    if problem := missing("matplotlib", "matplotlib"):
        raise argparse.ArgumentTypeError(problem)
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl doctor`."""
    add_examples(
        parser,
        [
            "goccl doctor",
            "goccl doctor --ranks 4 --json doctor.json --plot doctor.svg",
            "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \\",
            "    --rdzv-endpoint host0:29500 -m goccl doctor",
            "srun --nodes 2 --ntasks-per-node 1 goccl doctor",
        ],
        {
            0: "nothing is odd; also of ranks other than 0 that give up",
            1: "something is odd, or could not be measured",
            2: "wrong arguments, or a launcher's variables are wrong",
        },
    )
    add = parser.add_argument
    add(
        "--ranks",
        type=partial(_number, 2, _MOST_RANKS),
        metavar="N",
        help="start so many ranks on this host (default: the ranks of torchrun, mpirun or srun, "
        "else 2)",
    )
    add(
        "--wait",
        type=partial(_number, 1, 86400),
        default=60,
        metavar="SECONDS",
        help="for all ranks to come (default 60)",
    )
    add(
        "--timeout",
        type=partial(_number, 1, 86400),
        default=20,
        metavar="SECONDS",
        help="for a pair to be joined, and for each of its steps (default 20)",
    )
    add("--json", type=_file, metavar="FILE", help="also write all that was measured as JSON")
    add(
        "--plot",
        type=_picture,
        metavar="FILE",
        help="also draw heat maps, as PNG or SVG (needs matplotlib)",
    )


def main(args: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        0: nothing is odd; 1: something is, or could not be found out; 2: it cannot begin. The ranks
        but 0 return 0 when they give up.
    """
    # Where the store cannot be reached torch logs its stack. The error says it in one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        place = None if args.ranks else _launch.find(os.environ)
    except ValueError as error:
        print(f"goccl doctor: {error}", file=sys.stderr)
        return 2
    patience = Patience(float(args.wait), float(args.timeout))
    examine = partial(_examine, args, patience)
    if place:
        status = examine(place)
        # A call of torch that has not ended in its time would abort the process while Python ends.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    ranks = args.ranks or 2
    return start_local(ranks, examine, patience.all(ranks))


def _examine(args: argparse.Namespace, patience: Patience, place: _launch.Place) -> int:
    from .judge import judge
    from .report import text, write_json, write_plot
    from .visit import Lost, visit

    try:
        job = visit(place, patience)
    except Lost as error:
        print(f"goccl doctor: rank {place.rank} gives up: {error}", file=sys.stderr, flush=True)
        # Launchers kill all ranks when one of them fails, and the report is that of rank 0.
        return 1 if place.rank == 0 else 0
    if job is None:
        return 0
    findings = judge(job)
    print(text(job, findings))
    if args.json:
        write_json(job, findings, args.json)
    if args.plot:
        write_plot(job, args.plot)
    return 1 if findings else 0
