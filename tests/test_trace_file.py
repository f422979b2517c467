"""The trace files of GOCCL_TRACE, read with Perfetto's own messages."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
from test_elastic import die, survivors_of

messages = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="perfetto is not installed"
)


def decoded(data):
    """The slices of a trace by their track: (title, begin, end, arguments). Each track's slices
    are checked to lie beside or within each other."""
    trace = messages.Trace()
    trace.ParseFromString(data)
    tracks, slices, names, keys, clocks = {}, {}, {}, {}, set()
    events = []
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        if packet.sequence_flags & 1:
            names[sequence], keys[sequence] = {}, {}
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks
            tracks[track.uuid] = (track.name, track.parent_uuid)
        if packet.HasField("clock_snapshot"):
            clocks |= {(c.clock_id, c.timestamp) for c in packet.clock_snapshot.clocks}
        for name in packet.interned_data.event_names:
            names[sequence][name.iid] = name.name
        for name in packet.interned_data.debug_annotation_names:
            keys[sequence][name.iid] = name.name
        if packet.HasField("track_event"):
            event = packet.track_event
            name = names[sequence][event.name_iid] if event.type == 1 else None
            arguments = {
                keys[sequence][a.name_iid]: a.string_value or a.int_value
                for a in event.debug_annotations
            }
            events.append((packet.timestamp, event.type, event.track_uuid, name, arguments))
    assert {clock for clock, _ in clocks} == {1, 6}
    # As trace_processor does: by time, and then as they come.
    stacks = {}
    for at, kind, track, name, arguments in sorted(events, key=lambda e: e[0]):
        assert track in tracks
        stack = stacks.setdefault(track, [])
        if kind == 1:
            stack.append((name, at, arguments))
        else:
            name, begin, arguments = stack.pop()
            slices.setdefault(track, []).append((name, begin, at, arguments))
    assert not any(stacks.values())
    return {tracks[t]: s for t, s in slices.items()}, tracks


def titles(slices):
    return [name for some in slices.values() for name, *_ in some]


def work(rank):
    rank.init()
    for _ in range(3):
        dist.all_reduce(torch.ones(30_000))
    if rank.rank == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.ones(3), 0)
    goccl.Communicator(dist.group.WORLD).all_reduce_(torch.ones(1))


def traced(rank):
    before = time.time_ns()
    work(rank)
    dist.destroy_process_group()
    return os.getpid(), before, time.time_ns()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_files_of_ranks_are_one_trace(make_world, tmp_path, transport):
    path = tmp_path / "%h.%r"
    world = make_world(2, env={"GOCCL_TRACE": str(path), "GOCCL_TRANSPORT": transport})
    ranks = world.run(traced)
    host = os.uname().nodename
    files = [tmp_path / f"{host}.{r}" for r in range(2)]
    slices, tracks = decoded(b"".join(file.read_bytes() for file in files))
    processes = [name for name, parent in tracks.values() if not parent]
    assert sorted(processes) == [f"rank {r} ({host}, process {ranks[r][0]})" for r in range(2)], (
        processes
    )
    for r, (_, before, after) in enumerate(ranks):
        mine, _ = decoded(files[r].read_bytes())
        calls = [s for some in mine.values() for s in some if s[0] == "allreduce"]
        assert len(calls) == 4
        for _, begin, end, arguments in calls:
            assert before <= begin <= end <= after
            assert arguments["rank"] == r
        assert [s[3]["bytes"] for s in calls] == [120_000] * 3 + [4]
        assert {"combine", "recv from rank 0" if r else "send to rank 1"} <= set(titles(mine))
        assert all(name.startswith("thread ") for name, parent in mine)
    assert len(titles(slices)) == sum(len(titles(decoded(f.read_bytes())[0])) for f in files)


def killed(rank, folder):
    work(rank)
    mine = Path(folder) / f"trace.{rank.rank}"
    deadline = time.monotonic() + harness.DEADLINE
    while not mine.exists() or b"allreduce" not in mine.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if rank.rank == 1:
        die()
    rank.limit(harness.DEADLINE)
    with pytest.raises(goccl.PeerFailedError):
        dist.barrier()


def test_killed_process_leaves_a_trace(make_world, tmp_path):
    world = make_world(2, env={"GOCCL_TRACE": str(tmp_path / "trace.%r")})
    world.start(killed, tmp_path)
    survivors_of(world, {1})
    slices, _ = decoded((tmp_path / "trace.1").read_bytes())
    assert "allreduce" in titles(slices)


PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("goccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
dist.init_process_group("goccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
dist.barrier()
{end}
print("done")
"""


