"""AutoTVM's names: spaces, tuners, logs and the contexts that apply them."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import autotvm, relay, te, tune
from ekiden.autotvm.measure import MeasureInput, MeasureResult, Runner
from ekiden.autotvm.record import decode, encode, load_from_file, pick_best, split_workload
from ekiden.autotvm.task.space import ConfigSpace, FallbackConfigEntity
from ekiden.autotvm.task.task import Task, compute_flop
from ekiden.runtime.errors import InputError, LoadError
from ekiden.te.schedule import Schedule
from ekiden.tune.records import Best


@autotvm.template("tests/autotvm/product")
def product(n: int) -> tuple[Schedule, list[te.Tensor]]:
    a, b = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="b")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    s = te.create_schedule(c.op)
    op = s[c].op
    assert isinstance(op, te.ComputeOp)
    y, x = op.axis
    cfg = autotvm.get_config()
    cfg.define_split("tile_y", y, num_outputs=2)
    cfg.define_split("tile_x", cfg.axis(x), num_outputs=2)
    yo, yi = cfg["tile_y"].apply(s, c, y)
    xo, xi = cfg["tile_x"].apply(s, c, x)
    s[c].reorder(yo, xo, k, yi, xi)
    return s, [a, b, c]


class IndexRunner(Runner):
    """Runner whose seconds are the index of a configuration, plus one."""

    def run(
        self, measure_inputs: Sequence[MeasureInput], build_results: Sequence[object]
    ) -> Sequence[MeasureResult]:
        return [MeasureResult((i.config.index + 1.0,), 0, 0.1, 1.0) for i in measure_inputs]


def sample_task(n: int = 128) -> Task:
    return autotvm.create("tests/autotvm/product", args=(n,), target="llvm")


def by_index() -> autotvm.measure.MeasureOption:
    return autotvm.measure_option(autotvm.LocalBuilder(), IndexRunner())


def test_config_space_indexing() -> None:
    space = sample_task().config_space
    assert space.dims == [8, 8] and space.range_length == len(space) == 64
    assert space.point2knob(12) == [4, 1] and space.knob2point([4, 1]) == 12
    config = space.get(12)
    assert config["tile_y"].size == [8, 16] and config["tile_x"].size == [64, 2]
    assert config.index == 12 and not config.is_fallback
    with pytest.raises(IndexError, match="no configuration has the index 64"):
        space.get(64)


def test_filters_reject_configurations() -> None:
    space = sample_task().config_space
    space.multi_filter(lambda c: 32 <= c["tile_x"].size[1] * c["tile_y"].size[1] < 1024)
    assert len(space) == 34 and not space.is_index_valid(0)
    assert space.get_next_index(0) == 5 and space.get_next_index(63, -1) == 58
    assert space.subrange_length(16, 32) == 10
    assert all(map(space.is_index_valid, space.sample_ints(5)))
    with pytest.raises(IndexError):
        space.get(0)


def test_fallback_split_takes_the_largest_divisors() -> None:
    config = FallbackConfigEntity()
    config.define_split("tile", 49, num_outputs=3)
    assert config.is_fallback and config["tile"].size == [49, 1, 1]
    config.fallback_split("tile", [-1, 8, 4])
    assert config["tile"].size == [7, 7, 1]
    with pytest.raises(RuntimeError, match="no split fits"):
        config.fallback_split("tile", [-1, 1, 0])


def test_bind_gpu_annotations_name_threads() -> None:
    config = ConfigSpace()
    config.define_annotate("how", [1, 2, 3, 4, 5], policy="bind_gpu")
    threads = ["fuse", "blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"]
    assert config["how"].anns == threads


@pytest.mark.parametrize("kind", ["GridSearchTuner", "RandomTuner", "GATuner", "XGBTuner"])
def test_tuners_find_the_fastest_of_what_they_measure(kind: str) -> None:
    tuner = getattr(autotvm.tuner, kind)(sample_task())
    measured: list[int] = []
    tuner.tune(
        10, by_index(), callbacks=[lambda _, i, r: measured.extend(p.config.index for p in i)]
    )
    assert len(measured) == len(set(measured)) == 10
    assert tuner.best_config.index == min(measured)
    assert tuner.best_flops == 2 * 128**3 / (min(measured) + 1)


def test_index_tuners_stay_in_their_range() -> None:
    task = sample_task()
    task.config_space.multi_filter(lambda c: c["tile_x"].size[1] * c["tile_y"].size[1] >= 32)
    for kind in (autotvm.tuner.GridSearchTuner, autotvm.tuner.RandomTuner):
        tuner = kind(task, range_idx=(8, 15))
        assert tuner.visited_max == 4
        tuner.tune(8, by_index())
        assert sorted(tuner.visited) == [12, 13, 14, 15] and not tuner.has_next()


def test_early_stopping_without_improvement() -> None:
    tuner = autotvm.tuner.GridSearchTuner(sample_task())
    tuner.tune(64, by_index(), early_stopping=4)
    assert len(tuner.visited) == 8


def test_logs_are_read_back(tmp_path: Path) -> None:
    task, log = sample_task(), tmp_path / "product.log"
    assert task.target is not None
    config = task.config_space.get(12)
    inp, result = MeasureInput(task.target, task, config), MeasureResult((2.0, 3.0), 0, 0.5, 7.0)
    line = encode(inp, result)
    assert '"entity": [["tile_y", "sp", [8, 16]], ["tile_x", "sp", [64, 2]]]' in line
    again = decode(line)
    assert again is not None and again[1] == result
    assert again[0].task.workload == task.workload and again[0].config.index == 12
    autotvm.tuner.GridSearchTuner(task).tune(
        4, by_index(), callbacks=[autotvm.callback.log_to_file(log)]
    )
    assert [inp.config.index for inp, _ in load_from_file(log)] == [0, 1, 2, 3]
    pick_best(log, tmp_path / "best.log")
    assert [inp.config.index for inp, _ in load_from_file(tmp_path / "best.log")] == [0]
    split_workload(log)
    assert (tmp_path / "product.log.0").read_text() == log.read_text()
    with pytest.raises(LoadError, match="a line of a log expected"):
        decode("{}")
    with pytest.raises(LoadError, match="protocol 'json'"):
        encode(inp, result, "pickle")


def test_apply_history_best_configures_templates() -> None:
    task = sample_task(16)
    assert task.target is not None
    log = io.StringIO()
    inputs = [MeasureInput(task.target, task, task.config_space.get(n)) for n in (7, 12)]
    results = [MeasureResult((seconds,), 0, 0.1, time.time()) for seconds in (2.0, 1.0)]
    autotvm.callback.log_to_file(log)(None, inputs, results)
    log.seek(0)
    with autotvm.apply_history_best(log) as history, ekiden.target.Target("llvm"):
        s, tensors = product(16)
        assert str(history.query(task.target, task.workload)) == str(inputs[1].config)
    assert "T.grid(4, 4)" in str(ekiden.lower(s, tensors, simple_mode=True))
    a = np.random.default_rng(0).standard_normal((16, 16), np.float32)
    out = np.zeros((16, 16), np.float32)
    ekiden.build(s, tensors, "llvm")(a, a, out)
    np.testing.assert_allclose(out, a @ a, rtol=1e-4)


def test_templates_without_log_use_fallback() -> None:
    seen: list[bool] = []

    @autotvm.template("tests/autotvm/fallback")
    def simple(n: int) -> None:
        seen.append(autotvm.get_config().is_fallback)

    simple(2)
    assert seen == [True]


def test_split_tasks_share_one_config() -> None:
    @autotvm.register_topi_compute("tests/autotvm/parts")
    def compute(cfg: ConfigSpace, a: te.Tensor) -> te.Tensor:
        cfg.define_knob("twice", [1, 2])
        return te.compute(a.shape, lambda i: a[i] * cfg["twice"].val, name="out")

    @autotvm.register_topi_schedule("tests/autotvm/parts")
    def schedule(cfg: ConfigSpace, outs: Sequence[te.Tensor]) -> Schedule:
        return te.create_schedule([out.op for out in outs])

    task = autotvm.create("tests/autotvm/parts", (te.placeholder((8,), name="a"),), "llvm")
    assert task.args == (("TENSOR", (8,), "float32"),) and len(task.config_space) == 2
    s, tensors = task.instantiate(task.config_space.get(1))
    out = np.zeros(8, np.float32)
    ekiden.build(s, tensors, "llvm")(np.ones(8, np.float32), out)
    assert (out == 2).all()


def test_extracted_tasks_and_records_compile_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = relay.var("x", shape=(8, 64)), relay.var("w", shape=(32, 64))
    mod = ekiden.IRModule.from_expr(relay.Function([x, w], relay.nn.dense(x, w)))
    (task,) = autotvm.task.extract_from_program(
        mod, params={}, target="llvm", ops=(relay.op.get("nn.dense"),)
    )
    assert len(task.config_space) > 1 and task.target is not None
    assert not autotvm.task.extract_from_program(
        mod, params={}, target="llvm", ops=(relay.op.get("nn.conv2d"),)
    )
    config = task.config_space.get(1)
    kernel = task.tuning_task
    candidate = config.candidate(kernel.space.default.rule)
    config.record = Best(
        workload=kernel.workload, target=str(kernel.target), rule=candidate.rule,
        choice=candidate.choice, ratio=0.5, seconds=1.0, untuned=2.0, confirmed=[0.5],
    )  # fmt: skip
    pair = MeasureInput(task.target, task, config), MeasureResult((1.0,), 0, 0.1, 1.0)
    (tmp_path / "dense.log").write_text(encode(*pair) + "\n")
    used: list[tune.Records] = []

    def note_records(records: tune.Records) -> dict[str, object]:
        used.append(records)
        return {}

    monkeypatch.setattr(tune.Records, "by_sizes", note_records)
    best = autotvm.apply_history_best(str(tmp_path / "dense.log"))
    with best, ekiden.transform.PassContext(opt_level=3):
        relay.build(mod, "llvm")
    assert [record.choice for record in used[0]] == [candidate.choice]


def test_operations_of_a_schedule_are_counted() -> None:
    schedule, _ = product(16)
    assert compute_flop(schedule) == 2 * 16**3
    a, k = te.placeholder((8, 4), dtype="int8"), te.reduce_axis((0, 4))
    largest = te.compute((8,), lambda i: te.max(a[i, k], axis=k))
    assert compute_flop(te.create_schedule(largest.op)) == 8 * 4
    with pytest.raises(InputError, match="moves data"):
        compute_flop(te.create_schedule(te.compute((8,), lambda i: a[i, 0]).op))


def test_unmeasurable_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="build_func 'default' or 'ndk' expected"):
        autotvm.LocalBuilder(build_func="make")
    with pytest.raises(InputError, match="a builder and a runner expected"):
        autotvm.measure_option("local", "remote")
    with pytest.raises(InputError, match="no template is called 'nothing'"):
        autotvm.create("nothing", (), "llvm")
    with pytest.raises(InputError, match="is a log's: create"):
        _ = Task("nothing", ()).tuning_task
