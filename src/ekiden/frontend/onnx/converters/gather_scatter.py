"""ONNX gathers, scatters and sorting, whose positions are run-time data.

Coordinates are along the last axis in ONNX and along the first in Relay. With reduction "none" a
position that is written twice has either value, as the specification leaves it open; other
reductions apply in the order of updates. Results whose extent depends on data (NonZero, Unique,
Compress) are computed padded and cropped, which gives the extent a symbolic name.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.composite_ops import append_unit_axes
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import Dim, as_dim, as_shape, known_int, product_of_dims

_SCATTER_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def _scatter_elements(node: OnnxNode) -> Expr:
    axis = node.axis(node.get_int("axis", 0), node.rank(0))
    return op.scatter_elements(
        node.expr(0),
        node.expr(1),
        node.expr(2),
        axis=axis,
        reduction=_SCATTER_REDUCTIONS[node.get_string("reduction", "none")],
    )


def _transpose_coordinates(node: OnnxNode, batch: int) -> Expr:
    """Emit input 1 with its last axis, the coordinates, first."""
    last = node.rank(1) - 1
    return op.transpose(node.expr(1), axes=[last, *range(last)])


def _scatter_nd(node: OnnxNode) -> Expr:
    """Convert ScatterND. The number of coordinates of an update follows from the ranks; with none,
    an update replaces all of the data, as one row.
    """
    mode = _SCATTER_REDUCTIONS[node.get_string("reduction", "none")]
    # From updates.rank = indices.rank - 1 + data.rank - coordinates (ONNX ScatterND).
    count = node.rank(0) + node.rank(1) - 1 - node.rank(2)
    if known_int(node.shape(1)[-1]) is None:
        node.scope.require_equal_dims(node.shape(1)[-1:], (as_dim(count),))
    if known_int(node.shape(1)[-1]) != 0:
        return op.scatter_nd(node.expr(0), _transpose_coordinates(node, 0), node.expr(2), mode=mode)
    # No coordinates: every update replaces the whole tensor, as row 0 of a batch of one.
    rows = op.expand_dims(node.expr(0), axis=0)
    first = op.full(const(0, "int64"), (1, *node.shape(1)[:-1]), dtype="int64")
    return op.squeeze(op.scatter_nd(rows, first, node.expr(2), mode=mode), axis=[0])


def _gather_nd(node: OnnxNode) -> Expr:
    batch = node.get_int("batch_dims", 0)
    count = known_int(node.shape(1)[-1])
    if count is None:
        node.reject("the last extent of 'indices' must be constant")
    return op.gather_nd(
        node.expr(0), _transpose_coordinates(node, batch), batch_dims=batch, index_rank=count
    )


def _tensor_scatter(node: OnnxNode) -> Expr:
    """Convert TensorScatter: write an update into a cache at each batch's position; "circular"
    wraps around.

    Every element of the result gathers from its source, so nothing is written twice.
    """
    shape, steps = node.shape(0), node.shape(1)
    axis = node.axis(node.get_int("axis", -2), len(shape))
    extent, count = _int64_dim(node, shape[axis]), _int64_dim(node, steps[axis])
    axis_index: Expr = op.arange(0, shape[axis], 1, dtype="int64")
    axis_index = append_unit_axes(axis_index, len(shape) - axis - 1)
    if node.optional_value(2) is not None:
        first = op.cast(node.expr(2), "int64")
        axis_index = op.subtract(
            axis_index, op.expand_dims(first, axis=1, num_newaxis=len(shape) - 1)
        )
    else:
        axis_index = op.expand_dims(axis_index, axis=0, num_newaxis=axis)
    zero = const(0, "int64")
    if node.get_string("mode", "linear") == "circular":
        axis_index = op.floor_mod(axis_index, extent)
    inside = op.logical_and(op.greater_equal(axis_index, zero), op.less(axis_index, count))
    # Positions outside of the update read element 0 of it, which the mask discards.
    source = op.broadcast_to(op.where(inside, axis_index, zero), shape)
    return op.where(inside, op.gather(node.expr(1), axis, source), node.expr(0))


def _int64_dim(node: OnnxNode, dim: PrimExpr) -> Expr:
    """Emit a dimension as an int64 scalar."""
    number = known_int(dim)
    return node.scope.emit_dim(dim) if number is None else const(number, "int64")


def _top_k(node: OnnxNode) -> list[Expr]:
    """Convert TopK. For k = 0, which means all in Relay, return empty slices."""
    count: Dim = node.get_int("k") if node.has("k") else node.dims(1, "K", 1)[0]
    axis = node.axis(node.get_int("axis", -1), node.rank(0))
    number = known_int(count)
    if number is not None and number < 0:
        node.reject(f"'K' must not be negative, got {number}")
    # The kernel selects at least one element.
    if number == 0:
        none = op.strided_slice(node.expr(0), begin=[0], end=[0], axes=[axis])
        return [none, op.cast(none, "int64")]
    top = op.topk(
        node.expr(0),
        k=count,
        axis=axis,
        ret_type="both",
        is_ascend=not node.get_int("largest", 1),
        dtype="int64",
    )
    return [TupleGetItem(top, 0), TupleGetItem(top, 1)]


def _reverse_sequence(node: OnnxNode) -> Expr:
    return op.reverse_sequence(
        node.expr(0),
        node.expr(1),
        seq_axis=node.get_int("time_axis", 0),
        batch_axis=node.get_int("batch_axis", 1),
    )


def _non_zero(node: OnnxNode) -> Expr:
    """Convert NonZero: int64 [rank, count], one column per nonzero element."""
    coordinates = op.argwhere(node.expr(0)) if node.rank(0) else _argwhere_scalar(node)
    return op.transpose(op.cast(coordinates, "int64"), axes=[1, 0])


def _argwhere_scalar(node: OnnxNode) -> Expr:
    """Emit argwhere of a scalar as of a vector of one element."""
    return op.argwhere(op.reshape(node.expr(0), (1,)))


def _compress(node: OnnxNode) -> Expr:
    """Convert Compress: slices along an axis, or elements of the flat tensor, where a condition
    holds.
    """
    data = node.expr(0) if node.has("axis") else op.reshape(node.expr(0), (-1,))
    axis = node.axis(node.get_int("axis", 0), node.rank(0)) if node.has("axis") else 0
    # The condition may be shorter than the axis: slices beyond its end are dropped.
    where = op.squeeze(op.argwhere(node.expr(1)), axis=[1])
    return op.take(data, op.cast(where, "int64"), axis=axis, mode="raise")


def _unique(node: OnnxNode) -> list[Expr]:
    """Convert Unique: distinct elements, first positions, inverse indices and counts."""
    is_sliced = node.has("axis") and node.rank(0) > 1
    axis = node.axis(node.get_int("axis", 0), node.rank(0)) if is_sliced else 0
    flat = _slice_ranks(node, axis) if is_sliced else op.reshape(node.expr(0), (-1,))
    unique = op.unique(flat, is_sorted=bool(node.get_int("sorted", 1)), return_counts=True)
    values, first, which, number, counts = (TupleGetItem(unique, i) for i in range(5))

    # The operator returns arrays as long as the input; `number` is how much of them is valid.
    def valid_part(padded: Expr) -> Expr:
        """Emit the valid part of a padded result."""
        return op.strided_slice(padded, const(np.array([0])), op.cast(number, "int64"), axes=[0])

    wide = [op.cast(e, "int64") for e in (valid_part(first), which, valid_part(counts))]
    if is_sliced:
        first_positions = node.scope.bind_named(wide[0])
        return [op.take(node.expr(0), node.scope.expr(first_positions), axis=axis), *wide]
    return [valid_part(values), *wide]


def _slice_ranks(node: OnnxNode, axis: int) -> Expr:
    """Emit the lexicographic rank of each slice along an axis."""
    order = [axis, *(i for i in range(node.rank(0)) if i != axis)]
    shape = node.shape(0)
    row_size = product_of_dims(tuple(shape[i] for i in order[1:]))
    rows = op.reshape(
        op.transpose(node.expr(0), axes=order), (shape[axis], row_size), allowzero=True
    )
    # Distinct slices then are distinct numbers, which the one-dimensional operator handles.
    return op.row_ranks(rows)


def _max_unpool(node: OnnxNode) -> Expr:
    """Convert MaxUnpool: scatter each element to its flat position in an image of zeros.

    Positions are those of the unpadded image that the pooling saw; a given shape may be larger.
    """
    shape = node.shape(0)
    kernel = node.get_ints("kernel_shape")
    strides = node.get_ints("strides", (1,) * len(kernel))
    pads = node.get_ints("pads", (0,) * 2 * len(kernel))
    inferred: list[Dim] = list(shape[:2])
    for i, (k, s) in enumerate(zip(kernel, strides, strict=True)):
        # ONNX MaxUnpool: (input - 1) * stride + kernel - pads.
        inferred.append((shape[i + 2] - 1) * s + k - pads[i] - pads[i + len(kernel)])
    zeros = op.zeros((product_of_dims(as_shape(inferred)),), node.dtype(0))
    placed = op.scatter_elements(
        zeros, op.reshape(node.expr(1), (-1,)), op.reshape(node.expr(0), (-1,)), axis=0
    )
    image = op.reshape(placed, inferred)
    if node.optional_value(2) is None:
        return image
    output_shape = node.dims(2, "output_shape")
    widths = [(0, w - d) for w, d in zip(output_shape, inferred, strict=True)]
    return op.nn.pad(image, widths, const(0, node.dtype(0)))


# fmt: off
ROWS = (
    OnnxRow("Scatter",         _scatter_elements, since_version=9, attributes="axis"),
    OnnxRow("ScatterElements", _scatter_elements, since_version=11, attributes="axis reduction",
        supported_values={"reduction": tuple(_SCATTER_REDUCTIONS)}),
    OnnxRow("ScatterND",       _scatter_nd, since_version=11, attributes="reduction",
        supported_values={"reduction": tuple(_SCATTER_REDUCTIONS)}),
    OnnxRow("GatherND",        _gather_nd, since_version=11, attributes="batch_dims"),
    OnnxRow("TensorScatter",   _tensor_scatter, since_version=24, attributes="axis mode"),
    OnnxRow("TopK",            _top_k, attributes="axis k"),
    OnnxRow("TopK",            _top_k, since_version=10, attributes="axis largest sorted"),
    OnnxRow("Unique",          _unique, since_version=11, attributes="axis sorted"),
    OnnxRow("NonZero",         _non_zero, since_version=9),
    OnnxRow("Compress",        _compress, since_version=9, attributes="axis"),
    OnnxRow("ReverseSequence", _reverse_sequence, since_version=10,
        attributes="batch_axis time_axis"),
    OnnxRow("MaxUnpool",       _max_unpool, since_version=9,
        attributes="kernel_shape pads strides"),
)
# fmt: on
