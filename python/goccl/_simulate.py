"""`goccl simulate`: how long a collective would take in a job of any size, and why."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from goccl import _native
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the command."""
    add_examples(
        parser,
        [
            "goccl simulate allreduce --ranks 64 --per-host 8 --bytes 1M --net star:25g",
            "goccl simulate alltoall --ranks 256 --per-host 8 --bytes 4M --net rail:8x200g",
        ],
        {0: "the result is printed", 1: "it cannot be simulated", 2: "the command line is wrong"},
    )
    parser.add_argument("collective", choices=COLLECTIVES, help="as the API names it")
    parser.add_argument("--ranks", type=int, required=True, metavar="N", help="of the job")
    parser.add_argument(
        "--per-host", type=int, metavar="N", help="ranks on each host (default: all on one)"
    )
    parser.add_argument(
        "--cpus", type=int, default=0, metavar="N", help="of a host (default: one for each rank)"
    )
    parser.add_argument(
        "--bytes",
        type=parse_size,
        default=64 << 10,
        metavar="SIZE",
        help="of a rank's larger buffer, as 4, 64K, 1G (default: 64K)",
    )
    parser.add_argument(
        "--net",
        default="",
        metavar="NAME",
        help="what joins the hosts: star:25g, fat-tree:25g,leaf=16,taper=2 or rail:8x200g "
        "(default: a star, with the speed of GOCCL_LINKS)",
    )
    parser.add_argument(
        "--transport",
        choices=GOCCL_TRANSPORTS,
        default="shm",
        help="what joins the ranks of a host; verbs also joins hosts (default: shm)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def main(args: argparse.Namespace) -> int:
    """Prints what a collective would take. The exit status is 1 where that cannot be told."""
    request = {
        "collective": args.collective,
        "ranks": args.ranks,
        "ranks_per_host": args.per_host or args.ranks,
        "cpus": args.cpus,
        "bytes": args.bytes,
        "net": args.net,
        "transport": args.transport,
    }
    try:
        text = _native.load().simulate(json.dumps(request))
    except (RuntimeError, ValueError, ImportError) as error:  # goccl's own are the first two
        print(f"goccl {error}", file=sys.stderr)  # which begins with the function's name
        return 1
    print(text if args.json else render(json.loads(text)))
    return 0


def render(found: dict[str, Any]) -> str:
    """Turns what goccl_simulate() tells into text for people."""
    total = found["last_us"]
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
            f"  {share['cause']:<12} {share['us']:>12,.3f} us  {100 * share['us'] / total:5.1f} %"
            for share in found["critical_path"] or ()
        ),
    ]
    if found["links"]:
        lines.append("busiest links")
        lines += (
            f"  {link['link']}: {link['bytes']:,} bytes, busy {100 * link['busy']:.1f} %"
            for link in found["links"]
        )
    return "\n".join(lines)
