"""scripts/size_report.py: lines by floor, before and after a change."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
PAGE = """
| `src/ekiden/tir/` | floor 4: loop programs |
| `src/ekiden/tir/schedule/` | those transformations |
| `src/ekiden/quantization/` | between floors 8 and 9: small models |
| `src/ekiden/serve/` | above the driver: a server |
"""


@pytest.fixture(scope="module")
def size_report() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "size_report", ROOT / "scripts" / "size_report.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lines_are_summed_by_floor_with_the_difference(size_report: ModuleType) -> None:
    before = {"src/ekiden/tir/a.py": 100, "src/ekiden/tir/schedule/b.py": 50, "tests/t.py": 7}
    after = {**before, "src/ekiden/tir/a.py": 90, "src/ekiden/quantization/c.py": 30}
    assert size_report.format_report(before, after, PAGE) == [
        "floor   folder           before    after",
        "4       tir                 150      140     -10",
        "8-9     quantization          0       30     +30",
        "beside  tests                 7        7",
        "all                         157      177     +20",
    ]


def test_every_folder_of_the_package_is_on_a_floor(size_report: ModuleType) -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    package = ROOT / "src" / "ekiden"
    folders = {path.name for path in package.iterdir() if (path / "__init__.py").is_file()}
    floor_of = size_report.layer_by_folder(page)
    assert folders - set(floor_of) == set()
    assert {floor_of[name] for name in ("runtime", "relay", "quantization", "serve")} == {
        "1", "6", "8-9", "above",
    }  # fmt: skip


def test_files_of_python_above_the_limit_are_named(size_report: ModuleType) -> None:
    lines = {"src/ekiden/a.py": 701, "src/ekiden/b.py": 700, "runtime/src/c.c": 5000}
    lines |= {"tests/test_a.py": 1000, "tests/test_b.py": 1001}
    assert size_report.long_file_messages(lines) == [
        "src/ekiden/a.py: 701 lines, at most 700 expected",
        "tests/test_b.py: 1001 lines, at most 1000 expected",
    ]


@pytest.mark.slow
def test_lines_of_a_commit_are_those_of_its_files(size_report: ModuleType) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    lines = size_report.count_lines_at("HEAD")
    page = size_report.git("show", "HEAD:scripts/generated_files.py")
    assert lines["scripts/generated_files.py"] == page.count(b"\n")
