"""Composite tensor functions that several frontends share and Relay lacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.node import Node
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import known_int, product_of_dims


def mean(node: Node, data: Expr, axis: Sequence[int], keepdims: bool) -> Expr:
    """Emit the mean over axes; an integer mean truncates towards zero."""
    kind = node.tensor_type_of(data)
    if is_float(kind.dtype):
        return op.mean(data, axis=axis, keepdims=keepdims)
    count = node.scope.emit_dim(product_of_dims([kind.shape[a] for a in axis]))
    # Narrow integer sums would wrap: accumulate in int64.
    total = op.sum(op.cast(data, "int64"), axis=axis, keepdims=keepdims)
    return op.cast(op.trunc_divide(total, op.cast(count, "int64")), kind.dtype)


def append_unit_axes(vector: Expr, count: int) -> Expr:
    """Append `count` axes of extent 1 to a vector."""
    return op.expand_dims(vector, axis=1, num_newaxis=count) if count else vector


def unique_in_order(data: Expr, counts: bool = False) -> list[Expr]:
    """Emit a vector's distinct elements in order of first occurrence, the inverse indices, and on
    request their counts.
    """
    unique = op.unique(data, is_sorted=False, return_counts=counts)
    start, size = const(np.zeros(1, np.int64)), op.cast(TupleGetItem(unique, 3), "int64")
    outputs = [op.strided_slice(TupleGetItem(unique, i), start, size, slice_mode="size")
               for i in ((0, 4) if counts else (0,))]  # fmt: skip
    return [outputs[0], TupleGetItem(unique, 2), *outputs[1:]]


def bucketize(data: Expr, dtype: str, boundaries: Sequence[float]) -> Expr:
    """Emit the int32 bucket of each element: the number of boundaries that are at most it."""
    if dtype != "float64":
        data, dtype = op.cast(data, "float32"), "float32"
    edges = const(np.array(boundaries, np.float32).astype(dtype))
    bucket_indices = op.searchsorted(edges, op.reshape(data, (-1,)), right=True, dtype="int32")
    return op.reshape_like(bucket_indices, data)


def broadcast_args(node: Node) -> Expr:
    """Convert BroadcastArgs: the shape that two shapes broadcast to."""
    a, b = node.exprs()
    lengths = [known_int(node.shape(i)[0]) for i in (0, 1)]
    if 0 in lengths:
        return b if lengths[0] == 0 else a
    if None in lengths:
        node.reject("shapes of unknown rank are not supported")
    first, second = (n or 0 for n in lengths)
    a, b = (
        e if n == max(first, second) else op.nn.pad(e, ((max(first, second) - n, 0),), 1.0)
        for e, n in ((a, first), (b, second))
    )
    # An extent of 1 yields to the other one; unequal extents above 1 are the model's error, as in
    # TensorFlow.
    return op.where(op.equal(a, op.ones_like(a)), b, a)
