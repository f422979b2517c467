"""Elements travel as a narrower dtype: the results are those of converting tensors before and back
after."""

import goccl
import harness
import oracle
import pytest
import torch
import torch.distributed as dist

SIZES = (2, 3)


def converted(t, dtype):
    return t.to(dtype).to(t.dtype)


def run_calls(rank, dtype, to):
    n, me = rank.size, rank.rank
    for count in (0, 1, 1000, 300_001):
        given = [oracle.values(dtype, count * n, r, "general") for r in range(n)]
        narrow = [g.to(to) for g in given]
        total = oracle.reduce(narrow, "SUM").to(dtype)
        with goccl.wire_dtype(to):
            x = given[me].clone()
            dist.all_reduce(x)
            oracle.check(x, total, f"all_reduce of {count}")
            out = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(out, given[me])
            oracle.check(
                out, total.split(count)[me] if count else out, f"reduce_scatter of {count}"
            )
            out = torch.empty(count * n * n, dtype=dtype)
            dist.all_gather_into_tensor(out, given[me])
            want = torch.cat([converted(g, to) for g in given])
            oracle.check(out, want, f"all_gather of {count}")
            x = given[me].clone()
            dist.broadcast(x, 1)
            oracle.check(x, converted(given[1], to), f"broadcast of {count}")
            x = given[me].clone()
            work = dist.all_reduce(x, async_op=True)
            with goccl.wire_dtype(None):
                y = given[me].clone()
                dist.all_reduce(y)
            work.wait()
            oracle.check(x, total, f"a work of {count}")
            oracle.check(y, oracle.reduce(given, "SUM"), f"its own dtype, of {count}")
            whole = torch.arange(count)
            dist.all_reduce(whole)
            assert torch.equal(whole, n * torch.arange(count))
            if me == 0:
                dist.send(given[0], 1)
            elif me == 1:
                x = torch.empty_like(given[0])
                dist.recv(x, 0)
                oracle.check(x, given[0], f"a send of {count}")
            objects: list = [None] * n
            dist.all_gather_object(objects, me)
            assert objects == list(range(n))
        x = given[me].clone()
        dist.all_reduce(x)
        oracle.check(x, oracle.reduce(given, "SUM"), f"after the context, of {count}")


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16], ids=oracle.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=oracle.name)
def test_by_call(world, dtype, to):
    world.run(run_calls, dtype, to)


def run_argument(rank, dtype, to):
    n, me, comm = rank.size, rank.rank, goccl.Communicator()
    for count in (0, 1000, 100_001):
        given = [oracle.values(dtype, count * n, r, "general") for r in range(n)]
        narrow = [g.to(to) for g in given]
        whole = torch.cat([converted(g, to) for g in given])
        total = oracle.reduce(narrow, "SUM").to(dtype)
        x = given[me].clone()
        comm.all_reduce_(x, wire_dtype=to)
        oracle.check(x, total, f"all_reduce_ of {count}")
        comm.reduce_(x := given[me].clone(), 1, wire_dtype=to)
        oracle.check(x, total if me == 1 else given[me], f"reduce_ of {count}")
        comm.broadcast_(x := given[me].clone(), 1, wire_dtype=to)
        oracle.check(x, converted(given[1], to), f"broadcast_ of {count}")
        comm.all_gather_into(x := torch.empty(count * n * n, dtype=dtype), given[me], wire_dtype=to)
        oracle.check(x, whole, f"all_gather_into of {count}")
        comm.reduce_scatter_into(x := torch.empty(count, dtype=dtype), given[me], wire_dtype=to)
        oracle.check(x, total[me * count :][:count], f"reduce_scatter_into of {count}")
        comm.all_to_all_into(x := torch.empty_like(given[me]), given[me], wire_dtype=to)
        parts = [converted(g, to)[me * count :][:count] for g in given]
        oracle.check(x, torch.cat(parts), f"all_to_all_into of {count}")
        x = torch.empty(count * n * n, dtype=dtype) if me == 1 else None
        comm.gather_into(x, given[me], 1, wire_dtype=to)
        oracle.check(x if me == 1 else whole, whole, f"gather_into of {count}")
        x = torch.empty(count, dtype=dtype)
        comm.scatter_into(x, given[me] if me == 1 else None, 1, wire_dtype=to)
        oracle.check(x, converted(given[1], to)[me * count :][:count], f"scatter_into of {count}")
        with goccl.wire_dtype(to):  # which None leaves as it is
            comm.all_reduce_(x := given[me].clone(), wire_dtype=None)
            oracle.check(x, total, f"all_reduce_ within the context, of {count}")
        with goccl.wire_dtype(None):
            comm.all_reduce_(x := given[me].clone(), wire_dtype=to)
            oracle.check(x, total, f"all_reduce_ against the context, of {count}")
            comm.all_reduce_(x := given[me].clone())
            oracle.check(x, oracle.reduce(given, "SUM"), f"the call after it, of {count}")
        comm.all_reduce_(x := torch.arange(count), wire_dtype=to)
        assert torch.equal(x, n * torch.arange(count)), "integers go as they are"


