"""Ranks on several hosts, which are namespaces of this one. Without root there are none."""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import goccl
import oracle
import pytest
import torch
import torch.distributed as dist
from harness import finished, until
from hosts import NoHosts, hosts

# Prints what a rank sees: the sum of the ranks' numbers, and how it is joined with them.
PROGRAM = """
import json, os, torch, goccl, torch.distributed as dist
dist.init_process_group("goccl")
tensor = torch.full((1 << 16,), float(dist.get_rank()))
dist.all_reduce(tensor)
about = goccl.describe()
seen = [about.hosts, about.transports, about.interface, tensor[0].item()]
print(json.dumps(seen))
dist.destroy_process_group()
"""


@pytest.fixture
def make_hosts(tmp_path):
    """Makes hosts that end with the test, or skips it where the system makes none."""
    made = []

    def make(count):
        manager = hosts(count, tmp_path)
        try:
            made.append(manager)
            return manager.__enter__()
        except NoHosts as error:
            made.pop()
            pytest.skip(f"no hosts can be made of namespaces here: {error}")

    yield make
    for manager in made:
        manager.__exit__(None, None, None)


def prepared(change, *given, **named):
    """Calls what changes a network, or skips the test where the kernel cannot."""
    try:
        change(*given, **named)
    except NoHosts as error:
        pytest.skip(f"this network cannot be made here: {error}")


def test_doctor_names_what_is_wrong_between_hosts(make_hosts, tmp_path):
    """One pair of hosts is apart, one loses large packets, and one has a slow wire."""
    network = make_hosts(4)
    prepared(network.split, 1, 2)
    prepared(network.wire, 1, 3, mtu=600)
    prepared(network.wire, 2, 3, rate="20mbit")
    words = [
        "-m",
        "goccl",
        "doctor",
        "--wait",
        "60",
        "--timeout",
        "5",
        "--json",
        str(tmp_path / "out"),
    ]
    done = finished(*network.start(sys.executable, *words))
    assert [rank.returncode for rank in done] == [1, 0, 0, 0], done
    assert done[0].stdout.startswith("4 ranks, 4 hosts: ")
    told = json.loads((tmp_path / "out").read_text())
    assert [told["ranks"][str(rank)]["host"] for rank in range(4)] == [
        f"node{rank}" for rank in range(4)
    ]
    # Beside other programs one more pair may be slow, and then a rank is named instead of a pair.
    for ranks, text, check in (
        ([{1, 2}], "hosts node1 (rank 1) and node2 (rank 2) cannot be joined: ", "firewalls"),
        ([{1, 3}], "ranks 1 and 3 exchange small messages, but no large ones: ", "MTU"),
        ([{2, 3}, {2}, {3}], "bandwidth of 0.0", "the speed of the link"),
    ):
        assert any(
            set(finding["ranks"]) in ranks and text in finding["text"] and check in finding["check"]
            for finding in told["findings"]
        ), json.dumps(told["findings"], indent=1)


def test_a_group_tells_its_hosts_and_interface(make_hosts):
    network = make_hosts(2)
    done = finished(*network.start(sys.executable, "-c", PROGRAM, GOCCL_DEBUG="INFO"))
    assert [rank.returncode for rank in done] == [0, 0], done
    for rank, program in enumerate(done):
        names, transports, interface, total = json.loads(program.stdout)
        assert names == ["node0", "node1"]
        assert transports == ["self" if peer == rank else "tcp" for peer in range(2)]
        assert (interface, total) == ("eth0", 1.0)
        assert f" node{rank}:" in program.stderr, "the log's lines begin with the host"


# The same without torch.
ARRAYS = """
import json, sys
sys.modules["torch"] = None
import goccl.numpy, numpy as np
with goccl.numpy.init(timeout=60) as comm:
    total = comm.allreduce(np.full(1 << 16, float(comm.rank)))
    print(json.dumps([[m.host for m in comm.members], comm.transport(1 - comm.rank), total[0]]))
"""


def test_arrays_between_hosts_without_torch(make_hosts):
    network = make_hosts(2)
    done = finished(*network.start(sys.executable, "-c", ARRAYS))
    assert [each.returncode for each in done] == [0, 0], done
    for each in done:
        assert json.loads(each.stdout) == [["node0", "node1"], "tcp", 1.0]


def test_an_interface_that_a_host_lacks_is_told_with_those_it_has(make_hosts):
    network = make_hosts(2)
    network.plug(1, "ib0", "main")
    done = finished(*network.start(sys.executable, "-c", PROGRAM, GOCCL_SOCKET_IFNAME="ib0"))
    assert all(rank.returncode for rank in done), done
    assert (
        'interface is "ib0" (from the option or GOCCL_SOCKET_IFNAME), this host has lo, eth0'
        in done[0].stderr
    )
    assert (
        'interface is "ib0" (from the option or GOCCL_SOCKET_IFNAME), which has no address'
        in done[1].stderr
    )


LOCAL = 4  # ranks on each of two hosts
ALGORITHMS = (
    "",
    "allreduce:hierarchical(4,2);allgather:hierarchical(4,2);reduce_scatter:hierarchical(4,2)",
    "allreduce:recursive_multiplying(2,2,2)",
)


