"""XLA scatter: windows at data-dependent positions replaced by, or combined with, updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from ekiden.frontend.common.gather_scatter import (
    WindowPositions,
    clamp_positions,
    emit_index_tensor,
    max_window_start,
    result_permutation,
)
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.reducers import reduction_identity
from ekiden.frontend.common.value import Value
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_dim, known_int, simplify_dim, to_attr_dims

SCATTER_MODES: Mapping[str, str] = {
    "second": "update", "add": "add", "multiply": "mul", "maximum": "max", "minimum": "min",
    "or": "max", "and": "min",
}  # fmt: skip
"""What gives the new element of the old one and an update -> what scatter_nd does with them."""


def xla_scatter(node: Node, at: WindowPositions, kind: str, window: Sequence[int]) -> Expr:
    """Emit an XLA scatter: transpose the indexed axes to the front, scatter_nd, transpose back."""
    moving, covered_axes = at.partial_axes, at.full_axes
    order = [*moving, *covered_axes]
    data = node.expr(0)
    updates = op.transpose(
        node.expr(2), [int(i) for i in np.argsort(result_permutation(at, window))]
    )
    lost = [i for i in covered_axes if i in at.collapsed_axes]
    if lost:  # their extent is 1, and updates have them not
        lead = len(at.batch_shape) + len(at.partial_result_axes)
        for axis in lost:
            updates = op.expand_dims(updates, axis=lead + covered_axes.index(axis))
    if not moving:
        data, order = op.expand_dims(data, axis=0), [0, *(i + 1 for i in order)]
    ordered = data if order == list(range(len(order))) else op.transpose(data, order)
    valid = _in_bounds_mask(node, at)
    safe = clamp_positions(node, at)
    indices = emit_index_tensor(node, safe) if moving else _leading_zero_indices(at)
    is_bool = node.dtype(0) == "bool"
    # scatter_nd has no bool kernels: or is max and and is min on 0 and 1.
    if is_bool:
        ordered, updates = op.cast(ordered, "uint8"), op.cast(updates, "uint8")
    result = _scatter_in_bounds(node, at, ordered, indices, updates, kind, valid)
    if is_bool:
        result = op.cast(result, "bool")
    back = [int(i) for i in np.argsort(order)]
    result = result if back == list(range(len(back))) else op.transpose(result, back)
    return result if moving else op.squeeze(result, axis=[0])


def _leading_zero_indices(at: WindowPositions) -> Expr:
    """Emit zero indices into an axis of extent 1 that was added for scatter_nd."""
    return op.full(const(0, "int64"), to_attr_dims((1, *at.batch_shape)), dtype="int64")


def _in_bounds_mask(node: Node, at: WindowPositions) -> Expr | None:
    """Emit the mask of windows that lie in bounds; None where all are known to."""
    # XLA's scatter drops windows out of bounds, where its gather clamps them.
    tests: list[Expr] = []
    for axis, start in (*at.starts.items(), *at.full_axis_starts.items()):
        limit = known_int(simplify_dim(at.shape[axis] - as_dim(at.window_extents[axis])))
        starts = start.array
        if starts is not None and limit is not None and np.all((starts >= 0) & (starts <= limit)):
            continue
        position = node.scope.expr(start)
        tests.append(op.greater_equal(position, const(0, "int64")))
        tests.append(op.less_equal(position, max_window_start(node, at, axis)))
    return reduce(op.logical_and, tests) if tests else None


def _scatter_in_bounds(
    node: Node,
    at: WindowPositions,
    data: Expr,
    indices: Expr,
    updates: Expr,
    kind: str,
    valid: Expr | None,
) -> Expr:
    """Scatter the updates; windows out of bounds are dropped, as XLA requires."""
    mode = SCATTER_MODES[kind]
    if valid is None:
        return op.scatter_nd(data, indices, updates, mode)
    fits: Value = node.bind_shared(valid)
    window_rank = len(at.partial_result_axes) + len(at.full_axes)
    mask = op.reshape(
        node.scope.expr(fits), to_attr_dims((*at.batch_shape, *(1,) * window_rank)), allowzero=True
    )
    if mode != "update":
        dtype = node.scope.tensor_type_of(data).dtype
        # Combining with the identity leaves the element as it was.
        nothing = const(np.array(reduction_identity(kind, node.dtype(0))).astype(dtype))
        return op.scatter_nd(data, indices, op.where(mask, updates, nothing), mode)
    # They are written to a row that is added to the first axis, and cut off again.
    shape = node.scope.tensor_type_of(data).shape
    extent = simplify_dim(as_dim(shape[0]))
    row_mask = op.reshape(
        node.scope.expr(fits),
        to_attr_dims((1, *at.batch_shape, *(1,) * len(at.partial_result_axes))),
        allowzero=True,
    )
    beyond = op.where(row_mask, indices, node.scope.emit_dim(extent))
    widths = [(0, 1)] + [(0, 0)] * (len(shape) - 1)
    wide = op.nn.pad(data, widths, const(0, node.scope.tensor_type_of(data).dtype))
    if len(at.partial_axes) > 1:
        first = op.strided_slice(beyond, (0,), (1,), axes=(0,))
        other_axes = op.strided_slice(indices, (1,), (len(at.partial_axes),), axes=(0,))
        beyond = op.concatenate([first, other_axes], axis=0)
    scattered_data = op.scatter_nd(wide, beyond, updates, mode)
    return op.strided_slice(scattered_data, (0,), to_attr_dims((extent,)), axes=(0,))
