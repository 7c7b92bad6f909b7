"""Slices of tensors: strided slices, splits, windows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from operator import le

from ekiden import te
from ekiden.arith import prove_equal
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const, maximum, minimum
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    NO_BOUND,
    Dim,
    Shape,
    as_dim,
    as_shape,
    assume_condition,
    is_unknown_dim,
    known_int,
    normalize_axis,
    replace_dim,
    require_min_extent,
    simplify_dim,
    slice_range,
)

SliceRange = tuple[PrimExpr, int, PrimExpr]
"""Slice of an axis: (first index, stride, extent)."""


def slice_ranges(
    shape: Shape,
    begin: Sequence[Dim],
    end: Sequence[Dim],
    strides: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    slice_mode: str = "end",
) -> list[SliceRange]:
    """Return (first index, stride, extent) of a strided slice for every axis. Without axes, the
    lists are for the leading ones, and each may be shorter than the others: missing entries are
    the axis from its start, to its end, by 1. slice_mode "size" takes `end` as extents, -1 for
    the remainder, without strides. Raises ValueError for axes out of range or repeated, lists of
    other lengths, or stride 0.
    """
    if slice_mode not in ("end", "size"):
        raise ValueError(f"slice_mode must be 'end' or 'size', got {slice_mode!r}")
    chosen, steps = _sliced_axes(len(shape), begin, end, tuple(strides or ()), axes)
    ranges: list[SliceRange] = [(as_dim(0), 1, d) for d in shape]
    for i, position in enumerate(chosen):
        if (stride := steps[i] if i < len(steps) else 1) == 0:
            raise ValueError("a stride must not be 0")
        if slice_mode == "size":
            stride = 1
            start, extent = slice_range(
                begin[i] if i < len(begin) else 0, NO_BOUND, 1, shape[position]
            )
            if i < len(end) and known_int(end[i]) != -1 and not is_unknown_dim(extent):
                extent = simplify_dim(minimum(extent, maximum(as_dim(end[i]), 0)))
        else:
            first = begin[i] if i < len(begin) else 0 if stride > 0 else NO_BOUND
            # Backwards the default end is before element 0, which no index counted from 0 can name.
            last = end[i] if i < len(end) else NO_BOUND if stride > 0 else -NO_BOUND
            start, extent = slice_range(first, last, stride, shape[position])
        ranges[position] = (start, stride, extent)
    return ranges


def _sliced_axes(
    rank: int,
    begin: Sequence[Dim],
    end: Sequence[Dim],
    steps: Sequence[int],
    axes: Sequence[int] | None,
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the axes of a slice, counted from the front, and its strides."""
    counts = len(begin), len(end), len(steps)
    if axes is None:
        if max(counts) > rank:
            raise ValueError(f"{max(counts)} bounds for an input of rank {rank}")
        return range(max(counts)), steps
    if all(step == 1 for step in steps):
        steps = (1,) * len(axes)
    if not len(begin) == len(end) == len(steps) == len(axes):
        raise ValueError(
            f"begin, end, strides and axes must have one length, got {', '.join(map(str, counts))}"
            f" and {len(axes)}"
        )
    chosen = [normalize_axis(axis, rank, "strided_slice") for axis in axes]
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"axes must be distinct, got {tuple(axes)}")
    return chosen, steps


def slice_by_ranges(x: Tensor, ranges: Sequence[SliceRange], name: str = "strided_slice") -> Tensor:
    """Return the elements first + n * stride of each axis."""

    def load_slice_element(*i: Var) -> PrimExpr:
        """Load the element at the first of each range plus steps."""
        return x[[n * stride + first for n, (first, stride, _) in zip(i, ranges, strict=True)]]

    return te.compute(
        [extent for _, _, extent in ranges], load_slice_element, name=name, tag="injective"
    )


def strided_slice(
    a: Tensor,
    begin: Sequence[Dim],
    end: Sequence[Dim],
    strides: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    slice_mode: str = "end",
    assume_inbound: bool = True,
) -> Tensor:
    """Return begin:end:stride along axes (the leading ones by default), as NumPy slices.

    Bounds may be symbolic; one of at least 2**31 - 1 means the end of an axis of unknown extent.
    See `slice_ranges` for lists of different lengths and for slice_mode "size". `assume_inbound` is
    TVM's: bounds are always clipped here.
    """
    return slice_by_ranges(a, slice_ranges(a.shape, begin, end, strides, axes, slice_mode))


def dynamic_strided_slice(
    a: Tensor,
    begin: Tensor,
    end: Tensor,
    strides: Tensor,
    output_shape: Sequence[Dim],
    axes: Sequence[int] | None = None,
    has_strides: bool = True,
) -> Tensor:
    """Return a strided slice whose bounds are data; `output_shape` is its shape. Indices are
    clamped to the data, so that wrong bounds read nothing outside. Missing strides are 1, also
    without `has_strides` (slice_mode "size").
    """
    begins, steps = _num_bounds(begin), _num_bounds(strides) if has_strides else 0

    def source_index(n: Var, at: int) -> PrimExpr:
        """Return the position of element n: bounds as in NumPy's slices, clamped to the data."""
        size = a.shape[at]
        number = chosen.index(at)
        step = cast(strides[number], "int64") if number < steps else const(1)
        if number < begins:
            first = cast(begin[number], "int64")
        else:
            first = Select(step < 0, size - 1, const(0), "int64")
        first = Select(first < 0, first + size, first, "int64")
        # Bounds are data: clamped as NumPy does, so that no element out of range is read.
        first = te.max(te.min(first, Select(step < 0, size - 1, size, "int64")), 0)
        return te.max(te.min(first + n * step, size - 1), 0)

    chosen = list(range(max(begins, _num_bounds(end), steps)) if axes is None else axes)
    return te.compute(
        as_shape(output_shape),
        lambda *i: a[
            [source_index(n, index) if index in chosen else n for index, n in enumerate(i)]
        ],
        name="dynamic_strided_slice",
        tag="injective",
    )


