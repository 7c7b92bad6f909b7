"""Padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.prim import PrimExpr, Select, Var, is_const, maximum, minimum
from ekiden.te import Tensor
from ekiden.topi.nn.conv import guarded
from ekiden.topi.shape import Shape, as_dim, known, tidy

Place = Callable[[PrimExpr, PrimExpr], PrimExpr]


def pad(data: Tensor, pad_value: Tensor, width: Sequence[Shape], mode: str) -> Tensor:
    """`data` with (before, after) borders per axis: a value, the nearest element, or mirrored
    without the edge."""
    shape = tuple(tidy(d + a + b) for d, (a, b) in zip(data.shape, width, strict=True))
    if mode == "constant":
        return te.compute(
            shape, lambda *i: _constant(data, pad_value, width, i), name="pad", tag="injective"
        )
    place = _edge if mode == "edge" else _reflect

    def body(*i: Var) -> PrimExpr:
        return data[
            [_placed(n, d, a, b, place) for n, d, (a, b) in zip(i, data.shape, width, strict=True)]
        ]

    return te.compute(shape, body, name="pad", tag="injective")


def _constant(
    data: Tensor, pad_value: Tensor, width: Sequence[Shape], indices: Sequence[PrimExpr]
) -> PrimExpr:
    at, conditions = [], []
    for index, size, (before, after) in zip(indices, data.shape, width, strict=True):
        position = index - before
        at.append(position)
        if not _is_at_most_zero(before):
            conditions.append(position >= 0)
        if not _is_at_most_zero(after):
            conditions.append(position < size)
    return guarded(data, at, conditions, pad_value[()])


def _is_at_most_zero(width: PrimExpr) -> bool:
    number = known(width)
    return number is not None and number <= 0


def _placed(
    index: PrimExpr, size: PrimExpr, before: PrimExpr, after: PrimExpr, place: Place
) -> PrimExpr:
    """The element that a position of the result shows; negative widths crop first."""
    if is_const(before, 0) and is_const(after, 0):
        return index
    first, cut = maximum(as_dim(0) - before, 0), maximum(as_dim(0) - after, 0)
    return first + place(index - maximum(before, 0), size - first - cut)


def _edge(position: PrimExpr, size: PrimExpr) -> PrimExpr:
    return maximum(minimum(position, size - 1), 0)


def _reflect(position: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Back and forth with period 2 (size - 1)."""
    period = maximum((size - 1) * 2, 1)
    phase = position % period
    return Select(phase < size, phase, period - phase, "int64")
