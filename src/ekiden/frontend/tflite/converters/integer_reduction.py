"""Reductions and softmax of quantised tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common.cells import scanned
from ekiden.frontend.tflite import gemmlowp
from ekiden.frontend.tflite.integer import (
    Levels,
    centred,
    levels,
    scaled,
    scaled_wide,
    stored,
)
from ekiden.frontend.tflite.node import Node
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn.rescale import fixed_point, times_array, times_whole
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import known


def _axes(node: Node) -> tuple[tuple[int, ...], int]:
    """Return the reduced axes and the number of elements reduced to one."""
    axes = tuple(dict.fromkeys(node.axis(a, node.rank(0)) for a in node.axes(1)))
    extents = [known(node.shape(0)[a]) for a in axes]
    if None in extents or 0 in extents:
        node.unsupported(f"axes {axes} of {node.ins[0]} must have known extents")
    return axes, math.prod(e for e in extents if e)


def _quotient(source: Levels, result: Levels) -> float:
    """Return the ratio of two tensors' scales."""
    return float(source.scale) / float(result.scale)


def _moved_sum(node: Node, source: Levels) -> tuple[Expr, int]:
    """Return the sum of numbers less the zero point, as int32, and their count."""
    axes, count = _axes(node)
    if source.dtype == "int16" and count >= 1 << 16:
        node.unsupported(f"{count} numbers of int16, whose sum is beyond int32")
    data = centred(node.expr(0), 0)
    if axes:
        data = op.sum(data, axis=axes, keepdims=bool(node.option("KeepDims")))
    return op.subtract(data, const(np.int32(source.point * count))), count


def mean(node: Node) -> Expr:
    """Convert MEAN: the sum times a multiplier that includes the element count."""
    source, result = levels(node, node.ins[0]), levels(node, node.outs[0])
    moved, count = _moved_sum(node, source)
    mantissa, exponent = fixed_point(np.asarray(_quotient(source, result)))
    shift = min(count.bit_length() - 1, 32, 31 + int(exponent))
    # The division by the element count is folded into the fixed-point multiplier.
    factor = (int(mantissa) << shift) // count
    return stored(node, times_whole(moved, factor, int(exponent) - shift, "TWICE"))


def total(node: Node) -> Expr:
    """Convert SUM: the sum of numbers less the zero point, rescaled."""
    source, result = levels(node, node.ins[0]), levels(node, node.outs[0])
    moved, _ = _moved_sum(node, source)
    return stored(node, scaled(moved, _quotient(source, result)))


def product(node: Node) -> Expr:
    """Convert REDUCE_PROD element by element in memory order.

    Each step is rescaled by the total multiplier to the power of 1 / steps, and so is the last
    one's result, so that products of many numbers stay in int32:

        p = q[0] - point,  p = rescaled(p * (q[i] - point)),  rescaled(p) + the result's point
    """
    source, result = levels(node, node.ins[0]), levels(node, node.outs[0])
    if "uint8" in (source.dtype, result.dtype):
        node.unsupported(f"products of {node.ins[0]}, of uint8: kernels of int8 and int16 are here")
    axes, count = _axes(node)
    if not axes:
        return node.expr(0)
    multiplier = float(source.scale) / float(result.scale) ** (1.0 / count)

    def step(rows: Sequence[Expr], states: Sequence[Expr]) -> list[Expr]:
        wide = op.multiply(op.cast(states[0], "int64"), op.cast(rows[0], "int64"))
        return [scaled_wide(wide, multiplier)]

    first, remaining = _steps(node, centred(node.expr(0), source.point), axes)
    if count > 1:
        _, (last,) = scanned(node, [remaining], [node.given(first)], step)
        first = node.scope.expr(last)
    reduced = stored(node, scaled_wide(op.cast(first, "int64"), multiplier))
    for axis in sorted(axes) if node.option("KeepDims") else ():
        reduced = op.expand_dims(reduced, axis)
    return reduced


