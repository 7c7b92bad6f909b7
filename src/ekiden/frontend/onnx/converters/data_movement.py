"""ONNX data movement: Transpose, Concat, Split, Slice, Gather, Pad, OneHot, DepthToSpace, CumSum.

Each has up to three forms, by what is known at import. Bounds that are constants or expressions of
dimensions become attributes, and the result's shape stays symbolic. Run-time bounds make a dyn.
operator, whose extents get names where it is computed. Run-time axes are spread over all axes by a
scatter, as only the run knows which axis changes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import accumulate

import numpy as np

from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.runtime_axes import (
    is_runtime_input,
    normalize_runtime_axes,
    switch_on_axis,
)
from ekiden.frontend.onnx.node import Converter, OnnxNode, OnnxRow
from ekiden.ir import prim
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, Shape, are_unequal_dims, as_dim, known_int, simplify_dim

_OPEN_BOUND_FROM = 10**9
"""A slice bound from here on means "to the end": no axis is that long, and exporters write many
such numbers.
"""
_OPEN_BOUND = 2**62


def _transpose(node: OnnxNode) -> Expr:
    return op.transpose(
        node.expr(0), axes=node.get_ints("perm", tuple(reversed(range(node.rank(0)))))
    )


def _concat(node: OnnxNode) -> Expr | Value:
    if len(node.inputs) == 1:
        return node.value(0)
    axis = node.axis(node.get_int("axis", 1), node.rank(0))
    other_dims: list[PrimExpr] = []
    for index in range(1, len(node.inputs)):
        if node.rank(index) != node.rank(0):
            node.reject(f"ranks must agree, got {node.rank(0)} and {node.rank(index)}")
        other_dims += _remove_axis(node.shape(index), axis)
    node.scope.require_equal_dims(
        _remove_axis(node.shape(0), axis) * (len(node.inputs) - 1), other_dims
    )
    return op.concatenate(node.exprs(), axis=axis)


def _remove_axis(shape: Shape, axis: int) -> Shape:
    """Return a shape without an axis."""
    return shape[:axis] + shape[axis + 1 :]


def _split(node: OnnxNode) -> Expr | Value:
    """Convert Split: sizes from the attribute (to opset 12) or an input, or equal parts. That sizes
    add up to the axis is proved, or checked at run time.
    """
    axis = node.axis(node.get_int("axis", 0), node.rank(0))
    count = len(node.proto.output)
    if node.has("split"):
        extents: Sequence[Dim] = node.get_ints("split")
    elif node.optional_value(1) is not None:
        extents = node.dims(1, "split", count)
    elif count == 1 and not node.has("num_outputs"):
        return node.value(0)
    else:
        extents = _equal_split_sizes(node, node.shape(0)[axis])
    if len(extents) != count:
        node.reject(f"'split' must have a size for each of {count} outputs: {extents}")
    # ONNX requires the sizes to add up to the extent of the axis.
    total = reduce(operator.add, map(as_dim, extents))
    if are_unequal_dims(total, node.shape(0)[axis]) or any(
        (known_int(e) or 0) < 0 for e in extents
    ):
        node.reject(f"'split' must add up to {node.shape(0)[axis]}: {tuple(extents)}")
    node.scope.require_condition(prim.fold_binary(prim.EQ, total, node.shape(0)[axis]))
    if count == 1:
        return node.value(0)
    cuts = [simplify_dim(as_dim(c)) for c in accumulate(extents[:-1])]
    return op.split(node.expr(0), cuts, axis=axis)


def _equal_split_sizes(node: OnnxNode, extent: PrimExpr) -> list[Dim]:
    """Return the sizes of equal parts; with `num_outputs` (opset 18) the last may be smaller."""
    outputs = len(node.proto.output)
    count = node.get_int("num_outputs", outputs)
    if count != outputs:
        node.reject(f"attribute 'num_outputs' is {count}, and there are {outputs}")
    if not node.has("num_outputs"):
        node.scope.require_condition(prim.fold_binary(prim.EQ, extent % count, 0))
        return [simplify_dim(extent // count)] * count
    # Since opset 18 the chunks are ceil(extent / num_outputs) long.
    part_size = simplify_dim((extent + (count - 1)) // count)
    last = simplify_dim(extent - part_size * (count - 1))
    node.scope.require_condition(prim.fold_binary(prim.GE, last, 0))
    return [*[part_size] * (count - 1), last]


def _slice_by_attributes(node: OnnxNode) -> Expr | Value:
    starts, ends = node.get_ints("starts"), node.get_ints("ends")
    axes = node.get_ints("axes", tuple(range(len(starts))))
    return _strided_slice(node, starts, ends, axes, (1,) * len(starts))


def _slice(node: OnnxNode) -> Expr | Value:
    bounds = node.value(1).is_known and node.value(2).is_known
    if not bounds or any(is_runtime_input(node, i) for i in (3, 4)):
        return _slice_by_runtime_bounds(node)
    starts, ends = node.dims(1, "starts"), node.dims(2, "ends")
    axes = (
        node.constant_ints(3) if node.optional_value(3) is not None else tuple(range(len(starts)))
    )
    steps = (
        node.constant_ints(4, "steps") if node.optional_value(4) is not None else (1,) * len(starts)
    )
    return _strided_slice(node, starts, ends, axes, steps)


def _slice_by_axes(node: OnnxNode, axes: Expr) -> Expr:
    """Emit a slice along run-time axes, with open bounds on the others."""
    rank = node.rank(0)

    def bounds_of_all_axes(index: int, fill: int) -> Expr:
        """Emit the bound of every axis: input `index` at its axes, `fill` elsewhere."""
        bounds = const(np.full(rank, fill, np.int64))
        if node.optional_value(index) is None:
            return bounds
        return op.scatter_elements(bounds, axes, op.cast(node.expr(index), "int64"))

    # Axes that are not sliced get the bounds 0 and "to the end" with step 1.
    first, last, steps = (
        bounds_of_all_axes(1, 0),
        bounds_of_all_axes(2, _OPEN_BOUND),
        bounds_of_all_axes(4, 1),
    )
    return op.strided_slice(node.expr(0), first, last, steps, axes=list(range(rank)))


def _slice_by_runtime_bounds(node: OnnxNode) -> Expr:
    """Convert Slice with run-time bounds."""
    if is_runtime_input(node, 3):
        return _slice_by_axes(node, normalize_runtime_axes(node, 3))
    first, last = _vector_input(node, 1), _vector_input(node, 2)
    count = known_int(node.tensor_type_of(first).shape[0])
    if count is None and node.optional_value(3) is None:  # the first axes, as many as the run says
        length = node.scope.emit_dim(node.tensor_type_of(first).shape[0])
        return _slice_by_axes(node, op.arange(const(np.int64(0)), length, dtype="int64"))
    if count is None:
        first, last = (op.reshape(v, (len(node.constant_ints(3)),)) for v in (first, last))
    axes = node.constant_ints(3) if node.optional_value(3) is not None else tuple(range(count or 0))
    axis_indices = [node.axis(a, node.rank(0)) for a in axes]
    if node.optional_value(4) is None:
        return op.strided_slice(
            node.expr(0),
            first,
            last,
            const(np.ones(len(axis_indices), np.int64)),
            axes=axis_indices,
        )
    steps = _vector_input(node, 4)
    if is_runtime_input(node, 4) or min(node.constant_ints(4, "steps"), default=1) < 0:
        first = _clamp_runtime_starts(
            node, op.cast(first, "int64"), op.cast(steps, "int64"), axis_indices
        )
    return op.strided_slice(node.expr(0), first, last, steps, axes=axis_indices)


def _clamp_runtime_starts(node: OnnxNode, starts: Expr, steps: Expr, axes: Sequence[int]) -> Expr:
    """Emit run-time starts of backward slices clamped to the axis."""
    extents = op.take(op.shape_of(node.expr(0), "int64"), const(np.array(axes)), axis=0)
    # With negative steps ONNX clamps a start before the axis to its first element; NumPy does not.
    moved = op.maximum(starts, op.negative(extents))
    return op.where(op.less(steps, const(np.int64(0))), moved, starts)


def _vector_input(node: OnnxNode, index: int) -> Expr:
    """Return an input as a vector: PyTorch's exporter writes a scalar for one of one element."""
    return node.expr(index) if node.rank(index) else op.reshape(node.expr(index), (1,))


