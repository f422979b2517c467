"""The program of a rank: ``python standalone.py SOCKET [RANK]``.

It loads this folder as a package of its own, because ``import goccl`` loads torch, which an MPI's ranks do
without.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

_PACKAGE = "goccl_bench"


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
    # The script's folder, whose modules would hide others of the same name.
    sys.path.pop(0)
    _load()
    sys.exit(importlib.import_module(f"{_PACKAGE}.worker").main(sys.argv[1:]))
