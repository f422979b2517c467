"""A picture of the rows: time by size or by the number of ranks, and beside it how many times as
long as GoCCL each library takes. ``goccl bench plot`` draws it from files."""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goccl._command import add_examples, missing, output_file

from . import words
from .placement import MIXED
from .record import Run, Unreadable, read
from .report import Row, base_of, call_text, ratio, size_text

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # of runs
_DASHES = {"near": "-", "far": "--", "unknown": "-"}


def formats() -> list[str]:
    """The endings of files that can be drawn; none where matplotlib is missing."""
    if missing("numpy", "NumPy") or missing("matplotlib", "matplotlib"):
        return []
    figure_module: Any = importlib.import_module("matplotlib.figure")
    return sorted(f".{name}" for name in figure_module.Figure().canvas.get_supported_filetypes())


def picture(text: str) -> Path:
    """A type of arguments: the file of a picture."""
    path = output_file(text)
    allowed = formats()
    if allowed and path.suffix.lower() not in allowed:
        raise argparse.ArgumentTypeError(
            f"{text!r} does not end as a picture's file does; allowed are {', '.join(allowed)}"
        )
    return path


@dataclass(frozen=True)
class _Drawn(Row):
    """A row with the name of its run in the legend, "" where one run is drawn."""

    run: str = ""


def write_plot(runs: Mapping[str, Sequence[Row]], path: Path, about: str = "") -> None:
    """Draws the rows of runs into a file whose ending names the format: over sizes, as far as they
    have one, or over the number of ranks where there are more of these than sizes.

    runs: by the names that tell them apart in the legend; "" is the name of the only one. about:
    the machine and the date, which stand above.
    """
    figure_module: Any = importlib.import_module("matplotlib.figure")
    rows = [_Drawn(**vars(row), run=name) for name, rows in runs.items() for row in rows]
    grid = _grid([row for row in rows if row.placement != MIXED])
    height, width = len(grid), max((len(panels) for panels in grid), default=1)
    figure = figure_module.Figure(figsize=(9 * width, 4 * height + 1), layout="constrained")
    axes = figure.subplots(max(1, height), 2 * width, squeeze=False)
    shown = [row for panels in grid for panel in panels for row in panel.rows]
    besides = dict.fromkeys(f"measured {row.beside}" for row in shown if row.beside)
    if title := ". ".join(filter(None, [about, *besides])):
        figure.suptitle(title, fontsize="medium")
    lines: dict[str, Any] = {}
    looks = _looks(shown)
    places = {row.placement for row in shown}
    for place in itertools.product(range(height), range(width)):
        times, ratios = axes[place[0]][2 * place[1] : 2 * place[1] + 2]
        _draw(grid[place[0]][place[1]], times, ratios, looks, lines, places)
    if lines:
        _add_legend(figure, lines)
    # Text as text makes an SVG half as large, and readable by programs.
    with importlib.import_module("matplotlib").rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=100)


def _looks(rows: Sequence[_Drawn]) -> dict[tuple[str, str], dict[str, Any]]:
    """The colour and the marker of each run and label. One run's colours are the libraries' own."""
    keys = list(dict.fromkeys((row.run, row.label) for row in rows))
    runs = list(dict.fromkeys(run for run, _ in keys))
    own = words.colours([label for _, label in keys])
    return {
        (run, label): {
            "color": own[label] if len(runs) == 1 else f"C{number % 10}",
            "marker": _MARKERS[runs.index(run) % len(_MARKERS)],
            "markersize": 3 if len(runs) == 1 else 5,
        }
        for number, (run, label) in enumerate(keys)
    }


@dataclass(frozen=True)
class _Panel:
    """Curves, and the field of Row that they go over. ticks: its values, with their names."""

    title: str
    over: str
    ticks: dict[int, str]
    rows: list[_Drawn]


def _grid(rows: list[_Drawn]) -> list[list[_Panel]]:
    """The panels of a figure, line by line: a line for each call."""
    sizes: dict[tuple[str, int], set[int]] = {}  # by collective and number of ranks
    for row in rows:
        sizes.setdefault((row.collective, row.ranks), set()).add(row.bytes)
    ranks = list(dict.fromkeys(row.ranks for row in rows))
    if len(ranks) > max(map(len, sizes.values()), default=0):
        return [
            [_over_ranks(its, place, call_text(its[0], rows))]
            for its in _by_call(rows)
            for place in range(
                max(len(s) for (name, _), s in sizes.items() if name == its[0].collective)
            )
        ]
    rows = [row for row in rows if row.bytes]
    names = {nbytes: size_text(nbytes) for nbytes in sorted({row.bytes for row in rows})}
    return [
        [
            _Panel(
                f"{its[0].collective}, {number} ranks, {its[0].dtype}{call_text(its[0], rows)}",
                "bytes",
                names,
                [row for row in its if row.ranks == number],
            )
            for number in ranks
        ]
        for its in _by_call(rows)
    ]


def _by_call(rows: list[_Drawn]) -> list[list[_Drawn]]:
    calls: dict[tuple[object, ...], list[_Drawn]] = {}
    for row in rows:
        calls.setdefault(row.call, []).append(row)
    return list(calls.values())


