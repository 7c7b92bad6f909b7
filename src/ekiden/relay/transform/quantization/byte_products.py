"""Products of bytes for devices that multiply them as they are.

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
from ekiden.relay.op.nn.geometry import Conv2DAttrs
from ekiden.relay.op.nn.matrix_products import BatchMatmulAttrs, DenseAttrs, MatmulAttrs
from ekiden.relay.transform.graph.fold_scale_axis import op_of
from ekiden.relay.transform.quantization import computed_products
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

BYTES = ("int8", "uint8")
SIGN = 128
"""Between the numbers of uint8 and those of int8."""


def product_of_bytes(call: Call, target: Target) -> RelayExpr | None:
    """Return a product with int32 sums as the devices of a target compute it best.

    Returns:
        The new expression, or None if the call is to stay.
    """
    is_one = isinstance(call.op, Op) and _type(call).dtype == "int32"
    if not is_one:
        return None
    if not target.kind.has_threads:
        return computed_products.product_of_processor(call)
    if target.has("tensor_cores") and (product := _signed_product(call)) is not None:
        return product
    return _narrow_product(call) if target.has("dot4_s8s8") else None


def _type(expr: RelayExpr) -> TensorType:
    kind = expr.checked_type
    return kind if isinstance(kind, TensorType) else TensorType((), "")


# --- operands that were widened ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand: bytes, less a number of int32 if there is one."""

    data: RelayExpr
    dtype: str
    point: RelayExpr | None = None

    @staticmethod
    def of(expr: RelayExpr) -> _Side | None:
        """Return the side that an expression is, or None.

        It is one if it subtracts a number from widened bytes, is widened bytes, or is a constant
        that fits bytes.
        """
        if isinstance(expr, Constant) and expr.data.dtype == np.int32:
            fits = [d for d in BYTES if np.array_equal(expr.data.astype(d), expr.data)]
            return _Side(Constant(expr.data.astype(fits[0])), fits[0]) if fits else None
        if isinstance(expr, Call) and op_of(expr) == "subtract":
            side = _Side.of(expr.args[0])
            if side is None or side.point is not None:
                return None
            return _Side(side.data, side.dtype, expr.args[1])
        if not isinstance(expr, Call) or op_of(expr) != "cast" or _type(expr).dtype != "int32":
            return None
        dtype = _type(expr.args[0]).dtype
        return _Side(expr.args[0], dtype) if dtype in BYTES else None

    @property
    def signed(self) -> _Side:
        """Return the same side in int8."""
        if self.dtype == "int8":
            return self
        point = const(np.int32(0)) if self.point is None else self.point
        return _Side(_signed(self.data), "int8", op.subtract(point, const(np.int32(SIGN))))

    @property
    def wide(self) -> RelayExpr:
        """Return the operand in int32."""
        data = op.cast(self.data, "int32")
        return data if self.point is None else op.subtract(data, self.point)


def _narrow_product(call: Call) -> RelayExpr | None:
    """Return a product of widened bytes as a product of bytes, or None."""
    a, b = (_Side.of(operand) for operand in call.args[:2])
    if a is None or b is None:
        return None
    is_conv = isinstance(call.attrs, Conv2DAttrs)
    kinds, summed = (a.dtype, b.dtype), _summed_axes(call)
    are_one = len(set(kinds)) == 1 or (is_conv and kinds == ("uint8", "int8"))
    if are_one and a.point is b.point is None and (is_conv or summed is not None):
        return _of(call, a, b)
    if summed is None or not _are_apart(a, b, summed[1]):
        return None
    if a.dtype != b.dtype:
        a, b = a.signed, b.signed
    product = _of(call, a, b)
    # sum (x - p)(y - q) = sum x y - p sum y - q sum (x - p): the corrections need sums of rows and
    # columns alone.
    if a.point is not None:
        sums = op.sum(op.cast(b.data, "int32"), axis=(summed[1],))
        sums = op.expand_dims(sums, -2) if len(_type(call.args[1]).shape) > 2 else sums
        product = op.subtract(product, op.multiply(_flat(a.point), sums))
    if b.point is not None:
        sums = op.expand_dims(op.sum(a.wide, axis=(summed[0],)), -1)
        product = op.subtract(product, op.multiply(_flat(b.point), sums))
    return product


def _of(call: Call, a: _Side, b: _Side) -> RelayExpr:
    attrs = call.attrs
    assert attrs is not None
    return Call(call.op, (a.data, b.data), attrs.with_fields(out_dtype="int32"), span=call.span)


def _summed_axes(call: Call) -> tuple[int, int] | None:
    """Return the axes that a product of matrices sums over, or None for any other call."""
    match call.attrs:
        case DenseAttrs():
            return -1, -1
        case MatmulAttrs() | BatchMatmulAttrs() as attrs:
            return -2 if attrs.transpose_a else -1, -1 if attrs.transpose_b else -2
        case _:
            return None


def _are_apart(a: _Side, b: _Side, summed: int) -> bool:
    """Return whether the zero points are single numbers, or one for each row of the weight."""
    shape = () if b.point is None else _type(b.point).shape
    are_rows = summed == -1 and len(shape) == 2 == len(_type(b.data).shape) and shape[1] == 1
    return _is_number(a.point) and (are_rows or _is_number(b.point))


def _is_number(point: RelayExpr | None) -> bool:
    return point is None or all(d == 1 for d in _type(point).shape)


def _flat(point: RelayExpr) -> RelayExpr:
    """Return a zero point as a vector of one dimension."""
    return op.reshape(point, (-1,))


# --- operands of two signs -----------------------------------------------------------------------


def _signed_product(call: Call) -> RelayExpr | None:
    """Return a product of uint8 with a constant weight of int8 as one of int8, or None."""
    data, weight = call.args[:2]
    if not isinstance(weight, Constant):
        return None
    if [_type(operand).dtype for operand in (data, weight)] != ["uint8", "int8"]:
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
        sums = sums.sum(axis=(1, 2, 3), dtype=np.int32)[:, None, None]
    elif isinstance(attrs, DenseAttrs):
        sums = sums.sum(axis=1, dtype=np.int32)
    else:
        return None
    product = Call(call.op, (_signed(data), weight), attrs, span=call.span)
    # Shifting the data by 128 takes 128 times the sum of the weights off; it is added back.
    return op.add(product, const(SIGN * sums))


def _signed(data: RelayExpr) -> RelayExpr:
    """Bytes without signs less 128, as int8."""
    if isinstance(data, Call) and op_of(data) == "nn.pad" and isinstance(data.args[1], Constant):
        value = const((data.args[1].data.astype(np.int16) - SIGN).astype(np.int8))
        return Call(data.op, (_signed(data.args[0]), value), data.attrs, span=data.span)
    if (original := _was_signed(data)) is not None:
        return original
    return op.cast(op.subtract(op.cast(data, "int16"), const(np.int16(SIGN))), "int8")


def _was_signed(data: RelayExpr) -> RelayExpr | None:
    """Return the int8 bytes to which 128 was added, or None."""
    if not isinstance(data, Call) or op_of(data) != "cast":
        return None
    moved = data.args[0]
    if not isinstance(moved, Call) or op_of(moved) != "add":
        return None
    wide, by = moved.args
    is_sign = isinstance(by, Constant) and bool(np.all(by.data == SIGN))
    if not is_sign or not isinstance(wide, Call) or op_of(wide) != "cast":
        return None
    return wide.args[0] if _type(wide.args[0]).dtype == "int8" else None


__all__ = ["product_of_bytes"]
