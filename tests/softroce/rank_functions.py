"""What ranks do on the guests, beside the functions of the other tests."""

import time

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d


def transports(rank):
    """What joins this rank to each other."""
    dist.barrier()
    group = c10d._get_default_group()._get_backend(torch.device("cpu"))
    return [group.transport(r) for r in range(rank.size)]


def work(rank, seconds, count):
    """Reduces again and again, and prints a line from time to time."""
    ends = time.monotonic() + seconds
    shown = 0.0
    steps = 0
    while True:
        t = torch.full((count,), float(rank.rank))
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
    from sklearn.datasets import load_digits

    torch.manual_seed(1)
    given = load_digits()
    x = torch.tensor(given.data, dtype=torch.float32)[rank.rank :: rank.size] / 16
    y = torch.tensor(given.target)[rank.rank :: rank.size]
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
