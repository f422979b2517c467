"""Collectives that Gloo does for a group of goccl."""

import os
from contextlib import nullcontext

import goccl
import pytest
import torch
import torch.distributed as dist
from goccl import _side_step
from goccl._simulate import COLLECTIVES

ALL = ";".join(f"{name}:gloo" for name in COLLECTIVES)


def sequence():
    return dist.group.WORLD._get_sequence_number_for_group()


def by_gloo(work):
    work.wait()
    return not isinstance(work, goccl._C.Work)


def calls(rank):
    """The collectives of torch.distributed and of goccl.Communicator, and what each leaves on this
    rank; None: nothing is said of that."""
    n, me = rank.size, rank.rank
    comm = goccl.Communicator()
    every = [torch.arange(float(2 * n)) + 10 * r for r in range(n)]
    mine, total, whole = every[me], torch.stack(every).sum(0), torch.cat(every)
    part = slice(2 * me, 2 * me + 2)
    exchanged = torch.cat([t[part] for t in every])
    gathered = whole if me == 1 else None
    parts = list(mine.chunk(n)) if me == 1 else None
    given = mine if me == 1 else None

    def gather(out):
        dist.gather(mine, list(out.chunk(n)) if me == 1 else None, dst=1)

    def all_gather(out):
        dist.all_gather(list(out.chunk(n)), mine)

    def all_to_all(out):
        dist.all_to_all(list(out.chunk(n)), list(mine.chunk(n)))

    short, long = mine[part], whole
    reduced = total if me == 1 else None
    return [
        (dist.all_reduce, mine, total),
        (comm.all_reduce_, mine, total),
        (lambda t: dist.broadcast(t, n - 1), mine, every[n - 1]),
        (lambda t: comm.broadcast_(t, n - 1), mine, every[n - 1]),
        (lambda t: dist.reduce(t, 1), mine, reduced),
        (lambda t: comm.reduce_(t, 1), mine, reduced),
        (lambda out: dist.all_gather_into_tensor(out, mine), long, whole),
        (lambda out: comm.all_gather_into(out, mine), long, whole),
        (all_gather, long, whole),
        (lambda out: dist.reduce_scatter_tensor(out, mine), short, total[part]),
        (lambda out: comm.reduce_scatter_into(out, mine), short, total[part]),
        (lambda out: dist.all_to_all_single(out, mine), mine, exchanged),
        (lambda out: comm.all_to_all_into(out, mine), mine, exchanged),
        (all_to_all, mine, exchanged),
        (gather, long, gathered),
        (lambda out: comm.gather_into(out, mine, 1), long, gathered),
        (lambda out: dist.scatter(out, parts, src=1), short, every[1][part]),
        (lambda out: comm.scatter_into(out, given, 1), short, every[1][part]),
        (lambda _: dist.barrier(), short, None),
        (lambda _: comm.barrier(), short, None),
    ]


def run_calls(rank, text):
    rank.init(pg_options=goccl.Options(side_step=text))
    for number, (call, tensor, want) in enumerate(calls(rank)):
        before = sequence()
        for choice in (nullcontext(), goccl.side_step("gloo"), goccl.side_step(None)):
            out = tensor.clone()
            with choice:
                call(out)
            if want is not None:
                assert torch.equal(out, want), (number, choice, out, want)
        assert sequence() == before + 3, number
    one = torch.ones(1)
    assert by_gloo(dist.all_reduce(one, async_op=True)) == (text == ALL)
    with goccl.side_step(None):
        assert not by_gloo(dist.all_reduce(one, async_op=True))
        with goccl.side_step("gloo"):
            assert by_gloo(dist.all_reduce(one, async_op=True))
        assert not by_gloo(dist.all_reduce(one, async_op=True))
    with goccl.side_step("gloo"):
        objects = [None] * rank.size
        dist.all_gather_object(objects, rank.rank)
        assert objects == list(range(rank.size))
        sparse = torch.eye(2).to_sparse()
        dist.all_reduce(sparse)
        assert torch.equal(sparse.to_dense(), rank.size * torch.eye(2))
        many = [torch.ones(1), torch.ones(2)]
        with dist._coalescing_manager():
            for tensor in many:
                dist.all_reduce(tensor)
        assert torch.cat(many).eq(rank.size).all()
        peer = (rank.rank + 1) % rank.size
        work = dist.isend(torch.full((3,), float(rank.rank)), peer)
        dist.recv(got := torch.zeros(3), (rank.rank - 1) % rank.size)
        work.wait()
        assert got.eq((rank.rank - 1) % rank.size).all()
    group = dist.new_group([0, 1])
    if rank.rank < 2:
        assert not by_gloo(dist.all_reduce(one, group=group, async_op=True))
        with goccl.side_step("gloo"), pytest.raises(ValueError, match='is "gloo", which the group'):
            dist.all_reduce(one, group=group)
    setting = goccl.describe().settings["side_step"]
    assert (setting.value, setting.source) == (text, "option")
    dist.destroy_process_group()


