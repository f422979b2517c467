"""goccl.numpy: collectives of arrays without torch, against NumPy itself."""

import array
import contextlib
import functools
import gc
import inspect
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import time
import weakref

import goccl
import goccl.numpy as gn
import numpy as np
import pytest
from goccl import errors
from goccl.numpy import _meet
from harness import AT_ONCE, TRANSPORTS, finished, free_port, interrupt, start

WORLDS = [(3, "shm"), (2, "tcp")]
REAL = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
FUNCTIONS = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
BITWISE = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}


def join(rank, name="numpy", **options):
    return gn.init(rank.rank, rank.size, store=rank.make_store(name), timeout=60, **options)


def values(rank, dtype, shape=(4, 5)):
    """What a rank gives: small numbers, so that sums are exact in any order."""
    made = (np.arange(np.prod(shape)).reshape(shape) + 3 * rank) % 5
    return made.astype(dtype)


def same(got, wanted):
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def all_of(comm, dtype, shape=(4, 5)):
    return [values(rank, dtype, shape) for rank in range(comm.size)]


def run_reductions(rank, transport):
    comm = join(rank, transport=transport)
    assert comm.transport((rank.rank + 1) % rank.size) in (transport, "mem")
    for dtype in (*REAL, *FLOATS, *COMPLEX, "bool"):
        ops = FUNCTIONS | BITWISE if dtype in REAL else FUNCTIONS
        if dtype in COMPLEX:
            ops = {name: FUNCTIONS[name] for name in ("sum", "product")}
        mine, all_ = values(rank.rank, dtype), all_of(comm, dtype)
        for op, function in ops.items():
            wanted = functools.reduce(function, all_).astype(dtype)
            same(comm.allreduce(mine, op), wanted)
            place = mine.copy()
            assert comm.allreduce(place, op, out=place) is place
            same(place, wanted)
            other = np.empty_like(mine)
            assert comm.allreduce(mine, op, out=other) is other
            same(other, wanted)
            root = rank.size - 1
            got = comm.reduce(mine, op, root)
            if rank.rank == root:
                same(got, wanted)
            else:
                assert got is None
            parts = [values(r, dtype, (rank.size, 3)) for r in range(rank.size)]
            wanted = functools.reduce(function, parts).astype(dtype)[rank.rank]
            same(comm.reduce_scatter(parts[rank.rank], op), wanted)
    mine, all_ = values(rank.rank, "float64"), all_of(comm, "float64")
    np.testing.assert_allclose(comm.allreduce(mine, "avg"), sum(all_) / rank.size)
    same(comm.allreduce(mine, "premul_sum", factor=0.5), sum(all_) * 0.5)
    turned = comm.allreduce(mine.astype("complex128"), "premul_sum", factor=2j)
    same(turned, sum(all_) * 2j)
    first, second = comm.allreduce_coalesced([mine, mine[0]])
    same(first, sum(all_))
    same(second, sum(all_)[0])
    place = [mine.copy(), mine[1].copy()]
    assert comm.allreduce_coalesced(place, "max", out=place) == place
    wide = np.full(3, 1.0 + 2.0**-20 + rank.rank, np.float32)
    assert comm.allreduce(wide, wire_dtype="bfloat16")[0] == sum(1.0 + r for r in range(rank.size))
    comm.destroy()


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_reductions(make_world, size, transport):
    make_world(size).run(run_reductions, transport)


