"""Integer sets as intervals with symbolic bounds (TVM's IntSet).

An end that is None is infinite. Sets are boxes: a set that is not an interval is widened to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from ekiden.ir import prim
from ekiden.ir.prim import (
    Add,
    BinaryExpr,
    Cast,
    ExprLike,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
    const,
    convert,
    fold_binary,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import children, is_same_expr, post_order
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass

# Over-estimates: a set holds every value that may come, and may hold more. So a question "is it
# never below 0" may be answered by a set, and "does it reach 5" may not. Variables are taken one at
# a time: of i - i the interval is wider than {0}, unless `simplify` sees that they cancel before.
Simplify: TypeAlias = Callable[[PrimExpr], PrimExpr]
SymbolicBound: TypeAlias = PrimExpr | None


@dataclass(frozen=True, slots=True, eq=False)
class IntervalSet:
    """Interval of integers, both bounds inclusive; None is infinite."""

    min_value: SymbolicBound
    max_value: SymbolicBound
    empty: bool = False

    def __post_init__(self) -> None:
        """Convert numbers to constants."""
        for name in ("min_value", "max_value"):
            end = getattr(self, name)
            if end is not None and not isinstance(end, PrimExpr):
                object.__setattr__(self, name, const(end))

    @staticmethod
    def single_point(point: ExprLike) -> IntervalSet:
        """Return the singleton {point}."""
        return single_point(point)

    @staticmethod
    def vector(vec: PrimExpr) -> IntervalSet:
        """Return the hull of a vector's lanes base, base + stride, ... all between too."""
        base, stride = getattr(vec, "base", vec), getattr(vec, "stride", 0)
        last = base + stride * (getattr(vec, "lanes", 1) - 1)
        return interval(minimum(base, last), maximum(base, last))

    def is_nothing(self) -> bool:
        """Return whether the set is known to be empty."""
        return self.empty

    def is_everything(self) -> bool:
        """Return whether the set is unbounded on both sides."""
        return not self.empty and self.min_value is None and self.max_value is None

    def is_single_point(self) -> bool:
        """Return whether the set is a singleton."""
        low, high = self.min_value, self.max_value
        return not self.empty and low is not None and high is not None and _is_equal(low, high)

    def point(self) -> PrimExpr:
        """Return the only element.

        Raises:
            ValueError: There are several values.
        """
        if not self.is_single_point() or self.min_value is None:
            raise ValueError(f"int_set: expected a single point, got {self}")
        return self.min_value

    def __str__(self) -> str:
        if self.empty:
            return "{}"
        low = "-inf" if self.min_value is None else self.min_value
        high = "inf" if self.max_value is None else self.max_value
        return f"[{low}, {high}]"


IntSet = IntervalSet
"""TVM's name for any set; all of ours are intervals."""


def pos_inf() -> None:
    """Return None, the infinite upper bound."""


def neg_inf() -> None:
    """Return None, the infinite lower bound."""


EMPTY_SET = IntervalSet(None, None, True)
UNBOUNDED_SET = IntervalSet(None, None)


def _is_equal(a: PrimExpr, b: PrimExpr) -> bool:
    return is_same_expr(a, b)


def interval(low: ExprLike | None, high: ExprLike | None) -> IntervalSet:
    """Return [low, high], empty if both are constants in the wrong order."""
    first, last = (None if v is None else convert(v) for v in (low, high))
    if isinstance(first, IntImm) and isinstance(last, IntImm) and first.value > last.value:
        return EMPTY_SET
    return IntervalSet(first, last)


def single_point(value: ExprLike) -> IntervalSet:
    """Return the singleton {value}."""
    point = convert(value)
    return IntervalSet(point, point)


def vector(base: ExprLike, extent: ExprLike) -> IntervalSet:
    """Return [base, base + extent)."""
    return interval(base, convert(base) + extent - 1)


def from_range(domain: Range) -> IntervalSet:
    """Return the interval of a Range."""
    return vector(domain.min, domain.extent)


def _from_bounds(ends: Sequence[SymbolicBound]) -> IntervalSet:
    return IntervalSet(ends[0], ends[1])


def _fold_bounds(
    pick: Callable[[ExprLike, ExprLike], PrimExpr], ends: Iterable[SymbolicBound]
) -> SymbolicBound:
    total: SymbolicBound = None
    for n, end in enumerate(ends):
        if end is None:
            return None
        total = end if n == 0 or total is None else pick(total, end)
    return total


def union(sets: Iterable[IntervalSet]) -> IntervalSet:
    """Return the convex hull of the union of sets."""
    nonempty = [s for s in sets if not s.empty]
    if not nonempty:
        return EMPTY_SET
    return IntervalSet(
        _fold_bounds(minimum, (s.min_value for s in nonempty)),
        _fold_bounds(maximum, (s.max_value for s in nonempty)),
    )


def intersect(sets: Iterable[IntervalSet]) -> IntervalSet:
    """Return the intersection of all sets."""
    operands = list(sets)
    if any(s.empty for s in operands):
        return EMPTY_SET
    low = _fold_bounds(maximum, (s.min_value for s in operands if s.min_value is not None))
    high = _fold_bounds(minimum, (s.max_value for s in operands if s.max_value is not None))
    return interval(low, high)


