"""goccl.Communicator: blocking collectives that share their group's order with torch.distributed.
Real processes; results against an oracle."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import goccl
import harness
import numpy as np
import oracle
import pytest
import torch
import torch.distributed as dist
from harness import AT_ONCE
from test_collectives import (
    WIDE,  # noqa: F401  for conftest.py
    Placed,
    inputs,
    join,
    layouts,
    moved_counts,
    reduce_op,
    reduction_cases,
    refused,
)

SIZES = (1, 2, 3)
PRELOAD = ("torch.profiler",)

both_transports = pytest.mark.parametrize("transport", harness.TRANSPORTS)


def op_names(op, dtype):
    """Every way to name a reduce operation."""
    if op == "PREMUL_SUM":
        return [reduce_op(op, dtype)]
    return [op.lower(), getattr(dist.ReduceOp, op), dist.ReduceOp(getattr(dist.ReduceOp, op))]


def still_works(rank, comm):
    t = torch.ones(5) * (rank.rank + 1)
    comm.all_reduce_(t)
    assert t.tolist() == [rank.size * (rank.size + 1) / 2] * 5


# -- results


def run_reductions(rank, dtype):
    comm, n, me = goccl.Communicator(), rank.size, rank.rank
    for i, (count, op, kind) in enumerate(reduction_cases(dtype)):
        names = op_names(op, dtype)
        name, zeros = names[i % len(names)], oracle.zeros_alike(dtype, op)
        given = inputs(rank, dtype, count, kind)
        want = oracle.reduce(given, op)
        whole = inputs(rank, dtype, count * n, kind)
        part = oracle.reduce(whole, op)[me * count : (me + 1) * count]
        for layout in layouts(count, dtype):
            what = f"{op} of {count} {kind} {layout}"
            mine = Placed(given[me], layout)
            comm.all_reduce_(mine.tensor, name)
            mine.check(mine.shaped(want), f"all_reduce_ {what}", zeros)

            mine = Placed(given[me], layout)
            root = i % n
            comm.reduce_(mine.tensor, root, name)
            result = want if me == root else given[me]
            mine.check(mine.shaped(result), f"reduce_ {what}", zeros and me == root)

            if layout == "transposed":
                continue
            out = Placed(torch.zeros_like(part), layout)
            source = Placed(whole[me], layout).tensor
            comm.reduce_scatter_into(out.tensor, source, name)
            out.check(part, f"reduce_scatter_into {what}", zeros)
            oracle.check(source, whole[me], f"reduce_scatter_into {what}: input")


@pytest.mark.parametrize("dtype", oracle.ARITHMETIC, ids=oracle.name)
def test_reductions(world, dtype):
    world.run(run_reductions, dtype)


def run_moves(rank, dtype):
    comm, n, me = goccl.Communicator(), rank.size, rank.rank
    for i, count in enumerate(moved_counts(dtype)):
        given = inputs(rank, dtype, count, "bits")
        for layout in layouts(count, dtype):
            mine, root = Placed(given[me], layout), i % n
            comm.broadcast_(mine.tensor, root)
            mine.check(mine.shaped(given[root]), f"broadcast_ of {count} {layout} from {root}")
            if layout == "transposed":
                continue
            out = Placed(oracle.values(dtype, n * count, 9, "bits"), layout)
            comm.all_gather_into(out.tensor, Placed(given[me], layout).tensor)
            out.check(join(given), f"all_gather_into of {count} {layout}")

            each = count // n
            parts = [given[s][me * each : (me + 1) * each] for s in range(n)]
            out = Placed(oracle.values(dtype, n * each, 9, "bits"), layout)
            comm.all_to_all_into(out.tensor, Placed(given[me][: n * each], layout).tensor)
            out.check(join(parts), f"all_to_all_into of {each} {layout}")

            out = Placed(oracle.values(dtype, n * count, 9, "bits"), layout)
            source = Placed(given[me], layout).tensor
            comm.gather_into(out.tensor if me == root else None, source, root)
            if me == root:
                out.check(join(given), f"gather_into of {count} {layout} on {root}")

            out = Placed(oracle.values(dtype, each, 9, "bits"), layout)
            source = Placed(given[me][: n * each], layout).tensor
            comm.scatter_into(out.tensor, source if me == root else None, root)
            part = given[root][me * each : (me + 1) * each]
            out.check(part, f"scatter_into of {each} {layout} from {root}")

            if n == 1:
                continue
            out, left = Placed(oracle.values(dtype, count, 9, "bits"), layout), (me - 1) % n
            for turn in (0, 1):  # those of odd ranks receive first
                if (me + turn) % 2:
                    found = comm.recv(out.tensor, left if i % 2 else None, tag=i)
                    assert found == left, (found, left)
                else:
                    comm.send(Placed(given[me], layout).tensor, (me + 1) % n, tag=i)
            out.check(given[left], f"send and recv of {count} {layout}")


@pytest.mark.parametrize("dtype", oracle.ALL, ids=oracle.name)
def test_moves(world, dtype):
    world.run(run_moves, dtype)


def run_in_place(rank):
    comm, n, me = goccl.Communicator(), rank.size, rank.rank
    buffer = torch.full((n, 7), -1.0)
    buffer[me] = me
    comm.all_gather_into(buffer, buffer[me])
    assert (buffer == torch.arange(n).view(n, 1)).all()
    comm.reduce_scatter_into(buffer[me], buffer)
    assert (buffer[me] == me * n).all()
    scalar = torch.tensor(me + 1.0)
    comm.all_reduce_(scalar)
    assert scalar.item() == n * (n + 1) / 2
    parameter = torch.nn.Parameter(torch.ones(3))
    comm.all_reduce_(parameter)
    assert (parameter == n).all()
    comm.all_reduce_(tensor=scalar, op="max")
    comm.reduce_(dst=0, tensor=scalar)
    buffer = torch.full((n, 7), -1.0)
    buffer[me] = me
    comm.gather_into(buffer, buffer[me], dst=0)
    if me == 0:
        assert (buffer == torch.arange(n).view(n, 1)).all()
        buffer += 1
    comm.scatter_into(buffer[me], buffer, src=0)
    assert (buffer[me] == me + 1).all()


def test_in_place_and_by_name(world):
    world.run(run_in_place)


def run_barrier(rank):
    """Nobody leaves before the last has entered."""
    comm = goccl.Communicator()
    for _ in range(20):
        entered = time.monotonic()
        comm.barrier()
        left = time.monotonic()
        times: list[Any] = [None] * rank.size
        dist.all_gather_object(times, (entered, left))
        assert max(e for e, _ in times) <= min(x for _, x in times)


def test_barrier(world):
    world.run(run_barrier)


def join_group(rank):
    rank.init()


# -- one order with the group


def run_mixed(rank):
    """Of one call some ranks go through torch.distributed and others through the communicator."""
    comm, n, me = goccl.Communicator(), rank.size, rank.rank
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    for i in range(60):
        t = torch.full((3 + i,), float(me + i))
        want = sum(r + i for r in range(n))
        pending = dist.all_reduce(u := t.clone(), async_op=True)
        if (i + me) % 2:
            comm.all_reduce_(t)
        else:
            dist.all_reduce(t)
        assert (t == want).all(), (i, t)
        if (i + me) % 3:
            comm.broadcast_(t, i % n)
        else:
            dist.broadcast(t, i % n)
        pending.wait()
        assert (u == want).all(), (i, u)
    assert backend._get_sequence_number_for_group() == before + 180


def test_mixed_with_torch_distributed(world):
    world.run(run_mixed)


def run_groups(rank):
    """Communicators of several groups; roots are ranks of the group."""
    rank.init()
    pair = dist.new_group([2, 1], backend="goccl", sort_ranks=False) if rank.size == 3 else None
    everyone, again = goccl.Communicator(), goccl.Communicator(dist.group.WORLD)
    assert (everyone.rank, everyone.size) == (again.rank, again.size) == (rank.rank, rank.size)
    if rank.rank == 0:
        refused(lambda: goccl.Communicator(pair), "not a member")
    else:
        comm = goccl.Communicator(group=pair)
        assert (comm.rank, comm.size) == (2 - rank.rank, 2)
        t = torch.tensor([float(rank.rank)])
        comm.broadcast_(t, 0)
        assert t.item() == 2
    for comm in everyone, again:
        still_works(rank, comm)
    dist.destroy_process_group()
    for call in everyone.barrier, lambda: again.all_reduce_(torch.ones(1)):
        with pytest.raises(dist.DistBackendError, match="has been shut down"):
            call()


def test_groups(make_world):
    make_world(3).run(run_groups)


def run_in_detail(rank):
    dist.set_debug_level_from_env()
    rank.init()
    assert "Wrapper" in type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__
    still_works(rank, goccl.Communicator())


def test_debug_mode(make_world):
    make_world(2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).run(run_in_detail)


# -- what is refused


def run_not_ours(rank):
    refused(lambda: goccl.Communicator(), "init_process_group")
    rank.init(backend="gloo")
    with pytest.raises(ValueError, match=r"gloo.* needs goccl"):
        goccl.Communicator()
    with pytest.raises(TypeError, match="not <class 'str'>"):
        goccl.Communicator("goccl")
    still_works(rank, goccl.Communicator(dist.new_group(backend="cpu:goccl")))


def test_group_of_another_backend(make_world):
    make_world(2).run(run_not_ours)


def wrong_calls(comm):
    """(call, the error's class, what it says): calls that are refused alike on all ranks."""
    n, one = comm.size, torch.ones(4)
    ints = torch.zeros(4 * n, dtype=torch.int32)
    return [
        (lambda: comm.all_reduce_(one, "total"), ValueError, "'total'; known are \"sum\""),
        (lambda: comm.all_reduce_(one, 3.5), ValueError, "unknown reduce operation 3.5"),
        (lambda: comm.all_reduce_(one, None), ValueError, "unknown reduce operation None"),
        (lambda: comm.all_reduce_(one, "band"), ValueError, "BAND"),
        (lambda: comm.all_reduce_(one, dist.ReduceOp.PREMUL_SUM), ValueError, "with its factor"),
        (lambda: comm.all_reduce_(torch.ones(1).expand(8)), ValueError, "share one place"),
        (lambda: comm.all_reduce_(one.to_sparse()), ValueError, "only supports dense tensors"),
        (lambda: comm.all_reduce_(one.to("meta")), ValueError, "is on meta, where it has no data"),
        (
            lambda: comm.all_reduce_(torch.zeros(4, dtype=torch.bits8)),
            TypeError,
            "cannot be reduced",
        ),
        (lambda: comm.broadcast_(one, n), ValueError, "invalid root rank"),
        (lambda: comm.broadcast_(one, -1), ValueError, "invalid root rank"),
        (lambda: comm.reduce_(one, n), ValueError, "invalid root rank"),
        (lambda: comm.reduce_(one, 0, "mean"), ValueError, "unknown reduce operation"),
        (lambda: comm.all_gather_into(torch.zeros(4 * n + 1), one), ValueError, "`output`"),
        (lambda: comm.all_gather_into(ints, one), ValueError, "invalid tensor type"),
        (lambda: comm.reduce_scatter_into(one, torch.zeros(4 * n + 1)), ValueError, "`input`"),
        (lambda: comm.reduce_scatter_into(one, ints), ValueError, "invalid tensor type"),
        (
            lambda: comm.reduce_scatter_into(one, torch.zeros(4 * n), "x"),
            ValueError,
            "unknown reduce",
        ),
        (lambda: comm.all_to_all_into(torch.zeros(4 * n), ints), ValueError, "invalid tensor type"),
        (lambda: comm.gather_into(None, one, n), ValueError, "invalid root rank"),
        (lambda: comm.scatter_into(one, None, -1), ValueError, "invalid root rank"),
        (lambda: comm.scatter_into(one, None, 2**70), ValueError, f"`src` is {2**70}, which is"),
        (lambda: comm.scatter_into(torch.ones(1).expand(4), None, 0), ValueError, "share one"),
        (lambda: comm.gather_into(None, one.to("meta"), 0), ValueError, "`input` is on meta"),
        (
            lambda: comm.all_to_all_into(torch.zeros(n, 2), torch.zeros(2 * n, 2)),
            ValueError,
            "elements",
        ),
    ]


def wrong_at_root(comm):
    """As wrong_calls(), of root 0, which alone is refused the call: arguments that others lack."""
    n, one = comm.size, torch.ones(4)
    return [
        (lambda: comm.gather_into(None, one, 0), "`output` is undefined"),
        (lambda: comm.gather_into(torch.zeros(4 * n + 1), one, 0), "`output`"),
        (lambda: comm.scatter_into(one, None, 0), "`input` is undefined"),
        (lambda: comm.scatter_into(one, torch.zeros(4 * n + 1), 0), "`input`"),
        (lambda: comm.scatter_into(one, torch.zeros(4 * n).to("meta"), 0), "`input` is on meta"),
    ]


def wrong_messages(comm: Any):
    """(call, the error's class, what it says): sends and receives that a rank is refused alone."""
    n, one, array = comm.size, torch.ones(4), np.ones(4, dtype=np.float32)
    for method, word in ((comm.send, "destination"), (comm.recv, "source")):
        yield lambda m=method: m(one, n), ValueError, f"invalid {word} rank: {n}, allowed are 0 to"
        yield lambda m=method: m(one, -1), ValueError, f"invalid {word} rank: -1"
        yield lambda m=method: m(one, 2**70), ValueError, "which is out of range"
        yield lambda m=method: m(one, 0, tag=-1), ValueError, "Tag must be nonnegative, got -1"
        yield lambda m=method: m(one, 0, tag=2**31), ValueError, "Tag must be at most 2147483647"
        yield lambda m=method: m(one, 0, tag=None), TypeError, "`tag` is of type NoneType"
        yield lambda m=method: m(one, 0.5), TypeError, "is of type float, it must be an int"
        yield lambda m=method: m(array, 0), TypeError, "`tensor` is of type numpy.ndarray"
        yield lambda m=method: m(one.to("meta"), 0), ValueError, "`tensor` is on meta"
        yield lambda m=method: m(one.to_sparse(), 0), ValueError, "only supports dense tensors"
        yield lambda m=method: m(one, 0, timeout=timedelta(0)), ValueError, "at least 1 ms"
        yield lambda m=method: m(one, 0, timeout=timedelta(-1)), ValueError, "at least 1 ms"
        yield lambda m=method: m(one, 0, timeout=3), TypeError, "it must be a datetime.timedelta"
    yield lambda: comm.send(one, None), TypeError, "`dst` is of type NoneType, it must be an int"
    yield lambda: comm.recv(torch.ones(1).expand(4), 0), ValueError, "share one place"


def run_wrong_messages(rank):
    comm = goccl.Communicator()
    if rank.rank == 0:
        for i, (call, kind, text) in enumerate(wrong_messages(comm)):
            refused(call, text, what=f"wrong message {i}", kinds=kind)
    still_works(rank, comm)


def test_messages_that_are_refused(world):
    world.run(run_wrong_messages)


def run_wrong_at_root(rank, number):
    rank.init()
    comm = goccl.Communicator()
    call, text = wrong_at_root(comm)[number]
    if rank.rank == 0:
        refused(call, text, what=f"wrong at the root {number}", kinds=ValueError)
    else:
        one = torch.ones(4)
        with pytest.raises(dist.DistBackendError, match="refused"):
            comm.gather_into(None, one, 0) if number < 2 else comm.scatter_into(one, None, 0)


@pytest.mark.parametrize("number", range(5))
def test_a_call_that_the_root_alone_is_refused(make_world, number):
    make_world(2).run(run_wrong_at_root, number)


def run_late_message(rank):
    """A receive that ends at its timeout leaves the group, and what is sent later, as they are."""
    rank.init()
    comm = goccl.Communicator()
    t, short = torch.zeros(3), timedelta(milliseconds=30)
    if rank.rank == 0:
        for source in (1, None):
            with pytest.raises(goccl.OperationTimeoutError):
                comm.recv(t, source, tag=8, timeout=short)
    comm.barrier()
    if rank.rank == 0:
        assert comm.recv(t, tag=8, timeout=timedelta.max) == 1
        assert t.tolist() == [1, 2, 3]
    elif rank.rank == 1:
        comm.send(torch.tensor([1.0, 2, 3]), 0, tag=8)
    still_works(rank, comm)


def test_a_receive_that_times_out(make_world):
    make_world(2).run(run_late_message)


def run_message_of_the_dead(rank, source):
    rank.init()
    comm = goccl.Communicator()
    comm.barrier()
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(goccl.PeerFailedError) as raised:
        comm.recv(torch.ones(4), source)
    assert raised.value.ranks == [1]
    with pytest.raises(goccl.PeerFailedError):
        comm.send(torch.ones(4), 1)


@both_transports
@pytest.mark.parametrize("source", [1, None])
def test_a_receive_from_one_that_has_died(make_world, transport, source):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    outcomes = world.outcomes(run_message_of_the_dead, source)
    assert outcomes[0].ok, outcomes[0]


def run_messages_mixed(rank):
    """What one rank sends by a communicator another receives by torch.distributed, and back."""
    rank.init()
    comm, t = goccl.Communicator(), torch.full((5,), float(rank.rank))
    for tag in range(20):
        if rank.rank == 0:
            comm.send(t, 1, tag=tag)
            assert dist.recv(t, 1, tag=tag) == 1
        else:
            assert comm.recv(t, tag=tag) == 0
            dist.send(t + 1, 0, tag=tag)
    assert t.tolist() == ([20.0] if rank.rank == 0 else [19.0]) * 5


def test_messages_with_torch_distributed(make_world):
    make_world(2).run(run_messages_mixed)


def run_message_in_batch(rank):
    comm = goccl.Communicator()
    dist.group.WORLD._start_coalescing(torch.device("cpu"))
    refused(lambda: comm.send(torch.ones(1), 0), "cannot be a part of a coalesced batch")
    still_works(rank, comm)


def test_a_message_in_a_batch(world):
    world.run(run_message_in_batch)


def wrong_types(comm: Any):
    """(call, what it says): calls with an argument of another type than its signature has."""
    one, array = torch.ones(4), np.ones(4, dtype=np.float32)
    return [
        (
            lambda: comm.all_reduce_(array),
            "`tensor` is of type numpy.ndarray, it must be a torch.Tensor",
        ),
        (
            lambda: comm.all_reduce_([one]),
            "all_reduce_(): incompatible function arguments: `tensor` is of",
        ),
        (lambda: comm.all_reduce_(tensor=None), "`tensor` is of type NoneType"),
        (lambda: comm.broadcast_(array, 0), "`tensor` is of type numpy.ndarray"),
        (lambda: comm.broadcast_(one, "0"), "`src` is of type str, it must be an int"),
        (lambda: comm.reduce_(one, 0.5), "`dst` is of type float, it must be an int"),
        (lambda: comm.all_gather_into(array, one), "`output` is of type numpy.ndarray"),
        (lambda: comm.reduce_scatter_into(one, array), "`input` is of type numpy.ndarray"),
        (lambda: comm.all_to_all_into(one, array), "`input` is of type numpy.ndarray"),
        (
            lambda: comm.all_to_all_into(one, one, schedule=2),
            "`schedule` is of type int, it must be a str",
        ),
    ]


def run_wrong(rank):
    comm = goccl.Communicator()
    for i, (call, kind, text) in enumerate(wrong_calls(comm)):
        refused(call, text, what=f"wrong call {i}", kinds=kind)
        still_works(rank, comm)
    for i, (call, text) in enumerate(wrong_types(comm)):
        refused(call, text, what=f"wrong type {i}", kinds=TypeError)
        still_works(rank, comm)
    signatures = [
        lambda: comm.broadcast_(torch.ones(1)),  # type: ignore[call-arg]
        lambda: comm.all_gather_into(torch.ones(1)),  # type: ignore[call-arg]
    ]
    for i, call in enumerate(signatures):
        refused(call, "incompatible function arguments", what=f"signature {i}", kinds=TypeError)
        still_works(rank, comm)


def run_other_types(rank):
    """Arguments that are converted to the signature's type."""
    comm = goccl.Communicator()
    for root in (np.int64(0), torch.tensor(0)):
        comm.broadcast_(t := torch.full((4,), float(rank.rank)), root)
        assert t.tolist() == [0.0] * 4


def test_other_types(world):
    world.run(run_other_types)


def test_wrong_arguments(world):
    world.run(run_wrong)


def refused_on_one(rank, victim, index):
    comm = goccl.Communicator()
    if rank.rank == victim:
        calls = [call for call, *_ in wrong_calls(comm) + wrong_types(comm)]
        with pytest.raises((TypeError, ValueError)):
            calls[index]()
    with pytest.raises(goccl.MismatchError) as caught:
        still_works(rank, comm)
    return caught.value.calls[victim]


@both_transports
@pytest.mark.parametrize("index", [0, 3, 5, -10, -6, -5, -1])
def test_refused_on_one_rank(make_world, transport, index):
    """By the door, operation or type, by the core and by the shim: the others are told at once."""
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.run(join_group)
    for call in world.run(refused_on_one, 1, index):
        assert call.startswith("a call that was refused: "), call


def run_in_batch(rank):
    rank.init()
    comm, device = goccl.Communicator(), torch.device("cpu")
    dist.group.WORLD._start_coalescing(device)
    dist.group.WORLD.allreduce([torch.ones(8)])
    refused(lambda: comm.all_reduce_(torch.ones(8)), "coalesced batch")
    still_works(rank, comm)


def test_refused_in_a_batch(make_world):
    make_world(2).run(run_in_batch)


# -- waiting


def wait_for_peer(rank, how):
    rank.init()
    comm = goccl.Communicator()
    still_works(rank, comm)
    rank.limit(2 if how == "timeout" else 60)
    if rank.rank == 0:
        threading.Thread(target=rank.tell, args=("waits",)).start()
        try:
            comm.all_reduce_(torch.ones(100)[::2])
        except goccl.Error as e:
            return e
    elif how != "death":
        rank.hear()
        if how == "late":
            comm.all_reduce_(torch.ones(50))
    else:
        rank.hear()
    return None


def started(make_world, how, transport):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport}, whole_exit=how == "interrupt")
    world.start(wait_for_peer, how)
    assert world.told(0) == "waits"
    return world