def run_moves(rank, transport):
    comm, me, size = join(rank, transport=transport), rank.rank, rank.size
    root = size - 1
    for dtype in (*REAL, *FLOATS, *COMPLEX, "bool", "S1", gn.complex32):
        zero = np.zeros((4, 5), dtype)
        mine = zero if dtype is gn.complex32 else values(me, dtype)
        all_ = [zero] * size if dtype is gn.complex32 else all_of(comm, dtype)
        got = mine.copy()
        assert comm.broadcast(got, root) is got
        same(got, all_[root])
        same(comm.allgather(mine), np.stack(all_))
        gathered = comm.gather(mine, root)
        assert (gathered is None) is (me != root)
        if me == root:
            same(gathered, np.stack(all_))
        whole = np.stack(all_)
        same(comm.scatter(whole, root, out=None if me == root else np.empty_like(mine)), all_[me])
        blocks = np.stack([mine] * size)
        same(comm.alltoall(blocks), np.stack(all_))
    # Of uneven lengths, where rank r has r + 1.
    lengths = [np.full(r + 1, r, np.int32) for r in range(size)]
    out = [np.empty_like(each) for each in lengths]
    for got, wanted in zip(comm.allgather(lengths[me], out=out), lengths, strict=True):
        same(got, wanted)
    parts = [np.full(r + 1, 1.0) for r in range(size)]
    same(comm.reduce_scatter(parts), np.full(me + 1, float(size)))
    sent = [np.full(me + to + 1, me, np.int16) for to in range(size)]
    out = [np.empty(of + me + 1, np.int16) for of in range(size)]
    for of, got in enumerate(comm.alltoall(sent, out=out)):
        same(got, np.full(of + me + 1, of, np.int16))
    equal = [np.full(3, r) for r in range(size)]
    same(comm.scatter(equal, out=None if me == 0 else np.empty(3, int)), np.full(3, me))
    got = comm.gather(np.full(3, me), out=[np.empty(3, int) for _ in equal] if me == 0 else None)
    if me == 0:
        same(np.stack(got), np.stack(equal))
    # In place, and with other shapes.
    whole = np.zeros((size, 2))
    whole[me] = me
    comm.allgather(whole[me], out=whole)
    same(whole[:, 0], np.arange(float(size)))
    flat = comm.reduce_scatter(np.arange(4.0 * size), out=np.empty(4))
    same(flat, size * np.arange(4.0 * me, 4.0 * me + 4))
    for shape in ((), (0,), (2, 0)):
        assert comm.allreduce(np.ones(shape)).shape == shape
        assert comm.allgather(np.ones(shape)).shape == (size, *shape)
    comm.barrier()
    comm.monitored_barrier(wait_all=True)
    assert comm.algorithm(comm.sequence - 1) != ""
    comm.destroy()


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_moves(make_world, size, transport):
    make_world(size).run(run_moves, transport)


def run_kinds_of_arrays(rank):
    comm = join(rank)
    read_only = np.arange(6.0)
    read_only.flags.writeable = False
    strided = np.arange(24.0).reshape(4, 6)[::2, ::3]
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    for given in (read_only, strided, fortran, np.float64(3)):
        same(comm.allreduce(given), np.asarray(given) * rank.size)
    same(comm.broadcast(read_only if rank.rank == 0 else np.empty(6)), np.arange(6.0))
    numbers = array.array("d", [1.0, 2.0])
    comm.allreduce(numbers, out=numbers)
    assert list(numbers) == [rank.size, 2.0 * rank.size]
    both = bytearray(b"ab")
    comm.allreduce(both, "max", out=both)
    same(comm.allreduce(memoryview(b"\x01\x02"), "max"), np.array([1, 2], np.uint8))
    with mmap.mmap(-1, 4096) as pages:
        pages[:2] = bytes([rank.rank, 1])
        comm.allreduce(pages, "max", out=pages)
        assert pages[:3] == bytes([rank.size - 1, 1, 0])
        gc.collect()
    import torch

    tensor = torch.ones(3)  # has DLPack
    comm.allreduce(tensor, out=tensor)
    assert tensor.tolist() == [rank.size] * 3
    comm.destroy()


def test_kinds_of_arrays(make_world):
    make_world(2).run(run_kinds_of_arrays)


def run_ml_dtypes(rank):
    ml = pytest.importorskip("ml_dtypes")
    comm = join(rank)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        dtype = np.dtype(getattr(ml, name))
        same(comm.allreduce(np.ones(5, dtype)), np.full(5, rank.size, dtype))
    odd = np.ones(3, ml.float8_e4m3b11fnuz)
    same(comm.allgather(odd)[0], odd)
    with pytest.raises(ValueError, match="SUM has no meaning for bytes1"):
        comm.allreduce(odd)
    comm.destroy()


def test_ml_dtypes(make_world):
    pytest.importorskip("ml_dtypes")
    make_world(2).run(run_ml_dtypes)


