"""Arithmetic of TensorFlow Lite's integer kernels, bit for bit as the reference kernels.

    real value = scale * (number - point)
    a product with a real number = a product with an integer of 31 bits and a shift, rounded twice

The optimised kernels of TensorFlow Lite round once instead, or in floating point (XNNPACK), so that
they differ from the reference kernels, and so from these, by one step in a number of a thousand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekiden.frontend.tflite.load import TensorQuantization, TfliteTensor
from ekiden.frontend.tflite.node import TfliteNode
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn.scale_conversion import (
    multiply_fixed_point,
    multiply_fixed_point_array,
    multiply_fixed_point_int,
    to_fixed_point,
)
from ekiden.runtime.lazy_dataclass import dataclass

INTEGER_KERNEL_DTYPES = ("int8", "uint8", "int16")
"""Those of the integer kernels that are here."""


@dataclass(frozen=True, slots=True)
class QuantParams:
    """Quantization parameters of a tensor: scale, zero point and dtype."""

    scale: np.float32
    zero_point: int
    dtype: str

    @property
    def level_limits(self) -> tuple[int, int]:
        """Return the least and the largest level of the dtype."""
        span = 1 << 8 * to_numpy(self.dtype).itemsize
        return (0, span - 1) if self.dtype == "uint8" else (-span // 2, span // 2 - 1)

    def quantize_value(self, real: float) -> int:
        """Quantize a real value, rounding half away from zero; the level may exceed the limits."""
        steps = np.float32(real) / self.scale
        return self.zero_point + int(np.trunc(steps + np.copysign(np.float32(0.5), steps)))


def is_quantized(node: TfliteNode) -> bool:
    """Return whether one of an operator's tensors is quantized."""
    candidates = [
        t for t in (*node.ins, *node.outs) if t is not None and t.quantization is not None
    ]
    return any(t.dtype in ("int8", "uint8", "int16", "int4") for t in candidates)


def quantization_of(node: TfliteNode, tensor: TfliteTensor | None) -> TensorQuantization:
    """Return the quantization of a tensor of INTEGER_KERNEL_DTYPES; reject any other."""
    if tensor is None or tensor.quantization is None or tensor.dtype not in INTEGER_KERNEL_DTYPES:
        kind = "missing" if tensor is None else tensor.dtype
        node.reject(f"{tensor} is {kind}: kernels of quantised int8, uint8, int16 are here")
    return tensor.quantization


def quant_params(node: TfliteNode, tensor: TfliteTensor | None) -> QuantParams:
    """Return the parameters of a per-tensor quantized tensor."""
    quantization = quantization_of(node, tensor)
    assert tensor is not None
    if len(quantization.scale) != 1:
        node.reject(f"{tensor} has several scales")
    return QuantParams(np.float32(quantization.scale[0]), quantization.zero_point[0], tensor.dtype)


def subtract_zero_point(data: Expr, point: int) -> Expr:
    """Emit levels minus the zero point, as int32."""
    wide = op.cast(data, "int32")
    return op.subtract(wide, const(np.int32(point))) if point else wide


def rescale(data: Expr, multiplier: float | Array) -> Expr:
    """Rescale int32 numbers by a real multiplier with double rounding, as the reference
    kernels do.
    """
    return multiply_fixed_point(data, multiplier, "TWICE")


def rescale_single_rounding(data: Expr, multiplier: float | Array) -> Expr:
    """Rescale int32 numbers by a real multiplier with a single rounding, as FULLY_CONNECTED's
    kernel does.
    """
    return multiply_fixed_point(data, multiplier)


def rescale_half_up(data: Expr, multiplier: float) -> Expr:
    """Rescale int32 numbers by a real multiplier, rounded twice, half up, as ruy does for int16
    results.
    """
    mantissa, exponent = (int(n) for n in to_fixed_point(np.asarray(multiplier, np.float64)))
    high = multiply_fixed_point_int(data, mantissa, max(exponent, 0), "TWICE")
    shift = max(-exponent, 0)
    return op.right_shift(op.add(high, const(np.int32(1 << shift >> 1))), const(np.int32(shift)))


def rescale_by_q15(data: Expr, multiplier: float | Array) -> Expr:
    """Rescale int64 sums by a multiplier with a 15-bit mantissa, rounded once, as the int16 kernels
    do.
    """
    mantissa, exponent = to_fixed_point(np.asarray(multiplier, np.float64))
    short = np.minimum((mantissa + (1 << 15)) >> 16, (1 << 15) - 1)
    shift = 15 - exponent
    half = np.left_shift(np.int64(1), shift - 1)
    moved = op.add(op.multiply(data, const(short)), const(half))
    return op.cast(op.right_shift(moved, const(shift)), "int32")


