"""`flex_attention`: attention whose scores and mask are functions of places, written by the user.

PyTorch has those functions as graphs of single numbers: (score, batch, head, query, key) -> score,
(batch, head, query, key) -> whether it is seen. Here they are run for all places at once.
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
from ekiden.topi.shape import Dim, as_attr, equal, known, tidy

if TYPE_CHECKING:
    from ekiden.frontend.torch.graph import Graph

RANK = 4
LOWEST = float("-inf")


def _flex_attention(
    node: Node, query: Value, key: Value, value: Value, change: torch.fx.GraphModule,
    blocks: Sequence[object], scale: float, options: object, of_change: Sequence[object] = (),
    of_mask: Sequence[object] = (),
) -> list[Expr | Value | None]:  # fmt: skip
    """(batch, heads, queries, columns); a query that sees no key gives 0. What gradients need
    beside it is not computed."""
    batch, heads, queries, _ = query.type.shape
    keys = key.type.shape[2]
    dtype = query.type.dtype
    first, second = (_of_all_heads(node, each, heads) for each in (key, value))
    places = _places(node, (batch, heads, queries, keys))
    left, right = (_value(node, e) for e in (node.of(query, "float32"), op.cast(first, "float32")))
    products = batched(node, left, right, transpose_b=True)
    scaled = op.multiply(products, const(scale, "float32"))
    changed = _everywhere(node, change, [_value(node, scaled), *places, *of_change])
    is_seen = _is_seen(node, blocks, places, of_mask)
    hidden = const(LOWEST, "float32")
    scores = node.scope.spanned(op.where(is_seen, node.of(changed, "float32"), hidden))
    best = op.max(scores, axis=[-1], keepdims=True)
    is_blind = node.scope.spanned(op.equal(best, hidden))
    softened = op.nn.softmax(op.where(is_blind, const(0.0), scores), axis=-1)
    weights = op.where(is_blind, const(0.0), softened)
    found = batched(node, _value(node, op.cast(weights, dtype)), _value(node, second))
    return [found, None, None]


def _value(node: Node, expr: Expr) -> Value:
    return node.value_of(node.scope.spanned(expr))


def _of_all_heads(node: Node, x: Value, heads: PrimExpr) -> Expr:
    """Keys or values, which several heads may have in common, for each head."""
    batch, groups, rows, columns = x.type.shape
    if equal(groups, heads):
        return node.of(x)
    many = tidy(heads // groups)
    wide = op.broadcast_to(
        op.expand_dims(node.of(x), axis=2), as_attr((batch, groups, many, rows, columns))
    )
    return op.reshape(wide, (batch, heads, rows, columns), allowzero=True)


def _places(node: Node, shape: Sequence[PrimExpr]) -> list[Value]:
    """Batch, head, query and key of each score, as far as they have to be told apart."""
    found = []
    for axis, extent in enumerate(shape):
        line = op.arange(0, extent, 1, dtype="int32")
        lies = [extent if at == axis else 1 for at in range(RANK)]
        found.append(_value(node, op.reshape(line, as_attr(lies), allowzero=True)))
    return found


def _everywhere(node: Node, module: torch.fx.GraphModule, inputs: Sequence[object]) -> Value:
    inner = cast("Graph", node.graph).inside(module)
    inner.is_of_many = True
    (found,) = inner.run(inputs)
    assert isinstance(found, Value)
    return found


def _is_seen(
    node: Node, blocks: Sequence[object], places: Sequence[Value], of_mask: Sequence[object]
) -> Expr:
    """Where blocks are listed as whole ones, or listed otherwise and the mask says so."""
    *lists, rows, columns, mask = blocks
    counts, which, full_counts, full_which = lists[2:6]
    assert isinstance(mask, torch.fx.GraphModule)
    steps = [node.size(rows), node.size(columns)]
    told = node.of(_everywhere(node, mask, [*places, *of_mask]), "bool")
    seen = op.logical_and(_listed(node, counts, which, places, steps), told)
    if full_counts is None:
        return seen
    return op.logical_or(seen, _listed(node, full_counts, full_which, places, steps))


def _listed(
    node: Node, counts: object, which: object, places: Sequence[Value], steps: Sequence[Dim]
) -> Expr:
    """Whether the block of a query and a key is among the `counts` (batch, heads, rows of blocks)
    first of `which` (.., blocks of keys)."""
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
        line = op.reshape(node.of(places[axis]), (-1,))
        at = op.floor_divide(line, op.cast(node.of(step, "int64"), "int32"))
        table = op.take(table, at, axis=axis, mode="clip")
    return table


# fmt: off
ROWS: tuple[Row, ...] = (("higher_order::flex_attention", _flex_attention),)
# fmt: on
