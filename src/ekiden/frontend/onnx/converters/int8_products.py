"""Integer products of int8 or uint8 data with constant 8-bit weights, accumulated in int32.

Products whose inputs are dequantised to floats just before are matched by the pass IntegerProducts.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.window import auto_pad
from ekiden.frontend.onnx.node import OnnxNode
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, const
from ekiden.relay.qnn import int8_lowering as qnn
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import known_int

INT8_DTYPES = ("uint8", "int8")


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """8-bit quantised tensor with its zero point (0 if there is none)."""

    value: Value
    zero_point: Value | None

    @property
    def is_per_tensor(self) -> bool:
        """Return whether the tensor has one zero point (per-tensor quantisation)."""
        return self.zero_point is None or _is_one_element(self.zero_point)


def _is_one_element(value: Value) -> bool:
    """Return whether a value is a scalar or a vector of one element."""
    shape = value.type.shape
    return not shape or (len(shape) == 1 and known_int(shape[0]) == 1)


def is_int8_product(data: QuantizedTensor, weight: QuantizedTensor) -> bool:
    """Return whether the int8 kernels accept these operands: constant weight, 8-bit dtypes, data
    with one zero point.
    """
    # The kernels pack a constant weight and correct for one zero point of the data by its column
    # sums.
    kinds = data.value.type.dtype, weight.value.type.dtype
    return (
        data.is_per_tensor
        and weight.value.array is not None
        and all(k in INT8_DTYPES for k in kinds)
    )


def _zero_point(node: OnnxNode, side: QuantizedTensor) -> Expr:
    """Return the zero point of an operand as a scalar; 0 where it has none."""
    if side.zero_point is None:
        return const(np.zeros((), side.value.type.dtype))
    return as_scalar_if_single(node, side.zero_point)


def as_scalar_if_single(node: OnnxNode, value: Value) -> Expr:
    """Return a value of one element as a scalar; others are unchanged. A constant stays a constant,
    because a zero point known to be 0 needs no correction sums.
    """
    expr = node.scope.expr(value)
    if not value.type.shape or not _is_one_element(value):
        return expr
    if isinstance(expr, Constant):
        return Constant(expr.data.reshape(()), span=expr.span)
    return op.reshape(expr, ())


def quantized_dense(
    node: OnnxNode, data: QuantizedTensor, weight: QuantizedTensor, rows: Array
) -> Expr:
    """Emit qnn.dense of data and the weight's elements as `rows` [n, k], in int32."""
    points = _zero_point(node, data), _zero_point(node, weight)
    return qnn.dense(node.scope.expr(data.value), const(rows), *points, data.value.type.dtype)


def is_int8_convolution(node: OnnxNode, data: QuantizedTensor, weight: QuantizedTensor) -> bool:
    """Return whether qnn.conv2d takes a convolution: one or two axes, padding known at import."""
    shape = data.value.type.shape
    same = auto_pad(node) in ("SAME_UPPER", "SAME_LOWER")
    # SAME padding of symbolic extents is itself symbolic, which qnn.conv2d does not take.
    is_known = not same or all(known_int(d) is not None for d in shape[2:])
    return is_int8_product(data, weight) and len(shape) in (3, 4) and is_known


class QuantizedConv2d:
    """Replacement of nn.conv2d that emits qnn.conv2d with int32 sums."""

    def __init__(self, node: OnnxNode, data: QuantizedTensor, weight: QuantizedTensor) -> None:
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
        points = _zero_point(self.node, self.data), _zero_point(self.node, self.weight)
        kind = self.data.value.type.dtype
        return qnn.conv2d(data, weight, *points, kind, strides, padding, dilation, groups)
