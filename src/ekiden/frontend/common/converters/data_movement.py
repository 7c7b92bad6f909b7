"""Data-movement operators that TensorFlow and TensorFlow Lite share, with the same inputs and
attributes.

A row names the operator in both formats. A format's own tables have the operators that differ in
attributes; they call the functions here for the common part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from ekiden.frontend.common.composite_ops import broadcast_args
from ekiden.frontend.common.constant_folding import MAX_FOLDED_ELEMENTS
from ekiden.frontend.common.converters.resize import resize
from ekiden.frontend.common.dynamic_reshape import may_infer_extent, reshape_to_data
from ekiden.frontend.common.dynamic_squeeze import emit_squeeze_all
from ekiden.frontend.common.matmul import batched_take
from ekiden.frontend.common.node import AttributeNode, Result
from ekiden.frontend.common.non_max_suppression import non_max_suppression, pad_selected
from ekiden.frontend.common.segment_reduce import segment_reduce
from ekiden.frontend.common.strided_slice import MASK_NAMES, Subscript
from ekiden.frontend.common.value import known_value
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, as_dim, simplify_dim
from ekiden.topi.dimensions import known_int as number


def reshape(node: AttributeNode, shape: Sequence[Dim] | None = None) -> Result:
    """Convert Reshape (data, shape); `shape` replaces the second input."""
    if shape is None and may_infer_extent(node, 1):
        return reshape_to_data(node, allow_zero=True)
    shape = node.dims(1, "shape") if shape is None else shape
    value = node.value(0)
    if value.is_known and all(isinstance(d, int) for d in shape):
        sizes = tuple(d for d in shape if isinstance(d, int))
        return known_value(value.known_elements.reshape(sizes), node.dtype(0))
    return op.reshape(node.expr(0), shape, allowzero=0 in shape)


def transpose(node: AttributeNode) -> Expr:
    """Convert Transpose (data, permutation)."""
    return op.transpose(node.expr(0), node.constant_ints(1, "perm"))


def split(node: AttributeNode, count: int) -> Result:
    """Convert Split (axis, data) into equal parts."""
    (axis,) = node.constant_ints(0, "axis")
    return op.split(node.expr(1), count, axis=node.axis(axis, node.rank(1)))


def split_v(node: AttributeNode) -> Result:
    """Convert SplitV (data, sizes, axis); one size may be -1, the remaining extent."""
    (axis,) = node.constant_ints(2, "axis")
    axis = node.axis(axis, node.rank(0))
    sizes = list(node.constant_ints(1, "size_splits"))
    if -1 in sizes:
        extent = number(node.shape(0)[axis])
        if extent is None:
            node.reject(f"axis {axis}{node.input_label(0)} must be known for a size of -1")
        sizes[sizes.index(-1)] = extent - sum(s for s in sizes if s >= 0)
    split_points = [int(p) for p in np.cumsum(sizes)[:-1]]
    value = node.value(0)
    if value.is_known and value.known_elements.size <= MAX_FOLDED_ELEMENTS:
        pieces = np.split(value.known_elements, split_points, axis)
        return [known_value(np.asarray(p), node.dtype(0)) for p in pieces]
    return op.split(node.expr(0), split_points, axis=axis) if split_points else [node.expr(0)]


def convert_slice(node: AttributeNode) -> Expr:
    """Convert Slice (data, begin, size), whose bounds may be data; a size of -1 reaches to the end
    of the axis.
    """
    if None in (*node.partial_elements(1), *node.partial_elements(2)):
        begins, sizes = (op.cast(node.expr(i), "int64") for i in (1, 2))
        extents = op.cast(op.shape_of(node.expr(0)), "int64")
        ends = op.where(op.less(sizes, const(np.int64(0))), extents, op.add(begins, sizes))
        return op.strided_slice(node.expr(0), begins, ends)
    begin, size = node.dims(1, "begin"), node.dims(2, "size")
    rows = zip(node.shape(0), begin, size, strict=True)
    end = [d if number(s) == -1 else simplify_dim(as_dim(b) + as_dim(s)) for d, b, s in rows]
    return op.strided_slice(node.expr(0), begin, end)


def strided_slice(node: AttributeNode) -> Result:
    """Convert StridedSlice (data, begin, end, strides) with its bit masks."""
    masks = {mask: node.int_attribute(f"{mask}_mask") for mask in MASK_NAMES}
    begin, end, step = node.dims(1, "begin"), node.dims(2, "end"), node.constant_ints(3, "strides")
    subscript = Subscript(node, begin, end, step, masks)
    value = node.value(0)
    return (subscript.slice_known(value) if value.is_known else None) or subscript.lower()


def unpack(node: AttributeNode, count: int) -> Result:
    """Convert Unpack: return the `count` slices of an axis, without that axis."""
    axis, value = node.axis(node.int_attribute("axis"), node.rank(0)), node.value(0)
    if value.is_known and value.known_elements.size <= MAX_FOLDED_ELEMENTS:
        rows = np.moveaxis(value.known_elements, axis, 0)
        return [known_value(np.asarray(row), node.dtype(0)) for row in rows]
    return [op.take(node.expr(0), const(np.int32(i)), axis=axis) for i in range(count)]


def pad(node: AttributeNode, value: Expr | float) -> Expr:
    """Convert Pad (data, widths) with a constant value."""
    return op.nn.pad(node.expr(0), read_padding_pairs(node, 1), value)


def mirror_pad(node: AttributeNode, mode: str) -> Expr:
    """Convert MirrorPad (data, widths); the mode is "REFLECT" or "SYMMETRIC"."""
    widths: list[list[int]] = node.constant_array(1, "paddings").astype(np.int64).tolist()
    return op.nn.mirror_pad(node.expr(0), widths, mode)


def one_hot(node: AttributeNode) -> Expr:
    """Convert OneHot (indices, depth, on value, off value)."""
    (depth,) = node.dims(1, "depth")
    axis = node.axis(node.int_attribute("axis", -1), node.rank(0) + 1)
    return op.one_hot(node.expr(0), node.expr(2), node.expr(3), depth, axis, node.dtype(2))


def top_k(node: AttributeNode) -> Expr:
    """Convert TopK (data, k); TopK's older version has k as an attribute."""
    count = node.constant_ints(1, "k")[0] if len(node.inputs) > 1 else node.int_attribute("k")
    return op.topk(node.expr(0), count, axis=-1, ret_type="both", dtype="int32")


