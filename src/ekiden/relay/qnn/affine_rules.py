"""Rules of FakeQuantizationToInteger: how each float operator becomes an integer operator on affine
types.

Each gets a call whose arguments are integers, and what these stand for, and gives the integers of
the result and what they stand for: see the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast as assume

import numpy as np

from ekiden.ir.affine_type import TensorAffineType, TupleAffineType
from ekiden.ir.dtype import int_range
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr, Tuple, const
from ekiden.relay.op.nn.window_attrs import ConvAttrs
from ekiden.relay.op.op import (
    Types,
    register_fake_quantization_to_integer,
    register_optional_fake_quantization_to_integer,
)
from ekiden.relay.qnn import concat_pool_softmax, elementwise, product, scale_conversion
from ekiden.relay.qnn._declare import broadcast_qparam, call_qnn_op
from ekiden.relay.transform.graph.call_rewrites import infer_new_types

AffineResult = tuple[Expr, "TensorAffineType | TupleAffineType"]
"""Integer expression and its affine type."""


def _affine_type_of(types: Types, expr: Expr) -> TensorAffineType:
    if expr not in types:
        raise ValueError("no scale is known for it")
    kind = types[expr]
    assert isinstance(kind, TensorAffineType)
    return kind


def _required_type(expr: Call, types: Types) -> TensorAffineType:
    """Return the affine type that a result is required to have.

    Raises:
        ValueError: Nothing after the call decides it.
    """
    if expr not in types:
        raise ValueError("its result needs a scale, and what follows gives none")
    return _affine_type_of(types, expr)


def _lossless_type(result: TensorAffineType, dtype: str) -> TensorAffineType:
    """Return an affine type of the dtype that represents all values of a result.

    Its scale is that of the result; its zero point moves by half of the range for the opposite
    sign:
        uint8, zero point 0, as int8:  q * s  =  ((q - 128) - (0 - 128)) * s

    Raises:
        ValueError: The dtype is too narrow.
    """
    (low, high), (result_low, result_high) = (
        int_range(dtype) or (0, 0),
        int_range(result.dtype) or (0, 0),
    )
    if low <= result_low and result_high <= high:
        return result.with_fields(dtype=dtype)
    # Only a change of sign keeps all numbers; a narrower type does not.
    if high - low != result_high - result_low:
        raise ValueError(f"its integers are {dtype}, which do not hold a result of {result.dtype}")
    # int8 and uint8 differ by 128: moving the zero point keeps every value.
    moved: Expr = const(np.int32(low - result_low))
    if isinstance(result.zero_point, Constant):
        moved = const((result.zero_point.data + (low - result_low)).astype(np.int32))
    else:
        moved = infer_new_types(op.add(result.zero_point, moved))
    return result.with_fields(dtype=dtype, zero_point=moved)


def _requested_type(expr: Call, types: Types, operand_type: TensorAffineType) -> TensorAffineType:
    """Return the affine type of a call's result in its operand's dtype.

    It is the type that follows from the users, or else that of the operand.
    """
    return (
        _lossless_type(_affine_type_of(types, expr), operand_type.dtype)
        if expr in types
        else operand_type
    )


def _is_close(a: Expr, b: Expr) -> bool:
    """Return whether two quantisation parameters are identical, or constants within tolerance."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return a.data.shape == b.data.shape and bool(np.allclose(a.data, b.data))
    return a is b


def _is_same_type(a: TensorAffineType, b: TensorAffineType) -> bool:
    is_close = _is_close(a.scale, b.scale) and _is_close(a.zero_point, b.zero_point)
    is_scalar = isinstance(a.scale, Constant) and a.scale.data.size == 1
    return is_close and a.dtype == b.dtype and (is_scalar or a.axis == b.axis)


def _axis_from_end(kind: TensorAffineType, rank: int) -> TensorAffineType:
    """Return the affine type with its axis counted from the end, as in broadcasting."""
    return kind.with_fields(axis=kind.axis % rank - rank) if rank else kind


