"""Processes whose malloc is another one, by LD_PRELOAD, as training on CPUs often has it."""

import ctypes.util
from pathlib import Path

import harness
import pytest
import torch
import torch.distributed as dist

# Debian's libtcmalloc-minimal4, libjemalloc2 and libmimalloc2.0 have them.
ALLOCATORS = ["tcmalloc_minimal", "jemalloc", "mimalloc"]


def work(rank, library):
    assert library in Path("/proc/self/maps").read_text()
    rank.init()
    for n in (1, 1000, 700_001):
        sums = [torch.full((n,), rank.rank + 1.0) for _ in range(3)]
        for under_way in [dist.all_reduce(x, async_op=True) for x in sums]:
            under_way.wait()
        assert all((x == 3).all() for x in sums)
        all_of_it = torch.empty(2, n)
        dist.all_gather_into_tensor(all_of_it, torch.full((n,), float(rank.rank)))
        assert (all_of_it[0] == 0).all()
        assert (all_of_it[1] == 1).all()
        if rank.rank == 0:
            dist.send(all_of_it, 1)
        else:
            dist.recv(all_of_it.zero_(), 0)
            assert (all_of_it[1] == 1).all()
    pieces: list[str | None] = [None] * rank.size
    dist.all_gather_object(pieces, "piece" * 1000)
    assert pieces == ["piece" * 1000] * 2
    part = dist.new_group([1, 0])
    dist.barrier(part)
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ALLOCATORS)
def test_groups_with_another_malloc(name):
    library = ctypes.util.find_library(name)
    if library is None:
        pytest.skip(f"lib{name} is not installed")
    server = harness.Server({"LD_PRELOAD": library})
    try:
        with harness.World(server, 2, module=__name__) as world:
            world.run(work, library)
    finally:
        server.close()
