"""LazyGradientInit: zeros and ones are materialised on demand."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay.interpreter import Interpreter
from ekiden.runtime.errors import CompileError

KIND = relay.TensorType((3, 4))


def lazy(function: relay.Function) -> IRModule:
    return relay.transform.LazyGradientInit()(IRModule.from_expr(function))


def same(function: relay.Function, *args: object) -> None:
    module = lazy(function)
    expected_value = Interpreter().evaluate(function, *args)
    actual = Interpreter(module).evaluate("main", *args)
    flat = [actual] if isinstance(actual, np.ndarray) else list(actual)  # type: ignore[call-overload]
    expected = [expected_value] if isinstance(expected_value, np.ndarray) else list(expected_value)  # type: ignore[call-overload]
    for one, other in zip(flat, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


DATA = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")


def test_lazy_zeros_and_ones_in_sums_and_products() -> None:
    x, y = relay.var("x", KIND), relay.var("y", KIND)
    ones = relay.ones_like(x)
    body = (x - y) * ones + relay.zeros_like(y) * relay.exp(x) + relay.ones((3, 4), "float32")
    same(relay.Function([x, y], body), DATA, DATA + 1)


def test_lazy_gradients_keep_types() -> None:
    x = relay.var("x", relay.TupleType((KIND, KIND)))
    function = relay.Function([x], relay.Tuple([x[0] + x[1], relay.zeros_like(x[0])]))
    kind = lazy(function)["main"].checked_type
    assert kind == relay.FuncType([x.type_annotation], relay.TupleType((KIND, KIND)))
    same(function, (DATA, DATA))


def test_other_shapes_branches_and_functions() -> None:
    x, y, c = (
        relay.var("x", KIND),
        relay.var("y", shape=(1, 4)),
        relay.var("c", shape=(), dtype="bool"),
    )
    f, z = relay.var("f"), relay.var("z", KIND)
    inner = relay.Function([z], relay.If(c, z * z, relay.ones_like(z)))
    body = relay.Let(f, inner, f(x) + y)
    for chosen in (True, False):
        same(relay.Function([x, y, c], body), DATA, DATA[:1], np.array(chosen))


def test_lazy_gradient_matches_gradient() -> None:
    x, y = relay.var("x", KIND), relay.var("y", KIND)
    function = relay.transform.InferType()(IRModule.from_expr(relay.Function([x, y], x * y)))
    backward = relay.transform.gradient(function["main"])
    value, (dx, dy) = Interpreter(lazy(backward)).evaluate("main", DATA, DATA + 1)  # type: ignore[misc]
    np.testing.assert_allclose(value, DATA * (DATA + 1))
    np.testing.assert_allclose(dx, DATA + 1)
    np.testing.assert_allclose(dy, DATA)


def test_references_are_refused() -> None:
    x = relay.var("x", KIND)
    with pytest.raises(CompileError, match="LazyGradientInit: a RefCreate cannot become a cell"):
        lazy(relay.Function([x], relay.RefRead(relay.RefCreate(x))))
