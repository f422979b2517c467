"""Proxies in Python: triggers for channels, pushed by threads that do not wait."""

import os
import signal
import threading
from typing import Any

import goccl
import pytest
import torch
from test_channels import both_transports, init


def run_carries(rank):
    comm, me = goccl.Communicator(), rank.rank
    mem = comm.register(goccl.zeros(4096))
    mem.tensor[2048:] = torch.arange(2048) + 10_000 * me
    theirs: Any = comm.exchange(mem)
    with comm.channel(1 - me, 4) as channel, comm.proxy(64) as proxy:
        last = -1
        for i in range(300):  # laps
            position = proxy.put_signal(channel, theirs[1 - me][:100], theirs[me][2048:2148])
            assert position == last + 1, i
            last = position
        channel.wait(300, timeout=60)
        assert mem.tensor[:100].tolist() == [i + 10_000 * (1 - me) for i in range(100)]
        proxy.get(channel, theirs[me][200:300], theirs[1 - me][3000:3100])
        proxy.wait(proxy.flush(channel), timeout=60)
        assert mem.tensor[200] == 952 + 10_000 * (1 - me)
        proxy.signal(channel, 3)
        channel.wait(3)

        def push(k):
            for _ in range(100):
                proxy.put_signal(channel, theirs[1 - me][k : k + 1], theirs[me][2048:2049], 2)

        threads = [threading.Thread(target=push, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        channel.wait(8 * 100 * 2, timeout=60)
        for thread in threads:
            thread.join()
        # It is kept until the trigger is done.
        proxy.put(channel, theirs[1 - me], comm.register(goccl.zeros(4096).fill_(1)))
        proxy.wait(proxy.flush(channel))
        comm.barrier()
        assert mem.tensor.sum() == 4096
    with pytest.raises(goccl.Error, match=r"proxy: wait: it has been closed here"):
        proxy.wait(last)


def run_refused(rank):
    comm, me = goccl.Communicator(), rank.rank
    mem = comm.register(goccl.zeros(64))
    theirs: Any = comm.exchange(mem)
    channel = comm.channel(1 - me, 5)
    proxy = comm.proxy()
    for size in (0, -1, 65, 1 << 17):
        with pytest.raises(ValueError, match=f"size.* is {size}, "):
            comm.proxy(size)
    whole: Any = mem.tensor
    for call, kind, text in (
        (lambda: proxy.put(channel, theirs[1 - me], whole), TypeError, "`src` is of type Tensor"),
        (lambda: proxy.put(channel, whole, mem), TypeError, "`dst` is of type Tensor"),
        (lambda: proxy.put(channel, theirs[1 - me], theirs[1 - me]), ValueError, "memory of rank"),
        (lambda: proxy.put(channel, theirs[1 - me][:3], mem), ValueError, "has 64 elements"),
        (lambda: proxy.signal(channel, 0), ValueError, "`n` is 0"),
        (lambda: proxy.signal(channel, 1 << 32), ValueError, "`n` is 4294967296"),
        (lambda: proxy.wait(7), ValueError, "position is 7, and 0 triggers"),
        (lambda: proxy.wait(0, timeout=0), ValueError, "`timeout` is 0"),
    ):
        with pytest.raises(kind, match=text):
            call()
    proxy.wait(proxy.signal(channel))  # all goes on
    position = proxy.put(channel, theirs[me], mem)
    with pytest.raises(ValueError, match=r"trigger 1: .*the memory is this rank's own"):
        proxy.wait(position)
    with pytest.raises(ValueError, match="trigger 1: "):
        proxy.signal(channel)

    def in_a_context():
        with comm.proxy() as ends:
            ends.wait(ends.signal(channel))
            ends.put(channel, theirs[me], mem)

    with pytest.raises(ValueError, match=r"trigger 1: "):  # of stop()
        in_a_context()
    proxy.close()
    proxy.close()
    channel.wait(2)
    comm.barrier()
    channel.close()


@both_transports
def test_proxy(make_world, transport):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    world.run(init)
    world.run(run_carries)
    world.run(run_refused)


def run_victim(rank):
    """Rank 0 is killed: the proxy ends with the first trigger that fails."""
    comm, me = goccl.Communicator(), rank.rank
    mem = comm.register(goccl.zeros(1 << 20))
    theirs: Any = comm.exchange(mem)
    channel = comm.channel(1 - me, 6)
    proxy = comm.proxy()
    proxy.wait(proxy.put_signal(channel, theirs[1 - me], mem))
    channel.wait()
    comm.barrier()
    rank.tell("ready")
    if me == 0:
        rank.hear()

    def put():
        while True:
            proxy.wait(proxy.put_signal(channel, theirs[0], mem))

    with pytest.raises(goccl.PeerFailedError, match=r"trigger \d+") as failed:
        put()
    assert failed.value.ranks == [0]
    with pytest.raises(goccl.PeerFailedError):
        proxy.stop()
    proxy.close()


@both_transports
def test_a_peer_that_is_killed(make_world, transport):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    world.run(init)
    world.start(run_victim)
    for r in (0, 1):
        world.told(r)
    world.signal(0, signal.SIGKILL)
    world.values(world.finish(ranks=[1]))


def run_beside_a_stopped_peer(rank):
    """Puts to rank 0, which is stopped, do not end. Signals to rank 2 come."""
    comm, me = goccl.Communicator(), rank.rank
    mem = comm.register(goccl.zeros(1 << 22))
    theirs: Any = comm.exchange(mem)
    channels = {peer: comm.channel(peer, 7) for peer in range(3) if peer != me}
    comm.barrier()
    rank.tell("ready")
    rank.hear()
    if me == 2:
        channels[1].wait(50, timeout=60)
    if me != 1:
        return
    proxy = comm.proxy()
    held = [proxy.put_signal(channels[0], theirs[0], mem) for _ in range(10)][-1]
    for _ in range(50):
        last = proxy.signal(channels[2])
    proxy.wait(last, timeout=60)
    with pytest.raises(goccl.OperationTimeoutError, match=f"trigger {held} is not done"):
        proxy.wait(held, timeout=0.01)
    proxy.close()  # it waits for nobody


def test_a_stopped_peer_holds_up_no_other(make_world):
    world = make_world(3, env={"GOCCL_TRANSPORT": "tcp"})
    world.run(init)
    world.start(run_beside_a_stopped_peer)
    for r in range(3):
        world.told(r)
    world.signal(0, signal.SIGSTOP)
    world.say("go", [1, 2])
    world.values(world.finish(ranks=[1, 2]))
    world.signal(0, signal.SIGCONT)
    world.say("go", [0])
    world.values(world.finish(ranks=[0]))


def run_forked(rank):
    """A child shares the FIFO with its parent, and pushes nothing for it."""
    comm, me = goccl.Communicator(), rank.rank
    with comm.channel(1 - me, 6) as channel, comm.proxy() as proxy:
        comm.barrier()
        child = os.fork()
        if child == 0:
            try:
                proxy.signal(channel)
            except goccl.Error as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert proxy.signal(channel) == 0
        channel.wait(1, timeout=60)
        comm.barrier()
        assert not channel.poll()
        comm.barrier()  # nobody closes before the other one has polled


@both_transports
def test_a_forked_child_pushes_nothing(make_world, transport):
    world = make_world(2, env={"GOCCL_TRANSPORT": transport})
    world.run(init)
    world.run(run_forked)
