"""Row handling shared by float, quantised and hybrid matrix products."""

from __future__ import annotations

from ekiden.frontend.tflite.node import Node
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import known


def rows_of(node: Node) -> Expr:
    """Return the data of FULLY_CONNECTED, whose weights are (out, in), as rows."""
    if node.option("WeightsFormat"):
        node.unsupported(f"{node.ins[1]} is shuffled")
    depth = known(node.shape(1)[1])
    if depth is None:
        node.unsupported(f"{node.ins[1]} must have known extents")
    return op.reshape(node.expr(0), (-1, depth))


def shaped(node: Node, products: Expr) -> Expr:
    """Restore the data's leading axes of a row result where the operator keeps them."""
    if not node.option("KeepNumDims"):
        return products
    return op.reshape(products, (*node.shape(0)[:-1], node.shape(1)[0]))


def biased(node: Node, products: Expr, index: int = 2) -> Expr:
    """Add the bias, if there is one, and apply the fused activation."""
    return node.activated(
        products if node.optional(index) is None else op.add(products, node.expr(index))
    )
