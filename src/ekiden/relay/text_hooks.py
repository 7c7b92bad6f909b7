"""Text and HTML hooks of Relay for the IR layer, which does not know Relay. What writes them is
imported when the first is asked for: whatever of Relay a program has imported, its modules show
themselves alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule

if TYPE_CHECKING:
    from ekiden.relay import html, printer
else:
    html = LazyModule("ekiden.relay.html")
    printer = LazyModule("ekiden.relay.printer")


def _print_text(
    value: RelayExpr | IRModule,
    show_meta_data: bool = True,
    annotate: Callable[[RelayExpr], str] | None = None,
    show_spans: bool = False,
) -> str:
    return printer.astext(value, show_meta_data, annotate, show_spans)


def _print_html(value: RelayExpr | IRModule) -> str:
    return html.to_html(value)


IRModule.printer = staticmethod(_print_text)
RelayExpr.printer = staticmethod(_print_text)
IRModule.html_printer = staticmethod(_print_html)
RelayExpr.html_printer = staticmethod(_print_html)
