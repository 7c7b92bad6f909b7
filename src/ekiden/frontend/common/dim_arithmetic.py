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
def _operators() -> Mapping[type[PrimExpr], Callable[[Expr, Expr], Expr]]:
    """Return the Relay operator of each binary node of shape expressions."""
    return {
        prim.Add: op.add, prim.Sub: op.subtract, prim.Mul: op.multiply, prim.Div: op.divide,
        prim.FloorDiv: op.floor_divide, prim.FloorMod: op.floor_mod, prim.Min: op.minimum,
        prim.Max: op.maximum, prim.EQ: op.equal, prim.NE: op.not_equal, prim.LT: op.less,
        prim.LE: op.less_equal, prim.GT: op.greater, prim.GE: op.greater_equal,
        prim.And: op.logical_and, prim.Or: op.logical_or,
    }  # fmt: skip


@cache
def _functions() -> Mapping[str, Callable[[Expr], Expr]]:
    """Return the Relay operator of each unary intrinsic, by name."""
    return {f.__name__: f for f in (op.floor, op.ceil, op.sqrt, op.round)}


def dim_tensor(root: PrimExpr, size: Callable[[SizeVar], Expr]) -> Expr:
    """Lower a shape expression to a scalar tensor; `size` lowers a symbol. Raises ImportModelError
    for what no operator computes.

    Depth of shape arithmetic is bounded by what `simplify` leaves, so this may recurse.
    """

    def inner(expr: PrimExpr) -> Expr:
        """Lower an operand."""
        return dim_tensor(expr, size)

    match root:
        case prim.IntImm() | prim.FloatImm():
            return const(np.asarray(root.value), root.dtype)
        case SizeVar():
            return size(root)
        case prim.Cast():
            return op.cast(inner(root.value), root.dtype)
        case prim.Select():
            return op.where(*map(inner, (root.condition, root.true_value, root.false_value)))
        case prim.Not():
            return op.logical_not(inner(root.a))
        case prim.BinaryExpr() if type(root) in _operators():
            return _operators()[type(root)](inner(root.a), inner(root.b))
        case prim.Intrinsic(op=name, args=(argument,)) if name in _functions():
            return _functions()[name](inner(argument))
    raise ImportModelError(f"cannot compute {root!r} at run time")
