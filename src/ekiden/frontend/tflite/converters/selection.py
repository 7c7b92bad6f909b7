"""Converters of lookups, segment sums, diagonals, bit casts and non-maximum suppression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.composite_ops import append_unit_axes, bucketize, unique_in_order
from ekiden.frontend.common.converters.data_movement import convert_non_max_suppression
from ekiden.frontend.common.converters.stablehlo import dynamic_update_slice
from ekiden.frontend.common.matmul import batched_take
from ekiden.frontend.common.segment_reduce import num_segments, segment_reduce
from ekiden.frontend.tflite.integer_arithmetic import is_quantized, quant_params
from ekiden.frontend.tflite.load import TENSOR_DTYPES
from ekiden.frontend.tflite.node import QuantizedPolicy, TfliteNode, TfliteRow
from ekiden.ir.dtype import itemsize
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import as_dim, product_of_dims, to_attr_dims

MOVES_ELEMENTS = QuantizedPolicy.MOVES_ELEMENTS


def _unique(node: TfliteNode) -> list[Expr]:
    values, which = unique_in_order(node.expr(0))
    return [values, op.cast(which, TENSOR_DTYPES[node.read_option("IdxOutType", 2)])]


def _matrix_diag(node: TfliteNode) -> Expr:
    shape = node.shape(0)
    empty = op.zeros(to_attr_dims((*shape, shape[-1])), node.dtype(0))
    return op.matrix_set_diag(empty, node.expr(0))


def _matrix_set_diag(node: TfliteNode) -> Expr:
    return op.matrix_set_diag(node.expr(0), node.expr(1))


def _dynamic_update_slice(node: TfliteNode) -> Expr:
    """Convert DYNAMIC_UPDATE_SLICE (data, update, starts), clamped so that the update fits."""
    starts = (op.take(node.expr(2), const(np.int32(i)), axis=0) for i in range(node.rank(0)))
    return dynamic_update_slice(node, [node.bind_shared(start) for start in starts])


def _bitcast(node: TfliteNode) -> Expr:
    """Convert BITCAST; a last axis is added or removed where element sizes differ."""
    data, source, target = node.expr(0), node.dtype(0), node.outs[0].dtype
    have, want = itemsize(source), itemsize(target)
    if "bool" in (source, target):
        node.reject(f"bits of {source} as {target} are not supported")
    if have == want:
        return op.reinterpret(data, target)
    bits, target_bits = f"uint{8 * have}", f"uint{8 * want}"
    data = data if source == bits else op.reinterpret(data, bits)
    if have > want:
        words = [
            op.cast(op.right_shift(data, const(8 * want * i, bits)), target_bits)
            for i in range(have // want)
        ]
        integers: Expr = op.stack(words, axis=-1)
    else:
        steps = const(np.arange(0, 8 * want, 8 * have), target_bits)
        integers = op.sum(op.left_shift(op.cast(data, target_bits), steps), axis=[-1])
    return integers if target == target_bits else op.reinterpret(integers, target)


def _dilate(node: TfliteNode) -> Expr:
    """Convert DILATE (data, dilations, value): base dilation with a fill value."""
    value = node.constant_array(2, "padding value").item()
    return op.nn.dilate(node.expr(0), node.constant_ints(1, "dilations"), float(value))


def _bucketize(node: TfliteNode) -> Expr:
    edges = [float(b) for b in node.operation.options.BoundariesAsNumpy()]
    return bucketize(node.expr(0), node.dtype(0), edges)


# Segments.


def _segment_sum(node: TfliteNode) -> Expr:
    return segment_reduce(node, "add", node.expr(0), node.expr(1), num_segments(node, node.expr(1)))


# Tables.


def _embedding_lookup(node: TfliteNode) -> Expr:
    """Convert EMBEDDING_LOOKUP: rows of a table; a quantized table is dequantized."""
    rows = batched_take(node, node.expr(1), node.expr(0), 0, 0)
    if not is_quantized(node) or node.outs[0].dtype != "float32":
        return rows
    table = node.ins[1]
    if quant_params(node, table).zero_point:
        node.reject(f"{table} must have the zero point 0")
    return op.multiply(op.cast(rows, "float32"), const(quant_params(node, table).scale))


def _hashtable_lookup(node: TfliteNode) -> list[Expr]:
    """Convert HASHTABLE_LOOKUP (queries, sorted keys, values) to the rows, zero on a miss, and a
    hit mask.
    """
    numbers, keys, values = node.exprs()
    count = node.scope.emit_dim(node.shape(1)[0])
    # HASHTABLE_LOOKUP requires ascending keys.
    position = op.searchsorted(keys, numbers, dtype="int32")
    position = op.minimum(position, op.cast(op.subtract(count, const(np.int64(1))), "int32"))
    hits = op.equal(op.take(keys, position, axis=0), numbers)
    rows = op.take(values, position, axis=0)
    shown = append_unit_axes(hits, node.rank(2) - 1)
    return [op.where(shown, rows, op.zeros_like(rows)), op.cast(hits, "uint8")]


def _embedding_lookup_sparse(node: TfliteNode) -> Expr:
    """Convert EMBEDDING_LOOKUP_SPARSE (ids, coordinates, shape, weights, table): combine weighted
    rows over the last axis.
    """
    ids, coordinates, _, weights, table = node.exprs()
    shape = node.dims(2, "dense shape")
    lead, rank = shape[:-1], node.rank(4)
    flat = op.zeros_like(ids)
    for axis, extent in enumerate(lead):
        along = op.take(coordinates, const(np.int32(axis)), axis=1)
        flat = op.add(
            op.multiply(flat, op.cast(node.scope.emit_dim(as_dim(extent)), "int32")), along
        )
    wide = op.expand_dims(weights, axis=1, num_newaxis=rank - 1)
    rows = op.multiply(batched_take(node, table, ids, 0, 0), wide)
    count = product_of_dims([as_dim(d) for d in lead])
    combined = segment_reduce(node, "add", rows, flat, count)
    kind = node.read_option("Combiner")
    if kind:  # 1 a mean, 2 by the root of squares
        norm_terms = weights if kind == 1 else op.multiply(weights, weights)
        total = segment_reduce(node, "add", norm_terms, flat, count)
        total = total if kind == 1 else op.sqrt(total)
        # Rows without ids have a total of 0 and stay zero.
        total = op.where(op.equal(total, const(0.0)), const(1.0), total)
        combined = op.divide(combined, op.expand_dims(total, axis=1, num_newaxis=rank - 1))
    return op.reshape(combined, to_attr_dims((*lead, *node.shape(4)[1:])), allowzero=True)


# Boxes.


def _non_max_suppression(node: TfliteNode) -> Sequence[Expr]:
    return convert_non_max_suppression(node, node.operation.code.endswith("V5"), is_padded=True)


# fmt: off
ROWS = (
    TfliteRow("UNIQUE",                  _unique),
    TfliteRow("MATRIX_DIAG",             _matrix_diag,      MOVES_ELEMENTS),
    TfliteRow("MATRIX_SET_DIAG",         _matrix_set_diag,  MOVES_ELEMENTS, moved_inputs=(0, 1)),
    TfliteRow("DYNAMIC_UPDATE_SLICE",    _dynamic_update_slice,     MOVES_ELEMENTS,
        moved_inputs=(0, 1)),
    TfliteRow("BITCAST",                 _bitcast),
    TfliteRow("DILATE",                  _dilate,           MOVES_ELEMENTS, moved_inputs=(0, 2)),
    TfliteRow("BUCKETIZE",               _bucketize),
    TfliteRow("SEGMENT_SUM",             _segment_sum),
    TfliteRow("EMBEDDING_LOOKUP",        _embedding_lookup,
        QuantizedPolicy.CONVERTER_HANDLED),
    TfliteRow("EMBEDDING_LOOKUP_SPARSE", _embedding_lookup_sparse),
    TfliteRow("HASHTABLE_LOOKUP",        _hashtable_lookup),
    TfliteRow("NON_MAX_SUPPRESSION_V4",  _non_max_suppression),
    TfliteRow("NON_MAX_SUPPRESSION_V5",  _non_max_suppression),
)
# fmt: on