def arange(node: AttributeNode, dtype: str) -> Expr:
    """Convert Range (start, limit, step) of scalars; integer bounds may be shape expressions."""
    values = [node.value(i) for i in range(3)]
    if not is_float(dtype) and all(v.is_known for v in values) and values[2].array is not None:
        start, limit = (v.dims()[0] for v in values[:2])
        return op.arange(start, limit, int(values[2].array.item()), dtype)
    bounds = [op.reshape(node.expr(i), ()) for i in range(3)]
    return op.arange(bounds[0], bounds[1], bounds[2], dtype)


def squeeze(node: AttributeNode, axes: Sequence[int], rank: int | None = None) -> Result:
    """Convert Squeeze: drop these axes, or without any the axes of extent 1 among the
    first `rank`.
    """
    return op.squeeze(node.expr(0), axis=axes) if axes else emit_squeeze_all(node, rank)


def tile(node: AttributeNode) -> Expr:
    """Convert Tile (data, multiples)."""
    return op.tile(node.expr(0), node.dims(1, "multiples"))


def reverse(node: AttributeNode) -> Expr:
    """Convert Reverse (data, axes)."""
    result = node.expr(0)
    for axis in node.constant_ints(1, "axis"):
        result = op.reverse(result, axis=node.axis(axis, node.rank(0)))
    return result


def reverse_sequence(node: AttributeNode) -> Expr:
    """Convert ReverseSequence (data, lengths)."""
    axes = node.int_attribute("seq_dim"), node.int_attribute("batch_dim")
    return op.reverse_sequence(node.expr(0), node.expr(1), *axes)


def transpose_coordinates(node: AttributeNode, index: int) -> Expr:
    """Return an input of coordinates with the coordinate axis first, as Relay has it; TensorFlow
    has it last.
    """
    # TensorFlow's indices are [..., components]; Relay's gather_nd reads [components, ...].
    rank = node.rank(index)
    return op.transpose(node.expr(index), (rank - 1, *range(rank - 1)))


