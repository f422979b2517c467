"""Members that come and go: the calls of the backend, and goccl.elastic. Real processes, and real
SIGKILLs."""

import functools
import os
import signal
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import goccl
import goccl.elastic
import harness
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

PRELOAD = ("torch._dynamo",)  # which optimizers load

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"), reason="older torch fixes the ranks of a group"
)
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
    for never in (timedelta.max, float("inf")):
        backend().recover(never)
    with pytest.raises(ValueError, match="`timeout` is 0 ms"):
        backend().recover(timedelta(0))
    with pytest.raises(ValueError, match="`timeout` is -1 ms"):
        backend().recover(timedelta(milliseconds=-1))
    with pytest.raises(TypeError):
        backend().agree(-1)
    dist.destroy_process_group()


def test_revoke(make_world):
    make_world(3).run(run_revoke)


def run_interrupted(rank):
    rank.init()
    if rank.rank == 0:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            rank.tell("recovers")
            backend().recover()  # which the other one does not
        dist.destroy_process_group()
    else:
        rank.hear()


def test_recover_is_interrupted(make_world):
    world = make_world(2)
    world.start(run_interrupted)
    world.told(0)
    world.signal(0, signal.SIGINT)
    world.values(world.finish(ranks=[0]))
    world.say("go", ranks=1)
    world.values(world.finish(ranks=[1]))


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


# -- goccl.elastic: processes that join


def run_join(rank, members, dies):
    newcomer = rank.rank >= members
    if newcomer:
        dist.init_process_group("goccl", store=rank.make_store(), rank=0, world_size=1)
    else:
        dist.init_process_group(
            "goccl", store=rank.make_store(), rank=rank.rank, world_size=members
        )
    model = DistributedDataParallel(make_model())
    if newcomer:
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(7)
    optimizer = make_optimizer(model)
    table = torch.arange(300_001.0)  # more than one rank sends it
    state = goccl.elastic.TorchState(
        model, optimizer, step=0, table=torch.empty_like(table) if newcomer else table
    )
    sizes, entries = [], []
    sub = []
    state.register_reset_callbacks(
        [
            lambda: sizes.append(dist.get_world_size()),
            lambda: sub.append(dist.new_group()),  # newcomers make it, too
        ]
    )
    comm = goccl.Communicator()
    assert comm.handle == backend().handle
    rank.tell(comm.handle)
    if newcomer:
        comm.join(rank.hear())
    wait = not newcomer

    @goccl.elastic.run
    def train(state):
        nonlocal wait
        entries.append(state.step)
        while state.step < STEPS:
            if state.step == 2 and wait:
                # The newcomers' requests are here before the commit.
                wait = False
                rank.tell("at step 2")
                rank.hear()
                if rank.rank == 0:
                    harness.until(lambda: comm.num_waiting == rank.size - members)
                dist.barrier()
            if state.step == 5 and rank.rank in dies:
                die()
            train_step(model, optimizer, state.step, dist.get_rank(), dist.get_world_size())
            state.step += 1
            state.commit()
        return dist.get_rank()

    mine = train(state)
    for p, q in zip(model.parameters(), trained_alone(), strict=True):
        torch.testing.assert_close(p.detach(), q, rtol=1e-4, atol=1e-5)
    assert torch.equal(state.table, table)
    t = torch.ones(1)
    dist.all_reduce(t, group=sub[-1])
    assert t.item() == dist.get_world_size()
    assert dist.get_process_group_ranks(None) == list(range(dist.get_world_size()))
    return {
        "rank": mine,
        "entries": entries,
        "sizes": sizes,
        "state": b"".join(p.detach().numpy().tobytes() for p in model.parameters()),
    }


