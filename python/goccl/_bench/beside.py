"""Busy programs on the host, beside which libraries are measured: ``goccl bench --beside N``.

Run by standalone.py this module is such a program: it keeps a CPU busy until the bench ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from goccl._ranks.processes import STANDALONE

LOWEST_PRIORITY = 19
_BUSY = b"busy\n"  # what a program says when it is
_START_TIMEOUT = 60.0
_AUTOGROUP = Path("/proc/self/autogroup")
_AUTOGROUP_PAUSE = 0.1  # the kernel takes a new level of one user's groups so often


@dataclass(frozen=True)
class Beside:
    """How many busy programs there are, and their nice level."""

    programs: int
    nice: int = LOWEST_PRIORITY

    def __str__(self) -> str:
        plural = "" if self.programs == 1 else "s"
        return f"beside {self.programs} busy program{plural} of nice level {self.nice}"


class NotBusy(Exception):
    """A busy program cannot run; the text says why."""


class Neighbours:
    """The busy programs while they run. Use as a context manager, which waits until all are busy.

    Raises NotBusy where one cannot run, as with a nice level that this user may not give.
    """

    def __init__(self, beside: Beside | None) -> None:
        self._beside = beside or Beside(0)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Neighbours:
        try:
            # Each in a session of its own, as another terminal's: Ctrl-C reaches the bench only.
            command = [sys.executable, STANDALONE, __name__]
            for _ in range(self._beside.programs):
                process = subprocess.Popen(
                    [*command, str(self._beside.nice)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._processes.append(process)
            deadline = time.monotonic() + _START_TIMEOUT
            for process in self._processes:
                self._wait_until_busy(process, deadline)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            with process:  # closes its pipe, and waits for its end
                pass

    def ended(self) -> bool:
        """Whether one of them has ended, so that the CPUs were not as busy as they were to be."""
        return any(process.poll() is not None for process in self._processes)

    def _wait_until_busy(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        assert process.stdout is not None
        said = b""
        while not said.endswith(_BUSY):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([process.stdout], [], [], left)[0]:
                raise NotBusy(f"a busy program did not start within {_START_TIMEOUT:g} s")
            more = os.read(process.stdout.fileno(), 4096)
            if not more:
                why = said.decode(errors="replace").strip().splitlines() or ["it ended at once"]
                nice = self._beside.nice
                raise NotBusy(f"a busy program of nice level {nice} cannot run: {why[-1]}")
            said += more


def main(argv: list[str]) -> NoReturn:
    """Keeps a CPU busy. argv: the nice level."""
    nice = int(argv[0])
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except PermissionError as error:
        sys.exit(error.strerror)
    _set_autogroup(nice)
    # Fails, and so ends this process, where the bench had ended before this one was bound to it.
    os.write(sys.stdout.fileno(), _BUSY)
    while True:
        pass


def _set_autogroup(nice: int) -> None:
    """Sets the level of this session, where the kernel shares the CPUs among sessions first."""
    with contextlib.suppress(OSError):  # of a kernel that does not, or a /proc that is read-only
        while True:
            with contextlib.suppress(BlockingIOError):
                _AUTOGROUP.write_text(str(nice))
                return
            time.sleep(_AUTOGROUP_PAUSE)
