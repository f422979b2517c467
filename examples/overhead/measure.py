"""What GoCCL costs over torch itself in an allreduce of 4 bytes.

    torchrun --standalone --nproc-per-node 1 examples/overhead/measure.py

Beside GoCCL a backend is measured that does nothing (nothing.cpp, compiled at the first run). All
ways take turns within the run, in blocks of calls, so that whatever else the machine does meets
them all; what is printed are medians over blocks, and for each way the median of its differences to
the block of the backend that does nothing just before it. With 2 ranks the exchange itself is in
GoCCL's figures.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import goccl
import torch
import torch.distributed as dist
from torch.utils.cpp_extension import load


def ways(nothing: dist.ProcessGroup, group: dist.ProcessGroup) -> dict[str, Callable[[], object]]:
    """The calls that are compared; the first of each pair is that of the backend that does
    nothing."""
    tensor = torch.zeros(1)
    communicator = goccl.Communicator(group)

    def with_future(group: dist.ProcessGroup) -> object:
        """As DDP does for a bucket."""
        return (
            dist.all_reduce(tensor, group=group, async_op=True)
            .get_future()
            .then(lambda f: f.value())
            .wait()
        )

    return {
        "nothing: dist.all_reduce": lambda: dist.all_reduce(tensor, group=nothing),
        "goccl: dist.all_reduce": lambda: dist.all_reduce(tensor, group=group),
        "nothing: async_op=True, wait": lambda: dist.all_reduce(
            tensor, group=nothing, async_op=True
        ).wait(),
        "goccl: async_op=True, wait": lambda: dist.all_reduce(
            tensor, group=group, async_op=True
        ).wait(),
        "nothing: async_op=True, future": lambda: with_future(nothing),
        "goccl: async_op=True, future": lambda: with_future(group),
        "goccl.Communicator.all_reduce_": lambda: communicator.all_reduce_(tensor),
    }


def block(call: Callable[[], object], calls: int) -> float:
    """The time of one call, in microseconds."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=200, help="of each way (200)")
    parser.add_argument("--calls", type=int, default=200, help="in a block (200)")
    args = parser.parse_args()

    torch.set_num_threads(1)
    native = load("nothing", [str(Path(__file__).with_name("nothing.cpp"))], extra_cflags=["-O2"])
    dist.Backend.register_backend(
        "nothing", lambda store, rank, size, timeout: native.Nothing(rank, size), devices=["cpu"]
    )
    dist.init_process_group("goccl")
    calls = ways(dist.new_group(backend="nothing"), dist.group.WORLD)
    for call in calls.values():
        block(call, args.calls)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.blocks):
        for name, call in calls.items():
            times[name].append(block(call, args.calls))
    if dist.get_rank() == 0:
        report(times)
    dist.destroy_process_group()


def report(times: dict[str, list[float]]) -> None:
    before: list[float] = []
    for name, us in times.items():
        line = f"{name:32} {statistics.median(us):7.2f} us"
        if name.startswith("nothing"):
            before = us
        elif "Communicator" not in name:
            line += f" {statistics.median(a - b for a, b in zip(us, before, strict=True)):+7.2f} us"
        print(line)


if __name__ == "__main__":
    main()
