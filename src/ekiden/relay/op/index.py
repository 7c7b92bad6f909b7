"""Indexing operators with tensor indices: take, gather, gather_nd, one_hot.

    take(x, i, axis)[a.., b.., c..] = x[a.., i[b..], c..]           one axis of x by any tensor
    gather(x, i, axis)[a.., k, c..] = x[a.., i[a.., k, c..], c..]   one index for each element
    gather_nd(x, i)[b.., c..] = x[i[0, b..], i[1, b..], .., c..]    coordinates along the first axis

ONNX's Gather is take(mode="raise"), its GatherElements gather, its GatherND gather_nd with the last
axis of indices moved to the front (there coordinates stand last). An index out of range is an error
of the run that names node, index and axis: it was a read of other memory, or the row of a
neighbour. The check is a pass over the indices in vectors: a lookup of 128 rows of 768 floats takes
12.5 us with it and 12.4 without (Zen 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_int, to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, PrecisionPolicy, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_indices,
    check_min_rank,
    check_range,
    check_rank,
    check_same_dtype,
    check_tensors,
    raise_type_error,
    shape_text,
)
from ekiden.relay.op.dynamic import call_dynamic, constant_value
from ekiden.relay.op.dynamic_select import DynOneHotAttrs
from ekiden.te import Tensor
from ekiden.te.range_checks import extent_checks
from ekiden.topi.dimensions import Dim, as_dim, as_ints, known_int, normalize_axis, require_shape
from ekiden.topi.index import MAX_INT32_EXTENT


@node("relay.attrs.TakeAttrs")
class TakeAttrs(Attrs):
    """Attributes of take: the axis (None: flattened data) and the mode for out-of-range indices.

    mode "clip" moves it to the nearest end, "wrap" counts modulo the extent, "fast" promises that
    there is none; "raise" refuses it, and counts negative ones from the end.
    """

    batch_dims: int = 0
    axis: int | None = None
    mode: str = "clip"


TAKE_MODES = ("clip", "wrap", "fast", "raise")


def _check_indices(name: str, indices: TensorType) -> None:
    if not is_int(indices.dtype):
        raise_type_error(name, f"'indices' must be integers, got {indices.dtype}")


def _take_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, indices = check_tensors("take", types, 2)
    settings = check_attrs(TakeAttrs, attrs)
    _check_indices("take", indices)
    if settings.mode not in TAKE_MODES:
        raise_type_error(
            "take", f"mode must be one of {', '.join(TAKE_MODES)}, got {settings.mode!r}"
        )
    if settings.batch_dims != 0:
        raise_type_error("take", f"batch_dims must be 0, got {settings.batch_dims}")
    if settings.axis is None:
        return TensorType(indices.shape, data.dtype)
    axis_index = call_shape_rule("take", normalize_axis, settings.axis, len(data.shape), "take")
    return TensorType(
        (*data.shape[:axis_index], *indices.shape, *data.shape[axis_index + 1 :]), data.dtype
    )


def _take_reference(attrs: TakeAttrs, data: Array, indices: Array) -> Array:
    """Take as NumPy does, with 64-bit indices so that unsigned ones do not wrap.

    Modes that move indices need an element to move them to; "raise" refuses all indices if there is
    none.
    """
    wide = indices.astype(np.int64)
    axis_index = 0 if attrs.axis is None else attrs.axis % data.ndim
    sliced = () if attrs.axis is None else data.shape
    shape = (*sliced[:axis_index], *indices.shape, *sliced[axis_index + 1 :])
    if 0 in shape:  # nothing is read
        return np.empty(shape, data.dtype)
    if attrs.mode != "raise":
        extent, axis = _axis_extent(data, attrs.axis)
        along = "" if axis is None else f" along axis {axis}"
        # An empty axis has no element to clip an index to.
        check_range(f"take: extent of 'data'{along}", np.asarray(extent), (1, MAX_INT32_EXTENT))
    if attrs.mode == "raise":
        check_indices("take", indices, *_axis_extent(data, attrs.axis))
        return np.asarray(np.take(data, wide, axis=attrs.axis))
    if attrs.mode == "wrap":  # NumPy's own mode adds the extent until an index is in range
        # Python's remainder has the sign of the extent, so that -1 is the last index.
        wide = wide % extent
    return np.asarray(np.take(data, wide, axis=attrs.axis, mode="clip"))


def _axis_extent(data: Array, axis: int | None) -> tuple[int, int | None]:
    """Return the extent of the indexed axis, and the axis."""
    return (data.size, None) if axis is None else (data.shape[axis], axis % data.ndim)


def _lower_take(attrs: TakeAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    axis = None if attrs.axis is None else attrs.axis % inputs[0].ndim
    return [topi.take(inputs[0], inputs[1], axis, mode=attrs.mode)]


register_op(
    OpDef(
        name="take",
        is_expensive=True,
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data", "indices"),
        attrs=TakeAttrs,
        relation=_take_relation,
        reference=_take_reference,
        lower=_lower_take,
        pattern=OpPattern.INJECTIVE,
        may_fail=True,
        result="data's shape with `axis` replaced by the shape of indices; the shape of indices "
        "without an axis",
    )
)


def take(
    data: Expr, indices: Expr, axis: int | None = None, batch_dims: int = 0, mode: str = "clip"
) -> Call:
    """Select slices of `data` at `indices` along an axis."""
    return call_op("take", data, indices, attrs=TakeAttrs(batch_dims, axis, mode))


@node("relay.attrs.GatherAttrs")
class GatherAttrs(Attrs):
    """Attributes of gather: the indexed axis."""

    axis: int = 0


def _gather_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, indices = check_tensors("gather", types, 2)
    _check_indices("gather", indices)
    call_shape_rule(
        "gather",
        normalize_axis,
        check_attrs(GatherAttrs, attrs).axis,
        len(data.shape),
        "gather",
    )
    if len(data.shape) != len(indices.shape):
        raise_type_error(
            "gather",
            f"'indices' must have the rank of 'data', got {shape_text(indices.shape)} for"
            f" {shape_text(data.shape)}",
        )
    axis_index = check_attrs(GatherAttrs, attrs).axis % len(data.shape)
    call_shape_rule("gather", extent_checks, "gather", indices.shape, data.shape, axis_index)
    return TensorType(indices.shape, data.dtype)


def _gather_reference(attrs: GatherAttrs, data: Array, indices: Array) -> Array:
    """Gather along one axis; along the others the indices may cover a prefix of the data."""
    axis_index = normalize_axis(attrs.axis, data.ndim, "gather")
    check_indices("gather", indices, data.shape[axis_index], axis_index)
    # Sparse: an axis of indices for each dimension, which broadcast, not a full grid.
    positions: list[Array] = list(np.indices(indices.shape, sparse=True))
    wide = indices.astype(np.int64)
    positions[axis_index] = np.where(wide < 0, wide + data.shape[axis_index], wide)
    return np.asarray(data[tuple(positions)])


register_op(
    OpDef(
        name="gather",
        is_expensive=True,
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data", "indices"),
        attrs=GatherAttrs,
        relation=_gather_relation,
        reference=_gather_reference,
        lower=lambda attrs, inputs, out: [
            topi.gather(inputs[0], attrs.axis % inputs[0].ndim, inputs[1])
        ],
        pattern=OpPattern.INJECTIVE,
        may_fail=True,
        result="the shape of indices",
    )
)


def gather(data: Expr, axis: int, indices: Expr) -> Call:
    """Gather `data[i, ..., indices[i, ..., k], ..., k]`, one index per result element.

    Negative indices count from the end.
    """
    return call_op("gather", data, indices, attrs=GatherAttrs(axis))


@node("relay.attrs.GatherNDAttrs")
class GatherNDAttrs(Attrs):
    """Attributes of gather_nd: the number of batch dimensions, and the number of coordinates where
    known.
    """

    batch_dims: int = 0
    index_rank: int | None = None


def _gather_nd_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, indices = check_tensors("gather_nd", types, 2)
    settings = check_attrs(GatherNDAttrs, attrs)
    _check_indices("gather_nd", indices)
    check_min_rank("gather_nd", indices, 1, "indices")
    # The rank of the result follows from the number of coordinates: it must be a constant.
    count = known_int(indices.shape[0]) if settings.index_rank is None else settings.index_rank
    if count is None:
        raise_type_error(
            "gather_nd",
            f"the first extent of 'indices' must be a number, got {shape_text(indices.shape)}",
        )
    call_shape_rule("gather_nd", require_shape, "gather_nd", "indices", indices.shape[:1], (count,))
    if settings.batch_dims < 0:
        raise_type_error("gather_nd", f"batch_dims must not be negative, got {settings.batch_dims}")
    if settings.batch_dims >= len(indices.shape):
        actual = f"got {len(indices.shape)} and {settings.batch_dims}"
        raise_type_error("gather_nd", f"'indices' must have more axes than batch_dims, {actual}")
    if count + settings.batch_dims > len(data.shape):
        raise_type_error(
            "gather_nd", f"{count} coordinates are too many for {shape_text(data.shape)}"
        )
    shared = settings.batch_dims
    leading = indices.shape[1 : 1 + shared], data.shape[:shared]
    call_shape_rule("gather_nd", extent_checks, "gather_nd", *leading)
    return TensorType((*indices.shape[1:], *data.shape[shared + count :]), data.dtype)


def _gather_nd_reference(attrs: GatherNDAttrs, data: Array, indices: Array) -> Array:
    """Return out[n.., m..] = data[n.., i[:, n.., m..]], with n the first `batch_dims` axes.

    Without any coordinates the whole data is repeated.
    """
    wide, batch = indices.astype(np.int64), attrs.batch_dims
    shape = (*indices.shape[1:], *data.shape[batch + len(indices) :])
    if 0 in shape:  # nothing is read
        return np.empty(shape, data.dtype)
    if not len(indices) and not batch:
        return np.broadcast_to(data, shape)
    for n, coordinate in enumerate(indices):
        check_indices("gather_nd", coordinate, data.shape[batch + n], batch + n)
    # One index per batch axis, shaped to broadcast against the coordinates.
    leading = [
        np.arange(wide.shape[1 + i]).reshape((-1,) + (1,) * (wide.ndim - 2 - i))
        for i in range(batch)
    ]
    # Negative coordinates count from the end of their axis.
    wrapped = [np.where(f < 0, f + data.shape[batch + i], f) for i, f in enumerate(wide)]
    return np.asarray(data[(*leading, *wrapped)])


def _lower_gather_nd(attrs: GatherNDAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    count = known_int(inputs[1].shape[0]) if attrs.index_rank is None else attrs.index_rank
    assert count is not None, "checked by the relation"
    return [topi.gather_nd(inputs[0], inputs[1], attrs.batch_dims, count)]


register_op(
    OpDef(
        name="gather_nd",
        is_expensive=True,
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data", "indices"),
        attrs=GatherNDAttrs,
        relation=_gather_nd_relation,
        reference=_gather_nd_reference,
        lower=_lower_gather_nd,
        pattern=OpPattern.INJECTIVE,
        may_fail=True,
        result="(*indices.shape[1:], *data.shape[indices.shape[0]:])",
    )
)


def gather_nd(
    data: Expr, indices: Expr, batch_dims: int = 0, index_rank: int | None = None
) -> Call:
    """Gather slices of `data` at coordinates held by the first axis of `indices`.

    Negative coordinates count from the end.
    """
    return call_op("gather_nd", data, indices, attrs=GatherNDAttrs(batch_dims, index_rank))


@node("relay.attrs.OneHotAttrs")
class OneHotAttrs(Attrs):
    """Attributes of one_hot: depth, axis and dtype."""

    depth: Dim = 1
    axis: int = -1
    dtype: str = "float32"


def _one_hot_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    indices, on_value, off_value = check_tensors("one_hot", types, 3)
    settings = check_attrs(OneHotAttrs, attrs)
    _check_indices("one_hot", indices)
    check_rank("one_hot", on_value, 0, "on_value")
    check_rank("one_hot", off_value, 0, "off_value")
    if check_same_dtype("one_hot", (on_value, off_value)) != settings.dtype:
        raise_type_error(
            "one_hot", f"the values must have dtype {settings.dtype}, got {on_value.dtype}"
        )
    axis_index = call_shape_rule(
        "one_hot", normalize_axis, settings.axis, len(indices.shape) + 1, "one_hot"
    )
    return TensorType(
        (*indices.shape[:axis_index], as_dim(settings.depth), *indices.shape[axis_index:]),
        settings.dtype,
    )


def _one_hot_reference(
    attrs: OneHotAttrs, indices: Array, on_value: Array, off_value: Array
) -> Array:
    # An index outside of [0, depth) equals no position, so all its values are off.
    (depth,) = as_ints((attrs.depth,))
    axis_index = normalize_axis(attrs.axis, indices.ndim + 1, "one_hot")
    positions = np.arange(depth).reshape((depth,) + (1,) * (indices.ndim - axis_index))
    chosen = np.expand_dims(indices, axis_index).astype(np.int64) == positions
    return np.where(chosen, on_value, off_value).astype(to_numpy(attrs.dtype))


register_op(
    OpDef(
        name="one_hot",
        arguments=("indices", "on_value", "off_value"),
        attrs=OneHotAttrs,
        relation=_one_hot_relation,
        reference=_one_hot_reference,
        lower=lambda attrs, inputs, out: [
            topi.one_hot(
                inputs[0],
                inputs[1],
                inputs[2],
                as_dim(attrs.depth),
                attrs.axis % (inputs[0].ndim + 1),
            )
        ],
        pattern=OpPattern.INJECTIVE,
        result="the shape of indices with `depth` inserted at `axis`",
    )
)


def one_hot(
    indices: Expr,
    on_value: Expr,
    off_value: Expr,
    depth: Dim | Expr,
    axis: int = -1,
    dtype: str = "float32",
) -> Call:
    """Encode indices as one-hot vectors of `on_value` and `off_value` along a new axis."""
    number = constant_value(depth)
    if number is None:
        assert isinstance(depth, Expr)
        attrs = DynOneHotAttrs(axis, dtype)
        return call_dynamic("one_hot", indices, on_value, off_value, depth, attrs=attrs)
    return call_op("one_hot", indices, on_value, off_value, attrs=OneHotAttrs(number, axis, dtype))


__all__ = [
    "gather",
    "gather_nd",
    "one_hot",
    "take",
]  # fmt: skip
