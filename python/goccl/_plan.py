"""`goccl info --plan`: how a collective would go in a job of any size, and why."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from goccl import _capi
from goccl._command import GOCCL_TRANSPORTS, parse_size


def add_arguments(parser: argparse.ArgumentParser, ranks: Callable[[str], int]) -> None:
    """Declares the options that go with --plan. ranks: reads a number of ranks."""
    group = parser.add_argument_group("to explain a choice, instead")
    group.add_argument(
        "--plan",
        metavar="COLLECTIVE",
        help="tell how --ranks would go about a collective, as allreduce, with what the "
        "environment sets",
    )
    group.add_argument(
        "--bytes",
        type=parse_size,
        default=64 << 10,
        metavar="SIZE",
        help="of a rank's larger buffer, as 4, 64K, 1G (default: 64K)",
    )
    group.add_argument(
        "--per-host",
        type=ranks,
        metavar="N",
        help="ranks on each host, in order (default: all on one)",
    )
    group.add_argument(
        "--per-domain",
        type=ranks,
        metavar="N",
        help="ranks of a host, in order, on CPUs that share a cache and a NUMA node (default: all)",
    )
    group.add_argument(
        "--by-turns",
        action="store_true",
        help="ranks are dealt out to the hosts one by one, instead",
    )
    group.add_argument(
        "--transport",
        choices=GOCCL_TRANSPORTS,
        default="shm",
        help="what joins the ranks of a host (default: shm)",
    )


def main(args: argparse.Namespace, ranks: int) -> int:
    """Prints how a collective would go. The exit status is 1 where that cannot be told."""
    per_host, per_domain = args.per_host or ranks, args.per_domain or 0
    nbytes, transport = args.bytes, args.transport
    try:
        place = (ranks, per_host, per_domain, args.by_turns, transport.encode())
        text = _capi.text("goccl_plan_info", args.plan.encode(), *place, nbytes)
    except (RuntimeError, ValueError) as error:
        print(f"goccl info: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(text)
        return 0
    where = "on one host" if per_host >= ranks else f"of {per_host} a host"
    if args.by_turns:
        where += " by turns"
    if per_domain:
        where += f", {per_domain} a domain"
    print(f"{args.plan} of {nbytes} bytes, {ranks} ranks {where}, {transport}")
    print(render(json.loads(text)))
    return 0


def render(plan: dict[str, Any]) -> str:
    """Turns what goccl_plan_info() tells into text for people."""
    about = f", about {plan['estimated_us']:g} us" if "estimated_us" in plan else ""
    lines = [f"algorithm   {plan['algorithm']}{about}"]
    if plan["direct"]:
        lines.append("            a direct plan is tried first, for blocks in shareable memory")
    if plan["ordered"]:
        lines.append("            ranks go host by host and domain by domain, not by their numbers")
    for i, level in enumerate(plan.get("levels", ())):
        where = "between hosts" if level["between_hosts"] else "within a host"
        if level["within_domain"]:
            where = "within a domain"
        lines.append(
            f"level {i + 1:<6}{level['radix']} siblings of {level['stride']} ranks, {where}, "
            f"about {level['estimated_us']:g} us"
        )
    for other in plan.get("others", ()):
        radices = ",".join(map(str, other.get("radices", ())))
        name = f"{other['algorithm']}({radices})" if radices else other["algorithm"]
        lines.append(f"not taken   {name}, about {other['estimated_us']:g} us")
    peers, messages, sent = plan["peers"], plan["messages"], plan["sent"]
    lines += [
        f"rank 0      has {peers} peers, and sends {messages} messages, {sent} bytes",
        f"messages    have up to {plan['chunk']} bytes where they go through staging memory",
    ]
    if plan["plans"] > 1:
        lines.append(f"parts       {plan['plans']}, one after the other")
    return "\n".join(lines)
