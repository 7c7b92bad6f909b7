"""Operators whose indices are data: take, gather, one-hot.

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
from ekiden.ir.op import Array, OpDef, OpPattern, Precision, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    attempt,
    attrs_of,
    call,
    check_indices,
    check_range,
    fail,
    one_dtype,
    rank_at_least,
    rank_is,
    show,
    tensors,
)
from ekiden.relay.op.dynamic import constant_of, dynamic
from ekiden.relay.op.dynamic_select import DynOneHotAttrs
from ekiden.te import Tensor
from ekiden.te.range_checks import extent_checks
from ekiden.topi.dimensions import Dim, as_dim, as_ints, expect_shape, known, normalize_axis
from ekiden.topi.index import EXTENT_LIMIT


@node("relay.attrs.TakeAttrs")
class TakeAttrs(Attrs):
    """The axis to index (None: the flattened data) and what happens to an index out of range.

    mode "clip" moves it to the nearest end, "wrap" counts modulo the extent, "fast" promises that
    there is none; "raise" refuses it, and counts negative ones from the end.
    """

    batch_dims: int = 0
    axis: int | None = None
    mode: str = "clip"


TAKE_MODES = ("clip", "wrap", "fast", "raise")


def _check_indices(name: str, indices: TensorType) -> None:
    if not is_int(indices.dtype):
        fail(name, f"'indices' must be integers, got {indices.dtype}")


def _take_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, indices = tensors("take", types, 2)
    settings = attrs_of(TakeAttrs, attrs)
    _check_indices("take", indices)
    if settings.mode not in TAKE_MODES:
        fail("take", f"mode must be one of {', '.join(TAKE_MODES)}, got {settings.mode!r}")
    if settings.batch_dims != 0:
        fail("take", f"batch_dims must be 0, got {settings.batch_dims}")
    if settings.axis is None:
        return TensorType(indices.shape, data.dtype)
    at = attempt("take", normalize_axis, settings.axis, len(data.shape), "take")
    return TensorType((*data.shape[:at], *indices.shape, *data.shape[at + 1 :]), data.dtype)


def _take_reference(attrs: TakeAttrs, data: Array, indices: Array) -> Array:
    """Return NumPy's take, with indices of 64 bits so that unsigned ones do not wrap.

    Modes that move indices need an element to move them to; "raise" refuses all indices if there is
    none.
    """
    wide = indices.astype(np.int64)
    at = 0 if attrs.axis is None else attrs.axis % data.ndim
    sliced = () if attrs.axis is None else data.shape
    shape = (*sliced[:at], *indices.shape, *sliced[at + 1 :])
    if 0 in shape:  # nothing is read
        return np.empty(shape, data.dtype)
    if attrs.mode != "raise":
        extent, axis = _axis_of(data, attrs.axis)
        along = "" if axis is None else f" along axis {axis}"
        check_range(f"take: extent of 'data'{along}", np.asarray(extent), (1, EXTENT_LIMIT))
    if attrs.mode == "raise":
        check_indices("take", indices, *_axis_of(data, attrs.axis))
        return np.asarray(np.take(data, wide, axis=attrs.axis))
    if attrs.mode == "wrap":  # NumPy's own mode adds the extent until an index is in range
        wide = wide % extent
    return np.asarray(np.take(data, wide, axis=attrs.axis, mode="clip"))


def _axis_of(data: Array, axis: int | None) -> tuple[int, int | None]:
    """Return the number of elements along an axis, and the axis."""
    return (data.size, None) if axis is None else (data.shape[axis], axis % data.ndim)


def _take_lower(attrs: TakeAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    axis = None if attrs.axis is None else attrs.axis % inputs[0].ndim
    return [topi.take(inputs[0], inputs[1], axis, mode=attrs.mode)]


register_op(
    OpDef(
        name="take",
        costly=True,
        precision=Precision.FOLLOW,
        arguments=("data", "indices"),
        attrs=TakeAttrs,
        relation=_take_relation,
        reference=_take_reference,
        lower=_take_lower,
        pattern=OpPattern.INJECTIVE,
        refuses=True,
        result="data's shape with `axis` replaced by the shape of indices; the shape of indices "
        "without an axis",
    )
)


def take(
    data: Expr, indices: Expr, axis: int | None = None, batch_dims: int = 0, mode: str = "clip"
) -> Call:
    """Return slices of `data` at `indices` along an axis."""
    return call("take", data, indices, attrs=TakeAttrs(batch_dims, axis, mode))


@node("relay.attrs.GatherAttrs")
class GatherAttrs(Attrs):
    """The axis that is indexed."""

    axis: int = 0


def _gather_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, indices = tensors("gather", types, 2)
    _check_indices("gather", indices)
    attempt(
        "gather",
        normalize_axis,
        attrs_of(GatherAttrs, attrs).axis,
        len(data.shape),
        "gather",
    )
    if len(data.shape) != len(indices.shape):
        fail(
            "gather",
            f"'indices' must have the rank of 'data', got {show(indices.shape)} for"
            f" {show(data.shape)}",
        )
    at = attrs_of(GatherAttrs, attrs).axis % len(data.shape)
    attempt("gather", extent_checks, "gather", indices.shape, data.shape, at)
    return TensorType(indices.shape, data.dtype)


def _gather_reference(attrs: GatherAttrs, data: Array, indices: Array) -> Array:
    """Along the other axes indices may be shorter than the data, and count from their start."""
    at = normalize_axis(attrs.axis, data.ndim, "gather")
    check_indices("gather", indices, data.shape[at], at)
    positions: list[Array] = list(np.indices(indices.shape, sparse=True))
    wide = indices.astype(np.int64)
    positions[at] = np.where(wide < 0, wide + data.shape[at], wide)
    return np.asarray(data[tuple(positions)])


register_op(
    OpDef(
        name="gather",
        costly=True,
        precision=Precision.FOLLOW,
        arguments=("data", "indices"),
        attrs=GatherAttrs,
        relation=_gather_relation,
        reference=_gather_reference,
        lower=lambda attrs, inputs, out: [
            topi.gather(inputs[0], attrs.axis % inputs[0].ndim, inputs[1])
        ],
        pattern=OpPattern.INJECTIVE,
        refuses=True,
        result="the shape of indices",
    )
)


def gather(data: Expr, axis: int, indices: Expr) -> Call:
    """Return `data[i, ..., indices[i, ..., k], ..., k]`, with one index per result element.

    Negative indices count from the end.
    """
    return call("gather", data, indices, attrs=GatherAttrs(axis))


@node("relay.attrs.GatherNDAttrs")
class GatherNDAttrs(Attrs):
    """Leading axes that data and indices share, and the number of coordinates when that is known
    otherwise."""

    batch_dims: int = 0
    index_rank: int | None = None


def _gather_nd_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, indices = tensors("gather_nd", types, 2)
    settings = attrs_of(GatherNDAttrs, attrs)
    _check_indices("gather_nd", indices)
    rank_at_least("gather_nd", indices, 1, "indices")
    count = known(indices.shape[0]) if settings.index_rank is None else settings.index_rank
    if count is None:
        fail(
            "gather_nd",
            f"the first extent of 'indices' must be a number, got {show(indices.shape)}",
        )
    attempt("gather_nd", expect_shape, "gather_nd", "indices", indices.shape[:1], (count,))
    if settings.batch_dims < 0:
        fail("gather_nd", f"batch_dims must not be negative, got {settings.batch_dims}")
    if settings.batch_dims >= len(indices.shape):
        actual = f"got {len(indices.shape)} and {settings.batch_dims}"
        fail("gather_nd", f"'indices' must have more axes than batch_dims, {actual}")
    if count + settings.batch_dims > len(data.shape):
        fail("gather_nd", f"{count} coordinates are too many for {show(data.shape)}")
    shared = settings.batch_dims
    leading = indices.shape[1 : 1 + shared], data.shape[:shared]
    attempt("gather_nd", extent_checks, "gather_nd", *leading)
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
    leading = [
        np.arange(wide.shape[1 + i]).reshape((-1,) + (1,) * (wide.ndim - 2 - i))
        for i in range(batch)
    ]
    wrapped = [np.where(f < 0, f + data.shape[batch + i], f) for i, f in enumerate(wide)]
    return np.asarray(data[(*leading, *wrapped)])


def _gather_nd_lower(attrs: GatherNDAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    count = known(inputs[1].shape[0]) if attrs.index_rank is None else attrs.index_rank
    assert count is not None, "checked by the relation"
    return [topi.gather_nd(inputs[0], inputs[1], attrs.batch_dims, count)]


register_op(
    OpDef(
        name="gather_nd",
        costly=True,
        precision=Precision.FOLLOW,
        arguments=("data", "indices"),
        attrs=GatherNDAttrs,
        relation=_gather_nd_relation,
        reference=_gather_nd_reference,
        lower=_gather_nd_lower,
        pattern=OpPattern.INJECTIVE,
        refuses=True,
        result="(*indices.shape[1:], *data.shape[indices.shape[0]:])",
    )
)


def gather_nd(
    data: Expr, indices: Expr, batch_dims: int = 0, index_rank: int | None = None
) -> Call:
    """Return slices of `data` at coordinates, which the first axis of `indices` holds.

    Negative coordinates count from the end.
    """
    return call("gather_nd", data, indices, attrs=GatherNDAttrs(batch_dims, index_rank))


@node("relay.attrs.OneHotAttrs")
class OneHotAttrs(Attrs):
    """The extent and position of the new axis, and the result's dtype."""

    depth: Dim = 1
    axis: int = -1
    dtype: str = "float32"


