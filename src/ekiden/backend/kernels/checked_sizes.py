"""Conditions under which the arithmetic of sizes does not leave int64 in a run.

    n * 4611686018427387904      needs  n as float64 * 4.6e18 < 2**53
    n * 4                        needs  n <= 2**40, once for all that is made of n

Sizes are computed in machine integers, which wrap: of n = 4 the first is 0, and a kernel that takes
0 for the extent of its result reads or writes beside its tensors. Intervals of what each part can
be (assuming that no dimension is larger than MAX_EXTENT, which is checked) show which parts need a
check of their own; products of several symbols do, mostly. It is made in float64, which no rule for
whole numbers rewrites. A product may be 2**53: no memory has as much, each number up to it is one
of float64, and a sum of a thousand such products needs no check. A sum that rounds to 2**63 is
refused, and one that rounds to -2**63 where it may be less than that.

What stands in an arm of a choice is checked where the arm is taken: an end of 2**63 - 1, as slices
have it, is added to nothing then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ekiden.ir.dtype import int_range
from ekiden.ir.prim import (
    Add,
    BinaryExpr,
    Cast,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Mul,
    Not,
    PrimExpr,
    Select,
    Sub,
    Var,
    cast,
    const,
    logical_and,
)
from ekiden.ir.prim_visitor import Interned, children, pending, post_order
from ekiden.ir.text import prim_text
from ekiden.tir.expr import Buffer, BufferLoad

MAX_EXTENT = 2**40
"""A dimension of a tensor in a run, at most, where sizes are computed from it."""
MAX_PRODUCT = 2**53
"""What a product of sizes may be, at most, where it is checked: float64 has each such number."""
SHOWN_TEXT = 120
"""Characters of an expression that an error shows."""

SHOWN = 4
"""Symbols whose values an error shows, at most."""
Interval = tuple[int, int]
Condition = tuple[PrimExpr, str, dict[str, PrimExpr]]
"""What must hold, what an error says otherwise, and the numbers that it shows by name."""
INT64: Interval = (-(2**63), 2**63 - 1)


class _Intervals:
    """What parts of expressions can be, by their identity: the parts are interned."""

    def __init__(self, extents: Sequence[Buffer]) -> None:
        self.extents = {id(buffer) for buffer in extents}
        self.of: dict[int, Interval] = {}
        self.risky: dict[int, bool] = {}
        """Whether a part, or something inside of it, needs a check."""
        self.reads_data: dict[int, bool] = {}
        """Whether a part has an element of a buffer inside."""
        self._symbols: dict[int, tuple[Var, ...]] = {}

    def add(self, parts: Iterable[PrimExpr]) -> None:
        """Compute the intervals of parts, each behind its operands."""
        for part in parts:
            low, high = self.before_check(part)
            operands = [id(child) for child in children(part)]
            leaves = _is_arithmetic(part) and (low < INT64[0] or high > INT64[1])
            inside = any(map(self.risky.__getitem__, operands))
            self.risky[id(part)] = inside or leaves or _compares_too_large(part)
            self.reads_data[id(part)] = isinstance(part, BufferLoad) or any(
                map(self.reads_data.__getitem__, operands)
            )
            if leaves:  # beyond, a check has failed
                ends = (-MAX_PRODUCT, MAX_PRODUCT) if isinstance(part, Mul) else INT64
                low, high = max(low, ends[0]), min(high, ends[1])
            self.of[id(part)] = low, high

    def leaves(self, part: PrimExpr) -> bool:
        """Return whether a part by itself may leave int64."""
        low, high = self.before_check(part)
        return _is_arithmetic(part) and (low < INT64[0] or high > INT64[1])

    def symbols(self, part: PrimExpr) -> tuple[Var, ...]:
        """Return the first symbols inside a part, at most SHOWN."""
        for inner in pending((part,), self._symbols):
            within: tuple[Var, ...] = (inner,) if isinstance(inner, Var) else ()
            for child in children(inner):
                within = tuple(dict.fromkeys(within + self._symbols[id(child)]))[:SHOWN]
            self._symbols[id(inner)] = within
        return self._symbols[id(part)]

    def is_extent(self, part: PrimExpr) -> bool:
        """Return whether a part is a dimension of a tensor."""
        return isinstance(part, Var) or (
            isinstance(part, BufferLoad) and id(part.buffer) in self.extents
        )

    def before_check(self, part: PrimExpr) -> Interval:
        """Return what a part can be, in whole numbers, of operands that have been checked."""
        if isinstance(part, IntImm):
            return part.value, part.value
        if self.is_extent(part):
            return 0, MAX_EXTENT
        inside = [self.of.get(id(child), INT64) for child in children(part)]
        match part:
            case Add() | Sub() | Mul():
                return _arithmetic(part, inside[0], inside[1])
            case Min() | Max():
                choose = min if isinstance(part, Min) else max
                return choose(inside[0][0], inside[1][0]), choose(inside[0][1], inside[1][1])
            case FloorDiv():
                reach = max(abs(end) for end in inside[0])
                return (0 if min(inside[0][0], inside[1][0]) >= 0 else -reach), reach
            case FloorMod():
                reach = max(abs(end) for end in inside[1])
                return (0 if inside[1][0] >= 0 else -reach), reach
            case Select() | Intrinsic(op="if_then_else"):
                return min(i[0] for i in inside[1:]), max(i[1] for i in inside[1:])
            case Cast():
                ends = int_range(part.value.dtype) or INT64
                return max(inside[0][0], ends[0]), min(inside[0][1], ends[1])
        return int_range(part.dtype) or INT64


def _is_arithmetic(part: PrimExpr) -> bool:
    return isinstance(part, (Add, Sub, Mul)) and part.dtype == "int64"


def _compares_too_large(part: PrimExpr) -> bool:
    """Return whether a part that is no sum or product has a constant that no int64 is. Of a sum or
    product the result tells."""
    return not _is_arithmetic(part) and any(
        isinstance(child, IntImm)
        and child.dtype == "int64"
        and not INT64[0] <= child.value <= INT64[1]
        for child in children(part)
    )


def _arithmetic(part: BinaryExpr, a: Interval, b: Interval) -> Interval:
    """The interval of a sum, difference or product, in whole numbers."""
    if isinstance(part, Add):
        return a[0] + b[0], a[1] + b[1]
    if isinstance(part, Sub):
        return a[0] - b[1], a[1] - b[0]
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def size_conditions(
    exprs: Iterable[PrimExpr], extents: Sequence[Buffer] = ()
) -> Iterator[Condition]:
    """Yield the conditions under which no arithmetic inside of int64 expressions wraps: what must
    hold, what an error says otherwise, and the numbers that it shows by name.

    Args:
        extents: int64 buffers whose elements are dimensions. Those of others are data, of which
            nothing is known.
    """
    one, intervals = Interned(), _Intervals(extents)
    roots = [one(expr) for expr in exprs]
    parts = post_order(*roots)
    intervals.add(parts)
    yield from _extent_conditions(parts, intervals)
    true = const(True, "bool")
    stack: list[tuple[PrimExpr, PrimExpr]] = [(root, true) for root in reversed(roots)]
    visited: set[tuple[int, int]] = set()
    rows: list[Condition] = []
    while stack:
        part, guard = stack.pop()
        always, here = (id(part), id(true)), (id(part), id(guard))
        if not intervals.risky[id(part)] or always in visited or here in visited:
            continue
        visited.add(here)
        if isinstance(part, Select) or getattr(part, "op", "") == "if_then_else":
            chosen, if_true, if_false = children(part)
            stack.append((if_false, one(logical_and(guard, Not(chosen)))))
            stack += [(if_true, one(logical_and(guard, chosen))), (chosen, guard)]
            continue
        stack.extend((child, guard) for child in children(part))
        conditions: list[PrimExpr] = [Not(guard)] if _compares_too_large(part) else []
        if intervals.leaves(part):
            fits = _fits(part, intervals.before_check(part))
            conditions.append(fits if guard is true else Not(logical_and(guard, Not(fits))))
        if conditions:
            text = f"a size leaves int64: {_text(part, intervals)}"
            shown = _shown(part, intervals)
            rows.extend((condition, text, shown) for condition in conditions)
    yield from reversed(rows)  # what is inside of a part first: the part is made of it


def _extent_conditions(parts: Sequence[PrimExpr], intervals: _Intervals) -> Iterator[Condition]:
    """Yield conditions on the dimensions that arithmetic is done on."""
    operands = {id(o): o for part in parts if _is_arithmetic(part) for o in children(part)}
    for operand in operands.values():
        if intervals.is_extent(operand):
            name = operand.name if isinstance(operand, Var) else "it"
            text = f"a dimension of at most {MAX_EXTENT} elements expected"
            yield operand <= const(MAX_EXTENT), text, {name: operand}


def _fits(part: PrimExpr, between: Interval) -> PrimExpr:
    """Return whether a sum, difference or product of int64 is one, where whole numbers would be
    between two ends."""
    assert isinstance(part, BinaryExpr)
    value = type(part)(cast(part.a, "float64"), cast(part.b, "float64"), "float64")
    limit = float(MAX_PRODUCT if isinstance(part, Mul) else INT64[1] + 1)
    low, high = (const(end, "float64") for end in (-limit, limit))
    conditions = [value > low] if between[0] < INT64[0] else []
    conditions += [value < high] if between[1] > INT64[1] else []
    return conditions[0] if len(conditions) == 1 else logical_and(*conditions)


def _shown(part: PrimExpr, intervals: _Intervals) -> dict[str, PrimExpr]:
    """Return the numbers that an error shows: the symbols of a part, else its operands."""
    if intervals.reads_data[id(part)] and isinstance(part, BinaryExpr):
        return {"one side": part.a, "the other": part.b}
    return {symbol.name: symbol for symbol in intervals.symbols(part)}


def _text(part: PrimExpr, intervals: _Intervals) -> str:
    """Return an expression of symbols as text; data have no names."""
    if intervals.reads_data[id(part)]:
        kinds: dict[type[PrimExpr], str] = {Add: "a sum", Sub: "a difference", Mul: "a product"}
        return kinds.get(type(part), "a number")
    return prim_text(part, max_chars=SHOWN_TEXT)


__all__ = ["MAX_EXTENT", "MAX_PRODUCT", "size_conditions"]
