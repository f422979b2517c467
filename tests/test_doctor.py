"""`goccl doctor`: who is measured when, what is odd, and visits of real ranks."""

import dataclasses
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import ClassVar

import goccl
import harness
import pytest
from goccl import _cli as cli
from goccl import _launch
from goccl._doctor import pairs, report, visit
from goccl._doctor.judge import LARGE, MEET, SMALL, Facts, Finding, Job, Joint, clocks, judge, names
from goccl._doctor.measure import Half
from goccl._launch import Place

# -- who is measured when


@pytest.mark.parametrize("size", range(1, 12))
def test_every_pair_meets_once_and_no_rank_twice_in_a_round(size):
    ranks = [3 * rank for rank in range(size)]
    made = pairs.rounds(ranks)
    assert sorted(pair for batch in made for pair in batch) == list(
        itertools.combinations(ranks, 2)
    )
    for batch in made:
        assert len({rank for pair in batch for rank in pair}) == 2 * len(batch)
    assert len(made) <= size


@pytest.mark.parametrize(("cpus", "most"), [(1, 2), (2, 2), (3, 3), (4, 4), (64, 6)])
def test_no_host_has_more_ranks_at_work_than_cpus(cpus, most):
    ranks = range(12)
    hosts = {rank: "a" if rank < 6 else "b" for rank in ranks}
    made = pairs.batches(list(ranks), hosts, dict.fromkeys(ranks, cpus))
    assert sorted(pair for batch in made for pair in batch) == list(
        itertools.combinations(ranks, 2)
    )
    working = [sum(hosts[r] == host for p in batch for r in p) for batch in made for host in "ab"]
    assert max(working) == most


# -- what is odd


def job(size=4, hosts=1, transport="shm", latency=1.0, bandwidth=10.0):
    """Ranks of which nothing is odd."""
    where = [f"host{rank * hosts // size}" for rank in range(size)]
    facts = {
        rank: Facts(where[rank], where[rank], 100 + rank, 2, {"goccl": "1"}, {})
        for rank in range(size)
    }
    made = Job(size, facts)
    for a, b in itertools.combinations(range(size), 2):
        kind = transport if where[a] == where[b] else "tcp"
        slower = 1 if where[a] == where[b] else 20
        made.pairs[a, b] = Joint(
            kind, "why", latency * slower, bandwidth / slower, bandwidth / slower
        )
    return made


def change(job, pair, **fields):
    job.pairs[pair] = Joint(**{**vars(job.pairs[pair]), **fields})
    return job


