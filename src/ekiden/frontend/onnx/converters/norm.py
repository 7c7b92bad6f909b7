"""ONNX normalisations, softmax and dropout.

ONNX normalises in float32 where `stash_type` is 1, its only value here; the kernels of layer,
instance and group normalisation accumulate so by themselves. The statistics of BatchNormalization
are inputs, except with training_mode. Softmax before opset 13 flattened all axes from `axis` on
into one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common import constant_fill
from ekiden.frontend.common.converters import normalization as shared
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.elementwise import const_like_input
from ekiden.frontend.onnx.converters.random import seeded_generator
from ekiden.frontend.onnx.node import Converter, OnnxNode, OnnxRow
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import EQ, fold_binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import (
    Shape,
    are_equal_dims,
    as_ints,
    known_int,
    product_of_dims,
    simplify_dim,
)


def _constrain_channels(node: OnnxNode) -> None:
    """Constrain parameter vectors to the data's number of channels."""
    if node.rank(0) > 1:
        for index in range(1, len(node.inputs)):
            node.constrain_extent(index, 0, node.shape(0)[1])


def _batch_norm(node: OnnxNode) -> Expr:
    """Convert BatchNormalization for inference."""
    if node.rank(0) == 1:  # a batch of one channel
        column = op.expand_dims(node.expr(0), axis=1)
        normalized = _batch_norm(node.with_inputs([node.as_value(column), *node.inputs[1:]]))
        return op.squeeze(normalized, axis=[1])
    _constrain_channels(node)
    data, scale, bias, mean, variance = node.exprs()
    return shared.batch_norm(data, scale, bias, mean, variance, _epsilon_attribute(node))


def _epsilon_attribute(node: OnnxNode) -> float:
    """Return the attribute `epsilon`, 1e-5 by default."""
    return node.get_float("epsilon", np.float32(1e-5))


def _batch_norm_training(node: OnnxNode) -> Result:
    """Convert BatchNormalization since opset 14; `training_mode` normalises by batch statistics and
    updates the running ones. ONNX's momentum is the weight of the old values.
    """
    if not node.get_int("training_mode", 0):
        return _batch_norm(node)
    _constrain_channels(node)
    data, scale, bias, *running = node.exprs()
    news = shared.batch_statistics(data, node.rank(0))
    normalised = shared.batch_norm(data, scale, bias, *news, _epsilon_attribute(node))
    # ONNX's momentum weighs the old statistics, moving_average's share the new ones.
    share = 1 - node.get_float("momentum", np.float32(0.9))
    pairs = zip(running, news, strict=True)
    return [
        normalised,
        *(shared.moving_average(o, n, share, node.tensor_type_of(o).dtype) for o, n in pairs),
    ]


def _layer_norm(node: OnnxNode) -> Result:
    """Convert LayerNormalization, with mean and inverse deviation as further outputs."""
    shape = node.shape(0)
    axis = node.axis(node.get_int("axis", -1), len(shape))
    epsilon = _epsilon_attribute(node)
    outputs: list[Expr | Value | None] = [_layer_normalize(node, shape, axis, epsilon)]
    if node.is_output_used(1) or node.is_output_used(2):
        axes = list(range(axis, len(shape)))
        # Mean and inverse deviation are outputs for training graphs.
        outputs += shared.mean_and_rstd(node.expr(0), node.dtype(0), axes, epsilon)
    return outputs


def _layer_normalize(node: OnnxNode, shape: Shape, axis: int, epsilon: float) -> Expr:
    """Emit nn.layer_norm over the axes from `axis` on, flattened to one. A scale or bias that also
    differs along the other axes is applied after it, before the result is rounded.
    """
    sides = [v for v in map(node.optional_value, (1, 2)) if v is not None]
    if any(_varies_before(v.type.shape, len(shape) - axis) for v in sides):
        kind = node.dtype(0)
        # Scale and bias are applied before the result is rounded to 16 bits.
        wide = shared.accumulation_dtype(kind)
        data = node.as_value(op.cast(node.expr(0), wide)) if wide != kind else node.value(0)
        normalized = _layer_normalize(node.with_inputs([data]), shape, axis, epsilon)
        normalized = op.multiply(normalized, op.cast(broadcast_input(node, 1, shape), wide))
        if node.optional_value(2) is not None:
            normalized = op.add(normalized, op.cast(broadcast_input(node, 2, shape), wide))
        return normalized if wide == kind else op.cast(normalized, kind)
    scale, bias = (
        _broadcast_parameter(node, i, shape[axis:], fill) for i, fill in ((1, 1), (2, 0))
    )
    return shared.layer_norm(node, node.expr(0), scale, bias, axis, epsilon)


