"""`flex_attention`: attention whose scores and mask are user functions of the position.

PyTorch has those functions as graphs of scalars: (score, batch, head, query, key) -> score, and
(batch, head, query, key) -> whether the key is visible. Here they run on all positions at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.converters.linear import batched
from ekiden.frontend.torch.node import Node, Row
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, as_attr, equal, known, tidy

if TYPE_CHECKING:
    from ekiden.frontend.torch.graph import Graph

RANK = 4
LOWEST = float("-inf")


def _flex_attention(
    node: Node, query: Value, key: Value, value: Value, change: torch.fx.GraphModule,
    blocks: Sequence[object], scale: float, options: object, of_change: Sequence[object] = (),
    of_mask: Sequence[object] = (),
) -> list[Expr | Value | None]:  # fmt: skip
    """Convert flex_attention: (batch, heads, queries, columns); 0 for a query without a visible
    key.

    The results that only gradients need are not computed.
    """
    batch, heads, queries, _ = query.type.shape
    keys = key.type.shape[2]
    dtype = query.type.dtype
    first, second = (_of_all_heads(node, operand, heads) for operand in (key, value))
    positions = _places(node, (batch, heads, queries, keys))
    lhs, rhs = (_value(node, e) for e in (node.of(query, "float32"), op.cast(first, "float32")))
    products = batched(node, lhs, rhs, transpose_b=True)
    scaled = op.multiply(products, const(scale, "float32"))
    changed = _everywhere(node, change, [_value(node, scaled), *positions, *of_change])
    is_seen = _is_seen(node, blocks, positions, of_mask)
    hidden = const(LOWEST, "float32")
    scores = node.scope.spanned(op.where(is_seen, node.of(changed, "float32"), hidden))
    best = op.max(scores, axis=[-1], keepdims=True)
    is_blind = node.scope.spanned(op.equal(best, hidden))
    # A row of -inf alone would be NaN in softmax: it is computed from zeros and then zeroed.
    softened = op.nn.softmax(op.where(is_blind, const(0.0), scores), axis=-1)
    weights = op.where(is_blind, const(0.0), softened)
    attended = batched(node, _value(node, op.cast(weights, dtype)), _value(node, second))
    return [attended, None, None]


def _value(node: Node, expr: Expr) -> Value:
    return node.value_of(node.scope.spanned(expr))


def _of_all_heads(node: Node, x: Value, heads: PrimExpr) -> Expr:
    """Return keys or values repeated for each query head of their group (grouped-query
    attention).
    """
    batch, groups, rows, columns = x.type.shape
    if equal(groups, heads):
        return node.of(x)
    group_size = tidy(heads // groups)
    wide = op.broadcast_to(
        op.expand_dims(node.of(x), axis=2), as_attr((batch, groups, group_size, rows, columns))
    )
    return op.reshape(wide, (batch, heads, rows, columns), allowzero=True)


def _places(node: Node, shape: Sequence[PrimExpr]) -> list[Value]:
    """Return batch, head, query and key index of each score, each shaped to broadcast."""
    indices = []
    for axis, extent in enumerate(shape):
        line = op.arange(0, extent, 1, dtype="int32")
        lies = [extent if at == axis else 1 for at in range(RANK)]
        indices.append(_value(node, op.reshape(line, as_attr(lies), allowzero=True)))
    return indices


def _everywhere(node: Node, module: torch.fx.GraphModule, inputs: Sequence[object]) -> Value:
    inner = cast("Graph", node.graph).inside(module)
    inner.is_of_many = True
    (result,) = inner.run(inputs)
    assert isinstance(result, Value)
    return result


def _is_seen(
    node: Node, blocks: Sequence[object], positions: Sequence[Value], of_mask: Sequence[object]
) -> Expr:
    """Return whether a key is visible: its block is listed as full, or as partial and the mask
    admits it.
    """
    *lists, rows, columns, mask = blocks
    counts, which, full_counts, full_which = lists[2:6]
    assert isinstance(mask, torch.fx.GraphModule)
    steps = [node.size(rows), node.size(columns)]
    admitted = node.of(_everywhere(node, mask, [*positions, *of_mask]), "bool")
    partial_visible = op.logical_and(_listed(node, counts, which, positions, steps), admitted)
    if full_counts is None:
        return partial_visible
    return op.logical_or(partial_visible, _listed(node, full_counts, full_which, positions, steps))


def _listed(
    node: Node, counts: object, which: object, positions: Sequence[Value], steps: Sequence[Dim]
) -> Expr:
    """Return whether the block of a query and a key is among the first `counts` entries of `which`.

    counts: (batch, heads, rows of blocks); which: (.., blocks of keys).
    """
    assert isinstance(counts, Value) and isinstance(which, Value)
    width = which.type.shape[-1]
    order = op.arange(0, width, 1, dtype="int32")
    is_told = op.less(order, op.expand_dims(node.of(counts, "int32"), axis=-1))
    own = op.expand_dims(node.of(which, "int32"), axis=-1)  # (.., places in the list, 1)
    hits = op.logical_and(op.equal(own, order), op.expand_dims(is_told, axis=-1))
    table = op.any(hits, axis=[RANK - 1], keepdims=False)  # (batch, heads, rows, blocks of keys)
    for axis, step in ((2, steps[0]), (3, steps[1])):
        if known(which.type.shape[axis]) == 1:
            continue
        line = op.reshape(node.of(positions[axis]), (-1,))
        at = op.floor_divide(line, op.cast(node.of(step, "int64"), "int32"))
        table = op.take(table, at, axis=axis, mode="clip")
    return table


# fmt: off
ROWS: tuple[Row, ...] = (("higher_order::flex_attention", _flex_attention),)
# fmt: on
