"""Never hang: killed, stopped, mismatched, leaving, forking and interrupted ranks, strangers on the
ports, and what is left behind. Real processes and real signals."""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import re
import resource
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
from harness import AT_ONCE
from torch import nn

PRELOAD = ("torch._dynamo",)  # which optimizers load

both_transports = pytest.mark.parametrize("transport", harness.TRANSPORTS)


def start(rank, timeout=60, **options):
    if options:
        options = {"pg_options": goccl.Options(**options)}
    rank.init(**options)
    dist.all_reduce(torch.ones(1))
    rank.limit(timeout)


def check(rank):
    t = torch.ones(1000)
    dist.all_reduce(t)
    assert (t == rank.size).all()


def made(make_world, size, transport=None, timeout=60, **kw):
    env = {**kw.pop("env", {}), **({"GOCCL_TRANSPORT": transport} if transport else {})}
    world = make_world(size, env=env, **kw)
    world.run(start, timeout)
    return world


def failed(outcome, since=None, within=AT_ONCE):
    """The text of a rank's error, which must have come soon."""
    assert outcome.kind, f"rank {outcome.rank} was to fail: {outcome}"
    assert outcome.exitcode is None, outcome
    if since is not None:
        took = outcome.at - since
        assert took < within, (
            f"rank {outcome.rank} learnt of it only after {took:.2f} s: {outcome.error}"
        )
    return outcome.error


def state(pid):
    """R(unning), S(leeping), T (stopped), Z(ombie) ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# -- no more files


taken = []


def take_descriptors(rank, left):
    """All but a few of those that a rank may still open."""
    if rank.rank == 1:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with contextlib.suppress(OSError):  # too many open files
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(left):
            os.close(taken.pop())


@pytest.mark.parametrize("left", range(1, 10))
def test_no_more_files(make_world, left):
    """Windows are mapped by descriptors. Where these give out all ranks fail, and are told why."""
    world = make_world(3, env={"GOCCL_TRANSPORT": "shm"})
    world.run(harness.Rank.init)
    world.run(take_descriptors, left)
    errors = [o.error for o in world.outcomes(check) if o.kind]
    if left > 7:
        assert not errors
    if errors:
        assert any("ulimit -n" in error for error in errors), errors
        assert all(o.kind for o in world.outcomes(check))


# -- death


def all_reduce_until_it_fails(rank, count):
    t = torch.ones(count)
    for i in range(1_000_000):
        dist.all_reduce(t.fill_(1))
        if i == 5:
            rank.tell("busy")


def exchange_until_it_fails(rank, count):
    """Of so much that ranks of one host read each other's memory."""
    sent, received = torch.ones(count), torch.ones(count)
    left, right = (rank.rank - 1) % rank.size, (rank.rank + 1) % rank.size
    for i in range(1_000_000):
        dist.all_to_all_single(received, sent)
        works = [dist.isend(sent, right), dist.irecv(received, left)]
        for work in works:
            work.wait()
        if i == 1:
            rank.tell("busy")


def wait_for_all_reduce(rank, victim):
    if rank.rank == victim:
        rank.tell("waiting")
        rank.hear()
    else:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        rank.tell("waiting")
        work.wait()


def wait_for_message(rank, victim):
    """A chain: of the survivors only the first waits for the victim itself."""
    if rank.rank == victim:
        rank.tell("waiting")
        rank.hear()
    elif rank.rank == (victim + 1) % rank.size:
        rank.tell("waiting")
        dist.recv(torch.ones(1000), victim)
    else:
        rank.tell("waiting")
        dist.recv(torch.ones(1000), (rank.rank - 1) % rank.size)


@both_transports
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    ("case", "of"),
    [
        (all_reduce_until_it_fails, 10),
        (all_reduce_until_it_fails, 4_000_000),
        (exchange_until_it_fails, 3 << 23),
        (wait_for_all_reduce, "victim"),
        (wait_for_message, "victim"),
    ],
    ids=["small", "large", "exchange", "waiting", "chain of receives"],
)
def test_killed_rank(make_world, transport, size, case, of):
    """Every survivor, alive and well itself, gets an error that names the dead rank, at once."""
    world = made(make_world, size, transport)
    victim = size - 1
    world.start(case, victim if of == "victim" else of)
    for r in range(size):
        world.told(r)
    since = world.signal(victim, signal.SIGKILL)
    for outcome in world.finish()[:-1]:
        failed(outcome, since)
        assert outcome.blamed == {victim}, outcome
    # The group is broken for good, and says why.
    for outcome in [o for r in range(size - 1) for o in rerun(world, r, check)]:
        failed(outcome)
        assert outcome.blamed == {victim}, outcome


