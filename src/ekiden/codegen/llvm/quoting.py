"""Names and bytes as the text of LLVM has them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A name between quotes, whatever is in it."""
    return f'"{escaped(name.encode(errors="surrogateescape"))}"'


def escaped(data: bytes) -> str:
    """What stands between the quotes of these bytes."""
    plain = range(32, 127)
    return "".join(chr(c) if c in plain and chr(c) not in '"\\' else f"\\{c:02X}" for c in data)
