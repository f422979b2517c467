"""Works: operations that go on while the program does something else."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from goccl import _capi, errors

SLICE = 100
"""Milliseconds that a thread waits before it looks at signals."""
_MOST = 1 << 62  # milliseconds: forever

_lock = threading.Lock()  # of the ends of works; __del__() must not take it
_left: dict[int, object] = {}  # what works need that nobody waits for, by their handles
_heard: dict[int, Work] = {}  # works with a function to be called, by a number
_numbers = itertools.count(1)


def milliseconds(name: str, given: float | timedelta, *, least: int) -> int:
    """Reads a duration, and rounds it up: a short one must not become 0.

    Args:
        name: of the argument.
        given: seconds, or a timedelta.
        least: what is allowed, in milliseconds.

    Raises:
        TypeError: it is neither.
        ValueError: it is less, or no number.
    """
    if isinstance(given, timedelta):
        ms: float = -(-given // timedelta(milliseconds=1))
    elif isinstance(given, bool) or not isinstance(given, (int, float)):
        raise TypeError(f"{name} is {given!r}, it must be seconds or a datetime.timedelta")
    elif math.isnan(given):
        raise ValueError(f"{name} is {given!r}, it must be a number of seconds")
    else:
        ms = given * 1000
        ms = _MOST if ms > _MOST else -_MOST if ms < -_MOST else math.ceil(ms)
    if ms < least:
        raise ValueError(f"{name} is {given!r}, it must be at least {least / 1000:g} seconds")
    return int(min(ms, _MOST))


def sweep() -> None:
    """Lets go of works that nobody waits for and that have ended."""
    for handle in list(_left):
        if _capi.library().goccl_work_test(handle) != _capi.IN_PROGRESS and _left.pop(handle, None):
            _capi.library().goccl_work_free(handle)


class Work:
    """An operation that goes on: what a call with `async_op=True` returns.

    Arrays of the call belong to the operation until it has ended: outputs must be neither read nor
    written, inputs not be changed. The work keeps them alive, also where it is dropped: the
    operation goes on all the same. Any thread may call the methods.
    """

    __slots__ = (
        "__weakref__",
        "_contributors",
        "_ended",
        "_failure",
        "_function",
        "_handle",
        "_keep",
        "_kind",
        "_result",
        "_source",
    )

    def __init__(self, handle: int, keep: object, result: Any, kind: str = "collective") -> None:
        # result: what wait() returns, or a function that makes it at the end. kind: "collective";
        # "recv"; "made" of a communicator, which is given up where the work is dropped; or "".
        self._handle, self._keep, self._result, self._kind = handle, keep, result, kind
        self._ended = False
        self._failure: Exception | None = None
        self._contributors: int | None = None
        self._source: int | None = None
        self._function: Callable[[Work], object] | None = None
        if not handle:
            self._end(0)

    def __del__(self) -> None:
        if getattr(self, "_ended", True):  # __init__() may have failed
            return
        if self._kind == "made":
            _capi.library().goccl_work_free(self._handle)
        else:
            _left[self._handle] = (self._keep, self._result)

    def _end(self, code: int) -> None:
        """Takes what is known of the end. The thread has just been told the code."""
        with _lock:
            if self._ended:
                return
            library, handle, number = _capi.library(), self._handle, ctypes.c_int()
            if code:
                self._failure = _capi.failure(code)
                self._failure._told = True  # type: ignore[attr-defined]  # as of calls
            elif self._kind == "collective":
                if not library.goccl_work_contributors(handle, ctypes.byref(number)):
                    self._contributors = number.value
            elif self._kind == "recv" and not library.goccl_work_source(
                handle, ctypes.byref(number)
            ):
                self._source = number.value
            if handle:
                library.goccl_work_free(handle)
            self._ended = True
            self._handle, self._keep = 0, None
            if self._failure:
                self._result = None
            elif callable(self._result):
                self._result = self._result(self)

    def test(self) -> bool:
        """Tells whether the operation has ended well.

        Raises:
            goccl.Error: it has failed.
        """
        if not self._ended:
            code = _capi.library().goccl_work_test(self._handle)
            if code == _capi.IN_PROGRESS:
                return False
            self._end(code)
        if self._failure:
            raise self._failure
        return True

    def wait(self, timeout: float | timedelta | None = None) -> Any:
        """Waits for the end of the operation.

        Args:
            timeout: seconds, or a timedelta, that this thread waits at most; None: until the end,
                which comes by the operation's own timeout at the latest.

        Returns:
            What the call would have returned without `async_op`.

        Raises:
            goccl.OperationTimeoutError: the time is over. The operation goes on.
            goccl.Error: the operation has failed.
        """
        if not self._ended:
            most = _MOST if timeout is None else milliseconds("timeout", timeout, least=0)
            wait = _capi.library().goccl_work_wait
            code = _in_slices(most, lambda ms: wait(self._handle, ms))
            if code == _capi.IN_PROGRESS:
                raise errors.OperationTimeoutError(
                    f"wait: the operation has not ended within {most / 1000:g} s; it goes on"
                )
            self._end(code)
        if self._failure:
            raise self._failure
        return self._result

    def on_done(self, function: Callable[[Work], object]) -> None:
        """Has a function called with this work, once it has ended, well or not.

        It is called by a thread of the library, by one that waits, or at once. There is one
        function a work. The work lives until then.

        Args:
            function: must not block. What it raises goes to sys.unraisablehook.

        Raises:
            ValueError: the work has a function already.
        """
        with _lock:
            if self._function is not None:
                raise ValueError("function is given, and the work has one already")
            self._function = function
            handle = self._handle
            number = next(_numbers)
            if handle:
                _heard[number] = self
        if not handle:
            function(self)
        elif _capi.library().goccl_work_on_done(handle, _done, number):
            # Another thread has waited for the work, which is no more.
            with _lock:
                waits = _heard.pop(number, None)
            if waits:
                function(self)

    @property
    def error(self) -> Exception | None:
        """The failure of the operation; None where it has ended well, and where it goes on."""
        with contextlib.suppress(Exception):
            self.test()
        return self._failure

    @property
    def source(self) -> int:
        """The rank that a receive which has ended came from.

        Raises:
            ValueError: the work is no receive, or has not ended well.
        """
        if not self.test() or self._source is None:
            raise ValueError("source: the work is no receive, or has not ended")
        return self._source

    @property
    def contributors(self) -> int:
        """With how many ranks' contributions the collectives have ended: the size of the
        communicator, or less where members have died and `recovery` is "survivors".

        Raises:
            ValueError: the work has no collectives, or has not ended well.
        """
        if not self.test() or self._contributors is None:
            raise ValueError("contributors: the work has no collectives, or has not ended")
        return self._contributors


def _hear(context: int, _result: int, _text: bytes) -> None:
    with _lock:
        work = _heard.pop(context)
    _ = work.error  # it has ended, and knows it from now on
    if work._function:
        work._function(work)


_done = _capi.Callback(_hear)


def _in_slices(most: int, wait: Callable[[int], int]) -> int:
    """Waits for `most` milliseconds, and looks at signals meanwhile. Returns the last result."""
    code = wait(min(most, SLICE))
    if code == _capi.IN_PROGRESS and most > SLICE:
        end = time.monotonic() + most / 1000
        while code == _capi.IN_PROGRESS and (left := end - time.monotonic()) > 0:
            code = wait(min(math.ceil(left * 1000), SLICE))
    return code


def _wait_many(
    name: str, works: Sequence[Work], timeout: float | timedelta | None
) -> tuple[int, int]:
    """Calls goccl_work_wait_all() or goccl_work_wait_any(): its result, and the place."""
    if not all(isinstance(work, Work) for work in works):
        raise TypeError("works must be works of goccl.numpy alone")
    most = _MOST if timeout is None else milliseconds("timeout", timeout, least=0)
    function, index = getattr(_capi.library(), f"goccl_work_{name}"), ctypes.c_int(-1)
    while True:
        handles = (ctypes.c_uint64 * len(works))(*(work._handle for work in works))

        def wait(ms: int, handles: Any = handles) -> int:
            return int(function(handles, len(works), ms, ctypes.byref(index)))

        code = _in_slices(most, wait)
        if code == _capi.IN_PROGRESS:
            raise errors.OperationTimeoutError(
                f"{name}: works have not ended within {most / 1000:g} s; they go on"
            )
        if code != _capi.INVALID_HANDLE:  # another thread has waited for a work, which is no more
            return code, index.value


def wait_all(works: Sequence[Work], timeout: float | timedelta | None = None) -> list[Any]:
    """Waits until all of some works have ended. One that fails does not end the wait for others.

    Args:
        works: in any order.
        timeout: seconds, or a timedelta, that this thread waits at most; None: until the end.

    Returns:
        What wait() of each returns.

    Raises:
        goccl.OperationTimeoutError: the time is over. The operations go on.
        goccl.Error: that of the first in the list that has failed.
    """
    works = list(works)
    _wait_many("wait_all", works, timeout)
    return [work.wait(0) for work in works]


def wait_any(works: Sequence[Work], timeout: float | timedelta | None = None) -> int:
    """Waits until one of some works has ended, well or not.

    Args:
        works: one or more. Those that have ended before are found again: take them out.
        timeout: seconds, or a timedelta, that this thread waits at most; None: until the end.

    Returns:
        The place of the work in the list, the first of several. Its wait() tells how it has ended.

    Raises:
        ValueError: `works` is empty.
        goccl.OperationTimeoutError: the time is over. The operations go on.
    """
    works = list(works)
    if not works:
        raise ValueError("works is empty, it must have one work or more")
    for place, work in enumerate(works):
        if work._ended:
            return place
    code, place = _wait_many("wait_any", works, timeout)
    if place < 0:
        raise _capi.failure(code)
    works[place]._end(code)
    return place
