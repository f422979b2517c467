"""Communicators: collectives, sends and receives of arrays, and members that come and go."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import inspect
import json
import operator
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from goccl import _capi
from goccl._groups import Member

from . import _arrays
from ._arrays import Array
from ._store import KeyValueStore, Served
from ._work import Work, _lock, milliseconds, sweep

_M = TypeVar("_M", bound=Callable[..., Any])

Op: TypeAlias = Literal["sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"]
Timeout: TypeAlias = float | timedelta | None

_OPS = {name: value for value, name in enumerate(_capi.OPS)}
_PREMUL_SUM = _OPS["premul_sum"]
_WIRE = {None: 0, "own": -1} | {
    name: _capi.DTYPES.index(name) + 1 for name in ("bfloat16", "float16")
}
_INT = 1 << 31
_ANY_SOURCE = -1
_SHRINK_ABORT = 1

try:
    _fast: Any = importlib.import_module("goccl._fast")
except ImportError:  # of a checkout that has not been built
    _fast = None

# goccl_call of most calls: they only are read. Of a call that is waited for no thread is woken.
_SOON, _LATER = _capi.Call(wait_soon=1), _capi.Call()
_SOON_AT, _LATER_AT = ctypes.addressof(_SOON), ctypes.addressof(_LATER)

_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Checkpoint(NamedTuple):
    """What Communicator.load_checkpoint() returns.

    Attributes:
        version: the newest version that counts; 0: there is none, and the models are empty.
        global_model: which is the same on all ranks.
        local_model: this rank's.
    """

    version: int
    global_model: bytes
    local_model: bytes


class Orphan(NamedTuple):
    """A local model of a rank that has ended, which no other has got in its place.

    Attributes:
        rank: which it was when the version was made.
        local_model: None where it is lost.
    """

    rank: int
    local_model: bytes | None


class Batch:
    """What a thread records within the block of Communicator.group().

    Attributes:
        work: after a block of `group(async_op=True)`: the work of all its calls.
    """

    def __init__(self, comm: Communicator, timeout: Timeout, async_op: bool) -> None:
        self._comm = comm
        self._how = _how(timeout, None, None, async_op)
        self._async = async_op
        self.work: Work | None = None
        self.keep: list[object] = []
        self.collectives = 0

    def __enter__(self) -> Batch:
        comm = self._comm
        if get_ident() in comm._batches:
            raise ValueError("group: a batch of this thread is open, which must end first")
        comm._check(comm._c.goccl_group_start(comm._handle))
        comm._record(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        comm = self._comm
        mine = comm._record(None) is self
        if error is not None:
            if mine:
                comm._c.goccl_group_drop(comm._handle, _reason(error))
            return
        if not mine:
            raise ValueError("group: the batch was dropped, as one of its calls was refused")
        kind_of_work = "collective" if self.collectives else ""
        made = comm._run(
            comm._c.goccl_group_end, None, self.keep, self._how, self._async, kind=kind_of_work
        )
        if self._async:
            self.work = made


def _reason(error: BaseException) -> bytes:
    return (str(error) or repr(error)).replace("\0", " ").encode(errors="replace")


def _how(
    timeout: Timeout, wire_dtype: str | None, schedule: str | None, async_op: bool
) -> int | Any:
    """Returns the goccl_call of a call, as ctypes takes it."""
    if timeout is None and wire_dtype is None and schedule is None:
        return _LATER_AT if async_op else _SOON_AT
    if wire_dtype not in _WIRE:
        raise ValueError(
            f'wire_dtype is {wire_dtype!r}, allowed are None, "bfloat16", "float16" and "own"'
        )
    if not isinstance(schedule, (str, type(None))):
        raise TypeError(f"schedule is {schedule!r}, it must be a str or None")
    return ctypes.byref(
        _capi.Call(
            timeout_ms=0 if timeout is None else milliseconds("timeout", timeout, least=1),
            wait_soon=not async_op,
            alltoall_schedule=schedule.encode() if schedule else None,
            wire_dtype=_WIRE[wire_dtype],
        )
    )


def _op(op: object) -> int:
    found = _OPS.get(op) if isinstance(op, str) else None
    if found is None:
        raise ValueError(f"op is {op!r}, allowed are {', '.join(map(repr, _OPS))}")
    return found


def _factor(op: int, factor: complex | None, dtype: np.dtype[Any]) -> Any:
    """Returns the factor of a premul_sum as C takes it, else None."""
    if (op == _PREMUL_SUM) is (factor is None):
        given = "is given, and" if factor is not None else "is missing: it"
        raise ValueError(f"factor {given} belongs to the op 'premul_sum' alone")
    if factor is None:
        return None
    if dtype.kind == "c" or dtype == _arrays.complex32:
        value = complex(factor)
        return (ctypes.c_double * 2)(value.real, value.imag)
    if isinstance(factor, complex):
        raise TypeError(f"factor is {factor!r}, it must be real, as arrays of {dtype} are")
    return (ctypes.c_double * 1)(factor)


def _int(name: str, given: object, least: int = -_INT) -> int:
    """Reads a number that C holds in an int: what is allowed beyond that the library says."""
    try:
        number = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is {given!r}, it must be an int") from None
    if not least <= number < _INT:
        raise ValueError(f"{name} is {number}, allowed are {least} to {_INT - 1}")
    return number


def _text(name: str, given: object) -> bytes:
    if not isinstance(given, str):
        raise TypeError(f"{name} is {given!r}, it must be a str")
    if "\0" in given:
        raise ValueError(f"{name} is {given!r}, which has a NUL")
    return given.encode()


def _model(name: str, given: Any) -> tuple[Any, int | None, int]:
    """Reads a model: it, its address and its number of bytes."""
    if given is None:
        return None, None, 0
    array = _arrays.as_array(name, given)
    if array.dtype.hasobject:
        raise TypeError(f"{name} is of dtype {array.dtype}, and objects cannot be kept")
    array = np.ascontiguousarray(array)
    return array, array.__array_interface__["data"][0], array.nbytes


def _texts(name: str, given: Iterable[str]) -> tuple[Any, int]:
    """Reads texts, as C takes a list of them."""
    if isinstance(given, str):
        raise TypeError(f"{name} is {given!r}, it must be a list of texts")
    texts = [_text(f"{name}[{place}]", each) for place, each in enumerate(given)]
    return (ctypes.c_char_p * len(texts))(*texts), len(texts)


def _collective(method: _M) -> _M:
    """Of a collective that is refused here its peers must learn, as of one that C refuses."""

    @functools.wraps(method)
    def call(self: Communicator, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if not getattr(error, "_told", False):
                self._refuse(error, collective=True)
            raise

    return cast("_M", call)


def _message(method: _M) -> _M:
    """Where a send or receive is refused here the batch is that it is a part of."""

    @functools.wraps(method)
    def call(self: Communicator, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if self._batches and not getattr(error, "_told", False):
                self._refuse(error, collective=False)
            raise

    return cast("_M", call)


if TYPE_CHECKING or not _fast:

    class _Base:
        """What the shortest way has: see capi/python/fast.c."""

        _handle = 0
        _recording = 0

else:
    _Base = _fast.Base


class Communicator(_Base):
    """Ranks that call the same collectives in the same order: what goccl.numpy.init() returns.

    A call returns when its result is there. With `async_op=True` it returns a Work at once, whose
    wait() gives what the call would have returned. Between `with comm.group():` and its end calls
    are only recorded.

    Arrays are NumPy's, or have the buffer protocol (bytearray, array.array, mmap) or DLPack. An
    input may have any strides, and is copied where it is not contiguous. An output must be writable
    and contiguous in C's order. `out` is as of NumPy's functions: None makes an array; an array is
    filled and returned; the input itself is the operation in place. Elements have the same dtype
    and number in all arrays of a call.

    A bad argument is a TypeError or a ValueError that names it. Peers are told: they get
    goccl.MismatchError where they were not refused the same call, and nobody waits. What else fails
    is a goccl.Error, and breaks the communicator on all ranks: see recover() and renew().

    Timeouts are seconds, or a timedelta; None is the communicator's. Any thread may call any
    method. Collectives have one order, on which threads that share a communicator must agree. A
    call releases the GIL. It is a context manager, which calls destroy().

    Example:
        >>> with goccl.numpy.init() as comm:
        ...     mean = comm.allreduce(gradients, "avg")
    """

    def __init__(self, handle: int) -> None:
        """Takes over a handle of goccl.h, which destroy() gives back. Use goccl.numpy.init()."""
        self._c = _capi.library()
        self._batches: dict[int, Batch] = {}
        if _fast:
            _fast.use(ctypes.cast(self._c.goccl_allreduce, ctypes.c_void_p).value)
        self._handle = handle
        self._published: Served | None = None
        _open.add(self)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.destroy()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            with contextlib.suppress(Exception):
                self.destroy()

    def __repr__(self) -> str:
        if not self._handle:
            return "<goccl.numpy.Communicator, destroyed>"
        return f"<goccl.numpy.Communicator, rank {self.rank} of {self.size}>"

    # -- how calls are made

    def _failure(self, code: int) -> Exception:
        if code == _capi.INVALID_HANDLE and not self._handle:
            failure: Exception = ValueError("the communicator has been destroyed")
        else:
            failure = _capi.failure(code)
        failure._told = True  # type: ignore[attr-defined]  # the peers know, by the library
        return failure

    def _check(self, code: int) -> None:
        if code:
            raise self._failure(code)

    def _record(self, batch: Batch | None) -> Batch | None:
        """Begins or ends a batch of this thread. Returns the one that there was."""
        with _lock:
            before = self._batches.pop(get_ident(), None)
            if batch:
                self._batches[get_ident()] = batch
            self._recording = len(self._batches)
        return before

    def _end_allreduce(self, code: int, work: int, array: Array, out: Array) -> None:
        """Waits for what the shortest way has begun."""
        self._check(code)
        Work(work, (array, out), None).wait()

    def _refuse(self, error: BaseException, *, collective: bool) -> None:
        batch = self._record(None)
        if batch:
            self._c.goccl_group_drop(self._handle, _reason(error))
            collective = collective and not batch.collectives  # of others the library has told
        if collective:
            self._c.goccl_comm_refuse(self._handle, _reason(error))

    def _run(
        self,
        function: Any,
        result: Any,
        keep: object,
        how: Any,
        async_op: bool,
        *arguments: Any,
        kind: str = "collective",
    ) -> Any:
        """Starts an operation, and waits for it unless it is asynchronous.

        Args:
            function: of the library. Its last arguments are `call` and `work`.
            result: what the call returns, or a function of the work that makes it at the end.
            keep: what the operation needs until its end.
            how: the goccl_call.
            async_op: whether the caller wants a work.
            arguments: between the handle and `call`.
            kind: as of Work.
        """
        if self._batches and (batch := self._batches.get(get_ident())):
            if async_op:
                raise ValueError("async_op is True within a batch, which has one work for all")
            code = function(self._handle, *arguments, how, None)
            if code:
                raise self._failure(code)
            batch.keep.append(keep)
            batch.collectives += kind == "collective"
            return None if callable(result) else result
        work = ctypes.c_uint64()
        code = function(self._handle, *arguments, how, ctypes.byref(work))
        if code:
            raise self._failure(code)
        if async_op:
            sweep()
            return Work(work.value, keep, result, kind)
        if work.value:
            return Work(work.value, keep, result, kind).wait()
        return result

    def _later(
        self,
        name: str,
        result: Any,
        keep: object,
        async_op: bool,
        *arguments: Any,
        kind: str = "",
    ) -> Any:
        """Makes a call that takes long, by its form that returns a work."""
        work = ctypes.c_uint64()
        function = getattr(self._c, f"goccl_comm_{name}_async")
        self._check(function(self._handle, *arguments, ctypes.byref(work)))
        sweep()
        made = Work(work.value, keep, result, kind)
        return made if async_op else made.wait()

    def _get(self, name: str, kind: Any) -> Any:
        """Asks for a number."""
        number = kind()
        self._check(getattr(self._c, f"goccl_comm_{name}")(self._handle, ctypes.byref(number)))
        return number.value

    # -- collectives

    @_collective
    def allreduce(
        self,
        array: Any,
        op: Op = "sum",
        *,
        out: Any = None,
        factor: complex | None = None,
        wire_dtype: str | None = None,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduces the arrays of all ranks, element by element, and gives the result to all.

        The same inputs give the same bits on all ranks, whatever joins them.

        Args:
            array: this rank's; of the same number of elements and dtype on all ranks.
            op: "sum", "avg", "product", "min", "max", "band", "bor", "bxor", or "premul_sum".
            out: where the result goes; `array` itself: in place.
            factor: by which "premul_sum" multiplies each input first.
            wire_dtype: as which dtype float32 and float64 travel: "bfloat16", "float16", "own" (as
                they are), or None (as the communicator says).
            timeout: of this call.
            async_op: return a work.

        Returns:
            The result, of the shape of `array`.

        Raises:
            TypeError, ValueError: an argument is wrong, and the peers are told.
            goccl.Error: the operation has failed.
        """
        number = _op(op)
        if out is array:
            made, code, to = _arrays.target("array", array)
            given, start = made, to
        else:
            given, code, start = _arrays.source("array", array)
            made, to = self._out(out, given, given.shape)
        of = _factor(number, factor, given.dtype)
        how = _how(timeout, wire_dtype, None, async_op)
        return self._run(
            self._c.goccl_allreduce, made, (given, made), how, async_op,
            start, to, given.size, code, number, of,
        )  # fmt: skip

    @_collective
    def allreduce_coalesced(
        self,
        arrays: Sequence[Any],
        op: Op = "sum",
        *,
        out: Sequence[Any] | None = None,
        factor: complex | None = None,
        wire_dtype: str | None = None,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Makes the allreduce of several arrays of one dtype as one operation.

        Args:
            arrays: this rank's.
            out: where the results go, an array for each; `arrays` itself: in place.
            op, factor, wire_dtype, timeout, async_op: as of allreduce().

        Returns:
            A list with the results.

        Raises:
            TypeError, ValueError, goccl.Error: as allreduce().
        """
        number = _op(op)
        if out is arrays:
            made, code, ends = self._targets("arrays", arrays)
            given, starts = made, ends
        else:
            given, code, starts = self._sources("arrays", arrays)
            made, ends = self._outs(out, given)
        of = _factor(number, factor, given[0].dtype) if given else None
        how = _how(timeout, wire_dtype, None, async_op)
        return self._run(
            self._c.goccl_allreduce_coalesced, made, (given, made), how, async_op,
            len(given), _arrays.pointers(starts), _arrays.pointers(ends), _arrays.counts(given),
            code, number, of,
        )  # fmt: skip

    @_collective
    def reduce(
        self,
        array: Any,
        op: Op = "sum",
        root: int = 0,
        *,
        out: Any = None,
        factor: complex | None = None,
        wire_dtype: str | None = None,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduces the arrays of all ranks, and gives the result to one.

        Args:
            array, op, factor, wire_dtype, timeout, async_op: as of allreduce().
            root: that rank.
            out: where the result goes; it is not looked at on other ranks.

        Returns:
            The result; None on other ranks.

        Raises:
            TypeError, ValueError, goccl.Error: as allreduce().
        """
        number, root = _op(op), _int("root", root)
        given, code, start = _arrays.source("array", array)
        made: Array | None = None
        to: int | None = None
        if root == self.rank:
            if out is array:
                made, code, to = _arrays.target("array", array)
                given, start = made, to
            else:
                made, to = self._out(out, given, given.shape)
        of = _factor(number, factor, given.dtype)
        how = _how(timeout, wire_dtype, None, async_op)
        return self._run(
            self._c.goccl_reduce, made, (given, made), how, async_op,
            start, to, given.size, code, number, of, root,
        )  # fmt: skip

    @_collective
    def broadcast(
        self, array: Any, root: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Any:
        """Copies the array of one rank to those of all others.

        Args:
            array: read on `root`, filled on the other ranks.
            root: the rank whose it is.
            timeout, async_op: as of allreduce().

        Returns:
            The array.

        Raises:
            TypeError, ValueError, goccl.Error: as allreduce().
        """
        root = _int("root", root)
        read = _arrays.source if root == self.rank else _arrays.target
        given, code, start = read("array", array)
        return self._run(
            self._c.goccl_broadcast, given, given, _how(timeout, None, None, async_op), async_op,
            start, given.size, code, root,
        )  # fmt: skip

    @_collective
    def allgather(
        self, array: Any, *, out: Any = None, timeout: Timeout = None, async_op: bool = False
    ) -> Any:
        """Gives the arrays of all ranks to all.

        Args:
            array: this rank's.
            out: None, or an array of `size` times as many elements: all have equally many. Or a
                list of an array for each rank, as long as that rank's: then they may differ.
            timeout, async_op: as of allreduce().

        Returns:
            An array whose part `[r]` is that of rank r: of shape (size, *array.shape) where `out`
            is None. Or the list.

        Raises:
            TypeError, ValueError, goccl.Error: as allreduce().
        """
        given, code, start = _arrays.source("array", array)
        how = _how(timeout, None, None, async_op)
        if isinstance(out, (list, tuple)):
            parts, _, ends = self._targets("out", out, given.dtype, self.size)
            self._own("array", given, "out", parts)
            return self._run(
                self._c.goccl_allgather, parts, (given, parts), how, async_op,
                start, _arrays.pointers(ends), _arrays.counts(parts), code,
            )  # fmt: skip
        made, to = self._out(out, given, (self.size, *given.shape))
        return self._run(
            self._c.goccl_allgather_single, made, (given, made), how, async_op,
            start, to, given.size, code,
        )  # fmt: skip

    @_collective
    def reduce_scatter(
        self,
        array: Any,
        op: Op = "sum",
        *,
        out: Any = None,
        factor: complex | None = None,
        wire_dtype: str | None = None,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduces the arrays of all ranks, and gives a part of the result to each.

        Args:
            array: whose part `[r]` goes to rank r: of shape (size, ...), or with `out` of any that
                has `size` times as many elements. Or a list of an array for each rank, which may
                differ in length; all ranks give the same lengths.
            op, factor, wire_dtype, timeout, async_op: as of allreduce().
            out: where this rank's part goes.

        Returns:
            This rank's part.

        Raises:
            TypeError, ValueError, goccl.Error: as allreduce().
        """
        number = _op(op)
        how = _how(timeout, wire_dtype, None, async_op)
        if isinstance(array, (list, tuple)):
            parts, code, starts = self._sources("array", array, self.size)
            mine = parts[self.rank]
            made, to = self._out(out, mine, mine.shape)
            of = _factor(number, factor, mine.dtype)
            return self._run(
                self._c.goccl_reduce_scatter, made, (parts, made), how, async_op,
                _arrays.pointers(starts), to, _arrays.counts(parts), code, number, of,
            )  # fmt: skip
        given, code, start = _arrays.source("array", array)
        made, to = self._part(out, given)
        of = _factor(number, factor, given.dtype)
        return self._run(
            self._c.goccl_reduce_scatter_single, made, (given, made), how, async_op,
            start, to, made.size, code, number, of,
        )  # fmt: skip

    @_collective
    def gather(
        self,
        array: Any,
        root: int = 0,
        *,
        out: Any = None,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Gives the arrays of all ranks, which are equally long, to one.

        Args:
            array: this rank's.
            root: that rank.
            out: as of allgather(), but equally long; it is not looked at on other ranks.
            timeout, async_op: as of allreduce().

        Returns:
            As allgather(); None on other ranks.

        Raises:
            TypeError, ValueError, goccl.Error: as allreduce().
        """
        root = _int("root", root)
        given, code, start = _arrays.source("array", array)
        made: Any = None
        blocks: Any = None
        if root == self.rank:
            if isinstance(out, (list, tuple)):
                made, _, ends = self._targets("out", out, given.dtype, self.size, given.size)
            else:
                made, to = self._out(out, given, (self.size, *given.shape))
                ends = [to + rank * given.nbytes for rank in range(self.size)]
            blocks = _arrays.pointers(ends)
        return self._run(
            self._c.goccl_gather, made, (given, made), _how(timeout, None, None, async_op),
            async_op, start, blocks, given.size, code, root,
        )  # fmt: skip

    @_collective
    def scatter(
        self,
        array: Any = None,
        root: int = 0,
        *,
        out: Any = None,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Gives a part of the array of one rank to each; parts are equally long.

        Args:
            array: as of reduce_scatter(), but equally long; it is not looked at on other ranks.
            root: the rank whose it is.
            out: where this rank's part goes. None: only on `root`, as other ranks do not know the
                shape.
            timeout, async_op: as of allreduce().

        Returns:
            This rank's part.

        Raises:
            TypeError, ValueError, goccl.Error: as allreduce().
        """
        root, how = _int("root", root), _how(timeout, None, None, async_op)
        given: Any = None
        blocks: Any = None
        if root != self.rank:
            made, code, to = _arrays.target("out", out)
        else:
            if isinstance(array, (list, tuple)):
                given, code, starts = self._sources("array", array, self.size)
                made, to = self._out(out, given[root], given[root].shape)
                for rank, part in enumerate(given):
                    _arrays.fits(f"array[{rank}]", part, made.size, made.dtype, "out")
            else:
                given, code, start = _arrays.source("array", array)
                made, to = self._part(out, given)
                starts = [start + rank * made.nbytes for rank in range(self.size)]
            blocks = _arrays.pointers(starts)
        return self._run(
            self._c.goccl_scatter, made, (given, made), how, async_op,
            blocks, to, made.size, code, root,
        )  # fmt: skip

    @_collective
    def alltoall(
        self,
        array: Any,
        *,
        out: Any = None,
        schedule: str | None = None,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Sends a part to each rank, and receives one from each.

        Args:
            array: whose part `[r]` goes to rank r: its elements are a multiple of `size`. Or a list
                of an array for each rank, which may differ in length; `out` is a list then, too.
            out: whose part `[r]` comes from rank r. It must not overlap `array`.
            schedule: "sequential", "window=2" and the like, or "parallel"; None: the
                communicator's.
            timeout, async_op: as of allreduce().

        Returns:
            What has come, of the shape of `array`; or the list.

        Raises:
            TypeError, ValueError, goccl.Error: as allreduce().
        """
        how = _how(timeout, None, schedule, async_op)
        if isinstance(array, (list, tuple)):
            parts, code, starts = self._sources("array", array, self.size)
            if not isinstance(out, (list, tuple)):
                raise TypeError(
                    f"out is of type {type(out).__name__}, it must be a list, as array is: no rank "
                    "knows the lengths that come"
                )
            made, _, ends = self._targets("out", out, parts[0].dtype, self.size)
            return self._run(
                self._c.goccl_alltoall, made, (parts, made), how, async_op,
                _arrays.pointers(starts), _arrays.counts(parts), _arrays.pointers(ends),
                _arrays.counts(made), code,
            )  # fmt: skip
        given, code, start = _arrays.source("array", array)
        if given.size % self.size:
            raise ValueError(f"array has {given.size} elements, no multiple of {self.size} ranks")
        result, to = self._out(out, given, given.shape)
        return self._run(
            self._c.goccl_alltoall_single, result, (given, result), how, async_op,
            start, to, given.size // self.size, code,
        )  # fmt: skip

    @_collective
    def barrier(self, *, timeout: Timeout = None, async_op: bool = False) -> Any:
        """Returns when every rank has called it.

        Args:
            timeout, async_op: as of allreduce().

        Raises:
            TypeError, ValueError, goccl.Error: as allreduce().
        """
        how = _how(timeout, None, None, async_op)
        return self._run(self._c.goccl_barrier, None, None, how, async_op)

    @_collective
    def monitored_barrier(
        self, *, wait_all: bool = False, timeout: Timeout = None, async_op: bool = False
    ) -> Any:
        """Makes a barrier() after whose failure rank 0 names the ranks that did not arrive.

        Args:
            wait_all: name all of them, not only the first.
            timeout, async_op: as of allreduce().

        Raises:
            TypeError, ValueError, goccl.Error: as allreduce().
        """
        how = _how(timeout, None, None, async_op)
        return self._run(self._c.goccl_monitored_barrier, None, None, how, async_op, bool(wait_all))

    # -- what collectives are given

    def _out(self, out: Any, given: Array, shape: tuple[int, ...]) -> tuple[Array, int]:
        """Returns the output, of a shape where it is made here, and its address."""
        if out is None:
            made = np.empty(shape, given.dtype)
            return made, made.__array_interface__["data"][0]
        made, _, to = _arrays.target("out", out)
        size = given.size if len(shape) == given.ndim else given.size * self.size
        if made.dtype != given.dtype or made.size != size:
            _arrays.fits("out", made, size, given.dtype, "array")
        return made, to

    def _part(self, out: Any, given: Array) -> tuple[Array, int]:
        """Returns the output for one of `size` parts of an array, and its address."""
        if out is None:
            if not given.ndim or given.shape[0] != self.size:
                raise ValueError(
                    f"array has the shape {given.shape}, and without out its first dimension must "
                    f"be {self.size}: its part [r] goes to rank r"
                )
            return self._out(None, given, given.shape[1:])
        made, _, to = _arrays.target("out", out)
        if made.size * self.size != given.size:
            raise ValueError(
                f"out has {made.size} elements, and array {given.size}: it must have {self.size} "
                "times as many"
            )
        _arrays.fits("out", made, made.size, given.dtype, "array")
        return made, to

    def _own(self, name: str, array: Array, other: str, parts: Sequence[Array]) -> None:
        rank = self.rank
        _arrays.fits(name, array, parts[rank].size, parts[rank].dtype, f"{other}[{rank}]")

    def _sources(
        self, name: str, given: Sequence[Any], number: int | None = None
    ) -> tuple[list[Array], int, list[int]]:
        """Reads a list of inputs of one dtype: arrays, goccl_dtype, addresses."""
        return self._all(name, given, _arrays.source, None, number)

    def _targets(
        self,
        name: str,
        given: Sequence[Any],
        dtype: np.dtype[Any] | None = None,
        number: int | None = None,
        size: int | None = None,
    ) -> tuple[list[Array], int, list[int]]:
        """Likewise of outputs, which have a given dtype and size if these are known."""
        found = self._all(name, given, _arrays.target, dtype, number)
        for place, array in enumerate(found[0] if size is not None else ()):
            _arrays.fits(f"{name}[{place}]", array, size or 0, array.dtype, "array")
        return found

    @staticmethod
    def _all(
        name: str,
        given: Sequence[Any],
        read: Callable[[str, Any], tuple[Array, int, int]],
        dtype: np.dtype[Any] | None,
        number: int | None,
    ) -> tuple[list[Array], int, list[int]]:
        if not isinstance(given, (list, tuple)):
            raise TypeError(f"{name} is of type {type(given).__name__}, it must be a list")
        if number is not None and len(given) != number:
            raise ValueError(
                f"{name} has {len(given)} arrays, it must have one for each rank: {number}"
            )
        found = [read(f"{name}[{place}]", each) for place, each in enumerate(given)]
        for place, (array, _, _) in enumerate(found):
            wanted = dtype or found[0][0].dtype
            if array.dtype != wanted:
                of = "array" if dtype else f"{name}[0]"
                _arrays.fits(f"{name}[{place}]", array, array.size, wanted, of)
        code = found[0][1] if found else 0
        return [array for array, _, _ in found], code, [address for _, _, address in found]

    def _outs(self, out: Any, given: list[Array]) -> tuple[list[Array], list[int]]:
        if out is None:
            out = [np.empty(array.shape, array.dtype) for array in given]
        made, _, ends = self._targets("out", out, given[0].dtype if given else None)
        if len(made) != len(given):
            raise ValueError(
                f"out has {len(made)} arrays, it must have {len(given)}, as arrays has"
            )
        for place, (to, array) in enumerate(zip(made, given, strict=True)):
            _arrays.fits(f"out[{place}]", to, array.size, array.dtype, f"arrays[{place}]")
        return made, ends

    # -- sends and receives, and batches

    @_message
    def send(
        self,
        array: Any,
        peer: int,
        *,
        tag: int = 0,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Sends an array to a rank.

        Sends and receives of one pair with one tag meet in the order of their calls. They have no
        part in the order of collectives.

        Args:
            array: what is sent.
            peer: the rank.
            tag: 0 or more.
            timeout, async_op: as of allreduce().

        Raises:
            TypeError, ValueError: an argument is wrong. Nobody is told.
            goccl.Error: the operation has failed.
        """
        given, code, start = _arrays.source("array", array)
        peer, tag = _int("peer", peer), _int("tag", tag)
        how = _how(timeout, None, None, async_op)
        return self._run(
            self._c.goccl_send, None, given, how, async_op,
            start, given.size, code, peer, tag, kind="",
        )  # fmt: skip

    @_message
    def recv(
        self,
        out: Any,
        peer: int | None = None,
        *,
        tag: int = 0,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Receives into an array what a rank sends.

        Args:
            out: as long as what is sent, and of its dtype.
            peer: the rank; None: any.
            tag: of the send.
            timeout, async_op: as of allreduce().

        Returns:
            The rank that has sent it; None within a batch.

        Raises:
            TypeError, ValueError: an argument is wrong. Nobody is told.
            goccl.OperationTimeoutError: nothing has come. The communicator goes on.
            goccl.Error: the operation has failed.
        """
        made, code, to = _arrays.target("out", out)
        of = _ANY_SOURCE if peer is None else _int("peer", peer, 0)
        tag, how = _int("tag", tag), _how(timeout, None, None, async_op)
        return self._run(
            self._c.goccl_recv, _source, made, how, async_op,
            to, made.size, code, of, tag, kind="recv",
        )  # fmt: skip

    def group(self, *, timeout: Timeout = None, async_op: bool = False) -> Batch:
        """Has calls of this thread started as one: `with comm.group():`.

        Within the block they are only recorded; results are there after its end. So a rank can send
        and receive at the same time. A call that is refused drops the batch, as does an exception.

        Args:
            timeout: of the batch. Calls in it have none.
            async_op: the block does not wait: `with comm.group(async_op=True) as batch`, and after
                it `batch.work` is the work.

        Returns:
            The context manager.

        Raises:
            TypeError, ValueError: an argument is wrong; of the block also where a batch of this
                thread is open.
            goccl.Error: of the block: an operation has failed.
        """
        return Batch(self, timeout, async_op)

    # -- sub-groups, and members that come and go

    def split(self, color: int, key: int = 0, *, async_op: bool = False) -> Any:
        """Parts the communicator: ranks of one color meet in a new one. A collective call.

        Args:
            color: 0 or more; a negative one takes part in the call, and joins no communicator.
            key: orders the ranks, and then their numbers do.
            async_op: return a work.

        Returns:
            The new communicator, which needs a destroy() of its own; None for a negative color.

        Raises:
            TypeError, ValueError: an argument is no int.
            goccl.Error: it has failed.
        """
        color, key = _int("color", color), _int("key", key)
        return self._made("split", async_op, color, key)

    def shrink(
        self, exclude: Sequence[int] = (), *, abort: bool = False, async_op: bool = False
    ) -> Any:
        """Makes a communicator of the members that are left. This one stays as it is.

        Args:
            exclude: ranks to leave out, which must not call it; the same on all others.
            abort: revoke this communicator first.
            async_op: return a work.

        Returns:
            The new communicator, which needs a destroy() of its own.

        Raises:
            TypeError, ValueError: an argument is wrong.
            goccl.Error: it has failed.
        """
        ranks = [_int(f"exclude[{place}]", rank) for place, rank in enumerate(exclude)]
        flags = _SHRINK_ABORT if abort else 0
        return self._made(
            "shrink", async_op, (ctypes.c_int * len(ranks))(*ranks), len(ranks), flags
        )

    def _made(self, name: str, async_op: bool, *arguments: Any) -> Any:
        handle = ctypes.c_uint64()

        def result(_: Work) -> Communicator | None:
            return Communicator(handle.value) if handle.value else None

        return self._later(
            name, result, handle, async_op, *arguments, ctypes.byref(handle), kind="made"
        )

    def renew(self, *, async_op: bool = False) -> Any:
        """Begins the communicator anew, with the same ranks: what has failed works again.

        All ranks call it, each as often as the others.

        Args:
            async_op: return a work.

        Raises:
            goccl.PeerFailedError: the process of a rank has ended: see recover().
            goccl.Error: it has failed, and may be called again.
        """
        return self._later("renew", None, None, async_op)

    def recover(self, timeout: Timeout = None, *, async_op: bool = False) -> Any:
        """Goes on with the members that are left, and with those that wait to join.

        All members that live call it. What has failed works again; `rank` and `size` change.

        Args:
            timeout: of the call. A member that does not come is left out after half of it.
            async_op: return a work.

        Raises:
            TypeError, ValueError: the timeout is wrong.
            goccl.ExcludedError: the others go on without this rank.
            goccl.NoQuorumError: too few members are left.
            goccl.Error: it has failed, and may be called again.
        """
        ms = 0 if timeout is None else milliseconds("timeout", timeout, least=1)
        return self._later("recover", None, None, async_op, ms)

    def grow(self, n: int, timeout: Timeout = None, *, async_op: bool = False) -> Any:
        """Makes a recover() that waits until processes have come by goccl.numpy.join().

        Args:
            n: how many, 1 to 32; the same on all ranks.
            timeout: of the call. It goes on with those that have come after half of it.
            async_op: return a work.

        Raises:
            TypeError, ValueError, goccl.Error: as recover().
        """
        ms = 0 if timeout is None else milliseconds("timeout", timeout, least=1)
        return self._later("grow", None, None, async_op, _int("n", n), ms)

    def reconfigure(
        self,
        uuid: str,
        handles: Iterable[str],
        *,
        ordered: bool = True,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Makes the processes of some handles the members, in place. All of them call it.

        Args:
            uuid: any text that none of them has used before; the same for all.
            handles: of all, this one's among them: see `handle`.
            ordered: the place of a handle is the rank of its process; else the order of the handles
                as texts is.
            timeout: of the call.
            async_op: return a work.

        Raises:
            TypeError, ValueError: an argument is wrong.
            goccl.Error: it has failed; the communicator stays as it is.
        """
        ms = 0 if timeout is None else milliseconds("timeout", timeout, least=1)
        texts, number = _texts("handles", handles)
        return self._later(
            "reconfigure", None, None, async_op,
            _text("uuid", uuid), texts, number, bool(ordered), ms,
        )  # fmt: skip

    def agree(self, flags: int, *, async_op: bool = False) -> Any:
        """Finds the bits that are set in the flags of all members which are left.

        All that live call it, also after a failure, which it does not mend.

        Args:
            flags: 64 bits.
            async_op: return a work.

        Returns:
            The bits, which are the same on all ranks.

        Raises:
            TypeError, ValueError: the flags are no such number.
            goccl.Error: it has failed.
        """
        try:
            bits = ctypes.c_uint64(operator.index(flags))
        except TypeError:
            raise TypeError(f"flags is {flags!r}, it must be an int") from None
        if bits.value != flags:
            raise ValueError(f"flags is {flags}, allowed are 0 to {2**64 - 1}")
        return self._later("agree", lambda _: bits.value, bits, async_op, ctypes.byref(bits))

    def publish(
        self, *, store: KeyValueStore | None = None, unique_id: bytes | None = None
    ) -> None:
        """Lets processes find the communicator that call goccl.numpy.join() without handles.

        All members call it. Where `GOCCL_STORE` names an etcd neither argument is needed.

        Args:
            store: where the handle of a member is kept, as of goccl.numpy.init().
            unique_id: of goccl.numpy.unique_id(). The process that made it serves the handle.

        Raises:
            TypeError, ValueError: an argument is wrong.
            goccl.Error: the address of the id is taken.
        """
        served = None if store is None else Served(store)
        self._check(
            self._c.goccl_comm_publish(
                self._handle,
                None if unique_id is None else read_id(unique_id),
                None if served is None else ctypes.byref(served.struct),
            )
        )
        self._published = served

    def revoke(self, reason: str = "") -> None:
        """Fails the communicator at once on all ranks, so that those that wait call recover().

        Args:
            reason: for the text of their goccl.RevokedError.

        Raises:
            TypeError, ValueError: `reason` is no text.
        """
        self._check(self._c.goccl_comm_revoke(self._handle, _text("reason", reason)))

    def abort(self, reason: str = "") -> None:
        """Breaks the communicator at once on all ranks: works end with goccl.AbortedError.

        Args:
            reason: for the text.

        Raises:
            TypeError, ValueError: `reason` is no text.
        """
        self._check(self._c.goccl_comm_abort(self._handle, _text("reason", reason)))

    def destroy(self) -> None:
        """Ends the communicator in good order, on this rank; harmless to repeat.

        A process that ends without it has died, as its peers see it; at the exit of the interpreter
        it is called for communicators that are left.
        """
        handle, self._handle = self._handle, 0
        if handle:
            code = self._c.goccl_comm_destroy(handle)
            self._published = None
            sweep()
            self._check(code)

    # -- checkpoints

    def checkpoint(
        self,
        global_model: Any,
        local_model: Any = None,
        replicas: int = 1,
        *,
        async_op: bool = False,
    ) -> Any:
        """Makes the next version of the models, in the memory of the members. All ranks call it.

        Args:
            global_model: bytes, or an array, the same on all ranks.
            local_model: bytes, or an array, of this rank; None: it has none.
            replicas: how many other ranks keep a copy of each local model.
            async_op: return a work. The models must not change until it has ended.

        Raises:
            TypeError: a model has objects, or is no array.
            ValueError: an argument is wrong, on all ranks.
            goccl.MismatchError: global models differ, or members have changed since the last
                load_checkpoint(). Nothing has changed.
            goccl.Error: it has failed: load_checkpoint() tells whether the version counts.
        """
        whole, start, size = _model("global_model", global_model)
        own, at, length = _model("local_model", local_model)
        replicas = _int("replicas", replicas)
        return self._later(
            "checkpoint", None, (whole, own), async_op, start, size, at, length, replicas
        )

    def load_checkpoint(self, *, async_op: bool = False) -> Any:
        """Gives the newest version that counts, and this rank's models of it.

        All ranks call it: at the start, after recover() and its kin, and after a checkpoint() that
        has failed. A rank that has joined gets the global model from another one.

        Args:
            async_op: return a work.

        Returns:
            A Checkpoint. Its models are copies.

        Raises:
            goccl.MismatchError: no rank has the global model unchanged.
            goccl.Error: it has failed.
        """
        version, size, length = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
        whole, own = ctypes.c_void_p(), ctypes.c_void_p()
        places = (version, whole, size, own, length)

        def result(_: Work) -> Checkpoint:
            return Checkpoint(version.value, _bytes(whole, size), _bytes(own, length))

        return self._later("load_checkpoint", result, places, async_op, *map(ctypes.byref, places))

    def orphans(self) -> list[Orphan]:
        """Lists what the last load_checkpoint() has left over of local models of ranks that have
        ended. All ranks together have each one once; those that are lost all have.

        Returns:
            The orphans that this rank has. The next checkpoint() drops them.

        Raises:
            goccl.Error: the communicator is broken.
        """
        found = self._list("orphans", _capi.Orphan)
        return [
            Orphan(each.rank, ctypes.string_at(each.local_model, each.size))
            if each.local_model or not each.size
            else Orphan(each.rank, None)
            for each in found
        ]

    @property
    def checkpoint_version(self) -> int:
        """The version that checkpoint() or load_checkpoint() has succeeded with last; 0: none."""
        return int(self._get("checkpoint_version", ctypes.c_uint64))

    # -- what a communicator tells

    @property
    def rank(self) -> int:
        """This process's number. It may change with the members."""
        return int(self._get("rank", ctypes.c_int))

    @property
    def size(self) -> int:
        """How many ranks there are. It may change with the members."""
        return int(self._get("size", ctypes.c_int))

    @property
    def epoch(self) -> int:
        """0 at first, and one more with each recover() and renew()."""
        return int(self._get("epoch", ctypes.c_uint32))

    @property
    def num_waiting(self) -> int:
        """How many processes wait at this rank to be let in, by recover() or grow()."""
        return int(self._get("num_waiting", ctypes.c_int))

    @property
    def members(self) -> list[Member]:
        """The processes of the ranks, by rank."""
        found = self._list("members", _capi.Member)
        return [
            Member(each.process, each.pid, each.host.decode(errors="replace")) for each in found
        ]

    @property
    def handle(self) -> str:
        """Names this process to those that are to be members with it: see goccl.numpy.join()."""
        return self._words("handle", _capi.HANDLE_SIZE)

    @property
    def sequence(self) -> int:
        """The number of the last collective that was started here; 0 before the first."""
        return int(self._get("sequence", ctypes.c_uint64))

    @property
    def timeout(self) -> float:
        """Seconds that operations may take that are given no timeout. It can be set, also to a
        timedelta; None: to 30 minutes."""
        return int(self._get("timeout", ctypes.c_int64)) / 1000

    @timeout.setter
    def timeout(self, given: float | timedelta | None) -> None:
        ms = 0 if given is None else milliseconds("timeout", given, least=1)
        self._check(self._c.goccl_comm_set_timeout(self._handle, ms))

    @property
    def failed_ranks(self) -> list[int]:
        """The ranks that broke the communicator; none while it works, or where no rank did."""
        count = ctypes.c_size_t()
        ask = self._c.goccl_comm_failed_ranks
        self._check(ask(self._handle, None, 0, ctypes.byref(count)))
        ranks = (ctypes.c_int * count.value)()
        self._check(ask(self._handle, ranks, len(ranks), ctypes.byref(count)))
        return list(ranks[: count.value])

    @property
    def async_error(self) -> Exception | None:
        """Why the communicator is broken; None while it works. It needs no collective."""
        code = self._c.goccl_comm_async_error(self._handle)
        return self._failure(code) if code else None

    def transport(self, peer: int) -> str:
        """Returns what joins this rank to another one: "self", "mem", "shm", "tcp" or "verbs".

        Args:
            peer: the rank.

        Raises:
            TypeError, ValueError: it is none.
        """
        name = ctypes.c_char_p()
        self._check(
            self._c.goccl_comm_transport(self._handle, _int("peer", peer), ctypes.byref(name))
        )
        return (name.value or b"").decode()

    def algorithm(self, sequence: int | None = None) -> str:
        """Returns the algorithm by which a collective ran on this rank, such as "two_shot".

        Args:
            sequence: its number; None: the last one's.

        Returns:
            The name; "" where it has not ended well, or is not among the last 512.

        Raises:
            TypeError, ValueError: there is no such collective.
        """
        number = self.sequence if sequence is None else _int("sequence", sequence, 0)
        name = ctypes.c_char_p()
        self._check(self._c.goccl_comm_algorithm(self._handle, number, ctypes.byref(name)))
        return (name.value or b"").decode()

    def describe(self) -> dict[str, Any]:
        """Returns what the communicator is made of: ranks, hosts, transports, settings and where
        they come from."""
        found: dict[str, Any] = json.loads(self._words("describe", 1 << 16))
        return found

    def _words(self, name: str, size: int) -> str:
        """Asks for a text."""
        try:
            return _capi.text(f"goccl_comm_{name}", self._handle, size=size)
        except Exception:
            if not self._handle:
                raise ValueError("the communicator has been destroyed") from None
            raise

    def _list(self, name: str, kind: Any) -> list[Any]:
        """Asks for structs."""
        ask, count, room = getattr(self._c, f"goccl_comm_{name}"), ctypes.c_size_t(), 16
        while True:
            found = (kind * room)()
            found[0].struct_size = ctypes.sizeof(kind)
            self._check(ask(self._handle, found, room, ctypes.byref(count)))
            if count.value <= room:
                return list(found[: count.value])
            room = 2 * count.value


def _shorten() -> None:
    """Has callers of allreduce() come by the shortest way; what that leaves to us comes here."""
    given = inspect.signature(Communicator.allreduce)
    plain = [each.replace(annotation=each.empty) for each in given.parameters.values()]
    text = str(given.replace(parameters=plain, return_annotation=given.empty))
    doc = f"allreduce{text.replace('self', '$self', 1)}\n--\n\n{Communicator.allreduce.__doc__}"
    _fast.bind(np.ndarray, _arrays.CODES, _OPS, doc)
    setattr(Communicator, "_allreduce", Communicator.allreduce)  # noqa: B010  unknown to mypy
    delattr(Communicator, "allreduce")


if _fast:
    _shorten()


def _source(work: Work) -> int | None:
    return work._source


def _bytes(address: ctypes.c_void_p, size: ctypes.c_size_t) -> bytes:
    return ctypes.string_at(address, size.value) if size.value else b""


def read_id(given: bytes) -> bytes:
    """Reads the argument `unique_id`."""
    if not isinstance(given, (bytes, bytearray)):
        raise TypeError(f"unique_id is of type {type(given).__name__}, it must be bytes")
    if len(given) != _capi.UNIQUE_ID_SIZE:
        raise ValueError(
            f"unique_id has {len(given)} bytes, it must be one of goccl.numpy.unique_id(), which "
            f"has {_capi.UNIQUE_ID_SIZE}"
        )
    return bytes(given)


@atexit.register
def _leave() -> None:
    """Ends all communicators, while arrays are still there that operations may use."""
    from ._work import _heard

    for comm in list(_open):
        with contextlib.suppress(Exception):
            comm.destroy()
    # Their works have ended, and functions that hear of it must be done before Python is.
    end = time.monotonic() + 1
    while _heard and time.monotonic() < end:
        time.sleep(0.001)
