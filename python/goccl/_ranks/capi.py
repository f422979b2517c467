"""What ranks need of libgoccl.so and libgoccl_bench.so, by ctypes.

The layouts are those of capi/goccl.h and capi/bench/bench.h.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from .buffers import Array
from .libraries import BENCH_LIBRARY, LIBRARY

UNIQUE_ID_SIZE = 128

DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 4,
    "int64": 6,
    "float16": 8,
    "bfloat16": 9,
    "float32": 10,
    "float64": 11,
}
"""goccl_dtype by torch's names, of what can be benched."""


class Failed(Exception):
    """A call did not return GOCCL_OK; the text is the library's."""


class Config(ctypes.Structure):
    """goccl_config."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        ("unique_id", ctypes.c_char_p),
        ("store", ctypes.c_void_p),
        ("group_name", ctypes.c_char_p),
        ("timeout_ms", ctypes.c_int64),
        ("liveness_grace_ms", ctypes.c_int64),
        ("transport", ctypes.c_char_p),
        ("interface", ctypes.c_char_p),
        ("store_host", ctypes.c_char_p),
        ("secret", ctypes.c_char_p),
        ("incarnation", ctypes.c_char_p),
    )


class Loop(ctypes.Structure):
    """goccl_bench_loop."""

    _fields_ = (
        ("collective", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
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


class Peaks(ctypes.Structure):
    """goccl_peaks."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("in_flight", ctypes.c_uint64),
        ("staging", ctypes.c_uint64),
        ("incast", ctypes.c_int),
    )


_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "goccl_get_unique_id": (ctypes.c_char_p,),
    "goccl_comm_init": (ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(Config)),
    "goccl_alltoall_peaks": (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_uint64,
        ctypes.POINTER(Peaks),
    ),
    "goccl_comm_destroy": (ctypes.c_uint64,),
    "goccl_mem_alloc": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t),
    "goccl_mem_free": (ctypes.c_void_p,),
}


class Core:
    """The library, loaded. OSError where that does not work."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(LIBRARY))
        self._library.goccl_version.restype = ctypes.c_char_p
        self._library.goccl_last_error.restype = ctypes.c_char_p
        self._measure = ctypes.CDLL(str(BENCH_LIBRARY)).goccl_bench_measure
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
        config = Config(
            struct_size=ctypes.sizeof(Config),
            rank=rank,
            size=ranks,
            unique_id=unique_id,
            timeout_ms=int(timeout * 1000),
        )
        comm = ctypes.c_uint64()
        self._call("goccl_comm_init", comm, config)
        return comm.value

    def measure(
        self, comm: int, loop: Loop | None, iterations: int, us: int, ends: int | None
    ) -> None:
        """Calls over and over; us and ends are addresses of memory for the results."""
        problem = self._measure(comm, loop, iterations, us, ends)
        if problem is not None:
            raise Failed(problem.decode(errors="replace"))

    def alltoall_peaks(self, ranks: int, transport: str, schedule: str, nbytes: int) -> Peaks:
        """The most that a rank may have under way at once, where each sends nbytes to each."""
        peaks = Peaks(struct_size=ctypes.sizeof(Peaks))
        self._call(
            "goccl_alltoall_peaks", ranks, transport.encode(), schedule.encode(), nbytes, peaks
        )
        return peaks

    def allocate(self, nbytes: int) -> Array:
        """Bytes of shareable memory, which are free again with the array."""
        memory = ctypes.c_void_p()
        self._call("goccl_mem_alloc", memory, nbytes)
        block = (ctypes.c_uint8 * nbytes).from_address(memory.value or 0)
        weakref.finalize(block, self._call, "goccl_mem_free", memory.value).atexit = False
        return np.ctypeslib.as_array(block)

    def destroy(self, comm: int) -> None:
        """Ends a communicator in good order."""
        self._call("goccl_comm_destroy", comm)

    def _call(self, name: str, *arguments: Any) -> None:
        function = self._library[name]
        function.argtypes = _ARGUMENTS[name]
        if function(*arguments):
            raise Failed(self._library.goccl_last_error().decode(errors="replace"))
