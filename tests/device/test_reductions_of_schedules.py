"""Schedules that bind a reduction to the threads of a block: results beside NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import test_cuda_text as cuda

import ekiden
from ekiden import te, tir
from ekiden.codegen.device import split_host_and_device
from ekiden.runtime import Device
from ekiden.runtime.errors import CompileError, ScheduleError
from ekiden.target import Target
from ekiden.te import Tensor
from ekiden.tir.expr import PrimExpr

Program = tuple[te.Schedule, list[Tensor]]
Reducer = Callable[..., PrimExpr]
REDUCERS: dict[str, tuple[Reducer, Callable[..., np.ndarray]]] = {
    "sum": (te.sum, np.sum),
    "max": (te.max, np.max),
    "min": (te.min, np.min),
    "prod": (te.prod, np.prod),
}


def thread(tag: str) -> te.schedule.ThreadAxis:
    return te.thread_axis(tag)


def kind_of(device: Device) -> str:
    """The kind of the target for a device."""
    return str(device).partition("(")[0]


def values(*shape: int) -> np.ndarray:
    """Whole numbers, whose sums are exact in float32; of products all but a few are 1."""
    return np.random.default_rng(11).integers(-4, 5, shape).astype("float32")


def run(
    program: Program, device: Device, shapes: Sequence[tuple[int, ...]], *inputs: np.ndarray
) -> list[np.ndarray]:
    """The last arguments of a program, as many as there are shapes."""
    schedule, args = program
    results = args[len(args) - len(shapes) :]
    outs = [
        ekiden.nd.array(np.full(shape, 7, t.dtype), device)
        for shape, t in zip(shapes, results, strict=True)
    ]
    module = ekiden.build(schedule, args, kind_of(device), name="f")
    module["f"](*(ekiden.nd.array(x, device) for x in inputs), *outs)
    return [o.numpy() for o in outs]


def rows(
    n: int | tir.Var, m: int | tir.Var, threads: int, reducer: Reducer = te.sum, blocks: int = 1
) -> Program:
    """A row for each block, or for `blocks` rows of threads, whose `threads` reduce it."""
    a = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    b = te.compute((n,), lambda i: reducer(a[i, k], axis=k), name="B")
    schedule = te.create_schedule(b.op)
    _, inner = schedule[b].split(k, threads)
    schedule[b].bind(inner, thread("threadIdx.x"))
    if blocks == 1:
        schedule[b].bind(b.op.axis[0], thread("blockIdx.x"))
    else:
        outer, row = schedule[b].split(b.op.axis[0], blocks)
        schedule[b].bind(outer, thread("blockIdx.x"))
        schedule[b].bind(row, thread("threadIdx.y"))
    return schedule, [a, b]


def of_tutorial(n: int | tir.Var, m: int | tir.Var) -> Program:
    """TVM's tutorial of reductions: parts by rfactor, 16 threads for each of 32 rows."""
    a = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    b = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="B")
    schedule = te.create_schedule(b.op)
    _, inner = schedule[b].split(b.op.reduce_axis[0], factor=16)
    parts = schedule.rfactor(b, inner)
    outer, row = schedule[b].split(schedule[b].op.axis[0], factor=32)
    schedule[b].bind(outer, thread("blockIdx.x"))
    schedule[b].bind(row, thread("threadIdx.y"))
    tx = thread("threadIdx.x")
    schedule[b].bind(schedule[b].op.reduce_axis[0], tx)
    schedule[parts].compute_at(schedule[b], schedule[b].op.reduce_axis[0])
    schedule[b].set_store_predicate(tx.var.equal(0))
    return schedule, [a, b]


@pytest.mark.parametrize("kind", REDUCERS)
@pytest.mark.parametrize(("columns", "threads"), [(64, 64), (37, 8), (100, 7), (3, 16), (5, 1)])
def test_threads_reduce_what_numpy_does(
    device: Device, kind: str, columns: int, threads: int
) -> None:
    reducer, reference = REDUCERS[kind]
    x = values(6, columns)
    if kind == "prod":
        x = np.where(np.abs(x) < 4, 1, x / 2).astype("float32")  # powers of two stay exact
    (out,) = run(rows(6, columns, threads, reducer), device, [(6,)], x)
    np.testing.assert_array_equal(out, reference(x, axis=1))


