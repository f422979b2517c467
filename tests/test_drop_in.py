"""goccl in place of Gloo, and of no name: real processes, which import torch with the variable, or
call the function."""

import logging
import os
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import goccl
import harness
import pytest
import torch
import torch.distributed as dist
from goccl import _stand_in
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

pytestmark = pytest.mark.skipif(harness.BACKEND != "goccl", reason="is about our backend")

MEETS_AFTER = 25.0  # seconds within which ranks that disagree know it, on a busy machine, too


@pytest.fixture(scope="module")
def replacing():
    """A fork server that has imported torch with the variable set."""
    server = harness.Server({_stand_in.REPLACE: "1"})
    server.ask("import", __name__)
    yield server
    server.close()


@pytest.fixture(scope="module")
def plain():
    """One that has not."""
    server = harness.Server({_stand_in.REPLACE: "", _stand_in.DEFAULT: ""})
    server.ask("import", __name__)
    yield server
    server.close()


def is_ours(group=None, name="gloo"):
    """Asserts that goccl serves a group of such a name, and has it sum something."""
    backend = (group or dist.group.WORLD)._get_backend(torch.device("cpu"))
    assert isinstance(getattr(backend, "wrapped_pg", backend), goccl._C.ProcessGroupGoccl), backend
    assert dist.get_backend(group) == name
    x = torch.ones(2)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [dist.get_world_size(group)] * 2


def stands_in(group=None, name="gloo"):
    is_ours(group, name)
    assert goccl.describe(group).stands_in_for == "gloo"
    assert "stands in     for gloo" in repr(goccl.describe(group))


def in_all_ways(rank):
    rank.init("gloo")
    stands_in()
    everybody = list(range(rank.size))
    assert dist.get_backend_config() == "cpu:gloo,cuda:gloo"
    assert dist.distributed_c10d._get_default_group() is dist.group.WORLD
    for name in (None, "gloo", "GLOO", dist.Backend.GLOO):
        stands_in(dist.new_group(everybody, backend=name))
    stands_in(dist.new_group(backend="cpu:gloo"), "cpu:gloo")
    dist.monitored_barrier(dist.new_group(backend="gloo"))
    for group in dist.new_subgroups(1, backend="gloo")[:1]:
        stands_in(group)
    if rank.size > 1:
        mesh = init_device_mesh("cpu", (1, rank.size), mesh_dim_names=("one", "all"))
        stands_in(mesh["all"].get_group())
    everything: list[Any] = [None] * rank.size
    dist.all_gather_object(everything, {"rank": rank.rank})
    assert everything == [{"rank": r} for r in everybody]
    split = dist.group.WORLD._get_backend(torch.device("cpu")).supports_splitting
    if split and hasattr(dist.group.WORLD, "split_group"):
        stands_in(dist.split_group(None, [everybody]))
    assert goccl.describe(dist.new_group(backend="goccl")).stands_in_for == ""
    dist.destroy_process_group()
    rank.init("gloo", "again")
    stands_in()
    dist.destroy_process_group()


def test_all_ways_to_ask(replacing):
    with harness.World(replacing, 2, module=__name__) as world:
        world.run(in_all_ways)


def options_of_gloo(rank):
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    rank.init("gloo", pg_options=options, timeout=50)
    assert goccl.describe().timeout == timedelta(seconds=50)
    options._timeout, options._threads = timedelta(seconds=40), 7
    told: list[str] = []

    def hears(record: logging.LogRecord) -> bool:
        told.append(record.getMessage())
        return True

    logging.getLogger("goccl").addFilter(hears)
    for _ in range(2):
        group = dist.new_group(backend="gloo", pg_options=options)
        assert goccl.describe(group).timeout == timedelta(seconds=40)
    assert told.count("goccl stands in for gloo, and takes no _threads") == 1
    split = dist.split_group(None, [list(range(rank.size))], pg_options=options)
    assert goccl.describe(split).timeout == timedelta(seconds=40)
    group = dist.new_group(backend="gloo", pg_options=goccl.Options(timeout=timedelta(seconds=9)))
    assert goccl.describe(group).timeout == timedelta(seconds=9)
    with pytest.raises(TypeError, match="pg_options of backend goccl must be None or a goccl"):
        dist.new_group(backend="goccl", pg_options=options)


def test_options_of_gloo(replacing):
    with harness.World(replacing, 2, module=__name__) as world:
        world.run(options_of_gloo)


def interface(rank):
    rank.init("gloo")
    return goccl.describe().interface, goccl.describe().settings["interface"].value


def test_interface_of_gloo(replacing):
    env = {"GLOO_SOCKET_IFNAME": "lo", "GOCCL_TRANSPORT": "tcp"}
    with harness.World(replacing, 2, env=env, module=__name__) as world:
        assert world.run(interface) == [("lo", "=lo")] * 2
    env["GOCCL_SOCKET_IFNAME"] = "l"
    with harness.World(replacing, 2, env=env, module=__name__) as world:
        assert world.run(interface) == [("lo", "l")] * 2