def run_messages(rank):
    comm, me, size = join(rank), rank.rank, rank.size
    after, before = (me + 1) % size, (me - 1) % size
    if me == 0:
        found = {}
        for _ in range(size - 1):
            got = np.empty(2)
            source = comm.recv(got, tag=7)
            found[source] = got[0]
        assert found == {r: float(r) for r in range(1, size)}
    else:
        assert comm.send(np.full(2, float(me)), 0, tag=7) is None
    # Tags meet in any order.
    works = [comm.send(np.full(1, tag), after, tag=tag, async_op=True) for tag in (1, 2)]
    for tag in (2, 1):
        got = np.zeros(1, int)
        work = comm.recv(got, before, tag=tag, async_op=True)
        assert work.wait() == work.source == before
        assert got[0] == tag
    gn.wait_all(works)
    got, total = np.empty(3), np.empty(3)
    with comm.group():
        assert comm.send(np.full(3, float(me)), after) is None
        assert comm.recv(got, before) is None
        assert comm.allreduce(np.ones(3), out=total) is total
        with pytest.raises(ValueError, match="batch of this thread is open"), comm.group():
            pass
    assert (got[0], total[0]) == (before, size)
    with comm.group(async_op=True) as batch:
        parts = [comm.allgather(np.array([me])), comm.broadcast(np.array([me]), 1)]
    batch.work.wait()
    assert (parts[0].ravel().tolist(), parts[1][0]) == (list(range(size)), 1)
    assert batch.work.contributors == size
    with pytest.raises(goccl.OperationTimeoutError) as late:
        comm.recv(got, before, tag=9, timeout=0.05)
    assert late.value.operation == "recv"
    comm.barrier()  # the communicator goes on
    comm.destroy()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages(make_world, transport):
    make_world(3, env={"GOCCL_TRANSPORT": transport}).run(run_messages)


def run_works(rank):
    comm, me = join(rank), rank.rank
    one = comm.allreduce(np.ones(1 << 16), async_op=True)
    two = comm.allgather(np.array([me]), async_op=True)
    first, second = gn.wait_all([one, two], timeout=60)
    assert (first[0], second.tolist()) == (rank.size, [[r] for r in range(rank.size)])
    assert one.test()
    assert (one.error, one.contributors) == (None, rank.size)
    assert gn.wait_any([one, two]) == 0
    assert one.wait() is first
    with pytest.raises(ValueError, match="no receive"):
        _ = one.source
    # A function hears of the end, before and after it.
    heard = threading.Event()
    comm.barrier(async_op=True).on_done(lambda _: heard.set())
    assert heard.wait(AT_ONCE)
    again = []
    one.on_done(again.append)
    assert again == [one]
    with pytest.raises(ValueError, match="one already"):
        one.on_done(again.append)
    # Who drops a work keeps its arrays alive all the same.
    if me == 0:
        got = np.zeros(1 << 20)
        ref = weakref.ref(got)
        comm.recv(got, 1, tag=3, async_op=True)
        del got
        gc.collect()
        assert ref() is not None
    comm.barrier()
    if me == 1:
        comm.send(np.ones(1 << 20), 0, tag=3)
    comm.barrier()
    if me == 0:
        assert gn._work._left
        end = time.monotonic() + AT_ONCE
        while gn._work._left and time.monotonic() < end:
            gn._work.sweep()
        assert ref() is None
        waiting = comm.recv(np.empty(1), 1, tag=4, async_op=True)
        assert not waiting.test()
        with pytest.raises(goccl.OperationTimeoutError, match="goes on"):
            waiting.wait(0.01)
        with pytest.raises(goccl.OperationTimeoutError, match="go on"):
            gn.wait_any([waiting], 0.01)
        with pytest.raises(goccl.OperationTimeoutError, match="go on"):
            gn.wait_all([waiting, one], 0)
    comm.barrier()
    if me == 1:
        comm.send(np.ones(1), 0, tag=4)
    elif me == 0:
        assert gn.wait_any([waiting]) == 0
        assert waiting.source == 1
    comm.barrier()
    comm.destroy()


def test_works(make_world):
    make_world(2).run(run_works)


def run_threads(rank):
    """While a receive blocks another thread runs, and Ctrl-C ends the wait."""
    comm = join(rank)
    if rank.rank == 0:
        count, stop = [0], threading.Event()

        def counts():
            while not stop.wait(0.001):
                count[0] += 1
                if count[0] == 20:
                    rank.tell("counted")

        thread = threading.Thread(target=counts)
        thread.start()
        comm.recv(np.empty(1), 1)
        stop.set()
        thread.join()
        assert count[0] >= 20
        with pytest.raises(KeyboardInterrupt):
            interrupt(lambda: comm.recv(np.empty(1), 1, tag=1))
    else:
        rank.hear()
        comm.send(np.ones(1), 0)
    comm.barrier()
    comm.destroy()


def test_other_threads_run_while_one_waits(make_world):
    world = make_world(2)
    world.start(run_threads)
    assert world.told(0) == "counted"
    world.say("go", ranks=[1])
    world.values(world.finish())


