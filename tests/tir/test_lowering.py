"""Lowering passes: text in, text out, equal results when interpreted."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.codegen.build import build
from ekiden.codegen.cache import KernelCache
from ekiden.ir.instrument import PassPrintingInstrument, PassTimingInstrument
from ekiden.ir.module import IRModule
from ekiden.ir.prim import SizeVar
from ekiden.ir.transform import PassContext, get_pass
from ekiden.runtime.errors import ScheduleError
from ekiden.script import tir as T
from ekiden.target import Target
from ekiden.tir import PrimFunc, transform
from ekiden.tir.interpreter import run_prim_func

pytestmark = pytest.mark.quick

HEAD = "from ekiden.script import tir as T\n@T.prim_func\ndef f("


def parse(params: str, body: str) -> PrimFunc:
    """A function over buffers written `a: (2, 8), b: (8,)`, all float32."""
    typed = params.replace(": (", ": T.Buffer((").replace(")", '), "float32")')
    func = tir.parse(f"{HEAD}{typed}):\n{indented(body)}")
    assert isinstance(func, PrimFunc)
    return func


def indented(body: str) -> str:
    return "\n".join(f"    {line}" for line in body.strip("\n").splitlines()) + "\n"


def body_of(func: PrimFunc) -> str:
    """The text of the body alone."""
    lines = func.script().split("):\n", 1)[1].splitlines()
    return "\n".join(line[4:] for line in lines).strip()


def check(func: PrimFunc, change: Callable[[PrimFunc], PrimFunc], after: str) -> PrimFunc:
    """The pass makes this text, and the program still means the same."""
    new = change(func)
    assert body_of(new) == after.strip()
    same_meaning(func, new)
    return new


def same_meaning(one: PrimFunc, two: PrimFunc) -> None:
    """Equal results on random arrays."""
    random = np.random.default_rng(0)
    shapes = [tuple(int(str(d)) for d in b.shape) for b in one.params]
    arrays = [random.standard_normal(s).astype("float32") for s in shapes]
    results = [[a.copy() for a in arrays] for _ in range(2)]
    for func, result in zip((one, two), results, strict=True):
        run_prim_func(transform.lower(func), *result)
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


def test_virtual_threads_are_interleaved() -> None:
    func = parse(
        "a: (2, 8), b: (2, 8)",
        """
for v in T.thread_binding(2, thread="vthread.x"):
    t = T.alloc_buffer((8,), "float32", scope="local")
    for i in range(8):
        t[i] = a[v, i]
    for i in range(8):
        b[v, i] = t[i] * 2.0
""",
    )
    check(
        func,
        transform.inject_virtual_threads,
        """
t = T.alloc_buffer((2, 8), "float32", scope="local")
for i in range(8):
    t[0, i] = a[0, i]
    t[1, i] = a[1, i]
for i in range(8):
    b[0, i] = t[0, i] * 2.0
    b[1, i] = t[1, i] * 2.0
""",
    )


def test_virtual_threads_under_a_bound_of_their_own_are_repeated() -> None:
    func = parse(
        "a: (4,), b: (4,)",
        """
for v in T.thread_binding(2, thread="vthread"):
    for i in range(v + 1):
        b[v * 2 + i] = a[v * 2 + i]
""",
    )
    new = transform.inject_virtual_threads(func)
    same_meaning(func, new)
    assert body_of(new).count("for i in range(") == 2


def test_buffer_is_filled_a_step_ahead() -> None:
    func = parse(
        "a: (6, 8), b: (6, 8)",
        """
for i in range(6):
    t = T.alloc_buffer((8,), "float32", scope="local")
    for fill in T.serial(1, annotations={"double_buffer": True}):
        for j in range(8):
            t[j] = a[i, j]
    for j in range(8):
        b[i, j] = t[j] * 2.0
""",
    )
    check(
        func,
        transform.inject_double_buffer,
        """
t = T.alloc_buffer((2, 8), "float32", scope="local")
for j in range(8):
    t[0, j] = a[0, j]
for i in range(6):
    if i + 1 < 6:
        for j in range(8):
            t[(i + 1) % 2, j] = a[i + 1, j]
    for j in range(8):
        b[i, j] = t[i % 2, j] * 2.0
""",
    )


def test_what_reads_the_result_of_the_step_before_is_not_filled_ahead() -> None:
    func = parse(
        "b: (7, 8)",
        """
