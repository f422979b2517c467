"""The command line of ``goccl bench``."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

import goccl
from goccl._command import (
    GOCCL_TRANSPORTS,
    Progress,
    add_examples,
    draft,
    is_stream,
    missing,
    output_file,
    parse_size,
    unwritable,
)
from goccl._ranks.collectives import (
    COLLECTIVES,
    ITEMSIZE,
    MOST_RANKS,
    NO_OP,
    REDOPS,
    ROOT,
    call_of,
    has_meaning,
)
from goccl._ranks.group import RankGroup
from goccl._ranks.libraries import MAPPED, Library, Unavailable, label_of

from . import hosts, machine, markdown, placement, plot, terminal, words
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
from .output import (
    NCCL_OPS,
    NCCL_TYPES,
    Csv,
    Current,
    JsonFile,
    JsonLines,
    NcclJson,
    NcclTable,
    Output,
    Table,
    Unwritable,
)
from .record import Run, now
from .report import size_text
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


def choices_of(
    allowed: Sequence[str], everything: str = "", also_called: Mapping[str, str] | None = None
) -> Callable[[str], list[str]]:
    """A type of arguments: names with commas between them, or the word for all. also_called: other
    names of some."""
    own = {other: name for name, other in (also_called or {}).items()}

    def parse(text: str) -> list[str]:
        if everything and text == everything:
            return list(allowed)
        parts = [part.strip() for part in text.split(",") if part.strip()]
        names = [own.get(part, part) for part in parts]
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


_SIZES = "4,1K,64K,1M,16M,64M"
_MOST_SIZES = 4096
# Of nccl-tests, where a part of a range is not given.
_BOUND, _STEP = 32 << 20, 1 << 20
_PLACES: dict[str, list[bool | None]] = {
    "usual": [None],
    "out": [False],
    "in": [True],
    "both": [False, True],
}
_HOST_SIZES = "4,1K,4K,16K,64K,256K,1M,4M,16M,64M"
_FORMATS = ("table", "nccl", "csv", "jsonl")
# Of nccl-tests, whose formats are of one library.
_ONE: dict[str, Any] = {"peers": [], "transport": ["shm"], "place": "both"}
_PLAIN: dict[str, Any] = {
    "collective": None,
    "ranks": [2],
    "sizes": parse_sizes(_SIZES),
    "peers": ["gloo"],
    "transport": ["shm", "tcp"],
    "through": ["torch"],
    "place": "usual",
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
        "through": ["torch", "c"],
        "place": "usual",
        "limit": 60,
        "json": Path("host.json"),
        "markdown": Path("host.md"),
        "plot": Path("host.png"),
    }
}


def complete(args: argparse.Namespace) -> None:
    """Sets the options that were not given: to those of the suite, or to the usual ones.

    Raises ValueError where a launcher's variables, or options together, say nonsense.
    """
    sizes = _range_of_sizes(args)
    if sizes and args.sizes:
        raise ValueError("--sizes is given, and so is a range of sizes (-b, -e, -i, -f)")
    args.sizes = args.sizes or sizes
    if hosts.size() > 1:
        args.ranks = args.ranks or [hosts.size()]
        args.transport = args.transport or ["tcp"]
    usual = _SUITES[args.suite] if args.suite else _PLAIN | (_ONE if _as_nccl(args) else {})
    for name, value in usual.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def _range_of_sizes(args: argparse.Namespace) -> list[int] | None:
    """The sizes of -b, -e, -i and -f; None where none of them is given. ValueError where they
    contradict each other."""
    if not (args.minbytes or args.maxbytes or args.stepbytes or args.stepfactor):
        return None
    if args.stepbytes and args.stepfactor:
        raise ValueError("--stepbytes and --stepfactor are given, one of them is allowed")
    low, high = args.minbytes or _BOUND, args.maxbytes or _BOUND
    if high < low:
        raise ValueError(
            f"--maxbytes is {size_text(high)}, allowed is {size_text(low)} (--minbytes) or more; "
            f"the default of both is {size_text(_BOUND)}"
        )
    factor, step = args.stepfactor or 1, 0 if args.stepfactor else args.stepbytes or _STEP
    sizes = []
    while low <= high:
        sizes.append(low)
        if len(sizes) > _MOST_SIZES:
            raise ValueError(
                f"the range of sizes has more than {_MOST_SIZES}, allowed are so many: give a "
                "larger --stepbytes, or --stepfactor"
            )
        low = low * factor + step
    return sizes


def unreasonable(args: argparse.Namespace) -> str:
    """What is wrong with the root, or with reduce ops for dtypes; or ""."""
    for option, names, allowed in (("dtype", args.dtype, ITEMSIZE), ("op", args.op, REDOPS)):
        if not names:
            return f"--{option} names none; allowed are {', '.join(allowed)}, or all"
    if args.root >= min(args.ranks):
        return (
            f"--root is {args.root}, allowed are 0 to {min(args.ranks) - 1} with "
            f"{min(args.ranks)} ranks"
        )
    if all(call_of(name, 2, 0).redop == NO_OP for name in args.collective):
        return ""
    pairs = [(dtype, op) for dtype in args.dtype for op in args.op]
    without = [pair for pair in pairs if not has_meaning(*pair)]
    # Of "all" only what has a meaning is meant.
    chosen = set(args.dtype) < set(ITEMSIZE) and set(args.op) < set(REDOPS)
    if not without or (len(without) < len(pairs) and not chosen):
        return ""
    dtype, op = without[0]
    meant = [name for name in REDOPS if has_meaning(dtype, name)]
    return f"--op {op} has no meaning for {dtype}; allowed are {', '.join(meant) or 'none'}"


def _twice(args: argparse.Namespace) -> str:
    """Which outputs are one file, so that only one of them would be kept; or ""."""
    by_file: dict[Path, str] = {}
    for option in ("json", "nccl_json", "markdown", "plot"):
        path: Path | None = getattr(args, option)
        if path is None or is_stream(path):
            continue
        name = f"--{option.replace('_', '-')}"
        if (other := by_file.setdefault(path.resolve(), name)) != name:
            return f"{other} and {name} are both {path}, and each needs a file of its own"
    return ""


def _as_nccl(args: argparse.Namespace) -> bool:
    return args.format == "nccl" or args.nccl_json is not None


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
            "goccl bench allreduce --format nccl --nccl-json allreduce.json",
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
        "-b",
        "--minbytes",
        type=parse_size,
        metavar="SIZE",
        help="in place of --sizes: the smallest of a range, as with nccl-tests (default: 32M, where"
        " another option of the range is given)",
    )
    add(
        "-e",
        "--maxbytes",
        type=parse_size,
        metavar="SIZE",
        help="the largest that the range may have (default: 32M)",
    )
    add(
        "-i",
        "--stepbytes",
        type=parse_size,
        metavar="SIZE",
        help="from one size of the range to the next (default: 1M)",
    )
    add(
        "-f",
        "--stepfactor",
        type=whole_number(2, 1 << 40),
        metavar="N",
        help="each size of the range is so many times the one before, in place of --stepbytes",
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
        help="how GoCCL is called, of torch,c,numpy: by torch.distributed; by its C functions from"
        " a loop in C, in rows of goccl-c; or by goccl.numpy, in rows of goccl-numpy (default:"
        " torch)",
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
    add(
        "-d",
        "--dtype",
        type=choices_of(list(ITEMSIZE), "all", NCCL_TYPES),
        default="float32",
        metavar="NAMES",
        help=f"of {','.join(ITEMSIZE)}; or all; also by the names of nccl-tests, as half (default:"
        " %(default)s). bytes1 is any element of a byte, which is moved and never reduced",
    )
    add(
        "-o",
        "--op",
        type=choices_of(REDOPS, "all", NCCL_OPS),
        default="sum",
        metavar="NAMES",
        help=f"of allreduce, reduce and reduce_scatter: of {','.join(REDOPS)}; or all; also prod"
        " and mulsum (default: %(default)s). Of all those are measured that have a meaning for"
        " the dtype",
    )
    add(
        "-r",
        "--root",
        type=whole_number(0, MOST_RANKS - 1),
        default=ROOT,
        metavar="RANK",
        help="of broadcast, reduce, gather and scatter (default: %(default)s)",
    )
    add(
        "--place",
        choices=list(_PLACES),
        help="out of place, in place, or both, of collectives that have both forms; usual (default)"
        " is allreduce and reduce in place, and others out of place; both is the default in the"
        " formats of nccl-tests, which measures both",
    )
    add(
        "-n",
        "--iters",
        type=iterations,
        default="auto",
        metavar="N",
        help="measured iterations of each library and size, or auto: from the time they take "
        "(default)",
    )
    add(
        "-w",
        "--warmup",
        type=whole_number(0, 10**6),
        default=2,
        help="unmeasured iterations before each block (default 2)",
    )
    add(
        "-c",
        "--check",
        type=int,
        choices=[0, 1],
        default=1,
        help="whether results are checked (default: %(default)s)",
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
    add(
        "--format",
        choices=_FORMATS,
        default="table",
        help="of what is printed: a table, in colours on a terminal where rich is installed; the"
        " table of nccl-tests 2.19, out of place and in place side by side; or a line a row, as CSV"
        " or JSON, whose first line has the machine and the settings (default: %(default)s)",
    )
    add(
        "--json",
        type=output_file,
        metavar="FILE",
        help="also write the machine, the settings and the rows as JSON, anew after each size, for"
        " goccl bench compare and goccl bench plot",
    )
    add(
        "-J",
        "--nccl-json",
        type=output_file,
        metavar="FILE",
        help="also write the JSON of nccl-tests 2.19; a file that exists is an error. The formats"
        " of nccl-tests are of one library: GoCCL through torch and shm (tcp where a launcher has"
        " started the ranks), with no peers, unless --through, --transport, --schedule and --peers"
        " name another one. Times are medians",
    )
    add(
        "--markdown",
        type=output_file,
        metavar="FILE",
        help="also write the machine and a comparison as Markdown",
    )
    add(
        "--plot",
        type=plot.picture,
        metavar="FILE",
        help="also draw them, as PNG, SVG or PDF (needs matplotlib): over sizes, or over --ranks "
        "where these are more",
    )


def main(args: argparse.Namespace) -> int:
    """Runs the command. 0: all went well; 1: something failed or was wrong; 130: interrupted."""
    progress = terminal.progress(sys.stderr)
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
    if problem := unreasonable(args) or _twice(args):
        progress.say(f"goccl bench: {problem}")
        return 2
    if _as_nccl(args) and (named := _libraries_named(args)) != 1:
        progress.say(
            f"goccl bench: --format nccl and --nccl-json are of one library, and {named} are named"
            " by --through, --transport, --schedule, --plans and --peers"
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
            dtypes=args.dtype,
            redops=args.op,
            root=args.root,
            in_place=_PLACES[args.place],
            check=bool(args.check),
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
    if isinstance(progress, terminal.Bar):
        progress.done = lambda: pace.fraction
    benches: list[Bench] = []
    started = Run(
        goccl=goccl.__version__,
        machine=machine.facts(),
        libraries={},
        settings=_settings(args),
        command=machine.command("bench"),
        started=now(),
    )

    def current() -> Run:
        return replace(
            started,
            libraries={label: text for bench in benches for label, text in bench.versions.items()},
            rows=[row for bench in benches for row in bench.rows],
            failures=[failure for bench in benches for failure in bench.failures],
        )

    facts = markdown.machine()
    if warning := words.load_warning():
        progress.say(f"goccl bench: warning: {warning}")
    if args.device:
        facts["Device"] = args.device
    if args.beside:
        facts["Measured"] = str(args.beside)
    new = None if args.json is None else draft(args.json)
    if problem := unwritable(args.json, new, args.markdown, args.plot, args.nccl_json):
        progress.say(f"goccl bench: {problem}")
        return 1
    try:
        outputs = _outputs(args, current)
    except FileExistsError:
        progress.say(f"goccl bench: --nccl-json: {args.nccl_json} exists, and is not overwritten")
        return 2
    status = 0
    try:
        with ended_by_signals(), Neighbours(args.beside) as neighbours:
            for setting in settings:
                libraries, absent = _libraries(args, setting.ranks, progress)
                status = 1 if absent else status
                if not libraries:
                    progress.say("goccl bench: no library is left to be measured")
                    break
                benches.append(Bench(setting, libraries, probe, progress, outputs, pace, start))
                with benches[-1] as bench:
                    bench.run()
                if neighbours.ended():
                    bench.fail("goccl bench: a busy program ended before the measurement did")
    except NotBusy as error:
        progress.say(f"goccl bench: {error}")
        status = 1
    except KeyboardInterrupt:
        status = _INTERRUPTED
        progress.say("goccl bench: interrupted")
    except (OSError, Unwritable) as error:
        status = 1
        progress.say(f"goccl bench: stopped: {error}")
    progress.clear()
    run = replace(current(), ended=now())
    unfinished = [output for output in outputs if not _finish(output, run, progress)]
    if not run.rows:
        return status or 1
    written = _write(args, run, facts, progress) and not unfinished
    wrong = sum(row.wrong or 0 for row in run.rows)
    if wrong:
        progress.say(f"goccl bench: {wrong} elements were wrong")
    return status or int(bool(run.failures or wrong or not written))


def _outputs(args: argparse.Namespace, current: Current) -> list[Output]:
    """Files come first: a row that is printed is in them. FileExistsError: of --nccl-json."""
    outputs: list[Output] = []
    if args.json:
        outputs.append(JsonFile(args.json, current))
    if args.nccl_json:
        outputs.append(NcclJson(args.nccl_json, current))
    match args.format:
        case "nccl":
            outputs.append(NcclTable(_print, goccl.__version__))
        case "csv":
            outputs.append(Csv(_print))
        case "jsonl":
            outputs.append(JsonLines(_print, current))
        case _:
            outputs.append(Table(terminal.writer(sys.stdout)))
    return outputs


def _finish(output: Output, run: Run, progress: Progress) -> bool:
    """Finishes an output, and says whether it could."""
    try:
        text = output.finish(run)
    except OSError as error:
        progress.say(f"goccl bench: {Unwritable(error)}")
        return False
    if text:
        progress.say(text)
    return True


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """The options that say what is measured, and the variables that set GoCCL."""
    left_out = {"run", "suite", "format", "json", "nccl_json", "markdown", "plot"}
    options = {name: _plain(value) for name, value in vars(args).items() if name not in left_out}
    return {**options, "environment": machine.variables()}


def _plain(value: Any) -> Any:
    """A value as JSON can have it."""
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return None if value == inf else value


def _libraries_named(args: argparse.Namespace) -> int:
    ours = len(args.through) * len(args.transport) * len(args.schedule)
    return ours * (1 if args.plans is None else 2) + len(args.peers)


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


def _write(args: argparse.Namespace, run: Run, facts: dict[str, str], progress: Progress) -> bool:
    """Writes the comparison and the picture, where they were asked for, and says whether all could
    be written."""
    about = f"{facts['Processor']}, {facts['CPUs']}, {facts['Date']}"
    text = partial(markdown.document, run.rows, facts, run.libraries, run.failures)
    writers: list[tuple[Path | None, str, Callable[[Path], object]]] = [
        (
            args.markdown,
            "the comparison is",
            lambda path: path.write_text(text(), encoding="utf-8"),
        ),
        (args.plot, "the picture is", partial(plot.write_plot, {"": run.rows}, about=about)),
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
