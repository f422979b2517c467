"""Trains a small network to read handwritten digits, and goes on when a worker is killed.

    python examples/train_elastic.py --workers 4

starts four workers and prints their process ids. Kill any of them (kill -9): the others go on
within a second, from the last step. A new worker takes its place, and joins at the next step.
--no-replacement leaves that out. With --ray the workers are actors of Ray, which needs
`pip install ray`. A worker that somebody else starts finds the others in their store:

    python examples/train_elastic.py --join --store 127.0.0.1:29500

Under torchrun each worker needs an agent of its own, for an agent ends all its workers when one has
failed. Agents and workers meet at a store that none of them serves. Start it, and this as often as
there are workers:

    goccl store --port 29400
    torchrun --nnodes 4 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29400 \\
        --rdzv-conf is_host=false examples/train_elastic.py --store 127.0.0.1:29400
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from datetime import timedelta

import goccl
import goccl.elastic
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

RATE = 1e-3  # of learning, for one worker
MET = "workers have met"  # a key of the store


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=0, help="start so many workers")
    parser.add_argument("--no-replacement", action="store_true", help="start no others later")
    parser.add_argument("--ray", action="store_true", help="start them as actors of Ray")
    parser.add_argument("--store", metavar="HOST:PORT", help="the TCPStore at which workers meet")
    parser.add_argument("--join", action="store_true", help="join the workers that are there")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data; 15")
    parser.add_argument("--batch-size", type=int, default=16, help="samples a rank and step; 16")
    arguments = parser.parse_args()
    if not (arguments.workers or arguments.join or "RANK" in os.environ):
        parser.error("give --workers 4, or start it with torchrun")
    return arguments


def serve_store(host: str) -> tuple[dist.Store, str]:
    """Serves the store at which workers meet. It is here, so that no worker's end is the store's.
    Returns its address, too."""
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return store, f"{host}:{store.port}"


def threads_for(workers: int) -> dict[str, str]:
    """Variables that share the CPUs out among workers of this host, unless the user has set them.
    Without them each worker has a thread for every CPU."""
    share = len(os.sched_getaffinity(0)) // workers
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, share)))}


def launch(workers: int, replace: bool, options: list[str]) -> int:
    """Starts workers, and others for those that are killed. Returns the exit status."""
    store, address = serve_store("127.0.0.1")
    command = [sys.executable, __file__, *options, "--store", address]
    environment = os.environ | threads_for(workers)
    running: dict[subprocess.Popen[bytes], int | None] = {}  # workers, with the rank of the start

    def start(rank: int | None) -> int:
        if rank is None:
            worker = subprocess.Popen([*command, "--join"], env=environment)
        else:
            ranks = {"RANK": str(rank), "WORLD_SIZE": str(workers)}
            worker = subprocess.Popen(command, env=environment | ranks)
        running[worker] = rank
        return worker.pid

    for rank in range(workers):
        print(f"worker {rank}: process {start(rank)}", flush=True)
    print(f"others join with --join --store {address}", flush=True)
    finished = 0
    while running:
        time.sleep(0.05)
        for worker in [w for w in running if w.poll() is not None]:
            ended = running.pop(worker)
            finished += worker.returncode == 0
            if worker.returncode < 0 and replace and running:
                # Before the workers have met another one takes its rank.
                pid = start(None if store.check([MET]) else ended)
                print(f"process {worker.pid} has ended, {pid} takes its place", flush=True)
    return 0 if finished else 1


class Worker:
    """An actor of Ray."""

    def pid(self) -> int:
        return os.getpid()

    def work(self, arguments: argparse.Namespace, rank: int | None, size: int) -> None:
        arguments.join = rank is None
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
        work(arguments)


def launch_actors(arguments: argparse.Namespace) -> int:
    """Does the same with actors of Ray."""
    import ray

    os.environ |= threads_for(arguments.workers)
    ray.init()
    store, arguments.store = serve_store(ray.util.get_node_ip_address())
    running = {}

    def start(rank: int | None) -> int:
        actor = ray.remote(num_cpus=1)(Worker).remote()  # Ray restarts none by itself
        pid = ray.get(actor.pid.remote())
        running[actor.work.remote(arguments, rank, arguments.workers)] = actor, rank
        return pid

    for rank in range(arguments.workers):
        print(f"worker {rank}: process {start(rank)}", flush=True)
    finished = 0
    while running:
        (ended, *_), _ = ray.wait(list(running))
        _, was = running.pop(ended)
        try:
            ray.get(ended)
            finished += 1
        except ray.exceptions.RayActorError:
            if running and not arguments.no_replacement:
                pid = start(None if store.check([MET]) else was)
                print(f"an actor has ended, process {pid} takes its place", flush=True)
    return 0 if finished else 1


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Returns the training and the test set: 1797 images of 8 x 8 that come with scikit-learn."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target)
    test = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~test], labels[~test]), TensorDataset(images[test], labels[test])


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Returns the share of images that are read rightly; every rank looks at its own part of
    them."""
    images, labels = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in data.tensors)
    right = (model.get_submodule("module")(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(right)
    return right.item() / len(data)


def work(arguments: argparse.Namespace) -> None:
    store: dist.Store | None = None  # without one: that of the environment, or an etcd
    if arguments.store:
        host, _, port = arguments.store.rpartition(":")
        store = dist.TCPStore(host, int(port), is_master=False)
    if arguments.join:  # in a group of its own at first
        alone = store or dist.HashStore()
        dist.init_process_group("goccl", store=alone, rank=0, world_size=1)
    elif store:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("goccl", store=store, rank=rank, world_size=size)
        store.set(MET, "")
    else:
        dist.init_process_group("goccl")

    def say(text: str) -> None:
        if dist.get_rank() == 0:
            print(text, flush=True)

    train_set, test_set = load_data()

    def make_state() -> goccl.elastic.TorchState:
        torch.manual_seed(0)
        sampler = goccl.elastic.ElasticSampler(train_set, drop_last=True)
        model = DistributedDataParallel(make_model())
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE * dist.get_world_size())
        state = goccl.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0)

        def adapt() -> None:  # after each change of the members
            for parameters in optimizer.param_groups:
                parameters["lr"] = RATE * dist.get_world_size()
            say(f"step {state.step}: {dist.get_world_size()} workers")

        state.register_reset_callbacks([adapt])
        return state

    @goccl.elastic.run
    def train(state: goccl.elastic.TorchState) -> int:
        data = DataLoader(train_set, batch_size=arguments.batch_size, sampler=state.sampler)
        while state.epoch < arguments.epochs:
            for batch, (images, labels) in enumerate(data):
                loss = nn.functional.cross_entropy(state.model(images), labels)
                state.optimizer.zero_grad()
                loss.backward()
                state.optimizer.step()
                state.sampler.record_batch(batch, arguments.batch_size)
                state.step += 1
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            share = 100 * accuracy(state.model, test_set)
            say(f"epoch {state.epoch}/{arguments.epochs}  test accuracy {share:.2f} %")
        return state.step

    if arguments.join:
        state = make_state()
        # It finds a member in the store, if there is one by then.
        goccl.Communicator().join(timeout=timedelta(minutes=1))
        steps = train(state)
    else:
        steps = train(make_state)  # a worker may die meanwhile: the others make it again
    say(f"done after {steps} steps with {dist.get_world_size()} workers")
    dist.destroy_process_group()


def main() -> int:
    arguments = parse_arguments()
    if arguments.workers and arguments.ray:
        return launch_actors(arguments)
    if arguments.workers:
        options = [f"--epochs={arguments.epochs}", f"--batch-size={arguments.batch_size}"]
        return launch(arguments.workers, not arguments.no_replacement, options)
    work(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
