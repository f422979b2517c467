"""Heat on a sheet whose rows are split over ranks: each puts its border rows to its neighbours.

torchrun --standalone --nproc-per-node 2 examples/channels/halo.py

In each step a point becomes the mean of the four around it. So a rank needs the nearest row of the
rank above it, and of the one below. Three ways to exchange them take turns: put_signal(), isend()
and irecv(), and send() and recv() of goccl.Communicator. Each turn ends with a check: one process
has computed the whole sheet.
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


class Sheet:
    """Two grids, of the state and of the next one, by turns. Their edges stay as they are."""

    def __init__(self, start: torch.Tensor) -> None:
        self.start = start
        self.grids = goccl.empty(2, *start.shape)  # what peers reach is shareable memory
        self.inner = [grid[1:-1, 1:-1] for grid in self.grids]
        self.around = [
            (grid[:-2, 1:-1], grid[2:, 1:-1], grid[1:-1, :-2], grid[1:-1, 2:])
            for grid in self.grids
        ]
        self.reset()

    def reset(self) -> None:
        self.grids[:] = self.start

    def step(self, old: int, new: int) -> None:
        """Computes one grid from the other one."""
        above, below, left, right = self.around[old]
        torch.add(above, below, out=self.inner[new])
        self.inner[new].add_(left).add_(right).mul_(0.25)


@dataclass
class Neighbour:
    """The rank above or below. Each list has an entry for each of the two grids.

    border: the row that it needs. halo: where its own row comes to. there: its halo.
    """

    rank: int
    channel: goccl.Channel
    border: list[torch.Tensor]
    halo: list[torch.Tensor]
    there: list[goccl.RemoteMemory]


def neighbours(comm: goccl.Communicator, mine: goccl.Memory, kind: str | None) -> list[Neighbour]:
    grids = mine.tensor
    _, rows, width = grids.shape
    memories = comm.exchange(mine)

    def neighbour(rank: int, border: int, halo: int, there: int) -> Neighbour:
        """border, halo: numbers of rows here. there: that of the neighbour's halo."""
        memory = memories[rank]
        assert memory is not None  # that rank has registered its grids, too
        first = [(grid * rows + there) * width for grid in range(2)]
        return Neighbour(
            rank,
            comm.channel(rank, kind=kind),
            [grid[border] for grid in grids],
            [grid[halo] for grid in grids],
            [memory[i : i + width] for i in first],
        )

    top, bottom = 0, rows - 1
    above = [(comm.rank - 1, top + 1, top, bottom)] if comm.rank > 0 else []
    below = [(comm.rank + 1, bottom - 1, bottom, top)] if comm.rank < comm.size - 1 else []
    return [neighbour(*each) for each in above + below]


def by_puts(near: list[Neighbour], grid: int) -> None:
    """Puts each border straight into the neighbour's halo.

    No halo is overwritten too early: a rank puts to the same grid two steps later. The neighbour's
    row of the step between has come before, so the neighbour has used this one. For the same reason
    no flush is needed before a border changes.
    """
    for n in near:
        n.channel.put_signal(n.there[grid], n.border[grid])
    for n in near:
        n.channel.wait()


def by_works(near: list[Neighbour], grid: int) -> None:
    works = [dist.irecv(n.halo[grid], n.rank) for n in near]
    works += [dist.isend(n.border[grid], n.rank) for n in near]
    for work in works:
        work.wait()


def by_calls(comm: goccl.Communicator, near: list[Neighbour], grid: int) -> None:
    """Of each two neighbours one sends first. Pairs of ranks exchange at the same time."""
    for n in near if comm.rank % 2 else reversed(near):
        if comm.rank % 2:
            comm.send(n.border[grid], n.rank)
        comm.recv(n.halo[grid], n.rank)
        if comm.rank % 2 == 0:
            comm.send(n.border[grid], n.rank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=16, help="of each rank (16)")
    parser.add_argument("--width", type=int, default=256, help="floats of a row (256)")
    parser.add_argument("--kind", choices=("memory", "port"), help="of channels; None: the best")
    parser.add_argument("--steps", type=int, default=500, help="in a turn (500)")
    parser.add_argument("--turns", type=int, default=20, help="of each way (20)")
    args = parser.parse_args()

    dist.init_process_group("goccl", timeout=timedelta(seconds=60))
    comm = goccl.Communicator()
    torch.manual_seed(0)  # all ranks know the whole sheet
    whole = torch.rand(comm.size * args.rows + 2, args.width)
    part = slice(comm.rank * args.rows, (comm.rank + 1) * args.rows + 2)  # with both halos
    oracle, sheet = Sheet(whole), Sheet(whole[part])
    for step in range(args.steps):
        oracle.step(step % 2, 1 - step % 2)
    wanted = oracle.grids[args.steps % 2][part][1:-1, 1:-1]

    with comm.register(sheet.grids) as mine:
        near = neighbours(comm, mine, args.kind)
        ways = {
            "put_signal": by_puts,
            "isend, irecv": by_works,
            "Communicator.send, recv": lambda near, grid: by_calls(comm, near, grid),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(1 + args.turns):
            for name, exchange in ways.items():
                sheet.reset()
                comm.barrier()  # no row comes before that
                start = time.perf_counter()
                for step in range(args.steps):
                    old, new = step % 2, 1 - step % 2
                    sheet.step(old, new)
                    exchange(near, new)
                times[name].append((time.perf_counter() - start) / args.steps)
                assert torch.equal(sheet.inner[args.steps % 2], wanted), f"{name}: another result"
        comm.barrier()
        for n in near:
            n.channel.close()

    if comm.rank == 0:
        print(f"{comm.size} ranks, {args.rows} rows of {args.width * 4} bytes each")
        report(times)
    dist.destroy_process_group()


def report(times: dict[str, list[float]]) -> None:
    """Prints medians over turns, without the first turn. Ratios are those of the same turn."""
    first, *_ = times.values()
    for name, seconds in times.items():
        each = statistics.median(seconds[1:])
        ratio = statistics.median(s / f for s, f in zip(seconds[1:], first[1:], strict=True))
        print(f"{name:24} {1 / each:8.0f} steps/s {each * 1e6:8.1f} us  {ratio:.2f} x the time")


if __name__ == "__main__":
    main()
