"""Wheels, and environments that they are installed into: one for each Python and torch."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import finished, start

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "build_backend"))

import wheels  # noqa: E402

THIS = "{}.{}".format(*sys.version_info)
LIMIT = 1800  # seconds, for what downloads or compiles


def pytest_addoption(parser):
    parser.addoption("--pythons", default=THIS, help='minor versions of wheels, or "all"')
    parser.addoption(
        "--torches",
        default="",
        help='minor versions, or "all" (default: the oldest and the newest)',
    )


def pytest_configure(config):
    config.results = {}


def torches_of(config, python):
    """The torches that the wheel of a Python is built for, the oldest first."""
    there = wheels.released(python)
    known = [torch for torch in wheels.TORCHES.split() if torch in there]
    given = config.getoption("--torches")
    if given == "all":
        return known
    return [torch for torch in known if torch in (given.split() or (known[0], known[-1]))]


def pytest_generate_tests(metafunc):
    given = metafunc.config.getoption("--pythons")
    wanted = wheels.PYTHONS if given == "all" else given
    pythons = [python for python in wanted.split() if wheels.interpreter(python)]
    if "environment" in metafunc.fixturenames:
        pairs = [(python, t) for python in pythons for t in torches_of(metafunc.config, python)]
        metafunc.parametrize("environment", pairs, indirect=True, scope="module", ids="-".join)
    elif "bare" in metafunc.fixturenames:
        metafunc.parametrize("bare", pythons, indirect=True, scope="module")
    elif "wheel" in metafunc.fixturenames:
        metafunc.parametrize("wheel", pythons, indirect=True, scope="session")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    pair = getattr(item, "callspec", None) and item.callspec.params.get("environment")
    if pair:
        item.config.results[pair] = item.config.results.get(pair, True) and not report.failed


def pytest_terminal_summary(terminalreporter, config):
    """A table for docs/install.md."""
    if not config.results:
        return
    torches = [t for t in wheels.TORCHES.split() if any(t == pair[1] for pair in config.results)]
    pythons = [p for p in wheels.PYTHONS.split() if any(p == pair[0] for pair in config.results)]
    write = terminalreporter.write_line
    write(f"| Python | {' | '.join(f'torch {torch}' for torch in torches)} |")
    write("|---" * (len(torches) + 1) + "|")
    words = {None: "not there", True: "passed", False: "failed"}
    for python in pythons:
        cells = [words[config.results.get((python, torch))] for torch in torches]
        write(f"| {python} | {' | '.join(cells)} |")


@dataclass(frozen=True)
class Environment:
    """Where a wheel is installed.

    Attributes:
        folder: Of the environment.
        torch: Its minor version; "" for none.
        seconds: What the install of the wheel has taken.
        oldest: Its torch is the oldest of those that are tested.
    """

    folder: Path
    torch: str
    seconds: float
    oldest: bool = False

    def run(self, *command, path="", **variables):
        """Runs a command of the environment. No compiler and no Go are on PATH, but in `path`."""
        own = f"{self.folder / 'bin'}{os.pathsep}{path}"
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *map(str, command[1:])],
            cwd="/",
            env={**kept, "PATH": own, "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture(scope="session")
def built(request, tmp_path_factory):
    """A function that returns the wheel of a Python, which is built once."""
    there: dict[str, Path] = {}

    def wheel(python):
        if python not in there:
            dist = tmp_path_factory.mktemp("dist")
            builder = [sys.executable, wheels.__file__, "--pythons", python, "--dist", str(dist)]
            run([*builder, "--torches", " ".join(torches_of(request.config, python))])
            (there[python],) = dist.iterdir()
        return there[python]

    return wheel


def run(command):
    (done,) = finished(start(*command), seconds=LIMIT)  # no compiler outlives it
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(request, built):
    """The wheel of a Python."""
    return built(request.param)


def made(
    folder: Path, python: str, wheel: Path, torch: str, *, oldest: bool = False
) -> Iterator[Environment]:
    interpreter = wheels.interpreter(python)
    assert interpreter is not None
    run([interpreter, "-m", "venv", str(folder)])
    pip = [*wheels.PIP, "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    run([*pip, "numpy"])
    import torch as here

    if torch and here.__version__.split(".")[:2] == torch.split(".") and python == THIS:
        # It takes gigabytes: the one that is here serves both.
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "torch-that-is-here.pth").write_text(f"{Path(here.__file__).parents[1]}\n")
    elif torch:
        run([*pip, f"torch=={torch}.*"])
    begin = time.monotonic()
    run([*pip, "--no-index", "--no-deps", str(wheel)])
    yield Environment(folder, torch, time.monotonic() - begin, oldest)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def environment(request, built, tmp_path_factory):
    """One with a torch."""
    python, torch = request.param
    oldest = torch == torches_of(request.config, python)[0]
    folder = tmp_path_factory.mktemp("env") / "venv"
    yield from made(folder, python, built(python), torch, oldest=oldest)


@pytest.fixture(scope="module")
def bare(request, built, tmp_path_factory):
    """One without torch."""
    python = request.param
    yield from made(tmp_path_factory.mktemp("env") / "venv", python, built(python), "")
