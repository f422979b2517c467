"""Collectives, sends and receives of NumPy arrays, without torch.

    import goccl.numpy
    import numpy as np

    with goccl.numpy.init() as comm:  # under torchrun, mpirun or srun, or with a rank and a size
        total = comm.allreduce(np.arange(4.0))

It has what goccl.h has, in its words: init() and join() make a Communicator, whose methods are the
collectives. Whatever has the buffer protocol, or DLPack on the CPU, is taken for an array, too.
bfloat16 and 8-bit floats are those of the package ml_dtypes. empty() and zeros() make arrays that
ranks of a host map. Exceptions are those of goccl.errors. torch is not imported.
"""

from __future__ import annotations

from goccl._groups import Member

from ._arrays import complex32
from ._communicator import Batch, Checkpoint, Communicator, Orphan
from ._init import init, join, unique_id
from ._memory import empty, empty_like, zeros, zeros_like
from ._store import KeyValueStore
from ._work import Work, wait_all, wait_any

__all__ = [
    "Batch",
    "Checkpoint",
    "Communicator",
    "KeyValueStore",
    "Member",
    "Orphan",
    "Work",
    "complex32",
    "empty",
    "empty_like",
    "init",
    "join",
    "unique_id",
    "wait_all",
    "wait_any",
    "zeros",
    "zeros_like",
]
