"""Tensors of a device, which lie where the host cannot look, and whose streams are late: every
operation gives what it gives with tensors of the CPU, and what goes wrong is told."""

import gc
import os
import random
import re
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import device
import goccl
import harness
import oracle
import pytest
import torch
import torch.distributed as dist

MiB = 1 << 20


DEVICE = harness.DEVICE or "testdev"
# Some tests have a device do what only that of the tests does.
needs_testdev = pytest.mark.skipif(DEVICE != "testdev", reason="needs the device of tests/device")


@pytest.fixture(scope="session", autouse=True)
def built():
    """Ranks load what is built: one process builds it."""
    return DEVICE == "testdev" and device.build()


def begin(rank, backend="goccl", own=True, timeout=60, options=None, **settings):
    """Joins the group, on a device of this rank's own or on the first one."""
    if DEVICE == "testdev":
        device.load()
        device.configure(**(settings or {"random": 300}))
    count = torch.accelerator.device_count()
    torch.accelerator.set_device_index(rank.rank % count if own else 0)
    rank.init(backend, timeout=timeout, pg_options=options)


def here(values):
    return values.to(DEVICE)


def values(rank, count, seed=0, dtype=torch.float32):
    return oracle.values(dtype, count, rank, "general", seed)


def same(got, want, what):
    harness.expect(got.device.type == DEVICE, f"{what} is on {got.device}")
    oracle.check(got.cpu(), want, what)


def clean():
    """Nothing was written late, and all images are given back."""
    gc.collect()
    torch.accelerator.synchronize()
    if DEVICE == "testdev":
        harness.expect(device.count()["late_writes"] == 0, "memory was written to after its end")
    stats = goccl.memory_stats()
    harness.expect(stats["staged_bytes"] == 0, f"images are left: {stats}")


# ---- every operation --------------------------------------------------------------------------


def operations(rank, n, seed):
    """Every operation once, of n elements and more, in the forms that torch.distributed has."""
    size, me = rank.size, rank.rank
    given = [values(r, n, seed) for r in range(size)]
    total = oracle.reduce(given, "SUM")
    mine = given[me]

    x = here(mine)
    dist.all_reduce(x)
    same(x, total, "all_reduce")
    x = here(mine)
    dist.reduce(x, 1)
    if me == 1:
        same(x, total, "reduce")
    x = here(mine)
    dist.broadcast(x, 1)
    same(x, given[1], "broadcast")

    out = torch.empty(n * size, device=DEVICE)
    dist.all_gather_into_tensor(out, here(mine))
    same(out, torch.cat(given), "all_gather_into_tensor")
    outs = [torch.empty(n, device=DEVICE) for _ in range(size)]
    dist.all_gather(outs, here(mine))
    for r, each in enumerate(outs):
        same(each, given[r], f"all_gather, part {r}")
    uneven = [torch.empty(n + r, device=DEVICE) for r in range(size)]
    dist.all_gather(uneven, here(values(me, n + me, seed)))
    for r, each in enumerate(uneven):
        same(each, values(r, n + r, seed), f"uneven all_gather, part {r}")

    blocks = [values(r, n * size, seed + 1) for r in range(size)]
    want = oracle.reduce(blocks, "SUM")[me * n : (me + 1) * n]
    out = torch.empty(n, device=DEVICE)
    dist.reduce_scatter_tensor(out, here(blocks[me]))
    same(out, want, "reduce_scatter_tensor")
    out = torch.empty(n, device=DEVICE)
    dist.reduce_scatter(out, list(here(blocks[me]).split(n) if n else [out] * size))
    same(out, want, "reduce_scatter")
    out = torch.empty(n * size, device=DEVICE)
    dist.all_to_all_single(out, here(blocks[me]))
    exchanged = torch.cat([b[me * n : (me + 1) * n] for b in blocks])
    same(out, exchanged, "all_to_all_single")
    outs = [torch.empty(n, device=DEVICE) for _ in range(size)]
    dist.all_to_all(outs, [here(blocks[me][r * n : (r + 1) * n]) for r in range(size)])
    same(torch.cat(outs), exchanged, "all_to_all")

    outs = [torch.empty(n, device=DEVICE) for _ in range(size)] if me == 0 else []
    dist.gather(here(mine), outs or None, 0)
    if outs:
        same(torch.cat(outs), torch.cat(given), "gather")
    out = torch.empty(n, device=DEVICE)
    dist.scatter(out, [here(g) for g in given] if me == 0 else None, 0)
    same(out, mine, "scatter")

    other, before = (me + 1) % size, (me - 1) % size
    got = torch.empty(n, device=DEVICE)
    sent = dist.isend(here(mine), other, tag=4)
    dist.recv(got, before, tag=4)
    sent.wait()
    same(got, given[before], "recv")
    got = torch.empty(n, device=DEVICE)
    sends = [
        dist.P2POp(dist.isend, here(mine), other),
        dist.P2POp(dist.irecv, got, before),
    ]
    for work in dist.batch_isend_irecv(sends):
        work.wait()
    same(got, given[before], "a batch of a send and a receive")
    got = torch.empty(n, device=DEVICE)
    sent = dist.isend(here(mine), other)
    source = dist.recv(got)
    sent.wait()
    harness.expect(source == before, f"it came from {source}")
    same(got, given[before], "recv from any")

    with dist._coalescing_manager(async_ops=True) as batch:
        x, y = here(mine), here(blocks[me])
        dist.all_reduce(x)
        dist.all_reduce(y)
    batch.wait()
    same(x, total, "a batch, the first")
    same(y, oracle.reduce(blocks, "SUM"), "a batch, the second")

    comm = goccl.Communicator()
    x = here(mine)
    comm.all_reduce_(x)
    same(x, total, "Communicator.all_reduce_")
    out = torch.empty(n * size, device=DEVICE)
    comm.all_gather_into(out, here(mine))
    same(out, torch.cat(given), "Communicator.all_gather_into")
    if me == 0:
        comm.send(here(mine), 1)
    elif me == 1:
        got = torch.empty(n, device=DEVICE)
        comm.recv(got, 0)
        same(got, given[0], "Communicator.recv")


