"""Experts on all ranks: tokens go to them, and their results come back, by puts.

torchrun --standalone --nproc-per-node 2 examples/channels/experts.py

Rank r has expert r. A gate names the expert of each token, so each expert gets another number of
tokens in each step. For comparison all_to_all_single() does the same, in turn with the puts. Each
turn ends with a check of the results.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta

import goccl
import torch
import torch.distributed as dist


@dataclass
class Route:
    """Where the tokens of a step go.

    expert: of each token. order: the tokens by number, sorted by expert. back: where in this order
    each token is. parts: the order, cut by expert; counts: the lengths of the parts. heads: for
    each expert its count, and where in the order its part begins.
    """

    expert: torch.Tensor
    order: torch.Tensor
    back: torch.Tensor
    parts: tuple[torch.Tensor, ...]
    counts: list[int]
    heads: torch.Tensor


def gate(tokens: int, experts: int) -> Route:
    """Chooses an expert for each token at random, some experts more often than others."""
    popularity = torch.rand(experts) + 0.1
    expert = popularity.multinomial(tokens, replacement=True)
    order = expert.argsort(stable=True)
    counted = expert.bincount(minlength=experts)
    heads = torch.stack((counted, counted.cumsum(0) - counted), dim=1)
    counts = counted.tolist()
    return Route(expert, order, order.argsort(), order.split(counts), counts, heads)


def apply_expert(rank: int, tokens: torch.Tensor, out: torch.Tensor) -> None:
    """Stands for a network. It is short, so that most of a step is the exchange."""
    torch.mul(tokens, rank + 2, out=out)


def share(comm: goccl.Communicator, tensor: torch.Tensor) -> list[goccl.RemoteMemory]:
    """Lets peers write to a tensor. Returns what all ranks have shared, by rank."""
    memories = comm.exchange(comm.register(tensor))
    return [memory for memory in memories if memory is not None]  # each rank shares one


class Puts:
    """The exchange by channels.

    Rank s puts its tokens for expert r into block s of r's inbox. Row 0 of a block is its head: how
    many tokens follow, and at which row of s their results belong. There r puts the results.

    Nothing is overwritten too early. Rank s puts the next tokens after it has taken the results of
    the last ones, and r has put these after it had used the tokens. Rank r puts the next results
    after it has taken the next tokens, and s has put these after it had used the results. For the
    same reason no flush is needed before the source of a put changes.
    """

    def __init__(self, comm: goccl.Communicator, tokens: int, dim: int, kind: str | None) -> None:
        ranks, self.rank, self.dim = comm.size, comm.rank, dim
        # Each rank begins with the next one: so they do not all put to the same one at a time.
        self.peers = [(comm.rank + i) % ranks for i in range(1, ranks)]
        self.channels = {r: comm.channel(r, kind=kind) for r in self.peers}

        # What peers reach is shareable memory. It is registered once.
        self.inbox = goccl.empty(ranks, 1 + tokens, dim)
        self.results = goccl.empty(tokens, dim)
        block = (1 + tokens) * dim
        mine = slice(comm.rank * block, (comm.rank + 1) * block)
        self.inboxes = [inbox[mine] for inbox in share(comm, self.inbox)]
        self.results_of = share(comm, self.results)

        # What is put is made here. What stays on this rank is made in its place at once.
        self.outbox = list(torch.empty(ranks, 1 + tokens, dim))
        self.outbox[comm.rank] = self.inbox[comm.rank]
        self.answers = list(torch.empty(ranks, tokens, dim))
        self.answers[comm.rank] = self.results

    def step(self, tokens: torch.Tensor, route: Route, out: torch.Tensor) -> None:
        for r in self.peers:
            block = self.pack(r, tokens, route)
            self.channels[r].put_signal(self.inboxes[r][: block.numel()], block)
        self.pack(self.rank, tokens, route)
        self.serve(self.rank)
        for r in reversed(self.peers):  # the one that begins with this rank is the first
            self.channels[r].wait()
            first, answer = self.serve(r)
            there = self.results_of[r][first * self.dim : first * self.dim + answer.numel()]
            self.channels[r].put_signal(there, answer)
        for r in self.peers:
            self.channels[r].wait()
        torch.index_select(self.results, 0, route.back, out=out)

    def pack(self, r: int, tokens: torch.Tensor, route: Route) -> torch.Tensor:
        """Makes the block for expert r."""
        block = self.outbox[r][: 1 + route.counts[r]]
        block[0, :2] = route.heads[r]
        torch.index_select(tokens, 0, route.parts[r], out=block[1:])
        return block

    def serve(self, r: int) -> tuple[int, torch.Tensor]:
        """Makes the results for rank r. Returns them, and the row at which they belong."""
        block = self.inbox[r]
        count, first = map(int, block[0, :2].tolist())
        answer = self.answers[r][first : first + count]
        apply_expert(self.rank, block[1 : 1 + count], answer)
        return first, answer

    def close(self) -> None:
        for channel in self.channels.values():
            channel.close()


class AllToAll:
    """The exchange by collectives: first the counts, then the tokens, then the results."""

    def __init__(self, comm: goccl.Communicator, tokens: int, dim: int) -> None:
        self.rank = comm.rank
        self.heads = torch.empty(comm.size, 2, dtype=torch.int64)
        self.outbox, self.results = goccl.empty(tokens, dim), goccl.empty(tokens, dim)
        self.inbox = goccl.empty(comm.size * tokens, dim)
        self.answers = goccl.empty(comm.size * tokens, dim)

    def step(self, tokens: torch.Tensor, route: Route, out: torch.Tensor) -> None:
        dist.all_to_all_single(self.heads, route.heads)
        counts = self.heads[:, 0].tolist()
        inbox, answers = self.inbox[: sum(counts)], self.answers[: sum(counts)]
        torch.index_select(tokens, 0, route.order, out=self.outbox)
        dist.all_to_all_single(inbox, self.outbox, counts, route.counts)
        apply_expert(self.rank, inbox, answers)
        dist.all_to_all_single(self.results, answers, route.counts, counts)
        torch.index_select(self.results, 0, route.back, out=out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64, help="of each rank (64)")
    parser.add_argument("--dim", type=int, default=512, help="floats of a token (512)")
    parser.add_argument("--kind", choices=("memory", "port"), help="of channels; else the best")
    parser.add_argument("--steps", type=int, default=200, help="in a turn (200)")
    parser.add_argument("--turns", type=int, default=20, help="of each way (20)")
    args = parser.parse_args()

    dist.init_process_group("goccl", timeout=timedelta(seconds=60))
    comm = goccl.Communicator()
    torch.manual_seed(comm.rank)
    tokens, out = torch.randn(2, args.tokens, args.dim)
    routes = [gate(args.tokens, comm.size) for _ in range(16)]
    puts = Puts(comm, args.tokens, args.dim, args.kind)
    collectives = AllToAll(comm, args.tokens, args.dim)
    ways = {"put_signal": puts.step, "all_to_all_single": collectives.step}

    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 + args.turns):
        for name, step in ways.items():
            comm.barrier()
            start = time.perf_counter()
            for i in range(args.steps):
                route = routes[i % len(routes)]
                step(tokens, route, out)
            times[name].append((time.perf_counter() - start) / args.steps)
            wanted = tokens * (route.expert + 2)[:, None]
            assert torch.equal(out, wanted), f"{name}: wrong results"
    puts.close()

    if comm.rank == 0:
        print(f"{comm.size} ranks, {args.tokens} tokens of {args.dim} floats each")
        report(times)
    dist.destroy_process_group()


def report(times: dict[str, list[float]]) -> None:
    """Prints medians over turns, without the first turn. Ratios are those of the same turn."""
    first, *_ = times.values()
    for name, seconds in times.items():
        each = statistics.median(seconds[1:])
        ratio = statistics.median(s / f for s, f in zip(seconds[1:], first[1:], strict=True))
        print(f"{name:24} {1 / each:8.0f} steps/s {each * 1e6:9.1f} us  {ratio:.2f} x the time")


if __name__ == "__main__":
    main()
