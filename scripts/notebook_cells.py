"""Execution of a notebook's cells, with displayed values and printed output: in order, in one
namespace.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
from collections.abc import Iterator
from html import escape
from pathlib import Path


def to_html(value: object) -> str:
    """Return the HTML that a notebook displays for a value."""
    rich = getattr(value, "_repr_html_", None)
    return f"<pre>{escape(repr(value))}</pre>" if rich is None else str(rich())


def run_cell(cell: str, names: dict[str, object], where: str) -> str:
    """Run a cell; return its standard output and the value of its last expression as HTML.

    Its lines can be read back, as those of a cell can, by decorators that read a function's text.
    """
    # Tracebacks and inspect.getsource look up the source of a cell here.
    linecache.cache[where] = (len(cell), None, cell.splitlines(keepends=True), where)
    tree = ast.parse(cell)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    shown = ""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
            shown = "" if value is None else to_html(value)
    text = printed.getvalue()
    return (f"<pre>{escape(text)}</pre>" if text else "") + shown


def iter_cell_outputs(path: Path) -> Iterator[tuple[str, str, str]]:
    """Run a notebook and yield (kind, source, output) for each cell."""
    names: dict[str, object] = {"__name__": "notebook"}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        shown = run_cell(source, names, f"<{path.name} {number}>") if is_code else ""
        yield cell["cell_type"], source, shown


def page(path: Path) -> str:
    """Return a notebook as a Markdown page with its cells' output."""
    sections = []
    for kind, source, shown in iter_cell_outputs(path):
        sections.append(f"```python\n{source}\n```" if kind == "code" else source)
        if shown:
            sections.append(f'<div class="ek-out">{shown}</div>')
    return "\n\n".join(sections) + "\n"