def _steps(node: Node, data: Expr, axes: Sequence[int]) -> tuple[Expr, Expr]:
    """Return the first, and the other elements of the reduced axes along a first axis, in memory
    order.
    """
    kept_axes = [a for a in range(node.rank(0)) if a not in axes]
    flat = op.transpose(data, [*sorted(axes), *kept_axes])
    for _ in axes[1:]:
        flat = op.reshape(flat, [-3, -2])
    first = op.take(flat, const(np.int64(0)), axis=0)
    return first, op.strided_slice(flat, [1], [np.iinfo(np.int64).max], axes=[0])


def _lined(function: Callable[[Array], Array], low: float, high: float) -> Array:
    """Tabulate a function for each int16 number, spanning `low` to `high`, with 15 fraction bits,
    by linear interpolation of 512 intervals.

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


def _softmax_of_int16(node: Node) -> Expr:
    """Convert SOFTMAX of int16 by interpolated tables: exp from -10 to 0, then 1 / (1 + x) of the
    normalised sum.
    """
    source = levels(node, node.ins[0])
    factor = float(source.scale) * float(node.option("Beta", 1)) / (10.0 / 65535)
    apart = np.arange(-65535, 1, dtype=np.int64)
    table_indices = np.clip(times_array(apart, factor, "TWICE") + 65535, 0, 65535)
    table = const(_lined(np.exp, -10.0, 0.0)[table_indices].astype(np.int32))
    x = centred(node.expr(0), 0)
    index = op.add(op.subtract(x, op.max(x, axis=-1, keepdims=True)), const(np.int32(65535)))
    exponentials = op.cast(op.take(table, index, mode="fast"), "int64")
    sums = op.sum(exponentials, axis=-1, keepdims=True)
    zeros, one = gemmlowp.leading_zeros(sums), const(np.int64(1))
    behind = op.left_shift(sums, op.subtract(zeros, one))
    behind = op.right_shift(op.add(behind, const(np.int64(1 << 13))), const(np.int64(14)))
    inverse_index = op.clip(op.subtract(behind, const(np.int64(1 << 16))), 0, 65535)
    inverse = const(_lined(lambda v: 1 / (1 + v), 0.0, 1.0))
    exponentials = op.multiply(exponentials, op.take(inverse, inverse_index, mode="fast"))
    shift = op.subtract(const(np.int64(31)), zeros)
    half = op.right_shift(op.left_shift(one, shift), one)
    return op.cast(op.clip(op.right_shift(op.add(exponentials, half), shift), 0, 32767), "int16")


def l2_normalization(node: Node) -> Expr:
    """Convert L2_NORMALIZATION: rows over their lengths, in steps of 1 / 128."""
    source, result = levels(node, node.ins[0]), levels(node, node.outs[0])
    if result.scale != np.float32(1 / 128):
        node.unsupported(f"the scale of {node.outs[0]} is not 1 / 128")
    x = op.cast(centred(node.expr(0), source.point), "int64")
    squares = op.sum(op.multiply(x, x), axis=-1, keepdims=True)
    root = gemmlowp.inverse_root(node.scope.expr(node.given(squares)))
    factor, shift = (node.scope.expr(node.given(root_part)) for root_part in root)
    bits, none = const(np.int64(7)), const(np.int64(0))
    if source.dtype == "uint8":
        products = gemmlowp.product(op.left_shift(x, bits), factor)
    else:  # the shift by 7 is part of the one that rounds
        products = gemmlowp.product(
            op.left_shift(x, op.maximum(op.subtract(bits, shift), none)), factor
        )
        shift = op.maximum(op.subtract(shift, bits), none)
    return stored(node, op.cast(gemmlowp.shifted(products, shift), "int32"))


def softmax(node: Node) -> Expr:
    """Convert SOFTMAX: of bytes by gemmlowp's functions, of int16 by tables."""
    is_wide = levels(node, node.ins[0]).dtype == "int16"
    return _softmax_of_int16(node) if is_wide else _softmax_of_bytes(node)