def found(job):
    return [(finding.ranks, finding.text) for finding in judge(job)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("hosts", [1, 2])
def test_nothing_is_odd(size, hosts):
    assert judge(job(size, hosts)) == []


def test_ranks_that_did_not_come():
    odd = job(5)
    for rank in (1, 3, 4):
        del odd.facts[rank]
    odd.pairs = {pair: joint for pair, joint in odd.pairs.items() if not {1, 3, 4} & set(pair)}
    assert found(odd) == [([1, 3, 4], "ranks 1, 3 and 4 did not come")]


def test_a_rank_that_fell_silent_is_named_and_its_pairs_are_not():
    odd = job(4)
    odd.lost = [2]
    for pair in odd.pairs:
        if 2 in pair:
            change(odd, pair, failed=MEET, error="a rank fell silent")
    assert found(odd) == [([2], "rank 2 (host0, pid 102) came, and then answered no more")]


@pytest.mark.parametrize(
    ("size", "hosts", "failed", "text"),
    [
        (4, 1, [(1, 3)], {"ranks 1 and 3 cannot be joined": [1, 3]}),
        (4, 1, [(0, 2), (1, 2), (2, 3)], {"rank 2 can be joined with no other": [2]}),
        (2, 1, [(0, 1)], {"ranks 0 and 1 cannot be joined": [0, 1]}),
        (3, 1, "all", {"no two ranks can be joined": [0, 1, 2]}),
        (2, 2, [(0, 1)], {"hosts host0 (rank 0) and host1 (rank 1) cannot be joined": [0, 1]}),
        (3, 3, [(1, 2)], {"hosts host1 (rank 1) and host2 (rank 2) cannot be joined": [1, 2]}),
        (3, 3, "all", {"no two hosts can be joined": [0, 1, 2]}),
        (4, 4, [(0, 2), (1, 2), (2, 3)], {"host host2 (rank 2) can be joined with no other": [2]}),
        (
            4, 2, [(0, 2), (0, 3), (1, 2), (1, 3)],
            {
                "hosts host0 (ranks 0 and 1) and host1 (ranks 2 and 3) cannot be joined":
                [0, 1, 2, 3],
            },
        ),
        (
            4, 2, [(0, 2), (0, 3), (1, 2)],
            {f"ranks {two} cannot be joined": [] for two in ("0 and 2", "0 and 3", "1 and 2")},
        ),
        (
            6, 3, [(a, b) for a in (0, 1, 4, 5) for b in (2, 3)] + [(2, 3)],
            {
                "host host1 (ranks 2 and 3) can be joined with no other": [2, 3],
                "ranks 2 and 3 cannot be joined": [2, 3],
            },
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_named_by_as_little_as_explains_it(size, hosts, failed, text):
    odd = job(size, hosts)
    for a, b in odd.pairs if failed == "all" else failed:
        change(odd, (min(a, b), max(a, b)), failed=MEET, error="no route")
    findings = judge(odd)
    assert sorted(finding.text for finding in findings) == sorted(
        f"{line}: no route" for line in text
    )
    for finding in findings:
        assert finding.ranks == (text[finding.text.removesuffix(": no route")] or finding.ranks)
        assert ("firewalls" in finding.check) == (" host" in f" {finding.text}")


@pytest.mark.parametrize(
    ("failed", "text"),
    [
        ([(1, 2)], "ranks 1 and 2 exchange small messages, but no large ones: stuck"),
        ([(0, 2), (1, 2)], "rank 2 exchanges small messages, but no large ones: stuck"),
        ([(0, 1), (0, 2), (1, 2)], "all ranks exchange small messages, but no large ones: stuck"),
    ],
)
def test_large_messages_that_do_not_come(failed, text):
    odd = job(3, hosts=3)
    for pair in failed:
        change(odd, pair, failed=LARGE, error="stuck", clock_s=5.0)
    blocked, *late = judge(odd)
    assert blocked.text == text
    assert blocked.check.startswith("the MTU of all that is on the way")
    assert [finding.ranks for finding in late] == [[b] for a, b in failed if a == 0], (
        "small messages came"
    )


def test_nothing_that_a_rank_tells_is_obeyed_by_the_terminal():
    odd = change(job(2), (0, 1), failed=SMALL, error="\x1b[2Jgone")
    odd.facts[1] = dataclasses.replace(odd.facts[1], host="a\x07", settings={"GOCCL_NET": "\x9bm"})
    text = report.text(odd, judge(odd))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert r"a\x07" in text
    assert r"\x1b[2Jgone" in text
    assert r"\x9bm" in text


def test_a_pair_that_fails_once_it_has_met():
    odd = change(job(4), (0, 3), failed=SMALL, error="gone", clock_s=5.0)
    assert found(odd) == [([0, 3], "ranks 0 and 3 were joined by shm, and then failed: gone")]


def test_what_failed_is_told_and_the_rest_is_shown():
    odd = job(3, hosts=3)
    change(odd, (0, 1), failed=MEET)
    change(odd, (0, 2), failed=SMALL)
    change(odd, (1, 2), failed=LARGE)
    lines = report.text(odd, []).splitlines()
    shown = {
        title: lines[lines.index(title) + 2 :][:3]
        for title in lines
        if title.startswith(("tr", "la", "ba"))
    }
    assert [[row.split()[1:] for row in rows] for rows in shown.values()] == [
        [["-", "FAILS", "tcp"], ["FAILS", "-", "tcp"], ["tcp", "tcp", "-"]],
        [["-", "FAILS", "FAILS"], ["FAILS", "-", "20.0"], ["FAILS", "20.0", "-"]],
        [["-", "FAILS", "FAILS"], ["FAILS", "-", "FAILS"], ["FAILS", "FAILS", "-"]],
    ]


def test_a_transport_unlike_that_of_like_pairs():
    odd = change(job(4, hosts=2), (0, 1), transport="tcp", reason="no memfd")
    assert found(odd) == [
        ([0, 1], "ranks 0 and 1 are joined by tcp, other pairs within a host by shm: no memfd")
    ]
    assert judge(job(4, hosts=2)) == [], "pairs between hosts are of another kind"
    odd = change(job(6, hosts=2, transport="tcp"), (3, 5), transport="shm")
    assert found(odd) == [
        ([3, 5], "ranks 3 and 5 are joined by shm, other pairs within a host by tcp: why")
    ]


def test_a_slow_pair():
    odd = change(job(4, latency=10.0), (0, 3), latency_us=31.0)
    assert found(odd) == [
        ([0, 3], "latency of 31 us between ranks 0 and 3; the median of shm on one host is 10 us")
    ]
    assert judge(change(job(4, latency=10.0), (0, 3), latency_us=30.0)) == []
    assert judge(change(job(4, latency=0.2), (0, 3), latency_us=2.0)) == [], "caches"


def test_a_narrow_direction():
    odd = change(job(4), (0, 3), down_GBps=4.9)
    assert found(odd) == [
        (
            [0, 3],
            "bandwidth of 4.9 GB/s from rank 3 to rank 0; the median of shm on one host is 10 GB/s",
        )
    ]
    assert judge(change(job(4), (0, 3), down_GBps=5.0)) == []


def test_a_slow_rank_is_named_once():
    odd = job(5, hosts=5)
    for pair in odd.pairs:
        if 2 in pair:
            change(odd, pair, latency_us=100.0, up_GBps=0.1, down_GBps=0.1)
    assert found(odd) == [
        (
            [2],
            (
                "rank 2 (host2): latency of 100 us with 4 others; "
                "the median of tcp between hosts is 20 us"
            ),
        ),
        (
            [2],
            (
                "rank 2 (host2): bandwidth of 0.1 GB/s with 4 others;"
                " the median of tcp between hosts is 0.5 GB/s"
            ),
        ),
    ]


@pytest.mark.parametrize(
    ("hosts", "transport", "fields", "text"),
    [
        (1, "shm", {"latency_us": 50.0}, None),
        (
            1,
            "shm",
            {"latency_us": 211.0},
            "latency of 211 us between ranks 0 and 1 by shm on one host; at most 50 us are usual",
        ),
        (1, "tcp", {"latency_us": 150.0}, None),
        (1, "tcp", {"latency_us": 151.0}, "latency of 151 us between ranks 0 and 1 by tcp on one"),
        (2, "tcp", {"latency_us": 900.0}, None),
        (
            2,
            "tcp",
            {"latency_us": 1100.0},
            "latency of 1.1e+03 us between ranks 0 and 1 by tcp bet",
        ),
        (
            2,
            "verbs",
            {"latency_us": 151.0},
            "latency of 151 us between ranks 0 and 1 by verbs betw",
        ),
        (1, "shm", {"up_GBps": 5.0, "down_GBps": 10.0}, None),
        (
            1,
            "shm",
            {"up_GBps": 11.0, "down_GBps": 33.0},
            "bandwidth of 11 GB/s from rank 0 to rank 1, and of 33 GB/s the other way, by shm on",
        ),
        (
            1,
            "shm",
            {"up_GBps": 1.0, "down_GBps": 1.5},
            "bandwidth of 1 GB/s from rank 0 to rank 1 by shm on one host; their own copies in",
        ),
        (1, "shm", {"up_GBps": 1.25, "down_GBps": 1.5}, None),
        (
            2,
            "tcp",
            {"up_GBps": 0.5, "down_GBps": 0.05},
            "bandwidth of 0.05 GB/s from rank 1 to rank 0 by tcp between hosts; 0.1 GB/s at least",
        ),
        (2, "tcp", {"up_GBps": 0.11, "down_GBps": 0.12}, None),
    ],
)
def test_a_pair_beyond_what_idle_hosts_keep(hosts, transport, fields, text):
    odd = change(job(2, hosts), (0, 1), transport=transport, **fields)
    odd.facts = {
        rank: Facts(**{**vars(facts), "copy_GBps": 12.0}) for rank, facts in odd.facts.items()
    }
    findings = found(odd)
    if text is None:
        assert findings == []
    else:
        ((ranks, told),) = findings
        assert ranks == [0, 1]
        assert told.startswith(text)


def test_ranks_of_one_cpu_take_turns():
    odd = change(job(2), (0, 1), latency_us=5000.0)
    odd.facts[1] = Facts(**{**vars(odd.facts[1]), "cpus": 1})
    assert judge(odd) == []


def test_many_pairs_beyond_a_limit_are_one_finding():
    odd = job(4)
    for pair in odd.pairs:
        change(odd, pair, latency_us=200.0 + pair[1])
    ((ranks, text),) = found(odd)
    assert ranks == [0, 1, 2, 3]
    assert text.startswith("latency of 203 us between ranks 0 and 3 by shm on one host; at most 50")
    assert text.endswith("; so it is with 6 pairs, and this is the worst")


def test_a_busy_host_is_named_and_not_its_ranks():
    odd = change(job(2), (0, 1), latency_us=211.0, up_GBps=1.0)
    for rank in odd.facts:
        odd.facts[rank] = Facts(**{**vars(odd.facts[rank]), "load": 3.1, "host_cpus": 4})
    ((ranks, text),) = found(odd)
    assert ranks == [0, 1]
    assert text.startswith(
        "host host0 (ranks 0 and 1) was busy before the ranks came: a load of 3.1 with 4 CPUs. "
        "That may explain this: bandwidth of 1 GB/s from rank 0 to rank 1, and of 10 GB/s the"
    )
    assert "other programs kept" in report.text(odd, judge(odd)).lower()


def test_a_busy_host_on_which_all_is_well():
    well = job(2)
    well.facts[0] = Facts(**{**vars(well.facts[0]), "load": 2.0})
    assert judge(well) == []
    assert "Other programs kept CPUs busy on host0" in report.text(well, [])
    assert "Other programs" not in report.text(job(2), [])


def test_pairs_of_another_kind_are_not_compared():
    odd = job(4, hosts=2)
    assert {joint.latency_us for joint in odd.pairs.values()} == {1.0, 20.0}
    assert judge(odd) == []


def test_settings_and_versions_that_differ():
    odd = job(4)
    odd.facts[3].settings["GOCCL_NET"] = "tcp"
    odd.facts[3].settings["GOCCL_SOCKET_IFNAME"] = "eth1"
    odd.facts[0].versions["goccl"] = "2"
    assert found(odd) == [
        ([0], "versions of goccl differ: 2 on rank 0; 1 on ranks 1 to 3"),
        ([3], "GOCCL_NET differ: not set on ranks 0 to 2; tcp on rank 3"),
    ]


def test_a_clock_that_is_off():
    odd = change(job(3), (0, 2), clock_s=-1.5)
    assert clocks(odd) == {0: 0.0, 1: 0.0, 2: -1.5}
    ((ranks, text),) = found(odd)
    assert ranks == [2]
    assert "the clock of rank 2 (host0) is 1.5 s behind rank 0's" in text


def test_every_finding_says_what_to_check():
    odd = job(3)
    odd.facts[1].settings["GOCCL_NET"] = "tcp"
    for finding in [*judge(odd), *judge(change(job(3), (0, 1), latency_us=99.0))]:
        assert isinstance(finding, Finding)
        assert finding.check


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 1, 2], "ranks 0 to 2"),
        ([0, 2, 5], "ranks 0, 2 and 5"),
    ],
)
def test_names(ranks, text):
    assert names(ranks) == text


