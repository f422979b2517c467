"""From measured blocks to rows, and from rows to a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from goccl._ranks.collectives import bandwidth
from goccl._ranks.libraries import label_of

from .beside import Beside
from .libraries import GOCCL, is_mpi
from .placement import FAR, MIXED, NEAR, UNKNOWN

OURS = tuple(GOCCL.values())
MEDIAN, MEAN = "median", "mean"


@dataclass(frozen=True)
class Row:
    """One line of the result; the fields are the keys of the JSON."""

    library: str
    collective: str
    transport: str
    ranks: int
    dtype: str
    bytes: int
    iterations: int
    placement: str
    median_us: float
    mean_us: float
    p99_us: float
    algbw_GBps: float  # noqa: N815  the unit's own spelling, as in the JSON
    busbw_GBps: float  # noqa: N815
    wrong: int | None  # None: results were not checked
    schedule: str = ""  # of alltoall, where it was asked for
    # bytes that a rank may have sent, and not know to be taken, at most
    in_flight: int | None = None
    staging: int | None = None  # these and the bytes sent to it, in staging memory
    incast: int | None = None  # ranks that may send to one at a time, at most
    beside: Beside | None = None  # what else ran on the host
    # The same for all sizes: how long it took to join the group, how long the first call of the
    # collective took, and the memory of a rank after it, in the mean.
    init_s: float | None = None
    first_ms: float | None = None
    pss_MB: float | None = None  # noqa: N815
    device: str = "cpu"  # where the tensors lie
    redop: str = "none"  # of collectives that reduce: "sum", "product", ...
    root: int = -1  # of collectives that have one
    in_place: bool = False  # the result is where the input was
    # How far the iterations spread, and the median of each block: what `compare` tells noise by.
    min_us: float | None = None
    p95_us: float | None = None
    max_us: float | None = None
    stdev_us: float | None = None
    block_medians_us: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """Library, transport and schedule."""
        return label_of(self.library, self.transport, self.schedule)

    @property
    def call(self) -> tuple[str, str, str, int, bool]:
        """The call, whatever its size."""
        return self.collective, self.dtype, self.redop, self.root, self.in_place

    @property
    def case(self) -> tuple[object, ...]:
        """What was measured, whoever did it: rows are compared where this is the same."""
        return *self.call, self.ranks, self.bytes

    def us(self, statistic: str) -> float:
        """MEDIAN or MEAN."""
        return self.mean_us if statistic == MEAN else self.median_us


@dataclass
class Samples:
    """What one library measured for one collective and size: times in ns and wrong elements, by
    placement."""

    times: dict[str, list[int]] = field(default_factory=dict)
    medians: dict[str, list[float]] = field(default_factory=dict)  # of the blocks, in us
    wrong: dict[str, int] = field(default_factory=dict)

    def add(self, placement: str, times: list[int], wrong: int) -> None:
        """Adds a block."""
        self.times.setdefault(placement, []).extend(times)
        if times:
            self.medians.setdefault(placement, []).append(statistics.median(times) / 1e3)
        self.wrong[placement] = self.wrong.get(placement, 0) + wrong

    def rows(
        self,
        library: str,
        transport: str,
        collective: str,
        ranks: int,
        dtype: str,
        nbytes: int,
        beside: Beside | None = None,
    ) -> list[Row]:
        """One row for each placement that was met."""
        rows = []
        for placement in (NEAR, FAR, MIXED, UNKNOWN):
            times = self.times.get(placement)
            if not times:
                continue
            median = statistics.median(times)
            algorithm, bus = bandwidth(collective, ranks, nbytes, median / 1e9)
            rows.append(
                Row(
                    library=library,
                    collective=collective,
                    transport=transport,
                    ranks=ranks,
                    dtype=dtype,
                    bytes=nbytes,
                    iterations=len(times),
                    placement=placement,
                    median_us=median / 1e3,
                    mean_us=statistics.fmean(times) / 1e3,
                    p99_us=percentile(times, 0.99) / 1e3,
                    algbw_GBps=algorithm,
                    busbw_GBps=bus,
                    wrong=self.wrong[placement],
                    beside=beside,
                    min_us=min(times) / 1e3,
                    p95_us=percentile(times, 0.95) / 1e3,
                    max_us=max(times) / 1e3,
                    stdev_us=statistics.pstdev(times) / 1e3,
                    block_medians_us=tuple(self.medians[placement]),
                )
            )
        return rows


def call_text(row: Row, rows: Iterable[Row] = ()) -> str:
    """What is special in a call, to stand behind its dtype in a title: ", max, root 1, in place".

    rows: of the table; the place is told where they have the collective both ways.
    """
    parts = [row.redop] if row.redop not in ("none", "sum") else []
    parts += [f"root {row.root}"] if row.root > 0 else []
    if any(row.call[:4] == other.call[:4] and row.in_place != other.in_place for other in rows):
        parts.append("in place" if row.in_place else "out of place")
    return "".join(f", {part}" for part in parts)


def percentile(values: Iterable[int], fraction: float) -> int:
    """The smallest value that at least this fraction of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def compared_by(beside: Beside | None) -> tuple[str, ...]:
    """The statistics that libraries are compared by. Beside busy programs a library may have the
    better median and the worse mean."""
    return (MEDIAN, MEAN) if beside else (MEDIAN,)


