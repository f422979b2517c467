"""Where rows go while they are measured: a table, CSV, JSON lines, JSON, and the formats of
nccl-tests."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from goccl._command import is_stream, write_anew
from goccl._ranks.collectives import ITEMSIZE, element_count
from goccl._ranks.libraries import Library

from . import words
from .record import Run, as_json
from .report import OURS, Row, start_line, table_head, table_row, table_title

if TYPE_CHECKING:
    from .run import Settings

Write = Callable[[str], object]
"""Writes a line, or several, and has them seen at once."""
Current = Callable[[], Run]
"""The run as far as it has come."""


class Unwritable(Exception):
    """An output cannot be written; the text says which and why."""

    def __init__(self, error: OSError) -> None:
        name = error.filename or "the output"
        super().__init__(f"{name} cannot be written: {error.strerror or error}")


class Output:
    """What is told of a run. Each of these may raise OSError."""

    def begin(self, settings: Settings, libraries: Sequence[Library]) -> None:
        """These are measured from now on, with a number of ranks."""

    def add(self, rows: Sequence[Row]) -> None:
        """These were measured: a call and size, with all libraries."""

    def end(self, rows: Sequence[Row]) -> None:
        """A collective is over, and these are its rows."""

    def finish(self, run: Run) -> str:
        """The run is over. Returns what is to be said of the output, or ""."""
        return ""


class Table(Output):
    """For people: a table for each call, how libraries started, and a conclusion in words."""

    def __init__(self, write: Callable[[str, str], object]) -> None:
        """write: takes a text, and what it is: "title", "head", "row", "wrong" or "note"."""
        self._write = write
        self._ours: list[str] = []
        self._schedules = False
        self._title = ""

    def begin(self, settings: Settings, libraries: Sequence[Library]) -> None:
        ours = [library for library in libraries if library.name in OURS]
        # The first schedule is what others are compared with, too.
        self._ours = [library.label for library in ours if library.schedule == ours[0].schedule]
        self._schedules = any(library.schedule for library in ours)

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            # GoCCL with tensors of the CPU stands in the table of those of a device.
            if self._title != (title := table_title(rows[0])):
                self._title = title
                self._write(f"\n# {title}", "title")
                self._write(table_head(row, self._ours, schedules=self._schedules), "head")
            line = table_row(row, rows, self._ours, schedules=self._schedules)
            self._write(line, "wrong" if row.wrong else "row")

    def end(self, rows: Sequence[Row]) -> None:
        for row in {row.label: row for row in rows}.values():
            self._write(start_line(row), "note")
        self._title = ""

    def finish(self, run: Run) -> str:
        for line in ["", *words.conclusion(run.rows)] if run.rows else []:
            self._write(f"# {line}" if line else "", "note")
        return ""


class Csv(Output):
    """A line of names, and a line for each row. What is not known is empty; a list has spaces."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._headed = False

    def add(self, rows: Sequence[Row]) -> None:
        if not self._headed:
            self._line([field.name for field in fields(Row)])
            self._headed = True
        for row in rows:
            self._line([_cell(value) for value in asdict(row).values()])

    def _line(self, cells: Sequence[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(cells)
        self._write(text.getvalue())


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case {"programs": programs, "nice": nice}:
            return f"{programs}:{nice}"
        case tuple():
            return " ".join(map(str, value))
    return str(value)


class JsonLines(Output):
    """An object a line: the run without rows, failures and its end, then each row."""

    def __init__(self, write: Write, current: Current) -> None:
        self._write = write
        self._current = current
        self._headed = False

    def add(self, rows: Sequence[Row]) -> None:
        if not self._headed:
            left_out = ("rows", "failures", "ended")
            head = as_json(self._current())
            self._write(json.dumps({key: head[key] for key in head if key not in left_out}))
            self._headed = True
        for row in rows:
            self._write(json.dumps(asdict(row)))


class JsonFile(Output):
    """The run, in a file that is written anew after each call and size.

    What is no file, such as a pipe, is written once, at the end.
    """

    def __init__(self, path: Path, current: Current) -> None:
        self._path = path
        self._current = current
        self._is_file = not is_stream(path)

    def add(self, rows: Sequence[Row]) -> None:
        if rows and self._is_file:
            self._put(self._current())

    def finish(self, run: Run) -> str:
        if not run.rows:  # the file may have those of another run
            return ""
        self._put(run)
        return f"rows are in {self._path}"

    def _put(self, run: Run) -> None:
        _write_json(self._path, as_json(run))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    try:
        write_anew(path, json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


# nccl-tests names these so; it has no others.
NCCL_TYPES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
NCCL_OPS = {"product": "prod", "premul_sum": "mulsum"}
_NCCL_JSON_VERSION = 3
_NCCL_TIME = "%Y-%m-%d %H:%M:%S"
_NCCL_HEAD = (
    ("size", "count", "type", "redop", "root", *["time", "algbw", "busbw", "#wrong"] * 2),
    ("(B)", "(elements)", "", "", "", *["(us)", "(GB/s)", "(GB/s)", ""] * 2),
)
_NOT_MEASURED = ["N/A"] * 4


def _nccl_line(cells: Sequence[str]) -> str:
    """The first cell of a head loses its two spaces to the mark of a comment."""
    widths = (12, 12, 8, 6, 6, 7, 6, 6, 6, 7, 6, 6, 6)
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _nccl_head(cells: Sequence[str]) -> str:
    return f"# {_nccl_line(cells)[2:]}".rstrip()


def _short(value: float, width: int) -> str:
    """A number with as many decimals, two at most, as there is room for."""
    for form in (".2f", ".1f", ".0f"):
        if len(text := format(value, form)) <= width:
            return text
    return format(value, ".1e" if width >= 7 else ".0e")


def nccl_count(row: Row) -> int:
    """Elements as nccl-tests counts them: of a block, where a collective has blocks."""
    itemsize = ITEMSIZE[row.dtype]
    blocks = element_count(row.collective, row.ranks, 1, itemsize)  # of one element each
    return row.bytes // itemsize // max(1, blocks)


def nccl_type(dtype: str) -> str:
    """The name that nccl-tests gives a dtype, or its own."""
    return NCCL_TYPES.get(dtype, dtype)


def nccl_op(redop: str) -> str:
    """The name that nccl-tests gives a reduce op, or its own."""
    return NCCL_OPS.get(redop, redop)


def _wrong(rows: Iterable[Row]) -> int | None:
    """The wrong elements of rows; None where none was checked."""
    checked = [row.wrong for row in rows if row.wrong is not None]
    return sum(checked) if checked else None


class _Point:
    """A line of nccl-tests: one call and size, out of place and in place.

    Where the placement of CPUs changed, each is the row with the most iterations.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.any = rows[0]
        places = (False, True)
        self.sides = [
            max(
                (row for row in rows if row.in_place == place),
                key=lambda row: row.iterations,
                default=None,
            )
            for place in places
        ]
        self.wrong = [_wrong(row for row in rows if row.in_place == place) for place in places]

    def line(self) -> str:
        row = self.any
        cells = [str(row.bytes), str(nccl_count(row)), nccl_type(row.dtype)]
        cells += [nccl_op(row.redop), str(row.root)]
        for side, wrong in zip(self.sides, self.wrong, strict=True):
            if side is None:
                cells += _NOT_MEASURED
                continue
            cells += [_short(side.median_us, 7)]
            cells += [_short(value, 6) for value in (side.algbw_GBps, side.busbw_GBps)]
            cells += ["N/A" if wrong is None else format(wrong, "g")]
        return _nccl_line(cells)

    def result(self) -> dict[str, Any]:
        row = self.any
        found: dict[str, Any] = {
            "size": row.bytes,
            "count": nccl_count(row),
            "type": nccl_type(row.dtype),
            "redop": nccl_op(row.redop),
            "root": f"{row.root:6}",
        }
        for name, side, wrong in zip(
            ("out_of_place", "in_place"), self.sides, self.wrong, strict=True
        ):
            if side is None:
                found[name] = None
                continue
            found[name] = {
                "time": side.median_us,
                "alg_bw": side.algbw_GBps,
                "bus_bw": side.busbw_GBps,
                "nwrong": None if wrong is None else float(wrong),
            }
            found[f"{name}_per_iter"] = {
                "skipped_iterations": 0,
                "min_us": side.min_us,
                "max_us": side.max_us,
                "avg_us": side.mean_us,
                "p50_us": side.median_us,
                "p95_us": side.p95_us,
                "p99_us": side.p99_us,
                "stdev_us": side.stdev_us,
                "cv_pct": 100 * (side.stdev_us or 0.0) / side.mean_us if side.mean_us else 0.0,
            }
        found["actual_iterations"] = max(side.iterations for side in self.sides if side)
        found["experiment_name"] = f"{row.collective}, {row.ranks} ranks"
        return found


def _line_of(row: Row) -> tuple[object, ...]:
    """What the rows of a line have in common."""
    return row.collective, row.ranks, row.dtype, row.redop, row.root, row.bytes


def _points(rows: Sequence[Row]) -> list[_Point]:
    by_line: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        by_line.setdefault(_line_of(row), []).append(row)
    return [_Point(found) for found in by_line.values()]


def _total(points: Sequence[_Point]) -> tuple[int, float]:
    """The wrong elements of lines, and the mean of their bus bandwidths."""
    bandwidths = [side.busbw_GBps for point in points for side in point.sides if side]
    wrong = sum(wrong or 0 for point in points for wrong in point.wrong)
    return wrong, fmean(bandwidths) if bandwidths else 0.0


class NcclTable(Output):
    """The table that nccl-tests 2.19 prints, for each collective: of one library.

    Where both places are measured, a line waits for the second one.
    """

    def __init__(self, write: Write, goccl: str) -> None:
        """goccl: its version."""
        self._write = write
        self._goccl = goccl
        self._about: list[str] = []
        self._began = ""
        self._waiting: list[Row] = []
        self._places = 1

    def begin(self, settings: Settings, libraries: Sequence[Library]) -> None:
        low, high = min(settings.sizes), max(settings.sizes)
        iterations = settings.iterations or "auto"
        self._places = len(settings.in_place)
        self._about = [
            f"# {libraries[0].label}, {settings.ranks} ranks",
            f"# minBytes {low} maxBytes {high} warmup iters: {settings.warmup} iters: {iterations}",
        ]

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if self._waiting and _line_of(row) != _line_of(self._waiting[0]):
                self._print()
            self._waiting.append(row)
        if self._places == 1 or {row.in_place for row in self._waiting} == {False, True}:
            self._print()

    def end(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        self._print()
        wrong, bandwidth = _total(_points(rows))
        self._write(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        self._write(f"# Avg bus bandwidth    : {bandwidth:g} ")
        self._write(f"#\n# Collective test concluded: {self._began}\n#")
        self._began = ""

    def finish(self, run: Run) -> str:
        self._print()
        return ""

    def _print(self) -> None:
        for point in _points(self._waiting):
            if not self._began:
                self._began = point.any.collective
                title = f"# goccl {self._goccl}, in the format of nccl-tests 2.19"
                start = f"# Collective test starting: {self._began}"
                places = f"#{'out-of-place':>74}{'in-place':>31}"
                head = [title, start, *self._about, "#", places, *map(_nccl_head, _NCCL_HEAD)]
                self._write("\n".join(head))
            self._write(point.line())
        self._waiting = []


class NcclJson(Output):
    """The JSON that nccl-tests 2.19 writes with -J, of one library.

    The file is made when this is: FileExistsError where it is there. It is whole at any time, and
    not kept where nothing was measured.
    """

    def __init__(self, path: Path, current: Current) -> None:
        self._path = path
        self._current = current
        self._config: dict[str, Any] = {}
        path.open("x").close()
        self._put(current())

    def begin(self, settings: Settings, libraries: Sequence[Library]) -> None:
        low, high = min(settings.sizes), max(settings.sizes)
        self._config = {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": low,
            "maximum_bytes": high,
            "warmup_iters": settings.warmup,
            "iterations": settings.iterations,
            "aggregated_iterations": 1,
            "validation": int(settings.check),
            "graph": 0,
            "blocking_collectives": "true",
            "per_iter_timing": "true",
            "per_iter_skip": 0,
            "parallel_init": "false",
            "library": libraries[0].label,
            "ranks": settings.ranks,
            "devices": [],
        }

    def add(self, rows: Sequence[Row]) -> None:
        if rows:
            self._put(self._current())

    def finish(self, run: Run) -> str:
        if not run.rows:
            self._path.unlink(missing_ok=True)
            return ""
        self._put(run)
        return f"rows are in {self._path}, as nccl-tests has them"

    def _put(self, run: Run) -> None:
        points = _points(run.rows)
        wrong, bandwidth = _total(points)
        found = {
            "version": _NCCL_JSON_VERSION,
            "start_time": _nccl_time(run.started),
            "args": run.command,
            "env": [f"{name}={text}" for name, text in run.settings["environment"].items()],
            "nccl_version": None,
            "goccl_version": run.goccl,
            "config": self._config,
            "results": [point.result() for point in points],
            "out_of_bounds": {"count": wrong, "okay": str(not wrong).lower()},
            "average_bus_bandwidth": {"bandwidth": bandwidth, "okay": "unchecked"},
            "errors": run.failures,
        }
        if run.ended:
            found["end_time"] = _nccl_time(run.ended)
        _write_json(self._path, found)


def _nccl_time(text: str) -> str:
    return datetime.fromisoformat(text).strftime(_NCCL_TIME)
