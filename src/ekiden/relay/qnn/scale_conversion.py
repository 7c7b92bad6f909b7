"""qnn.quantize, qnn.dequantize and qnn.requantize.

    quantize(x)    = saturate(round(x / scale) + zero_point)          midway: away from zero
    dequantize(q)  = scale * (q - zero_point)
    requantize(q)  = saturate(round(input_scale / output_scale * (q - input_zero_point))
                              + output_zero_point)

In int64, requantize multiplies by the quotient of the scales as m * 2**(e - 31), where m is an
integer of 31 bits (gemmlowp's fixed point; Jacob and others, "Quantization and Training of Neural
Networks for Efficient Integer-Arithmetic-Only Inference", 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr, const
from ekiden.relay.op import (
    add,
    cast,
    clip,
    divide,
    floor,
    greater_equal,
    left_shift,
    less,
    multiply,
    right_shift,
    subtract,
    trunc,
    where,
    widening_multiply,
)
from ekiden.relay.op._declare import check_attrs, check_tensors
from ekiden.relay.qnn._declare import (
    QUANTIZED_DTYPES,
    as_tensor_type,
    broadcast_qparam,
    broadcast_qparam_array,
    call_qnn_op,
    check_axis_extent,
    check_dtype,
    check_qparam,
    constant_qparam,
    declare_qnn_op,
    integer_limits,
    is_qparam_equal_to,
    is_same_scalar,
    saturate,
    unify_axis_extent,
)
from ekiden.relay.qnn.config import (
    REQUANTIZE_COMPUTE_DTYPES,
    ROUNDING_MODES,
    check_choice,
    current_requantize_config,
)
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

FIXED_POINT_BITS = 31
"""Fractional bits of a fixed-point multiplier."""


@node("relay.attrs.QuantizeAttrs")
class QuantizeAttrs(Attrs):
    """Attributes of qnn.quantize: the axis of per-axis scales, and the result's dtype."""

    axis: int = -1
    out_dtype: str = "int8"


@node("relay.attrs.DequantizeAttrs")
class DequantizeAttrs(Attrs):
    """Attributes of qnn.dequantize: the axis of per-axis scales, and the result's dtype."""

    axis: int = -1
    out_dtype: str = "float32"


@node("relay.attrs.RequantizeAttrs")
class RequantizeAttrs(Attrs):
    """Attributes of qnn.requantize: the axis of per-axis input scales, rounding, compute dtype,
    output dtype.
    """

    axis: int = -1
    rounding: str = "UPWARD"
    compute_dtype: str = "int64"
    out_dtype: str = "int8"


@dataclass(frozen=True, slots=True)
class QuantParameter:
    """Scale or zero point with its type."""

    expr: Expr
    kind: Type

    def broadcast_over(self, rank: int, axis: int) -> Expr:
        """Reshape the parameter to broadcast over a tensor."""
        return broadcast_qparam(self.expr, self.kind, rank, axis)


@dataclass(frozen=True, slots=True)
class QuantParams:
    """Quantisation parameters of a tensor: scale and zero point."""

    scale: QuantParameter
    zero_point: QuantParameter

    @staticmethod
    def from_args(args: Sequence[Expr], types: Sequence[Type], at: int) -> QuantParams:
        """Build parameters from two arguments of a call, starting at `at`."""
        return QuantParams(
            QuantParameter(args[at], types[at]), QuantParameter(args[at + 1], types[at + 1])
        )

    @staticmethod
    def from_scale(scale: Array, kind: Type) -> QuantParams:
        """Build parameters from a scale and zero point 0."""
        zero = QuantParameter(const(np.int32(0)), TensorType((), "int32"))
        return QuantParams(QuantParameter(const(scale), kind), zero)

    def is_same_scalar(self, steps: QuantParams) -> bool:
        """Return whether both are provably the same scalars."""
        return is_same_scalar(self.scale.expr, steps.scale.expr) and is_same_scalar(
            self.zero_point.expr, steps.zero_point.expr
        )


ArrayQuantParams = tuple[Array, Array]
"""Scale and zero point as arrays."""


