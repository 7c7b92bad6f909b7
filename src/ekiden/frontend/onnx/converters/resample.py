"""Resizing along any axes by the weights of a matrix for each: what images resized by a kernel of
their own (see movement) do not cover. Extents must be constant.

    y[i] = sum over taps t of k(t - p(i)) x[clamp(t)] / sum of k        p: where i lies in the data

is a matrix [result, data] for each axis, applied one after the other; k is the triangle or Keys's
cubic (1981), stretched by 1 / scale where antialias makes an image smaller. With exclude_outside
taps outside have weight 0, else they count at the border. Nearest is one tap, a take.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.onnx.node import Node
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, const
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.visitor import free_vars


def _number(value: float) -> Constant:
    return const(float(value), "float64")


def _places(node: Node, axis: int, size: int, extent: int, scale: float) -> Expr:
    """Where each result element of an axis lies in the data."""
    x = np.arange(extent, dtype=np.float64)
    match node.get_string("coordinate_transformation_mode", "half_pixel"):
        case "asymmetric":
            return const(x / scale)
        case "align_corners":
            wide = size * scale
            return const(x * (size - 1) / (wide - 1) if wide != 1 else 0 * x)
        case "pytorch_half_pixel":
            return const((x + 0.5) / scale - 0.5 if extent > 1 else 0 * x)
        case "tf_half_pixel_for_nn":
            return const((x + 0.5) / scale)
        case "tf_crop_and_resize":
            begin, end = _region(node, axis)
            if extent == 1:
                middle = op.multiply(op.add(begin, end), _number(0.5 * (size - 1)))
                return op.add(const(x), middle)
            inside = op.multiply(const(x * (size - 1) / (extent - 1)), op.subtract(end, begin))
            return op.add(op.multiply(begin, _number(size - 1)), inside)
        case "half_pixel_symmetric":
            offset = size / 2 * (1 - extent / (scale * size))
            return const(offset + (x + 0.5) / scale - 0.5)
    return const((x + 0.5) / scale - 0.5)


def _region(node: Node, axis: int) -> tuple[Expr, Expr]:
    """The part of an axis that is resized: all of it where none is stated."""
    axes = [node.axis(a, node.rank(0)) for a in node.get_ints("axes", tuple(range(node.rank(0))))]
    if axis not in axes:
        return _number(0), _number(1)
    values = op.reshape(op.cast(node.expr(1), "float64"), (2 * len(axes),))
    first, last = (const(axes.index(axis) + n, "int64") for n in (0, len(axes)))
    return op.take(values, first), op.take(values, last)


def _nearest(node: Node, places: Expr, size: int) -> Expr:
    match node.get_string("nearest_mode", "round_prefer_floor"):
        case "round_prefer_ceil":
            found = op.floor(op.add(places, _number(0.5)))
        case "floor":
            found = op.floor(places)
        case "ceil":
            found = op.ceil(places)
        case _:
            found = op.ceil(op.subtract(places, _number(0.5)))
    return op.cast(op.clip(found, 0, size - 1), "int64")


def _linear(distance: Expr) -> Expr:
    return op.nn.relu(op.subtract(_number(1), op.abs(distance)))


def _cubic(distance: Expr, a: float) -> Expr:
    """Keys's kernel."""
    x = op.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1.0
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    outer = op.where(op.less(x, _number(2)), far, op.zeros_like(x))
    return op.where(op.less_equal(x, _number(1)), near, outer)


def _weights(node: Node, places: Expr, extent: int, size: int, scale: float) -> Expr:
    """[result, data] weights: those outside go to the border, or are left out."""
    cubic = node.get_string("mode", "nearest") == "cubic"
    stretch = min(scale, 1.0) if node.get_int("antialias", 0) else 1.0
    reach = int(np.ceil((2 if cubic else 1) / stretch)) + 1
    column = op.reshape(places, (extent, 1))
    taps = op.floor(column) + const(np.arange(1 - reach, reach + 1, dtype=np.float64))
    distance = (taps - column) * stretch
    values = (
        _cubic(distance, node.get_float("cubic_coeff_a", -0.75)) if cubic else _linear(distance)
    )
    if node.get_int("exclude_outside", 0):
        values = op.where(_is_outside(taps, size), op.zeros_like(values), values)
    values = values / op.sum(values, axis=[1], keepdims=True)
    rows = const(np.broadcast_to(np.arange(extent)[:, None], (extent, 2 * reach)).copy())
    columns = op.cast(op.clip(taps, 0, size - 1), "int64")
    found = const(np.zeros((extent, size)))
    return op.scatter_nd(found, op.stack([rows, columns], axis=0), values, "add")


def _is_outside(places: Expr, size: int) -> Expr:
    return op.logical_or(op.less(places, _number(0)), op.greater(places, _number(size - 1)))


def resample(node: Node, extents: Sequence[int], scales: Sequence[float]) -> Expr:
    """The first input with these extents; `scales` are those that coordinates go by."""
    data, kind = node.expr(0), node.dtype(0)
    wide = kind if kind in ("float32", "float64") else "float32"
    nearest = node.get_string("mode", "nearest") == "nearest"
    found: Expr = data if nearest or wide == kind else op.cast(data, wide)
    cropped = (
        node.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    )
    outside: Expr | None = None
    for axis, (extent, scale) in enumerate(zip(extents, scales, strict=True)):
        size = int(node.typed(data).shape[axis].value)  # type: ignore[attr-defined]  # constant
        if extent == size and scale == 1 and not cropped:
            continue
        places = _places(node, axis, size, extent, scale)
        if cropped:
            shape = [1] * len(extents)
            shape[axis] = extent
            row = op.reshape(_is_outside(places, size), shape)
            outside = row if outside is None else op.logical_or(outside, row)
        if nearest:
            chosen = _now(node, _nearest(node, places, size))
            found = op.take(found, chosen, axis=axis)
        else:
            matrix = op.cast(_weights(node, places, extent, size, scale), wide)
            found = _applied(node, found, _now(node, matrix), axis, extent)
    if outside is not None:
        fill = node.get_float("extrapolation_value", 0.0)
        found = op.where(_now(node, outside), const(fill, node.typed(found).dtype), found)
    if node.typed(found).dtype == kind:
        return found
    return op.cast(found if is_float(kind) else op.round(found), kind)


def _now(node: Node, table: Expr) -> Expr:
    """A table of places or weights: its value, unless the region comes at run time."""
    if free_vars(table):
        return table
    return const(np.asarray(Interpreter().evaluate(table)))


def _applied(node: Node, data: Expr, matrix: Expr, axis: int, extent: int) -> Expr:
    """A matrix on one axis."""
    rank = len(node.typed(data).shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    back = list(np.argsort(order))
    moved = data if axis == rank - 1 else op.transpose(data, axes=order)
    product = op.nn.dense(moved, matrix, units=extent)
    return product if axis == rank - 1 else op.transpose(product, axes=[int(b) for b in back])
