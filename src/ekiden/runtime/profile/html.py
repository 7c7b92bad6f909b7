"""HTML representations of executables, programs and reports for notebooks; fragments that need
nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from html import escape

__all__ = [
    "PYTHON_TOKENS",
    "colour_tokens",
    "details_html",
    "preformatted_html",
    "program_html",
    "table_html",
]

_CELL_STYLE = "padding: 0 0.8em; text-align: "
STYLESHEET = """
.ek{font:12px/1.45 ui-monospace,monospace;overflow-x:auto;white-space:pre;margin:0;max-height:40em}
.ek .comment{color:#8a8a8a}.ek .keyword{color:#a05fc4;font-weight:600}
.ek .string{color:#3f9142}.ek .number{color:#b8722d}
.ek .name{color:#3f7fd0;cursor:default}.ek .name.on{background:#ffe9a866}
.ek details{display:inline}.ek summary{cursor:pointer}
"""
"""Colours legible on white and on black."""
PYTHON_TOKENS = re.compile(
    r"""
      (?P<comment> \#.*$ )
    | (?P<string>  "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' )
    | (?P<keyword> \b(?:def|for|in|with|if|else|while|return|and|or|not|range|T)\b | @[\w.]+ )
    | (?P<number>  (?<![\w.])\d[\w.+]* )
    """,
    re.VERBOSE | re.MULTILINE,
)
"""Highlighted tokens of loop programs and traces, which are Python."""
_HIGHLIGHT_SCRIPT = """
for(const e of document.querySelectorAll('.ek .name'))e.onmouseenter=e.onmouseleave=v=>{
for(const o of e.closest('.ek').querySelectorAll('.name'))
o.classList.toggle('on',v.type=='mouseenter'&&o.textContent==e.textContent)}
"""


def colour_tokens(text: str, words: re.Pattern[str]) -> str:
    """Return text as HTML, with each match of a pattern's group in the colour of the
    group's name.
    """
    html: list[str] = []
    position = 0
    for match in words.finditer(text):
        html.append(escape(text[position : match.start()]))
        html.append(f'<span class="{match.lastgroup}">{escape(match.group())}</span>')
        position = match.end()
    html.append(escape(text[position:]))
    return "".join(html)


def program_html(body: str) -> str:
    """Return a program's coloured text in a scrolling box; occurrences of a name light up
    together.
    """
    return (
        f"<style>{STYLESHEET}</style><div class=ek>{body}</div><script>{_HIGHLIGHT_SCRIPT}</script>"
    )


def details_html(summary: str, body: str, is_open: bool = False) -> str:
    """Return HTML with a heading that expands and collapses it (`<details>`)."""
    state = " open" if is_open else ""
    return f"<details{state}><summary>{summary}</summary>{body}</details>"


def table_html(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    caption: str = "",
    numbers: Container[int] = (),
) -> str:
    """Return an HTML table of strings; the columns in `numbers` are right-aligned."""
    sides = ["right" if position in numbers else "left" for position in range(len(heads))]
    lines = [_row_html("th", heads, sides), *(_row_html("td", row, sides) for row in rows)]
    head = f'<div style="padding: 0.3em 0">{escape(caption)}</div>' if caption else ""
    return f"{head}<table>{''.join(lines)}</table>"


def _row_html(tag: str, cells: Sequence[object], sides: Sequence[str]) -> str:
    pairs = zip(cells, sides, strict=True)
    html_cells = (
        f'<{tag} style="{_CELL_STYLE}{side}">{escape(str(cell))}</{tag}>' for cell, side in pairs
    )
    return f"<tr>{''.join(html_cells)}</tr>"


def preformatted_html(text: str) -> str:
    """Return a text as preformatted HTML in a scrolling box."""
    style = "max-height: 40em; overflow: auto"
    return f'<pre style="{style}">{escape(text)}</pre>'
