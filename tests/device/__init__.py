"""The device of tests: built once, and told to torch as "testdev".

``testdev.cpp`` says what it does. Example::

    import device
    import torch

    device.load()
    device.configure(delay=1000)  # microseconds before each operation of a stream
    x = torch.ones(4, device="testdev:1")
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

SOURCE = Path(__file__).with_name("testdev.cpp")
ROOT = SOURCE.parents[2]
DEVICES = 2

_extension: Any = None


def build() -> Path:
    """Compiles the device for the torch that is here, where that has not been done.

    Returns:
        The extension module's file.
    """
    import torch.utils.cpp_extension as cpp

    to = ROOT / "build" / "device" / f"testdev-{torch.__version__}.so"
    if to.exists() and to.stat().st_mtime >= SOURCE.stat().st_mtime:
        return to
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_suffix(f".{os.getpid()}")
    includes = [*cpp.include_paths(), sysconfig.get_paths()["include"]]
    libraries = cpp.library_paths()
    subprocess.run(
        [
            *(os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC", "-w"),
            "-DTORCH_EXTENSION_NAME=testdev",
            *(f"-I{path}" for path in includes),
            str(SOURCE),
            *(f"-L{path}" for path in libraries),
            *(f"-Wl,-rpath,{path}" for path in libraries),
            *("-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python", "-o", str(part)),
        ],
        check=True,
    )
    part.rename(to)
    return to


class _Module(ModuleType):
    """``torch.testdev``: what torch, DDP and FSDP ask of a device's module."""

    Stream = torch.Stream
    Event = torch.Event

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return DEVICES

    @staticmethod
    def current_device() -> int:
        return torch.accelerator.current_device_index()

    @staticmethod
    def set_device(device: Any) -> None:
        torch.accelerator.set_device_index(device)

    @staticmethod
    @contextlib.contextmanager
    def device(device: Any) -> Iterator[None]:
        before = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(device)
        try:
            yield
        finally:
            torch.accelerator.set_device_index(before)

    @staticmethod
    def current_stream(device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream(device)

    @staticmethod
    def stream(stream: torch.Stream) -> torch.Stream:
        return stream

    @staticmethod
    def synchronize(device: Any = None) -> None:
        torch.accelerator.synchronize(device)

    @staticmethod
    def empty_cache() -> None: ...

    @staticmethod
    def manual_seed_all(seed: int) -> None: ...

    @staticmethod
    def get_rng_state(device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False


def load() -> None:
    """Makes "testdev" a device of this process's torch. It cannot be unloaded."""
    global _extension
    if _extension is not None:
        return
    torch.utils.rename_privateuse1_backend("testdev")
    path = build()
    loader = importlib.machinery.ExtensionFileLoader("testdev", str(path))
    spec = importlib.util.spec_from_file_location("testdev", path, loader=loader)
    assert spec is not None
    _extension = importlib.util.module_from_spec(spec)
    loader.exec_module(_extension)
    torch._register_device_module("testdev", _Module("torch.testdev"))
    torch.utils.generate_methods_for_privateuse1_backend(
        unsupported_dtype=[torch.quint8, torch.quint4x2, torch.qint32, torch.qint8]
    )


def configure(
    *,
    delay: int = 0,
    random: int = 0,
    rate: int = 0,
    fail_copy: int = 0,
    fail_late: bool = False,
    events: bool = True,
    pinned: bool = True,
    held: bool = False,
    capturing: bool = False,
) -> None:
    """Says how the device behaves from now on, and forgets its error.

    Args:
        delay: Microseconds before each operation of a stream.
        random: Up to so many more, at random.
        rate: Bytes a second of copies between host and device; 0: as fast as they go.
        fail_copy: So many copies from now one fails; 0: none does.
        fail_late: It fails in its stream, and not in its call.
        events: Whether there are any.
        pinned: Whether there is pinned memory.
        held: Whether streams do nothing until this is said anew.
        capturing: What streams say of whether a graph captures them.
    """
    _extension.configure(delay, random, rate, fail_copy, fail_late, events, pinned, held, capturing)


def count() -> dict[str, int]:
    """Counts of this process: "copies", "bytes" of them, "events" that were recorded, "streams",
    "recorded" tensors of streams, "late_writes" to memory that was free, "pinned" bytes now."""
    counts: dict[str, int] = _extension.count()
    return counts
