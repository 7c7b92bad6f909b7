"""Elementwise operators: arithmetic, comparisons, logic, activations, casts.

Attributes default to ONNX's values, which are float32 numbers: 0.2 is np.float32(0.2). Constants
take the dtype of the first input, so that float16 models stay float16. Broadcasting constrains
dimensions: one opposite to a number is that number, or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from ekiden.frontend.common import functions
from ekiden.frontend.common.converters.elementwise import rows_of
from ekiden.frontend.common.functions import elu, expm1, fmod, gelu, prelu, python_mod, softplus
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.node import Converter, Node, Row
from ekiden.ir.dtype import is_float, is_int
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, const
from ekiden.topi.dimensions import known


def number(node: Node, value: float) -> Constant:
    """Return a scalar constant of the first input's dtype."""
    return const(value, node.dtype(0))


def note_broadcast(node: Node) -> None:
    """Record the dimension constraints that follow from all inputs broadcasting together."""
    if len(node.inputs) < 2:
        return
    shapes = [node.shape(i) for i in range(len(node.inputs))]
    # Pairwise, because broadcasting is checked between any two inputs, not only neighbours.
    for at, first in enumerate(shapes):
        for second in shapes[at + 1 :]:
            node.scope.broadcasts(first, second)


def _broadcast(function: Callable[[Node], Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        note_broadcast(node)
        return function(node)

    return convert


def _variadic(function: Callable[[Expr, Expr], Expr]) -> Converter:
    def convert(node: Node) -> Expr | Value:
        """Apply the operator to all inputs from left to right; a single input is the result."""
        if len(node.inputs) == 1:
            return node.value(0)
        note_broadcast(node)
        return reduce(function, node.exprs())

    return convert


def _mean(node: Node) -> Expr | Value:
    if len(node.inputs) == 1:
        return node.value(0)
    note_broadcast(node)
    return op.divide(reduce(op.add, node.exprs()), number(node, len(node.inputs)))


def _mod(node: Node) -> Expr:
    """Convert Mod: the result has the sign of the divisor (Python's %), with `fmod` that of the
    dividend (C's).
    """
    note_broadcast(node)
    a, b = node.exprs()
    return (fmod if node.get_int("fmod", 0) else python_mod)(a, b, node.dtype(0))


def _bit_shift(node: Node) -> Expr:
    note_broadcast(node)
    is_left = node.get_string("direction", "LEFT") == "LEFT"
    return (op.left_shift if is_left else op.right_shift)(*node.exprs())


def _aligned(function: Converter) -> Converter:
    """Return a converter for opset < 7, where `broadcast` enables broadcasting of the second input
    and `axis` declares where its shape begins in that of the first.
    """

    def convert(node: Node) -> Result:
        """Apply the operator after appending axes of extent 1 that align the second input at
        `axis`.
        """
        if node.has("axis"):
            extra = node.rank(0) - node.get_int("axis") - node.rank(1)
            if extra > 0:
                widen(node, 1, extra)
        return function(node)

    return convert


def widen(node: Node, index: int, count: int) -> None:
    """Append `count` axes of extent 1 to an input."""
    wide = op.expand_dims(node.expr(index), axis=node.rank(index), num_newaxis=count)
    node.inputs[index] = Value(node.typed(wide), expr=wide)


_DIGITS = const(1e-12, "float64")
"""What is as near to a whole number is one that was rounded."""


def _pow(node: Node) -> Expr:
    """Convert Pow: base ** exponent in the dtype of the base, as since opset 12. Squares and square
    roots, which exporters write as powers, become a product and sqrt; the square root of -inf is
    then NaN, where pow returns inf.
    """
    note_broadcast(node)
    base, exponent = node.exprs()
    power = node.value(1).array
    if power is not None and power.size == 1 and power.ndim <= node.rank(0):
        if power.item() == 2:
            return op.multiply(base, base)
        if power.item() == 0.5 and is_float(node.dtype(0)):
            return op.sqrt(base)
    if is_int(node.dtype(0)) and is_float(node.dtype(1)):  # 4 ** 0.5 is 2; float64 has any int32
        wide = op.power(op.cast(base, "float64"), op.cast(exponent, "float64"))
        nearest = op.round(wide)  # 3 ** 5.0 is 243, of which pow may lack a last digit
        near = op.less(op.abs(op.subtract(wide, nearest)), op.abs(op.multiply(wide, _DIGITS)))
        return op.cast(op.where(near, nearest, wide), node.dtype(0))
    if node.dtype(1) != node.dtype(0):
        exponent = op.cast(exponent, node.dtype(0))
    return op.power(base, exponent)


def _clip_attributes(node: Node) -> Expr:
    lowest = float(np.finfo(np.float32).min)
    return op.clip(node.expr(0), node.get_float("min", lowest), node.get_float("max", -lowest))


def _clip(node: Node) -> Expr | Value:
    """Convert Clip since opset 11, with bounds as inputs. For integers or run-time bounds, maximum
    and minimum are used: an int64 bound has digits that a float attribute lacks. Where min >
    max, max wins.
    """
    low, high = node.optional(1), node.optional(2)
    if low is None and high is None:
        return node.value(0)
    if not is_int(node.dtype(0)) and all(v is None or v.array is not None for v in (low, high)):
        return op.clip(node.expr(0), _bound(low, -np.inf), _bound(high, np.inf))
    clipped = node.expr(0)
    if low is not None:
        clipped = op.maximum(clipped, node.scope.expr(low))
    return clipped if high is None else op.minimum(clipped, node.scope.expr(high))


def _bound(value: Value | None, default: float) -> float:
    return default if value is None or value.array is None else float(value.array.item())


# Activations.


def _hard_sigmoid(node: Node) -> Expr:
    alpha, beta = node.get_float("alpha", np.float32(0.2)), node.get_float("beta", 0.5)
    return functions.linear_sigmoid(node.expr(0), node.dtype(0), alpha, beta)


def _hard_swish(node: Node) -> Expr:
    x = node.expr(0)
    return op.multiply(x, functions.linear_sigmoid(x, node.dtype(0), 1 / 6, 0.5))


def _leaky_relu(node: Node) -> Expr:
    return op.nn.leaky_relu(node.expr(0), alpha=node.get_float("alpha", np.float32(0.01)))


def _prelu_of_channels(node: Node) -> Expr:
    """Convert PRelu of opset < 7: a slope for each channel."""
    if node.rank(1) == 1 and node.rank(0) > 2 and known(node.shape(1)[0]) != 1:
        widen(node, 1, node.rank(0) - 2)
    note_broadcast(node)
    return prelu(node.expr(0), node.expr(1), node.dtype(0))


def _elu(node: Node) -> Expr:
    return elu(node.expr(0), node.dtype(0), node.get_float("alpha", 1.0))


def _selu(node: Node) -> Expr:
    alpha, gamma = (
        node.get_float("alpha", 1.67326319217681884765625),
        node.get_float("gamma", 1.05070102214813232421875),
    )
    return elu(node.expr(0), node.dtype(0), alpha, gamma)


def _celu(node: Node) -> Expr:
    x, zero = node.expr(0), number(node, 0)
    alpha = number(node, node.get_float("alpha", 1.0))
    below = expm1(op.divide(op.minimum(x, zero), alpha), node.dtype(0))
    return op.add(op.maximum(x, zero), op.multiply(alpha, below))


def _mish(node: Node) -> Expr:
    return op.multiply(node.expr(0), op.tanh(softplus(node.expr(0), node.dtype(0))))


def _gelu(node: Node) -> Expr:
    by_tanh = node.get_string("approximate", "none") == "tanh"
    return gelu(node.expr(0), node.dtype(0), by_tanh)


def _swish(node: Node) -> Expr:
    return functions.swish(node.expr(0), node.dtype(0), node.get_float("alpha", 1.0))


def _thresholded_relu(node: Node) -> Expr:
    x = node.expr(0)
    return op.where(op.greater(x, number(node, node.get_float("alpha", 1.0))), x, number(node, 0))


def _shrink(node: Node) -> Expr:
    """Convert Shrink. For integers too the bias and the limit are floats; the result is
    truncated.
    """
    kind = node.dtype(0)
    # The cast back to an integer dtype truncates toward 0.
    wide = kind if is_float(kind) else "float64"
    x = node.expr(0) if wide == kind else op.cast(node.expr(0), wide)
    bias, limit = const(node.get_float("bias", 0.0), wide), node.get_float("lambd", 0.5)
    above = op.where(op.greater(x, const(limit, wide)), op.subtract(x, bias), const(0, wide))
    shrunk = op.where(op.less(x, const(-limit, wide)), op.add(x, bias), above)
    return shrunk if wide == kind else op.cast(shrunk, kind)


def _is_inf(node: Node) -> Expr:
    x, zero = node.expr(0), number(node, 0)
    # Both attributes 0 is legal and gives all false.
    is_infinite = op.isinf(x)
    if not node.get_int("detect_negative", 1):
        is_infinite = op.logical_and(is_infinite, op.greater(x, zero))
    return (
        is_infinite
        if node.get_int("detect_positive", 1)
        else op.logical_and(is_infinite, op.less(x, zero))
    )


_GELU = {"approximate": ("none", "tanh")}

SHARED = tuple(rows_of("onnx"))
"""(operator, since which opset, what it means), of those that other formats have too."""

# fmt: off
ROWS = (
    *(Row(name, _broadcast(row.convert), since) for name, since, row in SHARED),
    *(Row(name, _aligned(_broadcast(row.convert)), attributes="axis broadcast consumed_inputs")
      for name, since, row in SHARED if since == 7 and name != "PRelu"),
    Row("PRelu",           _prelu_of_channels, attributes="consumed_inputs"),
    Row("Mod",             _mod, attributes="fmod"),
    Row("Pow",             _aligned(_pow), attributes="axis broadcast"),
    Row("Pow",             _pow, since=7),
    Row("BitShift",        _bit_shift, since=11, attributes="direction",
        values={"direction": ("LEFT", "RIGHT")}),
    Row("Where",           _broadcast(lambda node: op.where(*node.exprs()))),
    Row("Sum",             _variadic(op.add)),
    Row("Max",             _variadic(op.maximum)),
    Row("Min",             _variadic(op.minimum)),
    Row("Mean",            _mean),
    Row("IsInf",           _is_inf, attributes="detect_negative detect_positive"),
    Row("Clip",            _clip_attributes, since=6, attributes="min max"),
    Row("Clip",            _clip, since=11),
    Row("HardSigmoid",     _hard_sigmoid, attributes="alpha beta"),
    Row("HardSwish",       _hard_swish),
    Row("LeakyRelu",       _leaky_relu, attributes="alpha"),
    Row("Elu",             _elu, attributes="alpha"),
    Row("Selu",            _selu, attributes="alpha gamma"),
    Row("Celu",            _celu, attributes="alpha"),
    Row("Mish",            _mish),
    Row("Gelu",            _gelu, attributes="approximate", values=_GELU),
    Row("Swish",           _swish, attributes="alpha"),
    Row("ThresholdedRelu", _thresholded_relu, attributes="alpha"),
    Row("Shrink",          _shrink, attributes="bias lambd"),
)
# fmt: on
