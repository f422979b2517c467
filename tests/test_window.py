"""torch's Window: puts that signal, waits that take a signal, and what is refused. Real processes,
over shared memory and over links; what is there against what was to be there."""

import gc
import signal
import threading
import weakref
from datetime import timedelta
from typing import Any

import goccl
import harness
import oracle
import pytest
import torch
import torch.distributed as dist
from test_channels import both_transports, init, made, same, shares_memory
from test_collectives import refused

SIZES = (3,)
DTYPES = [torch.float32, torch.uint8, torch.bfloat16, torch.complex128, torch.bool]
COUNTS = [1, 0, 511, 4096, 300_000]

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "_new_window"), reason="torch has windows from 2.15 on"
)


def new_window(tensor: Any = None, group: Any = None) -> Any:
    return dist._new_window(tensor, group)


def options(kind, seconds):
    opts = getattr(torch._C._distributed_c10d, kind)()
    opts.timeout = timedelta(seconds=seconds)
    return opts


def waits(seconds):
    return options("WaitSignalOptions", seconds)


# -- what is put is there


def run_moves(rank, dtype):
    """Around a ring, with works and without; each rank has another number of elements."""
    n, me = rank.size, rank.rank
    after, before = (me + 1) % n, (me - 1) % n
    assert dist._supports_window()
    own = goccl.zeros(max(COUNTS) + 10 + me, dtype=dtype)
    window = new_window(own)
    for i, count in enumerate(COUNTS):
        for async_op in (False, True):
            given = made(dtype, count, 10 * me + i)
            put = window.put(given, after, i + after, async_op)
            came = window.wait_signal(before, async_op)
            for work in (put, came):
                assert async_op or work.is_completed()
                work.wait()
                assert work.is_completed()
            want = made(dtype, count, 10 * before + i)
            what = f"put of {count} {dtype}, async {async_op}"
            harness.expect(same(own[i + me : i + me + count], want), what)
            window.signal(before, async_op).wait()  # that rank may put again
            window.wait_signal(after, async_op).wait()
    window.tensor_deregister()


@pytest.mark.parametrize("dtype", DTYPES, ids=oracle.name)
def test_moves(world, dtype):
    world.run(run_moves, dtype)


def run_signals(rank):
    """A put counts as one signal, and a wait takes one, in the order of the calls."""
    n, me = rank.size, rank.rank
    after, before = (me + 1) % n, (me - 1) % n
    window = new_window(goccl.zeros(4))
    later = [window.wait_signal(before, True) for _ in range(3)]
    now = window.wait_signal(me, True)
    assert not any(work.is_completed() for work in [*later, now])
    dist.barrier()
    window.put(torch.ones(1), after, 0, False)
    later[0].wait()
    dist.barrier()  # all have
    assert not any(work.is_completed() for work in [*later[1:], now])
    dist.barrier()
    window.signal(me, False)
    now.wait()
    window.signal(after, True)
    window.signal(after, False)
    window.signal(after, False)
    window.wait_signal(before, False)  # behind the two others
    assert all(work.is_completed() for work in later)
    with pytest.raises(goccl.OperationTimeoutError):
        window.wait_signal(before, False, waits(0.001))
    dist.barrier()
    window.tensor_deregister()


def test_signals(world):
    world.run(run_signals)


def run_own_completion(rank):
    """A work ends though nobody waits for it: a poll tells, and a future's callback is called."""
    n, me = rank.size, rank.rank
    after, before = (me + 1) % n, (me - 1) % n
    window = new_window(goccl.zeros(1000))
    polled = window.wait_signal(before, True)
    dist.barrier()
    put = window.put(torch.ones(1000), after, 0, True)
    harness.until(polled.is_completed)
    harness.until(put.is_completed)
    called = threading.Event()
    future = window.wait_signal(before, True).get_future().then(lambda _: called.set())
    window.put(torch.ones(1000), after, 0, True)  # its work is dropped, and so is its source
    assert called.wait(harness.DEADLINE)
    future.wait()
    window.tensor_deregister()


def test_works_end_by_themselves(world):
    world.run(run_own_completion)


