"""The binding of libgoccl.so.0 by ctypes: structs, functions and errors of goccl.h and
goccl_bindings.h.

It needs neither torch nor NumPy. A call releases the GIL. `tests/test_capi.py` compares what is
declared here with the header.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import threading
from pathlib import Path
from typing import Any

from goccl import errors

LIBRARY = Path(__file__).parent / "lib" / "libgoccl.so.0"

INVALID_ARGUMENT, INVALID_HANDLE, IN_PROGRESS = 1, 2, 11
"""Values of goccl_result."""
NO_TIMEOUT = -1
UNIQUE_ID_SIZE = 128
HANDLE_SIZE = 1025

DTYPES = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "bool",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "bytes1",
)
"""Names of goccl_dtype, by value: torch's and NumPy's."""

OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
"""Names of goccl_reduce_op, by value."""

StoreSet = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
)
StoreGet = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_void_p,
    ctypes.c_size_t,
)
Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
"""goccl_callback."""


class Grown(ctypes.Structure):
    """A struct that may grow: its first field is its size here, which is set by itself."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Store(Grown):
    """goccl_store."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("context", ctypes.c_void_p),
        ("set", StoreSet),
        ("get", StoreGet),
    )


class Config(Grown):
    """goccl_config."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        ("unique_id", ctypes.c_char_p),
        ("store", ctypes.POINTER(Store)),
        ("group_name", ctypes.c_char_p),
        ("timeout_ms", ctypes.c_int64),
        ("liveness_grace_ms", ctypes.c_int64),
        ("transport", ctypes.c_char_p),
        ("interface_", ctypes.c_char_p),
        ("store_host", ctypes.c_char_p),
        ("secret", ctypes.c_char_p),
        ("incarnation", ctypes.c_char_p),
        ("alltoall_schedule", ctypes.c_char_p),
        ("global_ranks", ctypes.c_void_p),
        ("min_size", ctypes.c_int),
        ("quorum", ctypes.c_char_p),
        ("reconfigurable", ctypes.c_int),
        ("meeting", ctypes.c_char_p),
        ("recovery", ctypes.c_char_p),
        ("net", ctypes.c_char_p),
        ("ib_hca", ctypes.c_char_p),
        ("ib_gid_index", ctypes.c_char_p),
        ("algorithms", ctypes.c_char_p),
        ("thresholds", ctypes.c_char_p),
        ("links", ctypes.c_char_p),
        ("plans", ctypes.c_char_p),
        ("wire_dtype", ctypes.c_char_p),
        ("side_step", ctypes.c_char_p),
    )


class Member(Grown):
    """goccl_member."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("process", ctypes.c_uint64),
        ("pid", ctypes.c_int64),
        ("host", ctypes.c_char * 256),
    )


class Orphan(Grown):
    """goccl_orphan."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("rank", ctypes.c_int),
        ("size", ctypes.c_size_t),
        ("local_model", ctypes.c_void_p),
    )


class Call(Grown):
    """goccl_call."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("timeout_ms", ctypes.c_int64),
        ("wait_soon", ctypes.c_int),
        ("alltoall_schedule", ctypes.c_char_p),
        ("sequence", ctypes.c_void_p),
        ("contributors", ctypes.c_void_p),
        ("program", ctypes.c_int),
        ("feed", ctypes.c_void_p),
        ("wire_dtype", ctypes.c_int),
    )


class Peaks(Grown):
    """goccl_peaks."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("in_flight", ctypes.c_uint64),
        ("staging", ctypes.c_uint64),
        ("incast", ctypes.c_int),
    )


