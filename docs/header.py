"""The page of the C API, from the comments of goccl.h."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from prose import anchor, outside_code

ROOT = Path(__file__).resolve().parents[1]
TITLE = re.compile(r"/\* -{4} (.*?) -+(?: \*/|\n)")
COMMENT = re.compile(r"\A/\*.*?\*/\n?", re.S)
NAME = re.compile(r"\bgoccl_(?:\w|<name>)+(?:\([^()\n]*\))?|\bGOCCL_\w+|\*[a-z]\w*")


@dataclass
class Entry:
    """What a comment is of: declarations that stand together."""

    comment: str
    declarations: str
    functions: list[str]
    names: list[str]


@dataclass
class Section:
    title: str
    intro: str
    entries: list[Entry] = field(default_factory=list)


def plain(comment: str) -> str:
    """The text of a comment."""
    text = re.sub(r"\A/\*+\n?|\s*\*/\s*\Z", "", comment)
    return re.sub(r"^ \*(?: |$)|^ (?=\S)", "", text, flags=re.M).strip("\n")


def entry(chunk: str) -> Entry:
    found = COMMENT.match(chunk)
    comment, rest = (found[0], chunk[found.end() :]) if found else ("", chunk)
    code = re.sub(r"/\*.*?\*/", "", rest, flags=re.S)
    functions = re.findall(r"^\w[\w ]*[ *](goccl_\w+)\(", code, re.M)
    types = re.findall(r"^(?:} |typedef .*?\(?\*?)(goccl_\w+)(?:;|\))", code, re.M)
    constants = re.findall(r"^#define (GOCCL_\w+)|\b(GOCCL_\w+) =", code, re.M)
    names = functions + types or [first or second for first, second in constants]
    return Entry(plain(comment), rest.strip("\n"), functions, names)


def sections(text: str) -> tuple[str, list[Section]]:
    """The comment of the whole header, and its sections."""
    intro = COMMENT.match(text)
    assert intro
    start = text.find("#define GOCCL_VERSION_MAJOR")
    if start < 0:  # in a header that goes with goccl.h
        start = text.index("\n\n", text.index('extern "C" {'))
    body = text[start : text.index("#ifdef __cplusplus", start)]
    found = [Section("Versions", "")]
    for chunk in re.split(r"\n\n+", body.strip("\n")):
        title = TITLE.match(chunk)
        if title:
            found.append(Section(title[1].capitalize(), plain(chunk[title.end() :])))
        else:
            found[-1].entries.append(entry(chunk))
    return plain(intro[0]), [section for section in found if section.entries]


def headings(each: Entry) -> list[tuple[str, str]]:
    """The headings of an entry, each with its declarations; of three functions one each."""
    if len(each.functions) <= 2:
        return [(", ".join(each.functions or each.names), each.declarations)]
    declared = re.split(r"(?<=;)\n(?=\w)", each.declarations)
    return [(entry(one).names[0], one) for one in declared]


def linked(text: str, links: dict[str, str], of: str) -> str:
    """Names as code; each is a link, where it is first met, to where it is explained."""
    met = {of}

    def link(name: re.Match[str]) -> str:
        target = links.get(name[0].partition("(")[0], of)
        if target in met:
            return f"`{name[0]}`"
        met.add(target)
        return f"[`{name[0]}`](#{target})"

    return outside_code(text, lambda piece: NAME.sub(link, piece))


def wrapped(text: str) -> str:
    """Text whose lines links have made too long, in lines of 100 columns."""
    lines = []
    for line in text.split("\n"):
        indent = "  " if line.startswith(("- ", "  ")) else ""
        lines += textwrap.wrap(
            line, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [line]
    return "\n".join(lines)


def text_of(comment: str, links: dict[str, str], of: str = "") -> str:
    """A comment as Markdown: names are links, and columns are lists."""
    lines: list[str] = []
    item = -1  # the indentation of the item of which the next lines may be
    for line in comment.splitlines():
        indent = len(line) - len(line.lstrip())
        words = line.strip()
        columns = re.match(r"(\S.*?) {2,}(\S.*)", words)
        if words.startswith("- ") or (columns and indent >= 2):
            if lines and lines[-1] and item < 0:
                lines.append("")
            item = indent
            lines.append(f"- `{columns[1]}`: {columns[2]}" if columns else words)
        elif item >= 0 and indent > item:
            lines.append(f"  {words}")
        elif re.fullmatch(r"[A-Z][a-z]+", words):
            lines.append(f"**{words}.**")
        else:
            paragraph = item >= 0 or (indent >= 2 and re.match(r"[A-Z][a-z]+: ", words))
            if words and paragraph and lines[-1]:
                lines.append("")
            item = -1
            lines.append(words)
    return wrapped(linked("\n".join(lines), links, of))


def header(_page: Path, path: str, *others: str) -> str:
    """What holds for all functions, a list of them, and each section of a header and of others."""
    intro, found = sections((ROOT / path).read_text(encoding="utf-8"))
    for other in others:
        found += sections((ROOT / other).read_text(encoding="utf-8"))[1]
    links = {}
    for each in (each for section in found for each in section.entries):
        places = [heading for heading, _ in headings(each)]
        for name in (name for name in each.names if name.islower()):
            own = [heading for heading in places if name in heading.split(", ")]
            links[name] = anchor((own or places)[0])
    general = text_of(intro, links).split("\n\n", 1)[1]
    parts = [f"{general}\n\n## Contents\n\n"]
    for section in found:
        listed = (
            f"[`{name}`](#{links[name]})"
            for each in section.entries
            for name in each.functions or each.names
            if name in links
        )
        line = f"- [{section.title}](#{anchor(section.title)}): {', '.join(listed)}"
        parts.append(wrapped(line.removesuffix(": ")) + "\n")
    for section in found:
        parts.append(f"\n## {section.title}\n")
        if section.intro:
            parts.append(f"\n{text_of(section.intro, links)}\n")
        for each in section.entries:
            for heading, declared in headings(each):
                parts.append(f"\n### {heading}\n\n```c\n{declared}\n```\n")
                if each.comment:
                    parts.append(f"\n{text_of(each.comment, links, anchor(heading))}\n")
    return "".join(parts)
