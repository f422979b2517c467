"""The libraries that can be measured: where they are found, and how their ranks are started."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import os
import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from goccl._command import missing, to_bring
from goccl._ranks.libraries import CORE, DEVICE_VARIABLE, Library, Unavailable, core_library

GOCCL = {"torch": "goccl", "c": CORE, "numpy": "goccl-numpy"}
"""Names of GoCCL by the way in which it is called: through torch.distributed, from C, or by
goccl.numpy."""
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
ABI = "mpi-abi"
"""The name of whichever MPI has the ABI of MPI-5."""
PEERS = ("gloo", *_MPIS, ABI)
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
    if way == "torch":
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
    if name == ABI:
        home, library, packages = _find_abi()
        # Whichever it is, it heeds its own variables only.
        environment = dict(itertools.chain(*(mpi.environment.items() for mpi in _MPIS.values())))
        # The module of mpi4py is linked to the library by name.
        paths = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
        options: tuple[str, ...] = ()
    else:
        mpi = _MPIS[name]
        home, packages = _find_mpi(mpi)
        library = home / "lib" / mpi.soname
        environment, options = {**mpi.environment}, mpi.options
    environment |= {"MPI4PY_LIBMPI": str(library), "PYTHONPATH": str(packages)}
    if name in ("mpich", ABI) and ranks > len(os.sched_getaffinity(0)):
        # The others notice by themselves that ranks share a CPU. MPICH must be told to yield, and
        # never to go over to the algorithms for many calls, which spin without it and take a
        # hundred times as long.
        environment |= {
            "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
            "MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD": "1000000000",
        }
    if name in ("openmpi", ABI) and os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    launcher = [str(home / "bin" / "mpiexec"), *options, "-n", str(ranks)]
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
    return name in (*_MPIS, ABI)


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
    places = _below(own)
    if _owns_environment(mpi.package):
        places.append(Path(sys.prefix))
    for home in places:
        if (home / "bin" / "mpiexec").exists() and (home / "lib" / mpi.soname).exists():
            for folder in _packages_below(home):
                if (folder / "mpi4py").is_dir():
                    return home, folder
    command = to_bring(f"--ignore-installed --prefix {shlex.quote(str(own))} {mpi.package} mpi4py")
    raise Unavailable(f"not installed; {command}")


def _below(folder: Path) -> list[Path]:
    """Where a pip puts what it installs with this prefix: Debian's puts it into X/local."""
    return [folder, folder / "local"]


def _packages_below(home: Path) -> list[Path]:
    """Where the Python packages of a prefix are."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [home / "lib" / version / name for name in ("site-packages", "dist-packages")]


def _find_abi() -> tuple[Path, Path, Path]:
    """The folder of an MPI that has the ABI of MPI-5, its library, and the folder of an mpi4py that
    is built for the ABI: in a folder of its own, or that whose mpiexec is on PATH."""
    own = _below(peers_folder() / ABI)
    launcher = shutil.which("mpiexec")
    homes = own + ([Path(launcher).resolve().parent.parent] if launcher else [])
    spec = importlib.util.find_spec("mpi4py")
    here = [Path(spec.origin).parent.parent] if spec and spec.origin else []
    for home in homes:
        libraries = [*home.glob("lib*/libmpi_abi.so*"), *home.glob("lib/*/libmpi_abi.so*")]
        if not libraries or not (home / "bin" / "mpiexec").exists():
            continue
        prefixes = dict.fromkeys([home, *own])
        below = [folder for prefix in prefixes for folder in _packages_below(prefix)]
        for folder in [*below, *here]:
            if _has_abi(folder):
                return home, sorted(libraries)[0], folder
    prefix = shlex.quote(str(own[0]))
    command = to_bring(f"--no-binary mpi4py --ignore-installed --prefix {prefix} mpi4py")
    raise Unavailable(
        f"no MPI with libmpi_abi.so is in {own[0]} or on PATH, or no mpi4py that is built for it;"
        f" with the variables MPI4PY_BUILD_MPIABI=1 and MPICC=mpicc_abi {command}"
    )


def _has_abi(packages: Path) -> bool:
    """Whether a folder has an mpi4py that may be for the ABI: its wheels are for two MPIs, and name
    them."""
    modules = [path.name.split(".")[1] for path in packages.glob("mpi4py/MPI.*.so")]
    return any(name not in ("mpich", "openmpi") for name in modules)


def _owns_environment(package: str) -> bool:
    installed = {other.package for other in _MPIS.values() if _is_installed(other.package)}
    return installed == {package}


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
