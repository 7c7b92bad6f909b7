"""What each step of a schedule does: the program after it, and that it means the same."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.ir.prim import SizeVar, maximum
from ekiden.tir import LoopRV, PrimFunc, Schedule
from ekiden.tir.interpreter import run
from ekiden.tir.transform import lower

pytestmark = pytest.mark.quick


def product(n: int = 5, k: int = 7, m: int = 19, symbolic: bool = False) -> PrimFunc:
    """relu(a @ b) + 1 in three blocks."""
    rows = SizeVar("n") if symbolic else n
    a, b = te.placeholder((rows, k), name="a"), te.placeholder((k, m), name="b")
    axis = te.reduce_axis((0, k), "k")
    c = te.compute((rows, m), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis), name="c")
    d = te.compute((rows, m), lambda i, j: maximum(c[i, j], 0.0), name="d")
    e = te.compute((rows, m), lambda i, j: d[i, j] + 1.0, name="e")
    return te.create_prim_func([a, b, e], "product")


def check(func: PrimFunc, n: int = 5, k: int = 7, m: int = 19) -> None:
    """Compare with NumPy."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(n, k)).astype("float32"), rng.normal(size=(k, m)).astype("float32")
    out = np.full((n, m), 7, "float32")
    run(tir.verify(lower(func)), a, b, out)
    np.testing.assert_allclose(out, np.maximum(a @ b, 0) + 1, rtol=1e-4, atol=1e-5)


def loops(sch: Schedule, block: str = "c") -> list[LoopRV]:
    """The loops of a block."""
    return sch.get_loops(block)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("factors", [[None, 2], [None, 3, 2], [None, 50]])
def test_split_leaves_a_rest(axis: int, factors: list[int | None]) -> None:
    sch = Schedule(product())
    sch.split(loops(sch)[axis], factors)
    check(sch.func)


def test_split_of_symbolic_extent() -> None:
    sch = Schedule(product(symbolic=True))
    sch.split(loops(sch)[0], [None, 4])
    for n in (0, 1, 4, 9):
        check(sch.func, n)


def test_tiled_product() -> None:
    sch = Schedule(product())
    i, j, k = loops(sch)
    _, j1 = sch.split(j, [None, 8])
    sch.reorder(k, j1)
    sch.decompose_reduction("c", k)
    sch.vectorize(j1, 8)
    sch.parallel(i, 2)
    check(sch.func)


def test_fused_loops() -> None:
    sch = Schedule(product())
    i, j, _ = loops(sch)
    fused = sch.fuse(i, j)
    sch.parallel(fused)
    check(sch.func)


def test_inlining_both_ways() -> None:
    sch = Schedule(product())
    sch.compute_inline("d")
    check(sch.func)
    other = Schedule(product())
    other.reverse_compute_inline("e")
    check(other.func)
    assert 'block("d")' not in tir.astext(other.func)


def test_compute_at_shrinks_the_buffer() -> None:
    sch = Schedule(product())
    sch.compute_inline("d")
    sch.compute_at("c", sch.get_loops("e")[0])
    check(sch.func)
    text = tir.astext(lower(sch.func))
    assert "19" in next(line for line in text.splitlines() if "c = " in line)


def test_reverse_compute_at() -> None:
    sch = Schedule(product())
    sch.compute_inline("d")
    sch.reverse_compute_at("e", loops(sch)[1])
    check(sch.func)


def test_cache_write_then_reverse_compute_at() -> None:
    sch = Schedule(product())
    copy = sch.cache_write("e", 0, "local")
    check(sch.func)
    sch.reverse_compute_at(copy, sch.get_loops("e")[0])
    check(sch.func)


def test_set_scope_and_annotate() -> None:
    sch = Schedule(product())
    sch.set_scope("d", 0, "local")
    sch.annotate("c", "note", 3)
    sch.annotate(loops(sch)[0], "pragma", "x")
    check(sch.func)
    assert 'scope="local"' in tir.astext(sch.func)


def test_compute_at_of_a_window_reads_only_what_exists() -> None:
    x = te.placeholder((20,), name="x")
    y = te.compute((20,), lambda i: x[i] * 2.0, name="y")
    k = te.reduce_axis((0, 3), "k")
    z = te.compute((18,), lambda i: te.sum(y[i + k], k), name="z")
    sch = Schedule(te.create_prim_func([x, z], "window"))
    outer, _ = sch.split(sch.get_loops("z")[0], [None, 6])
    sch.compute_at("y", outer)
    array, out = np.arange(20, dtype="float32"), np.zeros(18, "float32")
    run(tir.verify(lower(sch.func)), array, out)
    np.testing.assert_allclose(out, np.convolve(array * 2, np.ones(3), "valid"))
