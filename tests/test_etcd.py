"""GOCCL_STORE: ranks that meet at a real etcd, and what they say where they cannot."""

import base64
import contextlib
import ctypes
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import timedelta

import goccl
import goccl.elastic
import harness
import pytest
import torch
import torch.distributed as dist
from goccl import _native
from goccl._capi import LIBRARY
from goccl._ranks.capi import DTYPES, Core

ALLOWED = "allowed is etcd://[user:password@]host[:port][,host[:port]...]/prefix"


needs_elastic = pytest.mark.skipif(
    not hasattr(dist, "_reconfigure"), reason="older torch fixes the ranks of a group"
)


class Etcd:
    """An etcd that is alone on its port."""

    def __init__(self, directory):
        self.host, peer = _free_host(), f"http://{_free_host()}"
        url = f"http://{self.host}"
        self._command = [
            "etcd", f"--data-dir={directory}", f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            "--log-level=error",
        ]  # fmt: skip
        self.start()

    def start(self):
        architecture = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
        env = os.environ | {"ETCD_UNSUPPORTED_ARCH": architecture}
        self._process = subprocess.Popen(self._command, env=env, stderr=subprocess.DEVNULL)
        self.keys()

    def stop(self):
        self._process.kill()
        self._process.wait()

    def url(self, prefix):
        return f"etcd://{self.host}/{prefix}"

    def keys(self):
        """All keys; waits until etcd answers."""
        body = json.dumps({"key": "AA==", "range_end": "AA==", "keys_only": True}).encode()
        until = time.monotonic() + harness.DEADLINE
        while True:
            with (
                contextlib.suppress(urllib.error.URLError),
                urllib.request.urlopen(f"http://{self.host}/v3/kv/range", body) as answer,
            ):
                found = json.load(answer).get("kvs", [])
                return [base64.b64decode(kv["key"]).decode() for kv in found]
            assert time.monotonic() < until, "etcd does not answer"
            time.sleep(0.02)

    def wait_for(self, wanted):
        """Waits until the keys are as wanted."""
        until = time.monotonic() + harness.DEADLINE
        while not wanted(keys := self.keys()):
            assert time.monotonic() < until, keys
            time.sleep(0.005)


def _free_host():
    return f"127.0.0.1:{harness.free_port()}"


@pytest.fixture
def make_etcd(tmp_path):
    if shutil.which("etcd") is None:
        pytest.skip("no etcd is on PATH (on Debian: apt-get install etcd-server)")
    made = []

    def make():
        made.append(Etcd(tmp_path / f"etcd{len(made)}"))
        return made[-1]

    yield make
    for etcd in made:
        etcd.stop()


def total(group=None):
    t = torch.ones(5)
    dist.all_reduce(t, group=group)
    return t.tolist()


# -- torch


def init(rank, me=None, size=None, timeout=60):
    """Joins through a store that no other rank has: it must not be used."""
    dist.init_process_group(
        harness.BACKEND,
        store=rank.make_store(f"of rank {rank.rank}"),
        rank=rank.rank if me is None else me,
        world_size=size or rank.size,
        timeout=timedelta(seconds=timeout),
    )


def run_groups(rank):
    init(rank)
    assert total() == [4.0] * 5
    # Two groups that meet at the same time, by names that each rank gives out itself.
    pairs = [dist.new_group([r, r + 2]) for r in range(2)]
    assert total(pairs[rank.rank % 2]) == [2.0] * 5
    dist.destroy_process_group()
    init(rank)  # anew, under the same names
    assert total() == [4.0] * 5
    comm = goccl.Communicator()
    t = torch.ones(3)
    comm.all_reduce_(t)
    assert t.tolist() == [4.0] * 3
    setting = goccl.describe().settings["GOCCL_STORE"]
    return setting.value, setting.source


def run_one_name(rank):
    """Two groups with one name, which only the prefix of torch's store tells apart."""
    pair = rank.rank // 2
    store = dist.PrefixStore(f"pair {pair}", rank.make_store())
    group = _native.load().ProcessGroupGoccl(store, rank.rank % 2, 2, group_name="same")
    t = torch.ones(2)
    group.allreduce([t]).wait()
    total = t.tolist()
    group.shutdown()
    return total


