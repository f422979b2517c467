"""``goccl bench-recovery``: how long a group takes to go on after a rank was killed, and to let
another one in, beside other libraries, in one run.

All ranks sum, over and over. One of them, another one each time, is killed at some moment, in a
sum or between two. A process that is started then joins in its place. Times are of one clock of the
host, CLOCK_MONOTONIC, and a step has ended when the last rank has ended it:

known
    from the kill to when the sum has failed on all survivors.
resumed
    from there to the end of the first sum among the survivors.
total
    both; of ``goccl-survivors``, whose sums do not fail, from the kill to the end of the first sum
    without the dead rank's value.
joined
    from when the newcomer, which has imported what it needs, begins to join, to the end of the
    first sum with it.

All elements of these sums are checked. Libraries take turns, in one group each.

``gloo`` destroys the group and makes it anew, over a store that no member holds.
``gloo-reconfigure`` calls torch's reconfigure, and hands handles over by such a store. ``torchft``
is its ProcessGroupGloo; ``horovod`` shuts down and begins anew, as in its elastic mode. These four
are told who is left and who joins, at once and for nothing, which in a job takes an agent, a
Lighthouse, or a driver. GoCCL and ``ulfm`` find it out. ``ulfm``
is Open MPI's MPI_Comm_revoke(), MPI_Comm_shrink() and MPI_Comm_spawn(), and a newcomer begins with
MPI_Init().
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

from goccl._command import (
    GOCCL_TRANSPORTS,
    Progress,
    add_examples,
    missing,
    output_file,
    parse_size,
    unwritable,
)
from goccl._ranks.libraries import Library, Unavailable, label_of
from goccl._ranks.processes import GroupFailure

from . import markdown
from .crew import Crew
from .libraries import ELASTIC_PEERS, GOCCL, SURVIVORS, elastic_library
from .options import (
    choices_of,
    ended_by_signals,
    whole_number,
    whole_numbers,
)

STEPS = ("known", "resumed", "total", "joined")
"""What is measured, see above."""
_MOST_RANKS = 64
_ITEMSIZE = 4
_LONGEST_DELAY = 0.02  # seconds of summing before a rank is killed
_FAILURES = 2  # of a library, after which it is left out
_INTERRUPTED = 130


@dataclass(frozen=True)
class Row:
    """How long one step took with one library; the fields are the keys of the JSON."""

    library: str
    transport: str
    ranks: int
    bytes: int
    step: str
    repeats: int
    median_ms: float
    max_ms: float

    @property
    def label(self) -> str:
        """Library and transport."""
        return label_of(self.library, self.transport, "")


@dataclass
class _Entrant:
    library: Library
    crew: Crew | None = None
    times: dict[str, list[float]] = field(default_factory=lambda: {step: [] for step in STEPS})
    failures: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``goccl bench-recovery``."""
    add_examples(
        parser,
        ["goccl bench-recovery", "goccl bench-recovery --ranks 3,8 --json recovery.json"],
        {0: "all went well", 1: "something failed", 2: "wrong arguments", 130: "interrupted"},
    )
    add = parser.add_argument
    add(
        "--ranks",
        type=whole_numbers(3, _MOST_RANKS),
        default=[3],
        help=f"3 to {_MOST_RANKS}; several with commas between (default: 3)",
    )
    add(
        "--peers",
        type=choices_of(ELASTIC_PEERS),
        default=["gloo"],
        help=f"libraries to compare with, of {','.join(ELASTIC_PEERS)} (default: gloo)",
    )
    add(
        "--transport",
        type=choices_of(GOCCL_TRANSPORTS),
        default=["shm", "tcp"],
        help="transports of GoCCL (default: shm,tcp)",
    )
    add(
        "--size",
        type=parse_size,
        default=parse_size("64K"),
        help="bytes that are summed, as 4,64K,1M (default: 64K)",
    )
    add(
        "--repeats",
        type=whole_number(1, 10**4),
        default=10,
        help="how often a rank is killed and replaced, with each library (default 10)",
    )
    add(
        "--timeout",
        type=whole_number(1, 3600),
        default=20,
        help="seconds after which an operation times out (default 20)",
    )
    add("--json", type=output_file, metavar="FILE", help="also write the rows as JSON")
    add(
        "--markdown",
        type=output_file,
        metavar="FILE",
        help="also write the machine and the tables as Markdown",
    )


def main(args: argparse.Namespace) -> int:
    """Runs the command. 0: all went well; 1: something failed; 130: interrupted."""
    progress = Progress(sys.stderr)
    if problem := missing("numpy", "NumPy"):
        progress.say(f"goccl bench-recovery: {problem}")
        return 1
    if problem := unwritable(args.json, args.markdown):
        progress.say(f"goccl bench-recovery: {problem}")
        return 1
    facts = markdown.machine("bench-recovery")
    trials: list[_Trial] = []
    status = 0
    try:
        with ended_by_signals():
            for ranks in args.ranks:
                trials.append(_Trial(args, ranks, progress))
                with trials[-1] as trial:
                    trial.run()
                print(table(trial.rows()), flush=True)
    except KeyboardInterrupt:
        status = _INTERRUPTED
        progress.say("goccl bench-recovery: interrupted")
    rows = [row for trial in trials for row in trial.rows()]
    versions = {label: text for trial in trials for label, text in trial.versions.items()}
    failures = [failure for trial in trials for failure in trial.failures]
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(document(rows, facts, versions, failures), encoding="utf-8")
    return status or int(bool(failures))


