"""Schedule primitives keep meaning; each says why not where it cannot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden import te, tir
from ekiden.ir.prim import SizeVar, Var, maximum
from ekiden.tir import PrimFunc, Schedule, ScheduleError
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


def loops(sch: Schedule, block: str = "c") -> list[Var]:
    """The loops of a block."""
    return sch.get_loops(block)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("factors", [[None, 2], [None, 3, 2], [None, 50]])
def test_split_leaves_a_rest(axis: int, factors: list[int | None]) -> None:
    sch = Schedule(product())
    sch.split(loops(sch)[axis], factors)
    check(sch.func)


def test_split_prints_as_two_loops() -> None:
    x = te.placeholder((10,), name="x")
    y = te.compute((10,), lambda i: x[i] * 2.0, name="y")
    sch = Schedule(te.create_prim_func([x, y], "scale"))
    sch.split(sch.get_loops("y")[0], [None, 4])
    assert tir.astext(lower(sch.func)) == (
        "def scale(x: Buffer((10), 'float32'), y: Buffer((10), 'float32')):\n"
        "    for i_0 in range(2):\n"
        "        base: int64 = i_0 * 4\n"
        "        for i_1 in range(4):\n"
        "            y[base + i_1] = x[base + i_1] * 2.0\n"
        "    for i in range(2):\n"
        "        y[i + 8] = x[i + 8] * 2.0\n"
    )


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
    assert "block('d')" not in tir.astext(other.func)


def test_compute_at_shrinks_the_buffer() -> None:
    sch = Schedule(product())
    sch.compute_inline("d")
    sch.compute_at("c", sch.get_loops("e")[0])
    check(sch.func)
    assert "alloc((1, 19), 'float32')" in tir.astext(
        lower(sch.func)
    ) or "alloc((19), 'float32')" in tir.astext(lower(sch.func))


def test_reverse_compute_at() -> None:
    sch = Schedule(product())
    sch.compute_inline("d")
    sch.reverse_compute_at("e", loops(sch)[1])
    check(sch.func)


def test_cache_write_then_reverse_compute_at() -> None:
    sch = Schedule(product())
    copy = sch.cache_write("e", "local")
    check(sch.func)
    sch.reverse_compute_at(copy, sch.get_loops("e")[0])
    check(sch.func)


def test_set_scope_and_annotate() -> None:
    sch = Schedule(product())
    sch.set_scope("d", "local")
    sch.annotate("c", "note", 3)
    sch.annotate(loops(sch)[0], "pragma", "x")
    check(sch.func)
    assert "'local'" in tir.astext(sch.func)


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


def test_trace_reads_as_python() -> None:
    sch = Schedule(product())
    i, j, _ = loops(sch)
    sch.split(j, [None, 8])
    sch.parallel(i, 2)
    assert sch.trace == [
        "l0, l1, l2 = sch.get_loops('c')",
        "l3, l4 = sch.split(l1, [None, 8])",
        "sch.parallel(l0, 2)",
    ]


STEPS: dict[str, Callable[[Schedule, Callable[[int], int]], object]] = {
    "split": lambda s, pick: s.split(loops(s)[pick(len(loops(s)))], [None, 1 + pick(6)]),
    "fuse": lambda s, pick: s.fuse(*loops(s)[(n := pick(len(loops(s)) - 1)) : n + 2]),
    "swap": lambda s, pick: s.reorder(*loops(s)[(n := pick(len(loops(s)) - 1)) : n + 2][::-1]),
    "unroll": lambda s, pick: s.unroll(loops(s)[pick(len(loops(s)))]),
    "vectorize": lambda s, pick: s.vectorize(loops(s)[-1], 4),
    "decompose": lambda s, pick: s.decompose_reduction("c", loops(s)[pick(len(loops(s)))]),
    "inline": lambda s, pick: s.compute_inline("d"),
    "at": lambda s, pick: s.compute_at("d", s.get_loops("e")[pick(2)]),
    "reverse": lambda s, pick: s.reverse_compute_at("e", s.get_loops("d")[pick(2)]),
    "cache": lambda s, pick: s.cache_write("c", "local"),
}


@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 60)), min_size=1, max_size=6)
)
@settings(max_examples=80, deadline=None)
def test_random_schedules_mean_the_same(steps: list[tuple[str, int]]) -> None:
    sch = Schedule(product(3, 4, 6))
    for name, choice in steps:
        before = sch.func
        try:
            STEPS[name](sch, lambda count, choice=choice: choice % max(count, 1))
        except ScheduleError:
            assert sch.func is before
    check(sch.func, 3, 4, 6)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda s: s.get_block("nothing"),
            "block 'nothing': there is none; blocks are ['c', 'd', 'e']",
        ),
        (lambda s: s.parallel(loops(s)[2]), "parallel 'k': block 'c' reduces over it"),
        (
            lambda s: s.split(loops(s)[0], [2, None]),
            "split 'i': only the first factor may be None, got [2, None]",
        ),
        (
            lambda s: s.split(loops(s)[0], [2, 2]),
            "split 'i': [2, 2] must multiply to the extent, or begin with None",
        ),
        (lambda s: s.compute_inline("c"), "compute_inline 'c': the block is a reduction"),
        (lambda s: s.compute_inline("e"), "compute_inline 'e': 'e' is an output"),
        (
            lambda s: s.decompose_reduction("d", s.get_loops("d")[0]),
            "decompose_reduction 'd': the block is not a reduction",
        ),
        (
            lambda s: s.reverse_compute_at("d", loops(s)[2]),
            "reverse_compute_at 'd': block 'c' is not finished in a step",
        ),
    ],
)
def test_refusals(step: Callable[[Schedule], object], message: str) -> None:
    sch = Schedule(product())
    with pytest.raises(ScheduleError) as error:
        step(sch)
    assert str(error.value) == message
