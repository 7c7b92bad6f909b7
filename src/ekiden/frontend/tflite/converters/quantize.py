"""Between floats and quantised tensors."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.tflite.integer import Levels, levels, requantized, scaled
from ekiden.frontend.tflite.load import Tensor
from ekiden.frontend.tflite.node import Node, Quantized, Row
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn import op as qnn


def _numbers(node: Node, tensor: Tensor | None) -> tuple[np.float32, int]:
    """The scale and the zero point of a tensor that has one of each."""
    if tensor is None or tensor.quantization is None or len(tensor.quantization.scale) != 1:
        node.unsupported(f"{tensor} has not one scale")
    found = tensor.quantization
    return np.float32(found.scale[0]), found.zero_point[0]


def _steps(node: Node, tensor: Tensor | None) -> tuple[Expr, Expr, int]:
    """The scale, the zero point and the axis of a tensor that must be quantised."""
    if tensor is None or tensor.quantization is None:
        node.unsupported(f"{tensor} has no scale")
    found = tensor.quantization
    scale, point = np.array(found.scale, np.float32), np.array(found.zero_point, np.int32)
    if scale.size == 1:
        return const(scale.reshape(())), const(point.reshape(())), -1
    return const(scale), const(point), found.axis


def _quantize(node: Node) -> Expr:
    if "int32" in (node.dtype(0), node.outs[0].dtype) and not is_float(node.dtype(0)):
        return _requantize_wide(node)
    if not is_float(node.dtype(0)):
        return requantized(node, *(levels(node, t) for t in (node.ins[0], node.outs[0])))
    scale, point, axis = _steps(node, node.outs[0])
    return qnn.quantize(node.expr(0), scale, point, axis=axis, out_dtype=node.outs[0].dtype)


def _requantize_wide(node: Node) -> Expr:
    """From or to int32, of which there is no table; the kernels keep int32 within no limits."""
    (scale, point), (step, zero) = (_numbers(node, t) for t in (node.ins[0], node.outs[0]))
    data = op.subtract(op.cast(node.expr(0), "int32"), const(np.int32(point)))
    made = scaled(data, float(np.float64(scale) / np.float64(step)))
    made = op.add(made, const(np.int32(zero)))
    kind = node.outs[0].dtype
    if kind == "int32":
        return made
    return op.cast(op.clip(made, *Levels(step, zero, kind).limits), kind)


def _dequantize(node: Node) -> Expr:
    if is_float(node.dtype(0)):  # weights that are stored as float16
        return op.cast(node.expr(0), "float32")
    scale, point, axis = _steps(node, node.ins[0])
    return qnn.dequantize(node.expr(0), scale, point, axis=axis)


def _densify(node: Node) -> Expr:
    """A sparse constant, which was read as a dense one."""
    return node.expr(0)


def _fake_quant(node: Node) -> Expr:
    """Floats as after quantising and back; the range is nudged so that zero is a level."""
    low, high = float(node.option("Min")), float(node.option("Max"))
    least = 1 if node.option("NarrowRange") else 0
    most = (1 << int(node.option("NumBits"))) - 1
    step = np.float32((high - low) / (most - least))
    zero = np.clip(np.round(least - low / step), least, most)
    low, high = float((least - zero) * step), float((most - zero) * step)
    shifted = op.subtract(op.clip(node.expr(0), low, high), const(np.float32(low)))
    levels_ = op.floor(op.add(op.divide(shifted, const(step)), const(np.float32(0.5))))
    return op.add(op.multiply(levels_, const(step)), const(np.float32(low)))


ROWS = (
    Row("DENSIFY", _densify, dtypes=("sparse",)),
    Row("FAKE_QUANT", _fake_quant),
    Row("QUANTIZE", _quantize, Quantized.OWN),
    Row("DEQUANTIZE", _dequantize, Quantized.OWN),
)
