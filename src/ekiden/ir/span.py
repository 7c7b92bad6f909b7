"""Where a piece of a program comes from: a node of a model or a place in a text."""

from __future__ import annotations

from ekiden.ir.node import Node, node


class SourceName(str):
    """The name of a text or of a node of a model (TVM's name for such a string)."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Return the string itself."""
        return str(self)


@node("ir.Span")
class Span(Node):
    """`source_name` names the model node (`"Conv 'layer1/conv'"`) or the text.

    Lines and columns count from 1 and are 0 if unknown; the end is the place after the last
    character.
    """

    source_name: str
    line: int = 0
    end_line: int = 0
    column: int = 0
    end_column: int = 0

    def naming(self, operator: str) -> str:
        """Return what messages call an operator made here.

        It is the node of a model by its name, else the operator and its place in the text.
        """
        return f"{operator} at {self}" if self.line else self.source_name

    def __str__(self) -> str:
        """Return `source`, or `source:line:column` for text."""
        return f"{self.source_name}:{self.line}:{self.column}" if self.line else self.source_name