def run(path, end=""):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        env={**os.environ, "GOCCL_TRACE": str(path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=harness.DEADLINE,
    )
    return done.returncode, done.stdout, done.stderr


def test_groups_one_after_the_other_are_in_one_file(tmp_path):
    assert run(tmp_path / "t") == (0, "done\n", "")
    slices, tracks = decoded((tmp_path / "t").read_bytes())
    assert {"allreduce", "barrier"} <= set(titles(slices))
    assert sum(not parent for _, parent in tracks.values()) == 1


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/nowhere/t", "no such file or directory"),
        ("/dev/full", "no space left on device"),
        ("/tmp", "is a directory"),
    ],
)
def test_path_that_cannot_be_written_is_warned_of(path, why):
    status, out, err = run(path)
    assert (status, out) == (0, "done\n")
    assert why in err
    assert "Traceback" not in err


def test_bad_pattern_is_refused():
    status, _, err = run("/tmp/%x.trace")
    assert status != 0
    assert 'trace (from GOCCL_TRACE) is "/tmp/%x.trace"' in err
    assert "after % are allowed h (the host), p (the process), r (the rank in the job)" in err


def test_path_of_another_process_is_left_alone(tmp_path):
    path = tmp_path / "t"
    first = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(end="print('there', flush=True); input()")],
        env={**os.environ, "GOCCL_TRACE": str(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with first:
        assert first.stdout.readline() == "there\n"
        deadline = time.monotonic() + harness.DEADLINE
        while not path.exists() or b"barrier" not in path.read_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        status, out, err = run(path)
        assert (status, out) == (0, "done\n")
        assert "another process writes it" in err
        first.communicate("\n")
    assert first.returncode == 0
    slices, _ = decoded(path.read_bytes())
    assert "barrier" in titles(slices)


def test_forked_child_keeps_nothing(tmp_path):
    """It writes nothing, and its copy of the descriptor keeps its parent's next group from
    nothing."""
    child = """
import os, time
r, w = os.pipe()
if os.fork() == 0:
    os.close(w)
    os.read(r, 1)  # until its parent has ended
    os._exit(0)
dist.destroy_process_group()
dist.init_process_group("goccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
"""
    assert run(tmp_path / "t", child) == (0, "done\n", "")
    slices, _ = decoded((tmp_path / "t").read_bytes())
    assert titles(slices).count("allreduce") == 2


def test_full_disk_leaves_a_trace(tmp_path):
    """And what follows, once there is room, is in it, too."""
    full = """
import resource, signal, time
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = os.environ["GOCCL_TRACE"]
size = os.path.getsize(path) if os.path.exists(path) else 0
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, resource.RLIM_INFINITY))
for _ in range(1000): dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
dist.init_process_group("goccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
dist.broadcast(torch.ones(4), 0)
"""
    status, out, err = run(tmp_path / "t", "import os" + full)
    assert (status, out) == (0, "done\n")
    assert "file too large" in err
    slices, _ = decoded((tmp_path / "t").read_bytes())
    assert "broadcast" in titles(slices)


def test_end_by_a_signal_of_the_user_leaves_a_trace(tmp_path):
    end = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)"
    status, _, _ = run(tmp_path / "t", end)
    assert status in (-signal.SIGINT, 130, 1)
    slices, _ = decoded((tmp_path / "t").read_bytes())
    assert "barrier" in titles(slices)
