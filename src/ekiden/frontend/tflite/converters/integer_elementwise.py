"""Elementwise operators of quantized tensors, bit for bit as TensorFlow Lite's reference kernels.

Unary ones are lookup tables. Of the binary ones, sums have 20 more bits, products all bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ekiden.frontend.common.converters.elementwise import PromotionKind, elementwise_rows
from ekiden.frontend.tflite import gemmlowp
from ekiden.frontend.tflite.integer_arithmetic import (
    QuantParams,
    activation_limits,
    apply_lookup_table,
    lookup_table_converter,
    quant_params,
    rescale,
    rescale_array,
    store_quantized,
    subtract_zero_point,
)
from ekiden.frontend.tflite.node import Converter, TfliteNode
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn.scale_conversion import to_fixed_point


def _left_shift_bits(result: QuantParams) -> int:
    """Return the left shift, in bits, of the operands of a sum."""
    return 15 if result.dtype == "int16" else 20


def _binary_quant_params(node: TfliteNode) -> tuple[QuantParams, QuantParams, QuantParams]:
    return (
        quant_params(node, node.ins[0]),
        quant_params(node, node.ins[1]),
        quant_params(node, node.outs[0]),
    )


def rescaled_sum_converter(function: Callable[[Expr, Expr], Expr]) -> Converter:
    """Return the converter of a quantized sum or difference at twice the larger operand scale."""

    def convert(node: TfliteNode) -> Expr:
        """Rescale both sides to twice the larger scale with extra fraction bits, as the reference
        kernel does; then to the result.
        """
        *sides, result = _binary_quant_params(node)
        if (
            result.dtype == "int16"
            and node.read_option("PotScaleInt16", 1)
            and all(np.log2(s.scale).is_integer() for s in (*sides, result))
        ):
            node.reject("sums of int16 by powers of two ('pot_scale_int16')")
        room = _left_shift_bits(result)
        # In steps of twice the larger scale the sum of both sides cannot exceed the range of one.
        twice = 2 * np.float64(max(s.scale for s in sides))
        terms = []
        for index, side in enumerate(sides):
            wide = op.left_shift(
                subtract_zero_point(node.expr(index), side.zero_point), const(np.int32(room))
            )
            terms.append(rescale(wide, np.float64(side.scale) / twice))
        again = twice / np.float64(np.float32(1 << room) * result.scale)
        return store_quantized(node, rescale(function(*terms), again))

    return convert


def convert_mul(node: TfliteNode) -> Expr:
    """Convert MUL: the product less zero points, rescaled by the product of the scales."""
    a, b, result = _binary_quant_params(node)
    products = op.multiply(
        subtract_zero_point(node.expr(0), a.zero_point),
        subtract_zero_point(node.expr(1), b.zero_point),
    )
    return store_quantized(node, rescale(products, np.float64(a.scale * b.scale / result.scale)))


def convert_div(node: TfliteNode) -> Expr:
    """Convert 8-bit DIV to a table of all 65,536 quotients; division by 0 saturates with the
    dividend's sign.

    Below half a step it is 0, where the reference kernel shifts by more bits than there are.
    """
    a, b, result = _binary_quant_params(node)
    first, last = a.level_limits
    span = last - first + 1
    every = np.arange(first, last + 1, dtype=np.int64)
    above, below = every[:, None] - a.zero_point, every[None, :] - b.zero_point
    above, below = np.where(below < 0, -above, above), np.abs(below)
    exact = gemmlowp.FixedPoint(31)
    zeros, inverse = exact.reciprocal(np.maximum(below, 1))
    room = 31 - np.frexp(np.where(above < 0, ~above, above).astype(np.float64))[1].astype(np.int64)
    multiplier, exponent = to_fixed_point(
        np.asarray(np.float64(a.scale / (b.scale * result.scale)))
    )
    quotient = exact.rounded_product(exact.rounded_product(above << room, inverse), int(multiplier))
    shift = room + 31 - zeros - int(exponent)
    quotient = gemmlowp.rounding_shift_right(
        quotient, np.clip(shift, 0, 62)
    )  # below 0: beyond every byte anyway
    quotient = np.where(below == 0, np.sign(above) << 16, quotient) + result.zero_point
    # 256 * 256 entries of one byte: 64 KiB, less than the reciprocal would cost per element.
    table = np.clip(quotient, *activation_limits(node)).astype(to_numpy(result.dtype))
    offsets = [op.subtract(op.cast(node.expr(i), "int32"), const(np.int32(first))) for i in (0, 1)]
    index = op.add(op.multiply(offsets[0], const(np.int32(span))), offsets[1])
    return op.take(const(table.reshape(-1)), index, mode="fast")


def convert_squared_difference(node: TfliteNode) -> Expr:
    """Convert SQUARED_DIFFERENCE: both sides at twice the larger scale with 7 fraction bits, then
    squared.
    """
    *sides, result = _binary_quant_params(node)
    twice = 2 * np.float64(max(s.scale for s in sides))
    terms = []
    for index, side in enumerate(sides):
        wide = op.left_shift(
            subtract_zero_point(node.expr(index), side.zero_point), const(np.int32(7))
        )
        terms.append(rescale(wide, np.float64(side.scale) / twice))
    apart = op.subtract(*terms)
    # The shift by 7 enters twice, once for each factor.
    again = twice * twice / np.float64(np.float32(1 << 14) * result.scale)
    return store_quantized(node, rescale(op.multiply(apart, apart), again))


def equal_scale_converter(function: Callable[[Expr, Expr], Expr]) -> Converter:
    """Return the converter of a minimum or maximum, whose tensors share one scale."""

    def convert(node: TfliteNode) -> Expr:
        """Convert the operator; reject different scales, as the kernel compares the stored
        numbers.
        """
        if len(set(_binary_quant_params(node))) > 1:
            node.reject(f"{node.ins[0]}, {node.ins[1]} and {node.outs[0]} have other scales")
        return function(node.expr(0), node.expr(1))

    return convert


def fixed_point_compare_converter(function: Callable[[Expr, Expr], Expr]) -> Converter:
    """Return the converter of a comparison of real values in fixed point with 8 fraction bits.

    Kernels of int16 compare the stored numbers, which is the same where the scales are equal.
    """

    def convert(node: TfliteNode) -> Expr:
        """Compare both sides as real values with 8 fraction bits."""
        sides = [quant_params(node, node.ins[index]) for index in (0, 1)]
        if sides[0].dtype == "int16":
            if sides[0] != sides[1]:
                node.reject(f"{node.ins[0]} and {node.ins[1]}, of int16, have other scales")
            return function(node.expr(0), node.expr(1))
        reals = []
        for index, side in enumerate(sides):
            wide = op.left_shift(
                subtract_zero_point(node.expr(index), side.zero_point), const(np.int32(8))
            )
            reals.append(rescale(wide, np.float64(side.scale)))
        return function(*reals)

    return convert


def _unary_quant_params(node: TfliteNode) -> tuple[QuantParams, QuantParams]:
    return quant_params(node, node.ins[0]), quant_params(node, node.outs[0])


def clipped_relu_converter(low: float | None, high: float | None) -> Converter:
    """Return the converter of RELU and its variants: rescale, then clip to real limits."""

    def convert(node: TfliteNode) -> Expr:
        """Convert the operator to a table of all 256 levels."""
        source, result = _unary_quant_params(node)
        factor = np.float64(source.scale / result.scale)

        def clip_levels(numbers: Array) -> Array:
            """Rescale, then clip to the limits at the result's scale."""
            rescaled = rescale_array(numbers - source.zero_point, factor) + result.zero_point
            lowest = None if low is None else result.quantize_value(low)
            highest = None if high is None else result.quantize_value(high)
            return rescaled if lowest is highest is None else np.clip(rescaled, lowest, highest)

        return apply_lookup_table(node, clip_levels)

    return convert


