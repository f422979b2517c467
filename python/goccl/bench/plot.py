"""A picture of the rows: time by size, and beside it how many times as long as GoCCL each library takes."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .placement import MIXED
from .report import OURS, Row, ratio

_DASHES = {"near": "-", "far": "--", "unknown": "-"}


def missing() -> str:
    """Why nothing can be drawn, or ""."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed; to bring it: python -m pip install matplotlib"
    return ""


def formats() -> list[str]:
    """The endings of files that can be drawn; none where missing() says why."""
    if missing():
        return []
    figure_module: Any = importlib.import_module("matplotlib.figure")
    return sorted(f".{name}" for name in figure_module.Figure().canvas.get_supported_filetypes())


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Draws the rows that have a size into a file whose ending names the format."""
    figure_module: Any = importlib.import_module("matplotlib.figure")
    shown = [row for row in rows if row.bytes and row.placement != MIXED]
    collectives = list(dict.fromkeys(row.collective for row in shown))
    groups = list(dict.fromkeys(row.ranks for row in shown))
    ours = next((row.label for row in shown if row.library in OURS), "")
    labels = list(dict.fromkeys(row.label for row in shown))
    size = 9 * max(1, len(groups)), 4 * max(1, len(collectives)) + 1
    figure = figure_module.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(max(1, len(collectives)), 2 * max(1, len(groups)), squeeze=False)
    if shown and shown[0].beside:
        figure.suptitle(f"measured {shown[0].beside}")
    lines: dict[str, Any] = {}
    for place in itertools.product(range(len(collectives)), range(len(groups))):
        collective, ranks = collectives[place[0]], groups[place[1]]
        times, ratios = axes[place[0]][2 * place[1] : 2 * place[1] + 2]
        for (index, label), placement in itertools.product(enumerate(labels), _DASHES):
            key = collective, ranks, label, placement
            line = [row for row in shown if (row.collective, row.ranks, row.label, row.placement) == key]
            if not line:
                continue
            line.sort(key=lambda row: row.bytes)
            style = {"color": f"C{index}", "linestyle": _DASHES[placement], "marker": "o", "markersize": 3}
            name = label if placement == "unknown" else f"{label} {placement}"
            (lines[name],) = times.plot([row.bytes for row in line], [row.median_us for row in line], **style)
            compared = [(row.bytes, ratio(row, shown, ours)) for row in line]
            points = [(size, value) for size, value in compared if value is not None]
            if points:
                ratios.plot([size for size, _ in points], [value for _, value in points], **style)
        times.set(xscale="log", yscale="log", xlabel="bytes", ylabel="median time, µs")
        times.set_title(f"{collective}, {ranks} ranks, {shown[0].dtype}")
        times.grid(True, alpha=0.3)
        ratios.set(xscale="log", yscale="log", xlabel="bytes", ylabel=f"time / {ours or '-'}")
        ratios.axhline(1.0, color="black", linewidth=0.8)
        ratios.grid(True, alpha=0.3)
    if lines:
        figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=100)
