"""What `goccl bench` prints and writes: formats, JSON, compare, plot, and what interrupts them."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from goccl import _bench as bench
from goccl._bench import compare, libraries, machine, options, output, plot, record, terminal
from goccl._bench.beside import Beside
from goccl._bench.report import Row, Samples
from goccl._bench.run import Settings
from goccl._command import write_anew
from goccl._ranks.libraries import Library, Unavailable
from harness import finished, start

OURS = Library("goccl-c", "shm")
ROW_KEYS = [
    "library",
    "collective",
    "transport",
    "ranks",
    "dtype",
    "bytes",
    "iterations",
    "placement",
    "median_us",
    "mean_us",
    "p99_us",
    "algbw_GBps",
    "busbw_GBps",
    "wrong",
    "schedule",
    "in_flight",
    "staging",
    "incast",
    "beside",
    "init_s",
    "first_ms",
    "pss_MB",
    "device",
    "redop",
    "root",
    "in_place",
    "min_us",
    "p95_us",
    "max_us",
    "stdev_us",
    "block_medians_us",
]
ONE = ["allreduce", "--through", "c", "--transport", "shm", "--peers", "", "--sizes", "4"]
FEW = ["--iters", "4", "--blocks", "2"]


def row(**changes: Any) -> Row:
    values: dict[str, Any] = {
        "library": "goccl-c",
        "collective": "allreduce",
        "transport": "shm",
        "ranks": 2,
        "dtype": "float32",
        "bytes": 64,
        "iterations": 60,
        "placement": "near",
        "median_us": 2.0,
        "mean_us": 2.5,
        "p99_us": 3.0,
        "algbw_GBps": 1.0,
        "busbw_GBps": 1.5,
        "wrong": 0,
        "redop": "sum",
        "in_place": True,
        "block_medians_us": (2.0, 2.01, 1.99, 2.02, 1.98, 2.03),
    }
    return Row(**(values | changes))


def run_of(*rows: Row, **changes: Any) -> record.Run:
    values: dict[str, Any] = {
        "goccl": "1.2.3",
        "machine": {"processor": "A", "cpus": 2, "usable_cpus": 2, "kernel": "Linux 6", "load": 0},
        "libraries": {"goccl-c/shm": "libgoccl 1.2.3"},
        "settings": {"iters": 0, "environment": {"GOCCL_ALGO": "ring"}},
        "command": ["goccl", "bench", "allreduce"],
        "started": "2026-01-02T03:04:05+00:00",
        "ended": "2026-01-02T03:05:06+00:00",
        "rows": list(rows),
    }
    return record.Run(**(values | changes))


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="goccl bench", exit_on_error=False)
    bench.add_arguments(parser)
    args = parser.parse_args(arguments)
    options.complete(args)
    return args


def paths() -> dict[str, str]:
    """The variable by which a process finds this goccl."""
    package = str(Path(bench.__file__).parents[2])
    return {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}


def started(*arguments: str, cwd: Path | None = None, **env: str) -> Any:
    """A goccl in a process of its own."""
    return start(sys.executable, "-m", "goccl", *arguments, cwd=cwd, **paths(), **env)


# ---- nccl-tests ---------------------------------------------------------------------------------

# As nccl-tests 2.19.6 prints them.
NCCL_HEAD = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""  # noqa: E501
SIDE = ("time", "algbw", "busbw", "wrong")


def read_nccl(text: str) -> list[dict[str, Any]]:
    """The tables of nccl-tests, as scripts read them: lines of 13 words below comments, then the
    closing lines."""
    tables: list[dict[str, Any]] = []
    for line in text.splitlines():
        if found := re.match(r"# Collective test starting: (\S+)", line):
            tables.append({"name": found[1], "lines": []})
        elif found := re.match(r"#\s+Out of bounds values\s+:\s+(\d+)\s+(OK|FAILED)$", line):
            tables[-1]["wrong"] = int(found[1]), found[2]
        elif found := re.match(r"#\s+Avg bus bandwidth\s+:\s+(\S+)", line):
            tables[-1]["bandwidth"] = float(found[1])
        elif line and not line.startswith("#"):
            size, count, dtype, redop, root, *sides = line.split()
            assert len(sides) == 8, line
            numbers = [None if word == "N/A" else float(word) for word in sides]
            tables[-1]["lines"].append(
                {
                    "size": int(size),
                    "count": int(count),
                    "type": dtype,
                    "redop": redop,
                    "root": int(root),
                    "out": dict(zip(SIDE, numbers[:4], strict=True)),
                    "in": dict(zip(SIDE, numbers[4:], strict=True)),
                }
            )
    return tables


def nccl_table(*collectives: list[Row]) -> str:
    lines: list[str] = []
    table = output.NcclTable(lines.append, "1.2.3")
    table.begin(Settings(["allreduce"], 2, [4, 64], iterations=60), [OURS])
    for rows in collectives:
        for _, its in itertools.groupby(rows, key=lambda row: row.bytes):
            table.add(list(its))
        table.end(rows)
    return "\n".join(lines) + "\n"


def test_nccl_table_has_both_places_side_by_side() -> None:
    out = row(in_place=False, median_us=12345678.9, busbw_GBps=0.5, algbw_GBps=123456.7)
    text = nccl_table([out, row()], [row(bytes=4, wrong=3)])
    first, second = read_nccl(text)
    assert text.count(NCCL_HEAD) == 2
    assert len({len(line) for line in text.splitlines() if not line.startswith("#")}) == 1
    (line,) = first["lines"]
    assert line == {
        "size": 64,
        "count": 16,
        "type": "float",
        "redop": "sum",
        "root": -1,
        "out": {"time": 1.2e7, "algbw": 123457, "busbw": 0.5, "wrong": 0},
        "in": {"time": 2.0, "algbw": 1.0, "busbw": 1.5, "wrong": 0},
    }
    assert (first["name"], first["wrong"], first["bandwidth"]) == ("allreduce", (0, "OK"), 1.0)
    assert second["lines"][0]["out"] == dict.fromkeys(SIDE)
    assert (second["wrong"], second["bandwidth"]) == ((3, "FAILED"), 1.5)
    assert "goccl-c/shm, 2 ranks" in text


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.004, 6, "0.00"),
        (12.345, 7, "12.35"),
        (12345.678, 7, "12345.7"),
        (1234567.8, 7, "1234568"),
        (12345678.0, 7, "1.2e+07"),
        (12345678.0, 6, "1e+07"),
    ],
)
def test_nccl_numbers_fit_their_columns(value: float, width: int, text: str) -> None:
    assert output._short(value, width) == text


@pytest.mark.parametrize(
    ("changes", "count", "name"),
    [
        ({"collective": "allreduce"}, 16, "float"),
        ({"collective": "allgather"}, 8, "float"),  # nccl-tests counts a block
        ({"collective": "scatter", "dtype": "float16"}, 16, "half"),
        ({"collective": "broadcast", "dtype": "float64"}, 8, "double"),
        ({"collective": "alltoall", "dtype": "bfloat16"}, 16, "bfloat16"),
        ({"collective": "sendrecv", "dtype": "int8"}, 64, "int8"),
        ({"collective": "barrier", "bytes": 0}, 0, "float"),
    ],
)
def test_nccl_counts_and_types(changes: dict[str, Any], count: int, name: str) -> None:
    assert output.nccl_count(row(**changes)) == count
    assert output.nccl_type(row(**changes).dtype) == name


def test_nccl_line_is_of_the_placement_that_was_met_most() -> None:
    rows = [row(iterations=5, median_us=9.0, wrong=1), row(placement="far", median_us=4.0)]
    ((line,),) = (table["lines"] for table in read_nccl(nccl_table(rows)))
    assert (line["in"]["time"], line["in"]["wrong"]) == (4.0, 1), "wrong is of all"


def test_nccl_line_waits_for_its_other_place() -> None:
    lines: list[str] = []
    table = output.NcclTable(lines.append, "1.2.3")
    table.begin(Settings(["allreduce"], 2, [4, 64], in_place=[False, True]), [OURS])
    table.add([row(bytes=4, in_place=False, wrong=None, redop="product")])
    assert lines == []
    table.add([row(bytes=4, redop="product")])
    table.add([row(bytes=64, in_place=False, redop="premul_sum")])
    table.finish(run_of())
    ((first, second),) = (table["lines"] for table in read_nccl("\n".join(lines)))
    assert (first["size"], first["redop"]) == (4, "prod")
    assert (first["out"]["wrong"], first["in"]["wrong"]) == (None, 0), "one was not checked"
    assert (second["size"], second["redop"], second["in"]["time"]) == (64, "mulsum", None)


def test_nccl_json(tmp_path: Path) -> None:
    path = tmp_path / "n.json"
    current = [run_of(ended=None)]
    out = output.NcclJson(path, lambda: current[0])
    assert json.loads(path.read_text())["results"] == []
    with pytest.raises(FileExistsError):
        output.NcclJson(path, lambda: current[0])
    out.begin(Settings(["allreduce"], 2, [4, 64]), [OURS])
    samples = Samples()
    samples.add("near", [1000, 2000, 6000], 0)
    rows = samples.rows("goccl-c", "shm", "allreduce", 2, "float32", 64)
    current[0] = run_of(*rows, ended=None)
    out.add(rows)
    found = json.loads(path.read_text())
    assert "end_time" not in found
    (result,) = found["results"]
    assert result["in_place"] is None
    assert result["out_of_place"]["time"] == 2.0
    assert (result["size"], result["count"], result["type"]) == (64, 16, "float")
    assert int(result["root"]) == -1
    # What tools/analyze_perf_json.py of nccl-tests reads.
    spread = result["out_of_place_per_iter"]
    assert (spread["avg_us"], spread["min_us"], spread["max_us"], spread["p99_us"]) == (3, 1, 6, 6)
    assert spread["cv_pct"] == pytest.approx(100 * math.sqrt(14 / 3) / 3)
    out.finish(run_of(*rows))
    found = json.loads(path.read_text())
    assert found["start_time"] == "2026-01-02 03:04:05"
    assert found["end_time"] == "2026-01-02 03:05:06"
    assert found["env"] == ["GOCCL_ALGO=ring"]
    assert found["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert found["config"]["maximum_bytes"] == 64
    out.finish(run_of())
    assert not path.exists(), "nothing was measured"


@pytest.mark.parametrize(
    "more",
    [
        ["--peers", "gloo"],
        ["--transport", "shm,tcp"],
        ["--through", "c,torch"],
        ["--plans", "x.json"],
        ["--suite", "host"],
        ["--transport", ""],
    ],
)
def test_nccl_formats_are_of_one_library(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (["--format", "nccl"], ["--nccl-json", "n.json"]):
        assert bench.main(parse("allreduce", *more, *option)) == 2
        assert "--format nccl and --nccl-json are of one library" in capsys.readouterr().err
    args = parse("allreduce", "-J", "n.json")
    assert (args.through, args.transport, args.peers) == (["torch"], ["shm"], [])
    assert (args.place, parse("allreduce").place) == ("both", "usual")
    args = parse("allreduce", "--format", "nccl", "--transport", "", "--peers", "gloo")
    assert options._libraries_named(args) == 1


def test_unknown_format_is_told() -> None:
    with pytest.raises(argparse.ArgumentError, match=r"--format: invalid choice: 'xml'.*jsonl"):
        parse("allreduce", "--format", "xml")


# ---- CSV, JSON lines, JSON ----------------------------------------------------------------------


def test_csv() -> None:
    lines: list[str] = []
    out = output.Csv(lines.append)
    out.add([row(beside=Beside(1, 7)), row(library="a,b", in_place=False)])
    out.add([row(bytes=128)])
    assert len(lines) == 4
    first, second, third = csv.DictReader(io.StringIO("\n".join(lines)))
    assert set(first) == set(record.as_json(run_of(row()))["rows"][0])
    assert (first["beside"], first["in_place"], first["init_s"]) == ("1:7", "true", "")
    assert first["block_medians_us"].split() == ["2.0", "2.01", "1.99", "2.02", "1.98", "2.03"]
    assert (second["library"], second["in_place"]) == ("a,b", "false")
    assert (third["bytes"], third["median_us"]) == ("128", "2.0")


def test_json_lines() -> None:
    lines: list[str] = []
    out = output.JsonLines(lines.append, lambda: run_of(row(), ended=None))
    out.add([row(), row(bytes=4)])
    head, first, second = map(json.loads, lines)
    assert list(head) == [
        "version", "goccl", "machine", "libraries", "settings", "command", "started",
    ]  # fmt: skip
    assert (head["version"], head["command"]) == (1, ["goccl", "bench", "allreduce"])
    assert (first["bytes"], second["bytes"]) == (64, 4)


def test_json_file_is_whole_and_current(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    current = [run_of(ended=None)]
    out = output.JsonFile(path, lambda: current[0])
    out.add([])
    out.finish(run_of())
    assert path.read_text() == "old", "what an earlier run wrote stays where nothing was measured"
    current[0] = run_of(row(), ended=None)
    out.add([row()])
    assert json.loads(path.read_text())["ended"] is None
    assert record.read(path) == current[0]
    out.finish(run_of(row(), row(bytes=4, beside=Beside(1))))
    assert record.read(path) == run_of(row(), row(bytes=4, beside=Beside(1)))
    assert list(json.loads(path.read_text())) == [
        "version", "goccl", "machine", "libraries", "settings", "command", "started", "ended",
        "rows", "failures",
    ]  # fmt: skip
    assert list(json.loads(path.read_text())["rows"][0]) == ROW_KEYS
    assert os.listdir(tmp_path) == ["out.json"]  # noqa: PTH208


def test_json_goes_where_a_link_points(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_anew(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_two_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    program = (
        "import pathlib, sys\n"
        "from goccl._command import write_anew\n"
        "path, text = pathlib.Path(sys.argv[1]), sys.argv[2] * 100_000\n"
        "for _ in range(200):\n"
        "    write_anew(path, text)\n"
        "    assert path.read_text() in ('a' * 100_000, 'b' * 100_000)\n"
    )
    writers = [start(sys.executable, "-c", program, path, letter) for letter in "ab"]
    assert [(done.returncode, done.stderr) for done in finished(*writers)] == [(0, "")] * 2
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


def test_json_goes_into_a_pipe() -> None:
    """As /dev/stdout may be: a link to one, whose target is no file."""
    reader, writer = os.pipe()
    try:
        path = Path(f"/proc/self/fd/{writer}")
        out = output.JsonFile(path, lambda: run_of(row()))
        out.add([row()])  # written once, at the end
        out.finish(run_of(row()))
        assert json.loads(os.read(reader, 1 << 16)) == json.loads(json.dumps(WHOLE))
    finally:
        os.close(reader)
        os.close(writer)


def test_json_goes_where_the_rest_is_printed(tmp_path: Path) -> None:
    """The shell opens the file: replacing it would lose what has been and what will be printed."""
    program = (
        "import pathlib\n"
        "from goccl._command import write_anew\n"
        "print('before')\n"
        "write_anew(pathlib.Path('/dev/stdout'), 'text\\n')\n"
        "print('after')\n"
    )
    path = tmp_path / "file"
    with path.open("w") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert path.read_text() == "before\ntext\nafter\n"


def test_full_disk_leaves_the_last_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_anew(path, "whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            output.JsonFile(path, lambda: run_of(*[row()] * 50)).add([row()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["out.json"]  # noqa: PTH208


def test_secrets_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOCCL_SECRET", "hush")
    monkeypatch.setenv("GOCCL_STORE", "etcd://user:hush@host:2379")
    monkeypatch.setenv("GOCCL_ALGO", "allreduce:ring")
    monkeypatch.setenv("OTHER_SECRET", "hush")
    found = machine.variables()
    assert found["GOCCL_ALGO"] == "allreduce:ring"
    assert found["GOCCL_SECRET"] == "(hidden)"
    assert "hush" not in str(found)


def test_files_of_settings_are_told(tmp_path: Path) -> None:
    (tmp_path / ".goccl.conf").write_text("GOCCL_ALGO=allreduce:one_shot\nGOCCL_SECRET=hush\n")
    code = "from goccl._bench import machine; print(machine.variables())"
    (told,) = finished(start(sys.executable, "-c", code, HOME=str(tmp_path), GOCCL_NET="tcp"))
    assert "'GOCCL_ALGO': 'allreduce:one_shot'" in told.stdout, told.stderr
    assert "'GOCCL_NET': 'tcp', 'GOCCL_SECRET': '(hidden)'" in told.stdout


WHOLE = record.as_json(run_of(row()))


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in WHOLE["rows"][0].items() if key != name}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no JSON, or was cut off"),
        (json.dumps(WHOLE)[:300], "is no JSON, or was cut off"),
        ("[" * 100_000, "is no JSON, or was cut off"),
        ("\udcff", "is no JSON, or was cut off"),
        ("[]", "a list of rows without the version"),
        ("3", "is no result of goccl bench --json: it has no version"),
        ("{}", "is no result of goccl bench --json: it has no version"),
        (json.dumps(WHOLE | {"version": 2}), "has version 2, allowed is 1"),
        (json.dumps(WHOLE | {"rows": []}), "has no rows: nothing was measured"),
        (json.dumps(WHOLE | {"rows": 3}), "is no result of goccl bench --json"),
        (json.dumps(WHOLE | {"rows": [3]}), "is no result of goccl bench --json"),
        (json.dumps(WHOLE | {"rows": [without("median_us")]}), "row 1 has no median_us"),
        (
            json.dumps(WHOLE | {"rows": [WHOLE["rows"][0] | {"median_us": "2"}]}),
            "row 1: median_us is '2'",
        ),
        *(
            (json.dumps(WHOLE | {"rows": [WHOLE["rows"][0] | {name: value}]}), told)
            for name, value, told in (
                ("median_us", math.nan, "NaN is no number of JSON"),
                ("median_us", -math.inf, "-Infinity is no number of JSON"),
                ("in_place", [], r"row 1: in_place is \[\]"),
                ("in_place", 1, "row 1: in_place is 1"),
                ("bytes", True, "row 1: bytes is True"),
                ("beside", [], "is no result of goccl bench --json"),
                ("block_medians_us", [10**400], "is no result of goccl bench --json"),
            )
        ),
        (json.dumps(WHOLE).replace("2.0", "1e999"), "1e999 is no number of JSON, or too large"),
        (json.dumps(WHOLE | {"machine": {"cpus": 10**400}}), "is no result of goccl bench --json"),
        (json.dumps(WHOLE | {"machine": []}), r"machine is \[\]"),
        (json.dumps(WHOLE | {"machine": {"load": "x"}}), "load is 'x'"),
    ],
)
def test_what_is_no_result_is_told(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = tmp_path / "bad.json", tmp_path / "good.json"
    bad.write_bytes(text.encode(errors="surrogateescape"))
    good.write_text(json.dumps(WHOLE))
    with pytest.raises(record.Unreadable, match=f"{re.escape(str(bad))} .*{told}"):
        record.read(bad)
    assert compare.main(argparse.Namespace(old=good, new=bad)) == 2
    assert capsys.readouterr().err.startswith(f"goccl bench compare: {bad} ")


@pytest.mark.parametrize(
    ("name", "told"), [(".", "Is a directory"), ("none", "No such file or directory")]
)
def test_file_that_cannot_be_read_is_told(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(record.Unreadable, match=f"{tmp_path}.* cannot be read: {told}"):
        record.read(tmp_path / name)


# ---- compare ------------------------------------------------------------------------------------


def exact(old: list[float], new: list[float]) -> float:
    """The p of the Mann-Whitney U test by all ways to divide the values."""
    values, size = sorted(old + new), len(new)

    def lesser(sample: set[int]) -> int:
        rest = set(range(len(values))) - sample
        below = sum(a < b for a in sample for b in rest)
        return min(below, len(sample) * len(rest) - below)

    u = lesser({values.index(value) for value in new})
    ways = [lesser(set(ranks)) for ranks in itertools.combinations(range(len(values)), size)]
    return sum(way <= u for way in ways) / len(ways)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]),
        ([1, 2, 3, 4, 5, 12], [6, 7, 8, 9, 10, 11]),
        ([1, 3, 5, 7, 9, 11], [2, 4, 6, 8, 10, 12]),
        ([8, 9, 10, 11, 12], [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_probability_is_that_of_all_permutations(
    old: list[float], new: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare.probability(old, new) == pytest.approx(exact(old, new), abs=1e-9)
    assert compare.probability(old, new) == compare.probability(new, old)
    monkeypatch.setattr(compare, "_MOST_EXACT", 0)  # as of long samples
    assert compare.probability(old, new) == pytest.approx(exact(old, new), abs=0.02)


def test_probability_of_equal_samples_is_one() -> None:
    assert compare.probability([2.0] * 8, [2.0] * 8) == pytest.approx(1, abs=0.05)
    assert compare.probability([], []) == 1


def blocks(*values: float) -> dict[str, Any]:
    ordered = sorted(values)
    return {"median_us": ordered[len(ordered) // 2], "block_medians_us": values}


TEN = blocks(*(10 + i / 100 for i in range(10)))


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        (TEN, compare.NOISE),
        (blocks(*(10.4 + i / 100 for i in range(10))), compare.NOISE),  # less than 5 %
        (blocks(*(11 + i / 100 for i in range(10))), compare.SLOWER),
        (blocks(*(9 + i / 100 for i in range(10))), compare.FASTER),
        (blocks(11, 11, 11, 11, 11, 11, 11, 11, 11, 3), compare.SLOWER),  # one block differs
        (blocks(9, 9, 9, 9, 11, 11, 11, 11, 11, 11), compare.NOISE),
        (blocks(11, 11, 11, 11, 11, 11), compare.SLOWER),
        (blocks(11, 11), compare.UNKNOWN),
        (blocks(11), compare.UNKNOWN),
        ({"median_us": 11.0, "block_medians_us": ()}, compare.UNKNOWN),
    ],
)
def test_verdicts(new: dict[str, Any], verdict: str) -> None:
    (change,) = compare.judge([(row(**TEN), row(**new))])
    assert change.verdict == verdict


@pytest.mark.parametrize(
    ("found", "most"),
    [
        ([], 0.0),
        ([0.0099], 0.0099),
        ([0.01], 0.0),
        ([0.009, 0.004], 0.009),
        ([0.006, 0.009], 0.009),  # the second is below 2/2 of 0.01, and so is the first believed
        ([0.006, 0.02], 0.0),  # the first is not below 1/2 of 0.01
        ([0.002, 0.5, 0.6, 0.7, 0.0019], 0.002),
    ],
)
def test_limit_of_many_rows(found: list[float], most: float) -> None:
    assert compare.most_p(found) == most


def test_noise_of_many_rows_is_seldom_told_and_a_change_is() -> None:
    chance = random.Random(1)

    def measured(us: float) -> Row:
        medians = [us * chance.lognormvariate(0, 0.05) for _ in range(10)]
        return row(**blocks(*medians))

    false = 0
    for _ in range(50):
        pairs = [(measured(10), measured(10)) for _ in range(60)]
        false += any(c.verdict == compare.SLOWER for c in compare.judge(pairs))
        *_, change = compare.judge([*pairs, (measured(10), measured(12.5))])
        assert change.verdict == compare.SLOWER
    assert false <= 2


@pytest.mark.parametrize(
    "other",
    [
        {"library": "gloo"},
        {"transport": "tcp"},
        {"schedule": "parallel"},
        {"collective": "reduce"},
        {"ranks": 3},
        {"dtype": "int8"},
        {"redop": "max"},
        {"root": 1},
        {"in_place": False},
        {"bytes": 4},
        {"placement": "far"},
        {"beside": Beside(1)},
        {"device": "cuda"},
    ],
)
def test_only_rows_of_one_kind_are_compared(other: dict[str, Any]) -> None:
    assert compare.compare([row()], [row(**other)]) == ([], 1, 1)
    (name,) = other
    assert f"{name} is " in compare.apart([row()], [row(**other)])
    changes, only_old, only_new = compare.compare([row(), row(**other)], [row()])
    assert ([change.new for change in changes], only_old, only_new) == ([row()], 1, 0)


def test_rows_whose_placement_changed_are_left_out() -> None:
    mixed = row(placement="mixed")
    assert compare.compare([mixed], [mixed]) == ([], 0, 0)
    assert compare.apart([mixed], [mixed])


def test_what_differs_is_told() -> None:
    old = run_of(libraries={"goccl-c/shm": "libgoccl 1.2.3", "gloo/tcp": "torch 2.8"})
    new = run_of(
        libraries={"goccl-c/shm": "libgoccl 1.3", "gloo/tcp": "torch 2.9"},
        machine={**old.machine, "processor": "B", "load": 1},
        settings={"iters": 0, "environment": {}, "sizes": [4]},
    )
    assert compare.differences(old, old) == []
    assert compare.differences(old, new) == [
        "processor is B, and was A",
        "environment is empty, and was GOCCL_ALGO=ring",
        "gloo/tcp is torch 2.9, and was torch 2.8",
    ]


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    slow = blocks(*(20 + i / 100 for i in range(10)))
    few = blocks(10, 10)

    def compared(*rows: Row, **changes: Any) -> tuple[int, list[str], list[str]]:
        write_anew(new, json.dumps(record.as_json(run_of(*rows, **changes))))
        status = compare.main(argparse.Namespace(old=old, new=new))
        told = capsys.readouterr()
        return status, told.out.splitlines(), told.err.splitlines()

    sizes = [row(**TEN), row(**TEN, bytes=4), row(**TEN, bytes=8)]
    write_anew(old, json.dumps(record.as_json(run_of(*sizes))))
    status, lines, warnings = compared(row(**slow), row(**few, bytes=4), row(**TEN, bytes=16))
    assert (status, warnings) == (1, [])
    assert lines[0].startswith(
        "slower   2.00 x       10.05 ->       20.05 us  p 1.1e-05  goccl-c/shm"
    )
    assert lines[0].endswith("goccl-c/shm: allreduce, 2 ranks, float32, in place, 64, near")
    counts = "1 slower, 0 faster, 0 within the noise, 1 of too few blocks to tell"
    alone = f"1 only in {old}, 1 only in {new}"
    assert lines[1:] == [f"# 2 rows compared: {counts}; {alone}"]
    machine_of_old = run_of().machine
    status, lines, warnings = compared(
        *sizes[:2],
        row(**TEN, bytes=8, wrong=1),
        ended=None,
        machine={**machine_of_old, "load": 3.5, "kernel": "Linux 7"},
    )
    assert status == 0
    assert len(lines) == 1
    assert [line.removeprefix("goccl bench compare: warning: ") for line in warnings] == [
        "kernel is Linux 7, and was Linux 6",
        f"{new} is of a busy host: its load was 3.5",
        f"{new} has results that were wrong",
        f"{new} is of a run that was killed, or is not over",
    ]
    status, lines, (told,) = compared(row(**TEN, collective="reduce"))
    assert (status, lines) == (2, [])
    assert told.endswith("no row is in both files: collective is reduce, and was allreduce")


# ---- plot ---------------------------------------------------------------------------------------


def test_plot_of_files_tells_them_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / "before.json", tmp_path / "after.json"]
    for file, us in zip(files, (2.0, 3.0), strict=True):
        rows = [row(median_us=us, bytes=nbytes) for nbytes in (4, 64)]
        write_anew(file, json.dumps(record.as_json(run_of(*rows))))
    picture = tmp_path / "out.svg"

    def drawn(*drawn_files: Path) -> str:
        assert plot.main(argparse.Namespace(files=list(drawn_files), output=picture)) == 0
        return picture.read_text()

    both = drawn(*files)
    assert "before: GoCCL from C, shared memory" in both
    assert "after: GoCCL from C, shared memory" in both
    assert both.count("2026-01-02") == 1, "the same machine and date"
    one = drawn(files[0])
    assert "GoCCL from C, shared memory" in one
    assert "before:" not in one
    assert plot.main(argparse.Namespace(files=[tmp_path / "none"], output=picture)) == 2
    assert f"{tmp_path / 'none'} cannot be read" in capsys.readouterr().err
    assert plot.main(argparse.Namespace(files=files, output=Path("/proc/x.svg"))) == 1
    assert "goccl bench plot: /proc/x.svg cannot be written" in capsys.readouterr().err


def test_calls_that_differ_in_more_than_size_have_panels_of_their_own() -> None:
    rows = [row(), row(in_place=False), row(redop="max"), row(collective="reduce", root=1)]
    titles = [panel.title for (panel,) in plot._grid([plot._Drawn(**vars(r)) for r in rows])]
    assert titles == [
        "allreduce, 2 ranks, float32, in place",
        "allreduce, 2 ranks, float32, out of place",
        "allreduce, 2 ranks, float32, max",
        "reduce, 2 ranks, float32, root 1",
    ]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a.json"], [""]),
        (["a.json", "b.json"], ["a", "b"]),
        (["x/a.json", "y/a.json"], ["x/a.json", "y/a.json"]),
    ],
)
def test_names_of_files_in_the_legend(paths: list[str], names: list[str]) -> None:
    assert plot._names([Path(path) for path in paths]) == names


# ---- a terminal ---------------------------------------------------------------------------------


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_rich_is_of_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    plain, screen = io.StringIO(), Screen()
    for stream in (plain, screen):
        terminal.writer(stream)("[x] " + "long " * 20, "title")
    assert plain.getvalue() == "[x] " + "long " * 20 + "\n"
    assert screen.getvalue() == f"\x1b[1m{plain.getvalue()[:-1]}\x1b[0m\n"
    assert not isinstance(terminal.progress(plain), terminal.Bar)
    bar = terminal.progress(screen)
    assert isinstance(bar, terminal.Bar)
    bar.done = lambda: 0.5
    bar.step("part [1] of 2")
    assert "part [1] of" in screen.getvalue()
    bar.say("a line")
    assert screen.getvalue().endswith("a line\n")
    assert screen.getvalue().rstrip("a line\n").endswith("\x1b[2K"), "the bar is gone"


# ---- an MPI by its ABI --------------------------------------------------------------------------


def mpi(home: Path, module: str) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    names = ["bin/mpiexec", "lib/libmpi_abi.so.1"]
    for name in [*names, *([f"lib/{version}/site-packages/mpi4py/{module}"] if module else [])]:
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(0o755)


@pytest.mark.parametrize("on_path", [False, True])
def test_mpi_is_found_by_its_abi(
    on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOCCL_BENCH_PEERS", str(tmp_path / "peers"))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    home = tmp_path / "any" if on_path else tmp_path / "peers" / "mpi-abi"
    monkeypatch.setenv("PATH", str(home / "bin" if on_path else tmp_path))
    mpi(home, "MPI.mpiabi.abi3.so")
    library = libraries.peer_library("mpi-abi", 2)
    assert library.launcher == [str(home / "bin" / "mpiexec"), "-n", "2"]
    environment = library.environment
    assert environment["LD_LIBRARY_PATH"] == f"{home / 'lib'}:/before"
    assert environment["MPI4PY_LIBMPI"] == str(home / "lib" / "libmpi_abi.so.1")
    assert environment["PYTHONPATH"].startswith(str(home / "lib"))
    assert libraries.is_mpi(library.name)


@pytest.mark.parametrize("module", ["", "MPI.mpich.abi3.so"])
def test_mpi_without_an_mpi4py_for_its_abi_is_told(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOCCL_BENCH_PEERS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    mpi(tmp_path / "mpi-abi", module)
    with pytest.raises(Unavailable, match=r"no mpi4py that is built for it; .*MPI4PY_BUILD_MPIABI"):
        libraries.peer_library("mpi-abi", 2)


# ---- runs ---------------------------------------------------------------------------------------


def once(items: Iterable[Any]) -> list[Any]:
    """Items without those that are like the one before: a size has a row for each placement of CPUs
    that was met."""
    return [item for item, _ in itertools.groupby(items)]


def test_a_run_in_all_formats(tmp_path: Path) -> None:
    files = ["--json", "all.json", "-J", "nccl.json"]
    sizes = ["--sizes", "4,1K"]
    words = ["bench", "allreduce,allgather", *ONE[1:-2], *sizes, *FEW]
    (nccl,) = finished(started(*words, "--format", "nccl", *files, cwd=tmp_path, GOCCL_SECRET="x"))
    assert nccl.returncode == 0, nccl.stderr
    first, second = read_nccl(nccl.stdout)
    assert [first["name"], second["name"]] == ["allreduce", "allgather"]
    assert [line["size"] for line in second["lines"]] == [8, 1024]
    assert second["lines"][0]["in"]["time"] > 0
    assert first["wrong"] == (0, "OK")
    run = record.read(tmp_path / "all.json")
    assert run.ended is not None
    assert run.failures == []
    assert run.settings["environment"]["GOCCL_SECRET"] == "(hidden)"
    assert run.command[:3] == ["goccl", "bench", "allreduce,allgather"]
    assert list(run.libraries) == ["goccl-c/shm"]
    assert once((r.collective, r.bytes, r.in_place) for r in run.rows) == [
        (*call, place)
        for call in (("allreduce", 4), ("allreduce", 1024), ("allgather", 8), ("allgather", 1024))
        for place in (False, True)
    ]
    assert all(1 <= len(r.block_medians_us) <= 2 for r in run.rows)
    theirs = json.loads((tmp_path / "nccl.json").read_text())
    assert [result["size"] for result in theirs["results"]] == [4, 1024, 8, 1024]
    assert all(result["in_place"]["nwrong"] == 0 for result in theirs["results"])
    again, lines, table = finished(
        started(*words, "--format", "nccl", *files, cwd=tmp_path),
        started(*words, "--format", "jsonl", cwd=tmp_path),
        started(*words, "--format", "csv", cwd=tmp_path),
    )
    assert again.returncode == 2
    assert again.stderr.endswith("--nccl-json: nccl.json exists, and is not overwritten\n")
    head, *rows = map(json.loads, lines.stdout.splitlines())
    assert head["libraries"] == run.libraries
    assert once(line["bytes"] for line in rows) == [4, 1024, 8, 1024]
    assert once(line["bytes"] for line in csv.DictReader(io.StringIO(table.stdout))) == [
        "4", "1024", "8", "1024",
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_run_that_is_ended_keeps_its_rows(how: str, tmp_path: Path) -> None:
    sizes = ",".join(map(str, range(4, 4004, 4)))
    words = [*ONE[:-1], sizes, *FEW, "--json", "out.json", "--format", "csv"]
    process = started("bench", *words, cwd=tmp_path)
    assert process.stdout is not None
    with process:
        printed = [next(process.stdout) for _ in range(4)]  # the names, and three rows
        if how == "killed":
            process.send_signal(signal.SIGKILL)
        else:
            process.stdout.close()
        messages = process.stderr.read()
        assert process.wait(200) == (-signal.SIGKILL if how == "killed" else 1)
    run = record.read(tmp_path / "out.json")
    assert (run.ended is None) == (how == "killed")
    kept = [each.bytes for each in run.rows]
    assert kept[:3] == [int(line["bytes"]) for line in csv.DictReader(printed)]
    assert once(kept) == list(range(4, kept[-1] + 1, 4))
    assert len(kept) < 1000
    told = "goccl bench: stopped: the output cannot be written: Broken pipe\n"
    assert (told in messages) == (how == "closed")
    assert "Traceback" not in messages


@pytest.mark.parametrize("form", ["table", "csv", "jsonl", "nccl"])
def test_full_output_is_told(form: str) -> None:
    command = [sys.executable, "-m", "goccl", "bench", *ONE, *FEW, "--format", form]
    full = start("/bin/sh", "-c", 'exec "$@" > /dev/full', "sh", *command, **paths())
    (done,) = finished(full)
    assert done.returncode == 1
    told = "goccl bench: stopped: the output cannot be written: No space left on device\n"
    assert done.stderr.count(told) == 1
    assert done.stderr.endswith(told) or "goccl bench: No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
