"""Frameworks: the recipes of docs/howto, and programs that say "gloo", or nothing, which goccl
serves by one variable. Each gives the very numbers that it gives with Gloo."""

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path

import harness
import kubernetes_validate
import pytest
import recipes
import yaml

HOW_TO = recipes.ROOT / "examples" / "howto"
PROGRAMS = Path(__file__).parent / "programs"

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
GLOO = {"GOCCL_REPLACE_GLOO": "", "GOCCL_DEFAULT": ""}
STANDS_IN = {**GLOO, "GOCCL_REPLACE_GLOO": "1"}
DEFAULT = {**GLOO, "GOCCL_DEFAULT": "1"}


def using(name, *packages):
    """A parameter of a test, and what it uses."""
    return pytest.param(name, marks=pytest.mark.uses(*packages), id=name)


def ranks(program: Path, *args: str | Path, **env: str) -> list[str]:
    """Runs a program of two ranks.

    Returns:
        What the ranks have printed, in their order: their lines may be joined.
    """
    # Lightning starts the second rank by itself.
    launcher = ("python",) if "lightning" in program.name else TORCHRUN
    env |= {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(recipes.FOLDER / "extensions")}
    printed = recipes.run(*launcher, program, *args, **env)
    lines = sorted(re.findall(r"rank \d.*?(?=rank \d|$)", printed, re.M))
    assert [line[:6] for line in lines] == ["rank 0", "rank 1"], printed
    return lines


@pytest.mark.parametrize(
    "name",
    [
        using("accelerate_ddp", "accelerate"),
        using("deepspeed_zero", "deepspeed"),
        using("lightning_ddp", "lightning"),
    ],
)
def test_examples(name, tmp_path):
    """They name goccl. With the other name they give the same losses."""
    example = HOW_TO / f"{name}.py"
    lines = ranks(example, **GLOO)
    assert all("backend goccl, loss " in line for line in lines)
    gloo = ranks(recipes.with_gloo(example, tmp_path), **GLOO)
    assert [line.replace("gloo", "goccl") for line in gloo] == lines


@pytest.mark.uses("transformers")
def test_tensor_parallel_inference(tmp_path):
    """A small Llama with random weights says what it says with Gloo, and what one rank says."""
    folder = tmp_path / "model"
    recipes.run("python", PROGRAMS / "small_llama.py", folder)
    example = HOW_TO / "transformers_parallel.py"
    other = recipes.with_gloo(example, tmp_path)
    ours = recipes.run(*TORCHRUN, example, folder, **GLOO)
    assert ours == recipes.run(*TORCHRUN, other, folder, **GLOO)
    alone = recipes.run(*TORCHRUN[:-1], "1", example, folder, **GLOO)
    assert ours == alone
    assert len(ours.split()) == 24


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        pytest.param(name, ways, marks=pytest.mark.uses(*packages), id=" ".join(name))
        for name, ways, *packages in [
            (["accelerate_ddp"], [STANDS_IN], "accelerate"),
            (["deepspeed_zero", "1"], [STANDS_IN], "deepspeed"),
            (["deepspeed_zero", "2"], [STANDS_IN], "deepspeed"),
            (["fsdp"], [STANDS_IN], "torch"),
            (["lightning_ddp"], [STANDS_IN, DEFAULT], "lightning"),
            (["transformers_trainer"], [STANDS_IN], "transformers", "accelerate"),
        ]
    ],
)
def test_by_a_variable(name, ways, tmp_path):
    """Programs that do not name goccl: losses and parameters are those of Gloo, to the last bit."""
    program, *args = name
    run = [PROGRAMS / f"{program}.py", *args, *([tmp_path] if "trainer" in program else [])]
    gloo = ranks(*run, **GLOO)
    assert all("['ProcessGroupGloo']" in line for line in gloo)
    for way in ways:
        assert ranks(*run, **way) == [line.replace("Gloo", "Goccl") for line in gloo]


@pytest.mark.uses("transformers", "accelerate")
def test_trainer_takes_the_group_that_is_there(tmp_path):
    program = PROGRAMS / "transformers_trainer.py"
    other = tmp_path / "trainer.py"
    first = 'import torch.distributed as dist\ndist.init_process_group("goccl")\n'
    other.write_text(first + program.read_text())
    shutil.copy(PROGRAMS / "report.py", tmp_path)
    gloo = ranks(program, tmp_path, **GLOO)
    assert ranks(other, tmp_path, **GLOO) == [line.replace("Gloo", "Goccl") for line in gloo]


@pytest.mark.uses("kubernetes-validate")
def test_kubernetes_schemas():
    text = (HOW_TO / "kubernetes.yaml").read_text()
    for thing in yaml.safe_load_all(text):
        kubernetes_validate.validate(thing, "1.37", strict=True)
    *_, job = yaml.safe_load_all(text.replace("completionMode", "completionmode"))
    with pytest.raises(kubernetes_validate.ValidationError, match="completionmode"):
        kubernetes_validate.validate(job, "1.37", strict=True)


# -- torchft

