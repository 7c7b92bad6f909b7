"""Terminal detection for standard error, which a program may have closed or replaced."""

from __future__ import annotations

import sys

__all__ = ["stderr_is_terminal"]


def stderr_is_terminal() -> bool:
    """Return whether standard error is a terminal, on which a progress bar is shown."""
    isatty = getattr(sys.stderr, "isatty", None)
    try:
        return isatty is not None and bool(isatty())
    except ValueError:  # it is closed
        return False
