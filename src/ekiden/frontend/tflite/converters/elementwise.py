"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common import constant_folding as rules
from ekiden.frontend.common.converters.elementwise import elementwise_rows, floor_div_rule, select
from ekiden.frontend.common.float_functions import gelu, saturating_cast
from ekiden.frontend.tflite.converters import integer_elementwise as integer
from ekiden.frontend.tflite.load import TENSOR_DTYPES
from ekiden.frontend.tflite.node import Converter, QuantizedPolicy, TfliteNode, TfliteRow
from ekiden.ir.dtype import int_range, is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def _unary_converter(function: Callable[[Expr], Expr]) -> Converter:
    return lambda node: function(node.expr(0))


def _with_fused_activation(convert: Callable[[TfliteNode], Expr]) -> Converter:
    return lambda node: node.apply_activation(convert(node))


def _floor_div(node: TfliteNode) -> Expr:
    """Convert FLOOR_DIV; floats divide in float64 and round down, so that -1 / inf is -0."""
    x, y = node.exprs()
    if not is_float(node.dtype(0)):
        return op.floor_divide(x, y)
    # A quotient rounded to float32 may reach the next integer, whose floor is one too high.
    return op.cast(op.floor(op.divide(op.cast(x, "float64"), op.cast(y, "float64"))), node.dtype(0))


def _gelu(node: TfliteNode) -> Expr:
    return gelu(node.expr(0), node.dtype(0), bool(node.read_option("Approximate")))


def _leaky_relu(node: TfliteNode) -> Expr:
    return op.nn.leaky_relu(node.expr(0), float(node.read_option("Alpha")))


def _cast(node: TfliteNode) -> Expr:
    target = node.outs[0].dtype
    if node.operation.options is not None:
        stated = TENSOR_DTYPES.get(node.read_option("OutDataType"), target)
        if stated != target:
            node.reject(f"it casts to {stated}, its output is {target}")
    source = node.ins[0].dtype if node.ins[0] else ""
    if source == target == "complex64":
        return node.expr(0)
    if source == "complex64":  # its real part
        return op.cast(op.take(node.expr(0), const(np.int32(0)), axis=-1), target)
    if target == "complex64":
        # Complex numbers are (real, imaginary) pairs along a last axis.
        real = op.cast(node.expr(0), "float32")
        return op.stack([real, op.zeros_like(real)], axis=-1)
    if is_float(node.dtype(0)) and target == "bool":
        return op.not_equal(node.expr(0), const(0, node.dtype(0)))
    ends = int_range(target) if is_float(source) else None
    if ends is not None:  # what is no number is the largest, as LiteRT has it
        return saturating_cast(node.expr(0), source, target, ends[1])
    return op.cast(node.expr(0), target)


def _cast_rule(node: TfliteNode, inputs: Sequence[Array]) -> Array | None:
    if "complex64" in (node.outs[0].dtype, node.ins[0] and node.ins[0].dtype):
        return None
    return rules.cast_rule(node.outs[0].dtype)(inputs)


OPERATORS_WITH_FUSED_ACTIVATION = frozenset(("ADD", "SUB", "MUL", "DIV"))
"""Operators that have an activation in them."""


def _shared_row(
    code: str, convert: Callable[[TfliteNode], Expr], rule: rules.Rule | None
) -> TfliteRow:
    return TfliteRow(
        code,
        _with_fused_activation(convert) if code in OPERATORS_WITH_FUSED_ACTIVATION else convert,
        integer_converter=integer.INTEGER_CONVERTERS.get(code),
        supports_int16=code in integer.INT16_OPERATORS,
        rule=None if rule is None else rules.to_node_rule(rule),
    )


# fmt: off
ROWS = (
    *(_shared_row(code, row.convert, row.rule) for code, _, row in elementwise_rows("tflite")),
    TfliteRow("FLOOR_DIV",    _floor_div, rule=floor_div_rule),
    TfliteRow("RELU_N1_TO_1", _unary_converter(lambda x: op.clip(x, -1.0, 1.0)),
        integer_converter=integer.clipped_relu_converter(-1, 1)),
    TfliteRow("RELU_0_TO_1",  _unary_converter(lambda x: op.clip(x, 0.0, 1.0)),
        integer_converter=integer.clipped_relu_converter(0, 1)),
    TfliteRow("LEAKY_RELU",   _leaky_relu, integer_converter=integer.convert_leaky_relu,
        supports_int16=True),
    TfliteRow("GELU",         _gelu, integer_converter=integer.convert_gelu),
    TfliteRow("CAST",         _cast, rule=_cast_rule, extra_tensor_kinds=("complex64",)),
    TfliteRow("SELECT",       partial(select, per_row=True), QuantizedPolicy.MOVES_ELEMENTS,
        moved_inputs=(1, 2)),
    TfliteRow("SELECT_V2",    partial(select, per_row=False), QuantizedPolicy.MOVES_ELEMENTS,
        moved_inputs=(1, 2),
        rule=rules.to_node_rule(rules.where)),
)
# fmt: on
