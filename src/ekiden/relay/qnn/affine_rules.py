"""How operators become integer operators: the rules of FakeQuantizationToInteger.

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
from ekiden.relay.op.nn.geometry import ConvAttrs
from ekiden.relay.op.op import (
    Types,
    register_fake_quantization_to_integer,
    register_optional_fake_quantization_to_integer,
)
from ekiden.relay.qnn import elementwise, product, rescale, shaping
from ekiden.relay.qnn._declare import along, call
from ekiden.relay.transform.graph.calls import typed

Made = tuple[Expr, "TensorAffineType | TupleAffineType"]
"""The integers of a result, and what they stand for."""


def _of(types: Types, expr: Expr) -> TensorAffineType:
    if expr not in types:
        raise ValueError("no scale is known for it")
    kind = types[expr]
    assert isinstance(kind, TensorAffineType)
    return kind


def _wanted(expr: Call, types: Types) -> TensorAffineType:
    """The scale that a result is to have."""
    if expr not in types:
        raise ValueError("its result needs a scale, and what follows gives none")
    return _of(types, expr)


def _held(result: TensorAffineType, dtype: str) -> TensorAffineType:
    """Return what integers of a dtype stand for that hold all numbers of a result: its scale, and
    its zero point; that of the other sign moves by half of the range.

        uint8, zero point 0, as int8:  q * s  =  ((q - 128) - (0 - 128)) * s

    Raises ValueError where the dtype is too narrow.
    """
    (low, high), (least, most) = int_range(dtype) or (0, 0), int_range(result.dtype) or (0, 0)
    if low <= least and most <= high:
        return result.with_fields(dtype=dtype)
    if high - low != most - least:
        raise ValueError(f"its integers are {dtype}, which do not hold a result of {result.dtype}")
    moved: Expr = const(np.int32(low - least))
    if isinstance(result.zero_point, Constant):
        moved = const((result.zero_point.data + (low - least)).astype(np.int32))
    else:
        moved = typed(op.add(result.zero_point, moved))
    return result.with_fields(dtype=dtype, zero_point=moved)


def _asked(expr: Call, types: Types, given: TensorAffineType) -> TensorAffineType:
    """Return what the integers of a call's result stand for, in the dtype of its operand: what
    follows asks for, else what the operand stands for."""
    return _held(_of(types, expr), given.dtype) if expr in types else given


def _close(a: Expr, b: Expr) -> bool:
    """Whether two parameters are one, or known and close."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return a.data.shape == b.data.shape and bool(np.allclose(a.data, b.data))
    return a is b


def _same(a: TensorAffineType, b: TensorAffineType) -> bool:
    is_close = _close(a.scale, b.scale) and _close(a.zero_point, b.zero_point)
    is_scalar = isinstance(a.scale, Constant) and a.scale.data.size == 1
    return is_close and a.dtype == b.dtype and (is_scalar or a.axis == b.axis)


def _from_end(kind: TensorAffineType, rank: int) -> TensorAffineType:
    """With an axis that is counted from the end, as tensors broadcast."""
    return kind.with_fields(axis=kind.axis % rank - rank) if rank else kind


