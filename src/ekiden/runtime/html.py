"""What notebooks show of executables and reports."""

from __future__ import annotations

from collections.abc import Container, Sequence
from html import escape

__all__ = ["preformatted", "table"]

_CELL = "padding: 0 0.8em; text-align: "


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    caption: str = "",
    numbers: Container[int] = (),
) -> str:
    """A table of texts; the columns in `numbers` stand to the right."""
    sides = ["right" if at in numbers else "left" for at in range(len(heads))]
    lines = [_row("th", heads, sides), *(_row("td", row, sides) for row in rows)]
    head = f'<caption style="text-align: left">{escape(caption)}</caption>' if caption else ""
    return f"<table>{head}{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[object], sides: Sequence[str]) -> str:
    pairs = zip(cells, sides, strict=True)
    made = (f'<{tag} style="{_CELL}{side}">{escape(str(cell))}</{tag}>' for cell, side in pairs)
    return f"<tr>{''.join(made)}</tr>"


def preformatted(text: str) -> str:
    """Text as it stands, in a box that scrolls."""
    style = "max-height: 40em; overflow: auto"
    return f'<pre style="{style}">{escape(text)}</pre>'
