"""Programs: their moves, their check, their files."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, SupportsIndex

from goccl import _capi, _simulate
from goccl.plan import _collectives, _draw
from goccl.plan._collectives import Collective

FORMAT = "goccl.plan/1"
_HERE = str(Path(__file__).parent)


@dataclass(frozen=True)
class Chunks:
    """Chunks in succession of one memory of a rank.

    Attributes:
        rank: Whose they are.
        space: "input", "output" or "scratch".
        first: The first of them, counted from 0.
        count: How many they are.
    """

    rank: int
    space: str
    first: int
    count: int


class Memory:
    """The input, the output or the scratch memory of a rank. `memory[a]` is one chunk of it, and
    `memory[a:b]` those from a to b - 1. A rank may stand for its number.

    Attributes:
        rank: Whose it is.
        space: "input", "output" or "scratch".
    """

    def __init__(self, rank: int, space: str, chunks: int) -> None:
        self.rank, self.space, self._chunks = rank, space, chunks

    def __len__(self) -> int:
        return self._chunks

    def __getitem__(self, index: SupportsIndex | slice) -> Chunks:
        if isinstance(index, slice):
            if index.step not in (None, 1):
                raise ValueError(f"the step of a slice of chunks is {index.step}; it must be 1")
            first = 0 if index.start is None else index.start.__index__()
            end = self._chunks if index.stop is None else index.stop.__index__()
        else:
            first = index.__index__()
            end = first + 1
        if not 0 <= first < end <= self._chunks:
            raise IndexError(
                f"{self.space}[{first}:{end}] of rank {self.rank}: there are {self._chunks} "
                "chunks, counted from 0, and one at least must be taken"
            )
        return Chunks(self.rank, self.space, first, end - first)


class Rank:
    """A rank of a program. Where a chunk is asked for it stands for its number.

    Attributes:
        number: Which it is, counted from 0.
        input, output, scratch: Its memory.
    """

    def __init__(self, program: Program, number: int) -> None:
        self._program, self.number = program, number
        self.input = Memory(number, "input", program.inputs)
        self.output = Memory(number, "output", program.outputs)
        self.scratch = Memory(number, "scratch", program.scratch)

    def __index__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"rank {self.number}"

    @property
    def others(self) -> tuple[Rank, ...]:
        """The other ranks, beginning with the one after this, so that no peer is crowded."""
        ranks = self._program.ranks
        return ranks[self.number + 1 :] + ranks[: self.number]


@dataclass(frozen=True)
class Facts:
    """What `Program.verify` has found.

    Attributes:
        name, collective, ranks: The program's.
        digest: SHA-256 of what it does: its name and its lines do not count.
        in_place, out_of_place: In which form it is right as it is written. It runs in both.
        order: "canonical": sums have the bits of goccl's other algorithms; else "plan".
        same_bits: Whether all ranks get the same bits.
        bytes: The length of a rank's larger buffer for which its plans were proved.
        steps, messages, scratch_bytes: What the rank with most of them has.
    """

    name: str
    collective: str
    ranks: int
    digest: str
    in_place: bool
    out_of_place: bool
    order: str
    same_bits: bool
    bytes: int
    steps: int
    messages: int
    scratch_bytes: int


@dataclass(frozen=True)
class Move:
    """A copy or a reduction. `line` is where it was written."""

    to: tuple[Chunks, ...]
    source: tuple[Chunks, ...]
    line: str


class Program:
    """A collective as moves of all ranks, in one order: each sees what those before it have
    written.

    Args:
        name: At most 64 printable ASCII characters.
        collective: What it does, as `AllReduce()` or `Reduce(root=2)`.
        ranks: For how many ranks it is: 1 to 4096.
        chunks: Chunks of a block: see the package. Without effect on `Custom`.
        scratch: Chunks of scratch memory of a rank, each as long as the longest chunk.
        order: "canonical", or "plan": sums of floats may have bits of their own.
        bytes: For which lengths of a rank's larger buffer it is meant, both inclusive.
        per_host: For how many ranks on each host it is meant; 0: for any.

    Attributes:
        ranks: The ranks, in order.
        inputs, outputs, scratch: How many chunks of each a rank has.
        moves: What was said so far.
    """

    def __init__(
        self,
        name: str,
        collective: Collective,
        *,
        ranks: int,
        chunks: int = 1,
        scratch: int = 0,
        order: str = "canonical",
        bytes: tuple[int, int] | None = None,  # noqa: A002
        per_host: int = 0,
    ) -> None:
        if not isinstance(collective, Collective):
            raise TypeError(f"collective is {collective!r}; it must be an object, as AllReduce()")
        _check_order(order)
        for what, value, least in (
            ("ranks", ranks, 1),
            ("chunks", chunks, 1),
            ("scratch", scratch, 0),
            ("per_host", per_host, 0),
            ("root", collective.root, 0),
        ):
            if value < least:
                raise ValueError(f"{what} is {value}; it must be {least} or more")
        self.name, self.collective, self.order = name, collective, order
        self.bytes, self.per_host = bytes, per_host
        self.inputs, self.outputs = collective.sizes(ranks, chunks)
        self.scratch = scratch
        self.moves: list[Move] = []
        self._kept: tuple[object, Checked] | None = None
        self.ranks: tuple[Rank, ...] = ()
        self.ranks = tuple(Rank(self, r) for r in range(ranks))

    def copy(self, dst: Chunks | Sequence[Chunks], src: Chunks) -> None:
        """Copies chunks to one place or to several, each of as many chunks.

        Example: `p.copy(peer.scratch[0:2], me.input[2:4])`
        """
        if not isinstance(src, Chunks):
            raise TypeError(f"src is {_kind(src)}; it must be chunks, as me.input[0:2]")
        self._add(dst, [src])

    def reduce(self, dst: Chunks | Sequence[Chunks], srcs: Sequence[Chunks]) -> None:
        """Reduces chunks with the op of the call. The rank of the first destination does it, and
        the result goes to all of them. In which order `srcs` are given does not count, but in a
        `Custom` collective.

        Example: `p.reduce(me.output[0], [r.input[0] for r in p.ranks])`
        """
        if isinstance(srcs, Chunks):
            raise TypeError("srcs is Chunks; it must be a list of chunks, as [me.input[0]]")
        self._add(dst, srcs)

    def _add(self, dst: Chunks | Sequence[Chunks], srcs: Sequence[Chunks]) -> None:
        if isinstance(dst, Chunks):
            dst = (dst,)
        for what, given in (("dst", dst), ("srcs", srcs)):
            if not isinstance(given, Sequence):
                raise TypeError(f"{what} is {_kind(given)}; it must be chunks, as me.output[0:2]")
            for one in given:
                if not isinstance(one, Chunks):
                    raise TypeError(
                        f"{what} has {_kind(one)}; it must have chunks, as me.output[0:2]"
                    )
        self.moves.append(Move(tuple(dst), tuple(srcs), _line()))

    def text(self) -> str:
        """The program as the text of a file, checked.

        Raises:
            ValueError: It is not right. The text says which statement is wrong, where it stands,
                and what is there and what must be.
        """
        return self._checked().text()

    def verify(self, bytes: int = 64 << 10) -> Facts:  # noqa: A002
        """Checks the program, and proves the plans that are made of it.

        Args:
            bytes: Of a rank's larger buffer, about. The check itself is for all lengths.

        Raises:
            ValueError: As `text` does; or `bytes` is no such number.
        """
        if not isinstance(bytes, int) or not 0 <= bytes < 1 << 63:
            raise ValueError(f"bytes is {bytes!r}; it must be a number in 0..{(1 << 63) - 1}")
        return Facts(**_capi.call("goccl_program_verify", self._checked().handle, bytes))

    def simulate(
        self,
        bytes: int = 64 << 10,  # noqa: A002
        per_host: int | None = None,
        net: str = "",
        *,
        trace: str | os.PathLike[str] = "",
        goal: str | os.PathLike[str] = "",
    ) -> dict[str, Any]:
        """Runs the plans that are made of the program in virtual time: nothing is sent.

        Args:
            bytes: Of a rank's larger buffer.
            per_host: Ranks on each host, each with a CPU. Default: all on one host.
            net: What joins the hosts, as "star:25g", "fat-tree:25g,leaf=16,taper=2" or
                "rail:8x200g"; or a file "NAME.json" of switches and links.
            trace: A file to write: what each rank does when, for ui.perfetto.dev. Default: none.
            goal: A file to write: what each rank does, as GOAL for LogGOPSim. Default: none.

        Returns:
            What goccl_simulate() in goccl.h tells: "last_us", "critical_path" and more.

        Raises:
            ValueError: As `text` does; or an argument is wrong.
            OSError: The file of the network cannot be read.
            goccl.Error: A file cannot be written.
        """
        request = {
            "program": json.loads(self._json()),
            "bytes": bytes,
            "ranks_per_host": per_host or 0,
            "net": _simulate.read_net(net),
            "trace": os.fspath(trace),
            "goal": os.fspath(goal),
        }
        found: dict[str, Any] = _capi.call("goccl_simulate", json.dumps(request).encode())
        return found

    def export(self, format: str) -> str:  # noqa: A002
        """The program as the text of a file that others read, too.

        Args:
            format: "goccl", as `save` writes it, or "mscclpp": a plan of MSCCL++ 0.9, which has a
                block of threads for each rank, and memory channels between them.

        Raises:
            ValueError: As `text` does; or MSCCL++ has no such collective, as it has none with a
                root, or no room for as many ranks or moves.

        Example: `Path("two_shot.json").write_text(p.export("mscclpp"))`
        """
        handle = self._checked().handle
        return _capi.text("goccl_program_export", handle, str(format).encode())

    def draw(self, path: str | os.PathLike[str] | None = None) -> str:
        """Draws the program: SVG, with a lane for each rank, its moves as boxes, and the messages
        between ranks as arrows. Equal programs have equal pictures.

        Args:
            path: A file that it is written to, too.

        Raises:
            ValueError: As `text` does; or there are more than 64 ranks, or 10,000 moves.
            OSError: The file cannot be written.
        """
        self.text()  # which refuses what is not right
        picture = _draw.draw(self)
        if path is not None:
            Path(path).write_text(picture, encoding="utf-8")
        return picture

    def save(self, path: str | os.PathLike[str]) -> None:
        """Checks the program, and writes it to a file. Equal programs have equal files.

        Raises:
            ValueError: As `text` does.
            OSError: The file cannot be written.
        """
        Path(path).write_text(self.text(), encoding="utf-8")

    def _checked(self) -> Checked:
        """The library's program. It is kept as long as this one stays as it is."""
        now = (len(self.moves), self.name, self.collective, self.order, self.bytes, self.per_host)
        if self._kept is None or self._kept[0] != now:
            self._kept = now, Checked(self._json().encode())
        return self._kept[1]

    def _json(self) -> str:
        head: dict[str, Any] = {
            "format": FORMAT,
            "name": self.name,
            "collective": self.collective.name,
            "ranks": len(self.ranks),
            "root": self.collective.root,
            "chunks": {"in": self.inputs, "out": self.outputs, "scratch": self.scratch},
            "order": self.order,
            "per_host": self.per_host,
        }
        if self.bytes is not None:
            head["bytes"] = {"min": self.bytes[0], "max": self.bytes[1]}
        head["moves"] = [
            {"to": _places(m.to), "from": _places(m.source), "line": m.line} for m in self.moves
        ]
        return json.dumps(head)


