"""Source location of a script function, for spans and error messages."""

from __future__ import annotations

import ast
from typing import NoReturn

from ekiden.ir.span import Span
from ekiden.relay.lexer import SourceText
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Location of a function: its AST, file text, first line and indentation."""

    tree: ast.FunctionDef
    source: SourceText
    lines_before: int
    indent: int

    def span(self, node: ast.AST) -> Span:
        """Return the span of a node."""
        line, column = self._line_and_column(node)
        end = getattr(node, "end_lineno", 1) + self.lines_before
        end_column = getattr(node, "end_col_offset", 0) + self.indent + 1
        return Span(self.source.name, line, end, column, end_column)

    def raise_error(self, node: ast.AST, message: str) -> NoReturn:
        """Raise ParseError with the user's line and a caret."""
        line, column = self._line_and_column(node)
        position = 0
        for _ in range(line - 1):
            position = self.source.text.find("\n", position) + 1
        self.source.raise_parse_error(position + column - 1, message)

    def _line_and_column(self, node: ast.AST) -> tuple[int, int]:
        line = getattr(node, "lineno", 1) + self.lines_before
        return line, getattr(node, "col_offset", 0) + self.indent + 1
