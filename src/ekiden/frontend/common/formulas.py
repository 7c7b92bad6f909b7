"""Tensor functions that several frontends have and Relay lacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.node import Node
from ekiden.ir.dtype import is_float, itemsize
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import known, product


def mean(node: Node, data: Expr, axis: Sequence[int], keepdims: bool) -> Expr:
    """Return the mean over axes; of integers the sum divided towards zero."""
    kind = node.typed(data)
    if is_float(kind.dtype):
        return op.mean(data, axis=axis, keepdims=keepdims)
    count = node.scope.scalar(product([kind.shape[a] for a in axis]))
    # Narrow integer sums would wrap: accumulate in int64.
    total = op.sum(op.cast(data, "int64"), axis=axis, keepdims=keepdims)
    return op.cast(op.trunc_divide(total, op.cast(count, "int64")), kind.dtype)


def append_axes(vector: Expr, count: int) -> Expr:
    """Return a vector with so many axes of extent 1 behind its own."""
    return op.expand_dims(vector, axis=1, num_newaxis=count) if count else vector


# Normalisation.


def wide_dtype(dtype: str) -> str:
    """Return the dtype for statistics: float32 for narrower floats, as float16 overflows at squares
    of 256.
    """
    return "float32" if itemsize(dtype) < 4 else dtype


def statistics(data: Expr, dtype: str, axes: Sequence[int], epsilon: float) -> tuple[Expr, Expr]:
    """Return the mean over axes, which stay, and the reciprocal of the standard deviation."""
    wide = wide_dtype(dtype)
    data = data if wide == dtype else op.cast(data, wide)
    mean = op.mean(data, axis=list(axes), keepdims=True)
    centred = op.subtract(data, mean)
    variance = op.mean(op.multiply(centred, centred), axis=list(axes), keepdims=True)
    return mean, op.rsqrt(op.add(variance, const(epsilon, wide)))


def layer_norm(node: Node, data: Expr, scale: Expr, bias: Expr, first: int, epsilon: float) -> Expr:
    """Return nn.layer_norm over the axes from `first` on, which are joined into one for it; scale
    and bias have these axes, or the one.
    """
    shape = node.typed(data).shape
    if first == len(shape) - 1:
        return op.nn.layer_norm(data, scale, bias, epsilon=epsilon)
    extent = product(shape[first:])
    flat = op.reshape(data, (*shape[:first], extent), allowzero=True)
    scale, bias = (
        vector if len(node.typed(vector).shape) == 1 else op.reshape(vector, (extent,))
        for vector in (scale, bias)
    )
    return op.reshape(op.nn.layer_norm(flat, scale, bias, epsilon=epsilon), shape, allowzero=True)


def batch_norm(
    data: Expr, scale: Expr, bias: Expr, mean: Expr, variance: Expr, epsilon: float, axis: int = 1
) -> Expr:
    """Return data normalised by these statistics of the channels."""
    outputs = op.nn.batch_norm(data, scale, bias, mean, variance, axis=axis, epsilon=epsilon)
    return TupleGetItem(outputs, 0)


def running_average(old: Expr, new: Expr, share: float, dtype: str) -> Expr:
    """Return running statistics moved by a share towards new ones."""
    share_of_old = op.multiply(old, const(1 - share, dtype))
    return op.add(share_of_old, op.multiply(new, const(share, dtype)))


# Elements of vectors.


def uniques(data: Expr, counts: bool = False) -> list[Expr]:
    """Return a vector's distinct elements in order of first occurrence, the index of each element
    among them, and, on request, their counts.
    """
    unique = op.unique(data, is_sorted=False, return_counts=counts)
    start, size = const(np.zeros(1, np.int64)), op.cast(TupleGetItem(unique, 3), "int64")
    outputs = [op.strided_slice(TupleGetItem(unique, i), start, size, slice_mode="size")
             for i in ((0, 4) if counts else (0,))]  # fmt: skip
    return [outputs[0], TupleGetItem(unique, 2), *outputs[1:]]


def bucketized(data: Expr, dtype: str, boundaries: Sequence[float]) -> Expr:
    """Return, as int32, how many of the float boundaries are at most each element."""
    if dtype != "float64":
        data, dtype = op.cast(data, "float32"), "float32"
    edges = const(np.array(boundaries, np.float32).astype(dtype))
    bucket_indices = op.searchsorted(edges, op.reshape(data, (-1,)), right=True, dtype="int32")
    return op.reshape_like(bucket_indices, data)


def shape_of_both(node: Node) -> Expr:
    """Return the shape that two shapes, the inputs of a node, broadcast to."""
    a, b = node.exprs()
    lengths = [known(node.shape(i)[0]) for i in (0, 1)]
    if 0 in lengths:
        return b if lengths[0] == 0 else a
    if None in lengths:
        node.unsupported("shapes of unknown rank are not supported")
    first, second = (n or 0 for n in lengths)
    a, b = (
        e if n == max(first, second) else op.nn.pad(e, ((max(first, second) - n, 0),), 1.0)
        for e, n in ((a, first), (b, second))
    )
    return op.where(op.equal(a, op.ones_like(a)), b, a)
