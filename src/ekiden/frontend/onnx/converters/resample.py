"""Resizing along any axes by the weights of a matrix for each: what images resized by a kernel of
their own (see movement) do not cover. Extents must be constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.onnx.node import Node
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def _places(node: Node, axis: int, size: int, extent: int, scale: float) -> Array:
    """Where each result element of an axis lies in the data."""
    x = np.arange(extent, dtype=np.float64)
    match node.get_string("coordinate_transformation_mode", "half_pixel"):
        case "asymmetric":
            return x / scale
        case "align_corners":
            wide = size * scale
            return x * (size - 1) / (wide - 1) if wide != 1 else 0 * x
        case "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5 if extent > 1 else 0 * x
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
        case "tf_crop_and_resize":
            begin, end = _region(node, axis)
            if extent == 1:
                return x + 0.5 * (begin + end) * (size - 1)
            return begin * (size - 1) + x * (end - begin) * (size - 1) / (extent - 1)
        case "half_pixel_symmetric":
            offset = size / 2 * (1 - extent / (scale * size))
            return offset + (x + 0.5) / scale - 0.5
    return (x + 0.5) / scale - 0.5


def _region(node: Node, axis: int) -> tuple[float, float]:
    """The part of an axis that is resized: all of it where none is stated."""
    values = node.numbers(1, "roi").ravel()
    axes = [node.axis(a, node.rank(0)) for a in node.get_ints("axes", tuple(range(node.rank(0))))]
    if axis not in axes:
        return 0.0, 1.0
    at = axes.index(axis)
    return float(values[at]), float(values[at + len(axes)])


def _nearest(node: Node, places: Array, size: int) -> Array:
    match node.get_string("nearest_mode", "round_prefer_floor"):
        case "round_prefer_ceil":
            found = np.floor(places + 0.5)
        case "floor":
            found = np.floor(places)
        case "ceil":
            found = np.ceil(places)
        case _:
            found = np.ceil(places - 0.5)
    return np.asarray(np.clip(found, 0, size - 1), np.int64)


def _linear(distance: Array) -> Array:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _cubic(distance: Array, a: float) -> Array:
    """Keys's kernel."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _weights(node: Node, places: Array, size: int, scale: float) -> Array:
    """[result, data] weights: those outside go to the border, or are left out."""
    cubic = node.get_string("mode", "nearest") == "cubic"
    stretch = min(scale, 1.0) if node.get_int("antialias", 0) else 1.0
    reach = int(np.ceil((2 if cubic else 1) / stretch)) + 1
    taps = np.floor(places)[:, None] + np.arange(1 - reach, reach + 1)
    distance = (taps - places[:, None]) * stretch
    values = (
        _cubic(distance, node.get_float("cubic_coeff_a", -0.75)) if cubic else _linear(distance)
    )
    if node.get_int("exclude_outside", 0):
        values = np.where((taps < 0) | (taps >= size), 0, values)
    values = values / values.sum(axis=1, keepdims=True)
    found = np.zeros((len(places), size))
    rows = np.broadcast_to(np.arange(len(places))[:, None], taps.shape)
    np.add.at(found, (rows, np.clip(taps, 0, size - 1).astype(np.int64)), values)
    return found


def resample(node: Node, extents: Sequence[int], scales: Sequence[float]) -> Expr:
    """The first input with these extents; `scales` are those that coordinates go by."""
    data, kind = node.expr(0), node.dtype(0)
    wide = kind if kind in ("float32", "float64") else "float32"
    nearest = node.get_string("mode", "nearest") == "nearest"
    found: Expr = data if nearest or wide == kind else op.cast(data, wide)
    cropped = (
        node.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    )
    outside: Array | None = None
    for axis, (extent, scale) in enumerate(zip(extents, scales, strict=True)):
        size = int(node.typed(data).shape[axis].value)  # type: ignore[attr-defined]  # constant
        if extent == size and scale == 1 and not cropped:
            continue
        places = _places(node, axis, size, extent, scale)
        if cropped:
            row = (places < 0) | (places > size - 1)
            shape = [1] * len(extents)
            shape[axis] = extent
            outside = row.reshape(shape) if outside is None else outside | row.reshape(shape)
        if nearest:
            found = op.take(found, const(_nearest(node, places, size)), axis=axis)
        else:
            found = _applied(node, found, _weights(node, places, size, scale), axis, wide)
    if outside is not None and outside.any():
        fill = node.get_float("extrapolation_value", 0.0)
        found = op.where(const(outside), const(fill, node.typed(found).dtype), found)
    if node.typed(found).dtype == kind:
        return found
    return op.cast(found if is_float(kind) else op.round(found), kind)


def _applied(node: Node, data: Expr, matrix: Array, axis: int, dtype: str) -> Expr:
    """A matrix on one axis."""
    rank = len(node.typed(data).shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    back = list(np.argsort(order))
    moved = data if axis == rank - 1 else op.transpose(data, axes=order)
    product = op.nn.dense(moved, const(matrix.astype(dtype)), units=len(matrix))
    return product if axis == rank - 1 else op.transpose(product, axes=[int(b) for b in back])
