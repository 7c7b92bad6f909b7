"""A kernel of dynamic sizes that was tuned for several: the loops of the nearest run.

    records:   n = 1: rows=1;  n = 64: nothing better than the default
    kernel:    if n <= 8: loops of rows=1 else: those of the default

What is compared is the product of the kernel's symbols, with the geometric means of what was tuned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ekiden.backend.kernels.lower import Given
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.stmt import IfThenElse, PrimFunc
from ekiden.tir.visitor import rename

Points = Sequence[Mapping[str, int]]
"""Sizes of the symbols of a kernel, of each run that it was tuned for."""


@dataclass(frozen=True, slots=True)
class Range:
    """What is said of a kernel whose symbols have a product up to `most`; None for all others."""

    most: int | None
    given: Given


def ranges_of(found: Sequence[tuple[Points, Given]]) -> list[Range]:
    """The ranges of what is said for some sizes each, the smallest first. Of one size said twice
    the first counts."""
    at: dict[int, Given] = {}
    for points, given in found:
        for point in points:
            at.setdefault(math.prod(point.values()), given)
    if not at:
        return [Range(None, found[0][1])]
    made: list[Range] = []
    sizes = sorted(at)
    for here, following in zip(sizes, [*sizes[1:], None], strict=True):
        most = None if following is None else math.isqrt(here * following)
        if made and made[-1].given == at[here]:
            made.pop()
        made.append(Range(most, at[here]))
    return made


def joined(ranges: Sequence[Range], lower: Callable[[Given], PrimFunc]) -> PrimFunc:
    """The lowered function that runs the loops of the range it is called with; `lower` gives those
    of each. What its loops promise is what all of them do."""
    made = [lower(each.given) for each in ranges]
    last = made[-1]
    size = _product(last)
    body = last.body
    for each, func in zip(ranges[-2::-1], made[-2::-1], strict=True):
        assert each.most is not None
        buffers = dict(zip(func.buffers, last.buffers, strict=True))
        values = dict(zip(_symbols(func), _symbols(last), strict=True))
        body = IfThenElse(size <= each.most, rename(func.body, values, buffers), body)
    attrs = [f.attrs or {} for f in made]
    kept = {k: v for k, v in attrs[0].items() if all(k in a and a[k] == v for a in attrs)}
    return last.with_fields(body=body, attrs=kept)


def _symbols(func: PrimFunc) -> list[Var]:
    return free_vars(*(d for b in func.buffers for d in b.shape))


def _product(func: PrimFunc) -> PrimExpr:
    total: PrimExpr = const(1)
    for each in _symbols(func):
        total = total * each
    return total


__all__ = ["Points", "Range", "joined", "ranges_of"]
