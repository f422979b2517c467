"""The command line of ``goccl bench``."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

from goccl._command import GOCCL_TRANSPORTS, Progress, add_examples, missing, parse_size
from goccl._ranks.collectives import COLLECTIVES, ITEMSIZE, MOST_RANKS, ROOT
from goccl._ranks.group import RankGroup
from goccl._ranks.libraries import MAPPED, Library, Unavailable, label_of

from . import hosts, markdown, placement, plot, report, words
from .beside import LOWEST_PRIORITY, Beside, Neighbours, NotBusy
from .libraries import (
    GLOO_DEVICES,
    GOCCL,
    PEERS,
    goccl_library,
    on_cpu,
    on_device,
    peer_library,
    with_plans,
)
from .report import Row
from .run import Bench, Pace, Settings, Start

DESCRIPTION = (
    "Measures collectives beside other libraries, taking turns in one run. The last columns of "
    "the table tell"
    " how many times as long as GoCCL a library took where CPUs were placed alike: above 1, "
    "GoCCL is faster. They compare medians, and beside busy programs means too."
)
_MOST_BESIDE = 256
_INTERRUPTED = 130


def parse_sizes(text: str) -> list[int]:
    """Sizes with commas between them."""
    return [parse_size(part) for part in text.split(",")]


def choices_of(allowed: Sequence[str], everything: str = "") -> Callable[[str], list[str]]:
    """A type of arguments: names with commas between them, or the word for all."""

    def parse(text: str) -> list[str]:
        if everything and text == everything:
            return list(allowed)
        names = [part.strip() for part in text.split(",") if part.strip()]
        for name in names:
            if name not in allowed:
                also = f", or {everything}" if everything else ""
                raise argparse.ArgumentTypeError(
                    f"{name!r} is not one of {', '.join(allowed)}{also}"
                )
        return list(dict.fromkeys(names))

    return parse


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """A type of arguments: a number within these limits."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def whole_numbers(low: int, high: int) -> Callable[[str], list[int]]:
    """A type of arguments: such numbers with commas between them."""
    one = whole_number(low, high)
    return lambda text: list(dict.fromkeys(one(part.strip()) for part in text.split(",")))


def _schedules(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if not re.fullmatch(r"sequential|window=\d+|parallel", name):
            raise argparse.ArgumentTypeError(
                f"{name!r} is not one of sequential, window=2 and the like, parallel"
            )
    return list(dict.fromkeys(names))


def _beside(text: str) -> Beside:
    match = re.fullmatch(r"(\d+)(?::(-?\d+))?", text)
    programs, nice = (int(match[1]), int(match[2] or LOWEST_PRIORITY)) if match else (0, 0)
    if not (1 <= programs <= _MOST_BESIDE and -20 <= nice <= LOWEST_PRIORITY):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not N or N:NICE; allowed are 1 to {_MOST_BESIDE}, and -20 to "
            f"{LOWEST_PRIORITY}"
        )
    return Beside(programs, nice)


def _device(text: str) -> str:
    if text == "cpu":
        raise argparse.ArgumentTypeError("'cpu' is what is measured where no device is named")
    return text


def iterations(text: str) -> int:
    return 0 if text == "auto" else whole_number(1, 10**9)(text)


