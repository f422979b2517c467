"""Coalesced batches that come to no good end: nothing of them is started, and the group goes on, or
breaks on all ranks at once. No call returns with nothing done. Real processes."""

import signal
import threading
import time

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from harness import AT_ONCE

# By name, and before there is a group, as libraries do.
from torch.distributed import _coalescing_manager

if harness.BACKEND != "goccl":
    pytest.skip("what is tested is GoCCL's own", allow_module_level=True)

pytestmark = pytest.mark.also_on_device
CPU = torch.device("cpu")


class Mistake(Exception):
    """An error of the program's own."""


def join(rank):
    rank.init()


def join_wrapped(rank):
    dist.set_debug_level_from_env()
    rank.init()


def expanded():
    return torch.ones(1).expand(8)


def conjugate():
    return torch.ones(8, dtype=torch.complex64).conj()


# What ends a batch, in torch, in the backend or in the program. A batch of sends and receives
# concerns nobody else; of one with collectives the other ranks are told, with these words.


def exchange(group, *tensors):
    other = 1 - dist.get_rank()
    ops = [dist.P2POp(dist.isend, torch.ones(8), other, group)]
    ops += [dist.P2POp(dist.irecv, t, other, group) for t in tensors]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def receive_into_expanded(group):
    exchange(group, expanded())


def receive_into_conjugate(group):
    exchange(group, torch.ones(8), conjugate())


def receive_into_sparse(group):
    exchange(group, torch.eye(8, device="cpu").to_sparse())


def never_entered(group):
    """The list is open before the backend is asked for."""
    with _coalescing_manager(group, torch.device("meta")):
        pass


def sent_first(group):
    with _coalescing_manager(group, CPU, async_ops=True):
        dist.isend(torch.ones(8), 1 - dist.get_rank(), group)
        raise Mistake


def before_any_call(group):
    with _coalescing_manager(group):
        raise Mistake


def never_left(group):
    context = _coalescing_manager(group)
    context.__enter__()


def listed(group):
    with _coalescing_manager(group):
        dist.all_reduce(torch.ones(8), group=group)
        raise Mistake


def listed_async(group):
    with dist._coalescing_manager(group, async_ops=True):
        dist.all_gather_into_tensor(torch.ones(8 * group.size()), torch.ones(8), group)
        raise Mistake


def listed_then_refused(group):
    with _coalescing_manager(group):
        dist.reduce_scatter_tensor(torch.ones(8), torch.ones(8 * group.size()), group=group)
        dist.broadcast(expanded(), group_src=group.size(), group=group)


def listed_expanded(group):
    """Refused at the end."""
    with _coalescing_manager(group):
        dist.all_reduce(torch.ones(8), group=group)
        dist.all_reduce(expanded(), group=group)


def listed_and_interrupted(group):
    with _coalescing_manager(group):
        dist.all_reduce(torch.ones(8), group=group)
        signal.raise_signal(signal.SIGINT)


def nested(group):
    with _coalescing_manager(group):
        dist.all_reduce(torch.ones(8), group=group)
        with _coalescing_manager(group):
            pass


def recorded(group):
    with _coalescing_manager(group, CPU):
        dist.broadcast(torch.ones(8), group_src=0, group=group)
        raise Mistake


def recorded_and_listed(group):
    with _coalescing_manager(group, CPU):
        dist.broadcast(torch.ones(8), group_src=0, group=group)
        dist.all_reduce(torch.ones(8), group=group)
        raise Mistake


def recorded_then_refused(group):
    with _coalescing_manager(group, CPU):
        dist.broadcast(torch.ones(8), group_src=0, group=group)
        dist.broadcast(expanded(), group_src=group.size(), group=group)


def refused_and_gone_on(group):
    """The batch is gone, and what follows runs at once."""
    with _coalescing_manager(group, CPU):
        with pytest.raises(ValueError, match="invalid root rank"):
            dist.broadcast(torch.ones(8), group_src=group.size(), group=group)
        t = torch.full((8,), float(dist.get_rank()))
        dist.broadcast(t, group_src=1, group=group)
        assert (t == 1).all()


