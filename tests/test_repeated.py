"""Blocking calls made again and again through the C API: such a call goes by a way of its own once
it has been made before (core/exec/fastpath.h). Real processes, threads and signals; results against
NumPy."""

import ctypes
import itertools
import os
import re
import signal
import threading
import time
from functools import partial
from pathlib import Path

import harness
import numpy as np
import pytest
from goccl._capi import LIBRARY, Call
from goccl._ranks.capi import DTYPES, Core
from harness import AT_ONCE

INVALID_ARGUMENT, INVALID_HANDLE, TIMEOUT, ABORTED, PEER_FAILED, MISMATCH = 1, 2, 3, 4, 5, 6
SUM = 0


class Failed(Exception):
    """A call did not return GOCCL_OK, but `result`."""

    def __init__(self, result, text):
        super().__init__(text)
        self.result = result


class Comm:
    """A communicator through the C ABI; the arguments are NumPy arrays."""

    def __init__(self, rank, timeout=60.0, key="id"):
        self.rank, self.size = rank.rank, rank.size
        self.c = ctypes.CDLL(str(LIBRARY))
        self.c.goccl_last_error.restype = ctypes.c_char_p
        # Kept: the last that closes a store's file removes it, though another is about to open it.
        self.store = store = rank.make_store("ids")
        core = Core()
        if rank.rank == 0:
            store.set(key, core.unique_id())
        self.comm = ctypes.c_uint64(core.init(store.get(key), rank.rank, rank.size, timeout))

    def __call__(self, name, *arguments):
        result = self.c["goccl_" + name](*arguments)
        if result:
            raise Failed(result, self.c.goccl_last_error().decode())

    def sequence(self):
        n = ctypes.c_uint64()
        self("comm_sequence", self.comm, ctypes.byref(n))
        return n.value

    def all_reduce(self, send, recv, call=None, work=None):
        n, dtype = ctypes.c_uint64(send.size), DTYPES[send.dtype.name]
        self("allreduce", self.comm, at(send), at(recv), n, dtype, SUM, None, call, work)

    def run(self, collective, send, recv, root, count):
        """Any of them, with blocks of `count` elements."""
        dtype = DTYPES[send.dtype.name]
        n, counts = ctypes.c_uint64(count), (ctypes.c_uint64 * self.size)(*[count] * self.size)
        match collective:
            case "allreduce":
                self.all_reduce(send, recv)
            case "reduce":
                self("reduce", self.comm, at(send), at(recv), n, dtype, SUM, None, root, None, None)
            case "broadcast":
                self("broadcast", self.comm, at(recv), n, dtype, root, None, None)
            case "allgather":
                self(
                    "allgather",
                    self.comm,
                    at(send),
                    blocks(recv, self.size),
                    counts,
                    dtype,
                    None,
                    None,
                )
            case "reduce_scatter":
                self(
                    "reduce_scatter",
                    self.comm,
                    blocks(send, self.size),
                    at(recv),
                    counts,
                    dtype,
                    SUM,
                    None,
                    None,
                    None,
                )
            case "gather":
                out = blocks(recv, self.size) if self.rank == root else None
                self("gather", self.comm, at(send), out, n, dtype, root, None, None)
            case "scatter":
                given = blocks(send, self.size) if self.rank == root else None
                self("scatter", self.comm, given, at(recv), n, dtype, root, None, None)
            case "alltoall":
                pairs = blocks(send, self.size), counts, blocks(recv, self.size), counts
                self("alltoall", self.comm, *pairs, dtype, None, None)
            case "barrier":
                self("barrier", self.comm, None, None)


def at(array):
    return ctypes.c_void_p(array.ctypes.data)


def blocks(array, n):
    step = array.nbytes // n
    return (ctypes.c_void_p * n)(*[array.ctypes.data + i * step for i in range(n)])


def data(dtype, elements, rank, turn):
    """Small integers, so that sums are exact in every dtype."""
    return ((np.arange(elements) * 7 + rank * 3 + turn) % 13).astype(dtype)


COLLECTIVES = (
    "allreduce",
    "reduce",
    "broadcast",
    "allgather",
    "reduce_scatter",
    "gather",
    "scatter",
    "alltoall",
    "barrier",
)
IN_BLOCKS, OUT_BLOCKS = (
    {"reduce_scatter", "scatter", "alltoall"},
    {"allgather", "gather", "alltoall"},
)


def expected(collective, rank, size, root, sends, before):
    """What recv must hold afterwards."""
    total = sum(s.astype(np.float64) for s in sends)
    mine = [s.reshape(size, -1)[rank] for s in sends] if collective in IN_BLOCKS else []
    match collective:
        case "allreduce":
            return total
        case "reduce":
            return total if rank == root else before
        case "broadcast":
            return sends[root]
        case "allgather":
            return np.concatenate(sends)
        case "reduce_scatter":
            return sum(m.astype(np.float64) for m in mine)
        case "gather":
            return np.concatenate(sends) if rank == root else before
        case "scatter":
            return mine[root]
        case "alltoall":
            return np.concatenate(mine)
    return before


