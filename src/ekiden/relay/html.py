"""Rendering of Relay programs as HTML, for notebooks.

Types stand behind each expression in grey; a name is highlighted wherever it stands while the mouse
is over it; meta data is left out. Functions and type definitions fold, and a picture of the main
function stands below, folded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.relay.expr import Function
from ekiden.relay.printer import astext
from ekiden.relay.svg_graph import MAX_BOXES, draw
from ekiden.relay.visitor import post_order
from ekiden.runtime.profile.html import colour_tokens, details_html, program_html

_TOKEN_PATTERN = re.compile(
    r"""
      (?P<comment> /\*.*?\*/ )
    | (?P<name>    [%@](?:"(?:\\.|[^"\\])*"|[\w./]+) )
    | (?P<string>  "(?:\\.|[^"\\])*" )
    | (?P<keyword> \b(?:def|fn|let|if|else|match\??|type|extern|free_var|ref|ref_read|ref_write)\b )
    | (?P<number>  (?<![\w.])-?\d[\w.+-]* )
    """,
    re.VERBOSE,
)


def to_html(value: RelayExpr | IRModule) -> str:
    """Render a module or expression as a self-contained HTML fragment."""
    text = astext(value, show_meta_data=False)
    return program_html("".join(_highlight_sections(text))) + _render_svg(value)


def _highlight_sections(text: str) -> Iterator[str]:
    """Yield syntax-highlighted text with foldable definitions.

    A definition begins with a line that ends with "{" and ends with "}" at the margin; a type
    definition is folded at first.
    """
    inside: list[str] = []
    for line in text.splitlines(keepends=True):
        if inside:
            inside.append(line)
            if line.startswith("}"):
                head = colour_tokens(inside[0], _TOKEN_PATTERN)
                body = colour_tokens("".join(inside[1:]), _TOKEN_PATTERN)
                yield details_html(head, body, is_open=not inside[0].startswith("type "))
                inside = []
        elif line.rstrip().endswith("{"):
            inside.append(line)
        else:
            yield colour_tokens(line, _TOKEN_PATTERN)
    yield colour_tokens("".join(inside), _TOKEN_PATTERN)


def _render_svg(value: RelayExpr | IRModule) -> str:
    if isinstance(value, IRModule):
        shown: object = {v.name_hint: func for v, func in value.functions.items()}.get("main")
    else:
        shown = value
    if not isinstance(shown, Function):
        return ""
    size = len(post_order(shown.body))
    # Counted with constants and tuples, which have no boxes of their own.
    if size > 3 * MAX_BOXES:
        return f"<p>Too large for a picture: {size} expressions.</p>"
    return details_html("picture", f'<div style="overflow-x:auto">{draw(shown)}</div>')


__all__ = ["to_html"]
