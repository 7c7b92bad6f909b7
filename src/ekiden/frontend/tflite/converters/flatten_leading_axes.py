"""Reshaping of data to matrix rows, shared by float, quantized and hybrid matrix products."""

from __future__ import annotations

from ekiden.frontend.tflite.node import TfliteNode
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import known_int


def flatten_rows(node: TfliteNode) -> Expr:
    """Reshape the data of FULLY_CONNECTED, whose weights are [out, in], to rows [n, in]."""
    if node.read_option("WeightsFormat"):
        node.reject(f"{node.ins[1]} is shuffled")
    depth = known_int(node.shape(1)[1])
    if depth is None:
        node.reject(f"{node.ins[1]} must have known extents")
    return op.reshape(node.expr(0), (-1, depth))


def restore_leading_axes(node: TfliteNode, products: Expr) -> Expr:
    """Restore the data's leading axes where the operator keeps them."""
    if not node.read_option("KeepNumDims"):
        return products
    return op.reshape(products, (*node.shape(0)[:-1], node.shape(1)[0]))


def add_bias_and_activate(node: TfliteNode, products: Expr, index: int = 2) -> Expr:
    """Add the bias if there is one, and apply the fused activation."""
    return node.apply_activation(
        products if node.optional_value(index) is None else op.add(products, node.expr(index))
    )
