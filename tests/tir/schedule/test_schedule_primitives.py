"""Schedule primitives: the program after each, and its meaning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.ir.prim import Select, SizeVar, const, maximum
from ekiden.script import tir as T
from ekiden.tir import LoopRV, PrimFunc, Schedule, ScheduleError, TensorIntrin
from ekiden.tir.interpreter import run_prim_func
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
    run_prim_func(tir.verify(lower(func)), a, b, out)
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


def test_tiled_matmul_matches_numpy() -> None:
    sch = Schedule(product())
    i, j, k = loops(sch)
    _, j1 = sch.split(j, [None, 8])
    sch.reorder(k, j1)
    sch.decompose_reduction("c", k)
    sch.vectorize(j1, 8)
    sch.parallel(i, 2)
    check(sch.func)


def test_fused_loops_match_numpy() -> None:
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
    producer = other.get_block("d")
    other.reverse_compute_inline("e")
    check(other.func)
    assert 'block("e")' not in tir.astext(other.func)
    other.parallel(other.get_loops(producer)[0])  # its handle is that of the block that is left
    check(other.func)


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


def test_unsafe_set_dtype_rounds_what_is_stored() -> None:
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x[i] * 3.0, name="y")
    z = te.compute((4,), lambda i: y[i] + 1.0, name="z")
    sch = Schedule(te.create_prim_func([x, z], "rounded"))
    sch.unsafe_set_dtype("y", 0, "float16")
    array, out = np.array([0.1, 1.7, -3.3, 999.9], "float32"), np.zeros(4, "float32")
    run_prim_func(tir.verify(lower(sch.func)), array, out)
    np.testing.assert_array_equal(out, np.float16(array * np.float32(3)).astype("float32") + 1)


def test_compute_at_of_a_window_reads_only_what_exists() -> None:
    x = te.placeholder((20,), name="x")
    y = te.compute((20,), lambda i: x[i] * 2.0, name="y")
    k = te.reduce_axis((0, 3), "k")
    z = te.compute((18,), lambda i: te.sum(y[i + k], k), name="z")
    sch = Schedule(te.create_prim_func([x, z], "window"))
    outer, _ = sch.split(sch.get_loops("z")[0], [None, 6])
    sch.compute_at("y", outer)
    array, out = np.arange(20, dtype="float32"), np.zeros(18, "float32")
    run_prim_func(tir.verify(lower(sch.func)), array, out)
    np.testing.assert_allclose(out, np.convolve(array * 2, np.ones(3), "valid"))


def conv(sch_rows: int = 12) -> PrimFunc:
    """Two stages of windows over rows."""
    x = te.placeholder((sch_rows, 8), name="x")
    y = te.compute((sch_rows, 8), lambda i, j: x[i, j] * 2.0, name="y")
    k = te.reduce_axis((0, 3), "k")
    z = te.compute((sch_rows - 2, 8), lambda i, j: te.sum(y[i + k, j], k), name="z")
    return te.create_prim_func([x, z], "conv")


def check_conv(func: PrimFunc, rows: int = 12) -> None:
    """Compare with NumPy."""
    x = np.arange(rows * 8, dtype="float32").reshape(rows, 8)
    out = np.full((rows - 2, 8), 7, "float32")
    run_prim_func(tir.verify(lower(func)), x, out)
    np.testing.assert_array_equal(out, sum(2 * x[n : n + rows - 2] for n in range(3)))


@pytest.mark.parametrize("tile", [1, 2])
def test_rolling_buffer_keeps_a_window(tile: int) -> None:
    sch = Schedule(conv())
    outer, _ = sch.split(sch.get_loops("z")[0], [None, tile])
    sch.compute_at("y", outer)
    sch.rolling_buffer("y", 0)
    check_conv(sch.func)
    text = str(sch.func)
    assert f'y = T.alloc_buffer(({tile + 2}, 8), "float32")' in text
    assert f"% {tile + 2}" in text
    assert "i_0 == 0 or" in text


def test_unannotate_removes_annotations() -> None:
    sch = Schedule(product())
    before = str(sch.func)
    sch.annotate("c", "note", 1)
    sch.unannotate("c", "note")
    assert str(sch.func) == before


def test_reads_under_tiles_of_tiles() -> None:
    """compute_at under two levels of tiles, the reader's last tile cut short."""
    sch = Schedule(product())
    sch.compute_inline("d")
    i0, j0, _, _ = sch.tile(*sch.get_loops("e"), 2, 8)
    sch.compute_at("c", j0)
    sch.parallel(i0)
    check(sch.func)


