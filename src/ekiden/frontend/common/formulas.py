"""Functions of one tensor that several frontends have and Relay has not."""

from __future__ import annotations

from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def rounded_to_even(x: Expr, dtype: str) -> Expr:
    """The nearest whole numbers of floats, midway the even ones."""
    half, below = const(0.5, dtype), op.floor(x)
    rest, above = op.subtract(x, below), op.add(below, const(1, dtype))
    doubled = op.multiply(op.floor(op.multiply(below, half)), const(2, dtype))
    even = op.where(op.equal(doubled, below), below, above)
    nearest = op.where(op.greater(rest, half), above, below)
    return op.where(op.equal(rest, half), even, nearest)