def _num_bounds(bounds: Tensor) -> int:
    count = known_int(bounds.shape[0])
    if count is None:
        raise ValueError("dynamic_strided_slice: the number of bounds must be known")
    return count


MAX_SPLIT_PARTS = 1 << 16
"""Maximum number of parts of a split, each a result with its own type. An axis of unknown extent,
or of none, divides into any number of them.
"""


def split_ranges(cuts: int | Sequence[Dim], size: PrimExpr) -> list[tuple[PrimExpr, PrimExpr]]:
    """Return (begin, extent) of each part of a split axis. Raises ValueError for less than one
    part, and for an axis that does not divide; extents known only at run time are checked then.
    """
    if isinstance(cuts, int):
        if not 1 <= cuts <= MAX_SPLIT_PARTS:
            raise ValueError(f"an axis is cut into 1 to {MAX_SPLIT_PARTS} parts, got {cuts}")
        number = known_int(size)
        if number is None and not prove_equal(size % cuts, as_dim(0)):
            # Equal parts of a symbolic axis: divisibility is left to a check of the run.
            assume_condition(lambda: (size % cuts).equal(0), (size,))
        if number is not None and number % cuts:
            raise ValueError(f"an axis of extent {number} does not divide into {cuts} equal parts")
        part_extent = simplify_dim(size // cuts)
        return [(simplify_dim(part_extent * i), part_extent) for i in range(cuts)]
    edges = [as_dim(0), *as_shape(cuts), size]
    for a, b in pairwise(edges):
        extent = known_int(simplify_dim(b - a))
        if extent is not None and extent < 0:
            raise ValueError(f"positions ascend and lie within the axis: {a} is behind {b}")
        if extent is None:
            assume_condition(partial(le, a, b), (a, b))
    return [(a, simplify_dim(b - a)) for a, b in pairwise(edges)]


def split(ary: Tensor, indices_or_sections: int | Sequence[Dim], axis: int = 0) -> list[Tensor]:
    """Split along an axis into equal parts, or at the given positions."""
    axis_index = normalize_axis(axis, ary.ndim, "split")
    full_ranges: list[SliceRange] = [(as_dim(0), 1, d) for d in ary.shape]
    return [
        slice_by_ranges(
            ary,
            [*full_ranges[:axis_index], (begin, 1, extent), *full_ranges[axis_index + 1 :]],
            "split",
        )
        for begin, extent in split_ranges(indices_or_sections, ary.shape[axis_index])
    ]


def sliding_window(
    data: Tensor, axis: int, window_shape: Sequence[int], strides: Sequence[int]
) -> Tensor:
    """Return windows over the axes from `axis` on, as positions, then the window's axes: (N, H, W),
    axis 1, windows (h, w) -> (N, positions, positions, h, w). Raises ValueError for another
    number of extents or strides than axes, and for those below 1.
    """
    axis_index = normalize_axis(axis, data.ndim, "sliding_window")
    rank = len(window_shape)
    if rank != data.ndim - axis_index or len(strides) != rank:
        raise ValueError(
            f"sliding_window: expected a window of {data.ndim - axis_index} axes with as many "
            f"strides, got {tuple(window_shape)} and {tuple(strides)}"
        )
    if min(*window_shape, *strides) < 1:
        raise ValueError(
            f"sliding_window: windows and strides must be at least 1, got {tuple(window_shape)} and"
            f" {tuple(strides)}"
        )
    minimum_sizes = [*[None] * axis_index, *window_shape]
    require_min_extent("sliding_window", "data", data.shape, minimum_sizes)
    positions = [
        simplify_dim((d - w) // s + 1)
        for d, w, s in zip(data.shape[axis_index:], window_shape, strides, strict=True)
    ]

    def load_window_element(*i: Var) -> PrimExpr:
        """Load a window's element from its position in the data."""
        inside = [i[axis_index + n] * strides[n] + i[axis_index + rank + n] for n in range(rank)]
        return data[(*i[:axis_index], *inside)]

    return te.compute(
        (*data.shape[:axis_index], *positions, *map(as_dim, window_shape)),
        load_window_element,
        name="sliding_window",
        tag="injective",
    )


def slice_like(a: Tensor, shape_like: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Return the leading part of `a` with the extents of another tensor along axes (all by
    default).
    """
    chosen = range(min(a.ndim, shape_like.ndim)) if axes is None else axes
    shape = a.shape
    for axis in chosen:
        axis_index = normalize_axis(axis, a.ndim, "slice_like")
        shape = replace_dim(
            shape, axis_index, shape_like.shape[normalize_axis(axis, shape_like.ndim, "")]
        )
    require_min_extent("slice_like", "data", a.shape, shape)
    return te.compute(shape, lambda *i: a[i], name="slice_like", tag="injective")


__all__ = [
    "dynamic_strided_slice", "slice_like", "sliding_window", "split",
    "strided_slice",
]  # fmt: skip
