"""Quantised tensors joined, pooled and normalised: qnn.concatenate, qnn.avg_pool2d, qnn.softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.op import OPS, Array
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, Tuple, TupleGetItem, const
from ekiden.relay.op._declare import attempt, attrs_of, fail, tensors
from ekiden.relay.op.join import ConcatenateAttrs, as_tuple
from ekiden.relay.op.nn.activation import SoftmaxAttrs
from ekiden.relay.op.nn.geometry import AvgPool2DAttrs, Ints, sides, spread
from ekiden.relay.qnn._declare import (
    BYTES,
    INTEGERS,
    call,
    check_parameter,
    declare,
    dtype_of,
    fields,
    limits,
    saturated,
    tensor,
    value,
)
from ekiden.relay.qnn.elementwise import unary_relation
from ekiden.relay.qnn.rescale import Parameter, RequantizeAttrs, Rescaling, Steps, requantize_array
from ekiden.runtime.errors import CompileError
from ekiden.topi.dimensions import normalize_axis

_SCALES = "input_scale input_zero_point output_scale output_zero_point"


# --- concatenate ---------------------------------------------------------------------------------


def _concatenate_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "qnn.concatenate"
    if len(types) != 5:
        fail(name, f"expected 5 arguments, got {len(types)}")
    data = fields(name, types[0], "data")
    for at, what in ((1, "input_scale"), (2, "input_zero_point")):
        its = fields(name, types[at], f"{what}s")
        if len(its) != len(data):
            fail(name, f"expected {len(data)} {what}s, one per tensor, got {len(its)}")
        for kind in its:
            check_parameter(name, kind, what)
    check_parameter(name, tensor(types[3]), "output_scale")
    check_parameter(name, tensor(types[4]), "output_zero_point")
    for kind in data:
        dtype_of(name, kind, INTEGERS, "data")
    return OPS["concatenate"].relation([TupleType(data)], attrs_of(ConcatenateAttrs, attrs))


def _fields_of(tuple_of: Expr, kind: Type) -> list[Expr]:
    if isinstance(tuple_of, Tuple):
        return list(tuple_of.fields)
    assert isinstance(kind, TupleType)
    return [TupleGetItem(tuple_of, i) for i in range(len(kind.fields))]


def _expand_concatenate(
    attrs: ConcatenateAttrs, args: Sequence[Expr], types: Sequence[Type]
) -> Expr:
    result = Steps.of(args, types, 3)
    kinds = fields("qnn.concatenate", types[0], "data")
    scale, point = TensorType((), "float32"), TensorType((), "int32")
    operands = zip(
        *(_fields_of(a, t) for a, t in zip(args[:3], types[:3], strict=False)), strict=True
    )
    rescaled = []
    for kind, (data, its_scale, its_point) in zip(kinds, operands, strict=True):
        source = Steps(Parameter(its_scale, scale), Parameter(its_point, point))
        rescaling = Rescaling(source, result, RequantizeAttrs(out_dtype=kind.dtype))
        rescaled.append(rescaling.unless_same(data, len(kind.shape)))
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
        if (its, at) == (scale, point)
        else requantize_array(
            array, (its, at), (scale, point), RequantizeAttrs(out_dtype=str(array.dtype))
        )
        for array, its, at in zip(data, scales, points, strict=True)
    ]
    return np.concatenate(rescaled, attrs.axis)


declare(
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
    """Return quantised tensors of one dtype joined along an axis, in the scale of the result.

    Each has a scale and zero point of its own (tuples of scalars).
    """
    tuples = as_tuple(data), as_tuple(input_scales), as_tuple(input_zero_points)
    attrs = ConcatenateAttrs(axis)
    return call("qnn.concatenate", *tuples, output_scale, output_zero_point, attrs=attrs)


# --- avg_pool2d ----------------------------------------------------------------------------------


def _pool_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "qnn.avg_pool2d"
    data, *scales = tensors(name, types, 5)
    dtype_of(name, data, BYTES, "data")
    for kind, what in zip(scales, _SCALES.split(), strict=True):
        check_parameter(name, kind, what)
    return OPS["nn.avg_pool2d"].relation([data], attrs_of(AvgPool2DAttrs, attrs))


def _expand_pool(attrs: AvgPool2DAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    data = tensor(types[0])
    rescaling = Rescaling(Steps.of(args, types, 1), Steps.of(args, types, 3))
    wide = rescaling.unless_same(args[0], len(data.shape))
    pooled = call("nn.avg_pool2d", wide, attrs=attrs)
    return op.cast(op.clip(pooled, *limits(data.dtype)), data.dtype)


def _pool_reference(attrs: AvgPool2DAttrs, data: Array, *steps: Array) -> Array:
    pool = OPS["nn.avg_pool2d"].reference
    assert pool is not None
    source, result = (steps[0], steps[1]), (steps[2], steps[3])
    wide = requantize_array(data, source, result, RequantizeAttrs(out_dtype="int32"))
    return saturated(np.asarray(pool(attrs, wide)), str(data.dtype))


declare(
    "qnn.avg_pool2d",
    f"data {_SCALES}",
    _pool_relation,
    _pool_reference,
    _expand_pool,
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
    """Return averages over windows of a quantised tensor of int8 or uint8.

    Data is requantised, summed in int32, and divided towards zero.
    """
    attrs = AvgPool2DAttrs(
        pool_size=spread(pool_size, 2),
        strides=spread(strides, 2),
        dilation=spread(dilation, 2),
        padding=sides(padding, 2),
        layout=layout,
        out_layout=out_layout,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )
    scales = input_scale, input_zero_point, output_scale, output_zero_point
    return call("qnn.avg_pool2d", data, *scales, attrs=attrs)


# --- softmax -------------------------------------------------------------------------------------

_BITS, _LARGE, _MOST = 8, 30, 20
"""Bits of the result, of the quotient, and the most halvings that are told apart."""
_SHARE = np.asarray(2.0 ** (1 - _BITS), np.float32)
"""The scale of the shares before they are requantised."""


def _unit(scale: Array | None) -> int:
    """Return 1 in steps of the input's scale.

    Raises:
        CompileError: The scale is no constant up to 1.
    """
    if scale is None or not 0 < float(scale.reshape(())) <= 1:
        raise CompileError("qnn.softmax: 'scale' must be a constant in (0, 1]")
    return int(np.trunc(np.float32(1) / np.float32(scale.reshape(())) + np.float32(0.5)))


_QUANTISED = unary_relation("qnn.softmax", ("int8",))


def _softmax_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    """Return the data's type. Raises TypeInferenceError for an axis that it does not have."""
    data = tensor(_QUANTISED(types, attrs))
    axis = attrs_of(SoftmaxAttrs, attrs).axis
    attempt("qnn.softmax", normalize_axis, axis, len(data.shape), "qnn.softmax")
    return data


