"""Overflow checks: conditions under which int64 size arithmetic does not wrap at run time.

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
from ekiden.ir.expr_text import format_prim_expr
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
from ekiden.ir.prim_visitor import ExprInterner, children, post_order, unvisited_post_order
from ekiden.tir.expr import Buffer, BufferLoad

MAX_EXTENT = 2**40
"""Maximum dimension of a tensor from which sizes are computed."""
MAX_PRODUCT = 2**53
"""Maximum checked product of sizes, exactly representable in float64."""
MAX_SHOWN_CHARS = 120
"""Maximum length of an expression in an error message."""

MAX_SHOWN_SYMBOLS = 4
"""Maximum number of symbol values in an error message."""
SizeInterval = tuple[int, int]
SizeCondition = tuple[PrimExpr, str, dict[str, PrimExpr]]
"""Condition, its error message, and the named values that the message shows."""
INT64_RANGE: SizeInterval = (-(2**63), 2**63 - 1)


class _Intervals:
    """Value intervals of expressions, by identity: the expressions are interned."""

    def __init__(self, extents: Sequence[Buffer]) -> None:
        self.extents = {id(buffer) for buffer in extents}
        self.interval_of: dict[int, SizeInterval] = {}
        self.needs_check: dict[int, bool] = {}
        """Whether an expression or one of its operands needs an overflow check."""
        self.reads_data: dict[int, bool] = {}
        """Whether an expression reads a buffer element."""
        self._symbols: dict[int, tuple[Var, ...]] = {}

    def add(self, nodes: Iterable[PrimExpr]) -> None:
        """Compute the intervals of expressions, operands before users."""
        for node in nodes:
            low, high = self.unbounded_interval(node)
            operands = [id(child) for child in children(node)]
            leaves = _is_arithmetic(node) and (low < INT64_RANGE[0] or high > INT64_RANGE[1])
            inside = any(map(self.needs_check.__getitem__, operands))
            self.needs_check[id(node)] = inside or leaves or _has_unrepresentable_constant(node)
            self.reads_data[id(node)] = isinstance(node, BufferLoad) or any(
                map(self.reads_data.__getitem__, operands)
            )
            if leaves:  # beyond, a check has failed
                ends = (-MAX_PRODUCT, MAX_PRODUCT) if isinstance(node, Mul) else INT64_RANGE
                low, high = max(low, ends[0]), min(high, ends[1])
            self.interval_of[id(node)] = low, high

    def may_overflow(self, node: PrimExpr) -> bool:
        """Return whether a node by itself may overflow int64."""
        low, high = self.unbounded_interval(node)
        return _is_arithmetic(node) and (low < INT64_RANGE[0] or high > INT64_RANGE[1])

    def first_symbols(self, root: PrimExpr) -> tuple[Var, ...]:
        """Return the first symbols inside an expression, at most MAX_SHOWN_SYMBOLS."""
        for inner in unvisited_post_order((root,), self._symbols):
            within: tuple[Var, ...] = (inner,) if isinstance(inner, Var) else ()
            for child in children(inner):
                within = tuple(dict.fromkeys(within + self._symbols[id(child)]))[:MAX_SHOWN_SYMBOLS]
            self._symbols[id(inner)] = within
        return self._symbols[id(root)]

    def is_extent(self, node: PrimExpr) -> bool:
        """Return whether a node is a dimension of a tensor."""
        return isinstance(node, Var) or (
            isinstance(node, BufferLoad) and id(node.buffer) in self.extents
        )

    def unbounded_interval(self, node: PrimExpr) -> SizeInterval:
        """Return the interval of a node in unbounded integers, given checked operands."""
        if isinstance(node, IntImm):
            return node.value, node.value
        if self.is_extent(node):
            return 0, MAX_EXTENT
        inside = [self.interval_of.get(id(child), INT64_RANGE) for child in children(node)]
        match node:
            case Add() | Sub() | Mul():
                return _interval_arithmetic(node, inside[0], inside[1])
            case Min() | Max():
                choose = min if isinstance(node, Min) else max
                return choose(inside[0][0], inside[1][0]), choose(inside[0][1], inside[1][1])
            case FloorDiv():
                # The quotient's magnitude is at most the dividend's: divisors are integers of
                # magnitude 1 or more.
                reach = max(abs(end) for end in inside[0])
                return (0 if min(inside[0][0], inside[1][0]) >= 0 else -reach), reach
            case FloorMod():
                reach = max(abs(end) for end in inside[1])
                return (0 if inside[1][0] >= 0 else -reach), reach
            case Select() | Intrinsic(op="if_then_else"):
                return min(i[0] for i in inside[1:]), max(i[1] for i in inside[1:])
            case Cast():
                ends = int_range(node.value.dtype) or INT64_RANGE
                return max(inside[0][0], ends[0]), min(inside[0][1], ends[1])
        return int_range(node.dtype) or INT64_RANGE


def _is_arithmetic(node: PrimExpr) -> bool:
    return isinstance(node, (Add, Sub, Mul)) and node.dtype == "int64"


def _has_unrepresentable_constant(node: PrimExpr) -> bool:
    """Return whether a node that is no arithmetic has a constant that no int64 can represent; for
    arithmetic the result decides.
    """
    return not _is_arithmetic(node) and any(
        isinstance(child, IntImm)
        and child.dtype == "int64"
        and not INT64_RANGE[0] <= child.value <= INT64_RANGE[1]
        for child in children(node)
    )


def _interval_arithmetic(node: BinaryExpr, a: SizeInterval, b: SizeInterval) -> SizeInterval:
    """Return the interval of a sum, difference or product in unbounded integers."""
    if isinstance(node, Add):
        return a[0] + b[0], a[1] + b[1]
    if isinstance(node, Sub):
        return a[0] - b[1], a[1] - b[0]
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def size_conditions(
    exprs: Iterable[PrimExpr], extents: Sequence[Buffer] = ()
) -> Iterator[SizeCondition]:
    """Yield the conditions under which no int64 size arithmetic wraps: the condition, the error
    message otherwise, and the values that it shows by name.

    Args:
        extents: int64 buffers whose elements are dimensions. Those of others are data, of which
            nothing is known.
    """
    one, intervals = ExprInterner(), _Intervals(extents)
    roots = [one(expr) for expr in exprs]
    nodes = post_order(*roots)
    intervals.add(nodes)
    yield from _extent_conditions(nodes, intervals)
    true = const(True, "bool")
    stack: list[tuple[PrimExpr, PrimExpr]] = [(root, true) for root in reversed(roots)]
    visited: set[tuple[int, int]] = set()
    rows: list[SizeCondition] = []
    while stack:
        node, guard = stack.pop()
        always, under_guard = (id(node), id(true)), (id(node), id(guard))
        # A node that is checked unconditionally needs no check under a guard.
        if not intervals.needs_check[id(node)] or always in visited or under_guard in visited:
            continue
        visited.add(under_guard)
        # A side is checked only where it is chosen: the other side may overflow harmlessly.
        if isinstance(node, Select) or getattr(node, "op", "") == "if_then_else":
            chosen, if_true, if_false = children(node)
            stack.append((if_false, one(logical_and(guard, Not(chosen)))))
            stack += [(if_true, one(logical_and(guard, chosen))), (chosen, guard)]
            continue
        stack.extend((child, guard) for child in children(node))
        conditions: list[PrimExpr] = [Not(guard)] if _has_unrepresentable_constant(node) else []
        if intervals.may_overflow(node):
            fits = _fits_int64(node, intervals.unbounded_interval(node))
            conditions.append(fits if guard is true else Not(logical_and(guard, Not(fits))))
        if conditions:
            text = f"a size leaves int64: {_describe_expr(node, intervals)}"
            shown = _error_values(node, intervals)
            rows.extend((condition, text, shown) for condition in conditions)
    yield from reversed(rows)  # what is inside of a part first: the part is made of it


def _extent_conditions(nodes: Sequence[PrimExpr], intervals: _Intervals) -> Iterator[SizeCondition]:
    """Yield conditions on the dimensions that arithmetic is done on."""
    operands = {id(o): o for node in nodes if _is_arithmetic(node) for o in children(node)}
    for operand in operands.values():
        if intervals.is_extent(operand):
            name = operand.name if isinstance(operand, Var) else "it"
            text = f"a dimension of at most {MAX_EXTENT} elements expected"
            yield operand <= const(MAX_EXTENT), text, {name: operand}


def _fits_int64(node: PrimExpr, between: SizeInterval) -> PrimExpr:
    """Return the condition that a sum, difference or product fits int64, computed in float64."""
    assert isinstance(node, BinaryExpr)
    # float64 represents every integer up to 2**53, so the comparison is exact where products are
    # checked.
    value = type(node)(cast(node.a, "float64"), cast(node.b, "float64"), "float64")
    limit = float(MAX_PRODUCT if isinstance(node, Mul) else INT64_RANGE[1] + 1)
    low, high = (const(end, "float64") for end in (-limit, limit))
    conditions = [value > low] if between[0] < INT64_RANGE[0] else []
    conditions += [value < high] if between[1] > INT64_RANGE[1] else []
    return conditions[0] if len(conditions) == 1 else logical_and(*conditions)


def _error_values(node: PrimExpr, intervals: _Intervals) -> dict[str, PrimExpr]:
    """Return the integers that an error message shows: the symbols of an expression, else its
    operands.
    """
    if intervals.reads_data[id(node)] and isinstance(node, BinaryExpr):
        return {"one side": node.a, "the other": node.b}
    return {symbol.name: symbol for symbol in intervals.first_symbols(node)}


def _describe_expr(node: PrimExpr, intervals: _Intervals) -> str:
    """Return an expression of symbols as text; tensor elements have no names."""
    if intervals.reads_data[id(node)]:
        kinds: dict[type[PrimExpr], str] = {Add: "a sum", Sub: "a difference", Mul: "a product"}
        return kinds.get(type(node), "a number")
    return format_prim_expr(node, max_chars=MAX_SHOWN_CHARS)


__all__ = ["MAX_EXTENT", "MAX_PRODUCT", "size_conditions"]
