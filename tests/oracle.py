"""What collectives must give, computed without any backend.

Integers are exact, modulo their width. Floats follow the promised order of summation: the balanced
binary tree over ranks, aligned at powers of two; 16- and 8-bit floats in float32, rounded once by
torch's own cast. NumPy does the arithmetic.
"""

import functools
from typing import Any

import harness
import numpy as np
import torch

FP8 = [
    getattr(torch, n)
    for n in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, n)
]
INTEGERS = [
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
]
NARROW_FLOATS = [torch.float16, torch.bfloat16, *FP8]
FLOATS = [*NARROW_FLOATS, torch.float32, torch.float64]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
ARITHMETIC = [*INTEGERS, *FLOATS, torch.bool, *COMPLEX]


def _can_be_copied(dtype):
    try:
        torch.empty(1, dtype=dtype).clone()
    except NotImplementedError:
        return False
    return True


# Types that can be moved but have no arithmetic. An older torch cannot even copy the 4-bit one.
OPAQUE = [
    dtype
    for n in ("float8_e8m0fnu", "float4_e2m1fn_x2")
    if (dtype := getattr(torch, n, None)) is not None and _can_be_copied(dtype)
]
ALL = [*ARITHMETIC, *OPAQUE]

# Longer values repeat themselves after so many: a prime, so that pieces of a message differ.
PERIOD = 65_521
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]
FACTOR = 0.5  # of PREMUL_SUM, for floats: exact in every float type
INT_FACTOR = 3.0


def name(dtype):
    return str(dtype).removeprefix("torch.")


def allowed(dtype, op):
    """Whether an op has a meaning for a dtype."""
    if dtype in OPAQUE:
        return False
    if dtype in INTEGERS:
        return True
    if dtype == torch.bool:
        return op not in ("AVG", "PREMUL_SUM")
    if dtype in COMPLEX:
        return op in ("SUM", "AVG", "PRODUCT", "PREMUL_SUM")
    return op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM")


def _numpy(t):
    """The elements as NumPy numbers of the type in which sums are taken."""
    t = t.contiguous()
    if t.dtype in NARROW_FLOATS:
        return t.to(torch.float32).numpy()
    if t.dtype == torch.complex32:
        return torch.view_as_real(t).to(torch.float32).numpy().view(np.complex64)[..., 0]
    return t.numpy()


def _torch(a, dtype):
    a = np.ascontiguousarray(a)
    if dtype == torch.complex32:
        return torch.view_as_complex(
            torch.from_numpy(a.view(np.float32)).to(torch.float16).reshape(*a.shape, 2)
        )
    if dtype == torch.float8_e4m3fn:
        # It has no infinity: too large becomes the largest number, as a newer torch casts. An older
        # one: NaN.
        a = np.clip(a, -448, 448)
    return torch.from_numpy(a).to(dtype)


def zeros_alike(dtype, op):
    """Where the sign of a zero is not told by IEEE 754 and the canonical order alone."""
    return op in ("MIN", "MAX") or (op == "PRODUCT" and dtype in COMPLEX)