def _strided_slice(
    node: OnnxNode,
    starts: Sequence[Dim],
    ends: Sequence[Dim],
    axes: Sequence[int],
    steps: Sequence[int],
) -> Expr | Value:
    """Emit a slice with static bounds; the input itself if everything is kept."""
    begins, stops = [_clamp_bound(s) for s in starts], [_clamp_bound(e) for e in ends]
    if (
        all(s == 1 for s in steps)
        and all(known_int(b) == 0 for b in begins)
        and all(known_int(e) == _OPEN_BOUND for e in stops)
    ):
        return node.value(0)
    # A slice that keeps everything was returned above: exporters write many.
    axis_indices = [node.axis(a, node.rank(0)) for a in axes]
    for i, axis in enumerate(axis_indices):
        if steps[i] < 0:
            begins[i] = _clamp_start(begins[i], node.shape(0)[axis])
    return op.strided_slice(node.expr(0), begins, stops, strides=steps, axes=axis_indices)


def _clamp_start(start: Dim, extent: PrimExpr) -> Dim:
    """Clamp the start of a backward slice to the first element, where NumPy returns nothing."""
    number = known_int(start)
    if number is None or number >= -1:
        return start
    return simplify_dim(prim.maximum(extent + number, 0))


def _clamp_bound(bound: Dim) -> Dim:
    """Return a bound, opened to the end where it is beyond any extent."""
    number = known_int(bound)
    if number is None or abs(number) < _OPEN_BOUND_FROM:
        return bound
    return _OPEN_BOUND if number > 0 else -_OPEN_BOUND


