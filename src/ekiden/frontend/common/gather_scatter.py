"""XLA gather and scatter: windows of a tensor at data-dependent start indices.

Axes of the tensor are of three kinds: indexed ones, those of which a window has a part, and whole
ones. The first two are transposed to the front, where gather_nd reads them by indices of every
element; the whole ones follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.node import Node
from ekiden.frontend.common.value import Value, constant_value, known_value
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, are_equal_dims, as_dim, simplify_dim, to_attr_dims
from ekiden.topi.dimensions import known_int as number_of


@dataclass(frozen=True, slots=True)
class WindowPositions:
    """Start positions and extents of gather or scatter windows.

    batch_shape: the shape of the indices. starts: for an axis of the tensor its positions, of that
    shape.
    window_extents: the extents of a window. collapsed_axes: axes that have the extent 1 in a window
    and are not in the result; batching_axes: those of them that go along with an axis of the
    indices, by that axis.
    full_axis_starts: positions along axes that a window has all of. A gather clamps them to 0, a
    scatter drops a window that does not begin there.
    """

    shape: tuple[PrimExpr, ...]
    batch_shape: tuple[PrimExpr, ...]
    starts: dict[int, Value]
    window_extents: tuple[Dim, ...]
    collapsed_axes: tuple[int, ...]
    batching_axes: dict[int, int]
    full_axis_starts: dict[int, Value]

    @property
    def partial_axes(self) -> list[int]:
        """Return the axes that are indexed or only partly covered by a window."""
        return [
            i for i in range(len(self.shape))
            if i in self.starts or i in self.batching_axes
            or not are_equal_dims(as_dim(self.window_extents[i]), self.shape[i])
        ]  # fmt: skip

    @property
    def full_axes(self) -> list[int]:
        """Return the axes that a window covers entirely."""
        return [i for i in range(len(self.shape)) if i not in self.partial_axes]

    @property
    def partial_result_axes(self) -> list[int]:
        """Return the partly covered axes that the result has."""
        return [i for i in self.partial_axes if i not in self.collapsed_axes]


def decode_window_positions(
    node: Node, operand: int, indices: int, vector: int,
    sizes: Sequence[Dim], dropped: Sequence[int],
    batching: Sequence[int], index_batching: Sequence[int], start_map: Sequence[int],
) -> WindowPositions:  # fmt: skip
    """Decode the dimension numbers of an XLA gather or scatter into window positions."""
    shape, index_shape = node.shape(operand), node.shape(indices)
    batch = tuple(d for i, d in enumerate(index_shape) if i != vector)
    starts: dict[int, Value] = {}
    covering: dict[int, Value] = {}
    for number, axis in enumerate(start_map):
        is_whole = are_equal_dims(as_dim(sizes[axis]), shape[axis])
        # A window that covers its axis can only start at 0; scatter still drops it where the index
        # is another.
        positions = covering if is_whole else starts
        positions[axis] = _index_component(node, node.value(indices), vector, number)
    along = {a: i - (i > vector) for a, i in zip(batching, index_batching, strict=True)}
    return WindowPositions(
        shape, batch, starts, tuple(sizes), (*dropped, *batching), along, covering
    )


def _index_component(node: Node, indices: Value, vector: int, number: int) -> Value:
    """Return one component of every index vector, as int64."""
    rank = len(indices.type.shape)
    if indices.array is not None:
        wide = indices.array.astype(np.int64)
        return constant_value(wide if vector == rank else np.take(wide, number, axis=vector))
    data = node.scope.expr(indices)
    if vector < rank:
        if number_of(indices.type.shape[vector]) != 1:
            data = op.strided_slice(data, (number,), (number + 1,), axes=(vector,))
        data = op.squeeze(data, axis=[vector])
    return node.bind_shared(data if indices.type.dtype == "int64" else op.cast(data, "int64"))


def max_window_start(node: Node, at: WindowPositions, axis: int) -> Expr:
    """Emit the last start at which a window fits along an axis."""
    return node.scope.attach_span(
        node.scope.expr(
            known_value(
                np.array(simplify_dim(at.shape[axis] - as_dim(at.window_extents[axis])), object),
                "int64",
            )
        )
    )


def clamp_positions(node: Node, at: WindowPositions) -> WindowPositions:
    """Return the positions clamped so that every window fits, as XLA's gather requires."""
    moved = {}
    for axis, start in at.starts.items():
        limit = simplify_dim(at.shape[axis] - as_dim(at.window_extents[axis]))
        if start.array is not None and number_of(limit) is not None:
            moved[axis] = constant_value(np.clip(start.array, 0, number_of(limit)))
        else:
            low = op.maximum(node.scope.expr(start), const(0, "int64"))
            moved[axis] = node.bind_shared(op.minimum(low, max_window_start(node, at, axis)))
    return WindowPositions(
        at.shape, at.batch_shape, moved, at.window_extents, at.collapsed_axes, at.batching_axes, {}
    )


