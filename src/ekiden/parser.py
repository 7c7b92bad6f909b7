"""The Relay parser, at the path of older TVM versions."""

from ekiden.relay.parser import fromtext, parse, parse_expr

__all__ = ["fromtext", "parse", "parse_expr"]
