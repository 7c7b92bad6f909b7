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


def _of_expression(expr: PrimExpr) -> str:
    return expression_text.expression_text(expr)


def _of_module(module: IRModule, name: str) -> str:
    return printer.module_text(module, name)


def _html_of_module(module: IRModule) -> str:
    return html.styled(html.coloured(module.script(), html.PYTHON_TOKENS))


if IRModule.html_printer is None:  # where no Relay is loaded, which shows other functions too
    IRModule.html_printer = staticmethod(_html_of_module)
PrimExpr.printer = staticmethod(_of_expression)
IRModule.script_printer = staticmethod(_of_module)
