"""`goccl ps`: what the groups of this host do, and who holds them up."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from goccl import _command, _library

_NOBODY = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl ps`."""
    _command.add_examples(
        parser,
        ["goccl ps", "goccl ps --json", "goccl ps --watch 2"],
        {
            0: "all is well in each group",
            1: "something is odd: the line under each group says what",
            2: "no process with a group was found, or wrong arguments",
        },
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--watch",
        type=_seconds,
        metavar="SECONDS",
        help="look again after so long, until Ctrl-C",
    )
    parser.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="only the groups of this process",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.1 to 3600")
    return seconds


def main(args: argparse.Namespace) -> int:
    """Prints what is found, and returns the exit status."""
    status = _show(args)
    while args.watch:
        time.sleep(args.watch)
        print()
        status = _show(args)
    return status


def _show(args: argparse.Namespace) -> int:
    try:
        found = ask()
    except (OSError, RuntimeError) as error:
        print(f"goccl ps: {error}", file=sys.stderr)
        return _NOBODY
    if args.pid is not None:
        found["groups"] = [
            g for g in found["groups"] if any(m["pid"] == args.pid for m in g["members"])
        ]
    print(json.dumps(found, indent=2) if args.json else render(found), flush=True)
    if not found["groups"]:
        return _NOBODY
    return int(any(g["verdict"]["kind"] != "well" for g in found["groups"]))


def ask() -> dict[str, Any]:
    """Asks all processes of this user on this host, for root those of all users.

    Returns:
        "groups": of each its "name", "epoch", "members" and "verdict"; "silent": the numbers of
        processes that are there and do not answer.

    Raises:
        OSError: the library cannot be loaded.
        RuntimeError: the sockets of this host cannot be read.
    """
    found: dict[str, Any] = _library.ask("goccl_ps")
    return found


def render(found: dict[str, Any]) -> str:
    """Turns what was found into text for people."""
    lines = []
    for group in found["groups"]:
        members = group["members"]
        rows = [("RANK", "PID", "HOST", "STATE", "#", "COLLECTIVE", "SINCE", "WAITS FOR")]
        for m in members:
            call = m["call"]
            answers = m["state"] == "answers"
            waits = "its input" if call["input"] else f"rank {call['peer']}"
            rows.append(
                (
                    str(m["rank"]),
                    str(m["pid"]),
                    m["host"],
                    m["state"] if not answers else call["state"] or "idle",
                    str(call["sequence"]) if answers else "",
                    call["what"] if answers else "",
                    _duration(call["for_us"]) if answers and call["sequence"] else "",
                    waits if answers and (call["input"] or call["peer"] >= 0) else "",
                )
            )
        epoch = f", epoch {group['epoch']}" if group["epoch"] else ""
        lines.append(f"group {group['name'] or 'without a name'}, {len(members)} ranks{epoch}")
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [
            "  " + "  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        lines.append(f"  {group['verdict']['text']}")
    if found["silent"]:
        pids = ", ".join(map(str, sorted(found["silent"])))
        lines.append(f"no answer from process {pids}")
    if not lines:
        lines.append("no process with a group was found on this host")
    return "\n".join(lines)


def _duration(us: int) -> str:
    for unit, length in (("h", 3600e6), ("min", 60e6), ("s", 1e6), ("ms", 1e3)):
        if us >= length:
            return f"{us / length:.1f} {unit}"
    return f"{us} us"