@dataclass(frozen=True, slots=True)
class _Powers:
    """Exponentials of the rows of a byte tensor, by distance from the row's maximum.

    `real` is each distance with 5 integer bits, `table` its exponential with none, 0 beyond
    `radius`; `index` looks them up.
    """

    distance: Expr
    index: Expr
    radius: int
    factor: float
    real: Array
    table: Array

    @staticmethod
    def of(node: Node, beta: float) -> _Powers:
        """Compute the exponentials of the operator's first input."""
        scale = float(levels(node, node.ins[0]).scale)
        factor = min(beta * scale * (1 << 26), float((1 << 31) - 1))
        _, exponent = fixed_point(np.asarray(factor, np.float64))
        radius = math.floor(31 * (1 << 26) / (1 << int(exponent)))
        apart = np.arange(-255, 1, dtype=np.int64)
        real = times_array(apart, factor, "TWICE")
        table = np.where(apart >= -radius, gemmlowp.Fixed(31).exp(real, 5), 0).astype(np.int32)
        x = centred(node.expr(0), 0)
        distance = op.subtract(x, op.max(x, axis=-1, keepdims=True))
        index = op.add(distance, const(np.int32(255)))
        return _Powers(distance, index, radius, factor, real.astype(np.int32), table)

    def taken(self, table: Array) -> Expr:
        """Look up each number in a table."""
        return op.take(const(table), self.index, mode="fast")

    def sums(self) -> Expr:
        """Return the sum of each row's exponentials, with 12 integer bits, as int64."""
        shifted = ((self.table.astype(np.int64) + (1 << 11)) >> 12).astype(np.int32)
        return op.cast(op.sum(self.taken(shifted), axis=-1, keepdims=True), "int64")


def _softmax_of_bytes(node: Node) -> Expr:
    """Convert SOFTMAX of bytes as gemmlowp does: a table of exponentials, times the reciprocal of
    their sum by three Newton steps.
    """
    result = levels(node, node.outs[0])
    powers = _Powers.of(node, float(node.option("Beta", 1)))
    zeros, scale = gemmlowp.reciprocal(powers.sums())
    bits = 8 * to_numpy(result.dtype).itemsize
    shift = op.subtract(const(np.int64(12 + 31 - bits)), zeros)
    wide = op.cast(powers.taken(powers.table), "int64")
    quotients = gemmlowp.shifted(gemmlowp.product(wide, scale), shift)
    low, high = result.limits
    quotients = op.clip(op.add(quotients, const(np.int64(low))), low, high)
    outside = op.less(powers.distance, const(np.int32(-powers.radius)))
    return op.where(outside, const(low, result.dtype), op.cast(quotients, result.dtype))


def log_softmax(node: Node) -> Expr:
    """Convert LOG_SOFTMAX: the distances less the logarithm of the exponentials' sum, in steps of 1
    / 16 below 0.
    """
    result = levels(node, node.outs[0])
    low, high = result.limits
    if result.scale != np.float32(1 / 16) or result.point != high:
        node.unsupported(f"{node.outs[0]} is not in steps of 1 / 16 below {high}")
    powers = _Powers.of(node, 1.0)
    logs = gemmlowp.log(node.scope.expr(node.given(powers.sums())), 12, 5)
    mantissa, exponent = fixed_point(np.asarray(powers.factor, np.float64))
    lowest_distance = op.cast(op.subtract(logs, const(np.int64(1 << 31))), "int32")
    back = scaled(lowest_distance, float(np.ldexp(1.0, 31 - int(exponent)) / float(mantissa)))
    outside = op.less_equal(powers.distance, op.maximum(back, const(np.int32(~powers.radius))))
    apart = op.subtract(op.cast(powers.taken(powers.real), "int64"), logs)
    logarithms = op.add(gemmlowp.shifted(apart, const(np.int64(22))), const(np.int64(high)))
    logarithms = op.cast(op.clip(logarithms, low, high), result.dtype)
    return op.where(outside, const(low, result.dtype), logarithms)