@both_transports
@pytest.mark.parametrize(
    ("members", "dies"),
    [(1, ()), (2, ()), (3, (0,)), (2, (1, 3))],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_join(make_world, members, dies, transport):
    world = make_world(4, env={"GOCCL_TRANSPORT": transport}, store="tcp")
    world.start(run_join, members, dies)
    handles = [world.told(r) for r in range(4)]
    assert len(set(handles)) == 4
    for r in range(members):
        assert world.told(r) == "at step 2"
    world.say(handles[:1], ranks=range(members, 4))
    world.say("go", ranks=range(members))
    left = survivors_of(world, dies)
    assert [one["rank"] for one in left] == sorted(one["rank"] for one in left[:members]) + [
        one["rank"] for one in left[members:]
    ]
    assert {one["rank"] for one in left} == set(range(len(left)))
    for one in left:
        assert one["state"] == left[0]["state"]
        assert one["sizes"] == ([4, 4 - len(dies)] if dies else [4])
        assert one["entries"][-1] == (5 if dies else 3)


def run_found(rank):
    """The first two ranks are members. Others come by the store alone: two at once when both
    train, and another one when only those two are left."""
    first = rank.rank < 2
    if first:
        dist.init_process_group("goccl", store=rank.make_store(), rank=rank.rank, world_size=2)
    else:
        rank.hear()
        dist.init_process_group("goccl", store=rank.make_store(), rank=0, world_size=1)
    state = goccl.elastic.ObjectState(ends=False, all=False)
    comm = goccl.Communicator()
    if not first:
        comm.join()
        with pytest.raises(ValueError, match=f"this group has {comm.size} members"):
            comm.join()  # twice

    @goccl.elastic.run
    def train(state):
        while not state.ends:
            size = dist.get_world_size()
            if first and state.all:
                rank.tell("four")
                rank.hear()  # and is killed
            dist.all_reduce(torch.ones(4))
            state.all |= size == 4
            state.ends = state.all and size == 3
            state.commit()
        return dist.get_world_size()

    return train(state)


@both_transports
def test_join_by_the_store(make_world, transport):
    world = make_world(5, env={"GOCCL_TRANSPORT": transport}, store="tcp")
    world.start(run_found)
    world.say("go", ranks=[2, 3])
    for victim in 0, 1:
        assert world.told(victim) == "four"
    for victim in 0, 1:
        world.signal(victim, signal.SIGKILL)
    world.say("go", ranks=[4])
    assert survivors_of(world, {0, 1}) == [3, 3, 3]


def run_join_refused(rank, how):
    dist.init_process_group(
        "goccl",
        store=rank.make_store(),
        rank=rank.rank if rank.rank < 2 else 0,
        world_size=2 if rank.rank < 2 else 1,
        timeout=timedelta(seconds=60 if rank.rank < 2 else 2),
    )
    comm, name = goccl.Communicator(), "goccl/members/0"
    store = dist.PrefixStore("cpu/", dist.distributed_c10d._get_default_store())
    if rank.rank == 2:
        rank.hear()
        comm.join()
    else:
        if how == "malformed":
            store.set(name, "nonsense")
        elif how != "nothing":
            comm.publish()
            harness.until(lambda: store.check([name]))
        dist.barrier()
        rank.tell("ready")
        rank.hear()


@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("nothing", "OperationTimeoutError", 'at "goccl/members/0" of the store: nothing is there'),
        ("gone", "OperationTimeoutError", "is not a member any more"),
        ("nobody lets it in", "OperationTimeoutError", "have not let this process in"),
        ("malformed", "ValueError", 'is "nonsense", which is no handle of a member'),
        ("secret", "MismatchError", "different secrets"),
        ("GOCCL_JOIN", "ValueError", 'handle 1 of 2 in GOCCL_JOIN, "a", is none'),
    ],
)
def test_join_is_refused(make_world, how, kind, text):
    env = {
        "secret": {"GOCCL_SECRET": "x" * 40},
        "GOCCL_JOIN": {"GOCCL_JOIN": "a,b"},
    }.get(how, {})
    world = make_world(3, rank_env={2: env}, store="tcp")
    world.start(run_join_refused, how)
    for r in 0, 1:
        world.told(r)
    if how == "gone":
        for r in 0, 1:
            world.signal(r, signal.SIGKILL)
    world.say("go", ranks=[2])
    (outcome,) = world.finish(ranks=[2])
    assert (outcome.kind, text in outcome.error) == (kind, True), outcome
    if how != "gone":
        world.say("end", ranks=[0, 1])
        world.values(world.finish(ranks=[0, 1]))


