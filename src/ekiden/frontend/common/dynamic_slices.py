"""XLA dynamic slices, dynamic updates, and padding, interior padding included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.node import Node
from ekiden.frontend.common.value import Value, known_value, scalar_value
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, as_dim, simplify_dim, to_attr_dims
from ekiden.topi.dimensions import known_int as number_of

Dims = Sequence[Dim]


def dynamic_slice_axis(data: Expr, start: Expr, size: Dim, axis: int) -> Expr:
    """Emit the window of `size` elements along an axis from a run-time start."""
    if number_of(size) == 1:
        indices = op.reshape(start, (1,))
    else:
        indices = op.add(start, op.arange(0, size, 1, dtype="int64"))
    return op.take(data, indices, axis=axis)


def clamp_start(node: Node, value: Value, extent: Dim, size: Dim) -> Value:
    """Return the start of a window along an axis, clamped so that the window fits (XLA
    DynamicSlice).
    """
    limit = simplify_dim(as_dim(extent) - as_dim(size))
    zero = scalar_value(0, "int64")
    if value.array is not None and number_of(limit) is not None:
        return scalar_value(int(np.clip(int(value.array), 0, number_of(limit))), "int64")
    # A window of the whole axis starts at 0 whatever the index is, after clamping.
    if number_of(limit) == 0:
        return zero
    wide = op.cast(node.scope.expr(value), "int64")
    moved = op.minimum(op.maximum(wide, node.scope.expr(zero)), node.scope.emit_dim(limit))
    return node.bind_shared(moved)


def emit_dynamic_update_slice(
    node: Node, data: Expr, update: Value, starts: Sequence[Value]
) -> Expr:
    """Emit a tensor with a window replaced, at starts clamped by `clamp_start` (XLA
    DynamicUpdateSlice).
    """
    if not starts:
        return node.scope.expr(update)
    window = update.type.shape
    begin = node.scope.expr(
        node.bind_shared(op.stack([node.scope.expr(s) for s in starts], axis=0))
    )
    extents = node.scope.expr(known_value(np.array(window, object), "int64"))
    ones = const(np.ones(len(window), np.int64))
    return op.strided_set(data, node.scope.expr(update), begin, op.add(begin, extents), ones)


def xla_pad(
    node: Node, value: Value, fill: Expr, low: Dims, high: Dims, inner: Sequence[int]
) -> Expr:
    """Emit XLA Pad: low, high and interior padding; negative padding crops."""
    data, shape = node.scope.expr(value), [as_dim(d) for d in value.type.shape]
    if any(inner):
        data, shape = _pad_interior(data, shape, fill, inner)
    cuts = [(max(-(number_of(a) or 0), 0), max(-(number_of(b) or 0), 0))
            for a, b in zip(low, high, strict=True)]  # fmt: skip
    widths = [
        tuple(0 if (number_of(w) or 0) < 0 else w for w in pair)
        for pair in zip(low, high, strict=True)
    ]
    if any(number_of(w) != 0 for pair in widths for w in pair):
        data = op.nn.pad(data, [to_attr_dims(pair) for pair in widths], fill)
        shape = [
            simplify_dim(d + as_dim(a) + as_dim(b)) for d, (a, b) in zip(shape, widths, strict=True)
        ]
    if any(before or behind for before, behind in cuts):
        begin = [before for before, _ in cuts]
        end = to_attr_dims(
            simplify_dim(d - behind) for d, (_, behind) in zip(shape, cuts, strict=True)
        )
        data = op.strided_slice(data, begin, end)
    return data


def _pad_interior(
    data: Expr, shape: list[PrimExpr], fill: Expr, inner: Sequence[int]
) -> tuple[Expr, list[PrimExpr]]:
    """Apply interior padding: each element becomes a row of itself and `count` fills; the trailing
    fills are cut.
    """
    for axis, count in enumerate(inner):
        if not count:
            continue
        rank = len(shape)
        row = op.expand_dims(data, axis=axis + 1)
        widths = [(0, 0)] * (axis + 1) + [(0, count)] + [(0, 0)] * (rank - axis - 1)
        wide = simplify_dim(as_dim(shape[axis]) * (count + 1))
        joined = (*shape[:axis], wide, *shape[axis + 1 :])
        data = op.reshape(op.nn.pad(row, widths, fill), to_attr_dims(joined), allowzero=True)
        shape = [*shape[:axis], simplify_dim(wide - count), *shape[axis + 1 :]]
        data = op.strided_slice(data, (0,), to_attr_dims((shape[axis],)), axes=(axis,))
    return data, shape
