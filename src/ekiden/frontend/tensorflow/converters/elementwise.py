"""Operators that compute each element on its own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common import arithmetic as rules
from ekiden.frontend.common.formulas import bucketized, rounded_to_even
from ekiden.frontend.common.functions import atan2, erfc, expm1, log1p, shifted
from ekiden.frontend.tensorflow.node import Converter, Node, Row, plain
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def _unary(function: Callable[[Expr], Expr]) -> Converter:
    return lambda node: function(node.expr(0))


def _binary(function: Callable[[Expr, Expr], Expr]) -> Converter:
    return lambda node: function(node.expr(0), node.expr(1))


def _number(node: Node, value: float) -> Expr:
    return const(value, node.dtype(0))


def _div(node: Node) -> Expr:
    """Of integers towards zero."""
    divide = op.divide if is_float(node.dtype(0)) else op.trunc_divide
    return divide(node.expr(0), node.expr(1))


def _div_no_nan(node: Node) -> Expr:
    """0 where the divisor is 0."""
    zero = _number(node, 0)
    is_zero = op.equal(node.expr(1), zero)
    divisor = op.where(is_zero, _number(node, 1), node.expr(1))
    return op.where(is_zero, zero, op.divide(node.expr(0), divisor))


def _multiply_no_nan(node: Node) -> Expr:
    zero = _number(node, 0)
    product = op.multiply(node.expr(0), node.expr(1))
    return op.where(op.equal(node.expr(1), zero), zero, product)


def _xlogy(node: Node) -> Expr:
    zero = _number(node, 0)
    product = op.multiply(node.expr(0), op.log(node.expr(1)))
    return op.where(op.equal(node.expr(0), zero), zero, product)


def _add_n(node: Node) -> Expr:
    total = node.expr(0)
    for each in node.exprs()[1:]:
        total = op.add(total, each)
    return total


def _shift(function: Callable[[Expr, Expr], Expr]) -> Converter:
    return lambda node: shifted(function, node.expr(0), node.expr(1), node.dtype(0))


def _bias_add(node: Node) -> Expr:
    """The bias along the axis of the channels."""
    axis = 1 if node.text("data_format", "NHWC").startswith("NC") else node.rank(0) - 1
    return op.nn.bias_add(node.expr(0), node.expr(1), axis=axis)


def _elu(node: Node) -> Expr:
    x = node.expr(0)
    below = expm1(op.minimum(x, _number(node, 0)), node.dtype(0))
    return op.where(op.less(x, _number(node, 0)), below, x)


def _selu(node: Node) -> Expr:
    x, scale, alpha = node.expr(0), 1.0507009873554805, 1.6732632423543772
    below = expm1(op.minimum(x, _number(node, 0)), node.dtype(0))
    made = op.where(op.less(x, _number(node, 0)), op.multiply(below, _number(node, alpha)), x)
    return op.multiply(made, _number(node, scale))


def _softplus(node: Node) -> Expr:
    """max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    x = node.expr(0)
    rest = log1p(op.exp(op.negative(op.abs(x))), node.dtype(0))
    return op.add(op.maximum(x, _number(node, 0)), rest)


def _softsign(node: Node) -> Expr:
    x = node.expr(0)
    return op.divide(x, op.add(op.abs(x), _number(node, 1)))


def _erfc(node: Node) -> Expr:
    return erfc(node.expr(0), node.dtype(0))


def _floor_div(node: Node) -> Expr:
    """Of floats the quotient as it is rounded, rounded down: 1 / 0.1 is 10."""
    x, y = node.expr(0), node.expr(1)
    return op.floor(op.divide(x, y)) if is_float(node.dtype(0)) else op.floor_divide(x, y)


def _square(node: Node) -> Expr:
    return op.multiply(node.expr(0), node.expr(0))


def _squared_difference(node: Node) -> Expr:
    difference = op.subtract(node.expr(0), node.expr(1))
    return op.multiply(difference, difference)


def _reciprocal(node: Node) -> Expr:
    return op.divide(_number(node, 1), node.expr(0))


def _leaky_relu(node: Node) -> Expr:
    return op.nn.leaky_relu(node.expr(0), node.real("alpha", 0.2))


def _clip(node: Node) -> Expr:
    return op.minimum(op.maximum(node.expr(0), node.expr(1)), node.expr(2))


def _round(node: Node) -> Expr:
    is_whole = not is_float(node.dtype(0))
    return node.expr(0) if is_whole else rounded_to_even(node.expr(0), node.dtype(0))


def _cast(node: Node) -> Expr:
    wanted = node.dtype_of("DstT")
    if is_float(node.dtype(0)) and wanted == "bool":
        return op.not_equal(node.expr(0), _number(node, 0))
    return op.cast(node.expr(0), wanted)


def _select(node: Node) -> Expr:
    """Select takes one truth value for each first index, too."""
    condition, x, y = node.exprs()
    if node.op == "Select" and node.rank(0) == 1 and node.rank(1) > 1:
        condition = op.expand_dims(condition, axis=1, num_newaxis=node.rank(1) - 1)
    return op.where(condition, x, y)


def _many(node: Node) -> list[Expr]:
    return node.exprs()


_floor_quotient = rules.elementwise(np.floor_divide, operator.floordiv)


def _floor_div_rule(node: Node, inputs: Sequence[Array]) -> Array | None:
    if is_float(node.dtype(0)) or (inputs[1].dtype != np.object_ and not inputs[1].all()):
        return None
    return _floor_quotient(inputs)


