"""The log: what processes tell, where, and who decides."""

import logging
import os
import re
import threading
import time

import pytest
import torch
import torch.distributed as dist

LINE = re.compile(
    r"goccl: \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \S+:\d+ "
    r"(?P<level>WARN|INFO|TRACE) (?P<subsystem>[A-Z0-9]+)"
    r"( \[(?P<group>.*?)\] rank (?P<rank>\d+))?: (?P<text>.*)"
)


def lines(text):
    """The library's own lines in what a process wrote, taken apart."""
    all_lines = [line for line in text.splitlines() if line.startswith("goccl: ")]
    matches = [LINE.fullmatch(line) for line in all_lines]
    assert all(matches), all_lines
    return [match.groupdict() for match in matches if match]


def written(world, rank):
    """What a rank has written when its interpreter has ended."""
    assert world.exit(rank) == 0, world.logs()
    return (world.dir / f"rank{rank}.log").read_text()


def train(rank):
    rank.init()
    subgroup = dist.new_group(list(range(rank.size)), backend="goccl")
    for _ in range(3):
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, group=subgroup)
        assert tensor[0] == rank.size**2
    dist.destroy_process_group()


def test_nothing_is_told_by_default(make_world):
    world = make_world(2, whole_exit=True)
    world.run(train)
    for rank in range(2):
        assert "goccl" not in written(world, rank)


def test_info_is_a_line_a_group(make_world):
    world = make_world(2, env={"GOCCL_DEBUG": "INFO", "GOCCL_TRANSPORT": "tcp"}, whole_exit=True)
    world.run(train)
    for rank in range(2):
        told = lines(written(world, rank))
        made = [line for line in told if line["text"].startswith("a group is made")]
        assert len(made) == 2
        for line in made:
            assert (line["level"], line["subsystem"], line["rank"]) == ("INFO", "INIT", str(rank))
            assert line["group"]
            for fact in (
                "size=2 ",
                f': {1 - rank}" interface=',
                " congestion=",
                " thresholds=",
                " version=",
            ):
                assert fact in line["text"]
            assert re.search(r'hosts="[^"]+: 0-1" transports="tcp \(', line["text"])
        assert made[0]["group"] != made[1]["group"]
        ended = [
            line["group"] for line in told if line["text"].startswith("the group is destroyed")
        ]
        assert sorted(ended) == sorted(line["group"] for line in made)
        environment = [line["text"] for line in told if line["subsystem"] == "ENV"]
        assert "an environment variable is set name=GOCCL_TRANSPORT value=tcp" in environment
        assert not [line for line in told if line["level"] == "TRACE"]


def test_trace_tells_each_call(make_world):
    world = make_world(
        2, env={"GOCCL_DEBUG": "trace", "GOCCL_DEBUG_SUBSYS": "coll"}, whole_exit=True
    )
    world.run(train)
    for rank in range(2):
        told = lines(written(world, rank))
        assert {line["subsystem"] for line in told} == {"COLL"}
        for number in (1, 2, 3):
            call = "allreduce(float32, 4 elements, SUM)"
            starts = [
                line for line in told if line["text"].startswith(f"{call} starts sequence={number}")
            ]
            over = [
                line
                for line in told
                if re.match(
                    rf"{re.escape(call)} (ends|has run by the fast path) sequence={number}\b",
                    line["text"],
                )
            ]
            assert len(over) == 2, told
            assert len(starts) <= 2, told
            assert number > 1 or len(starts) == 2, told


def test_each_process_has_a_file(make_world, tmp_path):
    pattern = str(tmp_path / "%h-%p-100%%")
    world = make_world(2, env={"GOCCL_DEBUG": "INFO", "GOCCL_DEBUG_FILE": pattern}, whole_exit=True)
    world.run(train)
    for rank in range(2):
        pid = world.pids[rank]
        assert "goccl: " not in written(world, rank)
        text = (tmp_path / f"{os.uname().nodename}-{pid}-100%").read_text()
        assert {line["rank"] for line in lines(text)} == {str(rank), None}


