"""Expressions with variables replaced: by expressions, or by numbers to a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ekiden.arith.analyzer import simplify
from ekiden.ir import prim_visitor
from ekiden.ir.dtype import is_float, to_numpy
from ekiden.ir.intrinsic import INTRINSICS
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


Number = int | float | np.floating[Any]
"""Floats have the width that the expression says: 0.7 as float32 is not 0.7 as float64."""


def evaluate(expr: PrimExpr, values: Mapping[Var, int]) -> int:
    """The integer that an expression is when variables have these values; floats inside it are
    rounded as its types say.

    Raises ValueError for a variable without one or a division by zero.
    """
    done: dict[int, Number] = {}
    for each in post_order(expr):
        done[id(each)] = _value(each, [done[id(c)] for c in children(each)], values)
    return int(done[id(expr)])


def _value(expr: PrimExpr, inside: list[Number], values: Mapping[Var, int]) -> Number:
    match expr:
        case IntImm():
            return expr.value
        case FloatImm():
            return _rounded(expr.value, expr.dtype)
        case Var() if expr in values:
            return values[expr]
        case And() | Or():
            return all(inside) if isinstance(expr, And) else any(inside)
        case BinaryExpr():
            return _fold(expr, inside)
        case Not():
            return not inside[0]
        case Cast():
            return _rounded(inside[0], expr.dtype)
        case Select() | Intrinsic(op="if_then_else"):
            return inside[1] if inside[0] else inside[2]
        case Intrinsic(op=name) if is_float(expr.dtype) and name in INTRINSICS:
            return _rounded(INTRINSICS[name].reference(*inside), expr.dtype)
        case _:
            raise ValueError(
                f"evaluate: no value for {expr!r}; known are {sorted(v.name for v in values)}"
            )


def _rounded(value: object, dtype: str) -> Number:
    """A number as one of a type: floats by its width, towards zero for integers."""
    if not is_float(dtype):
        return int(value)  # type: ignore[call-overload, no-any-return]
    return to_numpy(dtype).type(value)  # type: ignore[return-value]


def _fold(expr: BinaryExpr, inside: list[Number]) -> Number:
    try:
        found = type(expr).fold(*inside)
    except ZeroDivisionError:
        # A side of a Select that is not chosen may divide by zero.
        return 0
    return _rounded(found, expr.dtype) if is_float(expr.dtype) else int(found)