def run_many_threads(rank):
    """Each thread has a communicator, and all call at once."""
    comm = join(rank)
    comms = [comm.split(0) for _ in range(4)]
    wrong = []

    def work(number, mine):
        for i in range(200):
            if mine.allreduce(np.full(3, i + number))[0] != rank.size * (i + number):
                wrong.append(number)  # noqa: PERF401  of all threads

    threads = [threading.Thread(target=work, args=each) for each in enumerate(comms)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for each in (*comms, comm):
        each.destroy()


def test_many_threads(make_world):
    make_world(2).run(run_many_threads)


ONES = np.ones(3)
BAD = {
    "object": (lambda: [np.array([object()])], TypeError, "array is of dtype object, allowed"),
    "text": (lambda: [np.array(["a"])], TypeError, "array is of dtype <U1, allowed"),
    "dates": (lambda: [np.zeros(2, "M8[s]")], TypeError, "array is of dtype datetime64"),
    "structs": (lambda: [np.zeros(2, "i4,f4")], TypeError, "array is of dtype"),
    "foreign": (lambda: [np.zeros(2, ">f8")], TypeError, "dtype >f8, which is of foreign"),
    "no array": (lambda: [[1.0]], TypeError, "array is of type list, it must be a NumPy"),
    "masked": (lambda: [np.ma.ones(2)], TypeError, "masked array"),
    "read-only": (lambda: _in_place(np.frombuffer(b"12345678")), ValueError, "array is read-only"),
    "strided": (lambda: _in_place(np.ones(4)[::2]), ValueError, "array of shape .* has strides"),
    "bytes": (lambda: [np.ones(3, "u1"), {"out": b"abc"}], ValueError, "out is read-only"),
    "short": (lambda: [ONES, {"out": np.ones(2)}], ValueError, "out has 2 elements"),
    "other": (lambda: [ONES, {"out": np.ones(3, int)}], TypeError, "out is of dtype int64"),
    "overlap": (lambda: _overlapping(), ValueError, "overlap"),
    "op": (lambda: [ONES, {"op": "plus"}], ValueError, "op is 'plus', allowed are 'sum'"),
    "op of floats": (lambda: [ONES, {"op": "bxor"}], ValueError, "(?i)bxor"),
    "factor": (lambda: [ONES, {"factor": 2.0}], ValueError, "factor is given"),
    "no factor": (lambda: [ONES, {"op": "premul_sum"}], ValueError, "factor is missing"),
    "timeout": (lambda: [ONES, {"timeout": -1}], ValueError, "timeout is -1, it must"),
    "no timeout": (lambda: [ONES, {"timeout": "1"}], TypeError, "timeout is '1', it must"),
    "nan": (lambda: [ONES, {"timeout": float("nan")}], ValueError, "timeout is nan"),
    "wire": (lambda: [ONES, {"wire_dtype": "int8"}], ValueError, "wire_dtype is 'int8'"),
}


def call_badly(comm, name):
    """Makes an allreduce that is refused, and looks at what it raises."""
    make, kind, told = BAD[name]
    given, more = (*make(), {})[:2]
    with pytest.raises(kind, match=told) as refused:
        comm.allreduce(given, **more)
    assert type(refused.value) is kind, name


def until_broken(comm, kind):
    """Calls a barrier until it raises what it is to raise, and returns that."""
    with pytest.raises(kind) as raised:
        for _ in iter(comm.barrier, "never"):
            pass
    return raised.value


def _in_place(given):
    return [given, {"out": given}]


def _overlapping():
    memory = np.ones(6)
    return [memory[:4], {"out": memory[2:]}]


def run_bad(rank, names):
    """All ranks are refused, and go on."""
    comm = join(rank)
    for name in names:
        call_badly(comm, name)
        assert comm.allreduce(np.ones(2))[0] == rank.size, name
    for call, kind, told in (
        (lambda: comm.broadcast(np.ones(2), "0"), TypeError, "root is '0', it must be an int"),
        (lambda: comm.broadcast(np.ones(2), 1 << 40), ValueError, "root is 1099511627776"),
        (lambda: comm.reduce(np.ones(2), root=9), ValueError, "root"),
        (lambda: comm.alltoall(np.ones(3)), ValueError, "3 elements, no multiple of 2 ranks"),
        (lambda: comm.alltoall([np.ones(1)] * 2), TypeError, "out is of type NoneType, it must be"),
        (lambda: comm.reduce_scatter(np.ones(4)), ValueError, "its part"),
        (lambda: comm.allgather(np.ones(2), out=[np.ones(2)]), ValueError, "one for each rank: 2"),
        (lambda: comm.reduce_scatter([ONES, np.ones(1, "i4")]), TypeError, r"array\[1\] is of"),
        (lambda: comm.barrier(timeout=0), ValueError, "at least 0.001 seconds"),
    ):
        with pytest.raises(kind, match=told):
            call()
        comm.barrier()
    for call, told in (
        (lambda: comm.send(np.ones(1), 7), "peer"),
        (lambda: comm.send(np.ones(1), 1 - rank.rank, tag=-1), "tag"),
        (lambda: comm.recv(np.ones(4)[::2], 1 - rank.rank), "out"),
    ):
        with pytest.raises(ValueError, match=told):
            call()
    with (
        pytest.raises(ValueError, match="dropped"),
        comm.group(),
        contextlib.suppress(TypeError),
    ):
        comm.send([], 1 - rank.rank)
    comm.barrier()
    comm.destroy()
    with pytest.raises(ValueError, match="destroyed"):
        comm.allreduce(np.ones(1))
    with pytest.raises(ValueError, match="destroyed"):
        comm.describe()
    comm.destroy()


def test_bad_arguments_on_all_ranks_leave_the_communicator(make_world):
    make_world(2).run(run_bad, list(BAD))


def run_bad_on_one(rank, name):
    comm = join(rank, f"one {name}")
    begun = time.monotonic()
    if rank.rank == 1:
        call_badly(comm, name)
    else:
        with pytest.raises(goccl.MismatchError, match="rank 1"):
            comm.allreduce(np.ones(3))
        assert "rank 1" in str(comm.async_error)
    with pytest.raises(goccl.MismatchError):
        comm.barrier()
    assert time.monotonic() - begun < AT_ONCE
    comm.destroy()


def test_peers_of_a_refused_rank_are_told(make_world):
    world = make_world(2)
    for name in ("object", "foreign", "read-only", "strided", "overlap", "short", "op of floats"):
        world.run(run_bad_on_one, name)


def run_recovery(rank):
    """One rank is killed; the others go on from the checkpoint, and have its model."""
    comm, size = join(rank), rank.size
    comm.checkpoint(b"step 10", np.array([100 + rank.rank]), replicas=1)
    rank.tell("ready")
    if rank.rank == size - 1:
        signal.pause()
    with pytest.raises(goccl.PeerFailedError) as failed:
        comm.recv(np.empty(1), size - 1)
    assert failed.value.ranks == [size - 1]
    until_broken(comm, goccl.PeerFailedError)
    assert comm.failed_ranks == [size - 1]
    assert isinstance(comm.async_error, goccl.PeerFailedError)
    comm.recover()
    assert (comm.size, comm.epoch, comm.failed_ranks) == (size - 1, 1, [])
    version, everybody, mine = comm.load_checkpoint()
    assert (version, everybody, np.frombuffer(mine, int)[0]) == (1, b"step 10", 100 + rank.rank)
    assert comm.checkpoint_version == 1
    left = [(o.rank, np.frombuffer(o.local_model, int)[0]) for o in comm.orphans()]
    found = comm.allreduce(np.array([len(left)]))[0]
    assert (found, left or [(size - 1, 99 + size)]) == (1, [(size - 1, 99 + size)])
    assert comm.agree(0b110 if rank.rank else 0b011) == 0b010
    smaller = comm.shrink([0]) if rank.rank else None
    if smaller:
        assert smaller.size == size - 2
        smaller.destroy()
    comm.destroy()


def test_recovery(make_world):
    world = make_world(4)
    world.start(run_recovery)
    for r in range(4):
        assert world.told(r) == "ready"
    world.signal(3, signal.SIGKILL)
    world.exitcode(3)
    world.values(world.finish(ranks=range(3)))


def run_members(rank):
    """Ranks are split, one revokes, all begin anew; then a process joins."""
    comm, me, size = join(rank), rank.rank, rank.size
    half = comm.split(me % 2, -me)
    assert half.size == len(range(me % 2, size, 2))
    half.destroy()
    assert comm.split(-1) is None
    work = comm.split(0, async_op=True)
    work.wait().destroy()
    assert [member.pid for member in comm.members][me] == os.getpid()
    about = comm.describe()
    assert (about["rank"], about["size"]) == (me, size)
    comm.timeout = 30
    assert comm.timeout == 30
    if me == 0:
        comm.revoke("tired")
    assert "tired" in str(until_broken(comm, goccl.RevokedError))
    comm.renew()
    assert comm.epoch == 1
    comm.barrier()
    comm.publish(store=rank.make_store("found"))
    rank.tell(comm.handle)
    comm.grow(1, timeout=60)
    assert comm.size == size + 1
    assert comm.allreduce(np.ones(1))[0] == size + 1
    with pytest.raises(ValueError, match='handle 1 of 1, "nonsense"'):
        comm.reconfigure("again", ["nonsense"])
    if me == 0:
        comm.abort("enough")
    until_broken(comm, goccl.AbortedError)
    comm.destroy()


def run_newcomer(rank, handles):
    comm = gn.join(handles, timeout=60)
    assert comm.rank == comm.size - 1
    assert comm.allreduce(np.ones(1))[0] == comm.size
    until_broken(comm, goccl.AbortedError)
    comm.destroy()


def test_members(make_world):
    world, other = make_world(3), make_world(1)
    world.start(run_members)
    handles = [world.told(r) for r in range(3)]
    other.start(run_newcomer, handles)
    world.values(world.finish())
    other.values(other.finish())


def run_reconfigured(rank):
    comm = gn.init(reconfigurable=True)
    rank.tell(comm.handle)
    comm.reconfigure("first", rank.hear(), timeout=60)
    assert comm.rank == rank.rank
    assert comm.allreduce(np.ones(1))[0] == rank.size
    comm.destroy()


def test_reconfigure(make_world):
    world = make_world(2)
    world.start(run_reconfigured)
    world.say([world.told(r) for r in range(2)])
    world.values(world.finish())


def run_memory(rank):
    comm = join(rank, transport="shm")
    made = gn.zeros((256, 1024), np.float32)
    assert made.flags.carray
    assert made.shape == (256, 1024)
    part = made[128:]
    comm.barrier()  # in the first collective ranks connect
    comm.allreduce(made, out=made)
    assert comm.algorithm() == "direct"
    del made
    gc.collect()
    part[:] = rank.rank + 1  # still there
    comm.barrier()
    assert comm.allreduce(part)[0, 0] == sum(range(1, rank.size + 1))
    assert gn.empty_like(part).shape == part.shape
    assert gn.zeros_like(part).sum() == gn.empty(0).size == 0
    for wrong, kind in (((-1,), ValueError), ("a", TypeError)):
        with pytest.raises(kind):
            gn.empty(wrong)
    with pytest.raises(TypeError, match="objects"):
        gn.empty(1, object)
    comm.destroy()


def test_shareable_memory(make_world):
    make_world(2).run(run_memory)


# -- without torch

BLOCK = """
import sys
class No:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("no torch here", name="torch")
sys.meta_path.insert(0, No())
"""
ONE = """
import os, numpy as np, goccl, goccl.numpy, sys
assert "torch" not in sys.modules
with goccl.numpy.init(timeout=60) as comm:
    total = comm.allreduce(np.arange(3) + comm.rank)
    print(" ".join(map(str, [comm.rank, comm.size, *total])) + "\\n", end="")
assert "torch" not in sys.modules
"""
TWO = [f"{r} 2 1 3 5\n" for r in range(2)]


def ranks(code, *environs, block=True):
    """Runs a program as ranks, and returns what they print."""
    words = [sys.executable, "-c", (BLOCK if block else "") + code]
    done = finished(*(start(*words, **env) for env in environs))
    assert [each.returncode for each in done] == [0] * len(done), done
    return [each.stdout for each in done]


def place(rank, size, port):
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def test_errors_without_torch():
    code = """
import pickle, goccl, goccl.numpy, numpy as np
assert goccl.Error.__mro__[-4] is RuntimeError, goccl.Error.__mro__
error = goccl.PeerFailedError("gone", ranks=[1])
again = pickle.loads(pickle.dumps(error))
assert (type(again), again.ranks) == (goccl.PeerFailedError, [1])
assert issubclass(goccl.OperationTimeoutError, (TimeoutError, RuntimeError))
comm = goccl.numpy.init()
comm.abort("over")
try:
    comm.barrier()
except RuntimeError as error:
    print(type(error).__name__, error.operation)
"""
    assert ranks(code, {}) == ["AbortedError barrier\n"]


def test_errors_are_of_torch_once_that_is_there():
    code = """
import goccl, pickle
error = goccl.OperationTimeoutError("late", absent=[1])
assert goccl.Error.__mro__[-4] is RuntimeError
import torch.distributed as dist
assert isinstance(error, dist.DistBackendError) and isinstance(error, TimeoutError)
try:
    raise goccl.PeerFailedError("gone", ranks=[1])
except dist.DistBackendError as error:
    print(pickle.loads(pickle.dumps(error)).ranks)
"""
    assert ranks(code, {}, block=False) == ["[1]\n"]


def test_import_needs_no_torch_and_imports_none():
    code = "import sys, goccl.numpy; print(sorted({'torch', 'ml_dtypes'} & set(sys.modules)))"
    assert ranks(code, {}, block=False) == ["[]\n"]


LAUNCHERS = {
    "torchrun": lambda r, port: place(r, 2, port),
    "openmpi": lambda r, port: {
        "OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_PORT": str(port),
    },
    "mpich": lambda r, port: {
        "PMI_RANK": str(r), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "MASTER_PORT": str(port),
    },
    "slurm": lambda r, port: {
        "SLURM_PROCID": str(r), "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": str(port - 20000),
        "SLURM_STEP_NODELIST": "localhost",
    },
}  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers(launcher):
    port = free_port()
    while launcher == "slurm" and not 20000 <= port < 30000:
        port = 20000 + port % 10000
    assert ranks(ONE, *(LAUNCHERS[launcher](r, port) for r in range(2))) == TWO


def test_torchrun(tmp_path):
    program = tmp_path / "one.py"
    program.write_text(ONE.replace('assert "torch" not in sys.modules', ""))
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    (done,) = finished(start(sys.executable, *words))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines(keepends=True)) == TWO


