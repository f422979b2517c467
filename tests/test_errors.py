"""The exceptions of goccl: their types and fields on every way out of torch."""

import pickle
import signal
import threading
from datetime import timedelta
from typing import Any

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
from harness import Rank

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
    world = make_world(2)
    world.start(ways_out)
    for r in range(2):
        assert world.told(r) == "ready"
    world.signal(1, signal.SIGKILL)
    world.exitcode(1)
    world.say("dead", ranks=0)
    [outcome] = world.finish(ranks=0)
    assert outcome.ok, outcome
    kind, text = outcome.value.pop("then")
    assert kind is RuntimeError, kind  # torch's own
    assert "PeerFailedError: communicator" in text, text
    group = outcome.value["work.wait"][1]["group"]
    for way, (kind, facts) in outcome.value.items():
        operation = {"send": "send", "monitored_barrier": "monitored_barrier"}.get(way, "allreduce")
        sequence = None if way in ("blocking", "send", "monitored_barrier", "Communicator") else 2
        wanted = {"operation": operation, "sequence": sequence, "group": group, **ENDED[1]}
        assert (kind, facts) == (ENDED[0], wanted), (way, kind, facts)


def backward(rank: Rank) -> tuple:
    rank.init(timeout=30)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    loss = model(torch.ones(2, 4)).sum()
    rank.tell("ready")
    if rank.rank == 1:
        signal.pause()
    rank.hear()
    return raised(loss.backward)


def test_ddp_backward_keeps_the_type(make_world):
    """Autograd's engine hands exceptions from its threads to the caller."""
    world = make_world(2)
    world.start(backward)
    for r in range(2):
        assert world.told(r) == "ready"
    world.signal(1, signal.SIGKILL)
    world.exitcode(1)
    world.say("dead", ranks=0)
    [outcome] = world.finish(ranks=0)
    assert outcome.ok, outcome
    kind, facts = outcome.value
    assert (kind, facts["ranks"]) == (goccl.PeerFailedError, [1]), outcome.value


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
        found["unsupported"] = raised(lambda: _backend(store, rank.rank - 1, 2, options, "forced", [1, 2]))
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
        assert (kind, facts["operation"], facts["group"]) == (goccl.UnsupportedError, "init", "forced"), found
    kind, facts = one["wait"]
    assert (kind, facts["operation"], facts["absent"]) == (goccl.OperationTimeoutError, "recv", []), one
    kind, facts = one["init"]
    assert kind is goccl.OperationTimeoutError, one
    assert issubclass(kind, TimeoutError)
    assert (facts["operation"], facts["absent"], facts["group_absent"]) == ("init", [2], [1]), one


def test_without_torch():
    """The package knows its exceptions without an import of torch, and lists them."""
    assert {"Error", "PeerFailedError", "OperationTimeoutError"} <= set(dir(goccl))
    with pytest.raises(TimeoutError):
        raise goccl.OperationTimeoutError("late", absent=[1])