def rerun(world, rank, fn):
    world.start(fn, ranks=rank)
    return world.finish(ranks=rank)


@both_transports
def test_killed_rank_while_nothing_runs(make_world, transport):
    world = made(make_world, 3, transport)
    world.signal(0, signal.SIGKILL)
    world.exitcode(0)
    since = time.monotonic()
    world.start(check, ranks=(1, 2))
    for outcome in world.finish(ranks=(1, 2)):
        failed(outcome, since)
        assert outcome.blamed == {0}, outcome


def fork_and_wait(rank, victim):
    """The child holds copies of all of its parent's sockets, as a DataLoader worker does."""
    child = os.fork() if rank.rank == victim else -1
    if child == 0:
        signal.pause()
    rank.tell(child)
    if rank.rank == victim:
        rank.hear()
    else:
        dist.all_reduce(torch.ones(1000))


@both_transports
@pytest.mark.parametrize("size", [2, 3])
def test_killed_rank_whose_child_lives_on(make_world, transport, size):
    world = made(make_world, size, transport)
    world.start(fork_and_wait, 0)
    child, *_ = [world.told(r) for r in range(size)]
    since = world.signal(0, signal.SIGKILL)
    outcomes = world.finish()[1:]
    assert state(child) not in "XZ", "the child was to outlive its parent"
    for outcome in outcomes:
        failed(outcome, since)
        assert outcome.blamed == {0}, outcome


def rank_error_while_busy_elsewhere(rank, group_of):
    """Death reaches every group that the dead rank was in, and no other."""
    groups = [dist.new_group(g) for g in group_of]
    for g, members in zip(groups, group_of, strict=True):
        if rank.rank in members:
            dist.all_reduce(torch.ones(1), group=g)
    rank.tell("ready")
    if rank.rank == 3:
        rank.hear()
    if rank.rank in group_of[1]:
        with pytest.raises(goccl.PeerFailedError) as error:
            dist.all_reduce(torch.ones(1), group=groups[1])
        assert (error.value.ranks, error.value.group_ranks) == ([3], [1])
    if rank.rank in group_of[0]:
        for _ in range(5):
            t = torch.ones(1000)
            dist.all_reduce(t, group=groups[0])
            assert (t == len(group_of[0])).all()


def test_group_without_the_dead_rank_works_on(make_world):
    world = made(make_world, 4)
    world.start(rank_error_while_busy_elsewhere, [[0, 1, 2], [2, 3]])
    for r in range(4):
        world.told(r)
    world.signal(3, signal.SIGKILL)
    world.values(world.finish()[:3])


def check_for_ever(rank):
    while True:
        check(rank)


