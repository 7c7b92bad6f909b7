"""Quoting of names and bytes in LLVM's text."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name between quotes, escaped."""
    return f'"{escaped(name.encode(errors="surrogateescape"))}"'


def escaped(data: bytes) -> str:
    """Escape bytes for LLVM's quoted strings."""
    plain = range(32, 127)
    return "".join(chr(c) if c in plain and chr(c) not in '"\\' else f"\\{c:02X}" for c in data)
