"""Collectives that survivors complete: goccl.Options(recovery="survivors"). Real processes, and
real SIGKILLs."""

import itertools
import os
import signal
import threading
from typing import Any

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
from test_elastic import die, survivors_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PRELOAD = ("torch._dynamo",)  # which optimizers load

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"), reason="older torch fixes the ranks of a group"
)
both_transports = pytest.mark.parametrize("transport", harness.TRANSPORTS)


def survivors(transport):
    return goccl.Options(recovery="survivors", transport=transport)


def start(x: torch.Tensor) -> Any:
    """Starts an allreduce. Torch's type of what it returns has no contributors()."""
    return dist.all_reduce(x, async_op=True)


def run_sums(rank, transport, victims, length):
    """Sums in which each rank has a bit of its own tell whose contributions are in them."""
    rank.init(pg_options=survivors(transport), timeout=30)
    mine = rank.rank
    seen = []
    for step in range(60):
        if mine in victims and step == 30:
            die()
        x = torch.full((length,), float(1 << mine))
        if step % 3 == 0:
            dist.all_reduce(x)
        elif step % 3 == 1:
            parts = x.chunk(3)
            works = [start(part) for part in parts]
            for part, work in zip(parts, works, strict=True):
                work.wait()
                assert work.contributors() == int(part[0]).bit_count()
        else:
            goccl.Communicator().all_reduce_(x)
        assert (x == x[0]).all()
        seen.append(int(x[0]))
        dist.barrier()
    average = torch.tensor([float(mine)])
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    root = torch.tensor([float(mine)])
    dist.broadcast(root, dist.get_world_size() - 1)
    return seen, dist.get_rank(), dist.get_world_size(), average.item(), root.item()


@both_transports
@pytest.mark.parametrize("length", [3, 30_000])
@pytest.mark.parametrize("victims", [(1,), (0,), (2, 3)])
def test_sums_complete(make_world, transport, victims, length):
    world = make_world(4)
    world.start(run_sums, transport, victims, length)
    left = [r for r in range(4) if r not in victims]
    rest = sum(1 << r for r in left)
    for new, (seen, rank, size, average, root) in enumerate(survivors_of(world, victims)):
        assert seen[:30] == [15] * 30
        # With two that die one after the other there may be a sum that has one of them.
        assert seen[-25:] == [rest] * 25
        assert set(seen) <= {15, rest, rest | 4, rest | 8}
        assert (rank, size) == (new, len(left))
        assert average == pytest.approx(sum(left) / len(left))
        assert root == left[-1]


def run_two_deaths(rank, transport, delay, length):
    rank.init(pg_options=survivors(transport), timeout=30)
    mine = rank.rank
    seen = []
    for step in range(40):
        if step == 10 and mine == 1:
            die()
        if step == 10 and mine == 2:
            threading.Timer(delay, die).start()
        x = torch.full((length,), float(1 << mine))
        dist.all_reduce(x)
        assert (x == x[0]).all()
        seen.append(int(x[0]))
    while dist.get_world_size() > 3:
        dist.all_reduce(torch.zeros(1))
    return seen, dist.get_world_size()


@both_transports
@pytest.mark.parametrize("delay", [0, 0.001, 0.002, 0.004, 0.008, 0.016])
@pytest.mark.parametrize("length", [3, 30_000])
def test_two_die_one_after_the_other(make_world, transport, delay, length):
    """The second one at any time of the recovery."""
    world = make_world(5)
    world.start(run_two_deaths, transport, delay, length)
    left = survivors_of(world, (1, 2))
    seen, size = left[0]
    assert size == 3
    assert all(other == left[0] for other in left)
    assert seen[:10] == [31] * 10
    assert all(later & before == later for before, later in itertools.pairwise(seen))
    assert set(seen) <= {31, 29, 27, 25}


def run_ddp(rank):
    rank.init(pg_options=survivors(""), timeout=30)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        if rank.rank == 2 and step == 5:
            die()
        optimizer.zero_grad()
        model(torch.full((1, 4), float(rank.rank + step))).sum().backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()], dist.get_world_size()


def test_ddp_goes_on(make_world):
    world = make_world(3)
    world.start(run_ddp)
    first, second = survivors_of(world, (2,))
    assert first == second
    assert first[1] == 2


def run_with_variable(rank):
    rank.init(timeout=30)
    if rank.rank == 1:
        die()
    seen = [torch.ones(1) for _ in range(3)]
    for x in seen:
        dist.all_reduce(x)
    return seen[-1].item(), dist.get_rank(), dist.get_world_size(), goccl.Communicator().size


@pytest.mark.parametrize("recovery", ["survivors", "all"])
def test_asked_for_by_the_variable(make_world, recovery):
    world = make_world(3, env={"GOCCL_RECOVERY": recovery})
    world.start(run_with_variable)
    assert survivors_of(world, (1,)) == [(2.0, 0, 2, 2), (2.0, 1, 2, 2)]


def run_contributors(rank):
    rank.init(timeout=30)
    x = torch.ones(2)
    if rank.rank == 0:
        early = start(x)
        with pytest.raises(RuntimeError, match="call wait"):
            early.contributors()
        rank.tell("begun")
    else:
        rank.hear()
        early = start(x)
    early.wait()
    quick = []
    for _ in range(5):  # callers in C have the later ones
        work = start(x)
        work.wait()
        quick.append(work.contributors())
    sent: Any = dist.isend(x, 1) if rank.rank == 0 else dist.irecv(x, 0)
    sent.wait()
    with pytest.raises(ValueError, match="not one of collectives"):
        sent.contributors()
    dist.barrier()
    if rank.rank == 1:
        die()
    failed = start(x)
    for call in (failed.wait, failed.contributors):
        with pytest.raises(goccl.PeerFailedError):
            call()
    return early.contributors(), quick


def test_works_tell_contributors(make_world):
    world = make_world(2)
    world.start(run_contributors)
    assert world.told(0) == "begun"
    world.say("go", ranks=[1])
    assert survivors_of(world, (1,)) == [(2, [2] * 5)]


def run_others_fail(rank):
    rank.init(pg_options=survivors(""), timeout=30)
    out = [torch.zeros(1) for _ in range(3)]
    if rank.rank == 1:
        rank.hear()
    work = dist.all_gather(out, torch.ones(1), async_op=True)
    rank.tell("begun")
    with pytest.raises(goccl.PeerFailedError):
        work.wait()
    x = torch.tensor([float(rank.rank)])
    dist.all_reduce(x)
    return x.item(), dist.get_world_size()


def test_other_collectives_fail_and_the_group_goes_on(make_world):
    world = make_world(3)
    world.start(run_others_fail)
    for r in (0, 2):
        assert world.told(r) == "begun"
    world.signal(1, signal.SIGKILL)
    assert survivors_of(world, (1,)) == [(2.0, 2), (2.0, 2)]


def run_no_quorum(rank):
    rank.init(pg_options=goccl.Options(recovery="survivors", min_size=3))
    rank.limit(5)
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group = goccl.Communicator()
    with pytest.raises(goccl.PeerFailedError):
        dist.all_reduce(torch.ones(1))
    with pytest.raises(goccl.NoQuorumError, match="at least 3 members must be left"):
        group.recover()


def test_too_few_are_left(make_world):
    world = make_world(3)
    world.start(run_no_quorum)
    survivors_of(world, (1,))
