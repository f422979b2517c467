"""Trains a small network to read handwritten digits, data-parallel over several processes.

    torchrun --standalone --nproc-per-node 2 examples/train_digits.py

All that training has to do with GoCCL is init_process_group("goccl"); --backend gloo runs the same
with Gloo.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import goccl
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend", default="goccl", help="of torch.distributed; goccl if not given"
    )
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data; 15")
    parser.add_argument("--batch-size", type=int, default=32, help="samples a rank and step; 32")
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    if "RANK" not in os.environ:
        parser.error(
            "start it with: torchrun --standalone --nproc-per-node 2 examples/train_digits.py"
        )
    return arguments


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Returns the training and the test set: 1797 images of 8 x 8 that come with scikit-learn."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = train_test_split(
        range(len(labels)), test_size=0.2, random_state=0, stratify=labels
    )
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def sum_over_ranks(*values: float) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()


def train_epoch(
    model: nn.Module, data: DataLoader, optimizer: torch.optim.Optimizer
) -> tuple[list[float], list[float]]:
    """Goes once through this rank's share of the data. Returns loss and duration of each step."""
    model.train()
    losses, seconds = [], []
    for images, labels in data:
        begin = time.perf_counter()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # DDP sums the gradients over the ranks meanwhile
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
    return losses, seconds


@torch.no_grad()
def accuracy(model: DistributedDataParallel, data: TensorDataset) -> float:
    """Returns the share of images that are read rightly; every rank looks at its own part of
    them."""
    model.eval()
    rank, size = dist.get_rank(), dist.get_world_size()
    images, labels = (tensor[rank::size] for tensor in data.tensors)
    right = (model.module(images).argmax(dim=1) == labels).sum().item()
    right, seen = sum_over_ranks(right, len(labels))
    return right / seen


def gradient_exchange_ms(model: nn.Module) -> tuple[int, float]:
    """Returns the size of all gradients in bytes, and the median time of one allreduce of as
    much."""
    gradients = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    seconds = []
    for _ in range(50):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(gradients)
        seconds.append(time.perf_counter() - begin)
    return gradients.nbytes, 1e3 * statistics.median(seconds)


def transports() -> str:
    """Tells what joins this rank to the others. Only goccl can say."""
    if dist.get_backend() != "goccl":
        return "not told by this backend"
    rank = dist.get_rank()
    found = [
        f"{name} (rank {rank} to {peer})"
        for peer, name in goccl.transports().items()
        if peer != rank
    ]
    return ", ".join(found) or "none: one rank"


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    torch.manual_seed(0)
    train_set, test_set = load_data()
    sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)
    data = DataLoader(train_set, batch_size=arguments.batch_size, sampler=sampler)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    say(f"training on {len(train_set)} images, {size} ranks, backend {dist.get_backend()}")

    step_seconds: list[float] = []
    for epoch in range(1, arguments.epochs + 1):
        sampler.set_epoch(epoch)
        losses, seconds = train_epoch(model, data, optimizer)
        step_seconds += seconds
        loss, steps = sum_over_ranks(sum(losses), len(losses))
        say(
            f"epoch {epoch:3}/{arguments.epochs}  loss {loss / steps:.4f}  "
            f"test accuracy {100 * accuracy(model, test_set):.2f} %"
        )

    gradient_bytes, exchange_ms = gradient_exchange_ms(model)
    say(f"test accuracy    {100 * accuracy(model, test_set):.2f} %")
    say(f"transport        {transports()}")
    say(
        f"a step           {1e3 * statistics.median(step_seconds):.2f} ms (median of "
        f"{len(step_seconds)}); "
        f"its gradients, {gradient_bytes / 1024:.0f} KiB, summed alone: {exchange_ms:.2f} ms"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
