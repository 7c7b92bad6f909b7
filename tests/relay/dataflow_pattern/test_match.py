"""Dataflow patterns: what they match."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden.ir.op import OpPattern
from ekiden.ir.prim import SizeVar
from ekiden.relay import Expr, Function, If, Let, Tuple, TupleGetItem, const, op, tensor_type, var
from ekiden.relay.dataflow_pattern import (
    DFPattern,
    FunctionPattern,
    dominates,
    find_match,
    has_attr,
    has_dtype,
    has_shape,
    has_type,
    is_constant,
    is_expr,
    is_if,
    is_let,
    is_op,
    is_tuple,
    is_tuple_get_item,
    is_var,
    wildcard,
)

pytestmark = pytest.mark.quick

X, Y, W = var("x", shape=(2, 3)), var("y", shape=(2, 3)), var("w", shape=(4, 3))
ANY = wildcard()
ELEMWISE = OpPattern.ELEMWISE


CASES: list[tuple[str, DFPattern, Expr, bool]] = [
    ("wildcard", wildcard(), X, True),
    ("any variable", is_var(), X, True),
    ("variable by name", is_var("x"), X, True),
    ("variable of another name", is_var("x"), Y, False),
    ("a call is no variable", is_var(), op.exp(X), False),
    ("constant", is_constant(), const(1.0), True),
    ("a variable is no constant", is_constant(), X, False),
    ("expression", is_expr(op.exp(X)), op.exp(X), True),
    ("expression over something else", is_expr(op.exp(X)), op.exp(Y), False),
    ("call", is_op("exp")(ANY), op.exp(X), True),
    ("call of another operator", is_op("exp")(ANY), op.tanh(X), False),
    ("call of any operator", wildcard()(wildcard()), op.tanh(X), True),
    ("call of fewer arguments", is_op("add")(wildcard()), op.add(X, Y), False),
    ("sugar", wildcard() + wildcard(), op.add(X, Y), True),
    ("subtraction", wildcard() - is_var("y"), op.subtract(X, Y), True),
    ("division", is_var("x") / is_var("y"), op.divide(X, Y), True),
    ("addition commutes", is_constant() + is_var(), op.add(X, const(1.0)), True),
    ("multiplication commutes", is_constant() * is_var(), op.multiply(X, const(1.0)), True),
    ("subtraction does not", is_constant() - is_var(), op.subtract(X, const(1.0)), False),
    ("one wildcard twice, the same", ANY + ANY, op.add(X, X), True),
    ("one wildcard twice, another", ANY + ANY, op.add(X, Y), False),
    ("left", is_var("x") | is_var("y"), X, True),
    ("right", is_var("x") | is_var("y"), Y, True),
    ("neither", is_var("x") | is_var("y"), W, False),
    ("optional, there", is_op("exp")(ANY).optional(lambda p: is_op("tanh")(p)),
     op.tanh(op.exp(X)), True),
    ("optional, not there", is_op("exp")(ANY).optional(lambda p: is_op("tanh")(p)),
     op.exp(X), True),
    ("attribute of a call", is_op("sum")(ANY).has_attr({"axis": [1]}), op.sum(X, axis=(1,)), True),
    ("another value", is_op("sum")(ANY).has_attr({"axis": [0]}), op.sum(X, axis=(1,)), False),
    ("no such attribute", is_op("sum")(ANY).has_attr({"nothing": 0}), op.sum(X, axis=1), False),
    ("pattern of an operator", has_attr({"TOpPattern": ELEMWISE})(ANY), op.exp(X), True),
    ("another pattern", has_attr({"TOpPattern": ELEMWISE})(ANY), op.sum(X), False),
    ("type", has_type(tensor_type((2, 3))), X, True),
    ("another type", has_type(tensor_type((2, 3))), W, False),
    ("type of a call", is_op("exp")(ANY).has_type(tensor_type((2, 3))), op.exp(X), True),
    ("dtype", has_dtype("float32"), op.exp(X), True),
    ("another dtype", has_dtype("int8"), op.exp(X), False),
    ("shape", has_shape((2, 3)), X, True),
    ("another shape", has_shape((2, 4)), X, False),
    ("another rank", has_shape((2,)), X, False),
    ("symbolic shape", has_shape((SizeVar("n"),)), X, False),
    ("tuple", is_tuple((is_var("x"), wildcard())), Tuple((X, Y)), True),
    ("tuple of another length", is_tuple((wildcard(),)), Tuple((X, Y)), False),
    ("any tuple", is_tuple(None), Tuple((X, Y)), True),
    ("projection", is_tuple_get_item(is_tuple(None), 1), TupleGetItem(Tuple((X, Y)), 1), True),
    ("another field", is_tuple_get_item(wildcard(), 0), TupleGetItem(Tuple((X, Y)), 1), False),
    ("any field", is_tuple_get_item(wildcard()), TupleGetItem(Tuple((X, Y)), 1), True),
    ("if", is_if(is_var("c"), is_var("x"), wildcard()), If(var("c", shape=(), dtype="bool"), X, Y),
     True),
    ("let", is_let(is_var("y"), is_op("exp")(ANY), is_var("y")), Let(Y, op.exp(X), Y), True),
    ("function", FunctionPattern((is_var("x"),), is_op("exp")(is_var("x"))),
     Function((X,), op.exp(X), None), True),
    ("function of any parameters", FunctionPattern(None, wildcard()),
     Function((X,), op.exp(X), None), True),
    ("function attribute", FunctionPattern(None, wildcard()).has_attr({"Composite": "a"}),
     Function((X,), X, None, attrs={"Composite": "a"}), True),
    ("another function attribute", FunctionPattern(None, wildcard()).has_attr({"Composite": "a"}),
     Function((X,), X, None, attrs={"Composite": "b"}), False),
]  # fmt: skip


@pytest.mark.parametrize(
    "pattern, expr, expected", [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_pattern_matches_expression(pattern: DFPattern, expr: Expr, expected: bool) -> None:
    assert pattern.match(expr) is expected


def test_match_maps_subpatterns_to_expressions() -> None:
    x, c = wildcard(), is_constant()
    total = x + c
    one = const(np.ones(3, np.float32))
    expr = op.add(one, op.exp(X))
    result = find_match(total, expr)
    assert result is not None
    assert result[total] == [expr] and result[c] == [one] and result[x][0] is expr.args[1]


def test_failed_pattern_alternative_binds_nothing() -> None:
    x = wildcard()
    left, right = is_op("exp")(x) + is_op("exp")(x), is_op("exp")(x) + is_op("tanh")(wildcard())
    result = find_match(left | right, op.add(op.exp(X), op.tanh(Y)))
    assert result is not None and left not in result and result[x] == [X]


def _diamond(through: bool = True, extra: bool = False) -> Expr:
    """conv -> relu, relu and tanh -> add; or one of the paths begins elsewhere."""
    conv = op.nn.dense(X, W)
    left = op.nn.relu(op.nn.relu(conv))
    right = op.tanh(conv if through else op.nn.relu(var("z", shape=(2, 4))))
    out = op.add(left, right)
    return Tuple((out, conv)) if extra else out


DIAMOND = dominates(
    is_op("nn.dense")(wildcard(), wildcard()),
    has_attr({"TOpPattern": ELEMWISE})(wildcard()),
    wildcard() + wildcard(),
)


def test_dominator_pattern_matches() -> None:
    assert DIAMOND.match(_diamond())
    result = find_match(DIAMOND, _diamond())
    assert result is not None and len(result[DIAMOND.path]) == 3


def test_every_path_must_begin_at_the_parent() -> None:
    assert not DIAMOND.match(_diamond(through=False))


def test_dominator_refuses_uses_that_bypass_the_child() -> None:
    assert not is_tuple((DIAMOND, wildcard())).match(_diamond(extra=True))


@pytest.mark.slow
def test_dominator_path_may_be_long() -> None:
    chain = op.nn.dense(X, W)
    for _ in range(20_000):
        chain = op.nn.relu(chain)
    pattern = is_op("nn.relu")(wildcard()).dominates(is_op("nn.dense")(wildcard(), wildcard()))
    assert pattern.match(chain)


def test_unknown_operator_is_an_error() -> None:
    with pytest.raises(KeyError, match="no operator 'nn.conv4d'"):
        is_op("nn.conv4d")


def test_wildcard_that_leads_back_matches_chains() -> None:
    again = wildcard()
    chain = is_op("exp")(again)
    again.redirect_to(chain | is_op("add")(wildcard(), wildcard()))
    x = var("x", shape=(2,))
    expr: Expr = op.add(x, x)
    for _ in range(5):
        expr = op.exp(expr)
    assert chain.match(expr) and not chain.match(op.exp(op.exp(x)))
