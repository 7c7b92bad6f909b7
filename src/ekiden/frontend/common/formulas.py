"""Functions of one tensor that several frontends have and Relay has not."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.node import Node
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import product


def rounded_to_even(x: Expr, dtype: str) -> Expr:
    """The nearest whole numbers of floats, midway the even ones."""
    half, below = const(0.5, dtype), op.floor(x)
    rest, above = op.subtract(x, below), op.add(below, const(1, dtype))
    doubled = op.multiply(op.floor(op.multiply(below, half)), const(2, dtype))
    even = op.where(op.equal(doubled, below), below, above)
    nearest = op.where(op.greater(rest, half), above, below)
    return op.where(op.equal(rest, half), even, nearest)


def mean(node: Node, data: Expr, axis: Sequence[int], keepdims: bool) -> Expr:
    """The mean over axes; of integers their sum, divided towards zero."""
    kind = node.typed(data)
    if is_float(kind.dtype):
        return op.mean(data, axis=axis, keepdims=keepdims)
    count = node.scope.scalar(product([kind.shape[a] for a in axis]))
    total = op.sum(op.cast(data, "int64"), axis=axis, keepdims=keepdims)
    return op.cast(op.trunc_divide(total, op.cast(count, "int64")), kind.dtype)
