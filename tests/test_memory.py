"""goccl.empty, goccl.zeros and goccl.use_shareable_memory: collectives on tensors that peers map,
against an oracle."""

import contextlib
import gc
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import goccl
import harness
import numpy as np
import oracle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PRELOAD = ("torch.profiler",)
DIRECT = 32 << 10  # bytes from which on collectives work in place, as in core/tune/thresholds.go

both_transports = pytest.mark.parametrize("transport", harness.TRANSPORTS)


def shareable(tensor):
    """Whether a tensor's memory is of this process's arena."""
    maps = Path("/proc/self/maps").read_text()
    at = tensor.data_ptr()
    spans = re.findall(r"(?m)^([0-9a-f]+)-([0-9a-f]+) .*memfd:goccl-arena", maps)
    return any(int(first, 16) <= at < int(end, 16) for first, end in spans)


def held():
    """How many bytes of memory the arena has."""
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            if "memfd:goccl-arena" in str(fd.readlink()):
                return fd.stat().st_blocks * 512
    return 0


def moved(values):
    made = goccl.empty(values.shape, dtype=values.dtype)
    made.copy_(values)
    assert shareable(made) or values.numel() == 0
    return made


# -- results


def joined(rank, body, *args):
    """Runs a function of ranks in a group."""
    rank.init()
    return body(rank, *args)


