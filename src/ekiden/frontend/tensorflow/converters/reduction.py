"""Reductions over axes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common import arithmetic as rules
from ekiden.frontend.common.formulas import mean
from ekiden.frontend.tensorflow.node import Converter, Evaluator, Node, Row
from ekiden.ir import prim
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import as_attr


def _keeps(node: Node) -> bool:
    return node.flag("keep_dims")


def _axes(node: Node) -> tuple[int, ...]:
    return tuple(dict.fromkeys(node.axis(a, node.rank(0)) for a in node.axes(1)))


def _reduce(function: Callable[..., Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        """The reduction along constant axes; without any the input itself."""
        axes = _axes(node)
        return function(node.expr(0), axis=axes, keepdims=_keeps(node)) if axes else node.expr(0)

    return convert


def _mean(node: Node) -> Expr:
    return _reduce(partial(mean, node))(node)  # type: ignore[return-value]


def _rule(function: Callable[..., object]) -> Evaluator:
    """Of a vector."""

    def rule(node: Node, inputs: Sequence[Array]) -> Array | None:
        """The reduction of a vector of sizes along its one axis; None for others."""
        data, axes = inputs
        if data.ndim != 1 or axes.dtype == np.object_ or axes.size != 1 or not data.size:
            return None
        made = rules.reduced(data, function)
        return np.full((1,) if _keeps(node) else (), made, object)

    return rule


def _euclidean(data: Expr, axis: Sequence[int], keepdims: bool) -> Expr:
    return op.sqrt(op.sum(op.multiply(data, data), axis=axis, keepdims=keepdims))


def _arg(function: Callable[..., Expr], worst: float) -> Converter:
    def convert(node: Node) -> Expr:
        """The position in the dtype that the operator names; axis 0 where it has no second
        input."""
        (axis,) = node.axes(1, "dimension") if len(node.inputs) > 1 else (0,)
        data, dtype = node.expr(0), node.dtype(0)
        if is_float(dtype):  # what is no number is no extreme
            data = op.where(op.isnan(data), const(worst, dtype), data)
        found = function(data, axis=node.axis(axis, node.rank(0)))
        return op.cast(found, node.dtype_of("output_type", "int64"))

    return convert


def _cumulative(function: Callable[..., Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        """The running result; backwards it is that of the reversed data."""
        (axis,) = node.axes(1, "axis")
        axis, is_reverse = node.axis(axis, node.rank(0)), node.flag("reverse")
        x = op.reverse(node.expr(0), axis=axis) if is_reverse else node.expr(0)
        total = function(x, axis=axis, exclusive=node.flag("exclusive"))
        return op.reverse(total, axis=axis) if is_reverse else total

    return convert


def _softmax(node: Node) -> Expr:
    return op.nn.softmax(node.expr(0), axis=-1)


def _log_softmax(node: Node) -> Expr:
    return op.nn.log_softmax(node.expr(0), axis=-1)


def _l2_loss(node: Node) -> Expr:
    """Half the sum of squares."""
    total = op.sum(op.multiply(node.expr(0), node.expr(0)))
    return op.multiply(total, const(0.5, node.dtype(0)))


def _cross_entropy(node: Node) -> list[Expr]:
    """(logits, the chance of each class): the loss of each row, and its gradient."""
    scores, labels = node.exprs()
    node.scope.same(node.shape(0), node.shape(1))
    loss = op.negative(op.sum(op.multiply(labels, op.nn.log_softmax(scores, axis=-1)), axis=[-1]))
    return [loss, op.subtract(op.nn.softmax(scores, axis=-1), labels)]


def _sparse_cross_entropy(node: Node) -> list[Expr]:
    """(logits [rows, classes], the class of each row)"""
    scores, dtype = node.expr(0), node.dtype(0)
    node.scope.same(node.shape(0)[:1], node.shape(1))
    classes = as_attr(node.shape(0)[1:])[0]
    one, none = const(1, dtype), const(0, dtype)
    labels = op.one_hot(node.expr(1), one, none, classes, -1, dtype)
    right = op.expand_dims(node.expr(1), axis=1)
    found = op.gather(op.nn.log_softmax(scores, axis=-1), 1, right)
    loss = op.negative(op.squeeze(found, axis=[1]))
    return [loss, op.subtract(op.nn.softmax(scores, axis=-1), labels)]


# fmt: off
ROWS = (
    Row("Mean",          _mean),
    Row("Sum",           _reduce(op.sum),  _rule(operator.add)),
    Row("Prod",          _reduce(op.prod), _rule(operator.mul)),
    Row("Max",           _reduce(op.max),  _rule(prim.maximum)),
    Row("Min",           _reduce(op.min),  _rule(prim.minimum)),
    Row("Any",           _reduce(op.any)),
    Row("All",           _reduce(op.all)),
    Row("EuclideanNorm", _reduce(_euclidean)),
    Row("ArgMax",        _arg(op.argmax, -np.inf)),
    Row("ArgMin",        _arg(op.argmin, np.inf)),
    Row("Cumsum",        _cumulative(op.cumsum)),
    Row("Cumprod",       _cumulative(op.cumprod)),
    Row("Softmax",       _softmax),
    Row("LogSoftmax",    _log_softmax),
    Row("SoftmaxCrossEntropyWithLogits",       _cross_entropy),
    Row("SparseSoftmaxCrossEntropyWithLogits", _sparse_cross_entropy),
    Row("L2Loss",        _l2_loss),
)
# fmt: on
