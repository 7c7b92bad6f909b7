"""Reductions over axes."""

from __future__ import annotations

from ekiden.frontend.common.converters import reduction as shared
from ekiden.frontend.tflite.converters import integer_reduction as integer
from ekiden.frontend.tflite.node import Node, Quantized, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

MOVED = Quantized.MOVED


def _softmax(node: Node) -> Expr:
    beta = float(node.option("Beta", 1))
    x = node.expr(0)
    return op.nn.softmax(x if beta == 1 else op.multiply(x, const(beta, node.dtype(0))), axis=-1)


def _l2_normalization(node: Node) -> Expr:
    """Convert L2_NORMALIZATION: x / max(sqrt(sum(x**2)), 1e-6) over the last axis."""
    x = node.expr(0)
    length = op.sqrt(op.sum(op.multiply(x, x), axis=-1, keepdims=True))
    return node.activated(op.divide(x, op.maximum(length, const(1e-6, node.dtype(0)))))


def _local_response(node: Node) -> Expr:
    bias, alpha, beta = (float(node.option(n)) for n in ("Bias", "Alpha", "Beta"))
    return shared.local_response(node, int(node.option("Radius")), bias, alpha, beta)


_INTEGER = {"MEAN": integer.mean, "SUM": integer.total, "REDUCE_PROD": integer.product}
"""Of quantised tensors; their kernels take int16 too."""
_MOVED = ("REDUCE_MAX", "REDUCE_MIN")

# fmt: off
ROWS = (
    *(Row(code, row.convert, MOVED if code in _MOVED else Quantized.REFUSED,
          integer=_INTEGER.get(code), is_wide=code in _INTEGER,
          rule=None if row.both is None else row.rule)
      for code, row in shared.rows_of("tflite")),
    Row("ARG_MAX",                      shared.position(op.argmax, "int32"), MOVED),
    Row("ARG_MIN",                      shared.position(op.argmin, "int32"), MOVED),
    Row("SOFTMAX",                      _softmax, integer=integer.softmax, is_wide=True),
    Row("LOG_SOFTMAX",                  shared.log_softmax, integer=integer.log_softmax),
    Row("CUMSUM",                       shared.running(op.cumsum)),
    Row("L2_NORMALIZATION",             _l2_normalization, integer=integer.l2_normalization),
    Row("LOCAL_RESPONSE_NORMALIZATION", _local_response),
)
# fmt: on