def _varies_before(shape: Shape, count: int) -> bool:
    """Return whether a scale varies along axes before the last `count`."""
    return any(known_int(extent) != 1 for extent in shape[: max(len(shape) - count, 0)])


def broadcast_input(node: OnnxNode, index: int, shape: Shape) -> Expr:
    """Return an input after constraining it to broadcast to a shape (unidirectional broadcasting).

    Raises Unsupported for one that has more axes, or an extent that differs and is not 1.
    """
    have = node.shape(index)
    if len(have) > len(shape):
        node.reject(f"shape {have!r} does not broadcast to {shape!r}")
    pairs = zip(shape[len(shape) - len(have) :], have, strict=True)
    wide = [(a, b) for a, b in pairs if known_int(b) != 1]
    node.scope.require_equal_dims([a for a, _ in wide], [b for _, b in wide])
    return node.expr(index)


def _broadcast_parameter(node: OnnxNode, index: int, shape: Shape, fill: float) -> Expr:
    """Emit scale or bias in the shape of the normalised axes; `fill` where it is absent."""
    value = node.optional_value(index)
    if value is None:
        # The scale's extents may be known where the data's are not; one of 1 is spread.
        scale = node.optional_value(1)
        is_whole = scale is not None and len(scale.type.shape) == len(shape)
        scale_shape = scale.type.shape if is_whole and scale is not None else shape
        extents = tuple(
            b if known_int(b) not in (None, 1) else a
            for a, b in zip(shape, scale_shape, strict=True)
        )
        if any(known_int(e) is None for e in extents):
            return op.full(const_like_input(node, fill), extents, dtype=node.dtype(0))
        return constant_fill.emit_full(as_ints(extents), fill, node.dtype(0))
    have = value.type.shape
    if len(have) > len(shape):  # axes of 1 before
        extra = list(range(len(have) - len(shape)))
        value = node.as_value(op.squeeze(node.scope.expr(value), axis=extra))
        have = value.type.shape
    if len(have) == len(shape) and all(
        are_equal_dims(a, b) for a, b in zip(have, shape, strict=True)
    ):
        return node.scope.expr(value)
    return op.broadcast_to(node.scope.expr(value), shape)


def _instance_norm(node: OnnxNode) -> Expr:
    _constrain_channels(node)
    data, scale, bias = node.exprs()
    return op.nn.instance_norm(data, scale, bias, axis=1, epsilon=_epsilon_attribute(node))


