"""Metrics: what goccl.stats(), GOCCL_METRICS_FILE and GOCCL_METRICS_PORT tell of real processes."""

import os
import socket
import urllib.error
import urllib.request

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
from goccl import _ps
from prometheus_client.parser import text_string_to_metric_families


def parsed(text):
    """The values by name and labels, as Prometheus's own parser reads them."""
    assert text.endswith("# EOF\n")
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    samples = [s for family in families for s in family.samples]
    values = {(s.name, frozenset(s.labels.items())): s.value for s in samples}
    assert len(values) == len(samples)
    return values


def total(values, name, **labels):
    """The sum of a metric's samples that have these labels."""
    return sum(
        value
        for (n, has), value in values.items()
        if n == name and labels.items() <= dict(has).items()
    )


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=100) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parsed(answer.read().decode())


def serves(port):
    try:
        scraped(port)
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


def free(port):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", port))
            other.listen()
        except OSError:
            return False
        return True


def of(operations, collective):
    """The number and the bytes of a collective's operations."""
    mine = [o for o in operations if o["collective"] == collective]
    return sum(o["operations"] for o in mine), sum(o["bytes"] for o in mine)


def work(rank, size):
    """Five allreduces of 32 bytes, a broadcast and a send."""
    for _ in range(5):
        dist.all_reduce(torch.ones(8))
    dist.broadcast(torch.ones(3), 0)
    if rank == 0:
        dist.send(torch.ones(size), 1)
    elif rank == 1:
        dist.recv(torch.ones(size), 0)


def show(rank):
    rank.init()
    before = goccl.stats()
    work(rank.rank, 1000)
    rank.tell((os.getpid(), before, goccl.stats()))
    rank.hear()
    dist.destroy_process_group()
    rank.tell(goccl.stats())
    rank.hear()


@pytest.mark.parametrize("transport", harness.TRANSPORTS)
def test_what_is_told_is_what_was_done(make_world, tmp_path, transport):
    ports = [harness.free_port() for _ in range(2)]
    env = {"GOCCL_METRICS_FILE": f"{tmp_path}/goccl-%p.prom", "GOCCL_TRANSPORT": transport}
    world = make_world(
        2,
        env=env,
        rank_env={r: {"GOCCL_METRICS_PORT": str(port)} for r, port in enumerate(ports)},
    )
    world.start(show)
    for rank, port in enumerate(ports):
        pid, before, after = world.told(rank)
        values = scraped(port)
        done, size = of(after["operations"], "allreduce")
        was_done, was = of(before["operations"], "allreduce")
        assert (done - was_done, size - was) == (5, 160)
        assert of(after["operations"], "broadcast")[1] == 12
        assert of(after["operations"], ("send", "recv")[rank]) == (1, 4000)
        assert (after["rank"], after["groups"], after["links"]) == (rank, 1, {transport: 1})
        assert after["transport_bytes"][transport] >= (4000 if rank == 0 else 1)
        for collective in ("allreduce", "broadcast", "send", "recv"):
            names = ("goccl_operations_total", "goccl_operation_bytes_total")
            told = tuple(total(values, name, collective=collective) for name in names)
            assert told == of(after["operations"], collective)
            seconds = "goccl_operation_seconds"
            assert total(values, f"{seconds}_count", collective=collective) == told[0]
            assert total(values, f"{seconds}_bucket", collective=collective, le="+Inf") == told[0]
        assert total(values, "goccl_info", version=goccl.__version__, rank=str(rank)) == 1
        assert total(values, "goccl_links", transport=transport) == 1
        path = tmp_path / f"goccl-{pid}.prom"
        harness.until(path.exists, what="a file")
        assert total(parsed(path.read_text()), "goccl_groups", pid=str(pid)) == 1
    world.say(None)
    for rank, port in enumerate(ports):
        left = world.told(rank)
        assert of(left["operations"], "allreduce")[0] >= 5, "what is gone is not forgotten"
        assert (left["groups"], left["rank"], left["links"]) == (0, -1, {})
        assert not serves(port)
    assert list(tmp_path.iterdir()) == []
    world.say(None)
    world.finish()


def come_late(rank):
    rank.init(timeout=300)
    dist.all_reduce(torch.ones(8))
    rank.tell(os.getpid())
    if rank.rank == 2:
        rank.hear()
    dist.all_reduce(torch.ones(8))
    told = goccl.stats()
    half = dist.new_group([0, 2], backend="goccl")
    if rank.rank == 1:
        with pytest.raises(ValueError, match=r"goccl\.stragglers"):
            goccl.stragglers(half)
    else:
        assert [s.global_rank for s in goccl.stragglers(half)] in ([0, 2], [2, 0])
    with pytest.raises(TypeError, match=r"goccl\.stragglers"):
        goccl.stragglers("default")
    return told["waits"], goccl.stragglers(), goccl.stragglers(goccl.Communicator())


