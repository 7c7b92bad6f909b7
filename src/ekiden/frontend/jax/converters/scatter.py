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
from ekiden.frontend.common.converters.stablehlo import scatter_window_positions
from ekiden.frontend.common.dynamic_slices import dynamic_slice_axis, emit_dynamic_update_slice
from ekiden.frontend.common.gather_scatter import WindowPositions, max_window_start
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.value import Value
from ekiden.frontend.common.xla_scatter import SCATTER_MODES, xla_scatter
from ekiden.frontend.jax.converters.reduction_bodies import (
    apply_body,
    block_operations,
    match_reducer,
)
from ekiden.frontend.jax.node import (
    ImportedValues,
    StablehloNode,
    StablehloRow,
    custom_complex_rule,
    flatten_parts,
    reassemble_complex,
)
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, known_int, product_of_dims, to_attr_dims


def _scatter(node: StablehloNode) -> ImportedValues:
    """Convert scatter (operands, indices, updates): by scatter_nd where its body is an operator,
    else window by window.
    """
    count, block = len(node.whole) // 2, node.region_block()
    numbers: Any = stablehlo.ScatterDimensionNumbers(node.attribute("scatter_dimension_numbers"))
    position = scatter_window_positions(
        node, count, numbers.index_vector_dim, numbers.update_window_dims,
        numbers.inserted_window_dims, numbers.scattered_dims_to_operand_dims,
        numbers.input_batching_dims, numbers.scatter_indices_batching_dims,
    )  # fmt: skip
    window_axes = list(numbers.update_window_dims)
    kind = _match_update(node, block, count)
    if kind in SCATTER_MODES:
        return [
            _scatter_by_operator(node, position, kind, window_axes, i, count) for i in range(count)
        ]
    return _scatter_by_body(node, position, block, window_axes, count)


def _match_update(node: StablehloNode, block: ir.Block, count: int) -> str:
    """Match the body's update of each operand; return a name of SCATTER_MODES, "" for any other
    body.
    """
    *body_operations, end = block_operations(block)
    updates = list(block.arguments)[count:]
    # The body returns its updates, as that of `x.at[i].set(y)`.
    if not body_operations and list(end.operands) == updates:
        return "second"
    # A reducer's body has two arguments, a body of several operands more.
    kind = match_reducer(node, block) if count == 1 else ""
    is_real = not isinstance(node.whole[0], ComplexValue)
    # A sum of complex numbers is taken part by part; products and extrema mix the parts.
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
        node.bind_shared(
            xla_scatter(node.with_inputs([operand, node.value(count), update]), at, kind, window)
        )
        for operand, update in pairs
    ]
    return ComplexValue(*scattered_parts) if len(scattered_parts) > 1 else scattered_parts[0]


MAX_UNROLLED_WINDOWS = 8
"""The most windows that are written one after the other, without a loop."""


def _scatter_by_body(
    node: StablehloNode, at: WindowPositions, block: ir.Block, window: Sequence[int], count: int
) -> ImportedValues:
    """Apply the updates window by window: read, combine by the body, write back."""
    scope, kinds = node.scope, node.operation.results
    starts = scope.bind_named(_start_indices(node, at))
    updates = [
        scope.bind_named(_update_rows(node, at, u, window))
        for u in flatten_parts(node.whole[count + 1 :])
    ]
    ends = scope.bind_named(
        op.stack([max_window_start(node, at, axis) for axis in range(len(at.shape))], axis=0)
    )

    def apply_update(index: Expr, operands: Sequence[Value]) -> list[Value]:
        """Return the operands after the update of one window."""
        begin = node.emit_once(op.take(scope.expr(starts), index, axis=0))
        low = op.maximum(begin, const(0, "int64"))
        moved = node.emit_once(op.minimum(low, scope.expr(ends)))
        # A start that clamping moves is out of bounds: StableHLO skips that update.
        fits = node.bind_shared(op.all(op.equal(begin, moved), axis=[0], keepdims=False))
        where = [
            node.bind_shared(op.take(moved, const(axis, "int64"), axis=0))
            for axis in range(len(at.shape))
        ]
        old = [node.bind_shared(_read_window(node, at, v, where)) for v in operands]
        rows = [node.bind_shared(op.take(scope.expr(u), index, axis=0)) for u in updates]
        combined_rows = flatten_parts(
            apply_body(node, block, reassemble_complex(kinds, old), reassemble_complex(kinds, rows))
        )
        new = [
            node.bind_shared(op.where(scope.expr(fits), scope.expr(b), scope.expr(a)))
            for a, b in zip(old, combined_rows, strict=True)
        ]
        pairs = zip(operands, new, strict=True)
        return [
            node.bind_shared(emit_dynamic_update_slice(node, scope.expr(v), n, where))
            for v, n in pairs
        ]

    operands = flatten_parts(node.whole[:count])
    total = product_of_dims(at.batch_shape)
    window_count = known_int(total)
    if window_count is not None and window_count <= MAX_UNROLLED_WINDOWS:
        for index in range(window_count):
            operands = apply_update(const(index, "int64"), operands)
        return reassemble_complex(kinds, operands)

    def loop_body(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        return Iteration(go, apply_update(scope.expr(index), carried))

    names = [f"scattered{i}" for i in range(len(operands))]
    last, _, _ = Loop(node, names, operands, scope.emit_dim(total), None, loop_body).build()
    return reassemble_complex(kinds, last)


def _read_window(
    node: StablehloNode, at: WindowPositions, value: Value, where: Sequence[Value]
) -> Expr:
    """Emit the window of a tensor that begins at the given start indices."""
    data = node.scope.expr(value)
    # Axes that the window covers completely need no slice.
    for axis in at.partial_axes:
        data = dynamic_slice_axis(data, node.scope.expr(where[axis]), at.window_extents[axis], axis)
    return data


def _start_indices(node: StablehloNode, at: WindowPositions) -> Expr:
    """Emit the start indices of all windows: [windows, axes]."""
    scope, rank = node.scope, len(at.batch_shape)
    batch, total = to_attr_dims(at.batch_shape), to_attr_dims((product_of_dims(at.batch_shape),))
    columns: list[Expr] = []
    for axis in range(len(at.shape)):
        start = at.starts.get(axis, at.full_axis_starts.get(axis))
        column: Expr
        if axis in at.batching_axes:
            along = at.batching_axes[axis]
            shape: list[Dim] = [1] * rank
            shape[along] = to_attr_dims((at.batch_shape[along],))[0]
            counted = op.arange(0, at.batch_shape[along], 1, dtype="int64")
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
    # The axes of a window go last, so that each row of the result is one window.
    order = [*(i for i in range(rank) if i not in window), *window]
    data = node.scope.expr(update)
    data = data if order == list(range(rank)) else op.transpose(data, order)
    shape = to_attr_dims((product_of_dims(at.batch_shape), *at.window_extents))
    return op.reshape(data, shape, allowzero=True)


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.scatter", _scatter, make_complex_rule=custom_complex_rule(_scatter)),
)
