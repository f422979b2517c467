"""What came out of a visit: text for people, JSON, and a picture."""

from __future__ import annotations

import importlib
import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from goccl._command import printable

from .judge import LARGE, MEET, SMALL, Finding, Job, Joint, clocks

COLUMNS = 100
_MOST_RANKS = 14  # whose matrix has so many columns


def text(job: Job, findings: Sequence[Finding]) -> str:
    """Returns the whole report, at most 100 columns wide."""
    hosts = len({facts.where for facts in job.facts.values()})
    versions = ", ".join(f"{name} {version}" for name, version in job.facts[0].versions.items())
    lines = [f"{job.size} ranks, {hosts} host{'' if hosts == 1 else 's'}: {versions}", ""]
    lines += _table(
        ["rank", "host", "pid", "CPUs", "load", "interface", "clock"],
        [
            [
                str(rank),
                facts.host,
                str(facts.pid),
                str(facts.cpus),
                f"{facts.load:.1f}",
                job.interfaces.get(rank, "-"),
                f"{clocks(job)[rank] * 1e3:+.1f} ms" if rank in clocks(job) else "-",
            ]
            for rank, facts in sorted(job.facts.items())
        ],
    )
    if job.size <= _MOST_RANKS:
        lines += ["", "transport", *_matrix(job, MEET, lambda joint, _: joint.transport)]
        lines += [
            "",
            "latency of an exchange of 4 bytes, us",
            *_matrix(job, SMALL, lambda j, _: f"{j.latency_us:.1f}"),
        ]
        lines += [
            "",
            "bandwidth from the rank of the row to that of the column, GB/s",
            *_matrix(job, LARGE, lambda j, up: f"{j.up_GBps if up else j.down_GBps:.2f}"),
        ]
    else:
        lines += ["", f"Matrices of more than {_MOST_RANKS} ranks: --json FILE or --plot FILE."]
    lines.append("")
    for finding in findings:
        lines += _folded("ODD    ", finding.text)
        lines += _folded("       ", f"Check {finding.check}.")
    if not findings:
        lines.append("Nothing is odd.")
    busy = dict.fromkeys(facts.host for facts in job.facts.values() if facts.busy)
    if busy:
        lines += _folded(
            "", f"Other programs kept CPUs busy on {', '.join(busy)}: an idle host may do better."
        )
    return printable("\n".join(lines))


def write_json(job: Job, findings: Sequence[Finding], path: Path) -> None:
    """Writes all that is known as one JSON object."""
    value = {
        "size": job.size,
        "ranks": {rank: asdict(facts) for rank, facts in sorted(job.facts.items())},
        "interfaces": job.interfaces,
        "lost": job.lost,
        "pairs": [{"ranks": pair, **asdict(joint)} for pair, joint in sorted(job.pairs.items())],
        "findings": [asdict(finding) for finding in findings],
    }
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_plot(job: Job, path: Path) -> None:
    """Draws latency and bandwidth as heat maps into a file whose ending names the format."""
    figure_module: Any = importlib.import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(13, 6), layout="constrained")
    axes = figure.subplots(1, 2)
    nothing = float("nan")
    latency = [[nothing] * job.size for _ in range(job.size)]
    bandwidth = [[nothing] * job.size for _ in range(job.size)]
    for (a, b), joint in job.pairs.items():
        if joint.did(SMALL):
            latency[a][b] = latency[b][a] = joint.latency_us
        if joint.did(LARGE):
            bandwidth[a][b], bandwidth[b][a] = joint.up_GBps, joint.down_GBps
    for axis, values, title in (
        (axes[0], latency, "latency of 4 bytes, µs"),
        (axes[1], bandwidth, "bandwidth from row to column, GB/s"),
    ):
        image = axis.imshow(values)
        ticks = range(0, job.size, 1 + job.size // 32)
        axis.set(title=title, xlabel="rank", ylabel="rank", xticks=ticks, yticks=ticks)
        figure.colorbar(image, ax=axis)
    figure.savefig(path, dpi=100)


def _matrix(job: Job, step: str, cell: Callable[[Joint, bool], str]) -> list[str]:
    ranks = range(job.size)
    rows = []
    for a in ranks:
        row = [str(a)]
        for b in ranks:
            joint = job.pairs.get((min(a, b), max(a, b)))
            row.append("-" if joint is None else cell(joint, a < b) if joint.did(step) else "FAILS")
        rows.append(row)
    return _table(["", *map(str, ranks)], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    all_rows = [head, *rows]
    widths = [max(len(row[column]) for row in all_rows) for column in range(len(head))]
    return ["  ".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)) for row in all_rows]


def _folded(start: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        COLUMNS,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
    )
