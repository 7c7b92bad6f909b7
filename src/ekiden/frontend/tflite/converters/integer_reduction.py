"""Reductions and softmax of quantized tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common.recurrent_cells import scan_steps
from ekiden.frontend.tflite import gemmlowp
from ekiden.frontend.tflite.integer_arithmetic import (
    QuantParams,
    quant_params,
    rescale,
    rescale_by_q15,
    store_quantized,
    subtract_zero_point,
)
from ekiden.frontend.tflite.node import TfliteNode
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn.scale_conversion import (
    multiply_fixed_point_array,
    multiply_fixed_point_int,
    to_fixed_point,
)
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import known_int


def _reduced_axes(node: TfliteNode) -> tuple[tuple[int, ...], int]:
    """Return the reduced axes and the number of elements that are reduced to one."""
    axes = tuple(dict.fromkeys(node.axis(a, node.rank(0)) for a in node.constant_ints(1)))
    extents = [known_int(node.shape(0)[a]) for a in axes]
    if None in extents or 0 in extents:
        node.reject(f"axes {axes} of {node.ins[0]} must have known extents")
    return axes, math.prod(e for e in extents if e)


def _scale_ratio(source: QuantParams, result: QuantParams) -> float:
    """Return the ratio of two tensors' scales."""
    return float(source.scale) / float(result.scale)


def _sum_less_zero_point(node: TfliteNode, source: QuantParams) -> tuple[Expr, int]:
    """Emit the int32 sum of differences to the zero point, and return the element count."""
    axes, count = _reduced_axes(node)
    # 65,535 * 32,768 is the largest such sum within int32.
    if source.dtype == "int16" and count >= 1 << 16:
        node.reject(f"{count} numbers of int16, whose sum is beyond int32")
    data = subtract_zero_point(node.expr(0), 0)
    if axes:
        data = op.sum(data, axis=axes, keepdims=bool(node.read_option("KeepDims")))
    return op.subtract(data, const(np.int32(source.zero_point * count))), count


def convert_integer_mean(node: TfliteNode) -> Expr:
    """Convert MEAN: the sum times a multiplier that includes the element count."""
    source, result = quant_params(node, node.ins[0]), quant_params(node, node.outs[0])
    moved, count = _sum_less_zero_point(node, source)
    mantissa, exponent = to_fixed_point(np.asarray(_scale_ratio(source, result)))
    shift = min(count.bit_length() - 1, 32, 31 + int(exponent))
    # The division by the element count is folded into the fixed-point multiplier.
    factor = (int(mantissa) << shift) // count
    return store_quantized(
        node, multiply_fixed_point_int(moved, factor, int(exponent) - shift, "TWICE")
    )


def convert_quantized_sum(node: TfliteNode) -> Expr:
    """Convert SUM: the sum less zero points, rescaled."""
    source, result = quant_params(node, node.ins[0]), quant_params(node, node.outs[0])
    moved, _ = _sum_less_zero_point(node, source)
    return store_quantized(node, rescale(moved, _scale_ratio(source, result)))


def convert_quantized_prod(node: TfliteNode) -> Expr:
    """Convert REDUCE_PROD, element by element in memory order as the kernel rounds.

    Each step is rescaled by the total multiplier to the power of 1 / steps, and so is the last
    one's result, so that products of many numbers stay in int32:

        p = q[0] - point,  p = rescaled(p * (q[i] - point)),  rescaled(p) + the result's point
    """
    source, result = quant_params(node, node.ins[0]), quant_params(node, node.outs[0])
    if "uint8" in (source.dtype, result.dtype):
        node.reject(f"products of {node.ins[0]}, of uint8: kernels of int8 and int16 are here")
    axes, count = _reduced_axes(node)
    if not axes:
        return node.expr(0)
    multiplier = float(source.scale) / float(result.scale) ** (1.0 / count)

    def multiply_step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
        """Multiply the state by a row and rescale the product to the state's scale."""
        wide = op.multiply(op.cast(states[0], "int64"), op.cast(rows[0], "int64"))
        return [rescale_by_q15(wide, multiplier)]

    # Each step rounds, so the order of the factors is part of the result.
    first, remaining = _flatten_reduced(
        node, subtract_zero_point(node.expr(0), source.zero_point), axes
    )
    if count > 1:
        _, (last,) = scan_steps(node, [remaining], [node.bind_shared(first)], multiply_step)
        first = node.scope.expr(last)
    reduced = store_quantized(node, rescale_by_q15(op.cast(first, "int64"), multiplier))
    for axis in sorted(axes) if node.read_option("KeepDims") else ():
        reduced = op.expand_dims(reduced, axis)
    return reduced


