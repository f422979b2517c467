"""`goccl build`: an extension for a torch that goccl has none for. What is compiled here is small,
and so are the seconds; make test-wheels compiles the whole."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from goccl import _build, _extension, _native

SMALL = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""
# Stands for another torch: the one that is here, by another version.
BUILD = """
import sys
from pathlib import Path
from goccl import _build, _cli, _extension, _native
_native.sources = lambda: Path(sys.argv[1])
here = _extension.find_torch()
_extension.find_torch = lambda: _extension.Torch(here.root, "2.99.0")
sys.exit(_cli.main(["build", *sys.argv[2:]]))
"""


@pytest.fixture
def place(tmp_path):
    """A folder with spaces in its path, for the sources and the cache."""
    folder = tmp_path / "a place"
    (folder / "sources").mkdir(parents=True)
    (folder / "sources" / "small.cpp").write_text(SMALL)
    return folder


def environment(place, **more):
    return {**os.environ, "XDG_CACHE_HOME": str(place / "cache"), **more}


def command(place, *arguments):
    return [sys.executable, "-c", BUILD, str(place / "sources"), *arguments]


def goccl_build(place, *arguments, **more):
    return subprocess.run(
        command(place, *arguments),
        env=environment(place, **more),
        capture_output=True,
        text=True,
        timeout=200,
    )


def built(place):
    return list(place.glob(f"cache/goccl/*/torch-2.99.0/{_extension.FILE}"))


def test_what_is_built_is_kept_and_loads(place):
    done = goccl_build(place, "--check")
    assert (done.returncode, list(place.glob("cache"))) == (0, []), done.stderr
    assert done.stdout.startswith("it can be built for torch 2.99.0, into ")
    done = goccl_build(place)
    (file,) = built(place)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"built: {file}"), done.stderr
    assert {path.name for path in file.parent.iterdir()} == {_extension.FILE, "lock"}
    again = goccl_build(place)
    assert (again.returncode, again.stdout) == (0, f"torch 2.99.0 has its extension: {file}\n")


def test_one_of_the_cache_is_loaded_before_that_of_the_package(place, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    version = _extension.find_torch().version
    (of_package,) = _native.extensions(version)
    cached = _native.cache() / f"torch-{version}" / _extension.FILE
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"")
    assert _native.extensions(version) == [cached, of_package]
    # That of another version of goccl, or of other sources, is not looked at.
    cached.parent.parent.rename(cached.parent.parent.with_name("0.0.9-abc"))
    assert _native.extensions(version) == [of_package]


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_cache_needs_a_home(monkeypatch, home):
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    assert _native.cache().is_relative_to(Path.home() / ".cache" / "goccl")
    monkeypatch.setattr(Path, "home", no_home)
    assert _native.extensions("2.99.0") == []
    torch = _extension.Torch(Path("/"), "2.99.0")
    with pytest.raises(_extension.CannotBuild, match=r"no home.*: set XDG_CACHE_HOME"):
        _build._folder(torch)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_home_of_another_user_is_passed_over(place):
    (place / "cache").mkdir(mode=0o700)
    code = """