# What the functions take: i: an int or enum; q: int64_t; u: uint64_t or a handle; z: size_t;
# s: a text; p: any other pointer. They return a goccl_result, but for _TEXTS.
_FUNCTIONS = {
    "goccl_version": "",
    "goccl_result_string": "i",
    "goccl_last_error": "",
    "goccl_last_error_detail": "",
    "goccl_info": "pzp",
    "goccl_getenv": "spzp",
    "goccl_set_logger": "ppi",
    "goccl_get_unique_id": "p",
    "goccl_comm_init": "pp",
    "goccl_comm_split": "uiip",
    "goccl_comm_renew": "u",
    "goccl_comm_revoke": "us",
    "goccl_comm_recover": "uq",
    "goccl_comm_grow": "uiq",
    "goccl_comm_join": "pppi",
    "goccl_comm_publish": "upp",
    "goccl_comm_num_waiting": "up",
    "goccl_comm_shrink": "upiip",
    "goccl_comm_agree": "up",
    "goccl_comm_members": "upzp",
    "goccl_comm_epoch": "up",
    "goccl_comm_checkpoint": "upzpzi",
    "goccl_comm_load_checkpoint": "uppppp",
    "goccl_comm_orphans": "upzp",
    "goccl_comm_checkpoint_version": "up",
    "goccl_comm_handle": "upzp",
    "goccl_comm_reconfigure": "uspiiq",
    "goccl_mem_alloc": "pz",
    "goccl_mem_free": "p",
    "goccl_mem_stats": "ppp",
    "goccl_dump": "s",
    "goccl_trace_start": "p",
    "goccl_trace_read": "upzpp",
    "goccl_trace_stop": "u",
    "goccl_stats": "pzp",
    "goccl_status": "pzp",
    "goccl_comm_destroy": "u",
    "goccl_comm_abort": "us",
    "goccl_comm_async_error": "u",
    "goccl_comm_failed_ranks": "upzp",
    "goccl_shutdown": "",
    "goccl_comm_rank": "up",
    "goccl_comm_size": "up",
    "goccl_comm_transport": "uip",
    "goccl_comm_describe": "upzp",
    "goccl_comm_sequence": "up",
    "goccl_comm_algorithm": "uup",
    "goccl_comm_timeout": "up",
    "goccl_comm_set_timeout": "uq",
    "goccl_work_test": "u",
    "goccl_work_wait": "uq",
    "goccl_work_wait_all": "piqp",
    "goccl_work_wait_any": "piqp",
    "goccl_work_on_done": "upp",
    "goccl_work_error": "upz",
    "goccl_work_source": "up",
    "goccl_work_free": "u",
    "goccl_work_contributors": "up",
    "goccl_comm_init_async": "ppp",
    "goccl_comm_split_async": "uiipp",
    "goccl_comm_renew_async": "up",
    "goccl_comm_recover_async": "uqp",
    "goccl_comm_grow_async": "uiqp",
    "goccl_comm_join_async": "pppip",
    "goccl_comm_shrink_async": "upiipp",
    "goccl_comm_agree_async": "upp",
    "goccl_comm_reconfigure_async": "uspiiqp",
    "goccl_comm_checkpoint_async": "upzpzip",
    "goccl_comm_load_checkpoint_async": "upppppp",
    "goccl_allreduce": "uppuiippp",
    "goccl_allreduce_coalesced": "uipppiippp",
    "goccl_reduce": "uppuiipipp",
    "goccl_broadcast": "upuiipp",
    "goccl_allgather": "upppipp",
    "goccl_reduce_scatter": "upppiippp",
    "goccl_gather": "uppuiipp",
    "goccl_scatter": "uppuiipp",
    "goccl_alltoall": "uppppipp",
    "goccl_allgather_single": "uppuipp",
    "goccl_reduce_scatter_single": "uppuiippp",
    "goccl_alltoall_single": "uppuipp",
    "goccl_program_load": "szp",
    "goccl_program_free": "u",
    "goccl_program_text": "upzp",
    "goccl_program_export": "uspzp",
    "goccl_program_builtin": "spzp",
    "goccl_program_verify": "uupzp",
    "goccl_program_register": "uup",
    "goccl_program_unregister": "uu",
    "goccl_program_register_async": "uupp",
    "goccl_program_unregister_async": "uup",
    "goccl_program_run": "uupupuiippp",
    "goccl_barrier": "upp",
    "goccl_monitored_barrier": "uipp",
    "goccl_send": "upuiiipp",
    "goccl_recv": "upuiiipp",
    "goccl_memory_register": "upuip",
    "goccl_memory_deregister": "u",
    "goccl_memory_export": "up",
    "goccl_memory_import": "uipp",
    "goccl_memory_exchange": "uup",
    "goccl_memory_exchange_async": "uupp",
    "goccl_memory_map": "upp",
    "goccl_channel_open": "uiipp",
    "goccl_channel_close": "u",
    "goccl_channel_put": "uuupu",
    "goccl_channel_get": "upuuu",
    "goccl_channel_signal": "uu",
    "goccl_channel_put_signal": "uuupuu",
    "goccl_channel_put_signal_async": "uuupuuqp",
    "goccl_channel_wait": "uuq",
    "goccl_channel_wait_async": "uuqp",
    "goccl_channel_poll": "uu",
    "goccl_channel_flush": "uq",
    "goccl_channel_kind": "up",
    "goccl_proxy_create": "uuip",
    "goccl_proxy_fifo": "upp",
    "goccl_proxy_push": "upqp",
    "goccl_proxy_wait": "uuq",
    "goccl_proxy_stop": "uq",
    "goccl_proxy_destroy": "u",
    "goccl_group_start": "u",
    "goccl_group_end": "upp",
    "goccl_group_drop": "us",
    "goccl_simulate": "spzp",
    "goccl_comm_refuse": "us",
    "goccl_comm_side_step": "uss",
    "goccl_log": "iss",
    "goccl_alltoall_peaks": "issup",
    "goccl_plan_info": "siiiisupzp",
    "goccl_ps": "ipzp",
    "goccl_ps_judge": "spzp",
    "goccl_ps_dump": "sipzp",
    "goccl_trace_now": "p",
    "goccl_trace_copy": "iuu",
}
_TEXTS = (
    "goccl_version",
    "goccl_result_string",
    "goccl_last_error",
    "goccl_last_error_detail",
)
_KINDS: dict[str, Any] = {
    "i": ctypes.c_int,
    "q": ctypes.c_int64,
    "u": ctypes.c_uint64,
    "z": ctypes.c_size_t,
    "s": ctypes.c_char_p,
    "p": ctypes.c_void_p,
}