def _over_ranks(rows: list[_Drawn], place: int, about: str) -> _Panel:
    """The panel of the size that is in this place of all, from the smallest on; for each number of
    ranks with the rows of the placement that most libraries have met, so that curves have no gaps.

    Sizes are rounded up to blocks for all ranks: they may differ, and where there are many ranks
    small ones may be the same, so that there are fewer. about: ends the title.
    """
    by_ranks: dict[int, list[int]] = {}
    for ranks in sorted({row.ranks for row in rows}):
        by_ranks[ranks] = sorted({row.bytes for row in rows if row.ranks == ranks})
    behind = max(map(len, by_ranks.values())) - place
    here = {ranks: sizes[-behind] for ranks, sizes in by_ranks.items() if behind <= len(sizes)}
    least, most = min(here.values()), max(here.values())
    size = (
        f", {size_text(least)} bytes"
        if least == most
        else f", {size_text(least)} to {size_text(most)} bytes"
    )
    return _Panel(
        f"{rows[0].collective}{size if most else ''}, {rows[0].dtype}{about}",
        "ranks",
        {ranks: str(ranks) for ranks in by_ranks},
        [
            row
            for ranks, nbytes in here.items()
            for row in _most_met([row for row in rows if (row.ranks, row.bytes) == (ranks, nbytes)])
        ],
    )


def _most_met(rows: list[_Drawn]) -> list[_Drawn]:
    """Those of the placement that most have."""
    most = statistics.mode(row.placement for row in rows)
    return [row for row in rows if row.placement == most]


def _draw(
    panel: _Panel,
    times: Any,
    ratios: Any,
    looks: Mapping[tuple[str, str], Mapping[str, Any]],
    lines: dict[str, Any],
    places: Collection[str],
) -> None:
    """Draws the curves. looks: of each run and label; lines: one of each name, for the legend;
    places: all placements that are drawn, which are named where they differ."""

    def x(row: Row) -> int:
        value: int = getattr(row, panel.over)
        return value

    # Over ranks, each number of which has one placement, a curve goes on from one to another.
    dashes = _DASHES if panel.over == "bytes" else {"": "-"}
    for (run, label), placement in itertools.product(looks, dashes):
        of_run = [row for row in panel.rows if row.run == run]
        line = [row for row in of_run if row.label == label and placement in ("", row.placement)]
        if not line:
            continue
        line.sort(key=x)
        style = {**looks[run, label], "linestyle": dashes[placement]}
        where = words.place(placement) if len(places) > 1 else ""
        name = words.library(label) + (f" ({where})" if where else "")
        name = f"{run}: {name}" if run else name
        (lines[name],) = times.plot(
            [x(row) for row in line], [row.median_us for row in line], **style
        )
        base = base_of(line[0], [label for other, label in looks if other == run])
        compared = [(x(row), ratio(row, of_run, base)) for row in line]
        points = [(at, value) for at, value in compared if value is not None]
        if points:
            ratios.plot([at for at, _ in points], [value for _, value in points], **style)
    times.set_title(panel.title)
    times.set_ylabel("median time, µs: less is better")
    ratios.set_ylabel("time / GoCCL, called the same way")
    ratios.axhline(1.0, color="black", linewidth=0.8)
    for axis in (times, ratios):
        axis.set(xscale="log", yscale="log", xlabel=panel.over)
        axis.set_xticks(list(panel.ticks), list(panel.ticks.values()), fontsize="x-small")
        axis.minorticks_off()
        axis.grid(True, alpha=0.3)


def _add_legend(figure: Any, lines: Mapping[str, Any]) -> None:
    """Below the axes, in as many columns as are sure to fit."""
    place = {"handles": list(lines.values()), "labels": list(lines), "loc": "outside lower center"}
    one_column = figure.legend(**place)
    figure.draw_without_rendering()
    columns = int(figure.bbox.width / one_column.get_window_extent().width)
    one_column.remove()
    figure.legend(**place, ncols=max(1, min(columns, len(lines))))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``goccl bench plot``."""
    add_examples(
        parser,
        [
            "goccl bench plot host.json -o host.svg",
            "goccl bench plot before.json after.json -o both.png",
        ],
        {
            0: "the picture is written",
            1: "it cannot be written, or matplotlib is missing",
            2: "wrong arguments, or a file that is no result of goccl bench --json",
        },
    )
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="what goccl bench --json wrote; the legend tells several apart by their names",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=picture,
        required=True,
        metavar="PICTURE",
        help="where to draw, as PNG, SVG or PDF",
    )


def main(args: argparse.Namespace) -> int:
    """Runs the command. 0: drawn; 1: it could not be; 2: a file is not to be read."""
    for module, name in (("numpy", "NumPy"), ("matplotlib", "matplotlib")):
        if problem := missing(module, name):
            print(f"goccl bench plot: {problem}", file=sys.stderr)
            return 1
    try:
        runs = {path: read(path) for path in args.files}
    except Unreadable as error:
        print(f"goccl bench plot: {error}", file=sys.stderr)
        return 2
    named = dict(zip(_names(list(runs)), runs.values(), strict=True))
    abouts = dict.fromkeys(map(_about, runs.values()))
    try:
        write_plot({name: run.rows for name, run in named.items()}, args.output, "; ".join(abouts))
    except OSError as error:
        print(
            f"goccl bench plot: {args.output} cannot be written: {error.strerror}", file=sys.stderr
        )
        return 1
    return 0


def _names(paths: Sequence[Path]) -> list[str]:
    """What runs are called in the legend: by the last part of the path, where that is enough."""
    if len(paths) == 1:
        return [""]
    stems = [path.stem for path in paths]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in paths]


def _about(run: Run) -> str:
    """The machine and the date, as the pictures of a run have them."""
    cpus = f"{run.machine.get('usable_cpus', '?')} of {run.machine.get('cpus', '?')} usable"
    return f"{run.machine.get('processor', 'unknown')}, {cpus}, {run.started[:10]}"
