"""Arithmetic identities: the operand to which an operation with constant 0 or 1 reduces.

x + -0.0, x - 0.0, x * 1, x / 1 -> x;  i + 0, i - 0, i // 1 -> i, 0 * i, i % 1 -> 0 for integers.
Not for floats: 1.5 // 1 is 1, 0 * x is a NaN where x is infinite, and x + 0.0 is 0.0 where x is
-0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from ekiden.ir import dtype as dt

Identity: TypeAlias = Callable[..., int]
"""Function from the operands' constant values (None if not constant) and dtype to LHS_OPERAND,
RHS_OPERAND, ZERO_RESULT or NO_OPERAND.
"""
LHS_OPERAND, RHS_OPERAND, NO_OPERAND, ZERO_RESULT = range(4)


def no_identity(lhs: float | None, rhs: float | None, dtype: str) -> int:
    """Return NO_OPERAND: the operation has no identity."""
    del lhs, rhs, dtype
    return NO_OPERAND


def add_identity(lhs: float | None, rhs: float | None, dtype: str) -> int:
    """Return the other operand of x + 0 (floats: x + -0.0)."""
    # IEEE 754: -0.0 + 0.0 is 0.0, so only -0.0 leaves every float as it is.
    if _is_additive_identity(rhs, -1, dtype):
        return LHS_OPERAND
    return RHS_OPERAND if _is_additive_identity(lhs, -1, dtype) else NO_OPERAND


def sub_identity(lhs: float | None, rhs: float | None, dtype: str) -> int:
    """Return the left operand of x - 0 (floats: x - 0.0)."""
    del lhs
    # x - 0.0 is x also for x = -0.0; 0 - x is no x.
    return LHS_OPERAND if _is_additive_identity(rhs, 1, dtype) else NO_OPERAND


def mul_identity(lhs: float | None, rhs: float | None, dtype: str) -> int:
    """Return the other operand of x * 1, or the zero of an integer x * 0."""
    if rhs == 1:
        return LHS_OPERAND
    if lhs == 1:
        return RHS_OPERAND
    # Not of floats: 0 * NaN and 0 * inf are NaN, and 0 * -1 is -0.0.
    if dt.is_int(dtype) and (lhs == 0 or rhs == 0):
        # The zero is the answer, so the operand that is 0.
        return LHS_OPERAND if lhs == 0 else RHS_OPERAND
    return NO_OPERAND


def div_identity(lhs: float | None, rhs: float | None, dtype: str) -> int:
    """Return the left operand of x / 1."""
    del lhs, dtype
    return LHS_OPERAND if rhs == 1 else NO_OPERAND


def floordiv_identity(lhs: float | None, rhs: float | None, dtype: str) -> int:
    """Return the left operand of an integer x // 1."""
    del lhs
    return LHS_OPERAND if rhs == 1 and dt.is_int(dtype) else NO_OPERAND


def floormod_identity(lhs: float | None, rhs: float | None, dtype: str) -> int:
    """Return ZERO_RESULT for an integer x % 1."""
    del lhs
    return ZERO_RESULT if rhs == 1 and dt.is_int(dtype) else NO_OPERAND


def _is_additive_identity(value: float | None, sign: int, dtype: str) -> bool:
    """Return whether adding the constant changes nothing: an integer 0, or a float zero with this
    sign.
    """
    if value != 0 or not (dt.is_float(dtype) or dt.element_dtype(dtype) in dt.SMALL_FLOATS):
        return value == 0
    return math.copysign(1, value) == sign
