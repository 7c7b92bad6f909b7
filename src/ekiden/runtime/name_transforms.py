"""Identifiers for other languages from any text (TVM's names)."""

from __future__ import annotations

import re

from ekiden.runtime.errors import InputError


def sanitize_name(original_name: str) -> str:
    """Return the name with `_` for each character that is invalid in a C identifier. Raises
    InputError for an empty one.
    """
    if not original_name:
        raise InputError("sanitize_name: Name is empty")
    return re.sub(r"[^A-Za-z0-9_]", "_", original_name)


__all__ = ["sanitize_name"]
