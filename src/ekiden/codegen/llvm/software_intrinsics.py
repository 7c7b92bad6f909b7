"""Software forms of operations for which some processors have no instruction.

LLVM would call a library for these, and compiled code has none. x86-64 has no fused multiply-add
below level v3 and no rounding to whole numbers below v2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ekiden.codegen.llvm.builder import Operand

if TYPE_CHECKING:  # which reads the table below
    from ekiden.codegen.llvm.float_math import FloatMath

VELTKAMP_SPLITTER = 2.0**27 + 1
"""Multiplier that splits a float64 into halves of 26 bits (Veltkamp)."""


def fma(m: FloatMath, x: Operand, y: Operand, z: Operand) -> Operand:
    """Return x * y + z with an unrounded product: in float64 for float32, in two parts for float64
    (Dekker 1971). The last bit may differ from the instruction's; where a part overflows the
    result is that of the plain operations.
    """
    if not m.is_double:
        wide = m.widen()
        product = wide.mul(m.cast(x, wide), m.cast(y, wide))
        return wide.cast(wide.add(product, m.cast(z, wide)), m)
    product, lost = two_product(m, x, y)
    total = m.add(product, z)
    # Knuth's TwoSum: the exact rounding error of product + z.
    of_z = m.sub(total, product)
    sum_error = m.add(m.sub(product, m.sub(total, of_z)), m.sub(z, of_z))
    exact = m.add(total, m.add(lost, sum_error))
    # Where a part has overflowed the error terms are NaN, and the rounded sum stands.
    return m.select(m.b.compare("ord", m.dtype, exact, exact), exact, total)


def two_product(m: FloatMath, x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """Return x * y in float64 as the rounded product and its rounding error (Dekker's
    TwoProduct).
    """
    product = m.mul(x, y)
    (x_high, x_low), (y_high, y_low) = _veltkamp_split(m, x), _veltkamp_split(m, y)
    lost = m.sub(m.mul(x_high, y_high), product)
    lost = m.add(m.add(lost, m.mul(x_high, y_low)), m.mul(x_low, y_high))
    return product, m.add(lost, m.mul(x_low, y_low))


def _veltkamp_split(m: FloatMath, x: Operand) -> tuple[Operand, Operand]:
    scaled = m.mul(x, m.const(VELTKAMP_SPLITTER))
    high = m.sub(scaled, m.sub(scaled, x))
    return high, m.sub(x, high)


def round_even(m: FloatMath, x: Operand) -> Operand:
    """Round to the nearest integer, ties to even: add and subtract 2**mantissa."""
    integer_threshold = 2.0**m.mantissa_bits
    large = m.copysign(m.const(integer_threshold), x)
    # copysign restores -0.0, which the sum loses.
    near = m.copysign(m.sub(m.add(x, large), large), x)
    return m.select(m.less(m.abs(x), m.const(integer_threshold)), near, x)


def floor(m: FloatMath, x: Operand) -> Operand:
    """Return the largest integer that is not above x; zeros keep their sign."""
    near = round_even(m, x)
    return m.copysign(m.select(m.less(x, near), m.sub(near, m.const(1.0)), near), x)


def ceil(m: FloatMath, x: Operand) -> Operand:
    """Return the smallest integer that is not below x."""
    near = round_even(m, x)
    return m.copysign(m.select(m.less(near, x), m.add(near, m.const(1.0)), near), x)


def trunc(m: FloatMath, x: Operand) -> Operand:
    """Return the integer next to x towards zero."""
    return m.copysign(floor(m, m.abs(x)), x)


SOFTWARE_INTRINSICS: dict[str, tuple[str, Callable[..., Operand]]] = {
    "fma": ("fma", fma),
    "roundeven": ("rounding", round_even),
    "floor": ("rounding", floor),
    "ceil": ("rounding", ceil),
    "trunc": ("rounding", trunc),
}
"""Target ability that each LLVM intrinsic needs, and its software form."""
