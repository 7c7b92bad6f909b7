"""Elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.dtype import int_range
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    EQ,
    GT,
    LT,
    NE,
    Not,
    PrimExpr,
    Select,
    Var,
    const,
    fold_binary,
    maximum,
    minimum,
)
from ekiden.ir.prim import cast as cast_scalar
from ekiden.te import Tensor
from ekiden.topi.dimensions import normalize_axis, require_shape

UnaryScalar = Callable[[PrimExpr], PrimExpr]


def elementwise(x: Tensor, function: UnaryScalar, name: str) -> Tensor:
    """Return `function` applied to each element."""
    return te.compute(x.shape, lambda *i: function(x[i]), name=name, tag="elemwise")


def as_bool(x: PrimExpr) -> PrimExpr:
    """Return whether a value is non-zero."""
    return x if dt.element_dtype(x.dtype) == "bool" else fold_binary(NE, x, const(0, x.dtype))


def widen_half(x: PrimExpr) -> PrimExpr:
    """Return half-precision values as float32, in which their arithmetic is done; others
    unchanged.
    """
    return cast_scalar(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def _float_intrinsic(op: str) -> UnaryScalar:
    return lambda x: cast_scalar(call_intrin(op, widen_half(x)), x.dtype)


def _rounding_op(op: str) -> UnaryScalar:
    """Return a rounding function; integers stay unchanged."""
    return lambda x: _float_intrinsic(op)(x) if dt.is_float(x.dtype) else x


def _float_predicate(op: str) -> UnaryScalar:
    """Return a floating-point predicate; it is false for integers."""
    return lambda x: call_intrin(op, widen_half(x)) if dt.is_float(x.dtype) else const(False)


def _abs(x: PrimExpr) -> PrimExpr:
    if dt.is_float(x.dtype):
        return _float_intrinsic("abs")(x)
    return x if dt.is_unsigned(x.dtype) or x.dtype == "bool" else Select(x < 0, -x, x, x.dtype)


def _negative(x: PrimExpr) -> PrimExpr:
    # For floats 0 - x would give +0 where x is +0.
    return x * -1.0 if dt.is_float(x.dtype) else -x


def _sign(x: PrimExpr) -> PrimExpr:
    """Return 1, -1, or x itself for 0 and NaN."""
    zero = const(0, x.dtype)
    below = (
        x
        if dt.is_unsigned(x.dtype)
        else Select(fold_binary(LT, x, zero), const(-1, x.dtype), x, x.dtype)
    )
    return Select(fold_binary(GT, x, zero), const(1, x.dtype), below, x.dtype)


def _bitwise_not(x: PrimExpr) -> PrimExpr:
    if x.dtype == "bool":
        return Not(x)
    return call_intrin(
        "bitwise_xor",
        x,
        const(2 ** dt.SCALAR_BITS[x.dtype] - 1, x.dtype)
        if dt.is_unsigned(x.dtype)
        else const(-1, x.dtype),
    )


def _isfinite(x: PrimExpr) -> PrimExpr:
    """Return whether x is finite: x - x is 0 for finite values only."""
    return fold_binary(EQ, x - x, 0.0) if dt.is_float(x.dtype) else const(True)


def _logical_not(x: PrimExpr) -> PrimExpr:
    return Not(x) if x.dtype == "bool" else fold_binary(EQ, x, const(0, x.dtype))


def relu_scalar(x: PrimExpr) -> PrimExpr:
    """Return max(x, 0)."""
    return maximum(x, const(0, x.dtype))


def _unary_operator(name: str, function: UnaryScalar) -> Callable[[Tensor], Tensor]:
    def compute_elementwise(x: Tensor) -> Tensor:
        return elementwise(x, function, name)

    compute_elementwise.__name__ = compute_elementwise.__qualname__ = name
    compute_elementwise.__doc__ = f"`{name}` of each element."
    return compute_elementwise


# fmt: off
exp         = _unary_operator("exp",         _float_intrinsic("exp"))
log         = _unary_operator("log",         _float_intrinsic("log"))
sqrt        = _unary_operator("sqrt",        _float_intrinsic("sqrt"))
rsqrt       = _unary_operator("rsqrt",       _float_intrinsic("rsqrt"))
tanh        = _unary_operator("tanh",        _float_intrinsic("tanh"))
erf         = _unary_operator("erf",         _float_intrinsic("erf"))
sigmoid     = _unary_operator("sigmoid",     _float_intrinsic("sigmoid"))
sin         = _unary_operator("sin",         _float_intrinsic("sin"))
cos         = _unary_operator("cos",         _float_intrinsic("cos"))
floor       = _unary_operator("floor",       _rounding_op("floor"))
ceil        = _unary_operator("ceil",        _rounding_op("ceil"))
round       = _unary_operator("round",       _rounding_op("round"))
trunc       = _unary_operator("trunc",       _rounding_op("trunc"))
isfinite    = _unary_operator("isfinite",    lambda x: _isfinite(widen_half(x)))
bitwise_not = _unary_operator("bitwise_not", _bitwise_not)
identity    = _unary_operator("identity",    lambda x: x)
isnan       = _unary_operator("isnan",       _float_predicate("isnan"))
isinf       = _unary_operator("isinf",       _float_predicate("isinf"))
abs         = _unary_operator("abs",         _abs)
negative    = _unary_operator("negative",    _negative)
sign        = _unary_operator("sign",        _sign)
logical_not = _unary_operator("logical_not", _logical_not)
copy        = _unary_operator("copy",        lambda x: x)
relu        = _unary_operator("relu",        relu_scalar)
# fmt: on
fast_exp, fast_tanh, fast_erf = exp, tanh, erf
"""TVM's fast approximations; same as the exact operators, which are polynomials already."""


