"""Checks the prose of the documentation: the width of lines, the length of sentences, and words.

Tables, code, the targets of links and what `make pages` writes do not count. `make lint` runs it.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("*.md", "docs/**/*.md")

COLUMNS = 100
WORDS = 40
# What a reader has to read twice, and what says it at once; in pages for users, but for headings.
PLAIN = {
    "anew": "again",
    "told": "gets an error, is reported, is set",
    "goes by": "uses",
    "go by": "use",
    "of which": "a sentence of its own",
    "none the less": "nothing, or but",
}
INTERNAL = ("docs/design/", "CHANGELOG.md")

FENCE = re.compile(r"\s*(`{3,}|~{3,})")
TABLE = re.compile(r"\s*\|")
# What begins a paragraph of its own: a heading, an item, a quotation, a directive, a label.
BEGIN = re.compile(r"\s*(#{1,6}\s|[-*+]\s|\d+[.)]\s|>|:::|\([\w-]+\)=$)")
TARGET = re.compile(r"\]\([^)\s]*\)|\]\[[^]]*\]|<https?://[^>]*>|https?://\S+")
MADE, END = "<!-- make pages:", "<!-- end -->"
DEFINITION = re.compile(r"\s*\[[^]]+\]:\s")  # [name]: target
SENTENCE = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`])")


def prose(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The lines that are prose, with their numbers; an empty one wherever something else stands."""
    fence, comment, made = "", False, False
    front_matter = bool(lines) and lines[0] == "---"
    for number, line in enumerate(lines, 1):
        skip = front_matter or comment or made or bool(fence)
        found = FENCE.match(line)
        if front_matter:
            front_matter = number == 1 or line != "---"
        elif made or line.startswith(MADE):
            skip, made = True, line != END
        elif fence:
            if found and line.strip() == found[1] and found[1].startswith(fence):
                fence = ""
        elif comment or line.lstrip().startswith("<!--"):
            skip, comment = True, "-->" not in line
        elif found:
            skip, fence = True, found[1]
        yield number, "" if skip or TABLE.match(line) or DEFINITION.match(line) else line


def paragraphs(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Paragraphs, items and headings as one line each, with the number of their first."""
    first, text = 0, ""
    for number, line in [*prose(lines), (0, "")]:
        begins = BEGIN.match(line)
        if text and (begins or not line.strip() or text.lstrip().startswith("#")):
            yield first, text
            text = ""
        if line.strip():
            first, text = (
                (first, f"{text} {line.strip()}") if text else (number, BEGIN.sub("", line))
            )
            text = text or " "


def faults(text: str, words_too: bool = True) -> Iterator[str]:
    """What breaks the rules in a document, a line each. words_too: it is a page for users."""
    lines = text.splitlines()
    unplain = re.compile(rf"\b({'|'.join(PLAIN)})\b", re.I)
    for number, line in prose(lines):
        width = len(TARGET.sub("]", line))
        if width > COLUMNS:
            yield f"{number}: {width} columns; at most {COLUMNS} are allowed"
    for number, paragraph in paragraphs(lines):
        plain = TARGET.sub("]", re.sub(r"(`+).*?\1", "code", paragraph))
        for sentence in SENTENCE.split(plain):
            for word in unplain.findall(sentence) if words_too else ():
                if not lines[number - 1].startswith("#"):
                    yield f'{number}: "{word}" is read twice; plainer: {PLAIN[word.lower()]}'
            words = len(re.findall(r"\S*\w\S*", sentence))
            if words > WORDS:
                start = " ".join(sentence.split()[:6])
                yield f'{number}: "{start} …" has {words} words; at most {WORDS} are allowed'


def main() -> int:
    """Checks every document; returns the exit status."""
    documents = sorted({path for pattern in FILES for path in ROOT.glob(pattern)})
    bad = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in documents
        for fault in faults(path.read_text(), not str(path.relative_to(ROOT)).startswith(INTERNAL))
    ]
    print("\n".join(bad) or f"{len(documents)} documents")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