def ratio(row: Row, rows: Iterable[Row], label: str, statistic: str = MEDIAN) -> float | None:
    """The median, or mean, of `row` over that of `label` with the same placement; None where there
    is none."""
    if row.placement == MIXED:
        return None
    for ours in rows:
        same = ours.case == row.case and ours.placement == row.placement
        if ours.label == label and same:
            return row.us(statistic) / ours.us(statistic) if ours.us(statistic) else None
    return None


def way_of(label: str) -> str:
    """The library's name in a label, which tells how GoCCL was called."""
    return label.split("/")[0]


def base_of(row: Row, labels: Iterable[str]) -> str:
    """GoCCL's label that a row is to be compared with, of those measured: the first that is called
    as it is.

    An MPI is called from C, Gloo through torch; where GoCCL was not called so, the first of all.
    """
    ours = [label for label in labels if way_of(label) in OURS]
    way = GOCCL["c"] if is_mpi(row.library) or row.library == GOCCL["c"] else GOCCL["torch"]
    return next((label for label in ours if way_of(label) == way), next(iter(ours), ""))


def size_text(nbytes: int) -> str:
    """Writes a size as --sizes takes it: 4, 64K, 16M."""
    unit = next(unit for unit in (30, 20, 10, 0) if nbytes % (1 << unit) == 0)
    return f"{nbytes >> unit}{'KMG'[unit // 10 - 1] if nbytes and unit else ''}"


_COLUMNS = (
    ("bytes", 12),
    ("library", 9),
    ("via", 5),
    ("in place", 8),
    ("placed", 7),
    ("iters", 6),
    ("median us", 11),
    ("mean us", 11),
    ("p99 us", 11),
    ("algbw GB/s", 10),
    ("busbw GB/s", 10),
    ("wrong", 6),
)
_SCHEDULE_COLUMNS = (("schedule", 10), ("in flight", 10), ("staging", 10), ("incast", 6))
_RATIO_WIDTH = 13


def _ratio_title(label: str, statistic: str) -> str:
    title = f"x {label}" if statistic == MEDIAN else f"{statistic} x {label}"
    return f"{title:>{_RATIO_WIDTH}}"


def table_title(row: Row) -> str:
    """What is above the table that a row stands in."""
    more = [f"on {row.device}"] if row.device != "cpu" else []
    more += [str(row.beside)] if row.beside else []
    return ", ".join([f"{row.collective}, {row.ranks} ranks, {row.dtype}{call_text(row)}", *more])


def table_head(row: Row, ours: Iterable[str], *, schedules: bool = False) -> str:
    """The names of the columns above a row. ours: labels of what all are compared with."""
    columns = _COLUMNS + (_SCHEDULE_COLUMNS if schedules else ())
    names = [f"{name:>{width}}" for name, width in columns]
    names += [_ratio_title(label, by) for label in ours for by in compared_by(row.beside)]
    return "#" + " ".join(names)[1:]


def table_row(
    row: Row, rows: Iterable[Row], ours: Iterable[str], *, schedules: bool = False
) -> str:
    """A line of the table; its last columns tell how many times as long as ours, found in `rows`,
    it took."""
    values: tuple[str, ...] = (
        size_text(row.bytes),
        row.library,
        row.transport,
        "yes" if row.in_place else "no",
        row.placement,
        str(row.iterations),
        f"{row.median_us:.2f}",
        f"{row.mean_us:.2f}",
        f"{row.p99_us:.2f}",
        f"{row.algbw_GBps:.3f}",
        f"{row.busbw_GBps:.3f}",
        _known(row.wrong),
    )
    columns = _COLUMNS + (_SCHEDULE_COLUMNS if schedules else ())
    if schedules:
        values += (row.schedule or "-", *map(_known, (row.in_flight, row.staging, row.incast)))
    cells = [f"{value:>{width}}" for value, (_, width) in zip(values, columns, strict=True)]
    known = list(rows)
    labels = list(ours)
    for label in labels:
        # An MPI beside GoCCL through torch would be compared with what torch takes.
        fair = not is_mpi(row.library) or way_of(label) == way_of(base_of(row, labels))
        for by in compared_by(row.beside):
            times = ratio(row, known, label, by) if fair else None
            cells.append(_known(times, ".2f").rjust(len(_ratio_title(label, by))))
    return " ".join(cells)


def start_line(row: Row) -> str:
    """The line below the table that tells how a library started."""
    init, first, pss = start_figures(row)
    return f"# {row.label}: init {init} s, first {row.collective} {first} ms, {pss} MB a rank (PSS)"


def start_figures(row: Row) -> tuple[str, str, str]:
    """How a library started: seconds to join, milliseconds of the first call, megabytes of a
    rank."""
    return _known(row.init_s, ".3f"), _known(row.first_ms, ".2f"), _known(row.pss_MB, ".1f")


def _known(value: float | None, form: str = "") -> str:
    return "-" if value is None else format(value, form)
