"""What commands share."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

GOCCL_TRANSPORTS = ("shm", "tcp", "verbs")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST_BYTES = 1 << 40


def parse_size(text: str) -> int:
    """Bytes from a number and a unit: 4, 64K, 1M, 2G (powers of 1024)."""
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if not 1 <= size <= _MOST_BYTES:
        allowed = "allowed are such as 4, 64K, 16M, 1G, up to 1024G"
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; {allowed}")
    return size


def output_file(text: str) -> Path:
    """The path of a file that can be made, where it is not there yet."""
    # A shell leaves "--output=~/file" as it is. Path's own raises where there is no such user.
    path = Path(os.path.expanduser(text))  # noqa: PTH111
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file in a folder that exists")
    return path


def write_anew(path: Path, text: str) -> None:
    """Replaces a file whole, so that nobody finds half of it, also after SIGKILL.

    A link goes on to point to the file, which keeps its mode. A device or a pipe is written as it
    is, and what this process prints into is printed into.

    Args:
        path: of the file. It is made where it is not there.
        text: what it is to hold.

    Raises:
        OSError: it cannot be written. A file is as it was.
    """
    if own := _own_stream(path):
        print(text, end="", file=own, flush=True)
        return
    new = draft(path)
    if new is None:
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    new.unlink(missing_ok=True)  # of a run that was killed, in a container with the same pid
    try:
        new.touch(exist_ok=False)
        if path.exists():
            shutil.copymode(path, new)
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def is_stream(path: Path) -> bool:
    """Whether a path is of a device, a pipe, or a file that this process prints into. That of a
    pipe may be a link that names no file."""
    return path.exists() and (not path.is_file() or _own_stream(path) is not None)


def _own_stream(path: Path) -> TextIO | None:
    """The one of stdout and stderr that goes where a path leads, as /dev/stdout does."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # it may be closed, or of a test
            if os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                return stream
    return None


def draft(path: Path) -> Path | None:
    """Where write_anew() writes what is to become a file; None for a stream. Each process has
    one of its own: two that write a file at once would replace it by an empty one."""
    if is_stream(path):
        return None
    path = path.resolve()
    return path.with_name(f".{path.name}.{os.getpid()}.new")


def unwritable(*paths: Path | None) -> str:
    """Which file could not be written later, and why; or "". What is in them stays."""
    path = Path()
    try:
        for path in filter(None, paths):
            if not path.exists():
                path.touch()
                path.unlink()
            elif path.is_file():
                path.open("ab").close()
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""


def missing(module: str, name: str) -> str:
    """That a Python module is not installed, and what to do; or ""."""
    if importlib.util.find_spec(module) is None:
        return f"{name} is not installed; {to_bring(module)}"
    return ""


def to_bring(arguments: str) -> str:
    """What to do to have packages; arguments: of pip."""
    return f"to bring it: {shlex.quote(sys.executable)} -m pip install {arguments}"


def printable(text: str) -> str:
    """Escapes what a terminal might obey: other ranks and variables hold what they like.

    Args:
        text: of one line or several.

    Returns:
        The text, with all that cannot be printed as Python escapes it. Ends of lines stay.
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


class _Formatter(argparse.HelpFormatter):
    """Leaves the lines of examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def add_examples(
    parser: argparse.ArgumentParser, examples: Sequence[str], statuses: Mapping[int, str]
) -> None:
    """Has the help of a command end with examples and its exit statuses.

    Args:
        parser: of the command.
        examples: command lines.
        statuses: what each exit status says.
    """
    lines = ["examples:", *(f"  {line}" for line in examples), "", "exit status:"]
    lines += [f"  {status}  {text}" for status, text in statuses.items()]
    parser.epilog = "\n".join(lines)
    parser.formatter_class = _Formatter


class Progress:
    """A line on stderr that says what is being done; on a terminal it replaces the one before.

    A message that cannot be written is lost: that is no reason to stop measuring.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._shown = ""

    def step(self, text: str) -> None:
        """Shows a state that the next one replaces; not shown where there is no terminal."""
        if self._terminal:
            # A text that wraps could not be replaced whole.
            width = shutil.get_terminal_size().columns - 1
            self._put(f"\r\x1b[K{text[:width]}")
            self._shown = text

    def clear(self) -> None:
        """Makes place for other output."""
        if self._shown:
            self._put("\r\x1b[K")
            self._shown = ""

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._put(text + "\n")

    def _put(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
