"""`goccl simulate`, beside closed formulas and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def simulate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    return subprocess.run(
        [sys.executable, "-m", "goccl", "simulate", *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environment},
        timeout=300,
        check=False,
    )


def found(*arguments: str, **environment: str) -> dict:
    """The result of a simulation."""
    done = simulate(*arguments, "--json", **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LINKS = {"GOCCL_LINKS": "tcp=15000:4000:320", "GOCCL_ALGO": "allgather:linear"}
RING = ("allgather", "--ranks", "4", "--per-host", "1", "--bytes", "64M", "--net", "star:1g")


def test_links_bind_long_messages():
    """Of 64 MiB each rank sends its 16 to three others: 48 MiB by a link of 1 Gbit/s."""
    result = found(*RING, **LINKS)
    wire = 48 * 1024 * 1024 * 8e-9 * 1e6  # us
    assert wire <= result["last_us"] <= 1.1 * wire
    assert result["messages"] == [
        {"class": "network", "messages": result["messages"][0]["messages"], "bytes": 12 * 16 << 20}
    ]
    shares = sum(share["us"] for share in result["critical_path"])
    assert shares == pytest.approx(result["last_us"], abs=0.01)


def test_the_same_bytes_each_time():
    once = simulate(*RING, "--json", **LINKS)
    assert once.stdout == simulate(*RING, "--json", **LINKS).stdout != ""


def test_half_the_links_take_longer():
    """With taper all hosts of a switch share half as many links to the others."""
    tree = ("alltoall", "--ranks", "8", "--per-host", "1", "--bytes", "8M", "--net")
    full = found(*tree, "fat-tree:10g,leaf=4,taper=1")
    tapered = found(*tree, "fat-tree:10g,leaf=4,taper=4")
    assert tapered["last_us"] > 1.5 * full["last_us"]


def test_ranks_take_turns_on_cpus():
    run = ("allreduce", "--ranks", "8", "--bytes", "1M", "--cpus")
    causes = [share["cause"] for share in found(*run, "2")["critical_path"]]
    assert "turns" in causes
    assert "turns" not in [share["cause"] for share in found(*run, "8")["critical_path"]]


def test_text_for_people():
    done = simulate("allreduce", "--ranks", "16", "--per-host", "4", "--net", "rail:2x100g")
    assert done.returncode == 0, done.stderr
    assert "critical path" in done.stdout
    assert "interface 1, up" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--ranks", "0"), "ranks is 0"),
        (("--ranks", "4", "--per-host", "5"), "ranks_per_host is 5"),
        (("--ranks", "4", "--cpus", "-1"), "cpus is -1"),
        (("--ranks", "4", "--cpus", "0"), "--cpus is 0"),
        (("--ranks", "4", "--per-host", "0"), "--per-host is 0"),
        (("--ranks", "4", "--net", "ring:25g"), 'its kind is "ring"'),
        (("--ranks", "4", "--net", "star:0g"), 'the speed is "0g"'),
        (("--ranks", "4", "--net", "star:25g,leaf=2"), '"leaf=2" is not allowed'),
        (("--ranks", "4", "--net", "fat-tree:25g,leaf=2,taper=4"), "taper is 4"),
        (("--ranks", "4", "--net", "rail:25g"), 'interfaces and speed are "25g"'),
        (("--ranks", "16384", "--bytes", "1M"), "allowed are 20000000; an estimate (--estimate)"),
        (("--ranks", "4", "--net", "none.json"), "--net: none.json: No such file"),
        (("--ranks", "4", "--estimate", "--trace", "x"), "neither a trace nor GOAL"),
        (("--ranks", "4", "--goal", "x", "--trace", "x"), 'trace and goal are both "x"'),
    ],
)
def test_what_cannot_be(arguments, problem):
    done = simulate("alltoall", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("goccl simulate: ")
    assert problem in done.stderr


NET = {
    "format": "goccl.net/1",
    "hosts": ["a", "b", "c"],
    "switches": ["s"],
    "links": [{"between": [host, "s"], "speed": "25g"} for host in "abc"],
}


def test_a_network_of_a_file(tmp_path):
    """A star of a file is as the star of a name; what is wrong is told in one line."""
    file = tmp_path / "net.json"
    file.write_text(json.dumps(NET))
    run = ("allreduce", "--ranks", "6", "--per-host", "2", "--net")
    mine, named = found(*run, str(file)), found(*run, "star:25g")
    assert mine["last_us"] == named["last_us"]
    assert "b to s" in [link["link"] for link in mine["links"]]
    for text, problem in (
        (json.dumps({**NET, "hosts": ["a", "b"]}), "it has 2 hosts, and the job needs 3"),
        (json.dumps(NET).replace('"25g"', "NaN"), "invalid character 'N'"),
        ("\xff", "is not UTF-8"),
        (" " * ((16 << 20) + 1), "is longer than 16777216 bytes"),
    ):
        file.write_bytes(text.encode("latin-1"))
        done = simulate(*run, str(file))
        assert (done.returncode, done.stdout) == (1, "")
        assert problem in done.stderr
        assert done.stderr.count("\n") == 1


def test_files_for_viewers(tmp_path):
    """A trace is JSON with a track a rank, and GOAL is for as many ranks. Where no file can be
    written, that is told."""
    trace, goal = tmp_path / "trace.json", tmp_path / "run.goal"
    run = ("allreduce", "--ranks", "4", "--per-host", "2")
    done = simulate(*run, "--trace", str(trace), "--goal", str(goal))
    assert done.returncode == 0, done.stderr
    assert "trace          of 4 ranks" in done.stdout
    events = json.loads(trace.read_text())["traceEvents"]
    tracks = {event["tid"] for event in events if event["ph"] == "X"}
    assert tracks == {1, 2, 3, 4}
    assert goal.read_text().startswith("num_ranks 4\n")
    before = trace.read_text()
    assert simulate(*run, "--net", "x", "--trace", str(trace)).returncode == 1
    assert trace.read_text() == before  # a request that is refused leaves it
    done = simulate(*run, "--trace", str(tmp_path / "no" / "x"))
    assert done.returncode == 1
    assert "no such file or directory" in done.stderr


def test_an_estimate_needs_no_messages():
    run = ("alltoall", "--ranks", "16384", "--per-host", "64", "--bytes", "1M", "--estimate")
    result = found(*run)
    assert result["message_count"] == 16384 * 16383
    assert result["estimated_us"] > 16383 * 8  # of its CPU, at least, for messages to other hosts
    assert "not --net" in simulate(*run, "--net", "star:1g").stdout
    # Where both can be had they are of one size.
    few = ("allgather", "--ranks", "8", "--per-host", "1", "--bytes", "8M")
    estimate = found(*few, "--estimate")["estimated_us"]
    assert 0.5 < estimate / found(*few)["last_us"] < 2
