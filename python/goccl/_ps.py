"""`goccl ps`: what the groups of this host do, and who holds them up."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from goccl import _capi, _command

_NOBODY = 2
_NO_GROUP = "no process with a group was found on this host"
_LONG_US = 1e6  # a send or receive that is under way for longer is shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl ps`."""
    _command.add_examples(
        parser,
        [
            "goccl ps",
            "goccl ps --json",
            "goccl ps --all",
            "goccl ps --watch 2",
            "goccl ps --dump /tmp/goccl_rank_",
        ],
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
        "--all",
        action="store_true",
        help="connect to ranks on other hosts that no rank of this one has a connection to",
    )
    parser.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="only the groups of this process",
    )
    parser.add_argument(
        "--dump",
        type=_prefix,
        metavar="PREFIX",
        help="have each process write what its groups have done, for torchfrtrace: files whose "
        "names begin so and end with the rank",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.1 to 3600")
    return seconds


def _prefix(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty, it must begin the names of files")
    return text if text.startswith("/") else f"{Path.cwd()}/{text}"


def main(args: argparse.Namespace) -> int:
    """Prints what is found, and returns the exit status."""
    if args.dump is not None and args.watch:
        print("goccl ps: --dump and --watch do not go together", file=sys.stderr)
        return _NOBODY
    if args.dump is not None:
        return _dump(args)
    status = _show(args)
    while args.watch:
        time.sleep(args.watch)
        print()
        status = _show(args)
    return status


def _show(args: argparse.Namespace) -> int:
    try:
        found = ask(args.all)
    except (RuntimeError, ValueError) as error:
        print(f"goccl ps: {error}", file=sys.stderr)
        return _NOBODY
    if args.pid is not None:
        found["groups"] = [
            g for g in found["groups"] if any(m["pid"] == args.pid for m in g["members"])
        ]
    print(json.dumps(found, indent=2) if args.json else render(found), flush=True)
    if not found["groups"] and not found["silent"]:
        return _NOBODY
    return int(
        bool(found["silent"]) or any(g["verdict"]["kind"] != "well" for g in found["groups"])
    )


def ask(connect: bool = False) -> dict[str, Any]:
    """Asks all processes of this user on this host, for root those of all users, and over their
    links the ranks on other hosts.

    Args:
        connect: to ranks on other hosts that no process here has a link to.

    Returns:
        "groups": of each its "name", "epoch", "members" and "verdict"; "silent": the numbers of
        processes that are there and do not answer.

    Raises:
        goccl.Error: the library cannot be loaded.
        RuntimeError: the sockets of this host cannot be read.
    """
    found: dict[str, Any] = _capi.call("goccl_ps", connect)
    return found


def _dump(args: argparse.Namespace) -> int:
    """Has the processes write dumps, prints what they tell, and returns the exit status."""
    try:
        told = _capi.call("goccl_ps_dump", os.fsencode(args.dump), args.pid or 0)
    except (RuntimeError, ValueError) as error:
        print(f"goccl ps: {error}", file=sys.stderr)
        return _NOBODY
    print(json.dumps(told, indent=2) if args.json else render_dumps(told), flush=True)
    if not told["processes"] and not told["silent"]:
        return _NOBODY
    return int(bool(told["silent"]) or any(p["error"] for p in told["processes"]))


def render_dumps(told: dict[str, Any]) -> str:
    """Turns what processes tell of their dumps into text for people."""
    lines = []
    for process in told["processes"]:
        of = f"process {process['pid']}"
        lines += [f"{file}, by {of}" for file in process["files"]]
        lines += [f"{of}: {process['error']}"] if process["error"] else []
    if told["silent"]:
        lines.append(_silent(told["silent"]))
    return "\n".join(lines or [_NO_GROUP])


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
        lines += [f"  rank {m['rank']}: {_message(m)}" for m in members if _waits_long(m)]
        lines.append(f"  {group['verdict']['text']}")
    if found["silent"]:
        lines.append(_silent(found["silent"]))
    if not lines:
        lines.append(_NO_GROUP)
    return "\n".join(lines)


def _silent(pids: list[int]) -> str:
    return f"no answer from process {', '.join(map(str, sorted(pids)))}"


def _waits_long(member: dict[str, Any]) -> bool:
    messages = member["messages"]
    return bool(messages) and messages[0]["for_us"] >= _LONG_US


def _message(member: dict[str, Any]) -> str:
    """The send or receive of a rank that is under way longest."""
    m, others = member["messages"][0], member["under_way"] - 1
    what = "send to" if m["send"] else "recv from"
    peer = f"rank {m['peer']}" if m["peer"] >= 0 else "any rank"
    text = f"{what} {peer}, tag {m['tag']}, {m['bytes']} bytes, since {_duration(m['for_us'])}"
    return f"{text}; {others} more under way" if others else text


def _duration(us: int) -> str:
    for unit, length in (("h", 3600e6), ("min", 60e6), ("s", 1e6), ("ms", 1e3)):
        if us >= length:
            return f"{us / length:.1f} {unit}"
    return f"{us} us"