def layouts(rank):
    """Tensors whose elements do not lie in a row, or not as they are, and other dtypes."""
    size, me = rank.size, rank.rank
    for dtype in (torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float64):
        given = [oracle.values(dtype, 6, r, "small") for r in range(size)]
        x = here(given[me])
        options = dist.AllreduceOptions()
        dist.group.WORLD.allreduce([x], options).wait()
        same(x, oracle.reduce(given, "SUM"), f"all_reduce of {dtype}")
        x = here(given[me])
        dist.broadcast(x, 0)
        same(x, given[0], f"broadcast of {dtype}")
    given = [values(r, 600_000) for r in range(size)]
    total = oracle.reduce(given, "SUM")
    base = torch.zeros(1_200_001, device=DEVICE)
    view = base[1::2]
    view.copy_(given[me])
    dist.all_reduce(view)
    same(view.contiguous(), total, "every other element")
    harness.expect(base[::2].cpu().eq(0).all().item(), "it wrote beside the tensor")
    x = here(given[me]).view(600, 1000).t()
    dist.all_reduce(x)
    same(x.t().reshape(-1), total, "a transposed one")
    c = torch.tensor([1 + 2j, 3 - 1j])
    out = torch.empty(2 * size, dtype=c.dtype, device=DEVICE)
    goccl.Communicator().all_gather_into(out, here(c).conj())
    same(out, c.conj().resolve_conj().repeat(size), "conjugated")
    neg = here(c).conj().imag
    x = torch.empty(2 * size, device=DEVICE)
    dist.all_gather_into_tensor(x, neg)
    same(x, torch.tensor([-2.0, 1.0]).repeat(size), "negated")


def everything(rank, backend, settings):
    begin(rank, backend, **settings)
    for seed, n in enumerate((0, 1, 1000, 700_001)):
        operations(rank, n, seed)
    layouts(rank)
    assert goccl.describe().device == DEVICE
    assert f"tensors of {DEVICE}" in str(goccl.describe())
    objects: list = [None] * rank.size
    dist.all_gather_object(objects, {"rank": rank.rank})
    assert objects == [{"rank": r} for r in range(rank.size)]
    dist.barrier()
    clean()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "settings",
    [{"random": 300}, {"events": False}, {"pinned": False}, {"delay": 1000}],
    ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()),
)
@pytest.mark.parametrize("transport", harness.TRANSPORTS)
def test_every_operation(make_world, transport, settings):
    if settings != {"random": 300} and (transport == "tcp" or DEVICE != "testdev"):
        pytest.skip("other devices have no such settings, and they know nothing of transports")
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.run(everything, "goccl", settings)


