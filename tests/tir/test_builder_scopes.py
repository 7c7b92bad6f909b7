"""ir_builder: statement order, pointers and thread scopes."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.ir.structural import structural_equal


def program() -> tir.PrimFunc:
    """One more than each element of what a pointer points to."""
    ib = tir.ir_builder.create()
    n = te.size_var("n")
    result = tir.decl_buffer((n,), "float32", "B")
    source, target = ib.pointer("float32", name="A"), ib.buffer_ptr(result)
    bx, tx = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
    ib.scope_attr(bx, "thread_extent", (n + 3) // 4)
    ib.scope_attr(tx, "thread_extent", 4)
    at = bx * 4 + tx.var
    with ib.if_scope(at < n):
        target[at] = source[at] + 1.0
    return tir.PrimFunc((source.buffer, result), ib.get(), {"global_symbol": "f"})


def test_scope_of_threads_is_a_loop() -> None:
    func = program()
    tir.verify(func, lowered=False)
    again = tir.parse(func.script())
    assert isinstance(again, tir.PrimFunc) and "threadIdx.x" in func.script()
    assert structural_equal(func.body, again.body, map_free_vars=True)


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("size", [1, 4, 10])
def test_built_program_runs(target: str, size: int) -> None:
    x, y = np.arange(size, dtype="float32"), np.zeros(size, "float32")
    ekiden.build(program(), target=target)(x, y)
    np.testing.assert_array_equal(y, x + 1)


def test_other_attributes_are_annotations() -> None:
    ib = tir.ir_builder.create()
    axis = te.thread_axis("cop")
    ib.scope_attr(axis, "coproc_scope", 1)
    ib.pointer("float32", name="A")[0] = 1.0
    result = ib.get()
    assert isinstance(result, tir.AttrStmt)
    assert result.node is axis


def test_loops_of_known_extents_are_cut_unless_told_otherwise() -> None:
    ib = tir.ir_builder.create()
    result = tir.decl_buffer((19,), "int64", "B")
    target = ib.buffer_ptr(result)
    with ib.for_range(0, 5, "i") as i, ib.for_range(0, 4, "j") as j:
        at = i * 4 + j
        with ib.if_scope(ib.likely(at < 19)):
            target[at] = at
    func = tir.PrimFunc((result,), ib.get(), {"global_symbol": "f"})
    module = ekiden.IRModule({"f": func})
    for is_cut in (True, False):
        with ekiden.transform.PassContext(
            config={"tir.LoopPartition": {"partition_const_loop": is_cut}}
        ):
            output = tir.transform.LoopPartition()(module)["f"]
        assert isinstance(output, tir.PrimFunc)
        assert ("if " not in output.script()) == is_cut, output
        actual = np.zeros(19, "int64")
        ekiden.build(output, target="llvm")(actual)
        np.testing.assert_array_equal(actual, np.arange(19))


def test_scope_of_its_own_and_the_buffer_of_a_variable() -> None:
    ib = tir.ir_builder.create()
    a = ib.pointer("float32", name="A")
    with ib.new_scope():
        b = ib.allocate("float32", (4,), name="B")
        b[0] = 1.0
    a[0] = 2.0
    result = ib.get()
    assert isinstance(result, tir.SeqStmt)
    assert isinstance(result.seq[0], tir.Allocate)
    assert b.asobject() is result.seq[0].buffer
    assert tir.StringImm("x") == "x"
    assert tir.StringImm("x") in ["x", "y"]
    with pytest.raises(TypeError, match="an expression expected"):
        a[b] = 1.0  # type: ignore[index]
