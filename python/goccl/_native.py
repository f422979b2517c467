"""Loads goccl._C, the C++ part, that fits the torch which is here.

The classes that goccl._C derives from change between minor versions of torch. So the package has a
file for each, in a folder of _torch, and `goccl build` puts one for another torch into a cache of
the user. Whichever it is, its name is goccl._C, by which pickles find it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys
from pathlib import Path
from types import ModuleType

from goccl import _extension

PACKAGE = Path(__file__).resolve().parent
_chosen: Path | None = None  # by load_file()


def sources() -> Path:
    """Returns the folder of the C++ files: the package's, or that of the sources where the install
    is editable."""
    installed = PACKAGE / "_torch" / "sources"
    return installed if installed.is_dir() else PACKAGE.parents[1] / "torch_backend"


def built_for() -> list[str]:
    """Returns the versions of torch that the package has extensions for, such as ["2.8", "2.9"];
    none if it was never built for this Python."""
    folders = [file.parent.name for file in PACKAGE.glob(f"_torch/v*/{_extension.FILE}")]
    found = [folder[1:].replace("_", ".") for folder in folders]
    return sorted(found, key=lambda name: (_extension.minor(name), name))


def built_with_go() -> str | None:
    """Returns the version of Go that this copy of goccl was built with; None if it was never
    built."""
    return _build_info("GO")


def cache() -> Path:
    """Returns the folder of the user's cache for this goccl.

    Raises:
        RuntimeError: the user has no home, or a relative one.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if given.startswith("/") else Path.home() / ".cache"
    if not root.is_absolute():
        raise RuntimeError(f"the home folder {str(root.parent)!r} is relative")
    version = sys.modules["goccl"].__version__
    return root / "goccl" / f"{version}-{_build_info('SOURCES')}"


def extensions(torch_version: str) -> list[Path]:
    """Returns the extension's files that there are for a torch, the one to load first.

    One that the user has built comes before one of the package, which may have failed here.
    """
    found = [PACKAGE / "_torch" / _extension.folder_of(torch_version) / _extension.FILE]
    with contextlib.suppress(RuntimeError, OSError):  # no home, or that of another user
        built = cache() / f"torch-{torch_version}" / _extension.FILE
        if built.stat().st_uid in (0, os.geteuid()):  # nobody else says what is loaded
            found.insert(0, built)
    return [file for file in found if os.path.isfile(file)]  # noqa: PTH113  Path's may raise


def load() -> ModuleType:
    """Returns goccl._C. Raises ImportError that says the remedy where there is none for this
    torch."""
    import torch  # noqa: F401  registers the backend, and that loads goccl._C

    return importlib.import_module("goccl._C")


def load_file(path: Path) -> ModuleType:
    """Loads one file as goccl._C, of which there is none yet."""
    global _chosen
    _chosen = path
    return load()


def files() -> list[Path]:
    """Returns the files that may be loaded as goccl._C, the one to try first. Raises ImportError
    that says the remedy where there is none for this torch."""
    import torch

    version = str(torch.__version__)
    found = extensions(version) if _chosen is None else [_chosen]
    if not found:
        raise ImportError(_missing(version))
    return found


def remedy(*, newer: bool) -> str:
    """What to do where no extension fits.

    Args:
        newer: Torch is newer than those which this goccl knows.
    """
    newest = "Install a newer goccl (pip install --upgrade goccl), or build it" if newer else ""
    command = f"{shlex.quote(sys.executable)} -m goccl build"
    needs = "a minute, a C++ compiler and Python's headers"
    return f"{newest or 'Build it'} for this torch: {command} (it takes {needs})"


def _missing(torch_version: str) -> str:
    """Why there is no extension for a torch, and what to do."""
    found = _extension.minor(torch_version)
    if found < _extension.OLDEST:
        oldest = ".".join(map(str, _extension.OLDEST))
        return (
            f"goccl needs torch {oldest} or later, and this is torch {torch_version}. "
            f"Update it: pip install --upgrade torch"
        )
    if built_with_go() is None:
        return (
            "goccl's binaries have not been built. In the folder of its sources, build and install "
            "them: pip install ."
        )
    there = built_for()
    have = "no extension at all" if not there else f"extensions for torch {', '.join(there)}"
    python = "{}.{}".format(*sys.version_info)
    return (
        f"this goccl has {have} (Python {python}), and this is torch {torch_version}. "
        f"{remedy(newer=found > _extension.NEWEST)}"
    )


def _build_info(name: str) -> str | None:
    try:
        return str(getattr(importlib.import_module("goccl._build_info"), name, None))
    except ModuleNotFoundError:
        return None