def test_reducer_of_two_outputs() -> None:
    """The largest element and its number."""
    x, n = te.placeholder((4, 6), name="x"), te.placeholder((4, 6), "int64", name="n")
    largest = te.comm_reducer(
        lambda a, b: (Select(a[1] >= b[1], a[0], b[0], "int64"), maximum(a[1], b[1])),
        lambda t0, t1: (const(-1, t0), te.min_value(t1)),
        name="argmax",
    )
    k = te.reduce_axis((0, 6), "k")
    first, second = te.compute((4,), lambda i: largest((n[i, k], x[i, k]), axis=k), name="top")
    sch = Schedule(te.create_prim_func([x, n, first, second]))
    i, k0 = sch.get_loops("top")
    outer, inner = sch.split(k0, [None, 4])
    sch.reorder(outer, inner, i)
    sch.decompose_reduction("top", outer)
    sch.parallel(sch.get_loops("top_init")[0])
    data = np.random.default_rng(0).permutation(24).astype("float32").reshape(4, 6)
    numbers = np.broadcast_to(np.arange(6), (4, 6)).copy()
    where, values = np.zeros(4, "int64"), np.zeros(4, "float32")
    run_prim_func(tir.verify(lower(sch.func)), data, numbers, where, values)
    np.testing.assert_array_equal(where, data.argmax(1))
    np.testing.assert_array_equal(values, data.max(1))


@T.prim_func
def dot4(
    a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32"), c: T.Buffer((1,), "float32")
) -> None:
    for k in range(4):
        with T.block("dot"):
            v = T.axis.reduce(4, k)
            c[0] = c[0] + a[v] * b[v]


@T.prim_func
def dot4_by_pairs(
    a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32"), c: T.Buffer((1,), "float32")
) -> None:
    c[0] = (a[0] * b[0] + a[2] * b[2]) + (a[1] * b[1] + a[3] * b[3]) + c[0]


def test_tensorize_replaces_the_block() -> None:
    TensorIntrin.register("test.dot4", dot4, dot4_by_pairs, override=True)
    a, b = te.placeholder((5, 8), name="a"), te.placeholder((3, 8), name="b")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((5, 3), lambda i, j: te.sum(a[i, k] * b[j, k], k), name="c")
    sch = Schedule(te.create_prim_func([a, b, c]))
    outer, inner = sch.split(sch.get_loops("c")[2], [None, 4])
    sch.decompose_reduction("c", outer)
    sch.tensorize(inner, "test.dot4")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 8)).astype("float32"), rng.normal(size=(3, 8)).astype("float32")
    out = np.zeros((5, 3), "float32")
    run_prim_func(tir.verify(lower(sch.func)), x, y, out)
    np.testing.assert_allclose(out, x @ y.T, rtol=1e-5, atol=1e-6)
    assert "for k_1 in" not in str(sch.func)


def test_layouts_of_arguments_change_the_function() -> None:
    sch = Schedule(product(m=16))
    sch.transform_layout("c", ("read", 1), lambda k, j: (j // 8, k, j % 8))
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 7)).astype("float32"), rng.normal(size=(7, 16)).astype("float32")
    packed = b.reshape(7, 2, 8).transpose(1, 0, 2).copy()
    out = np.zeros((5, 16), "float32")
    run_prim_func(tir.verify(lower(sch.func)), a, packed, out)
    np.testing.assert_allclose(out, np.maximum(a @ b, 0) + 1, rtol=1e-4, atol=1e-5)


