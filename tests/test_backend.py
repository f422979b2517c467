"""What torch's backends have besides collectives: timeouts that are extended, hooks, memory, groups merged.
Real processes."""

import time
from datetime import timedelta

import goccl
import harness
import pytest
import torch
import torch.distributed as dist

if harness.BACKEND != "goccl":
    pytest.skip("what is tested is GoCCL's own", allow_module_level=True)


def backend():
    # Before torch 2.14 a group asks no backend but torch's own.
    return dist.group.WORLD._get_backend(torch.device("cpu"))


# -- timeouts that are extended


def all_reduce(rank):
    dist.all_reduce(torch.ones(10))


def without_torch(rank):
    goccl.Communicator().all_reduce_(torch.ones(10))


def in_a_batch(rank):
    with dist._coalescing_manager(device=torch.device("cpu")):
        for _ in range(2):
            dist.all_reduce(torch.ones(10))


def sparse(rank):
    dist.all_reduce(torch.ones(10).to_sparse())


def to_the_other(rank):
    if rank.rank == 0:
        dist.recv(torch.ones(10), 1)
    else:
        dist.send(torch.ones(10), 0)


def run_extended(rank, operation):
    rank.init(timeout=1)
    for _ in range(2):  # they add up
        backend()._add_ephemeral_timeout(timedelta(seconds=1))
    if rank.rank == 1:
        time.sleep(2)
    operation(rank)
    if rank.rank == 0:
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="timeout after 1s"):
            operation(rank)
        assert time.monotonic() - start < 2, "the extension has ended with the first operation"
        rank.tell("late")
    rank.hear()


@pytest.mark.parametrize("operation", [all_reduce, without_torch, in_a_batch, sparse, to_the_other])
def test_extended_timeout(make_world, operation):
    world = make_world(2)
    world.start(run_extended, operation)
    assert world.told(0) == "late"
    world.say("leave")
    world.values(world.finish())


def run_extended_unawaited(rank):
    rank.init(timeout=1)
    backend()._add_ephemeral_timeout(timedelta(seconds=20))
    if rank.rank == 0:
        works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
        rank.tell("started")
        rank.hear()
        with pytest.raises(dist.DistBackendError, match="timeout after 1s"):
            all_reduce(rank)
        assert all(work.is_success() for work in works)
        rank.tell("late")
    else:
        rank.hear()
        time.sleep(1.5)
        for _ in range(3):
            all_reduce(rank)
        rank.tell("ended")
    rank.hear()


def test_extension_ends_though_nobody_waits(make_world):
    """All operations that start before the first has ended get the time."""
    world = make_world(2)
    world.start(run_extended_unawaited)
    assert world.told(0) == "started"
    world.say("go", ranks=1)
    assert world.told(1) == "ended"
    world.say("go", ranks=0)
    assert world.told(0) == "late"
    world.say("leave")
    world.values(world.finish())


def run_negative(rank):
    rank.init()
    with pytest.raises(ValueError, match="the timeout is -1 ms, it must not be negative"):
        backend()._add_ephemeral_timeout(timedelta(milliseconds=-1))


def test_negative_extension(make_world):
    make_world(1).run(run_negative)
