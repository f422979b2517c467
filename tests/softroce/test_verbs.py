"""GoCCL over verbs, on hosts with SoftRoCE: right, the same bits, and alive when hosts, links and
processes are not."""

import ast
import csv
import re
import shlex
import sys
import time
from pathlib import Path

import oracle
import pytest
import test_same_bits as ways
import torch
from guests import Guests

pytestmark = [pytest.mark.softroce, pytest.mark.timeout(420)]

TESTS = Path(__file__).resolve().parents[1]
MEMORY = 2048  # MiB; torch takes 600

COLLECTIVES = [
    f"test_collectives.{case}"
    for case in (
        "run_all_reduce:torch.float32",
        "run_reduce:torch.bfloat16",
        "run_broadcast:torch.float32",
        "run_gather_scatter:torch.float32",
        "run_all_to_all:torch.float32",
        "run_ring:torch.int64",
        "run_all_reduce_coalesced",
        "run_coalescing_p2p",
        "run_tags",
        "run_any_source",
        "run_monitored_barrier",
    )
]


def start(hosts, *cases, local=1, timeout=60, env=None, **kw):
    """Starts ranks on so many guests."""
    words = [
        sys.executable,
        "softroce/ranks.py",
        "--local",
        str(local),
        "--timeout",
        str(timeout),
        *cases,
    ]
    line = f"cd {shlex.quote(str(TESTS))} && exec {shlex.join(words)}"
    settings = {"GOCCL_NET": "verbs", "OMP_NUM_THREADS": "1", **(env or {})}
    return Guests([line] * hosts, memory=MEMORY, env=settings, deadline=400, **kw)


def results(guests, case):
    """What each rank's call of a case returned. Ranks of one host write to one console, where the
    end of a line may come after the next one."""
    found = {}
    for guest in guests:
        for rank, value in re.findall(
            rf"rank (\d+): {re.escape(case)} took [\d.]+ s: (.*?)(?=rank \d+: |$)",
            guest.stdout,
            re.M,
        ):
            found[int(rank)] = ast.literal_eval(value)
    return [found[rank] for rank in sorted(found)]


def test_info():
    with Guests([[sys.executable, "-m", "goccl", "info"]], memory=MEMORY) as guests:
        guests.check()
        verbs = next(
            line for line in guests[0].stdout.splitlines() if line.strip().startswith("verbs")
        )
    assert "NOT" not in verbs
    for fact in ("usable", "device rxe0", "port 1", "interface vec0", "gid index 1", "why"):
        assert fact in verbs, verbs


@pytest.mark.parametrize(("hosts", "local"), [(1, 3), (2, 1), (2, 2), (4, 1)])
def test_collectives(hosts, local):
    """Against the oracle; joined by verbs wherever no memory is shared."""
    forced = {"GOCCL_TRANSPORT": "verbs", "GOCCL_SOCKET_IFNAME": "vec0"} if hosts == 1 else {}
    where = "rank_functions.transports"
    with start(hosts, where, *COLLECTIVES, local=local, env=forced) as guests:
        guests.check()
        joined = results(guests, where)
    for rank, names in enumerate(joined):
        for peer, name in enumerate(names):
            same_host = hosts > 1 and rank // local == peer // local
            assert name == ("self" if rank == peer else "shm" if same_host else "verbs")


@pytest.mark.parametrize(("hosts", "local"), [(2, 1), (3, 1)])
def test_same_bits(hosts, local):
    case = "test_same_bits.shapes_of"
    dtypes = [torch.float32, torch.bfloat16]
    with start(hosts, *[f"{case}:{dtype}" for dtype in dtypes], local=local) as guests:
        guests.check()
        for dtype in dtypes:
            inputs = [oracle.values(dtype, ways.COUNT, r, "general") for r in range(hosts * local)]
            want = ways.digest(oracle.reduce(inputs, "SUM"))
            found = results(guests, f"{case}:{dtype}")
            assert len(found) == hosts * local
            for rank, digests in enumerate(found):
                assert not [how for how, bits in digests.items() if bits != want], (
                    f"{dtype} on rank {rank}"
                )


def test_levels():
    """Eight ranks, verbs join those of one host, too: the bits of the direct exchange."""
    case = "rank_functions.levels:'2 2 2','4 2'"
    with start(4, case, local=2, env={"GOCCL_TRANSPORT": "verbs"}) as guests:
        guests.check()


@pytest.mark.parametrize(("hosts", "local"), [(2, 1), (2, 2), (4, 2)])
def test_schedules(hosts, local):
    """All-to-all among 2, 4 and 8 ranks; verbs join those of one host, too."""
    with start(
        hosts, "rank_functions.schedules", local=local, env={"GOCCL_TRANSPORT": "verbs"}
    ) as guests:
        guests.check()


def test_bench():
    """A bench a rank, as a launcher starts them. By C functions: loading torch takes its time
    here."""
    line = (
        f"exec {sys.executable} -m goccl bench alltoall --schedule sequential,parallel --net "
        f"verbs,tcp"
        " --through c --sizes 4,64K --peers '' --iters 8 --blocks 2 --format csv"
    )
    with Guests(
        [line] * 2, memory=MEMORY, env={"GOCCL_SOCKET_IFNAME": "vec0"}, deadline=300
    ) as guests:
        guests.check()
        rows = list(csv.DictReader(guests[0].stdout.splitlines()))
        assert not guests[1].stdout
    assert {(row["bytes"], row["transport"], row["schedule"]) for row in rows} == {
        (size, net, schedule)
        for size in ("8", "65536")
        for net in ("verbs", "tcp")
        for schedule in ("sequential", "parallel")
    }
    assert {row["wrong"] for row in rows} == {"0"}, "some elements were wrong"


