"""What happens inside: the flight recorder, and what groups do now."""

from __future__ import annotations

import os
from typing import Any

from goccl import _capi

__all__ = ["dump", "status"]


def dump(prefix: str | os.PathLike[str]) -> None:
    """Writes what this process's groups have done, for torchfrtrace.

    The files are as those of torch's flight recorder: one a rank, whose name is `prefix` and the
    rank in the job. Of each group they tell the last 512 collectives and the last 256 sends and
    receives. With the variable GOCCL_DUMP each rank of a group that fails writes the same by
    itself. It waits for no collective, and may be called by any thread at any time.

    Args:
        prefix: begins the paths of the files. The folder must be there; a file that is there is
            replaced as a whole.

    Raises:
        ValueError: `prefix` is empty, or the process has no group.
        goccl.Error: a file cannot be written, or a dump is being written already.

    >>> goccl.dump("/tmp/goccl_rank_")
    """
    _capi.check(_capi.library().goccl_dump(os.fsencode(prefix)))


def status() -> dict[str, Any]:
    """Tells what this process's groups do: what `goccl ps` shows of them, as data.

    It asks no other process and waits for no collective, and may be called by any thread at any
    time.

    Returns:
        "pid", "host", "program", and "groups": of each its "name", "rank", "call" (the collective
        that it is in, or has called last), "messages" (sends and receives under way), "failed" and
        more. goccl_status() in C tells of all keys.

    Raises:
        RuntimeError: the process is a forked child.

    >>> goccl.status()["groups"][0]["call"]["what"]
    'allreduce(float32, 8 elements, SUM)'
    """
    told: dict[str, Any] = _capi.call("goccl_status")
    return told