# --- the expressions -----------------------------------------------------------------------------


def _scalar(number: float, dtype: str) -> Expr:
    return const(np.asarray(number, dtype))


def round_half_away(data: Expr, dtype: str) -> Expr:
    """Round to nearest, ties away from zero.

    The greatest number below a half is added, which rounds up exactly from a half on.
    """
    kind = to_numpy(dtype).type
    # Adding exactly 0.5 would round 0.49999997 up to 1 in float32.
    below = np.nextafter(kind(0.5), kind(0))
    half = where(less(data, _scalar(0, dtype)), _scalar(-below, dtype), _scalar(below, dtype))
    return trunc(add(data, half))


def _saturate(data: Expr, dtype: str) -> Expr:
    return cast(clip(data, *integer_limits(dtype)), dtype)


def emit_quantize(data: Expr, rank: int, steps: QuantParams, axis: int, out_dtype: str) -> Expr:
    """Emit the quantisation of float32 data."""
    levels = round_half_away(divide(data, steps.scale.broadcast_over(rank, axis)), "float32")
    moved = add(levels, cast(steps.zero_point.broadcast_over(rank, axis), "float32"))
    # 2**31 - 1 rounds up to 2**31, which would wrap around.
    if out_dtype == "int32":  # its largest is no float32
        moved = cast(moved, "float64")
    return _saturate(moved, out_dtype)


def emit_dequantize(
    data: Expr, rank: int, steps: QuantParams, axis: int, out_dtype: str = "float32"
) -> Expr:
    """Emit the dequantisation of integers."""
    moved = subtract(cast(data, "int32"), steps.zero_point.broadcast_over(rank, axis))
    floats = multiply(cast(moved, "float32"), steps.scale.broadcast_over(rank, axis))
    if out_dtype == "float32":
        return floats
    # float16 would overflow to infinity.
    largest = float(np.finfo(out_dtype).max)
    return cast(clip(floats, -largest, largest), out_dtype)


