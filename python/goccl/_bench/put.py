"""``goccl bench put``: how long puts, gets and signals of a channel take, beside what limits them
and beside MPI, in one run.

Two ranks on this host. GoCCL is called from a loop in C, ``goccl_bench_put()``; in the same two
processes, in turn with it, runs what it is held to:

line
    half of a ping-pong of one cache line, that is a flag in a shared mapping.
copy and flag
    half of a ping-pong of data that is copied into a shared mapping, then a flag: with 8 bytes two
    cache lines.
memcpy
    a copy between two private buffers.
socket
    a TCP connection whose ends spin: half of a round trip, a round trip, or a stream of messages
    with a byte back at its end.
send
    ``goccl_send()`` and ``goccl_recv()``, a stream of messages, as of the socket.
call
    the thread's own call of ``goccl_channel_put()``, beside a push to a proxy.

One way is half of a ping-pong: a message is put, its signal is taken, its first and last word are
read. Bandwidth is that of messages one after the other, with a flush at the end. The data of
each block is checked at its ends.

Peers are MPIs by mpi4py: MPI_Put() and a flush, a flag that is put, and a flush. About 0.5 µs of
each call is mpi4py.

All take turns in short blocks. A time is the mean of some messages one after the other, or of all
of a block where there is one flush at the end. Where the caller rests for 20 ms before each call,
or makes it right after a collective, a time is that of one call. Rows are told apart by the
placement of CPUs, as by ``goccl bench``. The thread of each rank that calls is bound to a CPU of
its own, for all libraries alike; the threads of libraries are not.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial

from goccl._command import Progress, add_examples, missing, output_file, unwritable
from goccl._ranks import wire
from goccl._ranks.group import available_memory
from goccl._ranks.libraries import CORE, Library, Unavailable, core_library
from goccl._ranks.processes import START_TIMEOUT, GroupFailure, Processes

from . import markdown, placement
from .libraries import PEERS, peer_library
from .options import (
    choices_of,
    ended_by_signals,
    iterations,
    parse_sizes,
    whole_number,
)
from .placement import FAR, MIXED, NEAR, UNKNOWN, Probe
from .report import size_text
from .words import load_warning

MPIS = tuple(name for name in PEERS if name != "gloo")
_TRANSPORTS = ("shm", "tcp")
_SIZES = "8,4K,64K,1M,16M,64M"
_WORD, _LATENCY_MOST, _BANDWIDTH_LEAST = 8, 64 << 10, 64 << 10
_BLOCK_SECONDS = 0.03
_MOST_ITERATIONS = 20000
_RESTED = 10  # iterations at most of a block in which each call rests
_PUSHED = 640  # and of one whose times are not those that it takes
_RANKS = 2
_BUFFERS = 3  # of a rank, see goccl_bench_end
_SHARED_LINES = 256  # bytes, see goccl_bench_end
_INTERRUPTED = 130


@dataclass(frozen=True)
class Run:
    """What is measured beside others: by whom, and the block of goccl_bench_put().

    only: bytes that it is measured with, 0 for all. peer: what the other rank does meanwhile.
    most: messages of a block.
    """

    by: str
    what: str
    peer: str = ""
    only: int = 0
    most: int = _MOST_ITERATIONS


@dataclass(frozen=True)
class Part:
    """What is compared: the first run with the others. streams: bandwidth is of interest.

    first_size: it is measured with the smallest size only. all_sizes: with short messages and with
    long ones.
    """

    title: str
    runs: Sequence[Run]
    streams: bool = False
    first_size: bool = False
    all_sizes: bool = False


_WAITS, _IDLE, _RESTS, _AFTER = "waits", "idle", "rested", "after"
_PARTS = {
    "shm": (
        Part(
            "put and signal until taken and read, shared memory",
            (
                Run(CORE, "put_signal"),
                Run("line", "line", only=8),
                Run("copy and flag", "lines"),
                *(Run(name, "put_signal") for name in MPIS),
            ),
        ),
        Part(
            "put, shared memory",
            (
                Run(CORE, "puts", _IDLE),
                Run("memcpy", "copies"),
                *(Run(name, "puts", _IDLE) for name in MPIS),
            ),
            streams=True,
        ),
        Part(
            "get, shared memory",
            (
                Run(CORE, "gets", _IDLE),
                Run("memcpy", "copies"),
                *(Run(name, "gets", _IDLE) for name in MPIS),
            ),
            streams=True,
        ),
    ),
    "tcp": (
        Part(
            "put and signal until taken and read, TCP",
            (Run(CORE, "put_signal"), Run("socket", "half_trip")),
        ),
        Part(
            "get and flush, TCP",
            (Run(CORE, "get_flush", _WAITS), Run("socket", "round_trip")),
        ),
        Part(
            "put and flush, TCP",
            (Run(CORE, "put_flush", _WAITS), Run("socket", "round_trip")),
        ),
        Part(
            "put and flush while the peer is in no call, TCP",
            (
                Run(CORE, "rested_flush", _RESTS),
                Run(CORE, "flush_after", _AFTER),
                Run("socket", "round_trip"),
            ),
            first_size=True,
        ),
        Part(
            "put, TCP",
            (
                Run(CORE, "puts", _WAITS),
                Run(CORE, "puts", _IDLE),
                Run("send", "sends"),
                Run("socket", "socket_stream"),
            ),
            streams=True,
        ),
        Part(
            "get, TCP",
            (Run(CORE, "gets", _WAITS), Run("send", "sends"), Run("socket", "socket_stream")),
            streams=True,
        ),
        Part(
            "what a put takes of its thread, by a proxy and by a call, TCP",
            (Run(CORE, "pushes", _IDLE, most=_PUSHED), Run("call", "calls", _IDLE)),
            all_sizes=True,
        ),
    ),
}


@dataclass(frozen=True)
class Row:
    """One line of the result; the fields are the keys of the JSON.

    library: or what GoCCL is held to. peer: what the other rank does: it "waits" for a signal, is
    "idle" in no call, and the caller too has "rested" 20 ms, or it is right "after" a collective.
    samples: times, of some messages each. ratio: how many times as long as GoCCL it took,
    with the same placement; None where that was not met.
    """

    operation: str
    transport: str
    bytes: int
    library: str
    peer: str
    placement: str
    samples: int
    median_us: float
    max_us: float
    GBps: float
    ratio: float | None


class Pair(Processes):
    """Both ranks of one library. Use as a context manager, or call close().

    most: bytes of the largest message. version: of the library. kind: of GoCCL's channel.
    """

    def __init__(self, library: Library, most: int, timeout: float) -> None:
        needed = _RANKS * _BUFFERS * most
        if needed > (available := available_memory()):
            raise Unavailable(
                f"no memory for {most} bytes: the buffers of both ranks take {needed >> 20} MiB, "
                f"and {available >> 20} are available"
            )
        super().__init__(library)
        self._most, self._timeout = most, timeout
        self.version = self.kind = ""
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def block(self, run: Run, nbytes: int, number: int) -> list[float]:
        """Times in µs of a block of so many messages."""
        request = {"do": "block", "what": run.what, "bytes": nbytes, "iterations": number}
        answers = self._ask(request | {"attend": run.peer == _WAITS}, self._timeout)
        return [float(us) for us in answers[0][0]["us"]]

    def _start(self) -> None:
        address = "goccl-bench-" + secrets.token_hex(16)
        deadline = time.monotonic() + START_TIMEOUT
        with ExitStack() as stack:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind("\0" + address)
            listener.listen(_RANKS)
            shared = os.memfd_create("goccl-bench-put")
            stack.callback(os.close, shared)
            shared_bytes = min(self._most, _LATENCY_MOST)
            os.ftruncate(shared, _SHARED_LINES + _RANKS * shared_bytes)
            ends = _connected()
            for end in ends:
                stack.enter_context(closing(end))
            self._spawn("goccl._bench.put_rank", address, self.library.name)
            self._fork(_RANKS, more=False)
            for rank in range(_RANKS):
                member = self._accept(listener, _RANKS, deadline)
                socket.send_fds(member.sock, [b"F"], [shared, ends[rank].fileno()])
                setup = {"rank": rank, "most": self._most, "timeout": self._timeout}
                wire.send(member.sock, setup | {"shared_bytes": shared_bytes})
            unique_id = self._collect(deadline)[0][0]["unique_id"]
        for member in self._members:
            self._tell(member, {"do": "join", "unique_id": unique_id})
        for member, (answer, _) in zip(
            self._members, self._collect(time.monotonic() + START_TIMEOUT), strict=True
        ):
            member.rank = int(answer["rank"])
            self.version, self.kind = str(answer["version"]), str(answer["kind"])
        self._note_segments()
        self._members.sort(key=lambda member: member.rank)
        self._healthy = True


def _connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection of this host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = socket.create_connection(server.getsockname())
        second, _ = server.accept()
    for end in (first, second):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return first, second


@dataclass
class _Entrant:
    """A run with its pair. times: in µs, by placement."""

    run: Run
    pair: Pair
    iterations: int = 0
    times: dict[str, list[float]] = field(default_factory=dict)


class _Trial:
    """A run over all parts of one transport. Use as a context manager; leaving it ends all ranks.

    rows: what has been measured so far. failures: what went wrong, in words.
    """

    def __init__(
        self, args: argparse.Namespace, transport: str, probe: Probe, progress: Progress
    ) -> None:
        self._args = args
        self._transport = transport
        self._probe = probe
        self._progress = progress
        self._pairs: dict[str, Pair] = {}
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self.versions: dict[str, str] = {}

    def __enter__(self) -> _Trial:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for pair in self._pairs.values():
                stack.callback(pair.close)

    def run(self) -> None:
        """Measures everything, and prints a table for each part."""
        self._start(partial(core_library, self._transport), CORE)
        if self._transport == "shm":
            for name in self._args.peers:
                self._start(partial(peer_library, name, _RANKS), name)
        for part in _PARTS[self._transport]:
            sizes = [size for size in self._args.sizes if _is_of(part, size)]
            for index, nbytes in enumerate(sizes[:1] if part.first_size else sizes):
                if CORE not in self._pairs:
                    return
                rows = self._part(part, nbytes)
                self.rows += rows
                self._progress.clear()
                print("\n".join([*([] if index else [head(part.title)]), *map(line, rows)]))
                sys.stdout.flush()

    def _start(self, make: partial[Library], name: str) -> None:
        self._progress.step(f"starting {name}")
        try:
            library = make()
            pair = Pair(library, max(self._args.sizes), float(self._args.timeout))
        except Unavailable as error:
            text = f"{name} is skipped: {error}"
            self._progress.say(text)
            if name == CORE:
                self.failures.append(text)
        except (GroupFailure, OSError) as error:
            self._fail(f"{name}: cannot be started: {error}")
        else:
            self._pairs[name] = pair
            self.versions[library.label] = pair.version
            kind = f", {pair.kind} channel" if pair.kind else ""
            self._progress.say(f"{library.label}: {pair.version}{kind}")

    def _part(self, part: Part, nbytes: int) -> list[Row]:
        """The rows of a part with one size."""
        entrants = []
        for run in part.runs:
            pair = self._pairs.get(run.by if run.by in MPIS else CORE)
            if pair and run.only in (0, nbytes):
                entrants.append(_Entrant(run, pair))
        what = f"{part.title}, {size_text(nbytes)} bytes"
        for entrant in entrants:
            self._progress.step(f"{what}: {entrant.run.by} prepares")
            self._guarded(entrant, partial(self._prepare, entrant, nbytes))
        before = self._probe()
        for block in range(self._args.blocks):
            turn = block % len(entrants)
            for entrant in entrants[turn:] + entrants[:turn]:
                name = entrant.run.by
                self._progress.step(f"{what}: block {block + 1} of {self._args.blocks}, {name}")
                times = self._guarded(
                    entrant, partial(entrant.pair.block, entrant.run, nbytes, entrant.iterations)
                )
                after = self._probe()
                entrant.times.setdefault(placement.tag(before, after), []).extend(times or [])
                before = after
        return rows_of(part, self._transport, nbytes, {e.run: e.times for e in entrants})

    def _prepare(self, entrant: _Entrant, nbytes: int) -> list[float]:
        """Finds out how many messages make a block, with some that also make connections."""
        if entrant.run.peer in (_RESTS, _AFTER):
            entrant.iterations = min(self._args.iters or _RESTED, _RESTED)
            return []
        entrant.iterations = self._args.iters or 2
        times = entrant.pair.block(entrant.run, nbytes, entrant.iterations)
        for _ in range(0 if self._args.iters else 2):
            # The shortest of three, for another process may have taken the CPU in one of them.
            times = [
                us
                for _ in range(3)
                for us in entrant.pair.block(entrant.run, nbytes, entrant.iterations)
            ]
            wanted = int(_BLOCK_SECONDS * 1e6 / max(min(times), 1e-3))
            entrant.iterations = max(2, min(entrant.run.most, wanted))
        return times

    def _guarded(self, entrant: _Entrant, do: partial[list[float]]) -> list[float] | None:
        """Does something with a pair that has not failed. A failure ends the pair."""
        if entrant.pair not in self._pairs.values():
            return None
        try:
            return do()
        except (GroupFailure, Unavailable) as error:
            self._fail(str(error))
            entrant.pair.close()
            name = next(name for name, pair in self._pairs.items() if pair is entrant.pair)
            del self._pairs[name]
            return None

    def _fail(self, problem: str) -> None:
        self.failures.append(problem)
        self._progress.say(problem)


def _is_of(part: Part, nbytes: int) -> bool:
    if part.all_sizes:
        return True
    return nbytes >= _BANDWIDTH_LEAST if part.streams else nbytes <= _LATENCY_MOST


def rows_of(
    part: Part, transport: str, nbytes: int, times: dict[Run, dict[str, list[float]]]
) -> list[Row]:
    """The rows of what was measured with one size.

    Args:
        part: what is compared.
        transport: of GoCCL.
        nbytes: of a message.
        times: in µs, for each run by placement.
    """
    ours = times.get(part.runs[0], {})
    rows = []
    for run, by_placement in times.items():
        for place in (NEAR, FAR, MIXED, UNKNOWN):
            us = by_placement.get(place)
            if not us:
                continue
            median = statistics.median(us)
            base = statistics.median(ours[place]) if ours.get(place) and place != MIXED else 0
            rows.append(
                Row(
                    operation=part.title,
                    transport=transport,
                    bytes=nbytes,
                    library=run.by,
                    peer=run.peer,
                    placement=place,
                    samples=len(us),
                    median_us=median,
                    max_us=max(us),
                    GBps=nbytes / median / 1e3 if median else 0.0,
                    ratio=median / base if base else None,
                )
            )
    return rows


_COLUMNS = (
    ("bytes", 8),
    ("by", 14),
    ("peer", 7),
    ("placed", 8),
    ("samples", 8),
    ("median us", 11),
    ("max us", 11),
    ("GB/s", 8),
    (f"x {CORE}", 10),
)


def head(title: str) -> str:
    """The lines above the rows of a part."""
    names = " ".join(f"{name:>{width}}" for name, width in _COLUMNS)
    return f"\n# {title}\n#{names[1:]}"


def cells(row: Row) -> list[str]:
    """A line of the table; the last cell tells how many times as long as GoCCL it took."""
    return [
        size_text(row.bytes),
        row.library,
        row.peer or "-",
        row.placement,
        str(row.samples),
        *(f"{us:.3f}" for us in (row.median_us, row.max_us)),
        f"{row.GBps:.3f}",
        "-" if row.ratio is None else f"{row.ratio:.2f}",
    ]


def line(row: Row) -> str:
    """A line of the table, as it is printed."""
    return " ".join(
        f"{cell:>{width}}" for cell, (_, width) in zip(cells(row), _COLUMNS, strict=True)
    )


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
    for title in dict.fromkeys(row.operation for row in rows):
        its = [cells(row) for row in rows if row.operation == title]
        parts += [f"### {title}", markdown.table([name for name, _ in _COLUMNS], its)]
    return "\n\n".join(parts) + "\n"


def _sizes(text: str) -> list[int]:
    sizes = sorted(set(parse_sizes(text)))
    for size in sizes:
        if size % _WORD:
            raise argparse.ArgumentTypeError(f"{size} is not a multiple of {_WORD} bytes")
    return sizes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``goccl bench put``."""
    add_examples(
        parser,
        [
            "goccl bench put",
            "goccl bench put --transport shm --sizes 8,4K --peers openmpi,mpich",
            "goccl bench put --transport tcp --json put.json",
        ],
        {
            0: "all was measured",
            1: "something failed",
            2: "wrong arguments",
            130: "interrupted: what was measured until then is written",
        },
    )
    add = parser.add_argument
    add(
        "--transport",
        type=choices_of(_TRANSPORTS),
        default=list(_TRANSPORTS),
        help="of shm, tcp: shared memory beside cache lines, memcpy and MPI; TCP of this host "
        "beside sockets and send (default: shm,tcp)",
    )
    add(
        "--sizes",
        type=_sizes,
        default=_sizes(_SIZES),
        help="bytes of a message, multiples of 8. Up to 64K the time of one is measured, from 64K "
        f"on the bandwidth of many (default: {_SIZES})",
    )
    add(
        "--peers",
        type=choices_of(MPIS),
        default=list(MPIS),
        help=f"MPIs to compare shared memory with, of {','.join(MPIS)} (default: all; one that is "
        "not installed is skipped)",
    )
    add(
        "--iters",
        type=iterations,
        default="auto",
        metavar="N",
        help="messages of a block, or auto: from the time they take (default); "
        f"{_RESTED} at most where a rank rests before each",
    )
    add(
        "--blocks",
        type=whole_number(1, 10**6),
        default=10,
        help="turns of each (default 10)",
    )
    add(
        "--timeout",
        type=whole_number(1, 86400),
        default=120,
        help="seconds that a block may take (default 120)",
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
    if problem := missing("numpy", "NumPy") or unwritable(args.json, args.markdown):
        progress.say(f"goccl bench put: {problem}")
        return 1
    probe, reason = placement.open_probe()
    if reason:
        progress.say(f"placement of CPUs is unknown: {reason}")
    if warning := load_warning():
        progress.say(f"goccl bench put: warning: {warning}")
    facts = markdown.machine("bench put")
    trials: list[_Trial] = []
    status = 0
    try:
        with ended_by_signals():
            for transport in args.transport:
                trials.append(_Trial(args, transport, probe, progress))
                with trials[-1] as trial:
                    trial.run()
    except KeyboardInterrupt:
        status = _INTERRUPTED
        progress.say("goccl bench put: interrupted")
    rows = [row for trial in trials for row in trial.rows]
    failures = [failure for trial in trials for failure in trial.failures]
    versions = {label: text for trial in trials for label, text in trial.versions.items()}
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if args.markdown:
        text = document(rows, facts, versions, failures)
        args.markdown.write_text(text, encoding="utf-8")
    return status or int(bool(failures))