def test_bound_loops_have_their_axis() -> None:
    sch = Schedule(product())
    i, j, _ = loops(sch)
    sch.bind(i, "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    bound = sch.get(j)
    assert isinstance(bound, tir.For)
    assert bound.kind is tir.ForKind.THREAD_BINDING
    assert bound.annotations == {"thread": "threadIdx.x"}


def test_schedule_queries_answer() -> None:
    sch = Schedule(product())
    block = sch.get_block("d")
    names = [
        [sch.get(b).name for b in result]  # type: ignore[union-attr]
        for result in (
            sch.get_producers(block),
            sch.get_consumers(block),
            sch.get_output_blocks(),
            sch.get_child_blocks(sch.get_loops(block)[0]),
        )
    ]
    assert names == [["c"], ["e"], ["e"], ["d"]]
    outer = sch.blockize(sch.get_loops(block)[1])
    assert [sch.get(b).name for b in sch.get_child_blocks(outer)] == ["d"]  # type: ignore[union-attr]
    assert [sch.get(x).loop_var.name for x in sch.get_loops(block)] == ["j"]  # type: ignore[union-attr]


def test_storage_align_sets_strides() -> None:
    sch = Schedule(product(m=16))
    sch.storage_align("c", 0, 0, factor=16, offset=1)
    sch.storage_align("d", 0, -2, factor=32, offset=0)
    check(sch.func, m=16)
    text = str(lower(sch.func))
    assert 'c = T.alloc_buffer((85,), "float32")' in text  # 5 rows of 17
    assert 'd = T.alloc_buffer((160,), "float32")' in text  # 5 rows of 32
    assert "buffer_dim_align" not in text


@T.prim_func
def product_of_int32(a: T.Buffer((8, 8), "float32"), b_: T.handle, c_: T.handle) -> None:
    n = T.int32()
    b = T.match_buffer(b_, (n, 8), "float32")
    c = T.match_buffer(c_, (8, n), "float32")
    for i0, i1, i2 in T.grid(8, n, 8):
        with T.block("c"):
            i, j, k = T.axis.remap("SSR", [i0, i1, i2])
            with T.init():
                c[i, j] = T.float32(0)
            c[i, j] = c[i, j] + a[i, k] * b[j, k]


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.pad_einsum("c", [4, 4, 4]),
        lambda s: s.cache_write("c", 0, "local"),
        lambda s: s.cache_read("c", 1, "local"),
        lambda s: s.split(s.get_loops("c")[1], [None, 4]),
        lambda s: s.rfactor(s.split(s.get_loops("c")[2], [None, 4])[1], 0),
        lambda s: s.reindex("c", ("write", 0)),
    ],
)
def test_sizes_of_int32_stay_so(step: Callable[[Schedule], object]) -> None:
    sch = Schedule(product_of_int32)
    step(sch)
    text = str(sch.func)
    assert "Cast" not in text
    assert "int64" not in text
    assert "T.serial" not in text


def test_sum_without_its_init_has_tvms_name_too() -> None:
    sch = Schedule(product())
    sch.decompose_reduction("c", loops(sch)[2])
    assert sch.get(sch.get_block("c_update")) is sch.get(sch.get_block("c"))


