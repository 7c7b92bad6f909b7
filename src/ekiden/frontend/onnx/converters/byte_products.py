"""Products of tensors of bytes with constant weights of bytes, in int32.

Where a product's inputs are dequantised just before (the QDQ form of quantised models),

    Conv(DequantizeLinear(x, s, p), DequantizeLinear(w, t, q))
->  s * t * (integer convolution of x - p with w - q)

whose sums are exact, where those of the model's float32 are rounded.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.window import auto_pad
from ekiden.frontend.onnx.node import Node
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, const
from ekiden.relay.qnn import products as qnn
from ekiden.runtime.late_methods import dataclass
from ekiden.topi.shape import known

BYTES = ("uint8", "int8")


@dataclass(frozen=True, slots=True)
class Levels:
    """A tensor of bytes, what they stand for by scale and zero point (0 if there is none), and the
    axis along which those vary if they do.
    """

    value: Value
    point: Value | None
    scale: Value | None = None
    axis: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the zero point and the scale are those of the whole tensor."""
        return all(v is None or _is_single(v) for v in (self.point, self.scale))


def _is_single(value: Value) -> bool:
    shape = value.type.shape
    return not shape or (len(shape) == 1 and known(shape[0]) == 1)


def suits(data: Levels, weight: Levels) -> bool:
    """Whether their product can be one of bytes, if the shapes allow it: a constant weight, data
    with one zero point.
    """
    kinds = data.value.type.dtype, weight.value.type.dtype
    return data.is_whole and weight.value.array is not None and all(k in BYTES for k in kinds)


def _point(node: Node, side: Levels) -> Expr:
    if side.point is None:
        return const(np.zeros((), side.value.type.dtype))
    return single(node, side.point)


def single(node: Node, value: Value) -> Expr:
    """A value of one element as a scalar, others as they are."""
    found = node.scope.expr(value)
    return op.reshape(found, ()) if _is_single(value) and value.type.shape else found


def dense(node: Node, data: Levels, weight: Levels, rows: Array) -> Expr:
    """The int32 product of data with the transpose of rows [n, k], which are the weight's."""
    points = _point(node, data), _point(node, weight)
    return qnn.dense(node.scope.expr(data.value), const(rows), *points, data.value.type.dtype)


def dequantized_dense(node: Node, data: Levels, weight: Levels, rows: Array) -> Expr:
    """The product as numbers; the weight's scale is one, or one for each of the rows."""
    assert data.scale is not None and weight.scale is not None
    factor = op.multiply(single(node, data.scale), single(node, weight.scale))
    return op.multiply(op.cast(dense(node, data, weight, rows), "float32"), factor)


def is_convolution(node: Node, data: Levels, weight: Levels) -> bool:
    """Whether a convolution can be one of bytes: over one or two axes, with a known border."""
    shape = data.value.type.shape
    same = auto_pad(node) in ("SAME_UPPER", "SAME_LOWER")
    is_known = not same or all(known(d) is not None for d in shape[2:])
    return suits(data, weight) and len(shape) in (3, 4) and is_known


class Convolution:
    """What takes the place of nn.conv2d for bytes: int32 sums, or numbers where the sides have
    scales.
    """

    def __init__(self, node: Node, data: Levels, weight: Levels) -> None:
        self.node, self.data, self.weight = node, data, weight

    def __call__(
        self,
        data: Expr,
        weight: Expr,
        strides: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
        channels: int | None,
        kernel_size: tuple[int, ...] | None,
    ) -> Expr:
        """Data [n, c, h, w] of bytes, a constant weight [o, c / groups, kh, kw]."""
        assert isinstance(weight, Constant)
        points = _point(self.node, self.data), _point(self.node, self.weight)
        kind = self.data.value.type.dtype
        sums = qnn.conv2d(data, weight, *points, kind, strides, padding, dilation, groups)
        if self.data.scale is None or self.weight.scale is None:
            return sums
        scale = single(self.node, self.weight.scale)
        if not _is_single(self.weight.scale):
            scale = op.expand_dims(scale, axis=1, num_newaxis=2)
        factor = op.multiply(single(self.node, self.data.scale), scale)
        return op.multiply(op.cast(sums, "float32"), factor)


def dequantized(node: Node, index: int) -> Levels | None:
    """The bytes that an input of a node of the model was made of by DequantizeLinear, None if it
    was not, or if a scale is not of float32 or stands for blocks.
    """
    maker = node.maker(index)
    if maker is None or maker.op_type != "DequantizeLinear":
        return None
    attributes = {a.name: a for a in maker.attribute}
    if "block_size" in attributes and attributes["block_size"].i:
        return None
    value, scale = (node.named(name) for name in maker.input[:2])
    point = node.named(maker.input[2]) if len(maker.input) > 2 and maker.input[2] else None
    if scale.type.dtype != "float32" or len(scale.type.shape) > 1:
        return None
    axis = attributes["axis"].i if "axis" in attributes else 1
    rank = len(value.type.shape)
    whole = _is_single(scale)
    return Levels(value, point, scale, None if whole else axis % max(rank, 1))


def dequantized_sides(node: Node, axis: int) -> tuple[Levels, Levels] | None:
    """The bytes of inputs 0 and 1, if they can be multiplied as such: the scales of input 1 may
    vary along `axis`.
    """
    data, weight = dequantized(node, 0), dequantized(node, 1)
    if data is None or weight is None or not suits(data, weight):
        return None
    return (data, weight) if weight.axis in (None, axis) else None
