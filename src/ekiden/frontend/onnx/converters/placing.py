"""Operators that read or write at positions which are data, and sorting.

Coordinates stand along the last axis in ONNX and along the first in Relay. With reduction "none" a
place that is written twice has either value, as the specification leaves it open; the others add up
in the order of updates. Results whose extent depends on data (NonZero, Unique, Compress) are
computed padded and cut, so that a name stands for the extent from there on.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.formulas import append_axes
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.shape import Dim, as_dim, as_shape, known, product

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def _scatter_elements(node: Node) -> Expr:
    axis = node.axis(node.get_int("axis", 0), node.rank(0))
    return op.scatter_elements(
        node.expr(0),
        node.expr(1),
        node.expr(2),
        axis=axis,
        reduction=_REDUCTIONS[node.get_string("reduction", "none")],
    )


def _coordinates(node: Node, batch: int) -> Expr:
    """Input 1, which holds coordinates along its last axis, with that axis first."""
    last = node.rank(1) - 1
    return op.transpose(node.expr(1), axes=[last, *range(last)])


def _scatter_nd(node: Node) -> Expr:
    """How many coordinates an update has follows from its rank; of none it is of all the data, as
    one row of them."""
    mode = _REDUCTIONS[node.get_string("reduction", "none")]
    count = node.rank(0) + node.rank(1) - 1 - node.rank(2)
    if known(node.shape(1)[-1]) is None:
        node.scope.same(node.shape(1)[-1:], (as_dim(count),))
    if known(node.shape(1)[-1]) != 0:
        return op.scatter_nd(node.expr(0), _coordinates(node, 0), node.expr(2), mode=mode)
    rows = op.expand_dims(node.expr(0), axis=0)
    first = op.full(const(0, "int64"), (1, *node.shape(1)[:-1]), dtype="int64")
    return op.squeeze(op.scatter_nd(rows, first, node.expr(2), mode=mode), axis=[0])


def _gather_nd(node: Node) -> Expr:
    batch = node.get_int("batch_dims", 0)
    count = known(node.shape(1)[-1])
    if count is None:
        node.unsupported("the last extent of 'indices' must be constant")
    return op.gather_nd(node.expr(0), _coordinates(node, batch), batch_dims=batch, index_rank=count)


def _tensor_scatter(node: Node) -> Expr:
    """A cache with an update written from a position on, for each batch; "circular" wraps around.

    Every element of the result looks where it comes from, so nothing is written twice.
    """
    shape, steps = node.shape(0), node.shape(1)
    axis = node.axis(node.get_int("axis", -2), len(shape))
    extent, count = _int64(node, shape[axis]), _int64(node, steps[axis])
    at: Expr = op.arange(0, shape[axis], 1, dtype="int64")
    at = append_axes(at, len(shape) - axis - 1)
    if node.optional(2) is not None:
        first = op.cast(node.expr(2), "int64")
        at = op.subtract(at, op.expand_dims(first, axis=1, num_newaxis=len(shape) - 1))
    else:
        at = op.expand_dims(at, axis=0, num_newaxis=axis)
    zero = const(0, "int64")
    if node.get_string("mode", "linear") == "circular":
        at = op.floor_mod(at, extent)
    inside = op.logical_and(op.greater_equal(at, zero), op.less(at, count))
    source = op.broadcast_to(op.where(inside, at, zero), shape)
    return op.where(inside, op.gather(node.expr(1), axis, source), node.expr(0))


def _int64(node: Node, dim: PrimExpr) -> Expr:
    number = known(dim)
    return node.scope.scalar(dim) if number is None else const(number, "int64")


def _top_k(node: Node) -> list[Expr]:
    """The first k in order; of a k of 0, which means all to Relay, an empty slice."""
    count: Dim = node.get_int("k") if node.has("k") else node.dims(1, "K", 1)[0]
    axis = node.axis(node.get_int("axis", -1), node.rank(0))
    number = known(count)
    if number is not None and number < 0:
        node.unsupported(f"'K' must not be negative, got {number}")
    if number == 0:
        none = op.strided_slice(node.expr(0), begin=[0], end=[0], axes=[axis])
        return [none, op.cast(none, "int64")]
    found = op.topk(
        node.expr(0),
        k=count,
        axis=axis,
        ret_type="both",
        is_ascend=not node.get_int("largest", 1),
        dtype="int64",
    )
    return [TupleGetItem(found, 0), TupleGetItem(found, 1)]


def _reverse_sequence(node: Node) -> Expr:
    return op.reverse_sequence(
        node.expr(0),
        node.expr(1),
        seq_axis=node.get_int("time_axis", 0),
        batch_axis=node.get_int("batch_axis", 1),
    )


def _non_zero(node: Node) -> Expr:
    """The coordinates of elements that are not 0, a column each."""
    found = op.argwhere(node.expr(0)) if node.rank(0) else _zero_dimensional(node)
    return op.transpose(op.cast(found, "int64"), axes=[1, 0])


def _zero_dimensional(node: Node) -> Expr:
    return op.argwhere(op.reshape(node.expr(0), (1,)))


def _compress(node: Node) -> Expr:
    """The slices along an axis (of the flattened tensor, without one) where a condition holds."""
    data = node.expr(0) if node.has("axis") else op.reshape(node.expr(0), (-1,))
    axis = node.axis(node.get_int("axis", 0), node.rank(0)) if node.has("axis") else 0
    where = op.squeeze(op.argwhere(node.expr(1)), axis=[1])
    return op.take(data, op.cast(where, "int64"), axis=axis, mode="raise")


def _unique(node: Node) -> list[Expr]:
    """Distinct elements, their first positions, which of them each element is, and counts."""
    is_sliced = node.has("axis") and node.rank(0) > 1
    axis = node.axis(node.get_int("axis", 0), node.rank(0)) if is_sliced else 0
    flat = _slice_ranks(node, axis) if is_sliced else op.reshape(node.expr(0), (-1,))
    found = op.unique(flat, is_sorted=bool(node.get_int("sorted", 1)), return_counts=True)
    values, first, which, number, counts = (TupleGetItem(found, i) for i in range(5))

    def cut(padded: Expr) -> Expr:
        return op.strided_slice(padded, const(np.array([0])), op.cast(number, "int64"), axes=[0])

    wide = [op.cast(e, "int64") for e in (cut(first), which, cut(counts))]
    if is_sliced:
        places = node.scope.bound(wide[0])
        return [op.take(node.expr(0), node.scope.expr(places), axis=axis), *wide]
    return [cut(values), *wide]


def _slice_ranks(node: Node, axis: int) -> Expr:
    """For each slice along an axis, how many others stand before it in order."""
    order = [axis, *(i for i in range(node.rank(0)) if i != axis)]
    shape = node.shape(0)
    rest = product(tuple(shape[i] for i in order[1:]))
    rows = op.reshape(op.transpose(node.expr(0), axes=order), (shape[axis], rest), allowzero=True)
    return op.row_ranks(rows)


def _max_unpool(node: Node) -> Expr:
    """Every element at its flat position in an image that is 0 elsewhere.

    Positions are those of the unpadded image that the pooling saw; a given shape may be larger.
    """
    shape = node.shape(0)
    kernel = node.get_ints("kernel_shape")
    strides = node.get_ints("strides", (1,) * len(kernel))
    pads = node.get_ints("pads", (0,) * 2 * len(kernel))
    inferred: list[Dim] = list(shape[:2])
    for i, (k, s) in enumerate(zip(kernel, strides, strict=True)):
        inferred.append((shape[i + 2] - 1) * s + k - pads[i] - pads[i + len(kernel)])
    zeros = op.zeros((product(as_shape(inferred)),), node.dtype(0))
    placed = op.scatter_elements(
        zeros, op.reshape(node.expr(1), (-1,)), op.reshape(node.expr(0), (-1,)), axis=0
    )
    image = op.reshape(placed, inferred)
    if node.optional(2) is None:
        return image
    wanted = node.dims(2, "output_shape")
    widths = [(0, w - d) for w, d in zip(wanted, inferred, strict=True)]
    return op.nn.pad(image, widths, const(0, node.dtype(0)))


# fmt: off
ROWS = (
    Row("Scatter",         _scatter_elements, since=9, attributes="axis"),
    Row("ScatterElements", _scatter_elements, since=11, attributes="axis reduction",
        values={"reduction": tuple(_REDUCTIONS)}),
    Row("ScatterND",       _scatter_nd, since=11, attributes="reduction",
        values={"reduction": tuple(_REDUCTIONS)}),
    Row("GatherND",        _gather_nd, since=11, attributes="batch_dims"),
    Row("TensorScatter",   _tensor_scatter, since=24, attributes="axis mode"),
    Row("TopK",            _top_k, attributes="axis k"),
    Row("TopK",            _top_k, since=10, attributes="axis largest sorted"),
    Row("Unique",          _unique, since=11, attributes="axis sorted"),
    Row("NonZero",         _non_zero, since=9),
    Row("Compress",        _compress, since=9, attributes="axis"),
    Row("ReverseSequence", _reverse_sequence, since=10, attributes="batch_axis time_axis"),
    Row("MaxUnpool",       _max_unpool, since=9, attributes="kernel_shape pads strides"),
)
# fmt: on