def convert_leaky_relu(node: TfliteNode) -> Expr:
    """Convert LEAKY_RELU with one multiplier per sign."""
    source, result = _unary_quant_params(node)
    alpha = np.float32(node.read_option("Alpha"))
    factors = source.scale / result.scale, source.scale * alpha / result.scale

    def rescale_by_sign(numbers: Array) -> Array:
        """Rescale by the multiplier of the number's sign."""
        moved = numbers - source.zero_point
        above, below = (rescale_array(moved, float(f)) for f in factors)
        return np.where(moved >= 0, above, below) + result.zero_point

    return apply_lookup_table(node, rescale_by_sign)


def convert_abs(node: TfliteNode) -> Expr:
    """Convert ABS, rescaled where the scales differ."""
    source, result = _unary_quant_params(node)
    factor = np.float64(source.scale / result.scale)

    def rescaled_difference(numbers: Array) -> Array:
        """Return the distance from the zero point at the result's scale."""
        moved = np.abs(numbers - source.zero_point)
        distance = moved if source.scale == result.scale else rescale_array(moved, factor)
        return distance + result.zero_point

    return apply_lookup_table(node, rescaled_difference)


def convert_prelu(node: TfliteNode) -> Expr:
    """Convert PRELU, whose slopes are a tensor."""
    data, alpha, result = _binary_quant_params(node)
    x = subtract_zero_point(node.expr(0), data.zero_point)
    product = op.multiply(x, subtract_zero_point(node.expr(1), alpha.zero_point))
    above = rescale(x, np.float64(data.scale / result.scale))
    below = rescale(product, np.float64(data.scale * alpha.scale / result.scale))
    return store_quantized(node, op.where(op.greater_equal(x, const(np.int32(0))), above, below))


