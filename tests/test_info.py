"""`goccl info`: settings and limits. The rest is in test_package.py."""

import json
import math
import os
import resource
import subprocess
import sys

import pytest
from goccl import _limits as limits
from goccl import _options as options


def info(*arguments, **env):
    done = subprocess.run(
        [sys.executable, "-m", "goccl", "info", *arguments],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_setting_is_listed_with_its_source():
    env = dict.fromkeys(options.VARIABLES, "") | {
        "GOCCL_NET": "tcp",
        "GOCCL_SECRET": "pssst",
        "GOCCL_STORE": "etcd://me:pssst@host/job",
        "GOCCL_SECERT": "pssst",
        "GOCCL_STOER": "etcd://me:pssst@host/job",
    }
    report = json.loads(info("--json", **env))
    assert [(s["option"], s["variable"]) for s in report["settings"]] == [
        (s.option, s.variable) for s in options.SETTINGS
    ]
    given = {s["variable"]: s["value"] for s in report["settings"] if s["source"] == "environment"}
    store = "etcd://(hidden)@host/job"
    assert given == {"GOCCL_NET": "tcp", "GOCCL_SECRET": "(hidden)", "GOCCL_STORE": store}
    assert report["environment"]["GOCCL_SECERT"] == "(hidden)"
    assert report["environment"]["GOCCL_STOER"] == store
    assert "pssst" not in json.dumps(report)
    assert all(s["source"] == "default" for s in report["settings"] if s["variable"] not in given)
    assert not set(options.VARIABLES) & set(report["environment"])


def test_text_names_every_setting_and_limit_in_100_columns():
    text = info(GOCCL_IB_HCA="mlx5_0,mlx5_1:2", GOCCL_TRANSPORT="tcp")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    for setting in options.SETTINGS:
        name = setting.variable or setting.option
        assert any(name in line.split() for line in lines), name
    for limit in limits.collect(2, verbs=False):
        assert any(line.startswith(f"  {limit.name} ") for line in lines), limit.name


def test_nothing_in_a_variable_is_obeyed_by_the_terminal():
    """Nor do bytes that are no text keep the report from being printed."""
    text = info(GOCCL_STOER="a\x1b[2Jb\udcffc", GOCCL_IB_HCA="x\x9b")
    assert all(c.isprintable() or c == "\n" for c in text)
    assert r"GOCCL_STOER=a\x1b[2Jb\udcffc" in text
    assert r"x\x9b" in text


def test_text_warns_of_limits_that_are_too_low_for_the_ranks():
    text = " ".join(info("--ranks", "60000").split())
    assert "WARNING" in text
    assert "limits, for 60000 ranks" in text
    assert "too few for 60000 ranks" in text


def problems(*code, **env):
    """What is wrong, of a command that says so by its exit status."""
    words = ["-c", *code] if code else ["-m", "goccl", "info", "--json"]
    done = subprocess.run(
        [sys.executable, *words], env={**os.environ, **env}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return json.loads(done.stdout)["problems"]


def test_all_problems_are_told_at_once():
    told = problems(GOCCL_TIMEOUT="60", GOCCL_NET="shm", GOCCL_SOCKET_IFNAME="none7")
    begins = ['timeout is "60"', 'network is "shm"', 'interface is "none7"']
    assert [text[: len(start)] for text, start in zip(told, begins, strict=True)] == begins


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"GOCCL_SOCKET_IFNAME": "none7"}, "this host has lo"),
        ({"GOCCL_TRANSPORT": "verbs", "GOCCL_IB_HCA": "none7"}, "cannot work"),
        ({"GOCCL_STORE": "http://x"}, "GOCCL_STORE"),
        ({"GOCCL_MIN_SIZE": "0"}, "allowed are 1 to 65536"),
    ],
)
def test_what_no_group_could_be_made_with_is_a_problem(env, told):
    (problem,) = problems(**env)
    assert told in problem


