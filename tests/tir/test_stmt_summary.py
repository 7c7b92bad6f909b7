"""Statement summaries: computed once, and used to skip passes."""

from __future__ import annotations

import pytest

from ekiden.ir.prim import FloatImm, Intrinsic, Var, const
from ekiden.tir import stmt_summary as module
from ekiden.tir.expr import Buffer, BufferLoad, Ramp
from ekiden.tir.stmt import BufferStore, DeclBuffer, For, ForKind, PrimFunc, Stmt, seq
from ekiden.tir.stmt_summary import accessed_buffers, summarize_stmt
from ekiden.tir.transform.intrinsic_lowering import lower_intrinsics
from ekiden.tir.transform.lower_small_types import lower_small_types
from ekiden.tir.visitor import NO_OP

pytestmark = pytest.mark.quick


def program(op: str = "exp", dtype: str = "float32") -> PrimFunc:
    """for i in range(4): B[i] = op(A[i])"""
    i = Var("i")
    a, b = (Buffer(name, (const(4),), dtype) for name in "AB")
    value = Intrinsic(op, (BufferLoad(a, (i,), dtype),), dtype)
    body = For(i, const(0), const(4), ForKind.SERIAL, BufferStore(b, value, (i,)))
    return PrimFunc((a, b), body, {"global_symbol": "f"})


def test_contents_list_kinds_names_and_types() -> None:
    result = summarize_stmt(program().body)
    assert result.stmt_types == {For, BufferStore} and result.intrinsics == {"exp"}
    assert (
        result.element_dtypes == {"float32"}
        and not result.has_vectors
        and not result.has_small_types
    )


def test_vectors_and_small_types() -> None:
    a = Buffer("A", (const(64),), "int4")
    load = BufferLoad(a, (Ramp(const(0), const(1), 16, "int64x16"),), "int4x16")
    result = summarize_stmt(BufferStore(a, load, (const(0),)))
    assert result.has_vectors and result.has_small_types and result.element_dtypes == {"int4"}


def test_one_object_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[Stmt] = []
    real = module.pre_order_stmts
    monkeypatch.setattr(module, "pre_order_stmts", lambda root: walked.append(root) or real(root))
    body = seq(program().body, program("exp2").body)
    assert summarize_stmt(body) is summarize_stmt(body) and walked == [body]


def test_pass_that_finds_nothing_gives_what_it_got() -> None:
    func = program()
    assert lower_intrinsics(func) is func and lower_small_types(func) is func
    assert lower_intrinsics(program("exp2")).body is not program("exp2").body
    assert summarize_stmt(lower_intrinsics(program("exp2")).body).intrinsics.isdisjoint({"exp2"})
    small = program("exp", "float8_e5m2")
    assert lower_small_types(small) is not small


def test_constants_alone_have_no_elements() -> None:
    b = Buffer("B", (const(1),), "float32")
    assert summarize_stmt(BufferStore(b, FloatImm(1.0), (const(0),))).element_dtypes == {"float32"}


def test_buffers_inside_a_statement() -> None:
    func = program()
    a, b = func.buffers
    assert accessed_buffers(func.body) == {a, b}
    view = Buffer("V", (const(2),), "float32")
    source = Buffer("S", (const(4),), "float32")
    of_view = DeclBuffer(view, source, (const(0),), (const(2),), NO_OP)
    assert accessed_buffers(seq(func.body, of_view)) == {a, b, source}


def test_what_adds_no_buffer_has_the_set_of_what_is_inside() -> None:
    body = program().body
    nest = For(Var("k"), const(0), const(2), ForKind.SERIAL, body)
    assert accessed_buffers(nest) is accessed_buffers(body)
