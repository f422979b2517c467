"""Checkpoints in the members' memory, as Rabit has them. Real processes, and a real SIGKILL."""

import struct

import goccl
import harness
import numpy as np
import pytest
import torch
import torch.distributed as dist
from test_elastic import die, pytestmark, survivors_of  # noqa: F401

MEMBERS, STEPS, EVERY = 3, 10, 3


def train(comm, seed, dies_at, exact):
    """Sums up numbers of generators whose states are the local models."""
    version, total, local, orphans = comm.load_checkpoint()
    assert orphans == []
    state = torch.frombuffer(bytearray(total or bytes(4 * 64)), dtype=torch.float32)
    mine = struct.unpack("q", local)[0] if local else seed
    for step in range(version * EVERY, STEPS):
        if step == dies_at:
            die()
        x = torch.randn(64, generator=torch.Generator().manual_seed(mine))
        comm.all_reduce_(x.mul_(100).round_() if exact else x)
        state = state * 0.9 + x
        mine = mine * 5 + 1
        if (step + 1) % EVERY == 0:
            comm.checkpoint(state.numpy().tobytes(), struct.pack("q", mine))
            assert comm.checkpoint_version == (step + 1) // EVERY
    return state.numpy().tobytes()


def run_replay(rank, victim, host, exact):
    newcomer = rank.rank >= MEMBERS
    place, size = (0, 1) if newcomer else (rank.rank, MEMBERS)
    dist.init_process_group("goccl", store=rank.make_store(), rank=place, world_size=size)
    comm = goccl.Communicator()
    assert comm.checkpoint_version == 0
    rank.tell(comm.handle)
    if newcomer:
        comm.join([rank.hear()])
    try:
        return train(comm, rank.rank, 8 if rank.rank == victim else STEPS, exact)
    except goccl.PeerFailedError:
        if rank.rank == host:  # the one that the newcomer asks
            harness.until(lambda: comm.num_waiting == 1)
        comm.recover()
        assert comm.size == MEMBERS
        return train(comm, rank.rank, STEPS, exact)


@pytest.mark.parametrize(("victim", "exact"), [(0, True), (2, False)])
def test_replay(make_world, victim, exact):
    """A worker is killed and replaced. From the last version all come to the same bits as those
    that nothing has disturbed: also with rounding, where the newcomer has the same rank."""
    world = make_world(MEMBERS)
    world.start(run_replay, -1, -1, exact)
    expected = world.values(world.finish())
    assert expected == [expected[0]] * MEMBERS
    world = make_world(MEMBERS + 1, store="tcp")
    world.start(run_replay, victim, 1, exact)
    handles = [world.told(r) for r in range(MEMBERS + 1)]
    world.say(handles[1], ranks=[MEMBERS])
    assert survivors_of(world, (victim,)) == expected


def run_refused(rank):
    rank.init()
    comm = goccl.Communicator()
    with pytest.raises(goccl.MismatchError, match="the global models differ"):
        comm.checkpoint(bytes([rank.rank]))
    array = np.zeros(1)
    for models, text in (
        ((array,), "`global_model` is of type numpy.ndarray, it must be bytes"),
        ((b"", torch.zeros(1)), "`local_model` is of type Tensor, it must be bytes or None"),
        ((b"", None, "1"), "`replicas` is of type str, it must be an int"),
    ):
        with pytest.raises(TypeError, match=text):
            comm.checkpoint(*models)
    with pytest.raises(ValueError, match=f"`replicas` is {1 << 40}, which is out of range"):
        comm.checkpoint(b"", replicas=1 << 40)
    with pytest.raises(ValueError, match="replicas are -1 on rank 0"):
        comm.checkpoint(b"", replicas=-1)
    with pytest.raises(goccl.MismatchError, match="replicas are 1 on rank 1"):
        comm.checkpoint(b"", replicas=rank.rank)
    dist.group.WORLD._get_backend(torch.device("cpu")).checkpoint(b"", b"mine")
    assert comm.load_checkpoint() == (1, b"", b"mine", [])
    comm.checkpoint(b"all", replicas=7)
    assert comm.load_checkpoint() == (2, b"all", b"", [])


def test_refused(make_world):
    make_world(2).run(run_refused)


def run_refused_on_one(rank):
    rank.init()
    comm = goccl.Communicator()
    if rank.rank == 0:
        with pytest.raises(TypeError):
            comm.checkpoint(np.zeros(1))
        rank.hear()  # it makes no other call
    else:
        with pytest.raises(goccl.MismatchError, match=r"was refused: .*numpy.ndarray"):
            comm.checkpoint(b"")


def test_what_one_rank_is_refused_all_are_told(make_world):
    world = make_world(2)
    world.start(run_refused_on_one)
    world.values(world.finish(ranks=[1]))
    world.say("end", ranks=[0])
    world.values(world.finish(ranks=[0]))
