"""Resizing along any axes by a weight matrix for each: what the image kernels do not cover (see
resize). What is known of extents and scales is computed at import.

    y[i] = sum over taps t of k(t - p(i)) x[clamp(t)] / sum of k        p: source coordinate of i

is a matrix [result, data] for each axis, applied one after the other; k is the triangle or the
cubic kernel (Keys 1981), stretched by 1 / scale where antialias is set and the image shrinks. With
exclude_outside taps outside have weight 0, otherwise they count at the border. Nearest is one tap,
a take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ekiden.frontend.common.sizes import dims
from ekiden.frontend.onnx.node import Node
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import EQ, GE, Or, PrimExpr, binary
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr, const
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.visitor import free_vars
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, as_dim, equal, known, tidy

SIMPLE = "simple"
"""The rounding of nearest before opset 11: down on an axis that grows, up on one that shrinks."""
Number: TypeAlias = Call | Constant
"""A scalar, or a tensor, that is being computed with."""

MAX_INTERPRETED_ROWS = 1 << 14
"""Of a table of weights that is computed while importing: the interpreter's loops are Python's."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis that is resized: its extents and the scale that coordinates use, as float64 scalars.
    What is known at import is a constant and is folded.
    """

    node: Node
    at: int
    size: PrimExpr
    extent: PrimExpr
    scale: Number
    mode: str
    rounding: str

    @property
    def sizes(self) -> tuple[Number, Number]:
        """Return the extents of the data and of the result, as float64 scalars."""
        return number_of(self.node, self.size), number_of(self.node, self.extent)

    def is_kept(self) -> bool:
        """Return whether the axis provably keeps its extent and its coordinates."""
        scale = self.scale
        one = isinstance(scale, Constant) and float(scale.data) == 1
        return one and equal(self.size, self.extent)


def _number(value: float) -> Constant:
    return const(float(value), "float64")


def number_of(node: Node, extent: PrimExpr) -> Number:
    """Return an extent as a float64 scalar."""
    number = known(extent)
    return op.cast(node.scope.scalar(extent), "float64") if number is None else _number(number)


def _places(axis: _Axis) -> Expr:
    """Return the source coordinate of each result element of an axis, by
    `coordinate_transformation_mode` (ONNX Resize).
    """
    one, half = _number(1), _number(0.5)
    x = op.cast(op.arange(0, axis.extent, 1, "int64"), "float64")
    size, extent = axis.sizes
    scale = axis.scale
    match axis.mode:
        case "asymmetric" if axis.rounding == SIMPLE:  # in float32, by which it may be whole
            narrow = op.divide(op.cast(x, "float32"), op.cast(scale, "float32"))
            return op.cast(narrow, "float64")
        case "asymmetric":
            return x / scale
        case "align_corners":
            wide = size * scale
            is_one = op.equal(wide, one)
            aligned = x * (size - one) / op.where(is_one, one, wide - one)
            return op.where(is_one, op.zeros_like(x), aligned)
        case "pytorch_half_pixel":
            return op.where(op.greater(extent, one), (x + half) / scale - half, op.zeros_like(x))
        case "tf_half_pixel_for_nn":
            return (x + half) / scale
        case "tf_crop_and_resize":
            begin, end = _region(axis.node, axis.at)
            last = size - one
            inside = x * last / op.maximum(extent - one, one) * (end - begin)
            middle = (begin + end) * (half * last)
            return op.where(op.equal(extent, one), x + middle, begin * last + inside)
        case "half_pixel_symmetric":
            offset = size * half * (one - extent / (scale * size))
            return offset + (x + half) / scale - half
    return (x + half) / scale - half


def _region(node: Node, axis: int) -> tuple[Number, Number]:
    """Return the part of an axis that is resized, as fractions (tf_crop_and_resize); all of it
    where none is stated.
    """
    axes = [node.axis(a, node.rank(0)) for a in node.get_ints("axes", tuple(range(node.rank(0))))]
    if axis not in axes:
        return _number(0), _number(1)
    values = op.reshape(op.cast(node.expr(1), "float64"), (2 * len(axes),))
    first, last = (const(axes.index(axis) + n, "int64") for n in (0, len(axes)))
    return op.take(values, first), op.take(values, last)


def _nearest(axis: _Axis, coordinates: Expr) -> Expr:
    match axis.rounding:
        case "simple":
            shrinks = op.less(axis.scale, _number(1))
            rounded: Expr = op.where(shrinks, op.ceil(coordinates), op.floor(coordinates))
        case "round_prefer_ceil":
            rounded = op.floor(op.add(coordinates, _number(0.5)))
        case "floor":
            rounded = op.floor(coordinates)
        case "ceil":
            rounded = op.ceil(coordinates)
        case _:
            rounded = op.ceil(op.subtract(coordinates, _number(0.5)))
    return _clipped(axis, rounded)


def _clipped(axis: _Axis, coordinates: Expr) -> Expr:
    """Return coordinates as int64 positions of the data, clamped to its borders."""
    last = axis.sizes[0] - _number(1)
    return op.cast(op.minimum(op.maximum(coordinates, _number(0)), last), "int64")


def _linear(distance: Expr) -> Expr:
    return op.nn.relu(op.subtract(_number(1), op.abs(distance)))


def _cubic(distance: Expr, a: float) -> Expr:
    """Return the weights of cubic convolution (Keys 1981)."""
    x = op.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1.0
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    outer = op.where(op.less(x, _number(2)), far, op.zeros_like(x))
    return op.where(op.less_equal(x, _number(1)), near, outer)


def _weights(axis: _Axis, coordinates: Expr) -> Expr:
    """Return the interpolation weights [result, data]: weights of taps outside go to the border, or
    are excluded.
    """
    node, one = axis.node, _number(1)
    cubic = node.get_string("mode", "nearest") == "cubic"
    shrinks = bool(node.get_int("antialias", 0))
    # ONNX Resize, antialias: when downsampling, the filter is stretched by max(1, 1 / scale).
    stretch = op.minimum(axis.scale, one) if shrinks else one
    wide = op.ceil(_number(2 if cubic else 1) / stretch) + one
    (reach,) = as_dims(node, op.reshape(op.cast(wide, "int64"), (1,)))
    column = op.reshape(coordinates, (axis.extent, 1), allowzero=True)
    steps = op.arange(1 - as_dim(reach), reach + 1, 1, "int64")
    taps = op.floor(column) + op.cast(steps, "float64")
    distance = (taps - column) * stretch
    values = (
        _cubic(distance, node.get_float("cubic_coeff_a", -0.75)) if cubic else _linear(distance)
    )
    if node.get_int("exclude_outside", 0):
        values = op.where(_is_outside(axis, taps), op.zeros_like(values), values)
    values = values / op.sum(values, axis=[1], keepdims=True)
    rows = op.expand_dims(op.arange(0, axis.extent, 1, "int64"), axis=1)
    rows = op.broadcast_to(rows, (axis.extent, tidy(as_dim(reach) * 2)))
    # Scatter-add, because several taps outside can fall on the same border element.
    zeros = op.full(_number(0), (axis.extent, axis.size), dtype="float64")
    at = op.stack([rows, _clipped(axis, taps)], axis=0)
    return op.scatter_nd(zeros, at, values, "add")


def as_dims(node: Node, numbers: Expr) -> tuple[Dim, ...]:
    """Return a vector of sizes as dimensions: numbers where they are known."""
    if not free_vars(numbers):
        return tuple(int(n) for n in np.asarray(Interpreter().evaluate(numbers)))
    dimensions = dims(node.scope, node.value_of(numbers))
    assert dimensions is not None, "a vector of known length"
    return dimensions


def _is_outside(axis: _Axis, coordinates: Expr) -> Expr:
    last = axis.sizes[0] - _number(1)
    return op.logical_or(op.less(coordinates, _number(0)), op.greater(coordinates, last))


def resample(
    node: Node,
    extents: Sequence[PrimExpr],
    scales: Sequence[Number],
    mode: str = "half_pixel",
    rounding: str = "round_prefer_floor",
) -> Expr:
    """Resize the first input to these extents, axis by axis.

    Args:
        node: the node.
        extents: the extents of the result.
        scales: float64 scalars that the coordinates use.
        mode: `coordinate_transformation_mode`.
        rounding: the rounding of nearest-neighbour coordinates.
    """
    data, kind = node.expr(0), node.dtype(0)
    # Integers and float16 are interpolated in float32 and rounded once at the end.
    wide = kind if kind in ("float32", "float64") else "float32"
    nearest = node.get_string("mode", "nearest") == "nearest"
    resized: Expr = data if nearest or wide == kind else op.cast(data, wide)
    cropped = mode == "tf_crop_and_resize"
    outside: Expr | None = None
    for at, (size, extent, scale) in enumerate(zip(node.shape(0), extents, scales, strict=True)):
        axis = _Axis(node, at, size, extent, scale, mode, rounding)
        if axis.is_kept() and not cropped:
            continue
        # Elements cannot be computed from an empty axis.
        node.scope.require(binary(Or, binary(GE, size, 1), binary(EQ, extent, 0)))
        coordinates = folded_table(node, _places(axis))
        if cropped:
            shape = [extent if i == at else as_dim(1) for i in range(len(extents))]
            row = op.reshape(_is_outside(axis, coordinates), shape, allowzero=True)
            outside = row if outside is None else op.logical_or(outside, row)
        if nearest:
            resized = op.take(resized, folded_table(node, _nearest(axis, coordinates)), axis=at)
        else:
            resized = _applied(
                node, resized, folded_table(node, op.cast(_weights(axis, coordinates), wide)), at
            )
    if outside is not None:
        fill = node.get_float("extrapolation_value", 0.0)
        resized = op.where(
            folded_table(node, outside), const(fill, node.typed(resized).dtype), resized
        )
    if node.typed(resized).dtype == kind:
        return resized
    return op.cast(resized if is_float(kind) else op.round(resized), kind)


def folded_table(node: Node, table: Expr) -> Expr:
    """Return the value of a table of positions or weights, unless it depends on run-time data, or
    is so long that interpreting it would take minutes; then it is computed once at run time.
    """
    extents = [known(d) for d in node.typed(table).shape]
    is_short = all(d is not None and d <= MAX_INTERPRETED_ROWS for d in extents)
    if is_short and not free_vars(table):
        return const(np.asarray(Interpreter().evaluate(table)))
    computed = node.given(table).expr
    assert computed is not None
    return computed


def _applied(node: Node, data: Expr, matrix: Expr, axis: int) -> Expr:
    """Multiply one axis by a matrix."""
    rank = len(node.typed(data).shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    back = list(np.argsort(order))
    moved = data if axis == rank - 1 else op.transpose(data, axes=order)
    product = op.nn.dense(moved, matrix)
    return product if axis == rank - 1 else op.transpose(product, axes=[int(b) for b in back])
