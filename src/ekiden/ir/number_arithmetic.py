"""Arithmetic of numbers as a machine does it where Python differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from ekiden.ir import dtype as dt

Operation: TypeAlias = Callable[..., int | float]
"""Of two numbers."""


# Not int(a / b): a float has 53 bits, and a quotient of int64 may need 63.
def truncated_quotient(a: float, b: float) -> float:
    """Return a / b, of integers rounded towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    return a / b


# As codegen's: a NaN of either side is the result; Python's min and max keep the first operand.
def lesser(a: float, b: float) -> float:
    """Return the smaller number, NaN if one is."""
    return b if b < a or b != b else a


def greater(a: float, b: float) -> float:
    """Return the larger number, NaN if one is."""
    return b if b > a or b != b else a


# Double precision rounded once is what a machine computes in a narrower dtype: 53 bits are more
# than twice 24 and two.
def fold_numbers(
    operation: Operation, a: float, b: float, operands: str, result: str
) -> int | float:
    """Return what an operation gives for two numbers of a dtype. Raises ZeroDivisionError."""
    if dt.is_float(operands):
        a, b = dt.as_held(a, operands), dt.as_held(b, operands)
    return dt.as_held(operation(a, b), result)


def fold_sizes(operation: Operation, a: float, b: float, operands: str, result: str) -> int | float:
    """Return what an operation gives for two constants of a program.

    Sizes and indices are int64, and are whole numbers while they are computed: a reach of
    (k - 1) * dilation + 1 that no int64 holds is larger than any axis, not a small number that is
    left of it. A type of such a size, and code with such a number, are refused.
    """
    if result == operands == "int64":
        return operation(a, b)
    return fold_numbers(operation, a, b, operands, result)


def convert_number(value: float, source: str, dtype: str) -> int | float | None:
    """Return a number of one dtype as another: integers begin anew past their ends, as C's unsigned
    ones do and two's complement does for the others.

    None for a float that an integer dtype does not hold (a NaN, an infinity, 3e10 as int32): it has
    no value there in C, and the machine decides.
    """
    if dtype == "bool":
        return bool(value)
    if not (dt.is_float(source) or source in dt.SMALL_FLOATS):
        return dt.as_held(value, dtype)
    ends = dt.int_range(dtype)
    if ends is None:
        return dt.as_held(dt.as_held(value, source), dtype)
    return value if math.isfinite(value) and ends[0] <= int(value) <= ends[1] else None
