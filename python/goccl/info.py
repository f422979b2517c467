"""`goccl info`: what is installed, and which transports this host can use."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
from pathlib import Path
from typing import Any

import goccl
from goccl import _native

_PREFIX = "GOCCL_"
_SECRET = "GOCCL_SECRET"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl info`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def main(args: argparse.Namespace) -> int:
    """Prints the report. The exit status is 1 where goccl cannot be used at all."""
    report = collect()
    print(json.dumps(report, indent=2) if args.json else render(report))
    return 0 if report["problem"] is None else 1


def collect() -> dict[str, Any]:
    """Returns the report as plain data. What cannot be found out is None, and "problem" says why."""
    report: dict[str, Any] = {
        "goccl": goccl.__version__,
        "go": _native.built_with_go(),
        "torch": {"built_for": _native.built_for(), "found": _torch_version()},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "installed_in": str(Path(goccl.__file__).parent),
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
        report["transports"] = core.get("transports", {})
        report["warnings"] = core.get("warnings", [])
        report["problem"] = core.get("problem") or None
    return report


def render(report: dict[str, Any]) -> str:
    """Turns a report into text for people."""
    torch = report["torch"]
    lines = [
        f"goccl       {report['goccl']}, in {report['installed_in']}",
        f"core        {report.get('library') or 'not loaded'}, built with {report['go'] or 'unknown Go'}",
        f"torch       {torch['found'] or 'not found'}, goccl was built for {torch['built_for'] or 'none'}",
        f"python      {report['python']}",
        f"system      {report['system']}",
    ]
    for name, value in report["environment"].items():
        lines.append(f"set         {name}={value}")
    lines.append("")
    lines += [f"WARNING     {warning}" for warning in report["warnings"]]
    if report["problem"] is not None:
        lines.append(f"PROBLEM     {report['problem']}")
    if report["transports"] is None:
        lines.append("transports  unknown: the core could not be asked")
    else:
        lines.append("transports")
        lines += [_transport_line(name, facts) for name, facts in report["transports"].items()]
    return "\n".join(lines)


def _transport_line(name: str, facts: dict[str, Any]) -> str:
    text = "usable" if facts.get("usable") else f"NOT usable: {facts.get('problem') or 'no reason given'}"
    details = [
        f"{key.replace('_', ' ')} {_plain(value)}"
        for key, value in facts.items()
        if key not in ("usable", "problem") and value
    ]
    return f"  {name:<8}  {text}" + (f" ({', '.join(details)})" if details else "")


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _torch_version() -> str | None:
    try:
        import torch
    except (ImportError, OSError):  # it is missing, or a library that it needs is
        return None
    return str(torch.__version__)


def _environment() -> dict[str, str]:
    """What is set of what changes what goccl does, besides what torch itself reads."""
    names = [name for name in sorted(os.environ) if name.upper().startswith(_PREFIX)]
    names += [name for name in ("TORCHELASTIC_RESTART_COUNT",) if name in os.environ]
    return {name: "(hidden)" if _may_be_secret(name) else os.environ[name] for name in names}


def _may_be_secret(name: str) -> bool:
    """Whether the variable is the secret, or was meant to be."""
    return bool(difflib.get_close_matches(name.upper(), [_SECRET], cutoff=0.8))
