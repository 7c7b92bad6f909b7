"""Convert products of dequantised 8-bit operands to qnn operators.

    nn.dense((cast(%x u8, i32) - p) * s, (cast(W s8, i32) - q) * t)       in float32
->  cast(qnn.dense(%x, W, p, q), f32) * (s t)
    nn.conv2d(cast(%x u8, i32) - p, W i32)                                in int32
->  qnn.conv2d(%x, W s8, p, 0)

However a program writes it (match_quantized.py), there is one integer product, which the
dialect computes as
the target does best; of bytes, which constants are folded to. Its sums are exact, those of float32
are rounded. What a scale varies along has to be an axis of the result: rows of data, channels of
weights. A zero point of data is one for all.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay import op
from ekiden.relay.expr import Call, const
from ekiden.relay.op._declare import call_op as call_op
from ekiden.relay.op.nn.matrix_products import BatchMatmulAttrs, DenseAttrs, MatmulAttrs
from ekiden.relay.op.nn.window_attrs import Conv2DAttrs, Conv2DTransposeAttrs
from ekiden.relay.transform.graph.call_rewrites import infer_new_types, rewrite_calls
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import lift_body_rewrite, map_functions
from ekiden.relay.transform.quantization.match_quantized import (
    QuantizedTensor,
    match_quantized_tensor,
    tensor_type_of,
)
from ekiden.runtime.lazy_dataclass import dataclass

CONVERTIBLE_PRODUCTS = (
    "nn.dense",
    "nn.matmul",
    "nn.batch_matmul",
    "nn.conv2d",
    "nn.conv2d_transpose",
)
ACCUMULATOR_DTYPES = ("int32", "float32")
"""Accumulator dtypes that hold every sum of an integer product; int32 wraps as the product itself
does.
"""


@dataclass(frozen=True, slots=True)
class _ScaleAxes:
    """Operand axes of a product along which a scale may vary, mapped to axes of the result.

    rows: of the data, axis -> that of the result; channels: that of the weight, and of the result.
    """

    row_axes: Mapping[int, int]
    channel_axes: tuple[int, int] | None
    rank: int
    """Rank of the result."""


def _broadcast_parameter(
    levels: QuantizedTensor, parameter: RelayExpr, axis: int, at: int, rank: int
) -> RelayExpr:
    """Reshape a quantisation parameter to broadcast with a result of `rank` dimensions.

    It varies along `axis` of an operand, which is axis `at` of the result.
    """
    if not levels.varying_axes(parameter):
        return (
            infer_new_types(op.reshape(parameter, ()))
            if tensor_type_of(parameter).shape
            else parameter
        )
    after = rank - 1 - at
    return infer_new_types(op.reshape(parameter, (-1, *(1,) * after)))


def _weight_zero_point(levels: QuantizedTensor, channels: int) -> RelayExpr:
    """Return a weight's zero point in the form that qnn operators expect."""
    point = levels.zero_point
    if point is None:
        return const(np.int32(0))
    shape = (-1,) if levels.varying_axes(point) else ()
    return (
        infer_new_types(op.reshape(point, shape)) if tensor_type_of(point).shape != shape else point
    )


def _match_qnn_product(
    call: Call, a: QuantizedTensor, b: QuantizedTensor
) -> tuple[str, Attrs, RelayExpr, RelayExpr, _ScaleAxes] | None:
    """Return the qnn operator of a product with its attributes, operands and scale axes,
    or None.
    """
    rank = len(tensor_type_of(call).shape)
    match call.attrs:
        case DenseAttrs() as attrs:
            rows = {n: n for n in range(rank - 1)}
            return "qnn.dense", attrs, a.data, b.data, _ScaleAxes(rows, (0, rank - 1), rank)
        case MatmulAttrs() as attrs:
            data = _transpose_matrix(a.data) if attrs.transpose_a else a.data
            weight = b.data if attrs.transpose_b else _transpose_matrix(b.data)
            # In transposed data the rows lie along the last axis.
            last = a.rank - 1 if attrs.transpose_a else None
            rows = {n: n for n in range(rank - 1)} if last is None else {last: rank - 2}
            channels = (0 if attrs.transpose_b else 1, rank - 1)
            plain = DenseAttrs(attrs.units, attrs.out_dtype)
            return "qnn.dense", plain, data, weight, _ScaleAxes(rows, channels, rank)
        case BatchMatmulAttrs() as attrs:
            rows = {2 if attrs.transpose_a else 1: 1}
            channels = (1 if attrs.transpose_b else 2, 2)
            return "qnn.batch_matmul", attrs, a.data, b.data, _ScaleAxes(rows, channels, rank)
        case Conv2DAttrs() | Conv2DTransposeAttrs() as attrs:
            out = attrs.out_layout or attrs.data_layout
            if {*attrs.kernel_layout} != {*"OIHW"} or {*out} != {*"NCHW"}:
                return None
            name = "conv2d" if isinstance(attrs, Conv2DAttrs) else "conv2d_transpose"
            indices = attrs.kernel_layout.index("O"), out.index("C")
            is_grouped = name == "conv2d_transpose" and attrs.groups > 1  # O is of a group
            axes = _ScaleAxes({}, None if is_grouped else indices, rank)
            return f"qnn.{name}", attrs, a.data, b.data, axes
        case _:
            return None


