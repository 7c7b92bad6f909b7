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
from ekiden.relay.op._declare import check_attrs, check_same_dtype, check_tensors, raise_type_error
from ekiden.relay.op.broadcast import infer_broadcast_shape
from ekiden.relay.op.nn.activation import LeakyReluAttrs
from ekiden.relay.qnn._declare import (
    INT8_DTYPES,
    QUANTIZED_DTYPES,
    as_tensor_type,
    broadcast_qparam_array,
    call_qnn_op,
    check_axis_extent,
    check_dtype,
    check_qparam,
    constant_qparam,
    declare_qnn_op,
    integer_limits,
    is_qparam_equal_to,
    saturate,
)
from ekiden.relay.qnn.scale_conversion import (
    QuantParams,
    Requantization,
    RequantizeAttrs,
    dequantize_array,
    emit_dequantize,
    emit_quantize,
    multiply_fixed_point,
    multiply_fixed_point_array,
    quantize_array,
    requantize_array,
)
from ekiden.runtime.errors import CompileError


@node("relay.attrs.QnnBroadcastAttrs")
class QnnBroadcastAttrs(Attrs):
    """Attributes of binary qnn operators: the axes of per-axis scales (TVM's BroadcastAttrs)."""

    lhs_axis: int = -1
    rhs_axis: int = -1


_BINARY_ARGUMENTS = (
    "lhs rhs lhs_scale lhs_zero_point rhs_scale rhs_zero_point output_scale output_zero_point"
)
_UNARY_ARGUMENTS = "data scale zero_point output_scale output_zero_point"


def _saturate(data: Expr, dtype: str) -> Expr:
    return op.cast(op.clip(data, *integer_limits(dtype)), dtype)


# --- two tensors ---------------------------------------------------------------------------------


def _binary_relation(name: str) -> Callable[[Sequence[Type], Attrs | None], Type]:
    names = _BINARY_ARGUMENTS.split()

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the broadcast shape in the operands' dtype.

        Raises:
            TypeInferenceError: The dtypes differ, or scales or zero points are neither scalars nor
                of
                their axis.
        """
        settings, kinds = check_attrs(QnnBroadcastAttrs, attrs), check_tensors(name, types, 8)
        dtype = check_same_dtype(name, kinds[:2])
        check_dtype(name, kinds[0], QUANTIZED_DTYPES, "lhs")
        sides = (kinds[0], settings.lhs_axis, 2), (kinds[1], settings.rhs_axis, 4)
        for data, axis, position in sides:
            dim = check_axis_extent(name, data, axis, kinds[position : position + 2])
            for i in (position, position + 1):
                check_qparam(name, kinds[i], names[i], dim)
        for i in (6, 7):
            check_qparam(name, kinds[i], names[i])
        return TensorType(infer_broadcast_shape(name, kinds[:2]), dtype)

    return relation


def _requantize_operands(
    args: Sequence[Expr], types: Sequence[Type], attrs: QnnBroadcastAttrs
) -> tuple[Expr, Expr]:
    """Requantise both operands to the result's scale, as int32."""
    sides = []
    for i, axis in enumerate((attrs.lhs_axis, attrs.rhs_axis)):
        how = RequantizeAttrs(axis, out_dtype="int32")
        # Both sides in the result's scale: integers of one scale may be added.
        rescaling = Requantization(
            QuantParams.from_args(args, types, 2 + 2 * i),
            QuantParams.from_args(args, types, 6),
            how,
        )
        sides.append(rescaling.apply_unless_same(args[i], len(as_tensor_type(types[i]).shape)))
    return sides[0], sides[1]