# -- launchers


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, None),
        ({"WORLD_SIZE": "2"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # a batch script, not a step
        (
            {
                "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1",
                "PMI_RANK": "0", "PMI_SIZE": "9",
            },
            Place(1, 2, "h", 1),
        ),
        (
            {
                "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1",
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            },
            Place(0, 2, "h", 1, served=True),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
            },
            Place(2, 3, "127.0.0.1", 29500),
        ),
        (
            {"PMI_RANK": "0", "PMI_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "7"},
            Place(0, 4, "h", 7),
        ),
        (
            {
                "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NODELIST": "n[03-04]",
                "SLURM_JOB_ID": "1234567",
            },
            Place(5, 8, "n03", 24567),
        ),
        (  # srun --mpi=pmi2
            {
                "PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_NODELIST": "n[0-1]", "SLURM_JOB_ID": "7",
            },
            Place(1, 2, "n0", 20007),
        ),
    ],
)  # fmt: skip
def test_launchers(environ, place):
    assert _launch.find(environ) == place


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is '2', allowed are 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "x"}, "WORLD_SIZE is 'x', allowed are 1 to 65536"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, "MASTER_ADDR is not set"),
        (  # mpirun in a batch script of Slurm, whose daemon is a step of the second host
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
                "SLURM_PROCID": "0",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_STEP_NODELIST": "n1",
            },
            "MASTER_ADDR is not set",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "0"},
            "MASTER_PORT is '0', allowed are 1 to 65535",
        ),
    ],
)
def test_launchers_that_say_nonsense(environ, told, monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["doctor"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("n[003-005,9],m", "n003"),
        ("a,b", "a"),
        ("r[1-2]-ib", "r1-ib"),
        ("r[5]x,q", "r5x"),
        ("r[1-2]n[3,5],q", "r1n3"),
        (",a", ""),
        ("[", ""),
    ],
)
def test_first_host_of_slurm(nodes, first):
    assert _launch.first_host(nodes) == first