@pytest.mark.parametrize(
    ("dtype", "to"),
    [(torch.float32, torch.bfloat16), (torch.float64, torch.float16)],
    ids=["bfloat16", "float16"],
)
def test_by_argument(world, dtype, to):
    world.run(run_argument, dtype, to)


def run_refused_argument(rank, given):
    rank.init()
    comm = goccl.Communicator()
    x = torch.ones(1000)
    comm.all_reduce_(x, wire_dtype=given if rank.rank else torch.bfloat16)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (torch.int8, "ValueError", "`wire_dtype` is torch.int8, allowed are torch.bfloat16"),
        (torch.float32, "ValueError", "`wire_dtype` is torch.float32, allowed are torch.bfloat16"),
        ("bfloat16", "TypeError", "`wire_dtype` is of type str, it must be a torch.dtype or None"),
    ],
)
def test_refused_argument(make_world, given, kind, text):
    world = make_world(2)
    outcomes = world.outcomes(run_refused_argument, given)
    assert outcomes[1].kind == kind
    assert text in outcomes[1].error
    assert outcomes[0].kind == "MismatchError", str(outcomes[0])
    assert text in outcomes[0].error
    world.close(check=False)


def run_group(rank):
    rank.init(pg_options=goccl.Options(wire_dtype="bfloat16"))
    given = [oracle.values(torch.float32, 1000, r, "general") for r in range(rank.size)]
    total = oracle.reduce([g.bfloat16() for g in given], "SUM").float()
    for _ in range(3):
        x = given[rank.rank].clone()
        dist.all_reduce(x)
        oracle.check(x, total, "all_reduce")
        x = given[rank.rank].clone()
        goccl.Communicator().all_reduce_(x)
        oracle.check(x, total, "Communicator.all_reduce_")
    x = given[rank.rank].clone()
    dist.broadcast(x, 0)
    oracle.check(x, given[0], "broadcast, which is to lose nothing")
    x = given[rank.rank].double()
    dist.all_reduce(x)
    want = oracle.reduce([g.double() for g in given], "SUM")
    oracle.check(x, want, "float64, which the group's choice is not for")
    with dist._coalescing_manager():
        y = [given[rank.rank].clone() for _ in range(2)]
        for each in y:
            dist.all_reduce(each)
    for each in y:
        oracle.check(each, total, "a batch")


def test_by_group(make_world):
    make_world(2).run(run_group)


def run_differing(rank):
    rank.init(timeout=30)
    x = torch.ones(1000)
    with goccl.wire_dtype(torch.bfloat16 if rank.rank else None):
        dist.all_reduce(x)


def test_ranks_that_differ(make_world):
    world = make_world(2)
    for outcome in world.outcomes(run_differing):
        assert outcome.kind == "MismatchError"
        assert "bfloat16" in outcome.error
        assert "float32" in outcome.error
    world.close(check=False)


def run_group_that_differs(rank):
    rank.init(timeout=30, pg_options=goccl.Options(wire_dtype="bfloat16" if rank.rank else ""))


def test_groups_that_differ(make_world):
    world = make_world(2)
    for outcome in world.outcomes(run_group_that_differs):
        assert "wire dtype" in outcome.error
    world.close(check=False)


def test_refused():
    with pytest.raises(ValueError, match=r"allowed are torch\.bfloat16"):
        goccl.wire_dtype(torch.int8)
    with pytest.raises(ValueError, match="`wire_dtype` is 'int8'"):
        goccl.Options(wire_dtype="int8")


def run_on_device(rank):
    harness.use_device()
    rank.init()
    given = [oracle.values(torch.float32, 300_001, r, "general") for r in range(rank.size)]
    x = harness.place(given[rank.rank].clone())
    with goccl.wire_dtype(torch.bfloat16):
        dist.all_reduce(x)
    oracle.check(x, oracle.reduce([g.bfloat16() for g in given], "SUM").float(), "all_reduce")
    x = harness.place(given[rank.rank].clone())
    with goccl.wire_dtype(torch.bfloat16):
        dist.broadcast(x, 1)
    oracle.check(x, given[1].bfloat16().float(), "broadcast, also on its root")


@pytest.mark.skipif(not harness.DEVICE, reason="no device is to be tested")
def test_on_a_device(make_world):
    make_world(2).run(run_on_device)
