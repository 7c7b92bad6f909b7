"""Reshape to a data-dependent shape whose numbers may be -1 (inferred) or 0 (copied)."""

from __future__ import annotations

from ekiden.frontend.common.node import Node
from ekiden.frontend.common.value import Value
from ekiden.ir.prim import AnyDim, PrimExpr
from ekiden.relay import op
from ekiden.topi.dimensions import known_int


def may_infer_extent(node: Node, index: int) -> bool:
    """Return whether a run-time shape may contain -1 (an inferred extent).

    A shape whose elements are tracked from elsewhere holds sizes.
    """
    value = node.value(index)
    if value.is_known:
        return False
    is_followed = value.hint is not None
    numbers = [None if e is None else known_int(e) for e in node.partial_elements(index)]
    return not is_followed or -1 in numbers


def reshape_to_data(node: Node, allow_zero: bool) -> Value:
    """Emit a reshape of input 0 to the run-time shape of input 1; extents known at import stay
    known.

    Numbers of the data may be -1 (inferred) and, unless `allow_zero`, 0 (copied from the input).
    """
    reshaped = op.reshape(node.expr(0), node.expr(1), allowzero=allow_zero)
    shape: list[PrimExpr] = [AnyDim() if d is None else d for d in node.partial_elements(1)]
    for axis, dim in enumerate(shape):
        if known_int(dim) == -1:
            shape[axis] = AnyDim()
        elif known_int(dim) == 0 and not allow_zero:
            shape[axis] = node.shape(0)[axis]
    return node.scope.bind_named(reshaped, node.output_names[0], shape)
