"""The options: one definition, in Python, that the C++ class, the Go core and the stub agree
with."""

import ast
import inspect
from datetime import timedelta
from pathlib import Path

import goccl
import pytest
from goccl import _capi
from goccl import _options as options

ROOT = Path(__file__).resolve().parents[1]

VALUES = {
    "timeout": timedelta(seconds=5),
    "transport": "tcp",
    "interface": "lo",
    "liveness_grace": timedelta(seconds=2),
    "secret": "hush",
    "alltoall_schedule": "window=2",
    "min_size": 2,
    "quorum": "any",
    "recovery": "survivors",
    "net": "tcp",
    "ib_hca": "mlx5_0",
    "ib_gid_index": 3,
    "algorithms": "allreduce:two_shot",
    "thresholds": "flat_max=1",
    "links": "tcp=1:2:3",
    "plans": "/programs",
    "wire_dtype": "bfloat16",
    "side_step": "alltoall:gloo",
    "staging": 512 << 20,
}


def test_every_option_can_be_given_and_set():
    assert set(VALUES) == set(options.OPTIONS)
    made = goccl.Options(**VALUES)
    for name, value in VALUES.items():
        assert getattr(made, name) == value, name
        changed = goccl.Options()
        setattr(changed, name, value)
        assert getattr(changed, name) == value, name


def test_the_longest_duration_stays_one():
    for name in ("timeout", "liveness_grace"):
        made = goccl.Options(**{name: timedelta.max})
        assert timedelta.max - getattr(made, name) < timedelta(milliseconds=1), name


def test_defaults_are_those_of_the_definition():
    made, defined = goccl.Options(), options.OptionFields()
    for name in options.OPTIONS:
        expected = timedelta(minutes=30) if name == "timeout" else getattr(defined, name)
        assert getattr(made, name) == expected, name


def test_signature_and_docstrings_are_those_of_the_definition():
    assert inspect.signature(goccl.Options) == options.SIGNATURE
    assert goccl.Options.__doc__ == options.describe()
    for name in options.OPTIONS:
        assert getattr(goccl.Options, name).__doc__ == options.documentation(name)


def test_the_stub_takes_the_options_from_the_definition():
    stub = ast.parse((ROOT / "python/goccl/_C.pyi").read_text())
    (declared,) = (n for n in ast.walk(stub) if isinstance(n, ast.ClassDef) and n.name == "Options")
    assert "OptionFields" in map(ast.unparse, declared.bases)
    methods = {n.name for n in declared.body if isinstance(n, ast.FunctionDef)}
    assert methods == {"timeout", "_for_group"}, "timeout reads as a timedelta always"


def test_variables_are_those_that_the_core_reads():
    assert sorted(options.VARIABLES) == sorted(_capi.call("goccl_info")["variables"])


def test_tables_name_every_setting():
    table = options.markdown()
    for setting in options.SETTINGS:
        for name in filter(None, (setting.option, setting.variable)):
            assert f"| `{name}` |" in table
    assert len({line.count(" | ") for line in table.splitlines()[2:]}) == 1


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("tiemout", " (did you mean `timeout`?)"),
        ("Transport", " (did you mean `transport`?)"),
        ("liveness", " (did you mean `liveness_grace`?)"),
        ("colour", ""),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest(name, guess):
    told = (
        f"goccl.Options: there is no option `{name}`{guess}; known are {', '.join(options.OPTIONS)}"
    )
    with pytest.raises(TypeError) as caught:
        goccl.Options(**{name: 1})
    assert str(caught.value) == told
    with pytest.raises(AttributeError) as refused:
        setattr(goccl.Options(), name, 1)
    assert str(refused.value) == told


def test_a_value_without_a_name_is_told():
    with pytest.raises(TypeError, match="'tcp' has no name; give options as timeout="):
        goccl.Options("tcp")  # type: ignore[call-arg]


