"""GoCCL: collective communication for CPU clusters, as a backend of torch.distributed.

Use it by name, `torch.distributed.init_process_group("goccl")`. No import is needed: torch finds
the installed package. This module has

- goccl.Options, the options of a group;
- goccl.describe and goccl.transports, what a group is made of, as data; goccl.algorithm, what ran;
- goccl.Communicator, collectives with less around them;
- goccl.empty, goccl.zeros, their *_like, and goccl.MemPool, tensors on which collectives of one
  host, or over RDMA, are faster;
- goccl.elastic, training that goes on when workers die or join;
- goccl.Error and its subclasses, the exceptions of failures (help(goccl.errors));
- goccl.register, for where entry points are off.

help(goccl.Options) tells the options of a group. Environment variables can set most of them, too;
they are read when a group is made. `goccl info` lists all variables, with what is set.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from goccl._later import when_imported

if TYPE_CHECKING:
    from goccl import elastic
    from goccl._C import Communicator, ProcessGroupGoccl
    from goccl._groups import Description, Member, algorithm, describe, transports
    from goccl._memory import (
        MemPool,
        empty,
        empty_like,
        is_shareable,
        memory_stats,
        zeros,
        zeros_like,
    )
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

__version__ = "0.1.0"

_NATIVE = ("Communicator", "Options")
_MODULES = {
    "errors": (
        "AbortedError",
        "Error",
        "ExcludedError",
        "MismatchError",
        "NoQuorumError",
        "OperationTimeoutError",
        "PeerFailedError",
        "RevokedError",
        "UnsupportedError",
    ),
    "_groups": ("Description", "Member", "algorithm", "describe", "transports"),
    "_memory": (
        "MemPool",
        "empty",
        "empty_like",
        "is_shareable",
        "memory_stats",
        "zeros",
        "zeros_like",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AbortedError",
    "Communicator",
    "Description",
    "Error",
    "ExcludedError",
    "MemPool",
    "Member",
    "MismatchError",
    "NoQuorumError",
    "OperationTimeoutError",
    "Options",
    "PeerFailedError",
    "RevokedError",
    "UnsupportedError",
    "__version__",
    "algorithm",
    "describe",
    "elastic",
    "empty",
    "empty_like",
    "is_shareable",
    "memory_stats",
    "register",
    "transports",
    "zeros",
    "zeros_like",
]


def register() -> None:
    """Makes the name "goccl" known to torch.distributed. Loads neither C++ nor Go; harmless to
    repeat."""
    from goccl._registration import register_once

    register_once()


def _autoload() -> None:
    """Registers as part of `import torch`, which a failure here would break: so it is only told."""
    try:
        register()
    except Exception as error:  # whatever it is
        import logging

        logging.getLogger("goccl").warning('the backend "goccl" could not be registered: %r', error)


def __getattr__(name: str) -> Any:
    if name in _NATIVE:
        from goccl._native import load

        native = load()
        return native.Communicator if name == "Communicator" else native.ProcessGroupGoccl.Options
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"goccl.{_MODULE_OF[name]}"), name)
    if name == "elastic":
        return importlib.import_module("goccl.elastic")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NATIVE, *_MODULE_OF, "elastic"])


# Not before torch is there: its import takes seconds, which `goccl --version` does without.
when_imported("torch", _autoload)
