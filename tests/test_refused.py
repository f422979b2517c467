"""Calls that are refused for their arguments: on some ranks, which all ranks are told at once, and
on all ranks, after which the group goes on. Real processes."""

import time
from pathlib import Path

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
from harness import AT_ONCE
from torch._subclasses.fake_tensor import FakeTensorMode

META = torch.ones(8, device="meta")

both_transports = pytest.mark.parametrize("transport", harness.TRANSPORTS)


def join(rank):
    rank.init()


def warm_up(rank):
    rank.init()
    check(rank)


def check(rank):
    t = torch.ones(1000)
    dist.all_reduce(t)
    assert (t == rank.size).all()


def start_batch():
    dist.group.WORLD._start_coalescing(torch.device("cpu"))


def end_batch():
    dist.group.WORLD._end_coalescing(torch.device("cpu")).wait()


def backend():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def all_reduce(t, op=dist.ReduceOp.SUM):
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return dist.group.WORLD.allreduce([t], options)


def root(options, number):
    options.rootRank = number
    return options


# What a rank may be refused, by the shim or by the core; what its error and that of the others say.


def wrong_op(size):
    """By the core."""
    dist.all_reduce(torch.ones(8), dist.ReduceOp.BAND)


def wrong_root(size):
    dist.group.WORLD.broadcast([torch.ones(8)], root(dist.BroadcastOptions(), size)).wait()


def wrong_length(size):
    dist.all_gather([torch.ones(8)] * (size + 1), torch.ones(8))


def wrong_size(size):
    dist.all_gather_into_tensor(torch.ones(8 * size + 1), torch.ones(8))


def wrong_type(size):
    dist.group.WORLD.allgather([[torch.ones(8, dtype=torch.int64)] * size], [torch.ones(8)]).wait()


def wrong_splits(size):
    dist.all_to_all_single(torch.ones(8), torch.ones(8), [1] * size, [9] * size)


def irreducible(size):
    dist.all_reduce(torch.zeros(8, dtype=torch.bits8))


def overlapping(size):
    dist.all_reduce(torch.ones(1).expand(8))


def overlapping_sides(size):
    """By the core."""
    t = torch.ones(8 * size + 1)
    dist.all_gather_into_tensor(t[1:], t[:8])


def sparse(size):
    dist.all_reduce(torch.ones(8, device="cpu").to_sparse(), dist.ReduceOp.MAX)


def meta(size):
    backend().allreduce([META])


def meta_in_a_list(size):
    backend().allgather([[torch.ones(8)] * (size - 1) + [META]], [torch.ones(8)])


def fake(size):
    with FakeTensorMode() as mode:
        tensor = mode.from_tensor(torch.ones(8))
    goccl.Communicator().all_reduce_(tensor)


def in_a_batch(size):
    """By the core, at the end."""
    start_batch()
    all_reduce(torch.ones(8))
    all_reduce(torch.ones(8), dist.ReduceOp.BAND)
    all_reduce(torch.ones(8))
    end_batch()


def while_recording(size):
    """By the shim, which closes the batch."""
    start_batch()
    all_reduce(torch.ones(8))
    all_reduce(torch.ones(1).expand(8))


def send_while_recording(size):
    start_batch()
    all_reduce(torch.ones(8))
    dist.group.WORLD.send([torch.ones(8)], size, 0)


CASES = {
    wrong_op: "BAND",
    wrong_root: "invalid root rank",
    wrong_length: "output list size",
    wrong_size: "`output`",
    wrong_type: "invalid tensor type",
    wrong_splits: "Split sizes",
    irreducible: "cannot be reduced",
    overlapping: "share one place",
    overlapping_sides: "overlap",
    sparse: "ReduceOp.SUM",
    meta: "`tensor` is on meta",
    meta_in_a_list: "is on meta",
    fake: "`tensor` has no memory of its own",
    in_a_batch: "BAND",
    while_recording: "share one place",
    send_while_recording: "invalid destination rank",
}
every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)


