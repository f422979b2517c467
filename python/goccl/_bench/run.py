"""The coordinator: libraries take turns in short blocks, and their times become rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from operator import methodcaller
from typing import Any

from goccl._command import GOCCL_TRANSPORTS, Progress
from goccl._ranks.collectives import (
    ITEMSIZE,
    NO_OP,
    ROOT,
    Call,
    call_of,
    element_count,
    has_meaning,
)
from goccl._ranks.group import Group, RankGroup, iterations_of
from goccl._ranks.libraries import Library, Unavailable
from goccl._ranks.processes import GroupFailure

from . import placement
from .beside import Beside
from .output import Output, Unwritable
from .placement import Probe
from .report import OURS, Row, Samples

# of a block, where the number of iterations is chosen: shorter than a placement lasts
_BLOCK_SECONDS = 0.05


@dataclass(frozen=True)
class Settings:
    """What to measure. iterations: of all blocks together; 0 is chosen from the time that one
    takes.

    in_place: the forms of a collective, as call_of() takes them. check: that results are right.
    limit: seconds for a collective and size, after which no further turn of the libraries begins.
    beside: what else runs on the host, started by who runs this.
    """

    collectives: Sequence[str]
    ranks: int
    sizes: Sequence[int]
    dtypes: Sequence[str] = ("float32",)
    iterations: int = 0
    warmup: int = 2
    blocks: int = 10
    timeout: float = 120.0
    limit: float = inf
    beside: Beside | None = None
    redops: Sequence[str] = ("sum",)
    root: int = ROOT
    in_place: Sequence[bool | None] = (None,)
    check: bool = True

    def tables(self, collective: str) -> list[list[Call]]:
        """The calls of each table of a collective: of all sizes, and of each size in all forms."""
        return [self._table(collective, *elements) for elements in self._elements(collective)]

    def parts(self) -> list[int]:
        """The elements of each part, a call, in turn."""
        tables = [table for name in self.collectives for table in self.tables(name)]
        return [call.count for table in tables for call in table]

    def _table(self, collective: str, dtype: str, redop: str) -> list[Call]:
        of = partial(call_of, collective, self.ranks, dtype=dtype, redop=redop, root=self.root)
        calls = [
            of(count=element_count(collective, self.ranks, size, ITEMSIZE[dtype]), in_place=form)
            for size in self.sizes
            for form in self.in_place
        ]
        return list(dict.fromkeys(calls))

    def _elements(self, collective: str) -> list[tuple[str, str]]:
        """The dtypes, each with the reduce ops that it has, as far as the collective has any."""
        calls = [
            call_of(collective, self.ranks, 0, dtype, redop=redop)
            for dtype in self.dtypes
            for redop in self.redops
        ]
        pairs = dict.fromkeys((call.dtype, call.redop) for call in calls)
        return [
            (dtype, redop) for dtype, redop in pairs if redop == NO_OP or has_meaning(dtype, redop)
        ]


class Pace:
    """How much of a run is done, and how long the rest may take.

    A part is expected to take as long as the last one of the nearest size.
    """

    def __init__(self, parts: Iterable[int]) -> None:
        self._left = Counter(parts)
        self._total = self._left.total()
        self._last: dict[int, float] = {}

    def done(self, part: int, seconds: float) -> None:
        """Counts a part that took so long."""
        self._left[part] -= 1
        self._last[part] = seconds

    @property
    def fraction(self) -> float:
        """Which part of all is done, from 0 to 1: by number."""
        return 1 - self._left.total() / self._total if self._total else 1.0

    def __str__(self) -> str:
        text = f"part {self._total - self._left.total() + 1} of {self._total}"
        if not self._last:
            return text
        left = 0.0
        for part, number in self._left.items():
            nearest = min(self._last, key=lambda size: abs(size - part))
            left += number * self._last[nearest]
        return f"{text}, about {left / 60:.0f} min left"


Start = Callable[[Library, int, float], Group]
"""Starts so many ranks of a library, each wait of which has this limit in seconds."""


@dataclass
class _Entrant:
    """A library with its ranks, while there are any. start: fields of its rows, see Row; empty
    until the first call of a collective."""

    library: Library
    group: Group | None = None
    iterations: int = 0
    samples: Samples = field(default_factory=Samples)
    start: dict[str, Any] = field(default_factory=dict)


class Bench:
    """A run over all calls. Use as a context manager; leaving it ends all ranks.

    rows: what has been measured so far. failures: what went wrong with a library, in words.
    versions: of the libraries by label. outputs: one that fails is taken out of this list. pace: of
    several runs together; default: of this one. start: of the ranks.
    """

    def __init__(
        self,
        settings: Settings,
        libraries: Sequence[Library],
        probe: Probe,
        progress: Progress,
        outputs: list[Output],
        pace: Pace | None = None,
        start: Start = RankGroup,
    ) -> None:
        self._settings = settings
        self._entrants = [_Entrant(library) for library in libraries]
        self._probe = probe
        self._progress = progress
        self._outputs = outputs
        self._pace = pace or Pace(settings.parts())
        self._start = start
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self._told: set[str] = set()
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for entrant in self._entrants:
            if entrant.group:
                entrant.group.close()

    def run(self) -> None:
        """Measures everything. A library that fails is left out until the next table."""
        libraries = [entrant.library for entrant in self._entrants]
        self._tell(methodcaller("begin", self._settings, libraries))
        for collective in self._settings.collectives:
            for entrant in self._entrants:
                entrant.start = {}
            first = len(self.rows)
            for table in self._settings.tables(collective):
                self._start_missing()
                if not self._entrants:
                    return
                self._progress.say(f"{self._pace}: {table[0]}")
                refused: set[tuple[str, bool]] = set()
                for call in table:
                    begun = time.monotonic()
                    self._measure(call, refused)
                    self._pace.done(call.count, time.monotonic() - begun)
            self._tell(methodcaller("end", self.rows[first:]))

    def fail(self, problem: str) -> None:
        """Counts and says what went wrong."""
        self.failures.append(problem)
        self._progress.say(problem)

    def _tell(self, what: Callable[[Output], object]) -> None:
        for output in list(self._outputs):
            self._tell_one(output, what)

    def _tell_one(self, output: Output, what: Callable[[Output], object]) -> None:
        try:
            what(output)
        except OSError as error:
            self._outputs.remove(output)
            raise Unwritable(error) from error

    def _start_missing(self) -> None:
        for entrant in list(self._entrants):
            if entrant.group:
                continue
            label = entrant.library.label
            self._progress.step(f"starting {label}")
            try:
                entrant.group = self._start(
                    entrant.library, self._settings.ranks, self._settings.timeout
                )
                self.versions[label] = entrant.group.version
                self._progress.say(
                    f"{label}: {entrant.group.version}, {self._settings.ranks} ranks"
                )
            except Unavailable as error:
                if entrant.library.name in OURS:
                    self.fail(f"{label}: {error}")
                else:
                    self._progress.say(f"{label} is skipped: {error}")
                self._entrants.remove(entrant)
            except GroupFailure as error:
                self.fail(str(error))
                self._entrants.remove(entrant)
            except OSError as error:
                self.fail(f"{label}: cannot be started: {error}")
                self._entrants.remove(entrant)

    def _measure(self, call: Call, refused: set[tuple[str, bool]]) -> None:
        nbytes = call.count * ITEMSIZE[call.dtype]
        what = f"{self._pace}: {call}, {nbytes} bytes"
        deadline = time.monotonic() + self._settings.limit
        for entrant in self._present(call, refused):
            entrant.samples = Samples()
            self._progress.step(f"{what}: {entrant.library.label} prepares")
            with self._guarded(entrant, call, refused) as group:
                group.prepare(call, check=self._settings.check)
                if not entrant.start:
                    entrant.start = self._first_call(entrant.library, group)
                entrant.iterations = self._iterations(group)
        before = self._probe()
        for block in range(self._settings.blocks):
            if block and time.monotonic() > deadline:
                break
            # Another library begins each time, so that none always follows the same one.
            present = self._present(call, refused)
            turn = block % max(1, len(present))
            for entrant in present[turn:] + present[:turn]:
                self._progress.step(
                    f"{what}: block {block + 1} of {self._settings.blocks}, {entrant.library.label}"
                )
                with self._guarded(entrant, call, refused) as group:
                    times, wrong, _ = group.block(
                        entrant.iterations, self._settings.warmup, block, self._settings.timeout
                    )
                    after = self._probe()
                    entrant.samples.add(placement.tag(before, after), times, wrong)
                    before = after
        measured: list[Row] = []
        for entrant in self._present(call, refused):
            rows = entrant.samples.rows(
                entrant.library.name,
                entrant.library.transport,
                call.collective,
                call.ranks,
                call.dtype,
                nbytes,
                self._settings.beside,
            )
            if entrant.library.schedule:
                rows = self._with_peaks(rows, entrant.library, nbytes)
            known: dict[str, Any] = {
                "device": entrant.library.device,
                "redop": call.redop,
                "root": call.root,
                "in_place": call.in_place,
                **entrant.start,
            }
            if not self._settings.check:
                known["wrong"] = None
            measured += [replace(row, **known) for row in rows]
        self.rows += measured
        self._progress.clear()
        self._tell(methodcaller("add", measured))

    def _first_call(self, library: Library, group: Group) -> dict[str, Any]:
        """Makes it, and returns fields of rows that tell how the library started."""
        spent, wrong = group.first_call()
        if wrong:
            self.fail(f"{library.label}: {wrong} elements were wrong after the first call")
        pss = group.pss()
        return {
            "init_s": group.init_s,
            "first_ms": spent * 1e3,
            "pss_MB": None if pss is None else pss / 1e6,
        }

    def _with_peaks(self, rows: list[Row], library: Library, nbytes: int) -> list[Row]:
        """The rows with the schedule of an alltoall, and what a rank may have under way with it at
        most."""
        rows = [replace(row, schedule=library.schedule) for row in rows]
        from goccl._ranks import capi

        if library.transport not in GOCCL_TRANSPORTS:  # buffers that peers map may need no messages
            return rows
        ranks = self._settings.ranks
        most = capi.Core().alltoall_peaks(
            ranks, library.transport, library.schedule, nbytes // ranks
        )
        return [
            replace(row, in_flight=most.in_flight, staging=most.staging, incast=most.incast)
            for row in rows
        ]

    def _iterations(self, group: Group) -> int:
        """How many iterations a block of this library has. The first calls also make its
        connections."""
        settings = self._settings
        if settings.iterations:
            group.block(1, 0, 0, settings.timeout)
            return -(-settings.iterations // settings.blocks)
        return iterations_of(group, _BLOCK_SECONDS, settings.timeout)

    def _present(self, call: Call, refused: set[tuple[str, bool]]) -> list[_Entrant]:
        return [
            entrant
            for entrant in self._entrants
            if entrant.group and (entrant.library.label, call.in_place) not in refused
        ]

    @contextmanager
    def _guarded(
        self, entrant: _Entrant, call: Call, refused: set[tuple[str, bool]]
    ) -> Iterator[Group]:
        """What a library cannot do leaves it out of the table, or of one form in it; a failure also
        ends its ranks."""
        assert entrant.group is not None
        try:
            yield entrant.group
        except Unavailable as error:
            refused.add((entrant.library.label, call.in_place))
            text = f"{entrant.library.label} is skipped: {error}"
            if text not in self._told:  # of the same call with another op, or in another form
                self._told.add(text)
                self._progress.say(text)
        except GroupFailure as error:
            entrant.group.close()
            entrant.group = None
            self.fail(str(error))
