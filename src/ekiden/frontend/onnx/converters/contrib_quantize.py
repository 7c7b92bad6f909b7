"""com.microsoft quantised operators: 8-bit forms of float operators, integer products, and
block-quantised weights. As ONNX Runtime 1.31 documents them (docs/ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.onnx.converters.contrib import make_contrib_row, wrap_channels_first
from ekiden.frontend.onnx.converters.elementwise import constrain_broadcast
from ekiden.frontend.onnx.converters.linear import convert_matmul
from ekiden.frontend.onnx.converters.norm import ROWS as NORMS
from ekiden.frontend.onnx.converters.pool import (
    convert_full_window_average_pool,
    convert_global_average_pool,
    emit_max_pool,
)
from ekiden.frontend.onnx.converters.quantize import (
    as_scalar_input,
    convert_dequantize_linear,
    convert_matmul_integer,
    convert_qlinear_conv,
    convert_quantize_linear,
)
from ekiden.frontend.onnx.node import Attribute, OnnxNode
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn import int8_lowering as qnn
from ekiden.runtime.errors import ImportModelError
from ekiden.topi.dimensions import known_int

_NO_ATTRIBUTES: Mapping[str, Attribute] = {}


def _emit_dequantize(
    node: OnnxNode, data: int, attributes: Mapping[str, Attribute] = _NO_ATTRIBUTES
) -> Value:
    """Emit a quantised input dequantised by the scale and zero point in the next two inputs."""
    inputs = [node.optional_value(data + i) for i in range(3)]
    return node.as_value(convert_dequantize_linear(node.with_inputs(inputs, attributes)))


def _emit_quantize(node: OnnxNode, real_values: Expr, scale: int) -> Expr:
    """Emit an expression quantised to input 0's dtype by the scale in input `scale` and the zero
    point after it.
    """
    zero = node.optional_value(scale + 1)
    if zero is None:
        zero = constant_value(np.zeros((), node.dtype(0)))
    inputs = [node.as_value(real_values), node.value(scale), zero]
    return convert_quantize_linear(node.with_inputs(inputs, _NO_ATTRIBUTES))


def _binary_converter(function: Callable[[Expr, Expr], Expr]) -> Callable[[OnnxNode], Expr]:
    """Return a converter of a binary operator on quantised tensors."""

    def convert_binary(node: OnnxNode) -> Expr:
        """Dequantise both operands, apply the operator, and quantise by inputs 6 and 7."""
        both = node.with_inputs([_emit_dequantize(node, 0), _emit_dequantize(node, 3)])
        constrain_broadcast(both)
        return _emit_quantize(node, function(*both.exprs()), 6)

    return convert_binary


def _unary_converter(function: Callable[[OnnxNode], Expr]) -> Callable[[OnnxNode], Expr]:
    """Return a converter of a unary operator on a quantised tensor."""

    def convert_unary(node: OnnxNode) -> Expr:
        """Dequantise the operand, apply the operator, and quantise by inputs 3 and 4."""
        return _emit_quantize(node, function(node.with_inputs([_emit_dequantize(node, 0)])), 3)

    return convert_unary


def _pool_converter(function: Callable[[OnnxNode], Expr]) -> Callable[[OnnxNode], Expr]:
    """Return a converter of a quantised pooling operator in either layout."""

    def convert_pool(node: OnnxNode) -> Expr:
        """Convert the pooling; with `channels_last` between two transposes."""
        if not node.get_int("channels_last", 0):
            return _unary_converter(function)(node)
        pooled = wrap_channels_first(_unary_converter(function), 0)(node)
        assert isinstance(pooled, Expr)
        return pooled

    return convert_pool


def _conv(node: OnnxNode) -> Expr:
    """Convert QLinearConv in either layout."""
    if not node.get_int("channels_last", 0):
        return convert_qlinear_conv(node)
    convolved = wrap_channels_first(convert_qlinear_conv, 0)(node)
    assert isinstance(convolved, Expr)
    return convolved


def _leaky_relu(node: OnnxNode) -> Expr:
    return op.nn.leaky_relu(node.expr(0), alpha=node.get_float("alpha", np.float32(0.01)))


def _mean(node: OnnxNode) -> Expr:
    axes = node.get_ints("axes", tuple(range(node.rank(0))))
    return op.mean(node.expr(0), axis=list(axes), keepdims=bool(node.get_int("keepdims", 1)))


def _softmax(node: OnnxNode) -> Expr:
    """Convert QLinearSoftmax with the semantics of Softmax at the opset in its attribute."""
    opset = node.get_int("opset")
    rows = [r for r in NORMS if r.op_type == "Softmax" and r.since_version <= opset]
    # The default axis changed from 1 to -1 with opset 13.
    default = -1 if opset >= 13 else 1
    inner = node.with_inputs([_emit_dequantize(node, 0)], {"axis": node.get_int("axis", default)})
    normalized = max(rows, key=lambda r: r.since_version).convert(inner)
    assert isinstance(normalized, Expr)
    return _emit_quantize(node, normalized, 3)


def _concat(node: OnnxNode) -> Expr:
    """Convert QLinearConcat: inputs are the result's scale and zero point, then (tensor, scale,
    zero point) triples.
    """
    # The inputs have different scales, so they are joined as real numbers and quantised again.
    dequantized = [_emit_dequantize(node, position) for position in range(2, len(node.inputs), 3)]
    first = node.tensor_type_of(node.scope.expr(dequantized[0]))
    axis = node.axis(node.get_int("axis", 0), len(first.shape))
    joined = op.concatenate([node.scope.expr(p) for p in dequantized], axis=axis)
    inputs = [node.as_value(joined), node.value(0), node.value(1)]
    return convert_quantize_linear(node.with_inputs(inputs, _NO_ATTRIBUTES))


def _where(node: OnnxNode) -> Expr:
    """Convert QLinearWhere."""
    inner = node.with_inputs([node.value(0), _emit_dequantize(node, 1), _emit_dequantize(node, 4)])
    constrain_broadcast(inner)
    selected = node.as_value(op.where(*inner.exprs()))
    return convert_quantize_linear(
        node.with_inputs([selected, node.value(7), node.value(8)], _NO_ATTRIBUTES)
    )


# Products.


def _scale_product(node: OnnxNode, total: Expr, scales: Sequence[Expr], bias: int) -> Expr:
    """Emit an int32 product scaled to float32, plus the bias if present."""
    factor = op.multiply(*scales)
    product = op.multiply(op.cast(total, "float32"), factor)
    return product if node.optional_value(bias) is None else op.add(product, node.expr(bias))


def _scale_input(node: OnnxNode, index: int) -> Expr:
    """Return a scale input as a scalar or as one number per column."""
    shape = node.shape(index)
    return as_scalar_input(node, index) if shape and known_int(shape[0]) == 1 else node.expr(index)


def _dynamic_quantize_mat_mul(node: OnnxNode) -> Expr:
    """Convert DynamicQuantizeMatMul: the left operand is quantised at run time."""
    # ONNX's DynamicQuantizeLinear: uint8 over the range of the data, which includes 0.
    levels, scale, point = qnn.dynamic_quantize(node.expr(0))
    sides = [node.as_value(levels), node.value(1), node.as_value(point), node.optional_value(3)]
    total = convert_matmul_integer(node.with_inputs(sides))
    return _scale_product(node, total, (scale, _scale_input(node, 2)), 4)


def _mat_mul_integer_to_float(node: OnnxNode) -> Expr:
    """Convert MatMulIntegerToFloat."""
    sides = [node.value(0), node.value(1), node.optional_value(4), node.optional_value(5)]
    total = convert_matmul_integer(node.with_inputs(sides))
    return _scale_product(node, total, (_scale_input(node, 2), _scale_input(node, 3)), 6)


def _gemm(node: OnnxNode) -> Expr:
    """Convert QGemm: alpha * A @ B + C, quantised if the result has a scale."""
    sides = [
        _transpose_input(node, i) if node.get_int(f"trans{n}") else node.value(i)
        for i, n in ((0, "A"), (3, "B"))
    ]
    total = convert_matmul_integer(node.with_inputs([*sides, node.value(2), node.value(5)]))
    # C is int32 in units of a_scale * b_scale, so it is added before scaling.
    if node.optional_value(6) is not None:
        total = op.add(total, node.expr(6))
    scale = op.multiply(_scale_input(node, 4), const(node.get_float("alpha", 1.0), "float32"))
    product = op.multiply(op.cast(total, "float32"), op.multiply(_scale_input(node, 1), scale))
    return product if node.optional_value(7) is None else _emit_quantize(node, product, 7)


def _transpose_input(node: OnnxNode, index: int) -> Value:
    """Return an input's transpose, of constants at import."""
    array = node.value(index).array
    if array is not None:
        return constant_value(np.ascontiguousarray(array.T))
    return node.as_value(op.transpose(node.expr(index), axes=[1, 0]))