INFO = "import sys; {}; from goccl import _cli; sys.exit(_cli.main(['info', '--json']))"
NO_TORCH = "sys.modules['torch'] = None"
OTHER_TORCH = (
    "import torch; from goccl import _native; torch.__version__ = '2.7.1'; "
    "del sys.modules['goccl._C']"
)
NO_LIBRARY = (
    f"{OTHER_TORCH}; from goccl import _capi; from pathlib import Path; "
    "_capi.LIBRARY = Path('/nowhere/libgoccl.so.0')"
)


@pytest.mark.parametrize(
    ("broken", "first", "others"),
    [
        (NO_TORCH, "torch", ['network is "shm"']),
        (
            OTHER_TORCH,
            "goccl needs torch 2.8 or later, and this is torch 2.7.1",
            ['network is "shm"'],
        ),
        (
            NO_LIBRARY,
            "goccl needs torch 2.8 or later, and this is torch 2.7.1",
            ["cannot load /nowhere/libgoccl.so.0: "],
        ),
    ],
)
def test_a_broken_installation_hides_no_other_problem(broken, first, others):
    told = problems(INFO.format(broken), GOCCL_NET="shm")
    assert first in told[0]
    assert len(told) == 1 + len(others)
    for text, part in zip(told[1:], others, strict=True):
        assert part in text