for i in range(6):
    t = T.alloc_buffer((8,), "float32", scope="local")
    for fill in T.serial(1, annotations={"double_buffer": True}):
        for j in range(8):
            t[j] = b[i, j]
    for j in range(8):
        b[i + 1, j] = t[j] * 2.0
""",
    )
    new = transform.inject_double_buffer(func)
    same_meaning(func, new)
    assert "(2, 8)" not in body_of(new) and "double_buffer" not in body_of(new)


def test_annotated_block_becomes_a_double_buffer() -> None:
    x = te.placeholder((6, 8), name="x")
    t = te.compute((6, 8), lambda i, j: x[i, j] + 1.0, name="t")
    y = te.compute((6, 8), lambda i, j: t[i, j] * t[i, 7 - j], name="y")
    schedule = tir.Schedule(te.create_prim_func([x, y]))
    block = schedule.get_block("t")
    schedule.compute_at(block, schedule.get_loops(schedule.get_block("y"))[0])
    schedule.annotate(block, "double_buffer_scope", 0)
    func = schedule.mod["main"]
    assert isinstance(func, PrimFunc)
    with PassContext(disabled_pass=["tir.InjectDoubleBuffer"]):
        plain = transform.lower(func)
    doubled = transform.lower(func)
    assert "T.alloc_buffer((2, 1, 8)" in doubled.script()
    same_meaning(plain, doubled)


def test_buffers_of_other_times_share_memory() -> None:
    func = parse(
        "a: (8,), b: (8,)",
        """
t = T.alloc_buffer((8,), "float32")
u = T.alloc_buffer((8,), "float32")
w = T.alloc_buffer((4,), "float32")
for i in range(8):
    t[i] = a[i]
for i in range(8):
    u[i] = t[i]
for i in range(4):
    w[i] = u[i]
for i in range(4):
    b[i] = w[i]
""",
    )
    check(
        func,
        transform.storage_rewrite,
        """
t = T.alloc_buffer((8,), "float32")
u = T.alloc_buffer((8,), "float32")
for i in range(8):
    t[i] = a[i]
for i in range(8):
    u[i] = t[i]
for i in range(4):
    t[i] = u[i]
for i in range(4):
    b[i] = t[i]
""",
    )
    with PassContext(config={"tir.disable_storage_rewrite": True}):
        assert transform.storage_rewrite(func) is func


def test_larger_buffer_or_another_type_keeps_its_memory() -> None:
    func = parse(
        "a: (8,), b: (8,)",
        """
t = T.alloc_buffer((4,), "float32")
u = T.alloc_buffer((8,), "float32")
w = T.alloc_buffer((4,), "float64")
for i in range(4):
    t[i] = a[i]
for i in range(4):
    b[i] = t[i]
for i in range(8):
    u[i] = a[i]
for i in range(8):
    b[i] = u[i]
for i in range(4):
    w[i] = T.float64(1)
""",
    )
    assert transform.storage_rewrite(func).script() == func.script()


def test_condition_is_asked_before_the_loops_it_does_not_change_in() -> None:
    func = parse(
        "a: (8,), b: (8,)",
        """
for i in range(8):
    for j in range(8):
        if i < 4:
            b[j] = a[j]
        else:
            b[j] = 0.0
""",
    )
    check(
        func,
        transform.hoist_conditions,
        """
for i in range(8):
    if i < 4:
        for j in range(8):
            b[j] = a[j]
    else:
        for j in range(8):
            b[j] = 0.0
""",
    )


def test_condition_that_reads_memory_stays() -> None:
    func = parse(
        "a: (8,), b: (8,)",
        """
for j in range(8):
    if b[0] < 4.0:
        b[j] = a[j]
""",
    )
    assert transform.hoist_conditions(func).script() == func.script()


def test_statements_without_effect_are_removed() -> None:
    func = parse(
        "a: (8,), b: (24,)",
        """
t = T.alloc_buffer((8,), "float32")
for i in range(8):
    x: T.int64 = i * 2
    y: T.int64 = i * 3
    if i < 3:
        T.evaluate(0)
    b[y] = a[i]
""",
    )
    check(
        func,
        transform.remove_no_op,
        """
for i in range(8):
    y: T.int64 = i * 3
    b[y] = a[i]
""",
    )


def test_branch_that_differs_between_lanes_becomes_masks() -> None:
    func = parse(
        "a: (16,), b: (16,)",
        """
for i in T.vectorized(8):
    if i < 5:
        b[i] = a[i]
    else:
        b[i + 8] = a[i] + 1.0
