"""`goccl plan`: what can be done with files of programs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from goccl import _simulate
from goccl._command import add_examples, parse_size
from goccl.plan._program import Facts, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be done."""
    parser.add_argument(
        "action",
        choices=("verify", "simulate"),
        help="verify: check a program, and prove the plans that are made of it; simulate: tell how "
        "long it takes, and why",
    )
    parser.add_argument("file", metavar="FILE", help="a program, as JSON goccl.plan/1")
    parser.add_argument(
        "--bytes",
        type=parse_size,
        default=64 << 10,
        metavar="SIZE",
        help="of a rank's larger buffer, for which plans are proved (default: 64K)",
    )
    parser.add_argument(
        "--per-host", type=int, metavar="N", help="of simulate: ranks on each host (default: all)"
    )
    parser.add_argument(
        "--net",
        default="",
        metavar="NAME",
        help="of simulate: what joins the hosts, as for goccl simulate",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    add_examples(
        parser,
        [
            "goccl plan verify two_shot.json",
            "goccl plan simulate two_shot.json --bytes 1M --per-host 2 --net star:25g",
        ],
        {0: "the program is right", 1: "it is refused", 2: "the command line is wrong"},
    )


def main(args: argparse.Namespace) -> int:
    """Does it. The exit status is 1 where the file is refused."""
    try:
        program = load(args.file)
        if args.action == "verify":
            facts = program.verify(args.bytes)
            told, text = dataclasses.asdict(facts), _render(facts)
        else:
            told = program.simulate(args.bytes, args.per_host, args.net)
            text = _simulate.render(told)
    except OSError as error:
        print(f"goccl plan: {args.file}: {error.strerror}", file=sys.stderr)
        return 1
    except (ValueError, RuntimeError, ImportError) as error:
        print(f"goccl plan: {args.file}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(told, indent=2) if args.json else text)
    return 0


def _render(facts: Facts) -> str:
    """The facts for people."""
    forms = {"in place": facts.in_place, "out of place": facts.out_of_place}
    order = "canonical" if facts.order == "canonical" else "its own"
    same = "the same on all ranks" if facts.same_bits else "not the same on all ranks"
    return "\n".join(
        [
            f"{facts.name}: {facts.collective} among {facts.ranks} ranks is right",
            f"written     {' and '.join(form for form, right in forms.items() if right)}",
            f"sums        in {order} order, {same}",
            f"plans       proved for {facts.bytes} bytes",
            f"a rank      has at most {facts.steps} steps and {facts.messages} messages",
            f"scratch     memory of a rank is at most {facts.scratch_bytes} bytes",
            f"digest      {facts.digest}",
        ]
    )
