"""Functions of elements that are made of others: floats of one dtype."""

from __future__ import annotations

import math

from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def expm1(x: Expr, dtype: str) -> Expr:
    """exp(x) - 1 without the loss near 0: (u - 1) x / log(u) with u = exp(x) (Kahan)."""
    one = const(1, dtype)
    u = op.exp(x)
    near = op.divide(op.multiply(op.subtract(u, one), x), op.log(u))
    plain = op.subtract(u, one)
    far = op.logical_or(op.greater(op.abs(x), one), op.isnan(x))
    return op.where(op.equal(u, one), x, op.where(far, plain, near))


def log1p(x: Expr, dtype: str) -> Expr:
    """log(1 + x) without the loss near 0: log(u) x / (u - 1) with u = 1 + x (Kahan)."""
    one = const(1, dtype)
    u = op.add(one, x)
    near = op.divide(op.multiply(op.log(u), x), op.subtract(u, one))
    far = op.logical_or(op.greater(op.abs(x), one), op.isnan(x))
    return op.where(op.equal(u, one), x, op.where(far, op.log(u), near))


def fmod(dtype: str, x: Expr, y: Expr) -> Expr:
    """The remainder of C, with the sign of the dividend."""
    if not is_float(dtype):
        return op.trunc_mod(x, y)
    alone = op.logical_and(op.isinf(y), op.isfinite(x))
    return op.where(alone, x, op.mod(x, y))


def atan2(y: Expr, x: Expr, dtype: str) -> Expr:
    """The angle of (x, y): atan of the smaller over the larger, put into its octant."""
    zero, half, whole = const(0, dtype), const(math.pi / 2, dtype), const(math.pi, dtype)
    up, right = op.abs(y), op.abs(x)
    low, high = op.minimum(up, right), op.maximum(up, right)
    both_infinite = op.logical_and(op.isinf(up), op.isinf(right))
    ratio = op.where(op.equal(high, zero), zero, op.divide(low, high))
    ratio = op.where(both_infinite, const(1, dtype), ratio)
    angle = op.atan(ratio)
    angle = op.where(op.greater(up, right), op.subtract(half, angle), angle)
    angle = op.where(is_negative(x, dtype), op.subtract(whole, angle), angle)
    signed = op.where(is_negative(y, dtype), op.negative(angle), angle)
    return op.where(op.logical_or(op.isnan(x), op.isnan(y)), op.add(x, y), signed)


def is_negative(x: Expr, dtype: str) -> Expr:
    """Whether the sign is set; that of -0 is seen in its reciprocal."""
    zero = const(0, dtype)
    below = op.less(op.divide(const(1, dtype), x), zero)
    return op.logical_or(op.less(x, zero), op.logical_and(op.equal(x, zero), below))
