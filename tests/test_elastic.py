"""Members that come and go: the calls of the backend, and goccl.elastic. Real processes, and real
SIGKILLs."""

import functools
import os
import signal
from datetime import timedelta

import goccl
import goccl.elastic
import harness
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PRELOAD = ("torch._dynamo",)  # which optimizers load

both_transports = pytest.mark.parametrize("transport", harness.TRANSPORTS)


def die():
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
        die()
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


# -- goccl.elastic: who dies when


STEPS = 8
BATCH = 12  # of all ranks together: 1, 2, 3 and 4 ranks have equal shares, and so the same mean


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)
    )


def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def batch_of(step):
    x = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True).sin()


def train_step(model, optimizer, step, rank=0, size=1):
    x, y = (t[rank::size] for t in batch_of(step))
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()


@functools.cache
def trained_alone():
    """What one process comes to."""
    model = make_model()
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        train_step(model, optimizer, step)
    return [p.detach() for p in model.parameters()]


class Deaths(goccl.elastic.TorchState):
    """A state whose process ends at a certain moment."""

    step: int
    _dies: str | None

    def at(self, moment):
        if self._dies == moment:
            die()

    def save(self):
        super().save()
        if self.step == 3:
            self.at("saved")  # before anybody else knows

    def commit(self):
        super().commit()
        if self.step == 3:
            self.at("committed")

    def sync(self):
        if self._resets == 1:
            self.at("sync")
        super().sync()

    def on_reset(self):
        self.at("reset")
        super().on_reset()
        self.at("callback")


def run_deaths(rank, moments):
    rank.init()
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.0005)
    ddp = model.process_group, model
    optimizer = make_optimizer(model)
    state = Deaths(model, optimizer, step=0)
    state._dies = moments.get(rank.rank)
    committed, entries, resets = 0, [], []
    state.register_reset_callbacks([lambda: resets.append(dist.get_world_size())])

    def in_backward(gradient):
        if state.step == 2:
            state.at("backward")

    model.module[2].weight.register_hook(in_backward)

    @goccl.elastic.run
    def train(state):
        nonlocal committed
        entries.append((state.step, committed))
        state.at("begin")
        while state.step < STEPS:
            train_step(model, optimizer, state.step, dist.get_rank(), dist.get_world_size())
            state.step += 1
            state.commit()
            committed = state.step
        return "done"

    assert train(state) == "done"
    assert (model.process_group, state.model) == ddp
    assert dist.get_process_group_ranks(None) == list(range(dist.get_world_size()))
    harness.expect(all(step >= last for step, last in entries), f"lost commits: {entries}")
    for p, q in zip(model.parameters(), trained_alone(), strict=True):
        torch.testing.assert_close(p.detach(), q, rtol=1e-4, atol=1e-5)
    group = dist.new_group()
    t = torch.ones(1)
    dist.all_reduce(t, group=group)
    assert t.item() == dist.get_world_size()
    return {
        "entries": [step for step, _ in entries],
        "resets": resets,
        "state": b"".join(p.detach().numpy().tobytes() for p in model.parameters()),
    }


@both_transports
@pytest.mark.parametrize(
    "moments",
    [
        {1: "begin"},
        {0: "begin"},
        {2: "backward"},
        {0: "backward"},
        {3: "saved"},
        {0: "saved"},
        {1: "committed"},
        {0: "backward", 3: "backward"},
        {1: "saved", 2: "backward"},
        {1: "backward", 0: "reset"},
        {3: "backward", 0: "callback"},
        {1: "backward", 2: "sync"},
        {0: "saved", 1: "sync", 2: "callback"},
    ],
    ids=lambda moments: ",".join(f"{r}-{m}" for r, m in moments.items()),
)
def test_deaths(make_world, moments, transport):
    world = make_world(4, env={"GOCCL_TRANSPORT": transport})
    world.start(run_deaths, moments)
    left = survivors_of(world, set(moments))
    for one in left:
        assert one == left[0]  # to the bit
        assert one["entries"][0] == 0
        assert one["resets"][-1] == 4 - len(moments)
    if set(moments.values()) == {"saved"}:
        assert left[0]["entries"] in ([0, 2], [0, 3])