def _expand_softmax(attrs: SoftmaxAttrs, args: Sequence[Expr], types: Sequence[Type]) -> Expr:
    def number(n: int) -> Expr:
        return const(np.int32(n))

    unit, axis = _unit(value(args[1])), (attrs.axis,)
    moved = op.subtract(op.cast(args[0], "int32"), args[2])
    x = op.subtract(moved, op.max(moved, axis, keepdims=True))
    # 2**x of x * log2(e), which is x + x/2 - x/16
    scaled = op.subtract(op.add(x, op.right_shift(x, number(1))), op.right_shift(x, number(4)))
    halvings = op.clip(op.trunc_divide(scaled, number(-unit)), 0, _MOST)
    remainder = op.add(scaled, op.multiply(halvings, number(unit)))
    exps = op.left_shift(
        op.add(op.right_shift(remainder, number(1)), number(unit)),
        op.subtract(op.max(halvings, axis, keepdims=True), halvings),
    )
    shares = op.trunc_divide(number(1 << _LARGE), op.sum(exps, axis, keepdims=True))
    levels = op.right_shift(op.multiply(shares, exps), number(_LARGE - (_BITS - 1)))
    source = Steps.known(_SHARE, TensorType((), "float32"))
    rescaling = Rescaling(source, Steps.of(args, types, 3), RequantizeAttrs(out_dtype="int8"))
    return rescaling.apply(levels, len(tensor(types[0]).shape))


def _softmax_reference(attrs: SoftmaxAttrs, data: Array, *steps: Array) -> Array:
    if not data.size:
        return data
    unit = _unit(steps[0])
    moved = data.astype(np.int32) - steps[1]
    x = moved - moved.max(attrs.axis, keepdims=True)
    scaled = x + (x >> 1) - (x >> 4)
    halvings = np.clip(-scaled // unit, 0, _MOST)
    exps = ((scaled + halvings * unit) >> 1) + unit
    exps = (exps << (halvings.max(attrs.axis, keepdims=True) - halvings)).astype(np.int32)
    shares = (1 << _LARGE) // exps.sum(attrs.axis, keepdims=True, dtype=np.int32)
    levels = (shares * exps).astype(np.int32) >> (_LARGE - (_BITS - 1))
    source = _SHARE, np.zeros((), np.int32)
    return requantize_array(levels, source, (steps[2], steps[3]), RequantizeAttrs())


declare(
    "qnn.softmax",
    f"data {_SCALES}",
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
    """Return softmax of an int8 tensor in integers alone.

    Li and Gu, "I-ViT: Integer-only Quantization for Efficient Vision Transformer Inference", 2022,
    algorithm 1. `scale` is a constant in (0, 1].
    """
    scales = scale, zero_point, output_scale, output_zero_point
    return call("qnn.softmax", x, *scales, attrs=SoftmaxAttrs(axis))


__all__ = ["avg_pool2d", "concatenate", "softmax"]
