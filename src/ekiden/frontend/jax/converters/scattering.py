"""Scatter: windows of a tensor replaced by, or combined with, updates at data-dependent start
indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.converters.stablehlo import scatter_positions
from ekiden.frontend.common.dynamic_slices import take_window, update_window
from ekiden.frontend.common.gather_scatter import WindowPositions, max_start
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.value import Value
from ekiden.frontend.common.xla_scatter import SCATTER_MODES, xla_scatter
from ekiden.frontend.jax.converters.bodies import apply_body, list_operations, match_reducer
from ekiden.frontend.jax.node import (
    Many,
    StablehloNode,
    StablehloRow,
    complex_rule,
    flatten_parts,
    whole,
)
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, as_attr, known_int, product_of_dims


def _scatter(node: StablehloNode) -> Many:
    """Convert scatter (operands, indices, updates): by scatter_nd where its body is an operator,
    else window by window.
    """
    count, block = len(node.whole) // 2, node.region()
    numbers: Any = stablehlo.ScatterDimensionNumbers(node.attribute("scatter_dimension_numbers"))
    at = scatter_positions(
        node, count, numbers.index_vector_dim, numbers.update_window_dims,
        numbers.inserted_window_dims, numbers.scattered_dims_to_operand_dims,
        numbers.input_batching_dims, numbers.scatter_indices_batching_dims,
    )  # fmt: skip
    window_axes = list(numbers.update_window_dims)
    kind = _match_update(node, block, count)
    if kind in SCATTER_MODES:
        return [_scatter_by_operator(node, at, kind, window_axes, i, count) for i in range(count)]
    return _scatter_by_body(node, at, block, window_axes, count)


def _match_update(node: StablehloNode, block: ir.Block, count: int) -> str:
    """Match the body's update of each operand; return a name of SCATTER_MODES, "" for any other
    body.
    """
    *body_operations, end = list_operations(block)
    updates = list(block.arguments)[count:]
    if not body_operations and list(end.operands) == updates:
        return "second"
    kind = match_reducer(node, block) if count == 1 else ""
    is_real = not isinstance(node.whole[0], ComplexValue)
    return kind if is_real or kind == "add" else ""


def _scatter_by_operator(
    node: StablehloNode,
    at: WindowPositions,
    kind: str,
    window: Sequence[int],
    index: int,
    count: int,
) -> Value | ComplexValue:
    """Scatter the updates of one operand by scatter_nd, a complex one part by part."""
    pairs = zip(
        flatten_parts([node.whole[index]]),
        flatten_parts([node.whole[count + 1 + index]]),
        strict=True,
    )
    scattered_parts = [
        node.given(
            xla_scatter(node.with_inputs([operand, node.value(count), update]), at, kind, window)
        )
        for operand, update in pairs
    ]
    return ComplexValue(*scattered_parts) if len(scattered_parts) > 1 else scattered_parts[0]


MAX_UNROLLED_WINDOWS = 8
"""The most windows that are written one after the other, without a loop."""


def _scatter_by_body(
    node: StablehloNode, at: WindowPositions, block: ir.Block, window: Sequence[int], count: int
) -> Many:
    """Apply the updates window by window: read, combine by the body, write back."""
    scope, kinds = node.scope, node.operation.results
    starts = scope.bound(_start_indices(node, at))
    updates = [
        scope.bound(_update_rows(node, at, u, window))
        for u in flatten_parts(node.whole[count + 1 :])
    ]
    ends = scope.bound(
        op.stack([max_start(node, at, axis) for axis in range(len(at.shape))], axis=0)
    )

    def apply_update(index: Expr, operands: Sequence[Value]) -> list[Value]:
        """Return the operands after the update of one window."""
        begin = node.emit_once(op.take(scope.expr(starts), index, axis=0))
        low = op.maximum(begin, const(0, "int64"))
        moved = node.emit_once(op.minimum(low, scope.expr(ends)))
        # A start that clamping moves is out of bounds: StableHLO skips that update.
        fits = node.given(op.all(op.equal(begin, moved), axis=[0], keepdims=False))
        where = [
            node.given(op.take(moved, const(axis, "int64"), axis=0))
            for axis in range(len(at.shape))
        ]
        old = [node.given(_read_window(node, at, v, where)) for v in operands]
        rows = [node.given(op.take(scope.expr(u), index, axis=0)) for u in updates]
        combined_rows = flatten_parts(
            apply_body(node, block, whole(kinds, old), whole(kinds, rows))
        )
        new = [
            node.given(op.where(scope.expr(fits), scope.expr(b), scope.expr(a)))
            for a, b in zip(old, combined_rows, strict=True)
        ]
        pairs = zip(operands, new, strict=True)
        return [node.given(update_window(node, scope.expr(v), n, where)) for v, n in pairs]

    operands = flatten_parts(node.whole[:count])
    total = product_of_dims(at.batch)
    window_count = known_int(total)
    if window_count is not None and window_count <= MAX_UNROLLED_WINDOWS:
        for index in range(window_count):
            operands = apply_update(const(index, "int64"), operands)
        return whole(kinds, operands)

    def loop_body(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        return Iteration(go, apply_update(scope.expr(index), carried))

    names = [f"scattered{i}" for i in range(len(operands))]
    last, _, _ = Loop(node, names, operands, scope.scalar(total), None, loop_body).build()
    return whole(kinds, last)


def _read_window(
    node: StablehloNode, at: WindowPositions, value: Value, where: Sequence[Value]
) -> Expr:
    """Emit the window of a tensor that begins at the given start indices."""
    data = node.scope.expr(value)
    for axis in at.partial_axes:
        data = take_window(data, node.scope.expr(where[axis]), at.sizes[axis], axis)
    return data


def _start_indices(node: StablehloNode, at: WindowPositions) -> Expr:
    """Emit the start indices of all windows: [windows, axes]."""
    scope, rank = node.scope, len(at.batch)
    batch, total = as_attr(at.batch), as_attr((product_of_dims(at.batch),))
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


def _update_rows(
    node: StablehloNode, at: WindowPositions, update: Value, window: Sequence[int]
) -> Expr:
    """Emit the updates by window: [windows, extents of a window in all axes...]."""
    rank = len(update.type.shape)
    order = [*(i for i in range(rank) if i not in window), *window]
    data = node.scope.expr(update)
    data = data if order == list(range(rank)) else op.transpose(data, order)
    shape = as_attr((product_of_dims(at.batch), *at.sizes))
    return op.reshape(data, shape, allowzero=True)


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.scatter", _scatter, on_complex=complex_rule(_scatter)),
)
