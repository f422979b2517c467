"""The page of the Python API, from docstrings, and from the signatures of sources and the stub."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from prose import outside_code

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "goccl"
SOURCES = (
    "_C.pyi",
    "__init__.py",
    "_groups.py",
    "_memory.py",
    "_metrics.py",
    "_stand_in.py",
    "_trace.py",
    "elastic/*.py",
    "numpy/*.py",
    "plan/*.py",
)
COLUMNS = 88
LISTS = ("Args:", "Attributes:", "Raises:")


def find(name: str) -> tuple[Any, Any]:
    """What has a name such as goccl.Options in it, and what it means."""
    import goccl

    owner, thing = None, goccl
    for part in name.split(".")[1:]:
        owner, thing = thing, getattr(thing, part)
    return owner, thing


@functools.cache
def definitions() -> dict[str, ast.FunctionDef]:
    """The functions of the API, by their qualified names, with the subpackage that they are of; of
    what is compiled the stub's."""
    found = {}

    def visit(body: list[ast.stmt], prefix: str, package: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix or package}{node.name}.", package)
            elif isinstance(node, ast.FunctionDef):
                found[f"{prefix or package}{node.name}"] = node

    for path in (path for pattern in SOURCES for path in sorted(PACKAGE.glob(pattern))):
        folder = path.parent.relative_to(PACKAGE).as_posix()
        package = "" if folder == "." else f"{folder}."
        visit(ast.parse(path.read_text(encoding="utf-8")).body, "", package)
    return found


def package_of(owner: Any) -> str:
    """The subpackage of a class, or that is a module, as in the names of definitions()."""
    parts = getattr(owner, "__module__", owner.__name__).split(".")[1:2]
    return "".join(f"{part}." for part in parts if (PACKAGE / part).is_dir())


def definition(name: str, owner: Any) -> ast.FunctionDef | None:
    """The definition of a function, or of a method of a class, which may inherit it."""
    if not inspect.isclass(owner):
        return definitions().get(f"{package_of(owner)}{name}")
    names = [f"{package_of(base)}{base.__name__}" for base in owner.__mro__]
    names.append("_Members")  # of the stub alone
    return next((found for base in names if (found := definitions().get(f"{base}.{name}"))), None)


def argument(arg: ast.arg, default: ast.expr | None) -> str:
    text = f"{arg.arg}: {ast.unparse(arg.annotation)}" if arg.annotation else arg.arg
    return f"{text} = {ast.unparse(default)}" if default else text


def arguments(node: ast.FunctionDef) -> list[str]:
    """The arguments of a function, without self."""
    args = node.args
    plain = args.posonlyargs + args.args
    defaults = [None] * (len(plain) - len(args.defaults)) + args.defaults
    found = [argument(*pair) for pair in zip(plain, defaults, strict=True) if pair[0].arg != "self"]
    if args.vararg:
        found.append(f"*{argument(args.vararg, None)}")
    elif args.kwonlyargs:
        found.append("*")
    found += map(argument, args.kwonlyargs, args.kw_defaults)
    return found + ([f"**{argument(args.kwarg, None)}"] if args.kwarg else [])


def call(name: str, given: list[str], returns: ast.expr | None = None) -> str:
    """A call with its arguments, in lines of their own where they are long."""
    end = f") -> {ast.unparse(returns)}" if returns else ")"
    line = f"{name}({', '.join(given)}{end}"
    if len(line) > COLUMNS:
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in given) + end
    return line.replace("'", '"')


def declared(name: str, thing: Any, owner: Any) -> str:
    """How a thing is called."""
    last = name.rpartition(".")[2]
    if inspect.isclass(thing):
        if last == "Options":
            given = inspect.signature(thing).parameters.values()
            return call(f"class {name}", ["*", *map(str, given)])
        made = definition("__init__", thing)
        return call(f"class {name}", arguments(made)) if made else f"class {name}"
    node = definition(last, owner)
    if not node:
        raise ValueError(f"{name}: no source of the package defines it")
    if isinstance(thing, property):
        return f"{last}: {ast.unparse(node.returns)}" if node.returns else last
    return call(last if inspect.isclass(owner) else name, arguments(node), node.returns)


def block(part: str) -> str:
    """A paragraph, or a program, which stands behind >>> or is indented."""
    code = textwrap.dedent(part)
    if code.startswith(">>> "):
        return f"```pycon\n{code}\n```"
    if part.startswith("    "):
        return f"```python\n{code}\n```"
    return outside_code(part)


def items(body: str) -> str:
    """What is said of arguments, attributes or exceptions, as a list."""
    lines = []
    for line in body.splitlines():
        named = re.match(r"([*\w.]+(?:, [\w.]+)*): (.*)", line)
        if named:
            names = ", ".join(f"`{name}`" for name in named[1].split(", "))
            lines.append(f"- {names}: {named[2]}")
        else:
            lines.append(f"  {line.strip()}")
    return outside_code("\n".join(lines))


def text_of(doc: str) -> str:
    """A docstring as Markdown."""
    parts = []
    for chunk in re.split(r"\n\n(?=\S)", inspect.cleandoc(doc)):
        title, _, body = chunk.partition("\n")
        body = textwrap.dedent(body)
        if title in LISTS:
            parts.append(f"**{title}**\n\n{items(body)}")
        elif title in ("Example:", "Returns:"):
            parts.append(f"**{title}**\n\n{block(body)}")
        else:
            parts.extend(map(block, re.split(r"\n\n", chunk)))
    return "\n\n".join(parts)


def entry(name: str) -> str:
    """A heading, how it is called, and the docstring."""
    owner, thing = find(name)
    level, shown = 3, name
    if inspect.isclass(owner):
        level, shown = 4, f"{owner.__name__}.{name.rpartition('.')[2]}"
    doc = thing.__doc__
    if doc.startswith(f"{name.rpartition('.')[2]}("):
        doc = doc.partition("\n")[2]  # the signature of what is compiled
    code = declared(name, thing, owner)
    return f"{'#' * level} {shown}\n\n```python\n{code}\n```\n\n{text_of(doc)}\n"


def members(name: str) -> list[str]:
    """The public members of a class that goccl documents, in the order of its source."""
    _, owner = find(name)
    found = [
        member
        for base in reversed(owner.__mro__)
        if base.__module__.partition(".")[0] == "goccl"
        for member in vars(base)
        if not member.startswith("_")
        and not (getattr(owner, member).__doc__ or "Deprecated").startswith("Deprecated")
    ]
    return [f"{name}.{member}" for member in dict.fromkeys(found)]


def python(_page: Path, *names: str) -> str:
    """Entries of names; one that ends in .* is a class with its members."""
    listed = []
    for name in names:
        listed.append(name.removesuffix(".*"))
        if name.endswith(".*"):
            listed += members(name.removesuffix(".*"))
    return "\n".join(map(entry, listed))
