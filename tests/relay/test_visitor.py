"""Visitors and mutators of expressions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from relay_programs import PROGRAMS

from ekiden.ir.structural import structural_equal
from ekiden.relay import (
    Call,
    Expr,
    Function,
    Let,
    Op,
    Tuple,
    Var,
    all_vars,
    bind,
    bound_vars,
    const,
    free_type_vars,
    free_vars,
    op,
    parse,
    parse_expr,
    post_order,
    var,
)
from ekiden.relay.visitor import ExprMutator, children, rebuild

pytestmark = pytest.mark.quick


def test_post_order_gives_children_first_and_shared_nodes_once() -> None:
    x = var("x", shape=(2,))
    shared = op.exp(x)
    top = op.add(shared, op.negative(shared))
    order = post_order(top)
    assert order.count(shared) == 1
    for expr in order:
        assert all(order.index(c) < order.index(expr) for c in children(expr))
    assert order[-1] is top


def test_post_order_enters_functions_only_when_asked() -> None:
    x, p = var("x", shape=(2,)), var("p", shape=(2,))
    inner = Function((p,), op.exp(p), None)
    call = Call(inner, (x,))
    assert p not in post_order(call)
    assert p in post_order(call, into_functions=True)
    assert p in post_order(inner)


def test_mutator_that_changes_nothing_gives_the_same_object() -> None:
    for text in PROGRAMS.values():
        function = next(iter(parse(text).functions.values()))
        assert ExprMutator().visit(function) is function


def test_mutator_keeps_sharing_spans_and_types_of_what_does_not_change() -> None:
    class ExpToLog(ExprMutator):
        def rewrite(self, old: Expr, new: Expr) -> Expr:
            match new:
                case Call(op=Op(name="exp"), args=args):
                    return op.log(*args)
            return new

    expr = parse_expr(
        "fn (%x: float32, %y: float32) { %0 = exp(%x); %1 = negative(%y); (add(%0, %0), %1) }"
    )
    assert isinstance(expr, Function) and isinstance(expr.body, Tuple)
    result = ExpToLog().visit(expr)
    assert structural_equal(
        result,
        parse_expr("fn (%x: float32, %y: float32) { %0 = log(%x); (add(%0, %0), negative(%y)) }"),
    )
    assert isinstance(result, Function) and isinstance(result.body, Tuple)
    assert result.body.fields[1] is expr.body.fields[1]
    assert result.body.fields[0].span is expr.body.fields[0].span


def test_mutator_calls_the_method_of_the_node_class() -> None:
    class Swap(ExprMutator):
        def rewrite_call(self, old: Call, new_children: Sequence[Expr]) -> Expr:
            callee, *args = new_children
            return Call(callee, tuple(reversed(args)))

    x, y = var("x"), var("y")
    assert structural_equal(
        Swap().visit(op.subtract(op.subtract(x, y), y)), op.subtract(y, op.subtract(y, x))
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_node_rebuilds_from_its_children(name: str) -> None:
    for function in parse(PROGRAMS[name]).functions.values():
        renamed = {v: Var(f"{v.name_hint}_new", v.type_annotation) for v in bound_vars(function)}

        class Rename(ExprMutator):
            def rewrite(self, old: Expr, new: Expr, names: dict[Var, Var] = renamed) -> Expr:
                return names.get(old, new) if isinstance(old, Var) else new

        assert structural_equal(Rename().visit(function), function)


def test_rebuild_keeps_the_node_when_children_are_identical() -> None:
    call = op.add(var("x"), var("y"))
    assert rebuild(call, children(call)) is call


def test_bind_replaces_variables_and_drops_bound_parameters() -> None:
    function = parse_expr("fn (%x: float32, %y: float32) { add(%x, %y) }")
    assert isinstance(function, Function)
    result = bind(function, {function.params[0]: const(1.0)})
    assert structural_equal(result, parse_expr("fn (%y: float32) { add(1f, %y) }"))


def test_free_and_bound_variables_are_listed() -> None:
    x, y, z = var("x"), var("y"), var("z")
    expr = Let(y, op.add(x, z), Function((z,), op.add(y, z), None))
    assert free_vars(expr) == [x]
    assert free_vars(Let(y, x, op.add(y, z))) == [x, z]
    assert bound_vars(expr) == [y, z]
    assert set(all_vars(expr)) == {x, y, z}


def test_free_type_variables() -> None:
    function = parse_expr("fn [A](%x: A, %f: fn [B](B) -> A) { %x }")
    assert isinstance(function, Function)
    assert free_type_vars(function) == []
    assert free_type_vars(function.params[0]) == [function.type_params[0]]
