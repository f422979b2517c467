"""Measures collectives of device tensors on one device shared by two ranks, each way in turn.

    python tests/device/figures.py --device cuda [--json FILE] [--rate BYTES]

The ways: ``device``, GoCCL with tensors of the device; ``cpu``, GoCCL with the same tensors in
pinned memory of the host; ``copies``, the copies alone, to the host and back, as whole tensors; and
``gloo``, Gloo with tensors of the device, where it has that. The time of a call is that of the
slower rank, from a barrier to the end of the device's work. Printed are medians, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
RANKS = 2
KIB, MIB = 1 << 10, 1 << 20
SIZES = (4, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
OTHERS = ("reduce_scatter", "all_gather", "broadcast", "all_to_all")
GLOO = ("cuda",)  # devices that it has


def call_of(name: str, x: torch.Tensor, y: torch.Tensor, group: Any) -> Callable:
    """A collective whose larger buffer is `x`; `y` is the smaller one."""
    other = torch.empty_like(x) if name == "all_to_all" else x
    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(y, x, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(x, y, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(x, other, group=group),
    }[name]


def rank_main(rank: int, store: str, args: argparse.Namespace) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if args.device == "testdev":
        import device

        device.load()
        device.configure(rate=args.rate)
    torch.set_num_threads(1)
    torch.accelerator.set_device_index(0)
    dist.init_process_group("goccl", store=dist.FileStore(store, RANKS), rank=rank, world_size=2)
    groups: dict[str, Any] = {"goccl": dist.group.WORLD, "gloo": None}
    if args.device in GLOO:
        groups["gloo"] = dist.new_group(backend="gloo")
    rows = []
    for name, size in [("all_reduce", s) for s in SIZES] + [(o, 64 * MIB) for o in OTHERS]:
        row = measure(name, size, groups, args)
        if rank == 0:
            rows.append(row)
            print(
                f"{name:<15}{size:>10} B  "
                + "  ".join(f"{way} {us:,.0f}" for way, us in row["us"].items()),
                flush=True,
            )
    if rank == 0 and args.json:
        Path(args.json).write_text(json.dumps({"device": args.device, "rows": rows}, indent=1))
    dist.destroy_process_group()


def measure(name: str, size: int, groups: dict, args: argparse.Namespace) -> dict:
    """One row: the medians of all ways of one collective and size."""
    n = max(size // 4, RANKS)
    x, y = torch.ones(n, device=args.device), torch.ones(n // RANKS, device=args.device)
    host, part = torch.ones(n).pin_memory(), torch.ones(n // RANKS).pin_memory()
    brings, takes = (
        (part if name == "all_gather" else host),
        (part if name == "reduce_scatter" else host),
    )

    def copies() -> None:
        brings.copy_(y if brings is part else x, non_blocking=True)
        (y if takes is part else x).copy_(takes, non_blocking=True)

    ways = {
        "device": call_of(name, x, y, groups["goccl"]),
        "cpu": call_of(name, host, part, groups["goccl"]),
        "copies": copies,
    }
    if groups["gloo"] is not None:
        ways["gloo"] = call_of(name, x, y, groups["gloo"])
    times: dict[str, list[float]] = {way: [] for way in ways}
    began = time.monotonic()
    for turn in range(args.turns + 2):
        for way, call in ways.items():
            torch.accelerator.synchronize()
            dist.barrier()
            start = time.perf_counter()
            call()
            torch.accelerator.synchronize()
            took = torch.tensor([time.perf_counter() - start])
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn >= 2:
                times[way].append(took.item() * 1e6)
        stop = torch.tensor([float(time.monotonic() - began > args.seconds and turn >= 4)])
        dist.broadcast(stop, 0)
        if stop.item():
            break
    us = {way: statistics.median(each) for way, each in times.items()}
    return {"collective": name, "bytes": size, "us": us}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", required=True, help="cuda, xpu, ... or testdev")
    parser.add_argument("--json", default="", help="where the figures are written to")
    parser.add_argument("--rate", type=int, default=0, help="bytes a second, of testdev's copies")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8, help="about so many for each row")
    args = parser.parse_args()
    if args.device == "testdev":
        import device

        device.build()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (f"{folder}/store", args), RANKS)


if __name__ == "__main__":
    main()
