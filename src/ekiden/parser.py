"""Relay text to programs, under the name that older TVM has it."""

from ekiden.relay.parser import fromtext, parse, parse_expr

__all__ = ["fromtext", "parse", "parse_expr"]
