"""Every schedule that the sketch rules derive computes the program's result."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import te, tir
from ekiden.ir.prim import PrimExpr
from ekiden.runtime import Device, nd
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir.schedule.trace import Trace
from ekiden.tir.stmt import PrimFunc
from ekiden.tune import Candidate, Measurer, Session, Task, schedule_task, te_task
from ekiden.tune import te_workload as of
from ekiden.tune.model_schedule import model_schedule
from ekiden.tune.program import DEFAULT_RULE_NAME
from ekiden.tune.rules import DEFAULT_RULES
from ekiden.tune.sketch import Sketch, TraceSpace, block_names, generate_sketches
from long_runs import alike, share

SMALL: dict[str, Callable[[], of.Tensors]] = {
    "GMM": lambda: of.matmul(2, 13, 40, 24),
    "C1D": lambda: of.conv1d(1, 16, 8, 40),
    "C2D": lambda: of.conv2d(1, 12, 3, 32, 5, 2, 2),
    "C3D": lambda: of.conv3d(1, 4, 8, 3, 16, 3, 1, 1),
    "DEP": lambda: of.depthwise(1, 9, 24),
    "DIL": lambda: of.conv2d(1, 12, 4, 16, 3, 1, 2, dilation=2),
    "GRP": lambda: of.conv2d(1, 8, 8, 32, 3, 2, 1, groups=2),
    "T2D": lambda: of.conv2d_transpose(1, 3, 8, 32),
    "NRM": lambda: of.norm(2, 24, 32),
    "SFM": lambda: of.softmax(5, 40),
}


def run(func: PrimFunc) -> np.ndarray:
    rng = np.random.default_rng(0)
    shapes = [tuple(int(str(d)) for d in p.shape) for p in func.params]
    arrays = [rng.standard_normal(s, np.float32) for s in shapes[:-1]]
    out = np.full(shapes[-1], np.nan, np.float32)
    ekiden.build(func, name="main")["main"](*arrays, out)
    return out


@alike(4)
@pytest.mark.parametrize("name", SMALL)
def test_sketches_compute_what_the_program_does(name: str) -> None:
    func = te.create_prim_func(SMALL[name]())
    task = te_task(SMALL[name](), name=name)
    assert isinstance(task.space, TraceSpace) and task.flops > 0
    expected = run(func)
    source = random.Random(name)
    default = task.source.lower(task.space.default, task.target)
    np.testing.assert_allclose(run(default), expected, rtol=1e-4, atol=1e-4)
    seen = set()
    some = range(0, len(task.space.traces), max(1, len(task.space.traces) // 4))
    for trace in some:
        one = TraceSpace(func, task.space.traces[trace : trace + 1])
        candidate = one.mutate(one.sample(source), source)
        seen.add(candidate)
        result = task.source.lower(candidate, task.target)
        np.testing.assert_allclose(run(result), expected, rtol=1e-4, atol=1e-4)
    assert len(seen) == len(some)


def test_infinite_weights_are_not_left_out() -> None:
    """Of a transposed convolution as products with zeros: they are NaN there."""
    task = te_task(SMALL["T2D"](), name="T2D")
    x, w = np.ones((1, 3, 3, 8), np.float32), np.ones((4, 4, 8, 32), np.float32)
    w[0, 1, 2, 3] = np.inf
    expected = np.zeros((1, 6, 6, 32), np.float32)
    actual = np.zeros_like(expected)
    ekiden.build(te.create_prim_func(SMALL["T2D"]()), name="main")["main"](x, w, expected)
    default = task.source.lower(task.space.default, task.target)
    ekiden.build(default, name="main")["main"](x, w, actual)
    assert np.isnan(expected[..., 3]).any() and np.isinf(expected[..., 3]).any()
    np.testing.assert_array_equal(actual, expected)


def doubled(rows: int = 8, depth: int = 16) -> of.Tensors:
    """A product, and twice it and 1 of each element."""
    a, b, c = of.matmul(1, rows, 32, depth)
    return [a, b, te.compute(c.shape, lambda *at: c[at] * 2.0 + 1.0, name="doubled")]


def largest_of_rows(m: int, n: int) -> of.Tensors:
    """The largest of each row of the absolute values of two matrices' sum."""
    a, b = te.placeholder((2, m, n), name="a"), te.placeholder((2, m, n), name="b")
    r = te.reduce_axis((0, n), "r")
    most = te.compute(
        (2, m), lambda s, i: te.max(te.abs(a[s, i, r] + b[s, i, r]), axis=r), name="most"
    )
    return [a, b, most]