def gather_nd(node: AttributeNode) -> Expr:
    """Convert GatherNd (data, coordinates)."""
    return op.gather_nd(node.expr(0), transpose_coordinates(node, 1))


def gather(node: AttributeNode, axis: int) -> Expr:
    """Convert GatherV2 (data, indices) along an axis, with `batch_dims` shared leading axes."""
    batch = node.int_attribute("batch_dims")
    batch = batch + node.rank(1) if batch < 0 else batch
    return batched_take(node, node.expr(0), node.expr(1), node.axis(axis, node.rank(0)), batch)


def gather_rule(node: AttributeNode, inputs: Sequence[Array], axis: int) -> Array | None:
    """Gather from known data; return None for batches or for unknown indices."""
    data, indices = inputs[:2]
    if indices.dtype == np.object_ or node.int_attribute("batch_dims"):
        return None
    return np.asarray(np.take(data, indices, axis=axis))


def scatter_nd(node: AttributeNode) -> Expr:
    """Convert ScatterNd (coordinates, updates, shape) into zeros; updates of equal coordinates are
    summed.
    """
    zeros = op.zeros(node.dims(2, "shape"), node.dtype(1))
    return op.scatter_nd(zeros, transpose_coordinates(node, 0), node.expr(1), "add")


def sparse_to_dense(node: AttributeNode) -> Expr:
    """Convert SparseToDense (coordinates, shape, values, default)."""
    shape = node.dims(1, "output_shape")
    return op.sparse_to_dense(node.expr(0), shape, node.expr(2), node.expr(3))


def where(node: AttributeNode) -> Expr:
    """Convert Where: return the coordinates of non-zero elements as int64."""
    return op.cast(op.argwhere(node.expr(0)), "int64")


def expand_dims(node: AttributeNode) -> Expr:
    """Convert ExpandDims (data, axis)."""
    (axis,) = node.constant_ints(1, "axis")
    return op.expand_dims(node.expr(0), axis=node.axis(axis, node.rank(0) + 1))


def expand_dims_rule(node: AttributeNode, inputs: Sequence[Array]) -> Array | None:
    """Add an axis to known data; return None for an axis that is not known."""
    data, axis = inputs
    return None if axis.dtype == np.object_ else np.expand_dims(data, int(axis.ravel()[0]))


def fill(node: AttributeNode) -> Expr:
    """Convert Fill (shape, number)."""
    return op.full(node.expr(1), node.dims(0, "dims"), node.dtype(1))


def broadcast_to(node: AttributeNode) -> Expr:
    """Convert BroadcastTo (data, shape)."""
    return op.broadcast_to(node.expr(0), node.dims(1, "shape"))


def read_padding_pairs(node: AttributeNode, index: int) -> Sequence[Sequence[Dim]]:
    """Return the (before, after) padding of each axis, as numbers or dimensions."""
    if (array := node.value(index).array) is not None:
        numbers: list[list[int]] = array.astype(np.int64).tolist()
        return numbers
    flat = node.dims(index, "paddings")
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


def batch_to_space(node: AttributeNode) -> Expr:
    """Convert BatchToSpaceND (data, block, crops): a constant block; crops may depend on
    dimensions.
    """
    return op.nn.batch_to_space_nd(
        node.expr(0), node.constant_ints(1, "block_shape"), read_padding_pairs(node, 2)
    )


def unsorted_segment_converter(kind: str) -> Callable[[AttributeNode], Expr]:
    """Return the converter of an unsorted segment reduction (data, segment ids, count).

    An empty segment is the neutral element.
    """

    def convert(node: AttributeNode) -> Expr:
        """Convert an unsorted segment reduction (data, segment ids, number of segments)."""
        (count,) = node.dims(2, "segments")
        return segment_reduce(node, kind, node.expr(0), node.expr(1), count)

    return convert


SEGMENT_REDUCTIONS = (("Sum", "add"), ("Prod", "multiply"), ("Max", "maximum"), ("Min", "minimum"))
"""(end of an operator's name, what combines the rows of a segment)."""


