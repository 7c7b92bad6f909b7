"""Predicate narrowing: eliminate variables from a condition so that it holds only where the
original held for all their values.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    BinaryExpr,
    FloatImm,
    FloorDiv,
    IntImm,
    Max,
    Min,
    Not,
    Or,
    PrimExpr,
    Sub,
    Var,
    cast,
    const,
    convert,
)
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.range import Range

_GREATER_COMPARISONS = (GT, GE)
_ORDER_COMPARISONS = (LT, LE, GT, GE)


def narrow_predicate_expression(expr: PrimExpr, ranges: Mapping[Var, Range]) -> PrimExpr:
    """Return a condition without the variables of `ranges` that implies `expr` for all their
    values.

    It is written as `expr` is: `i < n` for n in [0, 8) is `i < 0`. Nothing is known of loads,
    remainders and products: a comparison with one inside is False.
    """
    return _PredicateNarrower(ranges).narrow(convert(expr), 0)


class _PredicateNarrower:
    def __init__(self, ranges: Mapping[Var, Range]) -> None:
        self.range_ends = {
            v: tuple(cast(end, v.dtype) for end in (d.min, d.min + d.extent - 1))
            for v, d in ranges.items()
        }

    def narrow(self, e: PrimExpr, wider: int) -> PrimExpr:
        """Return a condition that implies `e`; with `wider`, one that `e` implies."""
        match e:
            case And() | Or():
                return type(e)(self.narrow(e.a, wider), self.narrow(e.b, wider), e.dtype)
            case Not():
                # Negation is antitone: an over-approximation inside `not` is an under-approximation
                # outside.
                inner = self.narrow(e.a, 1 - wider)
                return const(not inner.value, "bool") if isinstance(inner, IntImm) else Not(inner)
            case EQ():
                both = And(LE(e.a, e.b), LE(e.b, e.a))
                narrowed = self.narrow(both, wider)
                unknown = isinstance(narrowed, And) and isinstance(narrowed.a, IntImm)
                return const(bool(wider), "bool") if unknown else narrowed
            case NE():
                return self.narrow(Or(LT(e.a, e.b), LT(e.b, e.a)), wider)
            case _ if isinstance(e, _ORDER_COMPARISONS):
                # a < b for all values is max(a) < min(b); for some value (wider) it is min(a) <
                # max(b).
                left_low = isinstance(e, _GREATER_COMPARISONS) is not bool(wider)
                a, b = (
                    self.extreme_value(e.a, int(not left_low)),
                    self.extreme_value(e.b, int(left_low)),
                )
                return const(bool(wider), "bool") if a is None or b is None else type(e)(a, b)
            case IntImm() | Var() if e not in self.range_ends:
                return e
        return const(bool(wider), "bool")

    def extreme_value(self, e: PrimExpr, at: int) -> PrimExpr | None:
        """Return the minimum (at=0) or maximum (at=1) of an expression over the ranges, or None if
        unknown.
        """
        match e:
            case Var():
                return self.range_ends[e][at] if e in self.range_ends else e
            case IntImm() | FloatImm():
                return e
            case Add() | Min() | Max():
                return self._rebuild_if_known(
                    e, self.extreme_value(e.a, at), self.extreme_value(e.b, at)
                )
            case Sub():
                return self._rebuild_if_known(
                    e, self.extreme_value(e.a, at), self.extreme_value(e.b, 1 - at)
                )
            case FloorDiv(b=IntImm(value=divisor)) if divisor:
                return self._rebuild_if_known(
                    e, self.extreme_value(e.a, at if divisor > 0 else 1 - at), e.b
                )
            case FloorDiv() if not any(v in self.range_ends for v in free_vars(e)):
                return e
        return None

    @staticmethod
    def _rebuild_if_known(e: BinaryExpr, a: PrimExpr | None, b: PrimExpr | None) -> PrimExpr | None:
        return None if a is None or b is None else type(e)(a, b, e.dtype)


__all__ = ["narrow_predicate_expression"]
