"""Helpers for writing computations, under TVM's names."""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.arith import Analyzer
from ekiden.ir.prim import IntImm, PrimExpr


def get_const_int(expr: PrimExpr | int) -> int:
    """Return a constant dimension as an int. Raises ValueError if it is unknown."""
    simplified = expr if isinstance(expr, (int, IntImm)) else Analyzer().simplify(expr)
    if isinstance(simplified, IntImm):
        return int(simplified.value)
    if isinstance(simplified, int):
        return simplified
    raise ValueError(f"get_const_int: {expr} is not known")


def get_const_tuple(in_tuple: Iterable[PrimExpr | int]) -> tuple[PrimExpr | int, ...]:
    """Return dimensions, constants as ints and others simplified."""
    dims: list[PrimExpr | int] = []
    for dim in in_tuple:
        simplified = dim if isinstance(dim, (int, IntImm)) else Analyzer().simplify(dim)
        dims.append(int(simplified.value) if isinstance(simplified, IntImm) else simplified)
    return tuple(dims)


__all__ = ["get_const_int", "get_const_tuple"]
