"""Loop splitting for general kernels: boxes in which all conditions on axes are constant, so that
padded or concatenated tensors need no test per element.

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
from ekiden.ir.prim_visitor import free_vars, substitute, unvisited_post_order

MAX_BOXES_PER_VALUE = 512
"""Maximum number of boxes per value."""
AxisRange = tuple[PrimExpr, PrimExpr]
"""Half-open range (begin, end) of an axis."""


class IterationBox(NamedTuple):
    """Part of an iteration space as a box, with its origin and extents."""

    value: PrimExpr
    begins: Sequence[PrimExpr]
    extents: Sequence[PrimExpr]


def split_into_boxes(
    value: PrimExpr, axes: Sequence[Var], extents: Sequence[PrimExpr]
) -> list[IterationBox]:
    """Return the boxes that together compute a value for all axes, in write order. Loads of general
    kernels tolerate any index, so boxes may overlap and later ones overwrite earlier ones.
    """
    boxes: list[IterationBox] = []
    choices = _ChoiceFinder()
    waiting: list[tuple[PrimExpr, Mapping[Var, AxisRange]]] = [
        (value, {a: (const(0), e) for a, e in zip(axes, extents, strict=True)})
    ]
    while waiting:
        value, ranges = waiting.pop()
        choice = (
            choices.find_choice(value) if len(boxes) + len(waiting) < MAX_BOXES_PER_VALUE else None
        )
        inner = None if choice is None else _restrict_ranges(choice[0], ranges)
        if choice is None or inner is None:
            boxes.append(_make_box(value, ranges))
            continue
        _, then_value, otherwise = choice
        changed = [a for a in axes if inner[a] is not ranges[a]]
        remaining_range = (
            _range_after(ranges[changed[0]], inner[changed[0]]) if len(changed) == 1 else None
        )
        waiting.append((then_value, inner))
        waiting.append(
            (
                otherwise,
                {**ranges, changed[0]: remaining_range} if remaining_range is not None else ranges,
            )
        )
    return boxes


class _ChoiceFinder:
    """Finder of conditional values, either an expression as a whole or one operand of it."""

    def __init__(self) -> None:
        self.contains_choice: dict[int, bool] = {}
        """Whether each expression (by id) contains a conditional value, loads aside."""
        self.keepalive: list[PrimExpr] = []

    def find_choice(self, value: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr] | None:
        """Return (condition, then, else), with the whole value in both cases, or None."""
        path: list[tuple[PrimExpr, int]] = []
        while (choice := _match_choice(value)) is None:
            inside = _elementwise_operands(value)
            having = [n for n, operand in enumerate(inside) if self._contains_choice(operand)]
            if len(having) != 1:
                return None
            path.append((value, having[0]))
            value = inside[having[0]]
        condition, *cases = choice
        for outer, n in reversed(path):
            cases = [_replace_operand(outer, n, case) for case in cases]
        then_value, otherwise = cases
        return condition, then_value, otherwise

    def _contains_choice(self, value: PrimExpr) -> bool:
        for node in unvisited_post_order((value,), self.contains_choice):
            inside = any(self.contains_choice[id(c)] for c in _elementwise_operands(node))
            self.contains_choice[id(node)] = inside or _match_choice(node) is not None
            self.keepalive.append(node)
        return self.contains_choice[id(value)]


def _match_choice(value: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr] | None:
    """Return (condition, then, else) of a Select or if_then_else, else None."""
    if isinstance(value, Select):
        return value.condition, value.true_value, value.false_value
    if isinstance(value, Intrinsic) and value.op == "if_then_else":
        condition, then_value, otherwise = value.args
        return condition, then_value, otherwise
    return None


def _elementwise_operands(value: PrimExpr) -> Sequence[PrimExpr]:
    """Return the elementwise operands of an operation; of a choice the values, not the
    condition.
    """
    choice = _match_choice(value)
    if choice is not None:
        return choice[1:]
    if isinstance(value, BinaryExpr):
        return value.a, value.b
    if isinstance(value, Cast):
        return (value.value,)
    return value.args if isinstance(value, Intrinsic) else ()


def _replace_operand(value: PrimExpr, n: int, operand: PrimExpr) -> PrimExpr:
    """Return the same operation with its n-th operand replaced."""
    if isinstance(value, BinaryExpr):
        return value.with_fields(**{"ab"[n]: operand})
    if isinstance(value, Cast):
        return value.with_fields(value=operand)
    assert isinstance(value, Intrinsic)
    return value.with_fields(args=(*value.args[:n], operand, *value.args[n + 1 :]))


def _make_box(value: PrimExpr, ranges: Mapping[Var, AxisRange]) -> IterationBox:
    begins = [begin for begin, _ in ranges.values()]
    moved = {a: a + begin for a, (begin, _) in ranges.items() if not is_const(begin, 0)}
    extents = [e if is_const(b, 0) else _clamp_below(e, b) - b for b, e in ranges.values()]
    return IterationBox(substitute(value, moved) if moved else value, begins, extents)


def _restrict_ranges(
    condition: PrimExpr, ranges: Mapping[Var, AxisRange]
) -> dict[Var, AxisRange] | None:
    """Restrict axis ranges to where a condition holds; return None if that is no box."""
    inner = dict(ranges)
    waiting = [condition]
    while waiting:
        conjunct = waiting.pop()
        if isinstance(conjunct, And):
            waiting += [conjunct.a, conjunct.b]
            continue
        bound = _match_bound(conjunct, ranges)
        if bound is None:
            return None
        axis, is_begin, position = bound
        begin, end = inner[axis]
        low, high = ranges[axis]
        if is_begin:
            inner[axis] = _clamp_below(_clamp_above(position, high), begin), end
        else:
            inner[axis] = begin, _clamp_above(_clamp_below(position, low), end)
    return inner


def _clamp_below(value: PrimExpr, lower_bound: PrimExpr) -> PrimExpr:
    if is_const(value) and is_const(lower_bound):
        return value if value.value >= lower_bound.value else lower_bound  # type: ignore[attr-defined]
    return value if value is lower_bound else Max(value, lower_bound, value.dtype)


def _clamp_above(value: PrimExpr, upper_bound: PrimExpr) -> PrimExpr:
    if is_const(value) and is_const(upper_bound):
        return value if value.value <= upper_bound.value else upper_bound  # type: ignore[attr-defined]
    return value if value is upper_bound else Min(value, upper_bound, value.dtype)


def _match_bound(
    condition: PrimExpr, axes: Mapping[Var, AxisRange]
) -> tuple[Var, bool, PrimExpr] | None:
    """Return (axis, whether it is a lower bound, the bound) of a comparison of an axis with a size,
    or None.
    """
    if not isinstance(condition, (LT, LE, GT, GE)):
        return None
    axis_term = _split_axis_term(condition.a, axes)
    if axis_term is None or _uses_axes(condition.b, axes):
        return None
    axis, more = axis_term
    position: PrimExpr = condition.b if is_const(more, 0) else condition.b - more
    if isinstance(condition, (GT, LE)):
        position = position + 1
    return axis, isinstance(condition, (GE, GT)), position


def _uses_axes(value: PrimExpr, axes: Mapping[Var, AxisRange]) -> bool:
    return any(variable in axes for variable in free_vars(value))


def _split_axis_term(value: PrimExpr, axes: Mapping[Var, AxisRange]) -> tuple[Var, PrimExpr] | None:
    """Return (axis, the added term) of a sum that has one axis, or None."""
    more: PrimExpr = const(0)
    while not isinstance(value, Var):
        if not isinstance(value, (Add, Sub)) or not isinstance(value, BinaryExpr):
            return None
        if not _uses_axes(value.b, axes):
            more = more + value.b if isinstance(value, Add) else more - value.b
            value = value.a
        elif isinstance(value, Add) and not _uses_axes(value.a, axes):
            more, value = more + value.a, value.b
        else:
            return None
    return (value, more) if value in axes else None


def _range_after(outer: AxisRange, inner: AxisRange) -> AxisRange | None:
    """Return the range after an inner range that begins where the outer one does, or None."""
    return (inner[1], outer[1]) if inner[0] is outer[0] else None


__all__ = ["IterationBox", "split_into_boxes"]