""",
    )
    new = transform.vectorize_loops(func)
    assert body_of(new).count("predicate=") == 2
    a, b = np.arange(16, dtype="float32"), np.zeros(16, "float32")
    run_prim_func(transform.lower(func), a, b)
    np.testing.assert_array_equal(b, [0, 1, 2, 3, 4, *[0] * 8, 6, 7, 8])


def test_store_to_one_element_cannot_differ_between_lanes() -> None:
    func = parse(
        "a: (16,), b: (16,)",
        """
for i in T.vectorized(8):
    if i < 5:
        b[0] = 1.0
""",
    )
    with pytest.raises(ScheduleError) as caught:
        transform.vectorize_loops(func)
    assert str(caught.value) == (
        "vectorize: the store to 'b' is under a condition that differs between lanes, and to one "
        "element"
    )


def test_lanes_do_not_store_to_one_element() -> None:
    func = parse("a: (16,), b: (16,)", "for i in T.vectorized(8):\n    b[0] = a[i]")
    message = "every lane has a value of its own to store to one element of 'b'"
    with pytest.raises(ScheduleError, match=message):
        transform.vectorize_loops(func)


def test_intrinsics_that_generators_do_not_know_are_written_out() -> None:
    func = parse(
        "a: (8,), b: (8,)", "for i in range(8):\n    if T.likely(i < 5):\n        b[i] = a[i]"
    )
    assert "likely" not in transform.lower_intrinsics(func).script()
    same_meaning(func, transform.lower_intrinsics(func))


# loop partition


def split_rows(
    rows: SizeVar | int, factor: int, change: Callable[[tir.Schedule, object], None]
) -> PrimFunc:
    """c[i, j] = a[i, j] + 1 over rows split by a factor; `change` gets the inner loop."""
    a = te.placeholder((rows, 5), name="a")
    c = te.compute((rows, 5), lambda i, j: a[i, j] + 1.0, name="c")
    schedule = tir.Schedule(te.create_prim_func([a, c]))
    outer, _ = schedule.get_loops(schedule.get_block("c"))
    _, inner = schedule.split(outer, [None, factor])
    change(schedule, inner)
    func = schedule.mod["main"]
    assert isinstance(func, PrimFunc)
    return func


def test_loop_without_iterations_has_no_tail() -> None:
    """Of a part that begins behind the end: its condition holds for no iteration."""

    @T.prim_func
    def nothing(out: T.Buffer((3,), "float32")) -> None:
        for i, j in T.grid(0, 4):
            with T.block("never"):
                v = T.axis.spatial(3, i * 4 + j + 4)
                T.where(i * 4 + j < -1)
                out[v] = T.float32(0)

    lowered = tir.verify(transform.lower(nothing))
    out = np.ones(3, "float32")
    run_prim_func(lowered, out)
    np.testing.assert_array_equal(out, np.ones(3, "float32"))


def test_rest_of_a_split_is_a_part_of_its_own() -> None:
    func = split_rows(10, 4, lambda s, loop: None)
    parted = transform.loop_partition(transform.lower_blocks(func))
    assert body_of(parted).split("\n", 1)[1] == (
        "for i_0, i_1, j in T.grid(2, 4, 5):\n"
        "    c[i_0 * 4 + i_1, j] = a[i_0 * 4 + i_1, j] + 1.0\n"
        "for i_1, j in T.grid(2, 5):\n"
        "    c[8 + i_1, j] = a[8 + i_1, j] + 1.0"
    )


def test_unrolled_rest_of_unknown_size_has_a_copy_for_each_size() -> None:
    func = split_rows(SizeVar("m"), 4, lambda s, loop: s.unroll(loop))  # type: ignore[arg-type]
    text = body_of(transform.loop_partition(transform.lower_blocks(func)))
    assert "for i_0 in range(m // 4):" in text
    assert [f"if m % 4 == {n}:" in text for n in (1, 2, 3)] == [True] * 3
    assert [f"in T.unroll({n}):" in text for n in (2, 3, 4)] == [True] * 3
    assert "likely" not in text and "< m" not in text


@pytest.mark.parametrize("kind", ["serial", "unroll", "vectorize", "parallel"])
@pytest.mark.parametrize("rows", [SizeVar("m"), 10, 13, 16, 3, 1])
def test_loop_partitioning_keeps_meaning(kind: str, rows: SizeVar | int) -> None:
    def change(schedule: tir.Schedule, loop: object) -> None:
        if kind != "serial":
            getattr(schedule, kind)(loop)

    func = split_rows(rows, 4, change)
    lowered = transform.lower(func)
    for size in range(14) if isinstance(rows, SizeVar) else [rows]:
        a = np.random.default_rng(size).standard_normal((size, 5)).astype("float32")
        c = np.zeros_like(a)
        run_prim_func(lowered, a, c)
        np.testing.assert_array_equal(c, a + 1)


def test_hinted_loop_is_cut_where_conditions_of_values_change() -> None:
    hinted = """
