"""The settings of Sphinx: `make docs`. The pages are plain Markdown, which needs no build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

project = "GoCCL"
author = "the GoCCL authors"
copyright = author  # noqa: A001  the name that Sphinx reads
package = (ROOT / "python" / "goccl" / "__init__.py").read_text(encoding="utf-8")
(version,) = (release,) = re.findall(r'^__version__ = "(.*)"$', package, re.M)

extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"GoCCL {version}"
myst_heading_anchors = 4

# Pages that say where files of the repository's root are: in the site these take their places.
OF_ROOT = {"changelog": ["CHANGELOG.md"], "contributing": ["CONTRIBUTING.md", "SECURITY.md"]}
# An item of a list that begins with a link to another page.
ITEM = re.compile(r"^- \[[^\]]+\]\((?!\.\./|\w+:)([^)#]+)\.md\)", re.M)


def navigation(text: str) -> str:
    """What the site's navigation lists below an index page: its items that begin with a link, under
    the headings where they stand."""
    trees = []
    for part in re.split(r"^(?=## )", text, flags=re.M):
        pages = ITEM.findall(part)
        if pages:
            heading = re.match(r"## (.*)", part)
            caption = f":caption: {heading[1]}\n" if heading else ""
            trees.append("```{toctree}\n:hidden:\n" + caption + "\n".join(pages) + "\n```\n")
    return "\n".join(["", *trees])


def read_page(app: Any, name: str, source: list[str]) -> None:
    """Called by Sphinx with the text of a page, which is replaced in place."""
    if name in OF_ROOT:
        paths = [ROOT / path for path in OF_ROOT[name]]
        first, *others = (path.read_text(encoding="utf-8") for path in paths)
        below = [re.sub(r"^(?=#)", "#", text, flags=re.M) for text in others]  # the first's title
        source[0] = "\n".join([first, *below])
        for path in paths:
            app.env.note_dependency(str(path))
    elif name.rpartition("/")[2] == "index":
        source[0] += navigation(source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", read_page)