@pytest.mark.parametrize(("n", "m"), [(128, 64), (33, 50), (1, 1)])
def test_tutorial_reduces_rows_that_threads_do_not_divide(device: Device, n: int, m: int) -> None:
    x = values(n, m)
    (out,) = run(of_tutorial(n, m), device, [(n,)], x)
    np.testing.assert_array_equal(out, x.sum(1))


@pytest.mark.parametrize("n", [10, 16, 40])
def test_module_lowered_beforehand_means_the_same(device: Device, n: int) -> None:
    """TVM's programs lower first, and name the target when they build."""
    schedule, args = of_tutorial(n, 53)
    module = ekiden.build(ekiden.lower(schedule, args, name="f"), kind_of(device))
    x, out = values(n, 53), ekiden.nd.array(np.full(n, 7, "float32"), device)
    module["f"](ekiden.nd.array(x, device), out)
    np.testing.assert_array_equal(out.numpy(), x.sum(1))


def read_by_threads(n: int, m: int, threads: int, by_parts: bool) -> Program:
    """Sums that are an intermediate: what reads them stands in the same kernel, and is stored by
    one of the threads that reduced."""
    a = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    b = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="B")
    c = te.compute((n,), lambda i: b[i] * 2.0 + 1.0, name="C")
    schedule = te.create_schedule(c.op)
    outer, row = schedule[c].split(c.op.axis[0], factor=4)
    _, inner = schedule[b].split(k, factor=threads)
    if by_parts:
        parts = schedule.rfactor(b, inner)
        (inner,) = schedule[b].op.reduce_axis
    schedule[b].compute_at(schedule[c], row)
    schedule[c].bind(outer, thread("blockIdx.x"))
    schedule[c].bind(row, thread("threadIdx.y"))
    tx = thread("threadIdx.x")
    schedule[b].bind(inner, tx)
    if by_parts:
        schedule[parts].compute_at(schedule[b], inner)
    schedule[b].set_store_predicate(tx.var.equal(0))
    schedule[c].set_store_predicate(tx.var.equal(0))
    return schedule, [a, c]


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("by_parts", [False, True])
def test_reduced_value_is_broadcast_to_all_threads(
    device: Device, by_parts: bool, lowered: bool
) -> None:
    schedule, args = read_by_threads(10, 37, 8, by_parts)
    x, out = values(10, 37), ekiden.nd.array(np.full(10, 7, "float32"), device)
    if lowered:
        module = ekiden.build(ekiden.lower(schedule, args, name="f"), kind_of(device))
    else:
        module = ekiden.build(schedule, args, kind_of(device), name="f")
    module["f"](ekiden.nd.array(x, device), out)
    np.testing.assert_array_equal(out.numpy(), x.sum(1) * 2 + 1)


def test_softmax_of_a_block_for_each_row(device: Device) -> None:
    """Two reductions and what reads both, of one kernel by the same threads."""
    n, m = 5, 70
    a = te.placeholder((n, m), name="A")
    k, j = te.reduce_axis((0, m), "k"), te.reduce_axis((0, m), "j")
    top = te.compute((n,), lambda i: te.max(a[i, k], axis=k), name="top")
    total = te.compute((n,), lambda i: te.sum(te.exp(a[i, j] - top[i]), axis=j), name="total")
    out = te.compute((n, m), lambda i, c: te.exp(a[i, c] - top[i]) / total[i], name="out")
    schedule = te.create_schedule(out.op)
    row, column = out.op.axis
    schedule[out].bind(row, thread("blockIdx.x"))
    _, inner = schedule[out].split(column, 32)
    schedule[out].bind(inner, thread("threadIdx.x"))
    for tensor, axis in ((total, j), (top, k)):
        _, inner = schedule[tensor].split(axis, 32)
        schedule[tensor].bind(inner, thread("threadIdx.x"))
        schedule[tensor].compute_at(schedule[out], row)
    x = values(n, m)
    (result,) = run((schedule, [a, out]), device, [(n, m)], x)
    exact = np.exp(x.astype("float64") - x.max(1, keepdims=True))
    np.testing.assert_allclose(result, exact / exact.sum(1, keepdims=True), rtol=1e-5, atol=1e-9)


