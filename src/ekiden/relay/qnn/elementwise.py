"""Quantised elementwise operators: add, subtract, mul, and unary functions.

add, subtract   both sides in the scale of the result, then in int32:
                a + b - zero_point, a - b + zero_point
mul             (a - a_zero_point) (b - b_zero_point), requantised from the product of the scales
tanh, exp, ...  quantize(f(dequantize(x)))
leaky_relu      requantised, and below the zero point times alpha in fixed point
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import OPS, Array
from ekiden.ir.type import TensorType, Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, const
from ekiden.relay.op._declare import attrs_of, fail, one_dtype, tensors
from ekiden.relay.op.broadcast import broadcast_types
from ekiden.relay.op.nn.activation import LeakyReluAttrs
from ekiden.relay.qnn._declare import (
    BYTES,
    INTEGERS,
    along_array,
    axis_dim,
    call,
    check_parameter,
    declare,
    dtype_of,
    is_all,
    limits,
    saturated,
    tensor,
    value,
)
from ekiden.relay.qnn.rescale import (
    RequantizeAttrs,
    Rescaling,
    Steps,
    dequantize_array,
    dequantized,
    quantize_array,
    quantized,
    requantize_array,
    times,
    times_array,
)
from ekiden.runtime.errors import CompileError


@node("relay.attrs.QnnBroadcastAttrs")
class QnnBroadcastAttrs(Attrs):
    """Attributes of binary qnn operators: the axes of per-axis scales (TVM's BroadcastAttrs)."""

    lhs_axis: int = -1
    rhs_axis: int = -1


_BINARY = "lhs rhs lhs_scale lhs_zero_point rhs_scale rhs_zero_point output_scale output_zero_point"
_UNARY = "data scale zero_point output_scale output_zero_point"


def _saturate(data: Expr, dtype: str) -> Expr:
    return op.cast(op.clip(data, *limits(dtype)), dtype)


# --- two tensors ---------------------------------------------------------------------------------


def _binary_relation(name: str) -> Callable[[Sequence[Type], Attrs | None], Type]:
    names = _BINARY.split()

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the broadcast shape in the operands' dtype.

        Raises:
            TypeInferenceError: The dtypes differ, or scales or zero points are neither scalars nor
            of
                their axis.
        """
        settings, kinds = attrs_of(QnnBroadcastAttrs, attrs), tensors(name, types, 8)
        dtype = one_dtype(name, kinds[:2])
        dtype_of(name, kinds[0], INTEGERS, "lhs")
        sides = (kinds[0], settings.lhs_axis, 2), (kinds[1], settings.rhs_axis, 4)
        for data, axis, at in sides:
            dim = axis_dim(name, data, axis, kinds[at : at + 2])
            for i in (at, at + 1):
                check_parameter(name, kinds[i], names[i], dim)
        for i in (6, 7):
            check_parameter(name, kinds[i], names[i])
        return TensorType(broadcast_types(name, kinds[:2]), dtype)

    return relation


def _sides(
    args: Sequence[Expr], types: Sequence[Type], attrs: QnnBroadcastAttrs
) -> tuple[Expr, Expr]:
    """Requantise both operands to the result's scale, as int32."""
    sides = []
    for i, axis in enumerate((attrs.lhs_axis, attrs.rhs_axis)):
        how = RequantizeAttrs(axis, out_dtype="int32")
        # Both sides in the result's scale: integers of one scale may be added.
        rescaling = Rescaling(Steps.of(args, types, 2 + 2 * i), Steps.of(args, types, 6), how)
        sides.append(rescaling.unless_same(args[i], len(tensor(types[i]).shape)))
    return sides[0], sides[1]


def _expand_sum(sign: int) -> Callable[[QnnBroadcastAttrs, Sequence[Expr], Sequence[Type]], Expr]:
    def expand(attrs: QnnBroadcastAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
        """Expand to the sum (or difference) of the requantised operands.

        Both sides then have the zero point of the result: a sum has it once too often, a difference
        lacks it.
        """
        lhs, rhs = _sides(args, types, attrs)
        total = op.add(lhs, rhs) if sign > 0 else op.subtract(lhs, rhs)
        if not is_all(args[7], 0):
            # Each side brings the zero point along; the sum must have it once.
            total = op.subtract(total, args[7]) if sign > 0 else op.add(total, args[7])
        return _saturate(total, tensor(types[0]).dtype)

    return expand


def _sum_reference(sign: int) -> Callable[..., Array]:
    def reference(attrs: QnnBroadcastAttrs, *arrays: Array) -> Array:
        """Compute the sum in int32, and saturate it to the dtype."""
        own, sides = ((arrays[2], arrays[3]), (arrays[4], arrays[5])), []
        result = arrays[6], arrays[7]
        for i, axis in enumerate((attrs.lhs_axis, attrs.rhs_axis)):
            how = RequantizeAttrs(axis, out_dtype="int32")
            sides.append(requantize_array(arrays[i], own[i], result, how))
        total = sides[0] + sides[1] - result[1] if sign > 0 else sides[0] - sides[1] + result[1]
        return saturated(total, str(arrays[0].dtype))

    return reference


def _is_vector(kind: Type) -> bool:
    return bool(tensor(kind).shape)


def _product_axis(attrs: QnnBroadcastAttrs, ranks: tuple[int, int], vectors: Sequence[bool]) -> int:
    """Return the result axis along which the product's scales vary, counted from the end.

    Raises:
        CompileError: The sides are scaled along different axes, which TVM refuses too.
    """
    axes = {
        axis if axis < 0 else axis - rank
        for axis, rank, is_vector in zip(
            (attrs.lhs_axis, attrs.rhs_axis), ranks, vectors, strict=True
        )
        if is_vector
    }
    if len(axes) > 1:
        actual = f"got {attrs.lhs_axis} and {attrs.rhs_axis}"
        raise CompileError(f"qnn.mul: scales must run along one axis, {actual}")
    return axes.pop() if axes else -1


def _expand_mul(attrs: QnnBroadcastAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    ranks = len(tensor(types[0]).shape), len(tensor(types[1]).shape)
    axis = _product_axis(attrs, ranks, [_is_vector(types[2]), _is_vector(types[4])])
    wide = []
    for i, own in enumerate((attrs.lhs_axis, attrs.rhs_axis)):
        side, point = op.cast(args[i], "int32"), Steps.of(args, types, 2 + 2 * i).point
        is_zero = is_all(point.expr, 0)
        # Zero points are removed before multiplying: (q1 - z1) * (q2 - z2).
        wide.append(side if is_zero else op.subtract(side, point.over(ranks[i], own)))
    lhs, rhs = value(args[2]), value(args[4])
    if lhs is None or rhs is None:
        raise CompileError("qnn.mul: the scales of both sides must be constants")
    source = Steps.known(_scale_product(lhs, rhs), types[2] if _is_vector(types[2]) else types[4])
    how = RequantizeAttrs(axis, out_dtype=tensor(types[0]).dtype)
    rescaling = Rescaling(source, Steps.of(args, types, 6), how)
    return rescaling.apply(op.multiply(*wide), max(ranks))


def _scale_product(lhs: Array, rhs: Array) -> Array:
    """Multiply scales in float64 along an axis, in float32 for scalars, as TVM does."""
    if lhs.ndim or rhs.ndim:
        return (lhs.astype(np.float64) * rhs.astype(np.float64)).astype(np.float32)
    return np.asarray(lhs * rhs, np.float32)


def _mul_reference(attrs: QnnBroadcastAttrs, *arrays: Array) -> Array:
    wide = []
    for i, axis in enumerate((attrs.lhs_axis, attrs.rhs_axis)):
        point = along_array(arrays[3 + 2 * i], arrays[i].ndim, axis)
        wide.append(arrays[i].astype(np.int32) - point)
    is_vector = [bool(arrays[2].ndim), bool(arrays[4].ndim)]
    axis = _product_axis(attrs, (arrays[0].ndim, arrays[1].ndim), is_vector)
    how = RequantizeAttrs(axis, out_dtype=str(arrays[0].dtype))
    scale = _scale_product(arrays[2], arrays[4])
    source, result = (scale, np.zeros((), np.int32)), (arrays[6], arrays[7])
    return requantize_array(wide[0] * wide[1], source, result, how)


def _declare_binary(
    name: str,
    expand: Callable[[QnnBroadcastAttrs, Sequence[Expr], Sequence[Type]], Expr],
    reference: Callable[..., Array],
) -> Callable[..., Call]:
    full = f"qnn.{name}"
    relation = _binary_relation(full)
    declare(full, _BINARY, relation, reference, expand, QnnBroadcastAttrs, "lhs and rhs broadcast")

    def _build(
        lhs: Expr,
        rhs: Expr,
        lhs_scale: Expr,
        lhs_zero_point: Expr,
        rhs_scale: Expr,
        rhs_zero_point: Expr,
        output_scale: Expr,
        output_zero_point: Expr,
        lhs_axis: int = -1,
        rhs_axis: int = -1,
    ) -> Call:
        scales = lhs_scale, lhs_zero_point, rhs_scale, rhs_zero_point
        attrs = QnnBroadcastAttrs(lhs_axis, rhs_axis)
        return call(full, lhs, rhs, *scales, output_scale, output_zero_point, attrs=attrs)

    _build.__name__ = _build.__qualname__ = name
    _build.__doc__ = (
        f"`{name}` of two quantised tensors that broadcast: integers of one dtype, and so the"
        " result. Scales (float32) and zero points (int32) of the sides are scalars or vectors"
        " along `lhs_axis` and `rhs_axis`, those of the result scalars."
    )
    return _build


add = _declare_binary("add", _expand_sum(1), _sum_reference(1))
subtract = _declare_binary("subtract", _expand_sum(-1), _sum_reference(-1))
mul = _declare_binary("mul", _expand_mul, _mul_reference)


# --- one tensor ----------------------------------------------------------------------------------


def unary_relation(
    name: str, dtypes: Sequence[str]
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    """Return a relation with the data's type as result; scales and zero points are scalars."""

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the data's type.

        Raises:
            TypeInferenceError: The dtype is not allowed, or scales are no scalars.
        """
        data, *scales = tensors(name, types, 5)
        dtype_of(name, data, dtypes, "data")
        for kind, what in zip(scales, _UNARY.split()[1:], strict=True):
            check_parameter(name, kind, what)
        return data

    return relation


def _hardswish(data: Expr) -> Expr:
    three, six = const(np.float32(3)), const(np.float32(6))
    return op.divide(op.multiply(data, op.clip(op.add(data, three), 0.0, 6.0)), six)


def _evaluated(name: str) -> Callable[[Array], Array]:
    reference = OPS[name].reference
    assert reference is not None

    def function(data: Array) -> Array:
        return np.asarray(reference(None, data))

    return function


def _declare_unary(
    name: str, float_op: Callable[[Expr], Expr], evaluate: Callable[[Array], Array]
) -> Callable[[Expr, Expr, Expr, Expr, Expr], Call]:
    full = f"qnn.{name}"

    def expand(attrs: None, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
        """Expand to quantize(f(dequantize(x))) in float32."""
        data = tensor(types[0])
        rank = len(data.shape)
        floats = dequantized(args[0], rank, Steps.of(args, types, 1), -1)
        return quantized(float_op(floats), rank, Steps.of(args, types, 3), -1, data.dtype)

    def reference(attrs: None, data: Array, *steps: Array) -> Array:
        """Evaluate quantize(f(dequantize(x))); f runs in its own precision and is rounded to
        float32.
        """
        with np.errstate(all="ignore"):
            # Rounded to float32 as the expansion rounds between its operators.
            floats = evaluate(dequantize_array(data, (steps[0], steps[1]))).astype(np.float32)
        return quantize_array(floats, (steps[2], steps[3]), out_dtype=str(data.dtype))

    declare(full, _UNARY, unary_relation(full, BYTES), reference, expand)

    def _build(
        x: Expr, scale: Expr, zero_point: Expr, output_scale: Expr, output_zero_point: Expr
    ) -> Call:
        return call(full, x, scale, zero_point, output_scale, output_zero_point)

    _build.__name__ = _build.__qualname__ = name
    _build.__doc__ = (
        f"`{name}` of a quantised tensor of int8 or uint8, computed in float32; the result has the"
        " data's type. Scales (float32) and zero points (int32) are scalars."
    )
    return _build


# fmt: off
tanh      = _declare_unary("tanh",      op.tanh,    _evaluated("tanh"))
exp       = _declare_unary("exp",       op.exp,     _evaluated("exp"))
sqrt      = _declare_unary("sqrt",      op.sqrt,    _evaluated("sqrt"))
rsqrt     = _declare_unary("rsqrt",     op.rsqrt,   _evaluated("rsqrt"))
erf       = _declare_unary("erf",       op.erf,     _evaluated("erf"))
sigmoid   = _declare_unary("sigmoid",   op.sigmoid, _evaluated("sigmoid"))
log       = _declare_unary("log",       op.log,     _evaluated("log"))
abs       = _declare_unary("abs",       op.abs,     _evaluated("abs"))
hardswish = _declare_unary("hardswish", _hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6)
# fmt: on


def _expand_leaky(attrs: LeakyReluAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    data, wide = tensor(types[0]), op.cast(args[0], "int32")
    rescaling = Rescaling(Steps.of(args, types, 1), Steps.of(args, types, 3))
    above = rescaling.unless_same(wide, len(data.shape))
    # alpha * x in the result's scale: the zero point takes the share 1 - alpha.
    below = op.add(times(above, attrs.alpha), times(args[4], 1 - attrs.alpha))
    return _saturate(op.where(op.less(wide, args[2]), below, above), data.dtype)


def _leaky_reference(attrs: LeakyReluAttrs, data: Array, *steps: Array) -> Array:
    how = RequantizeAttrs(out_dtype="int32")
    above = requantize_array(data, (steps[0], steps[1]), (steps[2], steps[3]), how)
    below = times_array(above, attrs.alpha) + times_array(steps[3], 1 - attrs.alpha)
    return saturated(np.where(data < steps[1], below, above), str(data.dtype))


declare(
    "qnn.leaky_relu",
    _UNARY,
    unary_relation("qnn.leaky_relu", BYTES),
    _leaky_reference,
    _expand_leaky,
    LeakyReluAttrs,
)


def leaky_relu(
    x: Expr,
    alpha: float,
    input_scale: Expr,
    input_zero_point: Expr,
    output_scale: Expr,
    output_zero_point: Expr,
) -> Call:
    """Return leaky ReLU of an int8 or uint8 tensor, with `alpha` from 0 to 1."""
    if not 0 <= alpha <= 1:
        fail("qnn.leaky_relu", f"'alpha' must be in [0, 1], got {alpha}")
    scales = input_scale, input_zero_point, output_scale, output_zero_point
    return call("qnn.leaky_relu", x, *scales, attrs=LeakyReluAttrs(alpha))


__all__ = [
    "abs", "add", "erf", "exp", "hardswish", "leaky_relu", "log", "mul", "rsqrt", "sigmoid", "sqrt",
    "subtract", "tanh",
]  # fmt: skip
