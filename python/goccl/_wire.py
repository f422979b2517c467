"""As which dtype elements travel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goccl._choice import ThreadChoice

if TYPE_CHECKING:
    import torch


_ALLOWED = ("", "bfloat16", "float16")


class wire_dtype(ThreadChoice):  # noqa: N801  a context, as torch.autocast is
    """A context in which this thread's collectives on float32 and float64 tensors travel as a
    narrower dtype.

    The result is that of converting each tensor to the dtype before, and back after: all ranks get
    the same bits, also a rank that keeps its own part. Each input is rounded once, and the result
    once more. Between ranks of one host that takes time and brings nothing; over a network half of
    the bytes go, and with several ranks a host in an allreduce about three quarters. All ranks use
    the same dtype, or give tensors of it. Sends, receives and other dtypes go as they are.

    Args:
        dtype: torch.bfloat16, torch.float16, or None for the tensors' own also where the group has
            another choice (`goccl.Options(wire_dtype=)`, GOCCL_WIRE_DTYPE).

    Raises:
        ValueError: `dtype` is something else.

    >>> with goccl.wire_dtype(torch.bfloat16):
    ...     dist.all_reduce(gradient)
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        name = "" if dtype is None else str(dtype).removeprefix("torch.")
        if name not in _ALLOWED:
            raise ValueError(
                f"goccl.wire_dtype: `dtype` is {dtype!r}, allowed are torch.bfloat16, "
                "torch.float16 and None"
            )
        super().__init__("exchange_wire_dtype", name)
