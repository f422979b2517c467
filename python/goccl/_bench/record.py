"""The JSON of a run: kept current while it measures, and read by ``compare`` and ``plot``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from goccl._records import check, loads

from .beside import Beside
from .report import Row

VERSION = 1


@dataclass
class Run:
    """What a run measured, and with what; the fields are the keys of the JSON.

    machine: see machine.facts(). libraries: their versions by label. command: its words. started,
    ended: local times with their offset; ended is None while the run goes on. failures: what went
    wrong, in words.
    """

    goccl: str
    machine: dict[str, Any]
    libraries: dict[str, str]
    settings: dict[str, Any]
    command: list[str]
    started: str
    ended: str | None = None
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Unreadable(Exception):
    """A file is no result of a run; the text names the file and says why."""


def now() -> str:
    """The time, as a run tells it."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def as_json(run: Run) -> dict[str, Any]:
    """A run as JSON has it, below the version of this format."""
    return {"version": VERSION, **asdict(run)}


def read(path: Path) -> Run:
    """The run that a file holds, which may have been interrupted.

    Raises:
        Unreadable: it holds none, or one without rows.
    """
    try:
        found = loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is no JSON, or was cut off: {error}") from error
    if isinstance(found, list):
        raise Unreadable(f"{path} is a list of rows without the version: measure again")
    if not isinstance(found, dict) or not {"version", "rows"} <= found.keys():
        raise Unreadable(f"{path} is no result of goccl bench --json: it has no version or no rows")
    if found["version"] != VERSION:
        raise Unreadable(f"{path} has version {found['version']!r}, allowed is {VERSION}")
    try:
        rows = [_row(number, row) for number, row in enumerate(found["rows"], 1)]
        names = {each.name for each in fields(Run)}
        run = Run(**{name: found[name] for name in names & found.keys()} | {"rows": rows})
        check(run)
        _check_numbers(run.machine, "load", "cpus")
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise Unreadable(f"{path} is no result of goccl bench --json: {error}") from error
    if not rows:
        raise Unreadable(f"{path} has no rows: nothing was measured")
    return run


def _row(number: int, found: Mapping[str, Any]) -> Row:
    known = {}
    for each in fields(Row):
        if each.name in found:
            known[each.name] = found[each.name]
        elif each.default is MISSING:
            raise ValueError(f"row {number} has no {each.name}")
    if known.get("beside") is not None:
        known["beside"] = Beside(**known["beside"])
    known["block_medians_us"] = tuple(map(float, known.get("block_medians_us", ())))
    row = Row(**known)
    try:
        check(row)
    except TypeError as error:
        raise TypeError(f"row {number}: {error}") from error
    return row


def _check_numbers(facts: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if not isinstance(facts.get(name, 0), int | float):
            raise TypeError(f"{name} is {facts[name]!r}")
        float(facts.get(name, 0))  # OverflowError where it is too large to calculate with
