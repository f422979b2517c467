"""Builds wheels: one for each Python, with the extension for each torch that this Python has.

    python python/build_backend/wheels.py --pythons "3.11 3.12" --torches "2.8 2.15"

They are put into dist/, checked. Of each torch only headers are needed. They are taken from the
wheel for macOS, which has the same as those for Linux, and is a tenth as large.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
PYTHONS = "3.10 3.11 3.12 3.13 3.14"
TORCHES = "2.8 2.9 2.10 2.11 2.12 2.13 2.14 2.15"
TAG = "manylinux_2_34"
MOST_BYTES = 12 << 20
_HEADERS_OF = ("macosx_11_0_arm64", "macosx_14_0_arm64")


def main() -> int:
    """Builds, and prints where the wheels are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--pythons", default=PYTHONS, help="minor versions; those that are not here are left out"
    )
    parser.add_argument("--torches", default=TORCHES, help="minor versions")
    parser.add_argument(
        "--machine",
        default=platform.machine(),
        choices=["x86_64", "aarch64"],
        help="another processor than this one's takes its compilers, such as aarch64-linux-gnu-g++",
    )
    parser.add_argument(
        "--only-headers", action="store_true", help="fetch those of the torches, into build/torch/"
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheels go")
    args = parser.parse_args()
    if args.only_headers:
        for python in args.pythons.split():
            choose(python, args.torches.split())
        return 0
    interpreters = {python: interpreter(python) for python in args.pythons.split()}
    for python in [python for python, path in interpreters.items() if path is None]:
        print(f"Python {python} is not here: no wheel for it")
        del interpreters[python]
    if not interpreters:
        sys.exit(f"none of the Pythons is here: {args.pythons}")
    for python, path in interpreters.items():
        torches = choose(python, args.torches.split())
        wheel = build(str(path), torches.values(), args.machine, args.dist)
        print(f"{wheel}: for torch {', '.join(torches)}", flush=True)
    return 0


def choose(python: str, wanted: Collection[str]) -> dict[str, Path]:
    """Returns the headers of those torches that are wanted and that a Python has."""
    there = released(python)
    torches = {minor: there[minor] for minor in wanted if minor in there}
    if not torches:
        sys.exit(f"Python {python} has none of the torches {', '.join(wanted)}")
    return {minor: headers(minor, version, python) for minor, version in torches.items()}


def interpreter(python: str) -> str | None:
    """Returns the path of a Python by its minor version, on PATH or of pyenv; None for none."""
    found = shutil.which(f"python{python}")
    # Those of pyenv are on PATH as scripts that may refuse.
    if (
        found
        and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
    ):
        return found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return next(map(str, sorted(root.glob(f"versions/{python}.*/bin/python{python}"))), None)


def released(python: str) -> dict[str, str]:
    """Returns the newest release of each minor version of torch that a Python has, on Linux."""
    asked = run(
        *(*PIP, "index", "versions", "torch", "--json", "--only-binary", ":all:"),
        *("--platform", "manylinux_2_28_x86_64", "--python-version", python),
    )
    newest: dict[str, str] = {}
    for version in json.loads(asked)["versions"]:  # the newest first
        newest.setdefault(".".join(version.split(".")[:2]), version)
    return newest


def headers(minor: str, version: str, python: str) -> Path:
    """Returns a folder with the headers of a torch, as the package torch has them."""
    folder = ROOT / "build" / "torch" / minor
    known = folder / "torch" / "version.py"
    if known.is_file() and f"__version__ = '{version}'" in known.read_text():
        return folder / "torch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        print(f"fetching the headers of torch {version}", flush=True)
        platforms = [word for one in _HEADERS_OF for word in ("--platform", one)]
        run(
            *(*PIP, "download", "--no-deps", "--only-binary", ":all:", "--dest", name),
            *(*platforms, "--python-version", python, f"torch=={version}"),
        )
        part = Path(name, "part")
        with zipfile.ZipFile(next(Path(name).glob("*.whl"))) as wheel:
            for member in wheel.namelist():
                if member.startswith("torch/include/") or member in (
                    "torch/utils/cpp_extension.py",
                    "torch/version.py",
                ):
                    wheel.extract(member, part)
        part.rename(folder)
    return folder / "torch"


def build(python: str, torches: Iterable[Path], machine: str, dist: Path) -> Path:
    """Builds the wheel of one Python into a folder, and checks it."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"SOURCE_DATE_EPOCH": committed(), **os.environ, "PATH": tools}
    if machine != platform.machine():
        environment |= cross(python, machine)
    settings = [f"--config-settings=torch={torch}" for torch in torches]
    with tempfile.TemporaryDirectory() as folder:
        # Of the source distribution, as others may build it.
        here = [sys.executable, "-m"]
        run(*here, "build", "--sdist", "--outdir", folder, str(ROOT), env=environment)
        (sources,) = Path(folder).glob("*.tar.gz")
        run(
            *(*PIP, "--python", python, "wheel", "--no-deps", "--quiet", *settings),
            *("--wheel-dir", folder, str(sources)),
            env=environment,
        )
        (plain,) = Path(folder).glob("*.whl")
        run(
            *(*here, "auditwheel", "repair", "--plat", "auto", "--exclude", "libtorch*"),
            *("--exclude", "libc10*", "-w", f"{folder}/whole", str(plain)),
            env=environment,
        )
        (whole,) = Path(folder, "whole").glob("*.whl")
        if not whole.name.endswith(f"-{TAG}_{machine}.whl"):
            sys.exit(f"{whole.name} is not of the platform {TAG}_{machine}")
        run(*here, "check_wheel_contents", str(whole))
        run(*here, "twine", "check", "--strict", str(whole))
        if (size := whole.stat().st_size) > MOST_BYTES:
            sys.exit(f"{whole.name} has {size} bytes, and at most {MOST_BYTES} are wanted")
        dist.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(whole, dist / whole.name))


def cross(python: str, machine: str) -> dict[str, str]:
    """Returns the variables that have all be built for another processor."""
    suffix = run(python, "-c", "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX'))")
    return {
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": suffix.strip().replace(platform.machine(), machine),
        "CC": f"{machine}-linux-gnu-gcc",
        "CXX": f"{machine}-linux-gnu-g++",
        "CGO_ENABLED": "1",
        "GOARCH": {"x86_64": "amd64", "aarch64": "arm64"}[machine],
    }


def committed() -> str:
    """Returns the time of the sources: two builds of one commit are to have the same bytes."""
    asked = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or "946684800"


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """Runs a command, and returns what it printed. One that fails ends this program."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