def one(comm, collective, dtype, count, turn):
    """One call, with buffers of its own, checked."""
    rank, size, root = comm.rank, comm.size, turn % 2 % comm.size
    n_in = count * (size if collective in IN_BLOCKS else 1)
    n_out = count * (size if collective in OUT_BLOCKS else 1)
    sends = [data(dtype, n_in, r, turn) for r in range(size)]
    send, recv = sends[rank].copy(), np.full(n_out, 77, dtype)
    in_place = collective in ("allreduce", "reduce") and turn % 3 == 1
    if in_place:
        recv = send
    if collective == "broadcast":
        recv = sends[rank].copy()
    want = expected(collective, rank, size, root, sends, recv.copy())
    comm.run(collective, send, recv, root, count)
    np.testing.assert_array_equal(
        recv, np.asarray(want).astype(dtype), f"{collective} {count} {turn}"
    )
    if not in_place:
        np.testing.assert_array_equal(send, sends[rank])


TURNS = 6


def calls_in_a_row(rank, dtype, counts):
    comm = Comm(rank)
    for collective, count, turn in itertools.product(COLLECTIVES, counts, range(TURNS)):
        one(comm, collective, dtype, count, turn)
    assert comm.sequence() == len(COLLECTIVES) * len(counts) * TURNS
    comm("comm_destroy", comm.comm)


def calls_by_turns(rank, dtype, counts):
    comm = Comm(rank)
    for turn, collective, count in itertools.product(range(TURNS), COLLECTIVES, counts):
        one(comm, collective, dtype, count, turn)
    comm("comm_destroy", comm.comm)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_collectives(make_world, size, dtype):
    make_world(size).run(calls_in_a_row, dtype, (1, 0, 15, 1000))


def test_more_shapes_than_are_kept(make_world):
    make_world(2).run(calls_by_turns, "float32", (1, 2, 3, 5, 7, 11, 13))


def ones(comm, n=8):
    t = np.ones(n, np.float32)
    comm.all_reduce(t, t)
    assert (t == comm.size).all()


def bad_buffers(rank):
    comm = Comm(rank)
    big = np.ones(64, np.float32)
    for _ in range(4):
        comm.all_reduce(big[:32], big[32:])
    for send, recv, says in (
        (big[:32], big[16:48], "in[0] and out[0] overlap"),
        (big[1:33], big[:32], "in[0] and out[0] overlap"),
        (big[:32], big[:32], None),
        (big[:32], big[31:63], "in[0] and out[0] overlap"),
    ):
        if says is None:
            comm.all_reduce(send, recv)
            continue
        with pytest.raises(Failed) as e:
            comm.all_reduce(send, recv)
        assert e.value.result == INVALID_ARGUMENT
        assert says in str(e.value)
    n, dtype = ctypes.c_uint64(32), DTYPES["float32"]
    for pair in ((None, at(big)), (at(big), None)):
        with pytest.raises(Failed, match=r"(in|out)\[0\] is NULL, but has 32 elements"):
            comm("allreduce", comm.comm, *pair, n, dtype, SUM, None, None, None)
    with pytest.raises(Failed, match="allowed are"):
        comm("allreduce", comm.comm, at(big), at(big), n, dtype + 256, SUM, None, None, None)
    short = Call()
    short.struct_size = 4
    with pytest.raises(Failed, match="struct_size"):
        comm.all_reduce(big, big, call=ctypes.byref(short))
    ones(comm)
    comm("comm_destroy", comm.comm)
    with pytest.raises(Failed) as e:
        ones(comm)
    assert e.value.result == INVALID_HANDLE


def test_bad_buffers_after_good_ones(make_world):
    make_world(2).run(bad_buffers)


def mixed_with_others(rank):
    comm = Comm(rank)
    soon = Call(wait_soon=1)
    for turn in range(50):
        ones(comm)
        # Started, and waited for later.
        later = [np.full(8, i, np.float32) for i in range(3)]
        works = [ctypes.c_uint64() for _ in later]
        for t, work in zip(later, works, strict=True):
            comm.all_reduce(t, t, work=ctypes.byref(work))
        ones(comm)
        for i, (t, work) in enumerate(zip(later, works, strict=True)):
            comm("work_wait", work, ctypes.c_int64(-1))
            assert (t == i * comm.size).all()
            comm("work_free", work)
        # Waited for soon.
        t, work = np.full(8, turn, np.float32), ctypes.c_uint64(5)
        comm.all_reduce(t, t, call=ctypes.byref(soon), work=ctypes.byref(work))
        comm("work_wait", work, ctypes.c_int64(-1))
        comm("work_free", work)
        assert (t == turn * comm.size).all()
        # As a batch: nothing runs before its end.
        t = np.ones(8, np.float32)
        comm("group_start", comm.comm)
        comm.all_reduce(t, t)
        comm.all_reduce(t, t)
        assert (t == 1).all()
        comm("group_end", comm.comm, None, None)
        assert (t == comm.size**2).all()
    assert comm.sequence() == 50 * 8
    comm("comm_destroy", comm.comm)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_mixed_with_works_and_batches(make_world, size):
    make_world(size).run(mixed_with_others)


