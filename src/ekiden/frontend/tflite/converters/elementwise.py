"""Operators that compute each element on its own."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common import arithmetic as rules
from ekiden.frontend.common.formulas import rounded_to_even
from ekiden.frontend.common.functions import atan2, expm1, shifted, whole
from ekiden.frontend.tflite.converters import integer_elementwise as integer
from ekiden.frontend.tflite.load import DTYPES
from ekiden.frontend.tflite.node import Converter, Node, Quantized, Row, plain
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.ir.prim import int_range
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def _unary(function: Callable[[Expr], Expr]) -> Converter:
    return lambda node: function(node.expr(0))


def _binary(function: Callable[[Expr, Expr], Expr]) -> Converter:
    return lambda node: function(node.expr(0), node.expr(1))


def _fused(function: Callable[[Expr, Expr], Expr]) -> Converter:
    return lambda node: node.activated(function(node.expr(0), node.expr(1)))


def _div(node: Node) -> Expr:
    """Of integers towards zero, as C has it."""
    divide = op.divide if is_float(node.dtype(0)) else op.trunc_divide
    return node.activated(divide(node.expr(0), node.expr(1)))


def _floor_div(node: Node) -> Expr:
    """Of floats their quotient in float64, rounded down: -1 by infinity is -0."""
    x, y = node.exprs()
    if not is_float(node.dtype(0)):
        return op.floor_divide(x, y)
    return op.cast(op.floor(op.divide(op.cast(x, "float64"), op.cast(y, "float64"))), node.dtype(0))


def _number(node: Node, value: float) -> Expr:
    return const(value, node.dtype(0))


def _add_n(node: Node) -> Expr:
    total = node.expr(0)
    for each in node.exprs()[1:]:
        total = op.add(total, each)
    return total


def _elu(node: Node) -> Expr:
    x = node.expr(0)
    below = expm1(op.minimum(x, _number(node, 0)), node.dtype(0))
    return op.where(op.less(x, _number(node, 0)), below, x)


def _hard_swish(node: Node) -> Expr:
    x = node.expr(0)
    gate = op.clip(op.add(x, _number(node, 3)), 0.0, 6.0)
    return op.divide(op.multiply(x, gate), _number(node, 6))


def _gelu(node: Node) -> Expr:
    x = node.expr(0)
    half = op.multiply(x, _number(node, 0.5))
    if node.option("Approximate"):
        cube = op.multiply(op.multiply(x, x), op.multiply(x, _number(node, 0.044715)))
        inner = op.multiply(op.add(x, cube), _number(node, math.sqrt(2 / math.pi)))
        return op.multiply(half, op.add(op.tanh(inner), _number(node, 1)))
    inner = op.multiply(x, _number(node, math.sqrt(0.5)))
    return op.multiply(half, op.add(op.erf(inner), _number(node, 1)))


def _leaky_relu(node: Node) -> Expr:
    return op.nn.leaky_relu(node.expr(0), float(node.option("Alpha")))


def _prelu(node: Node) -> Expr:
    x, alpha = node.exprs()
    return op.where(op.greater_equal(x, _number(node, 0)), x, op.multiply(alpha, x))


def _squared_difference(node: Node) -> Expr:
    difference = op.subtract(node.expr(0), node.expr(1))
    return op.multiply(difference, difference)


def _square(node: Node) -> Expr:
    return op.multiply(node.expr(0), node.expr(0))


def _round(node: Node) -> Expr:
    return rounded_to_even(node.expr(0), node.dtype(0))


def _cast(node: Node) -> Expr:
    wanted = node.outs[0].dtype
    if node.operation.options is not None:
        stated = DTYPES.get(node.option("OutDataType"), wanted)
        if stated != wanted:
            node.unsupported(f"it casts to {stated}, its output is {wanted}")
    source = node.ins[0].dtype if node.ins[0] else ""
    if source == wanted == "complex64":
        return node.expr(0)
    if source == "complex64":  # its real part
        return op.cast(op.take(node.expr(0), const(np.int32(0)), axis=-1), wanted)
    if wanted == "complex64":
        real = op.cast(node.expr(0), "float32")
        return op.stack([real, op.zeros_like(real)], axis=-1)
    if is_float(node.dtype(0)) and wanted == "bool":
        return op.not_equal(node.expr(0), _number(node, 0))
    ends = int_range(wanted) if is_float(source) else None
    if ends is not None:  # what is no number is the largest, as LiteRT has it
        return whole(node.expr(0), source, wanted, ends[1])
    return op.cast(node.expr(0), wanted)


def _select(node: Node) -> Expr:
    """SELECT takes one truth value for each first index, too."""
    condition, x, y = node.exprs()
    if node.operation.code == "SELECT" and node.rank(0) == 1 and node.rank(1) > 1:
        condition = op.expand_dims(condition, axis=1, num_newaxis=node.rank(1) - 1)
    return op.where(condition, x, y)


def _right_shift(node: Node) -> Expr:
    return shifted(op.right_shift, node.expr(0), node.expr(1), node.dtype(0))


def _cast_rule(node: Node, inputs: Sequence[Array]) -> Array | None:
    if "complex64" in (node.outs[0].dtype, node.ins[0] and node.ins[0].dtype):
        return None
    return rules.cast(node.outs[0].dtype)(inputs)


_floor_quotient = rules.elementwise(np.floor_divide, operator.floordiv)


def _floor_divide_rule(node: Node, inputs: Sequence[Array]) -> Array | None:
    if is_float(node.dtype(0)) or (inputs[1].dtype != np.object_ and not inputs[1].all()):
        return None
    return _floor_quotient(inputs)


# fmt: off
ROWS = (
    Row("ADD",                _fused(op.add), integer=integer.total(op.add),
        is_wide=True, rule=plain(rules.add)),
    Row("SUB",                _fused(op.subtract), integer=integer.total(op.subtract),
        is_wide=True, rule=plain(rules.subtract)),
    Row("MUL",                _fused(op.multiply), integer=integer.multiply,
        is_wide=True, rule=plain(rules.multiply)),
    Row("DIV",                _div, integer=integer.divide, rule=plain(rules.divide)),
    Row("ADD_N",              _add_n),
    Row("FLOOR_DIV",          _floor_div, rule=_floor_divide_rule),
    Row("FLOOR_MOD",          _binary(op.floor_mod), rule=plain(rules.floor_mod)),
    Row("MAXIMUM",            _binary(op.maximum), integer=integer.same_scales(op.maximum),
        is_wide=True, rule=plain(rules.maximum)),
    Row("MINIMUM",            _binary(op.minimum), integer=integer.same_scales(op.minimum),
        is_wide=True, rule=plain(rules.minimum)),
    Row("POW",                _binary(op.power)),
    Row("ATAN2",              lambda node: atan2(node.expr(0), node.expr(1), node.dtype(0))),
    Row("RIGHT_SHIFT",        _right_shift),
    Row("SQUARED_DIFFERENCE", _squared_difference, integer=integer.squared_difference),
    Row("EQUAL",              _binary(op.equal), integer=integer.compare(op.equal),
        is_wide=True, rule=plain(rules.equal)),
    Row("NOT_EQUAL",          _binary(op.not_equal), integer=integer.compare(op.not_equal),
        is_wide=True),
    Row("LESS",               _binary(op.less), integer=integer.compare(op.less),
        is_wide=True, rule=plain(rules.less)),
    Row("LESS_EQUAL",         _binary(op.less_equal), integer=integer.compare(op.less_equal),
        is_wide=True, rule=plain(rules.less_equal)),
    Row("GREATER",            _binary(op.greater), integer=integer.compare(op.greater),
        is_wide=True, rule=plain(rules.greater)),
    Row("GREATER_EQUAL",      _binary(op.greater_equal), integer=integer.compare(op.greater_equal),
        is_wide=True, rule=plain(rules.greater_equal)),
    Row("LOGICAL_AND",        _binary(op.logical_and), rule=plain(rules.logical_and)),
    Row("LOGICAL_OR",         _binary(op.logical_or)),
    Row("LOGICAL_NOT",        _unary(op.logical_not), rule=plain(rules.logical_not)),
    Row("BITWISE_XOR",        _binary(op.bitwise_xor)),
    Row("ABS",                _unary(op.abs), integer=integer.absolute, is_wide=True),
    Row("NEG",                _unary(op.negative), rule=plain(rules.negative)),
    Row("SIGN",               _unary(op.sign)),
    Row("CEIL",               _unary(op.ceil)),
    Row("FLOOR",              _unary(op.floor)),
    Row("ROUND",              _round),
    Row("SQRT",               _unary(op.sqrt)),
    Row("RSQRT",              _unary(op.rsqrt), integer=integer.rsqrt),
    Row("EXP",                _unary(op.exp), integer=integer.exp),
    Row("LOG",                _unary(op.log), integer=integer.log),
    Row("SIN",                _unary(op.sin)),
    Row("COS",                _unary(op.cos)),
    Row("TANH",               _unary(op.tanh), integer=integer.tanh, is_wide=True),
    Row("LOGISTIC",           _unary(op.sigmoid), integer=integer.logistic, is_wide=True),
    Row("SQUARE",             _square),
    Row("RELU",               _unary(op.nn.relu), integer=integer.clipped(0, None), is_wide=True),
    Row("RELU6",              _unary(lambda x: op.clip(x, 0.0, 6.0)),
        integer=integer.clipped(0, 6), is_wide=True),
    Row("RELU_N1_TO_1",       _unary(lambda x: op.clip(x, -1.0, 1.0)),
        integer=integer.clipped(-1, 1)),
    Row("RELU_0_TO_1",        _unary(lambda x: op.clip(x, 0.0, 1.0)),
        integer=integer.clipped(0, 1)),
    Row("ELU",                _elu, integer=integer.elu),
    Row("LEAKY_RELU",         _leaky_relu, integer=integer.leaky_relu, is_wide=True),
    Row("PRELU",              _prelu, integer=integer.prelu),
    Row("HARD_SWISH",         _hard_swish, integer=integer.hard_swish),
    Row("GELU",               _gelu, integer=integer.gelu),
    Row("CAST",               _cast, rule=_cast_rule, dtypes=("complex64",)),
    Row("SELECT",             _select, Quantized.MOVED, data=(1, 2)),
    Row("SELECT_V2",          _select, Quantized.MOVED, data=(1, 2), rule=plain(rules.where)),
)
# fmt: on
