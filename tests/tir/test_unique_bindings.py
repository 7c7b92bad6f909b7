"""A unique variable or buffer for every binding."""

from __future__ import annotations

from importlib import import_module

import pytest

from ekiden import tir
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.ir.structural import structural_equal
from ekiden.tir.alpha_renaming import all_definitions
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, For, ForKind, LetStmt, PrimFunc, Stmt

pytestmark = pytest.mark.quick
A = Buffer("A", (const(64),))


def function(body: Stmt) -> PrimFunc:
    return PrimFunc((A,), body, {"global_symbol": "f"})


def lets(names: list[Var]) -> Stmt:
    """A chain of lets, each of the one before, and a store of the last."""
    body: Stmt = BufferStore(A, names[-1], (const(0),))
    for at in reversed(range(len(names))):
        value: PrimExpr = names[at - 1] + 1.0 if at else A[1]
        body = LetStmt(names[at], value, body)
    return body


def test_what_is_outside_of_a_binding_keeps_the_outer_name() -> None:
    i = Var("i")
    inner = For(i, const(0), i + 1, ForKind.SERIAL, BufferStore(A, const(1.0), (i,)))
    func = function(For(i, const(0), const(4), ForKind.SERIAL, inner))
    result = tir.distinct(func).body
    assert isinstance(result, For) and isinstance(result.body, For)
    assert result.loop_var is i and result.body.loop_var is not i
    assert structural_equal(result.body.extent, i + 1)
    assert isinstance(result.body.body, BufferStore)
    assert result.body.body.indices == (result.body.loop_var,)


def test_name_ends_with_its_binding() -> None:
    x = Var("x", "float32")
    after = BufferStore(A, const(2.0), (const(3),))
    twice = LetStmt(x, A[0], tir.seq(lets([x]), after, BufferStore(A, x, (const(2),))))
    result = tir.distinct(function(twice)).body
    assert isinstance(result, LetStmt) and result.var is x
    first, second, last = result.body.seq  # type: ignore[attr-defined]
    assert first.var is not x and first.body.value is first.var
    assert second is after and last.value is x


def test_renaming_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    module = import_module("ekiden.tir.alpha_renaming")  # the package has a function of that name
    plain = module.rewrite

    def counted(expr: PrimExpr, *argument: object) -> PrimExpr:
        nonlocal seen
        seen += 1
        return plain(expr, *argument)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "rewrite", counted)
    work = []
    for count in (100, 200):
        seen, chain = 0, lets([Var(f"v{n}", "float32") for n in range(count)])
        result = tir.distinct(function(tir.seq(chain, chain)))
        assert len(set(all_definitions(result.body))) == 2 * count
        work.append(seen)
    assert 0 < work[1] <= 2.1 * work[0]
