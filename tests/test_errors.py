"""The exceptions of goccl: their types and fields on every way out of torch."""

import pickle
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
from harness import Rank
from torch import nn
from torch._C._distributed_c10d import ErrorType
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

PRELOAD = ("torch._dynamo", "torch.distributed.fsdp")

pytestmark = pytest.mark.skipif(harness.BACKEND != "goccl", reason="goccl's own exceptions")

ENDED = (goccl.PeerFailedError, {"ranks": [1], "group_ranks": [1]})


def facts(error: BaseException | None) -> tuple:
    """The type of an exception, and what it says besides its text, after a trip through pickle."""
    if not isinstance(error, goccl.Error):
        return type(error), str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error), again
    assert (str(again), vars(again)) == (str(error), vars(error)), again
    assert isinstance(error, dist.DistBackendError), type(error).__mro__
    return type(error), dict(vars(error))


def raised(call) -> tuple:
    try:
        call()
    except Exception as error:
        return facts(error)
    return None, "nothing was raised"


def ways_out(rank: Rank) -> dict[str, tuple]:
    """What each way out of torch raises after rank 1 was killed."""
    rank.init(timeout=30)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    rank.tell("ready")
    if rank.rank == 1:
        signal.pause()
    rank.hear()
    seen = []
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()

    def look(ended: torch.futures.Future) -> object:
        seen.append(raised(ended.value))
        return ended.value()

    chained = future.then(look)
    found = {"work.wait": raised(work.wait), "future.wait": raised(future.wait)}
    found["future.value"] = raised(future.value)
    found["then"] = raised(chained.wait)
    found["then's callback"] = seen[0]
    found["work.exception"] = facts(work.exception())
    found["blocking"] = raised(lambda: dist.all_reduce(tensor))
    found["send"] = raised(lambda: dist.send(tensor, 1))
    found["monitored_barrier"] = raised(dist.monitored_barrier)
    found["Communicator"] = raised(lambda: goccl.Communicator().all_reduce_(tensor))

    def on_thread() -> None:
        found["a thread"] = raised(work.wait)

    thread = threading.Thread(target=on_thread)
    thread.start()
    thread.join()
    return found


def test_every_way_out_keeps_the_type(make_world):
    [found] = survivors(make_world(2), ways_out)
    kind, text = found.pop("then")
    assert kind is RuntimeError, kind  # torch's own
    assert "PeerFailedError: communicator" in text, text
    group = found["work.wait"][1]["group"]
    for way, (kind, facts) in found.items():
        operation = {"send": "send", "monitored_barrier": "monitored_barrier"}.get(way, "allreduce")
        sequence = None if way in ("blocking", "send", "monitored_barrier", "Communicator") else 2
        wanted = {"operation": operation, "sequence": sequence, "group": group, **ENDED[1]}
        assert (kind, facts) == (ENDED[0], wanted), (way, kind, facts)


def plain_ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def builtin_ddp(hook: str, model: nn.Module) -> nn.Module:
    ddp = DistributedDataParallel(model)
    ddp._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, hook))
    return ddp


