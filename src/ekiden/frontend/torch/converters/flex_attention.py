"""Converter of flex_attention, in which user functions of the position modify scores and mask.

PyTorch has those functions as graphs of scalars: (score, batch, head, query, key) -> score, and
(batch, head, query, key) -> whether the key is visible. Here they run on all positions at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.converters.linear import batched_product
from ekiden.frontend.torch.node import ConverterRow, FxNode
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, are_equal_dims, known_int, simplify_dim, to_attr_dims

if TYPE_CHECKING:
    from ekiden.frontend.torch.graph import FxImporter

SCORE_RANK = 4
MASKED_SCORE = float("-inf")


def _flex_attention(
    node: FxNode, query: Value, key: Value, value: Value, change: torch.fx.GraphModule,
    blocks: Sequence[object], scale: float, options: object, of_change: Sequence[object] = (),
    of_mask: Sequence[object] = (),
) -> list[Expr | Value | None]:  # fmt: skip
    """Convert flex_attention to [batch, heads, queries, columns]; 0 for a query without a visible
    key.

    The results that only gradients need are not computed.
    """
    batch, heads, queries, _ = query.type.shape
    keys = key.type.shape[2]
    dtype = query.type.dtype
    # Grouped-query attention: consecutive query heads share one key and value head.
    first, second = (_repeat_kv_heads(node, operand, heads) for operand in (key, value))
    positions = _score_positions(node, (batch, heads, queries, keys))
    # PyTorch computes scores in float32 whatever the dtype of query and key.
    lhs, rhs = (
        _as_value(node, e) for e in (node.to_expr(query, "float32"), op.cast(first, "float32"))
    )
    products = batched_product(node, lhs, rhs, transpose_b=True)
    scaled = op.multiply(products, const(scale, "float32"))
    changed = _run_vectorized(node, change, [_as_value(node, scaled), *positions, *of_change])
    is_seen = _visibility_mask(node, blocks, positions, of_mask)
    hidden = const(MASKED_SCORE, "float32")
    scores = node.scope.attach_span(op.where(is_seen, node.to_expr(changed, "float32"), hidden))
    best = op.max(scores, axis=[-1], keepdims=True)
    is_blind = node.scope.attach_span(op.equal(best, hidden))
    # A row of -inf alone would be NaN in softmax: it is computed from zeros and then zeroed.
    softened = op.nn.softmax(op.where(is_blind, const(0.0), scores), axis=-1)
    weights = op.where(is_blind, const(0.0), softened)
    attended = batched_product(
        node, _as_value(node, op.cast(weights, dtype)), _as_value(node, second)
    )
    return [attended, None, None]


def _as_value(node: FxNode, expr: Expr) -> Value:
    return node.as_value(node.scope.attach_span(expr))


def _repeat_kv_heads(node: FxNode, x: Value, heads: PrimExpr) -> Expr:
    """Repeat keys or values for each query head of their group (grouped-query attention)."""
    batch, groups, rows, columns = x.type.shape
    if are_equal_dims(groups, heads):
        return node.to_expr(x)
    group_size = simplify_dim(heads // groups)
    wide = op.broadcast_to(
        op.expand_dims(node.to_expr(x), axis=2),
        to_attr_dims((batch, groups, group_size, rows, columns)),
    )
    return op.reshape(wide, (batch, heads, rows, columns), allowzero=True)


def _score_positions(node: FxNode, shape: Sequence[PrimExpr]) -> list[Value]:
    """Return the batch, head, query and key index of each score, shaped to broadcast."""
    indices = []
    for axis, extent in enumerate(shape):
        line = op.arange(0, extent, 1, dtype="int32")
        lies = [extent if position == axis else 1 for position in range(SCORE_RANK)]
        indices.append(_as_value(node, op.reshape(line, to_attr_dims(lies), allowzero=True)))
    return indices


def _run_vectorized(node: FxNode, module: torch.fx.GraphModule, inputs: Sequence[object]) -> Value:
    inner = cast("FxImporter", node.graph).make_subgraph_importer(module)
    inner.is_vectorized = True
    (result,) = inner.import_graph(inputs)
    assert isinstance(result, Value)
    return result


def _visibility_mask(
    node: FxNode, blocks: Sequence[object], positions: Sequence[Value], of_mask: Sequence[object]
) -> Expr:
    """Emit which keys are visible: those of full blocks, and those of partial blocks that the mask
    admits.
    """
    *lists, rows, columns, mask = blocks
    counts, which, full_counts, full_which = lists[2:6]
    assert isinstance(mask, torch.fx.GraphModule)
    steps = [node.to_dim(rows), node.to_dim(columns)]
    admitted = node.to_expr(_run_vectorized(node, mask, [*positions, *of_mask]), "bool")
    partial_visible = op.logical_and(_block_mask(node, counts, which, positions, steps), admitted)
    if full_counts is None:
        return partial_visible
    return op.logical_or(
        partial_visible, _block_mask(node, full_counts, full_which, positions, steps)
    )


def _block_mask(
    node: FxNode, counts: object, which: object, positions: Sequence[Value], steps: Sequence[Dim]
) -> Expr:
    """Emit whether the block of a query and key is among the first `counts` entries of the block
    list.

    counts: (batch, heads, rows of blocks); which: (.., blocks of keys).
    """
    assert isinstance(counts, Value) and isinstance(which, Value)
    width = which.type.shape[-1]
    order = op.arange(0, width, 1, dtype="int32")
    is_told = op.less(order, op.expand_dims(node.to_expr(counts, "int32"), axis=-1))
    own = op.expand_dims(node.to_expr(which, "int32"), axis=-1)  # (.., places in the list, 1)
    hits = op.logical_and(op.equal(own, order), op.expand_dims(is_told, axis=-1))
    table = op.any(
        hits, axis=[SCORE_RANK - 1], keepdims=False
    )  # (batch, heads, rows, blocks of keys)
    for axis, step in ((2, steps[0]), (3, steps[1])):
        # One block spans the whole axis, so it broadcasts.
        if known_int(which.type.shape[axis]) == 1:
            continue
        line = op.reshape(node.to_expr(positions[axis]), (-1,))
        position = op.floor_divide(line, op.cast(node.to_expr(step, "int64"), "int32"))
        table = op.take(table, position, axis=axis, mode="clip")
    return table


# fmt: off
ROWS: tuple[ConverterRow, ...] = (("higher_order::flex_attention", _flex_attention),)
# fmt: on
