"""Data movement operators: transpose, broadcast_to, tile, repeat, reverse, layout_transform.

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
from ekiden.ir.op import OpDef, OpPattern, PrecisionPolicy, TransposeRule, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_tensors,
    raise_type_error,
    shape_text,
)
from ekiden.relay.op.dynamic import DynamicAttrs, call_dynamic, constant_value
from ekiden.topi.dimensions import (
    Dim,
    Dims,
    as_dim,
    as_ints,
    as_shape,
    is_broadcastable_to,
    is_unknown_dim,
    normalize_axes,
    normalize_axis,
    replace_dim,
    simplify_dim,
    to_attr_axes,
    to_attr_dims,
)
from ekiden.topi.layout import transform_array, transform_shape


@node("relay.attrs.TransposeAttrs")
class TransposeAttrs(Attrs):
    """Attributes of transpose: the permutation; None reverses the axes."""

    axes: tuple[int, ...] | None = None


def normalize_transpose_axes(attrs: TransposeAttrs, rank: int) -> tuple[int, ...]:
    """Return the permutation with non-negative axes.

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
    (data,) = check_tensors("transpose", types, 1)
    # Negative axes are counted from the front once, so that kernels need not.
    axes = call_shape_rule(
        "transpose", normalize_transpose_axes, check_attrs(TransposeAttrs, attrs), len(data.shape)
    )
    return TensorType(tuple(data.shape[a] for a in axes), data.dtype)


register_op(
    OpDef(
        name="transpose",
        transpose_rule=TransposeRule.ORDER,
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data",),
        attrs=TransposeAttrs,
        relation=_transpose_relation,
        reference=lambda attrs, data: np.transpose(data, attrs.axes),
        lower=lambda attrs, inputs, out: [
            topi.transpose(inputs[0], normalize_transpose_axes(attrs, inputs[0].ndim))
        ],
        pattern=OpPattern.INJECTIVE,
        result="data's dimensions in the order `axes`",
    )
)


def transpose(data: Expr, axes: Sequence[int] | None = None) -> Call:
    """Permute the axes of `data`."""
    return call_op("transpose", data, attrs=TransposeAttrs(None if axes is None else tuple(axes)))


@node("relay.attrs.BroadcastAttrs")
class BroadcastAttrs(Attrs):
    """Attributes of broadcast_to: the target shape."""

    shape: Dims = ()


def _broadcast_to_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("broadcast_to", types, 1)
    target_shape = as_shape(check_attrs(BroadcastAttrs, attrs).shape)
    if not is_broadcastable_to(data.shape, target_shape):
        raise_type_error(
            "broadcast_to",
            f"{shape_text(data.shape)} does not broadcast to {shape_text(target_shape)}",
        )
    return TensorType(target_shape, data.dtype)


register_op(
    OpDef(
        name="broadcast_to",
        transpose_rule=TransposeRule.EXTENTS,
        precision=PrecisionPolicy.FOLLOW,
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
    """Broadcast `data` to a shape."""
    if (constant_shape := constant_value(shape)) is None:
        assert isinstance(shape, Expr)
        return call_dynamic("broadcast_to", data, shape, attrs=DynamicAttrs())
    return call_op("broadcast_to", data, attrs=BroadcastAttrs(to_attr_dims(constant_shape)))


@node("relay.attrs.TileAttrs")
class TileAttrs(Attrs):
    """Attributes of tile: repetitions per axis, aligned at the last one."""

    reps: Dims = ()


def _tile_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("tile", types, 1)
    reps = as_shape(check_attrs(TileAttrs, attrs).reps)
    rank = max(len(reps), len(data.shape))
    one = as_dim(1)
    # NumPy's rule: the shorter of both is filled up with ones in front.
    shape = (one,) * (rank - len(data.shape)) + data.shape
    times = (one,) * (rank - len(reps)) + reps
    return TensorType(
        tuple(
            d if is_unknown_dim(d) else simplify_dim(d * r)
            for d, r in zip(shape, times, strict=True)
        ),
        data.dtype,
    )


register_op(
    OpDef(
        name="tile",
        precision=PrecisionPolicy.FOLLOW,
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
    """Repeat `data` as a whole along each axis."""
    if (times := constant_value(reps)) is None:
        assert isinstance(reps, Expr)
        return call_dynamic("tile", data, reps, attrs=DynamicAttrs())
    return call_op("tile", data, attrs=TileAttrs(to_attr_dims(times)))


@node("relay.attrs.RepeatAttrs")
class RepeatAttrs(Attrs):
    """Attributes of repeat: repetitions of each element, and the axis."""

    repeats: int = 1
    axis: int = 0


def _repeat_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("repeat", types, 1)
    settings = check_attrs(RepeatAttrs, attrs)
    axis_index = call_shape_rule("repeat", normalize_axis, settings.axis, len(data.shape), "repeat")
    size = data.shape[axis_index]
    return TensorType(
        replace_dim(
            data.shape,
            axis_index,
            size if is_unknown_dim(size) else simplify_dim(size * settings.repeats),
        ),
        data.dtype,
    )


register_op(
    OpDef(
        name="repeat",
        precision=PrecisionPolicy.FOLLOW,
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
    """Repeat each element along an axis."""
    return call_op("repeat", data, attrs=RepeatAttrs(repeats, axis))


@node("relay.attrs.ReverseAttrs")
class ReverseAttrs(Attrs):
    """Attributes of reverse: the axes."""

    axis: tuple[int, ...] = (0,)


def _reverse_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("reverse", types, 1)
    requested = check_attrs(ReverseAttrs, attrs).axis
    axes = call_shape_rule("reverse", normalize_axes, requested, len(data.shape), "reverse")
    if len(axes) < len(requested):
        raise_type_error("reverse", f"an axis is there twice, got {requested}")
    return data


register_op(
    OpDef(
        name="reverse",
        precision=PrecisionPolicy.FOLLOW,
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
    """Reverse `data` along axes."""
    return call_op("reverse", data, attrs=ReverseAttrs(to_attr_axes(axis) or ()))


@node("relay.attrs.LayoutTransformAttrs")
class LayoutTransformAttrs(Attrs):
    """Attributes of layout_transform: source and target layouts such as NCHW and NCHW16c."""

    src_layout: str = "NCHW"
    dst_layout: str = "NCHW"


def _layout_transform_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("layout_transform", types, 1)
    settings = check_attrs(LayoutTransformAttrs, attrs)
    shape = call_shape_rule(
        "layout_transform", transform_shape, data.shape, settings.src_layout, settings.dst_layout
    )
    return TensorType(shape, data.dtype)


register_op(
    OpDef(
        name="layout_transform",
        precision=PrecisionPolicy.FOLLOW,
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
    """Transform `data` between layouts; a block factor must divide its axis."""
    return call_op("layout_transform", data, attrs=LayoutTransformAttrs(src_layout, dst_layout))


__all__ = [
    "broadcast_to", "layout_transform", "repeat", "reverse", "tile", "transpose",
]  # fmt: skip
