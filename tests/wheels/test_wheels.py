"""Wheels as users have them: in environments outside the tree, without Go and compilers on PATH."""

import email
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

DDP = """
import torch, torch.distributed as dist
dist.init_process_group("goccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
for step in range(3):
    model(torch.full((4, 8), rank + 1.0)).sum().backward()
gradient = model.module.weight.grad
assert torch.equal(gradient, torch.full((1, 8), 3 * 4 * (1.0 + size) / 2)), gradient
dist.destroy_process_group()
print("trained")
"""

STAND_IN = """
import datetime, torch, torch.distributed as dist, goccl
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
half = dist.new_group([0, 1], backend="gloo")
mesh = dist.init_device_mesh("cpu", (size,))
for group in (None, half, mesh.get_group()):
    assert dist.get_backend(group) == "gloo", dist.get_backend(group)
    assert goccl.describe(group).stands_in_for == "gloo"
    told = [None] * size
    dist.all_gather_object(told, {"rank": rank}, group=group)
    assert told == [{"rank": r} for r in range(size)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
model(torch.full((4, 8), rank + 1.0)).sum().backward()
assert torch.equal(model.module.weight.grad, torch.full((1, 8), 4 * (1.0 + size) / 2))
dist.monitored_barrier()
dist.destroy_process_group()
dist.init_process_group()
assert goccl.describe().size == size
dist.destroy_process_group()
print("stood in")
"""

KILLED = """
import os, signal, sys, torch, torch.distributed as dist, goccl
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the others when it sees the death
dist.init_process_group("goccl")
tensor = torch.ones(4)
dist.all_reduce(tensor)
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(tensor)
except goccl.PeerFailedError as error:
    assert isinstance(error, dist.DistBackendError)
    print("failed ranks:", error.ranks)
"""

ARRAYS = """
import sys, numpy as np, goccl, goccl.numpy
assert "torch" not in sys.modules
with goccl.numpy.init() as comm:
    array = np.full(1000, comm.rank + 1, np.float32)
    total = comm.allreduce(array)
    assert (total == comm.size * (comm.size + 1) / 2).all()
    assert issubclass(goccl.Error, RuntimeError)
print("summed")
"""

CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(example C)
find_package(goccl 0.1 REQUIRED)
add_executable(allreduce {source})
target_link_libraries(allreduce goccl::goccl)
"""


def said(done):
    """What a command has printed that went well."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def ranks(environment, program, tmp_path, **variables):
    """Runs a program in two ranks."""
    script = tmp_path / "program.py"
    script.write_text(program)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    return environment.run("python", *launch, **variables)


def test_wheel_is_whole(wheel):
    assert re.fullmatch(
        r"goccl-[\d.]+-cp3\d+-cp3\d+-manylinux_2_34_(x86_64|aarch64)\.whl", wheel.name
    )
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = email.message_from_bytes(file.read(f"{info}/METADATA"))
        bill = json.loads(file.read(f"{info}/sboms/goccl.cdx.json"))
    always = [need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need]
    assert always == [], "it requires nothing: see docs/install.md"
    assert {"torch", "bench"} <= set(metadata.get_all("Provides-Extra"))
    assert metadata["License-Expression"] == "Apache-2.0 AND BSD-3-Clause AND MIT"
    for licence in metadata.get_all("License-File"):
        assert f"{info}/licenses/{licence}" in names
    links = re.findall(r"\]\(([^)]*)\)", metadata.get_payload())
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    linked = {part["name"] for part in bill["components"]}
    asked = subprocess.run(["go", "list", "-m", "all"], cwd=ROOT, capture_output=True, text=True)
    modules = {line.split()[0] for line in asked.stdout.splitlines()[1:]}
    assert linked == {"std", *modules}
    assert not [name for name in names if name.endswith((".o", ".pyc")) or "/part-" in name]


def test_info(environment):
    report = json.loads(said(environment.run("goccl", "info", "--json")))
    assert report["problems"] == []
    assert report["torch"]["found"].startswith(f"{environment.torch}.")
    extension = Path(report["torch"]["extension"])
    assert extension.is_relative_to(environment.folder)
    assert extension.parent.name == f"v{environment.torch.replace('.', '_')}"
    print(f"pip install has taken {environment.seconds:.1f} s")


