"""te schedules: every primitive against NumPy, and rejections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.runtime.errors import ScheduleError
from ekiden.te import Tensor
from ekiden.te.schedule import Schedule
from ekiden.tir import For, ForKind, PrimFunc
from ekiden.tir.visitor import pre_order_stmts


def run(s: Schedule, args: Sequence[Tensor], *inputs: np.ndarray) -> np.ndarray:
    """The last argument, computed by the schedule."""
    shape = [int(d) for d in args[-1].shape]
    out = ekiden.nd.array(np.full(shape, 7, args[-1].dtype))
    module = ekiden.build(s, args, "llvm", name="f")
    module["f"](*map(ekiden.nd.array, inputs), out)
    return out.numpy()


def program(s: Schedule, args: Sequence[Tensor]) -> PrimFunc:
    result = ekiden.lower(s, args, simple_mode=True)["main"]
    assert isinstance(result, PrimFunc)
    return result


def loops(func: PrimFunc) -> list[For]:
    return [stmt for stmt in pre_order_stmts(func.body) if isinstance(stmt, For)]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(-4, 5, shape).astype("float32")


def doubled(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    a = te.placeholder(shape, name="A")
    return a, te.compute(shape, lambda *i: a[i] * 2.0 + 1.0, name="B")


def matmul(n: int, m: int, depth: int) -> tuple[Tensor, Tensor, Tensor, te.ReduceAxis]:
    a, b = te.placeholder((n, depth), name="A"), te.placeholder((depth, m), name="B")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    return a, b, c, k


@pytest.mark.parametrize("size", [1, 7, 32, 33])
def test_loops_split_fused_and_ordered(size: int) -> None:
    a, b = doubled((size, 5))
    s = te.create_schedule(b.op)
    i, j = b.op.axis
    outer, inner = s[b].split(i, factor=8)
    assert s[b].leaf_iter_vars == [outer, inner, j]
    s[b].reorder(outer, j, inner)
    fused = s[b].fuse(outer, j)
    assert s[b].leaf_iter_vars == [fused, inner]
    parts, rest = s[b].split(fused, nparts=5)
    s[b].parallel(parts)
    s[b].unroll(rest)
    s[b].vectorize(inner)
    kinds = [loop.kind for loop in loops(program(s, [a, b]))]
    assert kinds == [ForKind.PARALLEL, ForKind.UNROLLED, ForKind.VECTORIZED]
    x = numbers(size, 5)
    np.testing.assert_array_equal(run(s, [a, b], x), x * 2 + 1)


def test_tile_and_relations() -> None:
    _, b = doubled((16, 16))
    s = te.create_schedule(b.op)
    xo, yo, xi, yi = s[b].tile(*b.op.axis, x_factor=4, y_factor=8)
    assert [v.var.name for v in s[b].leaf_iter_vars] == [
        "i0.outer", "i1.outer", "i0.inner", "i1.inner",
    ]  # fmt: skip
    assert [int(v.extent) for v in (xo, yo, xi, yi)] == [4, 2, 4, 8]
    assert [type(r) for r in s[b].relations] == [te.schedule.Split] * 2


def test_matmul_in_tiles_with_caches() -> None:
    a, b, c, k = matmul(33, 20, 17)
    s = te.create_schedule(c)
    kept = s.cache_write(c, "local")
    xo, yo, _, yi = s[c].tile(*c.op.axis, 8, 16)
    s[kept].compute_at(s[c], yo)
    ko, ki = s[kept].split(k, 4)
    x, y = kept.op.axis
    s[kept].reorder(ko, x, ki, y)
    copied = s.cache_read(a, "local", [kept])
    s[copied].compute_at(s[kept], ko)
    s[kept].vectorize(y)
    s[c].vectorize(yi)
    s[c].parallel(xo)
    left, right = numbers(33, 17), numbers(17, 20)
    np.testing.assert_array_equal(run(s, [a, b, c], left, right), left @ right)
    bounds = te.schedule.InferBound(s)
    assert int(bounds[copied.op.axis[1]].extent) == 4
    assert int(bounds[copied.op.axis[0]].extent) == 8


@pytest.mark.parametrize("depth", [16, 17])
@pytest.mark.parametrize("factor_axis", [0, 1])
def test_rfactor_of_a_sum_matches(depth: int, factor_axis: int) -> None:
    a = te.placeholder((5, depth), name="A")
    k = te.reduce_axis((0, depth), "k")
    b = te.compute((5,), lambda i: te.sum(a[i, k], k), name="B")
    s = te.create_schedule(b.op)
    _, ki = s[b].split(k, factor=4)
    parts = s.rfactor(b, ki, factor_axis)
    assert [int(d) for d in parts.shape] == ([4, 5] if factor_axis == 0 else [5, 4])
    assert len(s[parts].op.reduce_axis) == 1
    s[parts].compute_at(s[b], s[b].op.axis[0])
    x = numbers(5, depth)
    np.testing.assert_array_equal(run(s, [a, b], x), x.sum(1))


def test_sum_that_begins_later() -> None:
    a = te.placeholder((20,), name="A")
    k = te.reduce_axis((3, 17), "k")
    b = te.compute((1,), lambda i: te.sum(a[k], k), name="B")
    s = te.create_schedule(b.op)
    ko, ki = s[b].split(k, 5)
    s[b].unroll(ki)
    assert ko in s[b].leaf_iter_vars
    x = numbers(20)
    assert run(s, [a, b], x)[0] == x[3:17].sum()


def test_inlined_stages_have_no_loops() -> None:
    a, b = doubled((9,))
    c = te.compute((9,), lambda i: b[8 - i] + a[i], name="C")
    d = te.compute((9,), lambda i: c[i] * c[i], name="D")
    s = te.create_schedule(d.op)
    s[b].compute_inline()
    s[c].compute_inline()
    assert len(loops(program(s, [a, d]))) == 1
    x = numbers(9)
    np.testing.assert_array_equal(run(s, [a, d], x), ((x * 2 + 1)[::-1] + x) ** 2)


def test_cache_is_laid_out_as_the_leaves() -> None:
    a, b = doubled((21,))
    s = te.create_schedule(b.op)
    outer, _ = s[b].split(b.op.axis[0], 8)
    kept = s.cache_write(b, "local")
    assert [int(d) for d in kept.shape] == [3, 8]
    s[kept].compute_at(s[b], outer)
    x = numbers(21)
    np.testing.assert_array_equal(run(s, [a, b], x), x * 2 + 1)


def test_compute_at_of_stencil_producer() -> None:
    a, b = doubled((34,))
    c = te.compute((32,), lambda i: b[i] + b[i + 1] + b[i + 2], name="C")
    s = te.create_schedule(c.op)
    outer, _ = s[c].split(c.op.axis[0], 8)
    s[b].compute_at(s[c], outer)
    assert int(te.schedule.InferBound(s)[b.op.axis[0]].extent) == 10
    x = numbers(34)
    y = x * 2 + 1
    np.testing.assert_array_equal(run(s, [a, c], x), y[:-2] + y[1:-1] + y[2:])
    s[b].compute_root()
    assert int(te.schedule.InferBound(s)[b.op.axis[0]].extent) == 34


def test_stage_groups_move_together() -> None:
    a, b = doubled((16,))
    c = te.compute((16,), lambda i: b[i] + 1.0, name="C")
    d = te.compute((16,), lambda i: c[i] * 3.0, name="D")
    s = te.create_schedule(d.op)
    group = s.create_group(outputs=c, inputs=a, include_inputs=True)
    assert s[b].group is group and s[c].group is group
    assert group.num_child_stages == 2 and s[b].num_child_stages == 0
    outer, _ = s[d].split(d.op.axis[0], 4)
    group.compute_at(s[d], outer)
    assert int(te.schedule.InferBound(s)[b.op.axis[0]].extent) == 4
    x = numbers(16)
    np.testing.assert_array_equal(run(s, [a, d], x), (x * 2 + 2) * 3)


def test_threads_and_a_condition_on_stores() -> None:
    a, b = doubled((32,))
    s = te.create_schedule(b.op)
    block, thread = te.thread_axis("blockIdx.x"), te.thread_axis("threadIdx.x")
    outer, inner = s[b].split(b.op.axis[0], 8)
    s[b].bind(outer, block)
    s[b].bind(inner, thread)
    s[b].set_store_predicate(thread.var < 4)
    axes = [(loop.annotations or {}).get("thread") for loop in loops(program(s, [a, b]))]
    assert axes == ["blockIdx.x", "threadIdx.x"]
    x = numbers(32)
    expected = np.where(np.arange(32) % 8 < 4, x * 2 + 1, 7)
    np.testing.assert_array_equal(run(s, [a, b], x), expected)


def test_alignment_scope_and_pragmas_are_in_the_program() -> None:
    a, b = doubled((8, 8))
    c = te.compute((8, 8), lambda i, j: b[j, i], name="C")
    s = te.create_schedule(c.op)
    s[b].set_scope("local")
    s[b].storage_align(b.op.axis[0], 8, 1)
    s[c].pragma(c.op.axis[0], "note", 5)
    func = program(s, [a, c])
    assert 'scope="local"' in func.script() and "pragma_note" in func.script()
    x = numbers(8, 8)
    np.testing.assert_array_equal(run(s, [a, c], x), (x * 2 + 1).T)


def test_layouts_of_intermediates_and_results() -> None:
    a, b = doubled((6, 8))
    c = te.compute((6, 8), lambda i, j: b[i, j] - 1.0, name="C")
    s = te.create_schedule(c.op)
    new = s[b].transform_layout(lambda i, j: [j // 4, i, j % 4])
    assert [int(v.extent) for v in new] == [2, 6, 4]
    s[b].reorder(new[1], new[0], new[2])
    x = numbers(6, 8)
    np.testing.assert_array_equal(run(s, [a, c], x), x * 2)


def added(size: int) -> te.TensorIntrin:
    """An instruction that adds vectors, as loops."""
    x, y = te.placeholder((size,), name="x"), te.placeholder((size,), name="y")
    z = te.compute((size,), lambda i: x[i] + y[i], name="z")

    def write(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        i = tir.Var("i")
        sums = tir.BufferStore(outs[0], ins[0][i] + ins[1][i], (i,))
        return For(i, tir.const(0), tir.const(size), ForKind.VECTORIZED, sums)

    return te.decl_tensor_intrin(z.op, write, "vadd")


def test_instruction_in_the_place_of_a_loop() -> None:
    a, b = te.placeholder((4, 16), name="A"), te.placeholder((4, 16), name="B")
    c = te.compute((4, 16), lambda i, j: a[i, j] + b[i, j], name="C")
    s = te.create_schedule(c.op)
    _, inner = s[c].split(c.op.axis[1], 8)
    s[c].tensorize(inner, added(8))
    x, y = numbers(4, 16), numbers(4, 16)[::-1].copy()
    np.testing.assert_array_equal(run(s, [a, b, c], x, y), x + y)


@ekiden.register_func("test_stage_schedules.gemv")
def _gemv(matrix: ekiden.Tensor, vector: ekiden.Tensor, out: ekiden.Tensor) -> None:
    """The parts have all axes of their buffers: (4, 6), (1, 6) and (1, 4)."""
    out.copyfrom(out.numpy() + matrix.numpy() @ vector.numpy()[0])


@ekiden.register_func("test_stage_schedules.zero")
def _zero(out: ekiden.Tensor) -> None:
    out.copyfrom(np.zeros(out.shape, out.dtype))


def test_instruction_that_begins_and_continues_a_sum() -> None:
    """Calls get the parts of the buffers, and the sum over what lies around goes on."""
    a, b, c, k = matmul(8, 3, 12)
    w, x = te.placeholder((4, 6), name="w"), te.placeholder((6,), name="x")
    inner_k = te.reduce_axis((0, 6), "k")
    z = te.compute((4,), lambda i: te.sum(w[i, inner_k] * x[inner_k], inner_k), name="z")

    def write(
        ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]
    ) -> tuple[tir.PrimExpr | None, ...]:
        update = tir.call_packed("test_stage_schedules.gemv", *ins, *outs)
        return None, tir.call_packed("test_stage_schedules.zero", *outs), update

    gemv = te.decl_tensor_intrin(z.op, write, "gemv")
    vectors = te.placeholder((3, 12), name="V")
    d = te.compute((3, 8), lambda j, i: te.sum(a[i, k] * vectors[j, k], k), name="D")
    del b, c
    s = te.create_schedule(d.op)
    io, ii = s[d].split(d.op.axis[1], 4)
    ko, ki = s[d].split(k, 6)
    s[d].reorder(d.op.axis[0], io, ko, ii, ki)
    s[d].tensorize(ii, gemv)
    left, right = numbers(8, 12), numbers(3, 12)
    text = program(s, [a, vectors, d]).script()
    assert "test_stage_schedules.zero" in text and "test_stage_schedules.gemv" in text
    np.testing.assert_array_equal(run(s, [a, vectors, d], left, right), right @ left.T)


def test_extern_operations_and_two_results() -> None:
    a, b = doubled((6,))
    flipped = te.extern(
        (6,),
        [b],
        lambda ins, outs: tir.call_packed("test_stage_schedules.flip", ins[0], outs[0]),
        name="F",
    )
    low, high = te.compute((6,), lambda i: (flipped[i], flipped[i] * 10.0), name="L")
    s = te.create_schedule(low.op)
    s[low].vectorize(low.op.axis[0])
    x = numbers(6)

    @ekiden.register_func("test_stage_schedules.flip", override=True)
    def flip(argument: ekiden.Tensor, out: ekiden.Tensor) -> None:
        out.copyfrom(argument.numpy()[::-1].copy())

    module = ekiden.build(s, [a, low, high], "llvm", name="f")
    out = [ekiden.nd.array(np.zeros(6, "float32")) for _ in range(2)]
    module["f"](ekiden.nd.array(x), *out)
    np.testing.assert_array_equal(out[0].numpy(), (x * 2 + 1)[::-1])
    np.testing.assert_array_equal(out[1].numpy(), (x * 2 + 1)[::-1] * 10)


def test_computations_of_one_name() -> None:
    a = te.placeholder((4,), name="x")
    b = te.compute((4,), lambda i: a[i] + 1.0)
    c = te.compute((4,), lambda i: b[i] * 2.0)
    s = te.create_schedule(c.op)
    s[b].compute_at(s[c], c.op.axis[0])
    x = numbers(4)
    np.testing.assert_array_equal(run(s, [a, c], x), (x + 1) * 2)


def test_te_schedules_of_symbolic_sizes() -> None:
    n = te.size_var("n")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] * 2.0, name="B")
    s = te.create_schedule(b.op)
    outer, inner = s[b].split(b.op.axis[0], 16)
    s[b].vectorize(inner)
    s[b].parallel(outer)
    module = ekiden.build(s, [a, b], "llvm", name="f")
    for size in (0, 1, 16, 50):
        x = numbers(size)
        out = ekiden.nd.array(np.zeros(size, "float32"))
        module["f"](ekiden.nd.array(x), out)
        np.testing.assert_array_equal(out.numpy(), x * 2)


def test_result_that_is_read_whole_is_computed_where_it_is_read() -> None:
    a = te.placeholder((6, 8), name="A")
    b = te.compute((6, 8), lambda i, j: a[i, j] + 1, name="B")
    c = te.compute((8, 6), lambda i, j: b[j, i] * 2, name="C")
    s = te.create_schedule(c.op)
    s[b].compute_at(s[c], c.op.axis[0])
    x, out = numbers(6, 8), ekiden.nd.array(np.zeros((8, 6), "float32"))
    also = ekiden.nd.array(np.zeros((6, 8), "float32"))
    ekiden.build(s, [a, b, c], "llvm")(ekiden.nd.array(x), also, out)
    np.testing.assert_array_equal(also.numpy(), x + 1)
    np.testing.assert_array_equal(out.numpy(), (x + 1).T * 2)


def test_input_that_is_inlined_stays() -> None:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1, name="B")
    s = te.create_schedule(b.op)
    s[a].compute_inline()
    x = numbers(8)
    np.testing.assert_array_equal(run(s, [a, b], x), x + 1)


def test_invalid_stage_schedules_are_refused() -> None:
    a, b, c, k = matmul(8, 8, 8)
    s = te.create_schedule(c.op)
    i, j = c.op.axis
    io, ii = s[c].split(i, 4)
    with pytest.raises(ScheduleError, match="'i' is not among its axes"):
        s[c].split(i, 4)
    with pytest.raises(ScheduleError, match="must follow 'i.outer'"):
        s[c].fuse(io, j)
    with pytest.raises(ScheduleError, match="there twice"):
        s[c].reorder(ii, io, ii)
    with pytest.raises(ScheduleError, match="'k' is reduced over"):
        s[c].vectorize(k)
    with pytest.raises(ScheduleError, match="it is a reduction"):
        s[c].compute_inline()
    with pytest.raises(ScheduleError, match="expected one of global"):
        s[c].set_scope("nowhere")
    with pytest.raises(ScheduleError, match="is not among the computations"):
        s[te.compute((1,), lambda _: 1.0)]
    with pytest.raises(ScheduleError, match="does not read it"):
        s.cache_read(a, "local", [a])
    with pytest.raises(ValueError, match="either factor or nparts"):
        s[c].split(ii)
    with pytest.raises(ScheduleError, match="argument 'D' is not in the schedule"):
        ekiden.lower(s, [a, b, c, te.compute((1,), lambda _: 1.0, name="D")])
    with pytest.raises(ekiden.CompileError, match="needs its arguments"):
        ekiden.build(s, target="llvm")


def test_buffers_that_are_bound() -> None:
    a, b = doubled((4, 4))
    strided = tir.decl_buffer((4, 4), name="wide", strides=[8, 1])
    s = te.create_schedule(b.op)
    module = ekiden.build(s, [strided, b], "llvm", name="f", binds={a: strided})
    whole = numbers(4, 8)
    x = ekiden.from_dlpack(whole[:, :4])
    out = ekiden.nd.array(np.zeros((4, 4), "float32"))
    module["f"](x, out)
    np.testing.assert_array_equal(out.numpy(), whole[:, :4] * 2 + 1)


def test_inlining_by_kind() -> None:
    a, b = doubled((4, 4))
    row = te.compute((4,), lambda j: a[0, j] + 1.0, name="row")
    wide = te.compute((4, 4), lambda i, j: row[j] + b[i, j], name="wide")
    out = te.compute((4, 4), lambda i, j: wide[j, i], name="out")
    x = numbers(4, 4)
    expected = (x[0] + 1 + (x * 2 + 1)).T
    kinds = (
        (te.schedule.AutoInlineElemWise, {"B"}),
        (te.schedule.AutoInlineBroadcast, {"B", "wide"}),
        (te.schedule.AutoInlineInjective, {"B", "wide", "row"}),
    )
    for inline, names in kinds:
        s = te.create_schedule(out.op)
        inline(s)
        assert {stage.name for stage in s.stages if stage.attach_type == 2} == names
        np.testing.assert_array_equal(run(s, [a, out], x), expected)
    assert len(list(pre_order_stmts(te.schedule.ScheduleOps(s)))) > 3


def test_layouts_by_functions_of_all_and_the_last() -> None:
    a, b = doubled((3, 8))
    s = te.create_schedule(b.op)
    s[a].transform_layout(lambda *i, n: [n // 4, *i, n % 4])
    x = numbers(2, 3, 4)
    flat = x.transpose(1, 0, 2).reshape(3, 8)
    np.testing.assert_array_equal(run(s, [a, b], x), flat * 2 + 1)


def test_sums_over_as_many_as_the_element_says() -> None:
    a = te.placeholder((10,), name="A")

    def element(n: tir.Var) -> tir.PrimExpr:
        k = te.reduce_axis((0, n))
        return te.sum(a[k], k)

    b = te.compute((10,), element, name="B")
    s = te.create_schedule(b.op)
    s[b].parallel(b.op.axis[0])
    x = numbers(10)
    np.testing.assert_array_equal(run(s, [a, b], x), [x[:n].sum() for n in range(10)])


def test_what_is_written_to_a_cache_keeps_the_order_of_its_sums() -> None:
    a = te.placeholder((8, 8), name="a")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((8,), lambda i: te.sum(a[i, k], k), name="c")
    s = te.create_schedule(c.op)
    outer, inner = s[c].split(k, 4)
    s[c].reorder(inner, outer)
    kept = s[s.cache_write(c, "local")]
    assert [x.var.name for x in kept.leaf_iter_vars] == ["i.c", "k.inner", "k.outer"]
    kept.fuse(inner, outer)
    with pytest.raises(ScheduleError, match="is not among its axes"):
        kept.fuse(outer, inner)


def test_inlined_argument_is_stored_and_computed_into_its_readers() -> None:
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] + 1.0, name="b")
    c = te.compute((4,), lambda i: b[i] * 2.0, name="c")
    s = te.create_schedule(c.op)
    s[b].compute_inline()
    func = program(s, [a, b, c])
    assert "c[i] = (a[i] + 1.0) * 2.0" in func.script().replace("i0", "i").replace("i_1", "i")
    x = numbers(4)
    stored, doubled = (ekiden.nd.array(np.zeros(4, "float32")) for _ in range(2))
    ekiden.build(s, [a, b, c], "llvm")(ekiden.nd.array(x), stored, doubled)
    assert np.array_equal(stored.numpy(), x + 1) and np.array_equal(doubled.numpy(), (x + 1) * 2)
