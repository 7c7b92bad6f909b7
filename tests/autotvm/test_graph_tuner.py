"""Graph tuners: the best records of a log, written as a log; libraries without code are refused."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import ekiden as tvm
from ekiden import relay
from ekiden.autotvm.graph_tuner import DPTuner, PBQPTuner
from ekiden.runtime.errors import CompileError, InputError
from ekiden.tune.records import Best, Records


@pytest.mark.parametrize("kind", [DPTuner, PBQPTuner])
def test_graph_tuner_writes_best_records(kind: type[DPTuner], tmp_path: Path) -> None:
    log, chosen = tmp_path / "all.log", tmp_path / "best.log"
    module = tvm.IRModule.from_expr(relay.Function((), relay.const(1)))
    log.write_text("")
    common = {"workload": "w", "target": "llvm", "rule": "dense"}
    for choice, ratio in (("1", 0.9), ("2", 0.5)):
        Records.open(log).append(Best(**common, choice=choice, ratio=ratio, confirmed=[ratio]))
    tuner = kind(module, {}, log, [relay.op.get("nn.conv2d")], "llvm")
    tuner.benchmark_layout_transform(min_exec_num=2000)
    with pytest.raises(InputError, match=r"run\(\) comes first"):
        tuner.write_opt_sch2record_file(chosen)
    tuner.run()
    tuner.write_opt_sch2record_file(chosen)
    assert [r.choice for r in Records.open(chosen)] == ["2"]
    assert len(tuner.get_optimal_records()) == 1


@pytest.mark.parametrize("name", ["clml", "cmsisnn", "cutlass"])
def test_libraries_without_code_are_refused(name: str) -> None:
    library = import_module(f"ekiden.relay.op.contrib.{name}")
    module = tvm.IRModule.from_expr(relay.Function((), relay.const(1)))
    with pytest.raises(CompileError, match=f"partition_for_{name}: no code is made for"):
        getattr(library, f"partition_for_{name}")(module)
