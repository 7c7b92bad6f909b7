"""Loops in regions by where conditions hold: random nests mean the same, regions have no condition
that is decided in them, and what cannot be parted is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from schedule_programs import random_steps

from ekiden import te, tir
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, SizeVar, const, logical_and
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir import PrimFunc, Schedule
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower
from long_runs import LONG, alike

Array = npt.NDArray[np.float32]
USUAL_GROUPS, ALL_GROUPS, NESTS_PER_GROUP = 2, 40, 25
FORMS = ("term", "factor", "choice", "copy")
"""Where the condition is: around a term of a sum, around a factor of it, between two values that
are no zero, in a copy with a border."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window over a row with a border: taps, stride, dilation, elements before and behind."""

    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def results(self) -> int:
        """Return the number of windows; 0 where the row is shorter than one."""
        reach = (self.taps - 1) * self.dilation + 1
        return max(0, (self.size + self.before + self.after - reach) // self.stride + 1)

    def indices(self) -> npt.NDArray[np.int64]:
        """Return the element that each tap reads; it is outside of the row in the border."""
        starts = np.arange(self.results)[:, None] * self.stride - self.before
        return starts + np.arange(self.taps)[None, :] * self.dilation


def random_window(source: random.Random) -> Window:
    """Return a window that has results."""
    while True:
        window = Window(*(source.randint(low, high) for low, high in
                          ((1, 19), (1, 4), (1, 3), (1, 3), (0, 5), (0, 5))))  # fmt: skip
        if window.results:
            return window


def window_sum(window: Window, form: str, columns: int = 2, symbolic: bool = False) -> PrimFunc:
    """Return the sums y[i, c] of x[i * stride + k * dilation - before, c] * w[k, c]."""
    size: PrimExpr | int = SizeVar("n") if symbolic else window.size
    x = te.placeholder((size, columns), name="x")
    w = te.placeholder((window.taps, columns), name="w")
    reach = (window.taps - 1) * window.dilation + 1
    results = (size + (window.before + window.after - reach)) // window.stride + 1

    def value(i: PrimExpr, k: PrimExpr, c: PrimExpr, then: Callable[[PrimExpr], PrimExpr],
              otherwise: float = 0.0) -> PrimExpr:  # fmt: skip
        at = i * window.stride + k * window.dilation - window.before
        inside = logical_and(at >= 0, at < size)
        return if_then_else(inside, then(x[at, c]), const(otherwise, "float32"))

    if form == "copy":
        copy = te.compute(
            (results, window.taps, columns), lambda i, k, c: value(i, k, c, lambda v: v), name="y"
        )
        return te.create_prim_func([x, w, copy])
    k = te.reduce_axis((0, window.taps), "k")
    terms: dict[str, Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
        "term": lambda i, c: value(i, k, c, lambda v: v * w[k, c]),
        "factor": lambda i, c: value(i, k, c, lambda v: v) * w[k, c],
        "choice": lambda i, c: value(i, k, c, lambda v: v, 3.0) * w[k, c],
    }
    y = te.compute((results, columns), lambda i, c: te.sum(terms[form](i, c), k), name="y")
    return te.create_prim_func([x, w, y])


def expected(window: Window, form: str, x: Array, w: Array) -> Array:
    """Return what the program of a window computes, in NumPy."""
    at = window.indices()
    inside = (at >= 0) & (at < window.size)
    outside = np.float32(3.0 if form == "choice" else 0.0)
    taps = np.where(inside[..., None], x[np.clip(at, 0, window.size - 1)], outside)
    return taps if form == "copy" else (taps * w).sum(1)


def check(func: PrimFunc, window: Window, form: str, what: str, columns: int = 2) -> None:
    """Assert that a program computes a window's sums: of whole numbers, so that they are exact."""
    rng = np.random.default_rng(len(what))
    x = rng.integers(-3, 4, (window.size, columns)).astype("float32")
    w = rng.integers(-3, 4, (window.taps, columns)).astype("float32")
    reference = expected(window, form, x, w)
    out = np.full(reference.shape, 77, "float32")
    run_prim_func(tir.verify(lower(func)), x, w, out)
    np.testing.assert_array_equal(out, reference, err_msg=what)


def scheduled(seed: int) -> tuple[Schedule, Window, str, bool]:
    """Return a random nest with a loop parted, other steps before and after, and whether it is."""
    source = random.Random(seed)
    window, form = random_window(source), source.choice(FORMS)
    sch = Schedule(window_sum(window, form, symbolic=source.random() < 0.3), seed=seed)
    target = sch.get_loops("y")[0]
    try:
        if source.random() < 0.6:
            tail = source.choice(["predicate", "balanced", "short"])
            target, _ = sch.split(target, [None, source.randint(1, 6)], tail=tail)
        if form != "copy" and source.random() < 0.5:
            sch.decompose_reduction("y", sch.get_loops("y")[-1])
    except ScheduleError:
        pass
    try:
        sch.partition_by_conditions("y", source.choice([target, *sch.get_loops("y")]))
    except ScheduleError:
        return sch, window, form, False
    random_steps(sch, source, source.choice([0, 4, 12]))
    return sch, window, form, True


@alike(2)
@pytest.mark.parametrize(
    "group", [pytest.param(n, marks=() if n < USUAL_GROUPS else LONG) for n in range(ALL_GROUPS)]
)
def test_random_nests_in_regions_mean_the_same(group: int) -> None:
    parted = 0
    for seed in range(group * NESTS_PER_GROUP, (group + 1) * NESTS_PER_GROUP):
        sch, window, form, is_parted = scheduled(seed)
        parted += is_parted
        check(sch.func, window, form, f"seed {seed}: {window} {form}")
    assert parted > NESTS_PER_GROUP // 3


@pytest.mark.parametrize("seed", range(6))
def test_regions_are_replayed(seed: int) -> None:
    source = random.Random(seed)
    func = window_sum(random_window(source), source.choice(FORMS), symbolic=seed % 2 == 0)
    sch = Schedule(func)
    sch.partition_by_conditions("y", sch.get_loops("y")[0])
    for trace in (sch.trace, tir.Trace.from_json(json.dumps(sch.trace.as_json()))):
        again = Schedule(func)
        trace.apply_to_schedule(again)
        assert str(again.func) == str(sch.func)
    assert "= sch.partition_by_conditions(b0, l" in str(sch.trace)


def blocks_with_conditions(sch: Schedule) -> dict[str, bool]:
    """Return, for each block, whether it has a condition."""
    return {
        name: "if_then_else" in str(realize.block.body)
        for name, realize in sch._current_program.blocks.items()
    }


def test_tiles_without_a_border_have_no_condition() -> None:
    window = Window(23, 3, 1, 1, 1, 1)
    sch = Schedule(window_sum(window, "term"))
    tile, _ = sch.split(sch.get_loops("y")[0], [None, 6], tail="balanced")
    regions = sch.partition_by_conditions("y", tile)
    assert blocks_with_conditions(sch) == {"y_edge": True, "y": False, "y_edge_1": True}
    assert [sch.get(b).name for b in regions] == ["y_edge", "y", "y_edge_1"]  # type: ignore[union-attr]
    extents = [[int(sch.get(s).extent) for s in sch.get_loops(b)[:2]] for b in regions]  # type: ignore[union-attr, arg-type]
    assert extents == [[1, 6], [2, 6], [1, 5]]


def test_row_of_unknown_length_has_a_middle_without_conditions() -> None:
    window = Window(9, 3, 2, 1, 1, 1)
    func = window_sum(window, "term", symbolic=True)
    sch = Schedule(func)
    sch.partition_by_conditions("y", sch.get_loops("y")[0])
    assert blocks_with_conditions(sch) == {"y_edge": True, "y": False, "y_edge_1": True}
    for size in range(1, 9):
        narrow = Window(size, 3, 2, 1, 1, 1)
        check(sch.func, narrow, "term", f"size {size}")


def test_steps_after_a_partition_read_nothing_outside() -> None:
    """A copy of what a block reads is made for all of its iterators: those of a region only."""
    window = Window(23, 3, 1, 1, 1, 1)
    sch = Schedule(window_sum(window, "term"))
    _, inner, _ = sch.partition_by_conditions("y", sch.get_loops("y")[0])
    sch.reindex(inner, ("read", 0))
    check(sch.func, window, "term", "reindexed")


def test_region_ends_where_its_block_does() -> None:
    """A split that rounds up has iterations that are none of the block."""
    window = Window(15, 3, 1, 1, 1, 1)
    sch = Schedule(window_sum(window, "term"))
    tile, _ = sch.split(sch.get_loops("y")[0], [None, 6])
    regions = sch.partition_by_conditions("y", tile)
    extents = [sch.get(b).iter_vars[0].extent for b in regions]  # type: ignore[union-attr]
    assert [int(n) for n in extents] == [6, 6, 3]  # type: ignore[call-overload]
    check(sch.func, window, "term", "rounded up")


def test_iterators_that_share_a_loop_keep_their_condition() -> None:
    """i - j is the loop, but i and j have points of which it is not."""
    n = SizeVar("n")
    x = te.placeholder((n,), name="x")
    y = te.compute((n, 3), lambda i, j: if_then_else(i >= j + 1, x[i - j - 1], -1.0), name="y")
    sch = Schedule(te.create_prim_func([x, y]))
    sch.transform_block_layout("y", lambda i, j: (i, j))
    sch.partition_by_conditions("y", sch.get_loops("y")[0])
    numbers = np.arange(7, dtype="float32")
    out = np.full((7, 3), np.nan, "float32")
    run_prim_func(tir.verify(lower(sch.func)), numbers, out)
    reference = [[numbers[i - j - 1] if i > j else -1 for j in range(3)] for i in range(7)]
    np.testing.assert_array_equal(out, np.array(reference, "float32"))


def test_region_in_which_a_condition_never_holds_has_the_other_value() -> None:
    window = Window(2, 1, 1, 1, 6, 0)
    sch = Schedule(window_sum(window, "choice"))
    sch.partition_by_conditions("y", sch.get_loops("y")[0])
    assert not any(blocks_with_conditions(sch).values())
    check(sch.func, window, "choice", "never")


def plain() -> PrimFunc:
    """Return y[i, j] = x[i, j] + 1."""
    x = te.placeholder((4, 5), name="x")
    return te.create_prim_func([x, te.compute((4, 5), lambda i, j: x[i, j] + 1.0, name="y")])


def triangle() -> PrimFunc:
    """Return the upper triangle of a square of unknown size, squared distances from the corner."""
    n = SizeVar("n")
    x = te.placeholder((n, n), name="x")
    y = te.compute(
        (n, n), lambda i, j: if_then_else(i * j >= n, x[i, j], const(0.0, "float32")), name="y"
    )
    return te.create_prim_func([x, y])


def ragged() -> PrimFunc:
    """Return rows of which the first so many elements, by a list, are of x."""
    x, sizes = te.placeholder((4, 9), name="x"), te.placeholder((4,), "int64", name="sizes")
    y = te.compute(
        (4, 9), lambda i, j: if_then_else(j < sizes[i], x[i, j], const(0.0, "float32")), name="y"
    )
    return te.create_prim_func([x, sizes, y])


def scattered(size: int = 80) -> PrimFunc:
    """Return a row with zeros at the even places of the border of each of 40 pairs."""
    x = te.placeholder((size,), name="x")
    k = te.reduce_axis((0, size), "k")
    y = te.compute(
        (size,), lambda i: te.sum(if_then_else(k <= i, x[k], const(0.0, "float32")), k), name="y"
    )
    return te.create_prim_func([x, y])


def _first(sch: Schedule) -> tir.LoopRV:
    return sch.get_loops("y")[0]


def _parallel(sch: Schedule) -> None:
    sch.parallel(_first(sch))
    sch.partition_by_conditions("y", _first(sch))


REFUSED: dict[str, tuple[Callable[[], PrimFunc], Callable[[Schedule], object], str]] = {
    "no condition": (
        plain, lambda s: s.partition_by_conditions("y", _first(s)),
        "partition_by_conditions 'y': no condition in it depends on loop 'i'",
    ),
    "another loop": (
        lambda: window_sum(Window(9, 3, 1, 1, 1, 1), "term"),
        lambda s: s.partition_by_conditions("y", s.get_loops("y")[1]),
        "partition_by_conditions 'y': no condition in it depends on loop 'c'",
    ),
    "no linear condition": (
        triangle, lambda s: s.partition_by_conditions("y", _first(s)),
        "partition_by_conditions 'y': i * j >= n is not linear in its loops",
    ),
    "a condition that is loaded": (
        ragged, lambda s: s.partition_by_conditions("y", s.get_loops("y")[1]),
        "partition_by_conditions 'y': j < sizes[i] is not linear in its loops",
    ),
    "many regions": (
        scattered, lambda s: s.partition_by_conditions("y", _first(s)),
        "partition_by_conditions 'y': loop 'i' has 80 regions, at most 32 are copied",
    ),
    "a parallel loop": (
        lambda: window_sum(Window(9, 3, 1, 1, 1, 1), "term"), _parallel,
        "partition_by_conditions 'i': the loop is already parallel",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_parted_is_refused(name: str) -> None:
    make, step, message = REFUSED[name]
    sch = Schedule(make())
    with pytest.raises(ScheduleError) as error:
        step(sch)
    assert str(error.value).splitlines()[0] == message
    names: Sequence[str] = list(sch._current_program.blocks)
    assert names == ["y"]


def test_loop_that_is_not_around_the_block_is_refused() -> None:
    x = te.placeholder((8,), name="x")
    a = te.compute((8,), lambda i: x[i] + 1.0, name="a")
    y = te.compute((8,), lambda i: if_then_else(i >= 1, a[i - 1], const(0.0, "float32")), name="y")
    sch = Schedule(te.create_prim_func([x, y]))
    with pytest.raises(
        ScheduleError, match="partition_by_conditions 'y': the block is not in loop"
    ):
        sch.partition_by_conditions("y", sch.get_loops("a")[0])
