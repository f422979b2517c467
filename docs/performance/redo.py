"""Turns a comparison, as `goccl bench --markdown` writes it, into tables and charts of this folder.

goccl bench --suite host
python docs/performance/redo.py host.md

A name after it is what those of one collective are called, with a table of how libraries started:

goccl bench allreduce --ranks 2,4,8 --sizes 4 --markdown many.md
python docs/performance/redo.py many.md many-ranks

Without arguments it draws all charts again from the tables that are here:

python docs/performance/redo.py

What `goccl bench-recovery --markdown` writes becomes `recovery.csv`. `make pages` has the
pages show the new tables.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from goccl._bench.plot import write_plot
from goccl._bench.report import MEAN, Row

HERE = Path(__file__).parent
FACT = re.compile(r"^\| (Processor|CPUs|Date) \| (.*) \|$", re.M)
# Pages that have the machine and the date of a table; those of all others are in the first.
HOST_PAGE = "collectives.md"
PAGES = {"many-ranks": "many-ranks.md"}
# Of the table of the README, which has no page: see index.md.
README = "AMD EPYC (Zen 5), 2 CPUs, 2026-11-26"
BODY = r"\| (.*) \|\n.*\n((?:\|.*\n)+)"
TABLE = re.compile(rf"^### (\w+), (\d+) ranks, (\w+)\n\n{BODY}", re.M)
START = re.compile(rf"^### \w+, (\d+) ranks, \w+\n\n(?:\|.*\n)+\n\|  {BODY}", re.M)
# Peers take the transport that they find best; Gloo has but one.
OTHERS = {"gloo": "tcp", "openmpi": "auto", "mpich": "auto", "impi": "auto"}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def rows_of(collective: str, dtype: str, line: dict[str, str]) -> list[Row]:
    """A row for each library that one line of a table has a time of."""
    found = []
    for name, text in line.items():
        library, _, transport = name.partition("/")
        transport = transport or OTHERS.get(library, "")
        if not transport or "÷" in name or text == "-":
            continue
        time = float(text)
        found.append(
            Row(
                library=library,
                collective=collective,
                transport=transport,
                ranks=int(line["ranks"]),
                dtype=dtype,
                bytes=int(line["bytes"]),
                iterations=0,
                placement=line["placed"],
                median_us=time,
                mean_us=time,
                p99_us=time,
                algbw_GBps=0,
                busbw_GBps=0,
                wrong=0,
            )
        )
    return found


def write_table(name: str, lines: list[dict[str, str]]) -> None:
    with (HERE / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        names = dict.fromkeys(name for line in lines for name in line)
        writer = csv.DictWriter(file, list(names), restval="-", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def lines_of(ranks: str, names: list[str], body: str) -> list[dict[str, str]]:
    names = ["ranks", *names]
    return [dict(zip(names, [ranks, *cells(line)], strict=True)) for line in body.splitlines()]


def about_of(text: str) -> str:
    """The machine and the date, as a page tells them."""
    facts = dict(FACT.findall(text))
    return ", ".join(facts[name] for name in ("Processor", "CPUs", "Date") if name in facts)


def redraw() -> None:
    """Draws each chart that is here from its table."""
    for picture in sorted(HERE.glob("*.svg")):
        name = picture.stem
        collective = "allreduce" if name in ("readme", *PAGES) else name
        with (HERE / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            lines = [{"ranks": "2", **line} for line in csv.DictReader(file)]
        rows = [row for line in lines for row in rows_of(collective, "float32", line)]
        page = HERE / PAGES.get(name, HOST_PAGE)
        about = README if name == "readme" else about_of(page.read_text(encoding="utf-8"))
        write_plot({"": rows}, picture, about)


def main(comparison: Path, name: str = "") -> None:
    text = comparison.read_text(encoding="utf-8")
    tables: dict[str, list[dict[str, str]]] = {}
    dtypes: dict[str, str] = {}
    for collective, ranks, dtype, head, body in TABLE.findall(text):
        tables.setdefault(collective, []).extend(lines_of(ranks, cells(head), body))
        dtypes[collective] = dtype
    if name and len(tables) != 1:
        sys.exit(f"{name} is a name for one collective, and {comparison} has {len(tables)}")
    for collective, lines in tables.items():
        write_table(name or collective, lines)
        medians = [line for line in lines if line.get("by") != MEAN]
        rows = [row for line in medians for row in rows_of(collective, dtypes[collective], line)]
        if any(row.bytes for row in rows):
            write_plot({"": rows}, HERE / f"{name or collective}.svg", about_of(text))
    if name:
        starts = [
            {key: text.strip("`") for key, text in line.items()}
            for ranks, head, body in START.findall(text)
            for line in lines_of(ranks, ["library", *cells(head)], body)
        ]
        write_table(f"{name}-start", starts)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]), *sys.argv[2:])
    else:
        redraw()
