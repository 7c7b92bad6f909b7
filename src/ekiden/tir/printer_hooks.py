"""Registration of the printers of expressions and modules with the IR layer, which does not know
loop programs. The printers are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr

if TYPE_CHECKING:
    from ekiden.runtime.profile import html
    from ekiden.tir import expression_text, printer
else:
    html = LazyModule("ekiden.runtime.profile.html")
    expression_text = LazyModule("ekiden.tir.expression_text")
    printer = LazyModule("ekiden.tir.printer")


def _print_expression(expr: PrimExpr) -> str:
    return expression_text.expression_text(expr)


def _print_module(module: IRModule, name: str) -> str:
    return printer.print_module(module, name)


def _module_html(module: IRModule) -> str:
    return html.program_html(html.colour_tokens(module.script(), html.PYTHON_TOKENS))


if IRModule.html_printer is None:  # where no Relay is loaded, which shows other functions too
    IRModule.html_printer = staticmethod(_module_html)
PrimExpr.printer = staticmethod(_print_expression)
IRModule.script_printer = staticmethod(_print_module)
