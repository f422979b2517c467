"""`goccl simulate`: how long a collective would take in a job of any size, and why."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from goccl import _capi
from goccl._command import GOCCL_TRANSPORTS, add_examples, parse_size

COLLECTIVES = (
    "allreduce",
    "reduce",
    "broadcast",
    "allgather",
    "reduce_scatter",
    "gather",
    "scatter",
    "alltoall",
    "barrier",
)

_MOST_NET = 16 << 20  # bytes of a file of a network, as in goccl.h


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the command."""
    add_examples(
        parser,
        [
            "goccl simulate allreduce --ranks 64 --per-host 8 --bytes 1M --net star:25g",
            "goccl simulate alltoall --ranks 256 --per-host 8 --bytes 4M --net rail:8x200g",
            "goccl simulate allreduce --ranks 16 --per-host 4 --trace allreduce.json",
            "goccl simulate alltoall --ranks 65536 --per-host 64 --bytes 4M --estimate",
        ],
        {0: "the result is printed", 1: "it cannot be simulated", 2: "the command line is wrong"},
    )
    parser.add_argument("collective", choices=COLLECTIVES, help="as the API names it")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="of the job")
    parser.add_argument(
        "--per-host", type=int, metavar="N", help="ranks on each host (default: all on one)"
    )
    parser.add_argument(
        "--cpus", type=int, metavar="N", help="of a host (default: one for each rank)"
    )
    parser.add_argument(
        "--bytes",
        type=parse_size,
        default=64 << 10,
        metavar="SIZE",
        help="of a rank's larger buffer, as 4, 64K, 1G (default: 64K)",
    )
    add_outputs(parser)
    parser.add_argument(
        "--transport",
        choices=GOCCL_TRANSPORTS,
        default="shm",
        help="what joins the ranks of a host; verbs also joins hosts (default: shm)",
    )
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="print what the formulas say by which algorithms are chosen, for any number of "
        "messages; they know no --net",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_outputs(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """Declares the network of a simulation and the files that it writes. prefix: of helps."""
    parser.add_argument(
        "--net",
        default="",
        metavar="NET",
        help=f"{prefix}what joins the hosts: star:25g, fat-tree:25g,leaf=16,taper=2, rail:8x200g, "
        "or a file NAME.json of switches and links (default: a star, with the speed of "
        "GOCCL_LINKS)",
    )
    parser.add_argument(
        "--trace",
        default="",
        metavar="FILE",
        help=f"{prefix}write what each rank does when, for ui.perfetto.dev",
    )
    parser.add_argument(
        "--goal",
        default="",
        metavar="FILE",
        help=f"{prefix}write what each rank does as GOAL, for LogGOPSim",
    )


def main(args: argparse.Namespace) -> int:
    """Prints what a collective would take. The exit status is 1 where that cannot be told."""
    for option, given in (("--per-host", args.per_host), ("--cpus", args.cpus)):
        if given == 0:  # which the library takes for its default
            print(f"goccl simulate: {option} is 0; it must be 1 or more", file=sys.stderr)
            return 1
    try:
        request = {
            "collective": args.collective,
            "ranks": args.ranks,
            "ranks_per_host": args.per_host or args.ranks,
            "cpus": args.cpus or 0,
            "bytes": args.bytes,
            "net": read_net(args.net),
            "transport": args.transport,
            "estimate": args.estimate,
            "trace": args.trace,
            "goal": args.goal,
        }
        text = _capi.text("goccl_simulate", json.dumps(request).encode())
    except OSError as error:
        print(f"goccl simulate: --net: {args.net}: {error.strerror}", file=sys.stderr)
        return 1
    except (RuntimeError, ValueError) as error:
        problem = str(error).removeprefix("simulate: ")  # the function's name
        print(f"goccl simulate: {problem}", file=sys.stderr)
        return 1
    if args.json:
        print(text)
    elif args.estimate:
        print(render_estimate(json.loads(text), args.net))
    else:
        print(render(json.loads(text)))
    return 0


def read_net(net: str) -> str:
    """The network of a request: a name, or the text of the file NAME.json.

    Raises:
        ValueError: The file is too long, or not UTF-8.
        OSError: The file cannot be read.
    """
    if not net.endswith(".json"):
        return net
    with Path(net).open("rb") as file:
        text = file.read(_MOST_NET + 1)
    if len(text) > _MOST_NET:
        raise ValueError(f"simulate: net: {net} is longer than {_MOST_NET} bytes")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"simulate: net: {net} is not UTF-8: {error}") from error


def render_estimate(found: dict[str, Any], net: str) -> str:
    """Turns an estimate into text for people."""
    lines = [
        f"algorithm      {found['algorithm']}",
        f"estimate       {found['estimated_us']:,} us, by formulas, not simulated",
        f"messages       some {found['message_count']:,}",
    ]
    if net:
        lines.append("network        a link a host, with the speed of GOCCL_LINKS: not --net")
    return "\n".join(lines)


def render(found: dict[str, Any]) -> str:
    """Turns what goccl_simulate() tells into text for people."""
    total = found["last_us"]
    percent = 100 / total if total else 0
    half = f"half of the ranks end after {found['median_us']:,} us"
    lines = [
        f"algorithm      {found['algorithm']}",
        f"time           {total:,} us; {half}, the first after {found['first_us']:,} us",
        *(
            f"{count['class']:<14} {count['messages']:,} messages, {count['bytes']:,} bytes"
            for count in found["messages"] or ()
        ),
        f"critical path  over {found['critical_path_ranks']} messages from rank to rank:",
        *(
            f"  {share['cause']:<12} {share['us']:>12,.3f} us  {percent * share['us']:5.1f} %"
            for share in found["critical_path"] or ()
        ),
    ]
    if found["links"]:
        lines.append("busiest links")
        lines += (
            f"  {link['link']}: {link['bytes']:,} bytes, busy {100 * link['busy']:.1f} %"
            for link in found["links"]
        )
    if "traced_ranks" in found:
        lines.append(f"trace          of {found['traced_ranks']:,} ranks")
    return "\n".join(lines)