def _tree(parts, combine):
    """combine over the balanced tree, aligned at powers of two: of six, ((0+1)+(2+3))+(4+5)."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [combine(a, b) for a, b in pairs] + parts[len(parts) & ~1 :]
    return parts[0]


def reduce(inputs, op):
    """The one right result of reducing the ranks' tensors, in rank order."""
    dtype = inputs[0].dtype
    shape = inputs[0].shape
    parts = [_numpy(t) for t in inputs]
    with np.errstate(all="ignore"):
        combine: Any
        if dtype == torch.bool:
            combine = {
                "SUM": np.logical_or,
                "MAX": np.logical_or,
                "BOR": np.logical_or,
                "PRODUCT": np.logical_and,
                "MIN": np.logical_and,
                "BAND": np.logical_and,
                "BXOR": np.logical_xor,
            }[op]
        else:
            combine = {
                "SUM": np.add,
                "AVG": np.add,
                "PREMUL_SUM": np.add,
                "PRODUCT": np.multiply,
                "MIN": np.minimum,
                "MAX": np.maximum,
                "BAND": np.bitwise_and,
                "BOR": np.bitwise_or,
                "BXOR": np.bitwise_xor,
            }[op]
        if op == "PREMUL_SUM":
            factor = INT_FACTOR if dtype in INTEGERS else FACTOR
            parts = [p * p.dtype.type(factor) for p in parts]
        total = _tree(parts, combine)
        if op == "AVG":
            if dtype in INTEGERS:
                total = np.sign(total) * (np.abs(total) // len(parts))
            elif dtype in COMPLEX:
                total.real /= len(parts)
                total.imag /= len(parts)
            else:
                total = total / total.dtype.type(len(parts))
        return _torch(total, dtype).reshape(shape)


def values(dtype, count, rank, kind="small", seed=0):
    """The input of a rank. "small": integers whose sums and products are exact in the type, for up
    to 8 ranks. "general": any finite values. "bits": any bytes at all, for what is only moved."""
    made = _values(dtype, min(count, PERIOD), rank, kind, seed)
    if count <= PERIOD:
        return made.clone()
    whole = made.view(torch.uint8).repeat(-(-count // PERIOD))
    return whole[: count * made.element_size()].view(dtype)


@functools.lru_cache(256)  # each rank computes those of all, for one case after the other
def _values(dtype, count, rank, kind, seed):
    if count == 0:
        return torch.empty(0, dtype=dtype)
    g = np.random.default_rng((seed, rank, count))
    if dtype in OPAQUE or kind == "bits":
        size = torch.empty(0, dtype=dtype).element_size()
        raw = g.integers(0, 2 if dtype == torch.bool else 256, count * size, dtype=np.uint8)
        return torch.from_numpy(raw).view(dtype)
    if dtype == torch.bool:
        return torch.from_numpy(g.integers(0, 2, count).astype(bool))
    if dtype in INTEGERS:
        info = torch.iinfo(dtype)
        if kind == "general":
            return torch.from_numpy(
                g.integers(info.min, info.max, count, dtype=np.dtype(name(dtype)), endpoint=True)
            )
        return torch.from_numpy(
            g.integers(0 if info.min == 0 else -5, 6, count).astype(name(dtype))
        )
    if dtype in COMPLEX:
        if kind == "general":
            z = g.standard_normal(count) + 1j * g.standard_normal(count)
        else:
            z = g.integers(-1, 2, count) + 1j * g.integers(-1, 2, count)
        return _torch(z.astype(np.complex128 if dtype == torch.complex128 else np.complex64), dtype)
    if kind == "general":
        scale = np.exp2(g.integers(-6, 7, count))
        return torch.from_numpy(g.standard_normal(count) * scale).to(dtype)
    # -1, 0, 1: a sum of 8 has three bits, which fp8 just holds.
    return torch.from_numpy(g.integers(-1, 2, count).astype(np.float64)).to(dtype)


def same(got, want, zeros=False):
    """ "" where got and want have the same bits, else what is wrong. One NaN is as good as another,
    and where `zeros` says so, so is one zero. `got` may be on a device."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{tuple(got.shape)} instead of {want.dtype}{tuple(want.shape)}"
    if got.numel() == 0:
        return ""
    got, want = got.cpu().contiguous(), want.contiguous()
    if torch.equal(got.view(-1).view(torch.uint8), want.view(-1).view(torch.uint8)):
        return ""
    if got.dtype in COMPLEX:
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    equal = (got.view(torch.uint8) == want.view(torch.uint8)).view(-1, got.element_size()).all(1)
    if got.dtype in FLOATS:
        equal |= (got.float().isnan() & want.float().isnan()).view(-1)
        if zeros:
            equal |= ((got.float() == 0) & (want.float() == 0)).view(-1)
    if bool(equal.all()):
        return ""
    i = int((~equal).nonzero()[0])
    g, w = got.reshape(-1)[i : i + 1], want.reshape(-1)[i : i + 1]
    bad = int((~equal).sum())
    return (
        f"{bad} of {equal.numel()} elements wrong, first at {i}: {g.view(torch.uint8).tolist()} "
        f"instead of {w.view(torch.uint8).tolist()} (bytes of {got.dtype})"
    )


def check(got, want, what, zeros=False):
    problem = same(got, want, zeros)
    harness.expect(not problem, f"{what}: {problem}")
