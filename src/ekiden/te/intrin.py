"""Scalar functions for the bodies of computations, by TVM's names.

One for each intrinsic of one or two arguments (`te.exp`, `te.pow`, ...), integer divisions of every
rounding, and conditions.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import Div, ExprLike, FloorDiv, FloorMod, Or, PrimExpr, binary, convert
from ekiden.ir.prim import logical_and as both


def _named(op: str) -> Callable[..., PrimExpr]:
    def apply(*args: ExprLike) -> PrimExpr:
        return call_intrin(op, *args)

    apply.__name__ = apply.__qualname__ = op
    apply.__doc__ = f"`{op}` of scalar expressions (see ekiden.ir.intrinsic)."
    return apply


exp, log, sqrt, rsqrt = map(_named, ("exp", "log", "sqrt", "rsqrt"))
tanh, erf, sigmoid, sin, cos = map(_named, ("tanh", "erf", "sigmoid", "sin", "cos"))
abs, floor, ceil, round, trunc = map(_named, ("abs", "floor", "ceil", "round", "trunc"))
isnan, isinf, power, fma = map(_named, ("isnan", "isinf", "pow", "fma"))


def all(*conditions: PrimExpr) -> PrimExpr:
    """Whether every condition holds. Raises ValueError when there is none."""
    return _joined("all", both, conditions)


def any(*conditions: PrimExpr) -> PrimExpr:
    """Whether some condition holds. Raises ValueError when there is none."""
    return _joined("any", lambda a, b: binary(Or, a, b), conditions)


def _joined(
    name: str, join: Callable[[PrimExpr, PrimExpr], PrimExpr], conditions: tuple[PrimExpr, ...]
) -> PrimExpr:
    if not conditions:
        raise ValueError(f"{name}: expected at least one condition")
    found = conditions[0]
    for each in conditions[1:]:
        found = join(found, each)
    return found


def div(a: ExprLike, b: ExprLike) -> PrimExpr:
    """`a / b` as C does: integers are truncated towards zero."""
    return binary(Div, a, b)


def truncdiv(a: ExprLike, b: ExprLike) -> PrimExpr:
    """The integer quotient, truncated towards zero."""
    return binary(Div, a, b)


def truncmod(a: ExprLike, b: ExprLike) -> PrimExpr:
    """What `truncdiv` leaves, with the sign of a."""
    left = convert(a)
    return left - binary(Div, left, b) * b


def floordiv(a: ExprLike, b: ExprLike) -> PrimExpr:
    """The integer quotient, rounded down."""
    return binary(FloorDiv, a, b)


def floormod(a: ExprLike, b: ExprLike) -> PrimExpr:
    """What `floordiv` leaves, with the sign of b."""
    return binary(FloorMod, a, b)


indexdiv, indexmod = floordiv, floormod

__all__ = [
    "abs", "all", "any", "ceil", "cos", "div", "erf", "exp", "floor", "floordiv", "floormod",
    "fma", "if_then_else", "indexdiv", "indexmod", "isinf", "isnan", "log", "power", "round",
    "rsqrt", "sigmoid", "sin", "sqrt", "tanh", "trunc", "truncdiv", "truncmod",
]  # fmt: skip
