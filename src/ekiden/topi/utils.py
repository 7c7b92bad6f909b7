"""Helpers for those who write computations, by TVM's names."""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.arith import Analyzer
from ekiden.ir.prim import IntImm, PrimExpr


def get_const_int(expr: PrimExpr | int) -> int:
    """A dimension as a number. Raises ValueError where it is not known."""
    found = expr if isinstance(expr, (int, IntImm)) else Analyzer().simplify(expr)
    if isinstance(found, IntImm):
        return int(found.value)
    if isinstance(found, int):
        return found
    raise ValueError(f"get_const_int: {expr} is not known")


def get_const_tuple(in_tuple: Iterable[PrimExpr | int]) -> tuple[PrimExpr | int, ...]:
    """Dimensions, as numbers where they are known and simplified where not."""
    made: list[PrimExpr | int] = []
    for each in in_tuple:
        found = each if isinstance(each, (int, IntImm)) else Analyzer().simplify(each)
        made.append(int(found.value) if isinstance(found, IntImm) else found)
    return tuple(made)


__all__ = ["get_const_int", "get_const_tuple"]
