"""Select int8 products for a target: undo widening and adjust signedness for dot-product
instructions.

    nn.batch_matmul(cast(%x s8, i32) - p, cast(%y s8, i32) - q)
        ->  nn.batch_matmul(%x, %y) of i32 - p sum %y - q sum (%x - p)
    nn.dense(%x u8, W s8)                       ->  add(nn.dense(%x - 128 as s8, W), 128 sum W)
    cast(add(cast(%y s8, i16), 128), u8) - 128  ->  %y

Quantised products of computed operands are built of int32, and those of constant weights as uint8
by int8, which processors multiply best. Tensor cores take bytes of one kind: what has no sign is
moved by 128. A border of 0 becomes one of -128 then, and stands around the data.
"""

from __future__ import annotations

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, const
from ekiden.relay.op.nn.matrix_products import BatchMatmulAttrs, DenseAttrs, MatmulAttrs
from ekiden.relay.op.nn.window_attrs import Conv2DAttrs
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of
from ekiden.relay.transform.quantization import cpu_int8_products
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

INT8_DTYPES = ("int8", "uint8")
UINT8_TO_INT8_OFFSET = 128
"""Offset between uint8 and int8 values."""


def select_int8_product(call: Call, target: Target) -> RelayExpr | None:
    """Return an int8 product with int32 accumulation in the form the target multiplies fastest, or
    None to leave it.

    Returns:
        The new expression, or None if the call is to stay.
    """
    is_one = isinstance(call.op, Op) and _tensor_type(call).dtype == "int32"
    if not is_one:
        return None
    # Processors have other instructions for bytes than devices with threads.
    if not target.kind.has_threads:
        return cpu_int8_products.select_cpu_product(call, target)
    if target.has("tensor_cores") and (product := _signed_product(call)) is not None:
        return product
    return _narrow_product(call) if target.has("dot4_s8s8") else None


def _tensor_type(expr: RelayExpr) -> TensorType:
    kind = expr.checked_type
    return kind if isinstance(kind, TensorType) else TensorType((), "")


# --- operands that were widened ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Int8Operand:
    """Operand of a widened product: 8-bit data, less an int32 zero point if there is one."""

    data: RelayExpr
    dtype: str
    zero_point: RelayExpr | None = None

    @staticmethod
    def match(expr: RelayExpr) -> _Int8Operand | None:
        """Match an operand that was widened from 8 bits, or return None.

        It is one if it subtracts a number from widened bytes, is widened bytes, or is a constant
        that fits bytes.
        """
        if isinstance(expr, Constant) and expr.data.dtype == np.int32:
            # A constant may have been widened by constant folding.
            fits = [d for d in INT8_DTYPES if np.array_equal(expr.data.astype(d), expr.data)]
            return _Int8Operand(Constant(expr.data.astype(fits[0])), fits[0]) if fits else None
        if isinstance(expr, Call) and op_name_of(expr) == "subtract":
            side = _Int8Operand.match(expr.args[0])
            # Two zero points in a row are not a form that quantizers write.
            if side is None or side.zero_point is not None:
                return None
            return _Int8Operand(side.data, side.dtype, expr.args[1])
        if (
            not isinstance(expr, Call)
            or op_name_of(expr) != "cast"
            or _tensor_type(expr).dtype != "int32"
        ):
            return None
        dtype = _tensor_type(expr.args[0]).dtype
        return _Int8Operand(expr.args[0], dtype) if dtype in INT8_DTYPES else None

    @property
    def as_int8(self) -> _Int8Operand:
        """Return the same operand with int8 data; its zero point is shifted by 128."""
        if self.dtype == "int8":
            return self
        point = const(np.int32(0)) if self.zero_point is None else self.zero_point
        return _Int8Operand(
            _to_int8(self.data), "int8", op.subtract(point, const(np.int32(UINT8_TO_INT8_OFFSET)))
        )

    @property
    def as_int32(self) -> RelayExpr:
        """Return the operand as int32, with its zero point subtracted."""
        data = op.cast(self.data, "int32")
        return data if self.zero_point is None else op.subtract(data, self.zero_point)


def _narrow_product(call: Call) -> RelayExpr | None:
    """Return a product of widened 8-bit operands as one of 8-bit operands with zero-point
    corrections, or None.
    """
    a, b = (_Int8Operand.match(operand) for operand in call.args[:2])
    if a is None or b is None:
        return None
    is_conv = isinstance(call.attrs, Conv2DAttrs)
    kinds, summed = (a.dtype, b.dtype), _reduction_axes(call)
    are_one = len(set(kinds)) == 1 or (is_conv and kinds == ("uint8", "int8"))
    if are_one and a.zero_point is b.zero_point is None and (is_conv or summed is not None):
        return _emit_product(call, a, b)
    if summed is None or not _has_separable_zero_points(a, b, summed[1]):
        return None
    # Kernels multiply bytes of one kind.
    if a.dtype != b.dtype:
        a, b = a.as_int8, b.as_int8
    # Corrections by row and column sums cost O(n^2), against O(n^3) of the product.
    product = _emit_product(call, a, b)
    # sum (x - p)(y - q) = sum x y - p sum y - q sum (x - p): the corrections need sums of rows and
    # columns alone.
    if a.zero_point is not None:
        sums = op.sum(op.cast(b.data, "int32"), axis=(summed[1],))
        sums = op.expand_dims(sums, -2) if len(_tensor_type(call.args[1]).shape) > 2 else sums
        product = op.subtract(product, op.multiply(_flatten_zero_point(a.zero_point), sums))
    if b.zero_point is not None:
        sums = op.expand_dims(op.sum(a.as_int32, axis=(summed[0],)), -1)
        product = op.subtract(product, op.multiply(_flatten_zero_point(b.zero_point), sums))
    return product


