"""Data types as strings in NumPy's spelling: "float32", "int64", "bool", "bfloat16".

Vectors add lanes: "float32x16". Of scalable ones the processor decides how many there are, a
multiple of its `vscale`: "float32xvscalex4".

"handle" is an opaque pointer. There are few, and each is asked about again and again: answers are
kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.runtime.errors import CompileError

if TYPE_CHECKING:
    import ml_dtypes
else:  # for types that NumPy has not
    ml_dtypes = LazyModule("ml_dtypes")

SCALAR_BITS: dict[str, int] = {
    "bool": 8,
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "uint8": 8,
    "uint16": 16,
    "uint32": 32,
    "uint64": 64,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float64": 64,
    "int4": 4,
    "int2": 2,
    "uint4": 4,
    "uint2": 2,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "float4_e2m1fn": 4,
    "handle": 64,
}
TVM_DTYPE_ALIASES = {"uint1": "bool", "int": "int32", "uint": "uint32", "float": "float32"}
"""TVM's spellings of dtypes mapped to ours."""
VSCALE_PREFIX = "vscalex"
"""Prefix of the vscale factor in the lanes of scalable vectors."""
SMALL_FLOATS = frozenset(d for d in SCALAR_BITS if d.startswith(("float8", "float4")))
"""Floating-point types that are stored and converted but have no arithmetic."""


@cache
def lanes(dtype: str) -> int:
    """Return the number of vector lanes: 1 for a scalar type.

    Raises CompileError for a scalable vector, which has as many as the processor that runs it says.
    """
    _, _, count = dtype.partition("x")
    if count.startswith(VSCALE_PREFIX):
        raise CompileError(f"lanes of {dtype}: the number is known where it runs, not here")
    return int(count) if count else 1


@cache
def lanes_suffix(dtype: str) -> str:
    """Return the lanes suffix of a dtype: "" for a scalar, "4" of "float32x4".

    "4" of float32x4, "vscalex4" of float32xvscalex4, "" of scalars.
    """
    count = dtype.partition("x")[2]
    # "float32x1" and "float32" are one type.
    return "" if count == "1" else count


def scalable_lanes(factor: int) -> str:
    """Return the lanes suffix of a scalable vector with `factor` * vscale elements."""
    return f"{VSCALE_PREFIX}{factor}"


@cache
def canonical_dtype(dtype: str) -> str:
    """Canonicalize a dtype name: TVM's "uint1" becomes "bool", "float" becomes "float32"."""
    kind = element_dtype(dtype)
    tvm_alias = TVM_DTYPE_ALIASES.get(kind)
    return dtype if tvm_alias is None else f"{tvm_alias}{dtype.removeprefix(kind)}"


@cache
def element_dtype(dtype: str) -> str:
    """Return the element dtype of a vector dtype, or the scalar dtype itself."""
    return dtype.partition("x")[0]


@cache
def with_lanes(dtype: str, count: int | str) -> str:
    """Return the element dtype of `dtype` with `count` lanes, a number or a lanes suffix."""
    # One lane is a scalar: a vector of one would be another type to every comparison.
    return element_dtype(dtype) if count in (1, "") else f"{element_dtype(dtype)}x{count}"


def gather_dtype(dtype: str, indices: Iterable[str]) -> str:
    """Return the dtype of a load through indices of the given dtypes.

    By a vector of indices it is a vector.
    """
    lanes = next(filter(None, map(lanes_suffix, indices)), "")
    if not lanes or not lanes_suffix(dtype):
        return dtype if not lanes else with_lanes(dtype, lanes)
    # Elements that are vectors themselves: every index brings all lanes of one.
    return with_lanes(dtype, int(lanes) * int(lanes_suffix(dtype)))


