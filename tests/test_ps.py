"""`goccl ps` on real processes: what it tells of ranks that wait, are stopped, or differ."""

import json
import os
import signal
import subprocess
import sys

import harness
import torch
import torch.distributed as dist
from goccl import _ps


def ps(*words):
    return subprocess.run(
        [sys.executable, "-m", "goccl", "ps", *words], capture_output=True, text=True, timeout=100
    )


def verdict(pid):
    """The exit status and the verdict of the group of a process."""
    told = ps("--json", "--pid", str(pid))
    groups = json.loads(told.stdout)["groups"]
    return told.returncode, groups[0]["verdict"] if groups else None


def run_late(rank):
    rank.init(timeout=300)
    dist.all_reduce(torch.ones(8))
    rank.tell(os.getpid())
    if rank.rank == 1:
        rank.hear()
    dist.all_reduce(torch.ones(8))
    rank.tell(os.getpid())
    rank.hear()
    dist.barrier() if rank.rank == 0 else dist.all_reduce(torch.ones(8))


def test_who_holds_a_group_up(make_world):
    world = make_world(2)
    world.start(run_late)
    pids = [world.told(rank) for rank in range(2)]
    harness.until(lambda: verdict(pids[0])[1]["kind"] == "behind", what="rank 1 is behind")
    status, behind = verdict(pids[1])
    assert status == 1
    assert behind["ranks"] == [1]
    assert (
        "rank 1 has last called #1 allreduce(float32, 8 elements, SUM); rank 0 waits"
        in (behind["text"])
    )
    text = ps("--pid", str(pids[0])).stdout
    assert "RANK" in text
    assert "begun" in text
    assert behind["text"].partition(";")[0] in text

    os.kill(pids[1], signal.SIGSTOP)
    harness.until(lambda: verdict(pids[0])[1]["kind"] == "stopped", what="rank 1 is stopped")
    assert verdict(pids[0])[1]["ranks"] == [1]
    os.kill(pids[1], signal.SIGCONT)

    world.say(None, ranks=[1])
    for rank in range(2):
        world.told(rank)
    status, well = verdict(pids[0])
    assert (status, well["kind"], well["text"]) == (0, "well", "all is well: all at #2")

    world.say(None)
    outcomes = world.finish()
    assert all(o.kind == "MismatchError" for o in outcomes)
    status, failed = verdict(pids[0])
    assert (status, failed["kind"]) == (1, "failed")
    assert "called barrier" in failed["text"]
    world.close(check=False)
    assert verdict(pids[0]) == (2, None)


def test_arguments():
    told = ps("--watch", "0")
    assert told.returncode == 2
    assert "'0' is not a number from 0.1 to 3600" in told.stderr
    assert ps("--pid", "1", "--json").returncode == 2


def test_render():
    call = {"sequence": 3, "what": "barrier", "state": "begun", "for_us": 72_300_000, "peer": 1}
    members = [
        {"rank": 0, "pid": 5, "host": "a", "state": "answers", "call": {**call, "input": False}},
        {"rank": 1, "pid": 6, "host": "b", "state": "stopped", "call": {**call, "input": False}},
    ]
    group = {"name": "g", "epoch": 2, "members": members, "verdict": {"text": "rank 1 is stopped"}}
    lines = _ps.render({"groups": [group], "silent": [9]}).splitlines()
    assert lines[0] == "group g, 2 ranks, epoch 2"
    assert lines[2].split() == ["0", "5", "a", "begun", "3", "barrier", "1.2", "min", "rank", "1"]
    assert lines[3].split() == ["1", "6", "b", "stopped"]
    assert lines[4:] == ["  rank 1 is stopped", "no answer from process 9"]