def convert_non_max_suppression(
    node: AttributeNode, is_scored: bool, is_padded: bool
) -> Sequence[Expr]:
    """Convert NonMaxSuppression V3, V4 (`is_padded`) or V5 (`is_scored`).

    Returns positions, scores if `is_scored`, and their count; zero-padded if `is_padded`.
    """
    if is_scored and node.constant_array(5, "soft_nms_sigma").item() > 0:
        node.reject("scores that fade by overlap ('soft_nms_sigma' above 0)")
    limits = [op.reshape(node.expr(i), ()) for i in (2, 3, 4)]
    rows, count = non_max_suppression(node, node.expr(0), node.expr(1), *limits)
    if is_padded:
        (max_output,) = node.constant_ints(2, "max_output_size")
        positions, is_there = pad_selected(node, rows, count, max_output)
    else:
        positions = op.strided_slice(rows, const(np.zeros(1, np.int64)), count, axes=[0])
    total = op.reshape(op.cast(count, "int32"), ())
    if not is_scored:
        return [positions, total]
    scores = op.take(node.expr(1), positions, axis=0)
    if is_padded:
        scores = op.where(is_there, scores, op.zeros_like(scores))
    return [positions, scores, total]


@dataclass(frozen=True, slots=True)
class MovementRow:
    """Table entry of an operator of TensorFlow and TensorFlow Lite, with its name in each ("" where
    it does not have one).

    moved_inputs: the inputs whose elements it moves; those of TensorFlow Lite must share one scale.
    rule: the evaluation of elements known at import.
    """

    convert: Callable[[AttributeNode], Result]
    tensorflow: str = ""
    tflite: str = ""
    moved_inputs: tuple[int, ...] = (0,)
    rule: Callable[[AttributeNode, Sequence[Array]], Array | None] | None = None


# fmt: off
MOVEMENT_ROWS = (
    #                        TensorFlow                 TensorFlow Lite
    MovementRow(transpose,                  "Transpose",             "TRANSPOSE"),
    MovementRow(split_v,                    "SplitV",                "SPLIT_V"),
    MovementRow(convert_slice,              "Slice",                 "SLICE"),
    MovementRow(tile,                       "Tile",                  "TILE"),
    MovementRow(reverse,                    "ReverseV2",             "REVERSE_V2"),
    MovementRow(reverse_sequence,           "ReverseSequence",       "REVERSE_SEQUENCE"),
    MovementRow(gather_nd,                  "GatherNd",              "GATHER_ND"),
    MovementRow(scatter_nd,                 "ScatterNd",             "SCATTER_ND",      (1,)),
    MovementRow(sparse_to_dense,            "SparseToDense",         "SPARSE_TO_DENSE", (2, 3)),
    MovementRow(one_hot,                    "OneHot",                "ONE_HOT",         (2, 3)),
    MovementRow(top_k,                      "TopK TopKV2",           "TOPK_V2"),
    MovementRow(where,                      "Where",                 "WHERE"),
    MovementRow(expand_dims,                "ExpandDims", "EXPAND_DIMS", rule=expand_dims_rule),
    MovementRow(fill,                       "Fill",                  "FILL",            (1,)),
    MovementRow(broadcast_to,               "BroadcastTo",           "BROADCAST_TO"),
    MovementRow(broadcast_args,             "BroadcastArgs",         "BROADCAST_ARGS"),
    MovementRow(batch_to_space,             "BatchToSpaceND",        "BATCH_TO_SPACE_ND"),
    MovementRow(resize("nearest_neighbor"), "ResizeNearestNeighbor", "RESIZE_NEAREST_NEIGHBOR"),
    *(MovementRow(unsorted_segment_converter(kind), f"UnsortedSegment{name}",
                  f"UNSORTED_SEGMENT_{name.upper()}")
      for name, kind in SEGMENT_REDUCTIONS),
)
# fmt: on


def movement_rows(name: Literal["tensorflow", "tflite"]) -> Iterator[tuple[str, MovementRow]]:
    """Yield the table entries of a format as (operator, entry)."""
    return ((called, row) for row in MOVEMENT_ROWS for called in getattr(row, name).split())