def _multiply_scales(a: Expr, b: Expr) -> Expr:
    """Multiply two scales; fold constants."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return const(a.data * b.data)
    return infer_new_types(op.multiply(a, b))


def _zero_points(scale: Expr) -> Expr:
    """Return zero points of 0 in the shape of a scale."""
    if isinstance(scale, Constant):
        return const(np.zeros(scale.data.shape, np.int32))
    return infer_new_types(op.cast(op.zeros_like(scale), "int32"))


def _rank(expr: Expr) -> int:
    kind = infer_new_types(expr).checked_type
    assert isinstance(kind, TensorType)
    return len(kind.shape)


def _requantize(data: Expr, source: TensorAffineType, target: TensorAffineType, dtype: str) -> Call:
    steps = source.scale, source.zero_point, target.scale, target.zero_point
    return scale_conversion.requantize(data, *steps, axis=source.axis, out_dtype=dtype)


def _quantize_constant(number: Expr, like: TensorAffineType, axis: int = -1) -> Expr:
    """Quantise a float constant to the scale of an integer tensor."""
    if not isinstance(number, Constant):
        raise ValueError("an argument is neither dequantized nor constant")
    return scale_conversion.quantize(
        number, like.scale, like.zero_point, axis=axis, out_dtype=like.dtype
    )


# --- into and out of regions ----------------------------------------------------------------------


@register_fake_quantization_to_integer("qnn.dequantize")
def _convert_dequantize(expr: Call, types: Types) -> AffineResult:
    """Convert dequantize(q) to q."""
    return expr.args[0], _affine_type_of(types, expr)


@register_fake_quantization_to_integer("qnn.quantize")
def _convert_quantize(expr: Call, types: Types) -> AffineResult:
    """Convert quantize(q) to requantize(q), or to q if the scales agree."""
    data, scale, point = expr.args
    data_type = _affine_type_of(types, data)
    out_dtype, axis = str(getattr(expr.attrs, "out_dtype", "")), getattr(expr.attrs, "axis", -1)
    result = TensorAffineType(scale, point, out_dtype, axis)
    # Same scale and zero point: the integers are the result already.
    if _is_same_type(data_type, result):
        return data, result
    return _requantize(data, data_type, result, out_dtype), result


# --- values that are moved or picked --------------------------------------------------------------


def _keep_call(expr: Call, types: Types) -> AffineResult:
    return expr, _affine_type_of(types, expr.args[0])


def _keep_if_scalar_scale(expr: Call, types: Types) -> AffineResult:
    """Keep the call if its scale is a scalar, since the axes of per-axis scales are not tracked
    through it.
    """
    data_type = _affine_type_of(types, expr.args[0])
    if not (isinstance(data_type.scale, Constant) and data_type.scale.data.size == 1):
        raise ValueError("the scales of its channels would change their axis")
    return expr, data_type


for _name in "strided_slice nn.max_pool2d take".split():
    register_fake_quantization_to_integer(_name, _keep_call, keeps=True, alone=True)
for _name in (
    "reshape squeeze transpose expand_dims nn.batch_flatten nn.depth_to_space max min broadcast_to"
).split():
    register_fake_quantization_to_integer(_name, _keep_if_scalar_scale, keeps=True, alone=True)
register_fake_quantization_to_integer("image.resize2d", _keep_call, keeps=True)


@register_fake_quantization_to_integer("topk", keeps=True)
def _convert_topk(expr: Call, types: Types) -> AffineResult:
    # A tuple would mix quantized values with plain integers.
    if getattr(expr.attrs, "ret_type", "") != "values":
        raise ValueError("its indices are no quantised tensor")
    return expr, _affine_type_of(types, expr.args[0])


@register_fake_quantization_to_integer("split", keeps=True)
def _convert_split(expr: Call, types: Types) -> AffineResult:
    data_type = _affine_type_of(types, expr.args[0])
    fields = expr.op.definition.fields  # type: ignore[attr-defined]
    return expr, TupleAffineType((data_type,) * fields(expr.attrs))


@register_fake_quantization_to_integer("clip", keeps=True, alone=True)
def _convert_clip(expr: Call, types: Types) -> AffineResult:
    """Convert clip(q, a, b) to clip(q, quantize(a), quantize(b))."""
    data = expr.args[0]
    data_type = _affine_type_of(types, data)
    ends = [const(np.float32(getattr(expr.attrs, name))) for name in ("a_min", "a_max")]
    if isinstance(data_type.scale, Constant) and data_type.scale.data.size == 1:
        low, high = (_quantize_bound(end, data_type) for end in ends)
        return op.clip(data, low, high), data_type
    lower, upper = (_quantize_bound_per_channel(end, data_type, _rank(data)) for end in ends)
    return op.minimum(op.maximum(data, lower), upper), data_type


def _quantize_bound(end: Constant, data_type: TensorAffineType) -> int:
    assert isinstance(data_type.scale, Constant)
    if not isinstance(data_type.zero_point, Constant):
        raise ValueError("its zero point is not known")
    steps = data_type.scale.data.reshape(()), data_type.zero_point.data.reshape(())
    return int(scale_conversion.quantize_array(end.data, steps, out_dtype=data_type.dtype))


def _quantize_bound_per_channel(end: Constant, data_type: TensorAffineType, rank: int) -> Expr:
    """Quantise a bound by each channel's scale, in broadcasting shape."""
    kind = infer_new_types(data_type.scale).checked_type
    assert isinstance(kind, TensorType)
    repeated = op.broadcast_to(end, kind.shape)
    quantized_ends = scale_conversion.quantize(
        repeated, data_type.scale, data_type.zero_point, axis=0, out_dtype=data_type.dtype
    )
    return broadcast_qparam(quantized_ends, kind, rank, data_type.axis)


