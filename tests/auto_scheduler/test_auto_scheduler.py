"""The auto-scheduler's names: workloads, tasks, options and logs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import auto_scheduler, relay, te, tune
from ekiden.runtime.errors import InputError, LoadError
from ekiden.tune.records import Best, Records


@auto_scheduler.register_workload
def product_and_sum(n: int) -> list[te.Tensor]:
    a, b, c = (te.placeholder((n, n), name=name) for name in "abc")
    k = te.reduce_axis((0, n), name="k")
    product = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")
    return [a, b, c, te.compute((n, n), lambda i, j: product[i, j] + c[i, j], name="out")]


def sample_task(n: int = 16) -> auto_scheduler.SearchTask:
    return auto_scheduler.SearchTask(func=product_and_sum, args=(n,), target="llvm")


def test_workloads_are_named_by_their_arguments() -> None:
    assert auto_scheduler.make_workload_key(product_and_sum, (16,)) == '["product_and_sum", 16]'
    task = sample_task()
    assert task.workload_key == '["product_and_sum", 16]'
    assert task.compute_dag.flop_ct == 2 * 16**3 + 16**2
    assert 'T.block("product")' in str(task.compute_dag)
    with pytest.raises(InputError, match="no workload is called 'nothing'"):
        auto_scheduler.make_workload_key("nothing", ())
    with pytest.raises(InputError, match="is another function's name already"):
        auto_scheduler.register_workload("product_and_sum", lambda n: [])


def test_search_resumes_from_its_log(tmp_path: Path) -> None:
    task, log = sample_task(), tmp_path / "log.json"
    runner = auto_scheduler.LocalRunner(min_repeat_ms=1)
    options = auto_scheduler.TuningOptions(
        num_measure_trials=2, measure_callbacks=[auto_scheduler.RecordToFile(log)], verbose=0,
        runner=runner,
    )  # fmt: skip
    task.tune(options)
    first, results = auto_scheduler.RecordReader(log).read_lines()
    assert len(first) == len(results) >= 2
    policy = auto_scheduler.SketchPolicy(
        task, auto_scheduler.XGBModel(),
        init_search_callbacks=[auto_scheduler.PreloadMeasuredStates(log)],
    )  # fmt: skip
    task.tune(options, search_policy=policy)
    choices = {r.choice for r in Records.open(log).query(kind="trial")}
    assert len(choices) == 4
    program, tensors = task.apply_best(log)
    arrays = [np.random.default_rng(n).standard_normal((16, 16), np.float32) for n in range(3)]
    out = np.zeros((16, 16), np.float32)
    ekiden.build(program, tensors, "llvm")(*arrays, out)
    np.testing.assert_allclose(out, arrays[0] @ arrays[1] + arrays[2], rtol=1e-4, atol=1e-4)
    assert "T.prim_func" in task.print_best(log, "program")
    with pytest.raises(LoadError, match="has no trials of"):
        sample_task(8).apply_best(log)


def test_extract_tasks_returns_kernels_of_model() -> None:
    x, w = relay.var("x", shape=(8, 64)), relay.var("w", shape=(32, 64))
    body = relay.nn.dense(relay.nn.relu(relay.nn.dense(x, w)), relay.nn.dense(w, w))
    mod = ekiden.IRModule.from_expr(relay.Function([x, w], body))
    tasks, weights = auto_scheduler.extract_tasks(mod["main"], None, "llvm")
    assert len(tasks) == len(weights) and len(tasks) > 1
    assert "nn.dense" in str(tasks[0].compute_dag)
    scheduler = auto_scheduler.TaskScheduler(tasks, weights)
    scheduler.tune(auto_scheduler.TuningOptions(num_measure_trials=0))
    assert [s.task for s in scheduler.session.states] == [t.tuning_task for t in tasks]


def test_logs_compile_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Best(workload="w", target="llvm", rule="r", choice="c", ratio=0.5, seconds=2.0)
    Records.open(tmp_path / "log.json").append(record)
    used: list[Records] = []

    def note_records(records: Records) -> dict[str, object]:
        used.append(records)
        return {}

    monkeypatch.setattr(tune.Records, "by_sizes", note_records)
    mod = relay.parse("def @main(%x: Tensor[(2), float32]) { nn.relu(%x) }")
    pairs = list(auto_scheduler.load_records(tmp_path / "log.json"))
    for source in (str(tmp_path / "log.json"), pairs):
        with auto_scheduler.ApplyHistoryBest(source), ekiden.transform.PassContext(opt_level=3):
            relay.build(mod, "llvm")
    assert [[r.choice for r in records] for records in used] == [["c"], ["c"]]
    switched_off = ekiden.transform.PassContext(config={"relay.backend.use_auto_scheduler": False})
    with auto_scheduler.ApplyHistoryBest(pairs), switched_off:
        relay.build(mod, "llvm")
    assert len(used) == 2
    inp, result = auto_scheduler.load_best_record(tmp_path / "log.json", '["w"]')
    assert inp is not None and inp.record.rule == "r" and result.costs == (2.0,)
    assert auto_scheduler.load_best_record(tmp_path / "log.json", "other") == (None, None)


def test_unsupported_options_are_refused() -> None:
    task = auto_scheduler.SearchTask(
        func=product_and_sum, args=(16,), target="llvm", task_inputs={"a": np.zeros(1)}
    )
    with pytest.raises(InputError, match="data of inputs are drawn here, got those of a"):
        task.tune(auto_scheduler.TuningOptions(num_measure_trials=1))
    rule = auto_scheduler.PreloadCustomSketchRule(lambda *_: 0, lambda *_: [], "mine")
    policy = auto_scheduler.SketchPolicy(task, init_search_callbacks=[rule])
    with pytest.raises(InputError, match="the rule 'mine' is of TVM's loop states"):
        _ = policy.preloaded
    with pytest.raises(InputError, match="a workload, its key or a ComputeDAG expected"):
        auto_scheduler.SearchTask(target="llvm")
    with pytest.raises(InputError, match="'local' or a runner expected"):
        auto_scheduler.TuningOptions(runner="far")
    with pytest.raises(InputError, match="neither objective_func nor"):
        auto_scheduler.TaskScheduler([task], objective_func=max)
