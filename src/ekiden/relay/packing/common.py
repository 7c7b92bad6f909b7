"""Helpers of packing rules: static shapes, panel widths, decision names."""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType
from ekiden.kernels.families import FAMILIES, merged_overrides
from ekiden.kernels.family import MatmulSizes
from ekiden.relay.expr import Call
from ekiden.target import Target


def tensor_dtype(expr: RelayExpr) -> str:
    """Return a tensor's dtype, or "" for other expressions."""
    kind = expr.checked_type
    return kind.dtype if isinstance(kind, TensorType) else ""


def static_shape(expr: RelayExpr) -> tuple[int, ...] | None:
    """Return a tensor's static shape, or None."""
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    extents = tuple(d.value for d in kind.shape if isinstance(d, IntImm))
    return extents if len(extents) == len(kind.shape) else None


def num_rows(expr: RelayExpr, first: int = 0) -> int | None:
    """Return the number of rows over the last axis, counted from axis `first`, or None if
    dynamic.
    """
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    total = 1
    for dim in kind.shape[first:-1]:
        if not isinstance(dim, IntImm):
            return None
        total *= dim.value
    return total


def static_last_dim(expr: RelayExpr) -> int | None:
    """Return a tensor's static last dimension, or None."""
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    last = kind.shape[-1]
    return last.value if isinstance(last, IntImm) else None


def panel_width(family: str, product: MatmulSizes, target: Target, call: Call) -> int:
    """Return the panel width in columns that a kernel family requires for a call's weight.

    Raises:
        CompileError: A decision for it is not valid.
    """
    return FAMILIES[family].choose_panel_width(
        product, target, merged_overrides(decision_names(family, call))
    )


def decision_names(family: str, call: Call) -> tuple[str, ...]:
    """Return the names under which decisions about a call's weight are made: family and node."""
    return (family, str(call.span)) if call.span else (family,)