class Kept(logging.Handler):
    """Keeps records."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    def of(self, name):
        return [record for record in self.records if record.name == name]


def configured(rank, root, own, child):
    """Has Python's logging configured at some levels, and returns the names and levels of what
    came."""
    kept = Kept()
    logging.basicConfig(level=root, handlers=[kept], force=True)
    if own is not None:
        logging.getLogger("goccl").setLevel(own)
    if child is not None:
        logging.getLogger("goccl.coll").setLevel(child)
    train(rank)
    from goccl._C import leave_groups

    leave_groups()  # after it all is told
    for record in kept.records:
        assert record.goccl_subsystem == record.name.removeprefix("goccl.").upper()
        assert record.goccl_rank == (rank.rank if record.goccl_group is not None else -1)
        assert abs(record.created - time.time()) < 3600
    made = [r for r in kept.of("goccl.init") if "a group is made size=2" in r.getMessage()]
    assert all(f"] rank {rank.rank}: a group is made" in r.getMessage() for r in made)
    return sorted({(r.name, r.levelname) for r in kept.records}), len(made)


INIT, ENV = ("goccl.init", "INFO"), ("goccl.env", "INFO")
TRACED = [("goccl.bootstrap", "DEBUG"), ("goccl.coll", "DEBUG"), ("goccl.net", "DEBUG")]


@pytest.mark.parametrize(
    ("debug", "root", "own", "child", "names"),
    [
        ("", logging.WARNING, None, None, []),
        ("", logging.INFO, None, None, [INIT]),
        ("", logging.DEBUG, None, None, [INIT, *TRACED]),
        ("", logging.DEBUG, logging.INFO, None, [INIT]),
        ("", logging.WARNING, None, logging.DEBUG, [("goccl.coll", "DEBUG")]),
        ("INFO", logging.WARNING, None, None, [ENV, INIT]),
        ("INFO", logging.DEBUG, logging.WARNING, None, []),
        ("NONE", logging.DEBUG, None, None, []),
    ],
)
def test_logging_decides(make_world, debug, root, own, child, names):
    world = make_world(
        2, env={"GOCCL_DEBUG": debug, "GOCCL_TRANSPORT": "", "GOCCL_NET": ""}, whole_exit=True
    )
    for got, made in world.run(configured, root, own, child):
        assert got == sorted(names)
        assert made == (2 if INIT in names else 0)
    for rank in range(2):
        assert "goccl: " not in written(world, rank)


def stops_listening(rank):
    kept = Kept()
    logging.basicConfig(level=logging.INFO, handlers=[kept], force=True)
    rank.init()
    logging.getLogger().removeHandler(kept)
    dist.new_group([0], backend="goccl")
    dist.destroy_process_group()


def test_without_handlers_the_library_writes_itself(make_world):
    world = make_world(1, env={"GOCCL_DEBUG": "INFO"}, whole_exit=True)
    world.run(stops_listening)
    told = lines(written(world, 0))
    assert len([line for line in told if line["text"].startswith("a group is made")]) == 1


def fails(rank):
    class Broken(logging.Handler):
        def handle(self, record):
            raise RuntimeError("broken handler")

    logging.basicConfig(level=logging.INFO, handlers=[Broken()], force=True)
    train(rank)


def test_a_handler_that_fails_harms_nobody(make_world):
    world = make_world(2, whole_exit=True)
    world.run(fails)
    assert "broken handler" in written(world, 0)


def forks(rank):
    """Forks while the log is told, with a handler that takes its time."""

    class Slow(logging.Handler):
        def emit(self, record):
            entered.set()
            go_on.wait(0.01)

    entered, go_on = threading.Event(), threading.Event()
    logging.basicConfig(level=logging.DEBUG, handlers=[Slow()], force=True)
    rank.init()
    dist.all_reduce(torch.ones(4))
    entered.wait()
    child = os.fork()
    if child == 0:
        logging.getLogger("goccl").warning("of the child")
        raise SystemExit(0)  # with all that an interpreter does at its end
    _, status = os.waitpid(child, 0)
    assert status == 0
    go_on.set()
    dist.destroy_process_group()


def test_fork_while_records_are_told(make_world):
    world = make_world(2, env={"GOCCL_DEBUG": "TRACE"}, whole_exit=True)
    world.run(forks)
    for rank in range(2):
        written(world, rank)


def runs_traced(rank):
    logging.basicConfig(level=logging.DEBUG, force=True)
    rank.init()
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


def test_collectives_by_the_fast_path_are_told(make_world):
    """Each once, whichever way it goes."""
    world = make_world(2, whole_exit=True)
    world.run(runs_traced)
    for rank in range(2):
        text = written(world, rank)
        told = re.findall(r"allreduce\(.*\) (ends|has run by the fast path) sequence=(\d+)", text)
        assert [int(n) for _, n in told] == list(range(1, 21)), text
        assert "has run by the fast path" in dict(told), text


def leaves_traced(rank):
    logging.basicConfig(level=logging.DEBUG, force=True)
    rank.init()
    for _ in range(200):
        dist.all_reduce(torch.ones(4), async_op=True)


def test_interpreter_ends_while_records_are_told(make_world):
    world = make_world(2, whole_exit=True)
    world.run(leaves_traced)
    for rank in range(2):
        assert "goccl.coll" in written(world, rank)
