"""`goccl plan`: what can be done with files of programs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from goccl import _simulate
from goccl._command import add_examples, parse_size
from goccl.plan._collectives import named
from goccl.plan._program import FORMAT, Facts, Program, builtin, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be done."""
    parser.add_argument(
        "action",
        choices=("verify", "simulate", "draw", "convert", "export"),
        help="verify: check a program, and prove the plans that are made of it; simulate: tell how "
        "long it takes, and why; draw: draw it, as SVG; convert: write it in another format; "
        "export: print as a program what goccl does by itself",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a program, as JSON goccl.plan/1; a plan of MSCCL++, as JSON; or an algorithm of "
        "MSCCL, as XML; of export: the collective, as allreduce",
    )
    parser.add_argument(
        "--order",
        choices=("canonical", "plan"),
        help='of convert: in which order sums are; "plan" lets floats be summed in the file\'s own',
    )
    parser.add_argument(
        "--to",
        choices=("goccl", "mscclpp"),
        help="of convert: JSON goccl.plan/1, or a plan of MSCCL++ (default: goccl)",
    )
    parser.add_argument(
        "--bytes",
        type=parse_size,
        metavar="SIZE",
        help="of verify, simulate and export: of a rank's larger buffer (default: 64K)",
    )
    parser.add_argument(
        "--per-host",
        type=int,
        metavar="N",
        help="of simulate and export: ranks on each host (default: all)",
    )
    parser.add_argument("--ranks", type=int, metavar="N", help="of export: for how many")
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="of export: as in GOCCL_ALGO (default: as is chosen for --bytes)",
    )
    parser.add_argument("--root", type=int, metavar="R", help="of export: the root (default: 0)")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="of draw, convert and export: the file that is written (default: standard output)",
    )
    _simulate.add_outputs(parser, "of simulate: ")
    parser.add_argument(
        "--json", action="store_true", help="of verify, simulate and convert: print a JSON object"
    )
    add_examples(
        parser,
        [
            "goccl plan verify two_shot.json",
            "goccl plan simulate two_shot.json --bytes 1M --per-host 2 --net star:25g",
            "goccl plan draw two_shot.json -o two_shot.svg",
            "goccl plan convert allreduce.xml -o allreduce.json",
            "goccl plan export allreduce --ranks 8 --bytes 1M -o allreduce.json",
        ],
        {0: "the program is right", 1: "it is refused", 2: "the command line is wrong"},
    )


_BYTES = 64 << 10

# Which actions an option is of.
_OPTIONS = {
    "order": ("convert",),
    "to": ("convert",),
    "bytes": ("verify", "simulate", "export"),
    "per_host": ("simulate", "export"),
    "ranks": ("export",),
    "algorithm": ("export",),
    "root": ("export",),
    "output": ("draw", "convert", "export"),
    "net": ("simulate",),
    "trace": ("simulate",),
    "goal": ("simulate",),
    "json": ("verify", "simulate", "convert"),
}


def _wrong_options(args: argparse.Namespace) -> str:
    """What is wrong with the options as such, or ""."""
    for option, actions in _OPTIONS.items():
        if getattr(args, option) not in (None, "", False) and args.action not in actions:
            name = "--" + option.replace("_", "-")
            return f"{args.action} has no {name}, which is of {', '.join(actions)}"
    if args.action == "export" and args.ranks is None:
        return "export needs --ranks"
    if args.per_host is not None and args.per_host < 1:
        return f"--per-host is {args.per_host}; it must be 1 or more"
    return ""


def main(args: argparse.Namespace) -> int:
    """Does it. The exit status is 1 where the file is refused."""
    if wrong := _wrong_options(args):
        print(f"goccl plan: {wrong}", file=sys.stderr)
        return 2
    nbytes = args.bytes or _BYTES
    try:
        if args.action == "convert":
            return _convert(args)
        if args.action in ("draw", "export"):
            return _write(args)
        program = load(args.file)
        if args.action == "verify":
            facts = program.verify(nbytes)
            told, text = dataclasses.asdict(facts), _render(facts, _reduces(program))
        else:
            told = program.simulate(
                nbytes, args.per_host, args.net, trace=args.trace, goal=args.goal
            )
            text = _simulate.render(told)
    except OSError as error:
        print(f"goccl plan: {error.filename or args.file}: {error.strerror}", file=sys.stderr)
        return 1
    except (ValueError, RuntimeError) as error:
        print(f"goccl plan: {args.file}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(told, indent=2) if args.json else text)
    return 0


def _convert(args: argparse.Namespace) -> int:
    """Writes the file as JSON goccl.plan/1, and tells what it was: on standard output, unless the
    program goes there."""
    program = load(args.file, order=args.order)
    _put(program.export(args.to or "goccl"), args.output)
    told = {
        "source": _format(Path(args.file).read_text(encoding="utf-8")),
        "name": program.name,
        "collective": program.collective.name,
        "ranks": len(program.ranks),
        "moves": len(program.moves),
        "order": program.order,
        "file": args.output,
    }
    if args.json:
        line = json.dumps(told, indent=2)
    else:
        to = f", written to {args.output}" if args.output else ""
        line = (
            f"{program.name}: {told['collective']} among {told['ranks']} ranks in {told['moves']} "
            f"moves, from {told['source']}{to}"
        )
    print(line, file=sys.stdout if args.output else sys.stderr)
    return 0


def _format(text: str) -> str:
    """The format of a file that has been read."""
    if text.lstrip().startswith("<"):
        return "MSCCL XML"
    head: dict[str, Any] = json.loads(text)
    if "gpus" not in head:
        return FORMAT
    return "MSCCL++ JSON of 0.5 to 0.7" if "inputChunks" in head["gpus"][0] else "MSCCL++ JSON"


def _write(args: argparse.Namespace) -> int:
    """Draws a program, or exports what goccl does by itself."""
    if args.action == "draw":
        text = load(args.file).draw()
    else:
        text = builtin(
            named(args.file, args.root or 0),
            args.ranks,
            args.bytes or _BYTES,
            algorithm=args.algorithm or "",
            per_host=args.per_host,
        ).text()
    _put(text, args.output)
    return 0


def _put(text: str, path: str | None) -> None:
    """Writes a text to a file, or to standard output."""
    if path is None:
        print(text, end="")
    else:
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:  # that of a write, as of a full disk, does not name the file
            error.filename = path
            raise


def _reduces(program: Program) -> bool:
    return any(len(move.source) > 1 for move in program.moves)


def _render(facts: Facts, reduces: bool) -> str:
    """The facts for people."""
    forms = {"in place": facts.in_place, "out of place": facts.out_of_place}
    order = "canonical" if facts.order == "canonical" else "its own"
    same = "the same on all ranks" if facts.same_bits else "not the same on all ranks"
    lines = [
        f"{facts.name}: {facts.collective} among {facts.ranks} ranks is right",
        f"written     {' and '.join(form for form, right in forms.items() if right)}",
    ]
    if reduces:
        lines.append(f"sums        in {order} order, {same}")
    return "\n".join(
        [
            *lines,
            f"plans       proved for {facts.bytes} bytes",
            f"steps       of a rank: at most {facts.steps}",
            f"messages    of a rank: at most {facts.messages}",
            f"scratch     memory of a rank: at most {facts.scratch_bytes} bytes",
            f"digest      {facts.digest}",
        ]
    )