def output_file(text: str) -> Path:
    """The path of a file that can be made, where it is not there yet."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file in a folder that exists")
    return path


def _picture(text: str) -> Path:
    path = output_file(text)
    allowed = plot.formats()
    if allowed and path.suffix.lower() not in allowed:
        raise argparse.ArgumentTypeError(
            f"{text!r} does not end as a picture's file does; allowed are {', '.join(allowed)}"
        )
    return path


_SIZES = "4,1K,64K,1M,16M,64M"
_HOST_SIZES = "4,1K,4K,16K,64K,256K,1M,4M,16M,64M"
_PLAIN: dict[str, Any] = {
    "collective": None,
    "ranks": [2],
    "sizes": parse_sizes(_SIZES),
    "peers": ["gloo"],
    "transport": ["shm", "tcp"],
    "through": ["torch"],
    "limit": inf,
    "json": None,
    "markdown": None,
    "plot": None,
}
_SUITES: dict[str, dict[str, Any]] = {
    "host": {
        "collective": list(COLLECTIVES),
        "ranks": [2, 4],
        "sizes": parse_sizes(_HOST_SIZES),
        "peers": list(PEERS),
        "transport": ["shm", "tcp"],
        "through": list(GOCCL),
        "limit": 60,
        "json": Path("host.json"),
        "markdown": Path("host.md"),
        "plot": Path("host.png"),
    }
}


def complete(args: argparse.Namespace) -> None:
    """Sets the options that were not given: to those of the suite, or to the usual ones.

    Raises ValueError where a launcher's variables say nonsense.
    """
    if hosts.size() > 1:
        args.ranks = args.ranks or [hosts.size()]
        args.transport = args.transport or ["tcp"]
    for name, value in (_SUITES[args.suite] if args.suite else _PLAIN).items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``goccl bench``."""
    add_examples(
        parser,
        [
            "goccl bench allreduce",
            "goccl bench allreduce,alltoall --ranks 2,4 --sizes 4,64K,16M --plot bench.svg",
            "goccl bench allreduce --through c --peers gloo,openmpi --transport shm",
            "goccl bench allreduce --device cuda --transport shm",
            "goccl bench --suite host",
            "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \\",
            "    --rdzv-endpoint host0:29500 -m goccl bench allreduce",
        ],
        {
            0: "all was measured, and each result was right",
            1: "something failed, or a result was wrong",
            2: "wrong arguments",
            130: "interrupted: what was measured until then is written",
        },
    )
    add = parser.add_argument
    add(
        "collective",
        type=choices_of(list(COLLECTIVES), "all"),
        nargs="?",
        help=f"{', '.join(COLLECTIVES)}; several with commas between; or all. A pingpong is of "
        "ranks 0 and 1, and half of a round trip is its time",
    )
    add(
        "--suite",
        choices=list(_SUITES),
        help="the whole comparison on one host, which sets what is not given: all collectives, "
        "--ranks 2,4,"
        f" --sizes {_HOST_SIZES}, all peers that are installed, --through torch,c, --limit 60,"
        " --json host.json, --markdown host.md, --plot host.png",
    )
    add(
        "--ranks",
        type=whole_numbers(2, MOST_RANKS),
        help=f"2 to {MOST_RANKS}; several with commas between (default: 2, or what a launcher has "
        f"started)",
    )
    add(
        "--sizes",
        type=parse_sizes,
        help=f"bytes of a rank's larger buffer, as 4,64K,64M (default: {_SIZES})",
    )
    add(
        "--peers",
        type=choices_of(PEERS),
        help=f"libraries to compare with, of {','.join(PEERS)} (default: gloo)",
    )
    add(
        "--transport",
        "--net",
        type=choices_of((*GOCCL_TRANSPORTS, MAPPED)),
        help="transports of GoCCL (default: shm,tcp, or tcp where a launcher has started the "
        "ranks); also"
        f" verbs, which needs an RDMA device, and {MAPPED}: shm, buffers in shareable memory",
    )
    add(
        "--through",
        type=choices_of(list(GOCCL)),
        help="how GoCCL is called, of torch,c: by torch.distributed, or by its C functions from "
        "a loop in C;"
        " rows of the second are named goccl-c (default: torch)",
    )
    add(
        "--device",
        type=_device,
        metavar="NAME",
        help="tensors of this device of torch, as cuda, beside Gloo where Gloo has the device, and"
        " else beside GoCCL with tensors of the CPU, in rows of goccl-cpu",
    )
    add(
        "--plans",
        type=Path,
        metavar="FILE",
        help="also measures GoCCL with the programs of a file or folder (see goccl plan --help): "
        "rows of goccl-plans and goccl-c-plans, compared with those of GoCCL's own algorithms",
    )
    add(
        "--schedule",
        type=_schedules,
        default=[""],
        help="schedules of GoCCL's alltoall, as sequential,window=2,parallel; the first is "
        "compared with."
        " Columns tell what a rank may have under way at most: bytes in flight, bytes of staging"
        " memory, and how many ranks send to it at once (found from the plans, not measured)",
    )
    add("--dtype", choices=list(ITEMSIZE), default="float32", help="default: %(default)s")
    add(
        "--iters",
        type=iterations,
        default="auto",
        metavar="N",
        help="measured iterations of each library and size, or auto: from the time they take "
        "(default)",
    )
    add(
        "--warmup",
        type=whole_number(0, 10**6),
        default=2,
        help="unmeasured iterations before each block (default 2)",
    )
    add(
        "--blocks",
        type=whole_number(1, 10**6),
        default=10,
        help="turns of each library (default 10)",
    )
    add(
        "--timeout",
        type=whole_number(1, 86400),
        default=120,
        help="seconds that a block may take (default 120)",
    )
    add(
        "--limit",
        type=whole_number(1, 86400),
        metavar="SECONDS",
        help="begin no further block of a collective and size after so long (default: none)",
    )
    add(
        "--beside",
        type=_beside,
        metavar="N[:NICE]",
        help="measure while N busy programs run on this host, of nice level NICE"
        f" (default {LOWEST_PRIORITY}, the lowest priority)",
    )
    add("--json", type=output_file, metavar="FILE", help="also write the rows as JSON")
    add(
        "--markdown",
        type=output_file,
        metavar="FILE",
        help="also write the machine and a comparison as Markdown",
    )
    add(
        "--plot",
        type=_picture,
        metavar="FILE",
        help="also draw them, as PNG, SVG or PDF (needs matplotlib): over sizes, or over --ranks "
        "where these are more",
    )