# -- visits of real ranks


def run_visit(rank, size, come, pair, kind=visit.Board):
    board = kind(rank.make_store("doctor"), 3)
    patience = visit.Patience(come=come, pair=pair, told=3)
    if rank.rank != 0:
        return visit.follow(board, rank.rank, patience)
    done = visit.lead(board, size, patience)
    visit.wait_for_others(board, done, patience)
    return done


def grave(done):
    """What is odd but for times, which depend on what else the machine does."""
    return [
        f.text for f in judge(done) if not any(w in f.text for w in ("latency of", "bandwidth of"))
    ]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("transport", harness.TRANSPORTS)
def test_visit(make_world, size, transport):
    world = make_world(size, store="tcp", env={"GOCCL_TRANSPORT": transport})
    done = world.run(run_visit, size, 60, 20)[0]
    assert sorted(done.pairs) == list(itertools.combinations(range(size), 2))
    for joint in done.pairs.values():
        assert joint.failed == joint.error == ""
        assert joint.transport == transport
        assert min(joint.latency_us, joint.up_GBps, joint.down_GBps) > 0
        assert abs(joint.clock_s) < 60
    assert [done.facts[rank].pid for rank in range(size)] == world.pids
    assert set(done.interfaces) == set(range(size))
    assert grave(done) == []


