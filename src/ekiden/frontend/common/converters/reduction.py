"""Reductions, scans and softmax with the same semantics in several formats.

The columns of names are those of `elementwise.py`; converters are for TensorFlow and TensorFlow
Lite, whose attributes share names. ONNX states its axes in other ways and uses the rows alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np

from ekiden.frontend.common import constant_folding as rules
from ekiden.frontend.common.composite_ops import mean
from ekiden.frontend.common.node import AttributeNode
from ekiden.ir import prim
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass

FormatName: TypeAlias = Literal["onnx", "tensorflow", "tflite"]
Converter: TypeAlias = Callable[[AttributeNode], Expr]


@dataclass(frozen=True, slots=True)
class ReductionRow:
    """Table entry of a reduction: its Relay operator and its name in each format; "" where it has
    none, or one for other dtypes.
    """

    function: Callable[..., Expr]
    """Of (data, axis=, keepdims=)."""
    onnx: str = ""
    tensorflow: str = ""
    tflite: str = ""
    size_rule: Callable[..., object] | None = None
    """The same of two sizes, where vectors of them are reduced."""

    def convert(self, node: AttributeNode) -> Expr:
        """Convert a reduction along the constant axes of the second input; without axes it is the
        identity.
        """
        axes = tuple(dict.fromkeys(node.axis(a, node.rank(0)) for a in node.constant_ints(1)))
        if not axes:
            return node.expr(0)
        if self.function is op.mean:
            return mean(node, node.expr(0), axes, node.bool_attribute("keep_dims"))
        return self.function(node.expr(0), axis=axes, keepdims=node.bool_attribute("keep_dims"))

    def rule(self, node: AttributeNode, inputs: Sequence[Array]) -> Array | None:
        """Reduce a known vector of sizes along its one axis; return None for other inputs."""
        data, axes = inputs
        if self.size_rule is None or axes.dtype == np.object_ or axes.size != 1:
            return None
        return reduce_size_vector(data, self.size_rule, node.bool_attribute("keep_dims"))


def reduce_size_vector(data: Array, both: Callable[..., object], keepdims: bool) -> Array | None:
    """Fold a vector of sizes from the left; return None for other ranks and for empty vectors."""
    if data.ndim != 1 or not data.size:
        return None
    return np.full((1,) if keepdims else (), rules.reduce_elements(data, both), object)


def _euclidean_norm(data: Expr, axis: Sequence[int], keepdims: bool) -> Expr:
    """Emit the Euclidean norm along axes."""
    return op.sqrt(op.sum(op.multiply(data, data), axis=axis, keepdims=keepdims))


# fmt: off
REDUCTION_ROWS = (
    #              ONNX          TensorFlow  TFLite
    ReductionRow(op.sum,    "ReduceSum",  "Sum",      "SUM",         operator.add),
    ReductionRow(op.mean,   "ReduceMean", "Mean",     "MEAN"),
    ReductionRow(op.prod,   "ReduceProd", "Prod",     "REDUCE_PROD", operator.mul),
    ReductionRow(op.max,    "ReduceMax",  "Max",      "REDUCE_MAX",  prim.maximum),
    ReductionRow(op.min,    "ReduceMin",  "Min",      "REDUCE_MIN",  prim.minimum),
    ReductionRow(op.any,    "",           "Any",      "REDUCE_ANY"),
    ReductionRow(op.all,    "",           "All",      "REDUCE_ALL"),
    ReductionRow(_euclidean_norm, "",          "EuclideanNorm"),
)
# fmt: on


def reduction_rows(name: FormatName) -> Iterator[tuple[str, ReductionRow]]:
    """Yield the table entries of a format as (operator, entry)."""
    return ((getattr(row, name), row) for row in REDUCTION_ROWS if getattr(row, name))


def arg_extremum_converter(function: Callable[..., Expr], default: str) -> Converter:
    """Return the converter of argmax or argmin (`function`) along the axis of the second input, or
    0.

    `default`: the result's dtype where the node states none.
    """
    worst = -np.inf if function is op.argmax else np.inf

    def convert(node: AttributeNode) -> Expr:
        """Emit the index of the extremum; NaN never is one."""
        (axis,) = node.constant_ints(1, "dimension") if len(node.inputs) > 1 else (0,)
        # TensorFlow compares with < and >, which are false for NaN; Relay's argmax would propagate
        # it.
        data, dtype = node.expr(0), node.dtype(0)
        if is_float(dtype):  # what is no number is no extreme
            data = op.where(op.isnan(data), const(worst, dtype), data)
        index = function(data, axis=node.axis(axis, node.rank(0)))
        return op.cast(index, node.dtype_attribute("output_type", default))

    return convert


def cumulative_scan_converter(function: Callable[..., Expr]) -> Converter:
    """Return the converter of a scan (`function` is cumsum or cumprod) along the axis of the second
    input.

    A reverse scan runs over the reversed data.
    """

    def convert(node: AttributeNode) -> Expr:
        """Emit the scan, reversed or exclusive as the node's attributes demand."""
        (axis,) = node.constant_ints(1, "axis")
        axis, is_reverse = node.axis(axis, node.rank(0)), node.bool_attribute("reverse")
        x = op.reverse(node.expr(0), axis=axis) if is_reverse else node.expr(0)
        total = function(x, axis=axis, exclusive=node.bool_attribute("exclusive"))
        return op.reverse(total, axis=axis) if is_reverse else total

    return convert


def log_softmax(node: AttributeNode) -> Expr:
    """Convert LogSoftmax over the last axis."""
    return op.nn.log_softmax(node.expr(0), axis=-1)
