"""Reshape to a data-dependent shape whose numbers may be -1 (inferred) or 0 (copied)."""

from __future__ import annotations

from ekiden.frontend.common.node import Node
from ekiden.frontend.common.value import Value
from ekiden.ir.prim import AnyDim, PrimExpr
from ekiden.relay import op
from ekiden.topi.dimensions import known


def is_open(node: Node, index: int) -> bool:
    """Return whether a number of a shape may be -1 at run time: one is, or nothing is known of any.

    A shape whose elements are tracked from elsewhere holds sizes.
    """
    value = node.value(index)
    if value.is_known:
        return False
    is_followed = value.hint is not None
    numbers = [None if e is None else known(e) for e in node.partial(index)]
    return not is_followed or -1 in numbers


def by_data(node: Node, allow_zero: bool) -> Value:
    """Reshape input 0 to input 1; known extents stay known.

    Numbers of the data may be -1 (inferred) and, unless `allow_zero`, 0 (copied from the input).
    """
    reshaped = op.reshape(node.expr(0), node.expr(1), allowzero=allow_zero)
    shape: list[PrimExpr] = [AnyDim() if d is None else d for d in node.partial(1)]
    for axis, dim in enumerate(shape):
        if known(dim) == -1:
            shape[axis] = AnyDim()
        elif known(dim) == 0 and not allow_zero:
            shape[axis] = node.shape(0)[axis]
    return node.scope.bound(reshaped, node.output_names[0], shape)
