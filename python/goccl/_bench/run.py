"""The coordinator: libraries take turns in short blocks, and their times become rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from goccl._command import GOCCL_TRANSPORTS, Progress
from goccl._ranks.collectives import ITEMSIZE, element_count
from goccl._ranks.group import Group, RankGroup, iterations_of
from goccl._ranks.libraries import Library, Unavailable
from goccl._ranks.processes import GroupFailure

from . import placement
from .beside import Beside
from .placement import Probe
from .report import OURS, Row, Samples, start_line, table_head, table_row

# of a block, where the number of iterations is chosen: shorter than a placement lasts
_BLOCK_SECONDS = 0.05


@dataclass(frozen=True)
class Settings:
    """What to measure. iterations: of all blocks together; 0 is chosen from the time that one
    takes.

    limit: seconds for a collective and size, after which no further turn of the libraries begins.
    beside: what else runs on the host, started by who runs this.
    """

    collectives: Sequence[str]
    ranks: int
    sizes: Sequence[int]
    dtype: str = "float32"
    iterations: int = 0
    warmup: int = 2
    blocks: int = 10
    timeout: float = 120.0
    limit: float = inf
    beside: Beside | None = None

    def counts(self, collective: str) -> list[int]:
        """The sizes in elements."""
        itemsize = ITEMSIZE[self.dtype]
        counts = [element_count(collective, self.ranks, nbytes, itemsize) for nbytes in self.sizes]
        return list(dict.fromkeys(counts))

    def parts(self) -> list[int]:
        """The elements of each part, a collective with a size, in turn."""
        return [count for collective in self.collectives for count in self.counts(collective)]


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
    """A run over all collectives and sizes. Use as a context manager; leaving it ends all ranks.

    rows: what has been measured so far. failures: what went wrong with a library, in words.
    versions: of the libraries by label. pace: of several runs together; default: of this one.
    start: of the ranks.
    """

    def __init__(
        self,
        settings: Settings,
        libraries: Sequence[Library],
        probe: Probe,
        progress: Progress,
        write: Callable[[str], object] = print,
        pace: Pace | None = None,
        start: Start = RankGroup,
    ) -> None:
        self._settings = settings
        self._entrants = [_Entrant(library) for library in libraries]
        ours = [library for library in libraries if library.name in OURS]
        # The first schedule is what others are compared with, too.
        self._ours = [library.label for library in ours if library.schedule == ours[0].schedule]
        self._schedules = any(library.schedule for library in ours)
        self._device = ours[0].device if ours else "cpu"
        self._probe = probe
        self._progress = progress
        self._write = write
        self._pace = pace or Pace(settings.parts())
        self._start = start
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for entrant in self._entrants:
            if entrant.group:
                entrant.group.close()

    def run(self) -> None:
        """Measures everything. A library that fails is left out until the next collective."""
        for collective in self._settings.collectives:
            self._start_missing()
            if not self._entrants:
                return
            self._write(
                table_head(
                    collective,
                    self._settings.ranks,
                    self._settings.dtype,
                    self._ours,
                    schedules=self._schedules,
                    beside=self._settings.beside,
                    device=self._device,
                )
            )
            self._progress.say(f"{self._pace}: {collective}, {self._settings.ranks} ranks")
            refused: set[str] = set()
            for entrant in self._entrants:
                entrant.start = {}
            first = len(self.rows)
            for count in self._settings.counts(collective):
                begun = time.monotonic()
                self._size(collective, count, refused)
                self._pace.done(count, time.monotonic() - begun)
            for row in {row.label: row for row in self.rows[first:]}.values():
                self._write(start_line(row))

    def fail(self, problem: str) -> None:
        """Counts and says what went wrong."""
        self.failures.append(problem)
        self._progress.say(problem)

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

    def _size(self, collective: str, count: int, refused: set[str]) -> None:
        nbytes = count * ITEMSIZE[self._settings.dtype]
        what = f"{self._pace}: {collective}, {self._settings.ranks} ranks, {nbytes} bytes"
        deadline = time.monotonic() + self._settings.limit
        for entrant in self._present(refused):
            entrant.samples = Samples()
            self._progress.step(f"{what}: {entrant.library.label} prepares")
            with self._guarded(entrant, refused) as group:
                group.prepare(collective, count, self._settings.dtype)
                if not entrant.start:
                    entrant.start = self._first_call(entrant.library, group)
                entrant.iterations = self._iterations(group)
        before = self._probe()
        for block in range(self._settings.blocks):
            if block and time.monotonic() > deadline:
                break
            # Another library begins each time, so that none always follows the same one.
            present = self._present(refused)
            turn = block % max(1, len(present))
            for entrant in present[turn:] + present[:turn]:
                self._progress.step(
                    f"{what}: block {block + 1} of {self._settings.blocks}, {entrant.library.label}"
                )
                with self._guarded(entrant, refused) as group:
                    times, wrong, _ = group.block(
                        entrant.iterations, self._settings.warmup, block, self._settings.timeout
                    )
                    after = self._probe()
                    entrant.samples.add(placement.tag(before, after), times, wrong)
                    before = after
        measured: list[Row] = []
        for entrant in self._present(refused):
            rows = entrant.samples.rows(
                entrant.library.name,
                entrant.library.transport,
                collective,
                self._settings.ranks,
                self._settings.dtype,
                nbytes,
                self._settings.beside,
            )
            if entrant.library.schedule:
                rows = self._with_peaks(rows, entrant.library, nbytes)
            device = entrant.library.device
            measured += [replace(row, device=device, **entrant.start) for row in rows]
        self.rows += measured
        self._progress.clear()
        for row in measured:
            self._write(table_row(row, measured, self._ours, schedules=self._schedules))

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

    def _present(self, refused: set[str]) -> list[_Entrant]:
        return [
            entrant
            for entrant in self._entrants
            if entrant.group and entrant.library.label not in refused
        ]

    @contextmanager
    def _guarded(self, entrant: _Entrant, refused: set[str]) -> Iterator[Group]:
        """What a library cannot do leaves it out of the collective; a failure also ends its
        ranks."""
        assert entrant.group is not None
        try:
            yield entrant.group
        except Unavailable as error:
            refused.add(entrant.library.label)
            self._progress.say(f"{entrant.library.label} is skipped: {error}")
        except GroupFailure as error:
            entrant.group.close()
            entrant.group = None
            self.fail(str(error))