def test_tutorial_takes_sizes_at_run_time(device: Device) -> None:
    schedule, args = of_tutorial(te.size_var("n"), te.size_var("m"))
    module = ekiden.build(schedule, args, kind_of(device), name="f")
    for n, m in ((128, 64), (33, 50), (5, 0), (1, 3)):
        x = values(n, m)
        out = ekiden.nd.array(np.full(n, 7, "float32"), device)
        module["f"](ekiden.nd.array(x, device), out)
        np.testing.assert_array_equal(out.numpy(), x.sum(1))


@pytest.mark.parametrize("blocks", [2, 4])
def test_several_rows_reduce_in_one_block(device: Device, blocks: int) -> None:
    x = values(7, 41)
    (out,) = run(rows(7, 41, 8, te.max, blocks), device, [(7,)], x)
    np.testing.assert_array_equal(out, x.max(1))


def test_two_axes_of_threads_reduce_together(device: Device) -> None:
    a = te.placeholder((5, 9, 11), name="A")
    j, k = te.reduce_axis((0, 9), "j"), te.reduce_axis((0, 11), "k")
    b = te.compute((5,), lambda i: te.sum(a[i, j, k], axis=[j, k]), name="B")
    schedule = te.create_schedule(b.op)
    schedule[b].bind(b.op.axis[0], thread("blockIdx.x"))
    _, j_in = schedule[b].split(j, 4)
    k_out, k_in = schedule[b].split(k, 8)
    schedule[b].reorder(j_in, k_in, schedule[b].leaf_iter_vars[1], k_out)
    schedule[b].bind(j_in, thread("threadIdx.y"))
    schedule[b].bind(k_in, thread("threadIdx.x"))
    x = values(5, 9, 11)
    (out,) = run((schedule, [a, b]), device, [(5,)], x)
    np.testing.assert_array_equal(out, x.sum((1, 2)))


def test_whole_tensor_reduces_in_one_block(device: Device) -> None:
    a = te.placeholder((1000,), name="A")
    k = te.reduce_axis((0, 1000), "k")
    b = te.compute((1,), lambda i: te.sum(a[k], axis=k), name="B")
    schedule = te.create_schedule(b.op)
    _, inner = schedule[b].split(k, 128)
    schedule[b].bind(inner, thread("threadIdx.x"))
    x = values(1000)
    (out,) = run((schedule, [a, b]), device, [(1,)], x)
    assert out[0] == x.sum()


def argmax(n: int, m: int, by_parts: bool) -> Program:
    """The largest of each row and where it first is, as a reducer of tuples."""

    def larger(x: Sequence[PrimExpr], y: Sequence[PrimExpr]) -> tuple[PrimExpr, PrimExpr]:
        """Of two equal values the one that comes first."""
        first = tir.any(x[1] > y[1], tir.all(x[1].equal(y[1]), x[0] < y[0]))
        return tir.Select(first, x[0], y[0]), tir.Select(first, x[1], y[1])

    def least(t0: str, t1: str) -> tuple[PrimExpr, PrimExpr]:
        return tir.const(2**31 - 1, t0), te.min_value(t1)

    reducer = te.comm_reducer(larger, least, name="argmax")
    index = te.placeholder((n, m), "int32", name="index")
    value = te.placeholder((n, m), "float32", name="value")
    k = te.reduce_axis((0, m), "k")
    where, what = te.compute((n,), lambda i: reducer((index[i, k], value[i, k]), axis=k), name="T")
    schedule = te.create_schedule(where.op)
    _, inner = schedule[where].split(k, 8)
    if by_parts:
        parts = schedule.rfactor(where, inner)
        (inner,) = schedule[where].op.reduce_axis
        schedule[parts[0]].compute_at(schedule[where], inner)
    schedule[where].bind(schedule[where].op.axis[0], thread("blockIdx.x"))
    schedule[where].bind(inner, thread("threadIdx.x"))
    return schedule, [index, value, where, what]


@pytest.mark.parametrize("by_parts", [False, True])
def test_reducers_of_tuples_keep_their_parts_together(device: Device, by_parts: bool) -> None:
    x = values(9, 43)
    index = np.broadcast_to(np.arange(43, dtype="int32"), x.shape).copy()
    where, what = run(argmax(9, 43, by_parts), device, [(9,), (9,)], index, x)
    np.testing.assert_array_equal(where, x.argmax(1))
    np.testing.assert_array_equal(what, x.max(1))


