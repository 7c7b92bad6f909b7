"""Operators of TensorFlow that TensorFlow Lite has with the same inputs and attributes: those that
move, choose, repeat or place elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common.arithmetic import SMALL
from ekiden.frontend.common.node import AttributeNode, Result
from ekiden.frontend.common.products import taken
from ekiden.frontend.common.reshaping import by_data, is_open
from ekiden.frontend.common.segments import combined_rows
from ekiden.frontend.common.suppression import kept_boxes, padded_to
from ekiden.frontend.common.value import known
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim
from ekiden.topi.shape import known as number


def reshape(node: AttributeNode, shape: Sequence[Dim] | None = None) -> Result:
    """Return the first input in another shape: of the second input if none is given."""
    if shape is None and is_open(node, 1):
        return by_data(node, allow_zero=True)
    shape = node.dims(1, "shape") if shape is None else shape
    value = node.value(0)
    if value.is_known and all(isinstance(d, int) for d in shape):
        sizes = tuple(d for d in shape if isinstance(d, int))
        return known(value.elements.reshape(sizes), node.dtype(0))
    return op.reshape(node.expr(0), shape, allowzero=0 in shape)


def transpose(node: AttributeNode) -> Expr:
    """(data, permutation)"""
    return op.transpose(node.expr(0), node.axes(1, "perm"))


def split(node: AttributeNode, count: int) -> Result:
    """(axis, data) into equal parts."""
    (axis,) = node.axes(0, "axis")
    return op.split(node.expr(1), count, axis=node.axis(axis, node.rank(1)))


def split_v(node: AttributeNode) -> Result:
    """(data, sizes, axis); one size may be -1, the rest."""
    (axis,) = node.axes(2, "axis")
    axis = node.axis(axis, node.rank(0))
    sizes = list(node.axes(1, "size_splits"))
    if -1 in sizes:
        extent = number(node.shape(0)[axis])
        if extent is None:
            node.unsupported(f"axis {axis}{node.of_input(0)} must be known for a size of -1")
        sizes[sizes.index(-1)] = extent - sum(s for s in sizes if s >= 0)
    places = [int(p) for p in np.cumsum(sizes)[:-1]]
    value = node.value(0)
    if value.is_known and value.elements.size <= SMALL:
        parts = np.split(value.elements, places, axis)
        return [known(np.asarray(p), node.dtype(0)) for p in parts]
    return op.split(node.expr(0), places, axis=axis) if places else [node.expr(0)]


def tile(node: AttributeNode) -> Expr:
    """(data, times)"""
    return op.tile(node.expr(0), node.dims(1, "multiples"))


def reverse(node: AttributeNode, word: str = "axis") -> Expr:
    """(data, axes); `word` is what messages call these."""
    made = node.expr(0)
    for axis in node.axes(1, word):
        made = op.reverse(made, axis=node.axis(axis, node.rank(0)))
    return made


def reverse_sequence(node: AttributeNode) -> Expr:
    """(data, lengths)"""
    axes = node.number("seq_dim"), node.number("batch_dim")
    return op.reverse_sequence(node.expr(0), node.expr(1), *axes)


def coordinates(node: AttributeNode, index: int) -> Expr:
    """Return an input of coordinates as Relay has them: along the first axis, TensorFlow along the
    last."""
    rank = node.rank(index)
    return op.transpose(node.expr(index), (rank - 1, *range(rank - 1)))


def gather_nd(node: AttributeNode) -> Expr:
    """(data, coordinates)"""
    return op.gather_nd(node.expr(0), coordinates(node, 1))


def gather(node: AttributeNode, axis: int) -> Expr:
    """(data, indices) along an axis, behind axes that both have for a batch."""
    batch = node.number("batch_dims")
    batch = batch + node.rank(1) if batch < 0 else batch
    return taken(node, node.expr(0), node.expr(1), node.axis(axis, node.rank(0)), batch)


def scatter_nd(node: AttributeNode) -> Expr:
    """(coordinates, updates, shape) into zeros; equal coordinates add up."""
    zeros = op.zeros(node.dims(2, "shape"), node.dtype(1))
    return op.scatter_nd(zeros, coordinates(node, 0), node.expr(1), "add")


def sparse_to_dense(node: AttributeNode) -> Expr:
    """(coordinates, shape, values, default)"""
    shape = node.dims(1, "output_shape")
    return op.sparse_to_dense(node.expr(0), shape, node.expr(2), node.expr(3))


def where(node: AttributeNode) -> Expr:
    """Return the coordinates of what is not 0."""
    return op.cast(op.argwhere(node.expr(0)), "int64")


def expand_dims(node: AttributeNode) -> Expr:
    """(data, axis)"""
    (axis,) = node.axes(1, "axis")
    return op.expand_dims(node.expr(0), axis=node.axis(axis, node.rank(0) + 1))


def fill(node: AttributeNode) -> Expr:
    """(shape, number)"""
    return op.full(node.expr(1), node.dims(0, "dims"), node.dtype(1))


def broadcast_to(node: AttributeNode) -> Expr:
    """(data, shape)"""
    return op.broadcast_to(node.expr(0), node.dims(1, "shape"))


def pairs(node: AttributeNode, index: int) -> Sequence[Sequence[Dim]]:
    """Return (before, after) of each axis, as numbers or dimensions."""
    if (array := node.value(index).array) is not None:
        numbers: list[list[int]] = array.astype(np.int64).tolist()
        return numbers
    flat = node.dims(index, "paddings")
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


def batch_to_space(node: AttributeNode) -> Expr:
    """(data, block, crops): a constant block, crops that may be made of dimensions."""
    return op.nn.batch_to_space_nd(node.expr(0), node.axes(1, "block_shape"), pairs(node, 2))


def resize(method: str) -> Callable[[AttributeNode], Expr]:
    """Return the converter of a resizing of NHWC images, by the method "linear", "cubic" or
    "nearest_neighbor".
    """

    def convert(node: AttributeNode) -> Expr:
        """Kernels other than the nearest give floats, as TensorFlow's do. Its cubic kernel has
        a = -0.5 where pixels have centres, without weights for what is outside of the image, else
        -0.75.
        """
        mode = "half_pixel" if node.flag("half_pixel_centers") else "asymmetric"
        mode = "align_corners" if node.flag("align_corners") else mode
        data, is_near = node.expr(0), method == "nearest_neighbor"
        if not is_near and not is_float(node.dtype(0)):
            data = op.cast(data, "float32")
        rounding = "" if not is_near else "floor" if mode == "asymmetric" else "round_prefer_ceil"
        return op.image.resize2d(
            data, node.dims(1, "size"), layout="NHWC", method=method,
            coordinate_transformation_mode=mode, rounding_method=rounding,
            cubic_alpha=-0.5 if mode == "half_pixel" else -0.75,
            cubic_exclude=mode == "half_pixel",
        )  # fmt: skip

    return convert


def unsorted_segments(kind: str) -> Callable[[AttributeNode], Expr]:
    """Return the converter of rows combined by segments: (data, segments, how many). One without
    rows has what changes nothing.
    """

    def convert(node: AttributeNode) -> Expr:
        (count,) = node.dims(2, "segments")
        return combined_rows(node, kind, node.expr(0), node.expr(1), count)

    return convert


SEGMENTS = (("Sum", "add"), ("Prod", "multiply"), ("Max", "maximum"), ("Min", "minimum"))
"""(end of an operator's name, what combines the rows of a segment)."""


def suppressed(node: AttributeNode, is_scored: bool, is_padded: bool) -> Sequence[Expr]:
    """(boxes, scores, most, overlap, least score, and how scores fade if `is_scored`, which is
    version 5): positions, scores if `is_scored`, and how many there are; padded with 0 if asked.
    """
    if is_scored and node.numbers(5, "soft_nms_sigma").item() > 0:
        node.unsupported("scores that fade by overlap ('soft_nms_sigma' above 0)")
    limits = [op.reshape(node.expr(i), ()) for i in (2, 3, 4)]
    rows, count = kept_boxes(node, node.expr(0), node.expr(1), *limits)
    if is_padded:
        (most,) = node.axes(2, "max_output_size")
        places, is_there = padded_to(node, rows, count, most)
    else:
        places = op.strided_slice(rows, const(np.zeros(1, np.int64)), count, axes=[0])
    total = op.reshape(op.cast(count, "int32"), ())
    if not is_scored:
        return [places, total]
    scores = op.take(node.expr(1), places, axis=0)
    if is_padded:
        scores = op.where(is_there, scores, op.zeros_like(scores))
    return [places, scores, total]
