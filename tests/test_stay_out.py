"""Ranks that cannot join their group: the others are told at once, and why. Real processes."""

import contextlib
import os
import resource
import sys

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
from goccl import _native
from goccl._stay_out import stay_out
from test_sandbox import MEGABYTE, with_address_space, with_threads
from torch.torch_version import TorchVersion

pytestmark = pytest.mark.skipif(harness.BACKEND != "goccl", reason="is about our meeting")


def wrong_options(rank):
    rank.init(pg_options="fast")


def no_time(rank):
    rank.init(timeout=0)


def other_torch(rank):
    torch.__version__ = TorchVersion("1.2.3")
    del sys.modules["goccl._C"]
    rank.init()


def little_address_space(rank):
    with_address_space(256 * MEGABYTE)
    rank.init()


def no_threads(rank):
    with_threads(1)
    rank.init()


def no_threads_once_loaded(rank):
    goccl.empty(1)
    no_threads(rank)


def few_descriptors(rank):
    goccl.empty(1)
    store = rank.make_store()
    # The soft limit alone would be raised again.
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        dist.init_process_group("goccl", store=store, rank=rank.rank, world_size=rank.size)
    finally:
        for descriptor in taken:
            os.close(descriptor)


def no_such_schedule(rank):
    """Which the library refuses."""
    os.environ["GOCCL_ALLTOALL_SCHEDULE"] = "in turn"
    rank.init()


WAYS = [
    pytest.param(wrong_options, "pg_options", id="options"),
    pytest.param(no_time, "timeout", id="timeout"),
    pytest.param(
        other_torch, "goccl needs torch 2.8 or later, and this is torch 1.2.3", id="another torch"
    ),
    pytest.param(little_address_space, "ulimit -v", id="address space"),
    pytest.param(no_threads, "ulimit -u", id="threads"),
    pytest.param(no_threads_once_loaded, "ulimit -u", id="threads later"),
    pytest.param(few_descriptors, "ulimit -n", id="descriptors"),
    pytest.param(no_such_schedule, "in turn", id="schedule"),
]


def join(rank, refused, cannot):
    if rank.rank in refused:
        cannot(rank)
    else:
        rank.init()


@pytest.mark.parametrize("refused", [0, 1])
@pytest.mark.parametrize(("cannot", "why"), WAYS)
def test_the_others_are_told(make_world, cannot, why, refused):
    world = make_world(3, store="tcp")
    for outcome in world.outcomes(join, [refused], cannot):
        assert why in outcome.error, outcome
        assert outcome.rank == refused or f"rank {refused}: " in outcome.error, outcome


@pytest.mark.parametrize("refused", [0, 1])
def test_the_others_are_told_in_a_job_with_a_secret(make_world, refused):
    world = make_world(2, store="tcp", env={"GOCCL_SECRET": "x" * 32})
    for outcome in world.outcomes(join, [refused], wrong_options):
        assert "pg_options" in outcome.error, outcome


def test_each_of_several_says_its_own(make_world):
    world = make_world(3, store="tcp")
    for outcome in world.outcomes(join, [0, 1, 2], wrong_options):
        assert outcome.kind == "TypeError", outcome


def stay_out_or_join(rank, refused):
    store, name = rank.make_store(), "a/b c;d%é$&+=:@~\x01"
    if rank.rank == refused:
        stay_out(store, rank.rank, rank.size, name, "it is\n\x1b[31mred\x1b[0m, é" + "." * 10_000)
    else:
        _native.load().ProcessGroupGoccl(store, rank.rank, rank.size, group_name=name)


@pytest.mark.parametrize("refused", [0, 1])
def test_names_and_reasons_of_any_kind(make_world, refused):
    outcome = make_world(2).outcomes(stay_out_or_join, refused)[1 - refused]
    assert rf"rank {refused}: it is\n\x1b[31mred\x1b[0m, \xe9..." in outcome.error, outcome
    assert len(outcome.error) < 8192
