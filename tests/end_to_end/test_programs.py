"""Compiled programs, the interpreter and NumPy agree."""

from __future__ import annotations

import numpy as np
import pytest
from relay_networks import check, normal

import ekiden
from ekiden import relay
from ekiden.ir.prim import SizeVar
from ekiden.relay import op

VECTOR = relay.tensor_type((5,))
SCALAR = relay.tensor_type(())
COUNT = relay.tensor_type((), "int32")


def function(params: list[relay.Var], body: relay.Expr) -> relay.Function:
    return relay.Function(tuple(params), body, None)


@pytest.mark.quick
def test_programs_match_numpy() -> None:
    x, y = relay.var("x", VECTOR), relay.var("y", VECTOR)
    exe = ekiden.compile(relay.IRModule.from_expr(function([x, y], op.add(op.tanh(x), y))))
    a, b = normal(5), normal(5, seed=1)
    np.testing.assert_allclose(exe(a, b).numpy(), np.tanh(a) + b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [0, 1, 3, 17, 64, 100])
def test_one_compiled_program_runs_every_size(n: int) -> None:
    exe = _affine()
    x = normal(n, 12, seed=n)
    actual = exe(x).numpy()
    expected = np.maximum(x @ normal(9, 12).T, 0).sum(axis=1)
    assert actual.shape == (n,)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


_COMPILED: dict[str, ekiden.Executable] = {}


def _affine() -> ekiden.Executable:
    if "affine" not in _COMPILED:
        x = relay.var("x", relay.tensor_type((SizeVar("n", "int64"), 12)))
        dense = op.nn.relu(op.nn.dense(x, relay.const(normal(9, 12))))
        module = relay.IRModule.from_expr(function([x], op.sum(dense, axis=1)))
        _COMPILED["affine"] = ekiden.compile(module)
    return _COMPILED["affine"]


@pytest.mark.quick
@pytest.mark.parametrize("test", [True, False])
def test_if_runs_one_branch(test: bool) -> None:
    t, x = relay.var("t", relay.tensor_type((), "bool")), relay.var("x", VECTOR)
    check(function([t, x], relay.If(t, op.tanh(x), op.negative(x))), (np.asarray(test), normal(5)))


@pytest.mark.quick
def test_nested_tuples_round_trip() -> None:
    x = relay.var("x", VECTOR)
    inner = relay.Tuple((op.tanh(x), x))
    body = relay.Tuple((inner, relay.TupleGetItem(inner, 0), relay.const(np.float32(2))))
    check(function([x], body), (normal(5),))


def test_recursive_global_function() -> None:
    """power(x, n) = 1 if n < 1 else x * power(x, n - 1)"""
    power = relay.GlobalVar("power")
    x, n = relay.var("x", VECTOR), relay.var("n", COUNT)
    less = op.subtract(n, relay.const(1))
    again = op.multiply(x, relay.Call(power, (x, less)))
    one = relay.const(np.ones(5, np.float32))
    body = relay.If(op.less(n, relay.const(1)), one, again)
    a, k = relay.var("a", VECTOR), relay.var("k", COUNT)
    module = relay.IRModule(
        {
            power: relay.Function((x, n), body, VECTOR),
            relay.GlobalVar("main"): function([a, k], relay.Call(power, (a, k))),
        }
    )
    x0 = np.linspace(0.5, 1.5, 5, dtype=np.float32)
    exe = ekiden.compile(module)
    for count in (0, 1, 7):
        result = exe(x0, np.int32(count)).numpy()
        np.testing.assert_allclose(result, x0**count, rtol=1e-5)
    deep = exe(np.ones(5, np.float32), np.int32(20_000))
    assert deep.numpy().tolist() == [1.0] * 5


def test_local_function_calls_itself_and_captures() -> None:
    """let f = fn (n) { if n < 1 then x else tanh(f(n - 1)) + x }; f(k)"""
    x, k, n = relay.var("x", VECTOR), relay.var("k", COUNT), relay.var("n", COUNT)
    loop = relay.var("f", relay.FuncType((COUNT,), VECTOR))
    again = relay.Call(loop, (op.subtract(n, relay.const(1)),))
    body = relay.If(op.less(n, relay.const(1)), x, op.add(op.tanh(again), x))
    value = relay.Function((n,), body, VECTOR)
    main = function([x, k], relay.Let(loop, value, relay.Call(loop, (k,))))
    check(main, (normal(5), np.int32(0)), (normal(5), np.int32(6)))


