"""Segment reductions, and sparse tensors as coordinates and values."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.converters.data_movement import SEGMENT_REDUCTIONS
from ekiden.frontend.common.matmul import batched_take
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.reducers import reduction_identity
from ekiden.frontend.common.segment_reduce import num_segments, segment_reduce, segment_sizes
from ekiden.frontend.tensorflow.node import Converter, TensorflowNode, TensorflowRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, known_int


def _num_segments(node: TensorflowNode, index: int, ids: Expr) -> Dim:
    """Return the number of segments: an input's value, else the largest id plus 1."""
    return (
        node.dims(index, "num_segments")[0] if len(node.inputs) > index else num_segments(node, ids)
    )


def _segment_reduction_converter(kind: str) -> Converter:
    def convert(node: TensorflowNode) -> Expr:
        """Convert a segment reduction (data, segment ids); an empty segment is 1 for products, else
        0.
        """
        ids, count = node.expr(1), _num_segments(node, 2, node.expr(1))
        reduced = segment_reduce(node, kind, node.expr(0), ids, count)
        if reduction_identity(kind, "int32") in (0, 1):  # which such a segment has already
            return reduced
        rows = segment_sizes(node, ids, count, "int32", node.rank(0))
        return op.where(op.equal(rows, const(0)), op.zeros_like(reduced), reduced)

    return convert


def _segment_mean(node: TensorflowNode) -> Expr:
    return _average_segments(node, node.expr(0), node.expr(1), 2, roots=False)


def _average_segments(node: TensorflowNode, data: Expr, ids: Expr, at: int, roots: bool) -> Expr:
    """Divide segment sums by the number of rows or its square root; empty segments are 0."""
    kind = node.tensor_type_of(data)
    count = _num_segments(node, at, ids)
    rows = segment_sizes(node, ids, count, kind.dtype, len(kind.shape))
    # An empty segment has the sum 0, which a divisor of 1 keeps.
    rows = op.maximum(rows, const(1, kind.dtype))
    rows = op.sqrt(rows) if roots else rows
    return op.divide(segment_reduce(node, "add", data, ids, count), rows)


def _sparse_segment_converter(how: str) -> list[TensorflowRow]:
    def convert_sparse(node: TensorflowNode) -> Expr:
        """Convert a sparse segment reduction (data, row indices, segment ids, number of
        segments).
        """
        data, ids = batched_take(node, node.expr(0), node.expr(1), 0, 0), node.expr(2)
        if how == "Sum":
            return segment_reduce(node, "add", data, ids, _num_segments(node, 3, ids))
        return _average_segments(node, data, ids, 3, how == "SqrtN")

    return [
        TensorflowRow(f"SparseSegment{how}{end}", convert_sparse) for end in ("", "WithNumSegments")
    ]


# Sparse tensors: coordinates [n, rank], values [n], a shape.


def _sparse_dense_add(node: TensorflowNode) -> Expr:
    """Convert SparseTensorDenseAdd (coordinates, values, shape, dense tensor)."""
    coordinates = op.transpose(node.expr(0), (1, 0))
    return op.scatter_nd(node.expr(3), coordinates, node.expr(1), "add")


def _sparse_dense_matmul(node: TensorflowNode) -> Expr:
    """Convert SparseTensorDenseMatMul (coordinates, values, shape, dense matrix): scaled rows,
    summed by segment.
    """
    shape, flipped = node.dims(2, "shape"), node.bool_attribute("adjoint_a")
    row, column = (op.take(node.expr(0), const(np.int32(i)), axis=1) for i in (0, 1))
    row, column = (column, row) if flipped else (row, column)
    dense = op.transpose(node.expr(3), (1, 0)) if node.bool_attribute("adjoint_b") else node.expr(3)
    scaled_rows = op.multiply(
        op.expand_dims(node.expr(1), 1), batched_take(node, dense, column, 0, 0)
    )
    return segment_reduce(node, "add", scaled_rows, row, shape[1 if flipped else 0])


def _sparse_fill_empty_rows(node: TensorflowNode) -> Result:
    """Convert SparseFillEmptyRows; its reverse index map is not supported."""
    filled = op.sparse_fill_empty_rows(*node.exprs())
    return [filled[0], filled[1], filled[2], None]


def _sparse_reshape(node: TensorflowNode) -> list[Expr]:
    reshaped = op.sparse_reshape(*node.exprs())
    return [reshaped[0], reshaped[1]]


# Counts and places.


def _bin_count(node: TensorflowNode) -> Expr:
    """Convert Bincount (numbers, number of bins, weights); numbers beyond the bins are ignored."""
    (size,), dtype = node.dims(1, "size"), node.dtype(2)
    flat = op.reshape(node.expr(0), (-1,))
    # Numbers from `size` on are not counted: segment -1 is dropped.
    nowhere = op.full_like(flat, const(-1, node.dtype(0)))
    bin_index = op.where(op.less(flat, op.reshape(node.expr(1), ())), flat, nowhere)
    has_none = known_int(node.shape(2)[0]) == 0 if node.rank(2) else False
    weights = op.ones_like(op.cast(flat, dtype)) if has_none else op.reshape(node.expr(2), (-1,))
    return segment_reduce(node, "add", weights, bin_index, size)


def _unravel_index(node: TensorflowNode) -> Expr:
    return op.unravel_index(node.expr(0), node.expr(1))


# fmt: off
ROWS = (
    *(TensorflowRow(f"Segment{n}{v}", _segment_reduction_converter(k))
      for v in ("", "V2") for n, k in SEGMENT_REDUCTIONS),
    TensorflowRow("SegmentMean",             _segment_mean),
    *(row for how in ("Sum", "Mean", "SqrtN") for row in _sparse_segment_converter(how)),
    TensorflowRow("SparseTensorDenseAdd",    _sparse_dense_add),
    TensorflowRow("SparseTensorDenseMatMul", _sparse_dense_matmul),
    TensorflowRow("SparseFillEmptyRows",     _sparse_fill_empty_rows),
    TensorflowRow("SparseReshape",           _sparse_reshape),
    TensorflowRow("Bincount",                _bin_count),
    TensorflowRow("UnravelIndex",            _unravel_index),
)
# fmt: on