def test_reducer_of_ones_own_combines_terms(device: Device) -> None:
    joined = te.comm_reducer(
        lambda x, y: tir.bitwise_xor(x, y), lambda t: tir.const(0, t), name="xor"
    )
    a = te.placeholder((4, 50), "int32", name="A")
    k = te.reduce_axis((0, 50), "k")
    b = te.compute((4,), lambda i: joined(a[i, k], axis=k), name="B")
    schedule = te.create_schedule(b.op)
    _, inner = schedule[b].split(k, 16)
    schedule[b].bind(inner, thread("threadIdx.x"))
    schedule[b].bind(b.op.axis[0], thread("blockIdx.x"))
    x = np.random.default_rng(3).integers(0, 1 << 30, (4, 50), dtype="int32")
    (out,) = run((schedule, [a, b]), device, [(4,)], x)
    np.testing.assert_array_equal(out, np.bitwise_xor.reduce(x, axis=1))


# tir.Schedule


def sums(n: int | tir.Var, m: int | tir.Var) -> tir.Schedule:
    a = te.placeholder((n, m), name="A")
    k = te.reduce_axis((0, m), "k")
    b = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="B")
    return tir.Schedule(te.create_prim_func([a, b], "f"))


def run_module(schedule: tir.Schedule, device: Device, x: np.ndarray) -> np.ndarray:
    out = ekiden.nd.array(np.full(x.shape[0], 7, "float32"), device)
    module = ekiden.build(schedule.mod, target=kind_of(device))
    module[schedule.func.name](ekiden.nd.array(x, device), out)
    return out.numpy()


@pytest.mark.parametrize("order", ["serial inside", "serial outside", "parts"])
def test_loop_programs_bind_what_they_reduce(device: Device, order: str) -> None:
    schedule = sums(6, 53)
    row, k = schedule.get_loops("B")
    outer, inner = schedule.split(k, [None, 16])
    schedule.bind(row, "blockIdx.x")
    if order == "serial inside":
        schedule.reorder(inner, outer)
        schedule.bind(inner, "threadIdx.x")
    elif order == "serial outside":
        schedule.bind(inner, "threadIdx.x")
    else:
        parts = schedule.rfactor(inner, 0)
        (_, inner) = schedule.get_loops("B")
        schedule.bind(inner, "threadIdx.x")
        schedule.compute_at(parts, inner)
    x = values(6, 53)
    np.testing.assert_array_equal(run_module(schedule, device, x), x.sum(1))


def test_sum_that_begins_at_another_number_counts_it_once(device: Device) -> None:
    func = tir.parse(
        """
@T.prim_func
def main(A: T.Buffer((3, 20), "float32"), B: T.Buffer((3,), "float32")):
    T.func_attr({"num_outputs": 1})
    for i, k in T.grid(3, 20):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(5)
            B[vi] = B[vi] + A[vi, vk]
"""
    )
    schedule = tir.Schedule(func)
    i, k = schedule.get_loops("B")
    schedule.bind(i, "blockIdx.x")
    schedule.bind(k, "threadIdx.x")
    x = values(3, 20)
    np.testing.assert_array_equal(run_module(schedule, device, x), 5 + x.sum(1))


def test_cpu_runs_bound_threads_serially() -> None:
    x = values(33, 50)
    for schedule, args in (of_tutorial(33, 50), rows(33, 50, 8)):
        out = ekiden.nd.array(np.full(33, 7, "float32"))
        ekiden.build(schedule, args, "llvm", name="f")["f"](ekiden.nd.array(x), out)
        np.testing.assert_array_equal(out.numpy(), x.sum(1))


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_processors_refuse_what_was_lowered_for_threads(target: str) -> None:
    schedule, args = rows(4, 8, 8)
    lowered = ekiden.lower(schedule, args, name="f")
    with pytest.raises(CompileError, match="a processor runs them one after another"):
        ekiden.build(lowered, target)


# What is refused.


def test_unsatisfiable_store_predicate_is_refused() -> None:
    a = te.placeholder((4, 8), name="A")
    k = te.reduce_axis((0, 8), "k")
    b = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="B")
    schedule = te.create_schedule(b.op)
    tx = thread("threadIdx.x")
    schedule[b].bind(k, tx)
    schedule[b].set_store_predicate(tx.var.equal(9))
    with pytest.raises(ScheduleError, match="set_store_predicate of 'B': .* is not known to hold"):
        ekiden.lower(schedule, [a, b])


