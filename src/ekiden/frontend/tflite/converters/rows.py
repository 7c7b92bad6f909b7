"""What products of floats, of quantised tensors and of both have in common: their rows."""

from __future__ import annotations

from ekiden.frontend.tflite.node import Node
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.shape import known


def rows_of(node: Node) -> Expr:
    """The data of FULLY_CONNECTED as rows, whose weights are (out, in)."""
    if node.option("WeightsFormat"):
        node.unsupported(f"{node.ins[1]} is shuffled")
    depth = known(node.shape(1)[1])
    if depth is None:
        node.unsupported(f"{node.ins[1]} must have known extents")
    return op.reshape(node.expr(0), (-1, depth))


def shaped(node: Node, made: Expr) -> Expr:
    """What is made of rows, with the axes of the data where the operator keeps them."""
    if not node.option("KeepNumDims"):
        return made
    return op.reshape(made, (*node.shape(0)[:-1], node.shape(1)[0]))


def biased(node: Node, made: Expr, index: int = 2) -> Expr:
    """Floats with the bias, if there is one, and the fused activation."""
    return node.activated(made if node.optional(index) is None else op.add(made, node.expr(index)))