def bytes_of_rows(m: int = 8, n: int = 32, k: int = 24) -> of.Tensors:
    """Products of bytes, both factors in rows."""
    a, b = te.placeholder((m, k), "uint8", "a"), te.placeholder((n, k), "int8", "b")
    r = te.reduce_axis((0, k), "r")

    def sums(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        return te.sum(a[i, r].astype("int32") * b[j, r].astype("int32"), axis=r)

    return [a, b, te.compute((m, n), sums, name="sums")]


def test_what_reads_a_tile_is_computed_in_it() -> None:
    task = te_task(doubled(), name="doubled")
    assert isinstance(task.space, TraceSpace)
    func = te.create_prim_func(doubled())
    fused = [n for n, name in enumerate(task.space.names) if "doubled:spread0" in name]
    space = TraceSpace(func, tuple(task.space.traces[n] for n in fused))
    result = task.source.lower(space.sample(random.Random(0)), task.target)
    assert result.script().count("T.parallel") == 1
    np.testing.assert_allclose(run(result), run(func), rtol=1e-5, atol=1e-4)


@share(3)
@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("tensors", "exact"),
    [
        (of.softmax(16, 64), True),
        (of.softmax(5, 40), False),  # rows that no group divides, and no vector
        (largest_of_rows(3, 48), True),
    ],
)
def test_row_sketch_computes_row_by_row(tensors: of.Tensors, exact: bool, cpu: str) -> None:
    """Vectors along each row, whose lanes are combined once, and stages of a few rows together."""
    func, source = te.create_prim_func(tensors), random.Random(cpu)
    expected = run(func)
    result = [
        s for s in generate_sketches(func, Target(f"llvm -mcpu={cpu}")) if "_rf" in lowered(func, s)
    ]
    assert result or not exact
    for item in result:
        space = TraceSpace(func, (item.trace,), (item.name,))
        for _ in range(3):
            schedule = tir.Schedule(func)
            Trace.from_json(space.sample(source).choice).apply_to_schedule(schedule)
            np.testing.assert_allclose(run(schedule.func), expected, rtol=1e-5, atol=1e-6)
    if exact:
        text = tir.transform.lower(schedule.func).script()
        assert "VectorReduce" in text and "T.Broadcast(0, 16) +" not in text


def lowered(func: PrimFunc, sketch: Sketch) -> str:
    """The program of a sketch."""
    schedule = tir.Schedule(func)
    sketch.trace.apply_to_schedule(schedule)
    return schedule.func.script()


def test_candidates_know_what_is_known_of_a_rows_values() -> None:
    """As kernels of families do: no power of a softmax is above 1, and a quotient by their sum is
    a product."""
    processor, device = Target("llvm -mcpu=x86-64-v3"), Target("opencl")
    softmax = of.softmax(16, 64)
    written = te.create_prim_func(softmax)
    task = te_task(softmax, processor)
    assert isinstance(task.source.function, PrimFunc)
    text = task.source.function.script()
    assert "T.exp(T.min(" in text and "T.fma(" in text and "T.exp(T.min(" not in written.script()
    np.testing.assert_allclose(run(task.source.function), run(written), rtol=1e-6)
    assert te_task(softmax, Target("llvm")).workload == te_task(softmax, device).workload


def test_instruction_for_products_of_bytes() -> None:
    func = te.create_prim_func(bytes_of_rows())
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (8, 24), np.uint8), rng.integers(-128, 128, (32, 24), np.int8)
    with_dots = generate_sketches(func, Target("llvm -mcpu=x86-64-v4 -mattr=+avx512vnni"))
    (result,) = [s for s in with_dots if s.name == "sums:tensorize0"]
    schedule = tir.Schedule(func)
    result.trace.apply_to_schedule(schedule)
    out = np.zeros((8, 32), np.int32)
    ekiden.build(schedule.func, name="main")["main"](a, b, out)
    np.testing.assert_array_equal(out, a.astype(np.int32) @ b.astype(np.int32).T)
    plain = generate_sketches(func, Target("llvm -mcpu=x86-64-v2"))
    assert not any("tensorize" in s.name for s in plain)


