"""Boxes that buffer regions cover while variables range over their domains (TVM's names)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith.analyzer import Analyzer
from ekiden.arith.int_set import IntervalSet, eval_set
from ekiden.arith.iter_map import IterMapLevel, IterSplit, IterSum, detect_iter_map
from ekiden.ir.prim import (
    IntImm,
    PrimExpr,
    Var,
    convert,
)
from ekiden.ir.range import Range

BufferRegionRanges = Sequence[Range]


# A region [min, min + extent) per axis moves with the variables; the result is the union over
# all their values. It is a box where (1) no variable moves two axes at once, else it is a diagonal,
# and (2) along each axis the steps are no longer than what has been covered below them, else it has
# gaps. `_has_shared_iterators` decides (1), `_covered_interval` (2).
def estimate_region_strict_bound(
    region: BufferRegionRanges, var_dom: Mapping[Var, Range], predicate: PrimExpr | bool = True
) -> list[IntervalSet] | None:
    """Return the exact box that a region covers while variables range over their domains, or None.

    None if it is not known to be a box without gaps whose axes do not depend on each other.
    """
    unchecked = detect_iter_map(
        [r.min for r in region], var_dom, convert(predicate), IterMapLevel.NO_CHECK
    )
    # If the indices are independent, the union is the product of its axes.
    apart = detect_iter_map(
        [r.min for r in region], var_dom, convert(predicate), IterMapLevel.SURJECTIVE
    )
    if unchecked.errors or not unchecked.indices:
        return None
    if len(region) > 1 and apart.errors and _has_shared_iterators(unchecked.indices):
        return None
    bounds: list[IntervalSet] = []
    for axis_range, total in zip(region, unchecked.indices, strict=True):
        covered = _covered_interval(axis_range, total)
        if covered is None:
            return None
        bounds.append(covered)
    return bounds


estimate_region_lower_bound = estimate_region_strict_bound


def _has_shared_iterators(sums: Sequence[IterSum]) -> bool:
    """Return whether two sums share an iterator."""
    sources: set[int] = set()
    for total in sums:
        own = {id(split.source) for split in total.args}
        if own & sources:
            return True
        sources |= own
    return False


def _covered_interval(axis_range: Range, total: IterSum) -> IntervalSet | None:
    """Return [low, high] of one axis if it is covered without gaps, else None."""
    analyzer = Analyzer()
    low = convert(total.base)
    reach: PrimExpr = axis_range.extent
    # By rising step: [low, low + reach) without gaps, and a step of at most `reach` joins the next
    # copy to it. A step below zero moves the start and not the end.
    for split in sorted(total.args, key=_iter_step):
        scale = _const_scale(split.scale)
        if scale is None or not analyzer.can_prove(reach >= abs(scale)):
            return None
        steps = convert(split.extent) - 1
        if scale < 0:
            low = low + steps * scale
        reach = reach + steps * abs(scale)
    low = analyzer.simplify(low)
    return IntervalSet(low, analyzer.simplify(low + reach - 1))


def _iter_step(split: IterSplit) -> int:
    return abs(_const_scale(split.scale) or 0)


def _const_scale(scale: object) -> int | None:
    value = scale.value if isinstance(scale, IntImm) else scale
    return value if isinstance(value, int) else None


def estimate_region_upper_bound(
    region: BufferRegionRanges, var_dom: Mapping[Var, Range], predicate: PrimExpr | bool = True
) -> list[IntervalSet]:
    """Return a bounding box of a region while variables range over their domains."""
    strict = estimate_region_strict_bound(region, var_dom, predicate)
    if strict is not None:
        return strict
    analyzer = Analyzer()
    for var, domain in var_dom.items():
        analyzer.bind(var, domain)
    bounds: list[IntervalSet] = []
    for axis_range in region:
        # An axis for itself may be exact where the axes together are a diagonal.
        alone = estimate_region_strict_bound([axis_range], var_dom, predicate)
        if alone is not None:
            bounds.append(alone[0])
            continue
        low = eval_set(axis_range.min, var_dom, analyzer.simplify)
        high = low.max_value
        end = None if high is None else analyzer.simplify(high + axis_range.extent - 1)
        bounds.append(IntervalSet(low.min_value, end))
    return bounds


__all__ = [
    "estimate_region_lower_bound", "estimate_region_strict_bound", "estimate_region_upper_bound",
]  # fmt: skip