@pytest.mark.parametrize("backend", [f"{DEVICE}:goccl", f"cpu:goccl,{DEVICE}:goccl"])
def test_named_devices(make_world, backend):
    make_world(2).run(everything, backend, {"random": 50})


def detail(rank):
    begin(rank, own=False)
    operations(rank, 1000, 0)


def test_detail(make_world):
    """With torch's own checks around it, too."""
    make_world(2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).run(detail)


def mixed(rank):
    begin(rank)
    for n in (5, 700_000):
        given = [values(r, n) for r in range(rank.size)]
        x = given[rank.rank].clone()
        x = here(x) if rank.rank else x
        dist.all_reduce(x)
        oracle.check(x.cpu(), oracle.reduce(given, "SUM"), "all_reduce")
        out = torch.empty(n * rank.size, device=DEVICE if rank.rank else "cpu")
        mine = given[rank.rank]
        dist.all_gather_into_tensor(out, here(mine) if rank.rank else mine)
        oracle.check(out.cpu(), torch.cat(given), "all_gather")
    clean()


def test_ranks_of_several_kinds(make_world):
    """One rank has tensors of the CPU, the others of devices."""
    make_world(3).run(mixed)


def sparse(rank):
    begin(rank)
    try:
        mine = torch.eye(4).mul(rank.rank + 1).to_sparse().to(DEVICE)
    except NotImplementedError:
        return False
    dist.all_reduce(mine)
    assert torch.equal(mine.cpu().to_dense(), torch.eye(4) * 3)
    return True


def test_sparse(make_world):
    if not all(make_world(2).run(sparse)):
        pytest.skip(f"{DEVICE} has no sparse tensors")


# ---- streams and lifetimes --------------------------------------------------------------------


def lifetimes(rank):
    begin(rank, delay=2000)
    n = 3 * MiB // 4
    given = [values(r, n) for r in range(rank.size)]
    total = oracle.reduce(given, "SUM")

    for _ in range(3):  # the result is dropped, and its memory is used again at once
        dist.all_reduce(here(given[rank.rank]), async_op=True)
        x = here(torch.ones(n))
    for _ in range(3):  # the work is dropped, and the tensor is not
        x = here(given[rank.rank])
        dist.all_reduce(x, async_op=True)
    dist.barrier()
    torch.accelerator.synchronize()

    x = here(given[rank.rank])
    y = x.clone()  # reads it later than the call
    z = torch.empty_like(x).copy_(x, non_blocking=True)
    work = dist.all_reduce(x, async_op=True)
    del y
    work.wait()
    same(z, given[rank.rank], "what an earlier kernel has read")
    same(x, total, "the result")

    x = here(given[rank.rank])  # waited for on another stream
    work = dist.all_reduce(x, async_op=True)
    stream = torch.Stream(device=DEVICE)
    with stream:
        work.wait()
        y = torch.empty_like(x).copy_(x, non_blocking=True)
    torch.accelerator.current_stream().wait_stream(stream)
    same(y, total, "the result on another stream")

    x = here(given[rank.rank])  # and by another thread
    work = dist.all_reduce(x, async_op=True)
    results = []

    def wait():
        torch.accelerator.set_device_index(x.device.index)
        work.wait()
        results.append(x.cpu())

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    oracle.check(results[0], total, "the result in another thread")

    x = here(given[rank.rank])
    work = dist.all_reduce(x, async_op=True)
    harness.until(work.is_completed)
    oracle.check(x.cpu(), total, "the result that is completed")
    x = here(given[rank.rank])
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.result()[0].data_ptr() == x.data_ptr()

    def again(future):
        y = future.value()[0]
        dist.all_reduce(y)
        return y

    x = here(given[rank.rank])
    work = dist.all_reduce(x, async_op=True)
    y = work.get_future().then(again).wait()
    same(y, oracle.reduce([total] * rank.size, "SUM"), "what a callback has reduced")
    with dist._coalescing_manager(async_ops=True) as batch:
        x = here(given[rank.rank])
        dist.all_reduce(x)
    same(batch.works[0].get_future().wait()[0], total, "the future of a batch")
    backend = dist.group.WORLD._get_backend(torch.device(DEVICE))
    backend._start_coalescing()
    x = here(given[rank.rank])
    future = backend.allreduce([x], dist.AllreduceOptions()).get_future()
    backend.allreduce([torch.empty(0, device=DEVICE)], dist.AllreduceOptions())
    backend._end_coalescing().wait()
    same(future.wait()[0], total, "the future that was asked for in the batch")
    clean()