@pytest.mark.parametrize("tensors", [bytes_of_rows(), of.softmax(16, 64)])
def test_processes_that_build_candidates_know_their_instructions(tensors: of.Tensors) -> None:
    task = te_task(tensors)
    assert isinstance(task.space, TraceSpace)
    named = {n: t for n, t in zip(task.space.names, task.space.traces, strict=True)
             if any(i.kind == "tensorize" for i in t.insts)}  # fmt: skip
    if not named:
        pytest.skip("this processor has no such instruction")
    assert isinstance(task.source.function, PrimFunc)
    space = TraceSpace(task.source.function, tuple(named.values()), tuple(named))
    measurer = Measurer(turns=3, race_seconds=0.05, jobs=1)
    (outcome,) = measurer.measure(task, [space.sample(random.Random(0))])
    assert outcome.status == "ok", outcome.said


def test_device_has_blocks_and_threads(opencl: Device) -> None:
    func = te.create_prim_func(of.matmul(1, 16, 32, 16))
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal((1, 16, 16), np.float32),
        rng.standard_normal((1, 16, 32), np.float32),
    )
    shares = 0
    for sketch in generate_sketches(func, Target("opencl")):
        schedule = tir.Schedule(func)
        sketch.trace.apply_to_schedule(schedule)
        module = ekiden.build(schedule.func, "opencl", name="main")
        arrays = [nd.array(x, opencl) for x in (a, b, np.zeros((1, 16, 32), np.float32))]
        module["main"](*arrays)
        np.testing.assert_allclose(arrays[-1].numpy(), a @ b, rtol=1e-4, atol=1e-4)
        shares += "barrier(" in module.get_source("opencl")
    assert shares == 1


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_without_search_sums_of_products_are_tiles(cpu: str) -> None:
    target = Target(f"llvm -mcpu={cpu}")
    for tensors in (of.matmul(1, 12, 64, 32), of.conv2d(1, 12, 4, 32, 3, 1, 1), doubled()):
        func = te.create_prim_func(tensors)
        untuned = model_schedule(func, block_names(func), target)
        assert untuned is not None and 'scope="register"' in untuned.script()
    func = te.create_prim_func(SMALL["T2D"]())
    untuned = model_schedule(func, block_names(func), target)
    assert untuned is not None and "T.isfinite(conv_sums" in untuned.script()
    func = te.create_prim_func(of.softmax(32, 32))
    assert model_schedule(func, block_names(func), target) is None


@pytest.mark.parametrize("tensors", [of.conv2d_transpose(1, 7, 20, 16), doubled(22, 64)])
def test_without_search_a_factor_that_no_cache_holds_passes_by_once(tensors: of.Tensors) -> None:
    func = te.create_prim_func(tensors)
    blocked = {}
    for caches in ("-l1=2K -l2=4K", "-l1=32K -l2=512K"):
        target = Target(f"llvm -mcpu=x86-64-v3 -cores=1 {caches}")
        untuned = model_schedule(func, block_names(func), target)
        assert untuned is not None
        blocked[caches] = "_rf" in untuned.script()
        np.testing.assert_allclose(run(untuned), run(func), rtol=1e-4, atol=1e-4)
    assert list(blocked.values()) == [True, False]


@pytest.mark.parametrize(
    ("cpu", "size", "steps"),
    [
        ("znver4", {}, 64),  # 16 cycles of multiply-adds hide 8 of loads and lines of L2
        ("znver3", {}, 8),  # 4 do not hide 3 and lines of L2: what a quarter of L1 holds
        ("znver3", {"co": 512}, 64),  # which are too few steps
        ("znver4", {"size": 8, "ci": 256, "co": 128}, 0),  # a second-level cache holds the weights
    ],
)
def test_without_search_blocks_are_as_long_as_loads_of_a_step_allow(
    cpu: str, size: dict[str, int], steps: int
) -> None:
    func = te.create_prim_func(of.conv2d_transpose(1, **size))
    target = Target(f"llvm -mcpu={cpu} -cores=1")
    untuned = model_schedule(func, block_names(func), target)
    assert untuned is not None
    result = re.findall(r'"bring_ahead": [\[(]\d+, (\d+)', untuned.script())
    assert [int(n) for n in result] == ([steps] if steps else [])


