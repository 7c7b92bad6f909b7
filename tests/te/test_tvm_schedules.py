"""Schedules as users of TVM write them: numbers among the arguments, mistakes, memory of a computed
size, targets that nothing is bound for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import te
from ekiden.runtime.errors import CompileError, ScheduleError

pytestmark = pytest.mark.quick

TARGETS = ["llvm", pytest.param("c", marks=pytest.mark.slow)]  # which the system's compiler takes

N, M, ALPHA = te.var("n"), te.var("m"), te.var("alpha", "float32")
A, B = te.placeholder((N, M), name="A"), te.placeholder((N, M), name="B")
DATA = np.arange(6, dtype=np.float32).reshape(2, 3)


def scaled() -> te.Tensor:
    return te.compute((N, M), lambda i, j: A[i, j] * ALPHA, name="C")


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_are_arguments_too(target: str) -> None:
    out = scaled()
    scale = ekiden.build(te.create_schedule(out.op), [ALPHA, N, A, out], target)
    data, result = ekiden.nd.array(DATA), ekiden.nd.array(np.zeros_like(DATA))
    scale(2.5, 2, data, result)
    assert np.array_equal(result.numpy(), DATA * 2.5)
    with pytest.raises(ValueError, match="argument 2: dimension 0 must be n"):
        scale(2.5, 3, data, result)
    with pytest.raises(TypeError, match=r"argument 0 \(alpha\) must be a number"):
        scale("2.5", 2, data, result)


def test_numbers_are_arguments_of_programs_too() -> None:
    out = scaled()
    func = te.create_prim_func([ALPHA, A, out], "scale")
    assert [p.name for p in func.params] == ["alpha", "A", "C"]
    result = ekiden.nd.array(np.zeros_like(DATA))
    ekiden.build(func)(0.5, ekiden.nd.array(DATA), result)
    assert np.array_equal(result.numpy(), DATA / 2)


ARGUMENTS = [
    ([A, 3], TypeError, "lower 'main': expected tensors and variables, got int"),
    ([A, A], ValueError, "lower 'main': a tensor or variable is among the arguments twice"),
    ([N, N], ValueError, "lower 'main': a tensor or variable is among the arguments twice"),
]


@pytest.mark.parametrize(("args", "kind", "said"), ARGUMENTS)
def test_invalid_arguments_are_refused(
    args: list[object], kind: type[Exception], said: str
) -> None:
    out = scaled()
    with pytest.raises(kind) as caught:
        ekiden.lower(te.create_schedule(out.op), [*args, out])  # type: ignore[list-item]
    assert str(caught.value) == said


@pytest.mark.parametrize("target", TARGETS)
def test_missing_scalar_argument_is_named(target: str) -> None:
    out = scaled()
    with pytest.raises(CompileError) as caught:
        ekiden.build(te.create_schedule(out.op), [A, out], target)
    assert str(caught.value) == (
        f"{target}: variable 'alpha' is no argument, nor a size of one, nor a loop's"
    )


def test_reduction_inside_of_an_expression_is_refused() -> None:
    k = te.reduce_axis((0, M), "k")
    out = te.compute((N,), lambda i: te.sum(A[i, k], axis=k) + 1, name="C")
    with pytest.raises(ValueError, match="te.sum: a reduction is the whole of a computation"):
        ekiden.build(te.create_schedule(out.op), [A, out])


@pytest.mark.parametrize("factor", [2.5, "2"])
def test_factor_is_a_whole_number(factor: object) -> None:
    out = scaled()
    with pytest.raises(ScheduleError) as caught:
        te.create_schedule(out.op)[out].split(out.op.axis[0], factor)  # type: ignore[arg-type]
    assert str(caught.value) == f"split of 'C': expected a whole factor, got {factor}"


def read(schedule: te.Schedule, out: te.Tensor) -> None:
    kept = schedule.cache_read(A, "local", [out])
    schedule[kept].compute_at(schedule[out], out.op.axis[0])


def written(schedule: te.Schedule, out: te.Tensor) -> None:
    kept = schedule.cache_write(out, "local")
    schedule[kept].compute_at(schedule[out], out.op.axis[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("keep", [read, written])
def test_local_memory_may_have_a_computed_size(
    keep: Callable[[te.Schedule, te.Tensor], None], target: str
) -> None:
    out = te.compute((N, M), lambda i, j: A[i, j] + B[i, j], name="C")
    schedule = te.create_schedule(out.op)
    keep(schedule, out)
    result = ekiden.nd.array(np.zeros_like(DATA))
    data = ekiden.nd.array(DATA)
    ekiden.build(schedule, [A, B, out], target)(data, data, result)
    assert np.array_equal(result.numpy(), DATA + DATA)


@pytest.mark.parametrize("target", ["cuda", "opencl", "metal", "webgpu"])
@pytest.mark.parametrize("bound", [False, True])
def test_unbound_loops_are_refused_on_devices(target: str, bound: bool) -> None:
    """Host code cannot reach the memory of a device: it would end the process."""
    first = te.compute((N, M), lambda i, j: A[i, j] + B[i, j], name="C")
    last = te.compute((N, M), lambda i, j: first[i, j] * 2, name="D")
    schedule = te.create_schedule(last.op)
    if bound:
        schedule[last].bind(last.op.axis[0], te.thread_axis("blockIdx.x"))
    with pytest.raises(CompileError) as caught:
        ekiden.build(schedule, [A, B, last], target)
    assert str(caught.value) == (
        f"'default_function': target '{target}': elements of 'C' are used outside of threads, "
        "which alone reach its memory: bind a loop around them to one of their axes"
    )


def test_operation_of_two_tensors_may_be_named_by_both() -> None:
    sums, halves = te.compute(A.shape, lambda i, j: (A[i, j] + 1, A[i, j] / 2), name="C")
    schedule = te.create_schedule([sums.op, halves.op])
    schedule.cache_write([sums, halves], "local")
    func = ekiden.build(schedule.normalize(), [A, sums, halves])
    results = [ekiden.nd.array(np.zeros_like(DATA)) for _ in range(2)]
    func(ekiden.nd.array(DATA), *results)
    assert np.array_equal(results[0].numpy(), DATA + 1)
    assert np.array_equal(results[1].numpy(), DATA / 2)
    assert te.schedule.InferBound(schedule)
