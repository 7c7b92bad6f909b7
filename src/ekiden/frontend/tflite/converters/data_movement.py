"""Data movement and shape operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common import constant_folding as rules
from ekiden.frontend.common.constant_folding import concat_elements
from ekiden.frontend.common.converters import data_movement as shared
from ekiden.frontend.common.converters.resize import resize
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, known_value
from ekiden.frontend.tflite.integer_arithmetic import quant_params
from ekiden.frontend.tflite.load import TENSOR_DTYPES
from ekiden.frontend.tflite.node import Converter, QuantizedPolicy, TfliteNode, TfliteRow
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import known_int as number

MOVES_ELEMENTS = QuantizedPolicy.MOVES_ELEMENTS


def _reshape(node: TfliteNode) -> Result:
    if node.optional_value(1) is not None:
        return shared.reshape(node)
    options = node.operation.options
    return shared.reshape(
        node, () if options is None else [int(i) for i in options.NewShapeAsNumpy()]
    )


def _concatenation(node: TfliteNode) -> Result:
    axis = node.axis(node.read_option("Axis"), node.rank(0))
    values = [node.value(i) for i in range(len(node.inputs))]
    if all(v.is_known for v in values):
        return known_value(concat_elements([v.known_elements for v in values], axis), node.dtype(0))
    return node.apply_activation(op.concatenate(node.exprs(), axis=axis))


def _quantized_concatenation(node: TfliteNode) -> Result:
    """Convert CONCATENATION of quantized tensors; only the uint8 kernel requantizes, in float32,
    the others copy.
    """
    result, operands = quant_params(node, node.outs[0]), []
    for index, tensor in enumerate(node.ins):
        source, operand = quant_params(node, tensor), node.expr(index)
        # LiteRT requantises uint8 operands only; int8 models share one scale.
        if source != result:
            if result.dtype != "uint8" or source.dtype != "uint8":
                node.reject(f"{tensor} and {node.outs[0]} have different scales or zero points")
            scale = source.scale * (np.float32(1) / result.scale)
            steps = (
                np.arange(256, dtype=np.float32) * scale + np.float32(-source.zero_point) * scale
            )
            table = np.trunc(steps + np.copysign(np.float32(0.5), steps)) + result.zero_point
            index_of = op.cast(operand, "int32")
            operand = op.take(const(np.clip(table, 0, 255).astype(np.uint8)), index_of, mode="fast")
        operands.append(operand)
    return op.concatenate(operands, axis=node.axis(node.read_option("Axis"), node.rank(0)))


def _pack(node: TfliteNode) -> Result:
    axis = node.axis(node.read_option("Axis"), node.rank(0) + 1)
    values = [node.value(i) for i in range(len(node.inputs))]
    if all(v.is_known for v in values):
        expanded = [np.expand_dims(v.known_elements, axis) for v in values]
        return known_value(concat_elements(expanded, axis), node.dtype(0))
    return op.stack(node.exprs(), axis=axis)


def _unpack(node: TfliteNode) -> Result:
    axis = node.axis(node.read_option("Axis"), node.rank(0))
    if number(node.shape(0)[axis]) != len(node.outs):
        node.reject(f"axis {axis} of {node.ins[0]} must be {len(node.outs)} long")
    return shared.unpack(node, len(node.outs))


def _split(node: TfliteNode) -> Result:
    return shared.split(node, len(node.outs))


def _range(node: TfliteNode) -> Expr:
    return shared.arange(node, node.outs[0].dtype)


def _gather_rule(node: TfliteNode, inputs: Sequence[Array]) -> Array | None:
    return shared.gather_rule(node, inputs, int(node.read_option("Axis")))


def _gather(node: TfliteNode) -> Expr:
    return shared.gather(node, int(node.read_option("Axis")))


def _squeeze_rule(node: TfliteNode, inputs: Sequence[Array]) -> Array:
    return np.squeeze(inputs[0], tuple(_axes_to_squeeze(node)) or None)


def _stored_zero(node: TfliteNode) -> float:
    """Return the stored level that represents zero in the output."""
    steps = node.outs[0].quantization
    return float(steps.zero_point[0]) if steps else 0.0


def _pad(node: TfliteNode) -> Expr:
    """Convert PAD and PADV2; without a value it pads with the stored zero."""
    return shared.pad(
        node, node.expr(2) if node.optional_value(2) is not None else _stored_zero(node)
    )


def _mirror_pad(node: TfliteNode) -> Expr:
    return shared.mirror_pad(node, ("REFLECT", "SYMMETRIC")[node.read_option("Mode")])


def _axes_to_squeeze(node: TfliteNode) -> list[int]:
    """Return the normalized axes to squeeze; none where all of extent 1 are meant."""
    options = node.operation.options
    has = options is not None and options.SqueezeDimsLength()
    axes = options.SqueezeDimsAsNumpy() if has else ()
    return [node.axis(int(a), _logical_rank(node)) for a in axes]


def _logical_rank(node: TfliteNode) -> int:
    """Return the rank of an input without the (real, imaginary) axis of complex numbers."""
    is_complex = node.ins[0] is not None and node.ins[0].dtype == "complex64"
    return node.rank(0) - is_complex


def _squeeze(node: TfliteNode) -> Result:
    return shared.squeeze(node, _axes_to_squeeze(node), _logical_rank(node))


def _shape(node: TfliteNode) -> Value:
    return known_value(
        np.array(node.shape(0), object), TENSOR_DTYPES[node.read_option("OutType", 2)]
    )


def _rank(node: TfliteNode) -> Value:
    return known_value(np.array(node.rank(0)), "int32")


def _block_converter(function: Callable[..., Expr]) -> Converter:
    return lambda node: function(node.expr(0), int(node.read_option("BlockSize")), "NHWC")


def _space_to_batch(node: TfliteNode) -> Expr:
    block, widths = (
        node.constant_ints(1, "block"),
        node.constant_array(2, "paddings").astype(np.int64),
    )
    return op.nn.space_to_batch_nd(node.expr(0), block, widths.tolist(), _stored_zero(node))


def _quantized_resize_bilinear(node: TfliteNode) -> Expr:
    """Convert quantized RESIZE_BILINEAR with 10 fraction bits per coordinate, as the reference
    kernel; uint8 computes in floats.
    """
    kind = node.dtype(0)
    if quant_params(node, node.ins[0]) != quant_params(node, node.outs[0]):
        node.reject(f"{node.ins[0]} and {node.outs[0]} must have one scale")
    sizes = list(zip(node.static_extents(0, (1, 2)), node.constant_ints(1, "size"), strict=True))
    if any(extent is None for extent, _ in sizes):
        node.reject(f"{node.ins[0]} must have a known height and width")
    known_sizes = [(extent or 0, target) for extent, target in sizes]
    if kind == "uint8":
        return _resize_bilinear_uint8(node, known_sizes)
    # Two weights of 11 bits times an 8-bit level fit 30 bits, times int16 they do not.
    wide = "int64" if kind == "int16" else "int32"
    interpolated: Expr = op.cast(node.expr(0), wide)
    for axis, size in zip((1, 2), known_sizes, strict=True):
        interpolated = _interpolate_linearly(
            interpolated, wide, axis, *_fixed_sample_points(node, *size)
        )
    half = op.where(
        op.greater(interpolated, const(0, wide)), const(1 << 19, wide), const(-1 << 19, wide)
    )
    return op.cast(op.trunc_divide(op.add(interpolated, half), const(1 << 20, wide)), kind)


def _resize_bilinear_uint8(node: TfliteNode, sizes: Sequence[tuple[int, int]]) -> Expr:
    """Interpolate the four corners in the reference kernel's order, add one half and truncate."""
    down, right = (_float_sample_points(node, *size) for size in sizes)
    data, one = op.cast(node.expr(0), "float32"), np.float32(1)
    total: Expr = const(np.float32(0))
    for x, across in ((right[0], one - right[2]), (right[1], right[2])):
        for y, along in ((down[0], one - down[2]), (down[1], down[2])):
            corner = op.take(op.take(data, const(y), axis=1), const(x), axis=2)
            corner = op.multiply(corner, const(along.reshape(-1, 1, 1)))
            total = op.add(total, op.multiply(corner, const(across.reshape(-1, 1))))
    return op.cast(op.add(total, const(np.float32(0.5))), "uint8")


