"""goccl.describe() and goccl.transports(): what a group is made of, as data. Real processes."""

import os
import socket
from dataclasses import FrozenInstanceError
from datetime import timedelta

import goccl
import harness
import pytest
import torch.distributed as dist
from goccl import Setting


def run_described(rank, transport):
    rank.init(timeout=60, pg_options=goccl.Options(transport=transport, secret="x" * 32))
    others = dict.fromkeys(range(rank.size), transport) | {rank.rank: "self"}
    comm = goccl.Communicator()
    backend = dist.group.WORLD._get_backend(next(iter(dist.group.WORLD._device_types)))
    for group in (None, dist.group.WORLD, comm, goccl.Communicator(comm), backend):
        assert goccl.transports(group) == others
        described = goccl.describe(group)
        assert list(enumerate(described.transports)) == list(others.items())
        assert (described.rank, described.size) == (rank.rank, rank.size)
    assert described.global_ranks == list(range(rank.size))
    assert described.hosts == [socket.gethostname()] * rank.size
    assert described.pids[rank.rank] == os.getpid()
    assert described.reasons[rank.rank] == ""
    assert set(described.reasons) - {""} == {f'"{transport}" is demanded'}
    assert described.interface
    assert described.addresses
    assert described.timeout == timedelta(seconds=60)
    assert described.liveness_grace == timedelta(seconds=10)
    assert set(described.thresholds) >= {"one_shot_max", "flat_max"}
    assert described.settings["transport"] == Setting(transport, "option")
    assert described.settings["secret"] == Setting("(hidden)", "option")
    assert described.settings["alltoall_schedule"] == Setting("window=2", "environment")
    assert described.settings["net"] == Setting("", "default")
    assert described.settings["GOCCL_STORE"] == Setting("", "default")
    assert described.alltoall_schedule == "window=2"
    with pytest.raises(FrozenInstanceError):
        described.size = 3  # type: ignore[misc]

    odd = dist.new_group([1, 2], backend="goccl", timeout=timedelta(seconds=30))
    if rank.rank == 0:
        for function in (goccl.describe, goccl.transports, goccl.Communicator):
            name = f"goccl.{function.__name__}"
            with pytest.raises(ValueError, match=f"^{name}: this rank is not a member of `group`"):
                function(odd)
    else:
        part = goccl.describe(odd)
        assert (part.global_ranks, part.size, part.timeout) == ([1, 2], 2, timedelta(seconds=30))
        assert part.name != described.name
        assert sorted(goccl.transports(odd).values()) == sorted(
            ["self", part.transports[2 - rank.rank]]
        )


@pytest.mark.parametrize("transport", harness.TRANSPORTS)
def test_groups_are_described(make_world, transport):
    env = {"GOCCL_ALLTOALL_SCHEDULE": "window=2"}
    make_world(3, env=env).run(run_described, transport)


def run_best(rank):
    rank.init()
    described = goccl.describe()
    assert described.reasons[1 - rank.rank] == "they share a host and its memory"
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        goccl.describe()


def test_reason_of_the_best(make_world):
    make_world(2, env={"GOCCL_TRANSPORT": ""}).run(run_best)


def run_differing_lists(rank):
    rank.init(timeout=60)
    members = [0, 2] if rank.rank == 0 else [0, 1]
    if rank.rank == 2:  # which is in neither, as far as it knows
        dist.new_group(members)
        return
    text = 'the list of the group\'s ranks is "0,2" on rank 0 and "0-1" on rank 1'
    with pytest.raises(goccl.MismatchError, match=text):
        dist.new_group(members)


def test_ranks_that_give_a_group_different_lists_are_told(make_world):
    make_world(3).run(run_differing_lists)


def run_of_another_backend(rank):
    rank.init("gloo")
    for function in (goccl.describe, goccl.transports):
        name = f"goccl.{function.__name__}"
        with pytest.raises(
            ValueError, match=f"^{name}: `group` has the back ends .*gloo.*needs goccl"
        ):
            function()
        with pytest.raises(
            TypeError, match=f"^{name}: `group` must be .*ProcessGroup or None, not"
        ):
            function("world")


def test_a_group_of_another_backend_is_refused(make_world):
    make_world(1).run(run_of_another_backend)