def run_collectives(rank, dtype, ordinary):
    """All that have direct plans, below and above the size; where a rank has ordinary tensors none
    is run."""
    n, me = rank.size, rank.rank
    make = (lambda t: t.clone()) if me == ordinary else moved
    element = dtype.itemsize
    for count in (0, 1, 1000, DIRECT // element - 1, DIRECT // element, (1 << 20) // element + 7):
        per = -(-count // n)
        given = [oracle.values(dtype, per * n, r) for r in range(n)]
        for op in ("SUM", "MAX"):
            want = oracle.reduce(given, op)
            t = make(given[me])
            dist.all_reduce(t, getattr(dist.ReduceOp, op))
            oracle.check(t, want, f"all_reduce {op} of {count}", oracle.zeros_alike(dtype, op))
            plain = given[me].clone()
            dist.all_reduce(plain, getattr(dist.ReduceOp, op))
            same = torch.equal(t.view(torch.uint8), plain.view(torch.uint8))
            harness.expect(same, f"all_reduce {op} of {count}: other bits than plain tensors have")
            out, source = make(torch.zeros(per, dtype=dtype)), make(given[me])
            dist.reduce_scatter_tensor(out, source, getattr(dist.ReduceOp, op))
            oracle.check(
                out,
                want[me * per : (me + 1) * per],
                f"reduce_scatter {op} of {count}",
                oracle.zeros_alike(dtype, op),
            )
            oracle.check(source, given[me], "its input")
        for root in {0, n - 1}:
            t, want = make(given[me]), oracle.reduce(given, "SUM")
            dist.reduce(t, root)
            if me == root:
                oracle.check(t, want, f"reduce of {count}", oracle.zeros_alike(dtype, "SUM"))
            t = make(given[me])
            dist.broadcast(t, root)
            oracle.check(t, given[root], f"broadcast of {count}")
            source, outs = (
                make(given[me]),
                [make(torch.zeros(per * n, dtype=dtype)) for _ in range(n)],
            )
            dist.gather(source, outs if me == root else None, root)
            for out, want in zip(outs, given, strict=True) if me == root else ():
                oracle.check(out, want, f"gather of {count}")
            dist.scatter(outs[me], [make(g) for g in given] if me == root else None, root)
            oracle.check(outs[me], given[me], f"scatter of {count}")
            oracle.check(source, given[me], "an input")
        out, source = make(torch.zeros(per * n * n, dtype=dtype)), make(given[me])
        dist.all_gather_into_tensor(out, source)
        oracle.check(out, torch.cat(given), f"all_gather of {count}")
        out = make(torch.zeros(per * n, dtype=dtype))
        dist.all_to_all_single(out, source)
        want = torch.cat([g[me * per : (me + 1) * per] for g in given])
        oracle.check(out, want, f"all_to_all of {count}")
        # Uneven: to rank r go r + 1 parts of per.
        out = make(torch.zeros(per * n * (me + 1), dtype=dtype))
        source = make(torch.cat([g[:per].repeat(r + 1) for r, g in enumerate([given[me]] * n)]))
        dist.all_to_all_single(out, source, [per * (me + 1)] * n, [per * (r + 1) for r in range(n)])
        oracle.check(
            out,
            torch.cat([g[:per].repeat(me + 1) for g in given]),
            f"all_to_all, uneven, of {count}",
        )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=oracle.name
)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_collectives(make_world, size, dtype):
    make_world(size).run(joined, run_collectives, dtype, -1)


@both_transports
@pytest.mark.parametrize("ordinary", [-1, 0, 1])
def test_collectives_where_some_memory_is_ordinary(make_world, transport, ordinary):
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.run(joined, run_collectives, torch.float32, ordinary)


def run_views(rank):
    """Parts of a tensor, at any offset, and asynchronous calls, several at once."""
    whole = goccl.zeros(8, 100_003)
    works = []
    for i in range(8):
        whole[i].fill_(i + rank.rank)
        works.append(dist.all_reduce(whole[i][i:], async_op=True))
    for w in works:
        w.wait()
    n = rank.size
    for i in range(8):
        assert torch.all(whole[i][i:] == n * i + n * (n - 1) / 2)
        assert torch.all(whole[i][:i] == i + rank.rank)


def run_groups(rank):
    """A tensor belongs to no group."""
    t = goccl.zeros(50_000)
    for members in ([0, 1], [1, 2], [0, 1, 2]):
        group = dist.new_group(members)
        if rank.rank in members:
            t.fill_(rank.rank + 1)
            dist.all_reduce(t, group=group)
            assert torch.all(t == sum(m + 1 for m in members))
        dist.barrier()
        if group is not None and rank.rank in members:
            dist.destroy_process_group(group)
    dist.destroy_process_group()
    t.fill_(7)
    rank.init(store="again")
    dist.all_reduce(t)
    assert torch.all(t == 7 * rank.size)


@pytest.mark.parametrize("body", [run_views, run_groups])
def test_tensors(make_world, body):
    make_world(3).run(joined, body)


# -- tensors


def run_sizes(_rank):
    assert goccl.empty(3).shape == (3,)
    assert (
        goccl.empty(3, 4).shape == goccl.empty((3, 4)).shape == goccl.empty([3, 4]).shape == (3, 4)
    )
    assert goccl.empty(0).numel() == goccl.empty(0, 5).numel() == 0
    assert goccl.empty(()).shape == goccl.empty().shape == ()
    assert goccl.empty(2).dtype == torch.float32
    t = goccl.zeros(1000, dtype=torch.complex64)
    assert t.dtype == torch.complex64
    assert not t.any()
    assert shareable(t)
    assert t.data_ptr() % 128 == 0
    assert not shareable(torch.empty(1 << 20))
    for bad, word in ((-1, "size"), ((2, -3), "size"), (1 << 60, "mem_alloc")):
        with pytest.raises((ValueError, RuntimeError), match=word):
            goccl.empty(bad)
    with pytest.raises(TypeError):
        goccl.empty("three")
    with pytest.raises(TypeError, match=r"dtype is 'float32', it must be a torch\.dtype"):
        goccl.empty(3, dtype="float32")
    for make in (goccl.empty_like, goccl.zeros_like, goccl.is_shareable):
        with pytest.raises(
            TypeError, match=r"tensor is of type ndarray, it must be a torch\.Tensor"
        ):
            make(np.ones(3))


def run_memory(_rank):
    """What is freed goes back to the system, if it is large, and with the last of it all."""
    keep = goccl.zeros(1000)
    large = goccl.zeros(64 << 20)
    assert held() >= 256 << 20
    del large
    assert held() < 8 << 20
    for _ in range(50):
        goccl.zeros(1 << 20)
    assert held() < 80 << 20
    del keep
    gc.collect()
    assert held() == 0


def run_fork(rank):
    """A child may free what it has inherited: that is its parent's business."""
    t = goccl.zeros(100_000)
    child = os.fork()
    if child == 0:
        del t
        try:
            goccl.empty(10)
        except dist.DistBackendError as e:
            os._exit(0 if "fork" in str(e) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    t += rank.rank
    other = goccl.empty(100_000)
    assert other.data_ptr() != t.data_ptr()
    dist.all_reduce(t)
    assert torch.all(t == rank.size * (rank.size - 1) / 2)


def run_pool(_rank):
    def large():
        return torch.empty(10_000)

    assert not shareable(large())
    with goccl.use_shareable_memory() as pool:
        assert isinstance(pool, goccl.use_shareable_memory)
        inside = large()
        assert shareable(inside)
        assert not shareable(torch.empty(10))
        with goccl.use_shareable_memory():
            assert shareable(large())
        assert shareable(torch.ones(10_000) * 2)
        found = []
        thread = threading.Thread(target=lambda: found.append(shareable(large())))
        thread.start()
        thread.join()
        assert found == [False]
        child = os.fork()
        if child == 0:  # as a DataLoader worker
            ours = large().fill_(1)
            os._exit(0 if not shareable(ours) and ours.sum() == 10_000 else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert not shareable(large())
    with pytest.raises(ZeroDivisionError), goccl.use_shareable_memory():
        _ = 1 / 0
    assert not shareable(large())
    inside.resize_(100_000)
    assert not shareable(inside)


def run_sizes_as_of_torch(_rank):
    integers = [np.int64(4), np.array(4), torch.tensor(4), (np.int32(2), 3), [2, np.uint8(3)]]
    size: Any
    for size in [*integers, torch.Size([2, 3]), (), []]:
        assert goccl.empty(size).shape == goccl.zeros(size).shape == torch.empty(size).shape
    assert goccl.zeros(np.int64(2), np.int64(3)).shape == (2, 3)
    for size in ("three", 4.0, None, np.array([2, 3]), [[2]], range(2)):
        for make in (torch.empty, goccl.empty, goccl.zeros):
            with pytest.raises(TypeError, match="size"):
                make(size)


def run_arguments(_rank):
    for make in (goccl.empty, goccl.zeros):
        for device in (None, "cpu", torch.device("cpu"), "cpu:0"):
            t = make(3, device=device, requires_grad=True)
            assert t.is_leaf
            assert t.requires_grad
            assert t.device.type == "cpu"
            assert not make(3, device=device).requires_grad
        with pytest.raises(ValueError, match="device is 'meta', it must be 'cpu' or None"):
            make(3, device="meta")
        with pytest.raises(RuntimeError, match="floating point"):
            make(3, dtype=torch.int32, requires_grad=True)
    with torch.device("meta"):
        assert goccl.empty(3).device.type == "cpu"


def run_like(_rank):
    strided = torch.ones(3, 4, dtype=torch.int16).t()
    elsewhere = torch.empty(5, device="meta")
    for make in (goccl.empty_like, goccl.zeros_like):
        t = make(strided)
        assert (t.shape, t.dtype) == ((4, 3), torch.int16)
        assert t.is_contiguous()
        assert shareable(t)
        t = make(elsewhere, dtype=torch.float64, device="cpu", requires_grad=True)
        assert (t.shape, t.dtype, t.device.type) == ((5,), torch.float64, "cpu")
        assert t.requires_grad
        with pytest.raises(ValueError, match="device is 'meta'"):
            make(strided, device="meta")
    assert (goccl.zeros_like(strided) == 0).all()


def run_is_shareable(_rank):
    t = goccl.zeros(8, 4)
    for view in (t, t[3:], t.t(), t.detach(), t.view(torch.int32), nn.Parameter(t)):
        assert goccl.is_shareable(view)
    with goccl.use_shareable_memory():
        assert goccl.is_shareable(torch.empty(1 << 20))
        assert not goccl.is_shareable(torch.empty(1)), "small ones are ordinary"
    ordinary = [torch.empty(1 << 20), t.clone(), torch.empty(3, device="meta")]
    for other in [*ordinary, torch.eye(3).to_sparse()]:
        assert not goccl.is_shareable(other)
    with pytest.raises(TypeError, match="tensor is of type list"):
        goccl.is_shareable([1.0])


WITHOUT_A_GROUP = [
    run_sizes,
    run_sizes_as_of_torch,
    run_arguments,
    run_like,
    run_is_shareable,
    run_memory,
    run_pool,
]


@pytest.mark.parametrize("body", WITHOUT_A_GROUP)
def test_without_a_group(make_world, body):
    make_world(1).run(body)


def test_fork(make_world):
    make_world(2).run(joined, run_fork)


def run_ddp(rank):
    """DDP's buckets lie in the pool, also those that it makes anew; the model is that of one
    process."""
    torch.manual_seed(0)
    seen = []

    def hook(_state, bucket):
        seen.append(shareable(bucket.buffer()))
        work = dist.all_reduce(bucket.buffer().div_(rank.size), async_op=True)
        return work.get_future().then(lambda f: f.value()[0])

    def make():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 10))

    inputs = torch.randn(4, 8 * rank.size, 200)
    alone, steps = make(), range(4)
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for step in steps:
        optimizer.zero_grad()
        alone(inputs[step]).square().mean().backward()
        optimizer.step()
    with goccl.use_shareable_memory():
        model = DistributedDataParallel(make(), gradient_as_bucket_view=True)
        model.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in steps:
            optimizer.zero_grad()
            model(inputs[step][rank.rank * 8 : rank.rank * 8 + 8]).square().mean().backward()
            optimizer.step()
    assert len(seen) == 4
    assert all(seen)
    for mine, reference in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, reference)


