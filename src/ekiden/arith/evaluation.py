"""Substitution in expressions, and evaluation to numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ekiden.arith.analyzer import simplify
from ekiden.ir import prim_visitor
from ekiden.ir.constant_arithmetic import fold_in_dtype
from ekiden.ir.dtype import is_float, to_numpy, wrap_to_dtype
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
    """Substitute variables in an expression, and simplify."""
    return simplify(prim_visitor.substitute(expr, dict(values)))


Number = int | float
"""Number rounded to the expression's dtype: 0.7 as float32 is not 0.7 as float64."""


def evaluate(expr: PrimExpr, values: Mapping[Var, int]) -> int:
    """Evaluate an integer expression for values of its variables.

    Floats inside it are rounded and integers wrap around as their types require, except for int64:
    sizes are whole numbers while they are computed, so that a caller sees one that no int64 is.

    Raises:
        ValueError: A variable has no value, a divisor is zero, or a float has no integer value.
    """
    (value,) = evaluate_at(expr, (values,))
    return value


def evaluate_at(expr: PrimExpr, points: Iterable[Mapping[Var, int]]) -> list[int]:
    """Evaluate an integer expression for several values of its variables; see `evaluate`."""
    nodes = [(node, id(node), tuple(map(id, children(node)))) for node in post_order(expr)]
    results: list[int] = []
    for values in points:
        done: dict[int, Number] = {}
        for node, number, inside in nodes:
            # Both sides of a Select are evaluated: hence the division by 0 that _fold allows.
            done[number] = _evaluate_node(node, [done[c] for c in inside], values)
        results.append(int(done[id(expr)]))
    return results


def _evaluate_node(expr: PrimExpr, inside: list[Number], values: Mapping[Var, int]) -> Number:
    match expr:
        case IntImm():
            return expr.value
        case FloatImm():
            return wrap_to_dtype(expr.value, expr.dtype)
        case Var() if expr in values:
            return values[expr]
        case And() | Or():
            return all(inside) if isinstance(expr, And) else any(inside)
        case BinaryExpr():
            return _fold_binary(expr, inside)
        case Not():
            return not inside[0]
        case Cast():
            return _cast_number(inside[0], expr)
        case Select() | Intrinsic(op="if_then_else"):
            return inside[1] if inside[0] else inside[2]
        case Intrinsic(op=name) if is_float(expr.dtype) and name in INTRINSICS:
            result: Any = INTRINSICS[name].reference(*_to_numpy_args(expr, inside))
            return wrap_to_dtype(float(result), expr.dtype)
        case _:
            raise ValueError(
                f"evaluate: no value for {expr!r}; known are {sorted(v.name for v in values)}"
            )


def _to_numpy_args(expr: Intrinsic, inside: Sequence[Number]) -> list[object]:
    """Convert arguments to NumPy scalars of their dtypes."""
    return [to_numpy(a.dtype).type(v) for a, v in zip(expr.args, inside, strict=True)]


def _cast_number(value: Number, expr: Cast) -> Number:
    """Cast a number to another dtype, towards zero for integers."""
    if is_float(expr.dtype):
        return wrap_to_dtype(value, expr.dtype)
    if expr.dtype == "bool":
        return value != 0
    if not math.isfinite(value):
        raise ValueError(f"evaluate: {value} has no value as {expr.dtype} in {expr!r}")
    return wrap_to_dtype(int(value), expr.dtype)


def _fold_binary(expr: BinaryExpr, inside: list[Number]) -> Number:
    try:
        # Sizes are exact in Python's integers; other dtypes round or wrap around as kernels do.
        if expr.a.dtype == expr.dtype == "int64":
            return type(expr).fold(inside[0], inside[1])
        return fold_in_dtype(type(expr).fold, inside[0], inside[1], expr.a.dtype, expr.dtype)
    except ZeroDivisionError:
        # A side of a Select that is not chosen may divide by zero.
        return 0