def refused(case, size):
    """The text of the error with which a call is refused."""
    try:
        case(size)
    except (ValueError, TypeError) as e:
        text = str(e)
    else:
        text = "the call was not refused"
    harness.expect(CASES[case].lower() in text.lower(), f"{case.__name__}: {text}")
    return text


def told(call):
    """The error that tells of another's refusal."""
    try:
        call()
    except goccl.Error as e:
        return e
    raise AssertionError("no error")


def refused_here_only(rank, case, victim, order):
    """One rank is refused before the others call, while they wait, or at any time."""
    if rank.rank == victim:
        if order == "last":
            rank.hear()
        text = refused(case, rank.size)
        rank.tell("refused")
        return text, told(lambda: check(rank))
    if order == "first":
        rank.hear()
    rank.tell("calling")
    return told(lambda: check(rank)), told(lambda: check(rank))


def assert_told(outcomes, values, victim, case):
    for outcome, (first, later) in zip(outcomes, values, strict=True):
        for error in [later] if outcome.rank == victim else [first, later]:
            assert type(error) is goccl.MismatchError, error
            assert error.calls[victim].startswith("a call that was refused: "), error.calls
            assert CASES[case].lower() in error.calls[victim].lower(), error.calls


@pytest.mark.also_on_device
@both_transports
@every_case
def test_refused_on_one_rank(make_world, transport, case):
    size, victim = 3, 1
    world = make_world(size, env={"GOCCL_TRANSPORT": transport})
    world.run(warm_up)
    since = time.monotonic()
    world.start(refused_here_only, case, victim, "any")
    outcomes = world.finish()
    assert_told(outcomes, world.values(outcomes), victim, case)
    assert max(o.at for o in outcomes) - since < AT_ONCE


@both_transports
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("before", [join, warm_up])
def test_refused_before_and_while_others_wait(make_world, transport, size, order, before):
    victim = size - 1
    others = range(size - 1)
    world = make_world(size, env={"GOCCL_TRANSPORT": transport})
    world.run(before)
    world.start(refused_here_only, wrong_op, victim, order)
    if order == "first":
        assert world.told(victim) == "refused"
        world.say("go", others)
    else:
        assert [world.told(r) for r in others] == ["calling"] * len(others)
        world.say("go", [victim])
    since = time.monotonic()
    outcomes = world.finish()
    assert_told(outcomes, world.values(outcomes), victim, wrong_op)
    assert max(o.at for o in outcomes) - since < AT_ONCE


def end_by_refusal(rank, victim):
    if rank.rank == victim:
        refused(wrong_op, rank.size)
        dist.destroy_process_group()
        return None
    return told(lambda: check(rank))


@both_transports
def test_refused_rank_leaves(make_world, transport):
    """As after an exception that nobody catches."""
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.run(warm_up)
    since = time.monotonic()
    world.start(end_by_refusal, 0)
    outcomes = world.finish()
    for error in world.values(outcomes)[1:]:
        named = error.calls if isinstance(error, goccl.MismatchError) else error.ranks
        assert 0 in named, error
    assert max(o.at for o in outcomes) - since < AT_ONCE


def refused_everywhere(rank, rounds):
    for _ in range(rounds):
        for case in CASES:
            refused(case, rank.size)
    check(rank)


@both_transports
@pytest.mark.parametrize("size", [1, 2, 3])
def test_refused_on_all_ranks(make_world, transport, size):
    world = make_world(size, env={"GOCCL_TRANSPORT": transport})
    world.run(join)
    for _ in range(3):
        world.run(refused_everywhere, 3)


def numbers_after_refusals(rank):
    """Torch's sequence number, after refusals on all ranks, and after a mismatch; and that of the
    error."""
    rank.init()
    group, numbers = dist.group.WORLD, []
    for case in CASES:
        refused(case, rank.size)
        check(rank)
        numbers.append(group._get_sequence_number_for_group())
    work = (
        dist.all_reduce(torch.ones(8), async_op=True)
        if rank.rank == 0
        else dist.barrier(async_op=True)
    )
    numbers.append(
        work._get_sequence_number() if hasattr(work, "_get_sequence_number") else numbers[-1] + 1
    )
    error = told(work.wait)
    refused(wrong_op, rank.size)  # of a group that has failed
    return [*numbers, group._get_sequence_number_for_group()], error.sequence


