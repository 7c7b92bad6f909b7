"""Quantisation as PyTorch writes it: fake quantisation of training, whose values stay floats, and
the operators of exported quantised programs, which give integers.

    levels      q = clip(round(x / s) + z, qmin, qmax)     halves to the even number
    fake        (q - z) s
    dequantize  (q - z) s of integers q
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.dtype import from_torch_dtype
from ekiden.frontend.torch.node import Node, Operand, Row
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def _along(node: Node, parameter: Operand, rank: int, axis: int | None, dtype: str) -> Expr:
    """A scale or zero point as it broadcasts: of one element, or one for each along an axis."""
    made = node.of(parameter, dtype)
    if not isinstance(parameter, Value) or not parameter.type.shape:
        return made
    if axis is None:
        return op.reshape(made, ())
    after = rank - 1 - axis % rank
    return op.expand_dims(made, axis=1, num_newaxis=after) if after else made


class _Steps:
    """A scale and a zero point over a tensor."""

    def __init__(
        self, node: Node, data: Value, scale: Operand, point: Operand, axis: int | None
    ) -> None:
        self.node, self.data = node, data
        rank = len(data.type.shape)
        self.scale = _along(node, scale, rank, axis, "float32")
        self.point = _along(node, point, rank, axis, "float32")

    def unclipped(self) -> Expr:
        """Whole numbers, as floats."""
        x = self.node.of(self.data, "float32")
        inverse = op.divide(const(1.0, "float32"), self.scale)
        return op.add(op.round(op.multiply(x, inverse)), self.point)

    def numbers(self, levels: Expr) -> Expr:
        """What levels in float32 stand for."""
        return op.multiply(op.subtract(levels, self.point), self.scale)


def _fake(node: Node, x: Value, steps: _Steps, low: int, high: int) -> list[Expr]:
    """The rounded numbers, and where nothing was cut off."""
    whole = steps.unclipped()
    ends = [const(float(end), "float32") for end in (low, high)]
    inside = op.logical_and(op.greater_equal(whole, ends[0]), op.less_equal(whole, ends[1]))
    made = steps.numbers(op.clip(whole, float(low), float(high)))
    dtype = x.type.dtype
    return [made if dtype == "float32" else op.cast(made, dtype), inside]


def _fake_tensor(
    node: Node, x: Value, scale: Operand, point: Operand, quant_min: int, quant_max: int
) -> list[Expr]:
    return _fake(node, x, _Steps(node, x, scale, point, None), quant_min, quant_max)


def _fake_switched(
    node: Node,
    x: Value,
    scale: Operand,
    point: Operand,
    enabled: Value,
    quant_min: int,
    quant_max: int,
) -> list[Expr]:
    """Where a tensor says so; else the data."""
    made, inside = _fake_tensor(node, x, scale, point, quant_min, quant_max)
    is_on = op.not_equal(op.reshape(node.of(enabled, "int64"), ()), const(0, "int64"))
    return [op.where(is_on, made, node.of(x)), op.logical_or(op.logical_not(is_on), inside)]


def _fake_channels(
    node: Node, x: Value, scale: Value, point: Value, axis: int, quant_min: int, quant_max: int
) -> list[Expr]:
    return _fake(node, x, _Steps(node, x, scale, point, axis), quant_min, quant_max)


def _first(converter: Callable[..., list[Expr]]) -> Callable[..., Expr]:
    """A converter of the operator without a mask."""

    def converted(*args: object, **named: object) -> Expr:
        return converter(*args, **named)[0]

    return converted


def _integers(steps: _Steps, low: int, high: int, dtype: torch.dtype) -> Expr:
    return op.cast(op.clip(steps.unclipped(), float(low), float(high)), from_torch_dtype(dtype))


def _quantize(
    node: Node,
    x: Value,
    scale: Operand,
    point: Operand,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Expr:
    low, high = (int(node.number(end, "quant_min")) for end in (quant_min, quant_max))
    return _integers(_Steps(node, x, scale, point, None), low, high, dtype)


def _quantize_channels(
    node: Node,
    x: Value,
    scale: Value,
    point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Expr:
    return _integers(_Steps(node, x, scale, point, axis), quant_min, quant_max, dtype)


def _numbers(steps: _Steps, out_dtype: torch.dtype | None) -> Expr:
    made = steps.numbers(steps.node.of(steps.data, "float32"))
    wanted = "float32" if out_dtype is None else from_torch_dtype(out_dtype)
    assert is_float(wanted), wanted
    return made if wanted == "float32" else op.cast(made, wanted)


def _dequantize(
    node: Node,
    x: Value,
    scale: Operand,
    point: Operand,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Expr:
    return _numbers(_Steps(node, x, scale, point, None), out_dtype)


def _dequantize_channels(
    node: Node,
    x: Value,
    scale: Value,
    point: Value | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Expr:
    return _numbers(_Steps(node, x, scale, 0 if point is None else point, axis), out_dtype)


_LIB = "quantized_decomposed"
# fmt: off
ROWS: tuple[Row, ...] = (
    ("fake_quantize_per_tensor_affine",             _first(_fake_tensor)),
    ("fake_quantize_per_tensor_affine_cachemask",   _fake_tensor),
    ("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", _fake_switched),
    ("fake_quantize_per_channel_affine",            _first(_fake_channels)),
    ("fake_quantize_per_channel_affine_cachemask",  _fake_channels),
    (f"{_LIB}::quantize_per_tensor",                _quantize),
    (f"{_LIB}::quantize_per_channel",               _quantize_channels),
    (f"{_LIB}::dequantize_per_tensor",              _dequantize),
    (f"{_LIB}::dequantize_per_channel",             _dequantize_channels),
)
# fmt: on