@register_fake_quantization_to_integer("nn.relu", keeps=True, alone=True)
def _convert_relu(expr: Call, types: Types) -> AffineResult:
    """Convert relu(q) to maximum(q, zero point)."""
    data = expr.args[0]
    data_type = _affine_type_of(types, data)
    # Real 0 is the zero point in integers.
    zero: Expr = op.cast(data_type.zero_point, data_type.dtype)
    if isinstance(data_type.zero_point, Constant):
        zero = const(data_type.zero_point.data.astype(data_type.dtype))
    return op.maximum(
        data,
        broadcast_qparam(zero, infer_new_types(zero).checked_type, _rank(data), data_type.axis),
    ), data_type


@register_fake_quantization_to_integer("nn.pad", keeps=True, alone=True)
def _convert_pad(expr: Call, types: Types) -> AffineResult:
    """Convert a padding: quantise the pad value by the data's scale."""
    data, value = expr.args
    data_type = _affine_type_of(types, data)
    # A constant border is quantized with the data's scale.
    if value not in types:
        return Call(expr.op, (data, _quantize_constant(value, data_type)), expr.attrs), data_type
    its = _affine_type_of(types, value)
    moved = (
        value
        if _is_same_type(its, data_type)
        else _requantize(value, its, data_type, data_type.dtype)
    )
    return Call(expr.op, (data, moved), expr.attrs), data_type


# --- means ----------------------------------------------------------------------------------------


@register_fake_quantization_to_integer("nn.avg_pool2d", mixes=True)
def _convert_avg_pool2d(expr: Call, types: Types) -> AffineResult:
    data_type = _affine_type_of(types, expr.args[0])
    result = _requested_type(expr, types, data_type)
    steps = data_type.scale, data_type.zero_point, result.scale, result.zero_point
    return call_qnn_op("qnn.avg_pool2d", *expr.args, *steps, attrs=expr.attrs), TensorAffineType(
        result.scale, result.zero_point, data_type.dtype, result.axis
    )


def _convert_mean_int32(expr: Call, types: Types) -> AffineResult:
    """Convert mean(q) to a mean in int32 in the result's scale."""
    data = expr.args[0]
    data_type = _affine_type_of(types, data)
    result = _affine_type_of(types, expr) if expr in types else data_type
    same = _is_same_type(data_type, result)
    wide = op.cast(data, "int32") if same else _requantize(data, data_type, result, "int32")
    # The mean of int8 values would lose its fraction in int8; int32 keeps the sum.
    wide_type = TensorAffineType(result.scale, result.zero_point, "int32", result.axis)
    return Call(expr.op, (wide,), expr.attrs), wide_type


for _name in ("nn.global_avg_pool2d", "nn.adaptive_avg_pool1d"):
    register_fake_quantization_to_integer(_name, _convert_mean_int32)


@register_fake_quantization_to_integer("mean")
def _convert_mean(expr: Call, types: Types) -> AffineResult:
    data_type = _affine_type_of(types, expr.args[0])
    wide = Call(expr.op, (op.cast(expr.args[0], "int32"),), expr.attrs)
    return op.cast(wide, data_type.dtype), data_type


# --- products -------------------------------------------------------------------------------------