def main(args: argparse.Namespace) -> int:
    """Runs the command. 0: all went well; 1: something failed or was wrong; 130: interrupted."""
    progress = Progress(sys.stderr)
    try:
        complete(args)
    except ValueError as error:
        progress.say(f"goccl bench: {error}")
        return 2
    if not args.collective:
        progress.say(
            f"goccl bench: no collective is named; allowed are {', '.join(COLLECTIVES)}, or all"
        )
        return 2
    if args.schedule != [""] and args.collective != ["alltoall"]:
        progress.say("goccl bench: --schedule is of alltoall, and of no other collective")
        return 2
    if args.device and (
        args.through != ["torch"] or MAPPED in args.transport or set(args.peers) - {"gloo"}
    ):
        progress.say(
            "goccl bench: --device is of torch.distributed: --through torch, --peers gloo or none,"
            f" and not --transport {MAPPED}"
        )
        return 2
    world_size = hosts.size()
    if args.beside and world_size > 1:
        progress.say(
            "goccl bench: --beside is of one host, a launcher has started the ranks (WORLD_SIZE)"
        )
        return 2
    problem = _missing(args)
    if world_size > 1 and args.ranks != [world_size]:
        problem = f"--ranks is {args.ranks}, and the launcher has started {world_size} (WORLD_SIZE)"
    if world_size > MOST_RANKS:
        problem = (
            f"the launcher has started {world_size} ranks (WORLD_SIZE), allowed are {MOST_RANKS}"
        )
    if problem:
        progress.say(f"goccl bench: {problem}")
        return 1
    if world_size > 1:
        return _run_on_hosts(args, progress)
    probe, reason = placement.open_probe()
    if reason:
        progress.say(f"placement of CPUs is unknown: {reason}")
    return _run(args, progress, probe, RankGroup)


def _run_on_hosts(args: argparse.Namespace, progress: Progress) -> int:
    try:
        meeting = hosts.World()
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        progress.say(f"goccl bench: the ranks cannot meet: {error}")
        return 1
    with meeting as world:
        part = hosts.Part(world, float(args.timeout))
        if world.rank == ROOT:
            return _run(args, progress, placement.no_probe, part.start)
        try:
            with ended_by_signals():
                part.serve(_libraries(args, world.size, progress)[0])
        except OSError as error:
            progress.say(f"goccl bench: rank {world.rank} gives up: {error}")
            return 1
        except KeyboardInterrupt:
            return _INTERRUPTED
    return 0


