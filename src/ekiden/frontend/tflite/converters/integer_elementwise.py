"""Operators that compute each element on its own, of quantised tensors.

Those of one input are tables. Of two, sums are computed of 20 more bits, products of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ekiden.frontend.common.converters.elementwise import Kind, rows_of
from ekiden.frontend.tflite import gemmlowp
from ekiden.frontend.tflite.integer import (
    Levels,
    centred,
    fused_limits,
    levels,
    of_real,
    scaled,
    scaled_array,
    stored,
    tabled,
)
from ekiden.frontend.tflite.node import Converter, Node
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn.rescale import fixed_point


def _room(result: Levels) -> int:
    """Bits that the operands of a sum are shifted by."""
    return 15 if result.dtype == "int16" else 20


def _operands(node: Node) -> tuple[Levels, Levels, Levels]:
    return levels(node, node.ins[0]), levels(node, node.ins[1]), levels(node, node.outs[0])


def total(function: Callable[[Expr, Expr], Expr]) -> Converter:
    """A sum or a difference, under the larger scale twice."""

    def convert(node: Node) -> Expr:
        """Both sides in steps of twice the larger scale, with bits below the point, as the
        reference kernel has them; then in the result's.
        """
        *sides, result = _operands(node)
        if (
            result.dtype == "int16"
            and node.option("PotScaleInt16", 1)
            and all(np.log2(s.scale).is_integer() for s in (*sides, result))
        ):
            node.unsupported("sums of int16 by powers of two ('pot_scale_int16')")
        room = _room(result)
        twice = 2 * np.float64(max(s.scale for s in sides))
        parts = []
        for index, side in enumerate(sides):
            wide = op.left_shift(centred(node.expr(index), side.point), const(np.int32(room)))
            parts.append(scaled(wide, np.float64(side.scale) / twice))
        again = twice / np.float64(np.float32(1 << room) * result.scale)
        return stored(node, scaled(function(*parts), again))

    return convert


def multiply(node: Node) -> Expr:
    """A product of the numbers, rescaled by the product of their scales."""
    a, b, result = _operands(node)
    made = op.multiply(centred(node.expr(0), a.point), centred(node.expr(1), b.point))
    return stored(node, scaled(made, np.float64(a.scale * b.scale / result.scale)))


def divide(node: Node) -> Expr:
    """A quotient of bytes, as a table of all 65,536; by 0 the largest number of the sign.

    Below half a step it is 0, where the reference kernel shifts by more bits than there are.
    """
    a, b, result = _operands(node)
    first, last = a.limits
    span = last - first + 1
    every = np.arange(first, last + 1, dtype=np.int64)
    above, below = every[:, None] - a.point, every[None, :] - b.point
    above, below = np.where(below < 0, -above, above), np.abs(below)
    exact = gemmlowp.Fixed(31)
    zeros, inverse = exact.reciprocal(np.maximum(below, 1))
    room = 31 - np.frexp(np.where(above < 0, ~above, above).astype(np.float64))[1].astype(np.int64)
    whole, exponent = fixed_point(np.asarray(np.float64(a.scale / (b.scale * result.scale))))
    made = exact.product(exact.product(above << room, inverse), int(whole))
    shift = room + 31 - zeros - int(exponent)
    made = gemmlowp.halved(made, np.clip(shift, 0, 62))  # below 0: beyond every byte anyway
    made = np.where(below == 0, np.sign(above) << 16, made) + result.point
    table = np.clip(made, *fused_limits(node)).astype(to_numpy(result.dtype))
    places = [op.subtract(op.cast(node.expr(i), "int32"), const(np.int32(first))) for i in (0, 1)]
    index = op.add(op.multiply(places[0], const(np.int32(span))), places[1])
    return op.take(const(table.reshape(-1)), index, mode="fast")


def squared_difference(node: Node) -> Expr:
    """Both sides in steps of twice the larger scale, with 7 bits below the point, then the square
    in the result's."""
    *sides, result = _operands(node)
    twice = 2 * np.float64(max(s.scale for s in sides))
    parts = []
    for index, side in enumerate(sides):
        wide = op.left_shift(centred(node.expr(index), side.point), const(np.int32(7)))
        parts.append(scaled(wide, np.float64(side.scale) / twice))
    apart = op.subtract(*parts)
    again = twice * twice / np.float64(np.float32(1 << 14) * result.scale)
    return stored(node, scaled(op.multiply(apart, apart), again))


def same_scales(function: Callable[[Expr, Expr], Expr]) -> Converter:
    """A choice between numbers of one scale."""

    def convert(node: Node) -> Expr:
        """Refuses other scales: the kernel takes the numbers as they are."""
        if len(set(_operands(node))) > 1:
            node.unsupported(f"{node.ins[0]}, {node.ins[1]} and {node.outs[0]} have other scales")
        return function(node.expr(0), node.expr(1))

    return convert


