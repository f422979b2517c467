"""Ranks without a launcher: in children of this process."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from goccl._launch import LOOPBACK, Place
from goccl._ranks.children import Child, fork

_GRACE = 5.0  # seconds, for the other ranks to end after rank 0


def start_local(size: int, run: Callable[[Place], int], limit: float) -> int:
    """Runs ranks in children of this process, and returns the exit status of rank 0.

    Args:
        size: how many.
        run: what each does; it returns the exit status.
        limit: seconds after which they are killed.
    """
    dist: Any = importlib.import_module("torch.distributed")
    children: list[Child] = []
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        try:
            places = (Place(rank, size, LOOPBACK, port, served=True) for rank in range(size))
            children.extend(Child(fork(partial(run, place))) for place in places)
            # The children have been made: a store has threads, with which a process must not fork.
            store = dist.TCPStore(
                LOOPBACK,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=os.dup(listener.fileno()),
            )
            status = children[0].wait(limit)
            for child in children:
                child.wait(_GRACE)
            del store
        finally:
            for child in children:
                child.kill()
                child.close()
                os.waitpid(child.pid, 0)
    return status