def _expand_sum(sign: int) -> Callable[[QnnBroadcastAttrs, Sequence[Expr], Sequence[Type]], Expr]:
    def expand(attrs: QnnBroadcastAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
        """Expand to the sum (or difference) of the requantised operands.

        Both sides then have the zero point of the result: a sum has it once too often, a difference
        lacks it.
        """
        lhs, rhs = _requantize_operands(args, types, attrs)
        total = op.add(lhs, rhs) if sign > 0 else op.subtract(lhs, rhs)
        if not is_qparam_equal_to(args[7], 0):
            # Each side brings the zero point along; the sum must have it once.
            total = op.subtract(total, args[7]) if sign > 0 else op.add(total, args[7])
        return _saturate(total, as_tensor_type(types[0]).dtype)

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
        return saturate(total, str(arrays[0].dtype))

    return reference


def _is_per_axis(kind: Type) -> bool:
    return bool(as_tensor_type(kind).shape)


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
    ranks = len(as_tensor_type(types[0]).shape), len(as_tensor_type(types[1]).shape)
    axis = _product_axis(attrs, ranks, [_is_per_axis(types[2]), _is_per_axis(types[4])])
    wide = []
    for i, own in enumerate((attrs.lhs_axis, attrs.rhs_axis)):
        side, point = (
            op.cast(args[i], "int32"),
            QuantParams.from_args(args, types, 2 + 2 * i).zero_point,
        )
        is_zero = is_qparam_equal_to(point.expr, 0)
        # Zero points are removed before multiplying: (q1 - z1) * (q2 - z2).
        wide.append(side if is_zero else op.subtract(side, point.broadcast_over(ranks[i], own)))
    lhs, rhs = constant_qparam(args[2]), constant_qparam(args[4])
    if lhs is None or rhs is None:
        raise CompileError("qnn.mul: the scales of both sides must be constants")
    source = QuantParams.from_scale(
        _multiply_scales(lhs, rhs), types[2] if _is_per_axis(types[2]) else types[4]
    )
    how = RequantizeAttrs(axis, out_dtype=as_tensor_type(types[0]).dtype)
    rescaling = Requantization(source, QuantParams.from_args(args, types, 6), how)
    return rescaling.apply(op.multiply(*wide), max(ranks))


def _multiply_scales(lhs: Array, rhs: Array) -> Array:
    """Multiply scales in float64 along an axis, in float32 for scalars, as TVM does."""
    if lhs.ndim or rhs.ndim:
        return (lhs.astype(np.float64) * rhs.astype(np.float64)).astype(np.float32)
    return np.asarray(lhs * rhs, np.float32)


def _mul_reference(attrs: QnnBroadcastAttrs, *arrays: Array) -> Array:
    wide = []
    for i, axis in enumerate((attrs.lhs_axis, attrs.rhs_axis)):
        point = broadcast_qparam_array(arrays[3 + 2 * i], arrays[i].ndim, axis)
        wide.append(arrays[i].astype(np.int32) - point)
    is_vector = [bool(arrays[2].ndim), bool(arrays[4].ndim)]
    axis = _product_axis(attrs, (arrays[0].ndim, arrays[1].ndim), is_vector)
    how = RequantizeAttrs(axis, out_dtype=str(arrays[0].dtype))
    scale = _multiply_scales(arrays[2], arrays[4])
    source, result = (scale, np.zeros((), np.int32)), (arrays[6], arrays[7])
    return requantize_array(wide[0] * wide[1], source, result, how)


def _declare_binary(
    name: str,
    expand: Callable[[QnnBroadcastAttrs, Sequence[Expr], Sequence[Type]], Expr],
    reference: Callable[..., Array],
) -> Callable[..., Call]:
    full = f"qnn.{name}"
    relation = _binary_relation(full)
    declare_qnn_op(
        full,
        _BINARY_ARGUMENTS,
        relation,
        reference,
        expand,
        QnnBroadcastAttrs,
        "lhs and rhs broadcast",
    )

    def build_call(
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
        """Return a call of the operator."""
        scales = lhs_scale, lhs_zero_point, rhs_scale, rhs_zero_point
        attrs = QnnBroadcastAttrs(lhs_axis, rhs_axis)
        return call_qnn_op(full, lhs, rhs, *scales, output_scale, output_zero_point, attrs=attrs)

    build_call.__name__ = build_call.__qualname__ = name
    build_call.__doc__ = (
        f"`{name}` of two quantised tensors that broadcast: integers of one dtype, and so the"
        " result. Scales (float32) and zero points (int32) of the sides are scalars or vectors"
        " along `lhs_axis` and `rhs_axis`, those of the result scalars."
    )
    return build_call


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
        data, *scales = check_tensors(name, types, 5)
        check_dtype(name, data, dtypes, "data")
        for kind, what in zip(scales, _UNARY_ARGUMENTS.split()[1:], strict=True):
            check_qparam(name, kind, what)
        return data

    return relation


def _emit_hardswish(data: Expr) -> Expr:
    three, six = const(np.float32(3)), const(np.float32(6))
    return op.divide(op.multiply(data, op.clip(op.add(data, three), 0.0, 6.0)), six)


def _numpy_function(name: str) -> Callable[[Array], Array]:
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
        data = as_tensor_type(types[0])
        rank = len(data.shape)
        floats = emit_dequantize(args[0], rank, QuantParams.from_args(args, types, 1), -1)
        return emit_quantize(
            float_op(floats), rank, QuantParams.from_args(args, types, 3), -1, data.dtype
        )

    def reference(attrs: None, data: Array, *steps: Array) -> Array:
        """Evaluate quantize(f(dequantize(x))); f runs in its own precision and is rounded to
        float32.
        """
        with np.errstate(all="ignore"):
            # Rounded to float32 as the expansion rounds between its operators.
            floats = evaluate(dequantize_array(data, (steps[0], steps[1]))).astype(np.float32)
        return quantize_array(floats, (steps[2], steps[3]), out_dtype=str(data.dtype))

    declare_qnn_op(full, _UNARY_ARGUMENTS, unary_relation(full, INT8_DTYPES), reference, expand)

    def build_call(
        x: Expr, scale: Expr, zero_point: Expr, output_scale: Expr, output_zero_point: Expr
    ) -> Call:
        """Return a call of the operator."""
        return call_qnn_op(full, x, scale, zero_point, output_scale, output_zero_point)

    build_call.__name__ = build_call.__qualname__ = name
    build_call.__doc__ = (
        f"`{name}` of a quantised tensor of int8 or uint8, computed in float32; the result has the"
        " data's type. Scales (float32) and zero points (int32) are scalars."
    )
    return build_call


# fmt: off
tanh      = _declare_unary("tanh",      op.tanh,    _numpy_function("tanh"))
exp       = _declare_unary("exp",       op.exp,     _numpy_function("exp"))
sqrt      = _declare_unary("sqrt",      op.sqrt,    _numpy_function("sqrt"))
rsqrt     = _declare_unary("rsqrt",     op.rsqrt,   _numpy_function("rsqrt"))
erf       = _declare_unary("erf",       op.erf,     _numpy_function("erf"))
sigmoid   = _declare_unary("sigmoid",   op.sigmoid, _numpy_function("sigmoid"))
log       = _declare_unary("log",       op.log,     _numpy_function("log"))
abs       = _declare_unary("abs",       op.abs,     _numpy_function("abs"))
hardswish = _declare_unary("hardswish", _emit_hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6)
# fmt: on


def _expand_leaky_relu(attrs: LeakyReluAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    data, wide = as_tensor_type(types[0]), op.cast(args[0], "int32")
    rescaling = Requantization(
        QuantParams.from_args(args, types, 1), QuantParams.from_args(args, types, 3)
    )
    above = rescaling.apply_unless_same(wide, len(data.shape))
    # alpha * x in the result's scale: the zero point takes the share 1 - alpha.
    below = op.add(
        multiply_fixed_point(above, attrs.alpha), multiply_fixed_point(args[4], 1 - attrs.alpha)
    )
    return _saturate(op.where(op.less(wide, args[2]), below, above), data.dtype)


def _leaky_relu_reference(attrs: LeakyReluAttrs, data: Array, *steps: Array) -> Array:
    how = RequantizeAttrs(out_dtype="int32")
    above = requantize_array(data, (steps[0], steps[1]), (steps[2], steps[3]), how)
    below = multiply_fixed_point_array(above, attrs.alpha) + multiply_fixed_point_array(
        steps[3], 1 - attrs.alpha
    )
    return saturate(np.where(data < steps[1], below, above), str(data.dtype))


declare_qnn_op(
    "qnn.leaky_relu",
    _UNARY_ARGUMENTS,
    unary_relation("qnn.leaky_relu", INT8_DTYPES),
    _leaky_relu_reference,
    _expand_leaky_relu,
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
        raise_type_error("qnn.leaky_relu", f"'alpha' must be in [0, 1], got {alpha}")
    scales = input_scale, input_zero_point, output_scale, output_zero_point
    return call_qnn_op("qnn.leaky_relu", x, *scales, attrs=LeakyReluAttrs(alpha))


__all__ = [
    "abs", "add", "erf", "exp", "hardswish", "leaky_relu", "log", "mul", "rsqrt", "sigmoid", "sqrt",
    "subtract", "tanh",
]  # fmt: skip
