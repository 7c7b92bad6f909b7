"""Products of bytes of two signs as products of bytes that both have one.

    nn.dense(%x u8, W s8)                       ->  add(nn.dense(%x - 128 as s8, W), 128 sum W)
    cast(add(cast(%y s8, i16), 128), u8) - 128  ->  %y

Tensor cores multiply bytes of one kind, and processors best uint8 by int8, as quantised products
are built. A border of 0 becomes one of -128, and stands around the data then.
"""

from __future__ import annotations

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, const
from ekiden.relay.op.nn.geometry import Conv2DAttrs
from ekiden.relay.transform.fold_scale_axis import op_of

SIGN = 128
"""Between the numbers of uint8 and those of int8."""


def signed_product(call: Call) -> RelayExpr | None:
    """A product of uint8 with a constant weight of int8 as one of int8; None for another."""
    data, weight = call.args[:2]
    if not isinstance(call.op, Op) or not isinstance(weight, Constant):
        return None
    kinds = [e.checked_type.dtype for e in (call, data, weight) if isinstance(e.checked_type, TensorType)]
    if kinds != ["int32", "uint8", "int8"]:
        return None
    attrs, sums = call.attrs, weight.data.astype(np.int32)
    if isinstance(attrs, Conv2DAttrs):
        layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout or "NCHW"
        if attrs.groups > 1 or layouts != ("NCHW", "OIHW", "NCHW"):
            return None
        top, left, bottom, right = attrs.padding
        if any(attrs.padding):
            around = ((0, 0), (0, 0), (top, bottom), (left, right))
            data = op.nn.pad(data, around, const(np.uint8(0)))
            attrs = attrs.with_fields(padding=(0, 0, 0, 0))
        sums = sums.sum(axis=(1, 2, 3), dtype=np.int32)[:, None, None]
    elif op_of(call) == "nn.dense":
        sums = sums.sum(axis=1, dtype=np.int32)
    else:
        return None
    made = Call(call.op, (_signed(data), weight), attrs, span=call.span)
    return op.add(made, const(SIGN * sums))


def _signed(data: RelayExpr) -> RelayExpr:
    """Bytes less 128, as int8."""
    if isinstance(data, Call) and op_of(data) == "nn.pad" and isinstance(data.args[1], Constant):
        value = const((data.args[1].data.astype(np.int16) - SIGN).astype(np.int8))
        return Call(data.op, (_signed(data.args[0]), value), data.attrs, span=data.span)
    if (found := _was_signed(data)) is not None:
        return found
    return op.cast(op.subtract(op.cast(data, "int16"), const(np.int16(SIGN))), "int8")


def _was_signed(data: RelayExpr) -> RelayExpr | None:
    """The bytes of int8 to which 128 was added."""
    if not isinstance(data, Call) or op_of(data) != "cast":
        return None
    moved = data.args[0]
    if not isinstance(moved, Call) or op_of(moved) != "add":
        return None
    wide, by = moved.args
    is_sign = isinstance(by, Constant) and bool(np.all(by.data == SIGN))
    if not is_sign or not isinstance(wide, Call) or op_of(wide) != "cast":
        return None
    kind = wide.args[0].checked_type
    return wide.args[0] if isinstance(kind, TensorType) and kind.dtype == "int8" else None


__all__ = ["signed_product"]
