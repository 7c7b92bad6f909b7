"""`==` and `!=` of expressions: conditions where an expression is expected, identity elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.ir.prim import EQ, NE, ExprLike, PrimExpr, Var, const
from ekiden.ir.structural import structural_equal
from ekiden.tir import interpreter
from ekiden.tir.transform import lower

pytestmark = pytest.mark.quick

X, Y = Var("x"), Var("y")


def test_comparison_is_an_expression() -> None:
    for result, expected in (
        (tir.Select(X == 0, X, Y), tir.Select(EQ(X, 0), X, Y)),
        (tir.Select(X != Y, 1, Y), tir.Select(NE(X, Y), 1, Y)),
        (te.if_then_else(X == Y, X, Y), te.if_then_else(EQ(X, Y), X, Y)),
        (tir.Not(X == 0), tir.Not(EQ(X, const(0)))),
        (tir.all(X == 0, Y != 1), tir.all(EQ(X, 0), NE(Y, 1))),
        (tir.any(X > 0, Y == 1), tir.any(X > 0, EQ(Y, 1))),
        ((X == 0).astype("int32"), EQ(X, 0).astype("int32")),
        (2 * (X == 0).astype("int64"), 2 * EQ(X, 0).astype("int64")),
    ):
        assert structural_equal(result, expected), (result, expected)


def test_comparison_truth_is_identity() -> None:
    other = Var("x")
    assert X == X and other != X and not other == X  # noqa: SIM201
    assert X in (other, X) and other not in (X, Y) and {X: 1}.get(other) is None
    assert (X, Y) == (X, Y) and (X, other) != (X, Y)
    assert X != "x" and X != None and not X == "x"  # noqa: E711, SIM201
    assert const(3) == 3 and const(3) != 4 and const(3) == const(3, "int32")
    assert const(3) != X and not const(3) == X  # noqa: SIM201


def test_incomparable_operands_are_refused_on_use() -> None:
    with pytest.raises(TypeError, match="EQ: operands must have one dtype"):
        tir.Select(Var("p", "bool") == X, X, Y)


CONDITIONS: list[Callable[[PrimExpr], ExprLike]] = [
    lambda i: i == 2,
    lambda i: i != 2,
    lambda i: te.all(i != 0, i != 3),
    lambda i: te.any(i == 0, i % 2 == 1),
]


@pytest.mark.parametrize("number", range(len(CONDITIONS)))
def test_computations_choose_by_comparisons(number: int) -> None:
    condition = CONDITIONS[number]
    a = te.placeholder((6,), "float32", "A")
    b = te.compute((6,), lambda i: te.if_then_else(condition(i), a[i], 0.0), name="B")
    data, result = np.arange(6, dtype="float32") + 1, np.zeros(6, "float32")
    interpreter.run_prim_func(lower(te.create_prim_func([a, b])), data, result)
    holds = [[2], [0, 1, 3, 4, 5], [1, 2, 4, 5], [0, 1, 3, 5]][number]
    assert result.tolist() == [data[i] if i in holds else 0 for i in range(6)]


def test_statements_accept_comparisons() -> None:
    builder = tir.ir_builder.create()
    target = builder.buffer_ptr(tir.decl_buffer((4,), "int32", "A"))
    with builder.for_range(0, 4, "i") as i, builder.if_scope(i == 1):
        target[i] = 7
    assert "if i == 1:" in str(builder.get())