def log_of_group(rank):
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", force=True)
    rank.init("gloo")


def test_one_line_a_group_is_logged(replacing):
    with harness.World(replacing, 1, module=__name__) as world:
        world.run(log_of_group)
        lines = [line for line in world.logs().splitlines() if "stands in" in line]
    by = _stand_in.REPLACE
    assert lines == [f"goccl.init [0] rank 0: goccl stands in for gloo, by {by}"]
    env = {"GOCCL_DEBUG": "INFO"}
    with harness.World(replacing, 1, env=env, module=__name__) as world:
        world.run(harness.Rank.init, "gloo")
        assert world.logs().count(f"INIT [0] rank 0: goccl stands in for gloo, by {by}") == 1


def in_detail(rank):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    rank.init("gloo")
    stands_in()


def test_debug_level_detail(replacing):
    """Torch wraps the backend, and has a helper of Gloo's own class beside it."""
    with harness.World(replacing, 2, module=__name__) as world:
        world.run(in_detail)


def steps_of_ddp(rank):
    rank.init("gloo")
    torch.manual_seed(rank.rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    for _ in range(2):
        model(torch.ones(1, 4) * rank.rank).sum().backward()
    every = [torch.empty(2, 4) for _ in range(rank.size)]
    dist.all_gather(every, model.module.weight.grad)
    assert torch.equal(every[0], every[1])


def test_ddp(replacing):
    with harness.World(replacing, 2, module=__name__) as world:
        world.run(steps_of_ddp)


# -- checkpoints that are written beside the program


class Tells(checkpoint.FileSystemWriter):
    """Writes, too, what the group of the process is that it saves in."""

    def prepare_local_plan(self, plan):
        made = super().prepare_local_plan(plan)
        served = goccl.describe().stands_in_for
        (Path(self.path) / f"rank{dist.get_rank()}").write_text(f"{os.getpid()} {served}")
        return made


def saves_beside(rank, kind):
    goccl.replace_gloo()
    rank.init("gloo")
    mesh = init_device_mesh("cpu", (rank.size,))
    numbers = torch.arange(8.0).view(4, 2)
    folder = rank.dir / kind
    saved = checkpoint.async_save(
        {"numbers": distribute_tensor(numbers, mesh)},
        storage_writer=Tells(folder),
        async_checkpointer_type=AsyncCheckpointerType(kind),
    )
    saved.result(harness.DEADLINE)
    there = {"numbers": distribute_tensor(torch.zeros(4, 2), mesh)}
    checkpoint.load(there, checkpoint_id=folder)
    assert torch.equal(there["numbers"].full_tensor(), numbers)
    process, served = (folder / f"rank{rank.rank}").read_text().split()
    assert served == "gloo"
    return int(process) == os.getpid()


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_asynchronous_checkpoints(plain, kind):
    """A child process makes a group of its own, of "gloo", and does as its parent was told."""
    env = {"MASTER_ADDR": "127.0.0.1"}
    with harness.World(plain, 2, env=env, module=__name__) as world:
        assert world.run(saves_beside, kind) == [kind == "thread"] * 2


# -- by calls


def by_calls(rank):
    goccl.replace_gloo()
    goccl.replace_gloo()
    goccl.use_by_default()
    goccl.use_by_default()
    assert os.environ[_stand_in.REPLACE] == os.environ[_stand_in.DEFAULT] == "1"
    rank.init("gloo")
    stands_in()


def by_default(rank):
    goccl.use_by_default()
    dist.init_process_group(store=rank.make_store(), rank=rank.rank, world_size=rank.size)
    is_ours(name="undefined")
    assert goccl.describe().stands_in_for == ""
    is_ours(dist.new_group(), "undefined")
    gloo = dist.new_group(backend="gloo")
    assert type(gloo._get_backend(torch.device("cpu"))) is dist.ProcessGroupGloo
    dist.destroy_process_group()
    goccl.replace_gloo()
    dist.Backend.default_device_backend_map["cpu"] = "gloo"
    store = rank.make_store("next")
    dist.init_process_group(store=store, rank=rank.rank, world_size=rank.size)
    stands_in(name="undefined")


def after_groups_exist(rank):
    rank.init("gloo")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        goccl.replace_gloo()
    (one,) = [str(w.message) for w in told]
    assert one == "goccl stands in for gloo in later groups only: 1 exist already ('0')"
    assert [w.filename for w in told] == [__file__]
    assert type(dist.group.WORLD._get_backend(torch.device("cpu"))) is dist.ProcessGroupGloo
    stands_in(dist.new_group())


@pytest.mark.parametrize("fn", [by_calls, by_default, after_groups_exist])
def test_calls(plain, fn):
    with harness.World(plain, 2, module=__name__) as world:
        world.run(fn)


def of_another_shape(rank):
    c10d: Any = dist.distributed_c10d

    def helper(size, rank, name): ...

    original, c10d._new_process_group_helper = c10d._new_process_group_helper, helper
    for call in (goccl.replace_gloo, goccl.use_by_default):
        with pytest.raises(RuntimeError, match="makes groups in a way that this goccl does not"):
            call()
    assert _stand_in.REPLACE not in os.environ or not os.environ[_stand_in.REPLACE]
    c10d._new_process_group_helper = original
    rank.init("gloo")


def test_a_torch_of_another_shape_is_refused(plain):
    with harness.World(plain, 1, module=__name__) as world:
        world.run(of_another_shape)


# -- on a device


def on_device(rank):
    harness.use_device()
    rank.init("gloo")
    stands_in()
    x = harness.place(torch.ones(3))
    dist.all_reduce(x)
    assert x.cpu().tolist() == [rank.size] * 3
    group = dist.new_group(backend=f"cpu:gloo,{harness.DEVICE}:goccl")
    stands_in(group, f"cpu:gloo,{harness.DEVICE}:goccl")


@pytest.mark.skipif(not harness.DEVICE, reason="no device")
def test_tensors_of_a_device(replacing):
    """Which goccl serves, too: it takes them of groups of Gloo, whatever Gloo could do."""
    with harness.World(replacing, 2, module=__name__) as world:
        world.run(on_device)


# -- ranks that disagree


def replace_or_not(rank, replacing):
    if rank.rank in replacing:
        goccl.replace_gloo()
    rank.init("gloo", timeout=60)


@pytest.mark.parametrize("replacing", [{0}, {1}, {1, 2}])
def test_ranks_that_disagree(plain, replacing):
    with harness.World(plain, 3, store="tcp", module=__name__) as world:
        world.healthy = False
        world.start(replace_or_not, replacing)
        gloo = sorted({0, 1, 2} - replacing)
        who = f"rank {gloo[0]} has" if len(gloo) == 1 else f"ranks {gloo[0]}, {gloo[1]} have"
        for outcome in world.finish(MEETS_AFTER, replacing):
            assert f"{who} made this group with Gloo" in outcome.error, outcome
            assert f"set {_stand_in.REPLACE}" in outcome.error


@pytest.mark.parametrize(
    ("gloo", "of", "who"),
    [
        ([1], [], "rank 1 has"),
        ([0, 2], [0, 1, 2], "ranks 0, 2 have"),
        ([0], [1, 2], "global rank 1 has"),
        ([0, 1], [3, 1, 5], "global ranks 3, 1 have"),
        (list(range(40)), [], f"ranks {', '.join(map(str, range(32)))}, ... have"),
    ],
)
def test_names_of_ranks_that_disagree(gloo, of, who):
    """In a part of the job they are those of the job: the ranks of the group help nobody."""
    assert _stand_in._why(gloo, of).startswith(f"{who} made this group with Gloo")


# -- programs


def python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, _stand_in.REPLACE: "", _stand_in.DEFAULT: "", **env},
        capture_output=True, text=True, timeout=harness.DEADLINE,
    )  # fmt: skip


