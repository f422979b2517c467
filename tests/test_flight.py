"""The flight recorder: what goccl.dump() and GOCCL_DUMP write, read by torch's own tool."""

import os
import pickle
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
from test_elastic import backend, die, survivors_of


def analysed(folder, *options):
    """What torchfrtrace says of the files in a folder."""
    tool = Path(sys.executable).parent / "torchfrtrace"
    if not tool.exists():
        pytest.skip("this torch has no torchfrtrace")
    command = [sys.executable, tool, str(folder), "--prefix", "rank_", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return text


def dumped(folder, rank):
    return pickle.loads((folder / f"rank_{rank}").read_bytes())


def wrong(text):
    return [line for line in text.splitlines() if "has errors" in line or "Not all ranks" in line]


def work_well(rank, folder):
    rank.init()
    n = rank.size
    ones = torch.ones(6 * n)
    dist.all_reduce(ones)
    dist.all_gather_into_tensor(torch.empty(6 * n), torch.ones(6))
    dist.reduce_scatter_tensor(torch.empty(6), ones)
    dist.all_gather([torch.empty(1 + r) for r in range(n)], torch.ones(1 + rank.rank))
    sent = [1 + (rank.rank + r) % n for r in range(n)]
    dist.all_to_all_single(torch.empty(sum(sent)), torch.ones(sum(sent)), sent, sent)
    dist.broadcast(ones, 1)
    dist.gather(ones, [torch.empty(6 * n) for _ in range(n)] if rank.rank == 0 else None)
    half = dist.new_group([0, 1], backend="goccl")
    if rank.rank < 2:
        dist.all_reduce(ones, group=half)
    right, left = (rank.rank + 1) % n, (rank.rank - 1) % n
    for _ in range(2):
        batch = [
            dist.P2POp(dist.isend, ones, right),
            dist.P2POp(dist.irecv, torch.ones(6 * n), left),
        ]
        for request in dist.batch_isend_irecv(batch):
            request.wait()
    dist.barrier()
    goccl.dump(f"{folder}/rank_")


def test_all_is_well(make_world, tmp_path):
    make_world(3).run(work_well, tmp_path)
    text = analysed(tmp_path)
    assert not wrong(text), text
    dump = dumped(tmp_path, 2)
    names = [entry["profiling_name"] for entry in dump["entries"]]
    for name in ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "all_gather_v"):
        assert f"goccl:{name}" in names
    assert names.count("goccl:send 1->0") + names.count("goccl:send 0->1") == 2
    first = dump["entries"][0]
    assert (first["state"], first["bytes"], first["input_dtypes"]) == ("completed", 72, ["Float"])
    assert first["input_sizes"] == first["output_sizes"] == [[18]]
    assert first["algorithm"]
    assert first["time_created_ns"] <= first["time_discovered_completed_ns"] <= time.time_ns()


def differ(rank, folder):
    os.environ["GOCCL_DUMP"] = f"{folder}/rank_"
    rank.init(timeout=30)
    ones = torch.ones(8)
    dist.all_reduce(ones)
    call = (lambda x: dist.broadcast(x, 0)) if rank.rank == 0 else dist.all_reduce
    with pytest.raises(goccl.MismatchError):
        call(ones)
    dist.destroy_process_group()


def test_mismatch(make_world, tmp_path):
    make_world(2).run(differ, tmp_path)
    text = analysed(tmp_path)
    assert "COLLECTIVE_TYPE_MISMATCH" in text, text
    status = next(iter(dumped(tmp_path, 0)["pg_status"].values()))
    assert "mismatch" in status["failed"]


def come_not(rank, folder):
    os.environ["GOCCL_DUMP"] = f"{folder}/rank_"
    rank.init(timeout=30)
    ones = torch.ones(8)
    dist.all_reduce(ones)
    if rank.rank != 1:
        rank.limit(1)
        with pytest.raises(goccl.OperationTimeoutError):
            dist.all_reduce(ones)
        dist.destroy_process_group()
        return
    with pytest.raises(goccl.Error):  # it hears of it here
        dist.recv(ones, 0)
    dist.destroy_process_group()