def test_without_search_columns_are_copied_where_many_rows_pass_by() -> None:
    def copies(tensors: of.Tensors, of_what: str, options: str = "") -> bool:
        """Whether a factor is copied."""
        target = Target(f"llvm -mcpu=x86-64-v3 {options}")
        func = te.create_prim_func(tensors)
        untuned = model_schedule(func, block_names(func), target)
        assert untuned is not None
        has_copy = f"{of_what}_global" in untuned.script()
        if has_copy:
            np.testing.assert_allclose(run(untuned), run(func), rtol=1e-4, atol=1e-4)
        return has_copy

    assert copies(of.conv2d(1, 24, 8, 64, 3, 1, 1, groups=2), "w")
    assert not copies(of.matmul(1, 12, 64, 32), "b"), "few rows"
    assert not copies(of.depthwise(1, 20, 64), "w"), "data lie along columns too"
    assert not copies(of.matmul(1, 320, 64, 32), "b", "-cores=16"), "few columns for many threads"
    assert copies(of.matmul(3, 320, 64, 32), "b", "-cores=16"), "threads share products"


@pytest.mark.parametrize(("kernel", "stride", "taps"), [(3, 1, 3), (3, 2, 3), (5, 1, 5), (7, 1, 1)])
def test_without_search_windows_load_what_neighbours_share_once(
    kernel: int, stride: int, taps: int
) -> None:
    """All taps of a short window along rows stand one after the other, in few sums."""
    func = te.create_prim_func(of.depthwise(1, 18, 32, kernel, stride, kernel // 2))
    target = Target("llvm -mcpu=x86-64-v3")
    untuned = model_schedule(func, block_names(func), target)
    assert untuned is not None
    text = untuned.script()
    assert f"q_1 in T.unroll({taps})" in text, text
    np.testing.assert_allclose(run(untuned), run(func), rtol=1e-4, atol=1e-4)


@alike(3)
@pytest.mark.parametrize("cpu", ["x86-64-v4", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize(
    ("size", "channels", "kernel", "stride"),
    [(18, 32, 3, 1), (19, 40, 3, 2), (18, 16, 5, 1), (29, 24, 5, 2), (2, 16, 3, 1), (7, 33, 3, 1)],
)
def test_without_search_windows_read_data_where_they_lie(
    cpu: str, size: int, channels: int, kernel: int, stride: int
) -> None:
    """Without a copy that has the border, and without its conditions but in tiles at the border."""
    func = te.create_prim_func(of.depthwise(1, size, channels, kernel, stride, kernel // 2))
    target = Target(f"llvm -mcpu={cpu}")
    untuned = model_schedule(func, block_names(func), target)
    assert untuned is not None
    assert "padded = T.alloc_buffer" not in untuned.script()
    np.testing.assert_allclose(run(untuned), run(func), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("cpu", "most"), [("znver4", 17), ("znver3", 9)])
@pytest.mark.parametrize(
    ("size", "channels", "kernel"), [(14, 576, 3), (37, 64, 3), (28, 240, 5), (112, 32, 3)]
)
def test_without_search_sums_of_windows_leave_registers_for_data(
    cpu: str, most: int, size: int, channels: int, kernel: int
) -> None:
    """What tiles share comes from the second-level cache where channels are many: then a tile has
    many rows of one vector."""
    func = te.create_prim_func(of.depthwise(1, size, channels, kernel, 1, kernel // 2))
    untuned = model_schedule(func, block_names(func), Target(f"llvm -mcpu={cpu}"))
    assert untuned is not None
    text = untuned.script()
    rows, vectors = (int(text.split(f"for {v}_1 in T.unroll(")[1].split(")")[0]) for v in "jc")
    assert 7 <= vectors * rows <= most
    assert vectors == 1 or channels <= 64


def test_numbers_are_changed_crossed_and_refused() -> None:
    space = te_task(of.matmul(1, 16, 64, 32)).space
    assert isinstance(space, TraceSpace)
    source = random.Random(0)
    drawn = [space.sample(source) for _ in range(12)]
    same = [c for c in drawn if c.rule == drawn[0].rule]
    mixed = space.cross(same[0], same[-1], source)
    assert mixed.rule == same[0].rule and space.refusal(mixed) == ""
    seen = [space.features(c) for c in (*drawn, mixed, space.default)]
    assert all(f.keys() == seen[0].keys() for f in seen)
    assert seen[-1]["registers"] == 0 < min(f["registers"] for f in seen[:-1])
    assert space.refusal(space.default) == ""
    assert space.refusal(Candidate("another's", drawn[0].choice)) == ""
    assert "not a saved trace" in space.refusal(Candidate(drawn[0].rule, "[1]"))
    assert space.refusal(Candidate(drawn[0].rule, _other_block(drawn[0].choice)))


def _other_block(choice: str) -> str:
    return choice.replace('"product"', '"nothing"')


def test_user_sketch_rule_is_used() -> None:
    seen: list[str] = []

    def halves(schedule: tir.Schedule, name: str, target: object) -> list[tir.Schedule]:
        seen.append(name)
        copy = schedule.copy()
        loops = copy.get_loops(copy.get_block(name))
        copy.split(loops[0], factors=[None, copy.sample_perfect_tile(loops[0], 2)[1]])
        return [copy]

    func = te.create_prim_func(of.softmax(8, 16))
    (result,) = generate_sketches(func, ekiden.target.Target("llvm"), [halves, *DEFAULT_RULES])
    assert sorted(seen) == ["most", "powers", "softmax", "total"]
    assert sorted(result.name.split()) == [f"{name}:halves0" for name in sorted(seen)]
    assert sum(i.kind == "sample_perfect_tile" for i in result.trace.insts) == 4


def tiled(schedule: tir.Schedule) -> None:
    _, i, j, _ = schedule.get_loops("product")
    schedule.split(i, factors=schedule.sample_perfect_tile(i, 2))
    schedule.split(j, factors=schedule.sample_perfect_tile(j, 2))


def own_task() -> Task:
    return schedule_task(te.create_prim_func(of.matmul(1, 16, 32, 8)), [tiled], name="own")


def test_schedule_with_sampling_is_tuned() -> None:
    task = own_task()
    assert task.space.default == Candidate(DEFAULT_RULE_NAME)
    measurer = Measurer(turns=3, race_seconds=0.05, jobs=1, batch=4)
    session = Session([task], measurer=measurer)
    session.run(4)
    records = session.records.query(kind="trial")
    assert len(records) == 4 and {r.rule for r in records} == {"tiled"}
    assert {r.status for r in records} <= {"ok", "unsteady"}


def test_what_was_drawn_before_is_not_scheduled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search draws the same candidates more and more often, the longer it goes on."""
    space = te_task(of.norm(1, 16, 16)).space
    applied: list[object] = []
    apply = Trace.apply_to_schedule

    def counted(self: Trace, *args: object, **kwargs: object) -> None:
        applied.append(self)
        apply(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Trace, "apply_to_schedule", counted)
    source = random.Random(0)
    drawn = [space.sample(source) for _ in range(60)]
    drawn += [space.mutate(item, source) for item in drawn]
    assert len(applied) == len(set(drawn)) < len(drawn) / 2
    assert not any(space.refusal(item) for item in set(drawn))


@alike(3)
@pytest.mark.parametrize("size", [6, 8, 16])
@pytest.mark.parametrize("processor", ["znver4", "znver3", "nehalem"])
def test_two_vectors_of_terms_have_a_sketch(size: int, processor: str) -> None:
    space = te_task(of.norm(1, size, size), Target(f"llvm -mcpu={processor}")).space
    drawn = space.sample(random.Random(0))
    assert not space.refusal(drawn)


@alike(3)
@pytest.mark.parametrize("columns", [4, 5, 8, 12, 24])
@pytest.mark.parametrize("processor", ["znver4", "znver3", "nehalem"])
def test_products_of_few_columns_have_tiles(columns: int, processor: str) -> None:
    target = Target(f"llvm -mcpu={processor}")
    task = te_task(of.matmul(1, 6, columns, 7), target)
    assert not task.space.refusal(task.space.sample(random.Random(0)))
    assert "register" in str(task.source.untuned)


def test_program_that_no_rule_knows_is_refused() -> None:
    x = te.placeholder((), name="x")
    with pytest.raises(CompileError, match="no rule has a sketch for 'y'"):
        te_task([x, te.compute((), lambda: x() + 1.0, name="y")])
