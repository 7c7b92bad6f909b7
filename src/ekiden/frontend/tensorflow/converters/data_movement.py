"""Data movement operators that permute, select or repeat elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekiden.frontend.common.composite_ops import unique_in_order
from ekiden.frontend.common.constant_fill import emit_iota
from ekiden.frontend.common.converters import data_movement as shared
from ekiden.frontend.common.converters.resize import resize
from ekiden.frontend.tensorflow.node import Converter, TensorflowNode, TensorflowRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import known_int as number


def _tensor_scatter_row(mode: str) -> TensorflowRow:
    """Return the converter entry of TensorScatter{mode} (data, indices, updates)."""
    name = f"TensorScatter{mode.title()}"

    def convert(node: TensorflowNode) -> Expr:
        """Convert a scatter of updates at indices."""
        return op.scatter_nd(
            node.expr(0), shared.transpose_coordinates(node, 1), node.expr(2), mode
        )

    return TensorflowRow(name, convert)


def _bin_count(node: TensorflowNode) -> Expr:
    """Convert DenseBincount: count each number below `size` in a row, or sum its weights."""
    (size,), dtype = node.constant_ints(1, "size"), node.dtype(2)
    one, none = const(1, dtype), const(0, dtype)
    met = op.one_hot(node.expr(0), one, none, size, -1, dtype)
    if node.bool_attribute("binary_output"):
        return op.max(met, axis=[-2])
    # Empty weights mean unweighted counts.
    if number(node.shape(2)[0]) != 0:
        met = op.multiply(met, op.expand_dims(node.expr(2), -1))
    return op.sum(met, axis=[-2])


def _invert_permutation(node: TensorflowNode) -> Expr:
    return op.invert_permutation(node.expr(0))


def _roll(node: TensorflowNode) -> Expr:
    """Convert Roll: rotate elements along axes."""
    rolled = node.expr(0)
    for shift, axis in zip(
        node.constant_ints(1, "shift"), node.constant_ints(2, "axis"), strict=True
    ):
        axis_index = node.axis(axis, node.rank(0))
        extent = number(node.shape(0)[axis_index])
        if extent is None:
            node.reject(f"axis {axis} must be known")
        # Avoid a modulo by 0 for an empty axis.
        if extent:
            # Element i of the result is element i - shift of the input, modulo the extent.
            moved = op.add(emit_iota(extent), const(np.int64(-shift % extent)))
            order = op.floor_mod(moved, const(np.int64(extent)))
            rolled = op.take(rolled, order, axis=axis_index)
    return rolled


def _band_part(node: TensorflowNode) -> Expr:
    """Convert MatrixBandPart: keep `num_lower` sub-diagonals and `num_upper` super-diagonals; -1
    keeps all.
    """
    (below,), (above,) = node.constant_ints(1, "num_lower"), node.constant_ints(2, "num_upper")
    rows, columns = (number(d) for d in node.shape(0)[-2:])
    if rows is None or columns is None:
        node.reject("the last two axes must be known")
    apart = op.subtract(op.expand_dims(emit_iota(rows), axis=1), emit_iota(columns))
    zero, banded = const(0, node.dtype(0)), node.expr(0)
    if below >= 0:
        banded = op.where(op.less_equal(apart, const(np.int64(below))), banded, zero)
    if above >= 0:
        banded = op.where(op.greater_equal(apart, const(np.int64(-above))), banded, zero)
    return banded


def _lin_space(node: TensorflowNode) -> Expr:
    (count,) = node.constant_ints(2, "num")
    start, stop = node.expr(0), node.expr(1)
    last = max(count - 1, 1)
    steps = op.cast(
        op.divide(emit_iota(count, "float64"), const(float(last), "float64")), node.dtype(0)
    )
    values = op.add(start, op.multiply(op.subtract(stop, start), steps))
    # the last one is not rounded
    # start + (stop - start) * 1 may differ from stop by rounding; TensorFlow returns stop exactly.
    return op.where(op.equal(emit_iota(count), const(np.int64(last))), stop, values)


def _unique(node: TensorflowNode) -> list[Expr]:
    """Convert Unique and UniqueWithCounts: values, inverse indices, and for the latter counts."""
    dtype = node.dtype_attribute("out_idx", "int32")
    values, *index_outputs = unique_in_order(node.expr(0), node.op == "UniqueWithCounts")
    return [values, *(op.cast(e, dtype) for e in index_outputs)]


def _space_to_batch(node: TensorflowNode) -> Expr:
    return op.nn.space_to_batch_nd(
        node.expr(0), node.constant_ints(1, "block_shape"), shared.read_padding_pairs(node, 2)
    )


def _block_converter(function: Callable[..., Expr]) -> Converter:
    return lambda node: function(
        node.expr(0), node.int_attribute("block_size"), node.string_attribute("data_format", "NHWC")
    )


# fmt: off
ROWS = (
    *(TensorflowRow(name, row.convert, row.rule)
      for name, row in shared.movement_rows("tensorflow")),
    TensorflowRow("Unpack",            lambda node: shared.unpack(node, node.int_attribute("num"))),
    TensorflowRow("Split",
        lambda node: shared.split(node, node.int_attribute("num_split"))),
    TensorflowRow("Pad",               lambda node: shared.pad(node, 0.0)),
    TensorflowRow("PadV2",             lambda node: shared.pad(node, node.expr(2))),
    TensorflowRow("MirrorPad",
        lambda node: shared.mirror_pad(node, node.string_attribute("mode"))),
    *(_tensor_scatter_row(mode) for mode in ("update", "add", "min", "max")),
    TensorflowRow("DenseBincount",     _bin_count),
    TensorflowRow("InvertPermutation", _invert_permutation),
    TensorflowRow("Roll",              _roll),
    TensorflowRow("MatrixBandPart",    _band_part),
    TensorflowRow("LinSpace",          _lin_space),
    *(TensorflowRow(n, _unique) for n in ("Unique", "UniqueWithCounts")),
    TensorflowRow("SpaceToBatchND",    _space_to_batch),
    TensorflowRow("SpaceToDepth",      _block_converter(op.nn.space_to_depth)),
    TensorflowRow("DepthToSpace",      _block_converter(op.nn.depth_to_space)),
    TensorflowRow("ResizeBilinear",    resize("linear")),
    TensorflowRow("ResizeBicubic",     resize("cubic")),
)
# fmt: on