def load(path: str | os.PathLike[str], *, order: str | None = None) -> Program:
    """Reads a program from a file, and checks it. The file may also be an execution plan of
    MSCCL++, as JSON of 0.5 or later, or an algorithm of MSCCL, as XML.

    Args:
        path: Of the file.
        order: "canonical" or "plan": the program's order, as `Program` has it. Default: what the
            file says, and "canonical" where it is of another library.

    Raises:
        ValueError: The file is no program, or one that is not right. The text says what is wrong,
            and where: of which rank, block and op where the file is of another library.
        OSError: The file cannot be read.
    """
    if order is not None:
        _check_order(order)
    return _program(Checked(Path(path).read_bytes()).text(), order)


def builtin(
    collective: Collective,
    ranks: int,
    bytes: int = 64 << 10,  # noqa: A002
    *,
    algorithm: str = "",
    per_host: int | None = None,
    transport: str = "shm",
) -> Program:
    """What goccl does by itself, as a program. It is right for all lengths, and its sums have the
    same bits.

    Args:
        collective: As `AllReduce()`, but for `Custom`.
        ranks: For how many: 1 to 4096.
        bytes: Of a rank's larger buffer, of float32, for which the algorithm is chosen.
        algorithm: As in `GOCCL_ALGO`: "two_shot", "hierarchical(8,4)". Default: as is chosen.
        per_host: Ranks on each host. The program is then meant for as many. Default: all.
        transport: What joins the ranks of a host: "shm", "tcp" or "verbs".

    Raises:
        ValueError: An argument is wrong, or the algorithm is not to be had.

    Example: `plan.builtin(plan.AllReduce(), 8, 1 << 20, algorithm="two_shot").draw("out.svg")`
    """
    request = {
        "collective": collective.name,
        "ranks": ranks,
        "bytes": bytes,
        "algorithm": algorithm,
        "ranks_per_host": per_host or 0,
        "transport": transport,
        "root": collective.root,
    }
    return _program(_capi.text("goccl_program_builtin", json.dumps(request).encode()))