def test_sequence_numbers_count_refusals(make_world):
    """Torch's and the library's are one number."""
    for numbers, sequence in make_world(2).run(numbers_after_refusals):
        assert numbers == [*range(2, 2 * len(CASES) + 1, 2), 2 * len(CASES) + 1, 2 * len(CASES) + 1]
        assert sequence == numbers[-1]


def numbers_of_works(rank):
    """(of a work, of the group after its start), of calls and batches between refusals."""
    rank.init()
    group, numbers = dist.group.WORLD, []

    def started(work):
        numbers.append((work._get_sequence_number(), group._get_sequence_number_for_group()))
        work.wait()

    for case in (wrong_op, wrong_root):
        refused(case, rank.size)
        started(dist.all_reduce(torch.ones(8), async_op=True))
        start_batch()
        for _ in range(3):
            all_reduce(torch.ones(8))
        started(group._end_coalescing(torch.device("cpu")))
        started(dist.barrier(async_op=True))
    refused(wrong_op, rank.size)
    return numbers, group._get_sequence_number_for_group()


@pytest.mark.skipif(
    not hasattr(dist.Work, "_get_sequence_number"), reason="torch tells no work's number"
)
def test_works_have_the_number_of_their_last_collective(make_world):
    for numbers, last in make_world(2).run(numbers_of_works):
        assert numbers == [(n, n) for n in (2, 5, 6, 8, 11, 12)]
        assert last == 13


def refused_in_different_ways(rank):
    """Ranks need not be refused the same, nor after as many calls of a batch."""
    cases = list(CASES)
    for i in range(len(cases)):
        refused(cases[(i + rank.rank) % len(cases)], rank.size)
    check(rank)


@both_transports
def test_refused_in_different_ways(make_world, transport):
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.run(join)
    world.run(refused_in_different_ways)


