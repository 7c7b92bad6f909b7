"""DynamicToStatic: shapes that can be computed at compile time become attributes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay.expr import Expr
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.testing import count_ops


def static(expr: Expr) -> relay.Function:
    result = relay.transform.DynamicToStatic()(IRModule.from_expr(expr))["main"]
    assert isinstance(result, relay.Function)
    return result


def var(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Expr:
    return relay.var(name, shape=shape, dtype=dtype)


X, Y = var("x", (2, 3, 4)), var("y", (8, 3))
CASES: dict[str, tuple[Callable[[], Expr], tuple[int, ...]]] = {
    "reshape": (lambda: relay.reshape(X, relay.shape_of(Y)), (8, 3)),
    "expand_dims": (lambda: relay.expand_dims(X, relay.ndarray_size(var("z", (1,)))), (2, 1, 3, 4)),
    "tile": (lambda: relay.tile(X, relay.shape_of(var("z", (2, 1, 5)))), (4, 3, 20)),
    "broadcast_to": (
        lambda: relay.broadcast_to(X, relay.shape_of(var("z", (5, 2, 3, 4)))),
        (5, 2, 3, 4),
    ),
    "full": (lambda: relay.full(relay.const(2.0), relay.shape_of(Y)), (8, 3)),
    "zeros": (lambda: relay.zeros(relay.shape_of(Y), "float32"), (8, 3)),
    "squeeze": (lambda: relay.squeeze(var("z", (1, 3, 1)), relay.shape_of(var("w", (2,)))), (1, 3)),
    "topk": (lambda: relay.topk(X, relay.ndarray_size(var("z", (2,))), 2, "values"), (2, 3, 2)),
    "strided_slice": (
        lambda: relay.strided_slice(
            X, relay.const([0, 1, 0]), relay.shape_of(X), relay.const([1, 1, 2])
        ),
        (2, 2, 2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_shape_of_types_is_known(name: str) -> None:
    make, shape = CASES[name]
    function = static(make())
    assert not any(op.startswith("dyn.") for op in count_ops(function))
    kind = function.body.checked_type
    assert isinstance(kind, relay.TensorType) and kind.concrete_shape == shape


def test_one_shape_makes_others_known() -> None:
    once = relay.reshape(X, relay.shape_of(Y))
    again = relay.reshape(relay.exp(once), relay.shape_of(X))
    function = static(relay.reshape(again, relay.shape_of(once)))
    assert count_ops(function) == {"reshape": 3, "exp": 1}
    data = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    result = Interpreter().evaluate(function, data, np.zeros((8, 3), "float32"))
    np.testing.assert_allclose(result, np.exp(data).reshape(8, 3), rtol=1e-6)


def test_shape_that_is_data_stays() -> None:
    shape = var("s", (2,), "int64")
    assert count_ops(static(relay.reshape(X, shape))) == {"dyn.reshape": 1}
    unknown = relay.var("u", shape=(relay.Any(), 3))
    assert count_ops(static(relay.reshape(X, relay.shape_of(unknown))))["dyn.reshape"] == 1


def test_shapes_inside_branches_become_static() -> None:
    condition = var("c", (), "bool")
    branches = relay.reshape(X, relay.shape_of(Y)), relay.zeros(relay.shape_of(Y), "float32")
    function = static(relay.If(condition, *branches))
    assert function.body.checked_type == relay.TensorType((8, 3))


@pytest.mark.parametrize("use", [relay.exp, lambda x: relay.Tuple([x, x])])
def test_operands_without_a_type_leave_their_users_to_inference(
    use: Callable[[Expr], Expr],
) -> None:
    """A call of a closure, whose argument becomes a constant, has none until the end."""
    condition, a = var("c", (), "bool"), relay.var("a")
    closures = relay.Function([a], relay.tanh(a)), relay.Function([a], relay.negative(a))
    argument = relay.exp(relay.const(np.ones((2, 3, 4), "float32")))
    called = relay.Call(relay.If(condition, *closures), [argument])
    function = static(use(called))
    kind = function.body.checked_type
    shapes = kind.fields if isinstance(kind, relay.TupleType) else [kind]
    assert all(shape == relay.TensorType((2, 3, 4)) for shape in shapes)