def fsdp1(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def fsdp2(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
    return model


def backward(rank: Rank, parallel: Callable[[nn.Module], nn.Module]) -> tuple[tuple, tuple]:
    """What the backward pass raises after the last rank was killed, and the call after it."""
    rank.init(timeout=30)
    model = parallel(nn.Linear(8, 8))
    for _ in range(3):  # PowerSGD begins in the third
        model(torch.ones(2, 8)).sum().backward()
    loss = model(torch.ones(2, 8)).sum()
    rank.tell("ready")
    if rank.rank == rank.size - 1:
        signal.pause()
    rank.hear()
    return raised(loss.backward), raised(lambda: dist.all_reduce(torch.ones(1)))


TYPED = [
    pytest.param(plain_ddp, id="ddp"),
    pytest.param(partial(builtin_ddp, "ALLREDUCE"), id="builtin allreduce"),
    pytest.param(partial(builtin_ddp, "FP16_COMPRESS"), id="builtin fp16"),
    pytest.param(fsdp1, id="fsdp1"),
    pytest.param(fsdp2, id="fsdp2"),
]


def survivors(world: harness.World, fn: Callable, *args: Any) -> list[Any]:
    """What fn gives on the ranks that are left when the last one is killed. It tells when it may
    be."""
    world.start(fn, *args)
    last = world.size - 1
    for r in range(world.size):
        assert world.told(r) == "ready"
    world.signal(last, signal.SIGKILL)
    world.exitcode(last)
    world.say("dead", ranks=range(last))
    return world.values(world.finish(ranks=range(last)))


@pytest.mark.parametrize("parallel", TYPED)
def test_backward_keeps_the_type(make_world, parallel):
    """Autograd's engine hands exceptions from its threads to the caller."""
    for now, later in survivors(make_world(3), backward, parallel):
        for kind, facts in (now, later):
            assert (kind, facts["ranks"]) == (goccl.PeerFailedError, [2]), (now, later)


def backward_through(rank: Rank, hook: Callable) -> tuple[tuple, tuple]:
    """What backward() raises where the last rank is killed once the hook has begun, and a later
    call."""
    rank.init(timeout=30)
    model, last = DistributedDataParallel(nn.Linear(8, 8)), False

    def telling(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = hook(state, bucket)
        if last:
            rank.tell("ready")
        return future

    power = hook is powerSGD_hook.powerSGD_hook
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2) if power else None
    model.register_comm_hook(state, telling)
    for _ in range(3):  # PowerSGD begins in the third
        model(torch.ones(2, 8)).sum().backward()
    loss, last = model(torch.ones(2, 8)).sum(), True
    if rank.rank == rank.size - 1:
        rank.tell("ready")
        signal.pause()
    found = raised(loss.backward)
    rank.hear()
    return found, raised(lambda: dist.all_reduce(torch.ones(1)))


@pytest.mark.parametrize(
    "hook",
    [default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, powerSGD_hook.powerSGD_hook],
)
def test_backward_through_callbacks_keeps_the_text(make_world, hook):
    """These hooks of torch hand on the result by a callback in Python, of which torch keeps the
    text."""
    for now, later in survivors(make_world(3), backward_through, hook):
        assert now[0] is RuntimeError, now  # torch's own
        assert "PeerFailedError: communicator" in now[1], now
        assert (later[0], later[1]["ranks"]) == (goccl.PeerFailedError, [2]), later


def failing_hook(rank: Rank) -> tuple:
    """What the backward pass raises where one rank's hook fails, and that rank leaves."""

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if rank.rank == 2:
            raise KeyError("a mistake")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    rank.init(timeout=30)
    model = DistributedDataParallel(nn.Linear(8, 8))
    model.register_comm_hook(None, hook)
    found = raised(model(torch.ones(2, 8)).sum().backward)
    if rank.rank == 2:
        dist.destroy_process_group()
    return found


def test_hook_that_fails_on_one_rank(make_world):
    *others, mistaken = make_world(3).run(failing_hook)
    assert "a mistake" in mistaken[1], mistaken
    for kind, facts in others:
        assert (kind, facts["ranks"]) == (goccl.AbortedError, [2]), others


def group_errors(rank: Rank) -> list[Any]:
    """What the group, and a work and its future, say of a failure of the group: before it, after
    it."""
    rank.init(timeout=30)
    dist.all_reduce(torch.ones(1))
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = group.get_error()
    work = dist.all_reduce(torch.ones(4), async_op=True) if rank.rank < 2 else None
    rank.tell("ready")
    if work is None:
        signal.pause()
        raise AssertionError("it was to be killed")
    assert work.exception() is None
    rank.hear()
    harness.until(work.is_completed)
    error = work.exception()
    assert not work.is_success()
    same = [raised(work.wait), raised(work.get_future().wait), raised(work.get_future().value)]
    assert same == [facts(error)] * 3
    return [before, group.get_error(), facts(error)]


def test_group_and_works_tell_the_error(make_world):
    for before, after, (kind, said) in survivors(make_world(3), group_errors):
        assert (before, after) == (ErrorType.SUCCESS, ErrorType.REMOTE_ERROR)
        assert (kind, said["ranks"], said["operation"]) == (goccl.PeerFailedError, [2], "allreduce")


def kinds(rank: Rank) -> dict[str, tuple]:
    """One failure of each kind, in groups of the ranks 1 and 2 of 3."""
    rank.init(timeout=30)
    found = {}
    tensor = torch.ones(4)

    def new() -> Any:
        return dist.new_group([1, 2], timeout=timedelta(seconds=30))

    group = new()
    if rank.rank:
        op = dist.ReduceOp.SUM if rank.rank == 1 else dist.ReduceOp.MAX
        found["mismatch"] = raised(lambda: dist.all_reduce(tensor, op, group=group))
    group = new()
    if rank.rank == 1:
        work = dist.irecv(tensor, 2, group=group)
        found["wait"] = raised(lambda: work.wait(timedelta(milliseconds=20)))
        group.abort()
        found["aborted"] = raised(lambda: work.wait())
    elif rank.rank == 2:
        found["aborted"] = raised(lambda: dist.barrier(group=group))
    dist.barrier()
    if rank.rank:
        options = goccl.Options(transport="verbs")
        store = dist.PrefixStore("unsupported", rank.make_store("second"))
        found["unsupported"] = raised(
            lambda: _backend(store, rank.rank - 1, 2, options, "forced", [1, 2])
        )
        late = dist.PrefixStore("late", rank.make_store("second"))
        options = goccl.Options(timeout=timedelta(seconds=1))
        if rank.rank == 1:
            found["init"] = raised(lambda: _backend(late, 0, 2, options, "late", [1, 2]))
    dist.barrier()
    return found


def _backend(store, rank, size, options, name, global_ranks):
    from goccl._native import load

    return load().ProcessGroupGoccl(store, rank, size, options, name, global_ranks)


def test_kinds(make_world):
    """Ranks are named as the job numbers them; group_ranks as the group does."""
    world = make_world(3)
    _, one, two = world.run(kinds)
    calls = {1: "allreduce(float32, 4 elements, SUM)", 2: "allreduce(float32, 4 elements, MAX)"}
    for found in (one, two):
        kind, facts = found["mismatch"]
        assert (kind, facts["calls"]) == (goccl.MismatchError, calls), found
        assert (facts["operation"], facts["sequence"]) == ("allreduce", 1), found
        kind, facts = found["aborted"]
        assert (kind, facts["ranks"], facts["group_ranks"]) == (goccl.AbortedError, [1], [0]), found
        kind, facts = found["unsupported"]
        assert (kind, facts["operation"], facts["group"]) == (
            goccl.UnsupportedError,
            "init",
            "forced",
        ), found
    kind, facts = one["wait"]
    assert (kind, facts["operation"], facts["absent"]) == (
        goccl.OperationTimeoutError,
        "recv",
        [],
    ), one
    kind, facts = one["init"]
    assert kind is goccl.OperationTimeoutError, one
    assert issubclass(kind, TimeoutError)
    assert (facts["operation"], facts["absent"], facts["group_absent"]) == ("init", [2], [1]), one


def new_groups(rank: Rank) -> list[tuple]:
    """What making a group raises where rank 1 does not come."""
    rank.init(timeout=30, device_id=torch.device("cpu", 0))
    if rank.rank == 1:
        return []
    soon = timedelta(seconds=1)
    return [
        raised(lambda: dist.split_group(split_ranks=[[0, 1]], timeout=soon)),
        raised(lambda: dist.new_group([0, 1], timeout=soon)),
    ]


def test_new_group_without_a_rank(make_world):
    """The operation is what makes a group, not what this consists of."""
    for kind, facts in make_world(2).run(new_groups)[0]:
        assert (kind, facts["operation"]) == (goccl.OperationTimeoutError, "init"), facts
        assert (facts["absent"], facts["group_absent"]) == ([1], [1]), facts


def test_without_torch():
    """The package knows its exceptions without an import of torch, and lists them."""
    assert {"Error", "PeerFailedError", "OperationTimeoutError"} <= set(dir(goccl))
    with pytest.raises(TimeoutError):
        raise goccl.OperationTimeoutError("late", absent=[1])
