"""Every collective of torch.distributed against an oracle: dtype x op x size x ranks x transport x
layout, in place and out of place, and what must be refused."""

import itertools
import time
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import goccl
import harness
import oracle
import pytest
import torch
import torch.distributed as dist

SIZES = (1, 2, 3, 4, 5, 8)
ON_DEVICE = (3,)
CHUNK = 262144  # bytes

SMALL = (0, 1, 7, 1023)
MEDIUM = 5003

# What goes beyond MEDIUM, and beyond 4 ranks, depends on the width of an element and on how it is
# summed, not on more: these dtypes stand for the others there.
WIDE = (
    torch.uint8,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float32,
    torch.float64,
    torch.complex128,
)
LAYOUTS = ("plain", "strided", "offset", "transposed")


def large_counts(dtype):
    """About a chunk, and several chunks with an odd rest."""
    if dtype not in WIDE:
        return (MEDIUM,)
    n = CHUNK // dtype.itemsize
    return MEDIUM, n - 1, n, n + 1, min(12 * n, 3 << 18) + 13


def reduce_op(op, dtype=torch.float32):
    if op == "PREMUL_SUM":
        if not hasattr(dist, "_make_nccl_premul_sum"):
            pytest.skip("this torch has no PREMUL_SUM")
        return dist._make_nccl_premul_sum(
            oracle.INT_FACTOR if dtype in oracle.INTEGERS else oracle.FACTOR
        )
    return getattr(dist.ReduceOp, op)


