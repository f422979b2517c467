"""Training and the parts of torch that stand on a process group: DDP, FSDP, DTensor, checkpoints,
device meshes, many groups, threads, re-initialisation, debug mode, profiler."""

import contextlib
import gc
import os
import re
import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial
from typing import Any

import harness
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

# Imported once in the fork server, and not at all in the test process.
PRELOAD = (
    "torch._dynamo",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.tensor",
    "torch.profiler",
)

BATCH = 24  # samples a step, of all ranks together: divides by 1, 2, 3, 4, 8


class Net(nn.Module):
    def __init__(self, unused=False):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.Sequential(
            nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
        )
        self.side = nn.Linear(20, 5)
        self.unused = unused

    def forward(self, x, use_side=True):
        y = self.layers(x)
        return y + self.side(x) if use_side and not self.unused else y


def batch(step, rank=None):
    g = torch.Generator().manual_seed(step)
    x, y = torch.randn(BATCH, 20, generator=g), torch.randint(0, 5, (BATCH,), generator=g)
    if rank is None:
        return x, y
    return x.chunk(rank.size)[rank.rank], y.chunk(rank.size)[rank.rank]


def train_alone(steps=4, **net):
    model = Net(**net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def close(mine, reference, rtol=1e-5, atol=1e-6):
    for (name, a), b in zip(mine.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=partial("{}: {}".format, name))


def equal_on_all_ranks(model):
    for name, p in model.named_parameters():
        parts = [torch.empty_like(p) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, p.detach())
        assert all(torch.equal(q, parts[0]) for q in parts), f"{name} differs between ranks"


def train(rank, model, steps=4, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for step in range(steps):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def run_ddp(rank, options):
    rank.init()
    model = DistributedDataParallel(
        Net(unused=options.get("find_unused_parameters", False)), bucket_cap_mb=0.01, **options
    )
    train(rank, model)
    close(model.module, train_alone(unused=options.get("find_unused_parameters", False)))
    equal_on_all_ranks(model.module)


OPTIONS = [
    {},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"gradient_as_bucket_view": True},
]
# Each option with each size and each transport, and each size with each transport.
TRAININGS = [
    pytest.param(size, transport, options, id=f"{next(iter(options), 'plain')}-{size}-{transport}")
    for i, options in enumerate(OPTIONS)
    for size in (1, 2, 3, 4)
    for transport in [harness.TRANSPORTS[(i + size) % len(harness.TRANSPORTS)]]
]


@pytest.mark.parametrize(("size", "transport", "options"), TRAININGS)
def test_training_equals_that_of_one_process(make_world, size, transport, options):
    make_world(size, env={"GOCCL_TRANSPORT": transport}).run(run_ddp, options)


def run_crowded(rank):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    run_ddp(rank, {})


@pytest.mark.parametrize("transport", harness.TRANSPORTS)
def test_training_with_more_ranks_than_cpus(make_world, transport):
    make_world(8, env={"GOCCL_TRANSPORT": transport}).run(run_crowded)


def run_gradients(rank):
    """Each gradient is the mean of the ranks' own."""
    rank.init()
    model = DistributedDataParallel(Net())
    x, y = batch(0, rank)
    functional.cross_entropy(model(x), y).backward()
    own = Net()
    functional.cross_entropy(own(x), y).backward()
    for p, q in zip(model.parameters(), own.parameters(), strict=True):
        dist.all_reduce(q.grad, dist.ReduceOp.AVG)
        torch.testing.assert_close(p.grad, q.grad)


def run_no_sync(rank):
    rank.init()
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    alone = Net()
    alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        x, y = batch(step, rank)
        with model.no_sync() if step % 2 == 0 else contextlib.nullcontext():
            functional.cross_entropy(model(x), y).backward()
        x, y = batch(step)
        functional.cross_entropy(alone(x), y).backward()
        if step % 2:
            for o in (optimizer, alone_optimizer):
                o.step()
                o.zero_grad()
    close(model.module, alone)
    equal_on_all_ranks(model.module)


def run_conditional_unused(rank):
    """A parameter that only some ranks use."""
    rank.init()
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    for step in range(4):
        x, y = batch(step, rank)
        model.zero_grad()
        functional.cross_entropy(model(x, use_side=rank.rank == step % rank.size), y).backward()
        grads = [torch.empty_like(model.module.side.weight) for _ in range(rank.size)]
        dist.all_gather(grads, model.module.side.weight.grad)
        assert all(torch.equal(g, grads[0]) for g in grads)
        assert grads[0].abs().sum() > 0


def run_hooks(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    rank.init()
    reference = train_alone()
    for hook in (
        default_hooks.allreduce_hook,
        default_hooks.bf16_compress_hook,
        default_hooks.fp16_compress_hook,
    ):
        model = DistributedDataParallel(Net())
        model.register_comm_hook(None, hook)
        train(rank, model)
        equal_on_all_ranks(model.module)
        close(model.module, reference, rtol=0.05, atol=0.01)
    model = DistributedDataParallel(Net())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(rank, model)
    equal_on_all_ranks(model.module)


def run_join(rank):
    from torch.distributed.algorithms.join import Join

    rank.init()
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Join([model]):
        for step in range(3 + 2 * rank.rank):
            x, y = batch(step, rank)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    equal_on_all_ranks(model.module)


def run_zero(rank):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank.init()
    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(4):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    close(model.module, train_alone())
    optimizer.consolidate_state_dict(0)


def run_overlap(rank):
    """Collectives of the user's own between those of DDP's backward."""
    rank.init()
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)]), bucket_cap_mb=0.3
    )
    works = []
    for step in range(5):
        model.zero_grad()
        loss = model(torch.ones(4, 256) * (rank.rank + step)).sum()
        works.append(dist.all_reduce(loss.detach().clone(), async_op=True))
        loss.backward()
        works.append(dist.all_reduce(torch.ones(10), async_op=True))
    for w in works:
        w.wait()
    equal_on_all_ranks(model.module)