def run_several(rank):
    """Windows are apart from each other and from channels. A group of some ranks has its own."""
    n, me = rank.size, rank.rank
    comm = goccl.Communicator()
    sizes = [3, 5]
    tensors = [goccl.zeros(s, dtype=torch.int32) for s in sizes]
    windows = [new_window() for _ in sizes]
    for window, tensor in zip(reversed(windows), reversed(tensors), strict=True):
        window.tensor_register(tensor)
    after, before = (me + 1) % n, (me - 1) % n
    with comm.channel(after, 0) as to, comm.channel(before, 0) as source:
        windows[1].put(torch.full((5,), 2, dtype=torch.int32), after, 0, False)
        windows[1].wait_signal(before, False)
        for window, tensor in zip(windows, tensors, strict=True):
            with pytest.raises(goccl.OperationTimeoutError):
                window.wait_signal(before, False, waits(0.001))
            assert tensor.tolist() == ([0] * 3 if tensor is tensors[0] else [2] * 5)
        assert not source.poll()
        comm.barrier()
        to.signal()
        source.wait()
        comm.barrier()
    pair = dist.new_group([0, 2], use_local_synchronization=True) if me != 1 else None
    if pair is not None:
        small = goccl.zeros(1, dtype=torch.int32)
        window = new_window(small, pair)
        other = 1 - dist.get_rank(pair)
        window.put(torch.tensor([7], dtype=torch.int32), other, 0, False)
        window.wait_signal(other, False)
        assert small.item() == 7
        refused(lambda: window.signal(2, False), "`peer_rank` is 2, allowed are 0 to 1")
        window.tensor_deregister()
        dist.destroy_process_group(pair)
    for window in windows:
        window.tensor_deregister()


def test_several_windows(world):
    world.run(run_several)


def run_maps(rank):
    """Ranks on the host map each other's tensor, whatever its dtype and size; others do not."""
    me, n = rank.rank, rank.size
    dtypes = [torch.float64, torch.int16, torch.bool]
    block = goccl.zeros(10 * (me + 2), dtype=dtypes[me]).fill_(1)
    own = block[10 : 10 + 5 * me].view(-1, 5)  # none, a part of a block, two rows
    window = new_window(own)
    unified = torch._C._distributed_c10d.WindowAccessType.UNIFIED
    for r in range(n):
        near = r == me or shares_memory(goccl.Communicator(), r)
        assert (window.get_attr(r).access_type == unified) == near
        if r > 0 and not near:
            with pytest.raises(goccl.UnsupportedError, match="is not mapped here"):
                window.map_remote_tensor(r)
            continue
        view = window.map_remote_tensor(r)
        assert (view.dtype, view.tolist()) == (dtypes[r], [1] * 5 * r)
    # Puts of nothing to a rank with nothing.
    window.put(torch.zeros(0, dtype=dtypes[0]), 0, 0, False)
    if me == 0:
        for r in range(n):
            window.wait_signal(r, False)
    refused(
        lambda: window.put(torch.zeros(1, dtype=dtypes[0]), 0, 0, False), "1 elements, and rank 0",
        kinds=ValueError,
    )  # fmt: skip
    dist.barrier()
    window.tensor_deregister()


def test_maps(world):
    world.run(run_maps)


def run_kept(rank):
    """A window keeps its tensor as it is told, and the source of a put until its end."""
    window = new_window()
    for owning in (True, False):
        tensor = goccl.zeros(1000)
        kept = weakref.ref(tensor)
        window.tensor_register(tensor, owning)
        del tensor
        gc.collect()
        assert (kept() is not None) == owning
        dist.barrier()
        # Without an owner peers still write to memory that is nobody else's.
        window.put(torch.ones(1000), (rank.rank + 1) % rank.size, 0, False)
        window.wait_signal((rank.rank - 1) % rank.size, False)
        if owning:
            assert window.map_remote_tensor(rank.rank).tolist() == [1] * 1000
        else:
            refused(lambda: window.map_remote_tensor(rank.rank), "the tensor of this rank is gone")
        window.tensor_deregister()
        gc.collect()
        assert kept() is None


def test_kept(world):
    world.run(run_kept)


