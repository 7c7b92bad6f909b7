"""Loops side by side, copies of what a step writes, padding apart, indices before their block: what
each makes of a program, that it means the same, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.ir.prim import PrimExpr
from ekiden.script import tir as T
from ekiden.tir import PrimFunc, Schedule, ScheduleError
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower

pytestmark = pytest.mark.quick


def two() -> PrimFunc:
    """c = a + 1, d = 2 a."""
    a = te.placeholder((8, 6), name="a")
    c = te.compute((8, 6), lambda i, j: a[i, j] + 1.0, name="c")
    d = te.compute((8, 6), lambda i, j: a[i, j] * 2.0, name="d")
    return te.create_prim_func([a, c, d])


def chain() -> PrimFunc:
    """d = 2 (a + 1), row by row from the other end."""
    a = te.placeholder((8, 6), name="a")
    c = te.compute((8, 6), lambda i, j: a[i, j] + 1.0, name="c")
    d = te.compute((8, 6), lambda i, j: c[7 - i, j] * 2.0, name="d")
    return te.create_prim_func([a, c, d])


def padded() -> PrimFunc:
    """Rows 1 to 6 of b are those of a, the others 7."""
    a = te.placeholder((6, 6), name="a")
    b = te.compute(
        (8, 6),
        lambda i, j: tir.if_then_else(tir.all(i >= 1, i < 7), a[i - 1, j], 7.0),
        name="b",
    )
    return te.create_prim_func([a, b])


@T.prim_func
def changed(c: T.Buffer((8, 6), "float32")):  # type: ignore[no-untyped-def]  # noqa: ANN201
    for i, j in T.grid(8, 6):
        with T.block("c"):
            vi, vj = T.axis.remap("SS", [i, j])
            c[vi, vj] = c[vi, vj] + T.float32(1)


def gather() -> PrimFunc:
    """c[i] = a[i // 4 * 8 + i % 4] + a[2 i]."""
    a = te.placeholder((40,), name="a")
    c = te.compute((16,), lambda i: a[i // 4 * 8 + i % 4] + a[2 * i], name="c")
    return te.create_prim_func([a, c])


def spread(
    dtype: str = "float32", kernel: int = 4, out: int = 8, where: str = "made", rest: int = 0
) -> PrimFunc:
    """A row of five with zeros between them, times a window: c[h] is the sum over k and both
    columns of x[(h + k - 2) / 2] w[k]; the condition in x's copy, in the factor or around both."""
    x, w = te.placeholder((5,), dtype, "x"), te.placeholder((kernel, 2), dtype, "w")
    k = te.reduce_axis((0, kernel), "k")

    def value(at: PrimExpr, factor: PrimExpr) -> PrimExpr:
        """A factor at a place of the row, 0 between its elements and outside."""
        inside = tir.all(at >= 2, at < 11, (at - 2) % 2 == rest)
        return tir.if_then_else(inside, x[(at - 2) // 2] * factor, tir.const(0, dtype))

    one = tir.const(1, dtype)
    copy = te.compute((out + kernel - 1,), lambda i: value(i, one), name="copy")
    terms: dict[str, Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
        "made": lambda h, o: copy[h + k] * w[k, o],
        "factor": lambda h, o: w[k, o] * value(h + k, one),
        "whole": lambda h, o: value(h + k, w[k, o]),
    }
    c = te.compute((out, 2), lambda h, o: te.sum(terms[where](h, o), axis=k), name="c")
    return te.create_prim_func([x, w, c])


def plain_sum() -> PrimFunc:
    """c[i] = the sum of row i."""
    a, k = te.placeholder((8, 6), name="a"), te.reduce_axis((0, 6), "k")
    return te.create_prim_func([a, te.compute((8,), lambda i: te.sum(a[i, k], axis=k), name="c")])


def bordered() -> PrimFunc:
    """c[i] = the sum of row i but its first two columns."""
    a, k = te.placeholder((8, 6), name="a"), te.reduce_axis((0, 6), "k")
    zero = tir.const(0, "float32")
    c = te.compute(
        (8,), lambda i: te.sum(tir.if_then_else(k >= 2, a[i, k], zero), axis=k), name="c"
    )
    return te.create_prim_func([a, c])


def scaled() -> PrimFunc:
    """c[i] is the sum of three neighbours, 0 beyond the ends, each times a number."""
    x, w = te.placeholder((6,), name="x"), te.placeholder((), name="w")
    k, zero = te.reduce_axis((0, 3), "k"), tir.const(0, "float32")
    copy = te.compute(
        (8,), lambda i: tir.if_then_else(tir.all(i >= 1, i < 7), x[i - 1], zero), name="copy"
    )
    c = te.compute((6,), lambda i: te.sum(copy[i + k] * w(), axis=k), name="c")
    return te.create_prim_func([x, w, c])


def says_finite() -> PrimFunc:
    """The same, by a program whose numbers are finite."""
    result = spread()
    return result.with_fields(attrs={**(result.attrs or {}), "tir.fast_math": "nnan ninf"})


def skipped(sch: Schedule, lanes: int = 1) -> None:
    """The step, and a loop of its own for the first."""
    sch.skip_zeros("c", lanes)
    sch.reorder(*reversed(sch.get_loops("c")[:2]))


def begun(sch: Schedule, lanes: int = 1) -> None:
    """Sums that begin before the loop whose turns are left out."""
    *_, last = sch.get_loops("c")
    sch.decompose_reduction("c", last)
    sch.skip_turns("c", last, lanes=lanes)


def copied(sch: Schedule) -> None:
    """The same of weights side by side."""
    sch.cache_read("c", 1, "global")
    begun(sch)


def check(sch: Schedule, program: PrimFunc) -> None:
    """A schedule and what its trace makes of the first program compute the same as that."""
    again = Schedule(program)
    sch.trace.apply_to_schedule(again)
    assert str(again.func) == str(sch.func)
    random = np.random.default_rng(0)
    shapes = [tuple(int(d) for d in b.shape) for b in program.params]
    arrays = [random.standard_normal(s).astype("float32") for s in shapes]
    actual, expected = ([a.copy() for a in arrays] for _ in range(2))
    run_prim_func(lower(program), *expected)
    run_prim_func(lower(sch.func), *actual)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


STEPS: dict[str, tuple[Callable[[], PrimFunc], Callable[[Schedule], object], tuple[str, ...]]] = {
    "merge inner": (two, lambda s: s.merge(s.get_loops("c")[1], s.get_loops("d")[1]),
                    ("for i_m, j_m in T.grid(8, 6):",)),
    "merge outer": (two, lambda s: s.merge(s.get_loops("d")[0], s.get_loops("c")[0]),
                    ("for i_m in range(8):",)),
    "write_at": (two, lambda s: s.write_at(s.get_loops("c")[0], "c", 0, "global"),
                 ("c_global = T.alloc_buffer((1, 6),", "c[i + v0, v1] = c_global[v0, v1]")),
    "cache_inplace": (lambda: changed, lambda s: s.cache_inplace("c", 0, "local"),
                      ("c_local[v0, v1] = c[v0, v1]", "c[v0, v1] = c_local[v0, v1]")),
    "decompose_padding": (
        padded,
        lambda s: s.decompose_padding("b", s.get_loops("b")[0]),
        ("b[i_1, j_1] = 7.0", "in T.grid(6, 6):", "b[i_1 + 1, j_1] = a[i_1, j_1]"),
    ),
    "decompose_padding inner": (
        padded, lambda s: s.decompose_padding("b", s.get_loops("b")[1]), ("T.where(",)
    ),
    "decompose_padding of a part": (
        padded,
        lambda s: s.decompose_padding("b", s.split(s.get_loops("b")[0], [None, 3])[1]),
        ("b[i, j_1] = 7.0",),
    ),
    "cache_index": (gather, lambda s: s.cache_index("c", "global"),
                    ("a[index_var[i_1]]", "a[index_var_1[i_1]]")),
    "skip_zeros": (spread, skipped, ("in T.grid(4, 2, 2, 2):", "T.isfinite(c_sums[h % 2,")),
    "skip_zeros in vectors": (spread, lambda s: skipped(s, 2), ("T.vectorized(2)",)),
    "skip_zeros of an odd window": (
        lambda: spread(kernel=3, out=7), skipped, ("T.where(", "k_1 * 2 + h_phase_1 * -1 % 2 < 3")
    ),
    "skip_zeros at other places": (lambda: spread(rest=1), skipped, ("(h_phase_1 * -1 + 1) % 2",)),
    "skip_zeros of a factor": (lambda: spread(where="factor"), skipped, ("T.isfinite(",)),
    "skip_zeros of whole terms": (lambda: spread(where="whole"), skipped, ("c[h_1 * 2 + h_phase",)),
    "skip_zeros of finite numbers": (says_finite, skipped, ("c[h_1 * 2 + h_phase_1",)),
    "skip_zeros of integers": (lambda: spread("int32"), skipped, ("c[h_1 * 2 + h_phase_1",)),
    "skip_turns": (spread, begun, ("if is_strange or h + k >= 2 and h + k < 11", "T.isfinite(w[")),
    "skip_turns in vectors": (spread, lambda s: begun(s, 2), ("T.vectorized(2)",)),
    "skip_turns of an odd row": (spread, lambda s: begun(s, 3), ("T.isfinite(w[i0, at]",)),
    "skip_turns of a factor": (lambda: spread(where="factor"), begun, ("T.isfinite(w[",)),
    "skip_turns of whole terms": (lambda: spread(where="whole"), begun, ("if h + k >= 2",)),
    "skip_turns of finite numbers": (says_finite, begun, ("if h + k >= 2",)),
    "skip_turns of integers": (lambda: spread("int32"), begun, ("if h + k >= 2",)),
    "skip_turns of a copied factor": (spread, copied, ("T.isfinite(w[",)),
    "skip_turns of a number": (scaled, begun, ("if is_strange or i + k >= 1", "T.isfinite(w[()])")),
    "skip_turns of sums": (bordered, begun, ("if k >= 2:",)),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_schedule_step_makes_expected_program(name: str) -> None:
    make, step, texts = STEPS[name]
    program = make()
    sch = Schedule(program)
    step(sch)
    for text in texts:
        assert text in str(sch.func)
    check(sch, program)


@pytest.mark.parametrize("strange", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", [(0, 1), (3, 0)])
@pytest.mark.parametrize("step", [skipped, begun, copied])
def test_zeros_are_not_left_out_where_they_are_times_no_number(
    strange: float, where: tuple[int, int], step: Callable[[Schedule], None]
) -> None:
    program = spread()
    sch = Schedule(program)
    step(sch)
    x, w = np.arange(5, dtype="float32"), np.ones((4, 2), "float32")
    w[where] = strange
    actual, expected = np.zeros((2, 8, 2), "float32")
    with np.errstate(invalid="ignore"):
        run_prim_func(lower(program), x, w, expected)
        run_prim_func(lower(sch.func), x, w, actual)
    assert (
        np.isnan(expected[:, where[1]]).sum() >= 4 and np.isfinite(expected[:, 1 - where[1]]).all()
    )
    np.testing.assert_array_equal(actual, expected)


def test_skipped_iterations_are_counted() -> None:
    sch = Schedule(spread())
    h, o, k = sch.get_loops("c")
    assert sch.share_skipped("c", k) == 0  # it begins in the loop
    sch.decompose_reduction("c", k)
    assert sch.share_skipped("c", k) == 17 / 32
    assert sch.share_skipped("c", h) == sch.share_skipped("c", o) == 0


@pytest.mark.parametrize("seed", range(5))
def test_tiles_whose_inner_part_is_a_multiple(seed: int) -> None:
    sch = Schedule(two(), seed=seed)
    loop, _ = sch.get_loops("c")
    tile = sch.sample_partitioned_tile(loop, 3, 1, innerpart_factor=4)
    sizes = [int(sch.get(item)) for item in tile]  # type: ignore[call-overload]
    assert np.prod(sizes) == 8 and np.prod(sizes[1:]) % 4 == 0
    sch.split(loop, tile)
    check(sch, two())


def _loops(sch: Schedule, *names: str) -> list[object]:
    return [sch.get_loops(name)[0] for name in names]


REFUSED: dict[str, tuple[Callable[[], PrimFunc], Callable[[Schedule], object], str]] = {
    "merge one": (two, lambda s: s.merge(*_loops(s, "c")), "merge: expected at least two loops"),
    "merge what depends": (chain, lambda s: s.merge(*_loops(s, "c", "d")),
                           "share 'c', which one of them writes"),
    "merge depths": (two, lambda s: s.merge(s.get_loops("c")[0], s.get_loops("d")[1]),
                     "has another extent or depth"),
    "write_at elsewhere": (two, lambda s: s.write_at(s.get_loops("d")[0], "c", 0, "global"),
                           "write_at 'c': the block is not in loop"),
    "inplace of nothing": (two, lambda s: s.cache_inplace("c", 0, "global"),
                           "cache_inplace 'c': it reads and writes [], there is no number 0"),
    "padding of a fused loop": (
        padded,
        lambda s: s.decompose_padding("b", s.fuse(*s.get_loops("b"))),
        "does not bound loop",
    ),
    "padding of none": (two, lambda s: s.decompose_padding("c", s.get_loops("c")[0]),
                        "decompose_padding 'c': it does not choose between data and a constant"),
    "zeros of none": (chain, lambda s: s.skip_zeros("d"), "expected a reduction block, got a"),
    "zeros of what is plain": (plain_sum, lambda s: s.skip_zeros("c"),
                               "skip_zeros 'c': no term of it is 0 by a condition"),
    "zeros without a remainder": (bordered, lambda s: s.skip_zeros("c"),
                                  "skip_zeros 'c': no remainder says which of its terms are 0"),
    "zeros of fused loops": (spread, lambda s: (s.fuse(*s.get_loops("c")[:2]),
                                                s.skip_zeros("c")),
                             "skip_zeros 'c': something was done to its loops before"),
    "zeros of lanes": (spread, lambda s: s.skip_zeros("c", 0), "lanes above 0 expected, got 0"),
    "zeros times what is left out": (
        lambda: spread(out=1), lambda s: s.skip_zeros("c"),
        "skip_zeros 'c': some elements of 'w' are only in terms that are left out",
    ),
    "turns of what is plain": (plain_sum, begun,
                               "skip_turns 'c': no condition says that turns of ['k'] add zeros"),
    "turns outside": (spread, lambda s: (s.decompose_reduction("c", s.get_loops("c")[2]),
                                         s.skip_turns("c", s.get_loops("c")[0])),
                      "skip_turns 'c': blocks ['c_init'] are in the loop too"),
    "turns of a sum that begins": (spread, lambda s: s.skip_turns("c", s.get_loops("c")[2]),
                                   "skip_turns 'c': expected an update block, got a reduction one"),
    "turns of another": (chain, lambda s: s.skip_turns("d", s.get_loops("c")[0]), "skip_turns"),
    "turns of lanes": (spread, lambda s: begun(s, 0), "lanes above 0 expected, got 0"),
    "index of none": (two, lambda s: s.cache_index("c", "global"), "it has no index to compute"),
    "tile": (two, lambda s: s.sample_partitioned_tile(s.get_loops("c")[0], 2, 1, 3),
             "sample_partitioned_tile 'i': 3 does not divide the extent 8"),
    "separators": (two, lambda s: s.set_axis_separator("c", ("write", 0), [1]),
                   "memory has one dimension, so that [1] cannot be honoured"),
    "hidden": (two, lambda s: s.unsafe_hide_buffer_access("c", "read", [0]),
               "what a block reads and writes follows from its body"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_steps_are_refused(name: str) -> None:
    make, step, message = REFUSED[name]
    sch = Schedule(make())
    before = str(sch.func)
    with pytest.raises(ScheduleError, match=re.escape(message)):
        step(sch)
    assert str(sch.func) == before or {"fused", "turns"} & set(name.split())


def test_padding_decomposition_is_checked() -> None:
    sch, other = Schedule(padded()), Schedule(two())
    assert sch.can_decompose_padding("b", sch.get_loops("b")[0])
    assert not other.can_decompose_padding("c", other.get_loops("c")[0])
    assert str(sch.func) == str(Schedule(padded()).func)
