"""A program of the package: ``python standalone.py MODULE ARGUMENTS`` calls the module's main().

It ends with the process that has started it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path

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
    """Loads the package that this file is of, wherever it is."""
    folder = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[folder.name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    end_with(os.getppid())
    # The script's folder, whose modules would hide others of the same name.
    sys.path.pop(0)
    _load()
    sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
