"""goccl tune: the choice of a threshold, and a run with real ranks."""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from goccl import _tune as tune

BENCH = ("bench", "allreduce", "--through", "c", "--sizes", "4K", "--peers", "", "--iters", "4")
THRESHOLDS = {threshold.name: threshold for threshold in tune.THRESHOLDS}


@pytest.mark.parametrize(
    ("ratios", "cut"),
    [
        ([], 0),
        ([2.0, 2.0], 0),
        ([0.5, 0.5], 2),
        ([0.5, 2.0], 1),
        ([0.5, 1.1, 0.95, 2.0], 1),  # what the third would win, the second loses
        ([0.5, 1.1, 0.5, 2.0], 3),
        ([1.0, 1.0], 2),  # all the same: the algorithm for small messages, which needs less memory
    ],
)
def test_best_cut(ratios, cut):
    assert tune.best_cut(ratios) == cut
    total = [sum(map(math.log, ratios[:k])) for k in range(len(ratios) + 1)]
    assert total[cut] == pytest.approx(min(total))


def test_values_are_sizes():
    for threshold in tune.THRESHOLDS:
        assert (threshold.sizes[0], threshold.sizes[-1]) == (threshold.least, threshold.most)
        assert all(b == 2 * a for a, b in pairwise(threshold.sizes))
    most, least = THRESHOLDS["one_shot_max"], THRESHOLDS["pipeline_min"]
    sizes = most.sizes
    assert [tune.value(most, cut, 2) for cut in (0, 1, len(sizes))] == [0, 1024, sizes[-1]]
    # From this size of a slice on, where the other is up to it; 0 is never.
    assert [tune.value(least, cut, 4) for cut in (0, 2, len(least.sizes))] == [256, 1024, 0]
    streams = THRESHOLDS["stream_min"]
    assert [tune.value(streams, cut, 4) for cut in (0, 1, 7)] == [1 << 20, 2 << 20, 1 << 62]


def test_what_a_message_costs():
    # 7 us and 1 us at each end, and 2 ns for each of half a MiB.
    assert tune.link(9.0, 9.0 + 1048.576, 20.0, 32.0) == (7000, 1000, 2000)
    # What is below what a clock tells apart is nothing, and nothing is less than that.
    assert tune.link(0.1, 0.05, 0.4, 0.3) == (100, 0, 0)


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "goccl", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(("ranks", "transport", "names"), [(2, "shm", 7), (3, "tcp", 4)])
def test_prints_what_can_be_used(ranks, transport, names, monkeypatch, capsys, tmp_path):
    few = tuple(replace(threshold, most=4 * threshold.least) for threshold in tune.THRESHOLDS)
    monkeypatch.setattr(tune, "THRESHOLDS", few)
    monkeypatch.setattr(tune, "_BLOCK_SECONDS", 0.001)
    file = tmp_path / "goccl.conf"
    options = argparse.Namespace(
        ranks=ranks, transport=transport, blocks=1, timeout=60.0, output=file
    )
    assert tune.main(options) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f"# They are in {file}."
    assert len([line for line in lines if not line.startswith(("#", "export"))]) == names * 3
    setting = re.fullmatch(r"export GOCCL_THRESHOLDS=((?:\w+=\d+,?)+)", lines[-2])
    assert setting
    assert setting[1].count("=") == names
    kind = {"shm": "memory", "tcp": "loopback"}[transport]
    links = re.fullmatch(rf"export GOCCL_LINKS=({kind}=\d+:\d+:\d+)", lines[-1])
    assert links
    assert file.read_text() == f"GOCCL_THRESHOLDS={setting[1]}\nGOCCL_LINKS={links[1]}\n"
    used = command(*BENCH, GOCCL_CONF_FILE=str(file))
    assert used.returncode == 0, used.stderr


def test_other_lines_of_a_file_stay(tmp_path):
    file, link = tmp_path / "settings", tmp_path / "link"
    file.write_text("# mine\n GOCCL_LINKS = tcp=1:2:3\nGOCCL_SECRET=a=GOCCL_LINKS\nGOCCL_LINKS_X=1")
    file.chmod(0o600)
    link.symlink_to(file)
    for number in (1, 2):
        tune.write_settings(link, {"GOCCL_LINKS": f"tcp={number}:0:0"})
    assert file.read_text() == (
        "# mine\nGOCCL_SECRET=a=GOCCL_LINKS\nGOCCL_LINKS_X=1\nGOCCL_LINKS=tcp=2:0:0\n"
    )
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o600
    # A mark of UTF-8 hides no name, and only a line feed ends a line.
    file.write_text("\ufeffGOCCL_LINKS=tcp=1:2:3\n# a\u2028b\n", encoding="utf-8")
    tune.write_settings(file, {"GOCCL_LINKS": "x"})
    assert file.read_text(encoding="utf-8") == "# a\u2028b\nGOCCL_LINKS=x\n"
    file.write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        tune.write_settings(file, {})
    assert file.read_bytes() == b"\xff"
    assert sorted(tmp_path.iterdir()) == [link, file]


def test_settings_go_where_the_rest_is_printed(tmp_path):
    """The shell opens the file: what has been printed into it is no setting."""
    program = (
        "import pathlib\n"
        "from goccl._tune import write_settings\n"
        "print('before', flush=True)\n"
        "write_settings(pathlib.Path('/dev/stdout'), {'GOCCL_LINKS': 'x'})\n"
    )
    path = tmp_path / "file"
    with path.open("w") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert path.read_text() == "before\nGOCCL_LINKS=x\n"


@pytest.mark.parametrize("path", ["", "no/file"])
def test_refuses_what_is_no_file(tmp_path, path):
    refused = command("tune", "--output", str(tmp_path / path))
    assert refused.returncode == 2
    assert f"'{tmp_path / path}' is not a file in a folder that exists" in refused.stderr


def test_looks_at_the_file_before_it_measures(tmp_path):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    for path, words in (("/proc/x", "cannot be written: "), (str(binary), "is no text: ")):
        refused = command("tune", "--output", path)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"goccl tune: {path} {words}" in refused.stderr


def test_thresholds_that_are_none():
    refused = command(*BENCH, GOCCL_THRESHOLDS="one_shot=4")
    assert refused.returncode == 1
    assert (
        '"one_shot=4", allowed are one_shot_max, flat_max, multicast_min, swap_min, pipeline_min, '
        "window_min, get_min, stream_min, send_get_min, send_pipe_min, long_max and direct_min"
        in refused.stderr
    )


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [
        ("--ranks", "1", "allowed are 2 to 64"),
        ("--ranks", "65", "allowed are 2 to 64"),
        ("--blocks", "0", "allowed are 1 to 1000"),
        ("--timeout", "0", "must be more than 0"),
        ("--timeout", "nan", "must be more than 0"),
        ("--timeout", "inf", "at most 86400"),
    ],
)
def test_refuses_bad_options(option, given, words):
    refused = command("tune", option, given)
    assert refused.returncode == 2
    assert f"{option} is {given}" in refused.stderr
    assert words in refused.stderr