def test_without_the_shortest_way():
    """A checkout that has not been built has no goccl._fast."""
    code = """
import sys, numpy as np
sys.modules["goccl._fast"] = None
import goccl.numpy
with goccl.numpy.init() as comm:
    array = np.ones(3)
    assert comm.allreduce(array, out=array) is array
    print(type(goccl.numpy.Communicator.allreduce).__name__)
"""
    assert ranks(code, {}) == ["function\n"]


def test_the_shortest_way():
    fast = pytest.importorskip("goccl._fast")
    comm = gn.init(0, 1)
    assert isinstance(comm, fast.Base)
    assert list(inspect.signature(comm.allreduce).parameters)[:3] == ["array", "op", "out"]
    assert "in place" in comm.allreduce.__doc__
    one, two = np.arange(3.0), np.zeros(3)
    assert comm.allreduce(one, out=two) is two
    assert comm.allreduce(one, "max", out=one) is one
    same(two, one)
    for given in (((), {}), ((one,), {"nonsense": 1}), ((one, "sum", two), {})):
        with pytest.raises(TypeError, match="argument"):
            comm.allreduce(*given[0], **given[1])
    comm.allreduce(array=one, op="sum", out=two)
    with comm.group():
        comm.allreduce(one, out=two)
    counts = sys.getrefcount(one), sys.getrefcount(two)
    for _ in range(100):
        comm.allreduce(one, out=two)
        with contextlib.suppress(ValueError):
            comm.allreduce(one, "plus", out=two)
    gc.collect()
    assert (sys.getrefcount(one), sys.getrefcount(two)) == counts
    comm.destroy()
    with pytest.raises(ValueError, match="destroyed"):
        comm.allreduce(one, out=two)