def recorded_nested(group):
    with _coalescing_manager(group, CPU):
        dist.broadcast(torch.ones(8), group_src=0, group=group)
        with _coalescing_manager(group, CPU):
            pass
    raise AssertionError("the outer batch has ended")


def recorded_and_awaited(group):
    with _coalescing_manager(group, CPU):
        dist.broadcast(torch.ones(8), group_src=0, group=group, async_op=True).wait()


def recorded_and_used(group):
    with _coalescing_manager(group, CPU):
        _ = functional.all_reduce(torch.ones(8), "sum", group) + 1


def recorded_sparse(group):
    with _coalescing_manager(group, CPU):
        dist.broadcast(torch.ones(8), group_src=0, group=group)
        group.allreduce([torch.eye(8, device="cpu").to_sparse()]).wait()


def recorded_and_monitored(group):
    with _coalescing_manager(group, CPU):
        dist.monitored_barrier(group)


def recorded_and_communicator(group):
    with _coalescing_manager(group, CPU):
        dist.broadcast(torch.ones(8), group_src=0, group=group)
        goccl.Communicator(group).barrier()


UNTOLD = [
    receive_into_expanded,
    receive_into_conjugate,
    receive_into_sparse,
    never_entered,
    sent_first,
    before_any_call,
]
TOLD = {
    listed: "ended by Mistake",
    listed_async: "ended by Mistake",
    listed_then_refused: "invalid root rank",
    listed_expanded: "share one place",
    listed_and_interrupted: "ended by KeyboardInterrupt",
    nested: "ended by ValueError",
    recorded: "ended by Mistake",
    recorded_and_listed: "ended by Mistake",
    recorded_then_refused: "invalid root rank",
    refused_and_gone_on: "invalid root rank",
    recorded_nested: "another batch was started",
    recorded_and_awaited: "ended by ValueError",
    recorded_and_used: "ended by ValueError",
    recorded_sparse: "cannot be a part of a coalesced batch",
    recorded_and_monitored: "cannot be a part of a coalesced batch",
    recorded_and_communicator: "cannot be a part of a coalesced batch",
}


def fails(case, group):
    try:
        case(group)
    except AssertionError:
        raise
    except (Exception, KeyboardInterrupt):
        check_sum(group)  # while the traceback keeps alive what the case had
    else:
        raise AssertionError(f"{case.__name__} raised nothing")


def check_sum(group):
    t = torch.ones(4)
    dist.all_reduce(t, group=group)
    assert (t == group.size()).all()


def check(group):
    """All does what it should, in batches too."""
    n, me = group.size(), group.rank()
    check_sum(group)
    out, parts = torch.zeros(2), torch.zeros(n)
    dist.reduce_scatter_tensor(out, torch.ones(2 * n), group=group)
    assert (out == n).all()
    dist.all_gather_into_tensor(parts, torch.tensor([float(me)]), group)
    assert parts.tolist() == list(range(n))
    t = torch.full((2,), float(me))
    dist.broadcast(t, group_src=1, group=group)
    assert (t == 1).all()
    dist.barrier(group)
    received = torch.zeros(8)
    exchange(group, received)
    assert (received == 1).all()
    t = torch.zeros(1)
    if me == 0:
        dist.send(torch.ones(1), group_dst=1, group=group)
    else:
        dist.recv(t, group_src=0, group=group)
        assert t == 1
    for device in (None, CPU):
        some = [torch.ones(4), torch.ones(5)]
        with _coalescing_manager(group, device, async_ops=True) as manager:
            for t in some:
                dist.all_reduce(t, group=group)
        manager.wait()
        assert all((t == n).all() for t in some)
    t = torch.full((2,), float(me))
    with _coalescing_manager(group, CPU):
        dist.broadcast(t, group_src=0, group=group)
    assert (t == 0).all()


