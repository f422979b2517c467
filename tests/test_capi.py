"""The binding by ctypes is that of the header, of which capi/testdata/abi.txt is a record: a test
in Go compares the two."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import goccl
import pytest
from goccl import _capi

CAPI = Path(__file__).parents[1] / "capi"
ABI = (CAPI / "testdata" / "abi.txt").read_text()
OLD = (CAPI / "goccl_deprecated.h").read_text()
KINDS = {"goccl_result": "i", "int": "i", "int64_t": "q", "size_t": "z", "uint64_t": "u"}
KINDS |= dict.fromkeys(("goccl_dtype", "goccl_reduce_op", "goccl_log_level"), "i")
KINDS |= dict.fromkeys((f"goccl_{name}" for name in ("callback", "logger")), "p")
STRUCTS = {f"goccl_{kind.__name__.lower()}": kind for kind in _capi.Grown.__subclasses__()}


def kind_of(argument):
    """The letter of an argument of a function, as it is declared in C."""
    kind = re.fullmatch(r"(.*?)\w+", argument).group(1)
    if kind == "const char *":
        return "s"
    return "p" if "*" in kind else KINDS.get(kind.strip(), "u")  # handles


def test_functions_are_those_of_the_header():
    declared = re.findall(r"^(goccl_result|const char \*) ?(goccl_\w+)\((.*)\);$", ABI, re.M)
    wanted = {
        name: "" if arguments == "void" else "".join(map(kind_of, arguments.split(", ")))
        for _, name, arguments in declared
        if f" {name}(" not in OLD
    }
    assert wanted == _capi._FUNCTIONS
    assert {name for kind, name, _ in declared if kind != "goccl_result"} == set(_capi._TEXTS)


def test_structs_are_those_of_the_header():
    assert len(STRUCTS) >= 6
    for name, kind in STRUCTS.items():
        fields = dict(re.findall(rf"^{name}\.(\w+): at (.*) bytes$", ABI, re.M))
        found = {
            field: f"{getattr(kind, field).offset}, {getattr(kind, field).size}"
            for field, *_ in kind._fields_
        }
        assert found == fields, name
        assert f"\n{name}: {ctypes.sizeof(kind)} bytes\n" in ABI


def constants(prefix):
    return {
        name.lower(): int(value)
        for name, value in re.findall(rf"^GOCCL_({prefix}) = (.*)$", ABI, re.M)
    }


def test_constants_are_those_of_the_header():
    for name, value in constants(
        r"INVALID_ARGUMENT|INVALID_HANDLE|IN_PROGRESS|NO_TIMEOUT|HANDLE_SIZE"
    ).items():
        assert getattr(_capi, name.upper()) == value
    dtypes = {name: value for value, name in enumerate(_capi.DTYPES)}
    assert constants("|".join(map(str.upper, dtypes))) == dtypes
    assert constants("DTYPE_COUNT") == {"dtype_count": len(dtypes)}
    ops = {name: value for value, name in enumerate(_capi.OPS)}
    assert constants("|".join(map(str.upper, ops))) == ops
    assert constants("REDUCE_OP_COUNT") == {"reduce_op_count": len(ops)}


def test_failures_are_exceptions():
    with pytest.raises(ValueError, match="json"):
        _capi.check(_capi.library().goccl_info(None, 8, None))
    with pytest.raises(goccl.Error):
        _capi.check(_capi.library().goccl_work_test(77))


def test_texts_are_complete_however_long():
    given = (b"allreduce", 4, 2, 0, 0, b"shm", 4096)
    short = _capi.text("goccl_plan_info", *given, size=16)
    assert short == _capi.text("goccl_plan_info", *given)
    assert len(short) > 16


LOADED = """
import resource, sys
from pathlib import Path
from goccl import _capi, errors
assert "torch" not in sys.modules
{}
try:
    _capi.getenv("GOCCL_DEBUG")
except errors.Error as error:
    print(error)
"""
SPACE = "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))"
THREADS = """
import threading
def no_thread(*arguments, **options):
    raise RuntimeError("can't start new thread")
threading._start_joinable_thread = threading._start_new_thread = no_thread
"""
NOT_THERE = "_capi.LIBRARY = Path('/nowhere/libgoccl.so.0')"
ANOTHER = "import _ctypes; _capi.LIBRARY = Path(_ctypes.__file__)"


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        pytest.param(SPACE, "raise its limit (ulimit -v)", id="address space"),
        pytest.param(THREADS, "and only 0 more can be started", id="threads"),
        pytest.param(NOT_THERE, "Reinstall the goccl package", id="none"),
        pytest.param(
            ANOTHER, "has no function goccl_version: it is of another version", id="other"
        ),
    ],
)
def test_a_library_that_cannot_be_loaded_is_told_without_torch(broken, told):
    """Go would end the process where it lacks something."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(broken)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