for i in T.serial(8, annotations={"pragma_loop_partition_hint": 1}):
    for q in T.serial(3):
        b[i] = b[i] + T.if_then_else(i + q >= 1 and i + q < 9, a[i + q - 1], T.float32(0))
"""
    func = parse("a: (8,), b: (8,)", hinted)
    text = body_of(transform.loop_partition(func))
    assert "for i in T.serial(6" in text, text
    assert "b[i + 1] = b[i + 1] + T.if_then_else(True, a[i + 1 + q - 1], 0.0)" in text, text
    plain = parse("a: (8,), b: (8,)", hinted.replace("pragma_loop_partition_hint", "other"))
    assert transform.loop_partition(plain) is plain
    a, b = np.arange(8, dtype="float32"), np.zeros(8, "float32")
    run_prim_func(transform.lower(func), a, b)
    np.testing.assert_array_equal(b, np.convolve(a, np.ones(3, "float32"), "same"))


def test_conditions_from_below_cut_off_the_first_steps() -> None:
    func = parse(
        "a: (8,), b: (8,)",
        """
for i in range(8):
    if T.likely(i >= 2 and i < 7):
        b[i] = a[i - 2]
""",
    )
    check(
        func,
        transform.loop_partition,
        """
for i in range(5):
    b[i + 2] = a[i + 2 - 2]