def run_on_all_ranks(rank, case):
    for group in (dist.group.WORLD, dist.new_group()):
        for _ in range(2):
            fails(case, group)
            check(group)
    check(dist.group.WORLD)


@pytest.mark.parametrize("wrapped", [False, True], ids=["", "detail"])
def test_batch_that_fails_on_all_ranks(make_world, subtests, wrapped):
    """The group goes on."""
    world = None
    for case in [*UNTOLD, *TOLD]:
        with subtests.test(case.__name__):
            if world is None or not world.healthy:
                world = make_world(2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if wrapped else {})
                world.run(join_wrapped if wrapped else join)
            world.run(run_on_all_ranks, case)


def run_never_left(rank):
    never_left(dist.group.WORLD)  # and collected
    check(dist.group.WORLD)


def test_context_that_is_never_left(make_world):
    world = make_world(2)
    world.run(join)
    world.run(run_never_left)


def mixed(group, device):
    with _coalescing_manager(group, device):
        dist.all_reduce(torch.ones(8), group=group)
        dist.all_gather_into_tensor(torch.ones(8 * group.size()), torch.ones(8), group)


def run_mixed(rank):
    group = dist.group.WORLD
    for device in (None, CPU):
        with pytest.raises(RuntimeError, match="same type"):
            mixed(group, device)
        check(group)


@pytest.mark.skipif(torch.__version__ < "2.15", reason="older torch takes all for the first")
def test_mixed(make_world):
    """Torch refuses that at the end, between the ends of its list and of the backend's batch."""
    world = make_world(2)
    world.run(join)
    world.run(run_mixed)


told_at_once = [case for case in TOLD if case is not refused_and_gone_on]


def run_here_only(rank, case):
    group = dist.group.WORLD
    if rank.rank == 0:
        with pytest.raises((ValueError, KeyError, Mistake, KeyboardInterrupt)):
            case(group)
    with pytest.raises(goccl.MismatchError) as failure:
        check_sum(group)
    return failure.value.calls


@pytest.mark.parametrize("case", told_at_once, ids=lambda c: c.__name__)
def test_batch_that_fails_on_one_rank(make_world, case):
    world = make_world(2)
    world.run(join)
    since = time.monotonic()
    outcomes = world.outcomes(run_here_only, case)
    for calls in world.values(outcomes):
        assert calls[0].startswith("a call that was refused: "), calls
        assert TOLD[case] in calls[0], calls
    assert max(o.at for o in outcomes) - since < AT_ONCE


def run_good_elsewhere(rank):
    """A batch of sends that fails here is nobody's affair."""
    group = dist.group.WORLD
    for case in UNTOLD:
        if rank.rank == 0:
            with pytest.raises((ValueError, RuntimeError, Mistake)):
                case(group)
        check(group)


def test_batch_of_sends_that_fails_on_one_rank(make_world):
    world = make_world(2)
    world.run(join)
    world.run(run_good_elsewhere)


# -- works of batches


def start():
    dist.group.WORLD._start_coalescing(CPU)


def end():
    return dist.group.WORLD._end_coalescing(CPU)


def record():
    return dist.broadcast(torch.ones(8), 0, async_op=True)


def on_a_thread(body):
    """What a function that another thread runs returns, or the error that it raises."""
    found = []

    def run():
        try:
            found.append(body())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return found[0]


def assert_dropped(work, future, words):
    assert work.is_completed()
    assert not work.is_success()
    for wait in (work.wait, work.synchronize, future.wait):
        with pytest.raises(RuntimeError, match=f"batch of this operation was dropped.*{words}"):
            wait()


