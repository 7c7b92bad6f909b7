"""Reductions over axes."""

from __future__ import annotations

from ekiden.frontend.common.converters import reduction as shared
from ekiden.frontend.common.converters.normalization import local_response_norm
from ekiden.frontend.tflite.converters import integer_reduction as integer
from ekiden.frontend.tflite.node import QuantizedPolicy, TfliteNode, TfliteRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

MOVES_ELEMENTS = QuantizedPolicy.MOVES_ELEMENTS


def _softmax(node: TfliteNode) -> Expr:
    beta = float(node.read_option("Beta", 1))
    x = node.expr(0)
    return op.nn.softmax(x if beta == 1 else op.multiply(x, const(beta, node.dtype(0))), axis=-1)


def _l2_normalization(node: TfliteNode) -> Expr:
    """Convert L2_NORMALIZATION: x / max(sqrt(sum(x**2)), 1e-6) over the last axis."""
    x = node.expr(0)
    length = op.sqrt(op.sum(op.multiply(x, x), axis=-1, keepdims=True))
    return node.apply_activation(op.divide(x, op.maximum(length, const(1e-6, node.dtype(0)))))


def _local_response_norm(node: TfliteNode) -> Expr:
    bias, alpha, beta = (float(node.read_option(n)) for n in ("Bias", "Alpha", "Beta"))
    return local_response_norm(node, int(node.read_option("Radius")), bias, alpha, beta)


_INTEGER_CONVERTERS = {
    "MEAN": integer.convert_integer_mean,
    "SUM": integer.convert_quantized_sum,
    "REDUCE_PROD": integer.convert_quantized_prod,
}
"""Of quantised tensors; their kernels take int16 too."""
_SAME_SCALE_REDUCTIONS = ("REDUCE_MAX", "REDUCE_MIN")

# fmt: off
ROWS = (
    *(TfliteRow(code, row.convert,
                MOVES_ELEMENTS if code in _SAME_SCALE_REDUCTIONS else QuantizedPolicy.REFUSED,
                integer_converter=_INTEGER_CONVERTERS.get(code),
                supports_int16=code in _INTEGER_CONVERTERS,
                rule=None if row.size_rule is None else row.rule)
      for code, row in shared.reduction_rows("tflite")),
    TfliteRow("ARG_MAX",          shared.arg_extremum_converter(op.argmax, "int32"),
        MOVES_ELEMENTS),
    TfliteRow("ARG_MIN",          shared.arg_extremum_converter(op.argmin, "int32"),
        MOVES_ELEMENTS),
    TfliteRow("SOFTMAX",          _softmax, integer_converter=integer.convert_integer_softmax,
        supports_int16=True),
    TfliteRow("LOG_SOFTMAX",      shared.log_softmax,
        integer_converter=integer.convert_integer_log_softmax),
    TfliteRow("CUMSUM",           shared.cumulative_scan_converter(op.cumsum)),
    TfliteRow("L2_NORMALIZATION", _l2_normalization,
        integer_converter=integer.convert_integer_l2_normalization),
    TfliteRow("LOCAL_RESPONSE_NORMALIZATION", _local_response_norm),
)
# fmt: on
