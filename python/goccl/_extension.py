"""Compiles goccl._C, the C++ part, for one torch and the Python that runs this.

Headers of a torch are enough: what is built is linked to the names of torch's libraries, and meets
the libraries themselves when it is loaded. setup.py and `goccl build` use it. It imports neither
torch nor the rest of goccl.
"""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

OLDEST = (2, 8)
"""The oldest minor version of torch that the sources know."""
NEWEST = (2, 15)
"""The newest one."""

FILE = "_C" + (
    os.environ.get("SETUPTOOLS_EXT_SUFFIX") or str(sysconfig.get_config_var("EXT_SUFFIX"))
)
"""How the extension's file is called in every folder. The variable is setuptools', for what is
built for another processor."""

LIMIT = 1800
"""Seconds that the compiler may take for a file."""

_LIBRARIES = ("c10", "torch_cpu", "torch_python")
# How many files the compiler is given. All read the same headers, which takes it half of its time.
# The number is the same on each machine, and so are the bytes that come out.
_PARTS = 2
# With more memory before it collects garbage, GCC takes a fifth less time.
_FLAGS = (
    *("-O2", "-g0", "-fPIC", "-Wall", "-fvisibility=hidden"),
    *("--param", "ggc-min-expand=1000", "--param", "ggc-min-heapsize=1000000"),
    *("-DTORCH_API_INCLUDE_EXTENSION_H", "-DTORCH_EXTENSION_NAME=_C"),
)
# What pybind11 2.13 of the official torch 2.8 was compiled with: GCC 13. Classes of two modules
# know each other only where this is the same. Later ones of pybind11 do not ask for it.
_BUILD_ABI = "_cxxabi1018"


class CannotBuild(Exception):
    """The extension cannot be built here; the text says why and what to do."""


def key(version: str) -> str:
    """Names what is the same for all versions of torch that one extension serves.

    Args:
        version: of torch, such as "2.15.0+cpu".

    Returns:
        "2.15". Of a version before a release, such as "2.16.0.dev20261101", all of it: the next one
        may differ.
    """
    released = re.fullmatch(r"(\d+\.\d+)(\.\d+)*(\.post\d+)?(\+.*)?", version)
    return released[1] if released else version


def folder_of(version: str) -> str:
    """Names the folder of the extension for a torch, as a module may be called: "v2_15"."""
    return "v" + re.sub(r"\W", "_", key(version))


def minor(version: str) -> tuple[int, ...]:
    """Returns (2, 15) of "2.15.0+cpu"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@dataclass(frozen=True)
class Torch:
    """A torch, or its headers.

    Attributes:
        root: The folder of the package.
        version: Such as "2.15.0+cpu".
    """

    root: Path
    version: str

    @property
    def key(self) -> str:
        """See key()."""
        return key(self.version)

    @property
    def folder(self) -> str:
        """See folder_of()."""
        return folder_of(self.version)


def torch_in(root: Path) -> Torch:
    """Returns the torch whose package is in a folder. CannotBuild where there is none."""
    try:
        text = (root / "version.py").read_text()
    except OSError as error:
        raise CannotBuild(f"{root} has no torch: {error}") from error
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    if version is None:
        raise CannotBuild(f"{root / 'version.py'} names no version")
    return Torch(root, version[1])


def find_torch() -> Torch | None:
    """Returns the torch that `import torch` finds, without importing it; None for none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return torch_in(Path(spec.origin).parent)