def _flatten_reduced(node: TfliteNode, data: Expr, axes: Sequence[int]) -> tuple[Expr, Expr]:
    """Return the first, and the remaining elements of the reduced axes, moved to a first axis in
    memory order.
    """
    kept_axes = [a for a in range(node.rank(0)) if a not in axes]
    flat = op.transpose(data, [*sorted(axes), *kept_axes])
    for _ in axes[1:]:
        flat = op.reshape(flat, [-3, -2])
    first = op.take(flat, const(np.int64(0)), axis=0)
    return first, op.strided_slice(flat, [1], [np.iinfo(np.int64).max], axes=[0])


def _interpolation_table(function: Callable[[Array], Array], low: float, high: float) -> Array:
    """Tabulate a function at all int16 numbers, from `low` to `high`, by linear interpolation of
    512 intervals with 15 fraction bits.

    Interval starts are moved by half of the deviation at the interval's middle.
    """
    steps = np.linspace(low, high, 513)
    true = np.round(function(steps) * 32768)
    middle = np.round(function(steps[:-1] + (high - low) / 1024) * 32768)
    between = np.round((function(steps[1:]) * 32768 + true[:-1]) / 2)
    true[:-1] -= np.trunc((between - middle) / 2 + np.copysign(0.5, between - middle))
    table = np.clip(true, -32768, 32767).astype(np.int64)
    number = np.arange(1 << 16)
    interval, offset = number >> 7, number & 127
    return np.asarray(table[interval] + ((np.diff(table)[interval] * offset + 64) >> 7))


def _softmax_int16(node: TfliteNode) -> Expr:
    """Convert int16 SOFTMAX by interpolated tables: exp on [-10, 0], then 1 / (1 + x) of the
    normalized sum.
    """
    source = quant_params(node, node.ins[0])
    # Differences are mapped to a table over [-10, 0]: exp(-10) is below 2 ** -14.
    factor = float(source.scale) * float(node.read_option("Beta", 1)) / (10.0 / 65535)
    apart = np.arange(-65535, 1, dtype=np.int64)
    table_indices = np.clip(multiply_fixed_point_array(apart, factor, "TWICE") + 65535, 0, 65535)
    table = const(_interpolation_table(np.exp, -10.0, 0.0)[table_indices].astype(np.int32))
    x = subtract_zero_point(node.expr(0), 0)
    index = op.add(op.subtract(x, op.max(x, axis=-1, keepdims=True)), const(np.int32(65535)))
    exponentials = op.cast(op.take(table, index, mode="fast"), "int64")
    sums = op.sum(exponentials, axis=-1, keepdims=True)
    zeros, one = gemmlowp.count_leading_zeros(sums), const(np.int64(1))
    behind = op.left_shift(sums, op.subtract(zeros, one))
    behind = op.right_shift(op.add(behind, const(np.int64(1 << 13))), const(np.int64(14)))
    inverse_index = op.clip(op.subtract(behind, const(np.int64(1 << 16))), 0, 65535)
    inverse = const(_interpolation_table(lambda v: 1 / (1 + v), 0.0, 1.0))
    exponentials = op.multiply(exponentials, op.take(inverse, inverse_index, mode="fast"))
    shift = op.subtract(const(np.int64(31)), zeros)
    half = op.right_shift(op.left_shift(one, shift), one)
    return op.cast(op.clip(op.right_shift(op.add(exponentials, half), shift), 0, 32767), "int16")


def convert_integer_l2_normalization(node: TfliteNode) -> Expr:
    """Convert L2_NORMALIZATION, which divides each row by its length, at scale 1 / 128."""
    source, result = quant_params(node, node.ins[0]), quant_params(node, node.outs[0])
    if result.scale != np.float32(1 / 128):
        node.reject(f"the scale of {node.outs[0]} is not 1 / 128")
    x = op.cast(subtract_zero_point(node.expr(0), source.zero_point), "int64")
    squares = op.sum(op.multiply(x, x), axis=-1, keepdims=True)
    root = gemmlowp.inverse_sqrt(node.scope.expr(node.bind_shared(squares)))
    factor, shift = (node.scope.expr(node.bind_shared(root_part)) for root_part in root)
    bits, none = const(np.int64(7)), const(np.int64(0))
    if source.dtype == "uint8":
        products = gemmlowp.doubling_high_mul(op.left_shift(x, bits), factor)
    else:  # the shift by 7 is part of the one that rounds
        products = gemmlowp.doubling_high_mul(
            op.left_shift(x, op.maximum(op.subtract(bits, shift), none)), factor
        )
        shift = op.maximum(op.subtract(shift, bits), none)
    return store_quantized(node, op.cast(gemmlowp.rounding_divide_by_pot(products, shift), "int32"))


