"""The notebooks run, cell by cell, and every value that ends a cell shows itself."""

from __future__ import annotations

import ast
import json
import linecache
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
RICH = {
    "1-first-model": ("<table", "bytecode"),
    "2-look-inside": ("<details", 'class="ekg"', "flame chart"),
    "3-schedule-a-kernel": ('<span class="keyword">', "sch.vectorize"),
    "4-train-by-gradient": ("<polyline", "<table"),
    "5-dynamic-programs": ("<details", '<span class="name">%x</span>'),
}
"""Notebook -> what its views hold."""


def show(value: object) -> str:
    """A value as a notebook has it."""
    rich = getattr(value, "_repr_html_", None)
    return repr(value) if rich is None else str(rich())


def run(cell: str, names: dict[str, object], where: str) -> str:
    """Run a cell; what its last expression shows, empty without one.

    Its lines can be read back, as those of a cell can, by decorators that read a function's text.
    """
    linecache.cache[where] = (len(cell), None, cell.splitlines(keepends=True), where)
    tree = ast.parse(cell)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    if not isinstance(last, ast.Expr):
        return ""
    return show(eval(compile(ast.Expression(last.value), where, "eval"), names))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "1")
    names: dict[str, object] = {"__name__": "notebook"}
    shown = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            text = "".join(cell["source"])
            shown.append(run(text, names, f"<{path.name} {number}>"))
    whole = "\n".join(shown)
    assert [word for word in RICH[path.stem] if word not in whole] == []


@pytest.mark.quick
def test_there_are_five_without_outputs() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(RICH)
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert [c["outputs"] for c in cells if c.get("outputs")] == []
