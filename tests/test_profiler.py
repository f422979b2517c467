"""What torch.profiler shows of goccl: the parts of operations, on rows of their own."""

import json
import os
import re
from pathlib import Path

import goccl
import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

PART = re.compile(
    r"goccl: (queued|need|copy|combine|final|read|recover|side-step|copy in|copy out"
    r"|(put|put by link|connect) to rank \d+|(get|reclaim) from rank \d+|wait for rank \d+"
    r"|wait for a slot of rank \d+)"
)


def all_threads():
    """The option by which torch profiles all threads of the process."""
    config = torch._C._profiler._ExperimentalConfig
    try:
        return config(profile_all_threads=True)
    except TypeError:
        pytest.skip("this torch profiles the profiled thread only")


def chrome_trace(profiled, folder, rank):
    path = folder / f"trace_{rank}.json"
    profiled.export_chrome_trace(str(path))
    return json.loads(path.read_text())["traceEvents"]


def slices(events):
    return [e for e in events if e.get("ph") == "X" and e["name"].startswith("goccl: ")]


def check(events, *collectives, least=1):
    """Each call is there, with parts within it, on a row that is named after a thread."""
    ours = slices(events)
    rows = {
        e["tid"]: e["args"]["name"]
        for e in events
        if e.get("name") == "thread_name" and "goccl on thread" in str(e.get("args"))
    }
    assert {e["tid"] for e in ours} <= rows.keys()
    torchs = {e["tid"] for e in events if e.get("cat") == "cpu_op"}
    assert not torchs & rows.keys()
    for name in collectives:
        calls = [e for e in ours if re.fullmatch(rf"goccl: {name}( (to|from) rank \d)?", e["name"])]
        assert len(calls) >= least, (name, {e["name"] for e in ours})
        for call in calls:
            assert call["args"]["group"]
            assert call["args"]["collective"] == name
            begin, end = call["ts"], call["ts"] + call["dur"]
            parts = [
                e
                for e in ours
                if e["tid"] == call["tid"] and begin <= e["ts"] and e["ts"] + e["dur"] <= end + 0.01
                if e is not call and e["args"].get("sequence") == call["args"]["sequence"]
            ]
            assert not [e["name"] for e in parts if not PART.fullmatch(e["name"])]
            if name not in ("send", "recv"):
                assert parts, call
    # Slices of one row lie beside or within each other.
    for tid in rows:
        open_until = []
        for e in sorted((e for e in ours if e["tid"] == tid), key=lambda e: (e["ts"], -e["dur"])):
            while open_until and open_until[-1] <= e["ts"] + 0.002:
                open_until.pop()
            assert not open_until or e["ts"] + e["dur"] <= open_until[-1] + 0.002, e
            open_until.append(e["ts"] + e["dur"])


def work(rank):
    tensor = torch.ones(30_000)
    dist.all_reduce(tensor)
    if rank.rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.all_to_all_single(torch.empty_like(tensor), tensor)


def profiled_before_and_after(rank, folder, threads):
    options = {"experimental_config": all_threads()} if threads else {}
    # The first group is made during this one.
    with profile(activities=[ProfilerActivity.CPU], **options) as first:
        rank.init()
        work(rank)
    check(chrome_trace(first, folder, rank.rank), "allreduce", "alltoall")
    with profile(activities=[ProfilerActivity.CPU], **options) as second:
        work(rank)
    events = chrome_trace(second, folder, rank.rank)
    check(events, "allreduce", "alltoall", "recv" if rank.rank else "send")
    assert sum(e["name"] == "goccl: allreduce" for e in slices(events)) == 2
    named = [e.name for e in second.events() if e.name.startswith("goccl: ")]
    assert named.count("goccl: allreduce") == 2
    assert any(name.startswith("goccl: wait for rank") for name in named), set(named)
    # Without a profile nobody traces.
    with profile(activities=[ProfilerActivity.CPU], **options) as empty:
        pass
    assert not slices(chrome_trace(empty, folder, rank.rank))


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_parts_are_in_the_trace(make_world, tmp_path, transport, threads):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    world.run(profiled_before_and_after, tmp_path, threads)


def scheduled(rank, folder):
    rank.init()
    traces = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda p: traces.append(chrome_trace(p, folder, rank.rank)),
    ) as p:
        for _ in range(8):
            dist.all_reduce(torch.ones(4))
            p.step()
    assert len(traces) == 2
    for events in traces:
        check(events, "allreduce", least=2)
        assert sum(e["name"] == "goccl: allreduce" for e in slices(events)) == 2


def test_schedule(make_world, tmp_path):
    make_world(2).run(scheduled, tmp_path)


def communicated(rank, folder):
    rank.init()
    comm = goccl.Communicator(dist.group.WORLD)
    with profile(activities=[ProfilerActivity.CPU]) as p:
        for _ in range(3):
            comm.all_reduce_(torch.ones(4))
    check(chrome_trace(p, folder, rank.rank), "allreduce", least=3)


def test_communicator(make_world, tmp_path):
    make_world(2).run(communicated, tmp_path)


def profiled_without_group(_rank, folder):
    """A profile of a process that makes no group loads nothing."""
    with profile(activities=[ProfilerActivity.CPU]) as p:
        torch.ones(3).add(1)
    assert not slices(chrome_trace(p, folder, 0))
    assert "libgoccl" not in Path("/proc/self/maps").read_text()


def test_process_without_groups(make_world, tmp_path):
    make_world(1).run(profiled_without_group, tmp_path)


def profiled_by_a_child(rank, folder):
    rank.init()
    dist.all_reduce(torch.ones(4))
    with profile(activities=[ProfilerActivity.CPU]) as p:
        pid = os.fork()
        if pid == 0:  # it ends the profile, too, which has no more of goccl
            status = 1
            try:
                torch.ones(3).add(1)
                p.stop()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        dist.all_reduce(torch.ones(4))
    check(chrome_trace(p, folder, rank.rank), "allreduce")


def test_fork_within_a_profile(make_world, tmp_path):
    make_world(2).run(profiled_by_a_child, tmp_path)