def eval_set(
    expr: PrimExpr,
    dom_map: Mapping[Var, IntervalSet | Range],
    simplify: Simplify = lambda e: e,
) -> IntervalSet:
    """Evaluate the interval of an expression while the variables of `dom_map` range over theirs.

    All other variables stay in the ends. It is everything where an operation gives no bound.
    """
    domains = {v: from_range(d) if isinstance(d, Range) else d for v, d in dom_map.items()}
    done: dict[int, IntervalSet] = {}
    for node in post_order(expr):
        inside = [done[id(c)] for c in children(node)]
        done[id(node)] = _eval_node(node, inside, domains)
    values = done[id(expr)]
    if values.empty:
        return values
    return interval(
        None if values.min_value is None else simplify(values.min_value),
        None if values.max_value is None else simplify(values.max_value),
    )


# Interval arithmetic over symbolic bounds: sums are monotonic in both operands, products and
# quotients in one operand if the other one is of a known sign, so bounds follow from bounds. The
# set of any other operation is UNBOUNDED_SET.
def _eval_node(
    e: PrimExpr, inside: list[IntervalSet], domains: Mapping[Var, IntervalSet]
) -> IntervalSet:
    if isinstance(e, Var):
        return domains.get(e, single_point(e))
    if any(s.empty for s in inside):
        return EMPTY_SET
    # Nothing in it moves: the node stands for itself, whatever its kind.
    if all(s.is_single_point() for s in inside) and not _depends_on_domains(e, domains):
        return single_point(e)
    match e:
        case Add():
            return _from_bounds([_sum_bound(Add, inside[0], inside[1], n) for n in (0, 1)])
        case Sub():
            return _from_bounds([_sum_bound(Sub, inside[0], inside[1], n) for n in (0, 1)])
        case Mul():
            return _eval_mul(inside[0], inside[1])
        case FloorDiv():
            return _eval_floordiv(inside[0], inside[1])
        case FloorMod():
            return _eval_floormod(inside[0], inside[1])
        case Min() | Max():
            return _eval_min_max(e, inside[0], inside[1])
        case Select() | Intrinsic(op="if_then_else"):
            return union(inside[1:])
        case Cast() if e.dtype in ("int32", "int64"):
            return _from_bounds(
                [None if v is None else prim.cast(v, e.dtype) for v in _bounds(inside[0])]
            )
    return UNBOUNDED_SET


def _depends_on_domains(e: PrimExpr, domains: Mapping[Var, IntervalSet]) -> bool:
    """Return whether an expression depends on a variable with a domain."""
    return any(isinstance(v, Var) and v in domains for v in post_order(e))


def _bounds(s: IntervalSet) -> tuple[SymbolicBound, SymbolicBound]:
    return s.min_value, s.max_value


def _sum_bound(kind: type[BinaryExpr], a: IntervalSet, b: IntervalSet, end: int) -> SymbolicBound:
    # A difference is lowest where the subtrahend is highest.
    opposite_end = 1 - end if kind is Sub else end
    x, y = _bounds(a)[end], _bounds(b)[opposite_end]
    return None if x is None or y is None else fold_binary(kind, x, y)


def _constant_point(s: IntervalSet) -> int | None:
    low = s.min_value
    return low.value if s.is_single_point() and isinstance(low, IntImm) else None


def _eval_mul(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    scale = _constant_point(b)
    # Of two symbolic factors the signs are unknown, and with them which ends multiply to which.
    if scale is None:
        a, b, scale = b, a, _constant_point(a)
    if scale is None:
        return UNBOUNDED_SET
    if scale == 0 and b.min_value is not None:
        return single_point(const(0, b.min_value.dtype))
    ends = [None if v is None else v * scale for v in _bounds(a)]
    # A negative factor exchanges the ends.
    return _from_bounds(ends if scale > 0 else ends[::-1])


def _eval_floordiv(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    divisor = _constant_point(b)
    if divisor is None or divisor == 0:
        return UNBOUNDED_SET
    ends = [None if v is None else v // divisor for v in _bounds(a)]
    return _from_bounds(ends if divisor > 0 else ends[::-1])


def _eval_floormod(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    divisor = _constant_point(b)
    if divisor is None or divisor <= 0:
        return UNBOUNDED_SET
    low, high = _bounds(a)
    if isinstance(low, IntImm) and isinstance(high, IntImm):
        start = low.value // divisor
        # Both ends in one period: the remainder grows with the value.
        if high.value // divisor == start:
            return interval(low.value - start * divisor, high.value - start * divisor)
    dtype = next((v.dtype for v in (low, high) if v is not None), "int64")
    return interval(const(0, dtype), const(divisor - 1, dtype))


def _eval_min_max(e: PrimExpr, a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Return the interval of a min or max.

    The upper end of a minimum needs only one upper end; for a maximum it is the lower one.
    """
    low = isinstance(e, Min)
    pick = minimum if low else maximum
    ends: list[SymbolicBound] = []
    for n in (0, 1):
        x, y = _bounds(a)[n], _bounds(b)[n]
        open_end = n == (0 if low else 1)
        if x is None or y is None:
            ends.append(None if open_end or (x is None and y is None) else (y if x is None else x))
        else:
            ends.append(pick(x, y))
    return _from_bounds(ends)
