"""`read_at` with `first_use`: the first reader copies a buffer for later readers."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest
from ordered_programs import random_ordered_steps

import ekiden
from ekiden import te, tir
from ekiden.ir.prim import SizeVar
from ekiden.kernels.micro_kernels.registered_micro_kernels import (
    MATRIX_TILE_KERNEL,
    REGISTER_TILE_KERNEL,
)
from ekiden.runtime.errors import ScheduleError
from ekiden.script import tir as T
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.schedule.program import ScheduleProgram
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.transform import lower
from long_runs import LONG, alike

Array = npt.NDArray[np.float32]
USUAL, WHOLE = 2, 40
GROUP = 25
"""Programs in each of so many groups."""
NATIVE_EVERY = 5
"""One program of so many is compiled and run natively as well."""


def product(rows: int | SizeVar = 13, depth: int = 9, columns: int = 24) -> PrimFunc:
    """a @ b as one block "c"."""
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((depth, columns), name="b")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    return te.create_prim_func([a, b, c])


def window(rows: int, depth: int, columns: int) -> PrimFunc:
    """c[i, j] = sum over k of a[i, k] * b[k + j], whose neighbours read the same elements."""
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((depth + columns,), name="b")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k + j], k), name="c")
    return te.create_prim_func([a, b, c])


def outer(rows: int, depth: int, columns: int) -> PrimFunc:
    """c[i, j] = a[i] * b[j]."""
    del depth
    a, b = te.placeholder((rows,), name="a"), te.placeholder((columns,), name="b")
    c = te.compute((rows, columns), lambda i, j: a[i] * b[j], name="c")
    return te.create_prim_func([a, b, c])


def meaning(func: PrimFunc, arguments: list[Array]) -> Array:
    """The result of the program before its steps."""
    inputs = [*arguments[:-1], arguments[-1].copy()]
    run_prim_func(lower(func), *inputs)
    return inputs[-1]


def arguments_of(func: PrimFunc, seed: int) -> list[Array]:
    """Whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-3, 4, [int(getattr(d, "value", 13)) for d in b.shape]).astype("float32")
        for b in func.buffers
    ]


def panels(func: PrimFunc) -> tuple[tir.Schedule, tir.LoopRV]:
    """The product in panels of 8 columns, whose first 3 rows come first; and the panel loop."""
    sch = tir.Schedule(func)
    i, j, k = sch.get_loops("c")
    panel, column = sch.split(j, [None, 8])
    sch.reorder(panel, i, k, column)
    sch.partition(i, [3])
    return sch, panel


def test_first_rows_of_a_panel_copy_it_for_the_others() -> None:
    func = product()
    sch, panel = panels(func)
    copy = sch.read_at(panel, "c_1", 1, "global", first_use="c")
    block = sch.get(copy)
    assert isinstance(block, tir.Block)
    text = sch.func.astext()
    assert 'b_global = T.alloc_buffer((9, 8), "float32")' in text
    assert "T.where(i == 0)" in text  # one row of the three copies
    sch.parallel(panel)
    arguments = arguments_of(func, 0)
    expected = arguments[0] @ arguments[1]
    run_prim_func(tir.verify(lower(sch.func)), *arguments)
    np.testing.assert_array_equal(arguments[-1], expected)


def test_step_replays() -> None:
    sch, panel = panels(product())
    sch.read_at(panel, "c_1", 1, "global", first_use="c")
    again = tir.Schedule(product())
    tir.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert again.func.astext() == sch.func.astext()
    assert "first_use=b0" in str(sch.trace)


