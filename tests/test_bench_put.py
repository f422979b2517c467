"""goccl bench put: options, tables, what its C part refuses, and runs with real ranks."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from goccl._bench import put
from goccl._bench.put_rank import _BenchEnd
from goccl._ranks.libraries import BENCH_LIBRARY, CORE, Library, Unavailable, core_library
from goccl._ranks.processes import GroupFailure


def _parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    put.add_arguments(parser)
    return parser.parse_args(arguments)


def test_options() -> None:
    args = _parse()
    assert args.sizes == [8, 4096, 65536, 1 << 20, 16 << 20, 64 << 20]
    assert (args.transport, args.peers) == (["shm", "tcp"], ["openmpi", "mpich", "impi", "mpi-abi"])
    assert (args.iters, args.blocks, args.timeout) == (0, 10, 120)
    args = _parse("--sizes", "64K,8,8", "--peers", "mpich", "--transport", "tcp", "--iters", "3")
    assert (args.sizes, args.peers, args.transport) == ([8, 65536], ["mpich"], ["tcp"])
    assert args.iters == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--sizes", "4,64K"], "4 is not a multiple of 8 bytes"),
        (["--sizes", "12"], "12 is not a multiple of 8 bytes"),
        (["--sizes", "x"], "'x' is not a size"),
        (["--peers", "gloo"], "'gloo' is not one of openmpi, mpich, impi, mpi-abi"),
        (["--transport", "mapped"], "'mapped' is not one of shm, tcp"),
        (["--blocks", "0"], "--blocks: '0' is not a whole number from 1"),
        (["--iters", "0"], "--iters: '0' is not a whole number from 1"),
    ],
)
def test_bad_options(arguments: list[str], told: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=told):
        _parse(*arguments)


def test_rows_are_compared_where_cpus_were_placed_alike() -> None:
    part = put.Part("put, shared memory", (put.Run(CORE, "puts", "idle"), put.Run("memcpy", "x")))
    ours, copy = part.runs
    times = {
        ours: {"near": [2.0, 4.0, 3.0], "mixed": [5.0]},
        copy: {"near": [6.0], "far": [7.0], "mixed": [5.0]},
    }
    rows = put.rows_of(part, "shm", 3000, times)
    assert [(row.library, row.placement, row.median_us, row.ratio) for row in rows] == [
        (CORE, "near", 3.0, 1.0),
        (CORE, "mixed", 5.0, None),
        ("memcpy", "near", 6.0, 2.0),
        ("memcpy", "far", 7.0, None),
        ("memcpy", "mixed", 5.0, None),
    ]
    assert (rows[0].samples, rows[0].max_us, rows[0].GBps) == (3, 4.0, 1.0)
    assert put.line(rows[0]).split() == [
        *("3000", CORE, "idle", "near", "3", "3.000", "4.000", "1.000", "1.00")
    ]
    assert put.line(rows[3]).split()[-1] == "-"
    assert len({len(text) for text in [put.head("t").splitlines()[-1], *map(put.line, rows)]}) == 1
    text = put.document(rows, {"CPUs": "2"}, {"goccl-c/shm": "v1"}, ["mpich: died\nwhy"])
    for expected in (
        "| CPUs | 2 |",
        "| goccl-c/shm | v1 |",
        "**Failed:** mpich: died\n",
        "### put, shared memory\n",
        "| 3000 | memcpy | - | near | 1 | 6.000 | 6.000 | 0.500 | 2.00 |",
    ):
        assert expected in text
    assert "why" not in text


class _Bench:
    """goccl_bench_put() as rank 0, whose peer this test is."""

    def __init__(self, connection: socket.socket, timeout_ms: int) -> None:
        self._function = ctypes.CDLL(str(BENCH_LIBRARY)).goccl_bench_put
        self._function.restype = ctypes.c_char_p
        self._memory = [ctypes.create_string_buffer(4096) for _ in range(3)]
        own, near, shared = map(ctypes.addressof, self._memory)
        self._end = _BenchEnd(
            own=own,
            near=near,
            shared=shared,
            shared_bytes=64,
            socket=connection.fileno(),
            timeout_ms=timeout_ms,
        )

    def __call__(self, what: str, nbytes: int, iterations: int = 1) -> tuple[str, list[float]]:
        """Why it has failed, and the times."""
        us, samples = (ctypes.c_double * 10)(), ctypes.c_uint64()
        problem = self._function(
            ctypes.byref(self._end),
            what.encode(),
            ctypes.c_uint64(nbytes),
            ctypes.c_uint64(iterations),
            0,
            us,
            ctypes.byref(samples),
        )
        return (problem or b"").decode(), list(us[: samples.value])


_ALLOWED = "multiples of 8 and numbers from 1 on are allowed"


@pytest.mark.parametrize(
    ("what", "nbytes", "iterations", "told"),
    [
        ("nonsense", 8, 1, 'what is "nonsense", which is none'),
        ("half_trip", 12, 1, f"bytes is 12 and iterations 1, {_ALLOWED}"),
        ("half_trip", 0, 1, f"bytes is 0 and iterations 1, {_ALLOWED}"),
        ("half_trip", 8, 0, f"bytes is 8 and iterations 0, {_ALLOWED}"),
        ("lines", 72, 1, "bytes is 72, shared memory has 64"),
        ("half_trip", 8, 1, "the peer sent nothing for 50 ms"),
        ("line", 8, 1, "the peer sent nothing for 50 ms"),
    ],
)
def test_what_a_block_refuses(what: str, nbytes: int, iterations: int, told: str) -> None:
    here, there = socket.socketpair()
    with here, there:
        assert _Bench(here, 50)(what, nbytes, iterations) == (told, [])


@pytest.mark.parametrize(("altered", "told"), [(-1, ""), (12, "message 12 of 16 bytes begins")])
def test_data_of_a_block_is_checked(altered: int, told: str) -> None:
    here, there = socket.socketpair()
    messages = 10 + 5  # with those that warm up

    def echo() -> None:
        for number in range(messages):
            data = bytearray(there.recv(16, socket.MSG_WAITALL))
            if len(data) < 16:
                return
            if number == altered:
                data[0] ^= 1
            there.sendall(data)

    with here, there:
        thread = threading.Thread(target=echo)
        thread.start()
        problem, times = _Bench(here, 20000)("half_trip", 16, 5)
        here.shutdown(socket.SHUT_RDWR)
        thread.join(20)
    assert problem.startswith(told)
    assert bool(problem) == bool(told), problem
    assert len(times) == (2 if told else 5)


def _operations(rows: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    keys = ("operation", "bytes", "library", "peer")
    return list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))


def test_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "out.json", tmp_path / "out.md"]
    arguments = ["--sizes", "8,64K", "--iters", "2", "--blocks", "2", "--peers="]
    assert put.main(_parse(*arguments, "--json", str(files[0]), "--markdown", str(files[1]))) == 0
    rows = json.loads(files[0].read_text())
    assert list(rows[0]) == [
        *("operation", "transport", "bytes", "library", "peer", "placement"),
        *("samples", "median_us", "max_us", "GBps", "ratio"),
    ]
    way, get, flush, idle, proxy = (
        "put and signal until taken and read",
        "get and flush, TCP",
        "put and flush, TCP",
        "put and flush while the peer is in no call, TCP",
        "what a put takes of its thread, by a proxy and by a call, TCP",
    )
    small, large = 8, 64 << 10
    shm, tcp = f"{way}, shared memory", f"{way}, TCP"
    assert _operations(rows) == [
        (shm, small, CORE, ""),
        (shm, small, "line", ""),
        (shm, small, "copy and flag", ""),
        (shm, large, CORE, ""),
        (shm, large, "copy and flag", ""),
        ("put, shared memory", large, CORE, "idle"),
        ("put, shared memory", large, "memcpy", ""),
        ("get, shared memory", large, CORE, "idle"),
        ("get, shared memory", large, "memcpy", ""),
        *(
            (title, size, *by)
            for title, peer in ((tcp, ""), (get, "waits"), (flush, "waits"))
            for size in (small, large)
            for by in ((CORE, peer), ("socket", ""))
        ),
        (idle, small, CORE, "rested"),
        (idle, small, CORE, "after"),
        (idle, small, "socket", ""),
        *(("put, TCP", large, *by) for by in ((CORE, "waits"), (CORE, "idle"))),
        *(("put, TCP", large, by, "") for by in ("send", "socket")),
        ("get, TCP", large, CORE, "waits"),
        *(("get, TCP", large, by, "") for by in ("send", "socket")),
        *((proxy, size, by, "idle") for size in (small, large) for by in (CORE, "call")),
    ]
    assert all(0 < row["median_us"] <= row["max_us"] and row["GBps"] > 0 for row in rows)
    together = ("put, shared memory", "get, shared memory", "put, TCP", "get, TCP")
    for key in _operations(rows):
        its = [row for row in rows if _operations([row]) == [key]]
        # Two blocks of two messages, which are timed together where one flush is for both.
        wanted = 2 if key[0] in together or key[:2] == (proxy, small) else 4
        assert sum(row["samples"] for row in its) == wanted, key
    output = capsys.readouterr()
    assert output.out.count("x goccl-c\n") == len({row["operation"] for row in rows})
    for told in ("goccl-c/shm: libgoccl", ", memory channel", ", port channel"):
        assert told in output.err
    assert f"### {shm}\n" in files[1].read_text()


def test_a_dead_rank_is_named() -> None:
    with put.Pair(core_library("shm"), 64, 20.0) as pair:
        assert len(pair.block(put.Run(CORE, "put_signal"), 8, 2)) == 2
        os.kill(pair._members[1].pid, signal.SIGKILL)
        with pytest.raises(GroupFailure, match=r"goccl-c/shm: .*rank 1"):
            pair.block(put.Run(CORE, "put_signal"), 8, 2)


def test_more_than_the_memory_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"no memory for .* bytes: the buffers of both ranks"):
        put.Pair(Library(CORE, "shm"), 1 << 40, 20.0)
