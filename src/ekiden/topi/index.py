"""Indexing operators with tensor indices.

Indices out of range are refused by checks that the computations carry, or brought into range where
a mode says so, so that no input can read outside.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.arith import Analyzer
from ekiden.ir.prim import (
    EQ,
    ExprLike,
    PrimExpr,
    Select,
    Var,
    cast,
    convert,
    fold_binary,
    maximum,
    minimum,
)
from ekiden.te import Tensor
from ekiden.te.range_checks import (
    RANGE_CHECKS_ATTR_KEY,
    RangeCheck,
    extent_checks,
    index_check,
    normalize_negative_index,
    range_check,
)
from ekiden.topi.broadcast import broadcast_indices, broadcast_shapes
from ekiden.topi.dimensions import (
    Dim,
    as_dim,
    known_int,
    normalize_axis,
    product_of_dims,
    require_shape,
)
from ekiden.topi.transform import unravel


def _clip_index(index: PrimExpr, size: PrimExpr) -> PrimExpr:
    return maximum(minimum(cast(index, "int64"), size - 1), 0)


def _wrap_index(index: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Return an index modulo the extent (modulo 1 for an empty axis, which cannot be read)."""
    return cast(index, "int64") % maximum(size, 1)


def take(
    a: Tensor, indices: Tensor, axis: int | None = None, batch_dims: int = 0, mode: str = "clip"
) -> Tensor:
    """Return slices of `a` at `indices` along an axis (None: of the flattened data).

    The leading `batch_dims` axes are shared. Mode "raise": negative indices count from the end, and
    those out of range are refused. Otherwise these count modulo the extent ("wrap") or are clipped
    (any other).
    """
    bring = {"wrap": _wrap_index, "raise": normalize_negative_index}.get(mode, _clip_index)
    if axis is None:
        count = product_of_dims(a.shape)
        return te.compute(
            indices.shape,
            lambda *i: a[unravel(bring(indices[i], count), a.shape)],
            name="take",
            tag="injective",
            attrs=_take_checks(mode, indices, count, None, product_of_dims(indices.shape)),
        )
    axis_index, batch = normalize_axis(axis, a.ndim, "take"), batch_dims % max(indices.ndim, 1)
    if batch > axis_index:
        raise ValueError(f"take: batch_dims {batch_dims} must not exceed the axis {axis}")
    rank = indices.ndim - batch
    shape = (*a.shape[:axis_index], *indices.shape[batch:], *a.shape[axis_index + 1 :])

    def take_element(*i: Var) -> PrimExpr:
        """Load the element at the index of its batch and position."""
        index = bring(
            indices[(*i[:batch], *i[axis_index : axis_index + rank])], a.shape[axis_index]
        )
        return a[(*i[:axis_index], index, *i[axis_index + rank :])]

    attrs = _take_checks(mode, indices, a.shape[axis_index], axis_index, product_of_dims(shape))
    return te.compute(shape, take_element, name="take", tag="injective", attrs=attrs)


MAX_INT32_EXTENT = 2**31
"""Exclusive bound of extents that int32 indices address."""


def _take_checks(
    mode: str, indices: Tensor, size: PrimExpr, axis: int | None, count: PrimExpr
) -> dict[str, object] | None:
    """Return the checks of `take`: indices in range, or, where they are clipped or wrapped, an axis
    that is not empty.
    """
    if mode == "raise":
        return {RANGE_CHECKS_ATTR_KEY: (index_check("take", indices, size, axis),)}
    if Analyzer().can_prove(size >= 1):
        return None
    # A result without elements reads nothing, so that an empty axis is no fault.
    some = Select(count.equal(0), as_dim(1), size, "int64")
    extent = te.compute((), lambda: some, name="extent", tag="injective")
    along = "" if axis is None else f" along axis {axis}"
    return {
        RANGE_CHECKS_ATTR_KEY: (
            range_check(f"take: extent of 'data'{along}", extent, 1, MAX_INT32_EXTENT),
        )
    }


def gather(data: Tensor, axis: int, indices: Tensor) -> Tensor:
    """Gather one index along `axis` for each element of the result; negative ones count from the
    end.
    """
    axis_index = normalize_axis(axis, data.ndim, "gather")

    def gather_element(*i: Var) -> PrimExpr:
        """Load the element at the index along the axis."""
        return data[
            (
                *i[:axis_index],
                normalize_negative_index(indices[i], data.shape[axis_index]),
                *i[axis_index + 1 :],
            )
        ]

    extents = extent_checks("gather", indices.shape, data.shape, axis_index)
    attrs = {
        RANGE_CHECKS_ATTR_KEY: (
            *extents,
            index_check("gather", indices, data.shape[axis_index], axis_index),
        )
    }
    return te.compute(indices.shape, gather_element, name="gather", tag="injective", attrs=attrs)


