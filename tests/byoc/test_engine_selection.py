"""Selection of the faster of an engine and Ekiden per region; times are stubbed, not measured."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import ekiden
from ekiden import relay
from ekiden.byoc.onnx_regions import OnnxEngine
from ekiden.cli import main
from ekiden.runtime.errors import RunError

TEXT = """def @main(%x: Tensor[(n, 3), float32]) {
  nn.relu(exp(cumsum(nn.relu(add(%x, %x)), axis=1)))
}"""
X = np.float32([[1, -1, 2]])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> str:
    """ONNX Runtime alone is here, by its own name."""
    pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")
    monkeypatch.setattr(
        "ekiden.byoc.backend._REGISTERED_BACKENDS", {"onnxruntime": OnnxEngine("onnxruntime")}
    )
    return "onnxruntime"


def times(monkeypatch: pytest.MonkeyPatch, *its: float) -> None:
    """An engine needs so long for each region, in order; Ekiden 10 us."""
    left = list(its)

    def seconds(runs: Sequence[Callable[[], object]], item: float) -> list[float]:
        one, other = (np.asarray(run()) for run in runs)
        np.testing.assert_allclose(one, other, rtol=1e-6)
        return [left.pop(0), 10e-6]

    monkeypatch.setattr("ekiden.byoc.backend_selection.min_times_interleaved", seconds)


@pytest.mark.parametrize(
    ("first", "second", "count"), [(2e-6, 20e-6, 1), (9.8e-6, 9e-6, 1), (20e-6, 30e-6, 0)]
)
def test_faster_engine_gets_the_region(
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    first: float,
    second: float,
    count: int,
) -> None:
    times(monkeypatch, first, second)
    with caplog.at_level(logging.INFO, "ekiden"):
        exe = ekiden.compile(relay.parse(TEXT), byoc="auto")
    lines = exe.profile(X).regions
    assert len(lines) == 2 and sum(line.endswith(": onnxruntime") for line in lines) == count
    assert sum(line.endswith(": Ekiden") for line in lines) == 2 - count
    assert f"byoc: {lines[0]}" in caplog.text
    kept = exe.raw.metadata.get("external", {})
    assert isinstance(kept, dict) and len(kept) == count
    expected = ekiden.compile(relay.parse(TEXT))(X).numpy()
    np.testing.assert_allclose(exe(X).numpy(), expected, rtol=1e-6)


def test_engine_gets_all_regions_or_none(engine: str) -> None:
    exe = ekiden.compile(relay.parse(TEXT), byoc=engine)
    assert len(exe.raw.metadata["external"]) == 2 and exe.profile(X).regions == ()
    assert "external" not in ekiden.compile(relay.parse(TEXT)).raw.metadata


def test_failing_region_falls_back_to_ekiden(
    engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*argument: object) -> list[float]:
        raise RunError("it is broken")

    monkeypatch.setattr("ekiden.byoc.backend_selection.min_times_interleaved", broken)
    exe = ekiden.compile(relay.parse(TEXT), byoc="auto")
    assert "external" not in exe.raw.metadata
    assert "stays with Ekiden: it is broken" in caplog.text


def test_unmeasurable_or_unknown_engine_is_refused() -> None:
    other = "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=cortex-a72"
    with pytest.raises(ekiden.CompileError, match="byoc 'auto' measures on this machine"):
        ekiden.compile(relay.parse(TEXT), other, byoc="auto")
    with pytest.raises(ekiden.CompileError, match="expected one of the engines .*got 'fast'"):
        ekiden.compile(relay.parse(TEXT), byoc="fast")


def test_measured_times_select_an_engine(engine: str) -> None:
    (line, *_) = ekiden.compile(relay.parse(TEXT), byoc="auto").profile(X).regions
    assert line.startswith("add, nn.relu: onnxruntime ")
    assert line.endswith((": Ekiden", ": onnxruntime"))


def test_compile_command_selects_engines(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = [helper.make_tensor_value_info(n, 1, ["n", 3]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    result, report = tmp_path / "model.eki", tmp_path / "report.json"
    words = ["compile", str(tmp_path / "model.onnx"), "-o", str(result), "--byoc", "auto"]
    assert main(words) == 0
    assert main(["profile", str(result), "--json", str(report)]) == 0
    assert "nn.relu: onnxruntime" in capsys.readouterr().out
    assert len(json.loads(report.read_text())["regions"]) == 1