def compare(function: Callable[[Expr, Expr], Expr]) -> Converter:
    """A comparison of real values, in fixed point of 8 bits more. Kernels of int16 compare the
    numbers as they are, which is one of real values where the scales are the same."""

    def convert(node: Node) -> Expr:
        """Both sides in real values, with 8 bits below the point."""
        sides = [levels(node, node.ins[index]) for index in (0, 1)]
        if sides[0].dtype == "int16":
            if sides[0] != sides[1]:
                node.unsupported(f"{node.ins[0]} and {node.ins[1]}, of int16, have other scales")
            return function(node.expr(0), node.expr(1))
        parts = []
        for index, side in enumerate(sides):
            wide = op.left_shift(centred(node.expr(index), side.point), const(np.int32(8)))
            parts.append(scaled(wide, np.float64(side.scale)))
        return function(*parts)

    return convert


def _pair(node: Node) -> tuple[Levels, Levels]:
    return levels(node, node.ins[0]), levels(node, node.outs[0])


def clipped(low: float | None, high: float | None) -> Converter:
    """RELU and its kin: rescaled, between real values."""

    def convert(node: Node) -> Expr:
        """A table of all 256 values."""
        source, result = _pair(node)
        factor = np.float64(source.scale / result.scale)

        def function(numbers: Array) -> Array:
            """Rescaled, then held between what the limits are in the result's steps."""
            made = scaled_array(numbers - source.point, factor) + result.point
            least = None if low is None else result.number(low)
            most = None if high is None else result.number(high)
            return made if least is most is None else np.clip(made, least, most)

        return tabled(node, function)

    return convert


def leaky_relu(node: Node) -> Expr:
    """Two multipliers, by the sign."""
    source, result = _pair(node)
    alpha = np.float32(node.option("Alpha"))
    factors = source.scale / result.scale, source.scale * alpha / result.scale

    def function(numbers: Array) -> Array:
        """The multiplier of the number's sign."""
        moved = numbers - source.point
        above, below = (scaled_array(moved, float(f)) for f in factors)
        return np.where(moved >= 0, above, below) + result.point

    return tabled(node, function)


def absolute(node: Node) -> Expr:
    """Rescaled where the scales differ."""
    source, result = _pair(node)
    factor = np.float64(source.scale / result.scale)

    def function(numbers: Array) -> Array:
        """The distance from the zero point, rescaled where that changes anything."""
        moved = np.abs(numbers - source.point)
        made = moved if source.scale == result.scale else scaled_array(moved, factor)
        return made + result.point

    return tabled(node, function)


def prelu(node: Node) -> Expr:
    """Alphas are a tensor."""
    data, alpha, result = _operands(node)
    x = centred(node.expr(0), data.point)
    product = op.multiply(x, centred(node.expr(1), alpha.point))
    above = scaled(x, np.float64(data.scale / result.scale))
    below = scaled(product, np.float64(data.scale * alpha.scale / result.scale))
    return stored(node, op.where(op.greater_equal(x, const(np.int32(0))), above, below))


def hard_swish(node: Node) -> Expr:
    """x * relu6(x + 3) / 6 in 16 bits, as the reference kernel has it."""
    source, result = _pair(node)
    fine = np.float32(1 / 128) * source.scale
    by_result, exponent = _multiplier16(np.float64(fine / result.scale))
    by_gate, gate_exponent = _multiplier16(np.float64(fine / np.float32(3 / 32768)))

    def function(numbers: Array) -> Array:
        """Bit for bit the arithmetic in 16 bits of the reference kernel, whose products are rounded
        at 15.
        """
        wide = (numbers - source.point) << 7
        scaled_ = _high(wide, by_result)
        gate = _saturated(wide << max(gate_exponent - 1, 0))
        gate = _high(gate, by_gate)
        gate = _saturated(gate << 1) if gate_exponent > 0 else gate
        gate = _shifted(gate, -gate_exponent) if gate_exponent < 0 else gate
        gate = (gate + (1 << 15)) >> 1
        product = gate * scaled_
        half = np.where(product >= 0, product >> 15, -((-product) >> 15))
        return _shifted(half, -exponent) + result.point

    return tabled(node, function)


def _multiplier16(factor: float) -> tuple[int, int]:
    whole, exponent = fixed_point(np.asarray(factor, np.float64))
    return min((int(whole) + (1 << 15)) >> 16, 32767), int(exponent)


def _saturated(data: Array) -> Array:
    return np.clip(data, -32768, 32767)


def _high(data: Array, by: int) -> Array:
    """The high half of twice a product of 16 bits, midway upward."""
    return _saturated((data * by + (1 << 14)) >> 15)


def _shifted(data: Array, by: int) -> Array:
    """A shift to the right, midway away from zero."""
    if by <= 0:
        return data << -by
    return (data + (1 << by >> 1) - (data < 0)) >> by