def run_views(rank):
    """A view of the own memory outlives the window, the tensor and the group."""
    rank.init()
    tensor = goccl.zeros(1 << 20).fill_(rank.rank)
    window = dist._new_window(tensor)
    view = window.map_remote_tensor(rank.rank)
    dist.barrier()
    dist.destroy_process_group()
    del window, tensor
    gc.collect()
    assert view.sum() == rank.rank << 20


def test_views_outlive_their_group(make_world):
    make_world(2).run(run_views)


# -- what is refused


def wrong_calls(window, n):
    """(call, what it says); the window is of 4 floats."""
    one = torch.ones(4)
    for rank in (-1, n, 2**40):
        yield lambda r=rank: window.put(one, r, 0, False), f"`dst_rank` is {rank}, allowed are 0 to"
        for method in (window.signal, window.wait_signal):
            yield lambda m=method, r=rank: m(r, True), f"`peer_rank` is {rank}, allowed are 0 to"
        yield lambda r=rank: window.map_remote_tensor(r), f"`rank` is {rank}"
        yield lambda r=rank: window.get_attr(r), f"`peer_rank` is {rank}"
    for at in (-1, 5, -(2**63), 2**63 - 1, 2**62):
        yield lambda a=at: window.put(one, 0, a, False), f"`target_offset_nelems` is {at}"
    for at in (1, 4):
        yield lambda a=at: window.put(one, 0, a, True), "has 4 elements, and rank 0"
    yield lambda: window.put(torch.ones(5), 0, 0, False), "has 5 elements, and rank 0"
    yield lambda: window.put(one.double(), 0, 0, False), "is Double, it must be Float"
    yield lambda: window.put(torch.ones(4, 4)[:, 0], 0, 0, False), "is not contiguous"
    yield lambda: window.put(torch.ones(1).expand(4), 0, 0, False), "is not contiguous"
    yield lambda: window.put(one.to("meta"), 0, 0, False), "is on meta"
    yield lambda: window.put(one.to_sparse(), 0, 0, False), "only supports dense"


def wrong_tensors():
    yield torch.ones(4), "goccl.empty()"
    yield goccl.zeros(4, 4).t()[:2], "is not contiguous"
    yield goccl.zeros(4).to("meta"), "is on meta"
    yield goccl.zeros(4).to_sparse(), "only supports dense"


def run_wrong(rank):
    """Each error names what is wrong, on every rank where the call is collective, and changes
    nothing."""
    me, n = rank.rank, rank.size
    window = new_window()
    no_tensor = (
        lambda: window.put(torch.ones(1), 0, 0, False),
        lambda: window.signal(0, True),
        lambda: window.wait_signal(0, True),
        lambda: window.map_remote_tensor(0),
        lambda: window.get_attr(0),
        window.tensor_deregister,
    )
    for call in no_tensor:
        refused(call, "the window has no tensor", kinds=ValueError)

    def on_one(call, text, kinds=ValueError):
        """What rank 1 alone is refused."""
        if me == 1:
            refused(call, text, kinds=kinds)
        else:
            refused(call, "refused on rank 1", kinds=goccl.MismatchError)

    for bad, text in wrong_tensors():
        tensor = bad if me == 1 else goccl.zeros(4)
        on_one(lambda t=tensor: window.tensor_register(t), text)
        on_one(lambda t=tensor: new_window(t), text)
    own = goccl.zeros(4)
    window.tensor_register(own)
    refused(lambda: window.tensor_register(own), "has a tensor already", kinds=ValueError)
    for i, (call, text) in enumerate(wrong_calls(window, n)):
        refused(call, text, what=f"wrong call {i}", kinds=ValueError)
    window.put(torch.ones(4), (me + 1) % n, 0, False)
    window.wait_signal((me - 1) % n, False)
    assert own.tolist() == [1] * 4
    window.tensor_deregister()
    for call in no_tensor:
        refused(call, "the window has no tensor", kinds=ValueError)


def test_wrong_calls(world):
    world.run(run_wrong)


# -- waits that end otherwise