# What the library takes while it is loaded. Where it cannot have that, Go ends the process.
_ADDRESS_SPACE = 1700 << 20
_THREADS = 12
_REINSTALL = "Reinstall the goccl package for this platform (glibc on Linux is needed)."


@functools.cache
def library() -> ctypes.CDLL:
    """Returns the library with all functions declared. The first call loads it, and starts Go.

    Raises:
        goccl.Error: it cannot be loaded; the text says why and what to do.
    """
    _try_address_space()
    _try_threads()
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise errors.Error(f"cannot load {LIBRARY}: {error}. {_remedy(error)}") from error
    for name, kinds in _FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError as error:
            raise errors.Error(
                f"{LIBRARY} has no function {name}: it is of another version. {_REINSTALL}"
            ) from error
        function.argtypes = tuple(_KINDS[kind] for kind in kinds)
        function.restype = ctypes.c_char_p if name in _TEXTS else ctypes.c_int
    return loaded


def _remedy(error: OSError) -> str:
    if "static TLS block" in str(error):
        return (
            "Too many libraries with thread-local storage were loaded before it. Start Python with "
            "the environment variable GLIBC_TUNABLES=glibc.rtld.optional_static_tls=65536, or "
            "make the first group earlier in the program."
        )
    return _REINSTALL


def _try_address_space() -> None:
    try:
        space = mmap.mmap(-1, _ADDRESS_SPACE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
    except OSError as error:
        raise errors.Error(
            f"libgoccl.so.0 needs {_ADDRESS_SPACE >> 20} MiB of address space, which this "
            f"process may not have ({error.strerror}): raise its limit (ulimit -v)"
        ) from error
    space.close()


def _try_threads() -> None:
    end = threading.Event()
    started: list[threading.Thread] = []
    try:
        while len(started) < _THREADS:
            thread = threading.Thread(target=end.wait, name="goccl", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise errors.Error(
            f"libgoccl.so.0 needs {_THREADS} threads, and only {len(started)} more can be "
            f"started ({error}): raise the limit on the user's processes (ulimit -u), on those of "
            "the container (pids.max of its cgroup), or on address space (ulimit -v)"
        ) from error
    finally:
        end.set()
        for thread in started:
            thread.join()


def failure(result: int) -> Exception:
    """Returns the exception for what the last call of this thread returned, which was not
    GOCCL_OK."""
    text, detail = (
        told.decode(errors="replace")
        for told in (library().goccl_last_error(), library().goccl_last_error_detail())
    )
    text = text or library().goccl_result_string(result).decode()
    if result == INVALID_ARGUMENT:
        return ValueError(text)
    return errors._class_for(result, detail)(text)


def check(result: int) -> None:
    """Raises the exception for a result, unless it is GOCCL_OK.

    Raises:
        ValueError: GOCCL_INVALID_ARGUMENT.
        goccl.Error: the subclass of any other result.
    """
    if result:
        raise failure(result)


def text(function: str, *arguments: Any, size: int = 1 << 16) -> str:
    """Calls a function that writes a text, and returns that.

    Args:
        function: its name. Its last parameters are a buffer, `size` and `needed`, as those of
            goccl_info(). It is called again where the text is long.
        arguments: those before.
        size: of the first buffer, in bytes.

    Raises:
        ValueError, goccl.Error: the function has failed, or the library cannot be loaded.
    """
    while True:
        buffer, needed = ctypes.create_string_buffer(size), ctypes.c_size_t()
        check(getattr(library(), function)(*arguments, buffer, size, ctypes.byref(needed)))
        if needed.value <= size:
            return os.fsdecode(buffer.value)
        size = 2 * needed.value


def getenv(name: str) -> str:
    """Returns a setting by the environment, or else by a file of settings; "": by neither.

    Args:
        name: of the variable.

    Raises:
        goccl.Error: the library cannot be loaded.
    """
    return text("goccl_getenv", name.encode())


def call(function: str, *arguments: Any) -> Any:
    """Calls a function that writes JSON, and returns what that says; the rest is as of text()."""
    return json.loads(text(function, *arguments, size=1 << 20))
