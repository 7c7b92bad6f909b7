"""Source locations: a node of a model or a position in a text."""

from __future__ import annotations

from ekiden.ir.node import Node, node


class SourceName(str):
    """Name of a source text or model node (TVM's string node)."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Return the name as a plain str."""
        return str(self)


@node("ir.Span")
class Span(Node):
    """Source location: `source_name` is the model node (`"Conv 'layer1/conv'"`) or the text.

    Lines and columns count from 1 and are 0 if unknown; the end is the place after the last
    character.
    """

    source_name: str
    line: int = 0
    end_line: int = 0
    column: int = 0
    end_column: int = 0

    def naming(self, operator: str) -> str:
        """Return the description of an operator at this location for messages.

        It is the node of a model by its name, else the operator and its place in the text.
        """
        return f"{operator} at {self}" if self.line else self.source_name

    def __str__(self) -> str:
        """Return `source`, or `source:line:column` for text."""
        return f"{self.source_name}:{self.line}:{self.column}" if self.line else self.source_name
