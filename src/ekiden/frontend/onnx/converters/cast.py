"""Cast, CastLike and BitCast, including the small floats (float8, float4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.dtype import SMALL_FLOATS, to_numpy
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.tir.small_types import E8M0_SCALE_DTYPE

if TYPE_CHECKING:
    from ekiden.frontend.onnx.converters import string_number_casts
else:
    string_number_casts = LazyModule("ekiden.frontend.onnx.converters.string_number_casts")


def saturating_cast(node: OnnxNode, data: Expr, dtype: str) -> Expr:
    """Emit a saturating cast to a small float: values beyond its range become the largest finite
    number.
    """
    if dtype == E8M0_SCALE_DTYPE:
        return _cast_to_e8m0(node, data)
    if dtype == "float4_e2m1fn":  # has neither infinities nor others
        return op.cast(data, dtype)
    largest = float(max_finite(dtype))
    wide = op.cast(data, "float32") if node.tensor_type_of(data).dtype != "float32" else data
    return op.cast(op.clip(wide, -largest, largest), dtype)


def max_finite(dtype: str) -> np.float32:
    """Return the largest finite number of an 8-bit float dtype."""
    codes = np.arange(256, dtype=np.uint8).view(to_numpy(dtype)).astype(np.float32)
    return np.float32(codes[np.isfinite(codes)].max())


def _cast_to_e8m0(node: OnnxNode, data: Expr) -> Expr:
    """Emit a cast to float8_e8m0fnu, a power of two: the biased exponent, rounded as `round_mode`
    says. 0 and values below the range become the smallest number; NaN is preserved.
    """
    # float32 layout: 8 exponent bits above 23 mantissa bits; e8m0 stores the biased exponent alone,
    # 255 is NaN.
    bits = op.reinterpret(op.cast(data, "float32"), "uint32")
    exponent = op.bitwise_and(op.right_shift(bits, _uint32_const(23)), _uint32_const(0xFF))
    mantissa = op.bitwise_and(bits, _uint32_const(0x7FFFFF))
    mode = node.get_string("round_mode", "up")
    if mode == "up":
        more = op.greater(mantissa, _uint32_const(0))
    elif mode == "nearest":
        more = op.greater_equal(mantissa, _uint32_const(0x400000))
    else:
        more = op.greater(mantissa, _uint32_const(0x7FFFFF))
    # 254 is the largest power of two; 255 encodes NaN.
    rounded = op.minimum(op.add(exponent, op.cast(more, "uint32")), _uint32_const(254))
    special = op.where(
        op.greater(mantissa, _uint32_const(0)), _uint32_const(255), _uint32_const(254)
    )
    code = op.where(op.equal(exponent, _uint32_const(255)), special, rounded)
    return op.reinterpret(op.cast(code, "uint8"), E8M0_SCALE_DTYPE)


def _uint32_const(value: int) -> Expr:
    """Return a uint32 constant."""
    return const(np.uint32(value))


def _convert_dtype(node: OnnxNode, dtype: str) -> Expr | Value:
    """Emit the cast of input 0 to a dtype, saturating for small floats unless `saturate` is 0."""
    if dtype == node.dtype(0):
        return node.value(0)
    # Without saturation an overflow becomes infinity or NaN (ONNX Cast 19).
    if dtype in SMALL_FLOATS and node.get_int("saturate", 1):
        return saturating_cast(node, node.expr(0), dtype)
    return op.cast(node.expr(0), dtype)


def _cast(node: OnnxNode) -> Expr | Value:
    if node.get_int("to") == onnx.TensorProto.STRING:
        return string_number_casts.format_numbers(node)
    return _convert_dtype(node, from_onnx_dtype(node.get_int("to")))


def _cast_like(node: OnnxNode) -> Expr | Value:
    """Convert CastLike: cast to the dtype of input 1."""
    return _convert_dtype(node, node.dtype(1))


def _bit_cast(node: OnnxNode) -> Expr | Value:
    """Convert BitCast: reinterpret the bits in a dtype of the same width."""
    dtype = from_onnx_dtype(node.get_int("to"))
    if dtype == node.dtype(0):
        return node.value(0)
    if "bool" in (dtype, node.dtype(0)):  # a byte, 0 or 1
        return op.cast(node.expr(0), dtype)
    return op.reinterpret(node.expr(0), dtype)


_ROUND_MODES = {"round_mode": ("up", "down", "nearest")}

# fmt: off
ROWS = (
    OnnxRow("Cast",     _cast, attributes="to saturate round_mode", supported_values=_ROUND_MODES),
    OnnxRow("CastLike", _cast_like, attributes="saturate round_mode",
        supported_values=_ROUND_MODES),
    OnnxRow("BitCast",  _bit_cast, attributes="to"),
)
# fmt: on
