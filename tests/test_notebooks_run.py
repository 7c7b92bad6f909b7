"""The notebooks run, cell by cell, and every value that ends a cell shows itself."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
RICH = {
    "1-first-model": ("<table", "bytecode"),
    "2-look-inside": ("<details", 'class="ekg"', "flame chart"),
    "3-schedule-a-kernel": ('<span class="keyword">', "sch.vectorize"),
    "4-train-by-gradient": ("<polyline", "<table"),
    "5-dynamic-programs": ("<details", '<span class="name">%x</span>'),
}
"""Notebook -> what its views hold."""
_spec = importlib.util.spec_from_file_location("notebook_cells", ROOT / "scripts/notebook_cells.py")
assert _spec is not None and _spec.loader is not None
notebook_cells = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(notebook_cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "1")
    page = notebook_cells.page(path)
    assert [word for word in RICH[path.stem] if word not in page] == []


@pytest.mark.quick
def test_five_notebooks_have_no_outputs() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(RICH)
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert [c["outputs"] for c in cells if c.get("outputs")] == []
