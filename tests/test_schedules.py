"""Schedules of all-to-all: by call, group and environment; the same bits with each, against NumPy;
ranks that differ are told. Real processes."""

import os
import re

import goccl
import harness
import numpy as np
import pytest
import torch
import torch.distributed as dist

both_transports = pytest.mark.parametrize("transport", harness.TRANSPORTS)
SCHEDULES = ("sequential", "window=2", "window=254", "parallel")
COUNTS = (0, 1, 1000, 200_003)


def sent(source, to, n):
    """What a rank sends to another: any bits, of a length of the pair's own, zero among them."""
    rng = np.random.default_rng([source, to, n])
    return rng.integers(0, 2**32, n * ((source + 2 * to) % 3), dtype=np.uint32).view(np.float32)


def check(rank, what):
    """dist.all_to_all_single with splits, against NumPy."""
    me, everyone = rank.rank, range(rank.size)
    for n in COUNTS:
        parts = [sent(me, r, n) for r in everyone]
        want = [sent(r, me, n) for r in everyone]
        out = torch.empty(sum(map(len, want)))
        for _ in range(3):  # the later ones by other ways through the library
            out.fill_(-1)
            dist.all_to_all_single(
                out,
                torch.from_numpy(np.concatenate(parts)),
                list(map(len, want)),
                list(map(len, parts)),
            )
            assert out.numpy().tobytes() == np.concatenate(want).tobytes(), f"{what}, {n} elements"


def run_of_group(rank):
    options = goccl.Options(alltoall_schedule="window=2")
    rank.init(pg_options=options)
    assert (
        dist.group.WORLD._get_backend(torch.device("cpu")).options.alltoall_schedule == "window=2"
    )
    check(rank, "window=2 of the group")
    dist.destroy_process_group()
    for schedule in SCHEDULES:
        rank.init(store=schedule, pg_options=goccl.Options(alltoall_schedule=schedule))
        check(rank, schedule)
        dist.destroy_process_group()


@both_transports
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_of_the_group(make_world, transport, size):
    make_world(size, env={"GOCCL_TRANSPORT": transport}).run(run_of_group)


def run_of_environment(rank):
    rank.init()
    check(rank, "sequential by the environment")


@both_transports
def test_of_the_environment(make_world, transport):
    env = {"GOCCL_TRANSPORT": transport, "GOCCL_ALLTOALL_SCHEDULE": "sequential"}
    make_world(3, env=env).run(run_of_environment)


def run_of_calls(rank):
    """Each call in turn with another schedule, on ordinary tensors and on those that peers map."""
    rank.init()
    comm, me, everyone = goccl.Communicator(), rank.rank, range(rank.size)
    for n in COUNTS:
        rows = {
            r: np.random.default_rng([r, n]).integers(0, 256, (rank.size, n), dtype=np.uint8)
            for r in everyone
        }
        want = np.stack([rows[r][me] for r in everyone])
        for make in (torch.empty, goccl.empty):
            source = make((rank.size, n), dtype=torch.uint8)
            source.copy_(torch.from_numpy(rows[me]))
            out = make((rank.size, n), dtype=torch.uint8)
            for schedule in ("", *SCHEDULES, "", "sequential"):
                out.fill_(7)
                comm.all_to_all_into(out, source, schedule=schedule)
                assert (out.numpy() == want).all(), f"{schedule}, {n} bytes, {make}"
            out.fill_(7)
            dist.all_to_all_single(out, source)
            assert (out.numpy() == want).all()


@both_transports
@pytest.mark.parametrize("size", [1, 2, 3])
def test_of_calls(make_world, transport, size):
    make_world(size, env={"GOCCL_TRANSPORT": transport}).run(run_of_calls)


# -- what is refused


def run_bad_text(rank):
    rank.init()
    comm, t = goccl.Communicator(), torch.ones(rank.size)
    for schedule in ("window", "window=0", "window=255", "in turn"):
        with pytest.raises(
            ValueError, match=re.escape(f'call.alltoall_schedule is "{schedule}", allowed are')
        ):
            comm.all_to_all_into(torch.empty(rank.size), t, schedule=schedule)
    with pytest.raises(TypeError):
        comm.all_to_all_into(torch.empty(rank.size), t, "sequential")  # type: ignore[call-arg]
    comm.all_to_all_into(torch.empty(rank.size), t)
    dist.destroy_process_group()
    os.environ["GOCCL_ALLTOALL_SCHEDULE"] = "in turn"
    with pytest.raises(
        ValueError,
        match=r'option or GOCCL_ALLTOALL_SCHEDULE\) is "in turn", allowed are "sequential"',
    ):
        rank.init(store="again")


def test_bad_text(make_world):
    make_world(2).run(run_bad_text)


def matched_call(rank):
    rank.init(timeout=30)
    goccl.Communicator().all_to_all_into(torch.empty(3000), torch.ones(3000))


def mismatched_calls(rank):
    comm, t = goccl.Communicator(), torch.ones(3000)
    schedule = "sequential" if rank.rank == 2 else "window=2"
    with pytest.raises(dist.DistBackendError) as caught:
        comm.all_to_all_into(torch.empty(3000), t, schedule=schedule)
    return str(caught.value)


@both_transports
def test_mismatch_of_calls(make_world, transport):
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.run(matched_call)  # all ranks leave it before one can hear that the next has failed
    for text in world.run(mismatched_calls):
        assert "alltoall(float32, schedule sequential)" in text, text
        assert "alltoall(float32, schedule window=2)" in text, text


def mismatched_groups(rank):
    schedule = "sequential" if rank.rank else "parallel"
    with pytest.raises(dist.DistBackendError) as caught:
        rank.init(pg_options=goccl.Options(alltoall_schedule=schedule))
    return str(caught.value)


def test_mismatch_of_groups(make_world):
    for text in make_world(2).run(mismatched_groups):
        assert '"sequential" on rank 1' in text, text
        assert '"parallel" on rank 0' in text, text