WRAPPER = "goccl.torchft.ProcessGroupGoccl(timeout=timedelta(seconds=30))"
WAYS: dict[str, dict[str, str]] = {
    "goccl": {},
    "goccl, torchft 0.2": {},
    "a native group": {
        WRAPPER: "dist.group.WORLD",
        "import goccl.torchft": "import torch.distributed as dist",
        "\nmanager =": '\ndist.init_process_group("goccl", enable_reconfigure=True)\nmanager =',
    },
    "gloo": {
        WRAPPER: "torchft.ProcessGroupGloo(timeout=timedelta(seconds=30))",
        "import goccl.torchft": "import torchft",
    },
}


def torchft_of(way: str) -> tuple[Path | None, dict[str, str]]:
    """The programs and the variables of the version of torchft that a way is for."""
    if not way.endswith("0.2"):
        return None, {}
    apart = recipes.apart("torchft")
    (packages,) = apart.glob("lib/python*/site-packages")
    paths = [str(packages), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return apart / "bin", {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Torchft:
    """A lighthouse, and replicas of the example under torchrun.

    Args:
        way: of WAYS: what is replaced in the example.
        folder: for files.
        replicas: without which there is no quorum.
        options: more of the lighthouse, in milliseconds.
    """

    def __init__(self, way: str, folder: Path, replicas: int, **options: int):
        self._folder = folder
        self._port = harness.free_port()
        self._path, self._env = torchft_of(way)
        text = (HOW_TO / "torchft_ddp.py").read_text()
        for old, new in WAYS[way].items():
            assert old in text
            text = text.replace(old, new)
        (folder / "program.py").write_text(text)
        words = [f"--bind=0.0.0.0:{self._port}", f"--min_replicas={replicas}"]
        words += [f"--{name}={value}" for name, value in options.items()]
        self._lighthouse = self._start("lighthouse", "torchft_lighthouse", *words)

    def close(self):
        """Ends the lighthouse."""
        self._lighthouse.kill()
        self._lighthouse.communicate()

    def _start(self, name, *words, **env):
        """Starts a program that writes into a file, and into another one what it logs."""
        (self._folder / name).touch()
        into = ("bash", "-c", 'exec "${@:2}" >"$1" 2>"$1.log"', "bash", self._folder / name)
        return recipes.start(*into, *words, path=self._path, **self._env, **env)

    def replica(self, number: int, steps: int):
        """Starts a replica, which torchrun starts again when it dies."""
        launcher = ("torchrun", "--standalone", "--nproc-per-node=1", "--max-restarts=3")
        env = {"REPLICA_GROUP_ID": str(number)}
        env["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{self._port}"
        words = (*launcher, self._folder / "program.py", str(steps))
        return self._start(f"replica{number}", *words, **env)

    def steps(self, number: int) -> list[tuple[int, int, str]]:
        """What a replica has printed: the step, the number of replicas, and a parameter."""
        text = (self._folder / f"replica{number}").read_text()
        found = re.findall(r"^step (\d+) of (\d+) replicas: bias (\S+)$", text, re.M)
        return [(int(step), int(replicas), bias) for step, replicas, bias in found]


def both_finish(way, folder):
    """Runs two replicas without a fault; returns what they print."""
    with contextlib.closing(Torchft(way, folder, replicas=2)) as job:
        ended = harness.finished(job.replica(0, 40), job.replica(1, 40), seconds=240)
    texts = "\n".join(file.read_text() for file in sorted(folder.iterdir()))
    assert [program.returncode for program in ended] == [0, 0], texts
    first, second = job.steps(0), job.steps(1)
    assert first == second
    assert [line[:2] for line in first] == [(step, 2) for step in range(1, 41)]
    return first


@pytest.fixture(scope="module")
def by_gloo(tmp_path_factory):
    return both_finish("gloo", tmp_path_factory.mktemp("gloo"))


OURS = [using(way, "torchft" if "0.2" in way else "torchft-nightly") for way in list(WAYS)[:3]]


@pytest.mark.parametrize("way", OURS)
def test_torchft(way, tmp_path, by_gloo):
    assert both_finish(way, tmp_path) == by_gloo


@pytest.mark.parametrize("way", OURS[:2])
def test_quorums_of_torchft(way):
    """The test of the package, which asks for torchft."""
    path, env = torchft_of(way)
    tests = recipes.ROOT / "tests" / "test_torchft.py"
    assert "1 passed" in recipes.run("python", "-m", "pytest", tests, path=path, **env)


@pytest.mark.parametrize("way", OURS)
def test_torchft_goes_on_when_a_replica_dies(way, tmp_path):
    """The other one goes on alone, and the dead one comes back with what that has learnt."""
    # A death is known before torchrun has started another worker.
    job = Torchft(way, tmp_path, replicas=1, heartbeat_timeout_ms=1000, join_timeout_ms=1000)
    launchers = [job.replica(number, 10**9) for number in (0, 1)]

    def together():
        """What each has printed of the steps that both have done together."""
        found = [{step: bias for step, size, bias in job.steps(n) if size == 2} for n in (0, 1)]
        return [{step: of[step] for step in found[0].keys() & found[1].keys()} for of in found]

    harness.until(lambda: len(together()[0]) >= 20, seconds=240)
    before = max(together()[0])
    worker = harness.descendants(launchers[1].pid)[-1]
    os.kill(worker, signal.SIGKILL)

    def alone():
        return [step for step, size, _ in job.steps(0) if size == 1 and step > before]

    harness.until(alone, seconds=240)
    after = alone()[0]
    harness.until(lambda: len([s for s in together()[0] if s > after]) >= 20, seconds=240)
    first, second = together()
    assert first == second