def test_missing_rank(make_world, tmp_path):
    make_world(2).run(come_not, tmp_path)
    text = analysed(tmp_path)
    assert "Not all ranks joining collective" in text, text
    assert "missing ranks: {1}" in text, text
    last = [e for e in dumped(tmp_path, 0)["entries"] if not e["is_p2p"]][-1]
    assert (last["state"], last["waits_for"]) == ("started", 1)
    assert last["waited_ms"] >= 0


def send_only(rank, folder):
    rank.init()
    if rank.rank == 0:
        dist.send(torch.ones(4), 1)
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(4), 0)
    dist.barrier()
    goccl.dump(f"{folder}/rank_")
    dist.barrier()
    if rank.rank == 1:
        dist.recv(torch.ones(4), 0)


def test_send_without_receive(make_world, tmp_path):
    make_world(2).run(send_only, tmp_path)
    text = analysed(tmp_path)
    assert len(wrong(text)) == 1, text
    assert "collective: goccl:send 0->1" in text, text
    assert "missing ranks: {1}" in text, text


def recover(rank, folder):
    rank.init(timeout=30)
    ones = torch.ones(8)
    dist.all_reduce(ones)
    if rank.rank == 2:
        die()
    with pytest.raises(goccl.PeerFailedError):
        dist.all_reduce(ones)
    backend().recover()
    dist.all_reduce(ones)
    dist.all_reduce(ones)
    goccl.dump(f"{folder}/rank_")


@pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"), reason="older torch fixes the ranks of a group"
)
def test_after_a_recovery(make_world, tmp_path):
    world = make_world(3)
    world.start(recover, tmp_path)
    survivors_of(world, {2})
    text = analysed(tmp_path, "--allow-incomplete-ranks")
    assert not [line for line in wrong(text) if "sequence number: 2" in line], text
    for rank in range(2):
        dump = dumped(tmp_path, rank)
        first, second = dump["pg_config"]
        assert second == f"{first}@1"
        assert [dump["pg_config"][name]["ranks"] for name in (first, second)] == [
            "[0, 1, 2]",
            "[0, 1]",
        ]
        assert "failed" in dump["pg_status"][first]
        assert "failed" not in dump["pg_status"][second]
        assert [e["state"] for e in dump["entries"] if e["epoch"] == 1][-2:] == ["completed"] * 2


def call_badly(rank, folder):
    with pytest.raises(ValueError, match="no communicator"):
        goccl.dump(f"{folder}/rank_")
    rank.init()
    with pytest.raises(ValueError, match="prefix is empty"):
        goccl.dump("")
    with pytest.raises(goccl.Error, match=r"missing/rank_0: no such file"):
        goccl.dump(folder / "missing" / "rank_")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def test_bad_calls(make_world, tmp_path):
    make_world(1).run(call_badly, tmp_path)
    assert not list(tmp_path.iterdir())


def is_signalled(rank, folder, handled):
    os.environ["GOCCL_DUMP"] = f"{folder}/rank_"
    os.environ["GOCCL_DUMP_SIGNAL"] = "USR2"
    came = []
    if handled:
        signal.signal(signal.SIGUSR2, lambda *_: came.append(1))
    rank.init()
    dist.all_reduce(torch.ones(1))
    os.kill(os.getpid(), signal.SIGUSR2)
    if handled:
        assert came == [1]
    else:
        harness.until(lambda: (folder / f"rank_{rank.rank}").exists())
    dist.all_reduce(torch.ones(1))
    dist.barrier()


@pytest.mark.parametrize("handled", [False, True])
def test_signal(make_world, tmp_path, handled):
    world = make_world(2)
    world.run(is_signalled, tmp_path, handled)
    told = "for which the program has a handler" in world.logs()
    assert (len(list(tmp_path.iterdir())), told) == ((0, True) if handled else (2, False))