def _transpose_matrix(matrix: RelayExpr) -> RelayExpr:
    rank = len(tensor_type_of(matrix).shape)
    return infer_new_types(op.transpose(matrix, (*range(rank - 2), rank - 1, rank - 2)))


def _has_compatible_parameters(
    a: QuantizedTensor, b: QuantizedTensor, axes: _ScaleAxes, is_batched: bool
) -> bool:
    """Return whether scales and zero points vary only along axes of the result."""
    channels = set() if axes.channel_axes is None or is_batched else {axes.channel_axes[0]}
    return (
        not a.varying_axes(a.zero_point)
        and a.varying_axes(a.scale) <= set(axes.row_axes)
        and len(a.varying_axes(a.scale)) <= 1
        and b.varying_axes(b.zero_point) <= channels
        and b.varying_axes(b.scale) <= ({axes.channel_axes[0]} if axes.channel_axes else set())
    )


def _convert_product(call: Call) -> RelayExpr | None:
    """Return a product as a qnn product, or None."""
    out = tensor_type_of(call).dtype
    # Integer sums round otherwise than sums of floats, so those need permission.
    if out not in ACCUMULATOR_DTYPES or (
        out == "float32" and not is_rewrite_allowed("multiply bytes")
    ):
        return None
    if [tensor_type_of(operand).dtype for operand in call.args[:2]] == ["uint8", "int8"]:
        return None  # it is one of bytes already
    sides = []
    for operand in call.args[:2]:
        if (levels := match_quantized_tensor(operand)) is None:
            return None
        sides.append(levels)
    a, b = sides
    product = _match_qnn_product(call, a, b)
    # A result of int32 leaves no room for scales.
    if product is None or (out == "int32" and (a.scale is not None or b.scale is not None)):
        return None
    name, attrs, data, weight, axes = product
    # A parameter along a summed axis cannot be moved out of the sum.
    if not _has_compatible_parameters(a, b, axes, name == "qnn.batch_matmul"):
        return None
    zero = const(np.int32(0))
    point = zero if a.zero_point is None else _broadcast_parameter(a, a.zero_point, 0, 0, 0)
    one = const(np.float32(1))
    # The scales are multiplied in afterwards, so the dialect sees scales of one.
    changed = attrs.with_fields(out_dtype="int32")
    kernel_point = _weight_zero_point(b, 0)
    args = (data, weight, point, kernel_point, one, one)
    sums: RelayExpr = call_op(name, *args, attrs=changed).with_fields(span=call.span)
    return infer_new_types(sums) if out == "int32" else _dequantize_sums(sums, a, b, axes)


def _dequantize_sums(
    sums: RelayExpr, a: QuantizedTensor, b: QuantizedTensor, axes: _ScaleAxes
) -> RelayExpr:
    """Multiply int32 sums by the operands' scales."""
    scales = []
    if a.scale is not None:
        axis = next(iter(a.varying_axes(a.scale)), 0)
        scales.append(_broadcast_parameter(a, a.scale, axis, axes.row_axes.get(axis, 0), axes.rank))
    if b.scale is not None:
        axis, position = axes.channel_axes or (0, 0)
        scales.append(_broadcast_parameter(b, b.scale, axis, position, axes.rank))
    floats = op.cast(sums, "float32")
    if not scales:
        return infer_new_types(floats)
    # The two scales are multiplied first: constants then fold to one factor.
    factor = scales[0] if len(scales) == 1 else op.multiply(*scales)
    return infer_new_types(op.multiply(floats, factor))


def IntegerProducts() -> Pass:  # noqa: N802
    """Return a pass that converts products of dequantised operands to qnn operators."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Convert the products of each function to integers."""
        table = dict.fromkeys(CONVERTIBLE_PRODUCTS, _convert_product)
        return map_functions(module, lift_body_rewrite(lambda body: rewrite_calls(body, table)))

    return Pass("IntegerProducts", transform, 1, (InferType(),))


__all__ = ["IntegerProducts"]