def _product(a: Expr, b: Expr) -> Expr:
    """The product of two scales, computed where both are known."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return const(a.data * b.data)
    return typed(op.multiply(a, b))


def _zeros(scale: Expr) -> Expr:
    """Zero points 0 for a scale."""
    if isinstance(scale, Constant):
        return const(np.zeros(scale.data.shape, np.int32))
    return typed(op.cast(op.zeros_like(scale), "int32"))


def _rank(expr: Expr) -> int:
    kind = typed(expr).checked_type
    assert isinstance(kind, TensorType)
    return len(kind.shape)


def _requantized(data: Expr, now: TensorAffineType, then: TensorAffineType, dtype: str) -> Call:
    steps = now.scale, now.zero_point, then.scale, then.zero_point
    return rescale.requantize(data, *steps, axis=now.axis, out_dtype=dtype)


def _quantized(number: Expr, like: TensorAffineType, axis: int = -1) -> Expr:
    """A constant of floating point in the scale of integers."""
    if not isinstance(number, Constant):
        raise ValueError("an argument is neither dequantized nor constant")
    return rescale.quantize(number, like.scale, like.zero_point, axis=axis, out_dtype=like.dtype)


# --- into and out of regions ----------------------------------------------------------------------


@register_fake_quantization_to_integer("qnn.dequantize")
def _dequantize(expr: Call, types: Types) -> Made:
    """dequantize(q) -> q"""
    return expr.args[0], _of(types, expr)


@register_fake_quantization_to_integer("qnn.quantize")
def _quantize(expr: Call, types: Types) -> Made:
    """quantize(q) -> requantize(q), or q where both scales are one"""
    data, scale, point = expr.args
    given = _of(types, data)
    out_dtype, axis = str(getattr(expr.attrs, "out_dtype", "")), getattr(expr.attrs, "axis", -1)
    result = TensorAffineType(scale, point, out_dtype, axis)
    if _same(given, result):
        return data, result
    return _requantized(data, given, result, out_dtype), result


# --- values that are moved or picked --------------------------------------------------------------


def _as_it_is(expr: Call, types: Types) -> Made:
    return expr, _of(types, expr.args[0])


def _moves_axes(expr: Call, types: Types) -> Made:
    """As it is, of a scale that is a scalar: what becomes of the axis of others is not followed."""
    given = _of(types, expr.args[0])
    if not (isinstance(given.scale, Constant) and given.scale.data.size == 1):
        raise ValueError("the scales of its channels would change their axis")
    return expr, given


for _name in "strided_slice nn.max_pool2d take".split():
    register_fake_quantization_to_integer(_name, _as_it_is, keeps=True, alone=True)
for _name in (
    "reshape squeeze transpose expand_dims nn.batch_flatten nn.depth_to_space max min broadcast_to"
).split():
    register_fake_quantization_to_integer(_name, _moves_axes, keeps=True, alone=True)
register_fake_quantization_to_integer("image.resize2d", _as_it_is, keeps=True)


@register_fake_quantization_to_integer("topk", keeps=True)
def _topk(expr: Call, types: Types) -> Made:
    if getattr(expr.attrs, "ret_type", "") != "values":
        raise ValueError("its indices are no quantised tensor")
    return expr, _of(types, expr.args[0])


@register_fake_quantization_to_integer("split", keeps=True)
def _split(expr: Call, types: Types) -> Made:
    given = _of(types, expr.args[0])
    fields = expr.op.definition.fields  # type: ignore[attr-defined]
    return expr, TupleAffineType((given,) * fields(expr.attrs))


@register_fake_quantization_to_integer("clip", keeps=True, alone=True)
def _clip(expr: Call, types: Types) -> Made:
    """clip(q, a, b) -> clip(q, quantize(a), quantize(b))"""
    data = expr.args[0]
    given = _of(types, data)
    ends = [const(np.float32(getattr(expr.attrs, name))) for name in ("a_min", "a_max")]
    if isinstance(given.scale, Constant) and given.scale.data.size == 1:
        low, high = (_number(end, given) for end in ends)
        return op.clip(data, low, high), given
    least, most = (_along_channels(end, given, _rank(data)) for end in ends)
    return op.minimum(op.maximum(data, least), most), given


def _number(end: Constant, given: TensorAffineType) -> int:
    assert isinstance(given.scale, Constant)
    if not isinstance(given.zero_point, Constant):
        raise ValueError("its zero point is not known")
    steps = given.scale.data.reshape(()), given.zero_point.data.reshape(())
    return int(rescale.quantize_array(end.data, steps, out_dtype=given.dtype))


def _along_channels(end: Constant, given: TensorAffineType, rank: int) -> Expr:
    """A number in the scale of each channel, so that it broadcasts."""
    kind = typed(given.scale).checked_type
    assert isinstance(kind, TensorType)
    each = op.broadcast_to(end, kind.shape)
    made = rescale.quantize(each, given.scale, given.zero_point, axis=0, out_dtype=given.dtype)
    return along(made, kind, rank, given.axis)


@register_fake_quantization_to_integer("nn.relu", keeps=True, alone=True)
def _relu(expr: Call, types: Types) -> Made:
    """relu(q) -> maximum(q, zero point)"""
    data = expr.args[0]
    given = _of(types, data)
    zero: Expr = op.cast(given.zero_point, given.dtype)
    if isinstance(given.zero_point, Constant):
        zero = const(given.zero_point.data.astype(given.dtype))
    return op.maximum(data, along(zero, typed(zero).checked_type, _rank(data), given.axis)), given


@register_fake_quantization_to_integer("nn.pad", keeps=True, alone=True)
def _pad(expr: Call, types: Types) -> Made:
    """The padding in the scale of the data."""
    data, value = expr.args
    given = _of(types, data)
    if value not in types:
        return Call(expr.op, (data, _quantized(value, given)), expr.attrs), given
    its = _of(types, value)
    moved = value if _same(its, given) else _requantized(value, its, given, given.dtype)
    return Call(expr.op, (data, moved), expr.attrs), given


# --- means ----------------------------------------------------------------------------------------


@register_fake_quantization_to_integer("nn.avg_pool2d", mixes=True)
def _avg_pool2d(expr: Call, types: Types) -> Made:
    given = _of(types, expr.args[0])
    result = _asked(expr, types, given)
    steps = given.scale, given.zero_point, result.scale, result.zero_point
    return call("qnn.avg_pool2d", *expr.args, *steps, attrs=expr.attrs), TensorAffineType(
        result.scale, result.zero_point, given.dtype, result.axis
    )


def _wide_mean(expr: Call, types: Types) -> Made:
    """mean(q) -> mean(q in int32, in the scale of the result)"""
    data = expr.args[0]
    given = _of(types, data)
    result = _of(types, expr) if expr in types else given
    same = _same(given, result)
    wide = op.cast(data, "int32") if same else _requantized(data, given, result, "int32")
    made = TensorAffineType(result.scale, result.zero_point, "int32", result.axis)
    return Call(expr.op, (wide,), expr.attrs), made


for _name in ("nn.global_avg_pool2d", "nn.adaptive_avg_pool1d"):
    register_fake_quantization_to_integer(_name, _wide_mean)


@register_fake_quantization_to_integer("mean")
def _mean(expr: Call, types: Types) -> Made:
    given = _of(types, expr.args[0])
    wide = Call(expr.op, (op.cast(expr.args[0], "int32"),), expr.attrs)
    return op.cast(wide, given.dtype), given


# --- products -------------------------------------------------------------------------------------


def _summed(
    data: Expr, weight: Expr, types: Types, axis: int
) -> tuple[TensorAffineType, Sequence[Expr]]:
    """What the sums of products stand for, and the steps of both sides as the dialect takes
    them."""
    left, right = _of(types, data), _of(types, weight)
    scale = _product(left.scale, right.scale)
    steps = left.zero_point, right.zero_point, left.scale, right.scale
    return TensorAffineType(scale, _zeros(scale), "int32", axis), steps


def _convolution(expr: Call, types: Types) -> Made:
    attrs = assume(ConvAttrs, expr.attrs)
    channels = (getattr(attrs, "out_layout", "") or attrs.data_layout).index("C")
    data, weight = expr.args
    kind, steps = _summed(data, weight, types, channels)
    made = call(
        f"qnn.{_last(expr)}", *expr.args, *steps, attrs=attrs.with_fields(out_dtype="int32")
    )
    return made, kind


def _last(expr: Call) -> str:
    return str(expr.op.name).rpartition(".")[2]  # type: ignore[attr-defined]


for _name in ("nn.conv2d", "nn.conv2d_transpose"):
    register_fake_quantization_to_integer(_name, _convolution, alone=True)


@register_fake_quantization_to_integer("nn.dense", alone=True)
def _dense(expr: Call, types: Types) -> Made:
    data, weight = expr.args
    kind, (one, other, left, right) = _summed(data, weight, types, _rank(data) - 1)
    units = getattr(expr.attrs, "units", None)
    return product.dense(data, weight, one, other, left, right, units), kind


@register_fake_quantization_to_integer("nn.batch_matmul", alone=True)
def _batch_matmul(expr: Call, types: Types) -> Made:
    x, y = expr.args
    kind, (one, other, left, right) = _summed(x, y, types, -1)
    if getattr(expr.attrs, "transpose_a", False):
        x = op.transpose(x, (0, 2, 1))
    if not getattr(expr.attrs, "transpose_b", True):
        y = op.transpose(y, (0, 2, 1))
    return product.batch_matmul(x, y, one, other, left, right), kind


@register_fake_quantization_to_integer("nn.bias_add", alone=True, biases=True)
def _bias_add(expr: Call, types: Types) -> Made:
    data, bias = expr.args
    given = _of(types, data)
    rank, along_axis = _rank(data), int(getattr(expr.attrs, "axis", 1))
    if bias not in types:
        bias = _quantized(bias, given, axis=0)
        return Call(expr.op, (data, bias), expr.attrs), given
    its = _of(types, bias)
    if not _same(its.with_fields(axis=along_axis % rank - rank), _from_end(given, rank)):
        bias = _requantized(bias, its.with_fields(axis=0), given, given.dtype)
    return Call(expr.op, (data, bias), expr.attrs), given


# --- two tensors ----------------------------------------------------------------------------------


def _sides(expr: Call, types: Types) -> tuple[Expr, Expr, TensorAffineType, TensorAffineType]:
    """The sides of a binary operator, a constant one in the scale of the other."""
    left, right = expr.args
    if left not in types:
        like = _of(types, right)
        return _quantized(left, like), right, like, like
    like = _of(types, left)
    if right not in types:
        return left, _quantized(right, like), like, like
    return left, right, like, _of(types, right)


Binary = Callable[..., Call]


def _register_arithmetic(name: str, qnn_op: Binary, biases: bool = False) -> None:
    def rule(expr: Call, types: Types) -> Made:
        """The call on integers and what its result stands for. A bias in int32 whose steps are the
        sum's is added as it is, without rescaling.
        """
        left, right, a, b = _sides(expr, types)
        ends = (_from_end(t, _rank(e)) for t, e in ((a, left), (b, right)))
        is_bias = biases and a.dtype == "int32" and _same(*ends)
        if is_bias and isinstance(a.zero_point, Constant) and not a.zero_point.data.any():
            return Call(expr.op, (left, right)), a  # 32 bits are room enough for a sum
        if a.dtype != b.dtype:
            raise ValueError(f"its operands are of {a.dtype} and {b.dtype}")
        is_wide = a.dtype not in ("int8", "uint8")
        result = a if is_wide else _held(_wanted(expr, types), a.dtype)
        steps = a.scale, a.zero_point, b.scale, b.zero_point, result.scale, result.zero_point
        return qnn_op(left, right, *steps, a.axis, b.axis), result

    register_fake_quantization_to_integer(name, rule, mixes=True, biases=biases)


_register_arithmetic("add", elementwise.add, biases=True)
_register_arithmetic("subtract", elementwise.subtract, biases=True)
_register_arithmetic("multiply", elementwise.mul)


def _larger_or_smaller(expr: Call, types: Types) -> Made:
    left, right, a, b = _sides(expr, types)
    if expr not in types and not _same(a, b):
        raise ValueError("its result needs a scale, and what follows gives none")
    result = _asked(expr, types, a)
    moved = [
        each if _same(its, result) else _requantized(each, its, result, result.dtype)
        for each, its in ((left, a), (right, b))
    ]
    return Call(expr.op, tuple(moved)), result


for _name in ("minimum", "maximum"):
    register_fake_quantization_to_integer(_name, _larger_or_smaller)


@register_fake_quantization_to_integer("concatenate", mixes=True)
def _concatenate(expr: Call, types: Types) -> Made:
    whole = types[expr.args[0]]
    assert isinstance(whole, TupleAffineType)
    first = whole.types[0]
    if expr not in types and not all(_same(first, other) for other in whole.types):
        raise ValueError("its result needs a scale, and what follows gives none")
    if any(other.dtype != first.dtype for other in whole.types):
        raise ValueError("its tensors are of several dtypes")
    result = _asked(expr, types, first)
    scales = Tuple(tuple(t.scale for t in whole.types))
    points = Tuple(tuple(t.zero_point for t in whole.types))
    axis = int(getattr(expr.attrs, "axis", 0))
    given = expr.args[0], scales, points, result.scale, result.zero_point
    return shaping.concatenate(*given, axis), result


# --- functions of one tensor ----------------------------------------------------------------------


def _register_unary(name: str, qnn_op: Callable[..., Call]) -> None:
    def rule(expr: Call, types: Types) -> Made:
        """The call on integers, with the steps of its input and of the rounding behind it."""
        given = _of(types, expr.args[0])
        result = _held(_wanted(expr, types), given.dtype)
        steps = given.scale, given.zero_point, result.scale, result.zero_point
        return qnn_op(*expr.args, *steps), result

    register_fake_quantization_to_integer(name, rule)


for _name in "sqrt rsqrt exp erf sigmoid tanh abs log".split():
    _register_unary(_name, getattr(elementwise, _name))


@register_fake_quantization_to_integer("nn.leaky_relu")
def _leaky_relu(expr: Call, types: Types) -> Made:
    given = _of(types, expr.args[0])
    result = _asked(expr, types, given)
    steps = given.scale, given.zero_point, result.scale, result.zero_point
    made = elementwise.leaky_relu(expr.args[0], float(getattr(expr.attrs, "alpha", 0.0)), *steps)
    return made, result


@register_optional_fake_quantization_to_integer("nn.softmax")
def _softmax(expr: Call, types: Types) -> Made:
    given = _of(types, expr.args[0])
    result = _held(_wanted(expr, types), given.dtype)
    steps = given.scale, given.zero_point, result.scale, result.zero_point
    axis = int(getattr(expr.attrs, "axis", -1))
    return shaping.softmax(expr.args[0], *steps, axis), result