# -- goccl.elastic: what else may happen


class Weights:
    """Steps of a training without a model: each adds 1 on each rank."""

    def __init__(self, rank, **given):
        self.state = goccl.elastic.ObjectState(sum=torch.zeros(4), step=0, **given)
        self.rank, self.act = rank, {}

    def train(self, state):
        while state.step < 6:
            if self.act.get(state.step):
                self.act.pop(state.step)()
            t = torch.ones(4)
            dist.all_reduce(t)
            state.sum += t / dist.get_world_size()
            state.step += 1
            state.commit()
        return state.sum.tolist()


def fail():
    raise ValueError("by the user")


def run_user_exception(rank):
    rank.init()
    weights = Weights(rank)
    if rank.rank == 1:
        weights.act = {3: fail}
        with pytest.raises(ValueError, match="by the user"):
            goccl.elastic.run(weights.train)(weights.state)
        dist.destroy_process_group()
        return None
    assert goccl.elastic.run(weights.train)(weights.state) == [6] * 4
    return dist.get_world_size()


def test_an_exception_of_the_user_comes_out(make_world):
    assert make_world(3).run(run_user_exception) == [2, None, 2]


def run_reset_limit(rank):
    rank.init()
    weights = Weights(rank)
    if rank.rank:
        weights.act = {2 * rank.rank: die}
    train = goccl.elastic.run(reset_limit=1, timeout=timedelta(seconds=30))(weights.train)
    with pytest.raises(RuntimeError, match="has been reset 1 times, and reset_limit is 1") as error:
        train(weights.state)
    assert isinstance(error.value.__cause__, goccl.PeerFailedError)
    assert weights.state.step == 4
    return train.__name__


def test_reset_limit(make_world):
    world = make_world(3)
    world.start(run_reset_limit)
    assert survivors_of(world, (1, 2)) == ["train"]


def run_min_size(rank):
    rank.init(pg_options=goccl.Options(min_size=3))
    weights = Weights(rank)
    if rank.rank == 1:
        weights.act = {2: die}
    train = goccl.elastic.run(timeout=timedelta(seconds=1))(weights.train)
    with pytest.raises(goccl.NoQuorumError, match="at least 3 members must be left"):
        train(weights.state)


def test_too_few_are_left(make_world):
    world = make_world(3)
    world.start(run_min_size)
    survivors_of(world, (1,))


def run_survivors(rank):
    """The allreduce in which the member dies completes, and so does its step."""
    rank.init(pg_options=goccl.Options(recovery="survivors"))
    weights = Weights(rank)
    if rank.rank == 1:
        weights.act = {3: die}
    resets = []
    weights.state.register_reset_callbacks(
        [lambda: resets.append((weights.state.step, dist.get_world_size()))]
    )
    goccl.elastic.run(weights.train)(weights.state)
    assert weights.state.step == 6
    return resets


@both_transports
def test_members_that_the_library_has_replaced(make_world, transport):
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.start(run_survivors)
    assert survivors_of(world, (1,)) == [[(4, 2)]] * 2


def run_stopped(rank):
    rank.init()
    rank.limit(3)
    weights = Weights(rank)
    if rank.rank == 2:
        weights.act = {2: lambda: os.kill(os.getpid(), signal.SIGSTOP)}
    assert goccl.elastic.run(weights.train)(weights.state) == [6] * 4
    return dist.get_world_size()


def test_a_stopped_member_is_ended_and_left_out(make_world):
    """It would write to memory of the others when it goes on."""
    world = make_world(3)
    world.start(run_stopped)
    assert survivors_of(world, (2,)) == [2, 2]


def run_other_failures(rank):
    """Of which only one rank knows, and that break no group, or another one."""
    rank.init()
    other = dist.new_group()
    weights = Weights(rank)
    if rank.rank == 1:

        def late():
            goccl.Communicator(other).revoke("it is tried")
            dist.barrier(group=other)

        weights.act = {2: late}
    resets = []
    weights.state.register_reset_callbacks([lambda: resets.append(weights.state.step)])
    assert goccl.elastic.run(weights.train)(weights.state) == [6] * 4
    return resets, dist.get_world_size()