def test_blocks_do_not_reduce_together() -> None:
    schedule = sums(4, 8)
    _, k = schedule.get_loops("B")
    with pytest.raises(ScheduleError, match="block 'B' reduces over it"):
        schedule.bind(k, "blockIdx.x")


def test_decomposed_reduction_is_not_cross_thread() -> None:
    schedule = sums(4, 8)
    _, k = schedule.get_loops("B")
    schedule.decompose_reduction("B", k)
    with pytest.raises(ScheduleError, match="its init is another block"):
        schedule.bind(schedule.get_loops("B")[1], "threadIdx.x")
    schedule = sums(4, 8)
    _, k = schedule.get_loops("B")
    schedule.bind(k, "threadIdx.x")
    with pytest.raises(ScheduleError, match="threads of threadIdx.x reduce it"):
        schedule.decompose_reduction("B", k)


def test_threads_of_unknown_number_are_refused() -> None:
    schedule = sums(4, te.size_var("m"))
    i, k = schedule.get_loops("B")
    schedule.bind(i, "blockIdx.x")
    schedule.bind(k, "threadIdx.x")
    with pytest.raises(CompileError, match="block 'B' reduces over threads: .* constant number"):
        ekiden.build(schedule.mod, target="opencl")


@pytest.mark.parametrize(
    "target", ["opencl", "vulkan -model=any", "cuda", "metal", "webgpu", "nvptx"]
)
@pytest.mark.parametrize("program", [lambda: of_tutorial(33, 50), lambda: argmax(9, 43, False)])
def test_every_kind_of_device_has_code(target: str, program: Callable[[], Program]) -> None:
    schedule, args = program()
    ekiden.build(ekiden.lower(schedule, args, name="f"), target)


@pytest.mark.parametrize(
    ("columns", "threads", "rows_of_block"), [(512, 256, 1), (100, 32, 1), (40, 8, 4), (96, 96, 2)]
)
def test_cross_thread_reduction_uses_warp_shuffles(
    fake_cuda: Device, columns: int, threads: int, rows_of_block: int
) -> None:
    """CUDA C on fibers of a processor, with shuffles for what lies within a warp."""
    schedule, args = rows(6, columns, threads, te.sum, rows_of_block)
    module = ekiden.build(schedule, args, "cuda -model=any", name="f")
    text = module.imported_modules[0].get_source()
    # Warps of a power of two are combined by shuffles, too; three of them one after the other.
    warps = threads // 32
    steps_across = warps.bit_length() - 1 if warps > 0 and warps & (warps - 1) == 0 else 0
    assert text.count("__shfl_down_sync") == min(threads, 32).bit_length() - 1 + steps_across
    assert ("parts_B" in text) == (threads > 32)
    x = values(6, columns)
    out = ekiden.nd.array(np.full(6, 7, "float32"), fake_cuda)
    module["f"](ekiden.nd.array(x, fake_cuda), out)
    np.testing.assert_array_equal(out.numpy(), x.sum(1))


@pytest.mark.parametrize("threads", [8, 32, 64])
def test_warp_reduction_broadcasts_to_all_threads(fake_cuda: Device, threads: int) -> None:
    schedule, args = read_by_threads(8, 100, threads, False)
    module = ekiden.build(schedule, args, "cuda -model=any", name="f")
    x, out = values(8, 100), ekiden.nd.array(np.full(8, 7, "float32"), fake_cuda)
    module["f"](ekiden.nd.array(x, fake_cuda), out)
    np.testing.assert_array_equal(out.numpy(), x.sum(1) * 2 + 1)


@pytest.mark.parametrize("program", [lambda: rows(4, 512, 256), lambda: argmax(9, 43, True)])
def test_nvrtc_accepts_cross_thread_reductions(program: Callable[[], Program]) -> None:
    nvrtc = cuda.nvrtc_library()
    if nvrtc is None:
        pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")
    func = ekiden.lower(*program(), name="f", simple_mode=True)["f"]
    for kernel in split_host_and_device(func, Target("cuda -arch=sm_80")).kernels:
        cuda.compiled(nvrtc, kernel, "sm_80")