@pytest.mark.parametrize(
    ("hosts", "local", "netem"), [(2, 1, ""), (3, 1, ""), (2, 2, ""), (2, 1, "loss 0.5%")]
)
def test_shareable(hosts, local, netem):
    """What is shareable is read by who needs it: without a copy, and the same."""
    case = "rank_functions.shareable:300001"
    with start(hosts, case, local=local, netem=netem, timeout=200) as guests:
        guests.check()
        found = results(guests, case)
    assert all(given > 0 and taken > 0 for given, taken in found), found
    assert sum(given for given, _ in found) == sum(taken for _, taken in found)


@pytest.mark.parametrize("netem", ["", "loss 0.5%"])
def test_channels(netem):
    """Puts, gets, signals and flushes, and what they are ordered by."""
    cases = "run_moves:torch.float32", "run_counts", "run_order"
    with start(3, *(f"test_channels.{case}" for case in cases), netem=netem, timeout=200) as guests:
        guests.check()


def test_training():
    case = "rank_functions.digits"
    with start(2, case) as guests:
        guests.check()
        assert min(results(guests, case)) > 0.95


@pytest.mark.parametrize("netem", ["loss 1%", "delay 2ms", "duplicate 1%", "corrupt 0.5%"])
def test_bad_network(netem):
    with start(2, *COLLECTIVES[:1], COLLECTIVES[4], netem=netem, timeout=200) as guests:
        guests.check()


def working(hosts, timeout=60, seconds=300, env=None, ordinary=True):
    """Starts ranks that reduce without end, and waits until they do."""
    work = f"rank_functions.work:{seconds},{20000 if ordinary else 200000},{ordinary}"
    guests = start(hosts, work, timeout=timeout, env=env)
    try:
        for guest in guests:
            guest.wait_for(r"has done \d+ steps")
    except BaseException:
        guests.close()
        raise
    return guests


def failure(guest, timeout):
    return guest.wait_for(r"^rank \d+ failed in ([\d.]+) s: (.*)$", timeout=timeout)[2]


def signal(guest, name):
    (guest.share / "signal.new").write_text(f"{name} 0")
    (guest.share / "signal.new").rename(guest.share / "signal")
    guest.wait_for(f"sent {name}")


@pytest.mark.parametrize(("hosts", "ordinary"), [(2, True), (3, True), (2, False)])
def test_killed_rank(hosts, ordinary):
    """All are told at once; the promise is a second, the rest is for a slow guest."""
    with working(hosts, ordinary=ordinary) as guests:
        signal(guests[hosts - 1], "KILL")
        at = time.monotonic()
        for guest in guests[: hosts - 1]:
            text = failure(guest, 10)
            assert re.search(f"rank {hosts - 1} .*verbs", text), text
        assert time.monotonic() - at < 4


def test_stopped_rank():
    """It is waited for until the timeout, and then named."""
    with working(2, timeout=12) as guests:
        signal(guests[1], "STOP")
        at = time.monotonic()
        text = failure(guests[0], 60)
        assert time.monotonic() - at > 10
        assert re.search(r"timeout after 12s .*rank 1 \(pid \d+\) did not arrive", text), text


def test_stopped_rank_that_goes_on():
    with working(2) as guests:
        signal(guests[1], "STOP")
        before = steps(guests[0])
        time.sleep(3)
        assert steps(guests[0]) <= before + 1
        signal(guests[1], "CONT")
        goes_on(guests[0], before + 1)


def steps(guest):
    return int(re.findall(r"has done (\d+) steps", guest.stdout)[-1])


def goes_on(guest, before, timeout=60):
    end = time.monotonic() + timeout
    while steps(guest) <= before:
        assert guest.code is None, f"it has ended\n{guest}"
        assert time.monotonic() < end, f"it does not get on\n{guest}"
        time.sleep(0.1)


def test_powered_off():
    """A host that is gone is given up after the liveness grace, 10 s."""
    with working(2) as guests:
        guests[1].power_off()
        at = time.monotonic()
        text = failure(guests[0], 40)
        assert 5 < time.monotonic() - at < 30
        assert "rank 1" in text, text


@pytest.mark.parametrize("ordinary", [True, False])
def test_link_cut_and_mended(ordinary):
    """A link that is down for some seconds costs nothing but time."""
    with working(2, ordinary=ordinary) as guests:
        for seconds in (0.3, 5):
            guests[0].cut()
            time.sleep(seconds)
            before = steps(guests[0])
            guests[0].mend()
            goes_on(guests[0], before + 1)


def test_link_cut_for_good():
    with working(2) as guests:
        guests[0].cut()
        for guest in guests:
            text = failure(guest, 60)
            assert "acknowledged nothing" in text or "peer" in text.lower(), text


def test_verbs_demanded_without_a_device():
    """On every rank, an error that says why."""
    with start(2, "rank_functions.transports", env={"GOCCL_IB_HCA": "none"}) as guests:
        assert all(guests.wait())
        for guest in guests:
            text = guest.stdout + guest.stderr
            assert re.search('"verbs" cannot work.*GOCCL_IB_HCA=none leaves no RDMA port', text), (
                text
            )


def test_without_a_device_tcp_serves():
    case = "rank_functions.transports"
    with start(2, case, env={"GOCCL_IB_HCA": "none", "GOCCL_NET": ""}) as guests:
        guests.check()
        assert results(guests, case) == [["self", "tcp"], ["tcp", "self"]]


def test_forks():
    """Children of ranks that use verbs. None maps memory: user-mode Linux shows a child old pages
    where its parent has memory that is not to be inherited (MADV_DONTFORK), so DataLoader workers
    crash there."""
    with start(2, "test_faults.child_that_calls", "test_faults.child_that_leaves") as guests:
        guests.check()
