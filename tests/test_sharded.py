"""States of which each rank has another part. Real processes, and real SIGKILLs."""

import goccl
import goccl.elastic
import harness
import pytest
import torch
import torch.distributed as dist
from test_elastic import both_transports, die, pytestmark, survivors_of  # noqa: F401

STEPS = 6


class Counters(goccl.elastic.ShardedState):
    """Each part counts the steps that it has been through. Its process may end at a moment."""

    step: int
    sum: torch.Tensor
    _dies: tuple[str, int] | None = None
    _asks = None  # the rank, if it is to wait until it may
    _waits = False

    def at(self, moment):
        if self._dies == (moment, self.step):
            if self._asks:
                self._asks.tell("may I?")
                self._asks.hear()
            die()

    def save(self):
        self.at("save")
        super().save()
        self.at("saved")

    def restore(self):
        super().restore()
        if self._waits:  # so that the newcomer takes a dead rank's place
            self._waits = False
            harness.until(lambda: self._comm.num_waiting == 1)

    def sync(self):
        if self._resets:
            self.at("sync")
        super().sync()
        if self._resets:
            self.at("synced")


def counter(of):
    return {"of": of, "steps": torch.zeros(3), "log": []}


def all_parts(state):
    """The parts of all ranks, by rank."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, state.parts)
    return parts


def check_parts(state, owners):
    """All members together have each part once, as it was at the step at which all are."""
    found = [part for parts in all_parts(state) for part in parts]
    assert sorted(part["of"] for part in found) == sorted(owners)
    for part in found:
        assert part["steps"].tolist() == [state.step] * 3
        assert part["log"] == list(range(state.step))


def train_steps(state, owners, entries, until=STEPS):
    entries.append((state.step, sorted(part["of"] for part in state.parts)))
    while state.step < until:
        check_parts(state, owners)
        state.at("step")
        for part in state.parts:
            part["steps"] += 1
            part["log"].append(state.step)
        state.sum += 1
        state.step += 1
        state.commit()
    check_parts(state, owners)
    assert state.sum.tolist() == [until] * 2
    return entries


def make(rank, replicas, kind=Counters):
    return kind(parts=[counter(rank.rank)], replicas=replicas, step=0, sum=torch.zeros(2))


def run_deaths(rank, replicas, moments, options):
    rank.init(pg_options=goccl.Options(**options))
    state = make(rank, replicas)
    state._dies = moments.get(rank.rank)
    entries = goccl.elastic.run(train_steps)(state, range(rank.size), [])
    assert dist.get_world_size() == rank.size - len(moments)
    return entries


@both_transports
@pytest.mark.parametrize(
    ("replicas", "moments"),
    [
        (1, {1: ("step", 2)}),  # who has a part
        (1, {1: ("step", 2), 3: ("step", 2)}),
        (1, {0: ("step", 2), 1: ("step", 3)}),  # and then who keeps it: new copies have been made
        (1, {0: ("save", 3)}),
        (1, {0: ("saved", 3)}),
        (1, {2: ("step", 2), 0: ("sync", 2)}),
        (1, {2: ("step", 2), 3: ("synced", 2)}),  # who has just got it
        (2, {0: ("step", 2), 1: ("step", 2)}),  # who has a part and who keeps it, at once
        (2, {3: ("saved", 3), 0: ("save", 3)}),
        (9, {0: ("step", 1), 1: ("step", 2), 3: ("step", 4)}),
    ],
    ids=str,
)
def test_deaths(make_world, replicas, moments, transport):
    world = make_world(4, env={"GOCCL_TRANSPORT": transport})
    world.start(run_deaths, replicas, moments, {})
    left = survivors_of(world, set(moments))
    for entries in left:
        assert [step for step, _ in entries] == [step for step, _ in left[0]]
    assert sorted(of for entries in left for of in entries[-1][1]) == [0, 1, 2, 3]


def test_members_that_the_library_has_replaced(make_world):
    world = make_world(3)
    world.start(run_deaths, 1, {1: ("step", 3)}, {"recovery": "survivors"})
    for entries in survivors_of(world, (1,)):
        assert [step for step, _ in entries] == [0, 3]


def run_newcomer(rank, members, victim):
    if rank.rank >= members:
        dist.init_process_group("goccl", store=rank.make_store(), rank=0, world_size=1)
    else:
        dist.init_process_group(
            "goccl", store=rank.make_store(), rank=rank.rank, world_size=members
        )
    state = make(rank, 1)
    comm = goccl.Communicator()
    rank.tell(comm.handle)
    if rank.rank >= members:
        comm.join([rank.hear()])
    elif rank.rank == victim:
        state._dies, state._asks = ("step", 2), rank
    elif victim is not None:
        state._waits = rank.rank == 0
    else:
        rank.hear()
        if rank.rank == 0:
            harness.until(lambda: comm.num_waiting == 1)
    return goccl.elastic.run(train_steps)(state, range(members), [])


def test_a_newcomer_takes_the_parts_of_the_dead(make_world):
    world = make_world(4, store="tcp")
    world.start(run_newcomer, 3, 1)
    handles = [world.told(r) for r in range(4)]
    assert world.told(1) == "may I?"
    world.say("yes", ranks=[1])
    world.say(handles[0], ranks=[3])
    first, third, newcomer = survivors_of(world, (1,))
    assert (first, third) == ([(0, [0]), (2, [0])], [(0, [2]), (2, [2])])
    assert newcomer == [(2, [1])]


def test_a_newcomer_begins_without_parts(make_world):
    world = make_world(3, store="tcp")
    world.start(run_newcomer, 2, None)
    handles = [world.told(r) for r in range(3)]
    world.say(handles[0], ranks=[2])
    world.say("go", ranks=[0, 1])
    first, second, newcomer = world.values(world.finish())
    assert (first, second) == ([(0, [0]), (1, [0])], [(0, [1]), (1, [1])])
    assert newcomer == [(1, [])]


class Careless(Counters):
    lost: tuple[int, ...] = ()

    def on_lost(self, ranks):
        type(self).lost = tuple(ranks)


def run_lost(rank, replicas, kind, victims):
    rank.init()
    state = make(rank, replicas, kind)
    if rank.rank in victims:
        state._dies, state._asks = ("step", 2), rank
    if kind is Counters:
        with pytest.raises(RuntimeError, match=r"the parts of rank 1 at the last commit are lost"):
            goccl.elastic.run(train_steps)(state, range(4), [])
        return None

    @goccl.elastic.run
    def train(state):
        owners = [of for of in range(4) if of not in Careless.lost]
        return train_steps(state, owners, [])

    began = train(state)[0][0]
    return Careless.lost, began


@pytest.mark.parametrize("kind", [Counters, Careless])
def test_what_is_lost_all_are_told(make_world, kind):
    world = make_world(4)
    world.start(run_lost, 1, kind, (1, 2))
    for victim in (1, 2):  # both wait, so that neither takes part in a recovery
        assert world.told(victim) == "may I?"
    world.say("yes", ranks=(1, 2))
    values = survivors_of(world, (1, 2))
    if kind is Careless:
        assert values == [((1,), 2)] * 2


def run_refused(rank):
    rank.init()
    with pytest.raises(goccl.MismatchError, match="replicas are 1 on rank 1"):
        make(rank, rank.rank).sync()
    with pytest.raises(ValueError, match="replicas are -1 on rank 0"):
        make(rank, -1).sync()
    with pytest.raises(ValueError, match="allowed are 1073741824"):
        goccl.elastic.ShardedState(parts=[torch.empty(1 << 28, dtype=torch.uint8)]).sync()
    state, other = make(rank, 1), make(rank, 1)
    state.sync()
    with pytest.raises(RuntimeError, match="is of another state"):
        other.sync()
    with pytest.raises(RuntimeError, match="the group has checkpoints already, 1 of them"):
        make(rank, 1)
    part = state.parts[0]
    state.parts = [part, {"more": torch.arange(5)}]
    state.sum += 3
    state.commit()
    state.parts.clear()
    part["steps"] += 1
    state.sum += 1
    state.restore()
    assert [sorted(p) for p in state.parts] == [["log", "of", "steps"], ["more"]]
    assert state.parts[0]["of"] == rank.rank
    assert state.parts[0]["steps"].tolist() == [0] * 3
    assert state.parts[1]["more"].tolist() == [0, 1, 2, 3, 4]
    assert state.sum.tolist() == [3, 3]


def test_refused(make_world):
    make_world(2).run(run_refused)
