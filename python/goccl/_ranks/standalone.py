"""A program of the package: ``python standalone.py MODULE ARGUMENTS`` calls the module's main().

It ends with the process that has started it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path


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
    parent = os.getppid()
    # The script's folder, whose modules would hide others of the same name.
    sys.path.pop(0)
    _load()
    importlib.import_module("goccl._ranks.children").end_with(parent)
    sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
