"""Reductions over axes, softmax and losses."""

from __future__ import annotations

from ekiden.frontend.common.converters.reduction import (
    arg_extremum_converter,
    cumulative_scan_converter,
    log_softmax,
    reduction_rows,
)
from ekiden.frontend.tensorflow.node import TensorflowNode, TensorflowRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import to_attr_dims


def _softmax(node: TensorflowNode) -> Expr:
    return op.nn.softmax(node.expr(0), axis=-1)


def _l2_loss(node: TensorflowNode) -> Expr:
    """Convert L2Loss: half the sum of squares."""
    total = op.sum(op.multiply(node.expr(0), node.expr(0)))
    return op.multiply(total, const(0.5, node.dtype(0)))


def _cross_entropy(node: TensorflowNode) -> list[Expr]:
    """Convert SoftmaxCrossEntropyWithLogits: the loss of each row, and its gradient."""
    scores, labels = node.exprs()
    node.scope.require_equal_dims(node.shape(0), node.shape(1))
    loss = op.negative(op.sum(op.multiply(labels, op.nn.log_softmax(scores, axis=-1)), axis=[-1]))
    # The gradient of softmax cross entropy is softmax(logits) - labels.
    return [loss, op.subtract(op.nn.softmax(scores, axis=-1), labels)]


def _sparse_cross_entropy(node: TensorflowNode) -> list[Expr]:
    """Convert SparseSoftmaxCrossEntropyWithLogits (logits [rows, classes], class of each row): loss
    and gradient.
    """
    scores, dtype = node.expr(0), node.dtype(0)
    node.scope.require_equal_dims(node.shape(0)[:1], node.shape(1))
    classes = to_attr_dims(node.shape(0)[1:])[0]
    one, none = const(1, dtype), const(0, dtype)
    labels = op.one_hot(node.expr(1), one, none, classes, -1, dtype)
    label_column = op.expand_dims(node.expr(1), axis=1)
    # Picking one logarithm per row avoids the product with a one-hot matrix.
    label_log_probs = op.gather(op.nn.log_softmax(scores, axis=-1), 1, label_column)
    loss = op.negative(op.squeeze(label_log_probs, axis=[1]))
    return [loss, op.subtract(op.nn.softmax(scores, axis=-1), labels)]


# fmt: off
ROWS = (
    *(TensorflowRow(name, row.convert, None if row.size_rule is None else row.rule)
      for name, row in reduction_rows("tensorflow")),
    TensorflowRow("ArgMax",     arg_extremum_converter(op.argmax, "int64")),
    TensorflowRow("ArgMin",     arg_extremum_converter(op.argmin, "int64")),
    TensorflowRow("Cumsum",     cumulative_scan_converter(op.cumsum)),
    TensorflowRow("Cumprod",    cumulative_scan_converter(op.cumprod)),
    TensorflowRow("Softmax",    _softmax),
    TensorflowRow("LogSoftmax", log_softmax),
    TensorflowRow("SoftmaxCrossEntropyWithLogits",       _cross_entropy),
    TensorflowRow("SparseSoftmaxCrossEntropyWithLogits", _sparse_cross_entropy),
    TensorflowRow("L2Loss",     _l2_loss),
)
# fmt: on
