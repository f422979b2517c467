"""Measures what copies take that two ranks make of tensors of one device: to pinned memory of the
host, and back.

    python tests/device/copies.py --device cuda [--json FILE] [--rate BYTES]

No allreduce of tensors of the device is faster than these. The time is that of the slower rank,
from a barrier to the end of the device's work. Printed are medians, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import device

RANKS = 2
KIB, MIB = 1 << 10, 1 << 20
SIZES = (4, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
TURNS = 20
TIMEOUT = 60.0


def rank_main(rank: int, args: argparse.Namespace, meeting: Any, times: Any) -> None:
    if args.device == "testdev":
        device.load()
        device.configure(rate=args.rate)
    torch.accelerator.set_device_index(0)
    for size in SIZES:
        x, host = torch.ones(size // 4, device=args.device), torch.ones(size // 4).pin_memory()
        for turn in range(-2, TURNS):
            torch.accelerator.synchronize()
            meeting.wait(TIMEOUT)
            start = time.perf_counter()
            host.copy_(x, non_blocking=True)
            x.copy_(host, non_blocking=True)
            torch.accelerator.synchronize()
            took = time.perf_counter() - start
            if turn >= 0:
                times[rank].append(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", required=True, help="cuda, xpu, ... or testdev")
    parser.add_argument("--json", default="", help="where the figures are written to")
    parser.add_argument("--rate", type=int, default=0, help="bytes a second, of testdev's copies")
    args = parser.parse_args()
    if args.device == "testdev":
        device.build()
    with torch.multiprocessing.Manager() as manager:
        times = [manager.list() for _ in range(RANKS)]
        meeting = torch.multiprocessing.get_context("spawn").Barrier(RANKS)
        torch.multiprocessing.spawn(rank_main, (args, meeting, times), RANKS)
        slower = [max(pair) for pair in zip(*times, strict=True)]
    medians = {}
    for i, size in enumerate(SIZES):
        medians[size] = 1e6 * statistics.median(slower[i * TURNS : (i + 1) * TURNS])
        print(f"{size:>10} B  {medians[size]:,.0f}")
    if args.json:
        Path(args.json).write_text(json.dumps({"device": args.device, "us": medians}, indent=1))


if __name__ == "__main__":
    main()