def check(torch: Torch) -> None:
    """Raises CannotBuild unless the compiler and all headers are there.

    It compiles a file of a line, as the extension will be.
    """
    if minor(torch.version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise CannotBuild(f"goccl needs torch {oldest} or later, and this is {torch.version}")
    if not (torch.root / "include" / "torch" / "extension.h").is_file():
        raise CannotBuild(f"torch {torch.version} in {torch.root} has no headers: reinstall it")
    compiler = _compiler()
    if shutil.which(compiler[0]) is None:
        raise CannotBuild(
            f"building goccl needs a C++ compiler, and {compiler[0]!r} was not found. "
            "On Debian: apt-get install g++; another one: set CXX"
        )
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").is_file():
        raise CannotBuild(
            f"building goccl needs Python's C headers, and {include} has no Python.h. "
            "On Debian: apt-get install python3-dev"
        )
    with tempfile.TemporaryDirectory(prefix="goccl-") as folder:
        source, made = Path(folder, "line.cpp"), Path(folder, "line.so")
        source.write_text("#include <Python.h>\n#include <memory>\n#include <torch/version.h>\n")
        _run([*compiler, *_flags(torch), "-shared", source, "-o", made, *_given("LDFLAGS")])
        if not made.is_file():
            raise CannotBuild(
                f"the C++ compiler {shlex.join(compiler)} says nothing and makes nothing"
            )


def compile_extension(torch: Torch, sources: Path, headers: Path, folder: Path) -> Path:
    """Compiles the extension, for a torch that check() has passed. Takes a minute of two CPUs, and
    3 GiB of memory.

    The file appears whole, and takes the place of one that is there.

    Args:
        torch: For which torch.
        sources: The folder of its C++ files.
        headers: The folder of goccl.h.
        folder: Where to put it, by the name FILE; it is made.

    Returns:
        Where it is.

    Raises:
        CannotBuild: The compiler fails; its messages are in the text.
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="part-") as name:
        work = Path(name)
        _write_functions(headers, work)
        includes = [f"-I{work}", f"-I{sources}", f"-I{headers}"]
        # Texts of errors name files: those of two builds are to be the same.
        maps = [f"-ffile-prefix-map={sources}/=", f"-ffile-prefix-map={torch.root}/=torch/"]
        flags = [*_flags(torch), *includes, *maps]
        parts = _write_parts(sources, work)
        commands = [[*_compiler(), *flags, "-c", part, "-o", f"{part}.o"] for part in parts]
        with ThreadPoolExecutor(len(commands)) as pool:
            list(pool.map(_run, commands))
        _write_stubs(work)
        whole = work / FILE
        _run(
            [
                *_compiler(),
                *("-shared", "-s", *(f"{part}.o" for part in parts), "-o", str(whole), f"-L{work}"),
                *("-Wl,--no-as-needed", *(f"-l{name}" for name in _LIBRARIES)),
                *("-Wl,--as-needed", "-ldl", *_given("LDFLAGS")),
            ]
        )
        return whole.replace(folder / FILE)


def digest(sources: Path, headers: Path) -> str:
    """Tells sources of the extension apart from others: what is built of them is no other's."""
    files = [*sources.glob("*.cpp"), *sources.glob("*.h"), *headers.glob("goccl*.h")]
    whole = hashlib.sha256(Path(__file__).read_bytes())
    for file in sorted(files, key=lambda file: file.name):
        whole.update(file.name.encode() + b"\0" + file.read_bytes())
    return whole.hexdigest()[:12]


def functions(headers: Path) -> list[str]:
    """Lists the functions of the headers goccl*.h of a folder, without their prefix."""
    text = "".join((headers / name).read_text() for name in ("goccl.h", "goccl_bindings.h"))
    return re.findall(r"^(?:goccl_result |const char \*)goccl_(\w+)\(", text, re.MULTILINE)


def _compiler() -> list[str]:
    return _given("CXX") or ["c++"]


def _given(variable: str) -> list[str]:
    """The words of a variable of the environment, as a shell reads them."""
    text = os.environ.get(variable, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise CannotBuild(f"{variable} is {text!r}, which is no list of words: {error}") from error


def _flags(torch: Torch) -> list[str]:
    """What each file is compiled with."""
    include = torch.root / "include"
    # Each torch knows the standard that its headers want.
    extension = (torch.root / "utils" / "cpp_extension.py").read_text()
    standard = re.search(r"-std=c\+\+\d+", extension)
    flags = [standard[0] if standard else "-std=c++17", *_FLAGS]
    if (abi := _build_abi(torch)) is not None:
        flags.append(f'-DPYBIND11_BUILD_ABI="{abi}"')
    for folder in (include, include / "torch/csrc/api/include", sysconfig.get_path("include")):
        flags += ["-isystem", str(folder)]
    return [*flags, *_given("CPPFLAGS"), *_given("CXXFLAGS")]


def _build_abi(torch: Torch) -> str | None:
    """The name that pybind11 of torch 2.8 has for its compiler's ABI; None for later ones."""
    if minor(torch.version) != (2, 8):
        return None
    library = torch.root / "lib" / "libtorch_python.so"
    if not library.is_file():
        return _BUILD_ABI
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        found = re.search(rb"__pybind11_internals_v\d+_gcc_libstdcpp(_cxxabi\d+)__", text)
        return found[1].decode() if found else _BUILD_ABI


def _write_functions(headers: Path, folder: Path) -> None:
    """Writes the functions of the headers as a macro of C."""
    names = " ".join(f"X({name})" for name in functions(headers))
    (folder / "goccl_functions.h").write_text(f"#define GOCCL_FUNCTIONS(X) {names}\n")


def _write_parts(sources: Path, folder: Path) -> list[Path]:
    """Writes files that include all sources, about as much in each."""
    parts: list[list[Path]] = [[] for _ in range(_PARTS)]
    sizes = [0] * _PARTS
    files = sorted(sources.glob("*.cpp"), key=lambda file: (-file.stat().st_size, file.name))
    for file in files:
        least = sizes.index(min(sizes))
        parts[least].append(file)
        sizes[least] += file.stat().st_size
    paths = []
    for number, part in enumerate(parts):
        path = folder / f"part{number}.cpp"
        path.write_text("".join(f'#include "{file.name}"\n' for file in sorted(part)))
        paths.append(path)
    return paths


def _write_stubs(folder: Path) -> None:
    """Makes empty libraries with the names of torch's: a linker asks for no more."""
    for name in _LIBRARIES:
        library = f"lib{name}.so"
        command = [*_compiler(), "-shared", "-nostdlib", "-x", "c++", "/dev/null"]
        _run([*command, f"-Wl,-soname,{library}", "-o", folder / library])


def _run(command: Sequence[str | Path]) -> None:
    words = list(map(str, command))
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
    except OSError as error:
        raise CannotBuild(f"{words[0]!r} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise CannotBuild(f"{shlex.join(words)}\ntakes more than {LIMIT} seconds") from error
    if done.returncode != 0:
        # The first lines tell most.
        told = "\n".join(done.stdout.strip().splitlines()[:20])
        raise CannotBuild(f"{shlex.join(words)}\nfailed:\n{told}")