def test_a_failure_that_one_rank_knows_resets_all(make_world):
    assert make_world(3).run(run_other_failures) == [([2], 3)] * 3


def run_destroys(rank):
    rank.init()

    @goccl.elastic.run
    def train(state):
        state.commit()
        dist.destroy_process_group()
        if state.step:
            state.commit()
        return "done"

    assert train(goccl.elastic.ObjectState(step=0)) == "done"
    rank.init(store="again")
    with pytest.raises(goccl.AbortedError, match="has been shut down"):
        train(goccl.elastic.ObjectState(step=1))


def test_a_function_may_destroy_its_group(make_world):
    make_world(2).run(run_destroys)


def run_sampler(rank, drop_last):
    rank.init()
    sampler = goccl.elastic.ElasticSampler(range(61), seed=3, drop_last=drop_last)
    state = goccl.elastic.ObjectState(sampler=sampler, epoch=0, seen=[[], []])
    loader = torch.utils.data.DataLoader(range(61), batch_size=3, sampler=sampler)
    lengths = []  # in callbacks
    state.register_reset_callbacks([lambda: lengths.append(len(loader))])

    @goccl.elastic.run
    def train(state):
        while state.epoch < 2:
            told, came = len(loader), 0
            assert lengths[-1:] in ([], [told]) or sampler.processed == 0
            for batch, samples in enumerate(loader):
                came += 1
                if rank.rank == state.epoch + 1 and sampler.processed >= 20:
                    die()
                all_samples = [None] * dist.get_world_size()
                dist.all_gather_object(all_samples, samples.tolist())
                for samples_of_one in all_samples:
                    state.seen[state.epoch] += samples_of_one
                sampler.record_batch(batch, 3)
                state.commit()
            assert sampler.processed >= 61 - drop_last * (dist.get_world_size() - 1)
            assert told == came
            state.epoch += 1
            sampler.set_epoch(state.epoch)
        return state.seen

    return train(state)


@pytest.mark.parametrize("drop_last", [False, True])
def test_sampler_sees_each_sample_once(make_world, drop_last):
    world = make_world(4)
    world.start(run_sampler, drop_last)
    seen, other = survivors_of(world, (1, 2))
    assert seen == other
    assert seen[0] != seen[1]
    for epoch, size in zip(seen, (3, 2), strict=True):
        if drop_last:
            assert len(epoch) == len(set(epoch)) > 61 - size
        else:
            assert set(epoch) == set(range(61))
            assert len(epoch) < 61 + size


class Rows:
    """It keeps lists, and is pickled as tensors that are made on the way."""

    def __init__(self, *rows):
        self.rows = rows

    def __getstate__(self):
        return torch.tensor(self.rows)

    def __setstate__(self, state):
        self.rows = tuple(state.tolist())

    def __eq__(self, other):
        return self.rows == other.rows


class Items(list):
    def __reduce__(self):
        return Items, (), None, (torch.tensor(x) for x in self)


def run_made_on_the_way(rank):
    rank.init()

    def of(r):
        return [Rows(r, i) for i in range(20)]

    state = goccl.elastic.ObjectState(rows=of(rank.rank), items=Items(range(rank.rank, 50)))
    state.restore()
    assert state.rows == of(rank.rank)
    assert state.items == list(range(rank.rank, 50))
    state.rows, state.items = of(rank.rank), Items(range(rank.rank, 50))
    state.sync()
    assert state.rows == of(0)
    assert state.items == list(range(50))
    sharded = goccl.elastic.ShardedState(parts=of(rank.rank))
    sharded.save()
    sharded.restore()
    assert sharded.parts == of(rank.rank)


def test_tensors_that_are_made_on_the_way(make_world):
    make_world(2).run(run_made_on_the_way)


