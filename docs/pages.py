"""Writes into the pages what they show of other files: `make pages`.

A page has a marker for each piece, which readers do not see, with a maker and what it is made of:

    <!-- make pages: code examples/allreduce.py -->
    ...
    <!-- end -->

What stands between the two lines is made anew. So pages need no build to be read; a test tells
which are stale. Paths are the repository's.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from docstrings import python
from header import header

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(
    r"^<!-- make pages: (?P<what>[^\n]+) -->\n(?P<text>.*?)^<!-- end -->$", re.M | re.S
)
NUMBER = re.compile(r"(-|\*\*)?[\d.]*( |\*|$)")
WINNER = re.compile(r"\((\w+)((?: wins)?)\)")  # of a ratio
HEAD = "| argument | meaning |\n|---|---|\n"
LANGUAGES = {
    ".c": "c",
    ".h": "c",
    ".go": "go",
    ".py": "python",
    ".sh": "bash",
    ".yaml": "yaml",
    "": "dockerfile",
}


def code(page: Path, path: str, name: str = "") -> str:
    """A file, or one function or class of it, below a link to the file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if name:
        (node,) = [
            node
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        ]
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        text = "\n".join(text.splitlines()[first - 1 : node.end_lineno]) + "\n"
    link = os.path.relpath(ROOT / path, page.parent)
    return f"[`{path}`]({link})\n\n```{LANGUAGES[Path(path).suffix]}\n{text}```\n"


def table(_page: Path, path: str) -> str:
    """A table of comma-separated values, whose columns of numbers are aligned to the right. Labels
    of libraries become their names, and bytes are written as `--sizes` takes them."""
    from goccl._bench import words
    from goccl._bench.report import size_text

    with (ROOT / path).open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    numbers = [all(NUMBER.match(cell) for cell in column) for column in zip(*rows, strict=True)]
    for name, written in (("library", words.library), ("bytes", lambda text: size_text(int(text)))):
        if name in head:
            column = head.index(name)
            for row in rows:
                row[column] = written(row[column])
    rows = [[WINNER.sub(lambda m: f"({words.library(m[1])}{m[2]})", c) for c in r] for r in rows]
    head = [" ÷ ".join(map(words.library, cell.split(" ÷ "))) for cell in head]
    lines = [head, ["---:" if right else "---" for right in numbers], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def settings(_page: Path) -> str:
    """The table of all settings."""
    from goccl import _options as options

    return options.markdown() + "\n"


def commands(_page: Path) -> str:
    """What each command takes, as its help tells, but alike in all versions of Python."""
    from goccl import _cli as cli

    parts = [describe_command(parser_of(cli.main, []))]
    parts += [describe_command(parser_of(cli.main, [name])) for name in cli._COMMANDS]
    return "\n".join(parts)


def parser_of(main: Callable[[list[str]], int], command: list[str]) -> argparse.ArgumentParser:
    """The parser that would print the help of a command."""
    with (
        mock.patch.object(argparse.ArgumentParser, "print_help", autospec=True) as asked,
        contextlib.suppress(SystemExit),
    ):
        main([*command, "--help"])
    found: argparse.ArgumentParser = asked.call_args[0][0]
    return found


def describe_command(parser: argparse.ArgumentParser) -> str:
    """What a command is for, and a table for each group of its arguments."""
    title = f"## {parser.prog}\n\n" if " " in parser.prog else ""
    parts = [f"{title}{parser.description}\n"]
    plain: list[str] = []
    for group in parser._action_groups:
        named = group.title not in ("positional arguments", "options")
        rows: list[str] = [] if named else plain
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                for each in action._get_subactions():
                    name = f"{parser.prog} {each.dest}"
                    rows.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {each.help} |\n")
            elif not isinstance(action, argparse._HelpAction):
                text = (action.help or "") % {**vars(action), "prog": parser.prog}
                rows.append(f"| `{shown(action)}` | {text} |\n")
        if named:
            parts.append(f"{str(group.title).capitalize()}:\n\n{HEAD}{''.join(rows)}")
    parts.insert(1, f"{HEAD}{''.join(plain)}")
    if parser.epilog:
        parts.append(f"```text\n{parser.epilog}\n```\n")
    return "\n".join(parts)


def shown(action: argparse.Action) -> str:
    """An option and its value, or an argument, as on a command line."""
    value: Any = action.metavar or action.dest.upper()
    if action.choices and not action.metavar:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return str(action.metavar or action.dest)
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value}"


MAKERS: dict[str, Callable[..., str]] = {
    "code": code,
    "commands": commands,
    "header": header,
    "python": python,
    "settings": settings,
    "table": table,
}


def made(page: Path, text: str) -> str:
    """The text of a page with all that is marked in it made anew."""

    def make(marked: re.Match[str]) -> str:
        maker, *arguments = marked["what"].split()
        piece = MAKERS[maker](page, *arguments)
        return f"<!-- make pages: {marked['what']} -->\n\n{piece}\n<!-- end -->"

    return MARKED.sub(make, text)


def pages() -> list[Path]:
    """All pages of the documentation, and those of the repository's root."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def main() -> None:
    for page in pages():
        old = page.read_text(encoding="utf-8")
        new = made(page, old)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