def _float_sample_points(node: TfliteNode, extent: int, target: int) -> tuple[Array, Array, Array]:
    """Return (first index, second index, weight of the second) per output position of an axis."""
    more = int(bool(node.read_option("AlignCorners")) and target > 1)
    step, half = np.float32(extent - more) / np.float32(target - more), np.float32(0.5)
    position = np.arange(target).astype(np.float32)
    position = (
        (position + half) * step - half if node.read_option("HalfPixelCenters") else position * step
    )
    first = np.maximum(np.floor(position), 0).astype(np.int32)
    second = np.minimum(np.ceil(position), extent - 1).astype(np.int32)
    return first, second, (position - first.astype(np.float32)).astype(np.float32)


def _fixed_sample_points(node: TfliteNode, extent: int, target: int) -> tuple[Array, Array, Array]:
    """Return (first index, second index, weight of the second in 1 / 1024) per output position of
    an axis.
    """
    more = int(bool(node.read_option("AlignCorners")) and target > 1)
    to = target - more
    # A rounded scale with 10 fraction bits, as the reference kernel computes it.
    step = ((extent - more) * 1024 + to // 2) // to
    position = np.arange(target) * step
    if node.read_option("HalfPixelCenters"):
        position = position + step // 2 - 512
    first = np.maximum(np.trunc(position / 1024).astype(np.int64), 0)
    second = np.minimum(np.trunc((position + 1023) / 1024).astype(np.int64), extent - 1)
    return first, second, position - 1024 * first


def _interpolate_linearly(
    data: Expr, dtype: str, axis: int, first: Array, second: Array, weight: Array
) -> Expr:
    shape = [-1 if i == axis else 1 for i in range(4)]
    terms = []
    for indices, factors in ((first, 1024 - weight), (second, weight)):
        row = op.take(data, const(indices.astype(np.int32)), axis=axis)
        terms.append(op.multiply(row, const(factors.reshape(shape), dtype)))
    return op.add(*terms)


# fmt: off
_FLOAT_ONLY_OPERATORS = (
    "WHERE", "BROADCAST_ARGS",
    *(f"UNSORTED_SEGMENT_{n.upper()}" for n, _ in shared.SEGMENT_REDUCTIONS),
)
"""Operators of the shared table that take no quantised tensors."""

ROWS = (
    *(TfliteRow(code, row.convert,
                QuantizedPolicy.REFUSED if code in _FLOAT_ONLY_OPERATORS else MOVES_ELEMENTS,
                row.moved_inputs, rule=row.rule)
      for code, row in shared.movement_rows("tflite")),
    TfliteRow("RESHAPE",           _reshape,             MOVES_ELEMENTS),
    TfliteRow("CONCATENATION",     _concatenation, moved_inputs=(),
        integer_converter=_quantized_concatenation,
        supports_int16=True),
    TfliteRow("PACK",              _pack,                MOVES_ELEMENTS, moved_inputs=()),
    TfliteRow("UNPACK",            _unpack,              MOVES_ELEMENTS),
    TfliteRow("SPLIT",             _split,               MOVES_ELEMENTS, moved_inputs=(1,)),
    TfliteRow("STRIDED_SLICE",     shared.strided_slice, MOVES_ELEMENTS),
    TfliteRow("GATHER",            _gather,              MOVES_ELEMENTS, rule=_gather_rule),
    TfliteRow("PAD",               _pad,                 MOVES_ELEMENTS),
    TfliteRow("PADV2",             _pad,                 MOVES_ELEMENTS, moved_inputs=(0, 2)),
    TfliteRow("MIRROR_PAD",        _mirror_pad,          MOVES_ELEMENTS),
    TfliteRow("SQUEEZE",           _squeeze, MOVES_ELEMENTS, rule=_squeeze_rule,
        extra_tensor_kinds=("complex64",)),
    TfliteRow("SHAPE",             _shape,               QuantizedPolicy.CONVERTER_HANDLED),
    TfliteRow("RANGE",             _range, rule=rules.to_node_rule(rules.arange_rule)),
    TfliteRow("RANK",              _rank,                QuantizedPolicy.CONVERTER_HANDLED),
    TfliteRow("SPACE_TO_DEPTH",    _block_converter(op.nn.space_to_depth), MOVES_ELEMENTS),
    TfliteRow("DEPTH_TO_SPACE",    _block_converter(op.nn.depth_to_space), MOVES_ELEMENTS),
    TfliteRow("SPACE_TO_BATCH_ND", _space_to_batch,      MOVES_ELEMENTS),
    TfliteRow("RESIZE_BILINEAR",   resize("linear"), integer_converter=_quantized_resize_bilinear,
        supports_int16=True),
)
# fmt: on
