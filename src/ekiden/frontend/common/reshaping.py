"""Shapes that are data, whose numbers may stand for others."""

from __future__ import annotations

from ekiden.frontend.common.node import Node
from ekiden.frontend.common.value import Value
from ekiden.ir.prim import AnyDim, PrimExpr
from ekiden.relay import op
from ekiden.topi.shape import known


def is_open(node: Node, index: int) -> bool:
    """Whether a number of a shape may be -1 when the program runs: one is, or nothing is known of
    any. What is followed from elsewhere is a size.
    """
    value = node.value(index)
    if value.is_known:
        return False
    is_followed = value.hint is not None
    numbers = [None if e is None else known(e) for e in node.partial(index)]
    return not is_followed or -1 in numbers


def by_data(node: Node, allow_zero: bool) -> Value:
    """Input 0 in the shape of input 1. A number of the data may be -1, and 0 unless `allow_zero`,
    which stand for others; what is known stays known.
    """
    found = op.reshape(node.expr(0), node.expr(1), allowzero=allow_zero)
    shape: list[PrimExpr] = [AnyDim() if d is None else d for d in node.partial(1)]
    for axis, dim in enumerate(shape):
        if known(dim) == -1:
            shape[axis] = AnyDim()
        elif known(dim) == 0 and not allow_zero:
            shape[axis] = node.shape(0)[axis]
    return node.scope.bound(found, node.output_names[0], shape)