def _program(text: str, order: str | None = None) -> Program:
    """The program of a text that goccl has written, maybe with another order."""
    made = json.loads(text)
    chunks = made["chunks"]
    bounds = made.get("bytes")
    program = Program(
        made["name"],
        _collective(made["collective"], made.get("root", 0), chunks["in"], chunks["out"]),
        ranks=made["ranks"],
        scratch=chunks["scratch"],
        order=order or made.get("order", "canonical"),
        bytes=None if bounds is None else (bounds["min"], bounds.get("max", 0)),
        per_host=made.get("per_host", 0),
    )
    program.inputs, program.outputs = chunks["in"], chunks["out"]
    program.ranks = tuple(Rank(program, r) for r in range(made["ranks"]))
    every = range(made["ranks"]) if made.get("symmetric") else range(1)
    for m in made["moves"]:
        for r in every:
            to, source = (
                tuple(_chunks(place, r, made["ranks"]) for place in m[end])
                for end in ("to", "from")
            )
            program.moves.append(Move(to, source, m.get("line", "")))
    return program


class Checked:
    """A program of the library, read from the text of a file. It never changes.

    Attributes:
        handle: a goccl_program, valid as long as this object is there.
    """

    def __init__(self, text: bytes) -> None:
        handle = ctypes.c_uint64()
        library = _capi.library()
        _capi.check(library.goccl_program_load(text, len(text), ctypes.byref(handle)))
        self.handle = handle.value
        weakref.finalize(self, library.goccl_program_free, self.handle).atexit = False

    def text(self) -> str:
        """Returns its text as goccl_program_text() writes it."""
        return _capi.text("goccl_program_text", self.handle)