def test_stragglers(make_world):
    port = harness.free_port()
    world = make_world(3, rank_env={0: {"GOCCL_METRICS_PORT": str(port)}})
    world.start(come_late)
    pids = [world.told(rank) for rank in range(3)]

    def waits():
        for group in _ps.ask()["groups"]:
            for member in group["members"]:
                if member["pid"] == pids[0]:
                    call = member["call"]
                    return call["state"] == "begun" and call["for_us"] > 300_000
        return False

    harness.until(waits, what="rank 0 waits")
    values = scraped(port)  # a wait is told while it lasts
    assert total(values, "goccl_wait_for_rank_seconds_total", rank="2") > 0.2
    assert total(values, "goccl_wait_seconds_total") > 0.2
    world.say(None, ranks=[2])
    told = world.values(world.finish())
    (_, first, again), *others = told
    assert all(stragglers == first for _, stragglers, _ in others), "all get the same"
    assert sorted(s.rank for s in first) == [0, 1, 2]
    late = first[0]
    assert (late.rank, late.global_rank, late.pid) == (2, 2, pids[2])
    assert late.seconds >= late.longest >= 0.2
    assert again[0].seconds >= late.seconds
    waits_of_0 = {w["rank"]: w["seconds"] for w in told[0][0]}
    assert sum(waits_of_0.values()) > 0.2
    assert 0 not in waits_of_0


def begin(rank):
    rank.init()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("GOCCL_METRICS_FILE", "/tmp/%r.prom", "after % are allowed h"),
        ("GOCCL_METRICS_PORT", "http", "allowed are ports from 1 to 65535"),
        ("GOCCL_METRICS_PORT", "65536", "allowed are ports from 1 to 65535"),
    ],
)
def test_values_that_are_none(make_world, name, value, words):
    (outcome,) = make_world(1, env={name: value}).outcomes(begin)
    assert not outcome.ok
    for part in (f'(from {name}) is "{value}"', words):
        assert part in outcome.error


def work_on(rank):
    for _ in range(2):  # what stands against it is told once
        rank.init(store=f"store {_}")
        work(rank.rank, 8)
        dist.destroy_process_group()


@pytest.mark.parametrize("what", ["port", "folder", "device", "pipe"])
def test_what_cannot_be_told_is_told_once(make_world, tmp_path, what):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = tmp_path / "goccl.prom"
        name, value, cause = {
            "port": ("PORT", str(taken.getsockname()[1]), "address already in use"),
            "folder": ("FILE", f"{tmp_path}/none/goccl.prom", "no such file or directory"),
            "device": ("FILE", str(path), "no regular file"),
            "pipe": ("FILE", str(path), "no regular file"),
        }[what]
        if what == "device":
            path.symlink_to("/dev/full")
        elif what == "pipe":
            os.mkfifo(path)
        world = make_world(2, env={f"GOCCL_METRICS_{name}": value})
        world.run(work_on)
        for rank in range(2):
            log = (world.dir / f"rank{rank}.log").read_text()
            assert log.count(f"(GOCCL_METRICS_{name})") == 1, log
            assert cause in log
            assert value in log
    if what in ("device", "pipe"):
        assert path.is_symlink() or path.is_fifo()


def fork(rank):
    rank.init()
    for _ in range(5):
        dist.all_reduce(torch.ones(8))
    ours, theirs = os.pipe(), os.pipe()
    if not (child := os.fork()):
        try:
            goccl.stats()
        except RuntimeError as error:
            os.write(ours[1], str(error).encode())
        os.read(theirs[0], 1)  # until the parent has gone on without groups
        os._exit(0)
    rank.tell((os.getpid(), os.read(ours[0], 1000).decode()))
    rank.hear()
    dist.destroy_process_group()
    rank.tell(None)
    rank.hear()
    os.write(theirs[1], b"x")
    os.waitpid(child, 0)


def test_a_forked_child_has_no_part_in_it(make_world, tmp_path):
    port = harness.free_port()
    env = {"GOCCL_METRICS_FILE": f"{tmp_path}/%p.prom", "GOCCL_METRICS_PORT": str(port)}
    world = make_world(1, env=env)
    world.start(fork)
    pid, said = world.told(0)
    assert "fork" in said
    path = tmp_path / f"{pid}.prom"
    harness.until(path.exists, what="a file")
    assert total(scraped(port), "goccl_operations_total", collective="allreduce") == 5
    world.say(None)
    world.told(0)
    assert not path.exists()
    assert free(port), "the child holds the socket open"
    world.say(None)
    world.values(world.finish())


def stay(rank):
    rank.init()
    rank.tell(os.getpid())
    rank.hear()


def test_a_killed_process_leaves_a_whole_file(make_world, tmp_path):
    world = make_world(1, env={"GOCCL_METRICS_FILE": f"{tmp_path}/goccl.prom"})
    world.start(stay)
    pid = world.told(0)
    path = tmp_path / "goccl.prom"
    harness.until(path.exists, what="a file")
    world.signal(0, 9)
    world.exitcode(0)
    assert total(parsed(path.read_text()), "goccl_groups", pid=str(pid)) == 1


def test_nobody_has_done_anything():
    told = goccl.stats()
    assert told["version"] == goccl.__version__
    assert told["groups"] == len(told["links"]) == 0