def convert_scalar(x: PrimExpr, dtype: str) -> PrimExpr:
    """Convert a scalar as NumPy does: anything but 0 becomes True."""
    return as_bool(x) if dtype == "bool" else cast_scalar(x, dtype)


def cast(x: Tensor, dtype: str) -> Tensor:
    """Convert each element to `dtype`."""
    return elementwise(x, lambda v: convert_scalar(v, dtype), "cast")


def reinterpret(x: Tensor, dtype: str) -> Tensor:
    """Reinterpret the bits of each element as a `dtype` of the same size."""
    return elementwise(x, lambda v: call_intrin("reinterpret", v, dtype=dtype), "reinterpret")


def clip(x: Tensor, a_min: float, a_max: float) -> Tensor:
    """Clamp each element to [a_min, a_max]; infinite bounds have no effect."""

    def clamp_scalar(value: PrimExpr) -> PrimExpr:
        """Clamp a value to the bounds that its dtype can represent; the others have no effect."""
        low, high = _representable_bounds(value.dtype, a_min, a_max)
        raised = value if low is None else maximum(value, const(low, value.dtype))
        return raised if high is None else minimum(raised, const(high, value.dtype))

    return elementwise(x, clamp_scalar, "clip")


def _representable_bounds(
    dtype: str, a_min: float, a_max: float
) -> tuple[float | None, float | None]:
    """Return the bounds that can exclude values of `dtype`; bounds beyond its range are replaced by
    its limits.
    """
    if dt.is_float(dtype):
        return None if a_min == -math.inf else a_min, None if a_max == math.inf else a_max
    if dtype == "bool":
        return 1 if a_min > 0 else None, 0 if a_max < 1 else None
    ends = int_range(dtype)
    assert ends is not None
    lowest, highest = ends
    low = int(min(a_min, highest)) if a_min > lowest else None
    return low, int(max(a_max, lowest)) if a_max < highest else None


def leaky_relu(x: Tensor, alpha: float) -> Tensor:
    """Multiply elements below 0 by `alpha`."""
    return elementwise(
        x,
        lambda v: Select(fold_binary(GT, v, 0), v, v * const(alpha, v.dtype), v.dtype),
        "leaky_relu",
    )


def prelu(x: Tensor, slope: Tensor, axis: int = 1) -> Tensor:
    """Multiply elements below 0 by the `slope` of their channel."""
    axis_index = normalize_axis(axis, x.ndim, "prelu")
    return te.compute(
        x.shape,
        lambda *i: Select(fold_binary(GT, x[i], 0), x[i], x[i] * slope[i[axis_index]], x.dtype),
        name="prelu",
        tag="broadcast",
    )


