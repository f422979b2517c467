"""`goccl ps` on real processes: what it tells of ranks that wait, are stopped, or differ."""

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import goccl
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
    assert "all is well: all at #2" in ps("--all", "--pid", str(pids[0])).stdout

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
    message = {"send": True, "peer": 1, "tag": 7, "bytes": 4, "for_us": 2_000_000}
    call["input"] = False
    members: list[dict[str, object]] = [
        {"rank": 0, "pid": 5, "host": "a", "state": "answers", "call": call}
        | {"messages": [message, message], "under_way": 3},
        {"rank": 1, "pid": 6, "host": "b", "state": "stopped", "call": call}
        | {"messages": [message | {"for_us": 999_999}], "under_way": 1},
    ]
    group = {"name": "g", "epoch": 2, "members": members, "verdict": {"text": "rank 1 is stopped"}}
    lines = _ps.render({"groups": [group], "silent": [9]}).splitlines()
    assert lines[0] == "group g, 2 ranks, epoch 2"
    assert lines[2].split() == ["0", "5", "a", "begun", "3", "barrier", "1.2", "min", "rank", "1"]
    assert lines[3].split() == ["1", "6", "b", "stopped"]
    assert lines[4:] == [
        "  rank 0: send to rank 1, tag 7, 4 bytes, since 2.0 s; 2 more under way",
        "  rank 1 is stopped",
        "no answer from process 9",
    ]


def test_render_dumps():
    told: dict[str, list] = {
        "processes": [{"pid": 5, "files": ["/a0", "/a1"], "error": ""}],
        "silent": [],
    }
    assert _ps.render_dumps(told) == "/a0, by process 5\n/a1, by process 5"
    full = {"processes": [{"pid": 5, "files": [], "error": "disk full"}], "silent": [7]}
    assert _ps.render_dumps(full) == "process 5: disk full\nno answer from process 7"
    assert "no process with a group" in _ps.render_dumps({"processes": [], "silent": []})


def work_and_wait(rank, tmp_path):
    rank.init(timeout=300)
    dist.all_reduce(torch.ones(8))
    rank.tell((os.getpid(), goccl.status()))
    rank.hear()


def test_dump_of_others(make_world, tmp_path):
    world = make_world(2)
    world.start(work_and_wait, tmp_path)
    told = [world.told(rank) for rank in range(2)]
    pids = [pid for pid, _ in told]
    for rank, (pid, status) in enumerate(told):
        (group,) = status["groups"]
        assert (status["pid"], group["rank"], group["pids"]) == (pid, rank, pids)
        assert group["call"]["what"] == "allreduce(float32, 8 elements, SUM)"
        assert group["call"]["state"] == "ended"
        prefix = tmp_path / f"of {rank}_"
        dumped = ps("--dump", str(prefix), "--pid", str(pid))
        assert (dumped.returncode, dumped.stdout) == (0, f"{prefix}{rank}, by process {pid}\n")
        assert pickle.loads(Path(f"{prefix}{rank}").read_bytes())["entries"]
    nowhere = ps("--dump", str(tmp_path / "none" / "x"), "--pid", str(pids[0]), "--json")
    assert nowhere.returncode == 1
    (process,) = json.loads(nowhere.stdout)["processes"]
    assert process["files"] == []
    assert "no such file or directory" in process["error"]
    assert ps("--dump", "x" * 5000).returncode == 2
    assert ps("--dump", "").returncode == 2
    world.say(None)
    world.finish()


def wait_in_receive(rank):
    rank.init(timeout=300)
    dist.all_reduce(torch.ones(8))
    rank.tell(os.getpid())
    if rank.rank == 1:
        dist.recv(torch.ones(1000), 0, tag=7)
    rank.hear()
    if rank.rank == 0:
        dist.send(torch.ones(1000), 1, tag=7)


def test_a_receive_that_nobody_sends_for(make_world):
    world = make_world(2)
    world.start(wait_in_receive)
    pids = [world.told(rank) for rank in range(2)]
    harness.until(lambda: verdict(pids[0])[1]["kind"] == "alone", what="rank 1 is alone")
    status, alone = verdict(pids[0])
    assert (status, alone["ranks"]) == (1, [1])
    assert alone["text"].endswith(
        "in recv from rank 0, tag 7, 4000 bytes: rank 0 has called no send for it"
    )
    assert "rank 1: recv from rank 0, tag 7, 4000 bytes, since" in ps("--pid", str(pids[1])).stdout
    world.say(None)
    world.finish()
