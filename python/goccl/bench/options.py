"""The command line of ``goccl bench``."""

from __future__ import annotations

import argparse
import importlib.util
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from . import placement, plot, report
from .collectives import COLLECTIVES, ITEMSIZE
from .libraries import GOCCL, GOCCL_TRANSPORTS, PEERS, Library, Unavailable, goccl_library, peer_library
from .report import Row
from .run import Bench, Progress, Settings

DESCRIPTION = (
    "Measures collectives beside other libraries, taking turns in one run. The last columns of the table tell"
    " how many times as long as GoCCL a library took where CPUs were placed alike: above 1, GoCCL is faster."
)
MAX_RANKS = 64
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_INTERRUPTED = 130


def parse_size(text: str) -> int:
    """Bytes from a number and a unit: 4, 64K, 1M, 2G (powers of 1024)."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; allowed are such as 4, 64K, 16M, 1G")
    return size


def parse_sizes(text: str) -> list[int]:
    """Sizes with commas between them."""
    return [parse_size(part) for part in text.split(",")]


def _choices(allowed: Sequence[str], everything: str = "") -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        if everything and text == everything:
            return list(allowed)
        names = [part.strip() for part in text.split(",") if part.strip()]
        for name in names:
            if name not in allowed:
                also = f", or {everything}" if everything else ""
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(allowed)}{also}")
        return list(dict.fromkeys(names))

    return parse


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def _iterations(text: str) -> int:
    return 0 if text == "auto" else _number(1, 10**9)(text)


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file in a folder that exists")
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``goccl bench``."""
    add = parser.add_argument
    add(
        "collective",
        type=_choices(list(COLLECTIVES), "all"),
        help=f"{', '.join(COLLECTIVES)}; several with commas between; or all",
    )
    add("--ranks", type=_number(2, MAX_RANKS), default=2, help=f"2 to {MAX_RANKS} (default 2)")
    add(
        "--sizes",
        type=parse_sizes,
        default="4,1K,64K,1M,16M,64M",
        help="bytes of a rank's larger buffer, as 4,64K,64M (default: %(default)s)",
    )
    add(
        "--peers",
        type=_choices(PEERS),
        default="gloo",
        help=f"libraries to compare with, of {','.join(PEERS)} (default: %(default)s)",
    )
    add(
        "--transport",
        type=_choices(GOCCL_TRANSPORTS),
        default=",".join(GOCCL_TRANSPORTS),
        help="transports of GoCCL (default: %(default)s)",
    )
    add(
        "--through",
        type=_choices(list(GOCCL)),
        default="torch",
        help="how GoCCL is called, of torch,c: by torch.distributed, or by its C functions from a loop in C;"
        " rows of the second are named goccl-c (default: %(default)s)",
    )
    add("--dtype", choices=list(ITEMSIZE), default="float32", help="default: %(default)s")
    add(
        "--iters",
        type=_iterations,
        default="auto",
        metavar="N",
        help="measured iterations of each library and size, or auto: from the time they take (default)",
    )
    add(
        "--warmup",
        type=_number(0, 10**6),
        default=2,
        help="unmeasured iterations before each block (default 2)",
    )
    add("--blocks", type=_number(1, 10**6), default=10, help="turns of each library (default 10)")
    add("--timeout", type=_number(1, 86400), default=120, help="seconds that a block may take (default 120)")
    add("--json", type=_file, metavar="FILE", help="also write the rows as JSON")
    add("--plot", type=_file, metavar="FILE", help="also draw them, as PNG, SVG or PDF (needs matplotlib)")


def main(args: argparse.Namespace) -> int:
    """Runs the command. 0: all went well; 1: something failed or was wrong; 130: interrupted."""
    progress = Progress(sys.stderr)
    problem = _missing(args)
    if problem:
        progress.say(f"goccl bench: {problem}")
        return 1
    settings = Settings(
        collectives=args.collective,
        ranks=args.ranks,
        sizes=args.sizes,
        dtype=args.dtype,
        iterations=args.iters,
        warmup=args.warmup,
        blocks=args.blocks,
        timeout=float(args.timeout),
    )
    libraries, failures = _libraries(args, progress)
    probe, reason = placement.open_probe()
    if reason:
        progress.say(f"placement of CPUs is unknown: {reason}")
    interrupted = False
    bench = Bench(settings, libraries, probe, progress, write=_print)
    try:
        with _signals(), bench:
            bench.run()
    except KeyboardInterrupt:
        interrupted = True
        progress.say("goccl bench: interrupted")
    _write(args, bench.rows, progress)
    if interrupted:
        return _INTERRUPTED
    wrong = sum(row.wrong for row in bench.rows)
    if wrong:
        progress.say(f"goccl bench: {wrong} elements were wrong")
    return 1 if failures or bench.failures or wrong or not bench.rows else 0


def _missing(args: argparse.Namespace) -> str:
    if importlib.util.find_spec("numpy") is None:
        return "NumPy is not installed; to bring it: python -m pip install numpy"
    return plot.missing() if args.plot else ""


def _libraries(args: argparse.Namespace, progress: Progress) -> tuple[list[Library], bool]:
    """GoCCL and the peers that are here, and whether GoCCL is not."""

    def find(label: str, make: Callable[[], Library]) -> list[Library]:
        try:
            return [make()]
        except Unavailable as error:
            progress.say(f"{label} is skipped: {error}")
            return []

    libraries = []
    for way in args.through:
        for transport in args.transport:
            libraries += find(f"{GOCCL[way]}/{transport}", partial(goccl_library, way, transport))
    failed = len(libraries) < len(args.through) * len(args.transport)
    for name in args.peers:
        libraries += find(name, partial(peer_library, name, args.ranks))
    return libraries, failed


def _write(args: argparse.Namespace, rows: list[Row], progress: Progress) -> None:
    if args.json:
        report.write_json(rows, args.json)
        progress.say(f"rows are in {args.json}")
    if args.plot and rows:
        plot.write_plot(rows, args.plot)
        progress.say(f"the picture is in {args.plot}")


def _print(text: str) -> None:
    print(text, flush=True)


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run as Ctrl-C does, so that no rank stays behind."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
