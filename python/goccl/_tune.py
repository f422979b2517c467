"""`goccl tune`: the sizes at which one algorithm should give way to another, and what messages
cost, measured on this host."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from goccl._command import (
    GOCCL_TRANSPORTS,
    Progress,
    add_examples,
    draft,
    is_stream,
    missing,
    output_file,
    unwritable,
    write_anew,
)
from goccl._ranks.collectives import ITEMSIZE, call_of, element_count
from goccl._ranks.group import RankGroup, iterations_of
from goccl._ranks.libraries import Unavailable, core_library
from goccl._ranks.processes import GroupFailure

VARIABLE = "GOCCL_THRESHOLDS"
LINKS = "GOCCL_LINKS"

_NEVER, _ALWAYS = 0, 1 << 62
_BLOCK_SECONDS = 0.03
_MOST_SECONDS = 86400


@dataclass(frozen=True)
class Threshold:
    """A size at which an algorithm gives way to another.

    small, large: the value with which the algorithm for small (large) messages runs at every size.
    also: the values of other thresholds meanwhile, so that they do not hide this one.
    least_ranks: with fewer both algorithms are the same.
    least, most: the sizes that are measured, in bytes, are the powers of two between them.
    of_slice: it is compared with what goes to one rank, not with the whole.
    shm_only: where ranks share no memory both algorithms are the same.
    """

    name: str
    collective: str
    small: int
    large: int
    what: str
    also: str = ""
    least_ranks: int = 2
    least: int = 1 << 10
    most: int = 4 << 20
    of_slice: bool = False
    shm_only: bool = False

    @property
    def sizes(self) -> list[int]:
        """The sizes that are measured, in bytes."""
        return [1 << e for e in range(self.least.bit_length() - 1, self.most.bit_length())]


THRESHOLDS = (
    Threshold("one_shot_max", "allreduce", _ALWAYS, _NEVER, "every rank sends all to every rank"),
    Threshold(
        "flat_max",
        "broadcast",
        _ALWAYS,
        _NEVER,
        "the root itself sends to every rank",
        "multicast_min=0",
        least_ranks=3,
    ),
    Threshold(
        "multicast_min",
        "allgather",
        _NEVER,
        1,
        "a block is written once for each rank that is to have it",
        least_ranks=3,
        of_slice=True,
        shm_only=True,
    ),
    Threshold(
        "swap_min",
        "alltoall",
        _NEVER,
        1,
        "what two ranks send each other goes each way in slots of its own",
        "get_min=0",
        of_slice=True,
        shm_only=True,
    ),
    # The other way round: what is as long as the threshold is already cut.
    Threshold(
        "pipeline_min",
        "allreduce",
        _NEVER,
        1,
        "what goes to a rank is one message",
        "one_shot_max=0",
        of_slice=True,
        most=512 << 10,  # what is longer is several messages anyway
    ),
    Threshold(
        "get_min",
        "alltoall",
        _NEVER,
        1,
        "what goes to a rank is copied into a window and out of it",
        of_slice=True,
        least=1 << 20,
        most=64 << 20,
        shm_only=True,
    ),
    Threshold(
        "send_get_min",
        "sendrecv",
        _NEVER,
        1,
        "a send is copied into a mailbox or a window and out of it",
        least=16 << 10,
        most=64 << 20,
        shm_only=True,
    ),
    Threshold(
        "send_pipe_min",
        "pingpong",
        _NEVER,
        1,
        "a send is copied into a mailbox or a window, and then out of it",
        "send_get_min=0",
        least=8 << 10,
        shm_only=True,
    ),
    Threshold(
        "stream_min",
        "alltoall",
        _ALWAYS,
        0,
        "outputs are written through the caches",
        "get_min=0",
        least=1 << 20,
        most=64 << 20,
    ),
)


def best_cut(ratios: Sequence[float]) -> int:
    """How many of the sizes, from the smallest on, the algorithm for small messages should have.

    ratios: by size, the time of that algorithm over the time of the other one. The cut is where all
    sizes together, each counted by the logarithm of its time, take the least; of equal ones the
    last.
    """
    cost = [0.0]
    for ratio in ratios:
        cost.append(cost[-1] + math.log(ratio))
    least = min(cost)
    return max(i for i, c in enumerate(cost) if c <= least + 1e-12)


def value(threshold: Threshold, cut: int, ranks: int) -> int:
    """The threshold with which the algorithm for small messages has so many of the sizes."""
    measured = threshold.sizes
    if threshold.name.endswith("_min"):
        if cut == len(measured):
            return threshold.small
        return measured[cut] // ranks if threshold.of_slice else measured[cut]
    return measured[cut - 1] if cut else 0


class _Pair:
    """The ranks of both algorithms. Use as a context manager."""

    def __init__(self, threshold: Threshold, transport: str, ranks: int, timeout: float) -> None:
        self._stack = contextlib.ExitStack()
        self._timeout = timeout
        self.groups: list[RankGroup] = []
        with contextlib.ExitStack() as stack:
            for setting in (threshold.small, threshold.large):
                library = core_library(transport)
                text = ",".join(filter(None, (f"{threshold.name}={setting}", threshold.also)))
                library = replace(library, environment=library.environment | {VARIABLE: text})
                self.groups.append(stack.enter_context(RankGroup(library, ranks, timeout)))
            self._stack = stack.pop_all()

    def __enter__(self) -> _Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ratio(self, collective: str, count: int, blocks: int) -> tuple[float, float, float]:
        """Median times in us of both, and the median of their ratios.

        The ratios are those of neighbouring turns: what the machine does meanwhile meets both.
        """
        iterations = []
        for group in self.groups:
            group.prepare(call_of(collective, group.ranks, count))
            iterations.append(iterations_of(group, _BLOCK_SECONDS, self._timeout))
        times: list[list[float]] = [[], []]
        for block in range(blocks):
            for which in ((0, 1), (1, 0))[block % 2]:
                measured, wrong, _ = self.groups[which].block(
                    iterations[which], 2, block, self._timeout
                )
                if wrong:
                    raise GroupFailure(f"{collective}: {wrong} wrong elements")
                times[which].append(median(measured) / 1000)
        ratio = median(a / b for a, b in zip(*times, strict=True))
        return median(times[0]), median(times[1]), ratio


def measure(
    transport: str, ranks: int, blocks: int, timeout: float, progress: Progress
) -> Iterator[tuple[Threshold, list[tuple[int, float, float, float]]]]:
    """Each threshold that matters, with (bytes, us of the small algorithm, of the other, ratio)."""
    for threshold in THRESHOLDS:
        if ranks < threshold.least_ranks or (threshold.shm_only and transport != "shm"):
            continue
        rows = []
        with _Pair(threshold, transport, ranks, timeout) as pair:
            for nbytes in threshold.sizes:
                progress.step(f"{threshold.name}, {transport}, {ranks} ranks: {nbytes} bytes")
                count = element_count(threshold.collective, ranks, nbytes, ITEMSIZE["float32"])
                rows.append((nbytes, *pair.ratio(threshold.collective, count, blocks)))
        progress.clear()
        yield threshold, rows


_LINK_KINDS = {"shm": "memory", "tcp": "loopback", "verbs": "verbs"}
_LONG = 1 << 20  # bytes of which the cost of a byte is found
_MESSAGES = 4  # into which pipeline_min cuts what is one
_PHASES = 2  # of an allreduce by slices

_CUT = Threshold("pipeline_min", "allreduce", _NEVER, 1, "", "one_shot_max=0")


def link(small: float, long: float, whole: float, cut: float) -> tuple[int, int, int]:
    """What a message costs, by LogGP.

    Args:
        small: microseconds in which two ranks exchange a few bytes.
        long: that in which they exchange as many that each sends half of `_LONG`.
        whole: that of an allreduce in which each sends two short messages.
        cut: that of one in which each of them is cut into `_MESSAGES`.

    Returns:
        The latency and the overhead at each end in nanoseconds, and the gap in picoseconds a byte.
    """
    more = 2 * _PHASES * (_MESSAGES - 1)  # ends of messages at a rank
    overhead = max((cut - whole) / more, 0.0)
    latency = max(small - 2 * overhead, 0.0)
    gap = max((long - small) / (_LONG // 2), 0.0)
    return round(1e3 * latency), round(1e3 * overhead), round(1e6 * gap)


def measure_link(
    transport: str, blocks: int, timeout: float, progress: Progress
) -> tuple[int, int, int]:
    """Measures what a message between two ranks costs; see `link`."""
    progress.step(f"a message, {transport}")
    with _Pair(_CUT, transport, 2, timeout) as pair:
        small, *_ = pair.ratio("allgather", 2, blocks)
        long, *_ = pair.ratio("allgather", _LONG // ITEMSIZE["float32"], blocks)
        # So short that nearly all of it is messages, and long enough to be cut, at cache lines.
        short = 2 * _MESSAGES * 64 // ITEMSIZE["float32"]
        whole, _, ratio = pair.ratio("allreduce", short, blocks)
    progress.clear()
    return link(small, long, whole, whole / ratio)


def set_in(text: str, settings: Mapping[str, str]) -> str:
    """Sets variables in the text of a file of settings; its other lines stay.

    Args:
        text: of the file.
        settings: the values, by the names of the variables.
    """
    # Not splitlines(), which knows more ends of lines than the library that reads the file.
    lines = text.removesuffix("\n").split("\n") if text else []
    kept = [line for line in lines if line.split("=")[0].strip() not in settings]
    return "\n".join([*kept, *(f"{name}={value}" for name, value in settings.items()), ""])


def _unusable(path: Path | None) -> str:
    """Why a file of settings could not be read or written after the measurement; or ""."""
    if path is None:
        return ""
    try:
        _text(path)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        return f"{path} is no text: {error}"
    return unwritable(path, draft(path))


def _text(path: Path) -> str:
    # Without the mark of UTF-8 that some editors write, which would hide the first name.
    there = path.is_file() and not is_stream(path)
    return path.read_text(encoding="utf-8-sig") if there else ""


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Sets variables in a file of settings.

    Args:
        path: of the file. It is made where it is not there.
        settings: the values, by the names of the variables.

    Raises:
        OSError: the file cannot be read or written. It is as it was.
        UnicodeDecodeError: it is no text.
    """
    write_anew(path, set_in(_text(path), settings))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the command."""
    add_examples(
        parser,
        [
            "goccl tune",
            "goccl tune --ranks 8 --transport tcp",
            "goccl tune --output ~/.goccl.conf",
        ],
        {0: "all was measured", 1: "a measurement failed", 2: "wrong arguments"},
    )
    parser.add_argument("--ranks", type=int, default=2, help="2 to 64 (default 2)")
    parser.add_argument(
        "--transport",
        choices=GOCCL_TRANSPORTS,
        default="shm",
        help="what joins the ranks (default shm)",
    )
    parser.add_argument(
        "--blocks", type=int, default=9, help="turns of each algorithm at a size (default 9)"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds for one turn (default 60)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE",
        help=f"also set {VARIABLE} and {LINKS} in this file of settings, such as ~/.goccl.conf;"
        " its other lines stay",
    )


def main(options: argparse.Namespace) -> int:
    """Runs the command and returns its exit status: 0; 1 if a measurement failed; 2 for bad
    options."""
    if not 2 <= options.ranks <= 64:
        print(f"goccl tune: --ranks is {options.ranks}, allowed are 2 to 64", file=sys.stderr)
        return 2
    if not 1 <= options.blocks <= 1000:
        print(f"goccl tune: --blocks is {options.blocks}, allowed are 1 to 1000", file=sys.stderr)
        return 2
    if not 0 < options.timeout <= _MOST_SECONDS:
        allowed = f"it must be more than 0, and at most {_MOST_SECONDS}"
        print(f"goccl tune: --timeout is {options.timeout:g}, {allowed}", file=sys.stderr)
        return 2
    if problem := missing("numpy", "NumPy"):
        print(f"goccl tune: {problem}", file=sys.stderr)
        return 1
    progress = Progress(sys.stderr)
    if problem := _unusable(options.output):
        progress.say(f"goccl tune: {problem}")
        return 1
    found: dict[str, int] = {}
    try:
        for threshold, rows in measure(
            options.transport, options.ranks, options.blocks, options.timeout, progress
        ):
            cut = best_cut([ratio for *_, ratio in rows])
            found[threshold.name] = value(threshold, cut, options.ranks)
            where = f"{options.transport}, {options.ranks} ranks, float32"
            print(f"# {threshold.name}: {threshold.collective}, {where}. Small: {threshold.what}.")
            print(f"#{'bytes':>11} {'small us':>11} {'large us':>11} {'small/large':>12}  best")
            for i, (nbytes, small, large, ratio) in enumerate(rows):
                best = "small" if i < cut else "large"
                print(f"{nbytes:12} {small:11.2f} {large:11.2f} {ratio:12.2f}  {best}")
        figures = measure_link(options.transport, options.blocks, options.timeout, progress)
    except (GroupFailure, OSError, Unavailable) as error:
        progress.clear()
        if isinstance(error, BrokenPipeError):  # the reader's of the table
            raise
        progress.say(f"goccl tune: {error}")
        return 1
    except KeyboardInterrupt:
        progress.say("goccl tune: interrupted")
        return 130
    settings = {
        VARIABLE: ",".join(f"{name}={n}" for name, n in found.items()),
        LINKS: f"{_LINK_KINDS[options.transport]}={':'.join(map(str, figures))}",
    }
    print("# On all ranks:")
    for name, given in settings.items():
        print(f"export {name}={given}")
    if options.output:
        try:
            write_settings(options.output, settings)
        except OSError as error:
            progress.say(f"goccl tune: {options.output} cannot be written: {error.strerror}")
            return 1
        print(f"# They are in {options.output}.")
    return 0
