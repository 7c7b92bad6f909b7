"""Quoting of names and bytes in LLVM's text."""

from __future__ import annotations


def quote_name(name: str) -> str:
    """Return a name between quotes, escaped."""
    return f'"{escape_bytes(name.encode(errors="surrogateescape"))}"'


def escape_bytes(data: bytes) -> str:
    """Escape bytes for LLVM's quoted strings."""
    plain = range(32, 127)
    return "".join(chr(c) if c in plain and chr(c) not in '"\\' else f"\\{c:02X}" for c in data)