def _emit_product(call: Call, a: _Int8Operand, b: _Int8Operand) -> RelayExpr:
    attrs = call.attrs
    assert attrs is not None
    return Call(call.op, (a.data, b.data), attrs.with_fields(out_dtype="int32"), span=call.span)


def _reduction_axes(call: Call) -> tuple[int, int] | None:
    """Return the reduction axes of a matrix product's operands, or None for any other call."""
    match call.attrs:
        case DenseAttrs():
            return -1, -1
        case MatmulAttrs() | BatchMatmulAttrs() as attrs:
            return -2 if attrs.transpose_a else -1, -1 if attrs.transpose_b else -2
        case _:
            return None


def _has_separable_zero_points(a: _Int8Operand, b: _Int8Operand, summed: int) -> bool:
    """Return whether the zero points are scalars, or one per row of the weight."""
    shape = () if b.zero_point is None else _tensor_type(b.zero_point).shape
    are_rows = summed == -1 and len(shape) == 2 == len(_tensor_type(b.data).shape) and shape[1] == 1
    return _is_scalar_zero_point(a.zero_point) and (are_rows or _is_scalar_zero_point(b.zero_point))


def _is_scalar_zero_point(point: RelayExpr | None) -> bool:
    return point is None or all(d == 1 for d in _tensor_type(point).shape)


def _flatten_zero_point(point: RelayExpr) -> RelayExpr:
    """Flatten a zero point to one dimension."""
    return op.reshape(point, (-1,))


# --- operands of two signs -----------------------------------------------------------------------


def _signed_product(call: Call) -> RelayExpr | None:
    """Return a product of uint8 data with a constant int8 weight as an int8 product, or None."""
    data, weight = call.args[:2]
    if not isinstance(weight, Constant):
        return None
    if [_tensor_type(operand).dtype for operand in (data, weight)] != ["uint8", "int8"]:
        return None
    attrs, sums = call.attrs, weight.data.astype(np.int32)
    if isinstance(attrs, Conv2DAttrs):
        layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout or "NCHW"
        if attrs.groups > 1 or layouts != ("NCHW", "OIHW", "NCHW"):
            return None
        top, before, bottom, right = attrs.padding
        # The border is padded as data, since 0 becomes -128 once the data is shifted.
        if any(attrs.padding):
            around = ((0, 0), (0, 0), (top, bottom), (before, right))
            data = op.nn.pad(data, around, const(np.uint8(0)))
            attrs = attrs.with_fields(padding=(0, 0, 0, 0))
        # One sum for each output channel, broadcast over rows and columns.
        sums = sums.sum(axis=(1, 2, 3), dtype=np.int32)[:, None, None]
    elif isinstance(attrs, DenseAttrs):
        sums = sums.sum(axis=1, dtype=np.int32)
    else:
        return None
    product = Call(call.op, (_to_int8(data), weight), attrs, span=call.span)
    # Shifting the data by 128 takes 128 times the sum of the weights off; it is added back.
    return op.add(product, const(UINT8_TO_INT8_OFFSET * sums))


def _to_int8(data: RelayExpr) -> RelayExpr:
    """Convert uint8 data to int8 by subtracting 128."""
    if (
        isinstance(data, Call)
        and op_name_of(data) == "nn.pad"
        and isinstance(data.args[1], Constant)
    ):
        # The border shifts with the data, which leaves the pad next to the product.
        value = const((data.args[1].data.astype(np.int16) - UINT8_TO_INT8_OFFSET).astype(np.int8))
        return Call(data.op, (_to_int8(data.args[0]), value), data.attrs, span=data.span)
    if (original := _match_int8_offset(data)) is not None:
        return original
    return op.cast(
        op.subtract(op.cast(data, "int16"), const(np.int16(UINT8_TO_INT8_OFFSET))), "int8"
    )


def _match_int8_offset(data: RelayExpr) -> RelayExpr | None:
    """Return the int8 data to which 128 was added, or None."""
    if not isinstance(data, Call) or op_name_of(data) != "cast":
        return None
    moved = data.args[0]
    if not isinstance(moved, Call) or op_name_of(moved) != "add":
        return None
    wide, by = moved.args
    # The frontend has shifted int8 to uint8: the two shifts cancel.
    is_sign = isinstance(by, Constant) and bool(np.all(by.data == UINT8_TO_INT8_OFFSET))
    if not is_sign or not isinstance(wide, Call) or op_name_of(wide) != "cast":
        return None
    return wide.args[0] if _tensor_type(wide.args[0]).dtype == "int8" else None


__all__ = ["select_int8_product"]