def packing(packs: bool) -> PrimFunc:
    """Twice x, channels in groups of 16 (or out of them)."""
    flat, packed = (2, 64, 5), (2, 4, 5, 16)
    x = te.placeholder(flat if packs else packed, name="x")
    if packs:
        b = te.compute(flat, lambda n, c, h: x[n, c, h] * 2.0, name="b")
        out = te.compute(packed, lambda n, c, h, d: b[n, c * 16 + d, h], name="out")
    else:
        b = te.compute(packed, lambda n, c, h, d: x[n, c, h, d] * 2.0, name="b")
        out = te.compute(flat, lambda n, c, h: b[n, c // 16, h, c % 16], name="out")
    return te.create_prim_func([x, out])


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("tile", [4, 16, 32])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_layouts_change_in_each_step(packs: bool, tile: int, depth: int) -> None:
    sch = Schedule(packing(packs))
    n, c, *rest = sch.get_loops("b")
    sch.reverse_compute_at("out", [n, *sch.split(c, [None, tile]), *rest][depth])
    x = np.arange(640, dtype="float32").reshape((2, 64, 5) if packs else (2, 4, 5, 16))
    out = np.zeros((2, 4, 5, 16) if packs else (2, 64, 5), "float32")
    run_prim_func(tir.verify(lower(sch.func)), x, out)
    if packs:
        expected = 2 * x.reshape(2, 4, 16, 5).transpose(0, 1, 3, 2)
    else:
        expected = 2 * x.transpose(0, 1, 3, 2).reshape(2, 64, 5)
    np.testing.assert_array_equal(out, expected)


@T.prim_func
def one_element(x: T.Buffer((8,), "float32"), out: T.Buffer((1,), "float32")) -> None:
    b = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("b"):
            v = T.axis.spatial(8, i)
            b[v] = x[v]
    for i in range(1):
        with T.block("out"):
            v = T.axis.spatial(1, i)
            out[v] = b[3]


def test_element_of_another_step_is_not_there_yet() -> None:
    sch = Schedule(one_element)
    with pytest.raises(ScheduleError, match="read just what a step of 'i' has written"):
        sch.reverse_compute_at("out", sch.get_loops("b")[0])


@pytest.mark.slow
def test_threads_copy_to_shared_memory_together() -> None:
    sch = Schedule(product(8, 16, 16))
    copies = [sch.cache_read("c", n, "shared") for n in (0, 1)]
    i, j, k = loops(sch)
    i0, i1 = sch.split(i, [None, 4])
    j0, j1 = sch.split(j, [None, 4])
    k0, k1 = sch.split(k, [None, 8])
    sch.reorder(i0, j0, i1, j1, k0, k1)
    for loop, axis in zip(
        (i0, j0, i1, j1), ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"), strict=True
    ):
        sch.bind(loop, axis)
    for copy in copies:
        sch.compute_at(copy, k0)
        fused = sch.fuse(*sch.get_loops(copy)[-2:])
        _, y, x = sch.split(fused, [None, 4, 4])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
    assert str(sch.func).count('thread="threadIdx.x"') == 3
    check(sch.func, 8, 16, 16)


@T.prim_func
def handed(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")) -> None:
    b = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("b"):
            v = T.axis.spatial(8, i)
            b[v] = x[v]
    with T.block("call"):
        T.evaluate(T.call_packed("twice", b.access_ptr("r"), out.access_ptr("w")))


def test_what_is_handed_to_calls_keeps_its_layout() -> None:
    sch = Schedule(handed)
    with pytest.raises(ScheduleError, match="a part of 'b' is handed to a call"):
        sch.transform_layout("b", ("write", 0), lambda i: (i // 2, i % 2))
    sch.set_scope("b", 0, "local")
    assert str(sch.func).count('scope="local"') == 1
    with pytest.raises(ScheduleError, match="block 'call' hands it to a call"):
        sch.compute_inline("b")


def test_places_of_blocks_and_loops() -> None:
    a = te.placeholder((8, 4), name="a")
    sch = Schedule(te.create_prim_func([a, te.compute((8, 4), lambda i, j: a[i, j] + 1, name="b")]))
    block = sch.get_block("b")
    assert sch.get_sref(block).stmt is sch.get(block)
    i, _ = sch.get_loops(block)
    other = sch.copy()
    assert sch.get_sref(i).stmt is other.get_sref(i).stmt
    outer, _ = sch.split(i, [None, 2])
    assert sch.get_sref(outer).stmt.extent == 4 and other.get_sref(i).stmt.extent == 8


@T.prim_func
def windows(
    x: T.Buffer((16, 6), "float32"), w: T.Buffer((3,), "float32"), out: T.Buffer((16, 6), "float32")
) -> None:
    copied = T.alloc_buffer((16, 6), "float32")
    for i, j in T.grid(16, 6):
        with T.block("copy"):
            a, b = T.axis.remap("SS", [i, j])
            copied[a, b] = x[a, b]
    for i, j, k in T.grid(16, 6, 3):
        with T.block("sum"):
            a, b, c = T.axis.remap("SSR", [i, j, k])
            with T.init():
                out[a, b] = 0.0
            out[a, b] = out[a, b] + T.if_then_else(
                b + c >= 1 and b + c < 7, copied[a, b + c - 1] * w[c], 0.0
            )


def test_blockize_keeps_both_bounds_of_an_iterator() -> None:
    sch = tir.Schedule(windows)
    copy = sch.get_block("copy")
    sch.compute_at(copy, sch.get_loops(sch.get_block("sum"))[2], preserve_unit_loops=True)
    sch.blockize(sch.get_loops(copy)[-1])
    assert "T.where(j + k - 1 >= 0 and j + k - 1 < 6)" in str(sch.func)
    tir.verify(lower(sch.func))


def test_region_behind_the_first_does_not_begin_the_sum() -> None:
    sch = tir.Schedule(windows)
    loop = sch.get_loops(sch.get_block("sum"))[2]
    sch.reorder(loop, *sch.get_loops(sch.get_block("sum"))[:2])
    regions = sch.partition_by_conditions(sch.get_block("sum"), loop)
    later = sch.get_loops(regions[-1])[-1]
    with pytest.raises(ScheduleError, match="another block begins the reduction over 'c'"):
        sch.decompose_reduction(regions[-1], later)