def _gather(node: OnnxNode) -> Expr:
    """Convert Gather. An index is in [-extent, extent - 1]; others are a run-time error with the
    node's name, as in the specification and ONNX Runtime.
    """
    axis = node.axis(node.get_int("axis", 0), node.rank(0))
    # ONNX allows negative indices; others out of range are an error at run time.
    return op.take(node.expr(0), node.expr(1), axis=axis, mode="raise")


def _cast_from_int64(scalar: Expr, dtype: str) -> Expr:
    """Cast an int64 scalar to another dtype."""
    return scalar if dtype == "int64" else op.cast(scalar, dtype)


def _gather_elements(node: OnnxNode) -> Expr:
    axis = node.axis(node.get_int("axis", 0), node.rank(0))
    return op.gather(node.expr(0), axis, node.expr(1))


def _pad_by_attributes(node: OnnxNode) -> Expr | Value:
    fill = const(node.get_float("value", 0.0), node.dtype(0))
    return _pad_axes(node, node.get_ints("pads"), tuple(range(node.rank(0))), fill)


def _pad(node: OnnxNode) -> Expr | Value:
    fill = const(0, node.dtype(0)) if node.optional_value(2) is None else node.expr(2)
    # Some exporters write the fill value as a vector of one element.
    if node.optional_value(2) is not None and node.rank(2):
        fill = op.reshape(fill, ())
    if is_runtime_input(node, 3):
        return _pad_runtime_axes(node, fill)
    axes = (
        node.constant_ints(3) if node.optional_value(3) is not None else tuple(range(node.rank(0)))
    )
    if not node.value(1).is_known:
        return _pad_by_runtime_widths(node, axes, fill)
    return _pad_axes(node, node.dims(1, "pads"), axes, fill)


def _pad_by_runtime_widths(node: OnnxNode, axes: Sequence[int], fill: Expr) -> Expr:
    """Emit padding by run-time widths, which may be negative."""
    rank = node.rank(0)
    zero, pads = const(np.zeros(2, np.int64)), op.cast(node.expr(1), "int64")
    # ONNX stores all begins, then all ends; Relay wants (begin, end) for each axis.
    pairs = op.transpose(op.reshape(pads, (2, len(axes))), axes=[1, 0])
    axis_indices = [node.axis(a, rank) for a in axes]
    rows = [
        op.take(pairs, const(axis_indices.index(axis), "int64"), axis=0)
        if axis in axis_indices
        else zero
        for axis in range(rank)
    ]
    widths = op.stack(rows, axis=0)
    return op.nn.pad(node.expr(0), widths, fill, pad_mode=node.get_string("mode", "constant"))


def _pad_runtime_axes(node: OnnxNode, fill: Expr) -> Expr:
    """Emit padding along run-time axes."""
    pairs = op.transpose(op.reshape(op.cast(node.expr(1), "int64"), (2, -1)), axes=[1, 0])
    axis_index = op.expand_dims(normalize_runtime_axes(node, 3), axis=0)
    widths = op.scatter_nd(const(np.zeros((node.rank(0), 2), np.int64)), axis_index, pairs)
    return op.nn.pad(node.expr(0), widths, fill, pad_mode=node.get_string("mode", "constant"))


def _pad_axes(node: OnnxNode, pads: Sequence[Dim], axes: Sequence[int], fill: Expr) -> Expr | Value:
    """Emit padding by static widths; the input itself if all are 0."""
    if all(known_int(p) == 0 for p in pads):
        return node.value(0)
    widths: list[tuple[Dim, Dim]] = [(0, 0)] * node.rank(0)
    for i, axis in enumerate(axes):
        widths[node.axis(axis, node.rank(0))] = (pads[i], pads[i + len(axes)])
    return op.nn.pad(node.expr(0), widths, fill, pad_mode=node.get_string("mode", "constant"))