""",
    )


# the pipeline


def module() -> IRModule:
    return IRModule({"f": split_rows(10, 4, lambda s, loop: s.vectorize(loop))})  # type: ignore[arg-type]


def test_passes_have_the_names_of_tvm() -> None:
    names = [pass_.name for pass_ in transform.PASSES if pass_.name.startswith("tir.")]
    assert names == [get_pass(name).name for name in names]
    new = transform.Simplify()(transform.LowerOpaqueBlock()(module()))
    assert "T.block" not in new["f"].script()  # type: ignore[attr-defined]


def test_instruments_see_every_pass() -> None:
    timing, shown = PassTimingInstrument(), io.StringIO()
    func = module()["f"]
    assert isinstance(func, PrimFunc)
    with PassContext(instruments=[timing, PassPrintingInstrument(file=shown)]):
        transform.lower(func, Target("llvm"))
    assert {"tir.lower", *(pass_.name for pass_ in transform.PASSES)} == set(timing.seconds)


def test_pass_can_be_left_out() -> None:
    func = module()["f"]
    assert isinstance(func, PrimFunc)
    with PassContext(disabled_pass=["tir.VectorizeLoop"]):
        assert "T.vectorized" in transform.lower(func).script()


@pytest.mark.slow
def test_tile_cut_by_the_edge_stays_in_registers() -> None:
    rows = SizeVar("m")
    a, b = te.placeholder((rows, 8), name="a"), te.placeholder((8, 32), name="b")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((rows, 32), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    schedule = tir.Schedule(te.create_prim_func([a, b, c]))
    block = schedule.get_block("c")
    copy = schedule.cache_write(block, 0, "register")
    i, j, k_loop = schedule.get_loops(block)
    i0, i1 = schedule.split(i, [None, 4])
    j0, j1 = schedule.split(j, [None, 16])
    schedule.reorder(i0, j0, k_loop, i1, j1)
    schedule.reverse_compute_at(copy, j0)
    schedule.unroll(i1)
    schedule.vectorize(j1)
    rest = schedule.get_loops(copy)
    schedule.unroll(rest[-2])
    schedule.vectorize(rest[-1])
    schedule.decompose_reduction(block, k_loop)
    func = schedule.mod["main"]
    assert isinstance(func, PrimFunc)
    lowered = transform.lower(func)
    assert 'T.alloc_buffer((4, 16), "float32", scope="register")' in lowered.script()
    for size in (0, 1, 3, 4, 7, 12):
        x = np.random.default_rng(size).standard_normal((size, 8)).astype("float32")
        y = np.random.default_rng(1).standard_normal((8, 32)).astype("float32")
        out = np.zeros((size, 32), "float32")
        run_prim_func(lowered, x, y, out)
        np.testing.assert_allclose(out, x @ y, rtol=1e-4, atol=1e-5)


# host and device


def thread_copy(rows: SizeVar | int) -> PrimFunc:
    """Two stages over thread axes with a buffer between them, and a loop of the host."""
    a = te.placeholder((rows, 8), name="a")
    t = te.compute((rows, 8), lambda i, j: a[i, j] + 1.0, name="t")
    c = te.compute((rows, 8), lambda i, j: t[i, 7 - j] * 2.0, name="c")
    schedule = tir.Schedule(te.create_prim_func([a, c]))
    for block in ("t", "c"):
        i, j = schedule.get_loops(schedule.get_block(block))
        schedule.bind(i, "blockIdx.x")
        schedule.bind(j, "threadIdx.x")
    func = schedule.mod["main"]
    assert isinstance(func, PrimFunc)
    return func


def test_device_regions_become_functions() -> None:
    lowered = transform.LowerOpaqueBlock()(IRModule({"main": thread_copy(SizeVar("n"))}))
    split = transform.SplitHostDevice()(lowered)
    assert sorted(g.name_hint for g in split) == ["main", "main_kernel", "main_kernel_1"]
    host, kernel = split["main"], split["main_kernel"]
    assert isinstance(host, PrimFunc) and isinstance(kernel, PrimFunc)
    assert "thread" not in body_of(host) and host.script().count("call_function") == 2
    assert [b.name for b in kernel.params] == ["a", "t"]
    assert kernel.attrs is not None and kernel.attrs["tir.is_device"]
    assert kernel.attrs["tir.thread_axes"] == ("blockIdx.x", "threadIdx.x")


@pytest.mark.parametrize("backend", ["interpreter", "llvm", "c"])
@pytest.mark.parametrize("rows", [SizeVar("n"), 3])
def test_split_program_means_the_same(backend: str, rows: SizeVar | int) -> None:
    module = transform.SplitHostDevice()(
        transform.LowerOpaqueBlock()(IRModule({"main": thread_copy(rows)}))
    )
    a = np.arange(24, dtype="float32").reshape(3, 8)
    c = np.zeros_like(a)
    if backend == "interpreter":
        lowered = {g.name_hint: transform.lower(f) for g, f in module.functions.items()}  # type: ignore[arg-type]
        run_prim_func(lowered["main"], a, c, functions=lowered)
    else:
        build(module, backend, cache=KernelCache(None))["main"](a, c)
    np.testing.assert_array_equal(c, (a[:, ::-1] + 1) * 2)


def test_device_gets_as_numbers_what_no_buffer_has() -> None:
    func = parse(
        "a: (8,), b: (8,)",
        """
for i in range(8):
    for j in T.thread_binding(1, thread="threadIdx.x"):
        b[i + j] = a[i]
""",
    )
    module = transform.split_host_device(IRModule({"f": func}))
    kernel = module["f_kernel"]
    assert isinstance(kernel, PrimFunc) and [v.name for v in kernel.scalars] == ["i"]
    lowered = {g.name_hint: transform.lower(f) for g, f in module.functions.items()}  # type: ignore[arg-type]
    a, b = np.arange(8, dtype="float32"), np.zeros(8, "float32")
    run_prim_func(lowered["f"], a, b, functions=lowered)
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("backend", ["interpreter", "llvm", "c"])
def test_loop_may_be_longer_in_some_lanes(backend: str) -> None:
    func = parse(
        "a: (20, 4), b: (20,)",
        """
for i in T.vectorized(20, annotations={"lanes": 8}):
    for k in T.vectorized(T.min(4, (i * 5) % 7)):
        b[i] = b[i] + a[i, k]
""",
    )
    lowered = tir.verify(transform.lower(func))
    a, b = (
        np.random.default_rng(0).standard_normal((20, 4)).astype("float32"),
        np.zeros(20, "float32"),
    )
    if backend == "interpreter":
        run_prim_func(lowered, a, b)
    else:
        build(func, backend, cache=KernelCache(None))["f"](a, b)
    expected = [a[i, : min(4, i * 5 % 7)].sum() for i in range(20)]
    np.testing.assert_allclose(b, expected, rtol=1e-5, atol=1e-6)
