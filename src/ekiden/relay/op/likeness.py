"""Operators that take a shape or a dtype from another tensor, or count axes from the end; windows;
and sums of segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpPattern, Precision
from ekiden.ir.prim import PrimExpr
from ekiden.relay.expr import Call, Expr, const
from ekiden.relay.op._declare import call
from ekiden.relay.op._inventory import declare
from ekiden.relay.op.broadcast import add
from ekiden.relay.op.create import shape_of, zeros
from ekiden.relay.op.elementwise import cast
from ekiden.relay.op.join import concatenate
from ekiden.relay.op.placing import scatter_nd
from ekiden.relay.op.reduce import max as largest
from ekiden.relay.op.reshaping import expand_dims, reshape
from ekiden.relay.op.slice import strided_slice
from ekiden.topi.dimensions import (
    Dim,
    Dims,
    as_attr,
    as_ints,
    as_shape,
    infer_reshape,
    normalize_axis,
)


@node("relay.attrs.ReshapeLikeAttrs")
class ReshapeLikeAttrs(Attrs):
    """Which dimensions of the data are replaced by which of the other tensor: from begins to ends,
    which None puts after the last."""

    lhs_begin: int = 0
    lhs_end: int | None = None
    rhs_begin: int = 0
    rhs_end: int | None = None


@node("relay.attrs.ReverseReshapeAttrs")
class ReverseReshapeAttrs(Attrs):
    """The shape; its numbers below 1 are read from the right."""

    newshape: Dims = ()


@node("relay.attrs.SlidingWindowAttrs")
class SlidingWindowAttrs(Attrs):
    """The first axis of windows, their extents, and how far they move, of that axis and all
    after it."""

    axis: int = 0
    window_shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


def _part(begin: int, end: int | None, rank: int, side: str) -> tuple[int, int]:
    """Return a range of dimensions, counted from the front.

    Raises:
        ValueError: It is no range of the dimensions.
    """
    first = begin + rank if begin < 0 else begin
    last = rank if end is None else end + rank if end < 0 else end
    if not 0 <= first <= last <= rank:
        raise ValueError(f"{side} dimensions from {begin} to {end} of {rank}")
    return first, last


def _like_shape(
    attrs: ReshapeLikeAttrs, data: Sequence[PrimExpr], like: Sequence[PrimExpr]
) -> tuple[PrimExpr, ...]:
    first, last = _part(attrs.lhs_begin, attrs.lhs_end, len(data), "lhs")
    begin, end = _part(attrs.rhs_begin, attrs.rhs_end, len(like), "rhs")
    return (*data[:first], *like[begin:end], *data[last:])


def _reversed_shape(attrs: ReverseReshapeAttrs, data: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
    if -4 in attrs.newshape:
        raise ValueError("-4 splits a dimension, which is not read from the right")
    return tuple(reversed(infer_reshape(tuple(reversed(data)), attrs.newshape[::-1])))


def _windows_reference(attrs: SlidingWindowAttrs, data: Array) -> Array:
    first = normalize_axis(attrs.axis, data.ndim, "sliding_window")
    axes = tuple(range(first, data.ndim))
    view = np.lib.stride_tricks.sliding_window_view(data, attrs.window_shape, axes)
    return view[(slice(None),) * first + tuple(slice(None, None, s) for s in attrs.strides)]


declare("cast_like", ("data", "dtype_like"),
        lambda attrs, data, like: topi.cast(data, like.dtype),
        "the shape of data, with the dtype of dtype_like", pattern=OpPattern.ELEMWISE,
        reference=lambda attrs, data, like: data.astype(like.dtype),
        precision=Precision.FOLLOW)  # fmt: skip
declare("reshape_like", ("data", "shape_like"),
        lambda attrs, data, like: topi.reshape(data, _like_shape(attrs, data.shape, like.shape)),
        "the shape of data, with dimensions of shape_like", ReshapeLikeAttrs,
        OpPattern.INJECTIVE, precision=Precision.FOLLOW,
        reference=lambda attrs, data, like: data.reshape(
            as_ints(_like_shape(attrs, as_shape(data.shape), as_shape(like.shape)))))  # fmt: skip
declare("contrib_reverse_reshape", ("data",),
        lambda attrs, data: topi.reshape(data, _reversed_shape(attrs, data.shape)),
        "`newshape`, its special numbers read from the right", ReverseReshapeAttrs,
        OpPattern.INJECTIVE, precision=Precision.FOLLOW,
        reference=lambda attrs, data: data.reshape(
            as_ints(_reversed_shape(attrs, as_shape(data.shape)))),
        description="The elements of data in order, in a shape whose numbers below 1 are read from"
        " the right.")  # fmt: skip
declare("sliding_window", ("data",),
        lambda attrs, data: topi.sliding_window(data, attrs.axis, attrs.window_shape,
                                                attrs.strides),
        "the axes before `axis`, how often windows fit, then `window_shape`", SlidingWindowAttrs,
        OpPattern.INJECTIVE, reference=_windows_reference)  # fmt: skip


def cast_like(data: Expr, dtype_like: Expr) -> Call:
    """Return `data` in the dtype of another tensor."""
    return call("cast_like", data, dtype_like)


def reshape_like(
    data: Expr,
    shape_like: Expr,
    lhs_begin: int = 0,
    lhs_end: int | None = None,
    rhs_begin: int = 0,
    rhs_end: int | None = None,
) -> Call:
    """Return the elements of `data` in order, with dimensions of another tensor.

    Dimensions from `lhs_begin` to `lhs_end` are replaced by its dimensions from `rhs_begin` to
    `rhs_end`.
    """
    attrs = ReshapeLikeAttrs(lhs_begin, lhs_end, rhs_begin, rhs_end)
    return call("reshape_like", data, shape_like, attrs=attrs)


def reverse_reshape(data: Expr, newshape: Sequence[Dim] | Dim) -> Call:
    """Return `data` reshaped, with numbers below 1 read from the right.

    (2, 3, 4) by (-1, 0) is (6, 4).
    """
    dims = newshape if isinstance(newshape, Sequence) else (newshape,)
    return call("contrib_reverse_reshape", data, attrs=ReverseReshapeAttrs(as_attr(dims)))


def sliding_window(
    data: Expr, axis: int, window_shape: Sequence[int], strides: Sequence[int]
) -> Call:
    """Return all windows over the axes from `axis` on, with one extent and stride for each."""
    attrs = SlidingWindowAttrs(axis, tuple(window_shape), tuple(strides))
    return call("sliding_window", data, attrs=attrs)


def segment_sum(data: Expr, segment_ids: Expr, num_segments: int | Expr | None = None) -> Call:
    """Return the sums of the slices of `data`, along its first axis, that have one id.

    Ids run from 0 to `num_segments`, or to the largest.
    """
    count: Expr
    if num_segments is None:
        count = cast(add(largest(segment_ids), cast_like(const(1), segment_ids)), "int64")
    elif isinstance(num_segments, Expr):
        count = cast(num_segments, "int64")
    else:
        count = const(np.int64(num_segments))
    slice_shape = strided_slice(shape_of(data, "int64"), [1], [np.iinfo(np.int32).max])
    nothing = zeros(concatenate([reshape(count, (1,)), slice_shape], 0), "float32")
    return scatter_nd(cast_like(nothing, data), expand_dims(segment_ids, 0), data, "add")


__all__ = [
    "cast_like", "reshape_like", "reverse_reshape", "segment_sum", "sliding_window",
]  # fmt: skip
