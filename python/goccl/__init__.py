"""GoCCL: collective communication for CPU clusters, as a backend of torch.distributed.

Use it by name, `torch.distributed.init_process_group("goccl")`. No import is needed: torch finds
the installed package. This module has

- goccl.Options, the options of a group;
- goccl.describe and goccl.transports, what a group is made of, as data; goccl.algorithm, what ran;
- goccl.Communicator, collectives, sends and receives with less around them, and channels: one-sided
  puts, gets and signals between tensors of two ranks;
- goccl.empty, goccl.zeros, their *_like, and goccl.use_shareable_memory, tensors on which
  collectives of one host, or over RDMA, are faster;
- goccl.dump, what groups have done, for torchfrtrace; goccl.stats, the same as numbers;
  goccl.stragglers, for whom ranks wait; goccl.status, what they do;
- goccl.elastic, training that goes on when workers die or join;
- goccl.plan, collectives of your own;
- goccl.numpy, all of this for NumPy arrays, without torch;
- goccl.Error and its subclasses, the exceptions of failures (help(goccl.errors));
- goccl.torchft, for managers of torchft; goccl.debug, for torch's debug server;
- goccl.use_by_default and goccl.replace_gloo, for programs that name no backend, or Gloo;
- goccl.register, for where entry points are off.

help(goccl.Options) tells the options of a group. Environment variables can set most of them, too;
they are read when a group is made. `goccl info` lists all variables, with what is set.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from goccl import _finder  # noqa: F401  finds goccl._C
from goccl._later import when_imported

if TYPE_CHECKING:
    from typing_extensions import deprecated

    from goccl import debug, elastic, errors, numpy, plan, torchft  # noqa: F401  by their own names
    from goccl._C import Channel, Communicator, Memory, ProcessGroupGoccl, Proxy, RemoteMemory
    from goccl._groups import Description, Member, Setting, algorithm, describe, transports
    from goccl._memory import (
        empty,
        empty_like,
        is_shareable,
        memory_stats,
        use_shareable_memory,
        zeros,
        zeros_like,
    )
    from goccl._metrics import Straggler, stats, stragglers
    from goccl._side_step import side_step
    from goccl._stand_in import replace_gloo, use_by_default
    from goccl._trace import dump, status
    from goccl._wire import wire_dtype
    from goccl.errors import (
        AbortedError,
        Error,
        ExcludedError,
        MismatchError,
        NoQuorumError,
        OperationTimeoutError,
        PeerFailedError,
        RevokedError,
        UnsupportedError,
    )

    Options = ProcessGroupGoccl.Options

    @deprecated("is now goccl.use_shareable_memory")
    class MemPool(use_shareable_memory): ...


__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "Channel",
    "Communicator",
    "Description",
    "Error",
    "ExcludedError",
    "Member",
    "Memory",
    "MismatchError",
    "NoQuorumError",
    "OperationTimeoutError",
    "Options",
    "PeerFailedError",
    "Proxy",
    "RemoteMemory",
    "RevokedError",
    "Setting",
    "Straggler",
    "UnsupportedError",
    "algorithm",
    "describe",
    "dump",
    "elastic",
    "empty",
    "empty_like",
    "errors",
    "is_shareable",
    "memory_stats",
    "plan",
    "register",
    "replace_gloo",
    "side_step",
    "stats",
    "status",
    "stragglers",
    "transports",
    "use_by_default",
    "use_shareable_memory",
    "wire_dtype",
    "zeros",
    "zeros_like",
]

_NATIVE = ("Channel", "Communicator", "Memory", "Options", "Proxy", "RemoteMemory")
# Imported when they are first used: most import torch. torchft is no part of __all__, for
# `from goccl import *` would need the package torchft; nor is debug, which needs torch 2.15, nor
# numpy, whose name would hide the package numpy.
_MODULES = ("debug", "elastic", "errors", "numpy", "plan", "torchft")
_OLD = {"MemPool": "use_shareable_memory"}
_MODULE_OF = {
    name: module
    for module, names in {
        "_groups": ("Description", "Member", "Setting", "algorithm", "describe", "transports"),
        "_memory": (
            "empty",
            "empty_like",
            "is_shareable",
            "memory_stats",
            "use_shareable_memory",
            "zeros",
            "zeros_like",
        ),
        "_metrics": ("Straggler", "stats", "stragglers"),
        "_side_step": ("side_step",),
        "_stand_in": ("replace_gloo", "use_by_default"),
        "_trace": ("dump", "status"),
        "_wire": ("wire_dtype",),
        "errors": tuple(name for name in __all__ if name.endswith("Error")),
    }.items()
    for name in names
}


def register() -> None:
    """Makes the name "goccl" known to torch.distributed. Loads C++, if it is built
    for this torch, and no Go; harmless to repeat."""
    from goccl._registration import register_once

    register_once()


def _autoload() -> None:
    """Registers as part of `import torch`, which a failure here would break: so it is only told."""
    try:
        register()
    except Exception as error:  # whatever it is
        _warn('the backend "goccl" could not be registered: %r', error)
        return
    from goccl import _stand_in

    try:
        _stand_in.read_environment()
    except Exception as error:
        _warn("goccl stands in for no other backend: %s", error)


def _warn(text: str, error: Exception) -> None:
    import logging

    logging.getLogger("goccl").warning(text, error)


if not TYPE_CHECKING:  # where a module has __getattr__, a type checker takes any name for its own

    def __getattr__(name: str) -> Any:
        if name in _OLD:
            from goccl._old import warn_of_old

            warn_of_old(f"goccl.{name}", f"goccl.{_OLD[name]}")
            name = _OLD[name]
        if name in _NATIVE:
            from goccl._native import load

            native = load()
            return getattr(native.ProcessGroupGoccl if name == "Options" else native, name)
        if name in _MODULE_OF:
            return getattr(importlib.import_module(f"goccl.{_MODULE_OF[name]}"), name)
        if name in _MODULES:
            return importlib.import_module(f"goccl.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


# Not before torch is there: its import takes seconds, which `goccl --version` does without.
when_imported("torch", _autoload)