def test_lifetimes(make_world):
    """Inputs and outputs live as long as a copy needs them, and results are seen by whoever waits,
    where and how it does."""
    make_world(2).run(lifetimes)


def repeated(rank):
    begin(rank, delay=1000)
    for n in (1000, 2_000_000):
        x = torch.ones(n, device=DEVICE)
        works = [dist.all_reduce(x, async_op=True) for _ in range(2)]
        for work in works:
            work.wait()
        same(x, torch.full((n,), float(rank.size**2)), "a tensor reduced twice")
        x = torch.full((n,), float(rank.rank + 1), device=DEVICE)
        y = torch.empty(n * rank.size, device=DEVICE)
        first = dist.broadcast(x, 1, async_op=True)
        second = dist.all_gather_into_tensor(y, x, async_op=True)
        first.wait()
        second.wait()
        same(y, torch.full((n * rank.size,), 2.0), "one that was written by the call before")
        x = torch.ones(2 * n, device=DEVICE)[::2]
        backend = dist.group.WORLD._get_backend(torch.device(DEVICE))
        backend._start_coalescing()
        backend.allreduce([x], dist.AllreduceOptions())
        backend.allreduce([x], dist.AllreduceOptions())
        backend._end_coalescing().wait()
        same(x.contiguous(), torch.full((n,), float(rank.size**2)), "a batch, twice in it")
    clean()


def test_one_after_the_other(make_world):
    """Collectives on one tensor follow one another, though nobody waits between them."""
    make_world(2).run(repeated)


def overlapping(rank):
    begin(rank)
    n, size, me = 300_000, rank.size, rank.rank
    given = [values(r, n) for r in range(size)]
    whole = torch.empty(n * size, device=DEVICE)
    mine = whole[me * n : (me + 1) * n]
    mine.copy_(given[me])
    dist.all_gather_into_tensor(whole, mine)
    same(whole, torch.cat(given), "all_gather in place")
    blocks = [values(r, n * size, 1) for r in range(size)]
    whole = here(blocks[me])
    mine = whole[me * n : (me + 1) * n]
    dist.reduce_scatter_tensor(mine, whole)
    same(mine, oracle.reduce(blocks, "SUM")[me * n : (me + 1) * n], "reduce_scatter in place")
    first, second = (torch.zeros(n * size, device=DEVICE) for _ in range(2))
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(first, here(given[me]))
        dist.all_gather_into_tensor(second, first[n : 2 * n])
    same(first, torch.cat(given), "all_gather in a batch")
    same(second, given[1].repeat(size), "one of its result")
    other = whole[((me + 1) % size) * n :][:n]
    x = here(given[me])
    refusals = [
        lambda: dist.all_to_all_single(whole, whole),
        lambda: dist.all_gather_into_tensor(whole, other),
        lambda: dist.reduce_scatter_tensor(other, whole),
        lambda: dist.all_reduce_coalesced([x, x]),
    ]
    for call in refusals:
        with pytest.raises(ValueError, match="overlap"):
            call()
    more = torch.empty(n * size + n, device=DEVICE)
    with pytest.raises(ValueError, match="overlap, and one is written to"):
        dist.all_gather_into_tensor(more[: n * size], more[n * size - 7 :][:n])
    clean()


def test_overlaps(make_world):
    """What may lie in another tensor of the call, and what may not, is as on the CPU."""
    make_world(2).run(overlapping)


