"""What torch's backends have besides collectives: timeouts that are extended, hooks, memory, groups
merged. Real processes."""

import pickle
import queue
import time
from datetime import timedelta
from pathlib import Path

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]

if harness.BACKEND != "goccl":
    pytest.skip("what is tested is GoCCL's own", allow_module_level=True)


def backend():
    # Before torch 2.14 a group asks no backend but torch's own.
    return dist.group.WORLD._get_backend(torch.device("cpu"))


# -- timeouts that options give


def run_timeout_of_options(rank):
    """A given one is kept, torch's default of 30 minutes too; else it is the group's."""
    half_an_hour, short = timedelta(minutes=30), timedelta(seconds=40)
    given, none = goccl.Options(timeout=half_an_hour), goccl.Options(transport="tcp")
    rank.init(timeout=50, pg_options=given)
    groups = [
        (dist.group.WORLD, half_an_hour),
        (dist.new_group(timeout=short, pg_options=given), half_an_hour),
        (dist.new_group(timeout=short, pg_options=none), short),
        (dist.new_group(timeout=2 * short, pg_options=none), 2 * short),
        (dist.new_group(timeout=short), short),
    ]
    if hasattr(dist.ProcessGroup, "split_group"):  # from torch 2.9 on
        everybody = list(range(rank.size))
        split = dist.group.WORLD.split_group
        groups += [
            (split(everybody, timeout=short, group_name="1"), short),
            (split(everybody, timeout=short, opts=given, group_name="2"), half_an_hour),
            (split(everybody, timeout=short, opts=none, group_name="3"), short),
        ]
    for group, timeout in groups:
        options = group._get_backend(torch.device("cpu")).options
        assert options.timeout == options._timeout == timeout
        options.secret = "the group's own copy"
    assert (given.timeout, given.transport, given.secret) == (half_an_hour, "", "")
    assert (none.transport, none.secret) == ("tcp", "")
    assert "timeout=None" in repr(none)
    group, _ = groups[1]
    group._get_backend(torch.device("cpu")).options.timeout = None
    dist.distributed_c10d._set_pg_timeout(short, group)
    assert group._get_backend(torch.device("cpu")).options.timeout == short


def test_timeout_of_options(make_world):
    make_world(1).run(run_timeout_of_options)


# -- timeouts that are extended


def all_reduce(rank):
    dist.all_reduce(torch.ones(10))


def without_torch(rank):
    goccl.Communicator().all_reduce_(torch.ones(10))


def in_a_batch(rank):
    with dist._coalescing_manager(device=torch.device("cpu")):
        for _ in range(2):
            dist.all_reduce(torch.ones(10))


def sparse(rank):
    dist.all_reduce(torch.ones(10).to_sparse())


def to_the_other(rank):
    if rank.rank == 0:
        dist.recv(torch.ones(10), 1)
    else:
        dist.send(torch.ones(10), 0)


def run_extended(rank, operation, succeeds, timeout):
    rank.init()
    rank.limit(1)
    for _ in range(2):  # they add up
        backend()._add_ephemeral_timeout(timedelta(seconds=60 if succeeds else 0.25))
    if succeeds:
        operation(rank)
    if rank.rank == 0:
        with pytest.raises(dist.DistBackendError, match=f"timeout after {timeout}s"):
            operation(rank)
        rank.tell("late")
    rank.hear()


@pytest.mark.parametrize(("succeeds", "timeout"), [(False, "1.5"), (True, "1")])
@pytest.mark.parametrize("operation", [all_reduce, without_torch, in_a_batch, sparse, to_the_other])
def test_extended_timeout(make_world, operation, succeeds, timeout):
    """The extension is that of the first operation, and ends with it."""
    world = make_world(2)
    world.start(run_extended, operation, succeeds, timeout)
    assert world.told(0) == "late"
    world.say("leave")
    world.values(world.finish())


def run_extended_unawaited(rank):
    rank.init()
    rank.limit(1)
    backend()._add_ephemeral_timeout(timedelta(seconds=60))
    if rank.rank == 0:
        works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
        rank.tell("started")
        rank.hear()
        with pytest.raises(dist.DistBackendError, match="timeout after 1s"):
            all_reduce(rank)
        assert all(work.is_success() for work in works)
        rank.tell("late")
    else:
        rank.hear()
        time.sleep(1.5)  # longer than they would have without it
        for _ in range(3):
            all_reduce(rank)
        rank.tell("ended")
    rank.hear()


