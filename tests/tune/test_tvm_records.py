"""Import of TVM's tuning records, with reasons for skipped ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from test_tuned_templates import product

import ekiden
from ekiden import tune
from ekiden.tune import Measurer, Replay, Session
from ekiden.tune import te_workload as of

TRACE = [
    [
        ["GetSBlock", [], ["product", "main"], ["b0"]],
        ["GetSBlock", [], ["root", "main"], ["b1"]],
        ["GetLoops", ["b0"], [], ["l2", "l3", "l4", "l5"]],
        ["SamplePerfectTile", ["l3"], [2, 64], ["v6", "v7"]],
        ["Split", ["l3", "v6", "v7"], [1, 0], ["l8", "l9"]],
        ["SamplePerfectTile", ["l4"], [2, 64], ["v10", "v11"]],
        ["Split", ["l4", "v10", "v11"], [1, 0], ["l12", "l13"]],
        ["Reorder", ["l2", "l8", "l12", "l5", "l9", "l13"], [], []],
        ["CacheWrite", ["b0", []], [0, '"local"'], ["b14"]],
        ["ReverseComputeAt", ["b14", "l12"], [1, -1], []],
        ["Annotate", ["b1", 16], ['"meta_schedule.parallel"'], []],
        ["Annotate", ["b1", 64], ["meta_schedule.vectorize"], []],
        ["SampleCategorical", [], [[0, 16, 64], [0.25, 0.5, 0.25]], ["v15"]],
        ["Annotate", ["b1", "v15"], ["meta_schedule.unroll_explicit"], []],
        ["EnterPostproc", [], [], []],
        ["Unannotate", ["b1"], ["meta_schedule.parallel"], []],
    ],
    [[3, [4, 2]], [5, [2, 16]], [12, 1]],
]
"""As MetaSchedule of TVM 0.27 writes one."""


def of_args(*shapes: list[int]) -> list[object]:
    return [["TENSOR", "float32", shape] for shape in shapes]


def test_metaschedule_trace_is_replayed(tmp_path: Path) -> None:
    task = tune.te_task(of.matmul(1, 8, 32, 16), "llvm", name="product")
    actual = of_args([1, 8, 16], [1, 16, 32], [1, 8, 32])
    other = [[["GetBlock", [], ["conv", "main"], ["b0"]]], []]
    unknown = [[["SampleFuture", [], [], ["v0"]]], []]
    lines = [
        [0, [TRACE, [1e-5], {"kind": "llvm"}, actual]],
        [0, [other, [1e-5], {"kind": "llvm"}, actual]],
        [0, [unknown, [1e-5], {"kind": "llvm"}, actual]],
        [1, [TRACE, [1e-5], {"kind": "llvm"}, of_args([1, 4])]],
    ]
    text = "\n".join([*map(json.dumps, lines), '{"torn', "[" * 100_000])
    (tmp_path / "database_tuning_record.json").write_text(text)
    result = tune.read_metaschedule(tmp_path, [task])
    (candidate,) = result.candidates
    assert [s.line for s in result.skipped] == [2, 3, 4, 5, 6]
    for why in (
        "'conv'",
        "the step SampleFuture has no meaning here",
        "of the arguments",
        "no such",
    ):
        assert why in str(result)
    assert task.space.refusal(candidate) == ""
    output = task.source.lower(candidate, task.target)
    assert "T.parallel" in output.script() and "T.vectorized" in output.script()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, np.float32) for s in ((1, 8, 16), (1, 16, 32)))
    out = np.zeros((1, 8, 32), np.float32)
    ekiden.build(output, name="main")["main"](a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)
    measurer = Measurer(turns=3, race_seconds=0.05, jobs=1)
    session = Session([task], measurer=measurer, search=Replay(result.candidates))
    session.run(4)
    (trial,) = session.records.query(kind="trial")
    assert trial.rule == "metaschedule" and trial.status in ("ok", "unsteady")


def line(name: str, args: list[object], entity: list[object], error: int = 0) -> str:
    """As AutoTVM writes one."""
    return json.dumps({
        "input": ["llvm", name, args, {}], "result": [[1e-5], error, 0.1, 1.0], "version": 0.2,
        "config": {"index": 1, "code_hash": None, "entity": entity}, "tvm_version": "0.16.0",
    })  # fmt: skip


def test_autotvm_log_maps_to_a_template(tmp_path: Path) -> None:
    args: list[object] = [8, 16, 8]
    task = tune.template_task(product, args, "llvm", name="product")
    entity: list[object] = [
        ["rows", "sp", [-1, 4]], ["columns", "sp", [-1, 16]], ["order", "re", [1, 0, 2]],
        ["how", "an", ["none", "vec"]], ["threads", "ot", False],
    ]  # fmt: skip
    path = tmp_path / "product.log"
    lines = [
        line("product", args, entity),
        line("product", [8, 16, 9], entity),
        line("dense", args, entity),
        line("product", args, [["rows", "sp", [-1, 5]]]),
        line("product", args, [["rows", "zz", 1]]),
        line("product", args, entity, error=4),
    ]
    path.write_text("\n".join(lines))
    result = tune.read_autotvm(path, [task])
    (candidate,) = result.candidates
    assert candidate.choice == "rows=2,4 columns=1,16 order=1,0,2 how=none,vec threads=False"
    message = str(result)
    for why in (
        "no task has the arguments [8, 16, 9]", "no task is of a template 'dense'",
        "'rows' cannot be 2,5", "there is no entity 'zz' here", "it failed there (error 4)",
    ):  # fmt: skip
        assert why in message
