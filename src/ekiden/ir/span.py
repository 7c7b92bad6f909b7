"""Where a piece of a program comes from: a node of a model or a place in a text."""

from __future__ import annotations

from ekiden.ir.node import Node, node


@node("ir.Span")
class Span(Node):
    """`source` names the model node (`"Conv 'layer1/conv'"`) or file.

    Line and column count from 1, 0 if unknown.
    """

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """`source`, or `source:line:column` for text."""
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source
