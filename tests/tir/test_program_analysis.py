"""Analyses of loop programs: well-formedness, memory, operation counts, undefined variables."""

from __future__ import annotations

import pytest

import ekiden
from ekiden import tir
from ekiden.ir import structural_equal
from ekiden.runtime.errors import CompileError, ScheduleError, VerifyError
from ekiden.tir import analysis


def parsed(body: str) -> tir.PrimFunc:
    """A function of a body."""
    head = '\n@T.prim_func\ndef f(A: T.Buffer((16,), "float32"), n: T.int64):\n'
    result = tir.parse(head + body)
    assert isinstance(result, tir.PrimFunc)
    return result


MEMORY = """
    with T.alloc_buffer((4, 8), "float32") as x:
        with T.alloc_buffer((16,), "int8", scope="local") as y:
            x[0, 0] = T.cast(y[0], "float32")
    with T.alloc_buffer((64,), "float64") as z:
        z[0] = 1.0
"""


def test_memory_that_is_held_at_once_counts() -> None:
    func = parsed(MEMORY)
    expected = {"global": 512, "local": 16}
    assert analysis.calculate_allocated_bytes(func) == {"main": expected}
    assert analysis.calculate_allocated_bytes(ekiden.IRModule({"g": func})) == {"g": expected}
    with pytest.raises(ScheduleError, match="'x' has the size n"):
        analysis.calculate_allocated_bytes(parsed("    x = T.alloc_buffer((n,))\n    x[0] = 1.0\n"))


GROWING = """
    for i in range(8):
        for j in range(i + 8):
            A[j] = 2.0 * A[i]
"""
BRANCHES = """
    if A[0] > 1.0:
        A[1] = A[1] + 1.0
    else:
        A[1] = A[1] * 3.0 - 1.0
"""


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("    for i in range(8):\n        A[i + 1] = A[i] * 2.0 + A[i * 2 % 16]\n", 16),
        (GROWING, 120),
        (BRANCHES, 3),
        ("    A[0] = T.Select(A[1] < 0.0, A[1] + A[2], A[1])\n", 2),
        ('    T.func_attr({"estimated_flops": 32})\n    A[0] = A[1] * A[2]\n', 32),
        ("    x: T.float32 = A[0] + A[1]\n    A[2] = T.exp(x) * x\n", 2),
    ],
)
def test_flops_are_counted(body: str, count: int) -> None:
    func = parsed(body)
    assert analysis.estimate_tir_flops(func) == count
    assert analysis.estimate_tir_flops(ekiden.IRModule({"f": func, "g": func})) == 2 * count


def test_loop_without_an_end_has_no_count() -> None:
    with pytest.raises(ScheduleError, match="loop 'i' has the extent n"):
        analysis.estimate_tir_flops(parsed("    for i in range(n):\n        A[0] = A[0] + 1.0\n"))


def test_well_formedness_is_verified() -> None:
    good = parsed("    for i in range(8):\n        A[i] = 1.0\n")
    assert analysis.verify_well_formed(good)
    loop = good.body
    assert isinstance(loop, tir.For)
    bad = good.with_fields(body=loop.body)
    assert not analysis.verify_well_formed(ekiden.IRModule({"f": bad}), assert_mode=False)
    with pytest.raises(VerifyError, match="'i'"):
        analysis.verify_well_formed(bad)
    assert analysis.undefined_vars(loop.body) == [loop.loop_var]
    assert analysis.undefined_vars(loop.body, {loop.loop_var: None}) == []
    assert analysis.undefined_vars(loop) == []
    assert analysis.undefined_vars(loop.loop_var + 1) == [loop.loop_var]


def test_what_a_function_does_that_can_be_seen() -> None:
    text = """
@T.prim_func
def total(A: T.Buffer((16,), "float32")) -> T.float32:
    found = T.alloc_buffer((1,), "float32")
    found[0] = 0.0
    for i in range(16):
        found[0] = found[0] + A[i]
    T.call_pure_extern("float32", "sinf", A[0])
    T.ret(found[0])
"""
    total = tir.parse(text)
    assert structural_equal(tir.parse(str(total)), total)
    assert analysis.is_pure_function(total)
    assert analysis.assert_pure_function(total)
    with pytest.raises(CompileError, match="no code generator has the call"):
        ekiden.build(total, target="llvm")
    for line, message in [
        ("T.call_extern('int32', 'puts')", "calls call_extern"),
        ("A[0] = 1.0", "writes into 'A'"),
    ]:
        func = tir.parse(text.replace("T.ret(found[0])", line))
        assert not analysis.is_pure_function(func)
        with pytest.raises(AssertionError, match=message):
            analysis.assert_pure_function(func)
