"""A picture of the rows: time by size, and beside it how many times as long as GoCCL each library
takes."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .libraries import missing
from .placement import MIXED
from .report import Row, base_of, ratio

_DASHES = {"near": "-", "far": "--", "unknown": "-"}


def formats() -> list[str]:
    """The endings of files that can be drawn; none where matplotlib is missing."""
    if missing("numpy", "NumPy") or missing("matplotlib", "matplotlib"):
        return []
    figure_module: Any = importlib.import_module("matplotlib.figure")
    return sorted(f".{name}" for name in figure_module.Figure().canvas.get_supported_filetypes())


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Draws the rows that have a size into a file whose ending names the format."""
    figure_module: Any = importlib.import_module("matplotlib.figure")
    shown = [row for row in rows if row.bytes and row.placement != MIXED]
    collectives = list(dict.fromkeys(row.collective for row in shown))
    groups = list(dict.fromkeys(row.ranks for row in shown))
    labels = list(dict.fromkeys(row.label for row in shown))
    sizes = sorted({row.bytes for row in shown})
    extent = 9 * max(1, len(groups)), 4 * max(1, len(collectives)) + 1
    figure = figure_module.Figure(figsize=extent, layout="constrained")
    axes = figure.subplots(max(1, len(collectives)), 2 * max(1, len(groups)), squeeze=False)
    if shown and shown[0].beside:
        figure.suptitle(f"measured {shown[0].beside}")
    lines: dict[str, Any] = {}
    for place in itertools.product(range(len(collectives)), range(len(groups))):
        collective, ranks = collectives[place[0]], groups[place[1]]
        times, ratios = axes[place[0]][2 * place[1] : 2 * place[1] + 2]
        for (index, label), placement in itertools.product(enumerate(labels), _DASHES):
            key = collective, ranks, label, placement
            line = [
                row for row in shown if (row.collective, row.ranks, row.label, row.placement) == key
            ]
            if not line:
                continue
            line.sort(key=lambda row: row.bytes)
            style = {
                "color": f"C{index}",
                "linestyle": _DASHES[placement],
                "marker": "o",
                "markersize": 3,
            }
            name = label if placement == "unknown" else f"{label} {placement}"
            (lines[name],) = times.plot(
                [row.bytes for row in line], [row.median_us for row in line], **style
            )
            base = base_of(line[0], labels)
            compared = [(row.bytes, ratio(row, shown, base)) for row in line]
            points = [(size, value) for size, value in compared if value is not None]
            if points:
                ratios.plot([size for size, _ in points], [value for _, value in points], **style)
        times.set_title(f"{collective}, {ranks} ranks, {shown[0].dtype}")
        times.set_ylabel("median time, µs")
        ratios.set_ylabel("time / GoCCL, called the same way")
        ratios.axhline(1.0, color="black", linewidth=0.8)
        for axis in (times, ratios):
            axis.set(xscale="log", yscale="log", xlabel="bytes")
            axis.set_xticks(sizes, [_name(nbytes) for nbytes in sizes], fontsize="small")
            axis.minorticks_off()
            axis.grid(True, alpha=0.3)
    if lines:
        _add_legend(figure, lines)
    # Text as text makes an SVG half as large, and readable by programs.
    with importlib.import_module("matplotlib").rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=100)


def _name(nbytes: int) -> str:
    """As --sizes writes it: 4, 64K, 16M."""
    unit = next(unit for unit in (30, 20, 10, 0) if nbytes % (1 << unit) == 0)
    return f"{nbytes >> unit}{'KMG'[unit // 10 - 1] if unit else ''}"


def _add_legend(figure: Any, lines: Mapping[str, Any]) -> None:
    """Below the axes, in as many columns as are sure to fit."""
    place = {"handles": list(lines.values()), "labels": list(lines), "loc": "outside lower center"}
    one_column = figure.legend(**place)
    figure.draw_without_rendering()
    columns = int(figure.bbox.width / one_column.get_window_extent().width)
    one_column.remove()
    figure.legend(**place, ncols=max(1, min(columns, len(lines))))
