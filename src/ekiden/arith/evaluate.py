"""Expressions with variables replaced: by expressions, or by numbers to a number."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.arith.analyzer import simplify
from ekiden.ir import prim_visitor
from ekiden.ir.prim import (
    And,
    BinaryExpr,
    Cast,
    FloatImm,
    IntImm,
    Intrinsic,
    Not,
    Or,
    PrimExpr,
    Select,
    Var,
)
from ekiden.ir.prim_visitor import children, post_order


def substitute(expr: PrimExpr, values: Mapping[Var, PrimExpr]) -> PrimExpr:
    """The expression with variables replaced, simplified."""
    return simplify(prim_visitor.substitute(expr, dict(values)))


def evaluate(expr: PrimExpr, values: Mapping[Var, int]) -> int:
    """The value when variables have these values.

    Raises ValueError for a variable without one or a division by zero.
    """
    done: dict[int, int] = {}
    for each in post_order(expr):
        done[id(each)] = _value(each, [done[id(c)] for c in children(each)], values)
    return done[id(expr)]


def _value(expr: PrimExpr, inside: list[int], values: Mapping[Var, int]) -> int:
    match expr:
        case IntImm() | FloatImm():
            return int(expr.value)
        case Var() if expr in values:
            return values[expr]
        case And() | Or():
            return all(inside) if isinstance(expr, And) else any(inside)
        case BinaryExpr():
            return _fold(expr, inside)
        case Not():
            return not inside[0]
        case Cast():
            return inside[0]
        case Select() | Intrinsic(op="if_then_else"):
            return inside[1] if inside[0] else inside[2]
        case _:
            raise ValueError(
                f"evaluate: no value for {expr!r}; known are {sorted(v.name for v in values)}"
            )


def _fold(expr: BinaryExpr, inside: list[int]) -> int:
    try:
        return int(type(expr).fold(*inside))
    except ZeroDivisionError:
        # A side of a Select that is not chosen may divide by zero.
        return 0