def test_extension_ends_though_nobody_waits(make_world):
    """All operations that start before the first has ended get the time."""
    world = make_world(2)
    world.start(run_extended_unawaited)
    assert world.told(0) == "started"
    world.say("go", ranks=1)
    assert world.told(1) == "ended"
    world.say("go", ranks=0)
    assert world.told(0) == "late"
    world.say("leave")
    world.values(world.finish())


def run_negative(rank):
    rank.init()
    with pytest.raises(ValueError, match="the timeout is -1 ms, it must not be negative"):
        backend()._add_ephemeral_timeout(timedelta(milliseconds=-1))


def test_negative_extension(make_world):
    make_world(1).run(run_negative)


# -- hooks


def run_completion_hook(rank):
    """Works are told of in the order in which they began, but for those that go on."""
    rank.init()
    group = dist.group.WORLD
    assert not group._has_hooks()
    told = queue.Queue()
    group._register_on_completion_hook(
        lambda info: told.put((info.op_type, info.seq, info.active_duration))
    )
    assert group._has_hooks()
    with pytest.raises(ValueError, match="has an onCompletion hook already"):
        group._register_on_completion_hook(print)
    sizes = [1, 1 << 20, 1 << 10] * 40
    for size in sizes:  # and forgotten
        dist.all_reduce(torch.ones(size), async_op=True)
    group._wait_for_pending_works()
    answers = [told.get_nowait() for _ in sizes]
    assert [answer[:2] for answer in answers] == [
        (OpType.ALLREDUCE, n + 1) for n in range(len(sizes))
    ]
    assert all(timedelta(0) < duration < timedelta(seconds=30) for *_, duration in answers)
    other = 1 - rank.rank
    received = torch.zeros(1)
    dist.irecv(received, other)
    dist.barrier()
    assert told.get(timeout=30)[0] == OpType.BARRIER
    dist.barrier()  # until both have been told
    dist.isend(torch.ones(1), other)
    group._wait_for_pending_works()
    assert {told.get_nowait()[0] for _ in range(3)} == {OpType.BARRIER, OpType.SEND, OpType.RECV}
    assert received == 1


def test_completion_hook(make_world):
    make_world(2).run(run_completion_hook)


def run_failing_hook(rank):
    """What a hook raises is logged, and disturbs nobody."""
    rank.init()
    dist.group.WORLD._register_on_completion_hook(lambda info: 1 / 0)
    all_reduce(rank)
    dist.group.WORLD._wait_for_pending_works()
    all_reduce(rank)


def test_failing_hook(make_world):
    world = make_world(2)
    world.run(run_failing_hook)
    assert "a hook of a process group failed: ZeroDivisionError" in world.logs()


hooks_by_number = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "register_abort_hook"),
    reason="torch before 2.15 has no such hooks",
)


def run_abort_hook(rank):
    rank.init()
    group = dist.group.WORLD
    called = []
    group.register_abort_hook(1, lambda: called.append("kept"))
    group.register_abort_hook(2, lambda: called.append("taken back"))
    group.unregister_abort_hook(2)
    with pytest.raises(ValueError, match="invalid root rank"):
        group.broadcast([torch.ones(1)], root(rank.size))  # by all, which breaks nothing
    all_reduce(rank)
    assert called == []
    rank.limit(1)
    if rank.rank == 0:
        for _ in range(2):
            with pytest.raises(dist.DistBackendError, match="timeout after 1s"):
                all_reduce(rank)
            assert called == ["kept"]
        rank.tell("failed")
    rank.hear()


def root(number):
    options = dist.BroadcastOptions()
    options.rootRank = number
    return options


@hooks_by_number
def test_abort_hook(make_world):
    world = make_world(2)
    world.start(run_abort_hook)
    assert world.told(0) == "failed"
    world.say("leave")
    world.values(world.finish())


def run_recorded(rank):
    dist.set_debug_level_from_env()
    rank.init()
    all_reduce(rank)
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    harness.until(work.is_completed)
    rank.limit(1)
    rank.tell("started")
    rank.hear()
    if rank.rank == 0:
        with pytest.raises(dist.DistBackendError, match="timeout after 1s"):
            all_reduce(rank)
        rank.tell("failed")
    rank.hear()


