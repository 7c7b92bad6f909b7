"""Comparisons as linear forms of loop variables, and the iterations in which they hold.

i * 2 + k < n    is    -2 * i - k + (n - 1) >= 0    holds for    k < n - 2 * i
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import detect_linear_equation, simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import (
    GE,
    GT,
    LE,
    LT,
    IntImm,
    Intrinsic,
    PrimExpr,
    Select,
    Var,
    is_const,
)
from ekiden.ir.prim_visitor import free_vars, post_order
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import BufferLoad
from ekiden.tir.predicates import join_conjuncts, split_conjuncts
from ekiden.tir.schedule.program import to_index_dtype
from ekiden.tir.stmt import For


@dataclass(frozen=True, slots=True)
class LinearCondition:
    """A condition `sum of scale * variable + rest >= 0`, with integer scales."""

    scales: Mapping[Var, int]
    rest: PrimExpr

    @property
    def is_static(self) -> bool:
        """Return whether the rest is a number."""
        return isinstance(self.rest, IntImm)

    def static_range(self, ranges: Mapping[Var, tuple[int, int]]) -> tuple[int, int]:
        """Return the least and the greatest value over inclusive ranges of the variables."""
        assert isinstance(self.rest, IntImm)
        low = high = self.rest.value
        for var, scale in self.scales.items():
            ends = [scale * end for end in ranges[var]]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def bound(self, var: Var, rest: PrimExpr) -> tuple[bool, PrimExpr]:
        """Return whether a variable is bounded from below, and the first value for which the
        condition holds, or the one behind the last, where the other terms have the value `rest`.
        """
        scale = self.scales[var]
        if scale > 0:
            return True, to_index_dtype((scale - 1 - rest) // scale, var.dtype)
        return False, to_index_dtype(rest // -scale + 1, var.dtype)


def linear_condition(condition: PrimExpr, variables: Sequence[Var]) -> LinearCondition | None:
    """Return a comparison as a linear form of some variables, or None if it is not one."""
    match condition:
        case GE(a=a, b=b):
            difference = a - b
        case GT(a=a, b=b):
            difference = a - b - 1
        case LE(a=a, b=b):
            difference = b - a
        case LT(a=a, b=b):
            difference = b - a - 1
        case _:
            return None
    # What is loaded may be another number in each iteration.
    if any(isinstance(e, BufferLoad) for e in post_order(difference)):
        return None
    coefficients = detect_linear_equation(difference, variables)
    if not coefficients:
        return None
    scales = [scale.value for scale in coefficients[:-1] if isinstance(scale, IntImm)]
    if len(scales) < len(variables):
        return None
    return LinearCondition(dict(zip(variables, scales, strict=True)), coefficients[-1])


def match_select(e: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr] | None:
    """Return (condition, true value, false value) of a select, or None for other expressions."""
    match e:
        case Intrinsic(op="if_then_else", args=(condition, value, otherwise)):
            return condition, value, otherwise
        case Select(condition=condition, true_value=value, false_value=otherwise):
            return condition, value, otherwise
        case _:
            return None


def without_conjuncts(e: PrimExpr, decided: Mapping[int, bool]) -> PrimExpr:
    """Return a select without the decided conjuncts of its condition, other expressions as is."""
    select = match_select(e)
    if select is None:
        return e
    condition, value, otherwise = select
    conjuncts = split_conjuncts(condition)
    if any(decided.get(id(c)) is False for c in conjuncts):
        return otherwise
    remaining = [c for c in conjuncts if id(c) not in decided]
    if len(remaining) == len(conjuncts):
        return e
    return if_then_else(join_conjuncts(remaining), value, otherwise) if remaining else value


def match_term_if(e: PrimExpr) -> tuple[list[PrimExpr], PrimExpr]:
    """Return the conjuncts under which a term is not 0, and the term's value under them."""
    select = match_select(e)
    if select is None or not is_const(select[2], 0):
        return [], e
    return split_conjuncts(select[0]), select[1]


def value_range(index: PrimExpr, loops: Sequence[For]) -> tuple[PrimExpr, PrimExpr] | None:
    """Return (least value, the one behind the greatest) of an index over loops, where it is linear
    in them and their ranges do not depend on one another; else None.
    """
    used = set(free_vars(index))
    moving = [s for s in loops if s.loop_var in used]
    coefficients = detect_linear_equation(index, [s.loop_var for s in moving])
    variables = {s.loop_var for s in loops}
    if not coefficients or any(
        not variables.isdisjoint(free_vars(s.min, s.extent)) for s in moving
    ):
        return None
    low = high = coefficients[-1]
    for s, scale in zip(moving, coefficients, strict=False):
        if not isinstance(scale, IntImm):
            return None
        first, last = scale.value * s.min, scale.value * (s.min + s.extent - 1)
        low, high = (low + first, high + last) if scale.value > 0 else (low + last, high + first)
    return simplify(low), simplify(high + 1)


__all__ = [
    "LinearCondition",
    "linear_condition",
    "match_select",
    "match_term_if",
    "value_range",
    "without_conjuncts",
]
