"""qnn.concatenate, qnn.avg_pool2d and qnn.softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.op import OPS, Array
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, Tuple, TupleGetItem, const
from ekiden.relay.op._declare import call_shape_rule, check_attrs, check_tensors, raise_type_error
from ekiden.relay.op.join import ConcatenateAttrs, to_tuple_expr
from ekiden.relay.op.nn.activation import SoftmaxAttrs
from ekiden.relay.op.nn.window_attrs import AvgPool2DAttrs, Ints, expand_padding, expand_per_axis
from ekiden.relay.qnn._declare import (
    INT8_DTYPES,
    QUANTIZED_DTYPES,
    as_tensor_type,
    call_qnn_op,
    check_dtype,
    check_qparam,
    check_tensor_fields,
    constant_qparam,
    declare_qnn_op,
    integer_limits,
    saturate,
)
from ekiden.relay.qnn.elementwise import unary_relation
from ekiden.relay.qnn.scale_conversion import (
    QuantParameter,
    QuantParams,
    Requantization,
    RequantizeAttrs,
    requantize_array,
)
from ekiden.runtime.errors import CompileError
from ekiden.topi.dimensions import normalize_axis

_SCALE_ARGUMENTS = "input_scale input_zero_point output_scale output_zero_point"


# --- concatenate ---------------------------------------------------------------------------------


def _concatenate_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "qnn.concatenate"
    if len(types) != 5:
        raise_type_error(name, f"expected 5 arguments, got {len(types)}")
    data = check_tensor_fields(name, types[0], "data")
    for position, what in ((1, "input_scale"), (2, "input_zero_point")):
        its = check_tensor_fields(name, types[position], f"{what}s")
        if len(its) != len(data):
            raise_type_error(name, f"expected {len(data)} {what}s, one per tensor, got {len(its)}")
        for kind in its:
            check_qparam(name, kind, what)
    check_qparam(name, as_tensor_type(types[3]), "output_scale")
    check_qparam(name, as_tensor_type(types[4]), "output_zero_point")
    for kind in data:
        check_dtype(name, kind, QUANTIZED_DTYPES, "data")
    return OPS["concatenate"].relation([TupleType(data)], check_attrs(ConcatenateAttrs, attrs))


def _tuple_fields(tuple_of: Expr, kind: Type) -> list[Expr]:
    if isinstance(tuple_of, Tuple):
        return list(tuple_of.fields)
    assert isinstance(kind, TupleType)
    return [TupleGetItem(tuple_of, i) for i in range(len(kind.fields))]


def _expand_concatenate(
    attrs: ConcatenateAttrs, args: Sequence[Expr], types: Sequence[Type]
) -> Expr:
    result = QuantParams.from_args(args, types, 3)
    kinds = check_tensor_fields("qnn.concatenate", types[0], "data")
    scale, point = TensorType((), "float32"), TensorType((), "int32")
    operands = zip(
        *(_tuple_fields(a, t) for a, t in zip(args[:3], types[:3], strict=False)), strict=True
    )
    rescaled = []
    for kind, (data, its_scale, its_point) in zip(kinds, operands, strict=True):
        source = QuantParams(QuantParameter(its_scale, scale), QuantParameter(its_point, point))
        # Each field goes to the scale of the result, since one tensor has one scale.
        rescaling = Requantization(source, result, RequantizeAttrs(out_dtype=kind.dtype))
        rescaled.append(rescaling.apply_unless_same(data, len(kind.shape)))
    return op.concatenate(Tuple(tuple(rescaled)), attrs.axis)


def _concatenate_reference(
    attrs: ConcatenateAttrs,
    data: Sequence[Array],
    scales: Sequence[Array],
    points: Sequence[Array],
    scale: Array,
    point: Array,
) -> Array:
    rescaled = [
        array
        if (its, position) == (scale, point)
        else requantize_array(
            array, (its, position), (scale, point), RequantizeAttrs(out_dtype=str(array.dtype))
        )
        for array, its, position in zip(data, scales, points, strict=True)
    ]
    return np.concatenate(rescaled, attrs.axis)


declare_qnn_op(
    "qnn.concatenate",
    "data input_scales input_zero_points output_scale output_zero_point",
    _concatenate_relation,
    _concatenate_reference,
    _expand_concatenate,
    ConcatenateAttrs,
    "as concatenate",
    "concatenate",
)


def concatenate(
    data: Expr | Sequence[Expr],
    input_scales: Expr | Sequence[Expr],
    input_zero_points: Expr | Sequence[Expr],
    output_scale: Expr,
    output_zero_point: Expr,
    axis: int = 0,
) -> Call:
    """Concatenate quantised tensors along an axis, requantised to the result's scale.

    Each has a scale and zero point of its own (tuples of scalars).
    """
    tuples = to_tuple_expr(data), to_tuple_expr(input_scales), to_tuple_expr(input_zero_points)
    attrs = ConcatenateAttrs(axis)
    return call_qnn_op("qnn.concatenate", *tuples, output_scale, output_zero_point, attrs=attrs)


# --- avg_pool2d ----------------------------------------------------------------------------------


def _avg_pool_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "qnn.avg_pool2d"
    data, *scales = check_tensors(name, types, 5)
    check_dtype(name, data, INT8_DTYPES, "data")
    for kind, what in zip(scales, _SCALE_ARGUMENTS.split(), strict=True):
        check_qparam(name, kind, what)
    return OPS["nn.avg_pool2d"].relation([data], check_attrs(AvgPool2DAttrs, attrs))


def _expand_avg_pool(attrs: AvgPool2DAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    data = as_tensor_type(types[0])
    rescaling = Requantization(
        QuantParams.from_args(args, types, 1), QuantParams.from_args(args, types, 3)
    )
    # Rescaled in int32 before pooling: means are rounded once.
    wide = rescaling.apply_unless_same(args[0], len(data.shape))
    pooled = call_qnn_op("nn.avg_pool2d", wide, attrs=attrs)
    return op.cast(op.clip(pooled, *integer_limits(data.dtype)), data.dtype)


def _avg_pool_reference(attrs: AvgPool2DAttrs, data: Array, *steps: Array) -> Array:
    pool = OPS["nn.avg_pool2d"].reference
    assert pool is not None
    source, result = (steps[0], steps[1]), (steps[2], steps[3])
    wide = requantize_array(data, source, result, RequantizeAttrs(out_dtype="int32"))
    return saturate(np.asarray(pool(attrs, wide)), str(data.dtype))


declare_qnn_op(
    "qnn.avg_pool2d",
    f"data {_SCALE_ARGUMENTS}",
    _avg_pool_relation,
    _avg_pool_reference,
    _expand_avg_pool,
    AvgPool2DAttrs,
    "as nn.avg_pool2d",
    "nn.avg_pool2d",
)


def avg_pool2d(
    data: Expr,
    input_scale: Expr,
    input_zero_point: Expr,
    output_scale: Expr,
    output_zero_point: Expr,
    pool_size: Ints,
    strides: Ints = (1, 1),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: str = "NHWC",
    out_layout: str = "",
) -> Call:
    """Return average pooling of an int8 or uint8 tensor.

    Data is requantised, summed in int32, and divided towards zero.
    """
    attrs = AvgPool2DAttrs(
        pool_size=expand_per_axis(pool_size, 2),
        strides=expand_per_axis(strides, 2),
        dilation=expand_per_axis(dilation, 2),
        padding=expand_padding(padding, 2),
        layout=layout,
        out_layout=out_layout,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )
    scales = input_scale, input_zero_point, output_scale, output_zero_point
    return call_qnn_op("qnn.avg_pool2d", data, *scales, attrs=attrs)


# --- softmax -------------------------------------------------------------------------------------

_SOFTMAX_OUTPUT_BITS, _QUOTIENT_BITS, _MAX_HALVINGS = 8, 30, 20
"""Bits of the softmax result and of the reciprocal, and the maximum power-of-two exponent of exp.
"""
_SOFTMAX_OUTPUT_SCALE = np.asarray(2.0 ** (1 - _SOFTMAX_OUTPUT_BITS), np.float32)
"""Scale of the probabilities before the final requantisation."""


def _quantized_one(scale: Array | None) -> int:
    """Return 1.0 quantised by the input's scale.

    Raises:
        CompileError: The scale is no constant up to 1.
    """
    if scale is None or not 0 < float(scale.reshape(())) <= 1:
        raise CompileError("qnn.softmax: 'scale' must be a constant in (0, 1]")
    # Rounded half away from zero, as TVM's conversion does.
    return int(np.trunc(np.float32(1) / np.float32(scale.reshape(())) + np.float32(0.5)))


_SOFTMAX_UNARY_RELATION = unary_relation("qnn.softmax", ("int8",))


def _softmax_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    """Return the data's type. Raises TypeInferenceError for an axis that it does not have."""
    data = as_tensor_type(_SOFTMAX_UNARY_RELATION(types, attrs))
    axis = check_attrs(SoftmaxAttrs, attrs).axis
    call_shape_rule("qnn.softmax", normalize_axis, axis, len(data.shape), "qnn.softmax")
    return data


