"""`goccl info`: what is installed, which transports this host can use, what is set, and what is
limited."""

from __future__ import annotations

import argparse
import json
import os
import platform
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import goccl
from goccl import _limits, _native, _plan
from goccl._options import SETTINGS, VARIABLES, shown

_COLUMNS = 100
_PREFIX = "GOCCL_"
_MOST_RANKS = 65536


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl info`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--ranks",
        type=_ranks,
        metavar="N",
        help="warn of limits that are too low for a job of so many ranks (default: the CPUs of "
        "this host)",
    )
    _plan.add_arguments(parser, _ranks)


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_MOST_RANKS}")
    return int(text)


def main(args: argparse.Namespace) -> int:
    """Prints the report. The exit status is 1 where goccl cannot be used at all."""
    ranks = args.ranks or len(os.sched_getaffinity(0))
    if args.plan:
        return _plan.main(args, ranks)
    report = collect(ranks)
    print(json.dumps(report, indent=2) if args.json else render(report))
    return 0 if report["problem"] is None else 1


def collect(ranks: int) -> dict[str, Any]:
    """Returns the report as plain data. What cannot be found out is None, and "problem" says why.

    Args:
        ranks: of a job; limits that are too low for so many are warned of.
    """
    report: dict[str, Any] = {
        "goccl": goccl.__version__,
        "go": _native.built_with_go(),
        "torch": {"built_for": _native.built_for(), "found": _torch_version()},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "installed_in": str(Path(goccl.__file__).parent),
        "settings": _settings(),
        "environment": _environment(),
        "transports": None,
        "warnings": [],
        "problem": None,
    }
    try:
        core = json.loads(_native.load().info())
    except Exception as error:  # the report is most wanted where something is broken
        report["problem"] = str(error) or repr(error)
    else:
        report["library"] = core.get("version")
        report["domains"], report["domain"] = core.get("domains"), core.get("domain")
        report["transports"] = core.get("transports", {})
        report["warnings"] = core.get("warnings", [])
        report["problem"] = core.get("problem") or None
    verbs = bool(report["transports"] and report["transports"].get("verbs", {}).get("usable"))
    report["ranks"] = ranks
    report["limits"] = [asdict(limit) for limit in _limits.collect(ranks, verbs)]
    report["warnings"] += [limit["warning"] for limit in report["limits"] if limit["warning"]]
    return report


def render(report: dict[str, Any]) -> str:
    """Turns a report into text for people."""
    torch = report["torch"]
    lines = [
        f"goccl       {report['goccl']}, in {report['installed_in']}",
        (
            f"core        {report.get('library') or 'not loaded'}, built with "
            f"{report['go'] or 'unknown Go'}"
        ),
        (
            f"torch       {torch['found'] or 'not found'}, goccl was built for "
            f"{torch['built_for'] or 'none'}"
        ),
        f"python      {report['python']}",
        f"system      {report['system']}",
    ]
    if domains := report.get("domains"):
        place = f"in {report['domain']}" if report["domain"] else "in several"
        lines += _folded(
            f"domains     of CPUs that share a cache and a NUMA node: {'; '.join(domains)}; this "
            f"process runs {place}"
        )
    for name, value in report["environment"].items():
        lines += _folded(f"set         {name}={value}")
    lines.append("")
    for warning in report["warnings"]:
        lines += _folded(f"WARNING     {warning}")
    if report["problem"] is not None:
        lines += _folded(f"PROBLEM     {report['problem']}")
    if report["transports"] is None:
        lines.append("transports  unknown: the core could not be asked")
    else:
        lines.append("transports")
        for name, facts in report["transports"].items():
            lines += _folded(f"  {name:<10}{_transport(facts)}")
    lines += ["", *_table(report["settings"]), "", f"limits, for {report['ranks']} ranks"]
    for limit in report["limits"]:
        lines += _folded(f"  {limit['name']:<15}{limit['value']}", 17)
    return "\n".join(lines)


def _table(settings: Sequence[dict[str, str]]) -> list[str]:
    """The settings, a line each: the variable, or the option where there is none."""
    rows = [["variable", "option", "source", "value, or default"]]
    for setting in settings:
        value = setting["value"] if setting["source"] != "default" else setting["default"]
        rows.append(
            [setting["variable"] or "-", setting["option"] or "-", setting["source"], value]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for row in rows:
        *start, value = row
        text = "  ".join(f"{cell:<{width}}" for cell, width in zip(start, widths, strict=True))
        lines += _folded(f"{text}  {value}", sum(widths) + 6)
    return lines


def _folded(line: str, indent: int = 12) -> list[str]:
    """Breaks a line into lines; those after the first are indented."""
    start = len(line) - len(line.lstrip())
    folded = textwrap.wrap(
        line.lstrip(),
        _COLUMNS - start,
        subsequent_indent=" " * (indent - start),
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return [" " * start + part for part in folded]


def _transport(facts: dict[str, Any]) -> str:
    text = (
        "usable"
        if facts.get("usable")
        else f"NOT usable: {facts.get('problem') or 'no reason given'}"
    )
    details = [
        f"{key.replace('_', ' ')} {_plain(value)}"
        for key, value in facts.items()
        if key not in ("usable", "problem") and value
    ]
    return text + (f" ({', '.join(details)})" if details else "")


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _torch_version() -> str | None:
    try:
        import torch
    except (ImportError, OSError):  # it is missing, or a library that it needs is
        return None
    return str(torch.__version__)


def _settings() -> list[dict[str, str]]:
    """All that can be set. What an option sets in code is not seen here."""
    found = []
    for setting in SETTINGS:
        value = os.environ.get(setting.variable, "") if setting.variable else ""
        found.append(
            {
                "variable": setting.variable,
                "option": setting.option,
                "value": shown(setting.variable, value),
                "source": "environment" if value else "default",
                "default": setting.default,
                "allowed": setting.allowed,
            }
        )
    return found


def _environment() -> dict[str, str]:
    """What else is set of what goccl looks at, besides what torch itself reads."""
    names = [name for name in sorted(os.environ) if name.upper().startswith(_PREFIX)]
    names += [name for name in ("TORCHELASTIC_RESTART_COUNT",) if name in os.environ]
    others = [name for name in names if name not in VARIABLES]
    return {name: shown(name, os.environ[name]) for name in others}