def test_ddp(make_world):
    make_world(2).run(joined, run_ddp)


def run_fsdp(rank):
    """What FSDP gathers and scatters lies in the pool on both sides; the model is that of one
    process."""
    from torch.distributed.fsdp import fully_shard

    seen = []

    def watched(call):
        def wrapped(*args, **kwargs):
            tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
            if min(t.nbytes for t in tensors) >= DIRECT:
                seen.append((call.__name__, len(tensors) == 2 and all(map(shareable, tensors))))
            return call(*args, **kwargs)

        return wrapped

    # The first two have the names of the others up to torch 2.14.
    calls = (
        "all_gather_single",
        "reduce_scatter_single",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
    )
    for name in calls:
        if hasattr(dist, name):
            setattr(dist, name, watched(getattr(dist, name)))

    def make():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 10))

    def train(model, inputs):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x in inputs:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    torch.manual_seed(0)
    inputs = torch.randn(4, 8 * rank.size, 200)
    alone = make()
    train(alone, inputs)
    with goccl.use_shareable_memory():
        model = make()
        fully_shard(model[0])
        fully_shard(model)
        train(model, inputs[:, rank.rank * 8 : rank.rank * 8 + 8])
    assert {name[:7] for name, _ in seen} == {"all_gat", "reduce_"}
    assert all(inside for _, inside in seen), seen
    for mine, reference in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.full_tensor(), reference)


