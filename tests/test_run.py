"""`goccl run`: torch's variables from those of launchers, real processes, and texts of errors."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from goccl import _launch, _run

SIX = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SHOW = f"import os, sys; print(*map(os.environ.get, {SIX}), *sys.argv[1:])"
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC", "SLURM_", "OMPI_", "PMI_")

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "MASTER_ADDR": "one",
}  # fmt: skip
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3", "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "node[03-05]", "SLURM_JOB_ID": "4711",
}  # fmt: skip
TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "two", "MASTER_PORT": "1234", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
LAUNCHERS = {
    "open mpi": (OPEN_MPI, "5 8 1 4 one 29500"),
    "open mpi on one host": (
        OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "MASTER_ADDR": ""},
        "5 8 1 8 127.0.0.1 29500",
    ),
    "mpich": (PMI | {"MASTER_PORT": "7"}, "1 2 1 2 127.0.0.1 7"),
    "slurm": (SLURM, "5 7 0 3 node03 24711"),
    "slurm with pmi2": (
        SLURM | {"PMI_RANK": "5", "PMI_SIZE": "7"},
        "5 7 0 3 node03 24711",
    ),
    "mpirun in a job of slurm": (OPEN_MPI | SLURM, "5 8 1 4 one 24711"),
    "torchrun": (TORCHRUN, "3 4 1 2 two 1234"),
    "torchrun in a step of slurm": (TORCHRUN | SLURM, "3 4 1 2 two 1234"),
    "slurm, with a long job number and an empty port": (
        SLURM | {"SLURM_JOB_ID": "4" * 5000, "MASTER_PORT": ""},
        "5 7 0 3 node03 29500",
    ),
    "by hand": ({"RANK": "0", "WORLD_SIZE": "1"}, "0 1 None None 127.0.0.1 29500"),
}


def goccl_run(*words, **env):
    clean = {n: v for n, v in os.environ.items() if not n.startswith((*LAUNCHER, "MPI_"))}
    return subprocess.run(
        [sys.executable, "-m", "goccl", "run", *words],
        env=clean | env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_variables_of_launchers(launcher):
    environ, shown = LAUNCHERS[launcher]
    found = _run.variables(environ)
    assert " ".join(str(found.get(name)) for name in SIX) == shown


def test_what_is_run(tmp_path: Path):
    """A script, a module, and any program; arguments stay, and the status is the program's."""
    (tmp_path / "show.py").write_text(SHOW)
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    env = {**PMI, "MASTER_PORT": "7", "PYTHONPATH": paths}
    for words in ([str(tmp_path / "show.py")], ["-m", "show"], [sys.executable, "-m", "show"]):
        done = goccl_run(*words, "-m", "--help", "x y", **env)
        assert done.stdout == "1 2 1 2 127.0.0.1 7 -m --help x y\n", done
    assert goccl_run("sh", "-c", 'exit "$RANK"', **env).returncode == 1
    assert goccl_run("--", "true", **env).returncode == 0
    signals = goccl_run("grep", "SigIgn", "/proc/self/status", **env).stdout.split()[1]
    own = signal.SIGPIPE, signal.SIGXFSZ
    assert not any(int(signals, 16) >> (number - 1) & 1 for number in own)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "no launcher has started this process: use srun, mpirun or torchrun, or set RANK"),
        ({"SLURM_PROCID": "0"}, "no launcher has started this process"),
        ({"RANK": "1"}, "RANK is set, and WORLD_SIZE is not: set both or none"),
        ({"WORLD_SIZE": "1"} | PMI, "WORLD_SIZE is set, and RANK is not: set both or none"),
        (
            {"RANK": "0", "WORLD_SIZE": "8"} | OPEN_MPI,
            "RANK is '0', but OMPI_COMM_WORLD_RANK is '5': unset RANK if it is left over",
        ),
        (
            {"RANK": "5", "WORLD_SIZE": "4"} | SLURM,
            "WORLD_SIZE is '4', but SLURM_STEP_NUM_TASKS is '7': unset WORLD_SIZE if it is left",
        ),
        (
            {"RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "5"} | SLURM,
            "LOCAL_RANK is '5', but SLURM_LOCALID is '0'",
        ),
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "8"},
            "OMPI_COMM_WORLD_RANK is '8', allowed are 0 to 7",
        ),
        (PMI | {"MPI_LOCALRANKID": "2"}, "MPI_LOCALRANKID is '2', allowed are 0 to 1"),
        (PMI | {"MPI_LOCALNRANKS": "3"}, "MPI_LOCALNRANKS is '3', allowed are 1 to 2"),
        (SLURM | {"SLURM_LOCALID": "3"}, "SLURM_LOCALID is '3', allowed are 0 to 2"),
        (OPEN_MPI | {"MASTER_ADDR": ""}, "MASTER_ADDR is not set: set it to the host of rank 0"),
        (
            SLURM | {"PMI_RANK": "0", "PMI_SIZE": "7"},
            "PMI_RANK is '0', but SLURM_PROCID is '5': unset PMI_RANK if it is left over",
        ),
        (
            SLURM | {"SLURM_STEP_TASKS_PER_NODE": "8(x3)"},
            "SLURM_STEP_TASKS_PER_NODE tells 8 tasks of this host, but SLURM_STEP_NUM_TASKS is 7",
        ),
        (SLURM | {"SLURM_STEP_NODELIST": "["}, "SLURM_STEP_NODELIST is '[', which begins with no"),
        (PMI | {"PMI_RANK": "\u0661"}, "PMI_RANK is '\u0661', allowed are 0 to 1"),
        (PMI | {"PMI_SIZE": "9" * 5000}, f"PMI_SIZE is '{'9' * 80}', allowed are 1 to 65536"),
        (PMI | {"MASTER_PORT": "0"}, "MASTER_PORT is '0', allowed are 1 to 65535"),
    ],
)
def test_what_is_refused(environ, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        _run.variables(environ)


@pytest.mark.parametrize(
    ("words", "env", "status", "told"),
    [
        (["true"], {}, 2, "no launcher has started this process"),
        ([""], PMI, 2, "no program is given"),
        ([], PMI, 2, "no program is given: goccl run [-m] program [argument ...]"),
        (["--nproc", "2", "x.py"], PMI, 2, "error: unrecognized arguments: --nproc"),
        (["no-such-program"], PMI, 127, "cannot run 'no-such-program': No such file"),
        (["/"], PMI, 126, "cannot run '/': Permission denied"),
    ],
)
def test_statuses(words, env, status, told):
    done = goccl_run(*words, **env)
    assert (done.returncode, done.stdout) == (status, "")
    assert f"goccl run: {told}" in done.stderr


def test_help_names_examples_and_statuses():
    text = goccl_run("--help").stdout
    for part in ("usage: goccl run [-h] [-m] program", "srun --nodes 2", "mpirun", "  127  "):
        assert part in text


def test_tasks_of_a_host_in_slurm():
    for tasks, node, count in (
        ("4", "0", 4), ("2(x2),3", "1", 2), ("2(x2),3", "2", 3), ("x,1", "1", 0), ("2", "1", 0),
        ("1(x999999999)", "5", 1), ("1(x" + "9" * 5000 + ")", "0", 0), ("1", "9" * 5000, 0),
    ):  # fmt: skip
        found = {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": node}
        assert _launch._tasks(found) == count


def test_ranks_meet(tmp_path: Path):
    """Two processes, as mpirun would start them."""
    from harness import free_port

    program = tmp_path / "sum.py"
    program.write_text(
        "import torch, torch.distributed as dist\n"
        'dist.init_process_group("goccl")\n'
        "x = torch.ones(1)\ndist.all_reduce(x)\nprint(dist.get_rank(), x.item())\n"
    )
    clean = {n: v for n, v in os.environ.items() if not n.startswith((*LAUNCHER, "MPI_"))}
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "goccl", "run", str(program)],
            env=clean | PMI | {"PMI_RANK": str(r), "MPI_LOCALRANKID": str(r), "MASTER_PORT": port},
            stdout=subprocess.PIPE, text=True,
        )
        for r in range(2)
    ]  # fmt: skip
    try:
        shown = sorted(process.communicate(timeout=60)[0] for process in started)
    finally:
        for process in started:
            process.kill()
    assert shown == ["0 2.0\n", "1 2.0\n"]
