"""Ranks that end without destroy_process_group(), as children of multiprocessing: only those fail
who still need them. Real processes; this file is also their program."""

import functools
import json
import multiprocessing
import multiprocessing.util
import os
import re
import subprocess
import sys
import threading

import harness
import pytest

SIZE = 3
KERNEL = tuple(int(n) for n in re.findall(r"\d+", os.uname().release)[:2])


def end_in_thread():
    """The target ends, and its thread sends once all finalizers have run."""
    import torch
    import torch.distributed as dist

    over = threading.Event()

    def send_last():
        over.wait()
        dist.send(torch.ones(3), 0)

    threading.Thread(target=send_last).start()
    multiprocessing.util.Finalize(None, over.set, exitpriority=-(1 << 40))


ENDS = {
    "return": lambda: None,
    "exit": lambda: sys.exit(0),
    "raise": lambda: 1 / 0,
    "os._exit": lambda: os._exit(0),
    "thread": end_in_thread,
}


def rank_main(rank, ports, end):
    import goccl
    import torch
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", ports.get(), is_master=False)
    dist.init_process_group("goccl", store=store, rank=rank, world_size=SIZE)
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        dist.send(torch.ones(3), 0)
        ENDS[end]()
        return
    store.wait(["ended"])
    # The others go on, and what has been sent has come.
    if rank == 2:
        dist.send(torch.ones(3), 0)
        dist.recv(torch.empty(3), 0)
        store.set("through", "")
        return
    sends = [1, 1, 2] if end == "thread" else [1, 2]
    # From any rank, where the kernel tells that a rank without a goodbye has ended by itself.
    anyone = end in ("return", "exit", "raise") or KERNEL >= (6, 15)
    assert sorted(dist.recv(torch.empty(3), None if anyone else r) for r in sends) == sends
    dist.send(torch.ones(3), 2)
    store.wait(["through"])
    told = None
    try:
        dist.recv(torch.empty(3), 1)
    except (goccl.AbortedError, goccl.PeerFailedError) as e:
        told = type(e).__name__, e.ranks
    store.set("told", json.dumps(told))


def main(method, *ends):
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["torch", "goccl"])
    print(json.dumps({end: run_ranks(context, end) for end in ends}))


def run_ranks(context, end):
    """The exit codes of the ranks, and the error that rank 0 got."""
    import torch.distributed as dist

    ports = context.SimpleQueue()
    ranks = [context.Process(target=rank_main, args=(r, ports, end)) for r in range(SIZE)]
    for process in ranks:
        process.start()
    # After that: a child that fork() makes beside the store's thread may find the C library's locks
    # taken.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _ in ranks:
        ports.put(store.port)
    ranks[1].join()
    store.set("ended", "")
    for process in ranks:
        process.join()
    codes = [p.exitcode for p in ranks]
    return codes, json.loads(store.get("told")) if codes[0] == 0 else None


@functools.cache
def ended(method, *ends):
    """What main() tells, of a program that is run once for all ends: torch is imported once."""
    command = [sys.executable, __file__, method, *ends]
    run = subprocess.run(command, capture_output=True, text=True, timeout=2 * harness.DEADLINE)
    return run.returncode, run.stdout, run.stderr


def check(end, code, out, errors):
    assert code == 0, errors
    codes, told = json.loads(out)[end]
    assert codes == [0, int(end == "raise"), 0], errors
    # Nobody can say goodbye after os._exit(), nor while a thread may use the group.
    kind = "PeerFailedError" if end in ("os._exit", "thread") else "AbortedError"
    assert told == [kind, [1]]


@pytest.mark.parametrize("end", ENDS)
def test_rank_ends(end):
    check(end, *ended("forkserver", *ENDS))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_rank_returns(method):
    check("return", *ended(method, "return"))


if __name__ == "__main__":
    main(*sys.argv[1:])