def run_late(rank):
    """Each work ends at its own time, and a wait that is late has taken nothing."""
    me = rank.rank
    window = new_window(goccl.zeros(4))
    late = goccl.OperationTimeoutError
    patient = window.wait_signal(1 - me, True)
    hasty = window.wait_signal(1 - me, True, waits(0.05))
    refused(hasty.wait, "of window", "timeout after 50ms: other waits come first", kinds=late)
    refused(lambda: window.wait_signal(1 - me, False, waits(0.05)), "after 50ms", kinds=late)
    with pytest.raises(goccl.OperationTimeoutError, match="goes on, and may be waited for again"):
        patient.wait(timedelta(seconds=0.02))
    dist.barrier()
    window.signal(1 - me, False)
    patient.wait()
    rank.limit(0.1)
    refused(lambda: window.wait_signal(1 - me, False), "timeout after 100ms", kinds=late)
    rank.limit(60)
    dist.barrier()
    window.tensor_deregister()


def run_others_go_on(rank):
    """A thread that waits leaves the others the GIL."""
    window = new_window(goccl.zeros(4))
    began = threading.Event()

    def wait():
        began.set()
        window.wait_signal(rank.rank, False)

    thread = threading.Thread(target=wait)
    thread.start()
    assert began.wait(harness.DEADLINE)
    window.signal(rank.rank, False)
    thread.join(harness.DEADLINE)
    assert not thread.is_alive()
    dist.barrier()
    window.tensor_deregister()


def run_interrupted(rank):
    """Ctrl-C ends a wait on the main thread."""
    window = new_window(goccl.zeros(4))

    def waits_for_ever():
        window.wait_signal(1 - rank.rank, False)

    with pytest.raises(KeyboardInterrupt):
        harness.interrupt(waits_for_ever)
    dist.barrier()


@both_transports
def test_waits(make_world, transport):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    world.run(init)
    world.run(run_late)
    world.run(run_others_go_on)
    world.run(run_interrupted)


def run_victim(rank):
    """Rank 0 is killed: what waits for it ends with an error that names it, and no other does."""
    me = rank.rank
    window = new_window(goccl.zeros(8))
    other = 3 - me
    if me == 0:
        window.signal(1, False)
        rank.tell("ready")
        rank.hear()
    window.wait_signal(0, False) if me == 1 else None
    waiting = window.wait_signal(0, True)
    rank.tell("ready")
    with pytest.raises(goccl.PeerFailedError) as failed:
        waiting.wait()
    assert failed.value.ranks == [0]
    for call in (
        lambda: window.put(torch.ones(8), 0, 0, True).wait(),
        lambda: window.signal(0, False),
        lambda: window.wait_signal(0, False),
    ):
        with pytest.raises(goccl.PeerFailedError) as failed:
            call()
        assert failed.value.ranks == [0]
    window.put(torch.ones(8), other, 0, False)
    window.wait_signal(other, False)
    assert window.map_remote_tensor(me).tolist() == [1] * 8


@both_transports
def test_a_peer_that_is_killed(make_world, transport):
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.run(init)
    world.start(run_victim)
    for r in range(3):
        world.told(r)
    world.signal(0, signal.SIGKILL)
    world.values(world.finish(ranks=[1, 2]))


def run_ended(rank):
    """A window that its peer has let go of, and one whose group is destroyed, say so."""
    rank.init()
    me = rank.rank
    window: Any = new_window(goccl.zeros(4))
    dist.barrier()
    if me == 0:
        window = None
        gc.collect()
    else:
        refused(
            lambda: window.wait_signal(0, False), "rank 0", "has closed its end",
            kinds=goccl.AbortedError,
        )  # fmt: skip
    dist.barrier()

    window = new_window(goccl.zeros(4))
    waiting = window.wait_signal(1 - me, True)
    view = window.map_remote_tensor(me)
    dist.barrier()
    dist.destroy_process_group()
    for call in (
        waiting.wait,
        lambda: window.put(torch.ones(4), 1 - me, 0, False),
        lambda: window.put(torch.ones(4), me, 0, True).wait(),
        lambda: window.signal(1 - me, False),
        lambda: window.wait_signal(1 - me, False),
        window.tensor_deregister,
        lambda: window.tensor_register(goccl.zeros(4)),
    ):
        refused(call, kinds=(goccl.AbortedError, ValueError))
    assert view.tolist() == [0] * 4
    window = None
    gc.collect()


@both_transports
def test_windows_that_have_ended(make_world, transport):
    make_world(2, env={"GOCCL_TRANSPORT": transport}).run(run_ended)
