"""Quantised operators of com.microsoft: 8-bit forms of float operators, products of 8-bit tensors,
and weights of a few bits quantised in blocks. As ONNX Runtime 1.31 documents them
(docs/ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.onnx.converters.contrib import channels_first, contrib_row
from ekiden.frontend.onnx.converters.elementwise import note_broadcast
from ekiden.frontend.onnx.converters.linear import multiply_matrices
from ekiden.frontend.onnx.converters.norm import ROWS as NORMS
from ekiden.frontend.onnx.converters.pool import (
    average_of_whole_windows,
    global_average_pool,
    max_pool,
)
from ekiden.frontend.onnx.converters.quantize import (
    dequantize,
    integer_product,
    quantize,
    quantized_conv,
    scalar_input,
)
from ekiden.frontend.onnx.node import Attribute, Node
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn import products as qnn
from ekiden.runtime.errors import ImportModelError
from ekiden.topi.dimensions import known

_NONE: Mapping[str, Attribute] = {}


def _numbers(node: Node, data: int, attributes: Mapping[str, Attribute] = _NONE) -> Value:
    """Return a quantised input dequantised; its scale and zero point are the next two inputs."""
    inputs = [node.optional(data + i) for i in range(3)]
    return node.value_of(dequantize(node.with_inputs(inputs, attributes)))


def _bytes(node: Node, real_values: Expr, scale: int) -> Expr:
    """Quantise an expression to the dtype of input 0, by the scale in input `scale` and the zero
    point after it.
    """
    zero = node.optional(scale + 1)
    if zero is None:
        zero = constant(np.zeros((), node.dtype(0)))
    inputs = [node.value_of(real_values), node.value(scale), zero]
    return quantize(node.with_inputs(inputs, _NONE))


def _pair(function: Callable[[Expr, Expr], Expr]) -> Callable[[Node], Expr]:
    """Return a converter of a binary operator on quantised tensors."""

    def convert(node: Node) -> Expr:
        """Apply the operator to the dequantised inputs and quantise by inputs 6 and 7."""
        both = node.with_inputs([_numbers(node, 0), _numbers(node, 3)])
        note_broadcast(both)
        return _bytes(node, function(*both.exprs()), 6)

    return convert


def _single(function: Callable[[Node], Expr]) -> Callable[[Node], Expr]:
    """Return a converter of a unary operator on a quantised tensor, with the attributes of the
    node.
    """

    def convert(node: Node) -> Expr:
        return _bytes(node, function(node.with_inputs([_numbers(node, 0)])), 3)

    return convert


def _pool(function: Callable[[Node], Expr]) -> Callable[[Node], Expr]:
    """Return a converter of a quantised operator on images that may be channels last."""

    def convert(node: Node) -> Expr:
        """Convert the pooling, between transposes where the attribute `channels_last` is set."""
        if not node.get_int("channels_last", 0):
            return _single(function)(node)
        pooled = channels_first(_single(function), 0)(node)
        assert isinstance(pooled, Expr)
        return pooled

    return convert


def _conv(node: Node) -> Expr:
    if not node.get_int("channels_last", 0):
        return quantized_conv(node)
    convolved = channels_first(quantized_conv, 0)(node)
    assert isinstance(convolved, Expr)
    return convolved


def _leaky_relu(node: Node) -> Expr:
    return op.nn.leaky_relu(node.expr(0), alpha=node.get_float("alpha", np.float32(0.01)))


def _mean(node: Node) -> Expr:
    axes = node.get_ints("axes", tuple(range(node.rank(0))))
    return op.mean(node.expr(0), axis=list(axes), keepdims=bool(node.get_int("keepdims", 1)))


def _softmax(node: Node) -> Expr:
    """Convert QLinearSoftmax, with the semantics of Softmax in the opset that an attribute
    states.
    """
    opset = node.get_int("opset")
    rows = [r for r in NORMS if r.op_type == "Softmax" and r.since <= opset]
    # The default axis changed from 1 to -1 with opset 13.
    default = -1 if opset >= 13 else 1
    inner = node.with_inputs([_numbers(node, 0)], {"axis": node.get_int("axis", default)})
    normalized = max(rows, key=lambda r: r.since).convert(inner)
    assert isinstance(normalized, Expr)
    return _bytes(node, normalized, 3)


def _concat(node: Node) -> Expr:
    """Convert QLinearConcat: the result's scale and zero point come first, then (tensor, scale,
    zero point) triples.
    """
    dequantized = [_numbers(node, at) for at in range(2, len(node.inputs), 3)]
    first = node.typed(node.scope.expr(dequantized[0]))
    axis = node.axis(node.get_int("axis", 0), len(first.shape))
    joined = op.concatenate([node.scope.expr(p) for p in dequantized], axis=axis)
    inputs = [node.value_of(joined), node.value(0), node.value(1)]
    return quantize(node.with_inputs(inputs, _NONE))


def _where(node: Node) -> Expr:
    inner = node.with_inputs([node.value(0), _numbers(node, 1), _numbers(node, 4)])
    note_broadcast(inner)
    selected = node.value_of(op.where(*inner.exprs()))
    return quantize(node.with_inputs([selected, node.value(7), node.value(8)], _NONE))


# Products.


def _scaled(node: Node, total: Expr, scales: Sequence[Expr], bias: int) -> Expr:
    """Scale an int32 sum of products to float32, and add the bias."""
    factor = op.multiply(*scales)
    product = op.multiply(op.cast(total, "float32"), factor)
    return product if node.optional(bias) is None else op.add(product, node.expr(bias))


def _scale(node: Node, index: int) -> Expr:
    """Return a scale: a scalar for the tensor, or one for each column."""
    shape = node.shape(index)
    return scalar_input(node, index) if shape and known(shape[0]) == 1 else node.expr(index)


def _dynamic_quantize_mat_mul(node: Node) -> Expr:
    """Convert DynamicQuantizeMatMul: the left operand is quantised at run time."""
    levels, scale, point = qnn.dynamic_quantize(node.expr(0))
    sides = [node.value_of(levels), node.value(1), node.value_of(point), node.optional(3)]
    total = integer_product(node.with_inputs(sides))
    return _scaled(node, total, (scale, _scale(node, 2)), 4)


def _mat_mul_integer_to_float(node: Node) -> Expr:
    sides = [node.value(0), node.value(1), node.optional(4), node.optional(5)]
    total = integer_product(node.with_inputs(sides))
    return _scaled(node, total, (_scale(node, 2), _scale(node, 3)), 6)


def _gemm(node: Node) -> Expr:
    """Convert QGemm: alpha * A * B + C, with C in units of the product of the scales; the result is
    quantised if it has a scale.
    """
    sides = [
        _turned(node, i) if node.get_int(f"trans{n}") else node.value(i)
        for i, n in ((0, "A"), (3, "B"))
    ]
    total = integer_product(node.with_inputs([*sides, node.value(2), node.value(5)]))
    # C is int32 in units of a_scale * b_scale, so it is added before scaling.
    if node.optional(6) is not None:
        total = op.add(total, node.expr(6))
    scale = op.multiply(_scale(node, 4), const(node.get_float("alpha", 1.0), "float32"))
    product = op.multiply(op.cast(total, "float32"), op.multiply(_scale(node, 1), scale))
    return product if node.optional(7) is None else _bytes(node, product, 7)


def _turned(node: Node, index: int) -> Value:
    array = node.value(index).array
    if array is not None:
        return constant(np.ascontiguousarray(array.T))
    return node.value_of(op.transpose(node.expr(index), axes=[1, 0]))


# Weights of a few bits.


def _unpacked(packed: Array, bits: int) -> Array:
    """Unpack 2-, 4- or 8-bit numbers from bytes, the lowest bits first, along the last axis."""
    count = 8 // bits
    shifts = np.arange(count, dtype=np.uint8) * np.uint8(bits)
    fields = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    unpacked: Array = fields.reshape(*packed.shape[:-1], packed.shape[-1] * count)
    return unpacked


def _points(node: Node, index: int, rows: int, blocks: int, bits: int) -> Array:
    """Return the zero point of each block, float32 [rows, blocks]: the middle of the range if there
    is none.
    """
    if node.optional(index) is None:
        return np.full((rows, blocks), float(1 << (bits - 1)), np.float32)
    zero_points = node.numbers(index, "zero_points")
    if zero_points.dtype != np.uint8:
        return zero_points.reshape(rows, blocks).astype(np.float32)
    return _unpacked(zero_points.reshape(rows, -1), bits)[:, :blocks].astype(np.float32)


ACCURACY_OF_BYTES = 4
"""The accuracy level that lets data be rounded to bytes."""


def _in_bytes(node: Node, rows: int, blocks: int, bits: int) -> Expr | None:
    """Return the product on the 4-bit weight as it is stored, with data quantised to 8 bits, if
    `accuracy_level` allows it; None where this does not apply.
    """
    points = None if node.optional(3) is None else node.numbers(3, "zero_points")
    plain = bits == 4 and node.optional(4) is None and node.dtype(0) == "float32"
    if not plain or node.get_int("accuracy_level", 0) != ACCURACY_OF_BYTES or not node.rank(0):
        return None
    if points is not None and points.dtype != np.uint8:
        return None
    weight = node.numbers(1, "B").reshape(rows, blocks, -1)
    scale = node.numbers(2, "scales").reshape(rows, blocks).astype(np.float32)
    point = _points(node, 3, rows, blocks, bits).astype(np.uint8)
    data = node.expr(0)
    return op.nn.contrib_dense_nibbles(data, const(weight), const(scale), const(point))


def _groups(numbers: Array, columns: int, blocks: int) -> Array:
    """Return the block of each column. Raises ImportModelError for one out of range."""
    groups = numbers.ravel()[:columns].astype(np.int64)
    if len(groups) < columns or groups.min(initial=0) < 0 or groups.max(initial=0) >= blocks:
        raise ImportModelError(f"'g_idx' must have {columns} numbers below {blocks}")
    return groups


def _weight_of_data(node: Node, rows: int, columns: int, blocks: int, bits: int) -> Expr:
    """Return the weight [N, K] dequantised at run time, where its bytes, scales, zero points or
    groups are run-time data.
    """

    def unpacked(index: int) -> Expr:
        """Unpack the numbers in the bytes of an input: [N, numbers per row]."""
        packed = op.reshape(node.expr(index), (rows, -1))
        shifts = const(np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits))
        fields = op.right_shift(op.expand_dims(packed, axis=2), shifts)
        fields = op.bitwise_and(fields, const(np.uint8((1 << bits) - 1)))
        return op.cast(op.reshape(fields, (rows, -1)), "float32")

    column_groups: Expr = const(np.arange(columns) // node.get_int("block_size"))
    if node.optional(4) is not None:
        column_groups = op.strided_slice(node.expr(4), begin=[0], end=[columns], axes=[0])
    # Without zero points the values are symmetric around the middle, 2 ** (bits - 1).
    points: Expr = const(np.full((rows, blocks), float(1 << (bits - 1)), np.float32))
    if node.optional(3) is not None and node.dtype(3) == "uint8":
        points = op.strided_slice(unpacked(3), begin=[0], end=[blocks], axes=[1])
    elif node.optional(3) is not None:
        points = op.cast(op.reshape(node.expr(3), (rows, blocks)), "float32")
    scales = op.cast(op.reshape(node.expr(2), (rows, blocks)), "float32")
    levels = op.strided_slice(unpacked(1), begin=[0], end=[columns], axes=[1])
    by_column = [op.take(t, column_groups, axis=1, mode="raise") for t in (points, scales)]
    weight = op.multiply(op.subtract(levels, by_column[0]), by_column[1])
    return op.cast(weight, node.dtype(0))


def _mat_mul_n_bits(node: Node) -> Expr:
    """Convert MatMulNBits: a product with block-quantised weights [N, blocks, bytes of a block],
    which constants are dequantised to at import.
    """
    rows, columns, block = (node.get_int(n) for n in ("N", "K", "block_size"))
    bits = node.get_int("bits", 4)
    if min(rows, columns, block) < 1:
        node.unsupported(f"N, K and block_size must be at least 1, got {(rows, columns, block)}")
    # The last block may be partial: ceil(K / block_size).
    blocks = -(-columns // block)
    weight_inputs = [node.optional(i) for i in range(1, 5)]
    if any(v is not None and v.array is None for v in weight_inputs):
        weight = _weight_of_data(node, rows, columns, blocks, bits)
        return _product_and_bias(node, node.value_of(op.transpose(weight)))
    if (int_product := _in_bytes(node, rows, blocks, bits)) is not None:
        return int_product if node.optional(5) is None else op.add(int_product, node.expr(5))
    right = constant(_constant_weight(node, rows, columns, blocks, bits))
    return _product_and_bias(node, right)


def _product_and_bias(node: Node, right: Value) -> Expr:
    """Return the product with a weight [K, N], with the bias added."""
    product = multiply_matrices(node.with_inputs([node.value(0), right]))
    return product if node.optional(5) is None else op.add(product, node.expr(5))


def _constant_weight(node: Node, rows: int, columns: int, blocks: int, bits: int) -> Array:
    """Return the dequantised weight [K, N] of constants."""
    levels = _unpacked(node.numbers(1, "B").reshape(rows, blocks, -1), bits).astype(np.float32)
    points = _points(node, 3, rows, blocks, bits)
    scales = node.numbers(2, "scales").reshape(rows, blocks).astype(np.float32)
    # `g_idx` is the group of each column in GPTQ's act-order; without it groups are consecutive
    # columns.
    groups = np.arange(columns) // node.get_int("block_size")
    if node.optional(4) is not None:
        groups = _groups(node.numbers(4, "g_idx"), columns, blocks)
    levels = levels.reshape(rows, -1)[:, :columns]
    weight = (levels - points[:, groups]) * scales[:, groups]
    turned: Array = np.ascontiguousarray(weight.T).astype(node.dtype(0))
    return turned


def _gather_block_quantized(node: Node) -> Expr:
    """Look up rows of a table whose last axis is quantised in blocks."""
    table, bits = node.numbers(0, "data"), node.get_int("bits", 4)
    rank = table.ndim
    if node.axis(node.get_int("gather_axis", 0), rank) != 0:
        node.unsupported("'gather_axis' must be 0")
    if node.axis(node.get_int("quantize_axis", 1), rank) != rank - 1:
        node.unsupported("'quantize_axis' must be the last")
    block = node.get_int("block_size", 128)
    is_packed = table.dtype == np.uint8
    levels = (_unpacked(table, bits) if is_packed else table).astype(np.float32)
    scales = node.numbers(2, "scales")
    points: Array = np.asarray(1 << (bits - 1) if is_packed else 0, np.float32)
    if node.optional(3) is not None:
        zero_points = node.numbers(3, "zero_points")
        points = (_unpacked(zero_points, bits) if is_packed else zero_points).astype(np.float32)
        points = np.repeat(points[..., : scales.shape[-1]], block, -1)[..., : levels.shape[-1]]
    spread = np.repeat(scales, block, -1)[..., : levels.shape[-1]].astype(np.float32)
    rows = const(((levels - points) * spread).astype(scales.dtype))
    return op.take(rows, node.expr(1), axis=0, mode="raise")


_CONV = "auto_pad channels_last dilations group kernel_shape pads strides"
_POOL = "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides"
_BITS = {"bits": (2, 4, 8)}

# fmt: off
ROWS = (
    contrib_row("QuantizeLinear",       quantize, "axis"),
    contrib_row("DequantizeLinear",     dequantize, "axis"),
    contrib_row("QLinearAdd",           _pair(op.add)),
    contrib_row("QLinearMul",           _pair(op.multiply)),
    contrib_row("QLinearSigmoid",       _single(lambda node: op.sigmoid(node.expr(0)))),
    contrib_row("QLinearLeakyRelu",     _single(_leaky_relu), "alpha"),
    contrib_row("QLinearReduceMean",    _single(_mean), "axes keepdims"),
    contrib_row("QLinearSoftmax",       _softmax, "axis opset"),
    contrib_row("QLinearConcat",        _concat, "axis"),
    contrib_row("QLinearWhere",         _where),
    contrib_row("QLinearAveragePool",   _pool(average_of_whole_windows), _POOL),
    contrib_row("QLinearGlobalAveragePool", _pool(global_average_pool), "channels_last"),
    contrib_row("QLinearConv",          _conv, _CONV),
    contrib_row("NhwcMaxPool",          channels_first(max_pool, 0),
         "auto_pad ceil_mode dilations kernel_shape pads strides"),
    contrib_row("QGemm",                _gemm, "alpha transA transB"),
    contrib_row("DynamicQuantizeMatMul", _dynamic_quantize_mat_mul),
    contrib_row("MatMulIntegerToFloat", _mat_mul_integer_to_float),
    contrib_row("MatMulNBits",          _mat_mul_n_bits,
         "K N accuracy_level bits block_size weight_prepacked",
         values={**_BITS, "weight_prepacked": (0,)}),
    contrib_row("GatherBlockQuantized", _gather_block_quantized,
         "bits block_size gather_axis quantize_axis", values=_BITS),
)
# fmt: on
