"""What makers of pages share: anchors, and text that is no Markdown yet."""

from __future__ import annotations

import re
from collections.abc import Callable


def anchor(heading: str) -> str:
    """The anchor that GitHub, and Sphinx here, give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def outside_code(text: str, make_code: Callable[[str], str] = lambda piece: piece) -> str:
    """Text with what Markdown would take for its own escaped.

    Args:
        text: of a comment or a docstring; what is in backticks is code already.
        make_code: adds more code, with backticks, to what is between.
    """
    pieces = re.split(r"(`[^`]+`)", text)
    marked = "".join(piece if piece[:1] == "`" else make_code(piece) for piece in pieces)
    pieces = re.split(r"(\[?`[^`]+`(?:\]\(#[^)]*\))?)", marked)
    return "".join(piece if "`" in piece else escaped(piece) for piece in pieces)


def escaped(text: str) -> str:
    """Text in which no character makes emphasis, a link or a tag. Pairs of ** are bold."""
    return re.sub(
        r"(?<!\*)\*(?!\*)|[<\[]|(?<!\w)_|(?m:^)[>#+]", lambda found: "\\" + found[0], text
    )
