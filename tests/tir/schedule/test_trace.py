"""Traces: recorded, printed, saved, replayed, edited, shortened."""

from __future__ import annotations

import json

import pytest

from ekiden import te, tir
from ekiden.ir.module import IRModule
from ekiden.tir import ScheduleError, Trace

pytestmark = pytest.mark.quick


def product(rows: int = 8, columns: int = 12) -> tir.PrimFunc:
    """a @ b."""
    a, b = te.placeholder((rows, 6), name="a"), te.placeholder((6, columns), name="b")
    k = te.reduce_axis((0, 6), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    d = te.compute((rows, columns), lambda i, j: c[i, j] + 1.0, name="d")
    return te.create_prim_func([a, b, d])


def tiled(func: tir.PrimFunc, seed: int | None = None) -> tir.Schedule:
    """A schedule with sampled tiles."""
    sch = tir.Schedule(func, seed=seed)
    block = sch.get_block("c")
    i, j, _ = sch.get_loops(block)
    outer, inner = sch.split(i, sch.sample_perfect_tile(i, 2, 4))
    sch.reorder(outer, j, inner)
    sch.annotate(outer, "pragma_auto_unroll_max_step", sch.sample_categorical([0, 16], [0.5, 0.5]))
    sch.get_consumers(block)
    return sch


def test_trace_prints_as_python() -> None:
    sch = tir.Schedule(product())
    block = sch.get_block("c")
    i, j, k = sch.get_loops(block)
    _, inner = sch.split(j, [None, 4])
    sch.reorder(i, k, inner)
    sch.transform_layout(block, ("write", 0), lambda i, j: (j // 4, i, j % 4))
    copy = sch.cache_read(block, 1, "local")
    sch.compute_at(copy, i)
    assert str(sch.trace).splitlines() == [
        "from ekiden import tir",
        "",
        "def apply_trace(sch: tir.Schedule) -> None:",
        "  b0 = sch.get_block(name='c', func_name='main')",
        "  l1, l2, l3 = sch.get_loops(b0)",
        "  l4, l5 = sch.split(l2, [None, 4], preserve_unit_iters=True, disable_predication=False, "
        "tail='predicate')",
        "  sch.reorder(l1, l3, l5)",
        "  sch.transform_layout(b0, buffer=['write', 0], "
        "index_map=lambda i, j: ((j // 4), i, (j % 4)))",
        "  b6 = sch.cache_read(b0, read_buffer_index=1, storage_scope='local')",
        "  sch.compute_at(b6, l1, preserve_unit_loops=False, index=-1)",
    ]


def test_names_become_handles() -> None:
    sch = tir.Schedule(product())
    sch.split("k", [None, 2])
    sch.parallel(sch.get_loops("d")[0])
    assert [inst.kind for inst in sch.trace.insts] == [
        "get_block", "get_loops", "split", "get_block", "get_loops", "parallel",
    ]  # fmt: skip


def test_trace_saves_and_replays() -> None:
    sch = tiled(product(), seed=3)
    saved = json.dumps(sch.trace.as_json())
    other = tir.Schedule(product())
    Trace.apply_json_to_schedule(saved, other)
    assert str(other.func) == str(sch.func)
    assert other.trace.as_json() == json.loads(saved)


def test_trace_replays_on_another_program() -> None:
    """A tile that does not fit is mended: its inner factors stay where they divide."""
    sch = tiled(product(), seed=3)
    larger = tir.Schedule(product(rows=16))
    sch.trace.apply_to_schedule(larger)
    loops = larger.get_loops("c")
    sizes = [larger.get(loop).extent.value for loop in loops]  # type: ignore[union-attr, attr-defined]
    assert sorted(sizes)[-1] >= 4
    assert sizes[0] * sizes[2] == 16


def test_trace_refuses_where_a_step_is_refused() -> None:
    sch = tir.Schedule(product())
    sch.compute_at("c", sch.get_loops("d")[1])
    x = te.placeholder((4,), name="c")
    y = te.compute((4,), lambda i: x[i] * 2.0, name="y")
    other = tir.Schedule(te.create_prim_func([x, y]))
    with pytest.raises(ScheduleError, match=r"block 'd': there is none; blocks are \['y'\]"):
        sch.trace.apply_to_schedule(other)


def test_decisions_can_be_changed() -> None:
    sch = tiled(product(), seed=3)
    tile = next(i for i in sch.trace.insts if i.kind == "sample_perfect_tile")
    changed = sch.trace.with_decision(tile, [4, 2])
    other = tir.Schedule(product())
    changed.apply_to_schedule(other)
    inner = other.get(other.get_loops("c")[2])
    assert inner.extent.value == 2  # type: ignore[union-attr, attr-defined]
    assert other.trace.decisions[other.trace.insts[2]] == [4, 2]
    assert sch.trace.get_decision(tile) != [4, 2] or str(other.func) == str(sch.func)


def test_decision_provider_decides() -> None:
    sch = tiled(product(), seed=3)
    other = tir.Schedule(product())
    inputs = {"sample_perfect_tile": [2, 4], "sample_categorical": 1}
    sch.trace.apply_to_schedule(other, decision_provider=lambda inst, *_: inputs[inst.kind])
    assert list(other.trace.decisions.values()) == [[2, 4], 1]


def test_only_sampling_decides() -> None:
    sch = tiled(product(), seed=3)
    with pytest.raises(ScheduleError, match="the step 'get_block' decides nothing"):
        sch.trace.with_decision(sch.trace.insts[0], 1)
    with pytest.raises(ScheduleError, match="is not of this trace"):
        tiled(product()).trace.with_decision(sch.trace.insts[2], [8, 1])


def test_unused_trace_steps_are_removed() -> None:
    sch = tiled(product(), seed=3)
    sch.sample_categorical([1, 2], [0.5, 0.5])
    kinds = [inst.kind for inst in sch.trace.simplified().insts]
    assert kinds == [
        "get_block", "get_loops", "sample_perfect_tile", "split", "reorder", "sample_categorical",
        "annotate",
    ]  # fmt: skip


def test_broken_traces_are_refused() -> None:
    for text in ("", "[]", "[[], [[0, 1]]]", '[[["split", [{"rv": "l9"}], {}, []]], []]', "7"):
        with pytest.raises(ScheduleError, match="not a saved trace"):
            Trace.from_json(text)
    sch = tir.Schedule(product())
    with pytest.raises(ScheduleError, match="a trace has the unknown step '__class__'"):
        Trace.apply_json_to_schedule('[[["__class__", [], {}, []]], []]', sch)


def test_sampled_numbers_are_expressions() -> None:
    sch = tir.Schedule(product(), seed=1)
    outer, inner = sch.sample_perfect_tile(sch.get_loops("c")[1], 2)
    assert sch.get(outer * inner) == 12
    sch.split(sch.get_loops("c")[1], [None, inner * 1])
    again = tir.Schedule(product())
    Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert str(again.func) == str(sch.func)


def test_sampling_is_repeatable() -> None:
    texts = {str(tiled(product(), seed=5).trace) for _ in range(3)}
    assert len(texts) == 1
    seeds = tir.Schedule(product(), seed=5)
    assert seeds.fork_seed() != seeds.fork_seed()


@pytest.mark.parametrize(("decision", "shared"), [(-1, 0), (0, 1), (1, 2)])
def test_sampled_compute_locations_replay(decision: int, shared: int) -> None:
    sch = tir.Schedule(product())
    sch.compute_at("c", sch.sample_compute_location("c", decision=decision))
    pairs = zip(sch.get_loops("c"), sch.get_loops("d"), strict=False)
    assert sum(sch.get(a) is sch.get(b) for a, b in pairs) == shared
    again = tir.Schedule(product())
    Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert str(again.func) == str(sch.func)


def test_schedule_copies_are_independent() -> None:
    sch = tir.Schedule(product())
    block = sch.get_block("c")
    other = sch.copy()
    before = str(sch.func)
    other.parallel(other.get_loops(block)[0])
    assert str(sch.func) == before
    assert len(other.trace) == len(sch.trace) + 2


def test_module_of_functions() -> None:
    module = IRModule({"main": product(), "other": product(rows=4)})
    sch = tir.Schedule(module)
    sch.parallel(sch.get_loops("c")[0])
    sch.work_on("other")
    sch.unroll(sch.get_loops("c")[0])
    assert "T.parallel(8" in str(sch.mod["main"])
    assert "T.unroll(4" in str(sch.mod["other"])
    again = tir.Schedule(module)
    sch.trace.apply_to_schedule(again)
    assert str(again.mod["other"]) == str(sch.mod["other"])
    assert sch.func_working_on.name_hint == "other"


def test_stale_handles_are_refused() -> None:
    sch = tir.Schedule(product())
    i = sch.get_loops("c")[0]
    sch.split(i, [2, 4])
    with pytest.raises(ScheduleError, match="loop 'i': the function has no such loop any more"):
        sch.unroll(i)
    inlined = sch.cache_read("c", 0, "local")
    sch.compute_inline(inlined)
    with pytest.raises(ScheduleError, match="block 'a_local': the function has no such block"):
        sch.get_loops(inlined)
