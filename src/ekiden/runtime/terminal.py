"""Standard error, which a program may have closed, or replaced by anything that is written to."""

from __future__ import annotations

import sys

__all__ = ["stderr_is_terminal"]


def stderr_is_terminal() -> bool:
    """Whether somebody watches it, for whom a bar is shown."""
    asked = getattr(sys.stderr, "isatty", None)
    try:
        return asked is not None and bool(asked())
    except ValueError:  # it is closed
        return False
