"""LLVM IR spellings of Ekiden's data types.

In registers bool is i1 and bfloat16 is i16 (its arithmetic goes through float32, so that no
compiler library is called); in memory bool is a byte.
"""

from __future__ import annotations

import re
import struct
from functools import cache

import ml_dtypes
import numpy as np

from ekiden.ir import dtype as dt
from ekiden.runtime.errors import CompileError

# fmt: off
REGISTER_TYPES: dict[str, str] = {
    "bool": "i1",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "i8", "uint16": "i16", "uint32": "i32", "uint64": "i64",
    "float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double",
    "handle": "ptr",
}
# fmt: on
_INTRINSIC_SUFFIXES = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}


@cache
def register_type(dtype: str) -> str:
    """Return the type of a value in a register."""
    lanes, scalar = dt.lanes(dtype), REGISTER_TYPES[dt.storage_dtype(dt.element_dtype(dtype))]
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def memory_dtype(dtype: str) -> str:
    """Return the dtype of an element in memory: bool becomes uint8."""
    return dt.with_lanes("uint8", dt.lanes(dtype)) if dt.element_dtype(dtype) == "bool" else dtype


def memory_type(dtype: str) -> str:
    """Return the type of a value in memory."""
    return register_type(memory_dtype(dtype))


@cache
def intrinsic_suffix(dtype: str) -> str:
    """Return an overloaded intrinsic's type suffix: f32, v16f32, i64. Raises CompileError for a
    type that no register holds.
    """
    scalar = REGISTER_TYPES.get(dt.element_dtype(dtype))
    if scalar is None:
        raise CompileError(f"code generation: no register holds values of type {dtype}")
    name = _INTRINSIC_SUFFIXES.get(scalar, scalar)
    return name if dt.lanes(dtype) == 1 else f"v{dt.lanes(dtype)}{name}"


def llvm_constant(value: int | float, dtype: str) -> str:
    """Return a constant operand of a scalar or splatted vector type."""
    scalar = _scalar_constant(value, dt.element_dtype(dtype))
    if dt.lanes(dtype) == 1:
        return scalar
    return f"splat ({REGISTER_TYPES[dt.element_dtype(dtype)]} {scalar})"


_HALF_EXPONENT_MASKS = {"bfloat16": (0x7F80, 16), "float16": (0x7C00, 16)}
"""Exponent mask and width of LLVM constants by type; the default is that of double, in which float
constants are written too.
"""


def is_nan_constant(operand: str, dtype: str) -> bool:
    """Return whether an operand of a float type is written as a constant that is NaN."""
    number = re.fullmatch(r"(?:splat \(\w+ )?(?:0xH?([0-9A-F]+)|(\d+))\)?", operand)
    if number is None:
        return False
    bits = int(number[1], 16) if number[1] else int(number[2])
    exponent, width = _HALF_EXPONENT_MASKS.get(dt.element_dtype(dtype), (0x7FF << 52, 64))
    # A NaN has all bits of the exponent set and a mantissa that is not 0.
    return bits & ((1 << (width - 1)) - 1) > exponent


def _scalar_constant(value: int | float, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if dtype == "bfloat16":
        return str(int(np.array(value, ml_dtypes.bfloat16).view(np.uint16)))
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return f"0xH{int(np.array(value, np.float16).view(np.uint16)):04X}"
    if dt.is_float(dtype):
        with np.errstate(over="ignore"):
            # LLVM writes float32 constants as doubles, which must be exact float32 values.
            number = float(np.float32(value)) if dtype == "float32" else float(value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    bits = dt.SCALAR_BITS[dtype]
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)
