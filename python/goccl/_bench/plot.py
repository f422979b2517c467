"""A picture of the rows: time by size or by the number of ranks, and beside it how many times as
long as GoCCL each library takes."""

from __future__ import annotations

import importlib
import itertools
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goccl._command import missing

from . import words
from .placement import MIXED
from .report import Row, base_of, ratio, size_text

_DASHES = {"near": "-", "far": "--", "unknown": "-"}


def formats() -> list[str]:
    """The endings of files that can be drawn; none where matplotlib is missing."""
    if missing("numpy", "NumPy") or missing("matplotlib", "matplotlib"):
        return []
    figure_module: Any = importlib.import_module("matplotlib.figure")
    return sorted(f".{name}" for name in figure_module.Figure().canvas.get_supported_filetypes())


def write_plot(rows: Sequence[Row], path: Path, about: str = "") -> None:
    """Draws the rows into a file whose ending names the format: over sizes, as far as they have
    one, or over the number of ranks where there are more of these than sizes.

    about: the machine and the date, which stand above.
    """
    figure_module: Any = importlib.import_module("matplotlib.figure")
    grid = _grid([row for row in rows if row.placement != MIXED])
    height, width = len(grid), max((len(panels) for panels in grid), default=1)
    figure = figure_module.Figure(figsize=(9 * width, 4 * height + 1), layout="constrained")
    axes = figure.subplots(max(1, height), 2 * width, squeeze=False)
    shown = [row for panels in grid for panel in panels for row in panel.rows]
    beside = f"measured {shown[0].beside}" if shown and shown[0].beside else ""
    if title := ". ".join(filter(None, [about, beside])):
        figure.suptitle(title, fontsize="medium")
    labels = list(dict.fromkeys(row.label for row in shown))
    places = {row.placement for row in shown}
    lines: dict[str, Any] = {}
    for place in itertools.product(range(height), range(width)):
        times, ratios = axes[place[0]][2 * place[1] : 2 * place[1] + 2]
        _draw(grid[place[0]][place[1]], times, ratios, labels, lines, places)
    if lines:
        _add_legend(figure, lines)
    # Text as text makes an SVG half as large, and readable by programs.
    with importlib.import_module("matplotlib").rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=100)


@dataclass(frozen=True)
class _Panel:
    """Curves, and the field of Row that they go over. ticks: its values, with their names."""

    title: str
    over: str
    ticks: dict[int, str]
    rows: list[Row]


def _grid(rows: list[Row]) -> list[list[_Panel]]:
    """The panels of a figure, line by line."""
    sizes: dict[tuple[str, int], set[int]] = {}  # by collective and number of ranks
    for row in rows:
        sizes.setdefault((row.collective, row.ranks), set()).add(row.bytes)
    collectives = list(dict.fromkeys(row.collective for row in rows))
    ranks = list(dict.fromkeys(row.ranks for row in rows))
    if len(ranks) > max(map(len, sizes.values()), default=0):
        return [
            [_over_ranks(collective, [row for row in rows if row.collective == collective], place)]
            for collective in collectives
            for place in range(max(len(s) for (name, _), s in sizes.items() if name == collective))
        ]
    rows = [row for row in rows if row.bytes]
    names = {nbytes: size_text(nbytes) for nbytes in sorted({row.bytes for row in rows})}
    return [
        [
            _Panel(
                f"{collective}, {number} ranks, {rows[0].dtype}",
                "bytes",
                names,
                [row for row in rows if (row.collective, row.ranks) == (collective, number)],
            )
            for number in ranks
        ]
        for collective in dict.fromkeys(row.collective for row in rows)
    ]


def _over_ranks(collective: str, rows: list[Row], place: int) -> _Panel:
    """The panel of the size that is in this place of all, from the smallest on; for each number of
    ranks with the rows of the placement that most libraries have met, so that curves have no gaps.

    Sizes are rounded up to blocks for all ranks: they may differ, and where there are many ranks
    small ones may be the same, so that there are fewer.
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
        f"{collective}{size if most else ''}, {rows[0].dtype}",
        "ranks",
        {ranks: str(ranks) for ranks in by_ranks},
        [
            row
            for ranks, nbytes in here.items()
            for row in _most_met([row for row in rows if (row.ranks, row.bytes) == (ranks, nbytes)])
        ],
    )


def _most_met(rows: list[Row]) -> list[Row]:
    """Those of the placement that most have."""
    most = statistics.mode(row.placement for row in rows)
    return [row for row in rows if row.placement == most]


def _draw(
    panel: _Panel,
    times: Any,
    ratios: Any,
    labels: Sequence[str],
    lines: dict[str, Any],
    places: Collection[str],
) -> None:
    """Draws the curves; lines: one of each name, for the legend; places: all placements that are
    drawn, which are named where they differ."""
    colours = words.colours(labels)

    def x(row: Row) -> int:
        value: int = getattr(row, panel.over)
        return value

    # Over ranks, each number of which has one placement, a curve goes on from one to another.
    dashes = _DASHES if panel.over == "bytes" else {"": "-"}
    for label, placement in itertools.product(labels, dashes):
        line = [
            row for row in panel.rows if row.label == label and placement in ("", row.placement)
        ]
        if not line:
            continue
        line.sort(key=x)
        style = {
            "color": colours[label],
            "linestyle": dashes[placement],
            "marker": "o",
            "markersize": 3,
        }
        where = words.place(placement) if len(places) > 1 else ""
        name = words.library(label) + (f" ({where})" if where else "")
        (lines[name],) = times.plot(
            [x(row) for row in line], [row.median_us for row in line], **style
        )
        base = base_of(line[0], labels)
        compared = [(x(row), ratio(row, panel.rows, base)) for row in line]
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
