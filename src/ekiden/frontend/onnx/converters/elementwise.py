"""Elementwise ONNX operators: arithmetic, comparisons, logic, activations.

Attributes default to ONNX's values, which are float32 numbers: 0.2 is np.float32(0.2). Constants
take the dtype of the first input, so that float16 models stay float16. Broadcasting constrains
dimensions: one opposite to a number is that number, or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from ekiden.frontend.common import float_functions
from ekiden.frontend.common.converters.elementwise import elementwise_rows
from ekiden.frontend.common.float_functions import (
    elu,
    expm1,
    fmod,
    gelu,
    prelu,
    python_mod,
    softplus,
)
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.node import Converter, OnnxNode, OnnxRow
from ekiden.ir.dtype import is_float, is_int
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, const
from ekiden.topi.dimensions import known_int


def const_like_input(node: OnnxNode, value: float) -> Constant:
    """Return a scalar constant of input 0's dtype."""
    return const(value, node.dtype(0))


def constrain_broadcast(node: OnnxNode) -> None:
    """Record the dimension constraints of inputs that broadcast together."""
    if len(node.inputs) < 2:
        return
    shapes = [node.shape(i) for i in range(len(node.inputs))]
    # Pairwise, because broadcasting is checked between any two inputs, not only neighbours.
    for index, first in enumerate(shapes):
        for second in shapes[index + 1 :]:
            node.scope.require_broadcastable(first, second)


def _broadcast_converter(function: Callable[[OnnxNode], Expr]) -> Converter:
    """Return a converter that records the broadcast constraints first."""

    def convert_broadcast(node: OnnxNode) -> Expr:
        constrain_broadcast(node)
        return function(node)

    return convert_broadcast


def _variadic_converter(function: Callable[[Expr, Expr], Expr]) -> Converter:
    """Return a converter of a variadic operator."""

    def convert_variadic(node: OnnxNode) -> Expr | Value:
        """Fold the operator over all inputs from the left."""
        if len(node.inputs) == 1:
            return node.value(0)
        constrain_broadcast(node)
        return reduce(function, node.exprs())

    return convert_variadic


def _mean(node: OnnxNode) -> Expr | Value:
    """Convert Mean of any number of tensors."""
    if len(node.inputs) == 1:
        return node.value(0)
    constrain_broadcast(node)
    return op.divide(reduce(op.add, node.exprs()), const_like_input(node, len(node.inputs)))


def _mod(node: OnnxNode) -> Expr:
    """Convert Mod: the sign of the divisor (Python's %), with `fmod` that of the dividend (C's)."""
    constrain_broadcast(node)
    a, b = node.exprs()
    return (fmod if node.get_int("fmod", 0) else python_mod)(a, b, node.dtype(0))


def _bit_shift(node: OnnxNode) -> Expr:
    constrain_broadcast(node)
    is_left = node.get_string("direction", "LEFT") == "LEFT"
    return (op.left_shift if is_left else op.right_shift)(*node.exprs())


def _align_second_input(function: Converter) -> Converter:
    """Return a converter for opset < 7, where `axis` aligns the second input's shape with the
    first's.
    """

    def convert_aligned(node: OnnxNode) -> Result:
        """Append unit axes that align the second input at `axis`, and convert."""
        if node.has("axis"):
            extra = node.rank(0) - node.get_int("axis") - node.rank(1)
            if extra > 0:
                append_unit_axes(node, 1, extra)
        return function(node)

    return convert_aligned


def append_unit_axes(node: OnnxNode, index: int, count: int) -> None:
    """Append `count` axes of extent 1 to an input."""
    wide = op.expand_dims(node.expr(index), axis=node.rank(index), num_newaxis=count)
    node.inputs[index] = Value(node.tensor_type_of(wide), expr=wide)


_ROUNDING_TOLERANCE = const(1e-12, "float64")
"""What is as near to a whole number is one that was rounded."""