def convert_integer_softmax(node: TfliteNode) -> Expr:
    """Convert SOFTMAX: 8 bits by gemmlowp's functions, int16 by tables."""
    is_wide = quant_params(node, node.ins[0]).dtype == "int16"
    return _softmax_int16(node) if is_wide else _softmax_8bit(node)


@dataclass(frozen=True, slots=True)
class _RowExponentials:
    """Exponentials of the rows of an 8-bit tensor, by distance from the row's maximum.

    `fixed_point_distances` is each distance with 5 integer bits, `table` its exponential with none,
    0 beyond `max_distance`; `table_index` looks them up.
    """

    distance: Expr
    table_index: Expr
    max_distance: int
    factor: float
    fixed_point_distances: Array
    table: Array

    @staticmethod
    def from_first_input(node: TfliteNode, beta: float) -> _RowExponentials:
        """Compute the exponentials of the operator's first input."""
        scale = float(quant_params(node, node.ins[0]).scale)
        factor = min(beta * scale * (1 << 26), float((1 << 31) - 1))
        _, exponent = to_fixed_point(np.asarray(factor, np.float64))
        radius = math.floor(31 * (1 << 26) / (1 << int(exponent)))
        # Two bytes differ by at most 255, so a table holds every exponential.
        apart = np.arange(-255, 1, dtype=np.int64)
        real = multiply_fixed_point_array(apart, factor, "TWICE")
        table = np.where(apart >= -radius, gemmlowp.FixedPoint(31).exp(real, 5), 0).astype(np.int32)
        x = subtract_zero_point(node.expr(0), 0)
        distance = op.subtract(x, op.max(x, axis=-1, keepdims=True))
        index = op.add(distance, const(np.int32(255)))
        return _RowExponentials(distance, index, radius, factor, real.astype(np.int32), table)

    def look_up(self, table: Array) -> Expr:
        """Look up the entry of each level in a table."""
        return op.take(const(table), self.table_index, mode="fast")

    def emit_row_sums(self) -> Expr:
        """Emit the int64 sum of each row's exponentials with 12 integer bits."""
        shifted = ((self.table.astype(np.int64) + (1 << 11)) >> 12).astype(np.int32)
        return op.cast(op.sum(self.look_up(shifted), axis=-1, keepdims=True), "int64")


def _softmax_8bit(node: TfliteNode) -> Expr:
    """Convert 8-bit SOFTMAX as gemmlowp does: a table of exponentials times the reciprocal of their
    sum by three Newton steps.
    """
    result = quant_params(node, node.outs[0])
    powers = _RowExponentials.from_first_input(node, float(node.read_option("Beta", 1)))
    zeros, scale = gemmlowp.emit_reciprocal(powers.emit_row_sums())
    bits = 8 * to_numpy(result.dtype).itemsize
    shift = op.subtract(const(np.int64(12 + 31 - bits)), zeros)
    wide = op.cast(powers.look_up(powers.table), "int64")
    quotients = gemmlowp.rounding_divide_by_pot(gemmlowp.doubling_high_mul(wide, scale), shift)
    low, high = result.level_limits
    quotients = op.clip(op.add(quotients, const(np.int64(low))), low, high)
    outside = op.less(powers.distance, const(np.int32(-powers.max_distance)))
    return op.where(outside, const(low, result.dtype), op.cast(quotients, result.dtype))


def convert_integer_log_softmax(node: TfliteNode) -> Expr:
    """Convert LOG_SOFTMAX: distances less the log of the exponentials' sum, at scale 1 / 16."""
    result = quant_params(node, node.outs[0])
    low, high = result.level_limits
    if result.scale != np.float32(1 / 16) or result.zero_point != high:
        node.reject(f"{node.outs[0]} is not in steps of 1 / 16 below {high}")
    powers = _RowExponentials.from_first_input(node, 1.0)
    logs = gemmlowp.emit_log(node.scope.expr(node.bind_shared(powers.emit_row_sums())), 12, 5)
    mantissa, exponent = to_fixed_point(np.asarray(powers.factor, np.float64))
    lowest_distance = op.cast(op.subtract(logs, const(np.int64(1 << 31))), "int32")
    back = rescale(lowest_distance, float(np.ldexp(1.0, 31 - int(exponent)) / float(mantissa)))
    outside = op.less_equal(
        powers.distance, op.maximum(back, const(np.int32(~powers.max_distance)))
    )
    apart = op.subtract(op.cast(powers.look_up(powers.fixed_point_distances), "int64"), logs)
    logarithms = op.add(
        gemmlowp.rounding_divide_by_pot(apart, const(np.int64(22))), const(np.int64(high))
    )
    logarithms = op.cast(op.clip(logarithms, low, high), result.dtype)
    return op.where(outside, const(low, result.dtype), logarithms)
