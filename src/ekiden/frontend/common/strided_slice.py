"""TensorFlow's StridedSlice: a Python subscript encoded as begin, end, strides and bit masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ekiden.frontend.common.node import Node
from ekiden.frontend.common.value import Value, known_value
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import Dim
from ekiden.topi.dimensions import known_int as number

MASK_NAMES = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


class Subscript:
    """Python subscript of a node's first input, decoded from begin, end, strides and masks."""

    def __init__(
        self,
        node: Node,
        begin: Sequence[Dim],
        end: Sequence[Dim],
        step: Sequence[int],
        masks: Mapping[str, int],
    ) -> None:
        """Decode the subscript; `masks` has the `MASKS`, each with a bit for each number."""
        self.node = node
        self.items: list[slice | int | None] = []
        """A slice may begin or end at an expression of dimensions."""
        stated_axes = sum(not masks["new_axis"] >> i & 1 for i in range(len(begin)))
        has_rest = bool(masks["ellipsis"] & ((1 << len(begin)) - 1))
        for i, (b, e, s) in enumerate(zip(begin, end, step, strict=True)):
            if masks["ellipsis"] >> i & 1:
                self.items += [slice(None)] * (node.rank(0) - stated_axes + 1)
            elif masks["new_axis"] >> i & 1:
                self.items.append(None)
            elif masks["shrink_axis"] >> i & 1:
                if isinstance(b, PrimExpr):
                    node.reject(f"the index {b!r} must be constant")
                self.items.append(b)
            else:
                first = None if masks["begin"] >> i & 1 else b
                self.items.append(slice(first, None if masks["end"] >> i & 1 else e, s))
        if not has_rest:
            self.items += [slice(None)] * (node.rank(0) - stated_axes)

    def slice_known(self, value: Value) -> Value | None:
        """Slice elements known at import; return None where a bound is symbolic."""
        bounds = [i for i in self.items if isinstance(i, slice)]
        if any(isinstance(b, PrimExpr) for i in bounds for b in (i.start, i.stop)):
            return None
        return known_value(np.asarray(value.known_elements[tuple(self.items)]), value.type.dtype)

    def lower(self) -> Expr:
        """Lower the subscript: strided_slice, then squeeze of indexed axes, then expand_dims of new
        ones.
        """
        node, begin, end, steps = self.node, [], [], []
        axis_items = [i for i in self.items if i is not None]
        for axis, item in enumerate(axis_items):
            first, last, step = self._axis_slice_bounds(axis, item)
            begin.append(first)
            end.append(last)
            steps.append(step)
        sliced: Expr = op.strided_slice(node.expr(0), begin, end, steps)
        gone = [axis for axis, item in enumerate(axis_items) if isinstance(item, int)]
        sliced = op.squeeze(sliced, axis=gone) if gone else sliced
        result_items = [item for item in self.items if not isinstance(item, int)]
        for position in (i for i, item in enumerate(result_items) if item is None):
            sliced = op.expand_dims(sliced, axis=position)
        return sliced

    def _axis_slice_bounds(self, axis: int, item: slice | int) -> tuple[Dim, Dim, int]:
        """Return (begin, end, stride) of one axis as strided_slice expects them."""
        dim = self.node.shape(0)[axis]
        extent = number(dim)
        if isinstance(item, int):
            # The end of index -1 would be 0, which means the begin of the axis.
            return item, dim if item == -1 else item + 1, 1
        step = item.step or 1
        is_open = isinstance(item.start, PrimExpr) or isinstance(item.stop, PrimExpr)
        if extent is not None and not is_open:
            first, last, _ = item.indices(extent)
            return first, last if step > 0 or last >= 0 else -extent - 1, step
        if step < 0:
            self.node.reject(f"axis {axis} of extent {dim!r} must be known to go backwards")
        return item.start or 0, dim if item.stop is None else item.stop, step