def holds(rank):
    """Threads, descriptors, and KiB of memory."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["Threads"]), len(harness.descriptors()), int(status["VmRSS"].split()[0])


@both_transports
def test_refusals_leave_nothing(make_world, transport):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    world.run(join)
    world.run(refused_everywhere, 1500)  # until Go's heap has its size
    before = world.run(holds)
    world.run(refused_everywhere, 2000)
    for (threads, fds, memory), now in zip(before, world.run(holds), strict=True):
        assert now[0] <= threads + 4  # Go starts one when it likes
        assert now[1] <= fds
        # The heap breathes by 6 MiB. Of 26,000 calls, 320 bytes each would be seen.
        assert now[2] <= memory + (8 << 10)


def point_to_point(rank):
    """Concerns nobody else."""
    group = dist.group.WORLD
    for call in (group.send, group.recv):
        if rank.rank == 0:
            try:
                call([torch.ones(8)], rank.size, 0)
            except ValueError:
                continue
            raise AssertionError("the call was not refused")
    check(rank)


def test_refused_point_to_point(make_world):
    world = make_world(2)
    world.run(join)
    world.run(point_to_point)


# -- tensors without data, and others that are no plain CPU tensors


def calls_with(bad, size):
    """Each call that the backend sees, with one tensor that it must refuse, by a name."""
    b, one, whole = backend(), torch.ones(8), torch.ones(8 * size)
    some = [one.clone() for _ in range(size)]
    mixed = [*some[1:], bad]
    return {
        "broadcast": lambda: b.broadcast([bad]),
        "allreduce": lambda: b.allreduce([bad]),
        "allreduce_coalesced": lambda: b.allreduce_coalesced([one, bad]),
        "reduce": lambda: b.reduce([bad]),
        "allgather in": lambda: b.allgather([some], [bad]),
        "allgather out": lambda: b.allgather([mixed], [one]),
        "_allgather_base in": lambda: b._allgather_base(whole, bad),
        "_allgather_base out": lambda: b._allgather_base(bad, torch.ones(8 // size)),
        "gather": lambda: b.gather([some] if b.rank() == 0 else [], [bad]),
        "scatter": lambda: b.scatter([bad], [some] if b.rank() == 0 else []),
        "reduce_scatter in": lambda: b.reduce_scatter([one], [mixed]),
        "reduce_scatter out": lambda: b.reduce_scatter([bad], [some]),
        "_reduce_scatter_base": lambda: b._reduce_scatter_base(bad, whole),
        "alltoall_base in": lambda: b.alltoall_base(one, bad, [], []),
        "alltoall_base out": lambda: b.alltoall_base(bad, one, [], []),
        "alltoall in": lambda: b.alltoall(some, mixed),
        "alltoall out": lambda: b.alltoall(mixed, some),
        "send": lambda: b.send([bad], 0, 0),
        "recv": lambda: b.recv([bad], 0, 0),
        "recv_anysource": lambda: b.recv_anysource([bad], 0),
    }


def quantized():
    return torch.quantize_per_tensor(torch.ones(8), 0.5, 0, torch.quint8)


UNFIT = {
    "meta": (lambda: META, "is on meta, where it has no data"),
    "sparse meta": (
        lambda: torch.sparse_coo_tensor([[0]], [1.0], (8,), device="meta"),
        "has layout Sparse",
    ),
    "csr": (lambda: torch.ones(2, 4).to_sparse_csr(), "has layout SparseCsr"),
    "quantized": (quantized, "quantized"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(8)]), "nested"),
    "zero": (lambda: torch._efficientzerotensor(8), "has no memory of its own"),
    "expanded": (lambda: torch.ones(1).expand(8), "share one place"),
}


# What only reads its tensor, on some rank.
READ = {
    *("broadcast", "reduce", "allgather in", "_allgather_base in", "gather"),
    *("reduce_scatter in", "alltoall_base in", "alltoall in", "send"),
}


def run_unfit(rank, kind):
    make, text = UNFIT[kind]
    for name, call in calls_with(make(), rank.size).items():
        if kind == "sparse meta" and name == "allreduce":
            continue  # of its own text: there is no data
        if kind == "expanded" and name in READ:
            continue
        try:
            call()
        except (ValueError, TypeError) as e:
            harness.expect(text in str(e), f"{name}: {e}")
        else:
            harness.expect(False, f"{name} was not refused")
        check(rank)


@pytest.mark.parametrize("kind", UNFIT)
def test_tensors_that_are_no_plain_ones(make_world, kind):
    world = make_world(2)
    world.run(join)
    world.run(run_unfit, kind)


def run_kept_by_torch(rank):
    """Torch has kernels of its own for meta tensors, and a call with one reaches no backend. Torch
    does not look into lists of lists."""
    b, one = backend(), torch.ones(8)
    before = b._get_sequence_number_for_group()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(one)
        dist.all_reduce(fake)
    for call in (
        lambda: dist.all_reduce(META),
        lambda: dist.broadcast(META, 0),
        lambda: dist.all_gather([one, one], META),
        lambda: dist.all_gather_into_tensor(torch.ones(16, device="meta"), META),
        lambda: dist.all_to_all([torch.ones(8), torch.ones(8)], [one, META]),
    ):
        call()
    assert b._get_sequence_number_for_group() == before
    for call in (
        lambda: dist.all_gather([one, META], one),
        lambda: dist.reduce_scatter(one, [one, META]),
    ):
        with pytest.raises(ValueError, match="is on meta"):
            call()
        check(rank)


@pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "Meta"),
    reason="this torch has no such kernels",
)
def test_meta_tensors_that_torch_keeps_from_backends(make_world):
    world = make_world(2)
    world.run(join)
    world.run(run_kept_by_torch)