def reduce_in_levels_until_it_fails(rank, victim, level):
    """The ranks that the victim waits for at a level come when it has been killed."""
    half = [list(range(rank.size // 2)), list(range(rank.size // 2, rank.size))]
    groups = [dist.new_group(ranks) for ranks in half]
    mine = rank.rank // (rank.size // 2)
    dist.all_reduce(torch.ones(1), group=groups[mine])
    rank.tell("ready")
    if rank.rank >> level != victim >> level:
        rank.hear()
    with pytest.raises(goccl.PeerFailedError) as error:
        check_for_ever(rank)
    assert error.value.ranks == [victim], error.value
    if victim not in half[mine]:
        t = torch.ones(1000)
        dist.all_reduce(t, group=groups[mine])
        assert (t == len(half[mine])).all()


@both_transports
@pytest.mark.parametrize(("victim", "level"), [(0, 0), (6, 1), (9, 2), (15, 3)])
def test_killed_rank_in_a_tree(make_world, transport, victim, level):
    size = 16
    env = {"GOCCL_ALGO": "allreduce:recursive_multiplying"}
    world = made(make_world, size, transport, env=env)
    world.start(reduce_in_levels_until_it_fails, victim, level)
    for r in range(size):
        world.told(r)
    world.signal(victim, signal.SIGKILL)
    world.exitcode(victim)
    for r in range(size):
        if r >> level != victim >> level:
            world.say("go", ranks=r)
    world.values(world.finish(ranks=[r for r in range(size) if r != victim]))


# -- stopping


def all_reduce_once(rank):
    rank.tell("in")
    check(rank)


def start_with_grace(rank, timeout, grace):
    start(rank, timeout, liveness_grace=timedelta(seconds=grace))


@pytest.mark.also_on_device
@both_transports
@pytest.mark.parametrize("size", [2, 3, 4])
def test_stopped_rank_is_waited_for_until_the_timeout(make_world, transport, size):
    timeout, grace, victim = 3, 150, size - 1
    world = make_world(size, env={"GOCCL_TRANSPORT": transport}, whole_exit=True)
    world.run(start_with_grace, timeout, grace)
    world.signal(victim, signal.SIGSTOP)
    harness.until(lambda: state(world.pids[victim]) == "T")
    since = time.monotonic()
    others = list(range(size - 1))
    world.start(all_reduce_once, ranks=others)
    for outcome in world.finish(ranks=others):
        text = failed(outcome, since, timeout + AT_ONCE)
        assert outcome.at - since > timeout - 0.1, f"given up early: {text}"
        assert outcome.blamed == {victim}, outcome
    # Those who then end without a destroy do not wait for it again.
    for r in others:
        assert world.exit(r, deadline=grace - 10) == 0, world.logs()


@both_transports
def test_stopped_rank_in_a_tree(make_world, transport):
    """All name it, and none names another: most have no connection to it."""
    size, victim, timeout = 16, 6, 3
    env = {"GOCCL_ALGO": "allreduce:recursive_multiplying"}
    world = made(make_world, size, transport, timeout, env=env)
    world.signal(victim, signal.SIGSTOP)
    harness.until(lambda: state(world.pids[victim]) == "T")
    others = [r for r in range(size) if r != victim]
    world.start(check, ranks=others)
    for outcome in world.finish(ranks=others):
        assert "did not answer" in failed(outcome), outcome
        assert outcome.blamed == {victim}, outcome


@both_transports
def test_stopped_rank_that_goes_on_in_time_costs_nothing_but_time(make_world, transport):
    world = made(make_world, 3, transport)
    world.signal(2, signal.SIGSTOP)
    harness.until(lambda: state(world.pids[2]) == "T")
    world.start(all_reduce_once)
    for r in (0, 1):
        world.told(r)
    time.sleep(2)  # what is tested is that this much time changes nothing
    world.signal(2, signal.SIGCONT)
    world.values(world.finish())
    world.run(check)


def receive_until_stopped(rank, how, count, sender):
    """Rank 0 sends; rank 1 stops it when data has begun to come, and tells what its buffer held at
    the end."""
    other = dist.new_group()
    dist.barrier(other)
    t = torch.zeros(count, dtype=torch.uint8)
    if rank.rank == 0:
        t.fill_(1)
    match how:
        case "broadcast":
            work = dist.broadcast(t, 0, async_op=True)
        case "all_reduce":
            work = dist.all_reduce(t, async_op=True)
        case "message":
            work = dist.isend(t, 1) if rank.rank == 0 else dist.irecv(t, 0)
    if rank.rank == 0:
        with contextlib.suppress(RuntimeError):
            work.wait()
        dist.barrier(other)
        return
    harness.until(lambda: t[0] == 1)
    os.kill(sender, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="timeout"):
        work.wait()
    came = int(t.sum())
    t.fill_(7)
    rank.tell(came)
    rank.hear()  # the sender goes on
    dist.barrier(other)  # over the same connection, so that all that it had begun to send has come
    assert (t == 7).all(), "data came into a buffer whose work had ended"


@pytest.mark.parametrize("how", ["broadcast", "all_reduce", "message"])
def test_late_data_goes_nowhere(make_world, how):
    """A failed work's buffer is the caller's again, whatever the peer still sends."""
    count = 400_000_000
    world = made(make_world, 2, "tcp", timeout=4)
    world.start(receive_until_stopped, how, count, world.pids[0])
    assert 0 < world.told(1) < count, "rank 0 was to be stopped in the middle"
    world.signal(0, signal.SIGCONT)
    world.say("go on", ranks=1)
    world.values(world.finish())


def send_until_given_up(rank, count):
    """Rank 0 gives up, and uses its buffer again, while rank 1 is in the middle of reading it."""
    if rank.rank == 0:
        t = torch.full((count,), 1, dtype=torch.uint8)
        with pytest.raises(RuntimeError, match="timeout"):
            dist.isend(t, 1).wait()
        t.fill_(9)
        rank.tell("given up")
        rank.hear()
        return
    t = torch.zeros(count, dtype=torch.uint8)
    work = dist.irecv(t, 0)
    harness.until(lambda: t[0] == 1)
    os.kill(os.getpid(), signal.SIGSTOP)
    with pytest.raises(goccl.Error):
        work.wait()
    assert t[-1] in (0, 9), "it had all come"


def test_what_is_read_too_late_is_an_error(make_world):
    world = made(make_world, 2, "shm", timeout=4)
    world.start(send_until_given_up, 1_000_000_000)
    assert world.told(0) == "given up"
    world.signal(1, signal.SIGCONT)
    world.say("go on", ranks=0)
    world.values(world.finish())


def late(rank):
    """One rank does not come, though it runs."""
    if rank.rank != 1:
        check(rank)


def test_absent_rank_is_named(make_world):
    world = made(make_world, 3, timeout=2)
    since = time.monotonic()
    outcomes = world.outcomes(late)
    for outcome in (outcomes[0], outcomes[2]):
        failed(outcome, since, 2 + AT_ONCE)
        assert outcome.blamed == {1}, outcome


def never_started(rank):
    """Ranks 1 and 2 of four. As with MASTER_ADDR, rank 0 would wait in its store for rank 3."""
    with pytest.raises(goccl.OperationTimeoutError) as error:
        dist.init_process_group(
            "goccl",
            store=rank.make_store(),
            rank=rank.rank + 1,
            world_size=4,
            timeout=timedelta(seconds=2),
        )
    assert error.value.absent == [0, 3]
    assert "these have not joined: 3. Rank 0 may wait for them" in str(error.value)


def test_a_rank_that_was_never_started_is_named(make_world):
    make_world(2, store="tcp").run(never_started)


def message_that_nobody_sends(rank):
    if rank.rank == 0:
        dist.recv(torch.ones(4), 1)


def test_receive_times_out(make_world):
    world = made(make_world, 2, timeout=2)
    since = time.monotonic()
    outcome = world.outcomes(message_that_nobody_sends)[0]
    failed(outcome, since, 2 + AT_ONCE)
    assert outcome.blamed == {1}, outcome


def wait_with_a_timeout_of_its_own(rank):
    from datetime import timedelta

    if rank.rank == 0:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        since = time.monotonic()
        try:
            work.wait(timedelta(seconds=0.5))
        except goccl.OperationTimeoutError:
            assert time.monotonic() - since < 0.5 + AT_ONCE
            rank.tell("timed out")
        else:
            raise AssertionError("the work cannot have ended")
        rank.hear()


def test_wait_with_a_timeout(make_world):
    world = made(make_world, 2)
    world.start(wait_with_a_timeout_of_its_own)
    assert world.told(0) == "timed out"
    world.say("end", ranks=0)
    world.finish()
    world.healthy = False


# -- mismatches


def mismatched(rank, what):
    odd = rank.rank == rank.size - 1
    t = torch.ones(64)
    n = rank.size
    if what == "op":
        dist.all_reduce(t, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)
    elif what == "dtype":
        dist.all_reduce(t.to(torch.int32) if odd else t)
    elif what == "dtype of another width":
        dist.all_reduce(t.double() if odd else t)
    elif what == "size":
        dist.all_reduce(torch.ones(65) if odd else t)
    elif what == "large size":
        dist.all_reduce(torch.ones(3_000_000 if odd else 2_000_000))
    elif what == "size, one large":
        dist.all_reduce(torch.ones(3_000_000 if odd else 4))
    elif what == "root":
        dist.broadcast(t, 1 if odd else 0)
    elif what == "root of a reduce":
        dist.reduce(t, 1 if odd else 0)
    elif what == "collective":
        if odd:
            dist.broadcast(t, 0)
        else:
            dist.all_reduce(t)
    elif what == "barrier":
        if odd:
            dist.barrier()
        else:
            dist.all_reduce(t)
    elif what == "order":
        first, second = (
            (lambda: dist.all_reduce(t)),
            (lambda: dist.all_gather_into_tensor(torch.ones(64 * n), t)),
        )
        for call in (second, first) if odd else (first, second):
            call()
    elif what == "broadcast size":
        dist.broadcast(torch.ones(65) if odd else t, 0)
    elif what == "gather size":
        dist.all_gather_into_tensor(
            torch.ones(n * (65 if odd else 64)), torch.ones(65 if odd else 64)
        )
    elif what == "split sizes":
        # Only what goes to others: what a rank sends to itself it can check alone.
        sends = [64 // n + (odd and r != rank.rank) for r in range(n)]
        dist.all_to_all_single(
            torch.ones(64 // n * n), torch.ones(sum(sends)), [64 // n] * n, sends
        )
    elif what == "batch":
        with dist._coalescing_manager():
            dist.all_reduce(t)
            dist.all_reduce(torch.ones(32 if odd else 64))
    # A rank whose own part needed nothing of the others learns of it in its next collective.
    dist.all_reduce(torch.ones(1))
    dist.barrier()


MISMATCHES = [
    "op",
    "dtype",
    "dtype of another width",
    "size",
    "large size",
    "size, one large",
    "root",
    "root of a reduce",
    "collective",
    "barrier",
    "order",
    "broadcast size",
    "gather size",
    "split sizes",
    "batch",
]


@both_transports
@pytest.mark.parametrize("what", MISMATCHES)
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_mismatch_is_told_on_every_rank(make_world, transport, size, what):
    world = made(make_world, size, transport)
    since = time.monotonic()
    for outcome in world.outcomes(mismatched, what):
        failed(outcome, since)
        assert outcome.kind == "MismatchError", outcome


def mismatched_message(rank, what):
    if rank.rank == 0:
        dist.send(torch.ones(64), 1)
    elif what == "size":
        dist.recv(torch.ones(65), 0)
    else:
        dist.recv(torch.ones(64, dtype=torch.int32), 0)


@both_transports
@pytest.mark.parametrize("what", ["size", "dtype"])
def test_mismatched_message(make_world, transport, what):
    world = made(make_world, 2, transport)
    since = time.monotonic()
    text = failed(world.outcomes(mismatched_message, what)[1], since)
    for word in ("64", "65") if what == "size" else ("float32", "int32"):
        assert word in text, text


# -- leaving


def work_in_flight(rank):
    rank.works = [dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(3)]
    rank.works.append(dist.irecv(torch.ones(5), (rank.rank + 1) % rank.size, tag=9))


@both_transports
@pytest.mark.parametrize("destroyed", [False, True])
def test_normal_exit(make_world, transport, destroyed):
    """Through the interpreter's whole end, one rank after the other."""
    world = made(make_world, 3, transport, whole_exit=True)
    if destroyed:
        world.run(leave)
    for r in range(3):
        assert world.exit(r) == 0, world.logs()
    assert not re.search("Traceback|panic|fatal", world.logs()), world.logs()


def leave(rank):
    dist.destroy_process_group()


@both_transports
def test_exit_of_one_rank_fails_those_that_need_it(make_world, transport):
    """A rank that exits without a word is missed at once, not at the timeout."""
    world = made(make_world, 3, transport, whole_exit=True)
    world.start(all_reduce_once, ranks=(0, 1))
    for r in (0, 1):
        world.told(r)
    since = time.monotonic()
    assert world.exit(2) == 0, world.logs()
    for outcome in world.finish(ranks=(0, 1)):
        failed(outcome, since)
        assert outcome.blamed == {2}, outcome


@both_transports
def test_a_rank_that_comes_late_is_told_who_was_killed(make_world, transport):
    """No rank has a connection, and those who know have ended when the last one comes."""
    world = made(make_world, 4, transport, whole_exit=True)
    world.signal(1, signal.SIGKILL)
    world.exitcode(1)
    for r in (0, 2, 3):
        world.start(all_reduce_once, ranks=r)
        (outcome,) = world.finish(ranks=r)
        assert outcome.blamed == {1}, outcome
        world.exit(r)


@both_transports
def test_exit_with_work_in_flight(make_world, transport):
    world = made(make_world, 2, transport, whole_exit=True)
    world.start(work_in_flight, ranks=0)
    world.finish(ranks=0)
    assert world.exit(0) == 0, world.logs()
    assert "panic" not in world.logs()
    assert world.exit(1) == 0, world.logs()


def destroy_in_flight(rank):
    work_in_flight(rank)
    since = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - since < AT_ONCE
    for w in rank.works:
        with contextlib.suppress(RuntimeError):
            w.wait()
    return [w.is_completed() for w in rank.works]


@both_transports
def test_destroy_with_work_in_flight(make_world, transport):
    """It never waits for a peer, and every work ends."""
    world = made(make_world, 2, transport, whole_exit=True)
    world.start(destroy_in_flight, ranks=0)
    assert all(world.values(world.finish(ranks=0))[0])
    assert world.exit(0) == 0, world.logs()


def leave_early(rank):
    """Ranks part one after the other, with nothing open between them: no error for anybody."""
    for _ in range(10):
        dist.all_reduce(torch.ones(10))
    if rank.rank:
        rank.hear()
    dist.destroy_process_group()
    return "left"


def test_leaving_in_good_order_is_no_failure(make_world):
    world = made(make_world, 3)
    world.start(leave_early)
    assert world.values(world.finish(ranks=0)) == ["left"]
    for r in (1, 2):
        world.say("go", ranks=r)
        assert world.values(world.finish(ranks=r)) == ["left"]


# -- signals and forks


def wait_for_ever(rank, how):
    if rank.rank == 0:
        rank.tell("in")
        if how == "all_reduce":
            dist.all_reduce(torch.ones(10))
        elif how == "recv":
            dist.recv(torch.ones(10), 1)
        elif how == "barrier":
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(10), async_op=True).wait()
    else:
        rank.hear()


@both_transports
@pytest.mark.parametrize("how", ["all_reduce", "recv", "barrier", "wait"])
def test_ctrl_c(make_world, transport, how):
    world = made(make_world, 2, transport, whole_exit=True)
    world.start(wait_for_ever, how)
    world.told(0)
    # In the collective, or at its door: the interrupt must come through in either.
    harness.until(lambda: state(world.pids[0]) in "SR")
    since = world.signal(0, signal.SIGINT)
    outcome = world.finish(ranks=0)[0]
    assert outcome.kind == "KeyboardInterrupt", outcome
    assert outcome.at - since < AT_ONCE
    world.say("end", ranks=1)
    world.finish(ranks=1)
    # It can still leave.
    assert world.exit(0) == 0, world.logs()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((8,), float(i)), i % 3


def train_with_workers(rank):
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    data = Numbers()
    model = DistributedDataParallel(nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for epoch in range(2):
        sampler = DistributedSampler(data, rank.size, rank.rank)
        sampler.set_epoch(epoch)
        # fork is what DataLoader does by itself on Linux.
        for x, y in DataLoader(
            data, batch_size=8, sampler=sampler, num_workers=2, multiprocessing_context="fork"
        ):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    check(rank)


@both_transports
def test_data_loader_workers(make_world, transport):
    world = made(make_world, 2, transport)
    world.run(train_with_workers)


def child_that_calls(rank):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = "no error"
        try:
            dist.all_reduce(torch.ones(3))
        except BaseException as e:
            text = f"{type(e).__name__}: {e}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        text = f.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    check(rank)  # the parent is untouched
    return text


@both_transports
def test_child_that_calls_a_collective_gets_a_clear_error(make_world, transport):
    for text in made(make_world, 2, transport).run(child_that_calls):
        assert re.search("fork", text), text


def child_that_leaves(rank):
    """A forked child that ends as any Python program does, with the group inherited."""
    child = os.fork()
    if child == 0:
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    check(rank)
    return status


@both_transports
def test_child_that_exits_harms_nothing(make_world, transport):
    assert made(make_world, 2, transport).run(child_that_leaves) == [0, 0]


# -- strangers


def count_open(pid):
    return len(harness.descriptors(pid))


@both_transports
def test_strangers_on_the_ports_harm_nothing(make_world, transport):
    world = made(make_world, 2, transport)
    ports = [p for pid in world.pids for p in harness.listening_ports(pid)]
    if transport == "tcp" and harness.BACKEND == "goccl":
        assert ports, "over tcp somebody must listen"
    before = [count_open(pid) for pid in world.pids]
    noise = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 64,
        b"\xff" * 4096,
        os.urandom(1 << 16),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ]
    kept = []
    for host, port in ports:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host.removeprefix("::ffff:"))
        for data in noise:
            for keep in (False, True):
                with contextlib.suppress(OSError):
                    s = socket.create_connection((host, port), timeout=5)
                    s.sendall(data)
                    if keep:
                        kept.append(s)  # silence
                    else:
                        s.close()
        for _ in range(50):  # a scan
            with contextlib.suppress(OSError):
                socket.create_connection((host, port), timeout=5).close()
    for _ in range(5):
        world.run(check)
    if ports and harness.BACKEND == "goccl":
        told = (
            r"goccl: .* refused a connection from .*: .* \(further ones from there are not logged\)"
        )
        harness.until(
            lambda: len(re.findall(told, world.logs())) == len(ports),
            20,
            "each rank logs them once",
        )
    for s in kept:
        s.close()
    harness.until(
        lambda: all(count_open(pid) <= b + 2 for pid, b in zip(world.pids, before, strict=True)),
        20,
        "the strangers' descriptors are given back",
    )
    world.run(check)


def join_with_secret(rank):
    rank.init()
    check(rank)


@pytest.mark.parametrize("size", [2, 3])
def test_wrong_secret(make_world, size):
    env = {r: {"GOCCL_SECRET": "right"} for r in range(size)}
    world = make_world(size, rank_env={**env, size - 1: {"GOCCL_SECRET": "wrong"}})
    for outcome in world.outcomes(join_with_secret):
        assert re.search("secret", failed(outcome), re.IGNORECASE), outcome.error


def test_right_secret(make_world):
    make_world(3, env={"GOCCL_SECRET": "right"}).run(join_with_secret)


# -- a store that stands still


def keep_store(rank, keys):
    """Serves a store until it has so many more keys than at first. Then this process stops."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    at_first = store.num_keys()
    rank.tell(store.port)
    harness.until(lambda: store.num_keys() >= at_first + keys, harness.DEADLINE)
    os.kill(os.getpid(), signal.SIGSTOP)


class StuckStore(dist.Store):
    """A store in Python, from which no call returns."""

    def set(self, key, value):
        time.sleep(3600)


def join_over_stuck_store(rank, port, timeout):
    store = StuckStore() if port is None else dist.TCPStore("127.0.0.1", port, is_master=False)
    rank.tell("has a store")
    rank.hear()
    dist.init_process_group(
        harness.BACKEND, store=store, rank=0, world_size=2, timeout=timedelta(seconds=timeout)
    )


@pytest.mark.parametrize(
    "how", ["stopped before", "stopped when this rank has joined", "in Python"]
)
def test_store_that_does_not_answer(make_world, how):
    """Init ends at its timeout, while a call of the store does not return, and so can the
    process."""
    world, timeout, port = make_world(2, whole_exit=True), 2, None
    if how != "in Python":
        world.start(keep_store, 1, ranks=[1])
        port = world.told(1)
    world.start(join_over_stuck_store, port, timeout, ranks=[0])
    world.told(0)
    if how == "stopped before":
        world.signal(1, signal.SIGSTOP)
        harness.until(lambda: state(world.pids[1]) == "T")
    since = time.monotonic()
    world.say(None, ranks=[0])
    outcome = world.finish(ranks=[0])[0]
    text = failed(outcome, since, timeout + 1 + AT_ONCE)
    assert re.search(
        r'(reading|writing) "\S+" (from|to) the store: .*it has not answered within', text
    ), text
    assert world.exit(0) == 0, world.logs()


# -- options


def windows_mapped(rank):
    start(rank)
    return Path("/proc/self/maps").read_text().count("memfd")


def test_forced_shared_memory(make_world):
    """Forced means used: windows in anonymous shared memory are mapped."""
    assert all(make_world(2, env={"GOCCL_TRANSPORT": "shm"}).run(windows_mapped))


def test_unknown_transport(make_world):
    since = time.monotonic()
    for outcome in make_world(2, env={"GOCCL_TRANSPORT": "pigeon"}).outcomes(start):
        text = failed(outcome, since)
        assert all(word in text for word in ("pigeon", "shm", "tcp")), text


def test_unknown_interface(make_world):
    env = {"GOCCL_SOCKET_IFNAME": "nowhere0", "GOCCL_TRANSPORT": "tcp"}
    for outcome in make_world(2, env=env).outcomes(start):
        assert "nowhere0" in failed(outcome), outcome.error


def test_loopback_interface(make_world):
    make_world(2, env={"GOCCL_SOCKET_IFNAME": "lo", "GOCCL_TRANSPORT": "tcp"}).run(start)


def test_shared_memory_and_tcp_ranks_cannot_be_forced_together(make_world):
    """One rank forces what the other forbids: a clear error on both, no silent change."""
    world = make_world(2, rank_env={0: {"GOCCL_TRANSPORT": "shm"}, 1: {"GOCCL_TRANSPORT": "tcp"}})
    for outcome in world.outcomes(join_with_secret):
        text = failed(outcome)
        assert all(word in text for word in ("shm", "tcp")), text


def join_and_end(rank, port):
    """Rank 0's process keeps the store, as with env://. Every process ends as soon as it knows its
    fate."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank.rank),
        WORLD_SIZE=str(rank.size),
    )
    try:
        dist.init_process_group(harness.BACKEND, timeout=timedelta(seconds=20))
    except RuntimeError as error:
        rank.tell(str(error))
        os._exit(0)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("GOCCL_THRESHOLDS", ("flat_max=1", "flat_max=2", "flat_max=1")),
        ("GOCCL_ALLTOALL_SCHEDULE", ("parallel", "sequential", "sequential")),
        ("GOCCL_NET", ("tcp", "tcp", "verbs")),
        ("GOCCL_TRANSPORT", ("verbs", "verbs", "verbs")),  # which no pair of these can have
    ],
)
def test_settings_that_differ_are_told_to_all(make_world, setting, values):
    world = make_world(
        3, rank_env={r: {setting: v, "GOCCL_IB_HCA": "none7"} for r, v in enumerate(values)}
    )
    world.outcomes(join_and_end, harness.free_port())
    for rank in range(3):
        text = world.told(rank)
        assert all(f'"{v}"' in text for v in values), text
        assert not re.search(r"connection|frame #", text), text


