"""Windows of a tensor at positions that are data, as gather and scatter of XLA have them.

Axes of the tensor are of three kinds: those that an index stands for, those of which a part is
taken, and those that are whole. The first two are brought to the front, where gather_nd takes them
by indices of every element; the whole ones follow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.node import Node
from ekiden.frontend.common.value import Value, constant, known
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.shape import Dim, as_attr, as_dim, equal, tidy
from ekiden.topi.shape import known as number_of


@dataclass(frozen=True, slots=True)
class Places:
    """Where windows of a tensor begin.

    batch: the shape of the indices. starts: for an axis of the tensor its positions, of that shape.
    sizes: the extents of a window. dropped: axes that have the extent 1 in a window and are not in
    the result; batching: those of them that go along with an axis of the indices, by that axis.
    covering: positions along axes that a window has all of. A gather moves them to 0, a scatter
    drops a window that does not begin there.
    """

    shape: tuple[PrimExpr, ...]
    batch: tuple[PrimExpr, ...]
    starts: dict[int, Value]
    sizes: tuple[Dim, ...]
    dropped: tuple[int, ...]
    batching: dict[int, int]
    covering: dict[int, Value]

    @property
    def moving(self) -> list[int]:
        """The axes of which windows have a part."""
        return [
            i for i in range(len(self.shape))
            if i in self.starts or i in self.batching
            or not equal(as_dim(self.sizes[i]), self.shape[i])
        ]  # fmt: skip

    @property
    def whole(self) -> list[int]:
        """The axes that windows have all of."""
        return [i for i in range(len(self.shape)) if i not in self.moving]

    @property
    def kept(self) -> list[int]:
        """Of the axes of which windows have a part those that the result has."""
        return [i for i in self.moving if i not in self.dropped]


def places(
    node: Node, operand: int, indices: int, vector: int,
    sizes: Sequence[Dim], dropped: Sequence[int],
    batching: Sequence[int], index_batching: Sequence[int], start_map: Sequence[int],
) -> Places:  # fmt: skip
    """What the dimension numbers of a gather or scatter say."""
    shape, index_shape = node.shape(operand), node.shape(indices)
    batch = tuple(d for i, d in enumerate(index_shape) if i != vector)
    starts: dict[int, Value] = {}
    covering: dict[int, Value] = {}
    for number, axis in enumerate(start_map):
        is_whole = equal(as_dim(sizes[axis]), shape[axis])
        found = covering if is_whole else starts
        found[axis] = _component(node, node.value(indices), vector, number)
    along = {a: i - (i > vector) for a, i in zip(batching, index_batching, strict=True)}
    return Places(shape, batch, starts, tuple(sizes), (*dropped, *batching), along, covering)


def _component(node: Node, indices: Value, vector: int, number: int) -> Value:
    """One number of every position, as int64."""
    rank = len(indices.type.shape)
    if indices.array is not None:
        wide = indices.array.astype(np.int64)
        return constant(wide if vector == rank else np.take(wide, number, axis=vector))
    data = node.scope.expr(indices)
    if vector < rank:
        if number_of(indices.type.shape[vector]) != 1:
            data = op.strided_slice(data, (number,), (number + 1,), axes=(vector,))
        data = op.squeeze(data, axis=[vector])
    return node.given(data if indices.type.dtype == "int64" else op.cast(data, "int64"))


def limits(node: Node, at: Places, axis: int) -> Expr:
    """The last position at which a window fits."""
    return node.scope.spanned(
        node.scope.expr(
            known(np.array(tidy(at.shape[axis] - as_dim(at.sizes[axis])), object), "int64")
        )
    )


def inside(node: Node, at: Places) -> Places:
    """The same places, each moved so that its window fits."""
    moved = {}
    for axis, start in at.starts.items():
        limit = tidy(at.shape[axis] - as_dim(at.sizes[axis]))
        if start.array is not None and number_of(limit) is not None:
            moved[axis] = constant(np.clip(start.array, 0, number_of(limit)))
        else:
            low = op.maximum(node.scope.expr(start), const(0, "int64"))
            moved[axis] = node.given(op.minimum(low, limits(node, at, axis)))
    return Places(at.shape, at.batch, moved, at.sizes, at.dropped, at.batching, {})


def index_tensor(node: Node, at: Places) -> Expr:
    """[moving axes, batch..., extents of kept axes...]: the indices of every element."""
    kept = at.kept
    target = (*at.batch, *(as_dim(at.sizes[i]) for i in kept))
    rows = [_index(node, at, axis, kept, target) for axis in at.moving]
    return op.stack(rows, axis=0)


def _index(
    node: Node, at: Places, axis: int, kept: Sequence[int], target: Sequence[PrimExpr]
) -> Expr:
    """Where every element is along an axis."""
    count = len(at.batch)
    found: Expr | None = None
    if axis in at.batching:
        found = _counted(at.batch[at.batching[axis]], at.batching[axis], len(target))
    elif axis in at.starts:
        start = node.scope.expr(at.starts[axis])
        found = op.reshape(start, as_attr((*at.batch, *(1,) * len(kept))), allowzero=True)
    if axis in kept and number_of(as_dim(at.sizes[axis])) != 1:
        along = _counted(as_dim(at.sizes[axis]), count + list(kept).index(axis), len(target))
        found = along if found is None else op.add(found, along)
    if found is None:
        found = const(np.zeros((1,) * len(target), np.int64))
    return op.broadcast_to(found, as_attr(target))


def _counted(extent: PrimExpr, axis: int, rank: int) -> Expr:
    wide = [1] * rank
    numbers = op.arange(0, extent, 1, dtype="int64")
    shape: list[Dim] = [*wide[:axis], extent, *wide[axis + 1 :]]
    return op.reshape(numbers, as_attr(shape), allowzero=True)


def result_order(at: Places, offsets: Sequence[int]) -> list[int]:
    """Where the axes of a result [batch..., kept..., whole...] are in [batch..., kept..., whole...]
    as the dimension numbers have them: `offsets` are the axes of the window, in its order.
    """
    window = [i for i in range(len(at.shape)) if i not in at.dropped]
    have = [("batch", i) for i in range(len(at.batch))]
    have += [("window", i) for i in (*at.kept, *at.whole) if i not in at.dropped]
    rank = len(at.batch) + len(window)
    batch = iter(range(len(at.batch)))
    wanted = [
        ("window", window[list(offsets).index(i)]) if i in offsets else ("batch", next(batch))
        for i in range(rank)
    ]
    return [have.index(each) for each in wanted]


def taken(node: Node, at: Places, offsets: Sequence[int]) -> Expr:
    """The windows at these places."""
    data, moving, whole = node.expr(0), at.moving, at.whole
    dropped_whole = [i for i in whole if i in at.dropped]
    if not moving:
        found = data
        lead = len(at.batch)
        if dropped_whole:
            found = op.squeeze(found, axis=dropped_whole)
        rest = [as_dim(at.sizes[i]) for i in whole if i not in dropped_whole]
        found = op.broadcast_to(found, as_attr((*at.batch, *rest))) if lead else found
    elif len(moving) == 1 and not at.kept and moving[0] in at.starts:
        (axis,) = moving  # rows of one axis
        index = node.scope.expr(at.starts[axis])
        ordered = data if axis == 0 else op.transpose(data, [axis, *whole])
        found = op.take(ordered, index, axis=0)
        found = _without(found, at, dropped_whole)
    else:
        order = [*moving, *whole]
        ordered = data if order == list(range(len(order))) else op.transpose(data, order)
        found = op.gather_nd(ordered, index_tensor(node, at))
        found = _without(found, at, dropped_whole)
    order = result_order(at, offsets)
    return found if order == list(range(len(order))) else op.transpose(found, order)


def _without(found: Expr, at: Places, dropped: Sequence[int]) -> Expr:
    if not dropped:
        return found
    lead = len(at.batch) + len(at.kept)
    return op.squeeze(found, axis=[lead + at.whole.index(i) for i in dropped])