def convert_hard_swish(node: TfliteNode) -> Expr:
    """Convert HARD_SWISH: x * relu6(x + 3) / 6 in 16 bits, as the reference kernel computes it."""
    source, result = _unary_quant_params(node)
    fine = np.float32(1 / 128) * source.scale
    by_result, exponent = _quantize_multiplier_16(np.float64(fine / result.scale))
    by_gate, gate_exponent = _quantize_multiplier_16(np.float64(fine / np.float32(3 / 32768)))

    def hard_swish_levels(numbers: Array) -> Array:
        """Reproduce the reference kernel's 16-bit arithmetic bit for bit; products are rounded at
        15 bits.
        """
        # 9 bits less zero point and 7 fraction bits fill int16.
        wide = (numbers - source.zero_point) << 7
        scaled_ = _doubling_high_mul_16(wide, by_result)
        gate = _saturate_int16(wide << max(gate_exponent - 1, 0))
        gate = _doubling_high_mul_16(gate, by_gate)
        gate = _saturate_int16(gate << 1) if gate_exponent > 0 else gate
        gate = _rounding_shift_right(gate, -gate_exponent) if gate_exponent < 0 else gate
        gate = (gate + (1 << 15)) >> 1
        product = gate * scaled_
        half = np.where(product >= 0, product >> 15, -((-product) >> 15))
        return _rounding_shift_right(half, -exponent) + result.zero_point

    return apply_lookup_table(node, hard_swish_levels)


def _quantize_multiplier_16(factor: float) -> tuple[int, int]:
    mantissa, exponent = to_fixed_point(np.asarray(factor, np.float64))
    return min((int(mantissa) + (1 << 15)) >> 16, 32767), int(exponent)


def _saturate_int16(data: Array) -> Array:
    return np.clip(data, -32768, 32767)


def _doubling_high_mul_16(data: Array, by: int) -> Array:
    """Return the high half of a doubled 16-bit product, rounded half up (SQRDMULH)."""
    return _saturate_int16((data * by + (1 << 14)) >> 15)


def _rounding_shift_right(data: Array, by: int) -> Array:
    """Shift right, rounding half away from zero."""
    if by <= 0:
        return data << -by
    return (data + (1 << by >> 1) - (data < 0)) >> by


def convert_rsqrt(node: TfliteNode) -> Expr:
    """Convert RSQRT with 20 fraction bits, rescaled to the result; 0 yields the largest level."""
    source, result = _unary_quant_params(node)
    factor = 1 / (np.sqrt(np.float32(source.scale)) * result.scale)

    def inverse_roots(numbers: Array) -> Array:
        """Compute reciprocal roots; negative levels are treated as 0."""
        moved = numbers - source.zero_point
        # 20 fraction bits, as in the reference kernel.
        roots = np.rint(2.0**20 / np.sqrt(np.maximum(moved, 1))).astype(np.int64)
        rescaled = rescale_array(roots, float(factor) / 2**20) + result.zero_point
        return np.where(moved > 0, rescaled, result.level_limits[1])

    return apply_lookup_table(node, inverse_roots)


def convert_gelu(node: TfliteNode) -> Expr:
    """Convert GELU, by either formula, to a table."""
    if node.read_option("Approximate"):
        inner = np.sqrt(2 / np.pi)
        return lookup_table_converter(
            lambda x: 0.5 * x * (1 + np.tanh(inner * (x + 0.044715 * x**3)))
        )(node)
    return lookup_table_converter(lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))))(
        node
    )