def at_random(rank, seed, count):
    begin(rank, random=400)
    groups = [dist.group.WORLD, dist.new_group(backend="goccl")]
    streams = [torch.Stream(device=DEVICE) for _ in groups]
    rnd = random.Random(seed)
    late: list = []
    for i in range(count):
        k = rnd.randrange(2)
        n = rnd.choice([1, 33, 5000, 300_000])
        kind = rnd.randrange(5)
        given = [values(r, n * rank.size, i) for r in range(rank.size)]
        mine = given[rank.rank]
        waits = rnd.random() < 0.4
        with streams[k]:
            x = torch.empty_like(mine, device=DEVICE).copy_(mine)
            if kind == 0:
                work = dist.all_reduce(x, group=groups[k], async_op=True)
                want = oracle.reduce(given, "SUM")
            elif kind == 1:
                work = dist.broadcast(x, i % rank.size, group=groups[k], async_op=True)
                want = given[i % rank.size]
            elif kind == 2:
                y = torch.empty(n, device=DEVICE)
                work = dist.reduce_scatter_tensor(y, x, group=groups[k], async_op=True)
                want = oracle.reduce(given, "SUM").split(n)[rank.rank]
                x = y
            elif kind == 3:
                y = torch.empty(n * rank.size**2, device=DEVICE)
                work = dist.all_gather_into_tensor(y, x, group=groups[k], async_op=True)
                want = torch.cat(given)
                x = y
            else:
                y = torch.empty(n * rank.size, device=DEVICE)
                work = dist.all_to_all_single(y, x, group=groups[k], async_op=True)
                want = torch.cat([g.split(n)[rank.rank] for g in given])
                x = y
        drops = rnd.random() < 0.1
        if not drops:
            late.append((k, work, x, want, f"operation {i}, {kind} of {n}"))
        del work, x
        if waits:
            for k, work, x, want, what in late:
                with streams[k]:
                    work.wait()
                    oracle.check(x.cpu(), want, what)
            late.clear()
    for k, work, x, want, what in late:
        with streams[k]:
            work.wait()
            oracle.check(x.cpu(), want, what)
    late.clear()
    del x, y, work
    dist.barrier()
    clean()


def test_at_random(make_world):
    """Operations of all kinds on two groups and two streams, some waited for late and some never,
    have the bits of the CPU's."""
    make_world(2).run(at_random, 7, 300)


@pytest.mark.slow
def test_at_random_for_long(make_world):
    make_world(2).run(at_random, 8, 2000, deadline=600)


# ---- what is built on it ----------------------------------------------------------------------


def small_model(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
    ).to(dtype)


