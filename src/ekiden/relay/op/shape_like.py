"""Operators that take a shape or dtype from another tensor; reverse reshape, sliding windows,
segment sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpPattern, PrecisionPolicy
from ekiden.ir.prim import PrimExpr
from ekiden.relay.expr import Call, Expr, const
from ekiden.relay.op._declare import call_op
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.relay.op.broadcast import add
from ekiden.relay.op.create import shape_of, zeros
from ekiden.relay.op.elementwise import cast
from ekiden.relay.op.join import concatenate
from ekiden.relay.op.reduce import max as largest
from ekiden.relay.op.reshaping import expand_dims, reshape
from ekiden.relay.op.scatter_ops import scatter_nd
from ekiden.relay.op.slice import strided_slice
from ekiden.topi.dimensions import (
    Dim,
    Dims,
    as_ints,
    as_shape,
    infer_reshape,
    normalize_axis,
    to_attr_dims,
)


@node("relay.attrs.ReshapeLikeAttrs")
class ReshapeLikeAttrs(Attrs):
    """Attributes of reshape_like: the ranges of dimensions to replace and to copy (None: to the
    end).
    """

    lhs_begin: int = 0
    lhs_end: int | None = None
    rhs_begin: int = 0
    rhs_end: int | None = None


@node("relay.attrs.ReverseReshapeAttrs")
class ReverseReshapeAttrs(Attrs):
    """Attributes of reverse_reshape: the shape, whose special values are resolved from the
    right.
    """

    newshape: Dims = ()


@node("relay.attrs.SlidingWindowAttrs")
class SlidingWindowAttrs(Attrs):
    """Attributes of sliding_window: the first windowed axis, window shape and strides."""

    axis: int = 0
    window_shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


def _normalize_range(begin: int, end: int | None, rank: int, side: str) -> tuple[int, int]:
    """Normalise a range of dimensions to non-negative bounds.

    Raises:
        ValueError: It is no range of the dimensions.
    """
    first = begin + rank if begin < 0 else begin
    last = rank if end is None else end + rank if end < 0 else end
    if not 0 <= first <= last <= rank:
        raise ValueError(f"{side} dimensions from {begin} to {end} of {rank}")
    return first, last


def _reshape_like_shape(
    attrs: ReshapeLikeAttrs, data: Sequence[PrimExpr], like: Sequence[PrimExpr]
) -> tuple[PrimExpr, ...]:
    first, last = _normalize_range(attrs.lhs_begin, attrs.lhs_end, len(data), "lhs")
    begin, end = _normalize_range(attrs.rhs_begin, attrs.rhs_end, len(like), "rhs")
    return (*data[:first], *like[begin:end], *data[last:])


def _reverse_reshape_shape(
    attrs: ReverseReshapeAttrs, data: Sequence[PrimExpr]
) -> tuple[PrimExpr, ...]:
    if -4 in attrs.newshape:
        raise ValueError("-4 splits a dimension, which is not read from the right")
    # Reversing both shapes, and the result, turns reading from the left into reading from the
    # right.
    return tuple(reversed(infer_reshape(tuple(reversed(data)), attrs.newshape[::-1])))


def _sliding_window_reference(attrs: SlidingWindowAttrs, data: Array) -> Array:
    first = normalize_axis(attrs.axis, data.ndim, "sliding_window")
    axes = tuple(range(first, data.ndim))
    view = np.lib.stride_tricks.sliding_window_view(data, attrs.window_shape, axes)
    # NumPy's view has all windows; strides leave some of them out.
    return view[(slice(None),) * first + tuple(slice(None, None, s) for s in attrs.strides)]


declare_topi_op("cast_like", ("data", "dtype_like"),
        lambda attrs, data, like: topi.cast(data, like.dtype),
        "the shape of data, with the dtype of dtype_like", pattern=OpPattern.ELEMWISE,
        reference=lambda attrs, data, like: data.astype(like.dtype),
        precision=PrecisionPolicy.FOLLOW)  # fmt: skip
declare_topi_op(
    "reshape_like",
    ("data", "shape_like"),
    lambda attrs, data, like: topi.reshape(
        data, _reshape_like_shape(attrs, data.shape, like.shape)
    ),
    "the shape of data, with dimensions of shape_like",
    ReshapeLikeAttrs,
    OpPattern.INJECTIVE,
    precision=PrecisionPolicy.FOLLOW,
    reference=lambda attrs, data, like: data.reshape(
        as_ints(_reshape_like_shape(attrs, as_shape(data.shape), as_shape(like.shape)))
    ),
)
declare_topi_op("contrib_reverse_reshape", ("data",),
        lambda attrs, data: topi.reshape(data, _reverse_reshape_shape(attrs, data.shape)),
        "`newshape`, its special numbers read from the right", ReverseReshapeAttrs,
        OpPattern.INJECTIVE, precision=PrecisionPolicy.FOLLOW,
        reference=lambda attrs, data: data.reshape(
            as_ints(_reverse_reshape_shape(attrs, as_shape(data.shape)))),
        description="The elements of data in order, in a shape whose numbers below 1 are read from"
        " the right.")  # fmt: skip
declare_topi_op("sliding_window", ("data",),
        lambda attrs, data: topi.sliding_window(data, attrs.axis, attrs.window_shape,
                                                attrs.strides),
        "the axes before `axis`, how often windows fit, then `window_shape`", SlidingWindowAttrs,
        OpPattern.INJECTIVE, reference=_sliding_window_reference)  # fmt: skip


def cast_like(data: Expr, dtype_like: Expr) -> Call:
    """Cast `data` to the dtype of another tensor."""
    return call_op("cast_like", data, dtype_like)


def reshape_like(
    data: Expr,
    shape_like: Expr,
    lhs_begin: int = 0,
    lhs_end: int | None = None,
    rhs_begin: int = 0,
    rhs_end: int | None = None,
) -> Call:
    """Reshape `data` to dimensions of another tensor.

    Dimensions from `lhs_begin` to `lhs_end` are replaced by its dimensions from `rhs_begin` to
    `rhs_end`.
    """
    attrs = ReshapeLikeAttrs(lhs_begin, lhs_end, rhs_begin, rhs_end)
    return call_op("reshape_like", data, shape_like, attrs=attrs)


def reverse_reshape(data: Expr, newshape: Sequence[Dim] | Dim) -> Call:
    """Reshape `data`, with special values resolved from the right.

    (2, 3, 4) by (-1, 0) is (6, 4).
    """
    dims = newshape if isinstance(newshape, Sequence) else (newshape,)
    return call_op("contrib_reverse_reshape", data, attrs=ReverseReshapeAttrs(to_attr_dims(dims)))


def sliding_window(
    data: Expr, axis: int, window_shape: Sequence[int], strides: Sequence[int]
) -> Call:
    """Return all sliding windows over the axes from `axis` on."""
    attrs = SlidingWindowAttrs(axis, tuple(window_shape), tuple(strides))
    return call_op("sliding_window", data, attrs=attrs)


def segment_sum(data: Expr, segment_ids: Expr, num_segments: int | Expr | None = None) -> Call:
    """Return the sums of the slices of `data` with equal segment ids, along the first axis.

    Ids run from 0 to `num_segments`, or to the largest.
    """
    count: Expr
    if num_segments is None:
        # Without a number given, ids go from 0 to their maximum.
        count = cast(add(largest(segment_ids), cast_like(const(1), segment_ids)), "int64")
    elif isinstance(num_segments, Expr):
        count = cast(num_segments, "int64")
    else:
        count = const(np.int64(num_segments))
    # Up to the end, whatever the rank: bounds beyond it are clipped.
    slice_shape = strided_slice(shape_of(data, "int64"), [1], [np.iinfo(np.int32).max])
    nothing = zeros(concatenate([reshape(count, (1,)), slice_shape], 0), "float32")
    return scatter_nd(cast_like(nothing, data), expand_dims(segment_ids, 0), data, "add")


__all__ = [
    "cast_like", "reshape_like", "reverse_reshape", "segment_sum", "sliding_window",
]  # fmt: skip
