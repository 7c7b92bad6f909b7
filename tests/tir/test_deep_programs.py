"""No recursion over program depth: 10,000 nested statements, 100,000-node expressions."""

from __future__ import annotations

import pytest

from ekiden import tir
from ekiden.ir.deep_recursion import call_on_fresh_stack
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.prim import Add, PrimExpr, Var, const, fold_binary
from ekiden.ir.prim_visitor import post_order
from ekiden.ir.structural import structural_digest, structural_equal
from ekiden.runtime.errors import ParseError
from ekiden.tir import (
    Buffer,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Stmt,
    verify,
)
from ekiden.tir.access_regions import buffer_accesses
from ekiden.tir.visitor import ExprRewriter, StmtMutator, pre_order_stmts, rename, substitute
from long_runs import alike

DEPTH, NODES = 10_000, 100_000
A = Buffer("A", (const(16),))
I = Var("i")  # noqa: E741


def function(body: Stmt) -> PrimFunc:
    return PrimFunc((A,), body, {"global_symbol": "f"})


def loops(depth: int) -> Stmt:
    body: Stmt = BufferStore(A, const(1.0), (I,))
    for n in range(depth):
        body = For(Var(f"j{n}"), const(0), const(2), ForKind.SERIAL, body)
    return For(I, const(0), const(16), ForKind.SERIAL, body)


def lets(depth: int) -> Stmt:
    body: Stmt = BufferStore(A, const(1.0), (const(0),))
    for n in range(depth):
        body = LetStmt(Var(f"x{n}"), const(n), body)
    return body


def branches(depth: int) -> Stmt:
    body: Stmt = BufferStore(A, const(1.0), (const(0),))
    for n in range(depth):
        body = IfThenElse(A[n % 16] < 1.0, body)
    return body


def long_sum(nodes: int = NODES) -> PrimExpr:
    total: PrimExpr = A[0]
    for n in range(nodes // 3):
        total = fold_binary(Add, total, A[n % 16]) if n % 2 else fold_binary(Add, A[n % 16], total)
    return total


@alike(3)
@pytest.mark.parametrize("nest", [loops, lets, branches])
def test_deeply_nested_statements_lower(nest: object) -> None:
    func = function(nest(DEPTH))  # type: ignore[operator]
    assert sum(1 for _ in pre_order_stmts(func.body)) > DEPTH
    assert verify(func) is func
    assert StmtMutator().visit(func.body) is func.body
    changed = ExprRewriter(lambda e: const(2.0) if e.dtype == "float32" else e).visit(func.body)
    assert changed is not func.body
    assert structural_digest(function(changed)) != structural_digest(func)
    renamed = rename(func.body, {}, {A: Buffer("B", A.shape)})
    assert len(buffer_accesses(renamed, A)) == 0
    assert tir.distinct(func) is func


@pytest.mark.parametrize("nest", [loops, lets])
def test_deep_statements_print_and_parse(nest: object) -> None:
    """A nest of loops is one T.grid, lets are lines below each other."""
    func = function(nest(DEPTH // 4))  # type: ignore[operator]
    back = tir.parse(func.script())
    assert structural_equal(back, func)


def test_deep_branches_print_and_parse_as_far_as_python_does() -> None:
    """Python's parser takes 100 levels of indentation."""
    shallow = function(branches(95))
    assert structural_equal(tir.parse(shallow.script()), shallow)
    with pytest.raises(ParseError, match="too many levels of indentation"):
        tir.parse(function(branches(1_000)).script())


def test_long_expressions_lower() -> None:
    total = long_sum()
    assert len(post_order(total)) >= NODES
    func = function(BufferStore(A, total, (const(0),)))
    assert verify(func) is func
    assert len(str(total)) > NODES
    assert substitute(func.body, {I: const(1)}) is func.body
    shorter = function(BufferStore(A, long_sum(NODES // 4), (const(0),)))
    assert structural_equal(tir.parse(shorter.script()), shorter)


def test_long_expressions_of_sizes() -> None:
    total: PrimExpr = I
    for _ in range(NODES):
        total = fold_binary(Add, const(1), total)
    assert format_prim_expr(total).startswith("1 + (1 + (1 + ")
    assert repr(total)


def test_errors_come_through_fresh_stacks() -> None:
    class Stop(StmtMutator):
        def visit_store(self, stmt: BufferStore) -> Stmt:
            raise KeyError("found")

    with pytest.raises(KeyError, match="found"):
        Stop().visit(lets(1_000))
    assert call_on_fresh_stack(len, "abc") == 3
