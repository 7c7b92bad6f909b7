"""Operators that compute each element on its own."""

from __future__ import annotations

import math
from collections.abc import Callable

from ekiden.frontend.tflite.load import DTYPES
from ekiden.frontend.tflite.node import Converter, Node, Row
from ekiden.ir.dtype import is_float
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


def _number(node: Node, value: float) -> Expr:
    return const(value, node.dtype(0))


def _add_n(node: Node) -> Expr:
    total = node.expr(0)
    for each in node.exprs()[1:]:
        total = op.add(total, each)
    return total


def _elu(node: Node) -> Expr:
    x = node.expr(0)
    below = op.subtract(op.exp(op.minimum(x, _number(node, 0))), _number(node, 1))
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
    """To the nearest, midway to the even one."""
    x = node.expr(0)
    below = op.floor(x)
    rest = op.subtract(x, below)
    half = _number(node, 0.5)
    above = op.add(below, _number(node, 1))
    doubled = op.multiply(op.floor(op.multiply(below, half)), _number(node, 2))
    even = op.where(op.equal(doubled, below), below, above)
    nearest = op.where(op.greater(rest, half), above, below)
    return op.where(op.equal(rest, half), even, nearest)


def _cast(node: Node) -> Expr:
    wanted = node.outs[0].dtype
    if node.operation.options is not None:
        stated = DTYPES.get(node.option("OutDataType"), wanted)
        if stated != wanted:
            node.unsupported(f"it casts to {stated}, its output is {wanted}")
    if is_float(node.dtype(0)) and wanted == "bool":
        return op.not_equal(node.expr(0), _number(node, 0))
    return op.cast(node.expr(0), wanted)


def _select(node: Node) -> Expr:
    """SELECT takes one truth value for each first index, too."""
    condition, x, y = node.exprs()
    if node.operation.code == "SELECT" and node.rank(0) == 1 and node.rank(1) > 1:
        condition = op.expand_dims(condition, axis=1, num_newaxis=node.rank(1) - 1)
    return op.where(condition, x, y)


# fmt: off
ROWS = (
    Row("ADD",                _fused(op.add)),
    Row("SUB",                _fused(op.subtract)),
    Row("MUL",                _fused(op.multiply)),
    Row("DIV",                _div),
    Row("ADD_N",              _add_n),
    Row("FLOOR_DIV",          _binary(op.floor_divide)),
    Row("FLOOR_MOD",          _binary(op.floor_mod)),
    Row("MAXIMUM",            _binary(op.maximum)),
    Row("MINIMUM",            _binary(op.minimum)),
    Row("POW",                _binary(op.power)),
    Row("SQUARED_DIFFERENCE", _squared_difference),
    Row("EQUAL",              _binary(op.equal)),
    Row("NOT_EQUAL",          _binary(op.not_equal)),
    Row("LESS",               _binary(op.less)),
    Row("LESS_EQUAL",         _binary(op.less_equal)),
    Row("GREATER",            _binary(op.greater)),
    Row("GREATER_EQUAL",      _binary(op.greater_equal)),
    Row("LOGICAL_AND",        _binary(op.logical_and)),
    Row("LOGICAL_OR",         _binary(op.logical_or)),
    Row("LOGICAL_NOT",        _unary(op.logical_not)),
    Row("BITWISE_XOR",        _binary(op.bitwise_xor)),
    Row("ABS",                _unary(op.abs)),
    Row("NEG",                _unary(op.negative)),
    Row("SIGN",               _unary(op.sign)),
    Row("CEIL",               _unary(op.ceil)),
    Row("FLOOR",              _unary(op.floor)),
    Row("ROUND",              _round),
    Row("SQRT",               _unary(op.sqrt)),
    Row("RSQRT",              _unary(op.rsqrt)),
    Row("EXP",                _unary(op.exp)),
    Row("LOG",                _unary(op.log)),
    Row("SIN",                _unary(op.sin)),
    Row("COS",                _unary(op.cos)),
    Row("TANH",               _unary(op.tanh)),
    Row("LOGISTIC",           _unary(op.sigmoid)),
    Row("SQUARE",             _square),
    Row("RELU",               _unary(op.nn.relu)),
    Row("RELU6",              _unary(lambda x: op.clip(x, 0.0, 6.0))),
    Row("RELU_N1_TO_1",       _unary(lambda x: op.clip(x, -1.0, 1.0))),
    Row("RELU_0_TO_1",        _unary(lambda x: op.clip(x, 0.0, 1.0))),
    Row("ELU",                _elu),
    Row("LEAKY_RELU",         _leaky_relu),
    Row("PRELU",              _prelu),
    Row("HARD_SWISH",         _hard_swish),
    Row("GELU",               _gelu),
    Row("CAST",               _cast),
    Row("SELECT",             _select),
    Row("SELECT_V2",          _select),
)
# fmt: on
