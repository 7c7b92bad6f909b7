"""Matrix products of any ranks, and elements of batches, of expressions."""

from __future__ import annotations

from ekiden.frontend.common.node import Node
from ekiden.ir.prim import is_const
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.shape import Shape, broadcast_shape, equal, product


def multiplied(node: Node, a: Expr, b: Expr) -> Expr:
    """[..., r, k] times [..., k, c], both of rank 2 or more: the axes before broadcast.

    Raises Unsupported where they do not.
    """
    left, right = node.typed(a).shape, node.typed(b).shape
    node.scope.same(left[-1:], right[-2:-1])
    if len(right) == 2:
        return op.nn.matmul(a, b)
    return batched(node, a, b)


def batched(node: Node, a: Expr, b: Expr, transpose_b: bool = False) -> Expr:
    """[..., r, k] times [..., k, c], or [..., c, k] if it is transposed, both of rank 2 or more:
    the axes before broadcast, and become the one batch of nn.batch_matmul.

    Raises Unsupported where they do not.
    """
    left, right = node.typed(a).shape, node.typed(b).shape
    node.scope.broadcasts(left[:-2], right[:-2])
    batch = broadcast_shape(left[:-2], right[:-2])
    if batch is None:
        node.unsupported(f"batches {left[:-2]!r} and {right[:-2]!r} do not broadcast")
    sides = _flat(node, a, batch), _flat(node, b, batch)
    product_of_each = op.nn.batch_matmul(*sides, transpose_b=transpose_b)
    if len(batch) == 1:
        return product_of_each
    shape = (*batch, left[-2], right[-2 if transpose_b else -1])
    return op.reshape(product_of_each, shape, allowzero=True)


def _flat(node: Node, expr: Expr, batch: Shape) -> Expr:
    """[batch..., r, c] as [product, r, c]; a batch of 1 stays 1."""
    shape = node.typed(expr).shape
    if len(shape) == 3 and (len(batch) == 1 or is_const(shape[0], 1)):
        return expr
    if all(is_const(d, 1) for d in shape[:-2]):
        return op.reshape(expr, (1, *shape[-2:]), True)
    pairs = zip(shape, batch, strict=False)
    if len(shape) != len(batch) + 2 or not all(equal(d, e) for d, e in pairs):
        expr = op.broadcast_to(expr, (*batch, *shape[-2:]))
    return op.reshape(expr, (product(batch), *shape[-2:]), True)


def taken(node: Node, data: Expr, indices: Expr, axis: int, batch: int) -> Expr:
    """Elements of an axis at indices, whose first axes, `batch` of them, are those of the data."""
    if not batch:
        return op.take(data, indices, axis=axis)
    rank, width = len(node.typed(data).shape), len(node.typed(indices).shape)
    order = [*range(batch), axis, *range(batch, axis), *range(axis + 1, rank)]
    turned = data if axis == batch else op.transpose(data, order)
    found = op.gather_nd(turned, op.expand_dims(indices, 0), batch_dims=batch, index_rank=1)
    if axis == batch:
        return found
    lead = list(range(width, width + axis - batch))
    tail = range(width + axis - batch, width + rank - batch - 1)
    return op.transpose(found, [*range(batch), *lead, *range(batch, width), *tail])
