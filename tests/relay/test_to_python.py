"""Relay as Python programs: `relay.testing.to_python` and `run_as_python`."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from ekiden import relay, runtime
from ekiden.ir.module import IRModule
from ekiden.relay.testing import run_as_python, to_python
from ekiden.runtime.errors import RunError


def text(program: str) -> IRModule:
    return relay.fromtext('#[version = "0.0.5"]\n' + program)


def test_to_python_returns_an_ast() -> None:
    x = relay.const(2.0)
    tree = to_python(relay.add(x, relay.multiply(x, x)))
    assert isinstance(tree, ast.Module)
    assert ast.unparse(tree).count("call(") == 2


def test_constants_and_tuples_run_as_python() -> None:
    result = run_as_python(relay.Tuple([relay.const(1), relay.Tuple([relay.const([2.0, 3.0])])]))
    assert isinstance(result, runtime.ADT) and len(result) == 2
    assert result[0].numpy() == 1 and result[0].shape == ()
    np.testing.assert_array_equal(result[1][0].numpy(), [2, 3])


def test_recursion_branches_and_matches() -> None:
    module = text(
        """
        type Chain { End, Link(int32, Chain) }
        def @make(%n: int32) -> Chain {
          if (%n == 0) { End } else { Link(%n, @make(%n - 1)) }
        }
        def @total(%c: Chain, %s: int32) -> int32 {
          match (%c) { End => %s, Link(%n, %rest) => @total(%rest, %s + %n) }
        }
        """
    )
    total, make = (module.get_global_var(n) for n in ("total", "make"))
    assert run_as_python(total(make(relay.const(10)), relay.const(0)), module).numpy() == 55


def test_closures_and_references() -> None:
    r, f, x = relay.Var("r"), relay.Var("f"), relay.var("x", shape=(), dtype="int32")
    step = relay.Function([x], relay.RefWrite(r, relay.add(relay.RefRead(r), x)))
    twice = relay.Let(relay.Var("_"), f(relay.const(2)), f(relay.const(5)))
    body = relay.Let(f, step, relay.Let(relay.Var("_"), twice, relay.RefRead(r)))
    assert run_as_python(relay.Let(r, relay.RefCreate(relay.const(1)), body)).numpy() == 8


def test_relay_function_is_a_python_function() -> None:
    x = relay.var("x", shape=(2,))
    result = run_as_python(relay.Function([x], relay.exp(x)))
    np.testing.assert_allclose(result(runtime.tensor(np.zeros(2, "float32"))).numpy(), [1, 1])


def test_unmatched_python_match_raises() -> None:
    module = text(
        """
        type Two { A, B }
        def @only(%t: Two) -> int32 { match? (%t) { A => 1 } }
        """
    )
    _, _, b = module.get_type("Two")
    with pytest.raises(RunError, match="match: no clause fits a value"):
        run_as_python(module.get_global_var("only")(b()), module)  # type: ignore[operator]


def test_long_programs_convert_to_python() -> None:
    x = relay.var("x", shape=())
    body: relay.Expr = x
    for _ in range(3000):
        v = relay.Var("v")
        body = relay.Let(v, relay.const(1.0), body)
    assert run_as_python(relay.Function([x], body)(relay.const(3.0))).numpy() == 3
