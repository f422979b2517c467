#!/usr/bin/env python3
"""Measures puts and gets of channels between two guests, beside perftest, in turns.

tests/softroce/guests.py -n 2 -m 768 -t 900 -- .venv/bin/python tests/softroce/puts.py
"""

import os
import statistics
import subprocess
import time
from collections.abc import Callable

import goccl
import torch
import torch.distributed as dist

TURNS = 3
SHORT, LONG = (8, 4096, 65536), (65536, 1 << 20, 4 << 20)
SAMPLES, TOTAL = 200, 32 << 20  # of a latency; bytes of a bandwidth
MIB = 1 << 20
RANK = int(os.environ["RANK"])


class Ours:
    def __init__(self) -> None:
        self.comm = goccl.Communicator()
        self.mem = self.comm.register(goccl.zeros(max(LONG), dtype=torch.uint8))
        its = self.comm.exchange(self.mem)[1 - RANK]
        assert its is not None
        self.its = its
        self.channel = self.comm.channel(1 - RANK)
        self.local = goccl.zeros(max(LONG), dtype=torch.uint8)

    def put_latency(self, size: int) -> float:
        """Half a ping-pong of puts with a signal, in µs."""
        there, source, times = self.its[:size], self.local[:size], []
        for _ in range(SAMPLES):
            start = time.perf_counter()
            if RANK == 0:
                self.channel.put_signal(there, source)
            self.channel.wait()
            if RANK == 1:
                self.channel.put_signal(there, source)
            times.append((time.perf_counter() - start) / 2 * 1e6)
        return statistics.median(times)

    def get_latency(self, size: int) -> float:
        """A get and its flush, in µs. The peer is in no call."""
        times = []
        if RANK == 0:
            for _ in range(SAMPLES):
                start = time.perf_counter()
                self.channel.get(self.local[:size], self.its[:size])
                self.channel.flush()
                times.append((time.perf_counter() - start) * 1e6)
        self.comm.barrier()
        return statistics.median(times or [0.0])

    def put_bandwidth(self, size: int) -> float:
        return self.bandwidth(size, lambda: self.channel.put(self.its[:size], self.local[:size]))

    def get_bandwidth(self, size: int) -> float:
        return self.bandwidth(size, lambda: self.channel.get(self.local[:size], self.its[:size]))

    def bandwidth(self, size: int, move: Callable[[], None]) -> float:
        """MiB a second of many moves and a flush. The peer is in no call."""
        start = time.perf_counter()
        if RANK == 0:
            for _ in range(TOTAL // size):
                move()
            self.channel.flush()
        seconds = time.perf_counter() - start
        self.comm.barrier()
        return TOTAL / MIB / seconds


def perftest(program: str, size: int, column: int) -> float:
    """Runs a program of perftest between the guests, and returns a column of rank 0's table."""
    count = SAMPLES if program.endswith("lat") else TOTAL // size
    words = [program, "-d", "rxe0", "-x", "1", "-F", "-s", str(size), "-n", str(max(count, 5))]
    dist.barrier()
    words += [] if RANK else ["host1"]
    for _ in range(200):
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode == 0:
            break
        time.sleep(0.1)  # the other one does not listen yet
    done.check_returncode()
    if RANK:
        return 0.0
    row = next(line for line in done.stdout.splitlines() if line.split()[:1] == [str(size)])
    return float(row.split()[column])


def main() -> None:
    dist.init_process_group("goccl")
    ours = Ours()
    rows = [("put", "ib_write_lat", 4, ours.put_latency, SHORT)]
    rows += [("get", "ib_read_lat", 4, ours.get_latency, SHORT)]
    rows += [("put", "ib_write_bw", 3, ours.put_bandwidth, LONG)]
    rows += [("get", "ib_read_bw", 3, ours.get_bandwidth, LONG)]
    for what, program, column, measure, sizes in rows:
        unit = "µs" if program.endswith("lat") else "MiB/s"
        for size in sizes:
            both = [(measure(size), perftest(program, size, column)) for _ in range(TURNS)]
            mine, its = (statistics.median(times) for times in zip(*both, strict=True))
            if RANK == 0:
                ours_and_its = f"{mine:9.1f} {unit:5}  {program:12} {its:9.1f}"
                print(f"{what} {size:>8} B  {ours_and_its}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