def _check_order(order: str) -> None:
    if order not in ("canonical", "plan"):
        raise ValueError(f'order is {order!r}; it must be "canonical" or "plan"')


def _kind(given: object) -> str:
    """What was given in place of chunks, for an error."""
    return type(given).__name__


def _collective(name: str, root: int, inputs: int, outputs: int) -> Collective:
    """The collective of a name."""
    if name == "custom":
        return _collectives.Custom(inputs, outputs)
    return _collectives.named(name, root)


_SPACES = {"input": "i", "output": "o", "scratch": "s"}


def _places(all_chunks: tuple[Chunks, ...]) -> list[list[Any]]:
    return [[c.rank, _SPACES[c.space], c.first, c.count] for c in all_chunks]


def _chunks(place: list[Any], rank: int, ranks: int) -> Chunks:
    """The chunks of a place in a file, which of a symmetric one is relative to a rank."""
    peer, letter, chunk, count = place
    if isinstance(chunk, list):
        chunk = (rank + chunk[1]) % ranks * count
    space = next(space for space, known in _SPACES.items() if known == letter)
    return Chunks((rank + peer) % ranks, space, chunk, count)


def _line() -> str:
    """Where the statement stands that is being made: the first line outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    if frame is None:
        return ""
    line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return line if line.isascii() and line.isprintable() and len(line) <= 256 else ""