def test_groups_of_one_name(make_world, make_etcd):
    etcd = make_etcd()
    world = make_world(4, env={"GOCCL_STORE": etcd.url("job")})
    assert world.run(run_one_name) == [[2.0] * 2] * 4
    etcd.wait_for(lambda keys: not keys)


def test_torch_groups(make_world, make_etcd):
    etcd = make_etcd()
    url = etcd.url("jobs/a")
    told = make_world(4, env={"GOCCL_STORE": url}).run(run_groups)
    assert told == [(url, "environment")] * 4
    etcd.wait_for(lambda keys: not keys)


def run_job(rank):
    init(rank, rank.rank % 2, 2)
    return total()


def test_two_jobs_at_a_time(make_world, make_etcd):
    etcd = make_etcd()
    env = {r: {"GOCCL_STORE": etcd.url("ab"[r // 2])} for r in range(4)}
    assert make_world(4, rank_env=env).run(run_job) == [[2.0] * 5] * 4
    etcd.wait_for(lambda keys: not keys)


def joined(*ranks):
    return lambda keys: (
        {r for r in range(9) if any(k.endswith(f"/join/{r}") for k in keys)} == {*ranks}
    )


@pytest.mark.parametrize("count", ["0", "1"])
def test_killed_while_meeting_and_restarted(make_world, make_etcd, count):
    etcd = make_etcd()
    env = {"GOCCL_STORE": etcd.url("job"), "TORCHELASTIC_RESTART_COUNT": "0"}
    world = make_world(3, env=env)
    world.start(init, None, None, 3, ranks=[0, 1])
    etcd.wait_for(joined(0, 1))
    world.signal(1, signal.SIGKILL)
    world.start(init, None, None, 3, ranks=[2])
    first, _, last = world.finish()
    for outcome in first, last:
        assert outcome.kind == "OperationTimeoutError", outcome
        assert outcome.blamed <= {1}, outcome
    assert "these have not joined" in first.error, first
    assert first.blamed == {1}, first
    env["TORCHELASTIC_RESTART_COUNT"] = count
    assert make_world(3, env=env).run(run_total) == [[3.0] * 5] * 3


def run_total(rank):
    init(rank)
    return total()


def test_etcd_stops_while_ranks_meet(make_world, make_etcd):
    etcd = make_etcd()
    world = make_world(3, env={"GOCCL_STORE": etcd.url("job")})
    world.start(init, None, None, 3, ranks=[0, 1])
    etcd.wait_for(joined(0, 1))
    etcd.stop()
    world.start(init, None, None, 2, ranks=[2])
    for outcome in world.finish():
        assert outcome.kind == "OperationTimeoutError", outcome
        assert f"etcd at {etcd.host} (GOCCL_STORE)" in outcome.error, outcome


def test_etcd_starts_again_while_ranks_meet(make_world, make_etcd):
    etcd = make_etcd()
    world = make_world(3, env={"GOCCL_STORE": etcd.url("job")})
    world.start(run_total, ranks=[0, 1])
    etcd.wait_for(joined(0, 1))
    etcd.stop()
    world.start(run_total, ranks=[2])
    etcd.start()
    assert world.values(world.finish()) == [[3.0] * 5] * 3
    etcd.wait_for(lambda keys: not keys)


def test_no_etcd_is_there(make_world):
    host = _free_host()
    env = {"GOCCL_STORE": f"etcd://{host}/job"}
    for outcome in make_world(2, env=env).outcomes(init, None, None, 1):
        assert outcome.kind == "OperationTimeoutError", outcome
        assert f"etcd at {host} (GOCCL_STORE)" in outcome.error, outcome
        assert "connection refused" in outcome.error, outcome


def init_at_store(rank):
    rank.init()


def test_a_bad_url(make_world):
    env = {"GOCCL_STORE": "etcd://name:pssst@host"}
    for outcome in make_world(2, env=env).outcomes(init_at_store):
        assert outcome.kind == "ValueError", outcome
        assert 'GOCCL_STORE is "etcd://(hidden)@host": it has no prefix' in outcome.error, outcome
        assert ALLOWED in outcome.error, outcome
        assert "pssst" not in outcome.error


# -- C


def c_total(me, size, unique_id=None):
    """What a communicator of C sums up."""
    core = Core()
    comm = core.init(unique_id, me, size, 60)
    a, b = ctypes.c_float(1), ctypes.c_float()
    addresses, one = (ctypes.byref(a), ctypes.byref(b)), ctypes.c_uint64(1)
    allreduce = ctypes.CDLL(str(LIBRARY)).goccl_allreduce
    float32, of_sum = ctypes.c_int(DTYPES["float32"]), ctypes.c_int(0)
    comm_of_c = ctypes.c_uint64(comm)
    assert allreduce(comm_of_c, *addresses, one, float32, of_sum, None, None, None) == 0
    core.destroy(comm)
    return b.value


def run_in_c(rank, ids):
    everybody = c_total(rank.rank, rank.size)  # neither an id nor a store
    # Two groups with one name at the same time, which their ids tell apart. Nobody meets at the
    # addresses in these, whose processes have ended.
    return everybody, c_total(rank.rank % 2, 2, ids[rank.rank // 2])


def test_c(make_world, make_etcd):
    code = "from goccl._ranks.capi import Core; print(Core().unique_id().hex())"
    ids = [
        bytes.fromhex(subprocess.check_output([sys.executable, "-c", code], text=True))
        for _ in range(2)
    ]
    etcd = make_etcd()
    world = make_world(4, env={"GOCCL_STORE": etcd.url("job")})
    assert world.run(run_in_c, ids) == [(4.0, 2.0)] * 4
    etcd.wait_for(lambda keys: not keys)


# -- joining


MEMBERS = "job/0//cpu///goccl/members/0"


def run_elastic(rank, members):
    """The first ranks are members. Others join later, by the etcd alone."""
    newcomer = rank.rank >= members
    if newcomer:
        rank.hear()
        init(rank, 0, 1)
    else:
        init(rank, rank.rank, members)
    state = goccl.elastic.ObjectState(ends=False)
    if newcomer:
        goccl.Communicator().join()

    @goccl.elastic.run
    def train(state):
        while not state.ends:
            ends = torch.tensor([0])
            if dist.get_rank() == 0 and dist.get_world_size() == members:
                rank.tell(dist.get_world_size())
                ends[0] = rank.hear()
            dist.broadcast(ends, 0)
            state.ends = bool(ends.item())
            state.commit()

    train(state)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()


@needs_elastic
def test_join(make_world, make_etcd):
    """A worker is killed, and another one finds the others."""
    etcd = make_etcd()
    world = make_world(4, env={"GOCCL_STORE": etcd.url("job")})
    world.start(run_elastic, 2)
    assert world.told(0) == 2
    etcd.wait_for(lambda keys: keys == [MEMBERS])
    world.signal(0, signal.SIGKILL)
    world.say("go", ranks=[2])
    assert world.told(1) == 2
    etcd.stop()
    etcd.start()
    world.say(0, ranks=[1])
    assert world.told(1) == 2
    world.signal(1, signal.SIGKILL)
    world.say("go", ranks=[3])
    assert world.told(2) == 2
    world.say(1, ranks=[2])
    assert world.values(world.finish(ranks=[2, 3])) == [2.0, 2.0]
    etcd.wait_for(lambda keys: not keys)


def run_join_alone(rank):
    init(rank, 0, 1, timeout=2)
    goccl.Communicator().join()


@needs_elastic
def test_join_without_members(make_world, make_etcd):
    etcd = make_etcd()
    world = make_world(1, env={"GOCCL_STORE": etcd.url("job")})
    (outcome,) = world.outcomes(run_join_alone)
    assert outcome.kind == "OperationTimeoutError", outcome
    assert 'at "goccl/members/0" of the store: nothing is there' in outcome.error
    etcd.stop()
    world = make_world(1, env={"GOCCL_STORE": etcd.url("job")})
    (outcome,) = world.outcomes(run_join_alone)
    assert outcome.kind == "OperationTimeoutError", outcome
    assert f"etcd at {etcd.host} (GOCCL_STORE)" in outcome.error