def test_copy_of_a_region_stays_in_the_loop_of_the_region() -> None:
    a, x = te.placeholder((13, 9), name="a"), te.placeholder((9, 24), name="x")
    b, k = te.compute((9, 24), lambda i, j: x[i, j] * 2.0, name="b"), te.reduce_axis((0, 9), "k")
    c = te.compute((13, 24), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    sch, panel = panels(te.create_prim_func([a, x, c]))
    copy = sch.read_at(panel, "c_1", "b", "global")
    with pytest.raises(ScheduleError, match="it uses loop 'j_0', which is not around the new"):
        sch.reverse_compute_at(copy, sch.get_loops("b")[1])


@pytest.mark.parametrize(
    ("first", "reader", "message"),
    [
        ("c_1", "c", "block 'c' reads 'b' before 'c_1'"),
        ("c", "c", None),
    ],
)
def test_blocks_in_the_wrong_order_are_refused(
    first: str, reader: str, message: str | None
) -> None:
    sch, panel = panels(product())
    if message is None:  # the first block may be named as the reader, too: both read the buffer
        sch.read_at(panel, reader, 1, "global", first_use=first)
        return
    with pytest.raises(ScheduleError, match=message):
        sch.read_at(panel, reader, 1, "global", first_use=first)


def test_first_block_that_reads_less_is_refused() -> None:
    sch, panel = panels(product())
    _, row, k, _ = sch.get_loops("c")
    sch.reorder(k, row)
    sch.partition(k, [4])
    with pytest.raises(ScheduleError, match="'c' is not known to read all that is read later"):
        sch.read_at(panel, "c_1", 1, "global", first_use="c")


def test_blocks_that_take_turns_are_refused() -> None:
    sch, panel = panels(product())
    column = sch.get_loops("c")[-1]
    sch.partition(column, [4])
    with pytest.raises(ScheduleError, match="runs between steps of 'c', in loop 'k'"):
        sch.read_at(panel, "c", 1, "global", first_use="c")


def test_only_reader_is_refused() -> None:
    sch = tir.Schedule(product())
    with pytest.raises(ScheduleError, match="no block but 'c' reads 'b' in the loop"):
        sch.read_at(sch.get_loops("c")[1], "c", 1, "global", first_use="c")


def test_rows_on_threads_are_refused() -> None:
    sch, panel = panels(product())
    sch.parallel(sch.get_loops("c")[1])
    with pytest.raises(ScheduleError, match="loop 'i' around the copy is parallel"):
        sch.read_at(panel, "c_1", 1, "global", first_use="c")


def test_rows_that_may_be_none_are_refused() -> None:
    sch, panel = panels(product(SizeVar("n")))
    with pytest.raises(ScheduleError, match="loop 'i' around the copy may have no step"):
        sch.read_at(panel, "c_1", 1, "global", first_use="c")


def test_what_one_step_of_a_loop_writes_is_not_written_in_each() -> None:
    """The condition on i is none of a loop within a step of i."""

    @T.prim_func
    def once(x: T.Buffer((4,), "float32"), out: T.Buffer((3, 4), "float32")) -> None:
        t = T.alloc_buffer((4,), "float32")
        for i in range(3):
            for j in range(4):
                with T.block("first"):
                    vj = T.axis.spatial(4, j)
                    T.where(i == 0)
                    t[vj] = x[vj]
            for j in range(4):
                with T.block("each"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    out[vi, vj] = t[vj]

    sch = tir.Schedule(once)
    with pytest.raises(ScheduleError, match="'first' writes 't' under a condition"):
        sch.parallel(sch.get_loops("each")[0])


def scheduled(seed: int) -> tuple[PrimFunc, tir.Schedule, bool]:
    """A program, its rows parted, under random steps before and after a copy on first use; whether
    the copy was accepted.
    """
    source = random.Random(seed)
    sizes = [source.choice([2, 3, 5, 8, 12]) for _ in range(3)]
    func = source.choice([product, product, window, outer])(*sizes)
    sch = tir.Schedule(func, seed=seed, error_render_level="fast")
    loops = sch.get_loops("c")
    for loop in loops[1:]:
        if source.random() < 0.6:
            tail = source.choice(["predicate", "short", "balanced"])
            sch.split(loop, [None, source.randint(1, 6)], tail=tail)
    row, *others = sch.get_loops("c")
    if source.random() < 0.5:
        sch.add_unit_loop(row)
    elif others:
        place = source.randint(1, len(others))
        try:
            sch.reorder(*others[:place], row, *others[place:])
        except ScheduleError:
            sch.add_unit_loop(row)
    sch.partition(row, [source.choice([0, 1, 1, 2, 3])])
    inside = sch.get_loops("c_1")
    around = [x for x in sch.get_loops("c") if any(sch.get(x) is sch.get(y) for y in inside)]
    buffer = source.choice(["b", "b", "a"])
    accepted = False
    for loop in source.sample(around, len(around)):
        try:
            sch.read_at(loop, "c_1", buffer, "global", source.choice([0, 0, 3]), first_use="c")
        except ScheduleError:
            continue
        accepted = True
        break
    random_ordered_steps(sch, source, source.randint(0, 8))
    return func, sch, accepted


@alike(2)
@pytest.mark.parametrize(
    "group", [pytest.param(n, marks=() if n < USUAL else LONG) for n in range(WHOLE)]
)
def test_random_copies_on_first_use_keep_results(group: int) -> None:
    accepted = 0
    for seed in range(group * GROUP, (group + 1) * GROUP):
        func, sch, copied = scheduled(seed)
        accepted += copied
        arguments = arguments_of(func, seed)
        expected = meaning(func, arguments)
        run_prim_func(tir.verify(lower(sch.func)), *arguments)
        np.testing.assert_array_equal(arguments[-1], expected, err_msg=f"seed {seed}")
        if seed % NATIVE_EVERY == 0:
            arguments = arguments_of(func, seed)
            ekiden.build(sch.func)["main"](*arguments)
            np.testing.assert_array_equal(arguments[-1], expected, err_msg=f"native, {seed}")
    assert accepted >= 2, accepted


def copying_tiles(
    func: PrimFunc, panel: int, first: int, height: int, options: dict[str, int]
) -> tir.Schedule:
    """Return the schedule in which the tile of the first rows copies a panel that others read."""
    sch = tir.Schedule(func)
    i, j, k = sch.get_loops("c")
    around, column = sch.split(j, [None, panel])
    sch.reorder(around, i, column, k)
    sch.partition(i, [first])
    sch.read_at(around, "c_1", 1, "global", first_use="c")
    sch.tensorize(sch.get_loops("c")[1], REGISTER_TILE_KERNEL.call(**options))
    _, row = sch.split(sch.get_loops("c_1")[1], [None, height], tail="balanced")
    sch.tensorize(row, REGISTER_TILE_KERNEL.call(**options))
    return sch


@alike(2)
@pytest.mark.parametrize(
    "group", [pytest.param(n, marks=() if n < USUAL else LONG) for n in range(WHOLE)]
)
def test_random_tiles_that_copy_their_panel_match_numpy(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        source = random.Random(seed)
        depth, lanes = source.randint(1, 9), source.choice([1, 2, 4])
        panel = lanes * source.randint(1, 3)
        columns, first = panel * source.randint(1, 3), source.randint(1, 4)
        rows = first + source.randint(1, 9)
        func = product(rows, depth, columns)
        options = {
            "lanes": lanes,
            "unroll": source.randint(1, 2),
            "own": source.choice([0, 0, 4]),
        }
        sch = copying_tiles(func, panel, first, source.randint(1, 4), options)
        assert "copy" not in str(sch.func), "no pass over the panel precedes the first tile"
        rng = np.random.default_rng(seed)
        a = rng.integers(-3, 4, (rows, depth)).astype("float32")
        b = rng.integers(-3, 4, (depth, columns)).astype("float32")
        out = np.full((rows, columns), np.nan, "float32")
        run_prim_func(tir.verify(lower(sch.func)), a, b, out)
        np.testing.assert_array_equal(out, a @ b, err_msg=f"seed {seed}")


def test_tile_without_copies_refuses_one() -> None:
    sch, around = panels(product())
    _, i, k, column = sch.get_loops("c")
    sch.reorder(i, column, k)
    sch.read_at(around, "c_1", 1, "global", first_use="c")
    with pytest.raises(ScheduleError, match="'matrix_tile' makes no copy 'c_copy'"):
        sch.tensorize(i, MATRIX_TILE_KERNEL.call())


@pytest.mark.parametrize("what", ["row", "elements"])
def test_copy_of_something_else_is_refused(what: str) -> None:
    sch, around = panels(product())
    _, i, k, column = sch.get_loops("c")
    sch.reorder(i, column, k)
    sch.read_at(around, "c_1", 1, "global", first_use="c")
    program = ScheduleProgram(sch.func)
    copy = program.blocks["c_copy"]
    if what == "row":
        fault = "block 'c_copy' is no copy of 'b' by the first row"
        rows = program.loops_above(copy)[1].loop_var
        other = copy.with_fields(predicate=rows.equal(1))
    else:
        fault = "'c_copy' copies what the sum does not read"
        step, inside = copy.iter_values
        other = copy.with_fields(iter_values=(step, (inside + 1) % 8))
    sch = tir.Schedule(program.replace(copy, other))
    with pytest.raises(ScheduleError, match=fault):
        sch.tensorize(sch.get_loops("c")[1], REGISTER_TILE_KERNEL.call(lanes=8))