# -- what is left


def levels_around(rank, times):
    """Threads, descriptors, listening ports before, during and after groups."""

    def level():
        gc.collect()
        return harness.threads(), len(harness.descriptors()), len(harness.listening_ports())

    # The first time starts what a process keeps for good: its runtime's threads.
    found = []
    for i in range(times):
        rank.init(store=f"store{i}")
        check(rank)
        dist.barrier()
        dist.destroy_process_group()
        found.append(level())
    with contextlib.suppress(TimeoutError):
        harness.until(lambda: level()[2] == 0, 60)
    return [*found, level()]


@both_transports
def test_nothing_is_left_after_destroy(make_world, transport):
    names = harness.shared_memory_names()
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    times = 12
    for levels in world.run(levels_around, times):
        assert levels[-1][2] == 0, f"still listening: {levels}"
        # Go's runtime starts some more now and then, up to a number that has nothing to do with
        # groups.
        assert levels[-1][0] <= levels[0][0] + times // 3, f"threads grow: {levels}"
        # The test's own store keeps one descriptor a time.
        assert levels[-1][1] <= levels[0][1] + 2 * times, f"descriptors grow: {levels}"
    assert harness.shared_memory_names() <= names


@pytest.mark.also_on_device
@both_transports
def test_nothing_is_left_after_a_kill(make_world, transport):
    names = harness.shared_memory_names()
    world = made(make_world, 3, transport)
    assert harness.shared_memory_names() <= names, (
        "shared memory must have no name even while in use"
    )
    for r in range(3):
        world.signal(r, signal.SIGKILL)
    for r in range(3):
        world.exitcode(r)
    assert harness.shared_memory_names() <= names