@both_transports
def test_late_peer(make_world, transport):
    world = started(make_world, "late", transport)
    world.say("go", ranks=1)
    assert world.values(world.finish()) == [None, None]


@both_transports
def test_peer_that_does_not_come(make_world, transport):
    world = started(make_world, "timeout", transport)
    [error] = world.values(world.finish(ranks=0))
    assert (type(error), error.absent) == (goccl.OperationTimeoutError, [1]), error
    world.say("end", ranks=1)
    world.finish(ranks=1)


@both_transports
def test_peer_dies(make_world, transport):
    world = started(make_world, "death", transport)
    since = world.signal(1, signal.SIGKILL)
    outcome = world.finish(ranks=0)[0]
    assert (type(outcome.value), outcome.value.ranks) == (goccl.PeerFailedError, [1]), outcome
    assert outcome.at - since < AT_ONCE


@both_transports
def test_ctrl_c(make_world, transport):
    world = started(make_world, "interrupt", transport)
    since = world.signal(0, signal.SIGINT)
    outcome = world.finish(ranks=0)[0]
    assert outcome.kind == "KeyboardInterrupt", outcome
    assert outcome.at - since < AT_ONCE
    world.say("end", ranks=1)
    world.finish(ranks=1)
    assert world.exit(0) == 0, world.logs()