def _group_norm_per_group(node: OnnxNode) -> Expr:
    """Convert GroupNormalization before opset 21, whose scale and bias are per group."""
    channels, groups = node.shape(0)[1], node.get_int("num_groups")
    for index in (1, 2):
        node.constrain_extent(index, 0, groups)
    if known_int(channels) is None:
        node.scope.require_condition(fold_binary(EQ, channels % groups, 0))
    data, *parameters = node.exprs()
    rows = [
        op.broadcast_to(op.reshape(e, (groups, 1)), (groups, simplify_dim(channels // groups)))
        for e in parameters
    ]
    scale, bias = (op.reshape(r, (channels,), allowzero=True) for r in rows)
    return _emit_group_norm(node, data, scale, bias)


def _group_norm(node: OnnxNode) -> Expr:
    _constrain_channels(node)
    return _emit_group_norm(node, *node.exprs())


def _emit_group_norm(node: OnnxNode, data: Expr, scale: Expr, bias: Expr) -> Expr:
    groups = node.get_int("num_groups")
    return op.nn.group_norm(
        data, scale, bias, num_groups=groups, axis=1, epsilon=_epsilon_attribute(node)
    )


def _lrn(node: OnnxNode) -> Expr:
    return op.nn.lrn(
        node.expr(0), size=node.get_int("size"), axis=1, bias=node.get_float("bias", 1.0),
        alpha=node.get_float("alpha", np.float32(1e-4)), beta=node.get_float("beta", 0.75),
    )  # fmt: skip


def _softmax_converter(function: Callable[..., Expr]) -> Converter:
    """Return a converter of a softmax operator along `axis`."""
    return lambda node: function(
        node.expr(0), axis=node.axis(node.get_int("axis", -1), node.rank(0))
    )


def _hardmax(node: OnnxNode) -> Expr:
    """Convert Hardmax: 1 at the first largest element of an axis, 0 elsewhere."""
    axis = node.axis(node.get_int("axis", -1), node.rank(0))
    dtype, extent = node.dtype(0), node.shape(0)[axis]
    if known_int(extent) == 0:  # of nothing there is no largest, and no element to say it of
        return node.expr(0)
    if known_int(extent) is None:
        return _hardmax_symbolic(node, axis)
    axis_index = op.argmax(node.expr(0), axis=axis, keepdims=False, select_last_index=False)
    return op.one_hot(axis_index, const(1, dtype), const(0, dtype), extent, axis=axis, dtype=dtype)


def _hardmax_symbolic(node: OnnxNode, axis: int) -> Expr:
    """Emit Hardmax along an axis of symbolic extent."""
    data, extent = node.expr(0), node.shape(0)[axis]
    axis_index = op.arange(0, extent, 1, "int64")
    axis_index = op.reshape(
        axis_index, [extent if i == axis else 1 for i in range(node.rank(0))], allowzero=True
    )
    is_largest = op.equal(data, op.max(data, axis=[axis], keepdims=True))
    if is_float(node.dtype(0)):  # the first that is no number is the largest
        is_largest = op.logical_or(is_largest, op.isnan(data))
    last = const(np.iinfo(np.int64).max, "int64")
    first = op.min(op.where(is_largest, axis_index, last), axis=[axis], keepdims=True)
    return op.cast(op.equal(axis_index, first), node.dtype(0))


def _flatten_from_axis(convert: Converter) -> Converter:
    """Return a converter for opset < 13, which treats all axes from `axis` on as one."""

    def convert_flattened(node: OnnxNode) -> Result:
        """Convert the node on flattened data and restore the shape."""
        shape = node.shape(0)
        axis = node.axis(node.get_int("axis", 1), len(shape))
        if all(known_int(d) == 1 for d in shape[axis + 1 :]):
            return convert(
                OnnxNode(node.proto, node.opset, {"axis": axis}, node.inputs, node.scope)
            )
        joined = op.reshape(
            node.expr(0), (*shape[:axis], product_of_dims(shape[axis:])), allowzero=True
        )
        inner = OnnxNode(
            node.proto, node.opset, {"axis": -1}, [Value(node.tensor_type_of(joined), expr=joined)],
            node.scope,
        )  # fmt: skip
        result = convert(inner)
        assert isinstance(result, Expr)
        return op.reshape(result, shape, allowzero=True)

    return convert_flattened


def _dropout(node: OnnxNode) -> Result:
    """Convert Dropout; without training mode it is the identity."""
    training = node.optional_value(2)
    if training is None or (training.array is not None and not training.array.any()):
        mask = op.full(const(True), node.shape(0), dtype="bool") if node.is_output_used(1) else None
        return [node.value(0), mask]
    dropped_out, drawn = _random_dropout(node)
    if training.array is not None:
        return [dropped_out, drawn]
    chosen = op.reshape(node.expr(2), ())  # at run time
    data = op.where(chosen, dropped_out, node.expr(0))
    return [data, op.logical_or(drawn, op.logical_not(chosen))]


def _random_dropout(node: OnnxNode) -> tuple[Expr, Expr]:
    """Emit the data with random elements dropped and the rest scaled by 1 / (1 - ratio), and the
    mask.
    """
    kind = node.dtype(0)
    ratio: Expr = const(0.5, kind)
    if node.optional_value(1) is not None:
        ratio = op.cast(op.reshape(node.expr(1), ()), kind)
    drawn = TupleGetItem(op.random.uniform(seeded_generator(node), node.shape(0), "float32"), 1)
    mask = op.greater_equal(drawn, op.cast(ratio, "float32"))
    scale = op.divide(const_like_input(node, 1), op.subtract(const_like_input(node, 1), ratio))
    return op.where(mask, op.multiply(node.expr(0), scale), const_like_input(node, 0)), mask


def _lp_normalization(node: OnnxNode) -> Expr:
    data, axis = node.expr(0), [node.axis(node.get_int("axis", -1), node.rank(0))]
    if node.get_int("p", 2) == 1:
        norm: Expr = op.sum(op.abs(data), axis=axis, keepdims=True)
    else:
        norm = op.sqrt(op.sum(op.multiply(data, data), axis=axis, keepdims=True))
    return op.where(
        op.equal(norm, const_like_input(node, 0)), const_like_input(node, 0), op.divide(data, norm)
    )


def _rms_norm(node: OnnxNode) -> Expr:
    """Convert RMSNormalization: x / sqrt(mean(x^2) + epsilon) in float32, rounded, times the scale.
    The square of a float16 above 255 would overflow.
    """
    kind, rank = node.dtype(0), node.rank(0)
    wide = kind if kind == "float64" else "float32"
    data = node.expr(0) if kind == wide else op.cast(node.expr(0), wide)
    axes = list(range(node.axis(node.get_int("axis", -1), rank), rank))
    mean = op.mean(op.multiply(data, data), axis=axes, keepdims=True)
    scaled = op.multiply(data, op.rsqrt(op.add(mean, const(_epsilon_attribute(node), wide))))
    # ONNX rounds before the scale (RMSNormalization 23), unlike com.microsoft's form.
    rounded = scaled if kind == wide else op.cast(scaled, kind)
    return op.multiply(rounded, broadcast_input(node, 1, node.shape(0)))


def _mean_variance_norm(node: OnnxNode) -> Expr:
    axes = [node.axis(a, node.rank(0)) for a in node.get_ints("axes", (0, 2, 3))]
    return _normalize_mean_variance(node, axes)


def _normalize_mean_variance(node: OnnxNode, axes: Sequence[int], by_variance: bool = True) -> Expr:
    """Emit input 0 minus its mean, divided by the standard deviation if `by_variance`."""
    data = node.expr(0)
    centred = op.subtract(data, op.mean(data, axis=list(axes), keepdims=True))
    if not by_variance:
        return centred
    squares = op.multiply(centred, centred)
    deviation = op.sqrt(op.mean(squares, axis=list(axes), keepdims=True))
    return op.divide(centred, op.add(deviation, const_like_input(node, 1e-9)))


def _mean_variance_norm_1(node: OnnxNode) -> Expr:
    """Convert MeanVarianceNormalization of opset 1, over each channel or over everything."""
    axes = [0, *range(2, node.rank(0))]
    if node.get_int("across_channels", 0):
        axes = [1, *axes]
    return _normalize_mean_variance(node, axes, bool(node.get_int("normalize_variance", 1)))


# An exporter wrote `epsion`; ONNX Runtime takes no notice of it in LayerNormalization, whose
# epsilon is then the default.
_STASH_TYPES = {"stash_type": (0, 1, 10, 16)}
"""In what the statistics are: float32, or in less, of which float32 is as good."""

# fmt: off
ROWS = (
    OnnxRow("BatchNormalization", _batch_norm, since_version=6,
        attributes="epsilon is_test momentum spatial", supported_values={"spatial": (1,)}),
    OnnxRow("BatchNormalization", _batch_norm_training, since_version=14,
        attributes="epsilon momentum training_mode"),
    OnnxRow("LayerNormalization", _layer_norm,  # ONNX Runtime puts it into older opsets, too
        attributes="axis epsilon epsion stash_type", supported_values=_STASH_TYPES),
    OnnxRow("InstanceNormalization", _instance_norm, since_version=6, attributes="epsilon"),
    OnnxRow("GroupNormalization", _group_norm_per_group, since_version=18,
        attributes="epsilon num_groups"),
    OnnxRow("GroupNormalization", _group_norm, since_version=21,
        attributes="epsilon num_groups stash_type", supported_values=_STASH_TYPES),
    OnnxRow("RMSNormalization", _rms_norm, since_version=23,
        attributes="axis epsilon stash_type", supported_values=_STASH_TYPES),
    OnnxRow("MeanVarianceNormalization", _mean_variance_norm_1,  # as ONNX Runtime has it
        attributes="across_channels normalize_variance"),
    OnnxRow("MeanVarianceNormalization", _mean_variance_norm, since_version=9, attributes="axes"),
    OnnxRow("LpNormalization", _lp_normalization, attributes="axis p",
        supported_values={"p": (1, 2)}),
    OnnxRow("LRN", _lrn, attributes="alpha beta bias size"),
    OnnxRow("Softmax", _flatten_from_axis(_softmax_converter(op.nn.softmax)), attributes="axis"),
    OnnxRow("Softmax", _softmax_converter(op.nn.softmax), since_version=13, attributes="axis"),
    OnnxRow("LogSoftmax", _flatten_from_axis(_softmax_converter(op.nn.log_softmax)),
        attributes="axis"),
    OnnxRow("LogSoftmax", _softmax_converter(op.nn.log_softmax), since_version=13,
        attributes="axis"),
    OnnxRow("Hardmax", _flatten_from_axis(_hardmax), attributes="axis"),
    OnnxRow("Hardmax", _hardmax, since_version=13, attributes="axis"),
    OnnxRow("Dropout", _dropout, since_version=6, attributes="ratio seed",
        ignorable_inputs="ratio"),
)
# fmt: on