@pytest.mark.parametrize("text", ["gloo", ALL], ids=["by call", "by group"])
def test_calls(make_world, text):
    make_world(3).run(run_calls, text)


def run_groups(rank):
    os.environ["GOCCL_SIDE_STEP"] = "allreduce:gloo"
    rank.init()
    one = torch.ones(1)
    split = dist.split_group(split_ranks=[[0, 1], [2]]) if rank.rank < 2 else None
    if rank.rank == 2:
        dist.split_group(split_ranks=[[0, 1], [2]])
    for group in (dist.group.WORLD, split, dist.new_group([0, 2])):
        if group not in (None, dist.GroupMember.NON_GROUP_MEMBER):
            x = one.clone()
            assert by_gloo(dist.all_reduce(x, group=group, async_op=True))
            assert x.item() == dist.get_world_size(group)
    with pytest.raises(goccl.UnsupportedError, match=r"recover\(\) cannot change a group"):
        goccl.Communicator().recover()
    if rank.rank == 2:
        return
    shrunk = dist.shrink_group([2])
    x = one.clone()
    assert by_gloo(dist.all_reduce(x, group=shrunk, async_op=True))
    assert x.item() == 2


def test_groups_of_a_group(make_world):
    make_world(3).run(run_groups)


def run_one_steps(rank):
    rank.init(timeout=60, pg_options=goccl.Options(side_step="gloo"))
    x = torch.ones(1)
    dist.all_reduce(x)
    if rank.rank == 0:
        try:
            dist.all_reduce(x)
        finally:
            rank.tell("failed")
    with goccl.side_step("gloo"):
        work = dist.all_reduce(x, async_op=True)
    rank.hear()
    del work  # which Gloo would end by its timeout
    dist.all_reduce(x)


def test_one_rank_steps_aside(make_world):
    world = make_world(2)
    world.start(run_one_steps)
    world.told(0)
    world.say(None, ranks=[1])
    for outcome in world.finish():
        assert outcome.kind == "MismatchError", outcome
        assert "called allreduce, side-stepped to gloo" in outcome.error
    world.close(check=False)


def run_differing(rank, texts):
    rank.init(timeout=60, pg_options=goccl.Options(side_step=texts[rank.rank]))


def test_groups_that_differ(make_world):
    world = make_world(2)
    for outcome in world.outcomes(run_differing, ("allreduce:gloo", "")):
        assert "side-steps (GOCCL_SIDE_STEP)" in outcome.error
    world.close(check=False)


def test_a_backend_that_one_rank_has_not(make_world):
    world = make_world(2)
    first, second = world.outcomes(run_differing, ("gloo", "glue"))
    assert "'glue' is no backend of this torch; allowed are" in second.error
    assert "'glue' is no backend" in first.error
    world.close(check=False)


def run_dead(rank):
    rank.init(timeout=60, pg_options=goccl.Options(side_step="allreduce:gloo"))
    dist.all_reduce(torch.ones(1))
    if rank.rank == 1:
        os._exit(3)
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def test_a_death_is_the_other_backends(make_world):
    world = make_world(2)
    assert world.outcomes(run_dead)[0].ok
    world.close(check=False)


@pytest.mark.parametrize(
    ("given", "reconfigures", "words"),
    [
        ({"side_step": "allreduce:mpi"}, False, "'mpi' makes groups of its own launcher's ranks"),
        ({"side_step": "allreduce:undefined"}, False, "'undefined' is no backend of this torch"),
        ({"side_step": "gloo"}, True, "enable_reconfigure=True would lose their members"),
        (
            {"side_step": "gloo", "recovery": "survivors"},
            False,
            "recovery='survivors' would lose their members",
        ),
    ],
)
def test_refused_options(given, reconfigures, words):
    with pytest.raises(ValueError, match=words):
        _side_step.check(goccl.Options(**given), reconfigures)


def test_refused_choices():
    for bad in (3, ""):
        with pytest.raises(TypeError, match="allowed are the name of a backend"):
            goccl.side_step(bad)
