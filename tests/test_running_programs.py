"""Programs that run: once, and registered, under torch.distributed, DDP and goccl.Communicator.
Real processes; results against NumPy, and against groups without programs."""

import importlib.util
import os
import signal
from datetime import timedelta
from pathlib import Path

import goccl
import numpy as np
import pytest
import torch
import torch.distributed as dist
from goccl import plan
from test_programs import direct, ring, two_shot

EXAMPLES = Path(__file__).parents[1] / "examples" / "plans"


def example(name):
    """A function of the example of the same name."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


alltoall_by_tiers, allgather_around_hosts = map(
    example, ("alltoall_by_tiers", "allgather_around_hosts")
)
transports = pytest.mark.parametrize("transport", ["shm", "tcp"])


def join(rank, **kw):
    dist.init_process_group(
        "goccl",
        store=rank.make_store(),
        rank=rank.rank,
        world_size=rank.size,
        timeout=timedelta(seconds=60),
        **kw,
    )


def values(rank, count):
    """The tensor of a rank: whole numbers, of which sums are exact."""
    return torch.arange(count, dtype=torch.float32) * (rank + 1) + rank


def total(size, count):
    return sum(values(r, count) for r in range(size))


# -- registered


def run_registered(rank):
    join(rank)
    p, n = two_shot(rank.size), rank.size
    plan.register(p, bytes=(8, 40_000))
    comm = goccl.Communicator()
    for count, by in ((2, "plan:two_shot"), (1, "one_shot"), (10_000, "plan:two_shot")):
        for _ in range(3):  # the last ones by the fast path, where there is one
            tensor = values(rank.rank, count)
            dist.all_reduce(tensor)
            torch.testing.assert_close(tensor, total(n, count), rtol=0, atol=0)
            assert goccl.algorithm() == by
            tensor = values(rank.rank, count)
            comm.all_reduce_(tensor, "sum")
            torch.testing.assert_close(tensor, total(n, count), rtol=0, atol=0)
            assert goccl.algorithm() == by
    work = dist.all_reduce(torch.ones(9), async_op=True)
    plan.unregister(p)
    work.wait()
    tensor = values(rank.rank, 2)
    dist.all_reduce(tensor)
    torch.testing.assert_close(tensor, total(n, 2), rtol=0, atol=0)
    assert goccl.algorithm() != "plan:two_shot"
    dist.destroy_process_group()


@transports
def test_a_registered_program_runs_what_it_fits(make_world, transport):
    make_world(3, env={"GOCCL_TRANSPORT": transport}).run(run_registered)


def run_alltoall(rank):
    join(rank)
    n = rank.size
    plan.register(direct(plan.AllToAll(), n))
    given = torch.arange(2 * n) + 100 * rank.rank
    taken = torch.empty_like(given)
    for _ in range(2):
        dist.all_to_all_single(taken, given)
        assert taken.tolist() == [100 * r + 2 * rank.rank + i for r in range(n) for i in range(2)]
        assert goccl.algorithm() == "plan:direct"
    dist.all_to_all_single(taken, given, [2] * n, [2] * n)
    assert goccl.algorithm() != "plan:direct", "only its caller knows that all splits are equal"
    goccl.Communicator().all_to_all_into(taken, given)
    assert goccl.algorithm() == "plan:direct"
    dist.destroy_process_group()


def test_all_to_all_without_splits_goes_by_a_program(make_world):
    make_world(3).run(run_alltoall)


def train(rank, plans):
    """Two steps of DDP. The bits of the parameters."""
    torch.manual_seed(3)
    join(rank, pg_options=goccl.Options(plans=plans))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        data = torch.randn(8, 300, generator=torch.Generator().manual_seed(10 * step + rank.rank))
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    dist.all_reduce(torch.zeros(6020))  # as long as the gradients
    by = goccl.algorithm()
    dist.destroy_process_group()
    return by, [p.detach().numpy().tobytes() for p in model.parameters()]


def test_ddp_has_the_same_bits_with_a_program(make_world, tmp_path):
    two_shot(3).save(tmp_path / "two_shot.json")
    two_shot(2).save(tmp_path / "of_two.json")
    world = make_world(3)
    found = {plans: world.run(train, plans) for plans in ("", str(tmp_path))}
    assert all(by == "plan:two_shot" for by, _ in found[str(tmp_path)])
    assert all(not by.startswith("plan") for by, _ in found[""])
    assert [bits for _, bits in found[""]] == [bits for _, bits in found[str(tmp_path)]]


def run_differing(rank):
    join(rank)
    p = two_shot(rank.size) if rank.rank else ring(rank.size)
    with pytest.raises(goccl.MismatchError, match=r'"ring".*"two_shot"'):
        plan.register(p)
    with pytest.raises(
        (goccl.MismatchError, ValueError), match=r"is for 4 ranks|was refused on rank 1"
    ):
        plan.register(two_shot(rank.size + (rank.rank == 1)))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [rank.size] * 3, "the group goes on"
    dist.destroy_process_group()


def test_programs_that_differ_are_refused_on_all_ranks(make_world):
    make_world(3).run(run_differing)


def refuse_in_python(rank, what):
    """What Python refuses on one rank fails the group at once: the others would wait."""
    join(rank)
    wrong = rank.rank == 1
    unsound = plan.Program("unsound", plan.AllReduce(), ranks=rank.size)
    tensor = torch.ones(3)
    call = {
        "program": lambda: plan.register(unsound if wrong else two_shot(3)),
        "bytes": lambda: plan.register(two_shot(3), bytes=(0, -1) if wrong else None),
        "type": lambda: plan.run("p" if wrong else two_shot(3), None, tensor, tensor),
    }[what]
    with pytest.raises((goccl.MismatchError, ValueError, TypeError)) as caught:
        call()
    assert isinstance(caught.value, goccl.MismatchError) != wrong


@pytest.mark.parametrize("what", ["program", "bytes", "type"])
def test_what_python_refuses_on_one_rank_is_told_to_all(make_world, what):
    world = make_world(3)
    world.run(refuse_in_python, what)
    world.healthy = False


def run_with_a_missing_file(rank, folder, one):
    plans = one if rank.rank == 1 else folder
    with pytest.raises(Exception, match=r"the programs \(GOCCL_PLANS\)"):
        join(rank, pg_options=goccl.Options(plans=plans))


def test_a_program_that_a_rank_lacks_is_told_when_the_group_is_made(make_world, tmp_path):
    one = tmp_path / "two_shot.json"
    two_shot(2).save(one)
    ring(2).save(tmp_path / "ring.json")
    make_world(2).run(run_with_a_missing_file, str(tmp_path), str(one))


def test_bad_plans_of_a_setting_are_told(make_world, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    for plans, words in ((tmp_path / "nowhere", "no such file"), (tmp_path, "bad.json: ")):
        make_world(1).run(refused_plans, str(plans), words)


def refused_plans(rank, plans, words):
    with pytest.raises(Exception, match=words):
        join(rank, pg_options=goccl.Options(plans=plans))


def die_inside(rank, recovery):
    join(rank, pg_options=goccl.Options(recovery=recovery))
    plan.register(two_shot(rank.size))
    dist.all_reduce(values(rank.rank, 1000))
    assert goccl.algorithm() == "plan:two_shot"
    if rank.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = values(rank.rank, 200_000)
    if recovery == "step":
        with pytest.raises(goccl.PeerFailedError, match="rank 2"):
            dist.all_reduce(tensor)
    else:
        dist.all_reduce(tensor)
        torch.testing.assert_close(tensor, total(2, 200_000), rtol=0, atol=0)
        dist.all_reduce(tensor)
        assert not goccl.algorithm().startswith("plan"), "the members have changed"


@pytest.mark.parametrize("recovery", ["step", "survivors"])
def test_a_death_inside_a_registered_program(make_world, recovery):
    world = make_world(3)
    assert [o.ok for o in world.outcomes(die_inside, recovery)] == [True, True, False]


# -- once


def halo(n):
    p = plan.Program("halo", plan.Custom(2, 2), ranks=n)
    for me in p.ranks:
        left, right = p.ranks[(me.number - 1) % n], p.ranks[(me.number + 1) % n]
        p.copy(left.output[1], me.input[0])
        p.copy(right.output[0], me.input[1])
    return p


def run_once(rank):
    join(rank)
    n, me = rank.size, rank.rank
    p = halo(n)
    for count in (1, 5, 40_000):
        for dtype in (torch.float32, torch.int8, torch.bfloat16, torch.bool):
            given = (torch.arange(2 * count) % 5 + me).to(dtype)
            taken = torch.zeros_like(given)
            plan.run(p, None, given, taken)
            left = (torch.arange(2 * count) % 5 + (me - 1) % n).to(dtype)
            right = (torch.arange(2 * count) % 5 + (me + 1) % n).to(dtype)
            assert torch.equal(taken[:count], left[count:])
            assert torch.equal(taken[count:], right[:count])
    spread = torch.zeros(4, 6)[:, ::2]  # not in a row
    plan.run(p, None, spread + me, spread)
    assert spread[:2].eq((me - 1) % n).all()
    assert spread[2:].eq((me + 1) % n).all()
    for collective in (plan.Reduce(n - 1), plan.Broadcast(0), plan.Gather(n // 2), plan.Scatter(1)):
        given, taken = values(me, 4 * n), torch.full((4 * n,), -1.0)
        match collective:
            case plan.Reduce():
                plan.run(direct(collective, n), None, given, taken if me == n - 1 else None)
                want = total(n, 4 * n) if me == n - 1 else taken
            case plan.Broadcast():
                taken = given.clone()
                plan.run(direct(collective, n), None, None, taken)
                want = values(0, 4 * n)
            case plan.Gather():
                plan.run(direct(collective, n), None, given[:4], taken if me == n // 2 else None)
                want = torch.cat([values(r, 4) for r in range(n)]) if me == n // 2 else taken
            case plan.Scatter():
                taken = taken[:4]
                plan.run(direct(collective, n), None, given if me == 1 else None, taken)
                want = values(1, 4 * n)[4 * me : 4 * me + 4]
        assert torch.equal(taken, want), collective
    tensor = values(me, 9)
    plan.run(two_shot(n), None, tensor, tensor, "max")
    assert torch.equal(tensor, torch.stack([values(r, 9) for r in range(n)]).amax(0))
    dist.destroy_process_group()


@transports
def test_a_program_runs_once(make_world, transport):
    make_world(3, env={"GOCCL_TRANSPORT": transport}).run(run_once)


def run_examples(rank):
    join(rank)
    n, me = rank.size, rank.rank
    for hosts, per_host in ((2, 2), (4, 1), (1, 4)):
        given = torch.arange(3 * n) + 100 * me
        taken = torch.zeros_like(given)
        plan.run(alltoall_by_tiers(hosts, per_host), None, given, taken)
        assert taken.tolist() == [100 * r + 3 * me + i for r in range(n) for i in range(3)]
        gathered = torch.zeros(3 * n, dtype=torch.int64)
        plan.run(allgather_around_hosts(hosts, per_host), None, given[:3], gathered)
        assert gathered.tolist() == [100 * r + i for r in range(n) for i in range(3)]
    dist.destroy_process_group()


def test_worked_examples_do_what_they_say(make_world):
    make_world(4).run(run_examples)


def refuse_once(rank):
    join(rank)
    n, me = rank.size, rank.rank
    with pytest.raises((ValueError, dist.DistBackendError), match=r"3 elements|was refused"):
        plan.run(halo(n), None, torch.ones(3 if me else 4), torch.ones(4))
    dist.destroy_process_group()


def test_a_program_that_the_tensors_do_not_fit_is_refused(make_world):
    make_world(2).run(refuse_once)


def test_numpy_is_the_oracle_of_a_sum_in_an_order_of_its_own(make_world):
    make_world(3).run(sum_in_own_order)


def chain(n):
    """Sums go from the last rank to the first, and the result back."""
    p = plan.Program("chain", plan.AllReduce(), ranks=n, scratch=1, order="plan")
    ranks = p.ranks
    p.copy(ranks[-1].scratch[0], ranks[-1].input[0])
    for me in reversed(ranks[:-1]):
        p.reduce(me.scratch[0], [me.input[0], ranks[me.number + 1].scratch[0]])
    for r in ranks:
        p.copy(r.output[0], ranks[0].scratch[0])
    return p


def sum_in_own_order(rank):
    join(rank)
    plan.register(chain(rank.size))
    rng = np.random.default_rng(5)
    given = rng.standard_normal((rank.size, 1000)).astype(np.float32)
    want = given[-1]
    for row in given[-2::-1]:
        want = row + want
    tensor = torch.from_numpy(given[rank.rank].copy())
    dist.all_reduce(tensor)
    assert goccl.algorithm() == "plan:chain"
    assert tensor.numpy().tobytes() == want.tobytes()
    dist.destroy_process_group()
