"""Variables for scripts that cannot be changed, and options of a group that they are also for."""

import os
from datetime import timedelta

import goccl
import pytest
import torch
import torch.distributed as dist

VARIABLES = {"GOCCL_TIMEOUT": "90s", "GOCCL_LIVENESS_GRACE": "1500ms", "GOCCL_MIN_SIZE": "2"}


def run_described(rank, given, options):
    """The timeouts of a group, and where they come from."""
    rank.init(timeout=given, pg_options=goccl.Options(**options) if options else None)
    group = goccl.describe()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    of_child = goccl.describe(dist.new_group([0, 1])).timeout.total_seconds()
    sources = {name: group.settings[name].source for name in ("timeout", "min_size")}
    return (
        group.timeout.total_seconds(),
        backend.options._timeout.total_seconds(),
        of_child,
        group.liveness_grace.total_seconds(),
        sources,
    )


MINUTES = 30 * 60.0


@pytest.mark.parametrize(
    ("given", "options", "timeout", "child", "grace", "sources"),
    [
        (MINUTES, {}, 90.0, 90.0, 1.5, ("environment", "environment")),
        (60.0, {}, 60.0, 90.0, 1.5, ("option", "environment")),
        (
            MINUTES,
            {"timeout": timedelta(seconds=61), "min_size": 1},
            61.0,
            90.0,
            1.5,
            ("option", "option"),
        ),
        (
            MINUTES,
            {"liveness_grace": timedelta(seconds=9)},
            90.0,
            90.0,
            9.0,
            ("environment", "environment"),
        ),
    ],
)
def test_the_program_wins(make_world, given, options, timeout, child, grace, sources):
    world = make_world(2, env=VARIABLES)
    for told in world.run(run_described, given, options):
        names = ("timeout", "min_size")
        assert told == (timeout, timeout, child, grace, dict(zip(names, sources, strict=True)))


def run_options(rank, options):
    rank.init(pg_options=goccl.Options(**options))
    group = goccl.describe()
    total = torch.ones(3)
    dist.all_reduce(total)
    return group.algorithms, group.thresholds["flat_max"], goccl.algorithm(), total.tolist()


def test_options_that_were_variables_only(make_world):
    options = {
        "algorithms": "allreduce:two_shot",
        "thresholds": "flat_max=77",
        "net": "tcp",
        "links": "tcp=1:2:3",
        "ib_hca": "^none",
        "ib_gid_index": 0,
    }
    world = make_world(2, env={"GOCCL_ALGO": "allreduce:one_shot"})
    for told in world.run(run_options, options):
        assert told == ("allreduce:two_shot", 77, "two_shot", [2.0] * 3)


def run_refused(rank, text):
    with pytest.raises(ValueError, match=text):
        rank.init(timeout=MINUTES)


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        ("GOCCL_TIMEOUT", "60", 'timeout is "60" .from GOCCL_TIMEOUT., allowed are durations'),
        ("GOCCL_MIN_SIZE", "no", 'least size is "no" .from GOCCL_MIN_SIZE., allowed are 1 to'),
        ("GOCCL_SOCKET_IFNAME", "^", 'interface is "." .* names none'),
        ("GOCCL_SOCKET_IFNAME", "=l", 'interface is "=l" .* this host has lo'),
    ],
)
def test_what_cannot_be_is_refused(make_world, variable, text, told):
    make_world(2, env={variable: text, "GOCCL_TRANSPORT": "tcp"}).run(run_refused, told)


def run_files(rank):
    rank.init(timeout=MINUTES)
    settings = goccl.describe().settings
    return {
        name: (settings[name].value, settings[name].source)
        for name in ("timeout", "recovery", "min_size", "quorum", "net")
    }


def test_files_of_settings(make_world, tmp_path):
    """After the environment counts the file that is named, and then that of the home folder."""
    named, own = tmp_path / "named", tmp_path / ".goccl.conf"
    named.write_text(
        "# of the cluster\nGOCCL_TIMEOUT=80s\nGOCCL_RECOVERY = all\nGOCCL_QUORUM=any\n"
    )
    own.write_text("GOCCL_QUORUM=majority\nGOCCL_NET=tcp\n")
    env = {"GOCCL_TIMEOUT": "90s", "GOCCL_CONF_FILE": str(named), "HOME": str(tmp_path)}
    want = {
        "timeout": ("90s", "environment"),
        "recovery": ("all", str(named)),
        "min_size": ("", "default"),
        "quorum": ("any", str(named)),
        "net": ("tcp", str(own)),
    }
    assert make_world(2, env=env).run(run_files) == [want, want]


def run_unlike(rank, path):
    if rank.rank == 1:
        os.environ["GOCCL_CONF_FILE"] = path  # after goccl was imported, before it makes a group
    with pytest.raises((ValueError, goccl.MismatchError)) as error:
        rank.init()
    return str(error.value)


def test_ranks_with_unlike_files(make_world, tmp_path):
    file = tmp_path / "goccl.conf"
    file.write_text("GOCCL_QUORUM=any")
    told = make_world(2).run(run_unlike, str(file))
    text = 'the quorum (GOCCL_QUORUM) is "majority" on rank 0 and "any" on rank 1'
    assert all(text in each for each in told), told
    told = make_world(2).run(run_unlike, str(tmp_path / "none"))
    text = f'file of settings (from GOCCL_CONF_FILE) "{tmp_path}/none" cannot be read: no such file'
    assert all(text in each for each in told), told


def run_interface(rank, options):
    rank.init(pg_options=goccl.Options(**options))
    return goccl.describe().interface


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("lo", {}),
        ("=lo", {}),
        ("^eth,en,wl", {"interface": "nosuch,l"}),
        ("none", {"interface": "lo"}),
    ],
)
def test_interfaces_are_chosen_as_nccl_does(make_world, text, options):
    world = make_world(2, env={"GOCCL_SOCKET_IFNAME": text, "GOCCL_TRANSPORT": "tcp"})
    assert world.run(run_interface, options) == ["lo", "lo"]
