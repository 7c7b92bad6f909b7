"""T.assume: decides later conditions in its scope; code generators never see it."""

import numpy as np
import pytest

import ekiden
from ekiden import tir
from ekiden.ir.module import IRModule
from ekiden.ir.prim import Var
from ekiden.runtime.errors import CompileError
from ekiden.script import tir as T
from ekiden.tir import PrimFunc, transform


@T.prim_func
def aligned(a: T.Buffer((16,), "float32"), n: T.int32) -> None:
    T.assume(n % 4 == 0 and n >= 8)
    for i in range(16):
        if n >= 5:
            a[i] = 1.0
        else:
            a[i] = 2.0


def after(pass_: object, func: PrimFunc) -> str:
    return pass_(IRModule({"main": func}))["main"].script()  # type: ignore[operator]


def test_assume_decides_conditions() -> None:
    text = after(transform.Simplify(), aligned)
    assert "if" not in text and "T.assume(n % 4 == 0 and n >= 8)" in text
    assert "assume" not in transform.lower(aligned).script()
    assert "if" in after(transform.RemoveAssume(), aligned)
    memory = ekiden.nd.array(np.zeros(16, "float32"))
    ekiden.build(aligned, target="llvm")(memory, 8)
    assert (memory.numpy() == 1).all()


@T.prim_func
def any_size(a: T.handle, b: T.handle) -> None:
    n = T.int64()
    source = T.match_buffer(a, (n,), "float32")
    target = T.match_buffer(b, (n,), "float32")
    T.assume(n % 16 == 0)
    for i in range(n):
        with T.block("b"):
            at = T.axis.spatial(n, i)
            target[at] = source[at] * 2.0


def test_split_leaves_nothing_over() -> None:
    sch = tir.Schedule(any_size)
    _, inner = sch.split(sch.get_loops("b")[0], [None, 16])
    sch.vectorize(inner)
    text = transform.lower(sch.func).script()
    assert "n // 16" in text and "if" not in text and "%" not in text
    one, two = (ekiden.nd.array(np.full(32, n, "float32")) for n in (1, 0))
    ekiden.build(sch.func, target="llvm")(one, two)
    assert (two.numpy() == 2).all()


@T.prim_func
def elsewhere(a: T.Buffer((4,), "int32"), n: T.int32, m: T.int32) -> None:
    if m == 0:
        T.assume(n == 0)
        a[0] = n + 1
    if n == 0:
        a[1] = 1
    T.assume(a[2] == 0)
    a[2] = 7
    if a[2] == 0:
        a[3] = 1


def test_assume_holds_in_its_scope() -> None:
    """Not behind its scope, and of memory, which may change, nothing is believed."""
    text = after(transform.Simplify(), elsewhere)
    assert "if n == 0" in text and "if a[2] == 0" in text
    memory = ekiden.nd.array(np.full(4, 9, "int32"))
    ekiden.build(elsewhere, target="llvm")(memory, 0, 1)
    assert memory.numpy().tolist() == [9, 1, 7, 9]


@T.prim_func
def nothing_else(a: T.Buffer((4,), "int32")) -> None:
    for i in range(4):
        T.assume(a[i] == 0)


def test_loops_of_assumptions_vanish() -> None:
    assert "for" not in after(transform.RemoveAssume(), nothing_else)


def test_assume_refuses_non_conditions() -> None:
    with pytest.raises(TypeError, match="assume: a condition is a bool, got int32"):
        tir.assume(Var("x", "int32"))


@T.prim_func
def undefined(a: T.Buffer((4,), "int32")) -> None:
    x = T.undef(dtype="int32")
    a[0] = 3
    for i in range(3):
        a[i + 1] = x + 1


@T.prim_func
def undefined_index(a: T.Buffer((4,), "int32")) -> None:
    a[T.undef(dtype="int32")] = 3


def test_undefined_values_are_not_stored() -> None:
    text = after(transform.RemoveStoreUndef(), undefined)
    assert "a[0] = 3" in text and "for i" not in text and "T.undef" not in text
    with pytest.raises(CompileError, match=r"may only be stored, got T\.undef\("):
        after(transform.RemoveStoreUndef(), undefined_index)
    with pytest.raises(CompileError, match="no code generator has the call undef"):
        ekiden.build(undefined, target="llvm")


@T.prim_func
def threads(a: T.Buffer((4,), "int32"), n: T.int32) -> None:
    for i in T.thread_binding(4, thread="threadIdx.x"):
        if n > 2:
            a[i] = n


def test_conditions_leave_threads_on_request() -> None:
    """The loop is inside of the condition then."""
    text = after(transform.HoistIfThenElse(), threads)
    assert text.index("for i") < text.index("if n > 2")
    config = {"tir.HoistIfThenElse": {"support_block_scope_hosting": True}}
    with ekiden.transform.PassContext(config=config):
        text = after(transform.HoistIfThenElse(), threads)
    assert text.index("if n > 2") < text.index("for i")
