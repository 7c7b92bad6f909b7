"""Transformations by iteration maps: conversion to expressions, index simplification, inverses,
subspace division.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith.analyzer import Analyzer
from ekiden.arith.iter_map import (
    IterMapDetector,
    IterMapError,
    IterMapLevel,
    IterMark,
    IterSplit,
    IterSum,
    Size,
    size_key,
)
from ekiden.ir.prim import PrimExpr, Var, const, convert, logical_and
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass


def normalize_to_iter_sum(index: PrimExpr, input_iters: Mapping[Var, Range]) -> IterSum:
    """Normalise an index to a sum of splits, highest scale first where known.

    Raises:
        IterMapError: The index is not a sum of digits.
    """
    detector = IterMapDetector(input_iters, IterMapLevel.NO_CHECK, True)
    total = detector.parse(index)
    scales = [s.scale for s in total.args]
    if all(isinstance(s, int) for s in scales):
        args = sorted(total.args, key=lambda s: -s.scale if isinstance(s.scale, int) else 0)
        return IterSum(tuple(args), total.base)
    return total


def _mark_to_expr(mark: IterMark, values: Mapping[Var, PrimExpr]) -> PrimExpr:
    source = mark.source
    return values.get(source, source) if isinstance(source, Var) else _sum_to_expr(source, values)


def _sum_to_expr(total: IterSum, values: Mapping[Var, PrimExpr]) -> PrimExpr:
    dtype = next((_source_dtype(s.source) for s in total.args), None)
    result = convert(0, dtype) + total.base if dtype else convert(total.base)
    for split in reversed(total.args):
        result = _split_to_expr(split, values) + result
    return result


def _source_dtype(mark: IterMark) -> str:
    source = mark.source
    while not isinstance(source, Var):
        source = source.args[0].source.source
    return source.dtype


def _split_to_expr(split: IterSplit, values: Mapping[Var, PrimExpr]) -> PrimExpr:
    value = _mark_to_expr(split.source, values)
    is_top = not isinstance(split.lower_factor, int) or not isinstance(split.extent, int)
    lower, extent = split.lower_factor, split.extent
    mark_extent = split.source.extent
    if is_top or not isinstance(mark_extent, int) or lower * extent < mark_extent:
        if lower == 1 and size_key(extent) == size_key(mark_extent):
            return value * split.scale
        return (value // lower) % extent * split.scale
    return value // lower * split.scale


def normalize_iter_map_to_expr(expr: IterSum | IterSplit | IterMark) -> PrimExpr:
    """Convert a sum, split or mark back to a plain expression.

    A variable stands for itself: iterators whose range does not start at 0 have their start in the
    base.
    """
    match expr:
        case IterSum():
            return _sum_to_expr(expr, {})
        case IterSplit():
            return _split_to_expr(expr, {})
        case _:
            return _mark_to_expr(expr, {})


def iter_map_simplify(
    indices: Sequence[PrimExpr],
    input_iters: Mapping[Var, Range],
    predicate: PrimExpr | bool = True,
    check_level: IterMapLevel = IterMapLevel.SURJECTIVE,
    simplify_trivial_iterators: bool = True,
) -> list[PrimExpr]:
    """Simplify indices through their iteration map: `(i * 4 + j) // 4` with j < 4 is `i`.

    An index that is no sum of digits is only simplified as an expression.
    """
    detector = IterMapDetector(input_iters, check_level, simplify_trivial_iterators)
    starts = {v: v - s for v, s in detector.start_of_var.items() if s != 0}
    simplify = detector.size_arithmetic.analyzer.simplify
    simplified: list[PrimExpr] = []
    try:
        detector.assume_predicate(convert(predicate))
    except IterMapError:
        # A predicate that is no bound of digits is not used at all.
        detector.constrained_sums.clear()
    for index in indices:
        try:
            # The sum is rebuilt without the quotients and remainders that its digits have absorbed.
            simplified.append(simplify(_sum_to_expr(detector.parse(index), starts)))
        except IterMapError:
            simplified.append(simplify(index))
    return simplified


def inverse_affine_iter_map(
    iter_map: Sequence[IterSum], outputs: Sequence[PrimExpr]
) -> dict[Var, PrimExpr]:
    """Invert a bijective iteration map: return each iterator in terms of the indices.

    Iterators count from the start of their ranges.
    """
    totals: dict[IterMark, PrimExpr] = {}
    order = _topological_marks(iter_map)
    analyzer = Analyzer()

    def distribute(total: IterSum, value: PrimExpr) -> None:
        """Distribute a value over the splits of a sum, and accumulate each into its iterator.

        Only the highest digit needs no remainder.
        """
        for n, split in enumerate(total.args):
            # Mixed radix read back: the scale of a digit is the product of the extents below it.
            digit = value // split.scale if split.scale != 1 else value
            digit = digit % split.extent if n > 0 else digit  # the highest has nothing above it
            contribution = digit * split.lower_factor
            collected = totals.get(split.source)
            totals[split.source] = contribution if collected is None else collected + contribution

    for total, output in zip(iter_map, outputs, strict=True):
        distribute(total, output - total.base if total.base != 0 else output)
    inverse: dict[Var, PrimExpr] = {}
    for mark in order:
        value = analyzer.simplify(totals[mark])
        if isinstance(mark.source, Var):
            inverse[mark.source] = value
        else:
            distribute(mark.source, value)
    return inverse


def _topological_marks(iter_map: Sequence[IterSum]) -> list[IterMark]:
    """Order marks topologically, fused marks before their parts."""
    waiting: dict[IterMark, int] = {}
    stack = [s.source for total in iter_map for s in total.args]
    for mark in stack:
        waiting[mark] = waiting.get(mark, 0) + 1
        if waiting[mark] == 1 and isinstance(mark.source, IterSum):
            stack.extend(s.source for s in mark.source.args)
    ready = [s.source for total in iter_map for s in total.args]
    order: list[IterMark] = []
    while ready:
        mark = ready.pop(0)
        waiting[mark] -= 1
        if waiting[mark] == 0:
            order.append(mark)
            if isinstance(mark.source, IterSum):
                ready.extend(s.source for s in mark.source.args)
    return order


@dataclass(frozen=True, slots=True)
class _DivisionForm:
    """Division outer * inner_extent + inner of a sum into outer and inner iterators."""

    outer: IterSum
    outer_extent: Size
    inner: IterSum
    inner_extent: Size


_EMPTY_SUM = IterSum((), 0)


class _SubspaceDivider:
    """Divider of splits into outer and inner iterators."""

    def __init__(self, detector: IterMapDetector, inner: set[Var]) -> None:
        self._size_arithmetic = detector.size_arithmetic
        self._detector = detector
        self._inner_vars = inner
        self._divided_marks: dict[IterMark, _DivisionForm] = {}

    def divide_splits(self, digits: Sequence[IterSplit]) -> _DivisionForm:
        """Divide ordered splits; inner ones must be the lowest."""
        numbers = self._size_arithmetic
        outer, inner = _EMPTY_SUM, _EMPTY_SUM
        outer_extent: Size = 1
        inner_extent: Size = 1
        for split in reversed(digits):
            division = self.divide_split(split)
            if division.inner_extent != 1:
                if outer_extent != 1:
                    raise IterMapError("an inner iterator stands above an outer one")
                inner = self._detector.add_sums(
                    inner, self._detector.scale_sum(division.inner, inner_extent), 1
                )
                inner_extent = numbers.multiply(inner_extent, division.inner_extent)
            if division.outer_extent != 1:
                outer = self._detector.add_sums(
                    outer, self._detector.scale_sum(division.outer, outer_extent), 1
                )
                outer_extent = numbers.multiply(outer_extent, division.outer_extent)
        return _DivisionForm(outer, outer_extent, inner, inner_extent)

    def divide_split(self, split: IterSplit) -> _DivisionForm:
        """Divide one IterSplit into its outer and inner iterators; the scale is dropped."""
        numbers = self._size_arithmetic
        mark = self.divide_mark(split.source)
        low, extent = split.lower_factor, split.extent

        def split_of(of: IterSum, count: Size, lower: Size, size: Size) -> IterSum:
            """Return, of an iterator of `whole` values, the digit of `size` values above `lower` of
            them.

            It is the iterator itself if that is all of it. A digit of a digit is one of the same
            source, further up.
            """
            if lower == 1 and numbers.can_prove_equal(size, count):
                return of
            single = of.args[0] if len(of.args) == 1 and of.args[0].scale == 1 else None
            source = single.source if single else IterMark(of, count)
            start = numbers.multiply(single.lower_factor, lower) if single else lower
            return IterSum((IterSplit(source, start, size, 1),), 0)

        below = mark.inner_extent
        # The digit begins at or above the border: it is a digit of the outer iterator.
        if numbers.can_prove_divides(below, low):
            lower = numbers.divide(low, below)
            divided = split_of(mark.outer, mark.outer_extent, lower, extent)
            if low != 1 or below == 1:
                return _DivisionForm(divided, extent, _EMPTY_SUM, 1)
        reach = numbers.multiply(low, extent)
        # The digit ends at or below the border: it is inner.
        if numbers.can_prove_divides(reach, below):
            return _DivisionForm(_EMPTY_SUM, 1, split_of(mark.inner, below, low, extent), extent)
        if low == 1 and numbers.can_prove_divides(below, extent):
            above = numbers.divide(extent, below)
            divided = split_of(mark.outer, mark.outer_extent, 1, above)
            return _DivisionForm(divided, above, mark.inner, below)
        raise IterMapError("a digit lies across the border of outer and inner iterators")

    def divide_mark(self, mark: IterMark) -> _DivisionForm:
        """Divide a mark: a variable is outer or inner, a fused sum is divided by its splits."""
        division = self._divided_marks.get(mark)
        if division is None:
            division = self._divided_marks[mark] = self._divide_mark_uncached(mark)
        return division

    def _divide_mark_uncached(self, mark: IterMark) -> _DivisionForm:
        undivided = IterSum((IterSplit(mark, 1, mark.extent, 1),), 0)
        if isinstance(mark.source, Var):
            if mark.source in self._inner_vars:
                return _DivisionForm(_EMPTY_SUM, 1, undivided, mark.extent)
            return _DivisionForm(undivided, mark.extent, _EMPTY_SUM, 1)
        division = self.divide_splits(mark.source.args)
        if division.outer_extent == 1:
            return _DivisionForm(_EMPTY_SUM, 1, undivided, mark.extent)
        if division.inner_extent == 1:
            return _DivisionForm(undivided, mark.extent, _EMPTY_SUM, 1)
        size = self._size_arithmetic.multiply(division.outer_extent, division.inner_extent)
        if not self._size_arithmetic.can_prove_equal(size, mark.extent):
            raise IterMapError("a predicate ties outer and inner iterators together")
        return division


def subspace_divide(
    bindings: Sequence[PrimExpr],
    input_iters: Mapping[Var, Range],
    sub_iters: Sequence[Var],
    predicate: PrimExpr | bool = True,
    check_level: IterMapLevel = IterMapLevel.SURJECTIVE,
    simplify_trivial_iterators: bool = True,
) -> list[tuple[IterMark, IterMark]]:
    """Divide each binding into `outer * inner.extent + inner`, with inner over `sub_iters` only.

    Returns:
        One (outer, inner) pair of marks for each binding and a last one for the predicate, whose
        extents are the outer and inner conditions as 0 or 1 expressions. Empty if the bindings are
        no map or cannot be divided.
    """
    for whole_sums in (False, True):
        detector = IterMapDetector(input_iters, check_level, simplify_trivial_iterators, whole_sums)
        try:
            conditions = detector.assume_predicate(convert(predicate))
            return _divide_space(detector, detector.detect_indices(bindings), sub_iters, conditions)
        except IterMapError:
            continue
    return []


def _divide_space(
    detector: IterMapDetector,
    totals: Sequence[IterSum],
    sub_iters: Sequence[Var],
    conditions: Sequence[tuple[PrimExpr, IterMark]],
) -> list[tuple[IterMark, IterMark]]:
    divider = _SubspaceDivider(detector, set(sub_iters))
    pairs: list[tuple[IterMark, IterMark]] = []
    for total in totals:
        division = divider.divide_splits(total.args)
        in_outer = division.inner_extent == 1
        outer = IterSum(division.outer.args, total.base if in_outer else 0)
        inner = IterSum(division.inner.args, 0 if in_outer else total.base)
        pairs.append(
            (IterMark(outer, division.outer_extent), IterMark(inner, division.inner_extent))
        )
    sides: list[PrimExpr] = [const(True), const(True)]
    for condition, mark in conditions:
        at = 0 if divider.divide_mark(mark).inner_extent == 1 else 1
        sides[at] = logical_and(sides[at], condition)
    pairs.append((IterMark(_EMPTY_SUM, sides[0]), IterMark(_EMPTY_SUM, sides[1])))
    return pairs
