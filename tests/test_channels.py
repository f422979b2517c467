"""Channels of goccl.Communicator: registered memory, puts, gets and signals. Real processes; what
is there against what was to be there."""

import gc
import os
import signal
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import goccl
import harness
import oracle
import pytest
import torch
import torch.distributed as dist
from test_collectives import refused

SIZES = (3,)
DTYPES = [torch.float32, torch.uint8, torch.bfloat16, torch.complex128, torch.bool]
# Around what keeps the GIL, and a piece of a link; the last are read by peers over verbs.
COUNTS = [1, 0, 511, 512, 4095, 4096, 70_000, 300_000]

both_transports = pytest.mark.parametrize("transport", harness.TRANSPORTS)


def shares_memory(comm, peer):
    return goccl.transports(comm)[peer] in ("shm", "mem", "self")


def kinds(comm):
    return ["memory", "port"] if shares_memory(comm, (comm.rank + 1) % comm.size) else ["port"]


def made(dtype, count, seed):
    return oracle.values(dtype, count, seed, "bits")


def same(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


# -- what is put is there


def run_moves(rank, dtype):
    comm, n, me = goccl.Communicator(), rank.size, rank.rank
    after, before = (me + 1) % n, (me - 1) % n
    room = max(COUNTS) + 100
    with comm.register(goccl.zeros(room, dtype=dtype)) as mem:
        theirs = comm.exchange(mem)
        for kind in kinds(comm):
            with comm.channel(after, 1, kind) as to, comm.channel(before, 1, kind) as source:
                assert (to.peer, to.tag, source.peer, source.tag) == (after, 1, before, 1)
                for i, count in enumerate(COUNTS):
                    part = theirs[after][i : i + count]
                    # Over verbs a peer reads what is shareable by itself.
                    local = goccl.empty if (i + me) % 2 else torch.empty
                    given = local(count, dtype=dtype).copy_(made(dtype, count, 10 * me + i))
                    if i % 2:
                        to.put_signal(part, given, n=2)
                    else:
                        to.put(part, given)
                        to.signal(2)
                    source.wait(2)
                    want = made(dtype, count, 10 * before + i)
                    what = f"{count} {dtype} by {kind}"
                    harness.expect(same(mem.tensor[i : i + count], want), f"put of {what}")
                    back = local(count, dtype=dtype).fill_(0)
                    to.get(back, part)
                    to.flush()
                    harness.expect(same(back, given), f"get of {what}")
                    source.signal()  # the other may put again
                    to.wait()
                assert to.kind == source.kind == kind
                comm.barrier()  # nobody closes before all have got


@pytest.mark.parametrize("dtype", DTYPES, ids=oracle.name)
def test_moves(world, dtype):
    world.run(run_moves, dtype)


def run_own_rank(rank):
    comm = goccl.Communicator()
    with comm.register(goccl.zeros(8)) as mem, comm.channel(rank.rank) as channel:
        mine = comm.exchange(mem)[rank.rank]
        channel.put_signal(mine[2:4], torch.ones(2))
        channel.wait()
        assert mem.tensor.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
        channel.get(y := torch.zeros(3), mine[1:4])
        assert y.tolist() == [0, 1, 1]
        assert channel.kind == "memory"


def test_own_rank(world):
    world.run(run_own_rank)


def run_counts(rank):
    """Signals are counted, and a wait or a poll takes all that it asks for, or none."""
    comm, n, me = goccl.Communicator(), rank.size, rank.rank
    for kind in kinds(comm):
        with (
            comm.channel((me + 1) % n, 2, kind) as to,
            comm.channel((me - 1) % n, 2, kind) as source,
        ):
            assert not source.poll()
            comm.barrier()
            to.signal(n=3)
            source.wait(2, timeout=60)
            harness.until(source.poll)
            assert not source.poll()
            comm.barrier()
            to.signal(2**40)
            source.wait(2**40 - 2, timedelta(seconds=60))
            assert not source.poll(3)
            assert source.poll(2)
            comm.barrier()
            # Each thread takes its own.
            with ThreadPoolExecutor(2) as pool:
                waits = [pool.submit(source.wait, k, 60) for k in (1, 2)]
                to.signal(3)
                for each in waits:
                    each.result(60)
            assert not source.poll()
            comm.barrier()


def test_signals_are_counted(world):
    world.run(run_counts)


def run_order(rank):
    """Who has taken a signal sees what was put before it."""
    comm, n, me = goccl.Communicator(), rank.size, rank.rank
    for kind in kinds(comm):
        with (
            comm.register(goccl.zeros(64, dtype=torch.int64)) as mem,
            comm.channel((me + 1) % n, 3, kind) as to,
            comm.channel((me - 1) % n, 3, kind) as source,
        ):
            theirs = comm.exchange(mem)[(me + 1) % n]
            for i in range(1, 300):
                to.put_signal(theirs, torch.full((64,), i))
                source.wait(timeout=60)
                assert (mem.tensor == i).all(), (i, mem.tensor)
                source.signal()
                to.wait(timeout=60)
            comm.barrier()


def test_order(world):
    world.run(run_order)


# -- memory


def run_exchange(rank):
    """Each rank gives memory of its own dtype and length, or none."""
    comm, me = goccl.Communicator(), rank.rank
    facts = [(torch.float64, (3, 5)), None, (torch.int16, (7,))]
    given = None
    if facts[me] is not None:
        dtype, shape = facts[me]
        given = comm.register(goccl.zeros(shape, dtype=dtype).fill_(me + 1))
    theirs = comm.exchange(given)
    assert len(theirs) == 3
    for r, fact in enumerate(facts):
        if fact is None:
            assert theirs[r] is None
            continue
        dtype, shape = fact
        memory: Any = theirs[r]
        assert (memory.rank, memory.dtype, len(memory)) == (r, dtype, torch.Size(shape).numel())
        if r == me or shares_memory(comm, r):
            view = memory[1:4].map()
            assert (view.dtype, view.tolist()) == (dtype, [r + 1] * 3)
        else:
            with pytest.raises(goccl.UnsupportedError, match="is not mapped here"):
                memory.map()
    comm.barrier()
    assert comm.exchange(None) == [None] * 3


def test_exchange(world):
    world.run(run_exchange)


def run_stores(rank):
    """Stores to mapped memory are the owner's at once; a tensor outlives the name of its memory."""
    comm = goccl.Communicator()
    with (
        comm.register(goccl.zeros(10, dtype=torch.int32)) as mem,
        comm.channel(1 - rank.rank) as ch,
    ):
        theirs = comm.exchange(mem)
        view = theirs[1 - rank.rank][2:].map()
        theirs[1 - rank.rank].deregister()
        del theirs
        view[:3] = torch.tensor([1, 2, 3])
        ch.signal()
        ch.wait()
        assert mem.tensor.tolist() == [0, 0, 1, 2, 3, 0, 0, 0, 0, 0]
        comm.barrier()


def run_handles(rank):
    comm, me, n = goccl.Communicator(), rank.rank, rank.size
    mem = comm.register(goccl.zeros(42), "w")
    assert isinstance(mem.handle, bytes)
    assert len(mem.handle) == 64
    handles: list[Any] = [None] * n
    dist.all_gather_object(handles, mem.handle)
    peer = (me + 1) % n
    theirs = comm.import_memory(peer, handles[peer], torch.float32)
    assert (theirs.rank, theirs.dtype, len(theirs)) == (peer, torch.float32, 42)
    assert len(comm.import_memory(peer, handles[peer], dtype=torch.float64)) == 21
    with comm.channel(peer, 4) as to, comm.channel((me - 1) % n, 4) as source:
        to.put_signal(theirs[8:], torch.full((2, 17), me + 1.0))
        source.wait()
        assert mem.tensor.tolist() == [0] * 8 + [(me - 1) % n + 1] * 34
        refused(lambda: to.get(torch.zeros(42), theirs), "GOCCL_REMOTE_READ", kinds=ValueError)
        changed = bytearray(handles[peer])
        changed[40] ^= 1
        for given, text in [
            ((peer, bytes(changed), torch.float32), "changed"),
            ((peer, b"short", torch.float32), "`handle` has 5 bytes, it must have 64"),
            ((me, handles[peer], torch.float32), f"exported by rank {peer}"),
            ((n, handles[peer], torch.float32), f"rank is {n}, allowed are 0 to"),
            ((peer, handles[peer], torch.complex128), "another dtype"),
        ]:
            refused(lambda g=given: comm.import_memory(*g), text, kinds=ValueError)
        for odd, text in [
            (("0", handles[peer], torch.float32), "`rank` is of type str"),
            ((peer, "x" * 64, torch.float32), "`handle` is of type str, it must be bytes"),
            ((peer, handles[peer], "float32"), "`dtype` is of type str, it must be a torch.dtype"),
        ]:
            refused(lambda g=odd: comm.import_memory(*g), text, kinds=TypeError)
        comm.barrier()


def test_handles(world):
    world.run(run_handles)


def run_kept(rank):
    """What is registered keeps its tensor, and a get its destination, and no longer than needed."""
    comm, n, me = goccl.Communicator(), rank.size, rank.rank
    tensor = goccl.zeros(1000).fill_(me)
    kept = weakref.ref(tensor)
    mem = comm.register(tensor)
    del tensor
    theirs = comm.exchange(mem)
    with comm.channel((me + 1) % n, 5, "port") as channel, comm.channel((me - 1) % n, 5, "port"):
        y = torch.zeros(1000)
        got = weakref.ref(y)
        channel.get(y, theirs[(me + 1) % n])
        del y
        gc.collect()
        assert got() is not None
        channel.flush()
        gc.collect()
        assert got() is None
        comm.barrier()
    assert mem.tensor is kept()
    comm.barrier()
    mem.deregister()
    mem.deregister()
    gc.collect()
    assert kept() is None
    for call in (lambda: mem.tensor, lambda: mem.handle, lambda: theirs[me].map()):
        refused(call, "has been deregistered here", kinds=goccl.Error)


def test_kept(world):
    world.run(run_kept)


def slices():
    yield from (slice(a, b) for a in (None, 0, 3, -4, 20) for b in (None, 0, 7, -2, 99))
    yield slice(2, 5, 1)


def run_slices(rank):
    """Slices are those of a list."""
    comm = goccl.Communicator()
    mem = comm.register(goccl.zeros(10, dtype=torch.int64).copy_(torch.arange(10)))
    mine: Any = comm.exchange(mem)[rank.rank]
    numbers = list(range(10))
    for part in slices():
        for inner in (slice(None), slice(1, 3)):
            want = numbers[part][inner]
            memory = mine[part][inner]
            harness.expect(len(memory) == len(want), f"length of {part} {inner}")
            harness.expect(memory.map().tolist() == want, f"{part} {inner}")
    for i in (0, 9, -1, -10):
        assert mine[i].map().tolist() == [numbers[i]]
    assert [m.map().item() for m in mine[3:5]] == [3, 4]
    for i in (10, -11, 2**80):
        with pytest.raises(IndexError):
            mine[i]
    for step in (2, -1):
        refused(
            lambda s=step: mine[::s], f"step of a slice is {step}, it must be 1", kinds=ValueError
        )
    refused(lambda: mine["a"], "index is of type str", kinds=TypeError)
    assert repr(mine[2:]) == f"<goccl.RemoteMemory of rank {rank.rank}: 8 elements, torch.int64>"
    comm.barrier()


def test_slices(world):
    world.run(run_slices)


# -- what is refused


def wrong_calls(comm, channel, theirs):
    """(call, the error's class, what it says)"""
    one = torch.ones(4)
    for method in (channel.put, channel.put_signal, lambda to, x: channel.get(x, to)):
        yield lambda m=method: m(theirs, torch.ones(3)), ValueError, "elements, it must have 4"
        yield lambda m=method: m(theirs[1:], one), ValueError, "elements, it must have 3"
        yield lambda m=method: m(theirs, one.double()), ValueError, "is Double, it must be Float"
        yield lambda m=method: m(theirs, torch.ones(4, 4)[:, 0]), ValueError, "is not contiguous"
        yield lambda m=method: m(theirs, torch.ones(1).expand(4)), ValueError, "is not contiguous"
        yield lambda m=method: m(theirs, one.to("meta")), ValueError, "is on meta"
        yield lambda m=method: m(theirs, one.to_sparse()), ValueError, "only supports dense"
        yield lambda m=method: m(theirs, [1, 2, 3, 4]), TypeError, "is of type list"
        yield lambda m=method: m(theirs, None), TypeError, "it must be a torch.Tensor"
        yield lambda m=method: m(one, one), TypeError, "it must be a goccl.RemoteMemory"
        yield lambda m=method: m(None, one), TypeError, "is of type NoneType"
    for method in (channel.signal, channel.wait, channel.poll):
        yield lambda m=method: m(0), ValueError, "`n` is 0, allowed are 1 to 2**64 - 1"
        yield lambda m=method: m(n=-1), ValueError, "`n` is -1"
        yield lambda m=method: m(2**64), ValueError, f"`n` is {2**64}"
        yield lambda m=method: m(1.5), TypeError, "`n` is of type float, it must be an int"
        yield lambda m=method: m(None), TypeError, "`n` is of type NoneType"
    yield lambda: channel.put_signal(theirs, one, 0), ValueError, "`n` is 0"
    for wait in (channel.wait, channel.flush):
        for bad in (0, 0.0, -1, timedelta(0), -5.0):
            yield lambda w=wait, t=bad: w(timeout=t), ValueError, "it must be at least 1 ms"
        for odd in ("5", float("nan"), [1]):
            yield lambda w=wait, t=odd: w(timeout=t), TypeError, "a number of seconds"
    yield lambda: comm.channel(comm.size), ValueError, f"peer is {comm.size}, allowed are 0 to"
    yield lambda: comm.channel(-1), ValueError, "peer is -1"
    yield lambda: comm.channel(2**70), ValueError, "`peer` is"
    yield lambda: comm.channel("1"), TypeError, "`peer` is of type str, it must be an int"
    yield lambda: comm.channel(0, tag=-1), ValueError, "tag is -1"
    yield lambda: comm.channel(0, tag=None), TypeError, "`tag` is of type NoneType"
    yield lambda: comm.channel(0, kind="fast"), ValueError, 'kind is "fast"'
    yield lambda: comm.channel(0, kind=3), TypeError, "`kind` is of type int, it must be a str"
    yield lambda: comm.channel(channel.peer, channel.tag), ValueError, "has a channel to"
    yield lambda: comm.channel(comm.rank, 77, "port"), goccl.UnsupportedError, "this rank"
    for access in ("", "x", "rwx", 3, None):
        yield lambda a=access: comm.register(goccl.zeros(4), a), ValueError, '"r", "w" and "rw"'
    yield lambda: comm.register(one), ValueError, "goccl.empty()"
    yield lambda: comm.register(goccl.zeros(0)), ValueError, "no elements"
    yield lambda: comm.register(goccl.zeros(4, 4).t()[:2]), ValueError, "is not contiguous"
    yield lambda: comm.register([1.0]), TypeError, "`tensor` is of type list"


def run_wrong(rank):
    comm = goccl.Communicator()
    peer = (rank.rank + 1) % rank.size
    mem = comm.register(goccl.zeros(4))
    theirs = comm.exchange(mem)
    with comm.channel(peer, 6) as channel, comm.channel((rank.rank - 1) % rank.size, 6):
        for i, (call, kind, text) in enumerate(wrong_calls(comm, channel, theirs[peer])):
            refused(call, text, what=f"wrong call {i}", kinds=kind)
        channel.put(theirs[peer], torch.ones(4))
        refused(
            lambda: channel.put(theirs[rank.rank], torch.ones(4)), "own, and not the peer's",
            kinds=ValueError,
        )  # fmt: skip
        comm.barrier()
        kept = comm.register(goccl.zeros(4), "r")
        read_only = comm.exchange(kept)[peer]
        channel.get(torch.zeros(4), read_only)
        channel.flush()
        refused(
            lambda: channel.put(read_only, torch.ones(4)), "without GOCCL_REMOTE_WRITE",
            kinds=ValueError,
        )  # fmt: skip
        comm.barrier()
        kept.deregister()
    for call in (
        lambda: channel.put(theirs[peer], torch.ones(4)), channel.wait, channel.poll, channel.flush,
        channel.signal, lambda: channel.kind,
    ):  # fmt: skip
        refused(call, "it has been closed here", kinds=goccl.Error)
    channel.close()
    comm.barrier()


def test_wrong_calls(world):
    world.run(run_wrong)


def run_refused_exchange(rank):
    """A rank that is refused the exchange tells the others, and the group goes on."""
    comm: Any = goccl.Communicator()
    gone = comm.register(goccl.zeros(4))
    gone.deregister()
    for bad, kind, text in [
        (gone, goccl.Error, "deregistered here"),
        (torch.ones(4), TypeError, "`mem` is of type Tensor, it must be a goccl.Memory"),
    ]:
        with comm.register(goccl.zeros(4)) as mem:
            if rank.rank == 1:
                refused(lambda b=bad: comm.exchange(b), text, kinds=kind)
            else:
                refused(lambda m=mem: comm.exchange(m), "refused on", kinds=goccl.MismatchError)
    comm.barrier()


def test_an_exchange_that_is_refused(world):
    world.run(run_refused_exchange)


# -- waits that end otherwise


def run_late(rank, kind):
    """A wait that times out takes nothing; a put does not wait longer for the peer's end than the
    group's timeout."""
    comm, me = goccl.Communicator(), rank.rank
    late = goccl.OperationTimeoutError
    mem = comm.register(goccl.zeros(4))
    theirs = comm.exchange(mem)
    if me == 1:
        comm.barrier()
    with comm.channel(1 - me, 7, kind) as channel:
        if me == 0:
            for timeout in (0.002, 0.15):
                what = f"wait: timeout after {timeout} s: 0 of 1 signals have come"
                refused(lambda t=timeout: channel.wait(timeout=t), what, kinds=late)
            refused(lambda: channel.wait(1, timedelta(seconds=0.12)), "after 0.12 s", kinds=late)
            rank.limit(0.05)
            for name, call in [
                ("put", lambda: channel.put(theirs[1], torch.ones(4))),
                ("put_signal", lambda: channel.put_signal(theirs[1], torch.ones(4))),
                ("get", lambda: channel.get(torch.ones(4), theirs[1])),
                ("signal", channel.signal),
                ("flush", channel.flush),
                ("wait", channel.wait),
            ]:
                refused(
                    call, f": {name}: timeout after 0.05 s", "has not opened its end", kinds=late
                )
            rank.limit(60)
            comm.barrier()
        channel.signal(2)
        refused(lambda: channel.wait(3, 0.01), "of 3 signals have come", kinds=late)
        channel.wait(2)
        comm.barrier()


@both_transports
def test_timeouts(make_world, transport):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    world.run(init)
    for kind in (None, "port"):
        world.run(run_late, kind)


def init(rank):
    rank.init()


def run_victim(rank):
    """Rank 1 waits for rank 0, which is killed; the channel of ranks 1 and 2 goes on."""
    comm, me = goccl.Communicator(), rank.rank
    mem = comm.register(goccl.zeros(8))
    theirs = comm.exchange(mem)
    with comm.channel((me + 1) % 3, 1) as after, comm.channel((me + 2) % 3, 1) as before:
        after.signal()
        before.wait()
        if me == 0:
            after.signal(2)
            after.flush()
            rank.tell("ready")
            rank.hear()
        elif me == 1:
            rank.tell("ready")
            with pytest.raises(goccl.PeerFailedError) as failed:
                before.wait(3)
            assert failed.value.ranks == [0]
            before.wait(2)  # that came before
            for call in (before.signal, before.flush, lambda: before.put(theirs[0], torch.ones(8))):
                with pytest.raises(goccl.PeerFailedError) as failed:
                    call()
                assert failed.value.ranks == [0]
            after.put(theirs[2], torch.ones(8))
            after.flush()
            after.signal()
            after.wait()
        else:
            before.wait()
            assert mem.tensor.tolist() == [1] * 8
            before.signal()


@both_transports
def test_a_peer_that_is_killed(make_world, transport):
    world = make_world(3, env={"GOCCL_TRANSPORT": transport})
    world.run(init)
    world.start(run_victim)
    for r in (0, 1):
        world.told(r)
    world.signal(0, signal.SIGKILL)
    world.values(world.finish(ranks=[1, 2]))


def run_close(rank):
    """What was signalled before the peer has closed can be taken."""
    comm, me = goccl.Communicator(), rank.rank
    mem = comm.register(goccl.zeros(4))
    theirs = comm.exchange(mem)
    for kind in kinds(comm):
        with comm.channel(1 - me, 8, kind) as channel:
            if me == 0:
                channel.put_signal(theirs[1], torch.ones(4), 2)
                channel.wait()
                continue
            channel.signal()
            with pytest.raises(goccl.AbortedError, match=r"tag 8: wait: rank 0 .* has closed"):
                channel.wait(3)
            channel.wait(2)
            assert mem.tensor.tolist() == [1] * 4
            for call in (channel.signal, lambda: channel.put(theirs[0], mem.tensor), channel.poll):
                refused(call, "channel to rank 0", "closed", kinds=goccl.AbortedError)
    comm.barrier()


def run_deregistered(rank):
    """The owner ends its memory: peers hear of it at the call, or at the next flush."""
    comm = goccl.Communicator()
    for kind in kinds(comm):
        with comm.channel(1 - rank.rank, 9, kind) as channel:
            end_memory(comm, channel)


def end_memory(comm, channel):
    mem = comm.register(goccl.zeros(4))
    theirs = comm.exchange(mem)[channel.peer]
    channel.put(theirs, torch.ones(4))
    channel.flush()
    comm.barrier()
    mem.deregister()
    comm.barrier()

    def put():
        channel.put(theirs, torch.ones(4))
        channel.flush()

    def get():
        channel.get(torch.zeros(4), theirs)
        channel.flush()

    for call in (put, get):
        refused(call, "deregistered", kinds=goccl.Error)
    theirs.deregister()
    refused(put, "put: the memory has been deregistered here", kinds=goccl.Error)
    comm.barrier()


def run_interrupted(rank, method):
    """Ctrl-C while the main thread waits: for a signal, for the peer's end, or for a flush."""
    comm = goccl.Communicator()
    theirs: Any = comm.exchange(comm.register(goccl.zeros(4)))
    with comm.channel(1 - rank.rank, 10) as channel:
        calls = {
            "wait": channel.wait,
            "put": lambda: channel.put(theirs[1 - rank.rank], torch.ones(4)),
            "flush": channel.flush,
        }

        def waits():
            calls[method]()

        with pytest.raises(KeyboardInterrupt):
            harness.interrupt(waits)
        assert not channel.poll()


def run_not_interrupted(rank):
    comm = goccl.Communicator()
    comm.exchange(comm.register(goccl.zeros(4)))


@both_transports
def test_ctrl_c(make_world, transport):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    world.run(init)
    for method in ("wait", "put", "flush"):
        world.start(run_interrupted, method, ranks=0)
        world.start(run_not_interrupted, ranks=1)
        world.values(world.finish())


def run_forked(rank):
    """The child is told, and does its parent's channels no harm."""
    comm = goccl.Communicator()
    peer = (rank.rank + 1) % rank.size
    mem = comm.register(goccl.zeros(4))
    theirs: Any = comm.exchange(mem)[peer]
    with comm.channel(peer, 11) as to, comm.channel((rank.rank - 1) % rank.size, 11) as source:
        to.signal()
        source.wait()

        def put():
            to.put(theirs, torch.ones(4))

        def told(call):
            try:
                call()
            except goccl.Error as e:
                return "" if "fork" in str(e) else str(e)
            return f"no error of {call}"

        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            text = "it raised"
            try:
                calls = (to.signal, put, source.wait, source.poll, to.flush, lambda: mem.handle)
                text = "".join(map(told, calls)) + told(lambda: comm.channel(peer, 12))
                to.close()
                mem.deregister()
            finally:
                os.write(write, text.encode() or b"told")
                os._exit(0)
        assert os.read(read, 10_000).decode() == "told"
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
        to.put_signal(theirs, torch.ones(4))
        source.wait()
        assert mem.tensor.tolist() == [1] * 4
        comm.barrier()


def test_forked_child(world):
    world.run(run_forked)


@both_transports
def test_ends_of_a_pair(make_world, transport):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    world.run(init)
    world.run(run_close)
    world.run(run_deregistered)
    if transport == "shm":
        world.run(run_stores)


def run_destroyed(rank):
    """Once the group is destroyed channels and memory say so, and are let go of without harm."""
    rank.init()
    comm = goccl.Communicator()
    mem = comm.register(goccl.zeros(4))
    theirs: Any = comm.exchange(mem)
    channel = comm.channel(1 - rank.rank)
    channel.signal()
    channel.wait()
    mem.tensor.fill_(rank.rank)
    view = theirs[1 - rank.rank].map()
    dist.barrier()
    dist.destroy_process_group()
    assert view.tolist() == [1 - rank.rank] * 4
    for call in (
        channel.signal, channel.wait, channel.flush, lambda: comm.channel(0),
        lambda: comm.exchange(mem), lambda: comm.register(goccl.zeros(4)),
        lambda: channel.put(theirs[1 - rank.rank], torch.ones(4)),
    ):  # fmt: skip
        refused(call, kinds=goccl.AbortedError)
    channel.close()
    mem.deregister()
    theirs[1 - rank.rank].deregister()
    assert view.tolist() == [1 - rank.rank] * 4


def test_a_group_that_is_destroyed(make_world):
    make_world(2, env={"GOCCL_TRANSPORT": "shm"}).run(run_destroyed)
