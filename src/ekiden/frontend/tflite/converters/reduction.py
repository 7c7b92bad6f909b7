"""Reductions over axes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common import arithmetic as rules
from ekiden.frontend.common.formulas import mean
from ekiden.frontend.tflite.converters import integer_reduction as integer
from ekiden.frontend.tflite.load import DTYPES
from ekiden.frontend.tflite.node import Converter, Evaluator, Node, Quantized, Row
from ekiden.ir import prim
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

MOVED = Quantized.MOVED


def _reduce(function: Callable[..., Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        """The reduction along constant axes, each once; without any the input itself."""
        axes = tuple(node.axis(a, node.rank(0)) for a in node.axes(1))
        if not axes:
            return node.expr(0)
        axes = tuple(dict.fromkeys(axes))
        return function(node.expr(0), axis=axes, keepdims=bool(node.option("KeepDims")))

    return convert


def _mean(node: Node) -> Expr:
    return _reduce(partial(mean, node))(node)  # type: ignore[return-value]


def _arg(function: Callable[..., Expr], worst: float) -> Converter:
    def convert(node: Node) -> Expr:
        """The position in the dtype that the option OutputType names; what is no number is no
        extreme.
        """
        (axis,) = node.axes(1, "axis")
        data, dtype = node.expr(0), node.dtype(0)
        if node.ins[0] is not None and is_float(node.ins[0].dtype):  # levels are numbers
            data = op.where(op.isnan(data), const(worst, dtype), data)
        found = function(data, axis=node.axis(axis, node.rank(0)))
        return op.cast(found, DTYPES[node.option("OutputType", 2)])

    return convert


def _softmax(node: Node) -> Expr:
    beta = float(node.option("Beta", 1))
    x = node.expr(0)
    return op.nn.softmax(x if beta == 1 else op.multiply(x, const(beta, node.dtype(0))), axis=-1)


def _log_softmax(node: Node) -> Expr:
    return op.nn.log_softmax(node.expr(0), axis=-1)


def _cumsum(node: Node) -> Expr:
    (axis,) = node.axes(1, "axis")
    axis = node.axis(axis, node.rank(0))
    is_reverse = bool(node.option("Reverse"))
    x = op.reverse(node.expr(0), axis=axis) if is_reverse else node.expr(0)
    total = op.cumsum(x, axis=axis, exclusive=bool(node.option("Exclusive")))
    return op.reverse(total, axis=axis) if is_reverse else total


def _l2_normalization(node: Node) -> Expr:
    """x / max(sqrt(sum(x**2)), 1e-6) over the last axis."""
    x = node.expr(0)
    length = op.sqrt(op.sum(op.multiply(x, x), axis=-1, keepdims=True))
    return node.activated(op.divide(x, op.maximum(length, const(1e-6, node.dtype(0)))))


def _local_response(node: Node) -> Expr:
    """TensorFlow multiplies the sum by alpha, Relay its mean."""
    size = 2 * int(node.option("Radius")) + 1
    alpha, bias, beta = (float(node.option(n)) for n in ("Alpha", "Bias", "Beta"))
    return op.nn.lrn(
        node.expr(0), size=size, axis=node.rank(0) - 1, bias=bias, alpha=alpha * size, beta=beta
    )


def _reduced(function: Callable[..., object]) -> Evaluator:
    """Of a vector."""

    def rule(node: Node, inputs: Sequence[Array]) -> Array | None:
        """The reduction of a vector of sizes along its one axis; None for others."""
        data, axes = inputs
        if data.ndim != 1 or axes.dtype == np.object_ or axes.size != 1 or not data.size:
            return None
        made = rules.reduced(data, function)
        return np.full((1,) if node.option("KeepDims") else (), made, object)

    return rule


# fmt: off
ROWS = (
    Row("MEAN",                         _mean, integer=integer.mean, is_wide=True),
    Row("SUM",                          _reduce(op.sum), integer=integer.total, is_wide=True,
        rule=_reduced(operator.add)),
    Row("REDUCE_PROD",                  _reduce(op.prod), integer=integer.product, is_wide=True,
        rule=_reduced(operator.mul)),
    Row("REDUCE_MAX",                   _reduce(op.max), MOVED, rule=_reduced(prim.maximum)),
    Row("REDUCE_MIN",                   _reduce(op.min), MOVED, rule=_reduced(prim.minimum)),
    Row("REDUCE_ANY",                   _reduce(op.any)),
    Row("REDUCE_ALL",                   _reduce(op.all)),
    Row("ARG_MAX",                      _arg(op.argmax, -np.inf), MOVED),
    Row("ARG_MIN",                      _arg(op.argmin, np.inf), MOVED),
    Row("SOFTMAX",                      _softmax, integer=integer.softmax, is_wide=True),
    Row("LOG_SOFTMAX",                  _log_softmax, integer=integer.log_softmax),
    Row("CUMSUM",                       _cumsum),
    Row("L2_NORMALIZATION",             _l2_normalization, integer=integer.l2_normalization),
    Row("LOCAL_RESPONSE_NORMALIZATION", _local_response),
)
# fmt: on
