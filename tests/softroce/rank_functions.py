"""What ranks do on the guests, beside the functions of the other tests."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import goccl
import numpy as np
import oracle
import test_hosts
import test_schedules
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d


def transports(rank):
    """What joins this rank to each other."""
    dist.barrier()
    group: Any = c10d._get_default_group()._get_backend(torch.device("cpu"))
    return [group.transport(r) for r in range(rank.size)]


def shareable(rank, count):
    """Shareable tensors, against the oracle.

    Returns how many bytes peers have read by themselves, and this rank of theirs.
    """
    me, size = rank.rank, rank.size
    values = [oracle.values(torch.float32, count, r, "general") for r in range(size)]
    mine = goccl.empty(count)
    for make in (goccl.zeros, torch.zeros):
        mine.copy_(values[me])
        dist.all_reduce(mine)
        oracle.check(mine, oracle.reduce(values, "SUM"), "sum")
        mine.copy_(values[me])
        all_of_them = make(size * count)
        dist.all_gather_into_tensor(all_of_them, mine)
        oracle.check(all_of_them, torch.cat(values), "gathered")
        given = goccl.empty(size * count)
        given.copy_(torch.cat([v + me for v in values]))
        dist.all_to_all_single(all_of_them, given)
        oracle.check(all_of_them, torch.cat([values[me] + r for r in range(size)]), "exchanged")
        received = make(count)
        request = dist.isend(mine, (me + 1) % size)
        dist.recv(received, (me - 1) % size)
        request.wait()
        oracle.check(received, values[me - 1], "received")
        del all_of_them, given, received
    dist.barrier()
    found = goccl.memory_stats()
    return found["read_by_peers_bytes"], found["read_from_peers_bytes"]


def work(rank, seconds, count, ordinary=True):
    """Reduces again and again, and prints a line from time to time."""
    ends = time.monotonic() + seconds
    shown = 0.0
    steps = 0
    full = torch.full if ordinary else lambda size, value: goccl.empty(size).fill_(value)
    while True:
        t = full((count,), float(rank.rank))
        t[0] = time.monotonic() > ends
        dist.all_reduce(t)
        steps += 1
        if t[-1] != rank.size * (rank.size - 1) / 2:
            raise AssertionError(f"step {steps}: the sum is {t[-1]}")
        if t[0] > 0:
            return steps
        if time.monotonic() - shown > 0.2:
            shown = time.monotonic()
            print(f"rank {rank.rank} has done {steps} steps", flush=True)


def digits(rank):
    """Trains on handwritten digits; returns the accuracy."""
    # Not by sklearn.datasets: a guest's kernel maps each page by itself, and with those that the
    # import of scikit-learn touches they are more than its host's vm.max_map_count allows.
    folder = importlib.util.find_spec("sklearn").submodule_search_locations[0]  # type: ignore[index]
    given = np.loadtxt(Path(folder, "datasets", "data", "digits.csv.gz"), delimiter=",")

    torch.manual_seed(1)
    x = torch.tensor(given[:, :-1], dtype=torch.float32)[rank.rank :: rank.size] / 16
    y = torch.tensor(given[:, -1], dtype=torch.int64)[rank.rank :: rank.size]
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    right = (model(x).argmax(1) == y).sum()
    total = torch.tensor([right, len(y)])
    dist.all_reduce(total)
    accuracy = float(total[0] / total[1])
    assert accuracy > 0.95, f"accuracy is {accuracy}"
    return accuracy


def schedules(rank):
    """All-to-all by every schedule, with splits of any length, zero among them, against NumPy."""
    me, everyone = rank.rank, range(rank.size)
    for schedule in ("", "sequential", "window=2", "window=3", "parallel"):
        options = goccl.Options(alltoall_schedule=schedule)
        group = dist.new_group(list(everyone), backend="goccl", pg_options=options)
        for n in (0, 1, 1000, 40_003):
            parts = [test_schedules.sent(me, r, n) for r in everyone]
            want = [test_schedules.sent(r, me, n) for r in everyone]
            out = torch.full((sum(map(len, want)),), -1.0)
            given = torch.from_numpy(np.concatenate(parts))
            dist.all_to_all_single(
                out, given, list(map(len, want)), list(map(len, parts)), group=group
            )
            assert out.numpy().tobytes() == np.concatenate(want).tobytes(), (
                f"{schedule}, {n} elements"
            )
        dist.destroy_process_group(group)


def levels(rank, *lists):
    """Collectives in levels of these radices, and by direct exchange, against the oracle."""
    forced = ["allreduce:one_shot;allgather:linear;reduce_scatter:linear"]
    for algorithm in ("hierarchical", "recursive_multiplying"):
        for radices in lists:
            by = f"{algorithm}({radices.replace(' ', ',')})"
            forced.append(f"allreduce:{by}")
            if algorithm == "hierarchical":
                forced[-1] += f";allgather:{by};reduce_scatter:{by}"
    for algorithms in forced:
        how = test_hosts.join_again(rank, "verbs", algorithms)
        test_hosts.compare_with_oracle(rank, how, (5, 9001))
