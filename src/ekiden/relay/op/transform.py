"""Operators that move elements: transposes, joins and splits, slices, repetition, layouts.

    transpose(x, p)[i] = x at j with j[p[k]] = i[k]:      result axis k is axis p[k] of the data
    tile(x, r)    whole copies side by side;   repeat(x, r, axis)    each element r times
    layout_transform(x, NCHW, NCHW16c)         [n, c, h, w] -> [n, c / 16, h, w, c % 16]

They compute nothing, so that any dtype goes through, and a kernel that reads through one fuses it
into its loads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import OpDef, OpPattern, Precision, Transposes, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import attempt, attrs_of, call, fail, show, tensors
from ekiden.relay.op.dynamic import DynamicAttrs, constant_of, dynamic
from ekiden.topi.dimensions import (
    Dim,
    Dims,
    as_attr,
    as_dim,
    as_ints,
    as_shape,
    axes_attr,
    broadcasts_to,
    is_any,
    normalize_axes,
    normalize_axis,
    replaced,
    tidy,
)
from ekiden.topi.layout import transform_array, transform_shape


@node("relay.attrs.TransposeAttrs")
class TransposeAttrs(Attrs):
    """Which input axis each result axis is; None reverses them."""

    axes: tuple[int, ...] | None = None


def transposed_axes(attrs: TransposeAttrs, rank: int) -> tuple[int, ...]:
    """Return the permutation, counted from the front.

    Raises:
        ValueError: The axes are no permutation.
    """
    if attrs.axes is None:
        return tuple(reversed(range(rank)))
    axes = tuple(normalize_axis(a, rank, "transpose") for a in attrs.axes)
    if sorted(axes) != list(range(rank)):
        raise ValueError(f"axes must be a permutation of {rank} axes, got {attrs.axes}")
    return axes


def _transpose_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("transpose", types, 1)
    axes = attempt("transpose", transposed_axes, attrs_of(TransposeAttrs, attrs), len(data.shape))
    return TensorType(tuple(data.shape[a] for a in axes), data.dtype)


register_op(
    OpDef(
        name="transpose",
        turns=Transposes.ORDER,
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=TransposeAttrs,
        relation=_transpose_relation,
        reference=lambda attrs, data: np.transpose(data, attrs.axes),
        lower=lambda attrs, inputs, out: [
            topi.transpose(inputs[0], transposed_axes(attrs, inputs[0].ndim))
        ],
        pattern=OpPattern.INJECTIVE,
        result="data's dimensions in the order `axes`",
    )
)


def transpose(data: Expr, axes: Sequence[int] | None = None) -> Call:
    """Return `data` with its axes permuted."""
    return call("transpose", data, attrs=TransposeAttrs(None if axes is None else tuple(axes)))


@node("relay.attrs.BroadcastAttrs")
class BroadcastAttrs(Attrs):
    """The shape to broadcast to."""

    shape: Dims = ()


def _broadcast_to_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("broadcast_to", types, 1)
    target_shape = as_shape(attrs_of(BroadcastAttrs, attrs).shape)
    if not broadcasts_to(data.shape, target_shape):
        fail("broadcast_to", f"{show(data.shape)} does not broadcast to {show(target_shape)}")
    return TensorType(target_shape, data.dtype)


register_op(
    OpDef(
        name="broadcast_to",
        turns=Transposes.EXTENTS,
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=BroadcastAttrs,
        relation=_broadcast_to_relation,
        reference=lambda attrs, data: np.array(np.broadcast_to(data, as_ints(attrs.shape))),
        lower=lambda attrs, inputs, out: [topi.broadcast_to(inputs[0], as_shape(attrs.shape))],
        pattern=OpPattern.BROADCAST,
        result="`shape`",
    )
)


def broadcast_to(data: Expr, shape: Sequence[Dim] | Expr) -> Call:
    """Return `data` repeated along axes of extent 1 and new leading axes."""
    if (constant_shape := constant_of(shape)) is None:
        assert isinstance(shape, Expr)
        return dynamic("broadcast_to", data, shape, attrs=DynamicAttrs())
    return call("broadcast_to", data, attrs=BroadcastAttrs(as_attr(constant_shape)))


@node("relay.attrs.TileAttrs")
class TileAttrs(Attrs):
    """How often to repeat along each axis, aligned at the last one."""

    reps: Dims = ()


def _tile_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("tile", types, 1)
    reps = as_shape(attrs_of(TileAttrs, attrs).reps)
    rank = max(len(reps), len(data.shape))
    one = as_dim(1)
    shape = (one,) * (rank - len(data.shape)) + data.shape
    times = (one,) * (rank - len(reps)) + reps
    return TensorType(
        tuple(d if is_any(d) else tidy(d * r) for d, r in zip(shape, times, strict=True)),
        data.dtype,
    )


register_op(
    OpDef(
        name="tile",
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=TileAttrs,
        relation=_tile_relation,
        reference=lambda attrs, data: np.tile(data, as_ints(attrs.reps)),
        lower=lambda attrs, inputs, out: [topi.tile(inputs[0], attrs.reps)],
        pattern=OpPattern.INJECTIVE,
        result="each dimension times its number of copies",
    )
)


def tile(data: Expr, reps: Sequence[Dim] | Expr) -> Call:
    """Return `data` repeated as one block along each axis."""
    if (times := constant_of(reps)) is None:
        assert isinstance(reps, Expr)
        return dynamic("tile", data, reps, attrs=DynamicAttrs())
    return call("tile", data, attrs=TileAttrs(as_attr(times)))


@node("relay.attrs.RepeatAttrs")
class RepeatAttrs(Attrs):
    """How often each element is repeated along the axis."""

    repeats: int = 1
    axis: int = 0


def _repeat_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("repeat", types, 1)
    settings = attrs_of(RepeatAttrs, attrs)
    at = attempt("repeat", normalize_axis, settings.axis, len(data.shape), "repeat")
    size = data.shape[at]
    return TensorType(
        replaced(data.shape, at, size if is_any(size) else tidy(size * settings.repeats)),
        data.dtype,
    )


register_op(
    OpDef(
        name="repeat",
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=RepeatAttrs,
        relation=_repeat_relation,
        reference=lambda attrs, data: np.repeat(data, attrs.repeats, attrs.axis),
        lower=lambda attrs, inputs, out: [
            topi.repeat(inputs[0], attrs.repeats, attrs.axis % inputs[0].ndim)
        ],
        pattern=OpPattern.INJECTIVE,
        result="`axis` times `repeats`",
    )
)


def repeat(data: Expr, repeats: int, axis: int) -> Call:
    """Return each element repeated along an axis."""
    return call("repeat", data, attrs=RepeatAttrs(repeats, axis))


@node("relay.attrs.ReverseAttrs")
class ReverseAttrs(Attrs):
    """The axes to reverse."""

    axis: tuple[int, ...] = (0,)


def _reverse_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("reverse", types, 1)
    requested = attrs_of(ReverseAttrs, attrs).axis
    axes = attempt("reverse", normalize_axes, requested, len(data.shape), "reverse")
    if len(axes) < len(requested):
        fail("reverse", f"an axis is there twice, got {requested}")
    return data


register_op(
    OpDef(
        name="reverse",
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=ReverseAttrs,
        relation=_reverse_relation,
        reference=lambda attrs, data: np.ascontiguousarray(np.flip(data, attrs.axis)),
        lower=lambda attrs, inputs, out: [topi.flip(inputs[0], attrs.axis)],
        pattern=OpPattern.INJECTIVE,
        result="the type of data",
    )
)


def reverse(data: Expr, axis: int | Sequence[int]) -> Call:
    """Return `data` backwards along axes."""
    return call("reverse", data, attrs=ReverseAttrs(axes_attr(axis) or ()))


@node("relay.attrs.LayoutTransformAttrs")
class LayoutTransformAttrs(Attrs):
    """Layout strings: NCHW, NHWC, NCHW16c."""

    src_layout: str = "NCHW"
    dst_layout: str = "NCHW"


def _layout_transform_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("layout_transform", types, 1)
    settings = attrs_of(LayoutTransformAttrs, attrs)
    shape = attempt(
        "layout_transform", transform_shape, data.shape, settings.src_layout, settings.dst_layout
    )
    return TensorType(shape, data.dtype)


register_op(
    OpDef(
        name="layout_transform",
        precision=Precision.FOLLOW,
        arguments=("data",),
        attrs=LayoutTransformAttrs,
        relation=_layout_transform_relation,
        reference=lambda attrs, data: transform_array(data, attrs.src_layout, attrs.dst_layout),
        lower=lambda attrs, inputs, out: [
            topi.layout_transform(inputs[0], attrs.src_layout, attrs.dst_layout)
        ],
        pattern=OpPattern.INJECTIVE,
        result="data's shape in the new layout",
    )
)


def layout_transform(data: Expr, src_layout: str, dst_layout: str) -> Call:
    """Return `data` from one layout to another; an inner factor must divide its axis."""
    return call("layout_transform", data, attrs=LayoutTransformAttrs(src_layout, dst_layout))


__all__ = [
    "broadcast_to", "layout_transform", "repeat", "reverse", "tile", "transpose",
]  # fmt: skip
