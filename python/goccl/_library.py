"""Calls functions of libgoccl.so that give JSON, without torch's extension."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

_LIBRARY = Path(__file__).parent / "lib" / "libgoccl.so"


def call(function: str, *arguments: Any) -> Any:
    """Calls a function, and returns what its JSON says.

    Args:
        function: its name. Its last parameters are `json`, `size` and `needed`, as those of
            goccl_info(). It is called twice where its text is long.
        arguments: those before, as ctypes takes them.

    Raises:
        OSError: the library cannot be loaded.
        RuntimeError: the function has failed.
    """
    library = ctypes.CDLL(str(_LIBRARY))
    size = 1 << 20
    while True:
        text, needed = ctypes.create_string_buffer(size), ctypes.c_size_t()
        if library[function](*arguments, text, ctypes.c_size_t(size), ctypes.byref(needed)):
            library.goccl_last_error.restype = ctypes.c_char_p
            raise RuntimeError(library.goccl_last_error().decode())
        if needed.value <= size:
            return json.loads(text.value.decode())
        size = 2 * needed.value
