"""Scans whose steps run on threads of a device, beside NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from test_reductions_of_schedules import kind_of

import ekiden
from ekiden import te, tir
from ekiden.ir.intrinsic import if_then_else
from ekiden.runtime import Device
from ekiden.te import Tensor

Update = Callable[[Tensor, Tensor, tir.Var, tir.Var], tir.PrimExpr]


def cumulative(
    m: int | tir.Var, n: int | tir.Var, update: Update, threads: int = 8
) -> tuple[te.Schedule, list[Tensor]]:
    """TVM's tutorial of scans: a row from the row before, its elements on blocks and threads."""
    x = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n), name="state")
    first = te.compute((1, n), lambda _, i: x[0, i], name="first")
    later = te.compute((m, n), lambda t, i: update(state, x, t, i), name="later")
    result = te.scan(first, later, state, inputs=[x])
    schedule = te.create_schedule(result.op)
    for stage in (first, later):
        outer, inner = schedule[stage].split(stage.op.axis[1], factor=threads)
        schedule[stage].bind(outer, te.thread_axis("blockIdx.x"))
        schedule[stage].bind(inner, te.thread_axis("threadIdx.x"))
    return schedule, [x, result]


def launches(schedule: te.Schedule, args: list[Tensor]) -> int:
    """How often the loops of the time stand around loops over threads."""
    func = ekiden.lower(schedule, args, simple_mode=True)["main"]
    assert isinstance(func, tir.PrimFunc)
    lines = [line for line in func.script().splitlines() if "for " in line]
    return sum("for t " in a and "thread" in b for a, b in pairwise(lines))


def run(schedule: te.Schedule, args: list[Tensor], device: Device, x: np.ndarray) -> np.ndarray:
    module = ekiden.build(schedule, args, kind_of(device), name="f")
    out = ekiden.nd.array(np.full(x.shape, 7, "float32"), device)
    module["f"](ekiden.nd.array(x, device), out)
    return out.numpy()


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).integers(-4, 5, shape).astype("float32")


def test_scan_is_one_launch(device: Device) -> None:
    m, n = te.size_var("m"), te.size_var("n")
    schedule, args = cumulative(m, n, lambda s, x, t, i: s[t - 1, i] + x[t, i])
    assert launches(schedule, args) == 0
    module = ekiden.build(schedule, args, kind_of(device), name="f")
    for shape in ((9, 20), (1, 3), (4, 8)):
        x = values(*shape)
        out = ekiden.nd.array(np.full(shape, 7, "float32"), device)
        module["f"](ekiden.nd.array(x, device), out)
        np.testing.assert_array_equal(out.numpy(), x.cumsum(0))


def test_state_of_other_threads_is_read_behind_a_launch(device: Device) -> None:
    def shifted(s: Tensor, x: Tensor, t: tir.Var, i: tir.Var) -> tir.PrimExpr:
        """The left neighbour of the step before."""
        return if_then_else(i > 0, s[t - 1, i - 1], tir.const(0, "float32")) + x[t, i]

    schedule, args = cumulative(6, 21, shifted)
    assert launches(schedule, args) >= 1
    x = values(6, 21)
    expected = x.copy()
    for t in range(1, 6):
        expected[t, 1:] += expected[t - 1, :-1]
    np.testing.assert_array_equal(run(schedule, args, device, x), expected)


def test_processors_run_scans_on_threads_as_loops() -> None:
    schedule, args = cumulative(5, 20, lambda s, x, t, i: s[t - 1, i] + x[t, i])
    x = values(5, 20)
    out = ekiden.nd.array(np.full(x.shape, 7, "float32"))
    ekiden.build(schedule, args, "llvm", name="f")["f"](ekiden.nd.array(x), out)
    np.testing.assert_array_equal(out.numpy(), x.cumsum(0))


def test_recurrent_cell_sums_on_threads(device: Device) -> None:
    """A state times a matrix: each step reduces what all threads of the step before made."""
    steps, size = 4, 12
    x = te.placeholder((steps, size), name="X")
    w = te.placeholder((size, size), name="W")
    state = te.placeholder((steps, size), name="state")
    k = te.reduce_axis((0, size), "k")
    first = te.compute((1, size), lambda _, i: x[0, i], name="first")
    product = te.compute(
        (steps, size), lambda t, i: te.sum(state[t - 1, k] * w[i, k], axis=k), name="product"
    )
    later = te.compute((steps, size), lambda t, i: product[t, i] + x[t, i], name="later")
    result = te.scan(first, later, state, inputs=[x, w])
    schedule = te.create_schedule(result.op)
    for stage in (first, product, later):
        schedule[stage].bind(stage.op.axis[1], te.thread_axis("blockIdx.x"))
    _, inner = schedule[product].split(k, 4)
    schedule[product].bind(inner, te.thread_axis("threadIdx.x"))
    data, matrix = values(steps, size), np.sign(values(size, size))
    out = ekiden.nd.array(np.zeros((steps, size), "float32"), device)
    module = ekiden.build(schedule, [x, w, result], kind_of(device), name="f")
    module["f"](ekiden.nd.array(data, device), ekiden.nd.array(matrix, device), out)
    expected = [data[0]]
    for row in data[1:]:
        expected.append(matrix @ expected[-1] + row)
    np.testing.assert_array_equal(out.numpy(), np.stack(expected))