def bias_add(data: Tensor, bias: Tensor, axis: int = 1) -> Tensor:
    """Add a vector along one axis."""
    axis_index = normalize_axis(axis, data.ndim, "bias_add")
    return te.compute(
        data.shape, lambda *i: data[i] + bias[i[axis_index]], name="bias_add", tag="broadcast"
    )


def fixed_point_multiply(x: Tensor, multiplier: int, shift: int) -> Tensor:
    """Multiply int32 by the fixed-point factor multiplier * 2**(shift - 31), rounded half up.

    `multiplier` is a fraction in Q31, `shift` may be negative.
    """
    _require_int32("fixed_point_multiply", x)
    return elementwise(
        x,
        lambda v: q_multiply_shift(v, const(multiplier, "int64"), const(shift, "int64")),
        "fixed_point_multiply",
    )


def fixed_point_multiply_per_axis(
    x: Tensor,
    y: Tensor,
    lshift: Tensor,
    rshift: Tensor,
    is_lshift_required: bool = True,
    is_rshift_required: bool = True,
    axes: Sequence[int] = (),
) -> Tensor:
    """Multiply as fixed_point_multiply, with vectors along axes.

    Args:
        x: int32 data.
        y: multiplier for each element of `axes`.
        lshift: left shift before the product.
        rshift: right shift after it.
        is_lshift_required: whether `lshift` is applied.
        is_rshift_required: whether `rshift` is applied.
        axes: the axes that the vectors run along.

    Returns:
        The rounded int32 product.
    """
    name = "fixed_point_multiply_per_axis"
    _require_int32(name, x)
    chosen = [normalize_axis(axis, x.ndim, name) for axis in axes]
    extents = [x.shape[axis] for axis in chosen]
    for operand, what, is_read in (
        (y, "y", True), (lshift, "lshift", is_lshift_required),
        (rshift, "rshift", is_rshift_required),
    ):  # fmt: skip
        if is_read:
            require_shape(name, what, operand.shape, extents)

    def multiply_element(*i: Var) -> PrimExpr:
        """Return x * y * 2**(left - right) with y a fraction of 2**31, rounded as
        `q_multiply_shift` does.
        """
        indices = [i[axis] for axis in chosen]
        total = const(0, "int64")
        if is_lshift_required:
            total = total + cast_scalar(lshift[indices], "int64")
        if is_rshift_required:
            total = total - cast_scalar(rshift[indices], "int64")
        return q_multiply_shift(x[i], cast_scalar(y[indices], "int64"), total)

    return te.compute(x.shape, multiply_element, name=name, tag="broadcast")


def _require_int32(name: str, x: Tensor) -> None:
    if x.dtype != "int32":
        raise ValueError(f"{name}: expected int32, got {x.dtype}")


def q_multiply_shift(value: PrimExpr, multiplier: PrimExpr, shift: PrimExpr) -> PrimExpr:
    """Return the TVM intrinsic q_multiply_shift: (value << max(shift, 0)) * multiplier / 2**(31 -
    min(shift, 0)), rounded half up. No product exceeds 2**62, so that a shift by 63 stands for all
    larger ones.
    """
    left_shift, right = maximum(shift, 0), minimum(maximum(-shift, 0) + 31, 63)
    scaled = call_intrin("left_shift", cast_scalar(value, "int64"), left_shift) * multiplier
    half = call_intrin("left_shift", const(1, "int64"), right - 1)
    return cast_scalar(call_intrin("right_shift", scaled + half, right), "int32")


__all__ = [
    "abs", "bitwise_not", "cast", "ceil", "clip", "copy", "cos", "erf", "exp", "fast_erf",
    "fast_exp", "fast_tanh", "fixed_point_multiply", "fixed_point_multiply_per_axis", "floor",
    "identity", "isfinite", "isinf", "isnan", "log", "logical_not", "negative", "reinterpret",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "tanh", "trunc",
]  # fmt: skip