def _accumulator_type(
    data: Expr, weight: Expr, types: Types, axis: int
) -> tuple[TensorAffineType, Sequence[Expr]]:
    """Return the affine type of an int32 accumulator, and the scale and zero-point arguments of
    both operands.
    """
    data_type, weight_type = _affine_type_of(types, data), _affine_type_of(types, weight)
    # (s1 * q1) * (s2 * q2): the scale of the sum is the product of the scales.
    scale = _multiply_scales(data_type.scale, weight_type.scale)
    steps = data_type.zero_point, weight_type.zero_point, data_type.scale, weight_type.scale
    return TensorAffineType(scale, _zero_points(scale), "int32", axis), steps


def _convert_conv(expr: Call, types: Types) -> AffineResult:
    attrs = assume(ConvAttrs, expr.attrs)
    # Per-channel scales of the weight become scales along the result's channels.
    channels = (getattr(attrs, "out_layout", "") or attrs.data_layout).index("C")
    data, weight = expr.args
    kind, steps = _accumulator_type(data, weight, types, channels)
    sums = call_qnn_op(
        f"qnn.{_weight_layout_suffix(expr)}",
        *expr.args,
        *steps,
        attrs=attrs.with_fields(out_dtype="int32"),
    )
    return sums, kind


def _weight_layout_suffix(expr: Call) -> str:
    return str(expr.op.name).rpartition(".")[2]  # type: ignore[attr-defined]


for _name in ("nn.conv2d", "nn.conv2d_transpose"):
    register_fake_quantization_to_integer(_name, _convert_conv, alone=True)


@register_fake_quantization_to_integer("nn.dense", alone=True)
def _convert_dense(expr: Call, types: Types) -> AffineResult:
    data, weight = expr.args
    kind, (data_point, weight_point, data_scale, weight_scale) = _accumulator_type(
        data, weight, types, _rank(data) - 1
    )
    units = getattr(expr.attrs, "units", None)
    return product.dense(
        data, weight, data_point, weight_point, data_scale, weight_scale, units
    ), kind


@register_fake_quantization_to_integer("nn.batch_matmul", alone=True)
def _convert_batch_matmul(expr: Call, types: Types) -> AffineResult:
    x, y = expr.args
    kind, (x_point, y_point, x_scale, y_scale) = _accumulator_type(x, y, types, -1)
    if getattr(expr.attrs, "transpose_a", False):
        x = op.transpose(x, (0, 2, 1))
    if not getattr(expr.attrs, "transpose_b", True):
        # The dialect's operator takes the second factor transposed only.
        y = op.transpose(y, (0, 2, 1))
    return product.batch_matmul(x, y, x_point, y_point, x_scale, y_scale), kind


@register_fake_quantization_to_integer("nn.bias_add", alone=True, biases=True)
def _convert_bias_add(expr: Call, types: Types) -> AffineResult:
    data, bias = expr.args
    data_type = _affine_type_of(types, data)
    rank, along_axis = _rank(data), int(getattr(expr.attrs, "axis", 1))
    if bias not in types:
        bias = _quantize_constant(bias, data_type, axis=0)
        return Call(expr.op, (data, bias), expr.attrs), data_type
    its = _affine_type_of(types, bias)
    if not _is_same_type(
        its.with_fields(axis=along_axis % rank - rank), _axis_from_end(data_type, rank)
    ):
        bias = _requantize(bias, its.with_fields(axis=0), data_type, data_type.dtype)
    return Call(expr.op, (data, bias), expr.attrs), data_type


# --- two tensors ----------------------------------------------------------------------------------


def _binary_operands(
    expr: Call, types: Types
) -> tuple[Expr, Expr, TensorAffineType, TensorAffineType]:
    """Return the operands of a binary operator; a constant is quantised by its partner's scale."""
    lhs, rhs = expr.args
    if lhs not in types:
        like = _affine_type_of(types, rhs)
        return _quantize_constant(lhs, like), rhs, like, like
    like = _affine_type_of(types, lhs)
    if rhs not in types:
        return lhs, _quantize_constant(rhs, like), like, like
    return lhs, rhs, like, _affine_type_of(types, rhs)


Binary = Callable[..., Call]