class _Trial:
    """All libraries with one number of ranks. Use as a context manager."""

    def __init__(self, args: argparse.Namespace, ranks: int, progress: Progress) -> None:
        self._args = args
        self._ranks = ranks
        self._progress = progress
        self._elements = -(-args.size // _ITEMSIZE)
        self._entrants: list[_Entrant] = []
        self.versions: dict[str, str] = {}
        self.failures: list[str] = []
        ours = [(name, via) for name in (GOCCL["torch"], SURVIVORS) for via in args.transport]
        for name, transport in [*ours, *((name, "") for name in args.peers)]:
            self._enter(name, transport)

    def __enter__(self) -> _Trial:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for entrant in self._entrants:
                if entrant.crew:
                    stack.callback(entrant.crew.close)

    def run(self) -> None:
        """Has each library lose and gain a rank as often as is asked for, in turn."""
        for repeat in range(self._args.repeats):
            turn = repeat % max(1, len(self._entrants))
            for entrant in self._entrants[turn:] + self._entrants[:turn]:
                self._progress.step(
                    f"{self._ranks} ranks: {repeat + 1} of {self._args.repeats}, "
                    f"{entrant.library.label}"
                )
                self._repeat(entrant, repeat)

    def rows(self) -> list[Row]:
        """A row for each library and step that was measured."""
        return [
            Row(
                library=entrant.library.name,
                transport=entrant.library.transport,
                ranks=self._ranks,
                bytes=self._elements * _ITEMSIZE,
                step=step,
                repeats=len(times),
                median_ms=statistics.median(times),
                max_ms=max(times),
            )
            for entrant in self._entrants
            for step, times in entrant.times.items()
            if times
        ]

    def _enter(self, name: str, transport: str) -> None:
        try:
            self._entrants.append(_Entrant(elastic_library(name, transport, self._ranks)))
        except Unavailable as error:
            self._skip(Library(name, transport), error)

    def _skip(self, library: Library, error: Unavailable) -> None:
        text = f"{library.label} is skipped: {error}"
        self._progress.say(text)
        if library.name not in ELASTIC_PEERS:  # GoCCL must be here
            self.failures.append(text)

    def _repeat(self, entrant: _Entrant, repeat: int) -> None:
        label = entrant.library.label
        if entrant.failures >= _FAILURES:
            return
        try:
            if not entrant.crew:
                entrant.crew = Crew(
                    entrant.library, self._ranks, self._elements, float(self._args.timeout)
                )
                self.versions[label] = entrant.crew.version
            delay = random.Random(repeat).uniform(0, _LONGEST_DELAY)
            for step, time in entrant.crew.replace(repeat % self._ranks, delay).items():
                entrant.times[step].append(time)
        except Unavailable as error:
            self._skip(entrant.library, error)
            entrant.failures = _FAILURES
        except GroupFailure as error:
            self._progress.say(str(error))
            self.failures.append(str(error))
            entrant.failures += 1
            if entrant.crew:
                entrant.crew.close()
                entrant.crew = None


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each library: its label, then for each step the median, the longest, and how many
    times as long as that of the first library the median is."""
    base = {row.step: row.median_ms for row in reversed(rows) if row.label == rows[0].label}
    lines = []
    for label in dict.fromkeys(row.label for row in rows):
        line = [label]
        of_step = {row.step: row for row in rows if row.label == label}
        for step in STEPS:
            if row := of_step.get(step):
                times = f"{row.median_ms / base[step]:.2f}" if base.get(step) else "-"
                line += [f"{row.median_ms:.1f} ({row.max_ms:.1f})", times]
            else:
                line += ["-", "-"]
        lines.append(line)
    return lines


def head(rows: Sequence[Row]) -> list[str]:
    """What stands above the columns of cells()."""
    first = rows[0].label
    return ["library", *(text for step in STEPS for text in (f"{step}, ms", f"{step} ÷ {first}"))]


def table(rows: Sequence[Row]) -> str:
    """The lines that are printed for one number of ranks."""
    if not rows:
        return ""
    lines = [head(rows), *cells(rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        " ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "\n".join([f"\n# {_title(rows[0])}, median (longest)", f"#{text[0][1:]}", *text[1:]])


def document(
    rows: Sequence[Row],
    facts: dict[str, str],
    versions: dict[str, str],
    failures: Iterable[str],
) -> str:
    """The tables as Markdown, with the machine and the libraries."""
    parts = ["## Result", markdown.table(["", ""], facts.items(), "---")]
    parts.append(markdown.table(["library", "version"], versions.items(), "---"))
    parts += [f"**Failed:** {failure.splitlines()[0]}" for failure in failures]
    for ranks in dict.fromkeys(row.ranks for row in rows):
        of_ranks = [row for row in rows if row.ranks == ranks]
        parts += [f"### {_title(of_ranks[0])}", markdown.table(head(of_ranks), cells(of_ranks))]
    return "\n\n".join(parts) + "\n"


def _title(row: Row) -> str:
    return f"recovery, {row.ranks} ranks, float32"
