"""Operators that move, choose or repeat elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.arithmetic import SMALL
from ekiden.frontend.common.converters.movement import (
    batch_to_space,
    coordinates,
    gather_nd,
    pairs,
    resize,
    reverse,
    reverse_sequence,
    scatter_nd,
    split,
    split_v,
    tile,
    transpose,
    where,
)
from ekiden.frontend.common.filled import iota
from ekiden.frontend.common.formulas import uniques
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import known
from ekiden.frontend.tensorflow.node import Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import known as number


def _unpack(node: Node) -> Result:
    axis, count = node.axis(node.number("axis"), node.rank(0)), node.number("num")
    value = node.value(0)
    if value.is_known and value.elements.size <= SMALL:
        parts = np.moveaxis(value.elements, axis, 0)
        return [known(np.asarray(p), node.dtype(0)) for p in parts]
    return [op.take(node.expr(0), const(np.int32(i)), axis=axis) for i in range(count)]


def _slice(node: Node) -> Expr:
    """(data, begin, size), where a size of -1 is up to the end."""
    begin, shape = node.dims(1, "begin"), node.shape(0)
    if node.value(2).array is not None:
        size: Sequence[object] = node.axes(2, "size")
    else:
        size = node.dims(2, "size")
    end = [
        shape[i] if s == -1 else b + s  # type: ignore[operator]
        for i, (b, s) in enumerate(zip(begin, size, strict=True))
    ]
    return op.strided_slice(node.expr(0), begin, end)


def _pad(node: Node) -> Expr:
    value = node.expr(2) if len(node.inputs) > 2 else 0.0
    return op.nn.pad(node.expr(0), pairs(node, 1), value)


def _mirror_pad(node: Node) -> Expr:
    padding: list[list[int]] = node.numbers(1, "paddings").astype(np.int64).tolist()
    return op.nn.mirror_pad(node.expr(0), padding, node.text("mode"))


def _scatter(mode: str) -> Row:
    """Into a tensor: (data, indices, updates)."""
    name = f"TensorScatter{mode.title()}"

    def convert(node: Node) -> Expr:
        return op.scatter_nd(node.expr(0), coordinates(node, 1), node.expr(2), mode)

    return Row(name, convert)


def _one_hot(node: Node) -> Expr:
    (depth,) = node.axes(1, "depth")
    return op.one_hot(
        node.expr(0), node.expr(2), node.expr(3), depth, node.number("axis", -1), node.dtype(2)
    )


def _bin_count(node: Node) -> Expr:
    """How often each number below `size` is in a row, or the sum of its weights there."""
    (size,), dtype = node.axes(1, "size"), node.dtype(2)
    one, none = const(1, dtype), const(0, dtype)
    met = op.one_hot(node.expr(0), one, none, size, -1, dtype)
    if node.flag("binary_output"):
        return op.max(met, axis=[-2])
    if number(node.shape(2)[0]) != 0:
        met = op.multiply(met, op.expand_dims(node.expr(2), -1))
    return op.sum(met, axis=[-2])


def _topk(node: Node) -> Expr:
    count = node.axes(1, "k")[0] if len(node.inputs) > 1 else node.number("k")
    return op.topk(node.expr(0), count, axis=-1, ret_type="both", dtype="int32")


def _invert_permutation(node: Node) -> Expr:
    return op.invert_permutation(node.expr(0))


def _roll(node: Node) -> Expr:
    """Elements move along axes, those beyond the end to the front."""
    made = node.expr(0)
    for shift, axis in zip(node.axes(1, "shift"), node.axes(2, "axis"), strict=True):
        at = node.axis(axis, node.rank(0))
        extent = number(node.shape(0)[at])
        if extent is None:
            node.unsupported(f"axis {axis} must be known")
        if extent:
            moved = op.add(iota(extent), const(np.int64(-shift % extent)))
            order = op.floor_mod(moved, const(np.int64(extent)))
            made = op.take(made, order, axis=at)
    return made


def _band_part(node: Node) -> Expr:
    """What is at most so far below and above the diagonal; -1 is everything."""
    (below,), (above,) = node.axes(1, "num_lower"), node.axes(2, "num_upper")
    rows, columns = (number(d) for d in node.shape(0)[-2:])
    if rows is None or columns is None:
        node.unsupported("the last two axes must be known")
    apart = op.subtract(op.expand_dims(iota(rows), axis=1), iota(columns))
    zero, made = const(0, node.dtype(0)), node.expr(0)
    if below >= 0:
        made = op.where(op.less_equal(apart, const(np.int64(below))), made, zero)
    if above >= 0:
        made = op.where(op.greater_equal(apart, const(np.int64(-above))), made, zero)
    return made


def _lin_space(node: Node) -> Expr:
    (count,) = node.axes(2, "num")
    start, stop = node.expr(0), node.expr(1)
    last = max(count - 1, 1)
    part = op.cast(op.divide(iota(count, "float64"), const(float(last), "float64")), node.dtype(0))
    made = op.add(start, op.multiply(op.subtract(stop, start), part))
    # the last one is not rounded
    return op.where(op.equal(iota(count), const(np.int64(last))), stop, made)


def _unique(node: Node) -> list[Expr]:
    """With how often each is there in UniqueWithCounts."""
    dtype = node.dtype_of("out_idx", "int32")
    values, *others = uniques(node.expr(0), node.op == "UniqueWithCounts")
    return [values, *(op.cast(e, dtype) for e in others)]


def _space_to_batch(node: Node) -> Expr:
    return op.nn.space_to_batch_nd(node.expr(0), node.axes(1, "block_shape"), pairs(node, 2))


def _space_to_depth(node: Node) -> Expr:
    layout = node.text("data_format", "NHWC")
    return op.nn.space_to_depth(node.expr(0), node.number("block_size"), layout)


def _depth_to_space(node: Node) -> Expr:
    layout = node.text("data_format", "NHWC")
    return op.nn.depth_to_space(node.expr(0), node.number("block_size"), layout)


# fmt: off
ROWS = (
    Row("Transpose",          transpose),
    Row("Unpack",             _unpack),
    Row("Split",              lambda node: split(node, node.number("num_split"))),
    Row("SplitV",             split_v),
    Row("Slice",              _slice),
    *(Row(n, _pad) for n in ("Pad", "PadV2")),
    Row("MirrorPad",          _mirror_pad),
    Row("Tile",               tile),
    Row("ReverseV2",          reverse),
    Row("ReverseSequence",    reverse_sequence),
    Row("GatherNd",           gather_nd),
    *(_scatter(mode) for mode in ("update", "add", "min", "max")),
    Row("ScatterNd",          scatter_nd),
    Row("OneHot",             _one_hot),
    Row("DenseBincount",      _bin_count),
    *(Row(n, _topk) for n in ("TopK", "TopKV2")),
    Row("Where",              where),
    Row("InvertPermutation",  _invert_permutation),
    Row("Roll",               _roll),
    Row("MatrixBandPart",     _band_part),
    Row("LinSpace",           _lin_space),
    *(Row(n, _unique) for n in ("Unique", "UniqueWithCounts")),
    Row("SpaceToBatchND",     _space_to_batch),
    Row("BatchToSpaceND",     batch_to_space),
    Row("SpaceToDepth",       _space_to_depth),
    Row("DepthToSpace",       _depth_to_space),
    Row("ResizeBilinear",     resize("linear")),
    Row("ResizeNearestNeighbor", resize("nearest_neighbor")),
    Row("ResizeBicubic",      resize("cubic")),
)
# fmt: on