def test_visit_with_a_rank_of_other_settings(make_world):
    no_text = "mlx5_0\udcff"
    odd = {1: {"GOCCL_NET": "tcp", "GOCCL_ALLTOALL_SCHEDULE": "parallel", "GOCCL_IB_HCA": no_text}}
    done = make_world(3, store="tcp", rank_env=odd).run(run_visit, 3, 60, 20)[0]
    assert done.pairs[0, 2].error == ""
    unreachable, *differ = grave(done)
    assert unreachable.startswith("rank 1 can be joined with no other: rank ")
    assert [text.partition(" differ")[0] for text in differ] == [
        "GOCCL_ALLTOALL_SCHEDULE",
        "GOCCL_NET",
    ]
    assert done.facts[1].settings["GOCCL_IB_HCA"] == no_text


def run_facts(rank):
    visit.facts()  # loads the library, which takes time on a busy machine


def test_visit_without_a_rank(make_world):
    world = make_world(2, store="tcp")
    world.run(run_facts)
    done = world.run(run_visit, 4, 3, 20)[0]
    assert grave(done) == ["ranks 2 and 3 did not come"]
    assert done.pairs[0, 1].error == ""


class OddBoard(visit.Board):
    """Where records have other fields than those that are known here."""

    odd: ClassVar[dict[str, object]] = {}

    def put(self, name, value):
        super().put(name, {**value, **self.odd} if isinstance(value, dict) else value)