def _cast_rule(node: Node, inputs: Sequence[Array]) -> Array | None:
    return rules.cast(node.dtype_of("DstT"))(inputs)


def _predicate(name: str, function: Callable[[Expr, Expr], Expr], rule: rules.Rule | None) -> Row:
    return Row(name, _binary(function), None if rule is None else plain(rule), is_predicate=True)


def _bucketize(node: Node) -> Expr:
    return bucketized(node.expr(0), node.dtype(0), node.reals("boundaries"))


# fmt: off
ROWS = (
    *(Row(n, _binary(op.add), plain(rules.add)) for n in ("Add", "AddV2")),
    Row("Sub",               _binary(op.subtract), plain(rules.subtract)),
    Row("Mul",               _binary(op.multiply), plain(rules.multiply)),
    *(Row(n, _div, plain(rules.divide)) for n in ("Div", "RealDiv", "TruncateDiv")),
    Row("DivNoNan",          _div_no_nan),
    Row("MulNoNan",          _multiply_no_nan),
    Row("Xlogy",             _xlogy),
    Row("FloorDiv",          _floor_div, _floor_div_rule),
    *(Row(n, _binary(op.floor_mod), plain(rules.floor_mod)) for n in ("FloorMod",)),
    *(Row(n, _binary(op.trunc_mod)) for n in ("Mod", "TruncateMod")),
    Row("Maximum",           _binary(op.maximum), plain(rules.maximum)),
    Row("Minimum",           _binary(op.minimum), plain(rules.minimum)),
    Row("Pow",               _binary(op.power)),
    Row("Atan2",             lambda node: atan2(node.expr(0), node.expr(1), node.dtype(0))),
    Row("SquaredDifference", _squared_difference),
    Row("AddN",              _add_n),
    *(Row(n, _bias_add) for n in ("BiasAdd", "BiasAddV1")),
    _predicate("Equal",        op.equal,         rules.equal),
    _predicate("NotEqual",     op.not_equal,     None),
    _predicate("Less",         op.less,          rules.less),
    _predicate("LessEqual",    op.less_equal,    rules.less_equal),
    _predicate("Greater",      op.greater,       rules.greater),
    _predicate("GreaterEqual", op.greater_equal, rules.greater_equal),
    _predicate("LogicalAnd",   op.logical_and,   rules.logical_and),
    _predicate("LogicalOr",    op.logical_or,    None),
    Row("LogicalNot",        _unary(op.logical_not), plain(rules.logical_not), is_predicate=True),
    Row("BitwiseAnd",        _binary(op.bitwise_and)),
    Row("BitwiseOr",         _binary(op.bitwise_or)),
    Row("BitwiseXor",        _binary(op.bitwise_xor)),
    Row("Invert",            _unary(op.bitwise_not)),
    Row("LeftShift",         _shift(op.left_shift)),
    Row("RightShift",        _shift(op.right_shift)),
    Row("Abs",               _unary(op.abs)),
    Row("Neg",               _unary(op.negative), plain(rules.negative)),
    Row("Sign",              _unary(op.sign)),
    Row("Ceil",              _unary(op.ceil), plain(rules.ceil)),
    Row("Floor",             _unary(op.floor), plain(rules.floor)),
    *(Row(n, _round) for n in ("Round", "Rint")),
    Row("Sqrt",              _unary(op.sqrt)),
    Row("Rsqrt",             _unary(op.rsqrt)),
    *(Row(n, _reciprocal) for n in ("Reciprocal", "Inv")),
    Row("Exp",               _unary(op.exp)),
    Row("Expm1",             lambda node: expm1(node.expr(0), node.dtype(0))),
    Row("Log",               _unary(op.log)),
    Row("Log1p",             lambda node: log1p(node.expr(0), node.dtype(0))),
    Row("Erf",               _unary(op.erf)),
    Row("Erfc",              _erfc),
    Row("Sin",               _unary(op.sin)),
    Row("Cos",               _unary(op.cos)),
    Row("Tan",               _unary(op.tan)),
    Row("Asin",              _unary(op.asin)),
    Row("Acos",              _unary(op.acos)),
    Row("Atan",              _unary(op.atan)),
    Row("Sinh",              _unary(op.sinh)),
    Row("Cosh",              _unary(op.cosh)),
    Row("Tanh",              _unary(op.tanh)),
    Row("Asinh",             _unary(op.asinh)),
    Row("Acosh",             _unary(op.acosh)),
    Row("Atanh",             _unary(op.atanh)),
    Row("Sigmoid",           _unary(op.sigmoid)),
    Row("Square",            _square),
    Row("IsNan",             _unary(op.isnan)),
    Row("IsInf",             _unary(op.isinf)),
    Row("IsFinite",          _unary(op.isfinite)),
    Row("Relu",              _unary(op.nn.relu)),
    Row("Relu6",             _unary(lambda x: op.clip(x, 0.0, 6.0))),
    Row("Elu",               _elu),
    Row("Selu",              _selu),
    Row("LeakyRelu",         _leaky_relu),
    Row("Softplus",          _softplus),
    Row("Softsign",          _softsign),
    Row("ClipByValue",       _clip),
    Row("Bucketize",         _bucketize),
    Row("Cast",              _cast, _cast_rule),
    *(Row(n, _select, plain(rules.where)) for n in ("Select", "SelectV2")),
    Row("ZerosLike",         _unary(op.zeros_like)),
    Row("OnesLike",          _unary(op.ones_like)),
    Row("IdentityN",         _many),
)
# fmt: on
