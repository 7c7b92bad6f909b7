"""Floats that are whole numbers: dimensions that exporters compute with in floating point.

floor(float32(h) / 2f)  ->  h // 2
"""

from __future__ import annotations

from ekiden.ir import prim
from ekiden.ir.dtype import is_int
from ekiden.ir.prim import FloatImm, PrimExpr, const


def whole(value: PrimExpr) -> PrimExpr | None:
    """The integer that a float is, as it stays below 2**24 (every dimension does); None where that
    is not known.
    """
    match value:
        case FloatImm(value=number):
            return const(int(number), "int64") if number == int(number) else None
        case prim.Cast(value=inner) if is_int(inner.dtype):
            return prim.cast(inner, "int64")
        case prim.Cast(value=inner):
            return whole(inner)
        case prim.Add(a=a, b=b) | prim.Sub(a=a, b=b) | prim.Mul(a=a, b=b):
            return _both(type(value), a, b)
        case prim.Min(a=a, b=b) | prim.Max(a=a, b=b):
            return _both(type(value), a, b)
        case prim.Select(condition=condition, true_value=a, false_value=b):
            x, y = whole(a), whole(b)
            return None if x is None or y is None else prim.Select(condition, x, y, "int64")
        case prim.Intrinsic(op="floor" | "ceil" as name, args=(inner,)):
            found = whole(inner)
            return _quotient(inner, int(name == "ceil")) if found is None else found
    return value if is_int(value.dtype) else None


def truncated(value: PrimExpr) -> PrimExpr | None:
    """A float rounded down, where that is an integer quotient of numbers that are not negative."""
    found = whole(value)
    return _quotient(value, 0) if found is None else found


def _both(kind: type[prim.BinaryExpr], a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    x, y = whole(a), whole(b)
    return None if x is None or y is None else prim.binary(kind, x, y)


def _quotient(value: PrimExpr, up: int) -> PrimExpr | None:
    """A quotient of whole numbers rounded down, or up: by a number, or times a power of 1/2."""
    if not isinstance(value, (prim.Div, prim.Mul)):
        return None
    above, by = whole(value.a), value.b
    if above is None and isinstance(value, prim.Mul):
        above, by = whole(value.b), value.a
    if above is None or not isinstance(by, FloatImm) or by.value <= 0:
        return None
    factor = by.value if isinstance(value, prim.Div) else 1 / by.value
    if factor != int(factor) or (isinstance(value, prim.Mul) and int(factor) & (int(factor) - 1)):
        return None
    divisor = int(factor)
    return (above + (divisor - 1) * up) // divisor