def _one_hot_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    indices, on_value, off_value = tensors("one_hot", types, 3)
    settings = attrs_of(OneHotAttrs, attrs)
    _check_indices("one_hot", indices)
    rank_is("one_hot", on_value, 0, "on_value")
    rank_is("one_hot", off_value, 0, "off_value")
    if one_dtype("one_hot", (on_value, off_value)) != settings.dtype:
        fail("one_hot", f"the values must have dtype {settings.dtype}, got {on_value.dtype}")
    at = attempt("one_hot", normalize_axis, settings.axis, len(indices.shape) + 1, "one_hot")
    return TensorType(
        (*indices.shape[:at], as_dim(settings.depth), *indices.shape[at:]), settings.dtype
    )


def _one_hot_reference(
    attrs: OneHotAttrs, indices: Array, on_value: Array, off_value: Array
) -> Array:
    # An index outside of [0, depth) equals no position, so all its values are off.
    (depth,) = as_ints((attrs.depth,))
    at = normalize_axis(attrs.axis, indices.ndim + 1, "one_hot")
    positions = np.arange(depth).reshape((depth,) + (1,) * (indices.ndim - at))
    chosen = np.expand_dims(indices, at).astype(np.int64) == positions
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
    """Return `on_value` at positions along a new axis, and `off_value` elsewhere."""
    number = constant_of(depth)
    if number is None:
        assert isinstance(depth, Expr)
        attrs = DynOneHotAttrs(axis, dtype)
        return dynamic("one_hot", indices, on_value, off_value, depth, attrs=attrs)
    return call("one_hot", indices, on_value, off_value, attrs=OneHotAttrs(number, axis, dtype))


__all__ = [
    "gather",
    "gather_nd",
    "one_hot",
    "take",
]  # fmt: skip