import os, sys
from goccl import _native
_native.built_for(), _native.cache()  # what the other user may not read is read before
os.setuid(65534)
print(len(_native.extensions(sys.argv[1])))
"""
    version = _extension.find_torch().version
    done = subprocess.run(
        [sys.executable, "-c", code, version],
        env=environment(place), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.stdout == "1\n", done.stderr


def no_home():
    raise RuntimeError("no home")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"CXX": "no-such-c++ -m64"}, "C++ compiler, and 'no-such-c++' was not found"),
        ({"CXX": "false"}, "failed:"),
        ({"XDG_CACHE_HOME": "/dev/null/cache"}, "Set XDG_CACHE_HOME to a folder that can be"),
        ({"LDFLAGS": "-lno_such_library"}, "no_such_library"),
        ({"CXXFLAGS": "'"}, 'CXXFLAGS is "\'", which is no list of words'),
        ({"CXX": "true"}, "says nothing and makes nothing"),
        ({"HOME": "relative", "XDG_CACHE_HOME": ""}, "is relative): set XDG_CACHE_HOME"),
    ],
)
def test_why_it_cannot_be_built(place, more, told):
    done = goccl_build(place, **more)
    assert (done.returncode, built(place)) == (1, []), done.stdout
    assert done.stderr.startswith("goccl build: ")
    assert told in done.stderr


def test_a_compiler_that_cannot_be_run_is_told(place):
    compiler = place / "c++"
    compiler.write_text("#!/no/such/interpreter\n")
    compiler.chmod(0o755)
    done = goccl_build(place, CXX=f"'{compiler}'")
    assert f"goccl build: '{compiler}' cannot be run: " in done.stderr


def test_the_current_folder_has_no_say(place):
    (place / "torch").mkdir()
    (place / "torch" / "__init__.py").write_text("raise RuntimeError('of the current folder')\n")
    file = Path(_native.load().__file__)
    code = "import sys; sys.path.pop(0); from pathlib import Path; from goccl import _build; "
    code += "print(repr(_build._why_not_loaded(Path(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, file], cwd=place, capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "''\n", done.stderr


def test_sources_that_do_not_compile_are_told(place):
    (place / "sources" / "small.cpp").write_text("#error this torch is new\n")
    done = goccl_build(place)
    assert (done.returncode, built(place)) == (1, [])
    assert "this torch is new" in done.stderr


def test_what_does_not_load_is_not_kept(place):
    (place / "sources" / "small.cpp").write_text("int none;\n")
    done = goccl_build(place)
    assert (done.returncode, built(place)) == (1, [])
    assert "what was built for torch 2.99.0 does not load: " in done.stderr
    assert "PyInit__C" in done.stderr


def test_no_room_is_told(place, monkeypatch):
    usage = shutil.disk_usage(place)._replace(free=5 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    torch = _extension.find_torch()
    with pytest.raises(_extension.CannotBuild, match=r"has 5 MiB free, and a build takes 200"):
        _build.build(torch, place / "cache")


def test_headers_that_are_missing_are_told(place, monkeypatch):
    torch = _extension.Torch(place, "2.99.0")
    with pytest.raises(_extension.CannotBuild, match=r"has no headers: reinstall it"):
        _extension.check(torch)
    with pytest.raises(_extension.CannotBuild, match=r"needs torch 2\.8 or later"):
        _extension.check(_extension.Torch(place, "2.7.1"))
    with pytest.raises(_extension.CannotBuild, match="has no torch"):
        _extension.torch_in(place)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(place))
    with pytest.raises(_extension.CannotBuild, match=r"no Python\.h.*apt-get install python3-dev"):
        _extension.check(_extension.find_torch())


def test_two_at_once_build_it_once(place):
    pair = [
        subprocess.Popen(command(place), env=environment(place), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [one.communicate(timeout=200)[0] for one in pair]
    (file,) = built(place)
    assert [one.returncode for one in pair] == [0, 0]
    assert sum("compiling" in text for text in printed) == 1
    assert all(str(file) in text for text in printed)


def test_one_that_builds_for_ever_is_told(place, monkeypatch):
    monkeypatch.setattr(_build, "_WAIT", 0)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            pytest.raises(_extension.CannotBuild, match=r"held .*lock for 0 seconds: end it"),
            _build._alone(place),
        ):
            pass


def test_one_that_was_killed_leaves_nothing_behind(place):
    compiler = place / "kills"
    compiler.write_text('#!/bin/sh\ncase "$*" in *part0*) kill -9 $PPID;; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    done = goccl_build(place, CXX=f"'{compiler}'")
    assert done.returncode == -signal.SIGKILL
    (left,) = place.glob("cache/goccl/*/torch-2.99.0/part-*")
    done = goccl_build(place)
    (file,) = built(place)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in file.parent.iterdir()} == {_extension.FILE, "lock"}
    assert not left.exists()
