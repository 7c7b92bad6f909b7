"""Specialization to given sizes, and deep copies."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import tir
from ekiden.ir.structural import structural_equal
from ekiden.tir.alpha_renaming import all_definitions

TEXT = """
@T.prim_func
def f(a: T.handle, b: T.handle, n: T.int32):
    m = T.int32()
    A = T.match_buffer(a, (m, n), "float32")
    B = T.match_buffer(b, (m,), "float32")
    for i in range(m):
        with T.block("b"):
            vi = T.axis.spatial(m, i)
            t = T.alloc_buffer((1,), "float32", scope="local")
            t[0] = A[vi, n - 1]
            B[vi] = t[0]
"""


def parsed() -> tir.PrimFunc:
    """The function, anew."""
    result = tir.parse(TEXT)
    assert isinstance(result, tir.PrimFunc)
    return result


def test_numbers_and_sizes_are_filled_in() -> None:
    func = parsed()
    a, _, n = func.params
    assert isinstance(a, tir.Buffer) and isinstance(n, tir.Var)
    for argument in ({n: 8}, {a: tir.decl_buffer((4, 8))}, {a.shape[0]: 4, n: 8}):
        result = func.specialize(argument)  # type: ignore[arg-type]
        assert result.scalars == () and "n" not in [v.name for v in result.scalars]
        tir.verify(result, lowered=False)
        x, y = np.arange(32, dtype="float32").reshape(4, 8), np.zeros(4, "float32")
        ekiden.build(result, target="llvm")(x, y)
        np.testing.assert_array_equal(y, x[:, 7])
    assert structural_equal(func.specialize({}), func)
    doubled = func.specialize({n: tir.Var("x", "int32") * 2})
    assert "x * 2" in doubled.script() and not doubled.scalars


def test_mismatched_specializations_are_refused() -> None:
    func = parsed()
    a, b, n = func.params
    assert isinstance(a, tir.Buffer)
    with pytest.raises(ValueError, match="buffer 'A' is of float32 and 2 axes"):
        func.specialize({a: tir.decl_buffer((4,))})
    with pytest.raises(ValueError, match="buffer 'B' has the size m, not 5"):
        func.specialize({a: tir.decl_buffer((4, 8)), b: tir.decl_buffer((5,))})
    with pytest.raises(ValueError, match="it has no"):
        func.specialize({tir.Var("k"): 3})
    with pytest.raises(ValueError, match="it has no"):
        func.specialize({n: tir.decl_buffer((1,))})
    with pytest.raises(ValueError, match="is no parameter"):
        func.specialize({tir.decl_buffer((1,)): tir.decl_buffer((1,))})


def test_renewed_function_shares_nothing() -> None:
    func = parsed()
    result = tir.stmt_functor.renew_defs(func)
    assert structural_equal(result, func)
    before, after = ({*f.params, *all_definitions(f.body)} for f in (func, result))
    assert before.isdisjoint(after) and len(after) == len(before)
    assert result.buffers[0].shape[0] is result.buffers[1].shape[0]
    assert result.buffers[0].shape[1] is result.scalars[0]