def _pow(node: OnnxNode) -> Expr:
    """Convert Pow in the dtype of the base. Squares and square roots, which exporters write as
    powers, become a product and sqrt; the square root of -inf is then NaN, where pow returns
    inf.
    """
    constrain_broadcast(node)
    base, exponent = node.exprs()
    power = node.value(1).array
    if power is not None and power.size == 1 and power.ndim <= node.rank(0):
        # Common in exported norms; a product or a square root is much cheaper than pow.
        if power.item() == 2:
            return op.multiply(base, base)
        if power.item() == 0.5 and is_float(node.dtype(0)):
            return op.sqrt(base)
    if is_int(node.dtype(0)) and is_float(node.dtype(1)):  # 4 ** 0.5 is 2; float64 has any int32
        wide = op.power(op.cast(base, "float64"), op.cast(exponent, "float64"))
        nearest = op.round(wide)  # 3 ** 5.0 is 243, of which pow may lack a last digit
        near = op.less(
            op.abs(op.subtract(wide, nearest)), op.abs(op.multiply(wide, _ROUNDING_TOLERANCE))
        )
        return op.cast(op.where(near, nearest, wide), node.dtype(0))
    if node.dtype(1) != node.dtype(0):
        exponent = op.cast(exponent, node.dtype(0))
    return op.power(base, exponent)


def _clip_by_attributes(node: OnnxNode) -> Expr:
    """Convert Clip before opset 11, whose bounds are attributes."""
    lowest = float(np.finfo(np.float32).min)
    return op.clip(node.expr(0), node.get_float("min", lowest), node.get_float("max", -lowest))


def _clip(node: OnnxNode) -> Expr | Value:
    """Convert Clip since opset 11, whose bounds are inputs. Integers and run-time bounds use
    maximum and minimum: an int64 bound has digits that a float attribute lacks. Where min > max,
    max wins.
    """
    low, high = node.optional_value(1), node.optional_value(2)
    if low is None and high is None:
        return node.value(0)
    # op.clip holds its bounds as floats, which cannot represent every int64.
    if not is_int(node.dtype(0)) and all(v is None or v.array is not None for v in (low, high)):
        return op.clip(node.expr(0), _constant_bound(low, -np.inf), _constant_bound(high, np.inf))
    clipped = node.expr(0)
    if low is not None:
        clipped = op.maximum(clipped, node.scope.expr(low))
    return clipped if high is None else op.minimum(clipped, node.scope.expr(high))


def _constant_bound(value: Value | None, default: float) -> float:
    """Return a constant bound of Clip, or the default."""
    return default if value is None or value.array is None else float(value.array.item())


# Activations.


def _hard_sigmoid(node: OnnxNode) -> Expr:
    alpha, beta = node.get_float("alpha", np.float32(0.2)), node.get_float("beta", 0.5)
    return float_functions.scaled_hard_sigmoid(node.expr(0), node.dtype(0), alpha, beta)


def _hard_swish(node: OnnxNode) -> Expr:
    x = node.expr(0)
    # ONNX HardSwish 14: x * max(0, min(1, x / 6 + 0.5)).
    return op.multiply(x, float_functions.scaled_hard_sigmoid(x, node.dtype(0), 1 / 6, 0.5))


def _leaky_relu(node: OnnxNode) -> Expr:
    return op.nn.leaky_relu(node.expr(0), alpha=node.get_float("alpha", np.float32(0.01)))


def _prelu_per_channel(node: OnnxNode) -> Expr:
    """Convert PRelu before opset 7, with one slope per channel."""
    if node.rank(1) == 1 and node.rank(0) > 2 and known_int(node.shape(1)[0]) != 1:
        append_unit_axes(node, 1, node.rank(0) - 2)
    constrain_broadcast(node)
    return prelu(node.expr(0), node.expr(1), node.dtype(0))


def _elu(node: OnnxNode) -> Expr:
    return elu(node.expr(0), node.dtype(0), node.get_float("alpha", 1.0))


def _selu(node: OnnxNode) -> Expr:
    alpha, gamma = (
        node.get_float("alpha", 1.67326319217681884765625),
        node.get_float("gamma", 1.05070102214813232421875),
    )
    return elu(node.expr(0), node.dtype(0), alpha, gamma)


def _celu(node: OnnxNode) -> Expr:
    x, zero = node.expr(0), const_like_input(node, 0)
    alpha = const_like_input(node, node.get_float("alpha", 1.0))
    below = expm1(op.divide(op.minimum(x, zero), alpha), node.dtype(0))
    return op.add(op.maximum(x, zero), op.multiply(alpha, below))


def _mish(node: OnnxNode) -> Expr:
    return op.multiply(node.expr(0), op.tanh(softplus(node.expr(0), node.dtype(0))))