class Placed:
    """A tensor of given values in a given memory layout; what lies between its elements must not
    change."""

    def __init__(self, values, layout):
        n, dtype = values.numel(), values.dtype
        if layout == "plain" or n == 0:
            self.base, self.tensor = None, harness.place(values.clone())
            return
        gap = oracle.values(dtype, 2 * n + 3, 99, "bits")
        self.base = harness.place(gap.clone())
        index = torch.arange(2 * n + 3)
        if layout == "strided":
            self.tensor, index = self.base[1 : 2 * n + 1 : 2], index[1 : 2 * n + 1 : 2]
        elif layout == "offset":
            self.tensor, index = self.base[1 : n + 1], index[1 : n + 1]
        else:  # a matrix of two rows seen by columns, and a last element of the odd counts left out
            m = n // 2 * 2
            self.tensor = self.base[:m].view(2, m // 2).t()
            index = index[:m].view(2, m // 2).t()
            values = values[:m].view(m // 2, 2)
        self.used = torch.zeros(2 * n + 3, dtype=torch.bool)
        self.used[index.reshape(-1)] = True
        self.before = gap
        _copy(self.tensor, values)

    def check(self, want, what, zeros=False):
        oracle.check(self.tensor, want, what, zeros)
        self.check_beside(what)

    def check_beside(self, what):
        if self.base is None:
            return
        width = self.base.element_size()
        bytes_now = self.base.cpu().view(torch.uint8).view(-1, width)
        bytes_then = self.before.view(torch.uint8).view(-1, width)
        intact = (bytes_now == bytes_then).all(1)[~self.used].all()
        harness.expect(intact, f"{what}: wrote beside the tensor")

    def shaped(self, values):
        """Other values of the same count in the shape of the tensor."""
        return values[: self.tensor.numel()].reshape(self.tensor.shape)


def _copy(to, values):
    if to.dtype in oracle.OPAQUE:
        to, values = to.view(torch.uint8), values.view(torch.uint8)
    to.copy_(values)


def layouts(count, dtype):
    return LAYOUTS if count in (7, 1023) and dtype not in oracle.OPAQUE else LAYOUTS[:1]


def inputs(rank, dtype, count, kind, seed=0):
    return [oracle.values(dtype, count, r, kind, seed) for r in range(rank.size)]


def reduction_cases(dtype):
    """(count, op, kind of values)"""
    ops = [op for op in oracle.OPS if oracle.allowed(dtype, op)]
    for count, op in itertools.product(SMALL, ops):
        yield count, op, "small"
        exact = dtype in oracle.INTEGERS and op != "AVG"
        if dtype in oracle.FLOATS or exact or (dtype in oracle.COMPLEX and op != "PRODUCT"):
            yield count, op, "general"
    for count in large_counts(dtype):
        yield count, "SUM", "general"
        if count < CHUNK:
            yield count, "PRODUCT", "small"


def all_reduce(tensor, op, dtype):
    # torch.distributed shows complex tensors as real ones, and then knows no product of them.
    if dtype in oracle.COMPLEX:
        options = dist.AllreduceOptions()
        options.reduceOp = reduce_op(op, dtype)
        dist.group.WORLD.allreduce([tensor], options).wait()
    else:
        dist.all_reduce(tensor, reduce_op(op, dtype))


def run_all_reduce(rank, dtype):
    for count, op, kind in reduction_cases(dtype):
        given = inputs(rank, dtype, count, kind)
        want = oracle.reduce(given, op)
        for layout in layouts(count, dtype):
            mine = Placed(given[rank.rank], layout)
            all_reduce(mine.tensor, op, dtype)
            what = f"all_reduce {op} of {count} {kind} {layout}"
            mine.check(mine.shaped(want), what, oracle.zeros_alike(dtype, op))


@pytest.mark.parametrize("dtype", oracle.ARITHMETIC, ids=oracle.name)
def test_all_reduce(world, dtype):
    world.run(run_all_reduce, dtype)


def run_is_placed(rank, dtype):
    dist.all_reduce(Placed(oracle.values(dtype, 5, 0), "plain").tensor)
    staged = goccl.memory_stats()["staged_peak_bytes"]
    assert (staged > 0) == (harness.place(torch.empty(0)).device.type != "cpu")


@pytest.mark.parametrize("dtype", [torch.float32], ids=oracle.name)
def test_placed(world, dtype):
    """What runs once more with a device has its tensors there."""
    world.run(run_is_placed, dtype)


def run_reduce(rank, dtype):
    for i, (count, op, kind) in enumerate(reduction_cases(dtype)):
        if dtype in oracle.COMPLEX and op == "PRODUCT":
            continue
        root = i % rank.size
        given = inputs(rank, dtype, count, kind)
        for layout in layouts(count, dtype):
            mine = Placed(given[rank.rank], layout)
            dist.reduce(mine.tensor, root, reduce_op(op, dtype))
            what = f"reduce {op} of {count} {kind} {layout}"
            if rank.rank == root:
                want = mine.shaped(oracle.reduce(given, op))
                oracle.check(mine.tensor, want, what, oracle.zeros_alike(dtype, op))
            mine.check_beside(what)


@pytest.mark.parametrize("dtype", oracle.ARITHMETIC, ids=oracle.name)
def test_reduce(world, dtype):
    world.run(run_reduce, dtype)


def run_reduce_scatter(rank, dtype, form):
    n, me = rank.size, rank.rank
    for count, op, kind in reduction_cases(dtype):
        if dtype in oracle.COMPLEX and op == "PRODUCT":
            continue
        each = count if count <= MEDIUM else count // n
        lengths = (
            [(each + 3 * r) if r % 3 != 1 else 0 for r in range(n)]
            if form == "uneven"
            else [each] * n
        )
        given = inputs(rank, dtype, sum(lengths), kind)
        total = oracle.reduce(given, op)
        mine, want = given[me], total.split(lengths)[me]
        what = f"reduce_scatter {form} {op} of {lengths} {kind}"
        zeros = oracle.zeros_alike(dtype, op)
        for layout in layouts(count, dtype):
            if layout == "transposed":
                continue
            out = Placed(torch.zeros_like(want), layout)
            parts = [Placed(p, layout).tensor for p in mine.split(lengths)]
            dist.reduce_scatter(out.tensor, parts, reduce_op(op, dtype))
            out.check(want, f"{what} {layout}, a list", zeros)
            if form == "equal":
                out = Placed(torch.zeros_like(want), layout)
                dist.reduce_scatter_tensor(
                    out.tensor, Placed(mine, layout).tensor, reduce_op(op, dtype)
                )
                out.check(want, f"{what} {layout}, a tensor", zeros)
        if form == "equal":
            buffer = harness.place(mine.clone())
            out = buffer.split(lengths)[me]
            dist.reduce_scatter_tensor(out, buffer, reduce_op(op, dtype))
            oracle.check(out, want, f"{what} in place", zeros)


@pytest.mark.parametrize("form", ["equal", "uneven"])
@pytest.mark.parametrize("dtype", oracle.ARITHMETIC, ids=oracle.name)
def test_reduce_scatter(world, dtype, form):
    world.run(run_reduce_scatter, dtype, form)


def moved_counts(dtype):
    return (*SMALL, *large_counts(dtype))


def run_broadcast(rank, dtype):
    for i, count in enumerate(moved_counts(dtype)):
        given = inputs(rank, dtype, count, "bits")
        for root in {0, rank.size - 1, i % rank.size}:
            for layout in layouts(count, dtype):
                mine = Placed(given[rank.rank], layout)
                dist.broadcast(mine.tensor, root)
                mine.check(mine.shaped(given[root]), f"broadcast of {count} {layout} from {root}")


def run_all_gather(rank, dtype, form):
    n, me = rank.size, rank.rank
    for count in moved_counts(dtype):
        uneven = [(count + 5 * r) if r % 3 != 1 else 0 for r in range(n)]
        lengths = uneven if form == "uneven" else [count] * n
        given = [oracle.values(dtype, lengths[r], r, "bits") for r in range(n)]
        for layout in layouts(count, dtype):
            if layout == "transposed":
                continue
            mine = Placed(given[me], layout).tensor
            what = f"all_gather {form} of {lengths} {layout}"
            if form == "tensor":
                out = Placed(oracle.values(dtype, n * count, 9, "bits"), layout)
                dist.all_gather_into_tensor(out.tensor, mine)
                out.check(join(given), what)
            else:
                outs = [Placed(oracle.values(dtype, k, 9, "bits"), layout) for k in lengths]
                dist.all_gather([o.tensor for o in outs], mine)
                for r in range(n):
                    outs[r].check(given[r], f"{what}, part {r}")
        if form == "tensor":
            buffer = harness.place(oracle.values(dtype, n * count, 9, "bits"))
            slot = buffer[me * count : (me + 1) * count]
            _copy(slot, given[me])
            dist.all_gather_into_tensor(buffer, slot)
            oracle.check(buffer, join(given), f"{what} in place")


def join(parts):
    parts = [p for p in parts if p.numel()] or parts[:1]
    return (
        torch.cat([p.view(torch.uint8) for p in parts]).view(parts[0].dtype)
        if parts[0].numel()
        else parts[0]
    )


def run_gather_scatter(rank, dtype):
    n, me = rank.size, rank.rank
    for i, count in enumerate(moved_counts(dtype)):
        root = i % n
        given = inputs(rank, dtype, count, "bits")
        for layout in layouts(count, dtype):
            if layout == "transposed":
                continue
            mine = Placed(given[me], layout).tensor
            outs = (
                [Placed(oracle.values(dtype, count, 9, "bits"), layout) for _ in range(n)]
                if me == root
                else []
            )
            dist.gather(mine, [o.tensor for o in outs] or None, root)
            for r, out in enumerate(outs):
                out.check(given[r], f"gather of {count} {layout} to {root}, part {r}")

            out = Placed(oracle.values(dtype, count, 9, "bits"), layout)
            parts = [Placed(g, layout).tensor for g in given] if me == root else None
            dist.scatter(out.tensor, parts, root)
            out.check(given[me], f"scatter of {count} {layout} from {root}")


def run_all_to_all(rank, dtype):
    n, me = rank.size, rank.rank
    for count in moved_counts(dtype):
        base = count if count <= MEDIUM else count // n
        tables = {
            "equal": [[base] * n for _ in range(n)],
            "uneven": [
                [(base + 3 * s + r) if (s + r) % 3 else 0 for r in range(n)] for s in range(n)
            ],
            "one to one": [[base if (s + 1) % n == r else 0 for r in range(n)] for s in range(n)],
        }
        for shape, table in tables.items():
            given = [oracle.values(dtype, sum(table[s]), s, "bits") for s in range(n)]
            sends, receives = table[me], [table[s][me] for s in range(n)]
            want = [given[s].split(table[s])[me] for s in range(n)]
            what = f"all_to_all {shape} of {base}"
            for layout in layouts(count, dtype):
                if layout == "transposed":
                    continue
                out = Placed(oracle.values(dtype, sum(receives), 9, "bits"), layout)
                mine = Placed(given[me], layout).tensor
                if shape == "equal":
                    dist.all_to_all_single(out.tensor, mine)
                    oracle.check(out.tensor, join(want), f"{what} single, no splits, {layout}")
                dist.all_to_all_single(out.tensor, mine, receives, sends)
                out.check(join(want), f"{what} single {layout}")

                outs = [Placed(oracle.values(dtype, k, 9, "bits"), layout) for k in receives]
                parts = [Placed(p, layout).tensor for p in given[me].split(sends)]
                dist.all_to_all([o.tensor for o in outs], parts)
                for r in range(n):
                    outs[r].check(want[r], f"{what} list {layout}, part {r}")


@pytest.mark.parametrize("dtype", oracle.ALL, ids=oracle.name)
class TestMoved:
    def test_broadcast(self, world, dtype):
        world.run(run_broadcast, dtype)

    @pytest.mark.parametrize("form", ["tensor", "list", "uneven"])
    def test_all_gather(self, world, dtype, form):
        world.run(run_all_gather, dtype, form)

    def test_gather_scatter(self, world, dtype):
        world.run(run_gather_scatter, dtype)

    def test_all_to_all(self, world, dtype):
        world.run(run_all_to_all, dtype)

    def test_point_to_point(self, world, dtype):
        world.run(run_ring, dtype)


def run_ring(rank, dtype):
    """To the next rank and from the one before, blocking and not."""
    n, me = rank.size, rank.rank
    if n == 1:
        return
    after, before = (me + 1) % n, (me - 1) % n
    for count in moved_counts(dtype):
        for layout in layouts(count, dtype):
            mine = Placed(oracle.values(dtype, count, me, "bits"), layout)
            out = Placed(oracle.values(dtype, count, 9, "bits"), layout)
            want = out.shaped(oracle.values(dtype, count, before, "bits"))
            if me == 0:
                dist.send(mine.tensor, after)
                dist.recv(out.tensor, before)
            else:
                dist.recv(out.tensor, before)
                dist.send(mine.tensor, after)
            out.check(want, f"send of {count} {layout}")

            out = Placed(oracle.values(dtype, count, 9, "bits"), layout)
            works = [dist.isend(mine.tensor, after, tag=3), dist.irecv(out.tensor, before, tag=3)]
            for w in works:
                w.wait()
            out.check(want, f"isend of {count} {layout}")


def run_special_floats(rank, dtype):
    """NaN and infinities, each on one rank only."""
    nan, inf = float("nan"), float("inf")
    table = [[1, nan, inf, 1, inf, -inf, 0.0, nan], [1, 1, 1, -inf, -inf, -inf, 1, inf]]
    rows = [table[r] if r < 2 else [1] * 8 for r in range(rank.size)]
    given = [torch.tensor(row).to(dtype).repeat(40) for row in rows]
    for op in oracle.OPS:
        if oracle.allowed(dtype, op):
            mine = harness.place(given[rank.rank].clone())
            dist.all_reduce(mine, reduce_op(op, dtype))
            oracle.check(
                mine,
                oracle.reduce(given, op),
                f"all_reduce {op} of NaN and inf",
                oracle.zeros_alike(dtype, op),
            )


@pytest.mark.parametrize("dtype", oracle.FLOATS, ids=oracle.name)
def test_nan_and_infinity(world, dtype):
    world.run(run_special_floats, dtype)


def run_premul_tensor(rank):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        given = inputs(rank, dtype, 100, "general")
        mine = harness.place(given[rank.rank].clone())
        dist.all_reduce(
            mine, dist._make_nccl_premul_sum(torch.tensor([oracle.FACTOR], dtype=dtype))
        )
        oracle.check(mine, oracle.reduce(given, "PREMUL_SUM"), f"PREMUL_SUM by a tensor, {dtype}")


def test_premul_by_tensor(world):
    reduce_op("PREMUL_SUM")
    world.run(run_premul_tensor)


def run_shapes(rank):
    """Scalars, empty dimensions, channels-last, expanded and conjugated inputs."""
    n = rank.size
    t = torch.tensor(rank.rank + 1.0)
    dist.all_reduce(t)
    assert t.shape == ()
    assert t.item() == n * (n + 1) / 2
    t = torch.zeros(3, 0, 5)
    dist.all_reduce(t)
    t = torch.full((2, 3, 4, 5), float(rank.rank)).contiguous(memory_format=torch.channels_last)
    dist.all_reduce(t)
    assert (t == sum(range(n))).all()
    out = [torch.zeros(4, 3) for _ in range(n)]
    dist.all_gather(out, torch.tensor(float(rank.rank)).expand(4, 3))
    assert all((out[r] == r).all() for r in range(n))
    whole = torch.zeros(n, 2, 3)
    dist.all_gather_into_tensor(whole, torch.full((2, 3), float(rank.rank)))
    assert all((whole[r] == r).all() for r in range(n))
    z = torch.full((5,), 1 + 2j, dtype=torch.complex64).conj()
    outs = [torch.zeros(5, dtype=torch.complex64) for _ in range(n)]
    dist.all_gather(outs, z.resolve_conj())
    assert all((o == 1 - 2j).all() for o in outs)
    p = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        dist.all_reduce(p)
    assert (p == n).all()


def test_shapes(world):
    world.run(run_shapes)


def run_modes(rank):
    """Tensors of inference mode, in it and outside; and what the backend makes by itself."""
    with torch.inference_mode():
        strided, sparse = [torch.ones(8, 2)[:, 0]], [torch.eye(3).to_sparse()]
    strided.append(torch.ones(8, 2)[:, 0])
    sparse.append(torch.eye(3).to_sparse())
    for mode in nullcontext(), torch.inference_mode(), torch.device("meta"):
        with mode:
            works = [dist.all_reduce(t, async_op=True) for t in strided]
            for t in sparse:
                dist.all_reduce(t)
        for work in works:
            work.wait()
    for t in [*strided, *(t.to_dense().diagonal() for t in sparse)]:
        harness.expect((t == rank.size**3).all(), f"{t}")


def test_modes(world):
    world.run(run_modes)


# -- what must be refused


def refused(
    call, *words, what="", kinds=(ValueError, RuntimeError, TypeError, NotImplementedError)
):
    try:
        call()
    except kinds as e:
        text = str(e)
        harness.expect(len(text) > 10, f"{what}: an error that says nothing: {text!r}")
        for word in words:
            harness.expect(word in text, f"{what}: the error does not name {word!r}: {text}")
        return
    harness.expect(False, f"{what}: no error")


def still_works(rank):
    t = torch.ones(5) * (rank.rank + 1)
    dist.all_reduce(t)
    assert t.tolist() == [rank.size * (rank.size + 1) / 2] * 5


def run_meaningless(rank, dtype):
    group = dist.group.WORLD
    opaque = dtype in oracle.OPAQUE  # no op has a meaning, so none need be named
    for op in oracle.OPS:
        if oracle.allowed(dtype, op):
            continue
        t = oracle.values(dtype, 8 * rank.size, rank.rank)
        options: Any = dist.AllreduceOptions()
        options.reduceOp = reduce_op(op, dtype)
        words = [] if opaque else [op]
        refused(
            lambda t=t, o=options: group.allreduce([t], o).wait(), *words, what=f"allreduce {op}"
        )
        options = dist.ReduceOptions()
        options.reduceOp = reduce_op(op, dtype)
        options.rootRank = 0
        refused(lambda t=t, o=options: group.reduce([t], o).wait(), *words, what=f"reduce {op}")
        options = dist.ReduceScatterOptions()
        options.reduceOp = reduce_op(op, dtype)
        call = partial(group._reduce_scatter_base, t[:8], t, options)
        refused(lambda c=call: c().wait(), *words, what=f"reduce_scatter {op}")
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = reduce_op(op, dtype)
        call = partial(group.allreduce_coalesced, [t, t.clone()], options)
        refused(lambda c=call: c().wait(), *words, what=f"allreduce_coalesced {op}")
        still_works(rank)


@pytest.mark.parametrize(
    "dtype",
    [d for d in oracle.ALL if not all(oracle.allowed(d, op) for op in oracle.OPS)],
    ids=oracle.name,
)
def test_meaningless_reductions_are_refused(world, dtype):
    world.run(run_meaningless, dtype)


def run_bad_arguments(rank):
    n, me = rank.size, rank.rank
    world = dist.group.WORLD
    one = torch.ones(4)

    def broadcast_from(root):
        options = dist.BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        world.broadcast([one], options).wait()

    calls = {
        "broadcast root too large": lambda: broadcast_from(n),
        "broadcast root negative": lambda: broadcast_from(-1),
        "no tensor": lambda: world.allreduce([]).wait(),
        "two tensors": lambda: world.allreduce([one, one.clone()]).wait(),
        "short output list": lambda: dist.all_gather([torch.zeros(4)] * (n - 1), one),
        "long output list": lambda: dist.all_gather([torch.zeros(4)] * (n + 1), one),
        "other dtype in the output": lambda: dist.all_gather(
            [torch.zeros(4, dtype=torch.int32)] * n, one
        ),
        "small output": lambda: dist.all_gather_into_tensor(torch.zeros(4 * n - 1), one),
        "other output dtype": lambda: dist.all_gather_into_tensor(
            torch.zeros(4 * n, dtype=torch.int32), one
        ),
        "input not size x output": lambda: dist.reduce_scatter_tensor(
            torch.zeros(4), torch.zeros(4 * n + 1)
        ),
        "splits beyond the input": lambda: dist.all_to_all_single(
            torch.zeros(4 * n), torch.zeros(4 * n), [4] * n, [5] * n
        ),
        "wrong number of splits": lambda: dist.all_to_all_single(
            torch.zeros(4 * n), torch.zeros(4 * n), [4 * n] + [0] * n, [4] * n
        ),
        "negative split": lambda: dist.all_to_all_single(
            torch.zeros(4), torch.zeros(4), [5] + [-1] + [0] * (n - 2), [4] + [0] * (n - 1)
        ),
        "peer too large": lambda: world.send([one], n, 0).wait(),
        "peer negative": lambda: world.recv([one], -2, 0).wait(),
        "peer is itself": lambda: dist.send(one, me),
        "negative tag": lambda: world.send([one], (me + 1) % n, -1).wait(),
    }
    if n == 1:
        del calls["negative split"]
    for what, call in calls.items():
        refused(call, what=what)
        still_works(rank)


def test_bad_arguments_are_refused(world):
    world.run(run_bad_arguments)


# -- point to point


def run_tags(rank):
    """Messages of one pair meet by tag, whatever their order; equal tags keep their order."""
    n, me = rank.size, rank.rank
    if me == 0:
        for peer in range(1, n):
            works = [
                dist.isend(torch.full((tag + 1,), float(tag)), peer, tag=tag) for tag in range(20)
            ]
            works += [dist.isend(torch.tensor([float(i)]), peer, tag=100) for i in range(50)]
            for w in works:
                w.wait()
    else:
        same = [torch.zeros(1) for _ in range(50)]
        works = [dist.irecv(t, 0, tag=100) for t in same]
        outs = {tag: torch.zeros(tag + 1) for tag in reversed(range(20))}
        works += [dist.irecv(t, 0, tag=tag) for tag, t in outs.items()]
        for w in works:
            w.wait()
        assert [t.item() for t in same] == list(range(50))
        assert all((t == tag).all() for tag, t in outs.items())


def run_any_source(rank):
    n, me = rank.size, rank.rank
    if me == 0:
        came = set()
        for _ in range(n - 1):
            t = torch.zeros(1000)
            sender = dist.recv(t, tag=5)
            assert (t == sender).all()
            came.add(sender)
        assert came == set(range(1, n))
        t = torch.zeros(70000)
        for _ in range(n - 1):
            w = dist.irecv(t, tag=6)
            w.wait()
            assert (t == w._source_rank()).all()
    else:
        dist.send(torch.full((1000,), float(me)), 0, tag=5)
        dist.send(torch.full((70000,), float(me)), 0, tag=6)


def run_batch(rank):
    """Large messages both ways between all pairs: hangs where point-to-point is not
    asynchronous."""
    n, me = rank.size, rank.rank
    others = [r for r in range(n) if r != me]
    for count in (1, 1 << 20):
        outs = {r: torch.zeros(count) for r in others}
        ops = [dist.P2POp(dist.isend, torch.full((count,), float(100 * me + r)), r) for r in others]
        ops += [dist.P2POp(dist.irecv, outs[r], r) for r in others]
        for w in dist.batch_isend_irecv(ops):
            w.wait()
        assert all((outs[r] == 100 * r + me).all() for r in others)


def run_beside_collectives(rank):
    """A receive that waits holds up no collective, though it was posted first."""
    n, me = rank.size, rank.rank
    t = torch.zeros(1 << 18)
    pending = dist.irecv(t, (me - 1) % n)
    still_works(rank)
    dist.barrier()
    assert not pending.is_completed()
    dist.barrier()
    sent = dist.isend(torch.full((1 << 18,), float(me)), (me + 1) % n)
    still_works(rank)
    pending.wait()
    sent.wait()
    assert (t == (me - 1) % n).all()


def run_to_itself(rank):
    """torch.distributed refuses it, the group does not: the two meet as any two do."""
    group, out = dist.group.WORLD, torch.zeros(70000)
    works = [group.send([torch.full((70000,), 7.0)], rank.rank, 0), group.recv([out], rank.rank, 0)]
    for w in works:
        w.wait()
    assert (out == 7).all()


def run_many_sends_unmatched(rank):
    """The receiver posts late: senders and their other traffic must not be stuck for ever."""
    if rank.rank == 0:
        works = [dist.isend(torch.full((10000,), float(i)), 1, tag=i) for i in range(100)]
        still_works(rank)
        for w in works:
            w.wait()
    else:
        still_works(rank)
        if rank.rank == 1:
            for i in reversed(range(100)):
                t = torch.zeros(10000)
                dist.recv(t, 0, tag=i)
                assert (t == i).all()


@pytest.mark.parametrize(
    "case",
    [
        run_tags,
        run_any_source,
        run_batch,
        run_beside_collectives,
        run_to_itself,
        run_many_sends_unmatched,
    ],
)
def test_point_to_point(world, case):
    if world.size == 1:
        pytest.skip("needs a peer")
    world.run(case)


# -- barriers, batches, works


def run_barrier(rank):
    for _ in range(20):
        entered = time.monotonic()
        dist.barrier()
        left = time.monotonic()
        times: list[Any] = [None] * rank.size
        dist.all_gather_object(times, (entered, left))
        assert max(e for e, _ in times) <= min(x for _, x in times)


def monitored_barrier(**kw):
    # Of the group: before torch 2.14 dist.monitored_barrier() serves no backend but Gloo.
    dist.group.WORLD.monitored_barrier(**kw)


def run_monitored_barrier(rank):
    for wait_all in (False, True):
        monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=wait_all)
        still_works(rank)


@pytest.mark.parametrize("case", [run_barrier, run_monitored_barrier])
def test_barrier(world, case):
    world.run(case)


def run_all_reduce_coalesced(rank):
    n = rank.size
    counts = (1, 0, 70001, 33)
    given = [
        [oracle.values(torch.float32, c, r, "general", seed=i) for r in range(n)]
        for i, c in enumerate(counts)
    ]
    mine = [g[rank.rank].clone() for g in given]
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.SUM
    dist.group.WORLD.allreduce_coalesced(mine, options).wait()
    for t, g in zip(mine, given, strict=True):
        oracle.check(t, oracle.reduce(g, "SUM"), "allreduce_coalesced")


def run_coalescing_all_reduce(rank):
    given = [inputs(rank, torch.float32, c, "general") for c in (5, 1000, 70000)]
    mine = [g[rank.rank].clone() for g in given]
    with dist._coalescing_manager(async_ops=True) as cm:
        for t in mine:
            dist.all_reduce(t)
    cm.wait()
    for t, g in zip(mine, given, strict=True):
        oracle.check(t, oracle.reduce(g, "SUM"), "coalesced all_reduce")


def run_coalescing_all_gather(rank):
    given = [inputs(rank, torch.float32, c, "bits") for c in (5, 1000, 70000)]
    outs = [torch.zeros(rank.size * g[0].numel()) for g in given]
    with dist._coalescing_manager():
        for out, g in zip(outs, given, strict=True):
            dist.all_gather_into_tensor(out, g[rank.rank])
    for out, g in zip(outs, given, strict=True):
        oracle.check(out, join(g), "coalesced all_gather")


def run_coalescing_reduce_scatter(rank):
    n, me = rank.size, rank.rank
    given = [inputs(rank, torch.float32, n * c, "general") for c in (5, 1000, 70000)]
    outs = [torch.zeros(g[0].numel() // n) for g in given]
    with dist._coalescing_manager():
        for out, g in zip(outs, given, strict=True):
            dist.reduce_scatter_tensor(out, g[me])
    for out, g in zip(outs, given, strict=True):
        oracle.check(out, oracle.reduce(g, "SUM").chunk(n)[me], "coalesced reduce_scatter")


def run_coalescing_p2p(rank):
    """With a device the manager calls the backend's own start and end, where it has them."""
    n, me = rank.size, rank.rank
    if n == 1:
        return
    out = torch.zeros(70000)
    ops = [
        dist.P2POp(dist.irecv, out, (me - 1) % n),
        dist.P2POp(dist.isend, torch.full((70000,), float(me)), (me + 1) % n),
    ]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
    assert (out == (me - 1) % n).all()


def run_allgather_coalesced(rank):
    """The list form: a list of outputs for each rank."""
    n, me = rank.size, rank.rank
    counts = (5, 0, 1000)
    given = [[oracle.values(torch.float32, c, r, "bits") for c in counts] for r in range(n)]
    outs = [[torch.zeros(c) for c in counts] for _ in range(n)]
    dist.group.WORLD.allgather_coalesced(outs, given[me]).wait()
    for r, i in itertools.product(range(n), range(len(counts))):
        oracle.check(outs[r][i], given[r][i], "allgather_coalesced")


@pytest.mark.parametrize(
    "case",
    [
        run_all_reduce_coalesced,
        run_coalescing_all_reduce,
        run_coalescing_all_gather,
        run_coalescing_reduce_scatter,
        run_coalescing_p2p,
        run_allgather_coalesced,
    ],
)
def test_coalescing(world, case):
    world.run(case)


def run_objects(rank):
    n, me = rank.size, rank.rank
    thing = {"rank": me, "data": list(range(100 * me))}
    outs: Any = [None] * n
    dist.all_gather_object(outs, thing)
    assert [o["rank"] for o in outs] == list(range(n))
    assert len(outs[n - 1]["data"]) == 100 * (n - 1)
    outs = [None] * n if me == n - 1 else None
    dist.gather_object(thing, outs, n - 1)
    assert outs is None or [o["rank"] for o in outs] == list(range(n))
    box: list[Any] = [thing, None] if me == 0 else [None, None]
    dist.broadcast_object_list(box, 0)
    assert box[0]["rank"] == 0
    out = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(n)] if me == 0 else None, 0)
    assert out == [f"for {me}"]
    if n > 1:
        if me == 0:
            dist.send_object_list([thing, "x"], 1)
        elif me == 1:
            box = [None, None]
            dist.recv_object_list(box, 0)
            assert box == [{"rank": 0, "data": []}, "x"]


def test_objects(world):
    world.run(run_objects)


def run_works(rank):
    """Asynchronous works: any order of waiting, futures and what they chain, results."""
    n = rank.size
    tensors = [torch.full((i % 50 + 1,), float(rank.rank)) for i in range(300)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for w in reversed(works):
        w.wait()
        assert w.is_completed()
    assert all((t == sum(range(n))).all() for t in tensors)

    t = torch.ones(100000)
    w = dist.all_reduce(t, async_op=True)
    doubled = w.get_future().then(lambda f: f.value()[0] * 2)
    assert (doubled.wait() == 2 * n).all()
    assert w.get_future().done()
    assert w.is_completed()
    assert w.is_success()
    assert w.wait()

    future = dist.group.WORLD.broadcast(t, 0).get_future()
    future.wait()

    # Completion needs nobody who waits.
    w = dist.all_reduce(t, async_op=True)
    harness.until(w.is_completed, what="a work that nobody waits for is done")
    w = dist.barrier(async_op=True)
    harness.until(w.is_completed, what="a barrier that nobody waits for is done")
    seen = []
    w = dist.all_reduce(t, async_op=True)
    w.get_future().add_done_callback(lambda f: seen.append(f))
    harness.until(lambda: seen, what="a callback is called with nobody waiting")


def told_by(work):
    """What a callback of the work's future finds."""
    return work.get_future().then(
        lambda f: (f.done(), work.is_completed(), work.is_success(), work.wait())
    )


def run_order_of_completion(rank):
    """Whoever is told of the end first finds it in the work and in its future, and can wait for no
    more."""
    t = torch.ones(10)
    for _ in range(100):
        work = dist.all_reduce(t, async_op=True)
        assert told_by(work).wait() == (True, True, True, True)
        work = dist.all_reduce(t, async_op=True)
        told = told_by(work)
        assert work.wait()
        assert work.get_future().done()
        assert told.wait() == (True, True, True, True)
        work = dist.all_reduce(t, async_op=True)
        told = told_by(work)
        while not work.is_completed():
            pass
        assert work.get_future().done()
        assert told.wait() == (True, True, True, True)


def run_order_of_failure(rank):
    rank.init()
    rank.limit(1)
    if rank.rank == 0:
        work = dist.all_reduce(torch.ones(10), async_op=True)
        told = work.get_future().then(lambda f: (f.done(), work.is_completed(), work.is_success()))
        assert told.wait() == (True, True, False)
        with pytest.raises(goccl.OperationTimeoutError) as error:
            work.wait()
        assert error.value.absent == [1]


def run_dropped_works(rank):
    """A work may be forgotten, and its tensor with it."""
    for _ in range(50):
        dist.all_reduce(torch.ones(100000), async_op=True)
    still_works(rank)


def run_sequence(rank):
    # Of the backend: before torch 2.14 a group asks no backend but torch's own.
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    for _ in range(5):
        still_works(rank)
    assert backend._get_sequence_number_for_group() == before + 5


@pytest.mark.parametrize(
    "case", [run_works, run_order_of_completion, run_dropped_works, run_sequence]
)
def test_works(world, case):
    world.run(case)


def test_order_of_failure(make_world):
    make_world(2).run(run_order_of_failure)


# -- failing monitored barriers, and sizes beyond 32 bits


def run_missing(rank, absent, wait_all):
    rank.init()
    dist.barrier()
    try:
        if rank.rank not in absent:
            monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=wait_all)
    except goccl.OperationTimeoutError as e:
        return e.absent
    finally:
        rank.tell("past")
        rank.hear()
    return []


@pytest.mark.parametrize("wait_all", [False, True])
def test_monitored_barrier_names_who_is_missing(make_world, wait_all):
    world = make_world(4)
    world.start(run_missing, (1, 3), wait_all)
    for r in range(4):
        world.told(r)
    world.say("go")
    missing = [1, 3] if wait_all else [1]
    assert world.values(world.finish()) == [missing, [], missing, []]
    world.healthy = False


def run_huge(rank):
    rank.init()
    count = (4 << 30) + 3
    t = torch.empty(count, dtype=torch.uint8)
    places = torch.tensor(
        [0, 1, 1 << 20, (2 << 30) - 1, 2 << 30, (4 << 30) - 1, 4 << 30, count - 1]
    )
    t.fill_(rank.rank + 1)
    dist.all_reduce(t)
    assert (t[places] == 3).all()
    assert int(t.min()) == int(t.max()) == 3
    t[places] = rank.rank * torch.arange(8, dtype=torch.uint8)
    dist.broadcast(t, 1)
    assert t[places].tolist() == list(range(8))
    if rank.rank == 0:
        dist.send(t, 1)
    else:
        t.zero_()
        dist.recv(t, 0)
        assert t[places].tolist() == list(range(8))
        assert int(t[-2]) == 3


def available_memory():
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) << 10


@pytest.mark.slow
@pytest.mark.parametrize("transport", harness.TRANSPORTS)
def test_more_than_4_gib(make_world, transport):
    if available_memory() < 12 << 30:
        pytest.skip("needs 12 GiB of free memory")
    make_world(2, env={"GOCCL_TRANSPORT": transport}).run(run_huge, deadline=600)