def _register_binary_rule(name: str, qnn_op: Binary, biases: bool = False) -> None:
    def rule(expr: Call, types: Types) -> AffineResult:
        """Convert a binary call to integers; return it with its affine type.

        A bias in int32 whose steps are the sum's is added without rescaling.
        """
        lhs, rhs, a, b = _binary_operands(expr, types)
        ends = (_axis_from_end(t, _rank(e)) for t, e in ((a, lhs), (b, rhs)))
        # A bias in the scale of the sums is added as it is.
        is_bias = biases and a.dtype == "int32" and _is_same_type(*ends)
        if is_bias and isinstance(a.zero_point, Constant) and not a.zero_point.data.any():
            return Call(expr.op, (lhs, rhs)), a  # 32 bits are room enough for a sum
        if a.dtype != b.dtype:
            raise ValueError(f"its operands are of {a.dtype} and {b.dtype}")
        # 8-bit sums need the scale of the result to be rounded to; wider ones keep that of the
        # operand.
        is_wide = a.dtype not in ("int8", "uint8")
        result = a if is_wide else _lossless_type(_required_type(expr, types), a.dtype)
        steps = a.scale, a.zero_point, b.scale, b.zero_point, result.scale, result.zero_point
        return qnn_op(lhs, rhs, *steps, a.axis, b.axis), result

    register_fake_quantization_to_integer(name, rule, mixes=True, biases=biases)


_register_binary_rule("add", elementwise.add, biases=True)
_register_binary_rule("subtract", elementwise.subtract, biases=True)
_register_binary_rule("multiply", elementwise.mul)


def _convert_min_max(expr: Call, types: Types) -> AffineResult:
    lhs, rhs, a, b = _binary_operands(expr, types)
    if expr not in types and not _is_same_type(a, b):
        raise ValueError("its result needs a scale, and what follows gives none")
    result = _requested_type(expr, types, a)
    moved = [
        side if _is_same_type(its, result) else _requantize(side, its, result, result.dtype)
        for side, its in ((lhs, a), (rhs, b))
    ]
    return Call(expr.op, tuple(moved)), result


for _name in ("minimum", "maximum"):
    register_fake_quantization_to_integer(_name, _convert_min_max)


@register_fake_quantization_to_integer("concatenate", mixes=True)
def _convert_concatenate(expr: Call, types: Types) -> AffineResult:
    tuple_type = types[expr.args[0]]
    assert isinstance(tuple_type, TupleAffineType)
    first = tuple_type.types[0]
    if expr not in types and not all(
        _is_same_type(first, field_type) for field_type in tuple_type.types
    ):
        raise ValueError("its result needs a scale, and what follows gives none")
    if any(field_type.dtype != first.dtype for field_type in tuple_type.types):
        raise ValueError("its tensors are of several dtypes")
    result = _requested_type(expr, types, first)
    scales = Tuple(tuple(t.scale for t in tuple_type.types))
    points = Tuple(tuple(t.zero_point for t in tuple_type.types))
    axis = int(getattr(expr.attrs, "axis", 0))
    operands = expr.args[0], scales, points, result.scale, result.zero_point
    return concat_pool_softmax.concatenate(*operands, axis), result


# --- functions of one tensor ----------------------------------------------------------------------


def _register_unary_rule(name: str, qnn_op: Callable[..., Call]) -> None:
    def rule(expr: Call, types: Types) -> AffineResult:
        """Convert a unary call to integers by its input and output affine types."""
        data_type = _affine_type_of(types, expr.args[0])
        result = _lossless_type(_required_type(expr, types), data_type.dtype)
        steps = data_type.scale, data_type.zero_point, result.scale, result.zero_point
        return qnn_op(*expr.args, *steps), result

    register_fake_quantization_to_integer(name, rule)


for _name in "sqrt rsqrt exp erf sigmoid tanh abs log".split():
    _register_unary_rule(_name, getattr(elementwise, _name))


@register_fake_quantization_to_integer("nn.leaky_relu")
def _convert_leaky_relu(expr: Call, types: Types) -> AffineResult:
    data_type = _affine_type_of(types, expr.args[0])
    result = _requested_type(expr, types, data_type)
    steps = data_type.scale, data_type.zero_point, result.scale, result.zero_point
    integers = elementwise.leaky_relu(
        expr.args[0], float(getattr(expr.attrs, "alpha", 0.0)), *steps
    )
    return integers, result


@register_optional_fake_quantization_to_integer("nn.softmax")
def _convert_softmax(expr: Call, types: Types) -> AffineResult:
    data_type = _affine_type_of(types, expr.args[0])
    result = _lossless_type(_required_type(expr, types), data_type.dtype)
    steps = data_type.scale, data_type.zero_point, result.scale, result.zero_point
    axis = int(getattr(expr.attrs, "axis", -1))
    return concat_pool_softmax.softmax(expr.args[0], *steps, axis), result
