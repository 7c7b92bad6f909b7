"""Spans and printing, under TVM's module name."""

from ekiden.ir.span import SourceName, Span
from ekiden.relay.printer import astext
from ekiden.relay.printer import astext as pretty_print

__all__ = ["SourceName", "Span", "astext", "pretty_print"]