def to_fixed_point(multiplier: Array) -> tuple[Array, Array]:
    """Split a float64 multiplier into 31-bit integers and exponents: multiplier = integer *
    2**(exponent - 31).
    """
    # frexp gives a fraction in [0.5, 1): 31 bits of it are the most precise multiplier.
    fraction, exponent = np.frexp(multiplier)
    scaled = fraction * (1 << FIXED_POINT_BITS)
    mantissa = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int64)
    # Rounding up to the next power of two needs one bit too many.
    is_one = mantissa == 1 << FIXED_POINT_BITS
    mantissa, exponent = (
        np.where(is_one, mantissa >> 1, mantissa),
        np.where(is_one, exponent + 1, exponent),
    )
    return mantissa, np.where(mantissa == 0, 0, exponent).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _FixedPointProduct:
    """Multiplication by a fixed-point multiplier, per axis or scalar."""

    multiplier: Array
    left_shift: Array
    right_shift: Array

    @staticmethod
    def from_quotient(quotient: Array) -> _FixedPointProduct:
        """Build the product for a float64 multiplier."""
        mantissa, exponent = to_fixed_point(quotient)
        # Shifts by the width of the type or more are undefined.
        right = np.minimum(
            np.maximum(-exponent, 0), FIXED_POINT_BITS + 1
        )  # from there on nothing is left
        return _FixedPointProduct(mantissa, np.maximum(exponent, 0), right + FIXED_POINT_BITS)

    def emit(self, data: Expr, rounding: str) -> Expr:
        """Emit int32 data times the multiplier in int64: << left, * multiplier, rounding >> right.

        `rounding` is "UPWARD", "TONEAREST" with halves away from zero, or "TWICE" as gemmlowp.
        """
        wide = self._emit_wide(data)
        if rounding == "TONEAREST":
            half: Expr = const(np.left_shift(np.int64(1), self.right_shift - 1))
            below = const(np.left_shift(np.int64(1), self.right_shift - 1) - 1)
            # Halves of negative products round away from zero, too.
            half = where(greater_equal(wide, _scalar(0, "int64")), half, below)
            return cast(right_shift(add(wide, half), const(self.right_shift)), "int32")
        # Half of what the shift drops: midway upward.
        nearest = add(wide, _scalar(1 << (FIXED_POINT_BITS - 1), "int64"))
        high = cast(right_shift(nearest, _scalar(FIXED_POINT_BITS, "int64")), "int32")
        remaining_shift = self.right_shift - FIXED_POINT_BITS
        if not remaining_shift.any():
            return high
        shifted = self._emit_rounded_shift(wide, high, remaining_shift, rounding)
        return (
            shifted if remaining_shift.all() else where(const(remaining_shift > 0), shifted, high)
        )

    def _emit_wide(self, data: Expr) -> Expr:
        """Emit the product before the right shift.

        Both numbers are known to be int32 for code generation, unless data are shifted to the left
        first.
        """
        # One widening multiplication serves where the multiplier is below 1.
        if not self.left_shift.any():
            return widening_multiply(data, const(self.multiplier.astype(np.int32)))
        moved = left_shift(cast(data, "int64"), const(self.left_shift))
        return multiply(moved, const(self.multiplier))

    @staticmethod
    def _emit_rounded_shift(wide: Expr, high: Expr, shift: Array, rounding: str) -> Expr:
        """Emit the product shifted right by FIXED_POINT_BITS + `shift`, rounded once, ties upward.

        "TWICE" rounds `high`, the product up to the point of the multiplier, with halves away from
        zero, as gemmlowp does. A shift by POINT leaves int32, as few processors shift int64 with
        its sign. The shift keeps a bit to round with, so that this stays within int32 too: high is
        above its least value.
        """
        if rounding == "TWICE":
            below = add(
                high, right_shift(high, _scalar(FIXED_POINT_BITS, "int32"))
            )  # 1 less if negative
        else:
            below = cast(right_shift(wide, _scalar(FIXED_POINT_BITS, "int64")), "int32")
        with_round_bit = right_shift(below, const(np.maximum(shift - 1, 0).astype(np.int32)))
        return right_shift(add(with_round_bit, _scalar(1, "int32")), _scalar(1, "int32"))

    def evaluate(self, data: Array, rounding: str) -> Array:
        """Evaluate the product bit-exactly on an array, for constant folding."""
        wide = (data.astype(np.int64) << self.left_shift) * self.multiplier
        if rounding == "TWICE":
            high, shift = (
                (wide + (1 << (FIXED_POINT_BITS - 1))) >> FIXED_POINT_BITS,
                self.right_shift - FIXED_POINT_BITS,
            )
            below = (high < 0) & (shift > 0)
            return np.asarray((high + (np.left_shift(np.int64(1), shift) >> 1) - below) >> shift)
        half = np.left_shift(np.int64(1), self.right_shift - 1)
        rounded = half if rounding == "UPWARD" else half - (wide < 0)
        return np.asarray((wide + rounded) >> self.right_shift).astype(np.int32)


def multiply_fixed_point(data: Expr, multiplier: float | Array, rounding: str = "UPWARD") -> Expr:
    """Multiply int32 data by broadcasting numbers in fixed point.

    Halves are rounded up; away from zero, "TONEAREST"; or the result is rounded "TWICE" as in
    gemmlowp.
    """
    return _FixedPointProduct.from_quotient(np.asarray(multiplier, np.float64)).emit(data, rounding)


def multiply_fixed_point_int(data: Expr, whole: int, exponent: int, rounding: str) -> Expr:
    """Multiply int32 data by whole * 2**(exponent - 31), `whole` a 31-bit integer."""
    left_shift, right_shift_bits = max(exponent, 0), max(-exponent, 0) + FIXED_POINT_BITS
    return _FixedPointProduct(
        *(np.asarray(n, np.int64) for n in (whole, left_shift, right_shift_bits))
    ).emit(data, rounding)


def multiply_fixed_point_array(
    data: Array, multiplier: float | Array, rounding: str = "UPWARD"
) -> Array:
    """Multiply an array by numbers in fixed point, as `multiply_fixed_point`."""
    return _FixedPointProduct.from_quotient(np.asarray(multiplier, np.float64)).evaluate(
        data, rounding
    )