def trained(model, rank, where):
    """Losses of a few steps, each with other data on each rank, and the parameters after these."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(4):
        x = values(rank.rank, 16 * 64, step).view(16, 64).clamp(-2, 2).to(where)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def trains(rank, compiles):
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    begin(rank, own=False, random=50)
    of_cpu = DistributedDataParallel(small_model())
    want = trained(of_cpu, rank, "cpu")
    model: Any = DistributedDataParallel(here(small_model()), static_graph=True)
    if compiles:
        model = torch.compile(model, backend="eager")
    got = trained(model, rank, DEVICE)
    assert got == want, (got, want)
    for a, b in zip(model.parameters(), of_cpu.parameters(), strict=True):
        same(a.detach(), b.detach(), "a parameter of DDP")
    if not compiles:
        model = here(small_model())
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        losses = trained(model, rank, DEVICE)
        assert losses == want, (losses, want)
    del model
    clean()


@pytest.mark.parametrize("compiles", [False, True])
def test_training(make_world, compiles):
    """DDP and FSDP2 come to what DDP on the CPU comes to."""
    make_world(2).run(trains, compiles)


def functional(rank):
    import torch.distributed._functional_collectives as fc
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    begin(rank, own=False, random=50)
    given = [values(r, 1000) for r in range(rank.size)]
    x = fc.all_reduce(here(given[rank.rank]), "sum", dist.group.WORLD)
    same(x + 0, oracle.reduce(given, "SUM"), "a functional all_reduce")
    x = fc.all_gather_tensor(here(given[rank.rank]), 0, dist.group.WORLD)
    same(x + 0, torch.cat(given), "a functional all_gather")
    mesh = init_device_mesh(DEVICE, (rank.size,))
    whole = torch.arange(8.0).view(4, 2)
    sharded = distribute_tensor(here(whole), mesh, [Shard(0)])
    assert sharded.to_local().shape == (4 // rank.size, 2)
    same(sharded.redistribute(placements=[Replicate()]).to_local(), whole, "a DTensor")
    objects = [rank.rank + 5]
    dist.broadcast_object_list(objects, 1)
    assert objects == [6]
    del x, sharded
    clean()


def test_functional(make_world):
    make_world(2).run(functional)


# ---- what goes wrong --------------------------------------------------------------------------


# ---- what is longer than a ring ---------------------------------------------------------------

LEAST = 128 * MiB  # of images of an operation
LONG = 40 * MiB  # numbers


def uniform(seed, n):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed))


def long_ones(rank, settings):
    begin(rank, options=goccl.Options(staging=LEAST), **settings)
    me = rank.rank
    given = [uniform(r, LONG) for r in range(2)]
    half = LONG // 2

    x = here(given[me])
    dist.all_reduce(x)
    same(x, given[0] + given[1], "all_reduce")
    x.copy_(given[me])
    dist.broadcast(x, 1)
    same(x, given[1], "broadcast")
    x.copy_(given[me])
    mine = x[me * half :][:half]
    dist.all_gather_into_tensor(x, mine)
    same(x, torch.cat([given[0][:half], given[1][half:]]), "all_gather in place")
    x.copy_(given[me])
    mine = torch.empty(half, device=DEVICE)
    dist.reduce_scatter_tensor(mine, x)
    same(mine, (given[0] + given[1])[me * half :][:half], "reduce_scatter")
    del x, mine
    lengths = [LONG - 5 * MiB, 1001]
    outs = [torch.empty(n, device=DEVICE) for n in lengths]
    dist.all_gather(outs, here(given[me][: lengths[me]]))
    for r, each in enumerate(outs):
        same(each, given[r][: lengths[r]], f"uneven all_gather, part {r}")
    del outs, each
    with goccl.wire_dtype(torch.bfloat16):
        x = here(given[me])
        dist.all_reduce(x)
        want = (given[0].bfloat16() + given[1].bfloat16()).float()
        same(x, want, "all_reduce as bfloat16")
    peak = goccl.memory_stats()["staged_peak_bytes"]
    harness.expect(0 < peak <= LEAST, f"{peak} bytes were pinned")
    dist.all_to_all_single(torch.empty_like(x), x)
    peak = goccl.memory_stats()["staged_peak_bytes"]
    harness.expect(peak == 2 * x.nbytes, f"{peak} bytes were pinned: its images are whole")
    del x
    clean()


@needs_testdev
@pytest.mark.parametrize("settings", [{"delay": 300}, {}], ids=["slow", "fast"])
def test_long_ones(make_world, settings):
    """What is longer than its pinned memory may be goes through it, segment by segment."""
    make_world(2).run(long_ones, settings, deadline=600)


def two_rings(rank):
    begin(rank, options=goccl.Options(staging=LEAST), random=200)
    groups = [dist.group.WORLD, dist.new_group(pg_options=goccl.Options(staging=LEAST))]
    given = [[uniform(10 * k + r, LONG) for r in range(2)] for k in range(2)]
    xs = [here(given[k][rank.rank]) for k in range(2)]
    works = [dist.all_reduce(x, group=g, async_op=True) for x, g in zip(xs, groups, strict=True)]
    # The next one has the result of the first as its input, before that has ended.
    works.append(dist.all_reduce(xs[0], group=groups[0], async_op=True))
    for work in works:
        work.wait()
    sums = [sum(each) for each in given]
    same(xs[0], sums[0] + sums[0], "one after the other")
    same(xs[1], sums[1], "of the other group")
    peak = goccl.memory_stats()["staged_peak_bytes"]
    harness.expect(peak <= len(works) * LEAST, f"{peak} bytes were pinned")
    del xs, works, work
    clean()


@needs_testdev
def test_two_rings(make_world):
    make_world(2).run(two_rings, deadline=600)


def fails_in_the_middle(rank, copy):
    begin(rank, options=goccl.Options(staging=LEAST))
    x = here(torch.ones(LONG))
    torch.accelerator.synchronize()
    dist.barrier()
    if rank.rank == 1:
        device.configure(fail_copy=copy)
    dist.all_reduce(x)
    torch.accelerator.synchronize()


@needs_testdev
@pytest.mark.parametrize("copy", [40, 56], ids=["back", "in"])
def test_a_copy_of_a_segment_that_fails(make_world, copy):
    """Two segments of 16 pieces come, the first goes back, and the third comes."""
    world = make_world(2)
    outcomes = world.outcomes(fails_in_the_middle, copy)
    assert "this copy fails" in outcomes[1].error or "a copy has failed" in outcomes[1].error
    if copy == 40:
        assert outcomes[0].ok, outcomes[0].error
    else:
        assert "rank 1" in outcomes[0].error
        assert "copy" in outcomes[0].error
    world.close(check=False)


def wrong_staging(rank):
    given = os.environ["GOCCL_STAGING"]
    with pytest.raises(ValueError, match=f'GOCCL_STAGING is "{given}", allowed are 128M to 1024G'):
        rank.init()


@pytest.mark.parametrize("given", ["127M", "some", "-1", "1025G", "99999999999999G"])
def test_wrong_staging(make_world, given):
    make_world(1, env={"GOCCL_STAGING": given}).run(wrong_staging)


def refused(rank):
    begin(rank)
    one, two = (torch.ones(4, device=f"testdev:{i}") for i in range(2))
    calls = {
        "`output` is on cpu, expected testdev:0": lambda: dist.all_gather_into_tensor(
            torch.empty(4 * rank.size), one
        ),
        "`outputs`[1] is on testdev:1, expected testdev:0": lambda: dist.all_gather(
            [torch.empty_like(one), torch.empty_like(two)], one
        ),
        "`tensor` is on meta": lambda: goccl.Communicator().all_reduce_(one.to("meta")),
        "`tensors`[1] is on testdev:1, expected testdev:0": lambda: dist.all_reduce_coalesced(
            [one, two]
        ),
    }
    for text, call in calls.items():
        with pytest.raises(ValueError, match=re.escape(text)):
            call()
        x = one.clone()
        dist.all_reduce(x)
        same(x, torch.full((4,), float(rank.size)), "what follows")
    device.configure(capturing=True)
    with pytest.raises(ValueError, match="is being captured in a graph"):
        dist.all_reduce(one)
    with (
        pytest.raises(ValueError, match="is being captured in a graph"),
        dist._coalescing_manager() as _,
    ):
        dist.all_reduce(one)
    device.configure()
    with pytest.raises(ValueError, match="only supports CPU tensors"):
        goccl.Communicator().register(one)


@needs_testdev
def test_refused(make_world):
    make_world(2).run(refused)


def fails(rank, when, late):
    begin(rank, own=False, timeout=30)
    x = here(values(rank.rank, 500_000))
    torch.accelerator.synchronize()
    dist.barrier()
    if rank.rank == 1:
        device.configure(fail_copy={"in": 1, "back": 5}[when], fail_late=late)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    torch.accelerator.synchronize()


@needs_testdev
@pytest.mark.parametrize("late", [False, True])
def test_a_copy_in_that_fails(make_world, late):
    """Its rank gets the device's error, and the others that text with the rank's name."""
    world = make_world(2)
    outcomes = world.outcomes(fails, "in", late)
    assert "a copy has failed" in outcomes[1].error or "this copy fails" in outcomes[1].error
    assert outcomes[0].kind == "PeerFailedError" or "rank 1" in outcomes[0].error
    assert "copy" in outcomes[0].error
    world.close(check=False)


@needs_testdev
@pytest.mark.parametrize("late", [False, True])
def test_a_copy_back_that_fails(make_world, late):
    """It is this rank's alone."""
    world = make_world(2)
    outcomes = world.outcomes(fails, "back", late)
    assert "cop" in outcomes[1].error
    assert outcomes[0].ok
    world.close(check=False)


