"""com.microsoft operators of fused graphs: activations, normalisations, products and convolutions.
As ONNX Runtime 1.31 documents them (docs/ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ekiden.frontend.common.converters.normalization import mean_and_rstd
from ekiden.frontend.common.float_functions import gelu, scaled_hard_sigmoid, swish
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.onnx.converters import data_movement, gather_scatter, image, linear, shape
from ekiden.frontend.onnx.converters.convolution import convert_conv
from ekiden.frontend.onnx.converters.elementwise import const_like_input, constrain_broadcast
from ekiden.frontend.onnx.converters.linear import convert_matmul
from ekiden.frontend.onnx.converters.norm import broadcast_input
from ekiden.frontend.onnx.node import Attribute, Converter, OnnxNode, OnnxRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_ints, known_int

CONTRIB_DOMAIN = "com.microsoft"

# Activations.


def _fast_gelu(node: OnnxNode) -> Expr:
    """Convert FastGelu: the tanh approximation of GELU, after an optional bias."""
    return gelu(_add_bias(node), node.dtype(0), by_tanh=True)


def _add_bias(node: OnnxNode) -> Expr:
    """Emit input 0 plus the bias in input 1, if present."""
    if node.optional_value(1) is None:
        return node.expr(0)
    constrain_broadcast(node)
    return op.add(node.expr(0), node.expr(1))


def _quick_gelu(node: OnnxNode) -> Expr:
    """Convert QuickGelu: x * sigmoid(alpha * x)."""
    return swish(node.expr(0), node.dtype(0), node.get_float("alpha", np.float32(1.702)))


def _bias_split_gelu(node: OnnxNode) -> Expr:
    """Convert BiasSplitGelu: the first half of the channels times GELU of the second (GEGLU)."""
    linear, gate = (
        op.strided_slice(_add_bias(node), begin=[b], end=[e], axes=[node.rank(0) - 1])
        for b, e in _gate_slice_bounds(node)
    )
    return op.multiply(linear, gelu(gate, node.dtype(0)))


def _gate_slice_bounds(node: OnnxNode) -> list[tuple[int, int]]:
    """Return the bounds of the two halves of the last axis."""
    width = known_int(node.shape(0)[-1])
    # The halves are static slices: a symbolic width cannot be cut in the middle.
    if width is None or width % 2:
        node.reject("the last extent must be an even number")
    return [(0, width // 2), (width // 2, width)]


def _bias_softmax(node: OnnxNode) -> Expr:
    """Convert BiasSoftmax: softmax(data + bias) over the last axis."""
    axis = node.axis(node.get_int("axis", 1), node.rank(0))
    if axis != node.rank(0) - 1:
        node.reject("'axis' must be the last")
    return op.nn.softmax(_add_bias(node), axis=axis)


def _clip_by_params(node: OnnxNode, x: Expr, params: Sequence[float]) -> Expr:
    """Emit a clip to the bounds in `params`, by default those of float32."""
    return op.clip(x, *(params or (-float(np.finfo(np.float32).max), np.inf)))


_FUSED_ACTIVATIONS: Mapping[str, Callable[[OnnxNode, Expr, Sequence[float]], Expr]] = {
    "": lambda node, x, params: x,
    "Relu": lambda node, x, params: op.nn.relu(x),
    "Tanh": lambda node, x, params: op.tanh(x),
    "Sigmoid": lambda node, x, params: op.sigmoid(x),
    "LeakyRelu": lambda node, x, params: op.nn.leaky_relu(x, alpha=(params or (0.01,))[0]),
    "Clip": _clip_by_params,
    "HardSigmoid": lambda node, x, params: scaled_hard_sigmoid(
        x, node.dtype(0), *(params or (0.2, 0.5))
    ),
    "Gelu": lambda node, x, params: gelu(x, node.dtype(0)),
    "FastGelu": lambda node, x, params: gelu(x, node.dtype(0), by_tanh=True),
}
_ACTIVATION_VALUES = {"activation": tuple(_FUSED_ACTIVATIONS)}


def _apply_activation(node: OnnxNode, x: Expr) -> Expr:
    """Emit the activation that is fused into the node, with its parameters."""
    params: tuple[float, ...] = ()
    if node.has("activation_params"):
        params = node.get_floats("activation_params")
    names = [f"activation_{n}" for n in ("alpha", "beta", "gamma")]
    params += tuple(node.get_required_float(n) for n in names if node.has(n))
    return _FUSED_ACTIVATIONS[node.get_string("activation", "")](node, x, params)


# Normalisations.

_DEFAULT_EPSILON = np.float32(1e-12)


def _add_skip(node: OnnxNode, bias: int) -> Expr:
    """Emit input 0 plus the skip connection in input 1, plus the bias if present."""
    node.scope.require_broadcastable(node.shape(0), node.shape(1))
    total: Expr = op.add(node.expr(0), node.expr(1))
    return total if node.optional_value(bias) is None else op.add(total, node.expr(bias))


def _skip_layer_norm(node: OnnxNode) -> Result:
    """Convert SkipLayerNormalization, with mean, inverse deviation and sum as further outputs."""
    total = _add_skip(node, 4)
    normalized = _layer_norm(node, total, 2, 3)
    if not node.is_output_used(1) and not node.is_output_used(2):
        return [normalized, None, None, total]
    epsilon = node.get_float("epsilon", _DEFAULT_EPSILON)
    return [
        normalized,
        *mean_and_rstd(total, node.tensor_type_of(total).dtype, [-1], epsilon),
        total,
    ]


def _layer_norm(node: OnnxNode, data: Expr, scale: int, bias: int) -> Expr:
    """Emit layer normalisation over the last axis; an absent bias is 0."""
    gamma = node.value(scale)
    beta: Expr = op.zeros_like(node.expr(scale))
    beta = beta if node.optional_value(bias) is None else node.expr(bias)
    return op.nn.layer_norm(
        data, node.scope.expr(gamma), beta, epsilon=node.get_float("epsilon", _DEFAULT_EPSILON)
    )


def _rms_norm(
    node: OnnxNode, data: Expr, scale: Expr, epsilon: float, axes: Sequence[int] = (-1,)
) -> tuple[Expr, Expr]:
    """Emit RMS normalisation over axes and its factor 1 / sqrt(mean(data²) + epsilon), in
    float32.
    """
    # The square of a float16 overflows above 255, so the mean is computed in float32.
    wide = op.cast(data, "float32")
    mean = op.mean(op.multiply(wide, wide), axis=list(axes), keepdims=True)
    factor = op.rsqrt(op.add(mean, const(epsilon, "float32")))
    scaled = op.multiply(op.multiply(wide, factor), op.cast(scale, "float32"))
    return op.cast(scaled, node.tensor_type_of(data).dtype), factor


def rms_normalize(node: OnnxNode, data: Expr, scale: Expr, epsilon: float) -> Expr:
    """Emit RMS normalisation over the last axis (Zhang and Sennrich 2019)."""
    return _rms_norm(node, data, scale, epsilon)[0]


def _skip_rms_norm(node: OnnxNode) -> Result:
    """Convert SkipSimplifiedLayerNormalization, with the factor and the sum as further outputs."""
    total = _add_skip(node, 3)
    epsilon = node.get_float("epsilon", _DEFAULT_EPSILON)
    normalized, factor = _rms_norm(node, total, node.expr(2), epsilon)
    return [normalized, None, factor, total]


def _simplified_layer_norm(node: OnnxNode) -> Result:
    """Convert SimplifiedLayerNormalization: RMS normalisation over the axes from `axis` on."""
    epsilon = node.get_float("epsilon", np.float32(1e-5))
    axis = node.axis(node.get_int("axis", -1), node.rank(0))
    scale = broadcast_input(node, 1, node.shape(0))
    normalized, factor = _rms_norm(node, node.expr(0), scale, epsilon, range(axis, node.rank(0)))
    if node.optional_value(2) is not None:
        normalized = op.add(
            normalized,
            op.cast(broadcast_input(node, 2, node.shape(0)), node.tensor_type_of(normalized).dtype),
        )
    return [normalized, None, factor]


def _embed_layer_norm(node: OnnxNode) -> Result:
    """Convert EmbedLayerNormalization: layer normalisation of word, position and segment
    embeddings.
    """
    ids, length = node.expr(0), node.shape(0)[1]
    total: Expr = op.take(node.expr(2), ids, axis=0, mode="raise")
    if node.optional_value(8) is not None:
        positions: Expr = op.take(node.expr(3), node.expr(8), axis=0, mode="raise")
    else:
        # Without position ids the positions are 0 to length - 1: a slice instead of a gather.
        positions = op.strided_slice(node.expr(3), begin=[0], end=[length], axes=[0])
    total = op.add(total, positions)
    if node.optional_value(1) is not None and node.optional_value(4) is not None:
        node.scope.require_equal_dims(node.shape(0), node.shape(1))
        total = op.add(total, op.take(node.expr(4), node.expr(1), axis=0, mode="raise"))
    counts: Expr = op.full(const(0, "int32"), (node.shape(0)[0],), dtype="int32")
    if node.optional_value(7) is not None:
        ones = op.equal(node.expr(7), const(1, "int32"))
        counts = op.sum(op.cast(ones, "int32"), axis=[1])
    return [_layer_norm(node, total, 5, 6), counts, total]


def _group_norm(node: OnnxNode) -> Result:
    """Convert GroupNorm and SkipGroupNorm."""
    data = node.expr(0)
    if node.optional_value(3) is not None:
        skip = node.expr(3)
        if node.rank(3) == 2:
            # A skip [batch, channels] is broadcast over height and width.
            skip = op.expand_dims(skip, axis=1, num_newaxis=2)
        data = op.add(data, skip)
    if node.optional_value(4) is not None:
        data = op.add(data, node.expr(4))
    last = bool(node.get_int("channels_last", 1))
    moved = op.transpose(data, axes=[0, 3, 1, 2]) if last else data
    scale, bias = (op.cast(node.expr(i), node.dtype(0)) for i in (1, 2))
    normalized: Expr = op.nn.group_norm(
        moved, scale, bias, num_groups=node.get_int("groups"), axis=1,
        epsilon=node.get_float("epsilon", np.float32(1e-5)),
    )  # fmt: skip
    if node.get_int("activation"):
        normalized = op.multiply(normalized, op.sigmoid(normalized))
    return [op.transpose(normalized, axes=[0, 2, 3, 1]) if last else normalized, data]


# Products and convolutions.


def _transposed_operand(node: OnnxNode, index: int, swap: bool, batch: bool) -> Value:
    """Return a matrix operand with its last two axes swapped (`swap`) or its first axis moved after
    the batch (`batch`).
    """
    value, rank = node.value(index), node.rank(index)
    axes = list(range(rank))
    if batch:
        axes = [*axes[1:-1], 0, axes[-1]]
    if swap and rank > 1:
        axes[-2:] = reversed(axes[-2:])
    if axes == list(range(rank)):
        return value
    # A constant is transposed at import, so that it can still become a packed weight.
    if value.array is not None:
        return constant_value(np.ascontiguousarray(value.array.transpose(axes)))
    return node.as_value(op.transpose(node.expr(index), axes=axes))


def _fused_mat_mul(node: OnnxNode) -> Expr:
    """Convert FusedMatMul: alpha * op(A) @ op(B), then the activation."""
    sides = [
        _transposed_operand(
            node, i, bool(node.get_int(f"trans{n}")), bool(node.get_int(f"transBatch{n}"))
        )
        for i, n in enumerate("AB")
    ]
    product = convert_matmul(node.with_inputs(sides))
    alpha = node.get_float("alpha", 1.0)
    return _apply_activation(
        node, product if alpha == 1 else op.multiply(product, const_like_input(node, alpha))
    )


def _fused_gemm(node: OnnxNode) -> Expr:
    """Convert FusedGemm: alpha * op(A) @ op(B) + beta * C, then the activation."""
    sides = [
        _transposed_operand(node, i, bool(node.get_int(f"trans{n}")), False)
        for i, n in enumerate("AB")
    ]
    product = convert_matmul(node.with_inputs(sides))
    alpha, beta = node.get_float("alpha", 1.0), node.get_float("beta", 1.0)
    product = product if alpha == 1 else op.multiply(product, const_like_input(node, alpha))
    if node.optional_value(2) is not None and beta:
        bias = node.expr(2)
        product = op.add(
            product, bias if beta == 1 else op.multiply(bias, const_like_input(node, beta))
        )
    return _apply_activation(node, product)


def _fused_conv(node: OnnxNode) -> Expr:
    """Convert FusedConv: Conv, plus input 3, then the activation."""
    convolved = convert_conv(node.with_inputs([node.optional_value(i) for i in range(3)]))
    if node.optional_value(3) is not None:
        node.scope.require_equal_dims(node.tensor_type_of(convolved).shape, node.shape(3))
        convolved = op.add(convolved, node.expr(3))
    return _apply_activation(node, convolved)


def wrap_channels_first(convert: Converter, *images: int) -> Converter:
    """Return a channels-last (NHWC) converter that transposes the inputs `images` around a
    channels-first one.
    """

    def convert_transposed(node: OnnxNode) -> Result:
        """Convert the node between a transpose to NCHW and one back."""
        inputs = list(node.inputs)
        for position in images:
            if node.optional_value(position) is not None:
                rank = node.rank(position)
                moved = op.transpose(node.expr(position), axes=[0, rank - 1, *range(1, rank - 1)])
                inputs[position] = node.as_value(moved)
        result = convert(node.with_inputs(inputs))
        assert isinstance(result, Expr)
        rank = len(node.tensor_type_of(result).shape)
        return op.transpose(result, axes=[0, *range(2, rank), 1])

    return convert_transposed


# What ONNX has too, under another name or with inputs instead of attributes.


def _expand_dims(node: OnnxNode) -> Expr:
    (axis,) = node.constant_ints(1, "axis")
    return op.expand_dims(node.expr(0), axis=node.axis(axis, node.rank(0) + 1))


def _pairwise_distances(node: OnnxNode) -> Expr:
    """Convert CDist: the (squared) Euclidean distances between the rows of two matrices."""
    a, b = op.expand_dims(node.expr(0), axis=1), op.expand_dims(node.expr(1), axis=0)
    node.scope.require_equal_dims(node.shape(0)[1:], node.shape(1)[1:])
    # The expansion |a|^2 + |b|^2 - 2ab would cancel for close rows; differences stay accurate.
    difference = op.subtract(a, b)
    squared = op.sum(op.multiply(difference, difference), axis=[2])
    return op.sqrt(squared) if node.get_string("metric", "sqeuclidean") == "euclidean" else squared


def _relative_position_bias(node: OnnxNode) -> Expr:
    """Convert RelativePositionBias: T5's bias [1, heads, queries, keys] from a table [buckets,
    heads].
    """
    buckets, _ = as_ints(node.shape(0))
    queries, keys = (node.dims(i, "a length")[0] for i in (1, 2))
    limit, both = node.get_int("max_distance"), bool(node.get_int("is_bidirectional"))
    column = op.expand_dims(op.arange(0, keys, 1, dtype="int32"), axis=0)
    row = op.expand_dims(op.arange(0, queries, 1, dtype="int32"), axis=1)
    distance: Expr = op.subtract(column, row)
    bucket_offset: Expr = const(0, "int32")
    if both:
        buckets //= 2
        above = op.greater(distance, const(0, "int32"))
        bucket_offset, distance = (
            op.multiply(op.cast(above, "int32"), const(buckets, "int32")),
            op.abs(distance),
        )
    else:
        distance = op.maximum(op.negative(distance), const(0, "int32"))
    # T5 (Raffel et al. 2020): half of the buckets hold one distance each, the rest grow
    # logarithmically.
    exact = buckets // 2
    ratio = op.divide(op.cast(distance, "float32"), const(float(exact), "float32"))
    steps = op.multiply(op.log(ratio), const((buckets - exact) / np.log(limit / exact), "float32"))
    log_bucket = op.add(
        op.cast(op.maximum(steps, const(0.0, "float32")), "int32"), const(exact, "int32")
    )
    # Distances of max_distance and more share the last bucket.
    log_bucket = op.minimum(log_bucket, const(buckets - 1, "int32"))
    is_exact = op.less(distance, const(exact, "int32"))
    bucket_ids = op.add(bucket_offset, op.where(is_exact, distance, log_bucket))
    looked_up = op.take(node.expr(0), bucket_ids, axis=0)
    return op.expand_dims(op.transpose(looked_up, axes=[2, 0, 1]), axis=0)


_CONV_ATTRIBUTES = "auto_pad dilations group kernel_shape pads strides"
_FUSED_ATTRIBUTES = "activation activation_alpha activation_beta activation_gamma activation_axis"
_MATMUL_ATTRIBUTES = "alpha transA transB transBatchA transBatchB"


def make_contrib_row(
    name: str,
    convert: Converter,
    attributes: str = "",
    values: Mapping[str, tuple[Attribute, ...]] | None = None,
) -> OnnxRow:
    """Return a converter table entry for the com.microsoft domain.

    Args:
        name: the operator.
        convert: its converter.
        attributes: the supported names, separated by blanks.
        values: attribute -> its supported values, where not all are.
    """
    return OnnxRow(
        name, convert, attributes=attributes, supported_values=values or {}, domain=CONTRIB_DOMAIN
    )


_FORMER_CONTRIB_OPSETS = {"GatherND": 11, "GridSample": 16, "Pad": 11, "Range": 11, "Trilu": 14}
"""Operators that were here before ONNX had them -> the opset that took them."""

# fmt: off
ROWS = (
    *(replace(row, domain=CONTRIB_DOMAIN, since_version=1)
      for family in (image, linear, data_movement, gather_scatter, shape) for row in family.ROWS
      if _FORMER_CONTRIB_OPSETS.get(row.op_type) == row.since_version),
    make_contrib_row("Gelu",                  lambda node: gelu(node.expr(0), node.dtype(0))),
    make_contrib_row("FastGelu",              _fast_gelu),
    make_contrib_row("BiasGelu",              lambda node: gelu(_add_bias(node), node.dtype(0))),
    make_contrib_row("QuickGelu",             _quick_gelu,            "alpha"),
    make_contrib_row("BiasSplitGelu",         _bias_split_gelu),
    make_contrib_row("BiasSoftmax",           _bias_softmax,          "axis is_inner_broadcast"),
    make_contrib_row("SkipLayerNormalization", _skip_layer_norm,      "epsilon"),
    make_contrib_row("SkipSimplifiedLayerNormalization", _skip_rms_norm, "epsilon"),
    make_contrib_row("EmbedLayerNormalization", _embed_layer_norm,    "epsilon mask_index_type"),
    OnnxRow("SimplifiedLayerNormalization", _simplified_layer_norm,
        attributes="axis epsilon epsion stash_type"),
    make_contrib_row("SimplifiedLayerNormalization", _simplified_layer_norm,
        "axis epsilon epsion stash_type"),
    make_contrib_row("GroupNorm",             _group_norm,
        "activation channels_last epsilon groups"),
    make_contrib_row("SkipGroupNorm",         _group_norm,
        "activation channels_last epsilon groups"),
    make_contrib_row("FusedMatMul",           _fused_mat_mul,         _MATMUL_ATTRIBUTES),
    make_contrib_row("TransposeMatMul",       _fused_mat_mul,         _MATMUL_ATTRIBUTES),
    make_contrib_row("FusedMatMulActivation", _fused_mat_mul,
        f"{_MATMUL_ATTRIBUTES} {_FUSED_ATTRIBUTES}", values=_ACTIVATION_VALUES),
    make_contrib_row("FusedGemm",             _fused_gemm,
        f"alpha beta transA transB {_FUSED_ATTRIBUTES}", values=_ACTIVATION_VALUES),
    make_contrib_row("FusedConv",             _fused_conv,
        f"{_CONV_ATTRIBUTES} activation activation_params", values=_ACTIVATION_VALUES),
    make_contrib_row("NhwcConv",              wrap_channels_first(convert_conv, 0),
        _CONV_ATTRIBUTES),
    make_contrib_row("NhwcFusedConv",         wrap_channels_first(_fused_conv, 0, 3),
        f"{_CONV_ATTRIBUTES} activation activation_params", values=_ACTIVATION_VALUES),
    make_contrib_row("ExpandDims",            _expand_dims),
    make_contrib_row("CDist",                 _pairwise_distances,    "metric",
        values={"metric": ("sqeuclidean", "euclidean")}),
    make_contrib_row("RelativePositionBias",  _relative_position_bias,
        "is_bidirectional max_distance"),
)
# fmt: on
