"""Rewriting and partitioning by dataflow patterns."""

from __future__ import annotations

import pytest

from ekiden.ir.structural import structural_equal
from ekiden.relay import Call, Constant, Expr, Function, const, op, var
from ekiden.relay.analysis import free_vars
from ekiden.relay.dataflow_pattern import (
    DFPattern,
    DFPatternCallback,
    FunctionPattern,
    is_constant,
    is_op,
    partition,
    rewrite,
    wildcard,
)
from ekiden.relay.dataflow_pattern.matcher import NodeMap
from ekiden.runtime.errors import PassError

pytestmark = pytest.mark.quick

X, Y, Z = (var(name, shape=(2, 3)) for name in "xyz")


class DropDoubleNegation(DFPatternCallback):
    """negative(negative(x)) -> x"""

    def __init__(self) -> None:
        super().__init__()
        self.x = wildcard()
        self.pattern = is_op("negative")(is_op("negative")(self.x))

    def callback(self, pre: Expr, post: Expr, node_map: NodeMap) -> Expr:
        return node_map[self.x][0]


class Reassociate(DFPatternCallback):
    """(x + c1) + c2 -> x + (c1 + c2)"""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.c1, self.c2 = wildcard(), is_constant(), is_constant()
        self.pattern = (self.x + self.c1) + self.c2

    def callback(self, pre: Expr, post: Expr, node_map: NodeMap) -> Expr:
        x, c1, c2 = (node_map[p][0] for p in (self.x, self.c1, self.c2))
        assert isinstance(c1, Constant) and isinstance(c2, Constant)
        return op.add(x, const(c1.data + c2.data))


def negated(expr: Expr, times: int) -> Expr:
    for _ in range(times):
        expr = op.negative(expr)
    return expr


def test_rewrite_until_nothing_changes() -> None:
    assert rewrite(DropDoubleNegation(), negated(X, 10)) is X
    assert structural_equal(rewrite(DropDoubleNegation(), negated(X, 7)), op.negative(X), True)


def test_rewrite_once_makes_one_round() -> None:
    callback = DropDoubleNegation()
    callback.rewrite_once = True
    assert structural_equal(rewrite(callback, op.exp(negated(X, 2))), op.exp(X), True)


def test_chain_of_constants_folds() -> None:
    expr: Expr = X
    for i in range(20):
        expr = op.add(expr, const(float(i)))
    result = rewrite(Reassociate(), expr)
    assert isinstance(result, Call) and result.args[0] is X
    assert isinstance(result.args[1], Constant) and result.args[1].data == sum(range(20))


def test_rewriting_enters_functions_and_keeps_sharing() -> None:
    shared = negated(X, 2)
    function = Function((X,), op.add(op.exp(shared), shared), None)
    result = rewrite(DropDoubleNegation(), function)
    assert structural_equal(result, Function((X,), op.add(op.exp(X), X), None))


def test_several_callbacks_work_together() -> None:
    expr = op.add(negated(op.add(X, const(1.0)), 2), const(2.0))
    result = rewrite([DropDoubleNegation(), Reassociate()], expr)
    assert structural_equal(result, op.add(X, const(3.0)), True)


def test_unmatched_expressions_are_unchanged() -> None:
    expr = op.exp(X)
    assert rewrite(DropDoubleNegation(), expr) is expr


def test_types_of_matches_are_known_where_required() -> None:
    class ToShape(DFPatternCallback):
        def __init__(self) -> None:
            super().__init__(require_type=True)
            self.pattern = is_op("zeros_like")(wildcard())

        def callback(self, pre: Expr, post: Expr, node_map: NodeMap) -> Expr:
            kind = pre.checked_type
            return op.zeros(kind.shape, kind.dtype)  # type: ignore[attr-defined]

    result = ToShape().rewrite(op.zeros_like(op.exp(X)))
    assert structural_equal(result, op.zeros((2, 3), "float32"))


def test_non_terminating_callback_is_an_error() -> None:
    class Swap(DFPatternCallback):
        def __init__(self) -> None:
            super().__init__()
            self.x, self.y = wildcard(), wildcard()
            self.pattern = self.x - self.y

        def callback(self, pre: Expr, post: Expr, node_map: NodeMap) -> Expr:
            return op.subtract(node_map[self.y][0], node_map[self.x][0])

    with pytest.raises(PassError, match="Swap still changes the program after 100 rounds"):
        rewrite(Swap(), op.subtract(X, Y))


