"""Boxes of a computation in which conditions on its axes are known: elements of a padded tensor, or
of one of many that are joined, are computed without those that they are chosen from.

    if 2 <= y and y < n + 2 then x[y - 2] else 0, for y < n + 4

is 0 everywhere, and then x[y] from y = 2 on, n times. Later boxes are written over earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ekiden.ir.prim import (
    GE,
    GT,
    LE,
    LT,
    Add,
    And,
    BinaryExpr,
    Cast,
    Intrinsic,
    Max,
    Min,
    PrimExpr,
    Select,
    Sub,
    Var,
    const,
    is_const,
)
from ekiden.ir.prim_visitor import free_vars, pending, substitute

MOST_BOXES = 512
"""From so many on nothing is taken apart."""
Range = tuple[PrimExpr, PrimExpr]
"""From, and up to but not with."""


class Box(NamedTuple):
    """What is computed, over axes that begin at 0 again, and where those begin and how long they
    are."""

    value: PrimExpr
    begins: Sequence[PrimExpr]
    extents: Sequence[PrimExpr]


def boxes_of(value: PrimExpr, axes: Sequence[Var], extents: Sequence[PrimExpr]) -> list[Box]:
    """The boxes that together give a value for all axes, in the order of writing. Loads of general
    kernels may be asked for what is not there, so that a value may be computed where another one is
    written over it."""
    found: list[Box] = []
    choices = _Choices()
    waiting: list[tuple[PrimExpr, Mapping[Var, Range]]] = [
        (value, {a: (const(0), e) for a, e in zip(axes, extents, strict=True)})
    ]
    while waiting:
        value, whole = waiting.pop()
        choice = choices.of(value) if len(found) + len(waiting) < MOST_BOXES else None
        inner = None if choice is None else _restricted(choice[0], whole)
        if choice is None or inner is None:
            found.append(_box(value, whole))
            continue
        _, then, otherwise = choice
        changed = [a for a in axes if inner[a] is not whole[a]]
        rest = _behind(whole[changed[0]], inner[changed[0]]) if len(changed) == 1 else None
        waiting.append((then, inner))
        waiting.append((otherwise, {**whole, changed[0]: rest} if rest is not None else whole))
    return found


class _Choices:
    """What is one of two values by a condition, alone in an expression or in one operand of it."""

    def __init__(self) -> None:
        self.within: dict[int, bool] = {}
        """id of an expression -> whether there is a choice in it, loads aside."""
        self.alive: list[PrimExpr] = []

    def of(self, value: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr] | None:
        """(condition, then, else): the whole value in both cases."""
        path: list[tuple[PrimExpr, int]] = []
        while (choice := _choice(value)) is None:
            inside = _operands(value)
            having = [n for n, each in enumerate(inside) if self._has(each)]
            if len(having) != 1:
                return None
            path.append((value, having[0]))
            value = inside[having[0]]
        condition, *cases = choice
        for outer, n in reversed(path):
            cases = [_with_operand(outer, n, each) for each in cases]
        then, otherwise = cases
        return condition, then, otherwise

    def _has(self, value: PrimExpr) -> bool:
        for each in pending((value,), self.within):
            inside = any(self.within[id(c)] for c in _operands(each))
            self.within[id(each)] = inside or _choice(each) is not None
            self.alive.append(each)
        return self.within[id(value)]


def _choice(value: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr] | None:
    """(condition, then, else) of a value that is one of two."""
    if isinstance(value, Select):
        return value.condition, value.true_value, value.false_value
    if isinstance(value, Intrinsic) and value.op == "if_then_else":
        condition, then, otherwise = value.args
        return condition, then, otherwise
    return None


def _operands(value: PrimExpr) -> Sequence[PrimExpr]:
    """What an operation of elements works on; of a choice the values, not the condition."""
    choice = _choice(value)
    if choice is not None:
        return choice[1:]
    if isinstance(value, BinaryExpr):
        return value.a, value.b
    if isinstance(value, Cast):
        return (value.value,)
    return value.args if isinstance(value, Intrinsic) else ()


def _with_operand(value: PrimExpr, n: int, operand: PrimExpr) -> PrimExpr:
    """The same operation of something else."""
    if isinstance(value, BinaryExpr):
        return value.with_fields(**{"ab"[n]: operand})
    if isinstance(value, Cast):
        return value.with_fields(value=operand)
    assert isinstance(value, Intrinsic)
    return value.with_fields(args=(*value.args[:n], operand, *value.args[n + 1 :]))


def _box(value: PrimExpr, ranges: Mapping[Var, Range]) -> Box:
    begins = [begin for begin, _ in ranges.values()]
    moved = {a: a + begin for a, (begin, _) in ranges.items() if not is_const(begin, 0)}
    extents = [e if is_const(b, 0) else _not_below(e, b) - b for b, e in ranges.values()]
    return Box(substitute(value, moved) if moved else value, begins, extents)


def _restricted(condition: PrimExpr, whole: Mapping[Var, Range]) -> dict[Var, Range] | None:
    """The part of the ranges in which a condition holds; None if it is no box."""
    found = dict(whole)
    waiting = [condition]
    while waiting:
        each = waiting.pop()
        if isinstance(each, And):
            waiting += [each.a, each.b]
            continue
        bound = _bound(each, whole)
        if bound is None:
            return None
        axis, is_begin, at = bound
        begin, end = found[axis]
        low, high = whole[axis]
        if is_begin:
            found[axis] = _not_below(_not_above(at, high), begin), end
        else:
            found[axis] = begin, _not_above(_not_below(at, low), end)
    return found


def _not_below(value: PrimExpr, least: PrimExpr) -> PrimExpr:
    if is_const(value) and is_const(least):
        return value if value.value >= least.value else least  # type: ignore[attr-defined]
    return value if value is least else Max(value, least, value.dtype)


def _not_above(value: PrimExpr, most: PrimExpr) -> PrimExpr:
    if is_const(value) and is_const(most):
        return value if value.value <= most.value else most  # type: ignore[attr-defined]
    return value if value is most else Min(value, most, value.dtype)


def _bound(condition: PrimExpr, axes: Mapping[Var, Range]) -> tuple[Var, bool, PrimExpr] | None:
    """(axis, whether it is where it begins, where) of a comparison of an axis with a size."""
    if not isinstance(condition, (LT, LE, GT, GE)):
        return None
    place = _axis_and_more(condition.a, axes)
    if place is None or _names(condition.b, axes):
        return None
    axis, more = place
    at: PrimExpr = condition.b if is_const(more, 0) else condition.b - more
    if isinstance(condition, (GT, LE)):
        at = at + 1
    return axis, isinstance(condition, (GE, GT)), at


def _names(value: PrimExpr, axes: Mapping[Var, Range]) -> bool:
    return any(each in axes for each in free_vars(value))


def _axis_and_more(value: PrimExpr, axes: Mapping[Var, Range]) -> tuple[Var, PrimExpr] | None:
    """(axis, what is added to it) of a sum that has one axis."""
    more: PrimExpr = const(0)
    while not isinstance(value, Var):
        if not isinstance(value, (Add, Sub)) or not isinstance(value, BinaryExpr):
            return None
        if not _names(value.b, axes):
            more = more + value.b if isinstance(value, Add) else more - value.b
            value = value.a
        elif isinstance(value, Add) and not _names(value.a, axes):
            more, value = more + value.a, value.b
        else:
            return None
    return (value, more) if value in axes else None


def _behind(whole: Range, inner: Range) -> Range | None:
    """What follows a part that begins where the whole does."""
    return (inner[1], whole[1]) if inner[0] is whole[0] else None


__all__ = ["Box", "boxes_of"]
