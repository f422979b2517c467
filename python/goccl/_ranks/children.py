"""Processes that are forked, or that have connected, and how they end."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1


class Child:
    """A process, by a descriptor that stays its own whatever becomes of its number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def has_ended(self, limit: float = 0.0) -> bool:
        """Whether it has ended, or does within so many seconds."""
        poll = select.poll()  # select() takes no descriptor from 1024 on
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(limit * 1000))

    def wait(self, limit: float) -> int:
        """The status that a shell would give, of a child of this process; that of SIGKILL where it
        has not ended in time."""
        if not self.has_ended(limit):
            return 128 + signal.SIGKILL
        # It stays a zombie, so that its number stays its own.
        info = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        assert info is not None
        return info.si_status if info.si_code == os.CLD_EXITED else 128 + info.si_status

    def kill(self) -> None:
        """Ends it at once, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Forgets it."""
        os.close(self._pidfd)


def fork(run: Callable[[], int]) -> int:
    """Runs a function in a child, which ends with the status that this returns, or with this
    process. Returns the child's number."""
    own = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        end_with(own)
        status = run()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def fork_on_request(name: str, run: Callable[[], int]) -> int:
    """Runs a function in a child for each byte of standard input. At its end it waits for all, and
    returns 1 where one has failed.

    name: of what has been imported, whose memory they share.
    """
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads > 1:
        raise RuntimeError(f"{name} has {threads} threads when it is imported: it cannot be forked")
    gc.freeze()  # else the collector writes to the memory that the children share
    failed = False
    while True:
        asked = os.read(0, 1)
        if asked:
            fork(run)
        with contextlib.suppress(ChildProcessError):  # there are none any more
            while (ended := os.waitpid(-1, os.WNOHANG if asked else 0))[0]:
                failed |= ended[1] != 0
        if not asked:
            return int(failed)


def end_with(parent: int) -> None:
    """Has this process end with its parent, which may be gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
