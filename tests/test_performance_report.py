"""benchmarks/performance_report.py: a kernel's loss against its limit, and the page of results."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ekiden
from ekiden import IRModule, relay
from ekiden.runtime.profile.report import MachinePeak, ReportRow, profile


@pytest.fixture(scope="module")
def report() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "performance_report.py"
    spec = importlib.util.spec_from_file_location("performance_report", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


def row(flops: int, nbytes: int, duration: int, count: int = 1) -> ReportRow:
    return ReportRow("k", "", "float32[4]", count, duration, flops, nbytes)


def test_nearer_limit_bounds_a_kernel(report: ModuleType) -> None:
    limits = report.MachineLimits(1e9, ((1000, 2e9), (1 << 62, 1e9)))
    assert limits.seconds(row(2000, 100, 1)) == 2e-6
    assert limits.limiting_resource(row(2000, 100, 1)) == "flops"
    assert limits.seconds(row(10, 1000, 1)) == 5e-7  # small enough for the faster copies
    assert limits.seconds(row(10, 2000, 1)) == 2e-6
    assert limits.seconds(row(10, 2000, 1, count=2)) == 1e-6
    assert limits.limiting_resource(row(10, 1000, 1)) == "bytes"


def test_profile_gives_losses(report: ModuleType) -> None:
    x = relay.var("x", shape=(8, 64))
    weight = relay.const(np.ones((32, 64), np.float32))
    exe = ekiden.compile(IRModule.from_expr(relay.Function([x], relay.nn.dense(x, weight))))
    runs = [profile(exe.raw, "main", [np.ones((8, 64), np.float32)]) for _ in range(3)]
    best = report.merge_min_times(runs)
    assert best.calls[0].duration == min(run.calls[0].duration for run in runs)
    limits = report.measure_limits(MachinePeak(1e12, 1e10))
    (loss,) = report.kernel_losses("model", best, limits)
    assert 0 < loss.share <= 1
    assert 0 <= loss.lost < best.calls[0].duration * 1e-9
    assert loss.record()["gflops"] == best.calls[0].flops / best.calls[0].duration


def test_losses_are_printed_worst_first(
    report: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    result = [report.KernelLoss(f"m{n}", row(0, 1, 1000), n * 1e-3, 0.5, "bytes") for n in range(3)]
    report.print_losses(result, 2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" bytes ")[1].split()[0] for line in lines[1:]] == ["m2", "m1"]


def test_plot_ticks_match_points(report: ModuleType) -> None:
    assert report.ratio_ticks(1.0, 3.1) == [1, 1.2, 1.5, 2, 3, 4]
    assert report.ratio_ticks(0.6, 1.0) == [0.5, 0.8, 1]
    assert report.ratio_ticks(0.01, 1000)[::17] == [0.1, 100]


def test_plot_marks_direction_and_failures(report: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install ekiden[docs]")
    engines = {"ekiden": {"ms": 1.0}, "other": {"ms": 2.0, "speedup": 2.0}, "third": {"error": "x"}}
    rows = [{"model": "a", "threads": 1, "engines": engines}]
    report.plot_results(rows, [], tmp_path / "picture.svg")
    text = (tmp_path / "picture.svg").read_text()
    assert "Time of other engines, relative to Ekiden" in text
    assert "third fails or differs" in text
    assert all(f">{tick}</text>" in text for tick in ("1", "1.2", "1.5", "2"))
    assert "10^" not in text


def test_plot_data_match_labels(report: ModuleType) -> None:
    """Where there is no matplotlib too."""
    drawn = _Drawn()
    other = {"ekiden": {"ms": 1.0}, "other": {"ms": 2.0, "speedup": 2.0}, "third": {"error": "x"}}
    report._plot_peer_ratios(drawn, [{"model": "a", "threads": 1, "engines": other}])
    assert [(mark, list(names), label) for _, names, mark, label in drawn.plots if names] == [
        ("o", ["a"], "other"),
        ("s", ["a"], "third"),
        ("x", ["a"], "third fails or differs"),
    ]
    assert drawn.ticks == [1, 1.2, 1.5, 2]


class _Drawn:
    """What is asked of a picture of matplotlib."""

    def __init__(self) -> None:
        self.plots: list[tuple[object, list[str], str, str]] = []
        self.ticks: list[float] = []

    def plot(self, x: object, names: list[str], mark: str, **argument: str) -> tuple[_Drawn]:
        self.plots.append((x, names, mark, argument["label"]))
        return (self,)

    def get_color(self) -> str:
        return "black"

    def set_xticks(self, ticks: list[float], labels: list[str]) -> None:
        self.ticks = ticks

    def __getattr__(self, name: str) -> object:
        return lambda *_, **__: None


def test_page_has_a_row_per_model_and_a_table_per_threads(report: ModuleType) -> None:
    engines = {"ekiden": {"ms": 1.0}, "other": {"ms": 2.0, "speedup": 2.0}, "third": {"error": "x"}}
    rows = [
        {"model": "a", "threads": t, "engines": engines, "speedup_over_best": 2.0} for t in (1, 2)
    ] + [{"model": "b", "threads": 1, "engines": {"ekiden": {"error": "no"}}}]
    wrong = {"ms": 0.5, "speedup": 0.5, "error_over_tolerance": "integers differ"}
    rows.append({"model": "c", "threads": 1, "engines": {"ekiden": {"ms": 1.0}, "other": wrong}})
    text = report.render_page(rows, "on a machine")
    assert "## On 1 core\n" in text
    assert "## On 2 cores\n" in text
    assert "2.00 times as fast as other (1 models)" in text
    assert "| a | 1.000 | 2.000 | fails | 2.00 |" in text
    assert "| c | 1.000 | 0.500 (differs) | fails |  |" in text
    assert "\non a machine\n" in text
    assert "| b | fails | fails | fails |  |" in text