def rsqrt(node: Node) -> Expr:
    """Roots with 20 bits behind the point, then in the result's steps; of 0 the largest number."""
    source, result = _pair(node)
    factor = 1 / (np.sqrt(np.float32(source.scale)) * result.scale)

    def function(numbers: Array) -> Array:
        """Numbers below 0 have none, as 0."""
        moved = numbers - source.point
        roots = np.rint(2.0**20 / np.sqrt(np.maximum(moved, 1))).astype(np.int64)
        made = scaled_array(roots, float(factor) / 2**20) + result.point
        return np.where(moved > 0, made, result.limits[1])

    return tabled(node, function)


def gelu(node: Node) -> Expr:
    """By either formula, as a table."""
    if node.option("Approximate"):
        inner = np.sqrt(2 / np.pi)
        return of_real(lambda x: 0.5 * x * (1 + np.tanh(inner * (x + 0.044715 * x**3))))(node)
    return of_real(lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))))(node)


def _interpolated(numbers: Array, bits: int) -> Array:
    """sigmoid(|x|) in 16 + `bits` bits, of x in steps of 1 / (24 << bits), on lines between its
    values at every 24th. Those stand above the function by half of what lines are below it;
    the last one is 1.
    """
    true = 1 / (1 + np.exp(-np.arange(257) / 24))
    bend = true * (1 - true) * (2 * true - 1) / (16 * 24**2)
    table = np.round(65536 * (true + bend)).astype(np.int64)
    table[255:] = 65535
    size = np.abs(numbers)
    place = np.minimum(size >> bits, 255)
    left, right = table[place], table[place + 1]
    return np.asarray((left << bits) + (size & ((1 << bits) - 1)) * (right - left))


def _fine(source: Levels, most: int) -> Callable[[Array], Array]:
    """Numbers of int16 in steps of 1 / 12288; scales of 2**-12 up to 2**(most - 12) exactly."""
    power = float(np.log2(source.scale)) + 12
    if power.is_integer() and 0 <= power <= most:
        return lambda numbers: numbers * (3 << int(power))
    factor, shift = float(source.scale) * 4096 * 3, 0
    while factor <= 32767 / 2 and shift <= 30:
        factor, shift = factor * 2, shift + 1
    half = 1 << shift >> 1
    return lambda numbers: (numbers * int(factor) + half) >> shift


def logistic(node: Node) -> Expr:
    """Of bytes a table of floats; of int16 the kernel interpolates."""
    source = levels(node, node.ins[0])
    if source.dtype != "int16":
        return of_real(lambda x: 1 / (1 + np.exp(-x)))(node)
    fine = _fine(source, 0)

    def function(numbers: Array) -> Array:
        """15 bits behind the point."""
        x = fine(numbers)
        size = np.where(np.abs(x) >> 9 >= 255, 0x7FFF << 10, _interpolated(x, 9))
        return np.where(x >= 0, size + 512, (1 << 25) - size + 511) >> 10

    return tabled(node, function)


def tanh(node: Node) -> Expr:
    """2 sigmoid(2 x) - 1."""
    source = levels(node, node.ins[0])
    if source.dtype != "int16":
        return of_real(np.tanh)(node)
    fine = _fine(source, 1)

    def function(numbers: Array) -> Array:
        """15 bits behind the point."""
        x = fine(numbers)
        size = np.where(np.abs(x) >> 8 >= 255, 0xFFFF << 8, _interpolated(x, 8)) - (1 << 23)
        return np.where(x >= 0, size + 128, 127 - size) >> 8

    return tabled(node, function)


elu = of_real(lambda x: np.where(x < 0, np.expm1(x), x))
exp = of_real(np.exp)
log = of_real(lambda x: np.where(x > 0, np.log(x), -np.inf))

KERNELS: Mapping[str, Converter] = {
    "ADD": total(op.add), "SUB": total(op.subtract), "MUL": multiply, "DIV": divide,
    "MAXIMUM": same_scales(op.maximum), "MINIMUM": same_scales(op.minimum),
    "SQUARED_DIFFERENCE": squared_difference, "ABS": absolute, "RSQRT": rsqrt, "EXP": exp,
    "LOG": log, "TANH": tanh, "LOGISTIC": logistic, "RELU": clipped(0, None),
    "RELU6": clipped(0, 6), "ELU": elu, "PRELU": prelu, "HARD_SWISH": hard_swish,
    **{code: compare(row.function) for code, _, row in rows_of("tflite")
       if row.kind is Kind.COMPARED},
}  # fmt: skip
"""Operators that other formats have too, of quantised tensors."""
WIDE = KERNELS.keys() - {
    "DIV", "SQUARED_DIFFERENCE", "RSQRT", "EXP", "LOG", "ELU", "PRELU", "HARD_SWISH",
}  # fmt: skip
"""Those of them whose kernels take int16 too."""
