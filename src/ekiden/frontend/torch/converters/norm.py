"""Normalization and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common.converters import normalization as shared
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import Converter, ConverterRow, FxNode
from ekiden.ir.dtype import to_numpy
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import known_int, product_of_dims

ConverterResults = list[Expr | Value | None]


def _layer_norm(
    node: FxNode, x: Value, normalized: Sequence[object], weight: Value | None, bias: Value | None,
    eps: float,
) -> ConverterResults:  # fmt: skip
    shape, dtype = x.type.shape, x.type.dtype
    first = len(shape) - len(normalized)
    extent = known_int(product_of_dims(shape[first:]))
    if extent is None:
        node.reject("normalised axes must have constant extents")
    scale, shift = _scale_and_shift(node, weight, bias, extent, dtype)
    outputs: ConverterResults = [shared.layer_norm(node, node.to_expr(x), scale, shift, first, eps)]
    # Mean and reciprocal deviation are results for backward graphs.
    if node.is_output_used(1) or node.is_output_used(2):
        outputs += shared.mean_and_rstd(node.to_expr(x), dtype, range(first, len(shape)), eps)
    return outputs


def _scale_and_shift(
    node: FxNode, weight: Value | None, bias: Value | None, extent: int, dtype: str
) -> tuple[Expr, Expr]:
    """Return scale and shift, ones and zeros where they are missing."""
    scale, shift = (
        const(np.full((extent,), fill, to_numpy(dtype))) if value is None else node.to_expr(value)
        for value, fill in ((weight, 1), (bias, 0))
    )
    return scale, shift


def _group_norm(
    node: FxNode, x: Value, weight: Value | None, bias: Value | None, n: object, c: object,
    hxw: object, groups: int, eps: float,
) -> ConverterResults:  # fmt: skip
    shape, dtype = x.type.shape, x.type.dtype
    channels = known_int(shape[1])
    if channels is None:
        node.reject("the number of channels must be constant")
    scale, shift = _scale_and_shift(node, weight, bias, channels, dtype)
    data = node.to_expr(x)
    outputs: ConverterResults = [
        op.nn.group_norm(data, scale, shift, num_groups=groups, axis=1, epsilon=eps)
    ]
    if node.is_output_used(1) or node.is_output_used(2):
        rows = op.reshape(data, (shape[0], groups, -1), allowzero=False)
        outputs += [op.squeeze(e, axis=[2]) for e in shared.mean_and_rstd(rows, dtype, [2], eps)]
    return outputs


def _batch_norm(
    node: FxNode, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value,
    momentum: float, eps: float,
) -> ConverterResults:  # fmt: skip
    """Convert batch normalization in inference."""
    normalised = _emit_batch_norm(
        node, x, weight, bias, node.to_expr(mean), node.to_expr(variance), eps
    )
    nothing = op.zeros((0,), x.type.dtype)
    return [normalised, nothing, nothing]


def _emit_batch_norm(
    node: FxNode, x: Value, weight: Value | None, bias: Value | None, mean: Expr, variance: Expr,
    eps: float,
) -> Expr:  # fmt: skip
    dtype = x.type.dtype
    shape = node.tensor_type_of(mean).shape
    scale = op.full(const(1, dtype), shape, dtype=dtype) if weight is None else node.to_expr(weight)
    shift = op.full(const(0, dtype), shape, dtype=dtype) if bias is None else node.to_expr(bias)
    return shared.batch_norm(node.to_expr(x), scale, shift, mean, variance, eps)


def _batch_norm_training(
    node: FxNode, x: Value, weight: Value | None, bias: Value | None, *settings: object
) -> ConverterResults:
    """Convert batch normalization in training: by the batch's statistics, which move the running
    ones.

    Further arguments: (running mean, running variance, training, momentum, eps), or without the
    first two.
    """
    running = [v for v in settings[:2] if isinstance(v, Value)] if len(settings) == 5 else []
    training, momentum, eps = settings[-3:]
    assert isinstance(momentum, float) and isinstance(eps, float)
    if not training:
        node.reject("running statistics that are not used for the result")
    shape, dtype = x.type.shape, shared.accumulation_dtype(x.type.dtype)
    # Statistics of 16-bit data accumulate in float32, as in ATen.
    if dtype != x.type.dtype:

        def to_accumulation_dtype(value: Value) -> Value:
            return node.as_value(node.scope.attach_span(node.to_expr(value, dtype)))

        x = to_accumulation_dtype(x)
        weight, bias = (None if v is None else to_accumulation_dtype(v) for v in (weight, bias))
    data = node.to_expr(x)
    mean, variance = shared.batch_statistics(data, len(shape))
    normalised = _emit_batch_norm(node, x, weight, bias, mean, variance, eps)
    rstd = op.rsqrt(op.add(variance, const(eps, dtype)))
    outputs: ConverterResults = [normalised, mean, rstd]
    if running:
        size = product_of_dims([shape[0], *shape[2:]])
        # The batch is normalised by the biased variance, the running one accumulates the unbiased.
        factor = _bessel_correction(node, size, dtype)
        news = (mean, op.multiply(variance, factor))
        for old, new in zip(running, news, strict=True):
            outputs.append(shared.moving_average(node.to_expr(old, dtype), new, momentum, dtype))
    return outputs


def _bessel_correction(node: FxNode, size: PrimExpr, dtype: str) -> Expr:
    """Return Bessel's correction n / (n - 1) of the running variance."""
    count = known_int(size)
    if count is not None:
        return const(count / max(count - 1, 1), dtype)
    number = node.to_expr(size, dtype)
    return op.divide(number, op.maximum(op.subtract(number, const(1, dtype)), const(1, dtype)))


def _softmax_converter(function: Callable[..., Expr]) -> Converter:
    def convert(node: FxNode, x: Value, dim: int, to_float: object = False, **_: object) -> Expr:
        """Apply along `dim` in the result's dtype; a tensor of rank 0 is a row of one."""
        rank = len(x.type.shape)
        data = node.to_expr(x, node.out_dtype)
        if not rank:
            return op.reshape(function(op.reshape(data, (1,)), axis=0), ())
        return function(data, axis=node.axis(dim, rank))

    return convert


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    ("native_layer_norm", _layer_norm),
    ("native_group_norm", _group_norm),
    ("_native_batch_norm_legit_no_training", _batch_norm),
    ("_native_batch_norm_legit", _batch_norm_training),
    ("_native_batch_norm_legit_functional", _batch_norm_training),
    ("_softmax", _softmax_converter(op.nn.softmax)),
    ("_log_softmax", _softmax_converter(op.nn.log_softmax)),
    ("softmax", _softmax_converter(op.nn.softmax)),
    ("log_softmax", _softmax_converter(op.nn.log_softmax)),
)
# fmt: on
