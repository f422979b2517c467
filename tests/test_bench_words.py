"""What `goccl bench` says in words: names, colours, sizes, the conclusion, the load."""

import os

import pytest
from goccl._bench import words
from goccl._bench.report import Row, size_text
from goccl._command import parse_size


def row(label, nbytes, us, placement="near", collective="allreduce"):
    library, _, transport = label.partition("/")
    return Row(
        library, collective, transport, 2, "float32", nbytes, 9, placement, us, us, us, 0, 0, 0
    )


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("goccl/shm", "GoCCL from PyTorch, shared memory"),
        ("goccl-c/shm", "GoCCL from C, shared memory"),
        ("goccl-c/tcp", "GoCCL from C, TCP"),
        ("goccl/verbs", "GoCCL from PyTorch, RDMA"),
        ("goccl-c/shm/window=2", "GoCCL from C, shared memory, window=2"),
        ("gloo/tcp", "Gloo, TCP"),
        ("openmpi/auto", "Open MPI"),
        ("impi/auto", "Intel MPI"),
        ("new/thing", "new, thing"),
    ],
)
def test_names_without_jargon(label, text):
    assert words.library(label) == text


def test_a_library_has_one_colour_whatever_else_is_drawn():
    labels = [f"{name}/{how}" for name in ("goccl", "goccl-c") for how in ("shm", "tcp", "verbs")]
    labels += ["gloo/tcp", "openmpi/auto", "mpich/auto", "impi/auto"]
    together = words.colours(labels)
    assert len(set(together.values())) == len(labels)
    for label in labels:
        assert words.colours([label]) == {label: together[label]}
        assert words.colours(labels[::-1])[label] == together[label]
    schedules = words.colours([f"goccl/shm/window={n}" for n in (1, 2)])
    assert len(set(schedules.values()) - set(together.values())) == 2


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0"), (4, "4"), (1023, "1023"), (1024, "1K"), (1536, "1536"), (65536, "64K"),
     (16 << 20, "16M"), (3 << 30, "3G")],
)  # fmt: skip
def test_sizes_are_written_as_they_are_taken(nbytes, text):
    assert size_text(nbytes) == text
    assert not nbytes or parse_size(text) == nbytes


OURS = [row("goccl/shm", 4, 10.0), row("goccl/shm", 65536, 20.0), row("goccl/shm", 1 << 20, 100.0)]


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ((100.0, 46.0, 300.0), "2.3 to 10 times as fast as Gloo, TCP at 4 bytes, 64 KiB and 1 MiB"),
        (
            (20.0, 20.5, 200.0),
            "2 times as fast as Gloo, TCP at 4 bytes and 1 MiB; as fast as Gloo, TCP at 64 KiB",
        ),
        (
            (5.0, 40.0, 50.0),
            (
                "2 times as fast as Gloo, TCP at 64 KiB; slower than Gloo, TCP at 4 bytes and 1 "
                "MiB, at 0.5 of its speed"
            ),
        ),
        ((9.9, 20.9, 100.0), "as fast as Gloo, TCP at 4 bytes, 64 KiB and 1 MiB"),
    ],
)  # fmt: skip
def test_the_conclusion_is_in_words(times, text):
    peers = [row("gloo/tcp", ours.bytes, us) for ours, us in zip(OURS, times, strict=True)]
    (line,) = words.conclusion([*OURS, *peers])
    assert line == f"allreduce, 2 ranks, GoCCL from PyTorch, shared memory: {text}."


def test_an_mpi_is_compared_with_calls_from_c_only():
    mpi = row("mpich/auto", 4, 1.0)
    assert words.conclusion([*OURS, mpi]) == []
    (line,) = words.conclusion([*OURS, row("goccl-c/shm", 4, 0.25), mpi])
    assert line.endswith("GoCCL from C, shared memory: 4 times as fast as MPICH at 4 bytes.")


def test_nothing_is_concluded_from_nothing():
    assert words.conclusion([]) == []
    assert words.conclusion(OURS) == []
    assert words.conclusion([*OURS, row("gloo/tcp", 4, 99.0, "far")]) == [], "unlike placement"


def test_a_barrier_has_no_size():
    rows = [
        row(label, 0, us, collective="barrier")
        for label, us in (("goccl/shm", 5.0), ("gloo/tcp", 50.0))
    ]
    (line,) = words.conclusion(rows)
    assert line.endswith("10 times as fast as Gloo, TCP.")


@pytest.mark.parametrize(("load", "warns"), [(0.0, False), (4.0, False), (4.1, True)])
def test_a_busy_host_is_warned_of(monkeypatch, load, warns):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    warning = words.load_warning()
    assert ("the load of this host is 4.1 with 8 CPUs" in warning) == warns
    assert bool(warning) == warns