def run_state(rank):
    rank.init()
    strided = torch.arange(12.0).view(3, 4).t()
    twice = torch.full((2,), float(rank.rank))
    objects = {
        "numbers": {"a": [1, 2.5, "b"], "rank": rank.rank},
        "nested": [torch.tensor(rank.rank), {"x": (torch.ones(3, dtype=torch.bfloat16), None)}],
        "empty": torch.empty(0, 4),
        "strided": strided + rank.rank,
        "alike": (twice, twice),
        "wants": torch.ones(2, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
        "complex": torch.tensor([1j * rank.rank]),
        "optimizer": torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=rank.rank + 1),
    }
    state = goccl.elastic.ObjectState(goccl.Communicator(), **objects)
    state.nested[0] += 10
    state.numbers["a"].append("c")
    state.restore()
    assert state.nested[0].item() == rank.rank
    assert state.numbers["a"] == [1, 2.5, "b"]
    if rank.rank == 2:  # it has saved more often, so that it has the newest
        state.save()
    state.nested[0] += 100
    optimizer = state.optimizer
    state.sync()
    assert state.numbers == {"a": [1, 2.5, "b"], "rank": 2}
    assert state.nested[0].item() == 102
    assert state.nested[1]["x"][0].dtype == torch.bfloat16
    assert state.empty.shape == (0, 4)
    assert torch.equal(state.strided, strided + 2)
    assert state.alike[0] is state.alike[1] or rank.rank == 2
    assert state.alike[0].tolist() == [2, 2]
    assert state.wants.requires_grad
    assert state.sparse.to_dense().tolist() == torch.eye(3).tolist()
    assert state.complex.tolist() == [2j]
    assert state.optimizer is optimizer
    assert optimizer.param_groups[0]["lr"] == 3
    ran = backend()._get_sequence_number_for_group()
    state.sync()  # one collective: nothing differs
    assert backend()._get_sequence_number_for_group() == ran + 1
    state.check_host_updates()
    for name in ("commit", "_saved", "register_reset_callbacks"):
        with pytest.raises(ValueError, match=f"an object cannot be named '{name}'"):
            goccl.elastic.ObjectState(**{name: 1})
    with pytest.raises(TypeError, match="first argument must be a goccl"):
        goccl.elastic.run(lambda state: None)(3)


def test_state(make_world):
    make_world(3).run(run_state)


@contextmanager
def other_defaults():
    torch.set_default_dtype(torch.float64)
    with torch.device("meta"):
        yield
    torch.set_default_dtype(torch.float32)


DEFAULTS: dict[str, Any] = {"device and dtype": other_defaults, "inference": torch.inference_mode}


def run_defaults(rank, name):
    rank.init()
    model = DistributedDataParallel(make_model())
    optimizer = make_optimizer(model)
    sampler = goccl.elastic.ElasticSampler(range(9), shuffle=name == "inference")
    table = torch.full((1 << 18,), float(rank.rank))
    state = goccl.elastic.ShardedState(
        model, optimizer, parts=[table[:5].clone()], sampler=sampler, table=table, step=0
    )
    train_step(model, optimizer, 0)

    @goccl.elastic.run
    def train(state):
        while state.step < 3:
            assert len(list(sampler)) == len(sampler) == 5
            state.step += 1
            state.table += 1
            if rank.rank == 1 and state.step == 2 and state._resets == 0:
                goccl.Communicator().revoke("it is tried")
            state.commit()

    with DEFAULTS[name]():
        train(state)
    for p in model.parameters():
        assert not p.is_inference()
    assert state.parts[0].tolist() == [float(rank.rank)] * 5
    assert (state.table[0].item(), state.table.dtype) == (3, torch.float32)
    state.table += 1
    state.parts[0] += 1
    train_step(model, optimizer, 1)
    state.commit()
    with DEFAULTS[name]():
        state.restore()
    state.table += 1
    train_step(model, optimizer, 1)
    state.commit()
    state.sync()


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_of_torch(make_world, name):
    make_world(2).run(run_defaults, name)