def test_closure_is_returned_and_called() -> None:
    """make(y) gives fn (z) { z * y + x }; a choice picks which one is called."""
    x, t = relay.var("x", VECTOR), relay.var("t", relay.tensor_type((), "bool"))
    y, z = relay.var("y", VECTOR), relay.var("z", VECTOR)
    inner = relay.Function((z,), op.add(op.multiply(z, y), x), VECTOR)
    make = relay.var("make")
    picked = relay.var("picked")
    either = relay.If(t, relay.Call(make, (op.tanh(x),)), relay.Call(make, (op.negative(x),)))
    body = relay.Let(picked, either, relay.Call(picked, (x,)))
    main = function([x, t], relay.Let(make, function([y], inner), body))
    check(main, (normal(5), np.asarray(True)), (normal(5), np.asarray(False)))


def _lists() -> tuple[relay.TypeData, relay.Constructor, relay.Constructor]:
    name = relay.GlobalTypeVar("Numbers")
    kind = relay.TypeCall(name, ())
    nil = relay.Constructor("Nil", (), name, 0)
    cons = relay.Constructor("Cons", (SCALAR, kind), name, 1)
    return relay.TypeData(name, (), (nil, cons)), nil, cons


def test_list_is_built_and_taken_apart() -> None:
    """total(list) over a list that is built by a recursive function."""
    data, nil, cons = _lists()
    kind = relay.TypeCall(data.header, ())
    total, count_down = relay.GlobalVar("total"), relay.GlobalVar("count_down")
    items, head, tail = relay.var("items", kind), relay.var("head"), relay.var("tail")
    taken = relay.PatternConstructor(cons, (relay.PatternVar(head), relay.PatternVar(tail)))
    clauses = (
        relay.Clause(relay.PatternConstructor(nil, ()), relay.const(np.float32(0))),
        relay.Clause(taken, op.add(head, relay.Call(total, (tail,)))),
    )
    n = relay.var("n", SCALAR)
    rest = relay.Call(count_down, (op.subtract(n, relay.const(1.0)),))
    empty = relay.Call(nil, ())
    built = relay.If(op.less(n, relay.const(1.0)), empty, relay.Call(cons, (n, rest)))
    k = relay.var("k", SCALAR)
    module = relay.IRModule(
        {
            total: relay.Function((items,), relay.Match(items, clauses), SCALAR),
            count_down: relay.Function((n,), built, kind),
            relay.GlobalVar("main"): function(
                [k], relay.Call(total, (relay.Call(count_down, (k,)),))
            ),
        },
        {data.header: data},
    )
    check(module, (np.float32(0),), (np.float32(10),))


@pytest.mark.quick
def test_nested_patterns_take_the_first_that_fits() -> None:
    data, nil, cons = _lists()
    x, second = relay.var("x", SCALAR), relay.var("second")
    two = relay.PatternConstructor(
        cons,
        (
            relay.PatternWildcard(),
            relay.PatternConstructor(cons, (relay.PatternVar(second), relay.PatternWildcard())),
        ),
    )
    clauses = (
        relay.Clause(two, op.negative(second)),
        relay.Clause(relay.PatternWildcard(), relay.const(np.float32(-1))),
    )

    def run(items: relay.Expr) -> float:
        main = function([x], relay.Match(items, clauses))
        module = relay.IRModule({relay.GlobalVar("main"): main}, {data.header: data})
        result = ekiden.compile(module)(np.float32(3))
        assert isinstance(result, ekiden.Tensor)
        return float(result.numpy())

    one = relay.Call(cons, (x, relay.Call(nil, ())))
    assert run(one) == -1.0
    assert run(relay.Call(cons, (op.add(x, x), one))) == -3.0


def test_chain_of_twenty_thousand_bindings() -> None:
    x = relay.var("x", VECTOR)
    body: relay.Expr = x
    for _ in range(20_000):
        body = op.nn.relu(body)
    exe = ekiden.compile(relay.IRModule.from_expr(function([x], body)))
    assert exe(normal(5)).numpy().tolist() == np.maximum(normal(5), 0).tolist()


def test_three_hundred_elementwise_operators_in_a_row() -> None:
    """More than one kernel takes, each deeper than Python's stack would let it be inlined."""
    x = relay.var("x", VECTOR)
    body: relay.Expr = x
    for _ in range(150):
        body = op.tanh(op.add(body, x))
    check(function([x], body), (normal(5),))