@cache
def itemsize(dtype: str) -> int:
    """Return the bytes of one element in memory, all lanes included; 1 for sub-byte elements."""
    # Sub-byte elements are counted as if each had a byte where they are not packed.
    return max(1, SCALAR_BITS[element_dtype(dtype)] // 8) * lanes(dtype)


@cache
def is_packed(dtype: str) -> bool:
    """Return whether several sub-byte elements share a byte, low bits first."""
    return SCALAR_BITS[element_dtype(dtype)] < 8


@cache
def is_byte_stored(dtype: str) -> bool:
    """Return whether kernels store elements as bytes because the dtype has no arithmetic (float8,
    float4, int4, int2).
    """
    return dtype in SMALL_FLOATS or is_packed(dtype)


@cache
def storage_dtype(dtype: str) -> str:
    """Return the dtype that holds a value in registers: int8 or uint8 for byte-stored types, else
    the dtype itself.
    """
    if not is_byte_stored(dtype):
        return dtype
    return "int8" if dtype in ("int4", "int2") else "uint8"


@cache
def is_float(dtype: str) -> bool:
    """Return whether elements are floats with arithmetic (not SMALL_FLOATS)."""
    return element_dtype(dtype) in ("float16", "bfloat16", "float32", "float64")


@cache
def is_int(dtype: str) -> bool:
    """Return whether elements are integers, signed or not; bool is not an integer."""
    return element_dtype(dtype).startswith(("int", "uint"))


@cache
def is_int_or_bool(dtype: str) -> bool:
    """Return whether elements are integers or bools."""
    return is_int(dtype) or element_dtype(dtype) == "bool"


@cache
def is_unsigned(dtype: str) -> bool:
    """Return whether elements are unsigned integers."""
    return element_dtype(dtype).startswith("uint")


def wider_int(a: str, b: str) -> str | None:
    """Return the wider of two integer dtypes with equal lanes (the first on a tie), or None."""
    if not is_int(a) or not is_int(b) or lanes_suffix(a) != lanes_suffix(b):
        return None
    # int32 and uint32 promote to the first operand's type: TVM does not promote by sign.
    return a if itemsize(a) >= itemsize(b) else b


def promote_dtypes(a: str, b: str) -> str | None:
    """Return the dtype to which TVM promotes two operands, or None if there is none.

    Integers get the wider dtype, an integer beside a float that of the float. Both must have as
    many lanes.
    """
    if lanes_suffix(a) != lanes_suffix(b):
        return None
    # TVM's rule: an integer operand takes the float's dtype whatever its width; two floats of
    # unequal widths are an error.
    for float_dtype, int_dtype in ((a, b), (b, a)):
        if is_float(float_dtype) and is_int(int_dtype):
            return float_dtype
    return wider_int(a, b)


@cache
def to_numpy(dtype: str) -> np.dtype[np.generic]:
    """Return the NumPy dtype of a scalar type, from ml_dtypes for bfloat16 and small types."""
    is_extended = dtype == "bfloat16" or is_byte_stored(dtype)
    return np.dtype(getattr(ml_dtypes, dtype) if is_extended else dtype)


@cache
def int_range(dtype: str) -> tuple[int, int] | None:
    """Return the (minimum, maximum) of an integer dtype, or None for others."""
    # "uint8" has "u" before "int", "int8" nothing; "bool" and floats have no "int".
    sign, _, bits = dtype.partition("int")
    if not bits.isdecimal() or sign not in ("", "u"):
        return None
    count = int(bits)
    return (0, 2**count - 1) if sign else (-(2 ** (count - 1)), 2 ** (count - 1) - 1)


# Signed integers wrap too: the language has no undefined overflow.
def wrap_to_dtype(value: float, dtype: str) -> int | float:
    """Return a number as the dtype represents it: floats rounded, integers wrapped modulo
    2**bits.
    """
    if is_float(dtype):
        with np.errstate(all="ignore"):
            return float(to_numpy(dtype).type(value))
    ends = int_range(dtype)
    if ends is None or ends[0] <= value <= ends[1]:
        return value
    # Modulo 2**bits into [ends[0], ends[1]]: two's complement.
    return (int(value) - ends[0]) % (ends[1] - ends[0] + 1) + ends[0]