def _interpolate_sigmoid(numbers: Array, bits: int) -> Array:
    """Interpolate sigmoid(|x|) with 16 + `bits` fraction bits in a table of step 1 / 24.

    Table entries are raised by half of the chord's deviation from the function; the last one is 1.
    """
    true = 1 / (1 + np.exp(-np.arange(257) / 24))
    bend = true * (1 - true) * (2 * true - 1) / (16 * 24**2)
    table = np.round(65536 * (true + bend)).astype(np.int64)
    # Beyond 255 / 24 the reference table saturates.
    table[255:] = 65535
    size = np.abs(numbers)
    index = np.minimum(size >> bits, 255)
    lower, upper = table[index], table[index + 1]
    return np.asarray((lower << bits) + (size & ((1 << bits) - 1)) * (upper - lower))


def _rescale_to_sigmoid_input(source: QuantParams, max_power: int) -> Callable[[Array], Array]:
    """Return a function that rescales int16 levels to steps of 1 / 12288; powers of two up to
    2**(max_power - 12) are exact.
    """
    power = float(np.log2(source.scale)) + 12
    if power.is_integer() and 0 <= power <= max_power:
        return lambda numbers: numbers * (3 << int(power))
    factor, shift = float(source.scale) * 4096 * 3, 0
    while factor <= 32767 / 2 and shift <= 30:
        factor, shift = factor * 2, shift + 1
    half = 1 << shift >> 1
    return lambda numbers: (numbers * int(factor) + half) >> shift


def convert_logistic(node: TfliteNode) -> Expr:
    """Convert LOGISTIC: a float table for 8 bits, the kernel's interpolation for int16."""
    source = quant_params(node, node.ins[0])
    if source.dtype != "int16":
        return lookup_table_converter(lambda x: 1 / (1 + np.exp(-x)))(node)
    fine = _rescale_to_sigmoid_input(source, 0)

    def sigmoid_q15(numbers: Array) -> Array:
        """Return the sigmoid with 15 fraction bits."""
        x = fine(numbers)
        size = np.where(np.abs(x) >> 9 >= 255, 0x7FFF << 10, _interpolate_sigmoid(x, 9))
        return np.where(x >= 0, size + 512, (1 << 25) - size + 511) >> 10

    return apply_lookup_table(node, sigmoid_q15)


def convert_tanh(node: TfliteNode) -> Expr:
    """Convert TANH: 2 sigmoid(2 x) - 1."""
    source = quant_params(node, node.ins[0])
    if source.dtype != "int16":
        return lookup_table_converter(np.tanh)(node)
    fine = _rescale_to_sigmoid_input(source, 1)

    def tanh_q15(numbers: Array) -> Array:
        """Return tanh with 15 fraction bits."""
        x = fine(numbers)
        size = np.where(np.abs(x) >> 8 >= 255, 0xFFFF << 8, _interpolate_sigmoid(x, 8)) - (1 << 23)
        return np.where(x >= 0, size + 128, 127 - size) >> 8

    return apply_lookup_table(node, tanh_q15)


convert_elu = lookup_table_converter(lambda x: np.where(x < 0, np.expm1(x), x))
convert_exp = lookup_table_converter(np.exp)
convert_log = lookup_table_converter(lambda x: np.where(x > 0, np.log(x), -np.inf))

INTEGER_CONVERTERS: Mapping[str, Converter] = {
    "ADD": rescaled_sum_converter(op.add), "SUB": rescaled_sum_converter(op.subtract),
    "MUL": convert_mul, "DIV": convert_div,
    "MAXIMUM": equal_scale_converter(op.maximum), "MINIMUM": equal_scale_converter(op.minimum),
    "SQUARED_DIFFERENCE": convert_squared_difference, "ABS": convert_abs, "RSQRT": convert_rsqrt,
    "EXP": convert_exp,
    "LOG": convert_log, "TANH": convert_tanh, "LOGISTIC": convert_logistic,
    "RELU": clipped_relu_converter(0, None),
    "RELU6": clipped_relu_converter(0, 6), "ELU": convert_elu, "PRELU": convert_prelu,
    "HARD_SWISH": convert_hard_swish,
    **{code: fixed_point_compare_converter(row.function) for code, _,
        row in elementwise_rows("tflite")
       if row.kind is PromotionKind.COMPARISON},
}  # fmt: skip
"""Operators that other formats have too, of quantised tensors."""
INT16_OPERATORS = INTEGER_CONVERTERS.keys() - {
    "DIV", "SQUARED_DIFFERENCE", "RSQRT", "EXP", "LOG", "ELU", "PRELU", "HARD_SWISH",
}  # fmt: skip
"""Those of them whose kernels take int16 too."""
