"""Arithmetic of TensorFlow Lite's hybrid kernels: float32 activations quantized per row, int8
weights.

The converter's default optimisation makes such operators where it has no data to calibrate by
("dynamic range"). Their kernels quantise the data as they come, each row (image, for convolutions)
by a scale s and a zero point z of its own:

    asymmetric   s = (max(x, 0) - min(x, 0)) / 255,  z = round(-128 - min(x, 0) / s)
    symmetric    s = max |x| / 127,                  z = 0
    levels       q = clip(round(z + x / s))
    results      s t (sum q w - z sum w) + bias      with the weights' scales t

as PortableAsymmetricQuantizeFloats and its fellow of lite/kernels/internal do. A row of zeros has
the scale 1. Numbers here are of uint8, 128 above the kernels', as products of bytes want them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.tflite.integer_arithmetic import quantization_of
from ekiden.frontend.tflite.node import TfliteNode
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn import op as qnn
from ekiden.relay.qnn.scale_conversion import round_half_away
from ekiden.runtime.lazy_dataclass import dataclass

UNIT_QUANTIZATION = (
    const(np.int32(0)),
    const(np.int32(0)),
    const(np.float32(1)),
    const(np.float32(1)),
)
"""Zero points and scales of products, which are applied to sums."""
_UINT8_OFFSET = 128
"""Between the numbers of uint8 and those of int8."""


def is_hybrid(node: TfliteNode) -> bool:
    """Return whether an operator has float32 data and int8 weights."""
    return [t.dtype for t in node.ins[:2] if t is not None] == ["float32", "int8"]


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows quantized at run time: uint8 levels, float32 scale and int32 zero point per row."""

    levels: Expr
    scale: Expr
    zero_point: Expr

    def dequantize_sums(self, sums: Expr, weight_sums: Expr, scales: Expr) -> Expr:
        """Dequantize int32 sums of levels times weights; the weights' sums and scales broadcast."""
        # sum((q - z) w) = sum(q w) - z sum(w): the zero point costs one multiplication per output.
        centred = op.subtract(sums, op.multiply(self.zero_point, weight_sums))
        return op.multiply(op.cast(centred, "float32"), op.multiply(self.scale, scales))


def quantize_rows(data: Expr, rank: int, asymmetric: bool) -> QuantizedRows:
    """Quantize float32 rows."""
    axes = tuple(range(1, rank))
    low, high = (f(data, axis=axes, keepdims=True) for f in (op.min, op.max))
    scale, point = (_asymmetric_params if asymmetric else _symmetric_params)(low, high)
    # Symmetric quantization uses [-127, 127], so that the negative of every level is a level.
    lowest_level = -128.0 if asymmetric else -127.0
    # The kernels multiply by the reciprocal, which rounds differently from a division.
    moved = op.multiply(data, op.divide(const(np.float32(1)), scale))
    nearest = op.clip(round_half_away(op.add(moved, point), "float32"), lowest_level, 127.0)
    levels = op.cast(op.add(nearest, const(np.float32(_UINT8_OFFSET))), "uint8")
    return QuantizedRows(
        levels, scale, op.cast(op.add(point, const(np.float32(_UINT8_OFFSET))), "int32")
    )


class HybridOperand:
    """Float operand of several products with float or int8 weights; it is quantized once."""

    def __init__(self, node: TfliteNode, data: Expr) -> None:
        self.node, self.data = node, data
        self._rows: QuantizedRows | None = None

    def multiply_by_weight(self, weight: int) -> Expr:
        """Emit the product with the weights of an input."""
        tensor, values = self.node.ins[weight], self.node.expr(weight)
        if tensor is None or tensor.dtype != "int8":
            return op.nn.dense(self.data, values)
        if self._rows is None:
            is_asymmetric = bool(self.node.read_option("AsymmetricQuantizeInputs"))
            self._rows = quantize_rows(self.data, 2, is_asymmetric)
        sums = qnn.dense(self._rows.levels, values, *UNIT_QUANTIZATION)
        return self._rows.dequantize_sums(
            sums, weight_sums(values, (1,)), weight_scales(self.node, weight)
        )


def float_input(node: TfliteNode, index: int) -> Expr:
    """Return a float input, or an int8 one dequantized as the kernels do first."""
    tensor = node.ins[index]
    if tensor is None or tensor.dtype != "int8":
        return node.expr(index)
    return op.multiply(op.cast(node.expr(index), "float32"), weight_scales(node, index))


def _f64_const(value: float) -> Expr:
    return const(np.float64(value))


def _asymmetric_params(low: Expr, high: Expr) -> tuple[Expr, Expr]:
    """Emit scale and zero point in float64; the end nearer to 0 determines the zero point, as in
    the kernels.
    """
    # The range must contain 0, which must be a level exactly.
    low = op.cast(op.minimum(low, const(np.float32(0))), "float64")
    high = op.cast(op.maximum(high, const(np.float32(0))), "float64")
    scale = op.divide(op.subtract(high, low), _f64_const(255))
    scale = op.where(op.greater(scale, _f64_const(0)), scale, _f64_const(1))
    below, above = op.divide(low, scale), op.divide(high, scale)
    is_below = op.less(
        op.add(_f64_const(128), op.abs(below)), op.add(_f64_const(127), op.abs(above))
    )
    zero = op.where(
        is_below, op.subtract(_f64_const(-128), below), op.subtract(_f64_const(127), above)
    )
    point = op.clip(round_half_away(zero, "float64"), -128, 127)
    return op.cast(scale, "float32"), op.cast(point, "float32")


def _symmetric_params(low: Expr, high: Expr) -> tuple[Expr, Expr]:
    reach = op.maximum(op.abs(low), op.abs(high))
    scale = op.divide(reach, const(np.float32(127)))
    scale = op.where(op.greater(reach, const(np.float32(0))), scale, const(np.float32(1)))
    return scale, const(np.float32(0))


def weight_scales(node: TfliteNode, weight: int) -> Expr:
    """Return the scale of the weights, or one per output channel."""
    quantization = quantization_of(node, node.ins[weight])
    if any(quantization.zero_point):
        node.reject(f"{node.ins[weight]} has a zero point: hybrid kernels take none")
    scales = np.array(quantization.scale, np.float32)
    return const(scales.reshape(()) if scales.size == 1 else scales)


def weight_sums(weight: Expr, axes: Sequence[int]) -> Expr:
    """Emit the int32 sums over all axes but the output channels."""
    return op.sum(op.cast(weight, "int32"), axis=tuple(axes))
