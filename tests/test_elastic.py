"""Members that come and go: the calls of the backend, and goccl.elastic. Real processes, and real
SIGKILLs."""

import os
import signal
from datetime import timedelta

import goccl
import harness
import pytest
import torch
import torch.distributed as dist

PRELOAD = ("torch._dynamo",)  # which optimizers load

both_transports = pytest.mark.parametrize("transport", harness.TRANSPORTS)


def die(rank):
    os.kill(os.getpid(), signal.SIGKILL)


def backend():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def summed(value):
    t = torch.tensor([float(value)])
    dist.all_reduce(t)
    return t.item()


def all_reduce_for_ever():
    while True:
        dist.all_reduce(torch.ones(1000))


def survivors_of(world, victims):
    """The values of all ranks but the victims, who must have been killed."""
    outcomes = world.finish()
    for o in outcomes:
        assert (o.exitcode == -signal.SIGKILL) == (o.rank in victims), o
    return world.values([o for o in outcomes if o.rank not in victims])


# -- the backend's calls


def run_recover(rank, victims):
    rank.init()
    ours = backend() if rank.rank % 2 else goccl.Communicator()
    before = ours.members
    assert [m.pid for m in before][rank.rank] == os.getpid()
    assert len({m.process for m in before}) == rank.size
    assert before[0].host == os.uname().nodename
    assert ours.epoch == 0
    assert summed(1) == rank.size
    rank.tell("ready")
    rank.hear()
    if rank.rank in victims:
        die(rank)
    with pytest.raises(goccl.PeerFailedError):
        all_reduce_for_ever()
    bits = ours.agree(0b110 | 1 << (8 + rank.rank))
    ours.recover(timedelta(seconds=30))
    left = [r for r in range(rank.size) if r not in victims]
    assert bits == 0b110
    assert ours.epoch == backend().epoch == 1
    assert ours.members == [before[r] for r in left]
    assert (dist.get_rank(), dist.get_world_size()) == (left.index(rank.rank), len(left))
    assert (goccl.Communicator().rank, goccl.Communicator().size) == (dist.get_rank(), len(left))
    assert summed(rank.rank) == sum(left)
    gathered = [None] * len(left)
    dist.all_gather_object(gathered, rank.rank)
    assert gathered == left
    peer = torch.zeros(1)
    sent = dist.isend(torch.tensor([float(rank.rank)]), (dist.get_rank() + 1) % len(left))
    dist.recv(peer, (dist.get_rank() - 1) % len(left))
    sent.wait()
    assert peer.item() == left[dist.get_rank() - 1]
    # Nothing has failed: the same members begin anew.
    ours.recover()
    assert summed(1) == len(left)
    return ours.epoch


@both_transports
@pytest.mark.parametrize("victims", [(1,), (0,), (0, 3)])
def test_recover(make_world, victims, transport):
    world = make_world(4, env={"GOCCL_TRANSPORT": transport})
    world.start(run_recover, victims)
    for r in range(4):
        world.told(r)
    world.say("go")
    assert survivors_of(world, victims) == [2] * (4 - len(victims))


def run_revoke(rank):
    rank.init()
    if rank.rank == 1:
        backend().revoke("it is tried")
    with pytest.raises(goccl.RevokedError, match="it is tried") as error:
        all_reduce_for_ever()
    assert error.value.ranks == [1]
    backend().recover()
    assert summed(1) == rank.size
    with pytest.raises(ValueError, match="`timeout` is 0 ms"):
        backend().recover(timedelta(0))
    with pytest.raises(ValueError, match="`timeout` is -1 ms"):
        backend().recover(timedelta(milliseconds=-1))
    with pytest.raises(TypeError):
        backend().agree(-1)
    dist.destroy_process_group()


def test_revoke(make_world):
    make_world(3).run(run_revoke)