def stays(rank, end):
    begin(rank, timeout=60)
    rank.limit(3)
    x = here(values(rank.rank, 500_000))
    torch.accelerator.synchronize()
    dist.barrier()
    if rank.rank == 1:
        device.configure(held=True)
    work = dist.all_reduce(x, async_op=True)
    if end == "kill" and rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "abort" and rank.rank == 1:
        dist.group.WORLD.abort()
    try:
        work.wait()
    finally:
        if end == "destroy":
            dist.destroy_process_group()
        device.configure()


@needs_testdev
@pytest.mark.parametrize("end", ["timeout", "abort", "kill", "destroy"])
def test_an_input_that_does_not_come(make_world, end):
    world = make_world(2)
    outcomes = world.outcomes(stays, end)
    text = "\n".join(o.error for o in outcomes if o.exitcode is None)
    assert not any(o.ok for o in outcomes), text
    if end in ("timeout", "destroy"):
        for o in outcomes:
            assert "rank 1" in o.error, o.error
            assert "input" in o.error, o.error
            assert "not there yet" in o.error, o.error
    elif end == "kill":
        assert "rank 1" in outcomes[0].error
    else:
        assert "abort" in outcomes[0].error
    world.close(check=False)


def fails_while_it_writes(rank):
    begin(rank, own=False, timeout=60)
    x = torch.ones(16 * MiB, device=DEVICE)
    torch.accelerator.synchronize()
    dist.barrier()
    before = device.count()["copies"]
    # The pieces of the root come one after the other, over many seconds.
    device.configure(delay=300_000 if rank.rank == 1 else 100_000)
    work = dist.broadcast(x, 1, async_op=True)
    if rank.rank == 0:  # once the first is on its way to the device
        harness.until(lambda: device.count()["copies"] > before)
        dist.group.WORLD.abort()
    with pytest.raises(dist.DistBackendError):
        work.wait()
    if rank.rank == 1:
        device.configure()
    del x, work
    for _ in range(3):
        torch.zeros(16 * MiB, device=DEVICE)
    device.configure()
    torch.accelerator.synchronize()
    clean()


