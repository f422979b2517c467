"""What recipes run with: their environment, commands in it, and versions."""

import contextlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import harness

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(sys.prefix).parent  # of what environment.sh and slurm.sh have made
BIN = Path(sys.prefix) / "bin"
LIMIT = 600.0  # seconds, of a command on a busy machine
_MARK = {"RECIPES_OF": str(os.getpid())}  # by which daemons are found that have left their parents


def start(*words: str | Path, path: Path | None = None, **env: str) -> "subprocess.Popen[str]":
    """Starts a command in the root of the repository.

    Args:
        words: of the command.
        path: a folder of programs that come before those of the environment.
        env: variables beside those of the tests.
    """
    folders = [*([str(path)] if path else []), str(BIN), os.environ["PATH"]]
    with_path = {"PATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1", **_MARK, **env}
    return harness.start(*words, cwd=ROOT, **with_path)


def run(*words: str | Path, path: Path | None = None, seconds: float = LIMIT, **env: str) -> str:
    """Runs a command as start() does, and returns what it has printed.

    Raises:
        AssertionError: it has failed, or has not ended in so many seconds.
    """
    return said(start(*words, path=path, **env), seconds)


def said(program: "subprocess.Popen[str]", seconds: float = LIMIT) -> str:
    """Returns what a program prints until it ends.

    Raises:
        AssertionError: it has failed, or has not ended in so many seconds.
    """
    (done,) = harness.finished(program, seconds=seconds)
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def running() -> set[int]:
    """The processes that start() has started, and theirs."""
    ((name, value),) = _MARK.items()
    mark = f"{name}={value}".encode()
    found = set()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # of another user, or ended
            if mark in environ.read_bytes().split(b"\0"):
                found.add(int(environ.parent.name))
    return found


def with_gloo(program: Path, folder: Path) -> Path:
    """Writes a program that asks for Gloo where another one asks for goccl; returns its path."""
    text = program.read_text()
    assert '"goccl"' in text
    made = folder / f"gloo_{program.name}"
    made.write_text(text.replace('"goccl"', '"gloo"'))
    return made


def apart(name: str) -> Path:
    """The folder of a package of apart.txt."""
    return FOLDER / name


def version(name: str) -> str:
    """The version of a package, or of Slurm."""
    if name == "slurm":
        (package,) = (FOLDER / "slurm" / "packages").glob("slurmd_*.deb")
        return package.name.split("_")[1].split("-")[0]
    folders = [str(site) for site in apart(name).glob("lib/python*/site-packages")]
    for found in importlib.metadata.distributions(name=name, path=folders):
        return found.version
    return importlib.metadata.version(name)
