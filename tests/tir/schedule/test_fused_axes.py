"""Fused and split axes: indices of consecutive elements simplify to contiguous accesses."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.ir.prim import SizeVar
from ekiden.target import Target
from ekiden.tir import PrimFunc, Schedule
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower

pytestmark = pytest.mark.quick
TARGET = Target("llvm -mcpu=x86-64-v3")


def total(shape: tuple[int | SizeVar, ...]) -> PrimFunc:
    """Return z = x + y."""
    x, y = te.placeholder(shape, name="x"), te.placeholder(shape, name="y")
    z = te.compute(shape, lambda *i: x[i] + y[i], name="z")
    return te.create_prim_func([x, y, z])


def in_chunks(func: PrimFunc, chunk: int) -> PrimFunc:
    """Return the lowered program whose axes are fused and split into chunks and vectors."""
    sch = Schedule(func)
    chunks, rest = sch.split(sch.fuse(*sch.get_loops("z")), [None, chunk])
    _, lanes = sch.split(rest, [None, 16])
    sch.parallel(chunks)
    sch.vectorize(lanes, 16)
    return lower(sch.func, TARGET)


def check(func: PrimFunc, size: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-9, 9, size).astype("float32") for _ in range(2))
    z = np.full(size, np.nan, "float32")
    run_prim_func(tir.verify(func), x, y, z)
    np.testing.assert_array_equal(z, x + y)


@pytest.mark.parametrize("chunk", [3072, 8192])
@pytest.mark.parametrize("shape", [(5, 128, 96), (5, 8, 16, 96), (61440,)])
def test_chunks_of_fused_axes_are_contiguous(shape: tuple[int, ...], chunk: int) -> None:
    """No index is divided: loads of vectors are loads, not gathers."""
    func = in_chunks(total(shape), chunk)
    assert "//" not in str(func) and "%" not in str(func)
    check(func, shape)


def test_fused_axes_of_unknown_size_are_contiguous() -> None:
    func = in_chunks(total((SizeVar("n"), SizeVar("m"), 96)), 3072)
    assert "% 96" not in str(func) and "// 96" not in str(func)
    for size in ((1, 1, 96), (3, 5, 96), (7, 11, 96)):
        check(func, size)