def _one_hot(node: OnnxNode) -> Expr:
    """Convert OneHot: `values` are [off, on]; negative indices count from `depth`. Indices that are
    floats are truncated.
    """
    (depth,) = node.dims(1, "depth", 1)
    values = node.value(2)
    pair = values.array
    if pair is not None:
        off, on = (const(v, values.type.dtype) for v in pair)
    else:
        off, on = (op.take(node.expr(2), const(i, "int64"), axis=0) for i in (0, 1))  # type: ignore[assignment]
    indices = node.expr(0)
    if node.dtype(0) not in ("int32", "int64"):
        indices = op.cast(indices, "int64")
    wide = "int64" if node.dtype(0) not in ("int32", "int64") else node.dtype(0)
    shift: Expr = (
        const(depth, wide)
        if isinstance(depth, int)
        else _cast_from_int64(node.scope.emit_dim(depth), wide)
    )
    # ONNX OneHot: indices are in [-depth, depth - 1]; others give rows of the off value.
    wrapped = op.where(op.less(indices, const(0, wide)), op.add(indices, shift), indices)
    return op.one_hot(
        wrapped, on, off, depth, axis=node.get_int("axis", -1), dtype=values.type.dtype
    )


def _depth_to_space(node: OnnxNode) -> Expr:
    """Convert DepthToSpace: DCR orders channels as (row, column, channel), CRD as (channel, row,
    column).
    """
    n, c, h, w = node.shape(0)
    size = node.get_int("blocksize")
    if node.get_string("mode", "DCR") == "DCR":
        split: tuple[Dim, ...] = (n, size, size, simplify_dim(c // (size * size)), h, w)
        perm = (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (n, simplify_dim(c // (size * size)), size, size, h, w), (0, 1, 4, 2, 5, 3)
    moved = op.transpose(op.reshape(node.expr(0), split, allowzero=True), axes=perm)
    return op.reshape(
        moved,
        (n, simplify_dim(c // (size * size)), simplify_dim(h * size), simplify_dim(w * size)),
        allowzero=True,
    )


def _space_to_depth(node: OnnxNode) -> Expr:
    n, c, h, w = node.shape(0)
    size = node.get_int("blocksize")
    rows, columns = simplify_dim(h // size), simplify_dim(w // size)
    moved = op.reshape(node.expr(0), (n, c, rows, size, columns, size), allowzero=True)
    first = node.get_string("mode", "DCR") == "CRD"
    return op.reshape(
        op.transpose(moved, axes=(0, 1, 3, 5, 2, 4) if first else (0, 3, 5, 1, 2, 4)),
        (n, simplify_dim(c * (size * size)), rows, columns),
        allowzero=True,
    )


def _cumulative_converter(function: Callable[..., Expr]) -> Converter:
    """Return a converter of CumSum or CumProd."""

    def cumulate_axis(node: OnnxNode, axis: int) -> Expr:
        """Emit the cumulative result along a constant axis."""
        backwards, exclusive = bool(node.get_int("reverse", 0)), bool(node.get_int("exclusive", 0))
        data = op.reverse(node.expr(0), axis=axis) if backwards else node.expr(0)
        total = function(data, axis=axis, exclusive=exclusive)
        return op.reverse(total, axis=axis) if backwards else total

    def convert_cumulative(node: OnnxNode) -> Expr | Value:
        """Convert the node; a run-time axis becomes a switch over all axes."""
        if is_runtime_input(node, 1):
            return switch_on_axis(node, 1, node.rank(0), partial(cumulate_axis, node))
        return cumulate_axis(
            node, node.axis(int(node.constant_array(1, "axis").item()), node.rank(0))
        )

    return convert_cumulative


_PAD_MODES = {"mode": ("constant", "reflect", "edge", "wrap")}
# fmt: off
ROWS = (
    OnnxRow("Transpose",      _transpose, attributes="perm"),
    OnnxRow("Concat",         _concat, attributes="axis"),
    OnnxRow("Split",          _split, since_version=2, attributes="axis split num_outputs"),
    OnnxRow("Slice",          _slice_by_attributes, attributes="axes ends starts"),
    OnnxRow("Slice",          _slice, since_version=10),
    OnnxRow("Gather",         _gather, attributes="axis"),
    OnnxRow("GatherElements", _gather_elements, since_version=11, attributes="axis"),
    OnnxRow("Pad",    _pad_by_attributes, since_version=2, attributes="mode pads value",
        supported_values=_PAD_MODES),
    OnnxRow("Pad",            _pad, since_version=11, attributes="mode",
        supported_values=_PAD_MODES),
    OnnxRow("OneHot",         _one_hot, since_version=9, attributes="axis"),
    OnnxRow("DepthToSpace",   _depth_to_space, attributes="blocksize mode",
        supported_values={"mode": ("DCR", "CRD")}),
    OnnxRow("SpaceToDepth",   _space_to_depth, attributes="blocksize mode",
        supported_values={"mode": ("DCR", "CRD")}),
    OnnxRow("CumSum",   _cumulative_converter(op.cumsum), since_version=11,
        attributes="exclusive reverse"),
    OnnxRow("CumProd", _cumulative_converter(op.cumprod), since_version=26,
        attributes="exclusive reverse"),
)
# fmt: on