def test_alone():
    assert ranks(ONE, {}) == ["0 1 0 1 2\n"]


# -- how ranks meet


def run_strangers(rank, secret):
    """Ranks meet while strangers connect, talk nonsense, say nothing, and come in hundreds."""
    port = int(rank.hear())
    if rank.rank == 0:
        rank.tell("begun")
    comm = gn.init(rank.rank, rank.size, address=f"127.0.0.1:{port}", secret=secret, timeout=60)
    assert comm.allreduce(np.ones(1))[0] == rank.size
    # The next one meets at the same port.
    other = gn.init(rank.rank, rank.size, address=f"127.0.0.1:{port}", secret=secret, timeout=60)
    other.barrier()
    other.destroy()
    comm.destroy()


@pytest.mark.parametrize("secret", ["", "s" * 32])
def test_strangers_stop_nobody(make_world, secret):
    port, world = free_port(), make_world(2)
    world.start(run_strangers, secret)
    world.say(port, ranks=[0])
    assert world.told(0) == "begun"
    strangers, end = [], time.monotonic() + AT_ONCE
    while len(strangers) < 300:
        with contextlib.suppress(OSError):
            one = socket.create_connection(("127.0.0.1", port), 5)
            strangers.append(one)
            if len(strangers) % 3 == 0:
                one.sendall(os.urandom(4096))
            elif len(strangers) % 3 == 1:
                one.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert time.monotonic() < end
    world.say(port, ranks=[1])
    world.values(world.finish())
    for one in strangers:
        one.close()