# Weights of a few bits.


def _unpack_bits(packed: Array, bits: int) -> Array:
    """Unpack 2-, 4- or 8-bit numbers from bytes along the last axis, lowest bits first."""
    count = 8 // bits
    shifts = np.arange(count, dtype=np.uint8) * np.uint8(bits)
    fields = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    unpacked: Array = fields.reshape(*packed.shape[:-1], packed.shape[-1] * count)
    return unpacked


def _block_zero_points(node: OnnxNode, index: int, rows: int, blocks: int, bits: int) -> Array:
    """Return the zero point of each block as float32 [rows, blocks]; the middle of the range by
    default.
    """
    if node.optional_value(index) is None:
        return np.full((rows, blocks), float(1 << (bits - 1)), np.float32)
    zero_points = node.constant_array(index, "zero_points")
    if zero_points.dtype != np.uint8:
        return zero_points.reshape(rows, blocks).astype(np.float32)
    return _unpack_bits(zero_points.reshape(rows, -1), bits)[:, :blocks].astype(np.float32)


INT8_ACCURACY_LEVEL = 4
"""The accuracy level that lets data be rounded to bytes."""


def _emit_int4_product(node: OnnxNode, rows: int, blocks: int, bits: int) -> Expr | None:
    """Emit the product with the packed 4-bit weight and data quantised to 8 bits; None unless
    `accuracy_level` allows it.
    """
    points = None if node.optional_value(3) is None else node.constant_array(3, "zero_points")
    plain = bits == 4 and node.optional_value(4) is None and node.dtype(0) == "float32"
    if not plain or node.get_int("accuracy_level", 0) != INT8_ACCURACY_LEVEL or not node.rank(0):
        return None
    # The kernel takes packed integer zero points; float ones are dequantised at import.
    if points is not None and points.dtype != np.uint8:
        return None
    weight = node.constant_array(1, "B").reshape(rows, blocks, -1)
    scale = node.constant_array(2, "scales").reshape(rows, blocks).astype(np.float32)
    point = _block_zero_points(node, 3, rows, blocks, bits).astype(np.uint8)
    data = node.expr(0)
    return op.nn.contrib_dense_nibbles(data, const(weight), const(scale), const(point))


