"""Float functions that qnn operators approximate and NumPy lacks."""

from __future__ import annotations

import numpy as np

from ekiden.ir.op import Array


def hardswish_func(x: Array) -> Array:
    """Return x * min(max(x + 3, 0), 6) / 6, elementwise."""
    return np.asarray(x * np.clip(x + 3, 0, 6) / 6)


__all__ = ["hardswish_func"]
