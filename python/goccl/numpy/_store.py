"""Key-value stores at which ranks meet: the caller's, as the library calls them."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from goccl import _capi

_ABSENT, _FAILED = 1, -1
_served: list[Served] = []  # for ever: a function may run longer than whoever gave the store


class KeyValueStore(Protocol):
    """What ranks meet at: a key-value store that all share. torch's stores serve, too.

    Methods are called by one thread at a time, which is none of the program's.
    """

    def set(self, key: str, value: bytes, /) -> object:
        """Stores a value, over an older one."""

    def get(self, key: str, /) -> bytes | None:
        """Returns a value; None where there is none. It must not wait until there is."""


class Served:
    """A store as C takes it, in `struct`."""

    def __init__(self, store: KeyValueStore) -> None:
        if not hasattr(store, "set") or not hasattr(store, "get"):
            raise TypeError(
                f"store is of type {type(store).__name__}, it must have the methods set() and get()"
            )
        self._store = store
        self._functions = _capi.StoreSet(self._set), _capi.StoreGet(self._get)
        self.struct = _capi.Store(set=self._functions[0], get=self._functions[1])
        _served.append(self)

    def _set(self, _: Any, key: bytes, value: int, size: int, err: int, room: int) -> int:
        try:
            self._store.set(key.decode(), ctypes.string_at(value, size))
        except Exception as error:
            return _tell(error, err, room)
        return 0

    def _get(self, _: Any, key: bytes, value: Any, size: Any, err: int, room: int) -> int:
        try:
            found = self._read(key.decode())
            if found is None:
                return _ABSENT
            copy = _malloc(len(found) + 1)  # never of size 0, which may be NULL
            if not copy:
                raise MemoryError("out of memory")
            ctypes.memmove(copy, found, len(found))
        except Exception as error:
            return _tell(error, err, room)
        value[0], size[0] = copy, len(found)
        return 0

    def _read(self, key: str) -> bytes | None:
        # A store of torch waits for a key.
        check = getattr(self._store, "check", None)
        if check is not None and not check([key]):
            return None
        return self._store.get(key)


def _tell(error: Exception, err: int, room: int) -> int:
    text = (str(error) or repr(error)).encode(errors="replace")[: room - 1] + b"\0"
    ctypes.memmove(err, text, len(text))
    return _FAILED


_malloc = ctypes.CDLL(None).malloc
_malloc.argtypes, _malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
