"""Scatter: windows of a tensor replaced by, or combined with, updates at data-dependent
positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.converters.stablehlo import scatter_places
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.places import Places, limits
from ekiden.frontend.common.scattered import MODES, scattered
from ekiden.frontend.common.slices import placed, window_at
from ekiden.frontend.common.value import Value
from ekiden.frontend.jax.converters.bodies import combined, kind_of, operations
from ekiden.frontend.jax.node import Many, Node, Row, flat, own, whole
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, as_attr, known, product


def _scatter(node: Node) -> Many:
    """Convert scatter (operands, indices, updates): by an operator where the body is one, else
    window by window.
    """
    count, block = len(node.whole) // 2, node.region()
    numbers: Any = stablehlo.ScatterDimensionNumbers(node.attribute("scatter_dimension_numbers"))
    at = scatter_places(
        node, count, numbers.index_vector_dim, numbers.update_window_dims,
        numbers.inserted_window_dims, numbers.scattered_dims_to_operand_dims,
        numbers.input_batching_dims, numbers.scatter_indices_batching_dims,
    )  # fmt: skip
    window_axes = list(numbers.update_window_dims)
    kind = _kind(node, block, count)
    if kind in MODES:
        return [_by_operator(node, at, kind, window_axes, i, count) for i in range(count)]
    return _by_body(node, at, block, window_axes, count)


def _kind(node: Node, block: ir.Block, count: int) -> str:
    """Return what the body does with each operand, as MODES names it; "" for anything else."""
    *body_operations, end = operations(block)
    updates = list(block.arguments)[count:]
    if not body_operations and list(end.operands) == updates:
        return "second"
    kind = kind_of(node, block) if count == 1 else ""
    is_real = not isinstance(node.whole[0], Complex)
    return kind if is_real or kind == "add" else ""


def _by_operator(
    node: Node, at: Places, kind: str, window: Sequence[int], index: int, count: int
) -> Value | Complex:
    """Return an operand with its updates scattered, a complex one part by part."""
    pairs = zip(flat([node.whole[index]]), flat([node.whole[count + 1 + index]]), strict=True)
    scattered_parts = [
        node.given(
            scattered(node.with_inputs([operand, node.value(count), update]), at, kind, window)
        )
        for operand, update in pairs
    ]
    return Complex(*scattered_parts) if len(scattered_parts) > 1 else scattered_parts[0]


UNROLLED = 8
"""The most windows that are written one after the other, without a loop."""


def _by_body(node: Node, at: Places, block: ir.Block, window: Sequence[int], count: int) -> Many:
    """Apply the updates window by window: read, combine by the body, and write back; a window out
    of bounds is unchanged.
    """
    scope, kinds = node.scope, node.operation.results
    starts = scope.bound(_starts(node, at))
    updates = [scope.bound(_rows(node, at, u, window)) for u in flat(node.whole[count + 1 :])]
    ends = scope.bound(op.stack([limits(node, at, axis) for axis in range(len(at.shape))], axis=0))

    def step(index: Expr, operands: Sequence[Value]) -> list[Value]:
        """Return the operands after the update of one window."""
        begin = node.shared(op.take(scope.expr(starts), index, axis=0))
        low = op.maximum(begin, const(0, "int64"))
        moved = node.shared(op.minimum(low, scope.expr(ends)))
        fits = node.given(op.all(op.equal(begin, moved), axis=[0], keepdims=False))
        where = [
            node.given(op.take(moved, const(axis, "int64"), axis=0))
            for axis in range(len(at.shape))
        ]
        old = [node.given(_window(node, at, v, where)) for v in operands]
        rows = [node.given(op.take(scope.expr(u), index, axis=0)) for u in updates]
        combined_rows = flat(combined(node, block, whole(kinds, old), whole(kinds, rows)))
        new = [
            node.given(op.where(scope.expr(fits), scope.expr(b), scope.expr(a)))
            for a, b in zip(old, combined_rows, strict=True)
        ]
        pairs = zip(operands, new, strict=True)
        return [node.given(placed(node, scope.expr(v), n, where)) for v, n in pairs]

    operands = flat(node.whole[:count])
    total = product(at.batch)
    window_count = known(total)
    if window_count is not None and window_count <= UNROLLED:
        for index in range(window_count):
            operands = step(const(index, "int64"), operands)
        return whole(kinds, operands)

    def iteration(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        return Iteration(go, step(scope.expr(index), carried))

    names = [f"scattered{i}" for i in range(len(operands))]
    last, _, _ = Loop(node, names, operands, scope.scalar(total), None, iteration).build()
    return whole(kinds, last)


def _window(node: Node, at: Places, value: Value, where: Sequence[Value]) -> Expr:
    """Return the window of a tensor that begins at a position."""
    data = node.scope.expr(value)
    for axis in at.moving:
        data = window_at(data, node.scope.expr(where[axis]), at.sizes[axis], axis)
    return data


def _starts(node: Node, at: Places) -> Expr:
    """Return the start of each window: [windows, axes]."""
    scope, rank = node.scope, len(at.batch)
    batch, total = as_attr(at.batch), as_attr((product(at.batch),))
    columns: list[Expr] = []
    for axis in range(len(at.shape)):
        start = at.starts.get(axis, at.covering.get(axis))
        column: Expr
        if axis in at.batching:
            along = at.batching[axis]
            shape: list[Dim] = [1] * rank
            shape[along] = as_attr((at.batch[along],))[0]
            counted = op.arange(0, at.batch[along], 1, dtype="int64")
            column = op.broadcast_to(op.reshape(counted, shape, allowzero=True), batch)
        elif start is not None:
            column = scope.expr(start)
        else:
            column = op.full(const(np.int64(0)), batch, dtype="int64")
        columns.append(op.reshape(column, total, allowzero=True))
    return op.stack(columns, axis=1)


def _rows(node: Node, at: Places, update: Value, window: Sequence[int]) -> Expr:
    """Return updates by window: [windows, extents of a window in all axes...]."""
    rank = len(update.type.shape)
    order = [*(i for i in range(rank) if i not in window), *window]
    data = node.scope.expr(update)
    data = data if order == list(range(rank)) else op.transpose(data, order)
    shape = as_attr((product(at.batch), *at.sizes))
    return op.reshape(data, shape, allowzero=True)


ROWS: tuple[Row, ...] = (Row("stablehlo.scatter", _scatter, on_complex=own(_scatter)),)
