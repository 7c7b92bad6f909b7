"""Normalisations with the same semantics in several formats.

Each function takes the attributes as a format has read them: the axes, the epsilon, the statistics.
    batch_norm           ONNX BatchNormalization, tf.raw_ops.FusedBatchNorm, aten::native_batch_norm
    layer_norm           ONNX LayerNormalization-17, aten::native_layer_norm
    local_response_norm  tf.raw_ops.LRN, LOCAL_RESPONSE_NORMALIZATION of TensorFlow Lite
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.node import AttributeNode, Node
from ekiden.ir.dtype import itemsize
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import product_of_dims


def accumulation_dtype(dtype: str) -> str:
    """Return the dtype in which statistics accumulate: float32 for narrower floats."""
    return "float32" if itemsize(dtype) < 4 else dtype


def mean_and_rstd(data: Expr, dtype: str, axes: Sequence[int], epsilon: float) -> tuple[Expr, Expr]:
    """Emit the mean over axes (keepdims) and the reciprocal standard deviation."""
    # float16 overflows at squares of 256.
    wide = accumulation_dtype(dtype)
    data = data if wide == dtype else op.cast(data, wide)
    mean = op.mean(data, axis=list(axes), keepdims=True)
    centred = op.subtract(data, mean)
    variance = op.mean(op.multiply(centred, centred), axis=list(axes), keepdims=True)
    return mean, op.rsqrt(op.add(variance, const(epsilon, wide)))


def layer_norm(node: Node, data: Expr, scale: Expr, bias: Expr, first: int, epsilon: float) -> Expr:
    """Emit nn.layer_norm over the axes from `first` on, collapsed into one."""
    shape = node.tensor_type_of(data).shape
    if first == len(shape) - 1:
        return op.nn.layer_norm(data, scale, bias, epsilon=epsilon)
    extent = product_of_dims(shape[first:])
    flat = op.reshape(data, (*shape[:first], extent), allowzero=True)
    scale, bias = (
        vector if len(node.tensor_type_of(vector).shape) == 1 else op.reshape(vector, (extent,))
        for vector in (scale, bias)
    )
    return op.reshape(op.nn.layer_norm(flat, scale, bias, epsilon=epsilon), shape, allowzero=True)


def batch_norm(
    data: Expr, scale: Expr, bias: Expr, mean: Expr, variance: Expr, epsilon: float, axis: int = 1
) -> Expr:
    """Emit inference batch normalization by the given channel statistics."""
    outputs = op.nn.batch_norm(data, scale, bias, mean, variance, axis=axis, epsilon=epsilon)
    return TupleGetItem(outputs, 0)


def batch_statistics(data: Expr, rank: int) -> tuple[Expr, Expr]:
    """Emit the mean and the biased variance of each channel, axis 1, as training normalises by."""
    axes = [0, *range(2, rank)]
    return op.mean(data, axis=axes, keepdims=False), op.variance(data, axis=axes, keepdims=False)


def moving_average(old: Expr, new: Expr, share: float, dtype: str) -> Expr:
    """Emit the exponential moving average (1 - share) old + share new."""
    share_of_old = op.multiply(old, const(1 - share, dtype))
    return op.add(share_of_old, op.multiply(new, const(share, dtype)))


def local_response_norm(
    node: AttributeNode, radius: int, bias: float, alpha: float, beta: float
) -> Expr:
    """Convert LRN over the last axis; TensorFlow scales the sum of squares by alpha, Relay their
    mean.
    """
    size = 2 * radius + 1
    return op.nn.lrn(
        node.expr(0), size=size, axis=node.rank(0) - 1, bias=bias, alpha=alpha * size, beta=beta
    )
