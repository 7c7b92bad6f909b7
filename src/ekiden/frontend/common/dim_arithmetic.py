"""Lowering of shape expressions to Relay operators that compute them at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from ekiden.ir import prim
from ekiden.ir.prim import PrimExpr, SizeVar
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.errors import ImportModelError


@cache
def _binary_ops() -> Mapping[type[PrimExpr], Callable[[Expr, Expr], Expr]]:
    """Return the Relay operator of each binary node of shape expressions."""
    return {
        prim.Add: op.add, prim.Sub: op.subtract, prim.Mul: op.multiply, prim.Div: op.divide,
        prim.FloorDiv: op.floor_divide, prim.FloorMod: op.floor_mod, prim.Min: op.minimum,
        prim.Max: op.maximum, prim.EQ: op.equal, prim.NE: op.not_equal, prim.LT: op.less,
        prim.LE: op.less_equal, prim.GT: op.greater, prim.GE: op.greater_equal,
        prim.And: op.logical_and, prim.Or: op.logical_or,
    }  # fmt: skip


@cache
def _unary_ops() -> Mapping[str, Callable[[Expr], Expr]]:
    """Return the Relay operator of each unary intrinsic, by name."""
    return {f.__name__: f for f in (op.floor, op.ceil, op.sqrt, op.round)}


def lower_dim(root: PrimExpr, size: Callable[[SizeVar], Expr]) -> Expr:
    """Lower a shape expression to a scalar tensor; `size` lowers a symbol. Raises ImportModelError
    for what no operator computes.

    Depth of shape arithmetic is bounded by what `simplify` leaves, so this may recurse.
    """

    def lower_operand(expr: PrimExpr) -> Expr:
        """Lower an operand."""
        return lower_dim(expr, size)

    match root:
        case prim.IntImm() | prim.FloatImm():
            return const(np.asarray(root.value), root.dtype)
        case SizeVar():
            return size(root)
        case prim.Cast():
            return op.cast(lower_operand(root.value), root.dtype)
        case prim.Select():
            return op.where(
                *map(lower_operand, (root.condition, root.true_value, root.false_value))
            )
        case prim.Not():
            return op.logical_not(lower_operand(root.a))
        case prim.BinaryExpr() if type(root) in _binary_ops():
            return _binary_ops()[type(root)](lower_operand(root.a), lower_operand(root.b))
        case prim.Intrinsic(op=name, args=(argument,)) if name in _unary_ops():
            return _unary_ops()[name](lower_operand(argument))
    raise ImportModelError(f"cannot compute {root!r} at run time")
