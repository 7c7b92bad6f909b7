"""Systems of linear Diophantine equations, solved by column reduction with free variables (TVM's
solve_linear_equations).

    x + y == 0   ->   x = n0, y = -n0, n0 = x

A system A x = b becomes, by operations on columns that keep the integers (V) and on rows, one
equation d * y = c for each pivot; x = V y. Names follow TVM's `arith.solve_linear_equations`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ekiden.arith.analyzer import Analyzer
from ekiden.arith.int_set import IntervalSet
from ekiden.arith.linear import LinearForm, extract_linear_form
from ekiden.ir.prim import EQ, LE, LT, And, PrimExpr, Sub, Var, const, fold_binary, is_const
from ekiden.ir.prim_visitor import chain_operands, substitute
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class IntConstraints:
    """Constraints on integer variables: relations, and known ranges."""

    variables: Sequence[Var] = ()
    ranges: Mapping[Var, Range] = field(default_factory=dict)
    relations: Sequence[PrimExpr] = ()


@dataclass(frozen=True, slots=True)
class IntConstraintsTransform:
    """Equivalence of two constraint systems, with substitutions in both directions."""

    src: IntConstraints
    dst: IntConstraints
    src_to_dst: Mapping[Var, PrimExpr] = field(default_factory=dict)
    dst_to_src: Mapping[Var, PrimExpr] = field(default_factory=dict)


@dataclass(slots=True)
class _LinearSystem:
    """Linear system A V y = b with its unimodular column transform V (x = V y) and the inverse of
    V. Column operations keep A V and V together.
    """

    matrix_rows: list[list[int]]
    right_hand_sides: list[PrimExpr]
    column_transform: list[list[int]]
    inverse_transform: list[list[int]]

    def add_column(self, target: int, source: int, times: int) -> None:
        """Add `times` * column source to column target, of A V and V; the inverse follows."""
        for row in (*self.matrix_rows, *self.column_transform):
            row[target] += times * row[source]
        for n, value in enumerate(self.inverse_transform[target]):
            # The inverse of adding a column is subtracting a row.
            self.inverse_transform[source][n] -= times * value

    def swap_columns(self, a: int, b: int) -> None:
        """Swap two columns."""
        for row in (*self.matrix_rows, *self.column_transform):
            row[a], row[b] = row[b], row[a]
        self.inverse_transform[a], self.inverse_transform[b] = (
            self.inverse_transform[b],
            self.inverse_transform[a],
        )

    def negate_column(self, n: int) -> None:
        """Negate a column."""
        for row in (*self.matrix_rows, *self.column_transform):
            row[n] = -row[n]
        self.inverse_transform[n] = [-v for v in self.inverse_transform[n]]


def _reduce_to_column_echelon(system: _LinearSystem) -> int:
    """Reduce the system to column echelon form, and return its rank.

    Row r has its pivot in column r, and zeros after. Euclid's algorithm runs over the columns of
    each row.
    """
    rank = 0
    count = len(system.column_transform)
    for row in range(len(system.matrix_rows)):
        # Euclid's algorithm on the entries of the row: what is left is their greatest common
        # divisor.
        while True:
            at = [n for n in range(rank, count) if system.matrix_rows[row][n]]
            if not at:
                break
            # The column with the smallest entry becomes the pivot, as in Euclid's algorithm.
            best = min(at, key=lambda n: abs(system.matrix_rows[row][n]))
            if best != rank:
                system.swap_columns(best, rank)
            pivot = system.matrix_rows[row][rank]
            to_clear = [n for n in range(rank + 1, count) if system.matrix_rows[row][n]]
            if not to_clear:
                break
            for n in to_clear:
                system.add_column(n, rank, -(system.matrix_rows[row][n] // pivot))
        if rank < count and system.matrix_rows[row][rank]:
            system.matrix_rows[row], system.matrix_rows[rank] = (
                system.matrix_rows[rank],
                system.matrix_rows[row],
            )
            system.right_hand_sides[row], system.right_hand_sides[rank] = (
                system.right_hand_sides[rank],
                system.right_hand_sides[row],
            )
            rank += 1
    return rank


def _identity_matrix(size: int) -> list[list[int]]:
    return [[int(a == b) for b in range(size)] for a in range(size)]


def solve_linear_equations(
    equations: Sequence[PrimExpr] | IntConstraints,
    variables: Sequence[Var] | None = None,
    ranges: Mapping[Var, Range] | None = None,
) -> IntConstraintsTransform:
    """Solve linear equations over the integers in terms of free variables.

    Conditions that are no linear equations, and ranges of old variables, stay as conditions on the
    new ones, whose ranges follow from the old ones. A system without solutions has the one
    condition False.
    """
    src = (
        equations
        if isinstance(equations, IntConstraints)
        else IntConstraints(tuple(variables or ()), dict(ranges or {}), tuple(equations))
    )
    if not src.variables:
        return IntConstraintsTransform(src, src)
    analyzer = Analyzer()
    for var, domain in src.ranges.items():
        analyzer.bind(var, domain)
    system, nonlinear = _build_system(src, analyzer)
    rank = _reduce_to_column_echelon(system)
    values, conditions = _back_substitute(system, rank, analyzer)
    if any(is_const(c, 0) for c in conditions):
        return IntConstraintsTransform(src, IntConstraints((), {}, (const(False),)))
    return _build_transform(src, system, rank, values, [*conditions, *nonlinear], analyzer)


def _build_system(src: IntConstraints, analyzer: Analyzer) -> tuple[_LinearSystem, list[PrimExpr]]:
    rows: list[list[int]] = []
    sides: list[PrimExpr] = []
    nonlinear: list[PrimExpr] = []
    for conjunct in (condition for r in src.relations for condition in chain_operands(r, And)):
        form = (
            extract_linear_form(fold_binary(Sub, conjunct.a, conjunct.b), src.variables)
            if isinstance(conjunct, EQ)
            else None
        )
        if form is None:
            nonlinear.append(conjunct)
            continue
        rows.append([form.coefficients.get(v, 0) for v in src.variables])
        sides.append(analyzer.simplify(form.base * -1))
    size = len(src.variables)
    return _LinearSystem(rows, sides, _identity_matrix(size), _identity_matrix(size)), nonlinear


def _back_substitute(
    system: _LinearSystem, rank: int, analyzer: Analyzer
) -> tuple[list[PrimExpr], list[PrimExpr]]:
    """Return the values of the first `rank` unknowns, and the conditions for integer solutions."""
    values: list[PrimExpr] = []
    conditions: list[PrimExpr] = []
    for n, (row, side) in enumerate(zip(system.matrix_rows, system.right_hand_sides, strict=True)):
        # Forward substitution: the reduced rows are lower triangular.
        for scale, value in zip(row, values, strict=False):
            side = side - value * scale
        side = analyzer.simplify(side)
        if n >= rank:
            conditions.append(analyzer.simplify(EQ(side, const(0, side.dtype))))
            continue
        pivot = row[n]
        # An integer solution exists only if the pivot divides the right side.
        exact = analyzer.simplify(EQ(side % abs(pivot), const(0, side.dtype)))
        conditions.append(exact)
        values.append(analyzer.simplify(side // abs(pivot) * (1 if pivot > 0 else -1)))
    return values, [c for c in conditions if not is_const(c, 1)]


def _build_transform(
    src: IntConstraints,
    system: _LinearSystem,
    rank: int,
    values: list[PrimExpr],
    conditions: list[PrimExpr],
    analyzer: Analyzer,
) -> IntConstraintsTransform:
    dtype = src.variables[0].dtype
    for n in range(rank, len(system.column_transform)):
        first = next(row[n] for row in system.column_transform if row[n])
        # A free variable grows with the first old variable that depends on it.
        if first < 0:
            system.negate_column(n)
    free = tuple(Var(f"n{k}", dtype) for k in range(len(system.column_transform) - rank))
    unknowns: list[PrimExpr] = [*values, *free]
    forward: dict[Var, PrimExpr] = {}
    for var, row in zip(src.variables, system.column_transform, strict=True):
        forward[var] = analyzer.simplify(_weighted_sum(row, unknowns, dtype))
    back: dict[Var, PrimExpr] = {}
    for n, new in enumerate(free):
        back[new] = analyzer.simplify(
            _weighted_sum(system.inverse_transform[rank + n], src.variables, dtype)
        )
    remaining = [analyzer.simplify(substitute(c, forward)) for c in conditions]
    ranges = _derive_ranges(src, free, forward, analyzer)
    # Ranges of the old variables that the new ranges do not imply stay as conditions.
    remaining += _find_unimplied_bounds(src, ranges, forward)
    relations = tuple(c for c in remaining if not is_const(c, 1))
    return IntConstraintsTransform(src, IntConstraints(free, ranges, relations), forward, back)


def _weighted_sum(scales: Sequence[int], terms: Sequence[PrimExpr], dtype: str) -> PrimExpr:
    total: PrimExpr = const(0, dtype)
    for scale, term in zip(scales, terms, strict=True):
        if scale:
            total = total + (term if scale == 1 else term * scale)
    return total


def _derive_ranges(
    src: IntConstraints, free: Sequence[Var], forward: Mapping[Var, PrimExpr], analyzer: Analyzer
) -> dict[Var, Range]:
    """Derive the ranges of new variables from old ones that depend on a single new one."""
    ends: dict[Var, IntervalSet] = {}
    for var, domain in src.ranges.items():
        form = extract_linear_form(forward[var], free) if var in forward else None
        if form is None or len(form.coefficients) != 1:
            continue
        ((new, scale),) = form.coefficients.items()
        interval = _solve_bounds(form, scale, domain, analyzer)
        earlier = ends.get(new)
        ends[new] = (
            interval if earlier is None else _intersect_intervals(earlier, interval, analyzer)
        )
    ranges: dict[Var, Range] = {}
    for new, limits in ends.items():
        assert limits.min_value is not None and limits.max_value is not None
        ranges[new] = Range.from_min_extent(
            limits.min_value, analyzer.simplify(limits.max_value - limits.min_value + 1)
        )
    return ranges


def _solve_bounds(form: LinearForm, scale: int, domain: Range, analyzer: Analyzer) -> IntervalSet:
    """Solve low <= scale * n + base <= high for n."""
    low, high = domain.min - form.base, domain.min + domain.extent - 1 - form.base
    # Both sides are negated, which exchanges the ends.
    if scale < 0:
        low, high, scale = const(0) - high, const(0) - low, -scale
    return IntervalSet(
        analyzer.simplify((low + (scale - 1)) // scale), analyzer.simplify(high // scale)
    )


def _intersect_intervals(a: IntervalSet, b: IntervalSet, analyzer: Analyzer) -> IntervalSet:
    """Intersect two intervals where the tighter end is provable; else keep the first's."""
    assert a.min_value is not None and a.max_value is not None
    assert b.min_value is not None and b.max_value is not None
    # Ends that cannot be compared keep the first: the other one stays a condition.
    low = b.min_value if analyzer.can_prove(b.min_value >= a.min_value) else a.min_value
    high = b.max_value if analyzer.can_prove(b.max_value <= a.max_value) else a.max_value
    return IntervalSet(low, high)


def _find_unimplied_bounds(
    src: IntConstraints, ranges: Mapping[Var, Range], forward: Mapping[Var, PrimExpr]
) -> list[PrimExpr]:
    """Return the bounds of old ranges that the new ranges do not imply."""
    analyzer = Analyzer()
    for new, domain in ranges.items():
        analyzer.bind(new, domain)
    unimplied: list[PrimExpr] = []
    for var, domain in src.ranges.items():
        value = forward.get(var)
        if value is None:
            continue
        for ends in (
            LE(analyzer.simplify(domain.min), value),
            LT(value, analyzer.simplify(domain.min + domain.extent)),
        ):
            if not analyzer.can_prove(ends):
                unimplied.append(ends)
    return unimplied


__all__ = ["IntConstraints", "IntConstraintsTransform", "solve_linear_equations"]
