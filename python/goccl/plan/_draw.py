"""Programs as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from goccl.plan._program import Chunks, Move, Program

_MOST_RANKS = 64
_MOST_MOVES = 10_000

# In pixels.
_LEFT, _TOP, _RIGHT = 64, 76, 24
_STEP, _LANE, _BOX = 64, 40, 22
_COLOURS = {"copy": "#4e79a7", "reduce": "#f28e2b", "message": "#666666", "lane": "#dddddd"}
_MOST_LETTERS = 9  # in a box


@dataclass(frozen=True)
class _Box:
    """A move, in the lane of the rank that does it.

    Attributes:
        rank: Whose lane it is.
        kind: "copy" or "reduce".
        at: The step in which it is done.
        move: What it does.
    """

    rank: int
    kind: str
    at: int
    move: Move


@dataclass(frozen=True)
class _Arrow:
    """A message.

    Attributes:
        source, to: Ranks.
        at: When it leaves. It takes a step.
    """

    source: int
    to: int
    at: int


def draw(program: Program) -> str:
    """A program that is right, as the text of a picture: SVG. Equal programs have equal pictures.

    Raises:
        ValueError: It has more ranks or moves than can be seen.
    """
    if len(program.ranks) > _MOST_RANKS:
        raise ValueError(
            f"{program.name} has {len(program.ranks)} ranks; a picture has at most {_MOST_RANKS}"
        )
    if len(program.moves) > _MOST_MOVES:
        raise ValueError(
            f"{program.name} has {len(program.moves)} moves; a picture has at most {_MOST_MOVES}"
        )
    boxes, arrows = _schedule(program)
    last = max([box.at + 1 for box in boxes] + [arrow.at + 1 for arrow in arrows] + [1])
    return "\n".join(_lines(program, boxes, arrows, last)) + "\n"


def _schedule(program: Program) -> tuple[list[_Box], list[_Arrow]]:
    """When each move is done if a rank does its moves one by one, in their order, each in a step,
    and a message takes a step."""
    boxes: list[_Box] = []
    arrows: list[_Arrow] = []
    free = [0] * len(program.ranks)
    written: dict[tuple[int, str, int], int] = {}  # when a chunk can be read
    read: dict[tuple[int, str, int], int] = {}  # until when it is
    for move in program.moves:
        reduces = len(move.source) > 1
        rank = move.to[0].rank if reduces else move.source[0].rank
        at = free[rank]
        for place in move.source:
            at = max([at] + [written.get(c, 0) + (place.rank != rank) for c in _cells(place)])
        for place in move.to:
            for c in _cells(place):
                at = max(at, written.get(c, 0), read.get(c, 0))
        free[rank] = at + 1
        boxes.append(_Box(rank, "reduce" if reduces else "copy", at, move))
        for place in move.source:
            if place.rank != rank:
                arrows.append(_Arrow(place.rank, rank, at - 1))
            for c in _cells(place):
                read[c] = max(read.get(c, 0), at + 1)
        for place in move.to:
            if place.rank != rank:
                arrows.append(_Arrow(rank, place.rank, at + 1))
            for c in _cells(place):
                written[c] = at + 1 + (place.rank != rank)
    return boxes, arrows


def _cells(place: Chunks) -> Iterator[tuple[int, str, int]]:
    return ((place.rank, place.space, place.first + i) for i in range(place.count))


def _lines(
    program: Program, boxes: Sequence[_Box], arrows: Sequence[_Arrow], last: int
) -> Iterator[str]:
    """The lines of the picture."""
    ranks = len(program.ranks)
    width = max(_LEFT + last * _STEP + _RIGHT, 480)
    height = _TOP + ranks * _LANE + 16
    of = f"{program.collective.name} among {ranks} {'rank' if ranks == 1 else 'ranks'}"
    title = f"{program.name}: {of}"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-family="sans-serif" font-size="11">'
    )
    yield f"<title>{escape(title)}</title>"
    yield '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
    yield f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{_COLOURS["message"]}"/>'
    yield "</marker></defs>"
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield f'<text x="12" y="22" font-size="15" font-weight="bold">{escape(title)}</text>'
    yield from _legend()
    for rank in range(ranks):
        y = _middle(rank)
        yield f'<g class="lane"><text x="12" y="{y + 4}">rank {rank}</text>'
        yield (
            f'<line x1="{_LEFT}" y1="{y}" x2="{width - _RIGHT}" y2="{y}" '
            f'stroke="{_COLOURS["lane"]}" stroke-width="2"/></g>'
        )
    for arrow in arrows:
        x, up = _LEFT + arrow.at * _STEP, arrow.to < arrow.source
        start, end = _middle(arrow.source), _middle(arrow.to) + (_BOX // 2 if up else -_BOX // 2)
        yield (
            f'<line class="message" data-from="{arrow.source}" data-to="{arrow.to}" x1="{x}" '
            f'y1="{start}" x2="{x + _STEP}" y2="{end}" stroke="{_COLOURS["message"]}" '
            'stroke-opacity="0.7" marker-end="url(#head)"/>'
        )
    for box in boxes:
        yield from _box(box)
    yield "</svg>"


def _middle(rank: int) -> int:
    return _TOP + rank * _LANE + _LANE // 2


def _legend() -> Iterator[str]:
    x = 12
    for kind, text in (("copy", "copy"), ("reduce", "reduce")):
        yield f'<rect x="{x}" y="36" width="14" height="12" rx="2" fill="{_COLOURS[kind]}"/>'
        yield f'<text x="{x + 20}" y="46">{text}</text>'
        x += 80
    yield (
        f'<line x1="{x}" y1="42" x2="{x + 24}" y2="42" stroke="{_COLOURS["message"]}" '
        'marker-end="url(#head)"/>'
    )
    yield f'<text x="{x + 30}" y="46">message</text>'
    yield '<text x="12" y="66" fill="#666666">i, o, s: input, output, scratch. To the right: '
    yield "time. A move takes a step, and a message takes one.</text>"


def _box(box: _Box) -> Iterator[str]:
    move = box.move
    x, y = _LEFT + box.at * _STEP, _middle(box.rank) - _BOX // 2
    to = " ".join(_name(place, full=True) for place in move.to)
    source = " ".join(_name(place, full=True) for place in move.source)
    where = f"{move.line}: " if move.line else ""
    yield f"<g class={quoteattr(box.kind)}>"
    yield f"<title>{escape(f'{where}{box.kind} {source} to {to}')}</title>"
    yield (
        f'<rect x="{x + 2}" y="{y}" width="{_STEP - 4}" height="{_BOX}" rx="3" '
        f'fill="{_COLOURS[box.kind]}"/>'
    )
    label = _name(move.source[0]) if box.kind == "copy" else f"Σ{len(move.source)}"
    label += f"→{_name(move.to[0])}"
    if len(label) > _MOST_LETTERS:
        label = box.kind
    yield (
        f'<text x="{x + _STEP // 2}" y="{y + 15}" text-anchor="middle" '
        f'fill="#ffffff">{escape(label)}</text></g>'
    )


def _name(place: Chunks, full: bool = False) -> str:
    """A place as "o3", or "o0:4" of chunks 0 to 3; full: with its rank."""
    name = f"{place.space[0]}{place.first}"
    if place.count > 1:
        name += f":{place.first + place.count}"
    return f"{place.rank}.{name}" if full else name
