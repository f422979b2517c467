"""Arrays in memory that the ranks of a host map, so that large collectives work on it in place."""

from __future__ import annotations

import ctypes
import math
import operator
import weakref
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from goccl import _capi

from ._arrays import Array


def empty(
    shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike = np.float64
) -> Array:
    """Makes an array in shareable memory, of undefined contents.

    Where all ranks of a communicator share a host, and all their arrays of a large collective lie
    in such memory, nothing is copied on the way. Elsewhere these are arrays like all others. What a
    process writes there after os.fork() its children see, too, and the other way round. When a
    collective has failed, a peer that is late may still read and write its arrays: make new ones.

    Args:
        shape: as of numpy.empty().
        dtype: as of numpy.empty(), but no object.

    Returns:
        The array, which is contiguous in C's order. Its memory is given back when the last array on
        it has gone.

    Raises:
        TypeError: `dtype` is one of objects, or `shape` something else.
        ValueError: a number of `shape` is negative.
        goccl.UnsupportedError: this host has no shared memory to give.
        goccl.Error: there is no room.

    >>> gradients = goccl.numpy.empty(1 << 20, np.float32)
    """
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype is {kind}, and objects cannot be shared")
    numbers = [operator.index(n) for n in (shape if isinstance(shape, Sequence) else (shape,))]
    if any(n < 0 for n in numbers):
        raise ValueError(f"shape is {tuple(numbers)}, every number must be 0 or more")
    size = math.prod(numbers)
    if not size * kind.itemsize:
        return np.empty(numbers, kind)
    memory = ctypes.c_void_p()
    _capi.check(_capi.library().goccl_mem_alloc(ctypes.byref(memory), size * kind.itemsize))
    address: Any = memory.value
    block: Any = (ctypes.c_char * (size * kind.itemsize)).from_address(address)
    # Not at exit: operations may still use it.
    weakref.finalize(block, _capi.library().goccl_mem_free, address).atexit = False
    return np.ndarray(numbers, kind, block)


def zeros(
    shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike = np.float64
) -> Array:
    """Makes an array as empty() does, filled with zeros.

    Args:
        shape, dtype: as of empty().

    Returns:
        The array.

    Raises:
        TypeError, ValueError, goccl.Error: as empty().
    """
    made = empty(shape, dtype)
    made.fill(0)
    return made


def empty_like(array: npt.ArrayLike) -> Array:
    """Makes an array as empty() does, of the shape and dtype of another one.

    Args:
        array: that one.

    Returns:
        The array.

    Raises:
        TypeError, goccl.Error: as empty().
    """
    like = np.asarray(array)
    return empty(like.shape, like.dtype)


def zeros_like(array: npt.ArrayLike) -> Array:
    """Makes an array as zeros() does, of the shape and dtype of another one.

    Args:
        array: that one.

    Returns:
        The array.

    Raises:
        TypeError, goccl.Error: as empty().
    """
    like = np.asarray(array)
    return zeros(like.shape, like.dtype)