def gather_nd(
    a: Tensor, indices: Tensor, batch_dims: int = 0, index_rank: int | None = None
) -> Tensor:
    """Gather slices of `a` at coordinates along the first axis of `indices`. `index_rank` is the
    number of coordinates where that axis is unknown. Raises ValueError if neither is known.
    """
    count = known_int(indices.shape[0]) if index_rank is None else index_rank
    if count is None:
        raise ValueError("gather_nd: the number of coordinates must be known")
    index_axes = indices.ndim - 1
    shape = (*indices.shape[1:], *a.shape[batch_dims + count :])

    def gather_slice_element(*i: Var) -> PrimExpr:
        """Return the slice element at the coordinates; batch axes are shared."""
        point: list[PrimExpr] = list(i[:batch_dims])
        for n in range(count):
            # Negative indices count from the end; the checks of the operator have excluded all
            # others.
            point.append(
                normalize_negative_index(
                    indices[(as_dim(n), *i[:index_axes])], a.shape[batch_dims + n]
                )
            )
        return a[(*point, *i[index_axes:])]

    sizes = a.shape[batch_dims : batch_dims + count]
    shared = extent_checks("gather_nd", indices.shape[1 : 1 + batch_dims], a.shape[:batch_dims])
    attrs = {
        RANGE_CHECKS_ATTR_KEY: (
            *shared,
            *coordinate_checks("gather_nd", indices, sizes, batch_dims),
        )
    }
    return te.compute(shape, gather_slice_element, name="gather_nd", tag="injective", attrs=attrs)


def coordinate_checks(
    name: str, indices: Tensor, sizes: Sequence[PrimExpr], first: int = 0
) -> tuple[RangeCheck, ...]:
    """Return the checks of the coordinates along the first axis of `indices`, for axes from `first`
    on.
    """
    index_shape = indices.shape[1:]
    return tuple(
        index_check(name, _nth_coordinate(indices, n, index_shape), size, first + n)
        for n, size in enumerate(sizes)
    )


def _nth_coordinate(indices: Tensor, n: int, index_shape: Sequence[PrimExpr]) -> Tensor:
    return te.compute(index_shape, lambda *i: indices[(as_dim(n), *i)], name="at", tag="injective")


def adv_index(data: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """Return `data[i0, i1, ...]` for broadcast index tensors on the leading axes, as NumPy's
    advanced indexing.
    """
    # NumPy's advanced indexing: index tensors broadcast against each other, and replace the leading
    # axes.
    joint = broadcast_shapes(*indices)
    rank, used = len(joint), len(indices)

    def load_indexed(*i: Var) -> PrimExpr:
        """Return the element at the index tensors' values; later axes are kept."""
        point = [
            normalize_negative_index(t[broadcast_indices(i[:rank], t.shape, joint)], data.shape[n])
            for n, t in enumerate(indices)
        ]
        return data[(*point, *i[rank:])]

    checks = tuple(
        index_check("adv_index", t, data.shape[n], n, f"index {n}") for n, t in enumerate(indices)
    )
    shape = (*joint, *data.shape[used:])
    return te.compute(
        shape,
        load_indexed,
        name="adv_index",
        tag="injective",
        attrs={RANGE_CHECKS_ATTR_KEY: checks},
    )


def one_hot(
    indices: Tensor,
    on_value: Tensor | ExprLike,
    off_value: Tensor | ExprLike,
    depth: Dim,
    axis: int = -1,
    dtype: str = "",
) -> Tensor:
    """Return `on_value` where the position along a new axis is the index, `off_value` elsewhere.
    Values are numbers or tensors of rank 0; `dtype` is theirs by default.
    """
    on, off = (
        v[()] if isinstance(v, Tensor) else convert(v, dtype or None) for v in (on_value, off_value)
    )
    out_dtype = dtype or on.dtype
    axis_index = normalize_axis(axis, indices.ndim + 1, "one_hot")
    shape = (*indices.shape[:axis_index], as_dim(depth), *indices.shape[axis_index:])

    def select_on_value(*i: Var) -> PrimExpr:
        """Select `on` where the position along the axis is the index."""
        index = cast(indices[(*i[:axis_index], *i[axis_index + 1 :])], "int64")
        return Select(
            fold_binary(EQ, index, i[axis_index]),
            cast(on, out_dtype),
            cast(off, out_dtype),
            out_dtype,
        )

    return te.compute(shape, select_on_value, name="one_hot", tag="injective")


def sequence_mask(
    data: Tensor, valid_length: Tensor, mask_value: float | int = 0, axis: int = 0
) -> Tensor:
    """Replace elements of `data` at or beyond valid_length[batch] along `axis`, the time; time and
    batch are axes 0 and 1 in either order. Raises ValueError for another axis.
    """
    if axis not in (0, 1) or data.ndim < 2:
        raise ValueError(
            f"sequence_mask: axis must be 0 or 1 of at least 2 axes, got {axis} of {data.ndim}"
        )
    require_shape("sequence_mask", "valid_length", valid_length.shape, (data.shape[1 - axis],))
    fill = convert(mask_value, data.dtype)

    def mask_element(*i: Var) -> PrimExpr:
        """Load an element before the sequence's end, else the fill."""
        length = cast(valid_length[i[1 - axis]], "int64")
        return Select(i[axis] < length, data[i], fill, data.dtype)

    return te.compute(data.shape, mask_element, name="sequence_mask", tag="injective")


__all__ = ["adv_index", "gather", "gather_nd", "one_hot", "sequence_mask", "take"]
