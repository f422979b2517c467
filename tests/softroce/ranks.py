#!/usr/bin/env python3
"""Runs test functions on ranks that live on several hosts.

Started on each host with RANK (the host's number), WORLD_SIZE (of hosts), MASTER_ADDR and
MASTER_PORT set::

    ranks.py [--local 2] [--timeout 60] module.function[:argument,...] ...

Each host forks its ranks, which is cheap, for torch is imported once. They meet at the first host,
and call the functions one after another as ``function(rank, *arguments)``, like those of the other
tests: see harness.Rank. An argument such as ``torch.float32`` is looked up; others are Python's
literals. The exit code is 0 where all have returned. A rank that fails prints its error, as ``rank
N failed in S s: kind: text``, and ends. A file /share/signal that holds ``KILL 1`` sends that
signal to the second rank of a host.
"""

import argparse
import ast
import importlib
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import harness  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Rank(harness.Rank):
    """A rank that meets the others at the first host."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    def make_store(self, name: str = "store") -> Any:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=60))
        return dist.PrefixStore(name, store)


def argument(text: str) -> Any:
    return (
        getattr(torch, text.removeprefix("torch."))
        if text.startswith("torch.")
        else ast.literal_eval(text)
    )


def parse(case: str) -> tuple[Any, list[Any]]:
    name, _, arguments = case.partition(":")
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function), [
        argument(a) for a in arguments.split(",") if a
    ]


def run(rank: Rank, cases: list[str], timeout: float) -> int:
    rank.init(timeout=timeout)
    for case in cases:
        function, arguments = parse(case)
        start = time.monotonic()
        try:
            value = function(rank, *arguments)
        except Exception as error:
            text = " ".join(str(error).split())
            print(
                f"rank {rank.rank} failed in {time.monotonic() - start:.1f} s: "
                f"{type(error).__name__}: {text}"
            )
            traceback.print_exc()
            return 1
        print(
            f"rank {rank.rank}: {case} took {time.monotonic() - start:.1f} s: {value}", flush=True
        )
    dist.destroy_process_group()
    return 0


def wait(children: list[int]) -> list[int]:
    """Waits for the ends of all children, and passes signals on; their exit codes."""
    codes: dict[int, int] = {}
    request = Path("/share/signal")
    while len(codes) < len(children):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[pid] = os.waitstatus_to_exitcode(status)
            continue
        if request.exists() and (words := request.read_text().split()):
            request.unlink()
            os.kill(children[int(words[1])], getattr(signal, f"SIG{words[0]}"))
            print(f"sent {words[0]} to local rank {words[1]}", flush=True)
        time.sleep(0.02)
    return [codes[pid] for pid in children]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--local", type=int, default=1, help="ranks on each host")
    parser.add_argument(
        "--timeout", type=float, default=60, help="of the process group, in seconds"
    )
    parser.add_argument("cases", nargs="+")
    arguments = parser.parse_args()
    for case in arguments.cases:
        parse(case)
    host, hosts = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    children = []
    for local in range(arguments.local):
        pid = os.fork()
        if pid == 0:
            rank = Rank(host * arguments.local + local, hosts * arguments.local)
            try:
                code = run(rank, arguments.cases, arguments.timeout)
            except SystemExit:
                raise  # of a child of the rank, that ends as any program does
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        children.append(pid)
        print(f"rank {host * arguments.local + local} is process {pid}", flush=True)
    # Threads would not survive a fork, so the store comes after the ranks, which wait for it.
    store = None
    if host == 0:
        store = dist.TCPStore(
            "0.0.0.0", int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False
        )
    codes = wait(children)
    del store
    sys.stdout.flush()
    os._exit(0 if not any(codes) else 1)  # an ordinary exit takes seconds on such a host


if __name__ == "__main__":
    sys.exit(main())
