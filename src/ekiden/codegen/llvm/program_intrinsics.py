"""Header line of a module's LLVM IR that lists the intrinsics which the user's program calls."""

from __future__ import annotations

PROGRAM_INTRINSICS = "; intrinsics that the program calls: "
"""Prefix of the header line that lists a program's LLVM intrinsics."""
HEADER_CHARS = 4096
"""Number of leading characters of a module in which that header line must begin."""


def user_intrinsics(text: str) -> str:
    """Return the names of the LLVM intrinsics that the user's program itself calls, "" for none."""
    begin = text.find(PROGRAM_INTRINSICS, 0, HEADER_CHARS)
    return "" if begin < 0 else text[begin + len(PROGRAM_INTRINSICS) : text.index("\n", begin)]


__all__ = ["PROGRAM_INTRINSICS", "user_intrinsics"]