def run_odd_visit(rank):
    """Rank 1 tells more than is known here, as a later version may, and rank 2 nothing of use."""
    OddBoard.odd = [{}, {"later": [1]}, {"pid": "1"}][rank.rank]
    return run_visit(rank, rank.size, 60, 20, OddBoard)


def test_visit_with_ranks_of_other_versions(make_world):
    world = make_world(3, store="tcp")
    done = world.run(run_odd_visit)[0]
    assert grave(done) == ["rank 2 did not come"]
    assert done.pairs[0, 1].error == ""


HALF = {"rank": 1, "peer": 0, "transport": "shm", "latency_us": 1, "failed": ""}


@pytest.mark.parametrize(
    ("told", "is_one"),
    [
        (HALF, True),
        (HALF | {"later": None}, True),
        (HALF | {"latency_us": 10**400}, False),
        (HALF | {"latency_us": math.nan}, False),
        (HALF | {"latency_us": True}, False),
        (HALF | {"rank": 1.0}, False),
        (HALF | {"error": None}, False),
        ({"rank": 1}, False),
        (None, False),
        ([], False),
        ("rank, peer", False),
    ],
)
def test_records_of_other_ranks(told, is_one):
    assert (visit.made(Half, told) is not None) == is_one


def run_dying_visit(rank, number):
    """Rank 1 ends, or is stopped, when it has come."""
    if rank.rank == 1:
        board = visit.Board(rank.make_store("doctor"), 3)
        board.put("facts 1", vars(visit.facts()))
        os.kill(os.getpid(), number)
    return run_visit(rank, rank.size, 60, 5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_visit_with_a_rank_that_falls_silent(make_world, number):
    world = make_world(3, store="tcp")
    world.healthy = False
    world.start(run_dying_visit, number)
    (outcome,) = world.finish(ranks=[0])
    assert outcome.ok, outcome
    assert outcome.value.lost == [1]
    assert outcome.value.pairs[0, 2].error == ""
    assert grave(outcome.value) == [
        (
            f"rank 1 ({outcome.value.facts[1].host}, pid {world.pids[1]}) came, "
            "and then answered no more"
        )
    ]


def run_leaderless(rank):
    board = visit.Board(rank.make_store("doctor"), 3)
    with pytest.raises(visit.Lost, match="rank 0 said nothing for"):
        visit.follow(board, 1, visit.Patience(come=-2, pair=1, told=3))


def test_visit_without_rank_0(make_world):
    make_world(1, store="tcp").run(run_leaderless)


def test_a_store_that_does_not_answer():
    """Its host has vanished without a word: the connection stands, and torch's store waits for
    ever."""
    import torch.distributed as dist

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = os.fork()
        if server == 0:
            store = dist.TCPStore(
                "127.0.0.1", port, is_master=True, master_listen_fd=os.dup(listener.fileno())
            )
            signal.pause()
            os._exit(len(str(store)))
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        patient, board = visit.Board(store, 60), visit.Board(store, 0.3)
        patient.put("here", 1)
        assert patient.has("here")
        assert patient.get("never", time.monotonic() + 0.01) is None
        os.kill(server, signal.SIGSTOP)
        with pytest.raises(visit.Lost, match="the store has not answered for"):
            board.get("never", time.monotonic() + 0.01)
        with pytest.raises(visit.Lost, match="the store has not answered for"):
            board.has("here")
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    with pytest.raises(visit.Lost, match="the store is gone"):
        visit.Board(store, 3).get("never", time.monotonic() + 3)


@pytest.mark.parametrize(
    ("low", "high", "failed", "error"),
    [
        ({}, {}, "", ""),
        ({"failed": MEET, "error": "x"}, {}, MEET, "x"),
        ({"failed": MEET, "error": "x"}, {"failed": MEET, "error": "x"}, MEET, "x"),
        (
            {"failed": MEET, "error": "x"},
            {"failed": MEET, "error": "y"},
            MEET,
            "rank 3: x; rank 5: y",
        ),
        ({"failed": SMALL, "error": ""}, {"failed": LARGE, "error": "y"}, SMALL, "y"),
        (
            {"failed": LARGE, "error": ""},
            {"failed": LARGE, "error": ""},
            LARGE,
            "each rank says that",
        ),
        (None, {"failed": MEET, "error": "y"}, MEET, "a rank fell silent"),
    ],
)
def test_what_two_ranks_tell_becomes_one(low, high, failed, error):
    halves = [given if given is None else Half(0, 1, **given) for given in (low, high)]
    joint = visit._joint((3, 5), *halves)
    assert joint.failed == failed
    assert joint.error.startswith(error)
    assert bool(joint.error) == bool(error)


def test_within():
    assert visit.within(60, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        visit.within(60, lambda: 1 / 0)
    stop = threading.Event()
    with pytest.raises(visit.Late):
        visit.within(0.01, stop.wait)
    stop.set()


def doctor(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "goccl", "doctor", *arguments],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_command_starts_its_own_ranks(tmp_path):
    done = doctor(
        "--ranks", "3", "--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.startswith(f"3 ranks, 1 host: goccl {goccl.__version__}, ")
    assert max(map(len, done.stdout.splitlines())) <= 100
    result = json.loads((tmp_path / "a.json").read_text())
    assert [pair["ranks"] for pair in result["pairs"]] == [[0, 1], [0, 2], [1, 2]]
    assert (
        (done.returncode == 0) == (result["findings"] == []) == ("Nothing is odd." in done.stdout)
    )
    assert done.stdout.count("ODD ") == len(result["findings"])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_could_not_be_drawn_is_refused_before_anything_is_measured(monkeypatch, capsys):
    for name, text in (
        ("a.txt", "'a.txt' does not end in .png or .svg"),
        ("a", "'a' does not end in"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["doctor", "--plot", name])
        assert f"goccl doctor: error: argument --plot: {text}" in capsys.readouterr().err
    monkeypatch.setattr("goccl._command.missing", lambda _module, name: f"{name} is not installed")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["doctor", "--plot", "a.svg"])
    assert "argument --plot: matplotlib is not installed" in capsys.readouterr().err


def test_command_ends_though_a_rank_of_its_own_is_stopped():
    words = [sys.executable, "-m", "goccl", "doctor", "--ranks", "3", "--wait", "10"]
    command = harness.start(*words)
    started = harness.until(
        lambda: len(found := harness.descendants(command.pid)) == 3 and found, 60
    )
    os.kill(max(started), signal.SIGSTOP)
    (done,) = harness.finished(command)
    assert done.returncode == 1, done.stderr
    assert "rank 2" in done.stdout.partition("ODD")[2], done.stdout
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_command_under_a_launcher(tmp_path):
    env = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_port())}
    words = [sys.executable, "-m", "goccl", "doctor", "--wait", "30"]
    ranks = [harness.start(*words, **env, RANK=str(rank)) for rank in range(3)]
    first, *others = harness.finished(*ranks)
    assert [(rank.returncode, rank.stdout) for rank in others] == [(0, "")] * 2, others
    assert first.stdout.startswith("3 ranks, 1 host: "), first


@pytest.mark.parametrize(
    ("host", "why"),
    [("127.0.0.1", "The client socket"), ("no host", "the name 'no host' is not known here")],
)
def test_command_whose_store_cannot_be_reached(host, why):
    done = doctor("--wait", "1", RANK="1", WORLD_SIZE="2", MASTER_ADDR=host, MASTER_PORT="9")
    assert done.returncode == 0, "launchers would kill rank 0 before its report"
    (line,) = done.stderr.splitlines()  # and nothing of torch's
    assert f"rank 1 gives up: the store at {host}, port 9, cannot be reached: {why}" in line
