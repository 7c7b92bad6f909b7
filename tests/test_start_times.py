"""benchmarks/start_times.py: its rows run, and its figures are medians without the first round."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def start_times() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "start_times.py"
    spec = importlib.util.spec_from_file_location("start_times", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclass
    spec.loader.exec_module(module)
    return module


def test_statements_of_all_imports_run(start_times: ModuleType) -> None:
    program = "\n".join(["import numpy", *start_times.IMPORTS.values()])
    subprocess.run([sys.executable, "-c", program], check=True)


def test_programs_of_all_answers_are_files_that_compile_takes(
    start_times: ModuleType, tmp_path: Path
) -> None:
    paths = [start_times.write_program(row, tmp_path) for row in start_times.ANSWERS]
    assert {path.suffix for path in paths} == {".onnx", ".relay"}
    assert all(path.stat().st_size > 0 for path in paths)


def test_figure_is_the_median_without_the_first_round(start_times: ModuleType) -> None:
    rounds = [start_times.StartFigure(ms, 3, 4) for ms in (900.0, 5.0, 9.0, 7.0)]
    assert start_times.median_figure(rounds) == start_times.StartFigure(7.0, 3, 4)
    assert start_times.median_figure([*rounds, None]) is None


def test_figures_of_two_trees_stand_behind_each_other(start_times: ModuleType) -> None:
    figure = start_times.StartFigure(7.4, 3, 4)
    assert start_times.format_line("row", [figure, None]).split() == [
        "row", "7", "/", "-", "3", "/", "-", "4", "/", "-",
    ]  # fmt: skip
