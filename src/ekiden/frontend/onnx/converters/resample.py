"""General resampler of ONNX Resize: each axis by an index vector or a weight matrix. What is known
of extents and scales is computed at import.

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

from ekiden.frontend.common.data_dependent_dims import to_named_dims
from ekiden.frontend.onnx.node import OnnxNode
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import EQ, GE, Or, PrimExpr, fold_binary
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Expr, const
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.visitor import free_vars
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, are_equal_dims, as_dim, known_int, simplify_dim

LEGACY_NEAREST = "simple"
"""The rounding of nearest before opset 11: down on an axis that grows, up on one that shrinks."""
ScalarExpr: TypeAlias = Call | Constant
"""A scalar, or a tensor, that is being computed with."""

MAX_INTERPRETED_ROWS = 1 << 14
"""Of a table of weights that is computed while importing: the interpreter's loops are Python's."""


@dataclass(frozen=True, slots=True)
class _ResizeAxis:
    """An axis that is resized: its extents and coordinate scale as float64 scalars. What is known
    at import is a constant and is folded.
    """

    node: OnnxNode
    axis: int
    data_extent: PrimExpr
    result_extent: PrimExpr
    scale: ScalarExpr
    mode: str
    rounding: str

    @property
    def extents_as_float64(self) -> tuple[ScalarExpr, ScalarExpr]:
        """Return the extents of data and result as float64 scalars."""
        return extent_as_float64(self.node, self.data_extent), extent_as_float64(
            self.node, self.result_extent
        )

    def is_identity(self) -> bool:
        """Return whether the axis provably keeps its extent and coordinates."""
        scale = self.scale
        one = isinstance(scale, Constant) and float(scale.data) == 1
        return one and are_equal_dims(self.data_extent, self.result_extent)


def _float64_const(value: float) -> Constant:
    return const(float(value), "float64")


def extent_as_float64(node: OnnxNode, extent: PrimExpr) -> ScalarExpr:
    """Emit an extent as a float64 scalar."""
    number = known_int(extent)
    return (
        op.cast(node.scope.emit_dim(extent), "float64")
        if number is None
        else _float64_const(number)
    )


def _source_coordinates(axis: _ResizeAxis) -> Expr:
    """Emit the source coordinate of each result element by `coordinate_transformation_mode` (ONNX
    Resize).
    """
    one, half = _float64_const(1), _float64_const(0.5)
    x = op.cast(op.arange(0, axis.result_extent, 1, "int64"), "float64")
    size, extent = axis.extents_as_float64
    scale = axis.scale
    match axis.mode:
        case "asymmetric" if (
            axis.rounding == LEGACY_NEAREST
        ):  # in float32, by which it may be whole
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
            begin, end = _crop_region(axis.node, axis.axis)
            last = size - one
            inside = x * last / op.maximum(extent - one, one) * (end - begin)
            middle = (begin + end) * (half * last)
            return op.where(op.equal(extent, one), x + middle, begin * last + inside)
        case "half_pixel_symmetric":
            offset = size * half * (one - extent / (scale * size))
            return offset + (x + half) / scale - half
    return (x + half) / scale - half


def _crop_region(node: OnnxNode, axis: int) -> tuple[ScalarExpr, ScalarExpr]:
    """Return the resized region of an axis as fractions (tf_crop_and_resize); (0, 1) by default."""
    axes = [node.axis(a, node.rank(0)) for a in node.get_ints("axes", tuple(range(node.rank(0))))]
    if axis not in axes:
        return _float64_const(0), _float64_const(1)
    values = op.reshape(op.cast(node.expr(1), "float64"), (2 * len(axes),))
    first, last = (const(axes.index(axis) + n, "int64") for n in (0, len(axes)))
    return op.take(values, first), op.take(values, last)


def _nearest_index(axis: _ResizeAxis, coordinates: Expr) -> Expr:
    """Emit the nearest source index of each coordinate by `nearest_mode`."""
    match axis.rounding:
        case "simple":
            shrinks = op.less(axis.scale, _float64_const(1))
            rounded: Expr = op.where(shrinks, op.ceil(coordinates), op.floor(coordinates))
        case "round_prefer_ceil":
            rounded = op.floor(op.add(coordinates, _float64_const(0.5)))
        case "floor":
            rounded = op.floor(coordinates)
        case "ceil":
            rounded = op.ceil(coordinates)
        case _:
            rounded = op.ceil(op.subtract(coordinates, _float64_const(0.5)))
    return _clamp_to_axis(axis, rounded)


def _clamp_to_axis(axis: _ResizeAxis, coordinates: Expr) -> Expr:
    """Emit coordinates as int64 positions, clamped to the axis."""
    last = axis.extents_as_float64[0] - _float64_const(1)
    return op.cast(op.minimum(op.maximum(coordinates, _float64_const(0)), last), "int64")


def _linear_weight(distance: Expr) -> Expr:
    """Emit the linear interpolation weight of a distance."""
    return op.nn.relu(op.subtract(_float64_const(1), op.abs(distance)))


def _cubic_weight(distance: Expr, a: float) -> Expr:
    """Emit the weights of cubic convolution (Keys 1981)."""
    x = op.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1.0
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    outer = op.where(op.less(x, _float64_const(2)), far, op.zeros_like(x))
    return op.where(op.less_equal(x, _float64_const(1)), near, outer)


def _interpolation_matrix(axis: _ResizeAxis, coordinates: Expr) -> Expr:
    """Emit the interpolation matrix [result, data]; taps outside go to the border or are
    excluded.
    """
    node, one = axis.node, _float64_const(1)
    cubic = node.get_string("mode", "nearest") == "cubic"
    shrinks = bool(node.get_int("antialias", 0))
    # ONNX Resize, antialias: when downsampling, the filter is stretched by max(1, 1 / scale).
    stretch = op.minimum(axis.scale, one) if shrinks else one
    wide = op.ceil(_float64_const(2 if cubic else 1) / stretch) + one
    (reach,) = vector_as_dims(node, op.reshape(op.cast(wide, "int64"), (1,)))
    column = op.reshape(coordinates, (axis.result_extent, 1), allowzero=True)
    steps = op.arange(1 - as_dim(reach), reach + 1, 1, "int64")
    taps = op.floor(column) + op.cast(steps, "float64")
    distance = (taps - column) * stretch
    values = (
        _cubic_weight(distance, node.get_float("cubic_coeff_a", -0.75))
        if cubic
        else _linear_weight(distance)
    )
    if node.get_int("exclude_outside", 0):
        values = op.where(_is_out_of_bounds(axis, taps), op.zeros_like(values), values)
    # Normalised, because excluded taps and a stretched filter leave sums other than 1.
    values = values / op.sum(values, axis=[1], keepdims=True)
    rows = op.expand_dims(op.arange(0, axis.result_extent, 1, "int64"), axis=1)
    rows = op.broadcast_to(rows, (axis.result_extent, simplify_dim(as_dim(reach) * 2)))
    # Scatter-add, because several taps outside can fall on the same border element.
    zeros = op.full(_float64_const(0), (axis.result_extent, axis.data_extent), dtype="float64")
    axis_index = op.stack([rows, _clamp_to_axis(axis, taps)], axis=0)
    return op.scatter_nd(zeros, axis_index, values, "add")


def vector_as_dims(node: OnnxNode, numbers: Expr) -> tuple[Dim, ...]:
    """Return a vector of sizes as dimensions, as integers where they are known."""
    # Constant sizes are computed at import by the interpreter, so that extents stay static.
    if not free_vars(numbers):
        return tuple(int(n) for n in np.asarray(Interpreter().evaluate(numbers)))
    dimensions = to_named_dims(node.scope, node.as_value(numbers))
    assert dimensions is not None, "a vector of known length"
    return dimensions


def _is_out_of_bounds(axis: _ResizeAxis, coordinates: Expr) -> Expr:
    """Emit whether coordinates are outside of the axis."""
    last = axis.extents_as_float64[0] - _float64_const(1)
    return op.logical_or(op.less(coordinates, _float64_const(0)), op.greater(coordinates, last))


def emit_resample(
    node: OnnxNode,
    extents: Sequence[PrimExpr],
    scales: Sequence[ScalarExpr],
    mode: str = "half_pixel",
    rounding: str = "round_prefer_floor",
) -> Expr:
    """Emit input 0 resized to the extents, axis by axis.

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
    for index, (size, extent, scale) in enumerate(zip(node.shape(0), extents, scales, strict=True)):
        axis = _ResizeAxis(node, index, size, extent, scale, mode, rounding)
        if axis.is_identity() and not cropped:
            continue
        # Elements cannot be computed from an empty axis.
        node.scope.require_condition(
            fold_binary(Or, fold_binary(GE, size, 1), fold_binary(EQ, extent, 0))
        )
        coordinates = fold_constant_table(node, _source_coordinates(axis))
        if cropped:
            shape = [extent if i == index else as_dim(1) for i in range(len(extents))]
            row = op.reshape(_is_out_of_bounds(axis, coordinates), shape, allowzero=True)
            outside = row if outside is None else op.logical_or(outside, row)
        if nearest:
            resized = op.take(
                resized, fold_constant_table(node, _nearest_index(axis, coordinates)), axis=index
            )
        else:
            resized = _multiply_axis(
                node,
                resized,
                fold_constant_table(node, op.cast(_interpolation_matrix(axis, coordinates), wide)),
                index,
            )
    if outside is not None:
        fill = node.get_float("extrapolation_value", 0.0)
        resized = op.where(
            fold_constant_table(node, outside),
            const(fill, node.tensor_type_of(resized).dtype),
            resized,
        )
    if node.tensor_type_of(resized).dtype == kind:
        return resized
    return op.cast(resized if is_float(kind) else op.round(resized), kind)


def fold_constant_table(node: OnnxNode, table: Expr) -> Expr:
    """Evaluate a table of positions or weights at import, unless it depends on run-time data or is
    too long.
    """
    extents = [known_int(d) for d in node.tensor_type_of(table).shape]
    is_short = all(d is not None and d <= MAX_INTERPRETED_ROWS for d in extents)
    if is_short and not free_vars(table):
        return const(np.asarray(Interpreter().evaluate(table)))
    computed = node.bind_shared(table).expr
    assert computed is not None
    return computed


def _multiply_axis(node: OnnxNode, data: Expr, matrix: Expr, axis: int) -> Expr:
    """Emit the product of one axis with a matrix."""
    rank = len(node.tensor_type_of(data).shape)
    order = [i for i in range(rank) if i != axis] + [axis]
    back = list(np.argsort(order))
    moved = data if axis == rank - 1 else op.transpose(data, axes=order)
    product = op.nn.dense(moved, matrix)
    return product if axis == rank - 1 else op.transpose(product, axes=[int(b) for b in back])
