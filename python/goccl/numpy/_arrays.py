"""What collectives take as arrays: their memory, their dtypes, and what is wrong with others."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from goccl import _capi

Array: TypeAlias = npt.NDArray[Any]

complex32 = np.dtype([("real", np.float16), ("imag", np.float16)])
"""Complex numbers of two float16. NumPy moves them, and does not calculate with them."""

_VALUES = {name: value for value, name in enumerate(_capi.DTYPES)}
_ML_DTYPES = {name for name in _VALUES if name.startswith(("bfloat", "float8"))}
_BYTES1 = _VALUES["bytes1"]

# goccl_dtype of each dtype of this host's byte order. Those of ml_dtypes come in when they are met.
CODES: dict[np.dtype[Any], int] = {
    np.dtype(name): value
    for name, value in _VALUES.items()
    if name not in _ML_DTYPES and name not in ("complex32", "bytes1")
}
CODES[complex32] = _VALUES["complex32"]
CODES[np.dtype("V1")] = CODES[np.dtype("S1")] = _BYTES1

_ALLOWED = (
    "allowed are bool, int8 to int64, uint8 to uint64, float16 to float64, complex64, complex128, "
    "goccl.numpy.complex32, those of ml_dtypes with one byte, and its bfloat16"
)
_HOST = (1, 3, 11)  # of DLPack: memory of the CPU, which a device may reach, too

code_of = CODES.get
_address = ctypes.addressof
one_byte: Any = ctypes.c_char.from_buffer


def dtype_code(name: str, dtype: np.dtype[Any]) -> int:
    """Returns the goccl_dtype of a dtype. TypeError names the argument where it has none."""
    code = code_of(dtype)
    if code is None:
        known = dtype.name if dtype.type.__module__.partition(".")[0] == "ml_dtypes" else ""
        if not dtype.isnative:
            raise TypeError(
                f"{name} is of dtype {dtype.str}, which is of foreign byte order: give "
                f"{name}.astype({name}.dtype.newbyteorder('='))"
            )
        if known in _ML_DTYPES:
            code = _VALUES[known]
        elif known and dtype.itemsize == 1:
            code = _BYTES1
        else:
            raise TypeError(f"{name} is of dtype {dtype}, {_ALLOWED}")
        CODES[dtype] = code
    return code


def as_array(name: str, given: Any) -> Array:
    """Returns an array over the memory of what is given, of any strides.

    Args:
        name: of the argument.
        given: an array, or what has the buffer protocol or DLPack.

    Raises:
        TypeError: it is something else.
        ValueError: it is not in the CPU's memory.
    """
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost: give its filled()")
    if isinstance(given, (np.ndarray, np.generic)):
        return np.asarray(given)
    try:
        return np.asarray(memoryview(given))
    except (TypeError, BufferError):
        pass
    if not hasattr(given, "__dlpack__"):
        raise TypeError(
            f"{name} is of type {type(given).__name__}, it must be a NumPy array, or have the "
            "buffer protocol or DLPack"
        )
    device, number = given.__dlpack_device__()
    if device not in _HOST:
        raise ValueError(
            f"{name} is on DLPack's device {int(device)}:{number}, it must be in the CPU's memory"
        )
    try:
        return np.from_dlpack(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"{name} of type {type(given).__name__} is none for NumPy: {error}"
        ) from None


def source(name: str, given: Any) -> tuple[Array, int, int]:
    """Reads an argument that is only read.

    Returns:
        The array, or a contiguous copy of one that is strided; its goccl_dtype; its address.

    Raises:
        TypeError, ValueError: as as_array() and dtype_code().
    """
    array = given if type(given) is np.ndarray else as_array(name, given)
    code = code_of(array.dtype)
    if code is None:
        code = dtype_code(name, array.dtype)
    try:
        return array, code, _address(one_byte(array))
    except (TypeError, ValueError, BufferError):  # strided, read-only or empty
        array = np.ascontiguousarray(array).reshape(array.shape)
        return array, code, array.__array_interface__["data"][0]


def target(name: str, given: Any) -> tuple[Array, int, int]:
    """Reads an argument that is written to.

    Returns:
        The array, its goccl_dtype, and its address.

    Raises:
        TypeError: as as_array() and dtype_code().
        ValueError: it is read-only, or strided; as as_array().
    """
    array = given if type(given) is np.ndarray else as_array(name, given)
    code = code_of(array.dtype)
    if code is None:
        code = dtype_code(name, array.dtype)
    try:
        return array, code, _address(one_byte(array))
    except (TypeError, ValueError, BufferError):
        if not array.flags.writeable:
            raise ValueError(f"{name} is read-only, it must be writable") from None
        if not array.flags.c_contiguous:
            raise ValueError(
                f"{name} of shape {array.shape} has strides {array.strides}, it must be contiguous "
                "in C's order"
            ) from None
        return array, code, array.__array_interface__["data"][0]


def fits(name: str, array: Array, size: int, dtype: np.dtype[Any], of: str) -> None:
    """Raises ValueError or TypeError unless an array has so many elements of a dtype.

    Args:
        name: of the argument.
        array: it.
        size: the number of elements.
        dtype: theirs.
        of: what has that dtype, and decides on the number.
    """
    if array.dtype != dtype:
        raise TypeError(f"{name} is of dtype {array.dtype}, it must be of that of {of}: {dtype}")
    if array.size != size:
        raise ValueError(f"{name} has {array.size} elements, it must have {size}, as {of} has it")


def pointers(addresses: Sequence[int]) -> Any:
    """Returns an array of pointers, as C takes it."""
    return (ctypes.c_void_p * len(addresses))(*addresses)


def counts(arrays: Sequence[Array]) -> Any:
    """Returns an array of numbers of elements, as C takes it."""
    return (ctypes.c_uint64 * len(arrays))(*(array.size for array in arrays))