def run_hook(rank):
    """A hook of DDP in Python, whose failures torch makes RuntimeErrors of."""
    rank.init()
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.0005)
    sizes = []

    def hook(process_group, bucket):
        sizes.append(process_group.size())
        return default_hooks.fp16_compress_hook(process_group, bucket)

    model.register_comm_hook(dist.group.WORLD, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = goccl.elastic.TorchState(model, optimizer, step=0)

    def in_backward(gradient):
        if state.step == 2 and rank.rank == 1:
            die()

    model.module[2].weight.register_hook(in_backward)

    @goccl.elastic.run
    def train(state):
        while state.step < STEPS:
            train_step(model, optimizer, state.step, dist.get_rank(), dist.get_world_size())
            state.step += 1
            state.commit()
        raise RuntimeError("by the user, after a failure")

    with pytest.raises(RuntimeError, match="by the user"):
        train(state)
    assert state.step == STEPS
    assert sizes[0] == 3
    assert sizes[-1] == 2
    return dist.get_world_size(), [p.tolist() for p in model.parameters()]


def test_failures_in_callbacks():
    def fail(future):
        raise goccl.RevokedError("it is tried")

    for kind, again in (goccl.RevokedError, 0), (goccl.RevokedError, 2), (ZeroDivisionError, 1):
        first = torch.futures.Future()
        last = first.then(fail if kind is goccl.RevokedError else lambda future: 1 // 0)
        for _ in range(again):
            last = last.then(lambda future: future.value())
        first.set_result(0)
        with pytest.raises(RuntimeError, match="callback") as error:
            last.wait()
        assert goccl.elastic._run._is_of_a_group(error.value) == (kind is goccl.RevokedError)


@both_transports
def test_hooks_of_ddp(make_world, transport):
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.start(run_hook)
    (size, weights), other = survivors_of(world, (1,))
    assert size == 2
    assert other == (size, weights)


# -- goccl.elastic: a death at the start


class Dying(goccl.elastic.TorchState):
    """A state whose process may end in its first synchronization."""

    _dies = False

    def sync(self):
        if self._dies:
            die()
        super().sync()


def run_start(rank, phase):
    rank.init()
    mine = phase if rank.rank == 1 else None
    made = []
    if mine == "before":
        die()

    def make():
        made.append(dist.get_world_size())
        if mine == "make":
            die()
        torch.manual_seed(dist.get_rank())  # DDP makes them alike
        net = make_model()
        net.register_module("first", Dies() if mine == "construct" else nn.Identity())
        model = DistributedDataParallel(net)
        if mine == "made":
            die()
        state = Dying(model, make_optimizer(model), step=0)
        state._dies = mine == "sync"
        return state

    @goccl.elastic.run
    def train(state):
        while state.step < STEPS:
            train_step(state.model, state.optimizer, state.step)
            state.step += 1
            state.commit()
        return [p.detach() for p in state.model.parameters()]

    weights = train(make)
    assert dist.get_world_size() == 2
    return made, torch.cat([w.flatten() for w in weights]).tolist()


class Dies(nn.Module):
    """A module whose process ends when DDP asks for its parameters."""

    def _named_members(self, *args, **kwargs):
        die()


@both_transports
@pytest.mark.parametrize("phase", ["before", "make", "construct", "made", "sync"])
def test_a_death_at_the_start(make_world, transport, phase):
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.start(run_start, phase)
    (made, weights), (_, others) = survivors_of(world, {1})
    assert weights == others
    assert made[0] == 3
    if phase in ("before", "make", "construct"):
        assert made[-1] == 2


def run_make_wrongly(rank):
    rank.init()
    train = goccl.elastic.run(lambda state: None)
    for given in 7, lambda: 7:
        with pytest.raises(TypeError, match=r"goccl\.elastic\.State"):
            train(given)
    alone = dist.new_group([0])
    with pytest.raises(ValueError, match="another group than the default"):
        train(lambda: goccl.elastic.ObjectState(alone, step=0))
    with pytest.raises(ZeroDivisionError):
        train(lambda: 1 / 0)


def test_a_state_is_made_wrongly(make_world):
    make_world(1).run(run_make_wrongly)