def run_beside_a_thread(rank):
    """Python's other threads run while a call waits: here the one that brings the peer on its
    way."""
    rank.init()
    comm = goccl.Communicator()
    if rank.rank == 0:
        thread = threading.Thread(target=lambda: [rank.tell(i) for i in range(100)])
        thread.start()
        comm.barrier()
        thread.join()
    else:
        rank.hear()
        comm.barrier()


def test_other_threads_run_meanwhile(make_world):
    world = make_world(2)
    world.start(run_beside_a_thread)
    assert [world.told(0) for _ in range(100)] == list(range(100))
    world.say("go", ranks=1)
    world.values(world.finish())


def run_profiled(rank):
    from torch.profiler import ProfilerActivity, profile

    rank.init()
    comm = goccl.Communicator()
    t = torch.ones(rank.size)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        comm.all_reduce_(t)
        comm.broadcast_(t, 0)
        comm.barrier()
    assert (t == rank.size).all()
    return [e.key for e in found.key_averages()]


def test_profiler_titles(make_world):
    for titles in make_world(2).run(run_profiled):
        assert {"goccl:all_reduce", "goccl:broadcast", "goccl:barrier"} <= set(titles)


@pytest.fixture(scope="module")
def extensions(tmp_path_factory):
    """Where what is compiled lies for all."""
    return tmp_path_factory.mktemp("extensions")


@pytest.mark.slow  # it compiles
@pytest.mark.parametrize("ranks", [1, 2])
def test_cost_can_be_measured(extensions, ranks):
    script = Path(__file__).parents[1] / "examples" / "overhead" / "measure.py"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
    ]
    command += [str(script), "--blocks", "3", "--calls", "5"]
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(extensions), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = [
        line.split(" us")[0].split()[-1] for line in done.stdout.splitlines() if " us" in line
    ]
    assert len(figures) == 7, done.stdout
    assert all(float(figure) > 0 for figure in figures), done.stdout
