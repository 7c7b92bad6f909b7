"""Select CPU kernels for int8 products whose operands are both computed at run time.

    nn.batch_matmul(cast(%x, i32) - p, cast(%y, i32) - q)
->  nn.batch_matmul(%x u8, %y s8) - q rows - p columns        the same with words of bytes
->  nn.batch_matmul(cast(%x, i16) - p, cast(%y, i16) - q)     words of int16, where bytes are
                                                              widened to them to be multiplied
->  cast(nn.batch_matmul(cast(%x, f32) - p, ..), i32)         sizes that only the run knows

Weights that are known are bytes from the start (qnn/products.py); what is left in int32 is computed
on both sides, and there are no kernels for that. Words want known sizes of the right side, as that
is packed. Sums of floats are exact below 2^24 and 2^53, which bounds the depth.
"""

from __future__ import annotations

import math

import numpy as np

from ekiden.ir.dtype import int_range
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.kernels.cost_model import widens_bytes
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, const
from ekiden.relay.op.nn.matrix_products import BatchMatmulAttrs, DenseAttrs, MatmulAttrs
from ekiden.relay.op.nn.window_attrs import Conv2DAttrs, Conv2DTransposeAttrs
from ekiden.relay.qnn.int8_lowering import MAX_EXACT_FLOAT32_INT, UINT8_TO_INT8_OFFSET
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of
from ekiden.relay.transform.quantization.match_quantized import (
    QuantizedTensor,
    fits_int16,
    is_reshape_only,
    match_quantized_tensor,
    tensor_type_of,
)
from ekiden.target import Target

MIN_PACKED_ROWS = 8
"""Minimum data rows for which packing the right operand pays."""


def select_cpu_product(call: Call, target: Target) -> RelayExpr | None:
    """Return an int32 product of 8-bit operands in terms of the target's kernels, or None."""
    # These are multiplied well as they are.
    if [tensor_type_of(operand).dtype for operand in call.args[:2]] == ["uint8", "int8"]:
        return None
    a, b = (match_quantized_tensor(operand) for operand in call.args[:2])
    if a is None or b is None or a.scale is not None or b.scale is not None:
        return None
    match call.attrs:
        case BatchMatmulAttrs() as attrs if _is_packing_profitable(a, b, attrs):
            return _emit_batch_matmul(call, attrs, a, b, target)
        case DenseAttrs():
            return _as_batch_matmul(call, a, b, True, target) or _emit_float_product(call, a, b)
        case MatmulAttrs() as attrs if not attrs.transpose_a:
            return _as_batch_matmul(call, a, b, attrs.transpose_b, target) or _emit_float_product(
                call, a, b
            )
        case MatmulAttrs() | BatchMatmulAttrs() | Conv2DAttrs() | Conv2DTransposeAttrs():
            return _emit_float_product(call, a, b)
        case _:
            return None


def _static_extent(dim: PrimExpr) -> int:
    """Return a static dimension, or 0 if it is symbolic."""
    return dim.value if isinstance(dim, IntImm) else 0


def _is_packing_profitable(a: QuantizedTensor, b: QuantizedTensor, attrs: BatchMatmulAttrs) -> bool:
    """Return whether packing the right operand is possible and profitable.

    Its sizes must be known, its batch that of the left side, and the left side have enough rows.
    """
    batch, *sides = tensor_type_of(a.data).shape
    sizes = [_static_extent(d) for d in tensor_type_of(b.data).shape]
    rows = sides[1 if attrs.transpose_a else 0]
    # Packing touches the right operand once; with few rows the product itself reads it hardly more
    # often.
    are_many = not isinstance(rows, IntImm) or rows.value >= MIN_PACKED_ROWS
    are_numbers = not a.varying_axes(a.zero_point) and not b.varying_axes(b.zero_point)
    return all(sizes) and _static_extent(batch) == sizes[0] and are_many and are_numbers


def _as_batch_matmul(
    call: Call, a: QuantizedTensor, b: QuantizedTensor, transpose_b: bool, target: Target
) -> RelayExpr | None:
    """Return a matrix product as a batch_matmul of batch 1, or None."""
    # The corrections below take zero points that are single numbers.
    if a.varying_axes(a.zero_point) or b.varying_axes(b.zero_point) or not a.rank:
        return None
    flat = infer_new_types(
        op.reshape(a.data, (1, -1, tensor_type_of(a.data).shape[-1]), allowzero=False)
    )
    data, weight = (
        QuantizedTensor(flat, a.zero_point),
        QuantizedTensor(infer_new_types(op.expand_dims(b.data, 0)), b.zero_point),
    )
    attrs = BatchMatmulAttrs("int32", False, transpose_b)
    if not _is_packing_profitable(data, weight, attrs):
        return None
    product = _emit_batch_matmul(call, attrs, data, weight, target)
    return op.reshape(product, tensor_type_of(call).shape, allowzero=True)


def _as_uint8(levels: QuantizedTensor) -> tuple[RelayExpr, RelayExpr | None]:
    """Return the data as uint8 with its zero point."""
    if tensor_type_of(levels.data).dtype == "uint8":
        return levels.data, levels.zero_point
    moved = op.add(op.cast(levels.data, "int16"), const(np.int16(UINT8_TO_INT8_OFFSET)))
    by = const(np.int32(UINT8_TO_INT8_OFFSET))
    return op.cast(moved, "uint8"), by if levels.zero_point is None else op.add(
        levels.zero_point, by
    )