@pytest.mark.parametrize("ranks", ["0", "-1", "two", "65537"])
def test_ranks_that_cannot_be(ranks):
    done = subprocess.run(
        [sys.executable, "-m", "goccl", "info", f"--ranks={ranks}"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"{ranks!r} is not a whole number from 1 to 65536" in done.stderr


FILES = {
    "proc/self/cgroup": "0::/pod/box",
    "proc/self/status": "Name:\tpython\nVmSize:\t  1048576 kB",
    "proc/sys/kernel/yama/ptrace_scope": "1",
    "proc/sys/net/ipv4/tcp_congestion_control": "cubic",
    "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    "proc/sys/net/ipv4/tcp_wmem": "4096\t16384\t4194304",
    "sys/fs/cgroup/cpu.max": "max 100000",
    "sys/fs/cgroup/pod/cpu.max": "150000 100000",
    "sys/fs/cgroup/pod/box/cpu.max": "max 100000",
    "sys/fs/cgroup/pod/memory.max": "8589934592",
    "sys/fs/cgroup/pod/box/memory.max": "max",
    "sys/fs/cgroup/pod/box/pids.max": "100",
    "sys/fs/cgroup/pod/box/pids.current": "60",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never deny "
    "force",
    "sys/devices/system/node/node0/cpulist": "0-3",
    "sys/devices/system/node/node1/cpulist": "4-7",
}
VALUES = {
    "descriptors": "1024; a group raises them to 4096",
    "threads": "unlimited of the user, 60 of 100 in the cgroup",
    "locked memory": "64 KiB, used with RDMA only",
    "address space": "unlimited",
    "memory": "8 GiB in the cgroup",
    "huge pages": "madvise; for shared memory: advise",
    "CPUs": "4 allowed, quota of 1.5 in the cgroup; 2 NUMA nodes",
    "single copy": "ptrace_scope 1: a process may read the memory of its children only",
    "TCP": "congestion control cubic; buffers up to 6 MiB in, 4 MiB out",
}


def found(root, ranks=2, verbs=False, files=(), **rlimits):
    for name, text in {**FILES, **dict(files)}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    numbers = {"NOFILE": (1024, 4096), "MEMLOCK": (64 << 10, 64 << 10), **rlimits}
    by_number = {getattr(resource, f"RLIMIT_{name}"): pair for name, pair in numbers.items()}
    infinite = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    host = limits.Host(root, lambda number: by_number.get(number, infinite), cpus=4)
    return {limit.name: limit for limit in limits.collect(ranks, verbs, host)}


def test_limits_are_read(tmp_path):
    limit = found(tmp_path)
    assert list(limit) == list(VALUES)
    for name, value in VALUES.items():
        assert limit[name].value.partition("; shared memory is memfd")[0] == value
        assert limit[name].warning == "", name


@pytest.mark.parametrize(
    ("name", "warning", "given"),
    [
        (
            "descriptors",
            "4096 descriptors are too few for 1100 ranks: raise the hard limit (ulimit -Hn 4464)",
            {"ranks": 1100},
        ),
        ("threads", "room for 40 more threads, too few for 3 ranks", {"ranks": 3}),
        ("threads", "20 threads are too few for 2 ranks", {"NPROC": (20, 20)}),
        (
            "locked memory",
            "64 KiB of locked memory are too little for a rank over RDMA",
            {"verbs": True},
        ),
        ("address space", "2 GiB of address space are too little", {"AS": (2 << 30, 2 << 30)}),
        (
            "TCP",
            "TCP buffers of 64 KiB are too small",
            {"files": {"proc/sys/net/ipv4/tcp_rmem": "1 2 65536"}},
        ),
    ],
)
def test_a_limit_that_is_too_low_is_warned_of(tmp_path, name, warning, given):
    limit = found(tmp_path, **given)
    assert warning in limit[name].warning


def test_a_host_without_the_files(tmp_path):
    host = limits.Host(tmp_path, cpus=1)
    values = {limit.name: limit for limit in limits.collect(2, verbs=False, host=host)}
    assert values["huge pages"].value == "unknown; for shared memory: unknown"
    assert values["TCP"].value == "congestion control unknown; buffers unknown"
    assert values["CPUs"].value.startswith("1 allowed; unknown NUMA nodes; 2 ranks outnumber them")


def test_a_choice_is_explained():
    asked = ("--plan", "allreduce", "--ranks", "512", "--per-host", "64", "--bytes", "64K")
    text = info(*asked)
    assert text.startswith("allreduce of 65536 bytes, 512 ranks of 64 a host, shm\n")
    assert "between hosts" in text
    assert "within a host" in text
    plan = json.loads(info(*asked, "--json"))
    radices = [level["radix"] for level in plan["levels"]]
    assert math.prod(radices) == 512
    assert plan["algorithm"] in text
    assert plan["messages"] >= plan["peers"] >= sum(radices) - len(radices)
    assert f"{plan['algorithm']}, about {plan['estimated_us']:g} us\n" in text
    for other in plan["others"]:
        assert f"not taken   {other['algorithm']}" in text
        assert other["estimated_us"] > plan["estimated_us"]
    assert {"two_shot", "binomial_tree"} <= {other["algorithm"] for other in plan["others"]}
    forced = info(*asked, GOCCL_ALGO="allreduce:two_shot")
    assert "two_shot" in forced
    assert "level" not in forced


def test_a_choice_heeds_hosts_and_domains():
    asked = ("--plan=broadcast", "--ranks=64", "--per-host=16", "--per-domain=4", "--bytes=1M")
    forced = {"GOCCL_ALGO": "broadcast:hierarchical(4,4,4)"}
    text = info(*asked, **forced)
    assert ", 64 ranks of 16 a host, 4 a domain, shm\n" in text
    levels = [line for line in text.splitlines() if line.startswith("level")]
    where = ["within a domain", "within a host", "between hosts"]
    assert all(w in line for w, line in zip(where, levels, strict=True))
    assert "not by their numbers" not in text
    turned = info(*asked, "--by-turns", **forced)
    assert "of 16 a host by turns, 4 a domain" in turned
    assert "ranks go host by host and domain by domain, not by their numbers" in turned
    assert [line for line in turned.splitlines() if line.startswith("level")] == levels


def test_the_domains_of_the_host_are_told():
    report = json.loads(info("--json"))
    assert report["domain"] in ("", *report["domains"])
    assert ("domains     of CPUs" in info()) == bool(report["domains"])


def test_messages_do_not_grow_with_the_ranks():
    plan = json.loads(
        info("--json", "--plan=allreduce", "--ranks=4096", "--per-host=64", "--bytes=4")
    )
    assert plan["messages"] <= 40


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--plan", "sum"), 'collective is "sum", allowed are allreduce, reduce'),
        (
            ("--plan", "barrier", "--ranks=2", "--per-host=3"),
            "ranks_per_host is 3, allowed are 1 to",
        ),
    ],
)
def test_plans_that_cannot_be(arguments, problem):
    done = subprocess.run(
        [sys.executable, "-m", "goccl", "info", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
