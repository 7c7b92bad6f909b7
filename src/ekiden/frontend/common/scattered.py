"""XLA scatter: windows at data-dependent positions replaced by, or combined with, updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from ekiden.frontend.common.combined import neutral
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.places import Places, index_tensor, inside, limits, result_order
from ekiden.frontend.common.value import Value
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_attr, as_dim, known, tidy

MODES: Mapping[str, str] = {
    "second": "update", "add": "add", "multiply": "mul", "maximum": "max", "minimum": "min",
    "or": "max", "and": "min",
}  # fmt: skip
"""What gives the new element of the old one and an update -> what scatter_nd does with them."""


def scattered(node: Node, at: Places, kind: str, window: Sequence[int]) -> Expr:
    """Scatter updates into the tensor with its moving axes transposed to the front, and transpose
    back.
    """
    moving, covered_axes = at.moving, at.whole
    order = [*moving, *covered_axes]
    data = node.expr(0)
    updates = op.transpose(node.expr(2), [int(i) for i in np.argsort(result_order(at, window))])
    lost = [i for i in covered_axes if i in at.dropped]
    if lost:  # their extent is 1, and updates have them not
        lead = len(at.batch) + len(at.kept)
        for axis in lost:
            updates = op.expand_dims(updates, axis=lead + covered_axes.index(axis))
    if not moving:
        data, order = op.expand_dims(data, axis=0), [0, *(i + 1 for i in order)]
    ordered = data if order == list(range(len(order))) else op.transpose(data, order)
    valid = _valid(node, at)
    safe = inside(node, at)
    indices = index_tensor(node, safe) if moving else _nowhere(at)
    is_bool = node.dtype(0) == "bool"
    if is_bool:
        ordered, updates = op.cast(ordered, "uint8"), op.cast(updates, "uint8")
    result = _changed(node, at, ordered, indices, updates, kind, valid)
    if is_bool:
        result = op.cast(result, "bool")
    back = [int(i) for i in np.argsort(order)]
    result = result if back == list(range(len(back))) else op.transpose(result, back)
    return result if moving else op.squeeze(result, axis=[0])


def _nowhere(at: Places) -> Expr:
    """Return indices of the one element of an added axis."""
    return op.full(const(0, "int64"), as_attr((1, *at.batch)), dtype="int64")


def _valid(node: Node, at: Places) -> Expr | None:
    """Return whether each window fits; None where all are known to."""
    # XLA's scatter drops windows out of bounds, where its gather clamps them.
    tests: list[Expr] = []
    for axis, start in (*at.starts.items(), *at.covering.items()):
        limit = known(tidy(at.shape[axis] - as_dim(at.sizes[axis])))
        starts = start.array
        if starts is not None and limit is not None and np.all((starts >= 0) & (starts <= limit)):
            continue
        position = node.scope.expr(start)
        tests.append(op.greater_equal(position, const(0, "int64")))
        tests.append(op.less_equal(position, limits(node, at, axis)))
    return reduce(op.logical_and, tests) if tests else None


def _changed(
    node: Node,
    at: Places,
    data: Expr,
    indices: Expr,
    updates: Expr,
    kind: str,
    valid: Expr | None,
) -> Expr:
    """Scatter the updates; windows that do not fit change nothing."""
    mode = MODES[kind]
    if valid is None:
        return op.scatter_nd(data, indices, updates, mode)
    fits: Value = node.given(valid)
    window_rank = len(at.kept) + len(at.whole)
    mask = op.reshape(
        node.scope.expr(fits), as_attr((*at.batch, *(1,) * window_rank)), allowzero=True
    )
    if mode != "update":
        dtype = node.scope.typed(data).dtype
        nothing = const(np.array(neutral(kind, node.dtype(0))).astype(dtype))
        return op.scatter_nd(data, indices, op.where(mask, updates, nothing), mode)
    # They are written to a row that is added to the first axis, and cut off again.
    shape = node.scope.typed(data).shape
    extent = tidy(as_dim(shape[0]))
    row_mask = op.reshape(
        node.scope.expr(fits), as_attr((1, *at.batch, *(1,) * len(at.kept))), allowzero=True
    )
    beyond = op.where(row_mask, indices, node.scope.scalar(extent))
    widths = [(0, 1)] + [(0, 0)] * (len(shape) - 1)
    wide = op.nn.pad(data, widths, const(0, node.scope.typed(data).dtype))
    if len(at.moving) > 1:
        first = op.strided_slice(beyond, (0,), (1,), axes=(0,))
        other_axes = op.strided_slice(indices, (1,), (len(at.moving),), axes=(0,))
        beyond = op.concatenate([first, other_axes], axis=0)
    scattered_data = op.scatter_nd(wide, beyond, updates, mode)
    return op.strided_slice(scattered_data, (0,), as_attr((extent,)), axes=(0,))