def sizes(*names: str) -> list[SizeVar]:
    return [SizeVar(n, "int64") for n in names]


def test_symbols_at_same_position_are_distinct() -> None:
    """The shape functions of (n, m) and (m, n) are two."""
    n, m = sizes("n", "m")
    x = relay.var("x", relay.tensor_type((n, m)))
    turned = op.nn.softmax(op.transpose(x, (1, 0)))
    back = op.nn.softmax(op.transpose(turned, (1, 0)))
    check(function([x], relay.Tuple((turned, back))), (normal(3, 5),), (normal(7, 0),))


def test_storages_of_different_symbols_are_not_shared() -> None:
    """Temporaries of n, m and k elements in turn, of very different sizes."""
    params = [relay.var(f"x{i}", relay.tensor_type((s,))) for i, s in enumerate(sizes(*"nmk"))]
    sums: list[relay.Expr] = []
    for x in params:
        first = op.cumsum(x, 0)
        sums.append(op.sum(op.multiply(op.cumsum(first, 0), op.reverse(first, 0))))
    total = op.add(op.add(sums[0], sums[1]), sums[2])
    check(
        function(params, relay.Tuple((total, *sums))),
        (normal(1), normal(1000), normal(3)),
        (normal(500), normal(2), normal(40)),
    )


def test_equal_attributes_of_different_symbols_are_not_one() -> None:
    """reshape(x, (n, m)) and reshape(x, (m, n)) of one x."""
    n, m = sizes("n", "m")
    a, b = relay.var("a", relay.tensor_type((n,))), relay.var("b", relay.tensor_type((m,)))
    x = relay.var("x", relay.tensor_type((n * m,)))
    both = (op.reshape(x, (n, m), True), op.reshape(x, (m, n), True))
    soft = tuple(op.nn.softmax(item) for item in both)
    check(function([a, b, x], relay.Tuple((a, b, *soft))), (normal(2), normal(3), normal(6)))


SYMBOLS = {
    "a captured tensor shows a symbol inside an expression": """
        def @main(%x: Tensor[(n, 2), float32]) {
          let %y = concatenate((%x, %x));
          let %f = fn (%z: float32) { nn.softmax(cumsum(%y, axis=0)) * %z };
          %f(1f)
        }""",
    "a parameter shows a symbol inside an expression": """
        def @g(%y: Tensor[(n * 2 + 1, 2), float32]) -> Tensor[(n * 2 + 1, 2), float32] {
          cumsum(cumsum(%y, axis=0), axis=0)
        }
        def @main(%x: Tensor[(n, 2), float32]) {
          @g(concatenate((%x, %x, zeros(shape=[1, 2], dtype="float32"))))
        }""",
    "a parameter that is a tuple shows symbols": """
        def @g(%p: (Tensor[(n, 2), float32], (int32, Tensor[(m, 2), float32]))) {
          (cumsum(cumsum(%p.0, axis=0), axis=0), cumsum(cumsum(%p.1.1, axis=0), axis=0))
        }
        def @main(%x: Tensor[(n, 2), float32]) { @g((%x, (1, concatenate((%x, %x))))) }""",
    "an expression of two symbols, one of which is known": """
        def @g(%y: Tensor[(n * 2 + m, 2), float32], %z: Tensor[(m, 2), float32]) {
          (cumsum(cumsum(%y, axis=0), axis=0), cumsum(full(2f, shape=[n]), axis=0), %z)
        }
        def @main(%x: Tensor[(n, 2), float32]) {
          let %z = concatenate((%x, %x, %x));
          @g(concatenate((%x, %x, %z)), %z)
        }""",
    "no parameter and nothing captured shows the symbol": """
        def @main(%x: Tensor[(n, 2), float32]) {
          let %f = fn (%z: float32) {
            let %g = fn (%y: float32) { cumsum(cumsum(full(%y, shape=[n, 3]), axis=0), axis=0) };
            %g(%z)
          };
          %f(sum(%x))
        }""",
}


@pytest.mark.parametrize("text", SYMBOLS.values(), ids=SYMBOLS)
def test_functions_bind_their_symbols(text: str) -> None:
    check(relay.parse(text), *((normal(n, 2),) for n in (0, 1, 5)))
