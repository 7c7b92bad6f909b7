"""Inversion of index expressions: the iterators' ranges whose indices fill a box, as for (v // 16,
v % 16) or i * 16 + j.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import Analyzer, IterMapLevel, detect_iter_map, simplify_around_digits
from ekiden.arith.iter_map import IterSplit
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, convert, is_const
from ekiden.ir.range import Range
from ekiden.ir.range import Range as Domain
from ekiden.tir.stmt import IterVar

DigitRange = tuple[int, int, Range]
"""Digit of an iterator: its scale, its number of values, and the subrange required."""


def solve_iterator_ranges(
    iters: Sequence[IterVar],
    indices: Sequence[PrimExpr],
    box: Sequence[Range],
    analyzer: Analyzer,
) -> dict[Var, Range] | None:
    """Return the iterators' ranges whose indices are the box; None where none are found.

    This reads digits and proves nothing: the caller checks the result.
    """
    domains = {i.var: Domain(i.extent) for i in iters}
    pieces: dict[Var, list[DigitRange]] = {}
    for index, axis_range in zip(indices, box, strict=True):
        if is_const(index):
            continue
        iter_map = detect_iter_map([index], domains, check_level=IterMapLevel.NO_CHECK)
        if iter_map.errors or not _add_split_ranges(
            iter_map.indices[0].args, axis_range, analyzer, pieces
        ):
            return None
    ranges: dict[Var, Range] = {}
    for var, digits in pieces.items():
        iterator_range = _merge_split_ranges(digits, analyzer)
        if iterator_range is None:
            return None
        ranges[var] = iterator_range
    return ranges


def _add_split_ranges(
    splits: Sequence[IterSplit],
    axis_range: Range,
    analyzer: Analyzer,
    pieces: dict[Var, list[DigitRange]],
) -> bool:
    """Add the range of each IterSplit of an index, most significant first, when the index runs over
    a range; return whether that was possible.
    """
    if not all(isinstance(s.scale, int) and s.scale > 0 for s in splits):
        return False
    low, extent = axis_range.min, axis_range.extent
    full = False
    for split in sorted(splits, key=lambda s: -s.scale if isinstance(s.scale, int) else 0):
        source, scale = split.source.source, split.scale
        plain = isinstance(split.lower_factor, int) and isinstance(scale, int)
        if not isinstance(source, Var) or not plain:
            return False
        assert isinstance(scale, int)
        assert isinstance(split.lower_factor, int)
        if full:
            digit = Range.from_min_extent(const(0), convert(split.extent))
        elif scale == 1:
            digit = Range.from_min_extent(low, extent)
        elif _is_multiple_of(scale, low, analyzer) and _is_multiple_of(scale, extent, analyzer):
            digit = Range.from_min_extent(
                analyzer.simplify(low // scale), analyzer.simplify(extent // scale)
            )
            full = True
        elif (
            isinstance(extent, IntImm)
            and scale % extent.value == 0
            and _is_multiple_of(int(extent.value), low, analyzer)
        ):
            digit = Range.from_min_extent(analyzer.simplify(low // scale), const(1))
            low = analyzer.simplify(low % scale)
        else:
            return False
        count = split.extent if isinstance(split.extent, int) else 0
        pieces.setdefault(source, []).append((split.lower_factor, count, digit))
    return True


def _is_multiple_of(factor: int, e: PrimExpr, analyzer: Analyzer) -> bool:
    return is_const(analyzer.simplify(e % factor), 0)


def _merge_split_ranges(digits: list[DigitRange], analyzer: Analyzer) -> Range | None:
    """Return the range of an iterator from the ranges of its splits; None where they leave gaps."""
    ordered = sorted(digits, key=lambda d: -d[0])
    unit, _, digit_range = ordered[0]
    low, extent = digit_range.min, digit_range.extent
    for below, count, digit in ordered[1:]:
        if count == 0 or below * count != unit:
            return None
        if is_const(digit.min, 0) and is_const(digit.extent, count):
            low, extent = low * count, extent * count
        elif is_const(extent, 1):
            low, extent = low * count + digit.min, digit.extent
        else:
            return None
        unit = below
    if unit != 1:
        return None
    return Range.from_min_extent(simplify_around_digits(low, analyzer), analyzer.simplify(extent))
