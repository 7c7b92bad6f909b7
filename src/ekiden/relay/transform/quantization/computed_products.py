"""Products of bytes that a run computes, as processors multiply them.

    nn.batch_matmul(cast(%x, i32) - p, cast(%y, i32) - q)
->  nn.batch_matmul(%x u8, %y s8) - q rows - p columns        the same with words of bytes
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
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, const
from ekiden.relay.op.nn.geometry import Conv2DAttrs, Conv2DTransposeAttrs
from ekiden.relay.op.nn.matrix_products import BatchMatmulAttrs, DenseAttrs, MatmulAttrs
from ekiden.relay.qnn.products import EXACT, SIGN
from ekiden.relay.transform.graph.calls import typed
from ekiden.relay.transform.graph.fold_scale_axis import op_of
from ekiden.relay.transform.quantization.levels import Levels, is_reshape, levels_of, type_of

MIN_ROWS = 8
"""Rows of data from which packing the other side is worth it: fewer read it about once."""


def product_of_processor(call: Call) -> RelayExpr | None:
    """Return an int32 product of former bytes through kernels that exist, or None."""
    # These are multiplied well as they are.
    if [type_of(operand).dtype for operand in call.args[:2]] == ["uint8", "int8"]:
        return None
    a, b = (levels_of(operand) for operand in call.args[:2])
    if a is None or b is None or a.scale is not None or b.scale is not None:
        return None
    match call.attrs:
        case BatchMatmulAttrs() as attrs if _is_packable(a, b, attrs):
            return _words(call, attrs, a, b)
        case DenseAttrs():
            return _as_batch(call, a, b, True) or _floats(call, a, b)
        case MatmulAttrs() as attrs if not attrs.transpose_a:
            return _as_batch(call, a, b, attrs.transpose_b) or _floats(call, a, b)
        case MatmulAttrs() | BatchMatmulAttrs() | Conv2DAttrs() | Conv2DTransposeAttrs():
            return _floats(call, a, b)
        case _:
            return None


def _size(dim: PrimExpr) -> int:
    """Return the value of a dimension that is known, else 0."""
    return dim.value if isinstance(dim, IntImm) else 0


def _is_packable(a: Levels, b: Levels, attrs: BatchMatmulAttrs) -> bool:
    """Return whether packing the right side is possible and pays.

    Its sizes must be known, its batch that of the left side, and the left side have enough rows.
    """
    batch, *sides = type_of(a.data).shape
    sizes = [_size(d) for d in type_of(b.data).shape]
    rows = sides[1 if attrs.transpose_a else 0]
    are_many = not isinstance(rows, IntImm) or rows.value >= MIN_ROWS
    are_numbers = not a.varies(a.point) and not b.varies(b.point)
    return all(sizes) and _size(batch) == sizes[0] and are_many and are_numbers


def _as_batch(call: Call, a: Levels, b: Levels, transpose_b: bool) -> RelayExpr | None:
    """Return a product with one matrix as a batch of one, or None."""
    if a.varies(a.point) or b.varies(b.point) or not a.rank:
        return None
    flat = typed(op.reshape(a.data, (1, -1, type_of(a.data).shape[-1]), allowzero=False))
    data, weight = Levels(flat, a.point), Levels(typed(op.expand_dims(b.data, 0)), b.point)
    attrs = BatchMatmulAttrs("int32", False, transpose_b)
    if not _is_packable(data, weight, attrs):
        return None
    product = _words(call, attrs, data, weight)
    return op.reshape(product, type_of(call).shape, allowzero=True)


def _as_uint8(levels: Levels) -> tuple[RelayExpr, RelayExpr | None]:
    """Bytes without signs, and their zero point."""
    if type_of(levels.data).dtype == "uint8":
        return levels.data, levels.point
    moved = op.add(op.cast(levels.data, "int16"), const(np.int16(SIGN)))
    by = const(np.int32(SIGN))
    return op.cast(moved, "uint8"), by if levels.point is None else op.add(levels.point, by)


def _as_int8(levels: Levels) -> tuple[RelayExpr, RelayExpr | None]:
    """Bytes with signs, and their zero point."""
    if type_of(levels.data).dtype == "int8":
        return levels.data, levels.point
    moved = op.subtract(op.cast(levels.data, "int16"), const(np.int16(SIGN)))
    by = const(np.int32(-SIGN))
    return op.cast(moved, "int8"), by if levels.point is None else op.add(levels.point, by)


def _words(call: Call, attrs: BatchMatmulAttrs, a: Levels, b: Levels) -> RelayExpr:
    """Return a batch of products of uint8 and int8, corrected for the zero points."""
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


def _floats(call: Call, a: Levels, b: Levels) -> RelayExpr | None:
    """Return the product in floats that hold its sums exactly, or None where no type is
    known to.
    """
    dtype = _exact_type(call, a, b)
    if dtype is None:
        return None
    operands = []
    for levels in (a, b):
        data = op.cast(levels.data, dtype)
        point = levels.point
        operands.append(data if point is None else op.subtract(data, op.cast(point, dtype)))
    attrs = call.attrs
    assert attrs is not None
    product = Call(call.op, tuple(operands), attrs.with_fields(out_dtype=dtype), span=call.span)
    return op.cast(product, "int32")


def _exact_type(call: Call, a: Levels, b: Levels) -> str | None:
    """float32 where sums stay below 2^24; float64, which has kernels of products of matrices, for
    others: no depth reaches 2^53."""
    attrs, shape = call.attrs, type_of(b.data).shape
    left_bound, right_bound = _bound(a), _bound(b)
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
    depth = math.prod(_size(t) or EXACT for t in terms)
    if depth * left_bound * right_bound < EXACT:
        return "float32"
    is_matrix = not isinstance(attrs, Conv2DAttrs | Conv2DTransposeAttrs)
    return "float64" if is_matrix else None


def _bound(levels: Levels) -> int | None:
    """Return how far a byte may be from its zero point, or None if that is unlimited."""
    low, high = int_range(type_of(levels.data).dtype) or (0, 0)
    point = levels.point
    if point is None:
        return max(-low, high)
    if isinstance(point, Constant):
        far = [
            abs(int(p) - end) for p in (point.data.min(), point.data.max()) for end in (low, high)
        ]
        return max(far)
    while isinstance(point, Call) and is_reshape(point):
        point = point.args[0]
    if not isinstance(point, Call) or op_of(point) != "cast":
        return None
    point_low, point_high = int_range(type_of(point.args[0]).dtype) or (0, 0)
    # A zero point of the same type of bytes: the distance is at most the width of the type.
    return max(high - point_low, point_high - low) if point_high - point_low == high - low else None


__all__ = ["product_of_processor"]