def _gelu(node: OnnxNode) -> Expr:
    by_tanh = node.get_string("approximate", "none") == "tanh"
    return gelu(node.expr(0), node.dtype(0), by_tanh)


def _swish(node: OnnxNode) -> Expr:
    return float_functions.swish(node.expr(0), node.dtype(0), node.get_float("alpha", 1.0))


def _thresholded_relu(node: OnnxNode) -> Expr:
    x = node.expr(0)
    return op.where(
        op.greater(x, const_like_input(node, node.get_float("alpha", 1.0))),
        x,
        const_like_input(node, 0),
    )


def _shrink(node: OnnxNode) -> Expr:
    """Convert Shrink: soft or hard shrinkage by `bias` and `lambd`. For integers too the bias and
    the limit are floats; the result is truncated.
    """
    kind = node.dtype(0)
    # The cast back to an integer dtype truncates toward 0.
    wide = kind if is_float(kind) else "float64"
    x = node.expr(0) if wide == kind else op.cast(node.expr(0), wide)
    bias, limit = const(node.get_float("bias", 0.0), wide), node.get_float("lambd", 0.5)
    above = op.where(op.greater(x, const(limit, wide)), op.subtract(x, bias), const(0, wide))
    shrunk = op.where(op.less(x, const(-limit, wide)), op.add(x, bias), above)
    return shrunk if wide == kind else op.cast(shrunk, kind)


def _is_inf(node: OnnxNode) -> Expr:
    x, zero = node.expr(0), const_like_input(node, 0)
    # Both attributes 0 is legal and gives all false.
    is_infinite = op.isinf(x)
    if not node.get_int("detect_negative", 1):
        is_infinite = op.logical_and(is_infinite, op.greater(x, zero))
    return (
        is_infinite
        if node.get_int("detect_positive", 1)
        else op.logical_and(is_infinite, op.less(x, zero))
    )


_GELU_VALUES = {"approximate": ("none", "tanh")}

SHARED_OPERATORS = tuple(elementwise_rows("onnx"))
"""(operator, since which opset, what it means), of those that other formats have too."""

# fmt: off
ROWS = (
    *(OnnxRow(name, _broadcast_converter(row.convert), since)
      for name, since, row in SHARED_OPERATORS),
    *(OnnxRow(name, _align_second_input(_broadcast_converter(row.convert)),
              attributes="axis broadcast consumed_inputs")
      for name, since, row in SHARED_OPERATORS if since == 7 and name != "PRelu"),
    OnnxRow("PRelu",    _prelu_per_channel, attributes="consumed_inputs"),
    OnnxRow("Mod",      _mod, attributes="fmod"),
    OnnxRow("Pow",      _align_second_input(_pow), attributes="axis broadcast"),
    OnnxRow("Pow",      _pow, since_version=7),
    OnnxRow("BitShift", _bit_shift, since_version=11, attributes="direction",
        supported_values={"direction": ("LEFT", "RIGHT")}),
    OnnxRow("Where",    _broadcast_converter(lambda node: op.where(*node.exprs()))),
    OnnxRow("Sum",      _variadic_converter(op.add)),
    OnnxRow("Max",      _variadic_converter(op.maximum)),
    OnnxRow("Min",      _variadic_converter(op.minimum)),
    OnnxRow("Mean",     _mean),
    OnnxRow("IsInf",    _is_inf, attributes="detect_negative detect_positive"),
    OnnxRow("Clip",     _clip_by_attributes, since_version=6, attributes="min max"),
    OnnxRow("Clip",     _clip, since_version=11),
    OnnxRow("HardSigmoid", _hard_sigmoid, attributes="alpha beta"),
    OnnxRow("HardSwish", _hard_swish),
    OnnxRow("LeakyRelu", _leaky_relu, attributes="alpha"),
    OnnxRow("Elu",      _elu, attributes="alpha"),
    OnnxRow("Selu",     _selu, attributes="alpha gamma"),
    OnnxRow("Celu",     _celu, attributes="alpha"),
    OnnxRow("Mish",     _mish),
    OnnxRow("Gelu",     _gelu, attributes="approximate", supported_values=_GELU_VALUES),
    OnnxRow("Swish",    _swish, attributes="alpha"),
    OnnxRow("ThresholdedRelu", _thresholded_relu, attributes="alpha"),
    OnnxRow("Shrink",   _shrink, attributes="bias lambd"),
)
# fmt: on