_INT32_REQUANTIZE_ATTRS = RequantizeAttrs(out_dtype="int32")


@dataclass(frozen=True, slots=True)
class Requantization:
    """Requantisation from source to result parameters."""

    source: QuantParams
    result: QuantParams
    attrs: RequantizeAttrs = _INT32_REQUANTIZE_ATTRS

    def apply_unless_same(self, data: Expr, rank: int) -> Expr:
        """Return the requantised tensor, or the tensor itself if the parameters are provably the
        same.
        """
        if self.source.is_same_scalar(self.result):
            return cast(data, self.attrs.out_dtype)
        return self.apply(data, rank)

    def apply(self, data: Expr, rank: int) -> Expr:
        """Emit the requantised tensor.

        Raises:
            CompileError: Scales in int64 are not constants.
        """
        compute, axis = self.attrs.compute_dtype, self.attrs.axis
        rescaled: Expr = cast(data, _compute_dtype(compute))
        if not is_qparam_equal_to(self.source.zero_point.expr, 0):
            rescaled = subtract(
                rescaled,
                cast(self.source.zero_point.broadcast_over(rank, axis), _compute_dtype(compute)),
            )
        if not is_same_scalar(self.source.scale.expr, self.result.scale.expr):
            rescaled = (
                self._apply_fixed_point(rescaled, rank)
                if compute == "int64"
                else self._apply_float(rescaled, rank)
            )
        if not is_qparam_equal_to(self.result.zero_point.expr, 0):
            rescaled = add(rescaled, cast(self.result.zero_point.expr, _compute_dtype(compute)))
        # Floats are rounded once, behind the zero point.
        if compute != "int64":
            rescaled = cast(_ROUND_BY_MODE[self.attrs.rounding](rescaled, compute), "int32")
        return (
            rescaled
            if self.attrs.out_dtype == "int32"
            else _saturate(rescaled, self.attrs.out_dtype)
        )

    def _apply_float(self, data: Expr, rank: int) -> Expr:
        wide = cast(self.source.scale.broadcast_over(rank, self.attrs.axis), "float64")
        # The quotient in float64: rounding it would move products by more than their own rounding.
        quotient = divide(wide, cast(self.result.scale.expr, "float64"))
        return multiply(data, cast(quotient, self.attrs.compute_dtype))

    def _apply_fixed_point(self, data: Expr, rank: int) -> Expr:
        scale, divisor = (
            constant_qparam(self.source.scale.expr),
            constant_qparam(self.result.scale.expr),
        )
        if scale is None or divisor is None:
            raise CompileError(
                "qnn.requantize: scales must be constants where 'compute_dtype' is int64, as fixed"
                " point is computed from them; float32 and float64 take any"
            )
        # In float64: the multiplier has 31 bits, more than float32 holds.
        quotient = broadcast_qparam_array(np.asarray(scale), rank, self.attrs.axis).astype(
            np.float64
        )
        product = _FixedPointProduct.from_quotient(quotient / np.float64(divisor.reshape(())))
        return product.emit(data, self.attrs.rounding)


def _compute_dtype(compute: str) -> str:
    return "int32" if compute == "int64" else compute


def _round_half_up(data: Expr, dtype: str) -> Expr:
    return floor(add(data, _scalar(0.5, dtype)))


_ROUND_BY_MODE: dict[str, Callable[[Expr, str], Expr]] = {
    "UPWARD": _round_half_up,
    "TONEAREST": round_half_away,
}
_ROUND_ARRAY_BY_MODE: dict[str, Callable[[Array], Array]] = {
    "UPWARD": lambda x: np.floor(x + x.dtype.type(0.5)),
    "TONEAREST": lambda x: round_half_away_array(x),
}


# --- the same on arrays --------------------------------------------------------------------------


def round_half_away_array(data: Array) -> Array:
    """Round an array to nearest, ties away from zero."""
    truncated = np.trunc(data)
    return np.where(np.abs(data - truncated) >= 0.5, truncated + np.sign(data), truncated).astype(
        data.dtype
    )