def test_idempotent_callback_terminates() -> None:
    class Again(DFPatternCallback):
        def __init__(self) -> None:
            super().__init__()
            self.x = wildcard()
            self.pattern = is_op("exp")(self.x)

        def callback(self, pre: Expr, post: Expr, node_map: NodeMap) -> Expr:
            return op.exp(node_map[self.x][0])

    expr = op.exp(op.exp(X))
    assert rewrite(Again(), expr) is expr


def test_callback_that_gives_no_expression_is_an_error() -> None:
    class Forget(DropDoubleNegation):
        def callback(self, pre: Expr, post: Expr, node_map: NodeMap) -> Expr:
            return None  # type: ignore[return-value]

    with pytest.raises(PassError, match="Forget.callback must give an expression, got NoneType"):
        rewrite(Forget(), negated(X, 2))


def _parts(expr: Expr) -> tuple[Function, tuple[Expr, ...]]:
    assert isinstance(expr, Call) and isinstance(expr.op, Function)
    return expr.op, expr.args


MULTIPLY_ADD = is_op("multiply")(wildcard(), wildcard()) + wildcard()


def test_partition_makes_a_function_of_a_match() -> None:
    function, args = _parts(partition(MULTIPLY_ADD, op.add(op.multiply(X, Y), Z)))
    assert args == (X, Y, Z)
    assert function.attr("PartitionedFromPattern") == "multiply_add_"
    a, b, c = (var(n, shape=(2, 3)) for n in "abc")
    same = Function((a, b, c), op.add(op.multiply(a, b), c), None)
    assert structural_equal(function.with_fields(attrs=None), same)


def test_partition_adds_attributes_and_asks_the_check() -> None:
    expr = op.add(op.multiply(X, Y), Z)
    function, _ = _parts(partition(MULTIPLY_ADD, expr, {"Composite": "fma"}, lambda e: True))
    assert function.attr("Composite") == "fma"
    assert partition(MULTIPLY_ADD, expr, check=lambda e: False) is expr


def test_matches_do_not_overlap() -> None:
    pattern: DFPattern = is_op("exp")(is_op("exp")(wildcard()))
    expr: Expr = X
    for _ in range(4):
        expr = op.exp(expr)
    _, (inner,) = _parts(partition(pattern, expr))
    _, args = _parts(inner)
    assert args == (X,)


def test_value_used_outside_stays_outside() -> None:
    product = op.multiply(X, Y)
    expr = op.subtract(op.add(product, Z), product)
    assert partition(MULTIPLY_ADD, expr) is expr


def test_constants_that_a_pattern_names_move_inside() -> None:
    scale = const(2.0)
    inside = is_op("multiply")(wildcard(), is_constant())
    function, args = _parts(partition(inside, op.multiply(X, scale)))
    assert args == (X,) and len(function.params) == 1
    _, args = _parts(partition(is_op("multiply")(wildcard(), wildcard()), op.multiply(X, scale)))
    assert args == (X, scale)


@pytest.mark.parametrize("argument", [None, [wildcard(), wildcard()]])
def test_partition_keeps_parameter_uses_inside_function(
    argument: list[DFPattern] | None,
) -> None:
    """A wildcard for the body stands for all of it; what the body takes from outside is given."""
    a, b = var("a"), var("b")
    outside = op.exp(Z)
    inner = Function([a, b], op.add(op.multiply(a, b), outside))
    pattern = is_op("nn.relu")(FunctionPattern(argument, wildcard())(None))
    function, args = _parts(partition(pattern, op.nn.relu(Call(inner, [X, Y]))))
    assert args == (X, Y, outside) or args == (outside, X, Y)
    assert set(free_vars(function)) == set()
    assert function.attrs["PartitionedFromPattern"] == "multiply_add_FunctionCall_nn.relu_"


@pytest.mark.slow
def test_partition_of_a_long_program() -> None:
    expr: Expr = X
    for _ in range(10_000):
        expr = op.add(op.multiply(expr, Y), Z)
    result = partition(MULTIPLY_ADD, expr)
    count = 0
    while result is not X:
        _, (result, *_) = _parts(result)
        count += 1
    assert count == 10_000
