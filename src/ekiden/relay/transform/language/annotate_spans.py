"""Annotate every expression with its span in the module's printed text.

def @main(%x: float32) { add(%x, 1f) }   ->   the same, with line and column of each expression
"""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.parser import parse

_SOURCE_NAME = "GeneratedSource"


def AnnotateSpans() -> Pass:  # noqa: N802
    """Return a pass that sets spans by printing and re-parsing the module (TVM's AnnotateSpans)."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Print the module and parse it, which gives each expression a span."""
        return parse(module.astext(), _SOURCE_NAME)

    return Pass("AnnotateSpans", transform)
