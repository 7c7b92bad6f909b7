"""Elimination of casts of rounded and clipped floats to an unsigned integer and back.

    float32(uint8(min(max(round(x) + p, 0), 255)))
    ->  min(select(w > 0, w, 0), 255)  where  w = round(x) + p

Quantised data of kernels that multiply in floats (depthwise convolutions) are written so. The
result has equal bits: NaN becomes 0 by either form, as comparisons with it are false, and no zero
is negative. The comparison with its selection is one instruction of x86-64 (MAXPS) and of Arm.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.prim import (
    GT,
    Add,
    Cast,
    FloatImm,
    Intrinsic,
    Max,
    Min,
    PrimExpr,
    Select,
    Sub,
    const,
)
from ekiden.tir.expr import Broadcast, broadcast
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.stmt_summary import summarize_stmt
from ekiden.tir.visitor import ExprRewriter

ROUNDING_INTRINSICS = frozenset(("round", "nearbyint", "floor", "ceil", "trunc"))
"""Intrinsics whose results are integral, infinite or NaN."""


def _uniform_constant(e: PrimExpr) -> float | None:
    """Return the constant that every lane of an expression is; None for others."""
    value = e.value if isinstance(e, Broadcast) else e
    return value.value if isinstance(value, FloatImm) else None


def _is_integral(root: PrimExpr) -> bool:
    """Return whether each lane of a float is an integer, infinite or NaN."""
    waiting = [root]
    while waiting:
        e = waiting.pop()
        number = _uniform_constant(e)
        if number is not None:
            if number != number // 1:
                return False
        elif isinstance(e, Broadcast):
            waiting.append(e.value)
        elif isinstance(e, (Add, Sub, Min, Max)):
            waiting += (e.a, e.b)
        elif not (
            (isinstance(e, Intrinsic) and e.op in ROUNDING_INTRINSICS)
            or (isinstance(e, Cast) and dt.is_int(dt.element_dtype(e.value.dtype)))
        ):
            return False
    return True


def _rewrite_node(e: PrimExpr) -> PrimExpr:
    match e:
        case Cast(value=Cast(value=Min(a=Max(a=levels, b=low), b=high), dtype=narrow)):
            floats = _remove_integer_casts(e, levels, low, high, narrow)
            return e if floats is None else floats
        case _:
            return e


def _remove_integer_casts(
    e: PrimExpr, levels: PrimExpr, low: PrimExpr, high: PrimExpr, narrow: str
) -> PrimExpr | None:
    """Return values that are clipped to [low, high] and cast to integers and back, without the
    casts; None where these change values.
    """
    ends = dt.int_range(dt.element_dtype(narrow))
    low_number, high_number = _uniform_constant(low), _uniform_constant(high)
    if e.dtype != levels.dtype or ends is None or low_number is None or high_number is None:
        return None
    # A NaN becomes 0 as an integer, so that 0 has to be the lower end.
    is_inside = low_number == 0 == ends[0] and 0 <= high_number <= ends[1]
    # Integers pass through the casts unchanged, but a fraction would be truncated.
    if not (is_inside and high_number == high_number // 1 and _is_integral(levels)):
        return None
    zero = broadcast(const(0.0, dt.element_dtype(e.dtype)), dt.lanes(e.dtype))
    # The comparison is false for NaN, which thus becomes 0 as in the cast.
    above = GT(levels, zero, dt.with_lanes("bool", dt.lanes(e.dtype)))
    return Min(Select(above, levels, zero, e.dtype), high, e.dtype)


def skip_integer_casts(func: PrimFunc) -> PrimFunc:
    """Return the function without integer casts of such floats."""
    if ROUNDING_INTRINSICS.isdisjoint(summarize_stmt(func.body).intrinsics):
        return func
    return func.with_fields(body=ExprRewriter(_rewrite_node).visit(func.body))


__all__ = ["skip_integer_casts"]