def test_another_secret_is_told():
    port, key = free_port(), _meet.key_of("x" * 40 + "\udcff")  # which is no UTF-8
    server = _meet.Server("127.0.0.1", port, key)
    with pytest.raises(goccl.MismatchError, match="different secrets"):
        _meet.Client("127.0.0.1", port, 1, _meet.key_of("y" * 40), 20)
    # Rank 0 must know it, too.
    client = _meet.Client("127.0.0.1", port, 1, key, 20)
    client.set("a", b"1" * 100000)
    assert (client.get("a"), server.get("a"), client.get("b")) == (b"1" * 100000,) * 2 + (None,)
    client.close()
    with pytest.raises(goccl.OperationTimeoutError, match="another process is rank 1"):
        _meet.Client("127.0.0.1", port, 1, key, 2)
    server.close()


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(goccl.Error, match=f"rank 0 cannot listen at .*, port {port}"):
            gn.init(0, 2, address=f"127.0.0.1:{port}", timeout=5)
        with pytest.raises(goccl.OperationTimeoutError, match="has not met"):
            gn.init(1, 2, address=f"127.0.0.1:{port}", timeout=0.5)


def test_ranks_that_do_not_come_are_named():
    port = free_port()
    with pytest.raises(goccl.OperationTimeoutError, match="has not met rank 0 at") as late:
        gn.init(1, 2, address=f"127.0.0.1:{port}", timeout=0.3)
    assert late.value.absent == [0]
    with pytest.raises(goccl.OperationTimeoutError) as late:
        gn.init(0, 3, address=f"127.0.0.1:{port}", timeout=1)
    assert late.value.absent == [1, 2]


