"""qnn.simulated_quantize and simulated_dequantize: quantisation effects in floats, with the dtype
as a run-time argument so that a search need not recompile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array
from ekiden.ir.type import Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, const
from ekiden.relay.op._declare import check_attrs, check_tensors, raise_type_error
from ekiden.relay.qnn._declare import (
    as_tensor_type,
    broadcast_qparam,
    broadcast_qparam_array,
    call_qnn_op,
    check_axis_extent,
    check_qparam,
    declare_qnn_op,
    integer_limits,
    unify_axis_extent,
)
from ekiden.relay.qnn.scale_conversion import round_half_away, round_half_away_array
from ekiden.topi.nn.qnn import SQNN_DTYPE_TO_CODE as CODES


@node("relay.attrs.SimulatedQuantizeAttrs")
class SimulatedQuantizeAttrs(Attrs):
    """Attributes of simulated_quantize and simulated_dequantize: the axis of per-axis scales."""

    axis: int = -1


def _simulated_relation(name: str) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the float data's type.

        Raises:
            TypeInferenceError: The data is no floats, the dtype's number is no int32 scalar, or
                scales
                are neither scalars nor of the axis.
        """
        axis = check_attrs(SimulatedQuantizeAttrs, attrs).axis
        data, code, *its = check_tensors(name, types, 4)
        if not data.dtype.startswith("float"):
            raise_type_error(name, f"'data' must be of floats, got {data.dtype}")
        if code.dtype != "int32" or code.shape:
            raise_type_error(name, "the dtype's number must be an int32 scalar")
        dim = check_axis_extent(name, data, axis, its)
        for kind, what in zip(its, ("scale", "zero_point"), strict=True):
            check_qparam(name, kind, what, dim)
        return unify_axis_extent(name, data, axis, its)

    return relation


def _is_dtype_code(code: Expr, dtype: str) -> Expr:
    return op.equal(code, const(np.int32(CODES[dtype])))


def _broadcast_arguments(
    attrs: SimulatedQuantizeAttrs, args: Sequence[Expr], types: Sequence[Type]
) -> tuple[Expr, Expr, Expr, Expr]:
    data = as_tensor_type(types[0])
    rank = len(data.shape)
    scale, point = (
        op.cast(broadcast_qparam(args[i], types[i], rank, attrs.axis), data.dtype) for i in (2, 3)
    )
    return args[0], args[1], scale, point


def _expand_quantize(
    attrs: SimulatedQuantizeAttrs, args: Sequence[Expr], types: Sequence[Type]
) -> Expr:
    data, code, scale, point = _broadcast_arguments(attrs, args, types)
    steps = op.add(round_half_away(op.divide(data, scale), as_tensor_type(types[0]).dtype), point)
    selected = data
    # All candidates are computed and one is selected: the dtype is data, so that a search does not
    # recompile.
    for dtype in ("int8", "uint8", "int32"):
        low, high = integer_limits(dtype)
        selected = op.where(
            _is_dtype_code(code, dtype), op.clip(steps, float(low), float(high)), selected
        )
    return selected


def _expand_dequantize(
    attrs: SimulatedQuantizeAttrs, args: Sequence[Expr], types: Sequence[Type]
) -> Expr:
    data, code, scale, point = _broadcast_arguments(attrs, args, types)
    # The numbers 1 to 3 are the quantized dtypes; others pass the data through.
    is_quantized = op.logical_and(
        op.greater(code, const(np.int32(0))), op.less_equal(code, const(np.int32(3)))
    )
    return op.where(is_quantized, op.multiply(op.subtract(data, point), scale), data)


def _broadcast_arrays(
    attrs: SimulatedQuantizeAttrs, data: Array, scale: Array, point: Array
) -> tuple[Array, Array]:
    return (
        broadcast_qparam_array(scale, data.ndim, attrs.axis).astype(data.dtype),
        broadcast_qparam_array(point, data.ndim, attrs.axis).astype(data.dtype),
    )


def _quantize_reference(
    attrs: SimulatedQuantizeAttrs, data: Array, code: Array, scale: Array, point: Array
) -> Array:
    its, position = _broadcast_arrays(attrs, data, scale, point)
    dtype = next((name for name, number in CODES.items() if number == int(code)), "disable")
    if dtype == "disable":
        return data
    low, high = np.asarray(integer_limits(dtype), data.dtype)
    return np.asarray(np.clip(round_half_away_array(data / its) + position, low, high))


def _dequantize_reference(
    attrs: SimulatedQuantizeAttrs, data: Array, code: Array, scale: Array, point: Array
) -> Array:
    its, position = _broadcast_arrays(attrs, data, scale, point)
    return np.asarray((data - position) * its) if int(code) in (1, 2, 3) else data


declare_qnn_op(
    "qnn.simulated_quantize",
    "data out_dtype output_scale output_zero_point",
    _simulated_relation("qnn.simulated_quantize"),
    _quantize_reference,
    _expand_quantize,
    SimulatedQuantizeAttrs,
)
declare_qnn_op(
    "qnn.simulated_dequantize",
    "data in_dtype input_scale input_zero_point",
    _simulated_relation("qnn.simulated_dequantize"),
    _dequantize_reference,
    _expand_dequantize,
    SimulatedQuantizeAttrs,
)


def _dtype_code(dtype: str | Expr) -> Expr:
    if isinstance(dtype, Expr):
        return dtype
    if dtype not in CODES:
        raise ValueError(f"the dtype must be one of {', '.join(CODES)}, got {dtype!r}")
    return const(np.int32(CODES[dtype]))


def simulated_quantize(
    data: Expr,
    output_scale: Expr,
    output_zero_point: Expr,
    axis: int = -1,
    out_dtype: str | Expr = "int8",
) -> Call:
    """Return the integers that `qnn.quantize` computes, in the data's float dtype.

    `out_dtype` may be an int32 scalar: CODES. Scale and zero point are scalars or vectors along
    `axis`.

    Raises:
        ValueError: The dtype is none of CODES.
    """
    attrs = SimulatedQuantizeAttrs(axis)
    args = data, _dtype_code(out_dtype), output_scale, output_zero_point
    return call_qnn_op("qnn.simulated_quantize", *args, attrs=attrs)


def simulated_dequantize(
    data: Expr,
    input_scale: Expr,
    input_zero_point: Expr,
    axis: int = -1,
    in_dtype: str | Expr = "int8",
) -> Call:
    """Return the values that `qnn.dequantize` computes from integers stored as floats."""
    attrs = SimulatedQuantizeAttrs(axis)
    args = data, _dtype_code(in_dtype), input_scale, input_zero_point
    return call_qnn_op("qnn.simulated_dequantize", *args, attrs=attrs)


__all__ = ["CODES", "simulated_dequantize", "simulated_quantize"]