def memory_of_groups(rank, times):
    def resident():
        gc.collect()
        # What malloc keeps of freed tensors depends on how small pieces happened to lie between
        # them.
        ctypes.CDLL(None).malloc_trim(0)
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    sizes = []
    for i in range(times):
        rank.init(store=f"store{i}")
        for _ in range(3):
            dist.all_reduce(torch.ones(1 << 20))
        dist.destroy_process_group()
        sizes.append(resident())
    return sizes


def test_memory_comes_back(make_world):
    for sizes in make_world(2).run(memory_of_groups, 15):
        assert sizes[-1] - sizes[4] < 16 << 20, f"resident bytes grow: {sizes}"


# -- restarts


def lose_ranks(transport):
    """A rank under a launcher, whose first three starts each lose a rank."""
    os.environ["GOCCL_TRANSPORT"] = transport
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group(harness.BACKEND, init_method="env://")
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(20):
        t = torch.full((1000,), float(step))
        dist.all_reduce(t)
        assert (t == step * size).all()
        if step == 10 and count < 3 and rank == count % size:
            os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier(dist.new_group())
    dist.destroy_process_group()
    return count


def launch(_rank, size, transport):
    """What torchrun does, with ranks that are forked and need not import torch."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    multiprocessing.set_forkserver_preload(["torch.distributed.elastic.multiprocessing.api"])
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        run_id="restarts",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=3,
        monitor_interval=0.1,
        start_method="forkserver",
    )
    return elastic_launch(config, lose_ranks)(transport)


@pytest.mark.parametrize(("transport", "size"), list(zip(harness.TRANSPORTS, (3, 2), strict=False)))
def test_restarts_under_a_launcher(make_world, transport, size):
    """Three incarnations each lose a rank; the store keeps their keys, and the fourth must work."""
    (counts,) = make_world(1).run(launch, size, transport)
    assert counts == dict.fromkeys(range(size), 3)
