"""A picture of the rows: time by size, and below it how many times as long as GoCCL each library takes."""

from __future__ import annotations

import importlib
import importlib.util
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


def write_plot(rows: Sequence[Row], path: Path) -> None:
    """Draws the rows that have a size into a file whose ending names the format."""
    figure_module: Any = importlib.import_module("matplotlib.figure")
    shown = [row for row in rows if row.bytes and row.placement != MIXED]
    collectives = list(dict.fromkeys(row.collective for row in shown))
    ours = next((row.label for row in shown if row.library in OURS), "")
    columns = max(1, len(collectives))
    figure = figure_module.Figure(figsize=(5.5 * columns, 8), layout="constrained")
    axes = figure.subplots(2, columns, squeeze=False, sharex="col")
    labels = list(dict.fromkeys(row.label for row in shown))
    for column, collective in enumerate(collectives):
        times, ratios = axes[0][column], axes[1][column]
        for index, label in enumerate(labels):
            for placement, dashes in _DASHES.items():
                line = [
                    row
                    for row in shown
                    if (row.collective, row.label, row.placement) == (collective, label, placement)
                ]
                if not line:
                    continue
                line.sort(key=lambda row: row.bytes)
                style = {"color": f"C{index}", "linestyle": dashes, "marker": "o", "markersize": 3}
                name = label if placement == "unknown" else f"{label} {placement}"
                times.plot([row.bytes for row in line], [row.median_us for row in line], label=name, **style)
                compared = [(row.bytes, ratio(row, shown, ours)) for row in line]
                points = [(size, value) for size, value in compared if value is not None]
                if points:
                    ratios.plot([size for size, _ in points], [value for _, value in points], **style)
        times.set(xscale="log", yscale="log", ylabel="median time, µs")
        times.set_title(f"{collective}, {shown[0].ranks} ranks, {shown[0].dtype}")
        times.grid(True, alpha=0.3)
        times.legend(fontsize="small")
        ratios.set(xscale="log", yscale="log", xlabel="bytes", ylabel=f"time / {ours or '-'}")
        ratios.axhline(1.0, color="black", linewidth=0.8)
        ratios.grid(True, alpha=0.3)
    figure.savefig(path, dpi=120)
