"""Sums of variable extent, and empty sums, under any schedule."""

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.ir.prim import PrimExpr, Var
from ekiden.runtime.errors import ScheduleError
from ekiden.te import Tensor
from ekiden.te.schedule import Schedule
from long_runs import share

TARGETS = ["llvm", "llvm -mcpu=nehalem", "c"]
Step = Callable[[Schedule, Tensor, Tensor], object]


def sums() -> tuple[Tensor, Tensor, Tensor]:
    """x, the sum of the rows of x before each, and twice that."""
    x = te.placeholder((10, 7), name="X")

    def before(n: Var) -> PrimExpr:
        k, j = te.reduce_axis((0, n), "k"), te.reduce_axis((0, 7), "j")
        return te.sum(x[k, j], axis=[k, j])

    y = te.compute((10,), before, name="Y")
    return x, y, te.compute((10,), lambda i: y[i] * 2.0, name="Z")


def split(s: Schedule, y: Tensor, z: Tensor) -> None:
    s[y].split(y.op.reduce_axis[0], 3)


def split_in_parallel(s: Schedule, y: Tensor, z: Tensor) -> None:
    split(s, y, z)
    s[y].parallel(y.op.axis[0])


def kept(s: Schedule, y: Tensor, z: Tensor) -> None:
    s.cache_write(y, "local")


def kept_by_tiles(s: Schedule, y: Tensor, z: Tensor) -> None:
    s[y].split(y.op.axis[0], 4)
    cached = s.cache_write(y, "local")
    s[cached].split(y.op.reduce_axis[0], 3)


def kept_at_tiles(s: Schedule, y: Tensor, z: Tensor) -> None:
    cached = s.cache_write(y, "local")
    outer, _ = s[y].split(y.op.axis[0], 4)
    s[cached].compute_at(s[y], outer)
    s[cached].reorder(*reversed(y.op.reduce_axis))


def at_reader(s: Schedule, y: Tensor, z: Tensor) -> None:
    outer, _ = s[z].split(z.op.axis[0], 4)
    s[y].compute_at(s[z], outer)
    split(s, y, z)


def factored(s: Schedule, y: Tensor, z: Tensor) -> None:
    s.rfactor(y, y.op.reduce_axis[1])


STEPS = [split, split_in_parallel, kept, kept_by_tiles, kept_at_tiles, at_reader, factored]


@share(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("step", STEPS)
def test_prefix_sum_matches(step: Step, target: str) -> None:
    x, y, z = sums()
    s = te.create_schedule(z.op)
    step(s, y, z)
    data = np.random.default_rng(5).integers(-9, 9, (10, 7)).astype("float32")
    out = ekiden.nd.array(np.full(10, 77, "float32"))
    ekiden.build(s, [x, z], target)(ekiden.nd.array(data), out)
    expected = [2 * data[:n].sum() for n in range(10)]
    np.testing.assert_array_equal(out.numpy(), np.array(expected, "float32"))


def test_unsupported_schedules_of_variable_sums_are_refused() -> None:
    _, y, _ = sums()
    s = te.create_schedule(y.op)
    with pytest.raises(ScheduleError, match="the extent of 'k' depends on another axis"):
        s.rfactor(y, y.op.reduce_axis[0])
    s[y].split(y.op.reduce_axis[0], 3)
    with pytest.raises(ScheduleError, match="cache_write of 'Y': 'k' is split or fused"):
        s.cache_write(y, "local")


def rows(dtype: str) -> tuple[Tensor, Tensor, te.ReduceAxis]:
    n, m = te.size_var("n"), te.size_var("m")
    x = te.placeholder((n, m), dtype, name="X")
    k = te.reduce_axis((0, m), "k")
    return x, te.compute((n,), lambda i: te.sum(x[i, k], axis=k), name="Y"), k


def uneven(x: Tensor, y: Tensor, k: te.ReduceAxis) -> object:
    s = te.create_schedule(y.op)
    s[y].split(k, 3)
    return s


def crossed(x: Tensor, y: Tensor, k: te.ReduceAxis) -> object:
    s = te.create_schedule(y.op)
    outer, inner = s[y].split(k, 3)
    s[y].reorder(inner, outer)
    return s


def of_blocks(x: Tensor, y: Tensor, k: te.ReduceAxis) -> object:
    sch = tir.Schedule(te.create_prim_func([x, y]))
    sch.split(sch.get_loops("Y")[1], [None, 3])
    return sch.mod["main"]


@share(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
@pytest.mark.parametrize("make", [uneven, crossed, of_blocks])
def test_sums_of_no_elements_are_zero(
    make: Callable[[Tensor, Tensor, te.ReduceAxis], object], dtype: str, target: str
) -> None:
    x, y, k = rows(dtype)
    result = make(x, y, k)
    args = [x, y] if isinstance(result, Schedule) else None
    module = ekiden.build(result, args, target)  # type: ignore[arg-type]
    for shape in ((4, 0), (4, 7), (0, 3), (3, 1)):
        data = np.ones(shape, dtype)
        out = ekiden.nd.array(np.full(shape[0], 77, dtype))
        module(ekiden.nd.array(data), out)
        np.testing.assert_array_equal(out.numpy(), np.full(shape[0], shape[1], dtype))


@pytest.mark.parametrize("target", TARGETS)
def test_reducer_may_name_an_axis(target: str) -> None:
    x = te.placeholder((10,), name="x")

    def largest(n: Var) -> PrimExpr:
        k = te.reduce_axis((0, n), "k")
        top = te.comm_reducer(
            lambda a, b: te.max(a + b, n.astype("float32")), lambda t: tir.const(0, t)
        )
        return top(x[k], axis=k)

    y = te.compute((10,), largest, name="y")
    s = te.create_schedule(y.op)
    s.cache_write(y, "local")
    out = ekiden.nd.array(np.full(10, 77, "float32"))
    ekiden.build(s, [x, y], target)(ekiden.nd.array(np.ones(10, "float32")), out)
    expected = [0, *(n + n - 1 for n in range(1, 10))]
    np.testing.assert_array_equal(out.numpy(), np.array(expected, "float32"))
