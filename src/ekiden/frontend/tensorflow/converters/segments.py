"""Segment reductions, and sparse tensors as coordinates and values."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.combined import neutral
from ekiden.frontend.common.converters.movement import SEGMENTS
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.products import taken
from ekiden.frontend.common.segments import combined_rows, counted_rows, length_of
from ekiden.frontend.tensorflow.node import Converter, Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, known


def _count(node: Node, index: int, ids: Expr) -> Dim:
    """Return the number of segments: an input's value, else the largest id plus one."""
    return node.dims(index, "num_segments")[0] if len(node.inputs) > index else length_of(node, ids)


def _sorted(kind: str) -> Converter:
    def convert(node: Node) -> Expr:
        """Reduce (data, segment ids); an empty segment is 1 for products, else 0."""
        ids, count = node.expr(1), _count(node, 2, node.expr(1))
        reduced = combined_rows(node, kind, node.expr(0), ids, count)
        if neutral(kind, "int32") in (0, 1):  # which such a segment has already
            return reduced
        rows = counted_rows(node, ids, count, "int32", node.rank(0))
        return op.where(op.equal(rows, const(0)), op.zeros_like(reduced), reduced)

    return convert


def _mean(node: Node) -> Expr:
    return _averaged(node, node.expr(0), node.expr(1), 2, roots=False)


def _averaged(node: Node, data: Expr, ids: Expr, at: int, roots: bool) -> Expr:
    """Return segment sums divided by the number of rows or its square root; 0 for empty
    segments.
    """
    kind = node.typed(data)
    count = _count(node, at, ids)
    rows = counted_rows(node, ids, count, kind.dtype, len(kind.shape))
    rows = op.maximum(rows, const(1, kind.dtype))
    rows = op.sqrt(rows) if roots else rows
    return op.divide(combined_rows(node, "add", data, ids, count), rows)


def _sparse(how: str) -> list[Row]:
    def convert(node: Node) -> Expr:
        """Reduce the selected rows: (data, row indices, segment ids, number of segments)."""
        data, ids = taken(node, node.expr(0), node.expr(1), 0, 0), node.expr(2)
        if how == "Sum":
            return combined_rows(node, "add", data, ids, _count(node, 3, ids))
        return _averaged(node, data, ids, 3, how == "SqrtN")

    return [Row(f"SparseSegment{how}{end}", convert) for end in ("", "WithNumSegments")]


# Sparse tensors: coordinates [n, rank], values [n], a shape.


def _add(node: Node) -> Expr:
    """Add sparse to dense: (coordinates, values, shape, dense tensor)."""
    coordinates = op.transpose(node.expr(0), (1, 0))
    return op.scatter_nd(node.expr(3), coordinates, node.expr(1), "add")


def _product(node: Node) -> Expr:
    """Multiply sparse by dense (coordinates, values, shape, dense matrix): scaled rows, summed by
    row.
    """
    shape, flipped = node.dims(2, "shape"), node.flag("adjoint_a")
    row, column = (op.take(node.expr(0), const(np.int32(i)), axis=1) for i in (0, 1))
    row, column = (column, row) if flipped else (row, column)
    dense = op.transpose(node.expr(3), (1, 0)) if node.flag("adjoint_b") else node.expr(3)
    scaled_rows = op.multiply(op.expand_dims(node.expr(1), 1), taken(node, dense, column, 0, 0))
    return combined_rows(node, "add", scaled_rows, row, shape[1 if flipped else 0])


def _fill_rows(node: Node) -> Result:
    """Convert SparseFillEmptyRows: (coordinates, values, which rows were empty); the reverse index
    map is missing.
    """
    filled = op.sparse_fill_empty_rows(*node.exprs())
    return [filled[0], filled[1], filled[2], None]


def _reshape(node: Node) -> list[Expr]:
    reshaped = op.sparse_reshape(*node.exprs())
    return [reshaped[0], reshaped[1]]


# Counts and places.


def _bin_count(node: Node) -> Expr:
    """Count (numbers, number of bins, weights), or sum the weights; numbers beyond the bins are
    ignored.
    """
    (size,), dtype = node.dims(1, "size"), node.dtype(2)
    flat = op.reshape(node.expr(0), (-1,))
    nowhere = op.full_like(flat, const(-1, node.dtype(0)))
    bin_index = op.where(op.less(flat, op.reshape(node.expr(1), ())), flat, nowhere)
    has_none = known(node.shape(2)[0]) == 0 if node.rank(2) else False
    weights = op.ones_like(op.cast(flat, dtype)) if has_none else op.reshape(node.expr(2), (-1,))
    return combined_rows(node, "add", weights, bin_index, size)


def _unravel(node: Node) -> Expr:
    return op.unravel_index(node.expr(0), node.expr(1))


# fmt: off
ROWS = (
    *(Row(f"Segment{n}{v}", _sorted(k)) for v in ("", "V2") for n, k in SEGMENTS),
    Row("SegmentMean",             _mean),
    *(row for how in ("Sum", "Mean", "SqrtN") for row in _sparse(how)),
    Row("SparseTensorDenseAdd",    _add),
    Row("SparseTensorDenseMatMul", _product),
    Row("SparseFillEmptyRows",     _fill_rows),
    Row("SparseReshape",           _reshape),
    Row("Bincount",                _bin_count),
    Row("UnravelIndex",            _unravel),
)
# fmt: on
