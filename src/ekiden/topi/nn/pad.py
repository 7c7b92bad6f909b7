"""Padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden import te
from ekiden.ir.prim import (
    ExprLike,
    PrimExpr,
    Select,
    Var,
    cast,
    convert,
    is_const,
    maximum,
    minimum,
)
from ekiden.te import Tensor
from ekiden.topi.nn.conv import guarded
from ekiden.topi.shape import Dim, Shape, as_dim, as_shape, known, tidy

Place = Callable[[PrimExpr, PrimExpr], PrimExpr]


def pad(
    data: Tensor,
    pad_before: Sequence[Dim],
    pad_after: Sequence[Dim] | None = None,
    pad_value: Tensor | ExprLike = 0.0,
    name: str = "PadInput",
    attrs: Mapping[str, object] | None = None,
) -> Tensor:
    """`data` with borders of a value (a number or a tensor of rank 0); the same after as before by
    default, negative widths crop.
    """
    width = _widths(data, pad_before, pad_after)
    value = pad_value[()] if isinstance(pad_value, Tensor) else convert(pad_value, data.dtype)
    return te.compute(
        _padded_shape(data, width),
        lambda *i: _constant(data, cast(value, data.dtype), width, i),
        name=name,
        tag="injective",
        attrs=attrs,
    )


def mirror_pad(
    data: Tensor,
    pad_before: Sequence[Dim],
    pad_after: Sequence[Dim] | None = None,
    mode: str = "SYMMETRIC",
    name: str = "MirrorPadInput",
) -> Tensor:
    """`data` with mirrored borders, which repeat the edge ("SYMMETRIC") or not ("REFLECT")."""
    places = {"SYMMETRIC": _symmetric, "REFLECT": _reflect}
    if mode not in places:
        raise ValueError(f"mirror_pad: mode must be SYMMETRIC or REFLECT, got {mode!r}")
    return _moved(data, _widths(data, pad_before, pad_after), places[mode], name)


def _widths(
    data: Tensor, before: Sequence[Dim], after: Sequence[Dim] | None
) -> list[tuple[PrimExpr, PrimExpr]]:
    pairs = (as_shape(before), as_shape(before if after is None else after))
    if any(len(p) != data.ndim for p in pairs):
        raise ValueError(
            f"pad: expected {data.ndim} widths, got {len(pairs[0])} before, {len(pairs[1])} after"
        )
    return list(zip(*pairs, strict=True))


def _padded_shape(data: Tensor, width: Sequence[Sequence[PrimExpr]]) -> Shape:
    return tuple(tidy(d + a + b) for d, (a, b) in zip(data.shape, width, strict=True))


def _moved(
    data: Tensor,
    width: Sequence[Sequence[PrimExpr]],
    place: Place,
    name: str,
    shape: Shape | None = None,
) -> Tensor:
    """Every element of the borders is some element of the data."""

    def body(*i: Var) -> PrimExpr:
        return data[
            [_placed(n, d, a, b, place) for n, d, (a, b) in zip(i, data.shape, width, strict=True)]
        ]

    return te.compute(shape or _padded_shape(data, width), body, name=name, tag="injective")


def pad_by_mode(
    data: Tensor,
    pad_value: Tensor,
    width: Sequence[Shape],
    mode: str,
    shape: Shape | None = None,
) -> Tensor:
    """`data` with (before, after) borders per axis: a value, the nearest element ("edge"), or
    mirrored without the edge ("reflect"). `shape` is what that gives, where widths are data.
    """
    if mode != "constant":
        return _moved(data, width, _edge if mode == "edge" else _reflect, "pad", shape)
    return te.compute(
        shape or _padded_shape(data, width),
        lambda *i: _constant(data, pad_value[()], width, i),
        name="pad",
        tag="injective",
    )


def _constant(
    data: Tensor,
    value: PrimExpr,
    width: Sequence[Sequence[PrimExpr]],
    indices: Sequence[PrimExpr],
) -> PrimExpr:
    at, conditions = [], []
    for index, size, (before, after) in zip(indices, data.shape, width, strict=True):
        position = index - before
        at.append(position)
        if not _is_at_most_zero(before):
            conditions.append(position >= 0)
        if not _is_at_most_zero(after):
            conditions.append(position < size)
    return guarded(data, at, conditions, value)


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


def _symmetric(position: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Back and forth with period 2 size."""
    phase = position % maximum(size * 2, 1)
    return Select(phase < size, phase, size * 2 - 1 - phase, "int64")


__all__ = ["mirror_pad", "pad"]
