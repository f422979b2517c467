"""examples/train_text.py: trains, and tells what it measured."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import harness
import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_text.py"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The report and the trace of a short training of a tiny model."""
    folder = tmp_path_factory.mktemp("text")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    command += [
        str(EXAMPLE),
        "--backend",
        harness.BACKEND,
        "--steps",
        "20",
        "--layers",
        "1",
        "--width",
        "64",
    ]
    command += ["--json", str(folder / "report.json"), "--profile", str(folder / "trace.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "report.json").read_text()), json.loads(
        (folder / "trace.json").read_text()
    )


def test_it_learns(outcome):
    losses = [step["loss"] for step in outcome[0]["steps"]]
    assert len(losses) == 20
    assert losses[-1] < losses[0] < 1.2 * math.log(256), losses


def test_figures_fit_each_other(outcome):
    report, _ = outcome
    assert (report["backend"], report["ranks"]) == (harness.BACKEND, 2)
    for step in report["steps"]:
        assert step["tokens_per_second"] == pytest.approx(2 * 4 * 128 / step["seconds"])
        assert step["exposed"] < step["seconds"]
        assert min(step["cpu_seconds"], step["cpu_alone"]) > 0


def test_overlap_is_that_of_the_trace(outcome):
    report, trace = outcome
    spans = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            name = event["name"].split(": ")[0]
            spans.setdefault(name, []).append((event["ts"], event["ts"] + event["dur"]))
    (backward,) = spans["backward"]
    reduces = [span for span in spans[f"{harness.BACKEND}:all_reduce"] if span[0] >= backward[0]]
    computed = max(end for _, end in spans["autograd::engine::evaluate_function"])
    total = sum(end - begin for begin, end in reduces)
    hidden = sum(max(0, min(end, computed) - begin) for begin, end in reduces)
    assert report["all_reduce_seconds"] == pytest.approx(total / 1e6, rel=0.02)
    assert report["overlap"] == pytest.approx(hidden / total, abs=0.02)


@pytest.mark.skipif(harness.BACKEND != "goccl", reason="others show no parts")
def test_parts_are_in_the_trace(outcome):
    names = {event["name"] for event in outcome[1]["traceEvents"] if event["ph"] == "X"}
    assert {"goccl: allreduce", "goccl: combine", "goccl: wait for rank 1"} <= names