def quantize_array(
    data: Array, steps: ArrayQuantParams, axis: int = -1, out_dtype: str = "int8"
) -> Array:
    """Evaluate qnn.quantize on arrays."""
    scale, point = (broadcast_qparam_array(parameter, data.ndim, axis) for parameter in steps)
    with np.errstate(all="ignore"):
        moved = round_half_away_array(data / scale) + point.astype(np.float32)
        # In float64, as the bounds of int32 are no float32.
        return saturate(moved.astype(np.float64), out_dtype)


def dequantize_array(
    data: Array, steps: ArrayQuantParams, axis: int = -1, out_dtype: str = "float32"
) -> Array:
    """Evaluate qnn.dequantize on arrays."""
    scale, point = (broadcast_qparam_array(parameter, data.ndim, axis) for parameter in steps)
    floats = (data.astype(np.int32) - point).astype(np.float32) * scale
    largest = np.finfo(out_dtype).max
    return np.clip(floats, -largest, largest).astype(out_dtype)


def requantize_array(
    data: Array, source: ArrayQuantParams, result: ArrayQuantParams, attrs: RequantizeAttrs
) -> Array:
    """Evaluate qnn.requantize on arrays."""
    compute = attrs.compute_dtype
    scale, point = (
        broadcast_qparam_array(parameter, data.ndim, attrs.axis) for parameter in source
    )
    quotient = scale.astype(np.float64) / result[0]
    moved = data.astype(_compute_dtype(compute)) - point.astype(_compute_dtype(compute))
    if compute == "int64":
        is_same = scale.size == 1 and bool(np.all(scale == result[0]))
        rescaled = (
            moved
            if is_same
            else _FixedPointProduct.from_quotient(quotient).evaluate(moved, attrs.rounding)
        )
        rescaled = rescaled + result[1]
    else:
        floating = moved * quotient.astype(compute) + result[1].astype(compute)
        rescaled = _ROUND_ARRAY_BY_MODE[attrs.rounding](floating).astype(np.int32)
    return rescaled if attrs.out_dtype == "int32" else saturate(rescaled, attrs.out_dtype)


# --- the operators -------------------------------------------------------------------------------


def _check_quantize_types(
    name: str, types: Sequence[Type], axis: int, what: Sequence[str]
) -> tuple[TensorType, ...]:
    kinds = check_tensors(name, types, len(what) + 1)
    dim = check_axis_extent(name, kinds[0], axis, kinds[1:3])
    for position, (kind, role) in enumerate(zip(kinds[1:], what, strict=True)):
        check_qparam(name, kind, role, dim if position < 2 else None)
    return unify_axis_extent(name, kinds[0], axis, kinds[1:3]), *kinds[1:]


def _quantize_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    settings, name = check_attrs(QuantizeAttrs, attrs), "qnn.quantize"
    names = ("output_scale", "output_zero_point")
    data, *_ = _check_quantize_types(name, types, settings.axis, names)
    check_dtype(name, data, ("float32",), "data")
    return TensorType(
        data.shape,
        check_dtype(name, TensorType((), settings.out_dtype), QUANTIZED_DTYPES, "out_dtype"),
    )


def _dequantize_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    settings, name = check_attrs(DequantizeAttrs, attrs), "qnn.dequantize"
    data, *_ = _check_quantize_types(
        name, types, settings.axis, ("input_scale", "input_zero_point")
    )
    check_dtype(name, data, QUANTIZED_DTYPES, "data")
    floats = ("float16", "float32")
    return TensorType(
        data.shape, check_dtype(name, TensorType((), settings.out_dtype), floats, "out_dtype")
    )


def _requantize_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    settings, name = check_attrs(RequantizeAttrs, attrs), "qnn.requantize"
    names = ("input_scale", "input_zero_point", "output_scale", "output_zero_point")
    data, *_ = _check_quantize_types(name, types, settings.axis, names)
    check_dtype(name, data, (*QUANTIZED_DTYPES, "int64"), "data")
    return TensorType(
        data.shape,
        check_dtype(name, TensorType((), settings.out_dtype), QUANTIZED_DTYPES, "out_dtype"),
    )


