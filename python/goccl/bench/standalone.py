"""A program that the bench starts: ``python standalone.py MODULE ARGUMENTS``, a module of this
folder.

It loads this folder as a package of its own, because ``import goccl`` loads torch, which an MPI's
ranks do without. It ends with the process that has started it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path

_PACKAGE = "goccl_bench"
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Has this process end with its parent, which may be gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def require_one_thread(library: str) -> None:
    """Raises RuntimeError where this process cannot be forked, for it has more threads."""
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads > 1:
        raise RuntimeError(
            f"{library} has {threads} threads when it is imported: it cannot be forked"
        )


def _load() -> None:
    init = Path(__file__).resolve().with_name("__init__.py")
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, init, submodule_search_locations=[str(init.parent)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {init}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    end_with(os.getppid())
    # The script's folder, whose modules would hide others of the same name.
    sys.path.pop(0)
    _load()
    sys.exit(importlib.import_module(f"{_PACKAGE}.{sys.argv[1]}").main(sys.argv[2:]))
