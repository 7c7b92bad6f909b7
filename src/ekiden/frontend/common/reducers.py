"""Reduction operators and their identity elements, by the name of the binary operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ekiden.frontend.common.value import Value
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr

ReduceFunction = Callable[..., Expr]
REDUCTION_OPS: Mapping[str, tuple[ReduceFunction, Callable[[Expr, Expr], Expr]]] = {
    "add": (op.sum, op.add),
    "multiply": (op.prod, op.multiply),
    "maximum": (op.max, op.maximum),
    "minimum": (op.min, op.minimum),
    "and": (op.all, op.logical_and),
    "or": (op.any, op.logical_or),
}
"""What a body is -> the operator that reduces by it, and the one of two elements."""


def reduction_identity(kind: str, dtype: str) -> float:
    """Return the identity element of a reduction for a dtype."""
    if kind in ("and", "or"):
        return kind == "and"
    if kind in ("add", "multiply"):
        return int(kind == "multiply")
    if is_float(dtype):
        return -np.inf if kind == "maximum" else np.inf
    if dtype == "bool":
        return kind == "minimum"
    limits = np.iinfo(dtype)
    return limits.min if kind == "maximum" else limits.max


def is_reduction_identity(value: Value, kind: str) -> bool:
    """Return whether all elements of a value are known to be the identity of a reduction."""
    array = value.array
    return array is not None and bool(np.all(array == reduction_identity(kind, value.type.dtype)))