def test_fsdp(make_world):
    make_world(2).run(joined, run_fsdp)


# -- faults


def run_until_failure(rank, count):
    t = goccl.zeros(count)
    dist.all_reduce(t)
    rank.tell("ready")
    while True:
        dist.all_reduce(t)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("count", [20_000, 4 << 20])
def test_killed_rank(make_world, size, count):
    """Survivors are told at once, whatever the dead rank was writing to."""
    world = make_world(size)
    world.start(joined, run_until_failure, count)
    for r in range(size):
        world.told(r)
    since = world.signal(size - 1, signal.SIGKILL)
    for outcome in world.finish()[:-1]:
        assert outcome.kind == "PeerFailedError", outcome
        assert outcome.blamed == {size - 1}, outcome
        assert outcome.at - since < harness.AT_ONCE


def run_stopped(rank, count):
    """The memory of a failed collective is not another tensor's, into which the stopped rank would
    write."""
    rank.init()
    t = goccl.empty(count).fill_(1)
    dist.all_reduce(t)
    rank.limit(1)
    rank.tell("ready")
    try:
        while True:
            dist.all_reduce(t)
    except dist.DistBackendError:
        at = t.data_ptr()
        del t
        other = goccl.zeros(count)
        assert other.data_ptr() != at
        rank.tell("failed")
        rank.hear()
        assert not other.any()


def test_stopped_rank(make_world):
    world = make_world(2)
    world.start(run_stopped, 16 << 20)
    for r in range(2):
        world.told(r)
    world.signal(1, signal.SIGSTOP)  # mostly while it writes: a call is little else
    assert world.told(0) == "failed"
    world.signal(1, signal.SIGCONT)
    assert world.told(1) == "failed"
    world.say("check")
    world.values(world.finish())


def run_beside_a_stopped_rank(rank, count):
    """What a rank that has ended can no longer write is another tensor's."""
    rank.init()
    group = dist.new_group([0, 1])
    kept, t = goccl.zeros(1), goccl.zeros(count)
    dist.all_reduce(t, group=group)
    rank.limit(1, group)
    rank.tell("ready")
    with contextlib.suppress(dist.DistBackendError):
        while True:
            dist.all_reduce(t, group=group)
    at = t.data_ptr()
    del t
    dist.destroy_process_group(group)
    assert goccl.empty(count).data_ptr() != at
    rank.tell("failed")
    rank.hear()
    assert goccl.empty(count).data_ptr() == at
    assert not kept.any()


def test_stopped_rank_that_is_killed(make_world):
    world = make_world(2)
    world.start(run_beside_a_stopped_rank, 16 << 20)
    for r in range(2):
        world.told(r)
    world.signal(1, signal.SIGSTOP)
    assert world.told(0) == "failed"
    world.signal(1, signal.SIGKILL)
    world.exitcode(1)
    world.say("check", ranks=0)
    world.values(world.finish(ranks=0))


def test_memory_stats_without_an_adapter():
    assert set(goccl.memory_stats().values()) == {0}