def end_of_another_batch(rank):
    comm, other = Comm(rank), Comm(rank, key="other")
    ones(comm)
    ones(comm)
    t = np.ones(8, np.float32)
    comm("group_start", comm.comm)
    with pytest.raises(Failed, match="started no batch"):
        other("group_end", other.comm, None, None)
    comm.all_reduce(t, t)
    assert (t == 1).all()
    comm("group_end", comm.comm, None, None)
    assert (t == comm.size).all()
    ones(other)
    comm("comm_destroy", comm.comm)
    # Its memory may be the next one's, which has as many ranks or not.
    third = Comm(rank, key="third")
    for _ in range(3):
        ones(third)
    with pytest.raises(Failed) as e:
        ones(comm)
    assert e.value.result == INVALID_HANDLE
    for c in (other, third):
        c("comm_destroy", c.comm)


def test_two_communicators(make_world):
    make_world(2).run(end_of_another_batch)


def waits_in(turn, directory, pid):
    """Tells whether a rank's thread sleeps in the call of a turn."""
    called = directory / f"{pid}"
    if not called.exists() or called.read_text() != f"{turn}":
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def late(rank, pids):
    comm = Comm(rank)
    for turn in range(12):
        if turn >= 3 and turn % rank.size == rank.rank:
            for pid in pids[: rank.rank] + pids[rank.rank + 1 :]:
                harness.until(partial(waits_in, turn, rank.dir, pid))
            if turn == 11:
                time.sleep(0.3)  # longer than they wait before they tell others what they wait in
        else:
            (rank.dir / f"{os.getpid()}").write_text(f"{turn}")
        ones(comm)
    comm("comm_destroy", comm.comm)


@pytest.mark.parametrize("size", [2, 3])
def test_late_ranks(make_world, size):
    world = make_world(size)
    world.run(late, world.pids)


def other_count(rank):
    comm = Comm(rank)
    for _ in range(100):
        ones(comm, 8)
        ones(comm, 16)
    with pytest.raises(Failed) as e:
        ones(comm, 8 if rank.rank == 0 else 16)
    assert e.value.result == MISMATCH, str(e.value)
    assert "#201" in str(e.value)
    assert "8 elements" in str(e.value)
    assert "16 elements" in str(e.value)
    with pytest.raises(Failed) as again:
        ones(comm, 8)
    assert again.value.result == MISMATCH


def test_mismatch_is_told(make_world):
    make_world(2).run(other_count)


def never_called(rank):
    comm = Comm(rank)
    for _ in range(5):
        ones(comm)
    if rank.rank == 0:
        comm("comm_set_timeout", comm.comm, ctypes.c_int64(1000))
        with pytest.raises(Failed) as e:
            ones(comm)
        assert e.value.result == TIMEOUT
        assert re.search(r"rank 1 \(pid \d+\) is still at #5", str(e.value)), str(e.value)
        rank.tell("over")
        rank.hear()
    else:
        rank.hear()
        with pytest.raises(Failed):
            ones(comm)


def test_timeout_names_the_rank(make_world):
    world = make_world(2)
    world.start(never_called)
    world.told(0)
    world.say("over")
    world.values(world.finish())


def two_threads(rank, calls):
    comm = Comm(rank)
    ones(comm)
    errors = []

    def work():
        try:
            for _ in range(calls):
                ones(comm)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors
    assert comm.sequence() == 1 + 2 * calls
    comm("comm_destroy", comm.comm)


@pytest.mark.parametrize("size", [2, 3])
def test_two_threads_on_one_communicator(make_world, size):
    make_world(size).run(two_threads, 2000)


def until_it_fails(rank):
    comm = Comm(rank)
    ones(comm)
    rank.tell("running")
    try:
        while True:
            ones(comm)
    except Failed as e:
        return e.result, str(e), time.monotonic()


@pytest.mark.parametrize("size", [2, 3])
def test_killed_while_others_call(make_world, size):
    world = make_world(size)
    world.start(until_it_fails)
    for r in range(size):
        world.told(r)
    killed = world.signal(size - 1, signal.SIGKILL)
    for o in world.finish(ranks=range(size - 1)):
        result, text, when = o.value
        assert result == PEER_FAILED
        assert f"rank {size - 1}" in text
        assert when - killed < AT_ONCE


def destroyed_by_another_thread(rank):
    comm = Comm(rank)
    ones(comm)
    results = []

    def call():
        try:
            while True:
                ones(comm)
        except Failed as e:
            results.append(e.result)

    thread = threading.Thread(target=call)
    thread.start()
    comm("comm_destroy", comm.comm)
    thread.join()
    assert results[0] in (INVALID_HANDLE, ABORTED), results


@pytest.mark.parametrize("turn", range(5))
def test_destroyed_by_another_thread(make_world, turn):
    make_world(2).run(destroyed_by_another_thread)