@needs_testdev
def test_memory_lasts_while_it_is_written(make_world):
    """An operation that fails keeps its outputs until the copies to them are over."""
    make_world(2).run(fails_while_it_writes)


def leaves(rank):
    begin(rank, delay=500)
    for _ in range(3):
        dist.all_reduce(here(values(rank.rank, 300_000)), async_op=True)


def test_exit_with_works_under_way(make_world):
    """A process that ends without a word, while copies are under way, ends well."""
    world = make_world(2, whole_exit=True)
    world.run(leaves)


def send_to_the_dead(rank):
    begin(rank, timeout=60)
    x = here(values(rank.rank, 500_000))
    torch.accelerator.synchronize()
    dist.barrier()
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    device.configure(held=True)
    try:
        with pytest.raises(dist.DistBackendError, match="the receiver's process has ended"):
            dist.send(x, 1)
    finally:
        device.configure()


@needs_testdev
def test_a_send_whose_receiver_dies(make_world):
    world = make_world(2)
    world.values([world.outcomes(send_to_the_dead)[0]])
    world.close(check=False)


def send_stays(rank):
    begin(rank, timeout=60)
    x = here(values(rank.rank, 500_000))
    torch.accelerator.synchronize()
    dist.barrier()
    rank.limit(2)
    if rank.rank == 0:
        device.configure(held=True)
        try:
            with pytest.raises(dist.DistBackendError, match=r"send: timeout after 2 s: its input"):
                dist.send(x, 1)
        finally:
            device.configure()


@needs_testdev
def test_a_send_whose_input_does_not_come(make_world):
    make_world(2).run(send_stays)


def forks(rank):
    begin(rank)
    x = here(values(rank.rank, 1000))
    work = dist.all_reduce(x, async_op=True)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    work.wait()
    same(x, oracle.reduce([values(r, 1000) for r in range(rank.size)], "SUM"), "after a fork")


def test_fork(make_world):
    make_world(2).run(forks)


def groups(rank):
    begin(rank, timeout=30)
    me = rank.rank
    sub = dist.new_group([0, 2], backend="goccl")
    if me != 1:
        x = here(values(me, 1000))
        dist.all_reduce(x, group=sub)
        same(x, oracle.reduce([values(r, 1000) for r in (0, 2)], "SUM"), "a sub-group")
    if hasattr(dist, "split_group"):
        part = dist.split_group(split_ranks=[[0, 1], [2]])
        x = here(values(me, 1000))
        dist.all_reduce(x, group=part)
        among = (0, 1) if me < 2 else (2,)
        same(x, oracle.reduce([values(r, 1000) for r in among], "SUM"), "a split group")
    dist.barrier()
    clean()


def test_groups(make_world):
    make_world(3).run(groups)


def survives(rank):
    begin(rank, timeout=30, options=goccl.Options(recovery="survivors"))
    me = rank.rank
    x = here(values(me, 700_000))
    dist.all_reduce(x)
    same(x, oracle.reduce([values(r, 700_000) for r in range(3)], "SUM"), "before")
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    x = here(values(me, 700_000))
    work: Any = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.contributors() == 2
    same(x, oracle.reduce([values(r, 700_000) for r in (0, 2)], "SUM"), "after a death")
    clean()


def test_survivors(make_world):
    """A collective in which a member dies runs again, with the inputs that were brought."""
    world = make_world(3)
    outcomes = world.outcomes(survives)
    world.values([outcomes[0], outcomes[2]])
    world.close(check=False)


@needs_testdev
def test_timeouts_and_waits_are_of_the_group(make_world):
    """wait() with a time of its own leaves the work running."""
    make_world(2).run(waits_shortly)


def waits_shortly(rank):
    begin(rank)
    x = here(values(rank.rank, 1000))
    torch.accelerator.synchronize()
    dist.barrier()
    device.configure(held=True)
    work = dist.all_reduce(x, async_op=True)
    began = time.monotonic()
    try:
        with pytest.raises(dist.DistBackendError, match="it goes on"):
            work.wait(timedelta(milliseconds=50))
        assert time.monotonic() - began < 30
        assert not work.is_completed()
    finally:
        device.configure()
    work.wait()
    same(x, oracle.reduce([values(r, 1000) for r in range(rank.size)], "SUM"), "the result")