def _block_index_by_column(numbers: Array, columns: int, blocks: int) -> Array:
    """Return the quantisation block of each column; raise ImportModelError for a bad `g_idx`."""
    groups = numbers.ravel()[:columns].astype(np.int64)
    if len(groups) < columns or groups.min(initial=0) < 0 or groups.max(initial=0) >= blocks:
        raise ImportModelError(f"'g_idx' must have {columns} numbers below {blocks}")
    return groups


def _dequantize_at_run_time(
    node: OnnxNode, rows: int, columns: int, blocks: int, bits: int
) -> Expr:
    """Emit the weight [N, K] dequantised at run time."""

    def unpack_input(index: int) -> Expr:
        """Emit the numbers in the bytes of an input, [N, numbers per row]."""
        packed = op.reshape(node.expr(index), (rows, -1))
        shifts = const(np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits))
        fields = op.right_shift(op.expand_dims(packed, axis=2), shifts)
        fields = op.bitwise_and(fields, const(np.uint8((1 << bits) - 1)))
        return op.cast(op.reshape(fields, (rows, -1)), "float32")

    column_groups: Expr = const(np.arange(columns) // node.get_int("block_size"))
    if node.optional_value(4) is not None:
        column_groups = op.strided_slice(node.expr(4), begin=[0], end=[columns], axes=[0])
    # Without zero points the values are symmetric around the middle, 2 ** (bits - 1).
    points: Expr = const(np.full((rows, blocks), float(1 << (bits - 1)), np.float32))
    if node.optional_value(3) is not None and node.dtype(3) == "uint8":
        points = op.strided_slice(unpack_input(3), begin=[0], end=[blocks], axes=[1])
    elif node.optional_value(3) is not None:
        points = op.cast(op.reshape(node.expr(3), (rows, blocks)), "float32")
    scales = op.cast(op.reshape(node.expr(2), (rows, blocks)), "float32")
    levels = op.strided_slice(unpack_input(1), begin=[0], end=[columns], axes=[1])
    by_column = [op.take(t, column_groups, axis=1, mode="raise") for t in (points, scales)]
    weight = op.multiply(op.subtract(levels, by_column[0]), by_column[1])
    return op.cast(weight, node.dtype(0))


def _mat_mul_n_bits(node: OnnxNode) -> Expr:
    """Convert MatMulNBits: a product with a weight [N, blocks, bytes per block] quantised in
    blocks.
    """
    rows, columns, block = (node.get_int(n) for n in ("N", "K", "block_size"))
    bits = node.get_int("bits", 4)
    if min(rows, columns, block) < 1:
        node.reject(f"N, K and block_size must be at least 1, got {(rows, columns, block)}")
    # The last block may be partial: ceil(K / block_size).
    blocks = -(-columns // block)
    weight_inputs = [node.optional_value(i) for i in range(1, 5)]
    if any(v is not None and v.array is None for v in weight_inputs):
        weight = _dequantize_at_run_time(node, rows, columns, blocks, bits)
        return _matmul_with_bias(node, node.as_value(op.transpose(weight)))
    if (int_product := _emit_int4_product(node, rows, blocks, bits)) is not None:
        return int_product if node.optional_value(5) is None else op.add(int_product, node.expr(5))
    right = constant_value(_dequantize_constant(node, rows, columns, blocks, bits))
    return _matmul_with_bias(node, right)


def _matmul_with_bias(node: OnnxNode, right: Value) -> Expr:
    """Emit the product with a weight [K, N], plus the bias if present."""
    product = convert_matmul(node.with_inputs([node.value(0), right]))
    return product if node.optional_value(5) is None else op.add(product, node.expr(5))


def _dequantize_constant(node: OnnxNode, rows: int, columns: int, blocks: int, bits: int) -> Array:
    """Return the dequantised weight [K, N] of constant inputs."""
    levels = _unpack_bits(node.constant_array(1, "B").reshape(rows, blocks, -1), bits).astype(
        np.float32
    )
    points = _block_zero_points(node, 3, rows, blocks, bits)
    scales = node.constant_array(2, "scales").reshape(rows, blocks).astype(np.float32)
    # `g_idx` is the group of each column in GPTQ's act-order; without it groups are consecutive
    # columns.
    groups = np.arange(columns) // node.get_int("block_size")
    if node.optional_value(4) is not None:
        groups = _block_index_by_column(node.constant_array(4, "g_idx"), columns, blocks)
    levels = levels.reshape(rows, -1)[:, :columns]
    weight = (levels - points[:, groups]) * scales[:, groups]
    turned: Array = np.ascontiguousarray(weight.T).astype(node.dtype(0))
    return turned


def _gather_block_quantized(node: OnnxNode) -> Expr:
    """Convert GatherBlockQuantized: rows of a table whose last axis is quantised in blocks."""
    table, bits = node.constant_array(0, "data"), node.get_int("bits", 4)
    rank = table.ndim
    if node.axis(node.get_int("gather_axis", 0), rank) != 0:
        node.reject("'gather_axis' must be 0")
    if node.axis(node.get_int("quantize_axis", 1), rank) != rank - 1:
        node.reject("'quantize_axis' must be the last")
    block = node.get_int("block_size", 128)
    is_packed = table.dtype == np.uint8
    levels = (_unpack_bits(table, bits) if is_packed else table).astype(np.float32)
    scales = node.constant_array(2, "scales")
    points: Array = np.asarray(1 << (bits - 1) if is_packed else 0, np.float32)
    if node.optional_value(3) is not None:
        zero_points = node.constant_array(3, "zero_points")
        points = (_unpack_bits(zero_points, bits) if is_packed else zero_points).astype(np.float32)
        points = np.repeat(points[..., : scales.shape[-1]], block, -1)[..., : levels.shape[-1]]
    # The last block may be partial.
    spread = np.repeat(scales, block, -1)[..., : levels.shape[-1]].astype(np.float32)
    rows = const(((levels - points) * spread).astype(scales.dtype))
    return op.take(rows, node.expr(1), axis=0, mode="raise")


_CONV_ATTRIBUTES = "auto_pad channels_last dilations group kernel_shape pads strides"
_POOL_ATTRIBUTES = "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides"
_BITS_VALUES = {"bits": (2, 4, 8)}

# fmt: off
ROWS = (
    make_contrib_row("QuantizeLinear",       convert_quantize_linear, "axis"),
    make_contrib_row("DequantizeLinear",     convert_dequantize_linear, "axis"),
    make_contrib_row("QLinearAdd",           _binary_converter(op.add)),
    make_contrib_row("QLinearMul",           _binary_converter(op.multiply)),
    make_contrib_row("QLinearSigmoid",
        _unary_converter(lambda node: op.sigmoid(node.expr(0)))),
    make_contrib_row("QLinearLeakyRelu",     _unary_converter(_leaky_relu), "alpha"),
    make_contrib_row("QLinearReduceMean",    _unary_converter(_mean), "axes keepdims"),
    make_contrib_row("QLinearSoftmax",       _softmax, "axis opset"),
    make_contrib_row("QLinearConcat",        _concat, "axis"),
    make_contrib_row("QLinearWhere",         _where),
    make_contrib_row("QLinearAveragePool", _pool_converter(convert_full_window_average_pool),
        _POOL_ATTRIBUTES),
    make_contrib_row("QLinearGlobalAveragePool", _pool_converter(convert_global_average_pool),
        "channels_last"),
    make_contrib_row("QLinearConv",          _conv, _CONV_ATTRIBUTES),
    make_contrib_row("NhwcMaxPool",          wrap_channels_first(emit_max_pool, 0),
                "auto_pad ceil_mode dilations kernel_shape pads strides"),
    make_contrib_row("QGemm",                _gemm, "alpha transA transB"),
    make_contrib_row("DynamicQuantizeMatMul", _dynamic_quantize_mat_mul),
    make_contrib_row("MatMulIntegerToFloat", _mat_mul_integer_to_float),
    make_contrib_row("MatMulNBits",          _mat_mul_n_bits,
                "K N accuracy_level bits block_size weight_prepacked",
                values={**_BITS_VALUES, "weight_prepacked": (0,)}),
    make_contrib_row("GatherBlockQuantized", _gather_block_quantized,
                "bits block_size gather_axis quantize_axis", values=_BITS_VALUES),
)
# fmt: on
