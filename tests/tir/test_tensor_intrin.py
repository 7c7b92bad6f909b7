"""x86 tensor intrinsics: tensorized programs run natively with NumPy's results."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.codegen.build import build
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.llvm import assembly
from ekiden.runtime.errors import ScheduleError
from ekiden.target import Target
from ekiden.tir import PrimFunc, TensorIntrin
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.tensor_intrin.x86 import (
    FMA_1x16_INTRIN,
    FMA_6x16_INTRIN,
    VNNI_DOT_16x4_INTRIN,
)
from ekiden.tir.transform import lower
from processor import processors

NO_CACHE = KernelCache(None)
TARGETS = (*processors(), "c")


def dense_u8s8(m: int, n: int, k: int) -> tir.Schedule:
    """C[i, j, l] = sum of A[i, 4 * p + q] * B[j, p, l, q], tensorized by dot products."""
    a = te.placeholder((m, k), "uint8", "a")
    b = te.placeholder((n // 16, k // 4, 16, 4), "int8", "b")
    p, q = te.reduce_axis((0, k // 4), "p"), te.reduce_axis((0, 4), "q")
    c = te.compute(
        (m, n // 16, 16),
        lambda i, j, lane: te.sum(
            a[i, p * 4 + q].astype("int32") * b[j, p, lane, q].astype("int32"), (p, q)
        ),
        name="c",
    )
    schedule = tir.Schedule(te.create_prim_func([a, b, c]))
    block = schedule.get_block("c")
    i, j, lane, outer, inner = schedule.get_loops(block)
    schedule.reorder(i, j, outer, lane, inner)
    schedule.decompose_reduction(block, outer)
    schedule.tensorize(lane, VNNI_DOT_16x4_INTRIN)
    return schedule


def function(schedule: tir.Schedule) -> PrimFunc:
    func = schedule.mod["main"]
    assert isinstance(func, PrimFunc)
    return func


@pytest.mark.parametrize("target", TARGETS)
def test_dot_products_of_bytes(target: str) -> None:
    random = np.random.default_rng(0)
    a = random.integers(0, 256, (5, 24), dtype="uint8")
    b = random.integers(-128, 128, (24, 32), dtype="int8")
    packed = b.reshape(6, 4, 2, 16).transpose(2, 0, 3, 1).copy()
    c = np.zeros((5, 2, 16), "int32")
    func = function(dense_u8s8(5, 32, 24))
    build(func, target, cache=NO_CACHE)["main"](a, packed, c)
    expected = a.astype("int32") @ b.astype("int32")
    np.testing.assert_array_equal(c.reshape(5, 32), expected)
    interpreted = np.zeros_like(c)
    run_prim_func(lower(func), a, packed, interpreted)
    np.testing.assert_array_equal(interpreted, c)


def test_vnni_is_used_where_there_is_one() -> None:
    func, newer = lower(function(dense_u8s8(5, 32, 24))), "llvm -mcpu=x86-64-v4 -mattr=avx512vnni"
    assert "vpdpbusd" in assembly([func], Target.parse(newer))
    assert "vpdpbusd" not in assembly([func], Target.parse("llvm -mcpu=x86-64-v3"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("intrin", [FMA_1x16_INTRIN, FMA_6x16_INTRIN])
def test_tiles_of_multiply_adds(intrin: str, target: str) -> None:
    a, b = te.placeholder((12, 7), name="a"), te.placeholder((7, 32), name="b")
    r = te.reduce_axis((0, 7), "r")
    c = te.compute((12, 32), lambda i, j: te.sum(a[i, r] * b[r, j], r), name="c")
    schedule = tir.Schedule(te.create_prim_func([a, b, c]))
    block = schedule.get_block("c")
    i, j, k = schedule.get_loops(block)
    i_outer, i_inner = schedule.split(i, [None, 6 if intrin == FMA_6x16_INTRIN else 1])
    j_outer, j_inner = schedule.split(j, [None, 16])
    schedule.reorder(i_outer, j_outer, k, i_inner, j_inner)
    schedule.decompose_reduction(block, k)
    schedule.tensorize(i_inner if intrin == FMA_6x16_INTRIN else j_inner, intrin)
    x = np.random.default_rng(0).standard_normal((12, 7)).astype("float32")
    y = np.random.default_rng(1).standard_normal((7, 32)).astype("float32")
    out = np.zeros((12, 32), "float32")
    build(function(schedule), target, cache=NO_CACHE)["main"](x, y, out)
    np.testing.assert_allclose(out, x @ y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [VNNI_DOT_16x4_INTRIN, FMA_1x16_INTRIN, FMA_6x16_INTRIN])
def test_descriptions_and_implementations_agree(name: str) -> None:
    intrin = TensorIntrin.get(name)
    random = np.random.default_rng(0)
    arrays = [
        random.integers(0, 100, [int(str(d)) for d in b.shape]).astype(b.dtype)
        for b in intrin.desc.params
    ]
    results = []
    for func in (intrin.desc, intrin.impl):
        inputs = [a.copy() for a in arrays]
        run_prim_func(lower(func), *inputs)
        results.append(inputs[-1])
    np.testing.assert_array_equal(*results)


FRESH_PROCESS = """
from ekiden import te, tir

a, b = te.placeholder((4, 6), name="a"), te.placeholder((6, 8), name="b")
k = te.reduce_axis((0, 6), "k")
c = te.compute((4, 8), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
sch = tir.Schedule(te.create_prim_func([a, b, c]))
sch.tensorize(sch.get_loops("c")[0], "register_tile(lanes=8)")
assert "acc" in str(sch.func)
"""


def test_micro_kernel_is_found_by_its_name_alone() -> None:
    """As in the text of a trace, in a process that has imported no kernels."""
    subprocess.run([sys.executable, "-c", FRESH_PROCESS], check=True, timeout=120)


def test_unknown_micro_kernel_is_refused_with_those_there_are() -> None:
    a = te.placeholder((4, 6), name="a")
    k = te.reduce_axis((0, 6), "k")
    c = te.compute((4,), lambda i: te.sum(a[i, k], k), name="c")
    schedule = tir.Schedule(te.create_prim_func([a, c]))
    with pytest.raises(ScheduleError, match="there are block_int8_tile, .*, register_tile"):
        schedule.tensorize(schedule.get_loops("c")[0], "register_tiles(lanes=8)")
