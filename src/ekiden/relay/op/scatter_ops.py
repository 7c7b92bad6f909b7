"""Scatter operators and advanced indexing: scatter_elements, scatter_nd, strided_set,
sequence_mask.

    scatter_elements(x, i, u, axis)[.., i[.., k, ..], ..] = u[.., k, ..]
    scatter_nd(x, i, u)[i[:, b..], ..] = u[b.., ..]        coordinates along the first axis

A mode says what becomes of the old value: update, add, mul, min, max. Where positions repeat,
updates are made in order, so that "update" leaves the last. Positions out of range are refused
before anything is written. Where nothing else needs x, it is changed in its place (UpdateInPlace).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpPattern
from ekiden.relay.expr import Call, Expr, const
from ekiden.relay.op._declare import call_op, check_indices, check_range
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.relay.op.dynamic import (
    DynamicAttrs,
    call_dynamic,
    check_non_negative,
    constant_value,
    declare_dynamic_op,
    dims_from_shape_argument,
    shape_vector_length,
    to_int_tuple,
    unknown_tensor_type,
)
from ekiden.relay.op.join import to_tuple_expr
from ekiden.te.range_checks import index_bound_text
from ekiden.topi.dimensions import Dim, Dims, as_shape, normalize_axis, to_attr_dims


@node("relay.attrs.ScatterElementsAttrs")
class ScatterElementsAttrs(Attrs):
    """Attributes of scatter_elements: the axis, and the reduction ("update", "add", "mul", "mean",
    "min", "max").
    """

    axis: int = 0
    reduction: str = "update"


@node("relay.attrs.ScatterNDAttrs")
class ScatterNDAttrs(Attrs):
    """Attributes of scatter_nd: the reduction ("update", "add", "mul", "min", "max")."""

    mode: str = "update"


@node("relay.attrs.SparseToDenseAttrs")
class SparseToDenseAttrs(Attrs):
    """Attributes of sparse_to_dense: the output shape."""

    output_shape: Dims = ()


@node("relay.attrs.SequenceMaskAttrs")
class SequenceMaskAttrs(Attrs):
    """Attributes of sequence_mask: mask value and sequence axis (0 or 1)."""

    mask_value: float = 0.0
    axis: int = 0


@node("relay.attrs.ReverseSequenceAttrs")
class ReverseSequenceAttrs(Attrs):
    """Attributes of reverse_sequence: sequence and batch axes."""

    seq_axis: int = 1
    batch_axis: int = 0


def _adv_index_reference(attrs: None, data: Array, *indices: Array) -> Array:
    joint = np.broadcast_shapes(*(i.shape for i in indices))
    shape = (*joint, *data.shape[len(indices) :])
    if 0 in shape:  # nothing is read
        return np.empty(shape, data.dtype)
    for n, index in enumerate(indices):
        check_indices("adv_index", index, data.shape[n], n, f"index {n}")
    return np.asarray(data[tuple(i.astype(np.int64) for i in indices)])


declare_topi_op(
    "scatter_elements",
    ("data", "indices", "updates"),
    lambda attrs, data, indices, updates: topi.scatter_elements(
        data, indices, updates, attrs.axis, attrs.reduction
    ),
    "the type of data",
    ScatterElementsAttrs,
    refuses=True,
    costly=True,
)
declare_topi_op(
    "scatter_nd",
    ("data", "indices", "updates"),
    lambda attrs, data, indices, updates: topi.scatter_nd(data, indices, updates, attrs.mode),
    "the type of data",
    ScatterNDAttrs,
    refuses=True,
    costly=True,
)
declare_topi_op(
    "sparse_to_dense",
    ("sparse_indices", "sparse_values", "default_value"),
    lambda attrs, indices, values, default: topi.sparse_to_dense(
        indices, as_shape(attrs.output_shape), values, default
    ),
    "`output_shape`, with the dtype of the values",
    SparseToDenseAttrs,
    refuses=True,
)


def _sparse_to_dense_reference(
    attrs: DynamicAttrs, indices: Array, values: Array, default: Array, shape: Array
) -> Array:
    sizes = check_non_negative("dyn.sparse_to_dense", "a dimension", to_int_tuple(shape))
    dense = np.full(sizes, default, values.dtype)
    if not dense.size or not dense.ndim:  # no place, or no position of it
        return dense
    offset = indices.reshape(-1, dense.ndim)
    for n, extent in enumerate(dense.shape):
        check_indices("sparse_to_dense", offset[:, n], extent, n)
    # In order: of equal positions the last value stays.
    for position, value in zip(offset, np.broadcast_to(values, len(offset)), strict=True):
        dense[tuple(position)] = value
    return dense


declare_dynamic_op(
    "dyn.sparse_to_dense",
    ("sparse_indices", "sparse_values", "default_value", "output_shape"),
    DynamicAttrs,
    lambda attrs, types: unknown_tensor_type(
        shape_vector_length("dyn.sparse_to_dense", "output_shape", types[3]), types[1].dtype
    ),
    dims_from_shape_argument,
    lambda attrs, inputs, out: [topi.sparse_to_dense(inputs[0], out.shape, inputs[1], inputs[2])],
    _sparse_to_dense_reference,
    "`output_shape`, with the dtype of the values",
    OpPattern.OPAQUE,
    sizes=(3,),
    refuses=True,
)
declare_topi_op(
    "strided_set",
    ("data", "v", "begin", "end", "strides"),
    lambda attrs, data, v, begin, end, strides: topi.strided_set(data, v, begin, end, strides),
    "the type of data",
)
declare_topi_op(
    "adv_index",
    ("inputs",),
    lambda attrs, data, *indices: topi.adv_index(data, indices),
    "what the indices broadcast to, then the axes that are not indexed",
    pattern=OpPattern.INJECTIVE,
    variadic=True,
    reference=_adv_index_reference,
    refuses=True,
)
declare_topi_op(
    "sequence_mask",
    ("data", "valid_length"),
    lambda attrs, data, lengths: topi.sequence_mask(data, lengths, attrs.mask_value, attrs.axis),
    "the type of data",
    SequenceMaskAttrs,
    pattern=OpPattern.INJECTIVE,
)


def _reverse_sequence_reference(attrs: ReverseSequenceAttrs, data: Array, lengths: Array) -> Array:
    along, size = normalize_axis(attrs.seq_axis, data.ndim, ""), data.shape[attrs.seq_axis]
    if not data.size:  # nothing is read
        return data
    subject = "reverse_sequence: length"
    check_range(subject, lengths, (0, size + 1), index_bound_text(along), (size,))
    reversed_data = data.copy()
    rows, moved = (
        np.moveaxis(data, attrs.batch_axis, 0),
        np.moveaxis(reversed_data, attrs.batch_axis, 0),
    )
    axis = attrs.seq_axis % data.ndim
    # Of a row, which has lost the batch axis.
    axis -= attrs.batch_axis % data.ndim < axis
    for row, target, length in zip(rows, moved, lengths, strict=True):
        # Elements behind a sequence's length keep their places.
        prefix = (slice(None),) * axis + (slice(0, int(length)),)
        target[prefix] = np.flip(row[prefix], axis)
    return reversed_data


declare_topi_op(
    "reverse_sequence",
    ("data", "seq_lengths"),
    lambda attrs, data, lengths: topi.reverse_sequence(
        data, lengths, attrs.seq_axis, attrs.batch_axis
    ),
    "the type of data",
    ReverseSequenceAttrs,
    pattern=OpPattern.INJECTIVE,
    reference=_reverse_sequence_reference,
    refuses=True,
)


def scatter_elements(
    data: Expr, indices: Expr, updates: Expr, axis: int = 0, reduction: str = "update"
) -> Call:
    """Scatter updates into `data`: data[i, ..., indices[i, ..., k], ..., k] is updated by
    updates[i, ..., k].
    """
    attrs = ScatterElementsAttrs(axis, reduction)
    return call_op("scatter_elements", data, indices, updates, attrs=attrs)


def scatter_nd(data: Expr, indices: Expr, updates: Expr, mode: str = "update") -> Call:
    """Scatter slices into `data` at coordinates held by the first axis of `indices`."""
    return call_op("scatter_nd", data, indices, updates, attrs=ScatterNDAttrs(mode))


def sparse_to_dense(
    sparse_indices: Expr,
    output_shape: Sequence[Dim] | Expr,
    sparse_values: Expr,
    default_value: Expr | float = 0,
    dtype: str = "",
) -> Call:
    """Return a dense tensor with values at coordinates and a default elsewhere.

    The shape may be data.
    """
    if isinstance(default_value, Expr):
        default = default_value
    else:
        default = const(default_value, dtype or None)
    if (shape := constant_value(output_shape)) is None:
        assert isinstance(output_shape, Expr)
        operands = sparse_indices, sparse_values, default, output_shape
        return call_dynamic("sparse_to_dense", *operands, attrs=DynamicAttrs())
    attrs = SparseToDenseAttrs(to_attr_dims(shape))
    return call_op("sparse_to_dense", sparse_indices, sparse_values, default, attrs=attrs)


def strided_set(data: Expr, v: Expr, begin: Expr, end: Expr, strides: Expr | None = None) -> Call:
    """Return `data` with the slice begin:end:strides of its leading axes replaced by `v`.

    Without strides they are 1.
    """
    # The length of `begin` may be data's: its ones have the same.
    steps = call_op("ones_like", begin) if strides is None else strides
    return call_op("strided_set", data, v, begin, end, steps)


def adv_index(inputs: Sequence[Expr] | Expr) -> Call:
    """Return NumPy advanced indexing `data[i0, i1, ...]` of the tuple (data, i0, i1, ...)."""
    return call_op("adv_index", to_tuple_expr(inputs))


def sequence_mask(data: Expr, valid_length: Expr, mask_value: float = 0.0, axis: int = 0) -> Call:
    """Replace the elements at or beyond each batch's valid length by the mask value."""
    return call_op("sequence_mask", data, valid_length, attrs=SequenceMaskAttrs(mask_value, axis))


def reverse_sequence(data: Expr, seq_lengths: Expr, seq_axis: int = 1, batch_axis: int = 0) -> Call:
    """Reverse the first `seq_lengths[b]` elements of each batch."""
    attrs = ReverseSequenceAttrs(seq_axis, batch_axis)
    return call_op("reverse_sequence", data, seq_lengths, attrs=attrs)


__all__ = [
    "adv_index", "reverse_sequence", "scatter_elements", "scatter_nd", "sequence_mask",
    "sparse_to_dense", "strided_set",
]  # fmt: skip