def test_a_wrong_value_is_told_and_torch_is_imported():
    done = python(
        "import torch.distributed as dist, torch\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "print(type(dist.group.WORLD._get_backend(torch.device('cpu'))).__name__)",
        GOCCL_REPLACE_GLOO="yes",
    )
    assert done.stdout == "ProcessGroupGloo\n", done
    told = "goccl stands in for no other backend: GOCCL_REPLACE_GLOO is 'yes', allowed are"
    assert told in done.stderr


def test_without_entry_points():
    """Nothing reads the variable before goccl is imported, which says what it cannot change."""
    code = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "import goccl\n"
        "print(goccl.describe(dist.new_group()).stands_in_for)"
    )
    done = python(code, GOCCL_REPLACE_GLOO="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout == "gloo\n", done
    assert "goccl stands in for gloo in later groups only: 1 exist already ('0')" in done.stderr


def test_info():
    env = {**os.environ, _stand_in.REPLACE: "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    env[_stand_in.DEFAULT] = "on"
    done = subprocess.run(
        [sys.executable, "-m", "goccl", "info"],
        env=env, capture_output=True, text=True, timeout=harness.DEADLINE,
    )  # fmt: skip
    text = " ".join(done.stdout.split())
    assert "stands in for gloo: yes, by GOCCL_REPLACE_GLOO stands in for no name: no" in text
    assert 'GOCCL_DEFAULT is \'on\', allowed are "1", "0" and ""; it has no effect' in text
    assert "GOCCL_REPLACE_GLOO is read by programs only that import goccl before" in text
