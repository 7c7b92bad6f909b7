"""Segment reductions: rows combined by segment id."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ekiden.frontend.common.composite_ops import append_unit_axes
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.reducers import reduction_identity
from ekiden.frontend.common.xla_scatter import SCATTER_MODES
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, as_dim, simplify_dim, to_attr_dims


def segment_reduce(node: Node, kind: str, data: Expr, ids: Expr, count: Dim) -> Expr:
    """Emit [count, ...]: the rows of each segment reduced; an empty segment is the reduction's
    identity.

    `ids` may have more axes, the leading ones of `data`; rows with a negative id belong to no
    segment, one of `count` or above is out of range.
    """
    shape, rank = node.tensor_type_of(data).shape, len(node.tensor_type_of(ids).shape)
    row_shape, dtype = shape[rank:], node.tensor_type_of(data).dtype
    rows = data if rank == 1 else op.reshape(data, (-1, *to_attr_dims(row_shape)), allowzero=False)
    slots = op.cast(ids if rank == 1 else op.reshape(ids, (-1,)), "int64")
    # a row in front takes in what belongs to none
    slots = op.add(op.maximum(slots, const(-1, "int64")), const(1, "int64"))
    # Negative ids are dropped, as TensorFlow specifies: they all land in row 0, which is cut off.
    nothing = const(_empty_segment_value(kind, dtype), dtype)
    wide = to_attr_dims((simplify_dim(as_dim(count) + 1), *row_shape))
    start = op.full(nothing, wide, dtype)
    combined = op.scatter_nd(start, op.expand_dims(slots, 0), rows, SCATTER_MODES[kind])
    return op.strided_slice(combined, (1,), (wide[0],), axes=(0,))


def _empty_segment_value(kind: str, dtype: str) -> object:
    """Return the value of an empty segment: the identity, clipped to finite numbers."""
    # TensorFlow fills empty segments of max and min with finite limits, not with infinities.
    neutral_value = reduction_identity(kind, dtype)
    return np.clip(neutral_value, *_finite_range(dtype)) if is_float(dtype) else neutral_value


def _finite_range(dtype: str) -> tuple[float, float]:
    """Return the lowest and largest finite number of a float dtype."""
    ends = ml_dtypes.finfo(dtype)
    return float(ends.min), float(ends.max)


def num_segments(node: Node, ids: Expr) -> Dim:
    """Return the number of segments, the largest id plus 1, as a dimension."""
    # The -1 makes the maximum of no ids defined: no segments.
    wide = op.concatenate([const(np.array([-1])), op.cast(ids, "int64")], axis=0)
    segment_count = op.add(op.max(wide, axis=[0], keepdims=True), const(1, "int64"))
    return node.with_inputs([node.bind_shared(segment_count)]).dims(0, "segments")[0]


def segment_sizes(node: Node, ids: Expr, count: Dim, dtype: str, rank: int) -> Expr:
    """Emit the number of rows of each segment as [count, 1, ...] of that rank."""
    ones = op.ones_like(op.cast(ids, dtype))
    counts = segment_reduce(node, "add", ones, ids, count)
    return append_unit_axes(counts, rank - 1)
