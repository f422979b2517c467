"""The rows as Markdown: the machine, who was ahead how often, then a table for each collective."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence

import goccl
from goccl._ranks.collectives import ROOT
from goccl._ranks.libraries import MAPPED

from .libraries import GOCCL
from .machine import command
from .machine import facts as facts_of_machine
from .placement import FAR_FROM_NS, MIXED, NEAR
from .report import OURS, Row, call_text, compared_by, start_figures

_NOTHING = "-"
_LEGEND = f"""\
Medians in µs. *bytes*: the larger buffer of a rank; the root is rank {ROOT}. *placed*: whether the
CPUs were near each other (less than {FAR_FROM_NS:g} ns for the round trip of a cache line) or far
in all blocks of the row; blocks in which that changed are left out. Only rows of the same placement
are compared.

A column with ÷ tells how many times as long as GoCCL the other one took. Above 1 GoCCL is faster;
**below 1 it loses, and the cell is bold and names the winner**. `{GOCCL["torch"]}` is called
through torch.distributed, and is compared with Gloo, which is called so too. `{GOCCL["c"]}` is
called from C, and is compared with the fastest of all peers (*best*) or, where it is held to TCP,
with Gloo, for the others use shared memory. Where one of them was not met at this placement, there
is no ratio.

*init*: from when all processes of a library run, and know of each other, to when all are in its
group. *first call*: of the collective with the first size; of the first collective it makes the
connections. *PSS*: the memory of a rank after it, in the mean, in which what processes share is
divided among them. Ranks of an MPI share less of Python's own memory than others, which are
forked."""

_LEGEND_BESIDE = """\
*by*: whether a line holds and compares medians or means. Beside busy programs they may name
different winners."""


def machine(words: str = "bench") -> dict[str, str]:
    """What figures depend on, by name. To be called before the run, for it tells the load and the
    date. words: the names of the command that measures, below goccl."""
    facts = facts_of_machine()
    return {
        "Processor": str(facts["processor"]),
        "CPUs": f"{facts['usable_cpus']} of {facts['cpus']} usable",
        "Kernel": str(facts["kernel"]),
        "TCP congestion control of the system": str(facts["tcp_congestion_control"]),
        "Python": str(facts["python"]),
        "torch": str(facts["torch"]),
        "goccl": goccl.__version__,
        "Load before": f"{facts['load']:.2f}",
        "Date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "Command": f"`{shlex.join(command(words))}`",
    }


def document(
    rows: Sequence[Row],
    facts: Mapping[str, str],
    versions: Mapping[str, str],
    failures: Iterable[str],
) -> str:
    """The whole text. versions: of the libraries by label. failures: what went wrong with one."""
    parts = ["## Result"]
    parts.append(table(["", ""], facts.items(), "---"))
    parts.append(table(["library", "version"], versions.items(), "---"))
    checked = [row.wrong for row in rows if row.wrong is not None]
    wrong = f"**{sum(checked)}**" if any(checked) else "no"
    parts.append(
        f"Every result was checked: {wrong} elements were wrong."
        if checked
        else "Results were not checked."
    )
    parts += [f"**Failed:** {failure.splitlines()[0]}" for failure in failures]
    parts += [_LEGEND, *([_LEGEND_BESIDE] if rows[0].beside else []), _summary(rows)]
    for call, ranks in dict.fromkeys((row.call, row.ranks) for row in rows):
        its = [row for row in rows if (row.call, row.ranks) == (call, ranks)]
        title = f"{its[0].collective}, {ranks} ranks, {its[0].dtype}{call_text(its[0], rows)}"
        parts += [f"### {title}", _comparison(its), _starts(its)]
    return "\n\n".join(parts) + "\n"


def best_rival(ours: Row, rows: Iterable[Row], statistic: str) -> Row | None:
    """The fastest of those that `ours` is compared with, or None where not all were met at its
    placement."""
    rivals = [row for row in rows if row.case == ours.case and row.library not in OURS]
    if not _meets_all(ours.label):
        rivals = [row for row in rivals if row.library == "gloo"]
    here = [row for row in rivals if row.placement == ours.placement]
    if len(here) < len({row.label for row in rivals}):
        return None
    return min(here, key=lambda row: row.us(statistic), default=None)


def _meets_all(label: str) -> bool:
    return label in (f"{GOCCL['c']}/shm", f"{GOCCL['c']}/{MAPPED}")


def _summary(rows: Sequence[Row]) -> str:
    lines = []
    for label, by in itertools.product(_labels(rows, ours=True), compared_by(rows[0].beside)):
        pairs = [
            (row.us(by), rival.us(by))
            for row in rows
            if row.label == label
            and row.placement != MIXED
            and (rival := best_rival(row, rows, by))
        ]
        ahead = sum(mine < other for mine, other in pairs)
        counts = [str(len(pairs)), str(ahead), str(len(pairs) - ahead)]
        lines.append([f"`{label}`", *_column(rows, by), *counts])
    return table(["", *_column(rows, "by"), "comparisons", "faster", "not faster"], lines)


def _column(rows: Sequence[Row], cell: str) -> list[str]:
    """A cell of the column that tells the statistic, where there is more than one."""
    return [cell] if rows[0].beside else []


def _comparison(rows: Sequence[Row]) -> str:
    ours, peers = _labels(rows, ours=True), _labels(rows, ours=False)
    head = ["bytes", "placed", *_column(rows, "by")]
    head += [*ours, *(label.split("/")[0] for label in peers)]
    head += [f"{'*best*' if _meets_all(label) else 'gloo'} ÷ {label}" for label in ours]
    lines = []
    points = sorted({(row.bytes, row.placement) for row in rows}, key=_near_first)
    for (nbytes, placement), by in itertools.product(points, compared_by(rows[0].beside)):
        if placement == MIXED:
            continue
        here = {row.label: row for row in rows if (row.bytes, row.placement) == (nbytes, placement)}
        times = [
            f"{here[label].us(by):.2f}" if label in here else _NOTHING for label in ours + peers
        ]
        ratios = [_ratio(here[label], rows, by) if label in here else _NOTHING for label in ours]
        lines.append([str(nbytes), placement, *_column(rows, by), *times, *ratios])
    return table(head, lines)


def _starts(rows: Sequence[Row]) -> str:
    """How each library started."""
    by_label = {row.label: row for row in rows}
    lines = [[f"`{label}`", *start_figures(row)] for label, row in by_label.items()]
    return table(["", "init, s", "first call, ms", "PSS a rank, MB"], lines)


def _near_first(line: tuple[int, str]) -> tuple[int, bool]:
    return line[0], line[1] != NEAR


def _ratio(ours: Row, rows: Iterable[Row], statistic: str) -> str:
    rival = best_rival(ours, rows, statistic)
    if rival is None or not ours.us(statistic):
        return _NOTHING
    text = f"{rival.us(statistic) / ours.us(statistic):.2f}"
    if rival.us(statistic) <= ours.us(statistic):
        return f"**{text} ({rival.library} wins)**"
    return f"{text} ({rival.library})" if _meets_all(ours.label) else text


def _labels(rows: Iterable[Row], ours: bool) -> list[str]:
    return list(dict.fromkeys(row.label for row in rows if (row.library in OURS) == ours))


def table(head: Sequence[str], lines: Iterable[Sequence[str]], mark: str = "---:") -> str:
    """A table. mark: of each column's alignment."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, [mark] * len(head), *lines])
