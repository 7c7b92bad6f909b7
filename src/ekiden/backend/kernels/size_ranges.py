"""Multi-versioned kernels of dynamic sizes, tuned for several sizes; the version of the nearest
size runs.

    records:   n = 1: rows=1;  n = 64: nothing better than the default
    kernel:    if n <= 8: loops of rows=1 else: those of the default

What is compared is the product of the kernel's symbols, with the geometric means of what was tuned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ekiden.backend.kernels.lower import Overrides
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.stmt import IfThenElse, PrimFunc
from ekiden.tir.visitor import rename

TunedSizes = Sequence[Mapping[str, int]]
"""Symbol sizes of each run that a kernel was tuned for."""


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Range of sizes covered by one schedule override: all whose product is at most `upper` (None:
    unbounded).
    """

    upper: int | None
    overrides: Overrides


def tuned_size_ranges(tuned: Sequence[tuple[TunedSizes, Overrides]]) -> list[SizeRange]:
    """Return the ranges of overrides that were tuned for some sizes each, smallest first; the first
    record of a size wins. Boundaries are geometric means of neighbouring sizes.
    """
    indices: dict[int, Overrides] = {}
    for points, overrides in tuned:
        for point in points:
            indices.setdefault(math.prod(point.values()), overrides)
    if not indices:
        return [SizeRange(None, tuned[0][1])]
    ranges: list[SizeRange] = []
    sizes = sorted(indices)
    for size, following in zip(sizes, [*sizes[1:], None], strict=True):
        upper = None if following is None else math.isqrt(size * following)
        if ranges and ranges[-1].overrides == indices[size]:
            ranges.pop()
        ranges.append(SizeRange(upper, indices[size]))
    return ranges


def dispatch_on_size(
    ranges: Sequence[SizeRange], lower: Callable[[Overrides], PrimFunc]
) -> PrimFunc:
    """Build a function that dispatches to the loops of the range in which its sizes are; it has the
    attributes common to all ranges.
    """
    lowered = [lower(row.overrides) for row in ranges]
    last = lowered[-1]
    size = _size_product(last)
    body = last.body
    for size_range, func in zip(ranges[-2::-1], lowered[-2::-1], strict=True):
        assert size_range.upper is not None
        buffers = dict(zip(func.buffers, last.buffers, strict=True))
        values = dict(zip(_size_symbols(func), _size_symbols(last), strict=True))
        body = IfThenElse(size <= size_range.upper, rename(func.body, values, buffers), body)
    attrs = [f.attrs or {} for f in lowered]
    common = {k: v for k, v in attrs[0].items() if all(k in a and a[k] == v for a in attrs)}
    return last.with_fields(body=body, attrs=common)


def _size_symbols(func: PrimFunc) -> list[Var]:
    return free_vars(*(d for b in func.buffers for d in b.shape))


def _size_product(func: PrimFunc) -> PrimExpr:
    total: PrimExpr = const(1)
    for symbol in _size_symbols(func):
        total = total * symbol
    return total


__all__ = ["SizeRange", "TunedSizes", "dispatch_on_size", "tuned_size_ranges"]