def _as_int8(levels: QuantizedTensor) -> tuple[RelayExpr, RelayExpr | None]:
    """Return the data as int8 with its zero point."""
    if tensor_type_of(levels.data).dtype == "int8":
        return levels.data, levels.zero_point
    moved = op.subtract(op.cast(levels.data, "int16"), const(np.int16(UINT8_TO_INT8_OFFSET)))
    by = const(np.int32(-UINT8_TO_INT8_OFFSET))
    return op.cast(moved, "int8"), by if levels.zero_point is None else op.add(
        levels.zero_point, by
    )


def _emit_batch_matmul(
    call: Call,
    attrs: BatchMatmulAttrs,
    a: QuantizedTensor,
    b: QuantizedTensor,
    target: Target,
) -> RelayExpr:
    """Emit a batch_matmul of bytes, or of int16 where the target widens bytes to multiply them:
    int16 holds them less their zero points, so that the product needs no corrections.
    """
    left, right = (_as_int16(a), _as_int16(b)) if widens_bytes(target) else (None, None)
    if left is None or right is None:
        return _emit_int8_batch_matmul(call, attrs, a, b)
    product = op.nn.batch_matmul(left, right, "int32", attrs.transpose_a, attrs.transpose_b)
    return product.with_fields(span=call.span)


def _as_int16(levels: QuantizedTensor) -> RelayExpr | None:
    """Return the data as int16 less their zero point; None where that may not fit."""
    data, point = op.cast(levels.data, "int16"), levels.zero_point
    if point is None:
        return data
    return op.subtract(data, op.cast(point, "int16")) if fits_int16(point) else None


def _emit_int8_batch_matmul(
    call: Call, attrs: BatchMatmulAttrs, a: QuantizedTensor, b: QuantizedTensor
) -> RelayExpr:
    """Emit a batch_matmul of uint8 by int8 with zero-point corrections."""
    data, point = _as_uint8(a)
    weight, kernel_point = _as_int8(b)
    product: RelayExpr = op.nn.batch_matmul(
        data, weight, "int32", attrs.transpose_a, attrs.transpose_b
    ).with_fields(span=call.span)
    # sum (x - p)(y - q) = sum x y - p sum y - q sum (x - p).
    if point is not None:
        depth = 2 if attrs.transpose_b else 1
        columns = op.expand_dims(op.sum(op.cast(weight, "int32"), axis=(depth,)), 1)
        product = op.subtract(product, op.multiply(columns, point))
    if kernel_point is not None:
        levels: RelayExpr = op.cast(data, "int32")
        levels = levels if point is None else op.subtract(levels, point)
        depth = 1 if attrs.transpose_a else 2
        rows = op.expand_dims(op.sum(levels, axis=(depth,)), 2)
        product = op.subtract(product, op.multiply(rows, kernel_point))
    return product


def _emit_float_product(call: Call, a: QuantizedTensor, b: QuantizedTensor) -> RelayExpr | None:
    """Emit the product in a float dtype that represents its sums exactly; None where no
    dtype does.
    """
    dtype = _exact_float_dtype(call, a, b)
    if dtype is None:
        return None
    operands = []
    for levels in (a, b):
        data = op.cast(levels.data, dtype)
        point = levels.zero_point
        operands.append(data if point is None else op.subtract(data, op.cast(point, dtype)))
    attrs = call.attrs
    assert attrs is not None
    product = Call(call.op, tuple(operands), attrs.with_fields(out_dtype=dtype), span=call.span)
    return op.cast(product, "int32")


def _exact_float_dtype(call: Call, a: QuantizedTensor, b: QuantizedTensor) -> str | None:
    """Return float32 where sums stay below 2^24, else float64 for matrix products (no depth reaches
    2^53), else None.
    """
    attrs, shape = call.attrs, tensor_type_of(b.data).shape
    left_bound, right_bound = _max_magnitude(a), _max_magnitude(b)
    if left_bound is None or right_bound is None:
        return None
    match attrs:
        case DenseAttrs():
            terms = [shape[-1]]
        case MatmulAttrs() | BatchMatmulAttrs():
            terms = [shape[-1 if attrs.transpose_b else -2]]
        case Conv2DAttrs() | Conv2DTransposeAttrs():
            channels = "I" if isinstance(attrs, Conv2DAttrs) else "O"
            terms = [d for d, axis in zip(shape, attrs.kernel_layout, strict=True)
                     if axis in f"{channels}HW"]  # fmt: skip
        case _:
            return None
    # A term of unknown size counts as too many for float32.
    depth = math.prod(_static_extent(t) or MAX_EXACT_FLOAT32_INT for t in terms)
    if depth * left_bound * right_bound < MAX_EXACT_FLOAT32_INT:
        return "float32"
    # Convolutions in float64 have no fast kernels.
    is_matrix = not isinstance(attrs, Conv2DAttrs | Conv2DTransposeAttrs)
    return "float64" if is_matrix else None


def _max_magnitude(levels: QuantizedTensor) -> int | None:
    """Return the largest distance of an 8-bit value from its zero point, or None if unbounded."""
    low, high = int_range(tensor_type_of(levels.data).dtype) or (0, 0)
    point = levels.zero_point
    if point is None:
        return max(-low, high)
    if isinstance(point, Constant):
        far = [
            abs(int(p) - end) for p in (point.data.min(), point.data.max()) for end in (low, high)
        ]
        return max(far)
    # Reshapes keep the values, and so their range.
    while isinstance(point, Call) and is_reshape_only(point):
        point = point.args[0]
    if not isinstance(point, Call) or op_name_of(point) != "cast":
        return None
    point_low, point_high = int_range(tensor_type_of(point.args[0]).dtype) or (0, 0)
    # A zero point of the same type of bytes: the distance is at most the width of the type.
    return max(high - point_low, point_high - low) if point_high - point_low == high - low else None


__all__ = ["select_cpu_product"]
