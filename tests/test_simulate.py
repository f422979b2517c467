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
        (("--ranks", "4", "--net", "ring:25g"), 'its kind is "ring"'),
        (("--ranks", "4", "--net", "star:0g"), 'the speed is "0g"'),
        (("--ranks", "4", "--net", "star:25g,leaf=2"), '"leaf=2" is not allowed'),
        (("--ranks", "4", "--net", "fat-tree:25g,leaf=2,taper=4"), "taper is 4"),
        (("--ranks", "4", "--net", "rail:25g"), 'interfaces and speed are "25g"'),
        (("--ranks", "16384", "--bytes", "1M"), "allowed are 20000000"),
    ],
)
def test_what_cannot_be(arguments, problem):
    done = simulate("alltoall", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("goccl simulate: ")
    assert problem in done.stderr