def emit_index_tensor(node: Node, at: WindowPositions) -> Expr:
    """Emit the index of every element: [partial axes, batch..., extents of kept axes...]."""
    kept_axes = at.partial_result_axes
    target = (*at.batch_shape, *(as_dim(at.window_extents[i]) for i in kept_axes))
    rows = [_axis_index(node, at, axis, kept_axes, target) for axis in at.partial_axes]
    return op.stack(rows, axis=0)


def _axis_index(
    node: Node, at: WindowPositions, axis: int, kept_axes: Sequence[int], target: Sequence[PrimExpr]
) -> Expr:
    """Emit the index of every element along one axis, broadcast to `target`."""
    count = len(at.batch_shape)
    index: Expr | None = None
    if axis in at.batching_axes:
        index = _iota_along(
            at.batch_shape[at.batching_axes[axis]], at.batching_axes[axis], len(target)
        )
    elif axis in at.starts:
        start = node.scope.expr(at.starts[axis])
        index = op.reshape(
            start, to_attr_dims((*at.batch_shape, *(1,) * len(kept_axes))), allowzero=True
        )
    if axis in kept_axes and number_of(as_dim(at.window_extents[axis])) != 1:
        along = _iota_along(
            as_dim(at.window_extents[axis]), count + list(kept_axes).index(axis), len(target)
        )
        index = along if index is None else op.add(index, along)
    if index is None:
        index = const(np.zeros((1,) * len(target), np.int64))
    return op.broadcast_to(index, to_attr_dims(target))


def _iota_along(extent: PrimExpr, axis: int, rank: int) -> Expr:
    """Emit 0, 1, ..., extent - 1 along one axis of a tensor of that rank, with extent 1
    elsewhere.
    """
    wide = [1] * rank
    numbers = op.arange(0, extent, 1, dtype="int64")
    shape: list[Dim] = [*wide[:axis], extent, *wide[axis + 1 :]]
    return op.reshape(numbers, to_attr_dims(shape), allowzero=True)


def result_permutation(at: WindowPositions, offsets: Sequence[int]) -> list[int]:
    """Return the permutation from [batch..., kept..., covered...] to the axis order of the
    dimension numbers.

    `offsets` are the result axes of the window, in its order (offset_dims).
    """
    window = [i for i in range(len(at.shape)) if i not in at.collapsed_axes]
    have = [("batch", i) for i in range(len(at.batch_shape))]
    have += [
        ("window", i)
        for i in (*at.partial_result_axes, *at.full_axes)
        if i not in at.collapsed_axes
    ]
    rank = len(at.batch_shape) + len(window)
    batch = iter(range(len(at.batch_shape)))
    target_axes = [
        ("window", window[list(offsets).index(i)]) if i in offsets else ("batch", next(batch))
        for i in range(rank)
    ]
    return [have.index(axis) for axis in target_axes]


def gather_windows(node: Node, at: WindowPositions, offsets: Sequence[int]) -> Expr:
    """Gather the windows at these positions."""
    data, moving, covered_axes = node.expr(0), at.partial_axes, at.full_axes
    dropped_whole = [i for i in covered_axes if i in at.collapsed_axes]
    if not moving:
        windows = data
        lead = len(at.batch_shape)
        if dropped_whole:
            windows = op.squeeze(windows, axis=dropped_whole)
        window_extents = [
            as_dim(at.window_extents[i]) for i in covered_axes if i not in dropped_whole
        ]
        windows = (
            op.broadcast_to(windows, to_attr_dims((*at.batch_shape, *window_extents)))
            if lead
            else windows
        )
    elif len(moving) == 1 and not at.partial_result_axes and moving[0] in at.starts:
        # Indexing one axis alone is take, which copies whole rows instead of single elements.
        (axis,) = moving  # rows of one axis
        index = node.scope.expr(at.starts[axis])
        ordered = data if axis == 0 else op.transpose(data, [axis, *covered_axes])
        windows = op.take(ordered, index, axis=0)
        windows = _squeeze_windows(windows, at, dropped_whole)
    else:
        order = [*moving, *covered_axes]
        ordered = data if order == list(range(len(order))) else op.transpose(data, order)
        windows = op.gather_nd(ordered, emit_index_tensor(node, at))
        windows = _squeeze_windows(windows, at, dropped_whole)
    order = result_permutation(at, offsets)
    return windows if order == list(range(len(order))) else op.transpose(windows, order)


def _squeeze_windows(windows: Expr, at: WindowPositions, dropped: Sequence[int]) -> Expr:
    """Drop collapsed axes that the window covers entirely."""
    if not dropped:
        return windows
    lead = len(at.batch_shape) + len(at.partial_result_axes)
    return op.squeeze(windows, axis=[lead + at.full_axes.index(i) for i in dropped])
