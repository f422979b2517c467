"""How a terminal shows a run, by rich where it is installed: colours, and a bar of progress."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from goccl._command import Progress

_STYLES = {"title": "bold", "head": "dim", "row": "", "wrong": "bold red", "note": "dim"}


def writer(stream: TextIO) -> Callable[[str, str], object]:
    """What writes the lines of a table, in colours on a terminal: see output.Table."""
    if not _has_rich(stream):
        return lambda text, _what: print(text, file=stream, flush=True)
    console: Any = importlib.import_module("rich.console").Console(file=stream, highlight=False)

    def write(text: str, what: str) -> None:
        console.print(text, style=_STYLES[what], markup=False, soft_wrap=True)
        stream.flush()

    return write


def progress(stream: TextIO) -> Progress:
    """What shows what is being done."""
    return Bar(stream) if _has_rich(stream) else Progress(stream)


def _has_rich(stream: TextIO) -> bool:
    return stream.isatty() and importlib.util.find_spec("rich") is not None


class Bar(Progress):
    """Progress with a bar. done: which part of all is done, from 0 to 1."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.done: Callable[[], float] = lambda: 0.0
        rich: Any = importlib.import_module("rich.progress")
        console = importlib.import_module("rich.console").Console(file=stream)
        column = importlib.import_module("rich.table").Column(no_wrap=True, overflow="ellipsis")
        # No thread draws it: that would take a CPU from those that are measured.
        self._bar = rich.Progress(
            rich.BarColumn(),
            rich.TextColumn("{task.description}", table_column=column, markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=1.0)

    def step(self, text: str) -> None:
        with suppress(OSError):
            self._bar.start()
            self._bar.update(self._task, description=text, completed=self.done(), refresh=True)

    def clear(self) -> None:
        with suppress(OSError):
            self._bar.stop()
