"""Constant arithmetic with machine semantics where Python's differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from ekiden.ir import dtype as dt

Operation: TypeAlias = Callable[..., int | float]
"""Binary operation on two numbers."""


# Not int(a / b): a float has 53 bits, and a quotient of int64 may need 63.
def trunc_div(a: float, b: float) -> float:
    """Return a / b, rounded towards zero for integers as C does."""
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    return a / b


# As codegen's: a NaN of either side is the result; Python's min and max keep the first operand.
def nan_min(a: float, b: float) -> float:
    """Return the minimum, NaN if either operand is NaN."""
    return b if b < a or b != b else a


def nan_max(a: float, b: float) -> float:
    """Return the maximum, NaN if either operand is NaN."""
    return b if b > a or b != b else a


# Double precision rounded once is what a machine computes in a narrower dtype: 53 bits are more
# than twice 24 and two.
def fold_in_dtype(
    operation: Operation, a: float, b: float, operands: str, result: str
) -> int | float:
    """Fold an operation on two constants of a dtype, rounding or wrapping the result. Raises
    ZeroDivisionError.
    """
    if dt.is_float(operands):
        # A constant may be written with more digits than its dtype holds.
        a, b = dt.wrap_to_dtype(a, operands), dt.wrap_to_dtype(b, operands)
    return dt.wrap_to_dtype(operation(a, b), result)


def fold_size_constants(
    operation: Operation, a: float, b: float, operands: str, result: str
) -> int | float:
    """Fold an operation on two program constants, exactly for int64 sizes.

    Sizes and indices are int64, and are whole numbers while they are computed: a reach of (k - 1) *
    dilation + 1 that no int64 holds is larger than any axis, not a small number that is left of it.
    A type of such a size, and code with such a number, are refused.
    """
    # Sizes are proved about as mathematical integers; wrapping one would prove what is false.
    if result == operands == "int64":
        return operation(a, b)
    return fold_in_dtype(operation, a, b, operands, result)


def cast_constant(value: float, source: str, dtype: str) -> int | float | None:
    """Cast a constant between dtypes with wrap-around for integers.

    None for a float that an integer dtype does not hold (a NaN, an infinity, 3e10 as int32): it has
    no value there in C, and the machine decides.
    """
    if dtype == "bool":
        return bool(value)
    if not (dt.is_float(source) or source in dt.SMALL_FLOATS):
        return dt.wrap_to_dtype(value, dtype)
    ends = dt.int_range(dtype)
    if ends is None:
        return dt.wrap_to_dtype(dt.wrap_to_dtype(value, source), dtype)
    # C leaves the conversion of a float out of range undefined: it is not folded.
    return value if math.isfinite(value) and ends[0] <= int(value) <= ends[1] else None
