"""`goccl build`: compiles goccl's extension for the torch that is here."""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from goccl import _extension, _native
from goccl._command import add_examples, missing
from goccl._config import headers
from goccl._extension import CannotBuild, Torch

_ROOM = 200 << 20  # bytes that a build takes on the way
_WAIT = 2.0 * _extension.LIMIT  # seconds for another build of the same
_LOOK = 0.2  # seconds between looks at the lock
_LOAD = """
import sys
if sys.path[0] == "":  # the current folder may have other modules of these names
    sys.path.pop(0)
from pathlib import Path
from goccl import _native
_native.load_file(Path(sys.argv[1]))
print("loaded")
"""
_LOAD_LIMIT = 120  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `goccl build`."""
    add_examples(
        parser,
        ["goccl build", "goccl build --check"],
        {
            0: "there is an extension for the torch that is here, or --check: there could be",
            1: "it cannot be built: the message says why",
            2: "wrong arguments",
        },
    )
    parser.add_argument(
        "--check", action="store_true", help="tell whether it could be built, and build nothing"
    )


def main(args: argparse.Namespace) -> int:
    """Builds what is missing. The exit status is 1 where that cannot be."""
    try:
        torch = _torch()
        there = _that_loads(torch)
        if there is not None:
            print(f"torch {torch.version} has its extension: {there}")
            return 0
        folder = _folder(torch)
        if args.check:
            _check(torch, folder)
            print(f"it can be built for torch {torch.version}, into {folder}")
            return 0
        print(f"built: {build(torch, folder)}")
    except (CannotBuild, OSError) as error:
        print(f"goccl build: {_told(error)}", file=sys.stderr)
        return 1
    return 0


def build(torch: Torch, folder: Path) -> Path:
    """Compiles the extension into a folder, or waits for another process that does.

    Args:
        torch: For which torch.
        folder: Of the cache.

    Returns:
        The file, which loads.

    Raises:
        CannotBuild: It cannot be compiled, or what was compiled does not load.
        OSError: The folder cannot be written.
    """
    _check(torch, folder)
    for parent in (*reversed(folder.parents), folder):
        parent.mkdir(mode=0o700, exist_ok=True)
    with _alone(folder):
        file = folder / _extension.FILE
        if file.is_file() and not _why_not_loaded(file):
            return file  # of who was first
        for left in folder.glob("part-*"):  # by one that was killed
            shutil.rmtree(left, ignore_errors=True)
        print(f"compiling for torch {torch.version}: this takes a minute", flush=True)
        file = _extension.compile_extension(torch, _native.sources(), headers(), folder)
        if why := _why_not_loaded(file):
            file.unlink()
            raise CannotBuild(f"what was built for torch {torch.version} does not load: {why}")
    return file


def _torch() -> Torch:
    if told := missing("torch", "torch"):
        raise CannotBuild(told)
    torch = _extension.find_torch()
    if torch is None:
        raise CannotBuild("the module torch that is found is not torch's package")
    return torch


def _folder(torch: Torch) -> Path:
    try:
        return _native.cache() / f"torch-{torch.version}"
    except RuntimeError as error:
        raise CannotBuild(
            f"there is no folder for a cache ({error}): set XDG_CACHE_HOME"
        ) from error


def _that_loads(torch: Torch) -> Path | None:
    """The extension that this torch would load, if it does."""
    for file in _native.extensions(torch.version)[:1]:
        if not _why_not_loaded(file):
            return file
    return None


def _why_not_loaded(file: Path) -> str:
    """Loads an extension in a process of its own: it may end it."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOAD, str(file)],
            capture_output=True,
            text=True,
            timeout=_LOAD_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"that takes more than {_LOAD_LIMIT} seconds"
    if done.stdout.endswith("loaded\n"):
        return ""
    lines = done.stderr.strip().splitlines() or [f"it ends Python with status {done.returncode}"]
    return lines[-1]


def _check(torch: Torch, folder: Path) -> None:
    """Raises what would keep a build from ending well, as far as that is known before."""
    sources = _native.sources()
    if not list(sources.glob("*.cpp")):
        raise CannotBuild(f"{sources} has no sources of goccl: reinstall it")
    _extension.check(torch)
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))
    free = shutil.disk_usage(there).free
    if free < _ROOM:
        raise CannotBuild(
            f"{there} has {free >> 20} MiB free, and a build takes {_ROOM >> 20}: free some, or "
            "set XDG_CACHE_HOME to a folder with more"
        )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lets one process at a time build into a folder. The lock goes with the process."""
    with (folder / "lock").open("w") as lock:
        end = time.monotonic() + _WAIT
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise CannotBuild(
                        f"another process has held {folder / 'lock'} for {_WAIT:.0f} seconds: "
                        "end it, and build again"
                    ) from None
            if not told:
                print("another process builds the same: waiting for it", flush=True)
                told = True
            time.sleep(_LOOK)
        yield


def _told(error: Exception) -> str:
    if isinstance(error, OSError):
        return (
            f"cannot write {error.filename or 'the cache'}: {error.strerror}. "
            "Set XDG_CACHE_HOME to a folder that can be written"
        )
    if "No space left on device" in str(error):
        return f"{error}\nThere is no room: free some, or set TMPDIR and XDG_CACHE_HOME"
    return str(error)
