"""Quantization and dequantization."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.tflite.integer_arithmetic import (
    QuantParams,
    quant_params,
    requantize_by_table,
    rescale,
)
from ekiden.frontend.tflite.load import TfliteTensor
from ekiden.frontend.tflite.node import QuantizedPolicy, TfliteNode, TfliteRow
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn import op as qnn


def _scale_and_zero_point(node: TfliteNode, tensor: TfliteTensor | None) -> tuple[np.float32, int]:
    """Return the scale and zero point of a per-tensor quantized tensor."""
    if tensor is None or tensor.quantization is None or len(tensor.quantization.scale) != 1:
        node.reject(f"{tensor} has not one scale")
    quantization = tensor.quantization
    return np.float32(quantization.scale[0]), quantization.zero_point[0]


def _quantization_params(node: TfliteNode, tensor: TfliteTensor | None) -> tuple[Expr, Expr, int]:
    """Return the scale, zero point and axis of a quantized tensor as qnn operators take them."""
    if tensor is None or tensor.quantization is None:
        node.reject(f"{tensor} has no scale")
    quantization = tensor.quantization
    scale, point = (
        np.array(quantization.scale, np.float32),
        np.array(quantization.zero_point, np.int32),
    )
    if scale.size == 1:
        return const(scale.reshape(())), const(point.reshape(())), -1
    return const(scale), const(point), quantization.axis


def _quantize(node: TfliteNode) -> Expr:
    if "int32" in (node.dtype(0), node.outs[0].dtype) and not is_float(node.dtype(0)):
        return _requantize_wide(node)
    if not is_float(node.dtype(0)):
        return requantize_by_table(
            node, *(quant_params(node, t) for t in (node.ins[0], node.outs[0]))
        )
    scale, point, axis = _quantization_params(node, node.outs[0])
    return qnn.quantize(node.expr(0), scale, point, axis=axis, out_dtype=node.outs[0].dtype)


def _requantize_wide(node: TfliteNode) -> Expr:
    """Requantize from or to int32, which has too many levels for a table; the kernels do not clip
    int32.
    """
    (scale, point), (step, zero) = (
        _scale_and_zero_point(node, t) for t in (node.ins[0], node.outs[0])
    )
    data = op.subtract(op.cast(node.expr(0), "int32"), const(np.int32(point)))
    rescaled = rescale(data, float(np.float64(scale) / np.float64(step)))
    rescaled = op.add(rescaled, const(np.int32(zero)))
    kind = node.outs[0].dtype
    if kind == "int32":
        return rescaled
    return op.cast(op.clip(rescaled, *QuantParams(step, zero, kind).level_limits), kind)


def _dequantize(node: TfliteNode) -> Expr:
    if is_float(node.dtype(0)):  # weights that are stored as float16
        return op.cast(node.expr(0), "float32")
    scale, point, axis = _quantization_params(node, node.ins[0])
    return qnn.dequantize(node.expr(0), scale, point, axis=axis)


def _densify(node: TfliteNode) -> Expr:
    """Convert DENSIFY to its input, which the reader has densified."""
    return node.expr(0)


def _fake_quant(node: TfliteNode) -> Expr:
    """Convert FAKE_QUANT: quantize and dequantize; the range is nudged so that zero is a level."""
    low, high = float(node.read_option("Min")), float(node.read_option("Max"))
    lowest_level = 1 if node.read_option("NarrowRange") else 0
    highest_level = (1 << int(node.read_option("NumBits"))) - 1
    step = np.float32((high - low) / (highest_level - lowest_level))
    # The range is nudged until 0 is exactly representable.
    zero = np.clip(np.round(lowest_level - low / step), lowest_level, highest_level)
    low, high = float((lowest_level - zero) * step), float((highest_level - zero) * step)
    shifted = op.subtract(op.clip(node.expr(0), low, high), const(np.float32(low)))
    levels_ = op.floor(op.add(op.divide(shifted, const(step)), const(np.float32(0.5))))
    return op.add(op.multiply(levels_, const(step)), const(np.float32(low)))


ROWS = (
    TfliteRow("DENSIFY", _densify, extra_tensor_kinds=("sparse",)),
    TfliteRow("FAKE_QUANT", _fake_quant),
    TfliteRow("QUANTIZE", _quantize, QuantizedPolicy.CONVERTER_HANDLED),
    TfliteRow("DEQUANTIZE", _dequantize, QuantizedPolicy.CONVERTER_HANDLED),
)
