"""Turns a comparison, as `goccl bench --suite host` writes it, into the tables and charts of this
folder.

goccl bench --suite host
python docs/performance/redo.py host.md
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from goccl.bench.plot import write_plot
from goccl.bench.report import Row

HERE = Path(__file__).parent
TABLE = re.compile(r"^### (\w+), (\d+) ranks, (\w+)\n\n\| (.*) \|\n.*\n((?:\|.*\n)+)", re.M)
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


def main(comparison: Path) -> None:
    tables: dict[str, list[dict[str, str]]] = {}
    dtypes: dict[str, str] = {}
    for collective, ranks, dtype, head, body in TABLE.findall(
        comparison.read_text(encoding="utf-8")
    ):
        names = ["ranks", *cells(head)]
        lines = [dict(zip(names, [ranks, *cells(line)], strict=True)) for line in body.splitlines()]
        tables.setdefault(collective, []).extend(lines)
        dtypes[collective] = dtype
    for collective, lines in tables.items():
        with (HERE / f"{collective}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
        rows = [row for line in lines for row in rows_of(collective, dtypes[collective], line)]
        if any(row.bytes for row in rows):
            write_plot(rows, HERE / f"{collective}.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