def rescale_by_q31(data: Expr, multiplier: float | Array) -> Expr:
    """Rescale int64 sums of up to 47 bits by a multiplier with a 31-bit mantissa, rounded once.

    The upper bits and the lower 16 are multiplied separately, so that neither product overflows
    int64.
    """
    mantissa, exponent = to_fixed_point(np.asarray(multiplier, np.float64))
    shift = 31 - exponent
    upper = op.right_shift(data, const(np.int64(16)))
    # 47 + 31 bits exceed int64: the low 16 bits are multiplied by themselves and their carry is
    # added.
    lower = op.multiply(op.bitwise_and(data, const(np.int64(0xFFFF))), const(mantissa))
    half = const(np.left_shift(np.int64(1), shift - 1))
    carried = op.right_shift(op.add(lower, half), const(np.int64(16)))
    products = op.add(op.multiply(upper, const(mantissa)), carried)
    return op.cast(op.right_shift(products, const(shift - 16)), "int32")


def store_quantized(node: TfliteNode, data: Expr) -> Expr:
    """Add the output's zero point to int32 numbers, and clip to its dtype and fused activation."""
    result = quant_params(node, node.outs[0])
    moved = op.add(data, const(np.int32(result.zero_point))) if result.zero_point else data
    return op.cast(op.clip(moved, *activation_limits(node)), result.dtype)


def activation_limits(node: TfliteNode) -> tuple[int, int]:
    """Return the least and the largest level that the output's dtype and fused activation admit."""
    result = quant_params(node, node.outs[0])
    kind = node.read_option("FusedActivationFunction") if _has_fused_activation(node) else 0
    if kind not in ACTIVATION_LIMITS:
        node.reject(f"the fused activation {kind} is not supported of {result.dtype}")
    low, high = result.level_limits
    real_low, real_high = ACTIVATION_LIMITS[kind]
    low = low if real_low is None else max(low, result.quantize_value(real_low))
    return low, high if real_high is None else min(high, result.quantize_value(real_high))


def _has_fused_activation(node: TfliteNode) -> bool:
    return hasattr(node.operation.options, "FusedActivationFunction")


ACTIVATION_LIMITS: dict[int, tuple[float | None, float | None]] = {
    0: (None, None), 1: (0, None), 2: (-1, 1), 3: (0, 6),
}  # fmt: skip
"""What a fused activation leaves."""


def apply_lookup_table(node: TfliteNode, function: Callable[[Array], Array]) -> Expr:
    """Emit a lookup table of a function of one level, clipped to the output's limits."""
    source, result = quant_params(node, node.ins[0]), quant_params(node, node.outs[0])
    first, last = source.level_limits
    with np.errstate(all="ignore"):
        results = function(np.arange(first, last + 1, dtype=np.int64))
    table = np.clip(results, *result.level_limits).astype(to_numpy(result.dtype))
    index = op.cast(node.expr(0), "int32")
    index = op.subtract(index, const(np.int32(first))) if first else index
    # The index cannot leave the table, which has an entry for each number of the dtype.
    return op.take(const(table), index, mode="fast")


def lookup_table_converter(function: Callable[[Array], Array]) -> Callable[[TfliteNode], Expr]:
    """Return the converter of a real function, which the kernels tabulate in single precision."""

    def convert(node: TfliteNode) -> Expr:
        """Convert the operator to a table of all levels of the input's dtype."""
        source, result = quant_params(node, node.ins[0]), quant_params(node, node.outs[0])

        def to_levels(numbers: Array) -> Array:
            """Return the result's levels, rounded half away from zero, in float32 where the kernels
            use it.
            """
            real = (numbers - source.zero_point).astype(np.float32) * source.scale
            reals = function(real.astype(np.float64)).astype(np.float32)
            steps = reals * (np.float32(1) / result.scale)
            rounded = np.trunc(steps + np.copysign(np.float32(0.5), steps))
            return np.asarray(rounded + result.zero_point)

        return apply_lookup_table(node, to_levels)

    return convert


def requantize_by_table(node: TfliteNode, source: QuantParams, result: QuantParams) -> Expr:
    """Emit a table that maps the first input's levels to another scale."""
    multiplier = np.float64(source.scale) / np.float64(result.scale)
    return apply_lookup_table(
        node,
        lambda numbers: rescale_array(numbers - source.zero_point, multiplier) + result.zero_point,
    )


def rescale_array(data: Array, multiplier: float) -> Array:
    """Rescale an array as `rescale` does expressions."""
    return np.asarray(multiply_fixed_point_array(data, multiplier, "TWICE"))