def test_subclasses_have_attributes_of_their_own():
    class Named(goccl.Options):
        def __init__(self, label, **given):
            super().__init__(**given)
            self.label = label

    made = Named("mine", transport="tcp")
    assert (made.label, made.transport) == ("mine", "tcp")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("transport", "rdma", 'allowed are "shm", "tcp", "verbs" and ""'),
        ("transport", "TCP", 'allowed are "shm", "tcp", "verbs" and ""'),
        ("alltoall_schedule", "window=255", 'allowed are "sequential", "window=1" to "window=254"'),
        ("interface", "lo\0", "allowed are names, or what they begin with"),
        ("secret", "a\0b", "allowed are any text without NUL"),
        ("min_size", -1, "allowed are 1 to 65536, or 0: the default"),
        (
            "staging",
            (128 << 20) - 1,
            "allowed are bytes from 128 << 20 to 1 << 40, or 0: the default",
        ),
        ("staging", (1 << 40) + 1, "allowed are bytes from 128 << 20 to 1 << 40"),
        ("staging", -1, "allowed are bytes from 128 << 20"),
        ("ib_gid_index", 256, "allowed are 0 to 255"),
        ("ib_gid_index", -1, "allowed are 0 to 255"),
        ("net", "shm", 'allowed are "tcp", "verbs" and ""'),
        ("links", "a\0", "allowed are kinds with latency"),
        ("min_size", 65537, "allowed are 1 to 65536"),
        ("recovery", "most", 'allowed are "step", "survivors", "all" and ""'),
        ("quorum", "most", 'allowed are "majority", "any" and ""'),
        ("timeout", timedelta(0), "must be at least 1 ms"),
        ("timeout", timedelta(days=-1), "must be at least 1 ms"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_allowed(name, value, allowed):
    with pytest.raises(ValueError, match=f"goccl.Options: `{name}` is .*{allowed}"):
        goccl.Options(**{name: value})
    made = goccl.Options()
    with pytest.raises(ValueError, match=f"goccl.Options: `{name}` is .*{allowed}"):
        setattr(made, name, value)
    assert repr(made) == repr(goccl.Options()), "what is refused changes nothing"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name, allowed in VALUES.items()
        for value in (3, 2.5, b"tcp", ["tcp"], True)
        if type(value) is not type(allowed)
    ],
)
def test_a_value_of_another_type_is_told(name, value):
    kind = {timedelta: "a datetime.timedelta", str: "a str", int: "an int"}[type(VALUES[name])]
    with pytest.raises(TypeError) as caught:
        goccl.Options(**{name: value})
    assert str(caught.value) == f"goccl.Options: `{name}` is {value!r}, it must be {kind}"


TEXTS = {
    "recovery": ("step", "survivors", "all", "", "Step", "most"),
    "quorum": ("majority", "any", "", "Any", "any ", "all"),
    "net": ("tcp", "verbs", "", "shm", "TCP"),
    "transport": ("shm", "tcp", "verbs", "", "mem", "self", " tcp", "tcp ", "TCP", "tcp\n"),
    "alltoall_schedule": (
        *("", "sequential", "parallel", "window=1", "window=254", "window=02", "window=099"),
        *(
            "window=0",
            "window=255",
            "window=1000",
            "window=",
            "window=+1",
            "window=2 ",
            "window",
            "by size",
        ),
    ),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in TEXTS for text in TEXTS[name]])
def test_the_core_allows_what_the_definition_allows(name, text, monkeypatch):
    try:
        goccl.Options(**{name: text})
    except ValueError:
        allowed = False
    else:
        allowed = True
    for setting in options.VARIABLES:
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setenv(options.OPTIONS[name].metadata["words"]["variable"], text)
    # A transport that this host lacks is a problem, too.
    problems = [p for p in _capi.call("goccl_info")["problems"] if "allowed are" in p]
    assert (problems == []) == allowed, problems


def problems_with(monkeypatch, variable, text):
    for name in options.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, text)
    return _capi.call("goccl_info")["problems"]


@pytest.mark.parametrize("index", ["0", "255", "256", "-1", "x"])
def test_the_core_allows_the_same_gid_indexes(index, monkeypatch):
    allowed = index.isdecimal() and int(index) <= 255
    assert (problems_with(monkeypatch, "GOCCL_IB_GID_INDEX", index) == []) == allowed
