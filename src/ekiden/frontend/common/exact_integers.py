"""Exact integer evaluation of float shape arithmetic: dimensions that exporters compute in floating
point.

floor(float32(h) / 2f)  ->  h // 2
"""

from __future__ import annotations

from ekiden.ir import prim
from ekiden.ir.dtype import is_int
from ekiden.ir.prim import FloatImm, PrimExpr, const


def exact_integer(value: PrimExpr) -> PrimExpr | None:
    """Return the integer expression that equals a float; None where the float is not known to be
    whole.

    Exact below 2**24, where every dimension is.
    """
    match value:
        case FloatImm(value=number):
            return const(int(number), "int64") if number == int(number) else None
        case prim.Cast(value=inner) if is_int(inner.dtype):
            return prim.cast(inner, "int64")
        case prim.Cast(value=inner):
            return exact_integer(inner)
        case prim.Add(a=a, b=b) | prim.Sub(a=a, b=b) | prim.Mul(a=a, b=b):
            return _exact_binary(type(value), a, b)
        case prim.Min(a=a, b=b) | prim.Max(a=a, b=b):
            return _exact_binary(type(value), a, b)
        case prim.Select(condition=condition, true_value=a, false_value=b):
            x, y = exact_integer(a), exact_integer(b)
            return None if x is None or y is None else prim.Select(condition, x, y, "int64")
        case prim.Intrinsic(op="floor" | "ceil" as name, args=(inner,)):
            integer = exact_integer(inner)
            return _exact_quotient(inner, int(name == "ceil")) if integer is None else integer
    return value if is_int(value.dtype) else None


def exact_floor(value: PrimExpr) -> PrimExpr | None:
    """Return the floor of a float as an integer expression; None where it is not exact."""
    integer = exact_integer(value)
    return _exact_quotient(value, 0) if integer is None else integer


def _exact_binary(kind: type[prim.BinaryExpr], a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    """Rebuild a binary node on exact integers; None where an operand is not whole."""
    x, y = exact_integer(a), exact_integer(b)
    return None if x is None or y is None else prim.fold_binary(kind, x, y)


def _exact_quotient(value: PrimExpr, up: int) -> PrimExpr | None:
    """Return a quotient of whole numbers, rounded down or up, as an integer division.

    The divisor is a number, or the factor a power of 1/2.
    """
    if not isinstance(value, (prim.Div, prim.Mul)):
        return None
    above, by = exact_integer(value.a), value.b
    if above is None and isinstance(value, prim.Mul):
        above, by = exact_integer(value.b), value.a
    if above is None or not isinstance(by, FloatImm) or by.value <= 0:
        return None
    factor = by.value if isinstance(value, prim.Div) else 1 / by.value
    # Multiplication by 1/n is exact in floating point only for a power of two.
    if factor != int(factor) or (isinstance(value, prim.Mul) and int(factor) & (int(factor) - 1)):
        return None
    divisor = int(factor)
    return (above + (divisor - 1) * up) // divisor