@hooks_by_number
def test_flight_recorder(make_world, tmp_path):
    """Where more is to be told, a trace tells what has ended and what has not."""
    env = {"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/rank"}
    world = make_world(2, env=env)
    world.start(run_recorded)
    for r in range(2):
        world.told(r)
    world.say("go")
    assert world.told(0) == "failed"
    world.say("leave")
    world.values(world.finish())
    entries = pickle.loads((tmp_path / "rank0").read_bytes())["entries"]
    assert [entry["state"] for entry in entries] == ["completed", "completed", "scheduled"]


def run_unrecorded(rank):
    rank.init(timeout=1)
    assert not dist.group.WORLD.supports_abort_hooks
    assert not dist.group.WORLD.supports_completion_hooks


@hooks_by_number
def test_flight_recorder_costs_nothing_unasked(make_world):
    make_world(1).run(run_unrecorded)


# -- memory


def run_memory(rank):
    rank.init()
    cpu = torch.device("cpu")
    assert backend().supports_tensor_alloc(cpu)
    t = backend().allocate_tensor(1 << 20, dtype=torch.int32, device=cpu)
    assert (t.shape, t.dtype, t.device) == ((1 << 20,), torch.int32, cpu)
    assert in_shareable_memory(t)
    dist.all_reduce(t.fill_(1))
    assert (t == rank.size).all()
    with pytest.raises(ValueError, match="only makes CPU tensors; `device` is meta"):
        backend().allocate_tensor(1, dtype=torch.int32, device=torch.device("meta"))
    with pytest.raises(ValueError, match="`size` is -1, it must be 0 or more"):
        backend().allocate_tensor(-1, dtype=torch.int32, device=cpu)
    if hasattr(backend(), "memory_stats"):
        assert backend().memory_stats() == goccl.memory_stats()


def in_shareable_memory(tensor):
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, _, end = line.split()[0].partition("-")
        if int(begin, 16) <= tensor.data_ptr() < int(end, 16):
            return "memfd" in line
    return False


def test_memory(make_world):
    make_world(2).run(run_memory)


def run_timing(rank):
    rank.init()
    dist.group.WORLD._enable_collectives_timing()
    work = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()
    assert work._get_duration() > 0


def test_timing(make_world):
    make_world(1).run(run_timing)


# -- groups merged


def run_merged(rank):
    """Two groups of two become one of four."""
    rank.init()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    merged = halves[rank.rank // 2].merge_remote_group(rank.make_store("merging"), 4)
    assert merged.size() == 4
    t = torch.tensor([1 << rank.rank, 1 << merged.rank()])
    merged.allreduce([t]).wait()
    assert t.tolist() == [15, 15]
    all_reduce(rank)


@pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "merge_remote_group"), reason="torch before 2.9 merges none"
)
def test_merged(make_world):
    make_world(4).run(run_merged)


def wait_in_sub_groups(rank):
    """Of a group of ranks 1 and 3 of four, rank 3 does not come. Returns the texts of rank 1's
    errors."""
    rank.init()
    kinds = ["all_reduce", "recv", "barrier", "mismatch", "monitored_barrier"]
    groups = {kind: dist.new_group([1, 3], timeout=timedelta(seconds=3)) for kind in kinds}
    if rank.rank == 1:
        calls = {
            "all_reduce": dist.all_reduce(
                torch.ones(1), group=groups["all_reduce"], async_op=True
            ).wait,
            "recv": dist.irecv(torch.ones(1), 3, group=groups["recv"]).wait,
            "barrier": dist.barrier(group=groups["barrier"], async_op=True).wait,
            "mismatch": dist.all_reduce(
                torch.ones(1), group=groups["mismatch"], async_op=True
            ).wait,
            "monitored_barrier": groups["monitored_barrier"].monitored_barrier,
        }
    elif rank.rank == 3:
        call = dist.barrier(group=groups["mismatch"], async_op=True).wait
        calls = {"mismatch": call}
    else:
        calls = {}
    texts = {}
    for kind in reversed(calls):
        with pytest.raises(RuntimeError) as e:
            calls[kind]()
        texts[kind] = str(e.value)
    dist.barrier()
    return texts


def test_errors_of_sub_groups_name_global_ranks(make_world):
    world = make_world(4)
    for text in world.run(wait_in_sub_groups)[1].values():
        assert f"rank 1 (global rank 3, pid {world.pids[3]})" in text, text
