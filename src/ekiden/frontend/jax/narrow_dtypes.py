"""Narrow dtypes: integers of 2 and 4 bits and floats of 4 to 8 bits, computed in a wider carrier
dtype and rounded after each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class MinifloatFormat:
    """Small float format as a set of float32 values, subnormals included."""

    mantissa_bits: int
    bias: int
    max_finite: float
    overflow_value: float | None
    """What numbers above the largest become: inf, NaN, or None for the largest itself."""
    has_signed_zero: bool = True

    def round_to_nearest(self, x: Expr, keep: Callable[[Expr], Expr]) -> Expr:
        """Round to the nearest value, ties to even: round(x / q) * q with the spacing q at x, a
        power of two.
        """
        bits = keep(op.reinterpret(x, "int32"))
        # Clamping the exponent from below gives subnormals the spacing of the smallest normal
        # numbers.
        exponent = op.bitwise_and(op.right_shift(bits, const(_MANTISSA, "int32")), _i32_const(0xFF))
        clamped_exponent = op.maximum(exponent, _i32_const(_BIAS + 1 - self.bias))
        step = op.left_shift(
            op.subtract(clamped_exponent, _i32_const(self.mantissa_bits)), _i32_const(_MANTISSA)
        )
        quantum = keep(op.reinterpret(step, "float32"))
        rounded = keep(op.multiply(op.round(op.divide(x, quantum)), quantum))
        if self.overflow_value is None:
            rounded = op.clip(rounded, -self.max_finite, self.max_finite)
        else:
            beyond = op.multiply(op.sign(x), const(self.overflow_value, "float32"))
            is_far = op.greater(op.abs(rounded), const(self.max_finite, "float32"))
            rounded = op.where(is_far, beyond, rounded)
        rounded = op.where(op.isfinite(x), rounded, self._convert_nonfinite(x))
        if self.has_signed_zero:
            return rounded
        return op.where(op.equal(rounded, _f32_zero()), _f32_zero(), rounded)

    def _convert_nonfinite(self, x: Expr) -> Expr:
        """Return what infinities and NaN become in the format."""
        if self.overflow_value is not None:
            return op.multiply(x, const(self.overflow_value, "float32"))
        # without NaN: ml_dtypes has the negative zero for it
        ends = op.multiply(op.sign(x), const(self.max_finite, "float32"))
        return op.where(op.isnan(x), const(-0.0, "float32"), ends)


@dataclass(frozen=True)
class NarrowDtype:
    """Narrow dtype, which no operation computes in."""

    name: str
    """Its name in ml_dtypes."""
    bits: int
    carrier_dtype: str
    """The dtype that holds its values: int8, uint8 or float32."""
    storage_dtype: str = ""
    """Its name in ours, for inputs and outputs; "" where there is none."""
    minifloat_format: MinifloatFormat | None = None
    """The numbers that it holds, where no cast of ours gives them."""

    @property
    def is_integer(self) -> bool:
        """Return whether the dtype holds integers."""
        return self.carrier_dtype != "float32"

    def round_to_dtype(self, x: Expr, keep: Callable[[Expr], Expr]) -> Expr:
        """Emit rounding to the nearest representable values; integers wrap to their low bits.

        `keep` binds an expression that is read more than once.
        """
        if self.minifloat_format is not None:
            return self.minifloat_format.round_to_nearest(x, keep)
        return op.cast(op.cast(x, self.storage_dtype), self.carrier_dtype)

    def round_array(self, array: Array) -> Array:
        """Round an array to the nearest representable values."""
        if self.is_integer:
            unused_bits = 8 - self.bits
            # Shifting up and down again wraps and sign-extends the low bits.
            low: Array = np.left_shift(array.astype(self.carrier_dtype), unused_bits)
            return np.asarray(np.right_shift(low, unused_bits))
        with np.errstate(over="ignore", invalid="ignore"):
            held: Array = array.astype(getattr(ml_dtypes, self.name))
            return held.astype(np.float32)


def _i32_const(number: int) -> Expr:
    return const(number, "int32")


def _f32_zero() -> Expr:
    return const(0.0, "float32")


_MANTISSA, _BIAS = 23, 127
"""The bits of float32's mantissa, and the bias of its exponent."""


def _make_narrow_float(
    name: str, bits: int, stored: str = "", grid: MinifloatFormat | None = None
) -> NarrowDtype:
    return NarrowDtype(name, bits, "float32", stored, grid)


NARROW_DTYPES: Mapping[str, NarrowDtype] = {
    "i2": NarrowDtype("int2", 2, "int8", "int2"),
    "i4": NarrowDtype("int4", 4, "int8", "int4"),
    "ui2": NarrowDtype("uint2", 2, "uint8", "uint2"),
    "ui4": NarrowDtype("uint4", 4, "uint8", "uint4"),
    "f4E2M1FN": _make_narrow_float("float4_e2m1fn", 4, "float4_e2m1fn"),
    "f6E2M3FN": _make_narrow_float("float6_e2m3fn", 6, grid=MinifloatFormat(3, 1, 7.5, None)),
    "f6E3M2FN": _make_narrow_float("float6_e3m2fn", 6, grid=MinifloatFormat(2, 3, 28.0, None)),
    "f8E3M4": _make_narrow_float("float8_e3m4", 8, grid=MinifloatFormat(4, 3, 15.5, np.inf)),
    "f8E4M3": _make_narrow_float("float8_e4m3", 8, grid=MinifloatFormat(3, 7, 240.0, np.inf)),
    "f8E4M3B11FNUZ": _make_narrow_float(
        "float8_e4m3b11fnuz", 8, grid=MinifloatFormat(3, 11, 30.0, np.nan, has_signed_zero=False)
    ),
    "f8E4M3FN": _make_narrow_float("float8_e4m3fn", 8, "float8_e4m3fn"),
    "f8E4M3FNUZ": _make_narrow_float("float8_e4m3fnuz", 8, "float8_e4m3fnuz"),
    "f8E5M2": _make_narrow_float("float8_e5m2", 8, "float8_e5m2"),
    "f8E5M2FNUZ": _make_narrow_float("float8_e5m2fnuz", 8, "float8_e5m2fnuz"),
    "f8E8M0FNU": _make_narrow_float("float8_e8m0fnu", 8, "float8_e8m0fnu"),
}
"""MLIR's name of an element type -> the dtype."""