def run_open(rank):
    start()
    work = record()
    future = work.get_future()
    assert not work.is_completed()
    assert not work.is_success()
    assert not future.done()
    with pytest.raises(RuntimeError, match="needs to be completed"):
        work.result()
    with pytest.raises(ValueError, match="has not been started"):
        work.wait()
    dist.broadcast(torch.ones(8), 0)  # waits, and is let through; nobody else is
    with pytest.raises(ValueError, match="has not been started"):
        work.wait()
    assert "has not been started" in str(on_a_thread(work.wait))
    assert "no batch is open on this thread" in str(on_a_thread(end))
    end().wait()
    work.wait()
    future.wait()
    assert work.is_success()
    with pytest.raises(ValueError, match="no batch is open on this thread"):
        end()
    check(dist.group.WORLD)


def test_work_of_an_open_batch(make_world):
    world = make_world(2)
    world.run(join)
    world.run(run_open)


def run_dropped(rank):
    start()
    work = record()
    future = work.get_future()
    with pytest.raises(ValueError, match="invalid root rank"):
        dist.broadcast(torch.ones(8), rank.size)
    assert_dropped(work, future, "invalid root rank")
    start()
    work = record()
    future = work.get_future()
    start()
    assert_dropped(work, future, "another batch was started before its end")
    end().wait()
    check(dist.group.WORLD)


def test_work_of_a_dropped_batch(make_world):
    world = make_world(2)
    world.run(join)
    world.run(run_dropped)


def record_and_leave():
    start()
    return record()


def run_thread_ends(rank):
    """Threads that come later may get its id, and not its batch."""
    rank.init()
    work = on_a_thread(record_and_leave)
    future = work.get_future()

    for _ in range(20):
        assert on_a_thread(lambda: dist.all_reduce(torch.ones(4), async_op=True).wait()) is True
    dist.destroy_process_group()
    assert_dropped(work, future, "shut down")


def test_thread_that_ends_in_a_batch(make_world):
    world = make_world(1)
    world.run(run_thread_ends)
    assert "1 calls of a coalesced batch were never started" in world.logs()


def run_abort(rank):
    """Whoever waits for a batch that another thread records is freed, too."""
    group = dist.group.WORLD
    start()
    work = record()
    future = work.get_future()
    on_a_thread(group.abort)
    assert_dropped(work, future, "abort")
    with pytest.raises(ValueError, match="no batch is open"):
        end()
    with pytest.raises(dist.DistBackendError, match="abort"):
        check_sum(group)
    start()  # as torch's own _abort_process_group() does
    group.abort()
    end().wait()


def test_abort_in_a_batch(make_world):
    world = make_world(2)
    world.run(join)
    world.run(run_abort)


def run_other_members(rank):
    """A thread recovers the group, in which another one has a batch. Of that nobody else hears."""
    group = dist.group.WORLD
    if rank.rank == 0:
        start()
        work = record()
        future = work.get_future()
    assert on_a_thread(goccl.Communicator().recover) is None
    if rank.rank == 0:
        assert_dropped(work, future, "goes on with other members")
        with pytest.raises(ValueError, match="no batch is open"):
            end()
    check(group)


@pytest.mark.skipif(torch.__version__ < "2.15", reason="members of an older torch cannot change")
def test_recovery_in_a_batch(make_world):
    world = make_world(2)
    world.run(join)
    world.run(run_other_members)


def overlapping(group, recorded):
    both = torch.ones(16)
    with _coalescing_manager(group, CPU):
        for _ in range(recorded):
            dist.broadcast(torch.ones(8), group_src=0, group=group)
        dist.all_to_all_single(both[:8], both[4:12], group=group)


def run_refused_by_the_library(rank):
    """What the backend does not check itself is refused at the call, and told once."""
    for group in (dist.group.WORLD, dist.new_group()):
        for recorded in (0, 1):
            calls = group._get_sequence_number_for_group()
            with pytest.raises(ValueError, match="overlap"):
                overlapping(group, recorded)
            assert group._get_sequence_number_for_group() == calls + 1
            check(group)


def test_refused_by_the_library(make_world):
    world = make_world(2)
    world.run(join)
    world.run(run_refused_by_the_library)