def _expand_softmax(attrs: SoftmaxAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    def int32_const(n: int) -> Expr:
        return const(np.int32(n))

    unit, axis = _quantized_one(constant_qparam(args[1])), (attrs.axis,)
    moved = op.subtract(op.cast(args[0], "int32"), args[2])
    # Shifted by the maximum: all exponents are at most 0.
    x = op.subtract(moved, op.max(moved, axis, keepdims=True))
    # 2**x of x * log2(e), which is x + x/2 - x/16
    scaled = op.subtract(
        op.add(x, op.right_shift(x, int32_const(1))), op.right_shift(x, int32_const(4))
    )
    # 2**x = 2**-n * 2**r with a whole n: the first factor is a shift.
    halvings = op.clip(op.trunc_divide(scaled, int32_const(-unit)), 0, _MAX_HALVINGS)
    remainder = op.add(scaled, op.multiply(halvings, int32_const(unit)))
    # 2**r is taken as 1 + r / 2 on (-1, 0], a chord of the curve.
    exps = op.left_shift(
        op.add(op.right_shift(remainder, int32_const(1)), int32_const(unit)),
        op.subtract(op.max(halvings, axis, keepdims=True), halvings),
    )
    shares = op.trunc_divide(int32_const(1 << _QUOTIENT_BITS), op.sum(exps, axis, keepdims=True))
    levels = op.right_shift(
        op.multiply(shares, exps), int32_const(_QUOTIENT_BITS - (_SOFTMAX_OUTPUT_BITS - 1))
    )
    source = QuantParams.from_scale(_SOFTMAX_OUTPUT_SCALE, TensorType((), "float32"))
    rescaling = Requantization(
        source, QuantParams.from_args(args, types, 3), RequantizeAttrs(out_dtype="int8")
    )
    return rescaling.apply(levels, len(as_tensor_type(types[0]).shape))


def _softmax_reference(attrs: SoftmaxAttrs, data: Array, *steps: Array) -> Array:
    if not data.size:
        return data
    unit = _quantized_one(steps[0])
    moved = data.astype(np.int32) - steps[1]
    x = moved - moved.max(attrs.axis, keepdims=True)
    scaled = x + (x >> 1) - (x >> 4)
    halvings = np.clip(-scaled // unit, 0, _MAX_HALVINGS)
    exps = ((scaled + halvings * unit) >> 1) + unit
    exps = (exps << (halvings.max(attrs.axis, keepdims=True) - halvings)).astype(np.int32)
    shares = (1 << _QUOTIENT_BITS) // exps.sum(attrs.axis, keepdims=True, dtype=np.int32)
    levels = (shares * exps).astype(np.int32) >> (_QUOTIENT_BITS - (_SOFTMAX_OUTPUT_BITS - 1))
    source = _SOFTMAX_OUTPUT_SCALE, np.zeros((), np.int32)
    return requantize_array(levels, source, (steps[2], steps[3]), RequantizeAttrs())


declare_qnn_op(
    "qnn.softmax",
    f"data {_SCALE_ARGUMENTS}",
    _softmax_relation,
    _softmax_reference,
    _expand_softmax,
    SoftmaxAttrs,
)


def softmax(
    x: Expr,
    scale: Expr,
    zero_point: Expr,
    output_scale: Expr,
    output_zero_point: Expr,
    axis: int = -1,
) -> Call:
    """Return integer-only softmax of an int8 tensor.

    Li and Gu, "I-ViT: Integer-only Quantization for Efficient Vision Transformer Inference", 2022,
    algorithm 1. `scale` is a constant in (0, 1].
    """
    scales = scale, zero_point, output_scale, output_zero_point
    return call_qnn_op("qnn.softmax", x, *scales, attrs=SoftmaxAttrs(axis))


__all__ = ["avg_pool2d", "concatenate", "softmax"]