def compare_with_oracle(rank, how, counts):
    """Collectives of so many elements, whose bits are those of the oracle."""
    me, size = rank.rank, rank.size
    for dtype in (torch.float32, torch.bfloat16):
        for count in counts:
            given = [oracle.values(dtype, size * count, r, "general") for r in range(size)]
            parts = [whole[:count] for whole in given]
            what = f"{how}: %s of {count} {dtype}"

            mine = parts[me].clone()
            dist.all_reduce(mine)
            oracle.check(mine, oracle.reduce(parts, "SUM"), what % "allreduce")
            mine = parts[me].clone()
            dist.broadcast(mine, size - 1)
            oracle.check(mine, parts[size - 1], what % "broadcast")
            gathered = torch.empty(size * count, dtype=dtype)
            dist.all_gather_into_tensor(gathered, parts[me].clone())
            oracle.check(gathered, torch.cat(parts), what % "allgather")
            mine = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(mine, given[me])
            reduced = oracle.reduce([whole.split(count)[me] for whole in given], "SUM")
            oracle.check(mine, reduced, what % "reduce_scatter")


def join_again(rank, name, algorithms):
    """Joins another group, with algorithms that are forced.

    Returns how errors are to call it.
    """
    dist.destroy_process_group()
    how = f"{name}, {algorithms or 'as chosen'}"
    os.environ["GOCCL_ALGO"] = algorithms
    rank.init(store=how)
    assert goccl.describe().algorithms == algorithms
    return how


def run_both_numberings(rank):
    """Ranks are numbered host by host, and then in turn over the hosts."""
    host, local = divmod(rank.rank, LOCAL)
    hosts_of = rank.size // LOCAL
    for numbering, number in (
        ("in order", rank.rank),
        ("round robin", local * hosts_of + host),
    ):
        for algorithms in ALGORITHMS:
            rank.rank = number
            how = join_again(rank, numbering, algorithms)
            compare_with_oracle(rank, how, (5, 1000, 70_001))


def test_same_bits_however_ranks_are_numbered(make_hosts):
    network = make_hosts(2)
    ranks = Path(__file__).parent / "softroce" / "ranks.py"
    words = [str(ranks), "--local", str(LOCAL), "test_hosts.run_both_numberings"]
    done = finished(*network.start(sys.executable, *words, GOCCL_DEBUG="INFO", OMP_NUM_THREADS="1"))
    assert [host.returncode for host in done] == [0, 0], done
    for host in done:
        made = re.findall("a group is made .*", host.stderr)
        worse = [line for line in made if "numbering=" in line]
        assert len(made) == LOCAL * (1 + 2 * len(ALGORITHMS))
        assert len(worse) == LOCAL * len(ALGORITHMS), "those in turn, and no others"
        for line in worse:
            assert "1/4 as often: for each 4 ranks, not for each 1" in line


# A rank writes its process into a folder, and the late one stays away from the second collective
# while a file is there.
LATE_PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
from pathlib import Path
folder, late = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("goccl")
dist.all_reduce(torch.ones(8))
rank = dist.get_rank()
(folder / f".{rank}").write_text(str(os.getpid()))
(folder / f".{rank}").rename(folder / f"rank{rank}")
while rank == late and (folder / "wait").exists():
    time.sleep(0.01)
dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
"""


def test_who_holds_a_group_up_is_seen_from_each_host(make_hosts, tmp_path):
    network, size, late, stopped = make_hosts(2), 2 * LOCAL, LOCAL + 1, 2
    waiting = tmp_path / "wait"
    waiting.touch()
    words = [sys.executable, "-c", LATE_PROGRAM, str(tmp_path), str(late)]
    job = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "WORLD_SIZE": str(size)}
    ranks = [
        network.hosts[rank // LOCAL].start(*words, **job, RANK=str(rank), OMP_NUM_THREADS="1")
        for rank in range(size)
    ]

    def said(host, kind):
        """What is said of the group from a host, once it is of a kind."""
        words = network.hosts[host].words(sys.executable, "-m", "goccl", "ps", "--json")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        groups = json.loads(done.stdout)["groups"]
        return groups and groups[0]["verdict"]["kind"] == kind and groups[0]

    def files():
        assert all(rank.poll() is None for rank in ranks), finished(*ranks, seconds=1)
        return len(list(tmp_path.glob("rank*"))) == size

    try:
        until(files, what="all ranks are in the group")
        for host in range(2):
            behind = until(partial(said, host, "behind"), what="a rank is behind")
            assert behind["verdict"]["ranks"] == [late]
            assert [m["state"] for m in behind["members"]] == ["answers"] * size
            assert [m["host"] for m in behind["members"]] == ["node0"] * LOCAL + ["node1"] * LOCAL
        pid = int((tmp_path / f"rank{stopped}").read_text())
        os.kill(pid, signal.SIGSTOP)
        for host, state in enumerate(["stopped", "silent"]):
            held = until(partial(said, host, "stopped"), what="a rank is stopped")
            assert held["verdict"]["ranks"] == [stopped]
            assert held["members"][stopped]["state"] == state
        os.kill(pid, signal.SIGCONT)
    finally:
        waiting.unlink()
        done = finished(*ranks)
    assert [rank.returncode for rank in done] == [0] * size, done
