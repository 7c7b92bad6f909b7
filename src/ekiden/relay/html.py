"""Relay programs as HTML: what notebooks show for a module or an expression.

Types stand behind each expression in grey; a name is highlighted wherever it stands while the mouse
is over it; meta data is left out.
"""

from __future__ import annotations

import html
import re

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.relay.printer import astext

_WORDS = re.compile(
    r"""
      (?P<comment> /\*.*?\*/ )
    | (?P<name>    [%@](?:"(?:\\.|[^"\\])*"|[\w./]+) )
    | (?P<string>  "(?:\\.|[^"\\])*" )
    | (?P<keyword> \b(?:def|fn|let|if|else|match\??|type|extern|free_var|ref|ref_read|ref_write)\b )
    | (?P<number>  (?<![\w.])-?\d[\w.+-]* )
    """,
    re.VERBOSE,
)
_STYLE = """
.ek{font:12px/1.45 monospace;overflow-x:auto;white-space:pre;margin:0}
.ek .comment{color:#8a8a8a}.ek .keyword{color:#7a3e9d;font-weight:600}
.ek .string{color:#448c27}.ek .number{color:#9c5d27}
.ek .name{color:#325cc0;cursor:default}.ek .name.on{background:#ffe9a8}
"""
_SCRIPT = """
for(const e of document.querySelectorAll('.ek .name'))e.onmouseenter=e.onmouseleave=v=>{
for(const o of e.closest('.ek').querySelectorAll('.name'))
o.classList.toggle('on',v.type=='mouseenter'&&o.textContent==e.textContent)}
"""


def to_html(value: RelayExpr | IRModule) -> str:
    """A module or expression as an HTML fragment that needs nothing else."""
    text = astext(value, show_meta_data=False)
    made: list[str] = []
    at = 0
    for found in _WORDS.finditer(text):
        made.append(html.escape(text[at : found.start()]))
        made.append(f'<span class="{found.lastgroup}">{html.escape(found.group())}</span>')
        at = found.end()
    made.append(html.escape(text[at:]))
    body = "".join(made)
    return f"<style>{_STYLE}</style><pre class=ek>{body}</pre><script>{_SCRIPT}</script>"


IRModule.html_printer = staticmethod(to_html)
RelayExpr.html_printer = staticmethod(to_html)

__all__ = ["to_html"]
