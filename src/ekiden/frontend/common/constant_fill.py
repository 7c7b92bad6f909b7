"""Constant-filled tensors whose size a model file states as a number: small ones become constants,
larger ones operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden.ir.dtype import to_numpy
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

MAX_CONSTANT_ELEMENTS = 1 << 16
"""A constant of more elements would be allocated, and stored in the artifact, at the word of a
number in a file."""


def emit_iota(count: int, dtype: str = "int64") -> Expr:
    """Emit the int vector 0, 1, ..., count - 1; it is empty for a negative count, as in NumPy."""
    if count <= MAX_CONSTANT_ELEMENTS:
        return const(np.arange(count, dtype=to_numpy(dtype)))
    return op.arange(0, count, 1, dtype)


def emit_full(shape: Sequence[int], value: float, dtype: str) -> Expr:
    """Emit a tensor of one value; extents are non-negative."""
    if math.prod(shape) <= MAX_CONSTANT_ELEMENTS:
        return const(np.full(tuple(shape), value, to_numpy(dtype)))
    return op.full(const(value, dtype), tuple(shape), dtype)