def run_fsdp1(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel

    rank.init()
    model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))
    train(rank, model)
    with FullyShardedDataParallel.summon_full_params(model):
        close(model.module, train_alone())


def run_fsdp2(rank):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    rank.init()
    mesh = dist.init_device_mesh("cpu", (rank.size,))
    model: Any = Net()
    for layer in model.layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(rank, model)
    full = {n: p.full_tensor() for n, p in model.named_parameters()}
    for name, p in train_alone().named_parameters():
        torch.testing.assert_close(full[name], p.detach(), rtol=1e-5, atol=1e-6)

    for factor in (None, 3.0):
        model = Net()
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
        if factor:
            model.set_gradient_divide_factor(factor)  # PREMUL_SUM where it is not the group's size
        x, y = batch(0, rank)
        functional.cross_entropy(model(x), y).backward()
        alone = Net()
        functional.cross_entropy(alone(x), y).backward()
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert q.grad is not None
            dist.all_reduce(q.grad)
            want = q.grad / (factor or rank.size)
            torch.testing.assert_close(p.grad.full_tensor(), want, rtol=0.05, atol=0.01, msg=name)


def run_dtensor(rank):
    from torch.distributed import _functional_collectives as funcol
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    rank.init()
    n = rank.size
    mesh = dist.init_device_mesh("cpu", (n,))
    torch.manual_seed(1)
    a, b = torch.randn(4 * n, 6), torch.randn(6, 5)
    product: Any = distribute_tensor(a, mesh, [Shard(0)]) @ distribute_tensor(
        b, mesh, [Replicate()]
    )
    torch.testing.assert_close(product.full_tensor(), a @ b)
    columns = distribute_tensor(a, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
    torch.testing.assert_close(columns.full_tensor(), a)
    inner: Any = distribute_tensor(a.t().contiguous(), mesh, [Shard(1)]) @ distribute_tensor(
        a, mesh, [Shard(0)]
    )
    assert inner.placements == (Partial("sum"),)
    torch.testing.assert_close(inner.redistribute(mesh, [Shard(0)]).full_tensor(), a.t() @ a)

    t = torch.full((4,), float(rank.rank + 1))
    group = (mesh, 0)
    total = n * (n + 1) / 2
    assert (funcol.all_reduce(t, "sum", group).wait() == total).all()
    assert (funcol.all_reduce(t, "avg", group).wait() == total / n).all()
    gathered: Any = funcol.all_gather_tensor(t, 0, group)
    gathered = gathered.wait()
    assert gathered.tolist() == [float(r + 1) for r in range(n) for _ in range(4)]
    scattered = funcol.reduce_scatter_tensor(torch.ones(2 * n), "sum", 0, group).wait()
    assert scattered.tolist() == [n, n]
    swapped: Any = funcol.all_to_all_single(torch.arange(n) + 10 * rank.rank, None, None, group)
    swapped = swapped.wait()
    assert swapped.tolist() == [10 * r + rank.rank for r in range(n)]
    assert (funcol.broadcast(t, 0, group).wait() == 1).all()


def run_checkpoint(rank, directory):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor

    rank.init()
    mesh = dist.init_device_mesh("cpu", (rank.size,))
    whole = torch.arange(24.0).view(8, 3)
    dcp.save(
        {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "plain": torch.ones(3)},
        checkpoint_id=directory,
    )
    loaded: dict[str, Any] = {
        "sharded": distribute_tensor(torch.zeros(8, 3), mesh, [Shard(0)]),
        "plain": torch.zeros(3),
    }
    dcp.load(loaded, checkpoint_id=directory)
    assert torch.equal(loaded["sharded"].full_tensor(), whole)
    assert torch.equal(loaded["plain"], torch.ones(3))


def run_pipeline(rank):
    """Two micro-batches in flight through a chain of stages, activations down and gradients up."""
    rank.init()
    n, me = rank.size, rank.rank

    def make_stage(i):
        torch.manual_seed(i)
        return nn.Linear(16, 16)

    stage = make_stage(me)
    inputs = [torch.randn(4, 16, generator=torch.Generator().manual_seed(m)) for m in range(6)]
    kept, sends = [], []
    for m, x in enumerate(inputs):
        if me > 0:
            x = torch.empty(4, 16)
            dist.recv(x, me - 1, tag=m)
        x.requires_grad_()
        y = stage(x)
        kept.append((x, y))
        if me < n - 1:
            sends.append(dist.isend(y.detach().contiguous(), me + 1, tag=m))
    for m, (x, y) in reversed(list(enumerate(kept))):
        if me == n - 1:
            y.sum().backward()
        else:
            grad = torch.empty(4, 16)
            dist.recv(grad, me + 1, tag=100 + m)
            y.backward(grad)
        if me > 0:
            sends.append(dist.isend(x.grad, me - 1, tag=100 + m))
    for w in sends:
        w.wait()
    alone = [make_stage(i) for i in range(n)]
    for x in inputs:
        nn.Sequential(*alone)(x.detach()).sum().backward()
    torch.testing.assert_close(stage.weight.grad, alone[me].weight.grad, rtol=1e-4, atol=1e-5)


def run_mesh(rank):
    rank.init()
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for name, members in (("dp", {0: (0, 2), 1: (1, 3)}), ("tp", {0: (0, 1), 1: (2, 3)})):
        t = torch.tensor([float(rank.rank)])
        dist.all_reduce(t, group=mesh[name].get_group())
        mine = next(m for m in members.values() if rank.rank in m)
        assert t.item() == sum(mine)


@pytest.mark.parametrize(
    ("case", "size"),
    [
        (run_gradients, 2),
        (run_no_sync, 3),
        (run_conditional_unused, 2),
        (run_hooks, 2),
        (run_join, 3),
        (run_zero, 2),
        (run_overlap, 4),
        (run_fsdp1, 2),
        (run_fsdp2, 2),
        (run_dtensor, 2),
        (run_dtensor, 3),
        (run_pipeline, 3),
        (run_mesh, 4),
    ],
)
def test_training_parts(make_world, case, size):
    make_world(size).run(case)


def test_checkpoint(make_world, tmp_path):
    make_world(2).run(run_checkpoint, str(tmp_path / "checkpoint"))


# -- groups


def check_group(ranks, group):
    t = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(t, group=group)
    assert t.item() == sum(ranks)


def run_many_groups(rank, count):
    """Threads and descriptors do not grow with the number of groups, and all come back."""
    rank.init()
    check_group(range(rank.size), None)
    descriptors = len(harness.descriptors())

    def make(count):
        groups = [dist.new_group() for _ in range(count)]
        for _ in range(2):
            for g in groups:
                check_group(range(rank.size), g)
        grown = harness.threads(), len(harness.descriptors())
        for g in reversed(groups):
            dist.destroy_process_group(g)
        del groups, g
        gc.collect()
        dist.barrier()
        after = harness.until(
            lambda: (
                (now := len(harness.descriptors())) <= descriptors + 4 and (harness.threads(), now)
            ),
            10,
        )
        return grown, after

    # Go keeps each thread that it once needed, so the first groups show how many groups need.
    _, before = make(count // 10)
    grown, after = make(count)
    check_group(range(rank.size), None)
    return before, grown, after


def test_200_groups(make_world):
    count = 200
    for before, grown, after in make_world(2).run(run_many_groups, count):
        assert grown[0] - before[0] <= 16, (
            f"threads grew from {before[0]} to {grown[0]} for {count} groups"
        )
        # A window of shared memory a group and peer, at the most; no socket of its own.
        assert grown[1] - before[1] <= 4 * count, f"descriptors grew from {before[1]} to {grown[1]}"
        assert after[0] <= before[0] + 4, f"threads {before[0]} before, {after[0]} after"


def run_subgroups(rank):
    rank.init()
    n, me = rank.size, rank.rank
    sets = [[0], [1, 2], [3, 0], [2, 0, 3], list(range(n))]
    groups = [dist.new_group(s) for s in sets]
    for _ in range(3):
        for s, g in zip(sets, groups, strict=True):
            if me in s:
                check_group(s, g)
    mine, _ = dist.new_subgroups(group_size=2)
    check_group([me // 2 * 2, me // 2 * 2 + 1], mine)
    if me in (2, 3):
        t = torch.tensor([float(me)])
        dist.broadcast(t, src=3, group=groups[3])
        assert t.item() == 3
    elif me == 0:
        t = torch.zeros(1)
        dist.broadcast(t, src=3, group=groups[3])
        assert t.item() == 3
    dist.barrier()


def test_subgroups(make_world):
    make_world(4).run(run_subgroups)


def run_split(rank):
    ours = harness.BACKEND == "goccl"
    cpu = torch.device("cpu", 0)
    # Bound to a device, new_group() too has to do with splits. Gloo has not all that it takes.
    rank.init(timeout=50, **({"device_id": cpu} if ours else {}))
    me = rank.rank
    mine = [0, 2, 3] if me in (0, 2, 3) else [1]
    group = dist.split_group(split_ranks=[[0, 2, 3], [1]], timeout=timedelta(seconds=20))
    assert dist.get_process_group_ranks(group) == mine
    check_group(mine, group)
    if ours:
        assert group._get_backend(cpu).options.timeout == timedelta(seconds=20)
    new = dist.new_group([1, 2])
    if me in (1, 2):
        check_group([1, 2], new)
    # A part of a part, by the ranks of that. Last, for from there on torch numbers groups by rank.
    if me != 1:
        pair = dist.split_group(group, [[1, 2]])
        assert (pair == dist.GroupMember.NON_GROUP_MEMBER) == (me == 0)
        if me != 0:
            check_group([2, 3], pair)
            t = torch.tensor([float(me)])
            dist.broadcast(t, src=3, group=pair)
            assert t.item() == 3
            if ours:
                assert pair._get_backend(cpu).options.global_ranks_in_group == [2, 3]
    check_group(range(rank.size), None)


def test_split_group(make_world):
    make_world(4).run(run_split)


def run_threads(rank):
    """Several threads, each with a group of its own, at once."""
    rank.init()
    groups = [dist.new_group() for _ in range(4)]
    errors = []

    def work(i, group):
        try:
            for step in range(50):
                t = torch.full((1 + 5000 * (step % 3),), float(i + step + rank.rank))
                dist.all_reduce(t, group=group)
                assert (t == sum(i + step + r for r in range(rank.size))).all()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i, g)) for i, g in enumerate(groups)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors


@pytest.mark.parametrize("transport", harness.TRANSPORTS)
def test_groups_used_from_threads(make_world, transport):
    make_world(3, env={"GOCCL_TRANSPORT": transport}).run(run_threads)


def run_again(rank, turns, fresh):
    """The store keeps the keys of the groups before: none may be taken for a new one's."""
    levels = []
    for i in turns:
        rank.init(store=f"store{i}" if fresh else "store")
        check_group(range(rank.size), None)
        check_group(range(rank.size), dist.new_group())
        dist.destroy_process_group()
        gc.collect()
        levels.append((harness.threads(), len(harness.descriptors())))
    return levels


@pytest.mark.parametrize("store", ["file", "tcp"])
@pytest.mark.parametrize("fresh", [False, True], ids=["same keys", "own keys"])
def test_init_and_destroy_many_times(make_world, store, fresh):
    world = make_world(3, store=store)
    if store == "file":
        # A FileStore of torch that is made while the last user of another one removes the file goes
        # on to show what that one held. So all ranks have left a group before any begins the next.
        turns = [world.run(run_again, [i], fresh) for i in range(12)]
        ranks = [
            [level for part in levels for level in part] for levels in zip(*turns, strict=True)
        ]
    else:
        ranks = world.run(run_again, range(12), fresh)
    for levels in ranks:
        assert levels[-1][0] <= levels[2][0] + 3, f"threads and descriptors grow: {levels}"
        # With own keys each store of the test itself keeps a descriptor.
        assert levels[-1][1] <= levels[2][1] + 6 + 10 * fresh, (
            f"threads and descriptors grow: {levels}"
        )


def run_abort(rank):
    rank.init()
    group = dist.new_group()
    check_group(range(rank.size), group)
    # The abort ends what waits, on the rank that calls it and, at once, on its peers.
    if rank.rank == 0:
        work = dist.all_reduce(torch.ones(10), group=group, async_op=True)
        rank.hear()
        dist.distributed_c10d._abort_process_group(group)
    else:
        work = dist.irecv(torch.ones(10), 0, group=group)
        rank.tell("waiting")
    try:
        work.wait()
    except RuntimeError as e:
        text = str(e)
    else:
        raise AssertionError("a work of an aborted group did not fail")
    check_group(range(rank.size), None)
    return text


@pytest.mark.parametrize("size", [2, 4])
def test_abort(make_world, size):
    world = make_world(size)
    world.start(run_abort)
    for r in range(1, size):
        world.told(r)
    world.say("abort", ranks=0)
    for text in world.values(world.finish()):
        assert "abort" in text.lower(), text


# -- how it is used


def run_debug(rank, level):
    dist.set_debug_level_from_env()
    assert dist.get_debug_level() == getattr(dist.DebugLevel, level)
    rank.init()
    check_group(range(rank.size), None)
    check_group(range(rank.size), dist.new_group())
    dist.broadcast(torch.ones(5), 1)
    outs = [torch.zeros(5) for _ in range(rank.size)]
    dist.all_gather(outs, torch.full((5,), float(rank.rank)))
    assert [o[0].item() for o in outs] == list(range(rank.size))
    dist.barrier()
    if level == "INFO":  # at DETAIL the constructor of torch 2.15's DDP crashes, on Gloo too
        model = DistributedDataParallel(Net())
        train(rank, model)
        equal_on_all_ranks(model.module)


@pytest.mark.parametrize("level", ["INFO", "DETAIL"])
def test_debug_mode(make_world, level):
    make_world(2, env={"TORCH_DISTRIBUTED_DEBUG": level}).run(run_debug, level)


def run_profiler(rank):
    from torch.profiler import ProfilerActivity, profile

    rank.init()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        t = torch.ones(8)
        dist.all_reduce(t)
        dist.broadcast(t, 0)
        dist.all_gather_into_tensor(torch.empty(8 * rank.size), t)
        dist.reduce(t, 0)
        dist.barrier()
        if rank.rank == 0:
            dist.send(t, 1)
        elif rank.rank == 1:
            dist.recv(t, 0)
    return sorted({e.name for e in found.events() if e.name.startswith(harness.BACKEND + ":")})


def test_profiler_titles(make_world):
    titles = make_world(2).run(run_profiler)
    common = (
        {"all_reduce", "broadcast", "reduce", "barrier"}
        if harness.BACKEND == "goccl"
        else {"all_reduce"}
    )
    for mine, also in zip(titles, ("send", "recv"), strict=True):
        assert {f"{harness.BACKEND}:{c}" for c in common | {also}} <= set(mine), mine


def run_backend_name(rank):
    rank.init()
    assert dist.get_backend() == harness.BACKEND
    check_group(range(rank.size), None)
    dist.destroy_process_group()
    rank.init(backend=f"cpu:{harness.BACKEND}", store="second")
    check_group(range(rank.size), None)
    # Another backend beside it.
    check_group(range(rank.size), dist.new_group(backend="gloo"))
    dist.barrier()
    dist.destroy_process_group()


def test_backend_names(make_world):
    make_world(2).run(run_backend_name)


def run_timeouts(rank):
    rank.init(timeout=50)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=20))
    check_group(range(rank.size), None)
    check_group(range(rank.size), dist.new_group(timeout=timedelta(seconds=7)))


def test_timeouts_can_be_set(make_world):
    make_world(2).run(run_timeouts)


SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group(sys.argv[1], init_method="env://")
t = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(t)
assert t.tolist() == [3] * 4, t
sys.stdout.write(f"fine {dist.get_rank()}\\n")  # in one piece, beside those of others
dist.destroy_process_group()
"""


def torchrun(script, *args, ranks=2, options=(), env=None):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        *options,
    ]
    environment = {"OMP_NUM_THREADS": "1", **(env or {})}
    (done,) = harness.finished(harness.start(*command, str(script), *args, **environment))
    return done


def test_by_name_alone_under_torchrun(tmp_path):
    """No import of goccl anywhere: the entry points bring it."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = torchrun(script, harness.BACKEND)
    assert done.returncode == 0, done.stderr[-5000:]
    assert sorted(re.findall(r"fine (\d)", done.stdout)) == ["0", "1"], done.stdout


def test_import_loads_no_library():
    """Importing torch, and goccl with it, runs no Go: forked children of such a process are
    safe."""
    program = (
        "import torch, torch.distributed\n"
        "import importlib.util as u\n"
        "u.find_spec('goccl') and __import__('goccl')\n"
        "print('libgoccl' in open('/proc/self/maps').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout.strip() == "False"
