"""Products of int8 or uint8 tensors with constant int8 or uint8 weights, in int32.

Products whose inputs are dequantised to floats just before are matched by the pass IntegerProducts.
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
from ekiden.topi.dimensions import known

BYTES = ("uint8", "int8")


@dataclass(frozen=True, slots=True)
class Levels:
    """A quantised tensor (int8 or uint8) and its zero point (0 if there is none)."""

    value: Value
    point: Value | None

    @property
    def is_whole(self) -> bool:
        """Return whether there is one zero point for the whole tensor (per-tensor quantisation)."""
        return self.point is None or _is_single(self.point)


def _is_single(value: Value) -> bool:
    shape = value.type.shape
    return not shape or (len(shape) == 1 and known(shape[0]) == 1)


def suits(data: Levels, weight: Levels) -> bool:
    """Return whether a product can be computed on bytes, as far as it depends on the operands: a
    constant weight, data with a per-tensor zero point.
    """
    # The kernels pack a constant weight and correct for one zero point of the data by its column
    # sums.
    kinds = data.value.type.dtype, weight.value.type.dtype
    return data.is_whole and weight.value.array is not None and all(k in BYTES for k in kinds)


def _point(node: Node, side: Levels) -> Expr:
    if side.point is None:
        return const(np.zeros((), side.value.type.dtype))
    return single(node, side.point)


def single(node: Node, value: Value) -> Expr:
    """Return a value of one element as a scalar, others unchanged. A constant stays a constant,
    because a zero point known to be 0 needs no correction sums.
    """
    expr = node.scope.expr(value)
    if not value.type.shape or not _is_single(value):
        return expr
    if isinstance(expr, Constant):
        return Constant(expr.data.reshape(()), span=expr.span)
    return op.reshape(expr, ())


def dense(node: Node, data: Levels, weight: Levels, rows: Array) -> Expr:
    """Return the int32 product of data with the transpose of `rows` [n, k], the weight's
    elements.
    """
    points = _point(node, data), _point(node, weight)
    return qnn.dense(node.scope.expr(data.value), const(rows), *points, data.value.type.dtype)


def is_convolution(node: Node, data: Levels, weight: Levels) -> bool:
    """Return whether a convolution can be computed on bytes: over one or two axes, with padding
    known at import.
    """
    shape = data.value.type.shape
    same = auto_pad(node) in ("SAME_UPPER", "SAME_LOWER")
    # SAME padding of symbolic extents is itself symbolic, which qnn.conv2d does not take.
    is_known = not same or all(known(d) is not None for d in shape[2:])
    return suits(data, weight) and len(shape) in (3, 4) and is_known


class Convolution:
    """A replacement of nn.conv2d for quantised operands, with int32 sums."""

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
        """Return the int32 convolution of data [n, c, h, w] (int8 or uint8) with a constant weight
        [o, c / groups, kh, kw].
        """
        assert isinstance(weight, Constant)
        points = _point(self.node, self.data), _point(self.node, self.weight)
        kind = self.data.value.type.dtype
        return qnn.conv2d(data, weight, *points, kind, strides, padding, dilation, groups)