def _expand_quantize(attrs: QuantizeAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    rank = len(as_tensor_type(types[0]).shape)
    return emit_quantize(
        args[0], rank, QuantParams.from_args(args, types, 1), attrs.axis, attrs.out_dtype
    )


def _expand_dequantize(attrs: DequantizeAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    rank = len(as_tensor_type(types[0]).shape)
    return emit_dequantize(
        args[0], rank, QuantParams.from_args(args, types, 1), attrs.axis, attrs.out_dtype
    )


def _expand_requantize(attrs: RequantizeAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    rescaling = Requantization(
        QuantParams.from_args(args, types, 1), QuantParams.from_args(args, types, 3), attrs
    )
    return rescaling.apply(args[0], len(as_tensor_type(types[0]).shape))


declare_qnn_op(
    "qnn.quantize",
    "data output_scale output_zero_point",
    _quantize_relation,
    lambda attrs, data, *steps: quantize_array(data, steps, attrs.axis, attrs.out_dtype),
    _expand_quantize,
    QuantizeAttrs,
)
declare_qnn_op(
    "qnn.dequantize",
    "data input_scale input_zero_point",
    _dequantize_relation,
    lambda attrs, data, *steps: dequantize_array(data, steps, attrs.axis, attrs.out_dtype),
    _expand_dequantize,
    DequantizeAttrs,
)
declare_qnn_op(
    "qnn.requantize",
    "data input_scale input_zero_point output_scale output_zero_point",
    _requantize_relation,
    lambda attrs, data, *steps: requantize_array(data, steps[:2], steps[2:], attrs),
    _expand_requantize,
    RequantizeAttrs,
)


def quantize(
    data: Expr, output_scale: Expr, output_zero_point: Expr, axis: int = -1, out_dtype: str = "int8"
) -> Call:
    """Quantise float32 data to `out_dtype` (int8, uint8, int16, uint16 or int32).

    See the top of this file. Scale (float32) and zero point (int32) are scalars or vectors along
    `axis`.
    """
    attrs = QuantizeAttrs(axis, out_dtype)
    return call_qnn_op("qnn.quantize", data, output_scale, output_zero_point, attrs=attrs)


def dequantize(
    data: Expr,
    input_scale: Expr,
    input_zero_point: Expr,
    axis: int = -1,
    out_dtype: str = "float32",
) -> Call:
    """Dequantise integers to `out_dtype` (float16 or float32)."""
    attrs = DequantizeAttrs(axis, out_dtype)
    return call_qnn_op("qnn.dequantize", data, input_scale, input_zero_point, attrs=attrs)


def requantize(
    data: Expr,
    input_scale: Expr,
    input_zero_point: Expr,
    output_scale: Expr,
    output_zero_point: Expr,
    axis: int = -1,
    rounding: str = "None",
    compute_dtype: str = "None",
    out_dtype: str = "int8",
) -> Call:
    """Requantise integers from one scale and zero point to another.

    The scales and zero points of the data are scalars or vectors along `axis`, those of the result
    scalars. `rounding` ("UPWARD", "TONEAREST") and `compute_dtype` ("int64", "float32", "float64")
    are those of `requantize_config` if they are "None".

    Raises:
        CompileError: `rounding` or `compute_dtype` is none of these.
    """
    config = current_requantize_config()
    # "None" is TVM's spelling for the innermost configuration.
    rounding = config.rounding if rounding == "None" else rounding
    compute_dtype = config.compute_dtype if compute_dtype == "None" else compute_dtype
    check_choice("rounding", rounding, ROUNDING_MODES)
    check_choice("compute_dtype", compute_dtype, REQUANTIZE_COMPUTE_DTYPES)
    attrs = RequantizeAttrs(axis, rounding, compute_dtype, out_dtype)
    scales = input_scale, input_zero_point, output_scale, output_zero_point
    return call_qnn_op("qnn.requantize", data, *scales, attrs=attrs)


__all__ = ["dequantize", "quantize", "requantize"]