def test_training(environment, tmp_path):
    assert said(ranks(environment, DDP, tmp_path)).count("trained") == 2


def test_stand_in_for_gloo(environment, tmp_path):
    asked = {"GOCCL_REPLACE_GLOO": "1", "GOCCL_DEFAULT": "1"}
    assert said(ranks(environment, STAND_IN, tmp_path, **asked)).count("stood in") == 2


def test_killed_rank(environment, tmp_path):
    done = ranks(environment, KILLED, tmp_path)
    assert "failed ranks: [1]" in done.stdout, done.stderr


def test_a_torch_without_its_extension(environment, tmp_path):
    """It is told, and is built: of the headers that are installed, and the same bytes."""
    if not environment.oldest:
        pytest.skip("a build takes a minute: the oldest torch is enough")
    (of_wheel,) = environment.folder.glob(
        f"lib/python*/site-packages/goccl/_torch/v{environment.torch.replace('.', '_')}/_C*.so"
    )
    aside = of_wheel.with_name("aside")
    of_wheel.rename(aside)
    try:
        cache = {"XDG_CACHE_HOME": str(tmp_path / "a cache")}
        done = environment.run("goccl", "info", **cache)
        assert done.returncode == 1
        assert "-m goccl build" in " ".join(done.stdout.split())
        done = environment.run("goccl", "build", "--check", **cache)
        assert done.returncode == 1
        assert "building goccl needs a C++ compiler" in done.stderr
        compiler = {"path": os.environ["PATH"]}
        assert "it can be built" in said(
            environment.run("goccl", "build", "--check", **compiler, **cache)
        )
        said(environment.run("goccl", "build", **compiler, **cache))
        (built,) = (tmp_path / "a cache").glob("goccl/*/torch-*/_C*.so")
        assert built.read_bytes() == aside.read_bytes()
        report = json.loads(said(environment.run("goccl", "info", "--json", **cache)))
        assert report["torch"]["extension"] == str(built)
    finally:
        aside.rename(of_wheel)


def test_arrays_without_torch(bare):
    done = bare.run("goccl", "info")
    assert done.returncode == 1
    assert "torch" in done.stdout
    with subprocess.Popen(
        [bare.folder / "bin" / "python", "-c", ARRAYS],
        env={**launched(1), "PATH": ""}, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert "summed" in said(bare.run("python", "-c", ARRAYS, **launched(0)))
        assert other.communicate(timeout=120)[0] == "summed\n"


def launched(rank):
    """What a launcher sets for two ranks of this host."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20000 + os.getpid() % 10000),
    }


def test_c_programs(bare, tmp_path):
    source = ROOT / "examples" / "c" / "allreduce.c"
    tools = {"path": os.environ["PATH"]}

    def flags(*arguments):
        return said(bare.run("goccl", "config", *arguments)).split()

    pkgconfig, cmake_dir = flags("--pkgconfig-dir")[0], flags("--cmake-dir")[0]
    by_pkg_config = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "goccl"],
        env={**os.environ, "PKG_CONFIG_PATH": pkgconfig}, capture_output=True, text=True,
    )  # fmt: skip
    for number, given in enumerate([flags(), said(by_pkg_config).split()]):
        program = tmp_path / f"program{number}"
        subprocess.run(["cc", source, *given, "-o", program], check=True, timeout=60)
        sums(program)
    project = tmp_path / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(CMAKE.format(source=source))
    cmake = shutil.which("cmake", path=tools["path"])
    assert cmake, "cmake is missing. On Debian: apt-get install cmake"
    for command in (
        [cmake, "-S", project, "-B", project / "build", f"-Dgoccl_DIR={cmake_dir}"],
        [cmake, "--build", project / "build"],
    ):
        said(subprocess.run(command, capture_output=True, text=True, timeout=120))
    sums(project / "build" / "allreduce")


def sums(program):
    done = subprocess.run([program, "2"], capture_output=True, text=True, timeout=60)
    assert said(done).count("is right") == 2
