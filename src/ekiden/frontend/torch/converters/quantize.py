"""Converters of PyTorch's quantization: fake quantization of training, and the integer operators of
exported programs.

    levels      q = clip(round(x / s) + z, qmin, qmax)     halves to the even number
    fake        (q - z) s
    dequantize  (q - z) s of integers q
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from ekiden.frontend.common.composite_ops import append_unit_axes
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.dtype import from_torch_dtype
from ekiden.frontend.torch.node import ConverterRow, FxNode, Operand
from ekiden.frontend.torch.sympy_conversion import Scalar
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

ConverterResult = TypeVar("ConverterResult")


def _broadcast_param(node: FxNode, parameter: Operand, rank: int, axis: int | None) -> Expr:
    """Return a scale or zero point shaped to broadcast: one number, or one per channel of
    an axis.
    """
    values = node.to_expr(parameter, "float32")
    if not isinstance(parameter, Value) or not parameter.type.shape:
        return values
    return (
        op.reshape(values, ()) if axis is None else append_unit_axes(values, rank - 1 - axis % rank)
    )


class _QuantParams:
    """Quantization parameters of a tensor: per tensor if the axis is None, else per channel."""

    def __init__(
        self, node: FxNode, data: Value, scale: Operand, point: Operand, axis: int | None
    ) -> None:
        self.node, self.data = node, data
        rank = len(data.type.shape)
        self.scale, self.point = (_broadcast_param(node, p, rank, axis) for p in (scale, point))

    def quantize_unclipped(self) -> Expr:
        """Emit round(x / scale) + zero point as float32, before clipping."""
        x = self.node.to_expr(self.data, "float32")
        # ATen multiplies by the reciprocal of the scale: a division could round differently.
        inverse = op.divide(const(1.0, "float32"), self.scale)
        return op.add(op.round(op.multiply(x, inverse)), self.point)

    def dequantize_levels(self, levels: Expr) -> Expr:
        """Emit the dequantized values of float32 levels."""
        return op.multiply(op.subtract(levels, self.point), self.scale)


def _per_tensor_converter(
    convert: Callable[..., ConverterResult],
) -> Callable[..., ConverterResult]:
    """Return the converter of (data, scale, zero point, ...) with per-tensor parameters."""
    return lambda node, x, scale, point, *more, **named: convert(
        _QuantParams(node, x, scale, point, None), *more, **named
    )


def _per_channel_converter(
    convert: Callable[..., ConverterResult],
) -> Callable[..., ConverterResult]:
    """Return the converter of (data, scales, zero points, axis, ...) with per-channel
    parameters.
    """
    return lambda node, x, scale, point, axis, *more, **named: convert(
        _QuantParams(node, x, scale, 0 if point is None else point, axis), *more, **named
    )


def _fake_quantize(steps: _QuantParams, quant_min: int, quant_max: int) -> list[Expr]:
    """Emit the fake-quantized values, and the mask of elements that were not clipped."""
    levels = steps.quantize_unclipped()
    ends = [const(float(end), "float32") for end in (quant_min, quant_max)]
    inside = op.logical_and(op.greater_equal(levels, ends[0]), op.less_equal(levels, ends[1]))
    values = steps.dequantize_levels(op.clip(levels, float(quant_min), float(quant_max)))
    dtype = steps.data.type.dtype
    return [values if dtype == "float32" else op.cast(values, dtype), inside]


def _fake_quantize_values(steps: _QuantParams, quant_min: int, quant_max: int) -> Expr:
    """Emit the fake-quantized values, for operators without a mask."""
    return _fake_quantize(steps, quant_min, quant_max)[0]


def _fake_quantize_switched(
    node: FxNode, x: Value, scale: Operand, point: Operand, enabled: Value, quant_min: int,
    quant_max: int,
) -> list[Expr]:  # fmt: skip
    """Emit fake-quantized values where the tensor `enabled` is set, else the data; and the mask."""
    values, inside = _fake_quantize(_QuantParams(node, x, scale, point, None), quant_min, quant_max)
    is_on = op.not_equal(op.reshape(node.to_expr(enabled, "int64"), ()), const(0, "int64"))
    # Observers switch fake quantisation by a tensor at run time: both values are computed.
    return [op.where(is_on, values, node.to_expr(x)), op.logical_or(op.logical_not(is_on), inside)]


def _quantize(
    steps: _QuantParams, quant_min: Scalar, quant_max: Scalar, dtype: torch.dtype
) -> Expr:
    low, high = (
        float(steps.node.constant_number(end, "quant_min")) for end in (quant_min, quant_max)
    )
    return op.cast(op.clip(steps.quantize_unclipped(), low, high), from_torch_dtype(dtype))


def _dequantize(
    steps: _QuantParams, quant_min: int, quant_max: int, dtype: torch.dtype, *,
    out_dtype: torch.dtype | None = None,
) -> Expr:  # fmt: skip
    values = steps.dequantize_levels(steps.node.to_expr(steps.data, "float32"))
    dtype_name = "float32" if out_dtype is None else from_torch_dtype(out_dtype)
    assert is_float(dtype_name), dtype_name
    return values if dtype_name == "float32" else op.cast(values, dtype_name)


_QUANTIZED_NAMESPACE = "quantized_decomposed"
# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    ("fake_quantize_per_tensor_affine",             _per_tensor_converter(_fake_quantize_values)),
    ("fake_quantize_per_tensor_affine_cachemask",   _per_tensor_converter(_fake_quantize)),
    ("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", _fake_quantize_switched),
    ("fake_quantize_per_channel_affine",            _per_channel_converter(_fake_quantize_values)),
    ("fake_quantize_per_channel_affine_cachemask",  _per_channel_converter(_fake_quantize)),
    (f"{_QUANTIZED_NAMESPACE}::quantize_per_tensor",
        _per_tensor_converter(_quantize)),
    (f"{_QUANTIZED_NAMESPACE}::quantize_per_channel",
        _per_channel_converter(_quantize)),
    (f"{_QUANTIZED_NAMESPACE}::dequantize_per_tensor",
        _per_tensor_converter(_dequantize)),
    (f"{_QUANTIZED_NAMESPACE}::dequantize_per_channel",
        _per_channel_converter(_dequantize)),
)
# fmt: on