def test_an_unknown_name_is_told(monkeypatch):
    monkeypatch.setattr(_meet, "_UNKNOWN", 0.0)
    with pytest.raises(goccl.Error, match=r"the name 'no\.such\.invalid' is not known"):
        gn.init(1, 2, address="no.such.invalid:29500", timeout=30)


def run_sizes(rank):
    port, size = rank.hear()
    with pytest.raises((goccl.MismatchError, ValueError), match="size"):
        gn.init(rank.rank, size, address=f"127.0.0.1:{port}", timeout=20)


def test_ranks_with_different_sizes_are_told(make_world):
    port, world = free_port(), make_world(2)
    world.start(run_sizes)
    world.say((port, 2), ranks=[0])
    world.say((port, 3), ranks=[1])
    world.values(world.finish())


def test_arguments_of_init():
    for given, kind, told in (
        ({"rank": 0}, ValueError, "give both, or neither"),
        ({"rank": 2, "size": 2}, ValueError, "rank is 2, allowed are 0 to 1"),
        ({"rank": 0, "size": 0}, ValueError, "size is 0, allowed are 1 to 65536"),
        ({"rank": 0, "size": 2}, ValueError, "unique_id, store and address are missing"),
        ({"rank": 0, "size": 2, "address": "here"}, ValueError, "address is 'here'"),
        ({"rank": 0, "size": 2, "address": "here:0"}, ValueError, "port of address is '0'"),
        ({"rank": 0, "size": 2, "unique_id": b"1"}, ValueError, "unique_id has 1 bytes"),
        ({"rank": 0, "size": 2, "unique_id": "1"}, TypeError, "unique_id is of type str"),
        ({"rank": 0, "size": 2, "store": 1}, TypeError, "store is of type int"),
        ({"nonsense": 1}, TypeError, "nonsense is no option, allowed are timeout, transport"),
        ({"transport": "ssh"}, ValueError, "allowed are"),
        ({"group_name": "a\0"}, ValueError, "group_name"),
    ):
        with pytest.raises(kind, match=told):
            gn.init(**given)


def test_a_store_that_fails_is_told():
    class Store:
        def set(self, key, value):
            raise KeyError("no room")

        def get(self, key):
            return None

    with pytest.raises(goccl.Error, match="no room"):
        gn.init(0, 2, store=Store(), timeout=5)


def test_a_unique_id():
    made = gn.unique_id()
    assert len(made) == 128
    comm = gn.init(0, 1, unique_id=made)
    assert repr(comm) == "<goccl.numpy.Communicator, rank 0 of 1>"
    comm.destroy()
    assert "destroyed" in repr(comm)


def test_members_of_the_module():
    assert sorted(gn.__all__) == gn.__all__
    for name in gn.__all__:
        assert getattr(gn, name).__doc__ or name == "complex32"
    assert errors.Error is goccl.Error
    assert pickle.loads(pickle.dumps(gn.Checkpoint(1, b"", b""))).version == 1
