"""The settings of Sphinx: `make docs`."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import goccl
from goccl import cli, options

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "docs"
os.environ["COLUMNS"] = "100"  # of the help of commands

project = "GoCCL"
author = "the GoCCL authors"
copyright = author  # noqa: A001  the name that Sphinx reads
version = release = goccl.__version__

extensions = [
    "breathe",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
html_theme = "furo"
html_title = f"GoCCL {version}"
exclude_patterns = ["Doxyfile"]

# Each reference must lead somewhere. The documentation of Python and torch is not read for this.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|datetime|collections|typing|os|logging)\..*"),
    ("py:.*", r"(Tensor|dtype|ProcessGroup(Goccl)?|_?ReduceOp.*|Sequence|SupportsIndex|timedelta)"),
    ("py:.*", r"(Group|Source)"),  # names of types in goccl.groups
    ("py:.*", r"(_State|_More|_Result)"),  # type variables of goccl.elastic.run
    ("c:identifier", r"u?int\d+_t|size_t"),
]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
breathe_projects = {"goccl": str(BUILD / "doxygen" / "xml")}
breathe_default_project = "goccl"
breathe_domain_by_extension = {"h": "c"}


def read_header() -> None:
    """Has doxygen read goccl.h, for breathe."""
    (BUILD / "doxygen").mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["doxygen", "docs/Doxyfile"], cwd=ROOT, check=True)
    except FileNotFoundError:
        sys.exit("the documentation needs doxygen. On Debian: apt-get install doxygen")


def write_tables() -> None:
    """Writes what the package says of itself: its settings, and the help of each command."""
    (BUILD / "settings.md").write_text(options.markdown() + "\n", encoding="utf-8")
    parts = []
    for command in ("", *cli._COMMANDS):
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            cli.main([*command.split(), "--help"])
        title = f"## goccl {command}\n\n" if command else ""
        parts.append(f"{title}```text\n{text.getvalue()}```\n")
    (BUILD / "cli.md").write_text("\n".join(parts), encoding="utf-8")


def signatures() -> dict[str, tuple[str, str | None]]:
    """The signatures of goccl._C by name, from its stub: what is compiled names types less well."""
    found = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                args = node.args
                if prefix and args.args[:1] and args.args[0].arg == "self":
                    args.args = args.args[1:]
                returns = ast.unparse(node.returns) if node.returns else None
                found[f"{prefix}{node.name}"] = f"({ast.unparse(args)})", returns

    visit(ast.parse((ROOT / "python" / "goccl" / "_C.pyi").read_text(encoding="utf-8")).body, "")
    return found


STUB = signatures()


def use_stub(*event: Any) -> tuple[str, str | None] | None:
    """Gives what is compiled the signature of its stub."""
    _app, _what, name, thing, _options, signature, _returns = event
    if not signature or inspect.isfunction(thing):
        return None
    return STUB.get(name.removeprefix("goccl."))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    read_header()
    write_tables()
    app.connect("autodoc-process-signature", use_stub)
