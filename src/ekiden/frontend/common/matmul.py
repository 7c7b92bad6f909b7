"""Matrix products of any rank, and batched gather."""

from __future__ import annotations

from ekiden.frontend.common.node import Node
from ekiden.ir.prim import is_const
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import Shape, are_equal_dims, broadcast_shape, product_of_dims


def broadcast_matmul(node: Node, a: Expr, b: Expr) -> Expr:
    """Emit [..., r, k] times [..., k, c] with broadcast leading axes; both have rank 2 or more.

    Raises Unsupported where they do not broadcast.
    """
    a_shape, b_shape = node.tensor_type_of(a).shape, node.tensor_type_of(b).shape
    node.scope.require_equal_dims(a_shape[-1:], b_shape[-2:-1])
    # A two-dimensional weight multiplies all rows at once: one GEMM instead of a batch of small
    # ones.
    if len(b_shape) == 2:
        return op.nn.matmul(a, b)
    return batched_matmul(node, a, b)


def batched_matmul(node: Node, a: Expr, b: Expr, transpose_b: bool = False) -> Expr:
    """Emit [..., r, k] times [..., k, c], or [..., c, k] if `transpose_b`, by batch_matmul.

    The leading axes broadcast and become the one batch of nn.batch_matmul. Raises Unsupported where
    they do not broadcast.
    """
    a_shape, b_shape = node.tensor_type_of(a).shape, node.tensor_type_of(b).shape
    node.scope.require_broadcastable(a_shape[:-2], b_shape[:-2])
    batch = broadcast_shape(a_shape[:-2], b_shape[:-2])
    if batch is None:
        node.reject(f"batches {a_shape[:-2]!r} and {b_shape[:-2]!r} do not broadcast")
    sides = _collapse_batch(node, a, batch), _collapse_batch(node, b, batch)
    product_of_each = op.nn.batch_matmul(*sides, transpose_b=transpose_b)
    if len(batch) == 1:
        return product_of_each
    shape = (*batch, a_shape[-2], b_shape[-2 if transpose_b else -1])
    return op.reshape(product_of_each, shape, allowzero=True)


def _collapse_batch(node: Node, expr: Expr, batch: Shape) -> Expr:
    """Collapse the batch axes: [batch..., r, c] becomes [product, r, c]; a batch of 1 is not
    repeated.
    """
    shape = node.tensor_type_of(expr).shape
    if len(shape) == 3 and (len(batch) == 1 or is_const(shape[0], 1)):
        return expr
    # batch_matmul broadcasts a batch of 1 itself, without copying the matrix.
    if all(is_const(d, 1) for d in shape[:-2]):
        return op.reshape(expr, (1, *shape[-2:]), True)
    pairs = zip(shape, batch, strict=False)
    if len(shape) != len(batch) + 2 or not all(are_equal_dims(d, e) for d, e in pairs):
        expr = op.broadcast_to(expr, (*batch, *shape[-2:]))
    return op.reshape(expr, (product_of_dims(batch), *shape[-2:]), True)


def batched_take(node: Node, data: Expr, indices: Expr, axis: int, batch: int) -> Expr:
    """Emit a gather along an axis with `batch` leading axes shared by data and indices."""
    if not batch:
        return op.take(data, indices, axis=axis)
    rank, width = len(node.tensor_type_of(data).shape), len(node.tensor_type_of(indices).shape)
    order = [*range(batch), axis, *range(batch, axis), *range(axis + 1, rank)]
    ordered = data if axis == batch else op.transpose(data, order)
    gathered = op.gather_nd(ordered, op.expand_dims(indices, 0), batch_dims=batch, index_rank=1)
    if axis == batch:
        return gathered
    lead = list(range(width, width + axis - batch))
    tail = range(width + axis - batch, width + rank - batch - 1)
    return op.transpose(gathered, [*range(batch), *lead, *range(batch, width), *tail])
