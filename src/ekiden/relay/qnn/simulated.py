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
from ekiden.relay.op._declare import attrs_of, fail, tensors
from ekiden.relay.qnn._declare import (
    along,
    along_array,
    axis_dim,
    call,
    check_parameter,
    declare,
    limits,
    tensor,
    told_by,
)
from ekiden.relay.qnn.rescale import away, away_array
from ekiden.topi.nn.qnn import SQNN_DTYPE_TO_CODE as CODES


@node("relay.attrs.SimulatedQuantizeAttrs")
class SimulatedQuantizeAttrs(Attrs):
    """Attributes of simulated_quantize and simulated_dequantize: the axis of per-axis scales."""

    axis: int = -1


def _relation(name: str) -> Callable[[Sequence[Type], Attrs | None], Type]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the float data's type.

        Raises:
            TypeInferenceError: The data is no floats, the dtype's number is no int32 scalar, or
            scales
                are neither scalars nor of the axis.
        """
        axis = attrs_of(SimulatedQuantizeAttrs, attrs).axis
        data, code, *its = tensors(name, types, 4)
        if not data.dtype.startswith("float"):
            fail(name, f"'data' must be of floats, got {data.dtype}")
        if code.dtype != "int32" or code.shape:
            fail(name, "the dtype's number must be an int32 scalar")
        dim = axis_dim(name, data, axis, its)
        for kind, what in zip(its, ("scale", "zero_point"), strict=True):
            check_parameter(name, kind, what, dim)
        return told_by(name, data, axis, its)

    return relation


def _is(code: Expr, dtype: str) -> Expr:
    return op.equal(code, const(np.int32(CODES[dtype])))


def _parts(
    attrs: SimulatedQuantizeAttrs, args: Sequence[Expr], types: Sequence[Type]
) -> tuple[Expr, Expr, Expr, Expr]:
    data = tensor(types[0])
    rank = len(data.shape)
    scale, point = (op.cast(along(args[i], types[i], rank, attrs.axis), data.dtype) for i in (2, 3))
    return args[0], args[1], scale, point


def _expand_quantize(
    attrs: SimulatedQuantizeAttrs, args: Sequence[Expr], types: Sequence[Type]
) -> Expr:
    data, code, scale, point = _parts(attrs, args, types)
    steps = op.add(away(op.divide(data, scale), tensor(types[0]).dtype), point)
    selected = data
    # All candidates are computed and one is selected: the dtype is data, so that a search does not
    # recompile.
    for dtype in ("int8", "uint8", "int32"):
        low, high = limits(dtype)
        selected = op.where(_is(code, dtype), op.clip(steps, float(low), float(high)), selected)
    return selected


def _expand_dequantize(
    attrs: SimulatedQuantizeAttrs, args: Sequence[Expr], types: Sequence[Type]
) -> Expr:
    data, code, scale, point = _parts(attrs, args, types)
    # The numbers 1 to 3 are the quantized dtypes; others pass the data through.
    is_quantized = op.logical_and(
        op.greater(code, const(np.int32(0))), op.less_equal(code, const(np.int32(3)))
    )
    return op.where(is_quantized, op.multiply(op.subtract(data, point), scale), data)


def _arrays(
    attrs: SimulatedQuantizeAttrs, data: Array, scale: Array, point: Array
) -> tuple[Array, Array]:
    return (
        along_array(scale, data.ndim, attrs.axis).astype(data.dtype),
        along_array(point, data.ndim, attrs.axis).astype(data.dtype),
    )


def _quantize_reference(
    attrs: SimulatedQuantizeAttrs, data: Array, code: Array, scale: Array, point: Array
) -> Array:
    its, at = _arrays(attrs, data, scale, point)
    dtype = next((name for name, number in CODES.items() if number == int(code)), "disable")
    if dtype == "disable":
        return data
    low, high = np.asarray(limits(dtype), data.dtype)
    return np.asarray(np.clip(away_array(data / its) + at, low, high))


def _dequantize_reference(
    attrs: SimulatedQuantizeAttrs, data: Array, code: Array, scale: Array, point: Array
) -> Array:
    its, at = _arrays(attrs, data, scale, point)
    return np.asarray((data - at) * its) if int(code) in (1, 2, 3) else data


declare(
    "qnn.simulated_quantize",
    "data out_dtype output_scale output_zero_point",
    _relation("qnn.simulated_quantize"),
    _quantize_reference,
    _expand_quantize,
    SimulatedQuantizeAttrs,
)
declare(
    "qnn.simulated_dequantize",
    "data in_dtype input_scale input_zero_point",
    _relation("qnn.simulated_dequantize"),
    _dequantize_reference,
    _expand_dequantize,
    SimulatedQuantizeAttrs,
)


def _code(dtype: str | Expr) -> Expr:
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
    """Return the values that `quantize` would give, in the data's float dtype.

    `out_dtype` may be an int32 scalar: CODES. Scale and zero point are scalars or vectors along
    `axis`.

    Raises:
        ValueError: The dtype is none of CODES.
    """
    attrs = SimulatedQuantizeAttrs(axis)
    args = data, _code(out_dtype), output_scale, output_zero_point
    return call("qnn.simulated_quantize", *args, attrs=attrs)


def simulated_dequantize(
    data: Expr,
    input_scale: Expr,
    input_zero_point: Expr,
    axis: int = -1,
    in_dtype: str | Expr = "int8",
) -> Call:
    """Return the values that `dequantize` would give for integers held in floats."""
    attrs = SimulatedQuantizeAttrs(axis)
    args = data, _code(in_dtype), input_scale, input_zero_point
    return call("qnn.simulated_dequantize", *args, attrs=attrs)


__all__ = ["CODES", "simulated_dequantize", "simulated_quantize"]
