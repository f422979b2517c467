"""`goccl info`: what is installed, which transports this host can use, what is set, and what is
limited."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import goccl
from goccl import _capi, _command, _limits, _native, _plan, _stand_in
from goccl._options import SETTINGS, VARIABLES, shown
from goccl._registration import accelerator

_COLUMNS = 100
_PREFIX = "GOCCL_"
_MOST_RANKS = 65536
_ASK_LIMIT = 60  # seconds
_ASK = """
import sys
from goccl import _capi, errors
_capi.LIBRARY = sys.argv[1]
try:
    print(_capi.text("goccl_info"))
except errors.Error as error:
    sys.exit(str(error))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl info`."""
    _command.add_examples(
        parser,
        [
            "goccl info",
            "goccl info --json",
            "goccl info --ranks 64",
            "goccl info --plan allreduce --ranks 16 --per-host 4 --bytes 1M",
        ],
        {
            0: "a group could be made on this host",
            1: "none could, or the plan cannot be told: each line PROBLEM says why",
            2: "wrong arguments",
        },
    )
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
    """Prints the report. The exit status is 1 where there is a problem: no group could be made."""
    ranks = args.ranks or len(os.sched_getaffinity(0))
    if args.plan:
        return _plan.main(args, ranks)
    report = collect(ranks)
    print(json.dumps(report, indent=2) if args.json else render(report))
    return 1 if report["problems"] else 0


def collect(ranks: int) -> dict[str, Any]:
    """Returns the report as plain data. What cannot be found out is None. "problems" has all for
    which no group could be made.

    Args:
        ranks: of a job; limits that are too low for so many are warned of.
    """
    core, problems = _ask_core()
    report: dict[str, Any] = {
        "goccl": goccl.__version__,
        "go": _native.built_with_go(),
        "torch": {
            "built_for": _native.built_for(),
            "found": _torch_version(),
            "extension": _extension_file(),
        },
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "installed_in": str(Path(goccl.__file__).parent),
        "settings": _settings(core),
        "environment": _environment(),
        "library": core.get("version"),
        "domains": core.get("domains"),
        "domain": core.get("domain"),
        "transports": core.get("transports"),
        "device": accelerator() if _torch_version() else "",
        "stands_in": _stands_in(),
        "warnings": core.get("warnings", []) + _stand_in.warnings_of(os.environ),
        "problems": problems,
    }
    verbs = bool(report["transports"] and report["transports"].get("verbs", {}).get("usable"))
    report["ranks"] = ranks
    report["limits"] = [asdict(limit) for limit in _limits.collect(ranks, verbs)]
    report["warnings"] += [limit["warning"] for limit in report["limits"] if limit["warning"]]
    return report


def _ask_core() -> tuple[dict[str, Any], list[str]]:
    """Returns what the core says of this host, {} where it cannot be asked, and all problems."""
    problems = []
    try:
        _native.load()
        core = _capi.call("goccl_info")
    except ImportError as error:  # torch or goccl._C is to blame: the core may work without them
        problems.append(_why(error))
        core, problem = _ask_library()
        problems += [problem] if problem else []
    except Exception as error:  # the report is most wanted where something is broken
        return {}, [_why(error)]
    return core, problems + core.get("problems", [])


def _why(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return _command.missing("torch", "torch") or str(error)
    return str(error) or repr(error)


def _ask_library() -> tuple[dict[str, Any], str]:
    """Asks libgoccl.so.0 without torch, in a process of its own: it may end that."""
    path = _capi.LIBRARY
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK, path],
            capture_output=True,
            text=True,
            timeout=_ASK_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}, f"{path} does not answer within {_ASK_LIMIT} seconds"
    if asked.returncode == 0:
        return json.loads(asked.stdout), ""
    lines = asked.stderr.strip().splitlines() or [f"it ends with status {asked.returncode}"]
    if asked.returncode == 1:  # which says the remedy
        return {}, lines[-1]
    return {}, f"{path} cannot be used: {lines[-1]}; reinstall the goccl package"


def render(report: dict[str, Any]) -> str:
    """Turns a report into text for people."""
    torch = report["torch"]
    lines = [
        f"goccl       {report['goccl']}, in {report['installed_in']}",
        (
            f"core        {report.get('library') or 'not loaded'}, built with "
            f"{report['go'] or 'unknown Go'}"
        ),
        *_folded(
            f"torch       {torch['found'] or 'not found'}; goccl has extensions for "
            f"{', '.join(torch['built_for']) or 'none'}"
        ),
        f"extension   {torch['extension'] or 'not loaded'}",
        f"python      {report['python']}",
        f"system      {report['system']}",
    ]
    for what, by in (("gloo", "gloo"), ("no name", "default")):
        variable = report["stands_in"][by]
        lines.append(f"stands in   for {what}: {f'yes, by {variable}' if variable else 'no'}")
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
    for problem in report["problems"]:
        lines += _folded(f"PROBLEM     {problem}")
    if report["transports"] is None:
        lines.append("transports  unknown: the core could not be asked")
    else:
        lines.append("transports")
        for name, facts in report["transports"].items():
            lines += _folded(f"  {name:<10}{_transport(facts)}")
    if device := report["device"]:
        lines.append(f"  tensors of {device} go by way of pinned memory of the host")
    lines += ["", *_table(report["settings"]), "", f"limits, for {report['ranks']} ranks"]
    for limit in report["limits"]:
        lines += _folded(f"  {limit['name']:<15}{limit['value']}", 17)
    return _command.printable("\n".join(lines))


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


def _extension_file() -> str | None:
    """The file that is loaded as goccl._C."""
    try:
        return _native.load().__file__
    except (ImportError, OSError):  # "problems" says why
        return None


def _settings(core: dict[str, Any]) -> list[dict[str, str]]:
    """All that can be set. What an option sets in code is not seen here; without the core, files
    are not."""
    given = {setting["name"]: setting for setting in core.get("settings", [])}
    found = []
    for setting in SETTINGS:
        value = os.environ.get(setting.variable, "") if setting.variable else ""
        source = "environment" if value else "default"
        known = given.get(setting.variable, {"value": value, "source": source})
        found.append(
            {
                "variable": setting.variable,
                "option": setting.option,
                "value": shown(setting.variable, known["value"]),
                "source": known["source"],
                "default": setting.default,
                "allowed": setting.allowed,
            }
        )
    return found


def _stands_in() -> dict[str, str]:
    """For what goccl stands in here, and by which variable; "" where it does not."""
    by = {"gloo": _stand_in.REPLACE, "default": _stand_in.DEFAULT}
    return {what: name if os.environ.get(name) == "1" else "" for what, name in by.items()}


def _environment() -> dict[str, str]:
    """What else is set of what goccl looks at, besides what torch itself reads."""
    names = [name for name in sorted(os.environ) if name.upper().startswith(_PREFIX)]
    names += [name for name in ("TORCHELASTIC_RESTART_COUNT",) if name in os.environ]
    others = [name for name in names if name not in VARIABLES]
    return {name: shown(name, os.environ[name]) for name in others}
