"""Loads goccl._C, the C++ part, and refuses to where that would crash."""

from __future__ import annotations

import importlib
from types import ModuleType

REBUILD = (
    "pip install --force-reinstall --no-deps --no-cache-dir "
    "<goccl's source: a clone's path or its URL>"
)


def built_for() -> str | None:
    """Returns the version of torch that this copy of goccl was built for; None if it was never
    built."""
    try:
        return str(importlib.import_module("goccl._build_info").TORCH)
    except ModuleNotFoundError:
        return None


def built_with_go() -> str | None:
    """Returns the version of Go that this copy of goccl was built with; None if it was never
    built."""
    try:
        return str(importlib.import_module("goccl._build_info").GO)
    except ModuleNotFoundError:
        return None


def load() -> ModuleType:
    """Returns goccl._C. Raises ImportError that says the remedy where it cannot work with this
    torch.

    The classes that goccl._C derives from change between minor versions of torch: loaded into
    another one it would call the wrong functions.
    """
    import torch

    built, found = built_for(), str(torch.__version__)
    if built is None:
        raise ImportError(
            f"goccl's binaries have not been built. Build and install them: {REBUILD}"
        )
    if _minor(built) != _minor(found):
        raise ImportError(
            f"goccl was built for torch {built}, but this is torch {found}. "
            f"Build it again for this torch: {REBUILD}"
        )
    return importlib.import_module("goccl._C")


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
