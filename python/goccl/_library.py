"""Calls the core by ctypes: without torch, and without goccl._C."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import goccl

_PATH = Path(goccl.__file__).parent / "lib" / "libgoccl.so"
_SIZE = 1 << 20  # that most answers fit in


def ask(function: str) -> Any:
    """Calls a function of the core that writes JSON, and nothing else.

    It is of the library that goccl._C uses, too, whichever is loaded first.

    Args:
        function: its name, as in "goccl_ps".

    Returns:
        What the JSON has.

    Raises:
        OSError: the library cannot be loaded.
        RuntimeError: the function has failed.
    """
    library = ctypes.CDLL(str(_PATH))
    size = _SIZE
    while True:
        text, needed = ctypes.create_string_buffer(size), ctypes.c_size_t()
        if library[function](text, ctypes.c_size_t(size), ctypes.byref(needed)):
            library.goccl_last_error.restype = ctypes.c_char_p
            raise RuntimeError(library.goccl_last_error().decode())
        if needed.value <= size:
            return json.loads(text.value.decode())
        size = 2 * needed.value  # it may have grown by then
