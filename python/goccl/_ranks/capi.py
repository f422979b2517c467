"""What ranks need of libgoccl.so.0 and libgoccl_bench.so.

The layout of Loop is that of capi/bench/bench.h.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from goccl import _capi, errors

from .buffers import Array
from .collectives import NO_OP
from .libraries import BENCH_LIBRARY, Unavailable

UNIQUE_ID_SIZE = _capi.UNIQUE_ID_SIZE

DTYPES = {name: value for value, name in enumerate(_capi.DTYPES)}
"""goccl_dtype by torch's names."""

OPS = {name: value for value, name in enumerate(_capi.OPS)} | {NO_OP: 0}
"""goccl_reduce_op by name; any where there is none."""


class Failed(Exception):
    """A call did not return GOCCL_OK; the text is the library's."""


class Loop(ctypes.Structure):
    """goccl_bench_loop."""

    _fields_ = (
        ("collective", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("op", ctypes.c_int),
        ("factor", ctypes.c_double * 2),
        ("root", ctypes.c_int),
        ("in_", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("in_count", ctypes.c_uint64),
        ("out_count", ctypes.c_uint64),
        ("values", ctypes.c_void_p),
        ("value_count", ctypes.c_uint64),
        ("meeting", ctypes.c_void_p),
        ("meeting_ms", ctypes.c_int64),
        ("twice", ctypes.c_int),
        ("element", ctypes.c_size_t),
    )


class Core:
    """The library, loaded. Unavailable where that does not work."""

    def __init__(self) -> None:
        try:
            self._library = _capi.library()
            self._measure = ctypes.CDLL(str(BENCH_LIBRARY)).goccl_bench_measure
        except (errors.Error, OSError, AttributeError) as error:
            raise Unavailable(str(error)) from error
        self._measure.restype = ctypes.c_char_p
        self._measure.argtypes = (
            ctypes.c_uint64,
            ctypes.POINTER(Loop),
            ctypes.c_uint64,
            ctypes.c_void_p,
            ctypes.c_void_p,
        )
        self.version: str = self._library.goccl_version().decode()

    def unique_id(self) -> bytes:
        """A new id, whose meeting point is in this process."""
        unique_id = ctypes.create_string_buffer(UNIQUE_ID_SIZE)
        self._call("goccl_get_unique_id", unique_id)
        return unique_id.raw

    def init(self, unique_id: bytes, rank: int, ranks: int, timeout: float) -> int:
        """Makes a communicator; all ranks call it."""
        config = _capi.Config(
            rank=rank,
            size=ranks,
            unique_id=unique_id,
            timeout_ms=int(timeout * 1000),
        )
        comm = ctypes.c_uint64()
        self._call("goccl_comm_init", ctypes.byref(comm), ctypes.byref(config))
        return comm.value

    def measure(
        self, comm: int, loop: Loop | None, iterations: int, us: int, ends: int | None
    ) -> None:
        """Calls over and over; us and ends are addresses of memory for the results."""
        problem = self._measure(comm, loop, iterations, us, ends)
        if problem is not None:
            raise Failed(problem.decode(errors="replace"))

    def alltoall_peaks(self, ranks: int, transport: str, schedule: str, nbytes: int) -> _capi.Peaks:
        """The most that a rank may have under way at once, where each sends nbytes to each."""
        peaks = _capi.Peaks()
        self._call(
            "goccl_alltoall_peaks",
            ranks,
            transport.encode(),
            schedule.encode(),
            nbytes,
            ctypes.byref(peaks),
        )
        return peaks

    def allocate(self, nbytes: int) -> Array:
        """Bytes of shareable memory, which are free again with the array."""
        memory = ctypes.c_void_p()
        self._call("goccl_mem_alloc", ctypes.byref(memory), nbytes)
        block = (ctypes.c_uint8 * nbytes).from_address(memory.value or 0)
        weakref.finalize(block, self._call, "goccl_mem_free", memory.value).atexit = False
        return np.ctypeslib.as_array(block)

    def destroy(self, comm: int) -> None:
        """Ends a communicator in good order."""
        self._call("goccl_comm_destroy", comm)

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(*arguments):
            raise Failed(self._library.goccl_last_error().decode(errors="replace"))