def _run(args: argparse.Namespace, progress: Progress, probe: placement.Probe, start: Start) -> int:
    settings = [
        Settings(
            collectives=args.collective,
            ranks=ranks,
            sizes=args.sizes,
            dtype=args.dtype,
            iterations=args.iters,
            warmup=args.warmup,
            blocks=args.blocks,
            timeout=float(args.timeout),
            limit=args.limit,
            beside=args.beside,
        )
        for ranks in args.ranks
    ]
    pace = Pace([part for setting in settings for part in setting.parts()])
    facts = markdown.machine()
    if warning := words.load_warning():
        progress.say(f"goccl bench: warning: {warning}")
    if args.device:
        facts["Device"] = args.device
    if args.beside:
        facts["Measured"] = str(args.beside)
    if problem := unwritable(args.json, args.markdown, args.plot):
        progress.say(f"goccl bench: {problem}")
        return 1
    benches: list[Bench] = []
    status = 0
    try:
        with ended_by_signals(), Neighbours(args.beside) as neighbours:
            for setting in settings:
                libraries, absent = _libraries(args, setting.ranks, progress)
                status = 1 if absent else status
                if not libraries:
                    progress.say("goccl bench: no library is left to be measured")
                    break
                benches.append(Bench(setting, libraries, probe, progress, _print, pace, start))
                with benches[-1] as bench:
                    bench.run()
                if neighbours.ended():
                    bench.fail("goccl bench: a busy program ended before the measurement did")
    except NotBusy as error:
        progress.say(f"goccl bench: {error}")
        return 1
    except KeyboardInterrupt:
        status = _INTERRUPTED
        progress.say("goccl bench: interrupted")
    except OSError as error:  # the table's output, above all
        status = 1
        progress.say(f"goccl bench: stopped: {error}")
    rows = [row for bench in benches for row in bench.rows]
    failures = [failure for bench in benches for failure in bench.failures]
    versions = {label: version for bench in benches for label, version in bench.versions.items()}
    if not rows:
        return status or 1
    with suppress(OSError):  # nobody reads it
        for line in ["", *words.conclusion(rows)]:
            _print(f"# {line}" if line else "")
    text = partial(markdown.document, rows, facts, versions, failures)
    about = f"{facts['Processor']}, {facts['CPUs']}, {facts['Date']}"
    written = _write(args, rows, text, progress, about)
    wrong = sum(row.wrong for row in rows)
    if wrong:
        progress.say(f"goccl bench: {wrong} elements were wrong")
    return status or int(bool(failures or wrong or not written))


def _missing(args: argparse.Namespace) -> str:
    return missing("numpy", "NumPy") or (missing("matplotlib", "matplotlib") if args.plot else "")


def _libraries(
    args: argparse.Namespace, ranks: int, progress: Progress
) -> tuple[list[Library], bool]:
    """GoCCL and the peers that are here, and whether GoCCL is not."""

    def find(label: str, make: Callable[[], Library]) -> list[Library]:
        try:
            library = make()
            return [on_device(library, args.device) if args.device else library]
        except Unavailable as error:
            progress.say(f"{label} is skipped: {error}")
            return []

    libraries = []
    for way in args.through:
        for transport in args.transport:
            for schedule in args.schedule:
                make = partial(goccl_library, way, transport, schedule, hosts=hosts.size() > 1)
                libraries += find(label_of(GOCCL[way], transport, schedule), make)
    failed = len(libraries) < len(args.through) * len(args.transport) * len(args.schedule)
    if args.plans is not None:
        libraries += [with_plans(library, args.plans) for library in libraries]
    if args.device and args.device not in GLOO_DEVICES:
        return libraries + [on_cpu(library) for library in libraries if args.peers], failed
    for name in args.peers:
        libraries += find(name, partial(peer_library, name, ranks, hosts=hosts.size() > 1))
    return libraries, failed


def unwritable(*paths: Path | None) -> str:
    """Which file could not be written after the measurement, and why; or "". What is in them
    stays."""
    path = Path()
    try:
        for path in filter(None, paths):
            if not path.exists():
                path.touch()
                path.unlink()
            elif path.is_file():
                path.open("ab").close()
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""


def _write(
    args: argparse.Namespace,
    rows: list[Row],
    text: Callable[[], str],
    progress: Progress,
    about: str,
) -> bool:
    """Writes the outputs that were asked for, each that can be written, and says whether all
    could. about: the machine and the date."""
    writers: list[tuple[Path | None, str, Callable[[Path], object]]] = [
        (args.json, "rows are", partial(report.write_json, rows)),
        (
            args.markdown,
            "the comparison is",
            lambda path: path.write_text(text(), encoding="utf-8"),
        ),
        (args.plot, "the picture is", partial(plot.write_plot, rows, about=about)),
    ]
    written = True
    for path, what, write in writers:
        if path is None:
            continue
        try:
            write(path)
        except OSError as error:
            written = False
            progress.say(f"goccl bench: {path} cannot be written: {error.strerror}")
        else:
            progress.say(f"{what} in {path}")
    return written


def _print(text: str) -> None:
    print(text, flush=True)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the run as Ctrl-C does, so that no rank stays behind."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
