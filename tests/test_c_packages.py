"""What others build against GoCCL in C: make install, pkg-config and CMake."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import goccl
import pytest
from goccl import _config as config

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "c" / "allreduce.c"
ENVIRONMENT = {**os.environ, "GOCCL_SOCKET_IFNAME": "lo"}

LISTS = f"""
cmake_minimum_required(VERSION 3.16)
project(stranger C)
find_package(goccl {goccl.__version__} REQUIRED)
find_package(goccl 99 QUIET)
if(goccl_FOUND)
  message(FATAL_ERROR "${{goccl_VERSION}} is not 99")
endif()
add_executable(allreduce {EXAMPLE})
target_link_libraries(allreduce PRIVATE goccl::goccl)
"""


def tool(name):
    """Finds a tool of others, which .ci/run installs."""
    if shutil.which(name) is None:
        package = {"pkg-config": "pkgconf"}.get(name, name)
        pytest.skip(f"no {name} is on PATH (on Debian: apt-get install {package})")
    return name


def run(*command, **environment):
    """Runs a command that must go well and returns what it prints."""
    done = subprocess.run(
        command,
        env=ENVIRONMENT | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def install(**settings):
    """Has make install what is in the package, without Python."""
    # -o: it is not built anew, whatever is older than the sources.
    return subprocess.run(
        [
            *("make", "-C", ROOT, "--no-print-directory", "-o", f"{config.LIB}/libgoccl.so.0"),
            *("install", "PYTHON=false", f"BUILT={config.LIB}"),
            *(f"{name}={value}" for name, value in settings.items()),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Where `make install` has installed, twice, in folders with spaces."""
    root = tmp_path_factory.mktemp("a root")
    for _ in range(2):
        done = install(PREFIX="/opt/with space", DESTDIR=root)
        assert done.returncode == 0, done.stdout
    return root / "opt" / "with space"


def ranks_are_right(program, **environment):
    assert run(program, "2", **environment).count("is right") == 2


def test_pkg_config_finds_what_is_installed(prefix, tmp_path):
    environment = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run(tool("pkg-config"), "--cflags", "--libs", "goccl", **environment)
    assert "rpath" not in flags
    run("cc", EXAMPLE, *shlex.split(flags), "-o", tmp_path / "allreduce")
    ranks_are_right(tmp_path / "allreduce", LD_LIBRARY_PATH=str(prefix / "lib"))
    printed = run("pkg-config", "--modversion", "goccl", **environment)
    assert printed == f"{goccl.__version__}\n"


def test_pkg_config_finds_the_package(tmp_path):
    folder = run(sys.executable, "-m", "goccl", "config", "--pkgconfig-dir").strip()
    flags = run(tool("pkg-config"), "--cflags", "--libs", "goccl", PKG_CONFIG_PATH=folder)
    run("cc", EXAMPLE, *shlex.split(flags), "-o", tmp_path / "allreduce")
    ranks_are_right(tmp_path / "allreduce")


@pytest.mark.parametrize("place", ["installed", "package"])
def test_cmake_finds_it(prefix, tmp_path, place):
    (tmp_path / "CMakeLists.txt").write_text(LISTS)
    where = f"-DCMAKE_PREFIX_PATH={prefix}"
    if place == "package":
        folder = run(sys.executable, "-m", "goccl", "config", "--cmake-dir").strip()
        where = f"-Dgoccl_DIR={folder}"
    run(tool("cmake"), "-S", tmp_path, "-B", tmp_path / "build", where)
    run("cmake", "--build", tmp_path / "build")
    ranks_are_right(tmp_path / "build" / "allreduce")


def test_install_takes_other_folders(tmp_path):
    done = install(
        PREFIX="/usr", LIBDIR="/usr/lib/x86_64-linux-gnu", INCLUDEDIR="/usr/include/goccl",
        DESTDIR=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    lib = tmp_path / "usr" / "lib" / "x86_64-linux-gnu"
    flags = run(
        tool("pkg-config"), "--cflags", "goccl", PKG_CONFIG_PATH=str(lib / "pkgconfig")
    ).strip()
    assert Path(flags.removeprefix("-I"), "goccl.h").is_file()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"PREFIX": "here"}, "PREFIX=here must be an absolute path"),
        ({"LIBDIR": "lib"}, "LIBDIR=lib must be an absolute path"),
        ({"PREFIX": __file__}, "Not a directory"),
        ({"BUILT": "/dev/null/c", "GO": "no-such-go"}, "needs Go 1."),
    ],
)
def test_install_tells_what_it_cannot(settings, told):
    done = install(**settings)
    assert done.returncode != 0
    assert told in done.stdout
