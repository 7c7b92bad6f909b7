"""Products of tensors of bytes with constant weights of bytes, in int32.

Those whose inputs are dequantised just before, in floats, are the business of IntegerProducts.
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
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.shape import known

BYTES = ("uint8", "int8")


@dataclass(frozen=True, slots=True)
class Levels:
    """A tensor of bytes, and their zero point (0 if there is none)."""

    value: Value
    point: Value | None

    @property
    def is_whole(self) -> bool:
        """Whether the zero point is that of the whole tensor."""
        return self.point is None or _is_single(self.point)


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
    """Return a value of one element as a scalar, others as they are; a constant stays one, as a
    zero point that is known to be 0 takes no sums."""
    expr = node.scope.expr(value)
    if not value.type.shape or not _is_single(value):
        return expr
    if isinstance(expr, Constant):
        return Constant(expr.data.reshape(()), span=expr.span)
    return op.reshape(expr, ())


def dense(node: Node, data: Levels, weight: Levels, rows: Array) -> Expr:
    """The int32 product of data with the transpose of rows [n, k], which are the weight's."""
    points = _point(node, data), _point(node, weight)
    return qnn.dense(node.scope.expr(data.value), const(rows), *points, data.value.type.dtype)


def is_convolution(node: Node, data: Levels, weight: Levels) -> bool:
    """Whether a convolution can be one of bytes: over one or two axes, with a known border."""
    shape = data.value.type.shape
    same = auto_pad(node) in ("SAME_UPPER", "SAME_LOWER")
    is_known = not same or all(known(d) is not None for d in shape[2:])
    return suits(data, weight) and len(shape) in (3, 4) and is_known


class Convolution:
    """What takes the place of nn.conv2d for bytes: int32 sums."""

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
        return qnn.conv2d(data, weight, *points, kind, strides, padding, dilation, groups)
