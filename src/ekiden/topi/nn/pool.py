"""Pooling over windows of spatial axes.

Padding is a guard on the load with the neutral element behind it, and not a copy. Whether a mean
divides by a constant or by how many elements of a window are data is known per axis: the count is a
product of counts over axes, each min(end) - max(begin), so that inner windows of a line have a
constant one and a loop that is cut at its borders computes none.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from itertools import product

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const, logical_and, maximum, minimum
from ekiden.te import Tensor
from ekiden.tir.data_layout import parse_layout
from ekiden.topi import reduce
from ekiden.topi.dimensions import (
    Dim,
    Shape,
    as_dim,
    as_shape,
    ceil_div,
    known_int,
    replace_dim,
    simplify_dim,
    window_extent,
    window_extent_ceil,
)
from ekiden.topi.layout import spatial_axis_indices
from ekiden.topi.nn.convolution import (
    Padding,
    as_tuple_of,
    guarded_load,
    in_range_conditions,
    normalize_padding,
)
from ekiden.topi.reduce import Reducer, accumulator_dtype, reduce_axes


class PoolWindow:
    """Windows of a pooling: start positions, taps, and bounds checks against the padding."""

    def __init__(
        self,
        data: Tensor,
        shape: Shape,
        axes: Sequence[int],
        pool_size: Sequence[int],
        strides: Sequence[int],
        dilation: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
    ) -> None:
        self.data, self.shape, self.axes = data, shape, axes
        self.pool_size, self.strides, self.dilation = pool_size, strides, dilation
        self.before, self.after = padding[: len(axes)], padding[len(axes) :]
        self.ceil_mode = ceil_mode

    def without_dead_taps(self) -> PoolWindow:
        """Return the windows without the taps that are in the padding for every window: a window of
        2**31 taps over six elements has at most eleven others. Taps are dead where extents are
        known.
        """
        sizes, before = list(self.pool_size), list(self.before)
        for n, axis in enumerate(self.axes):
            extent, count = known_int(self.data.shape[axis]), known_int(self.shape[axis])
            if not extent or not count:
                continue
            step = self.dilation[n]
            last_start = (count - 1) * self.strides[n] - before[n]
            # Tap k reads the elements from k * step - before on, up to last_start + k * step.
            first = min(max(-(last_start // step), 0), sizes[n] - 1)
            end = max(min(-(-(extent + before[n]) // step), sizes[n]), first + 1)
            sizes[n], before[n] = end - first, before[n] - first * step
        if sizes == list(self.pool_size):
            return self
        padding = (*before, *self.after)
        return PoolWindow(self.data, self.shape, self.axes, sizes, self.strides, self.dilation,
                          padding, self.ceil_mode)  # fmt: skip

    def tap_axes(self) -> list[te.ReduceAxis]:
        """Return a reduction variable per spatial axis."""
        return [te.reduce_axis((0, size), f"k{n}") for n, size in enumerate(self.pool_size)]

    def window_start(self, indices: Sequence[PrimExpr], n: int) -> PrimExpr:
        """Return the first position of a window on the n-th spatial axis; negative in the
        padding.
        """
        return indices[self.axes[n]] * self.strides[n] - self.before[n]

    def may_reach(self, n: int, end: PrimExpr) -> bool:
        """Return whether the last window on the n-th spatial axis may have taps at or past `end`.
        Known extents are used, so that padding and `ceil_mode` without effect cost nothing.
        """
        count, last = known_int(self.shape[self.axes[n]]), known_int(end)
        if count is None or last is None:
            padded = self.after[n] > 0 and end is self.data.shape[self.axes[n]]
            return padded or self.ceil_mode
        span = (count - 1) * self.strides[n] + (self.pool_size[n] - 1) * self.dilation[n]
        return span - self.before[n] >= last

    def load_tap(
        self, indices: Sequence[PrimExpr], taps: Sequence[PrimExpr], otherwise: PrimExpr
    ) -> PrimExpr:
        """Load the data at a tap of a window, `otherwise` in the padding."""
        point, conditions = list(indices), []
        for n, axis in enumerate(self.axes):
            point[axis] = self.window_start(indices, n) + taps[n] * self.dilation[n]
            beyond = self.may_reach(n, self.data.shape[axis])
            conditions += in_range_conditions(
                point[axis], self.data.shape[axis], self.before[n] > 0, beyond
            )
        return guarded_load(self.data, point, conditions, otherwise)

    def load_clamped_tap(self, indices: Sequence[PrimExpr], taps: Sequence[PrimExpr]) -> PrimExpr:
        """Load the data at a tap of a window, clamped to the nearest element."""
        point = list(indices)
        for n, axis in enumerate(self.axes):
            position = self.window_start(indices, n) + taps[n]
            if self.may_reach(n, self.data.shape[axis]):
                position = minimum(position, self.data.shape[axis] - 1)
            point[axis] = maximum(position, 0) if self.before[n] > 0 else position
        return self.data[point]

    def covered_ranges(self) -> list[tuple[PrimExpr, PrimExpr]]:
        """Return the (begin, extent) that windows cover on each axis, `begin` elements before the
        data.
        """
        ranges: list[tuple[PrimExpr, PrimExpr]] = [(const(0), d) for d in self.data.shape]
        for n, axis in enumerate(self.axes):
            span = (self.shape[axis] - 1) * self.strides[n]
            last = (self.pool_size[n] - 1) * self.dilation[n]
            ranges[axis] = const(self.before[n]), as_dim(simplify_dim(span + (last + 1)))
        return ranges

    @property
    def can_clamp_taps(self) -> bool:
        """Return whether a clamped tap is always inside its window, and clamping keeps loads
        contiguous.
        """
        dense = all(d == 1 for d in self.dilation) and not self.may_be_empty
        inner = self.data.ndim - 1 in self.axes
        return dense and not inner and all(known_int(self.data.shape[a]) for a in self.axes)

    @property
    def may_be_empty(self) -> bool:
        """Return whether a window may be entirely in the padding; its maximum is then the lowest
        value, its mean 0. Dilated taps may straddle the data, and possibly empty data are in no
        window.
        """
        sizes = [known_int(self.data.shape[axis]) for axis in self.axes]
        rows = zip(self.before, self.after, self.pool_size, self.dilation, sizes, strict=True)
        return any(
            before + after > 0 and (before >= taps or after >= taps or step > 1 or not size)
            for before, after, taps, step, size in rows
        )

    def num_counted_taps(self, indices: Sequence[PrimExpr], include_pad: bool) -> PrimExpr:
        """Return the number of taps that a mean counts, at least one."""
        total: PrimExpr = const(1, "int64")
        for n, axis in enumerate(self.axes):
            total = total * self._num_counted_on_axis(
                self.window_start(indices, n), self.data.shape[axis], n, include_pad
            )
        return total

    def _num_counted_on_axis(
        self, start: PrimExpr, size: PrimExpr, n: int, include_pad: bool
    ) -> PrimExpr:
        """Return the number of taps k with low <= start + k * dilation < high."""
        taps, step = const(self.pool_size[n], "int64"), self.dilation[n]
        high = size + self.after[n] if include_pad else size
        if (include_pad or self.before[n] == 0) and not self.may_reach(n, high):
            return taps
        last = minimum(taps, ceil_div(high - start, step))
        if not include_pad and self.before[n] > 0:
            last = last - maximum(ceil_div(const(0) - start, step), 0)
        return maximum(last, 1) if self.may_be_empty else last


MAX_UNROLLED_TAPS = 32
"""Maximum window taps that are unrolled, without a loop."""


def _reduce_window(
    window: PoolWindow,
    name: str,
    reducer: Callable[[PrimExpr, Sequence[te.ReduceAxis]], PrimExpr],
    operation: Callable[[PrimExpr, PrimExpr], PrimExpr],
    load: Callable[[Sequence[PrimExpr], Sequence[PrimExpr]], PrimExpr],
) -> Tensor:
    """Return the taps of each window, loaded at (indices, taps), combined."""
    variables = window.tap_axes()
    is_unrolled = math.prod(window.pool_size) <= MAX_UNROLLED_TAPS

    def combine_taps(*i: Var) -> PrimExpr:
        """Unroll up to MAX_UNROLLED_TAPS taps, so that vectors along the result have no inner loop;
        else reduce.
        """
        if not is_unrolled:
            return reducer(load(i, variables), variables)
        every_tap = product(*(range(size) for size in window.pool_size))
        values = (load(i, [as_dim(k) for k in taps]) for taps in every_tap)
        return functools.reduce(operation, values)

    attrs = {"axes": tuple(window.axes), "window": window, "reducer": reducer}
    return te.compute(window.shape, combine_taps, name=name, tag="pool", attrs=attrs)


def max_pool(window: PoolWindow) -> Tensor:
    """Return the maximum of each window."""
    window = window.without_dead_taps()
    lowest = te.identity("max", window.data.dtype)

    def load_tap(indices: Sequence[PrimExpr], taps: Sequence[PrimExpr]) -> PrimExpr:
        """Load a tap. Where each window contains the element nearest to any outside tap, that
        element stands in for it without bounds comparisons; else the dtype's minimum.
        """
        if window.can_clamp_taps:
            return window.load_clamped_tap(indices, taps)
        return window.load_tap(indices, taps, lowest)

    return _reduce_window(window, "max_pool", te.max, maximum, load_tap)


def avg_pool(window: PoolWindow, count_include_pad: bool) -> Tensor:
    """Return the mean of each window."""
    dtype = window.data.dtype
    wide, zero = accumulator_dtype(dtype), const(0, dtype)
    summed = window.without_dead_taps()

    def load_tap(indices: Sequence[PrimExpr], taps: Sequence[PrimExpr]) -> PrimExpr:
        """Load a tap in the accumulation dtype, zero in the padding."""
        return cast(summed.load_tap(indices, taps, zero), wide)

    total = _reduce_window(summed, "pool_sum", te.sum, operator.add, load_tap)
    return te.compute(
        window.shape,
        lambda *i: _divide_by_count(total[i], window.num_counted_taps(i, count_include_pad), dtype),
        name="avg_pool",
        tag="elemwise",
    )


def _divide_by_count(total: PrimExpr, count: PrimExpr, dtype: str) -> PrimExpr:
    number = known_int(count)
    # The reciprocal of a constant is computed at compile time: a product instead of a division.
    if number is not None and dt.is_float(total.dtype):
        return cast(total * const(1 / number, total.dtype), dtype)
    return cast(total / cast(count, total.dtype), dtype)


def _adaptive_bins(
    data: Tensor, shape: Shape, axes: Sequence[int]
) -> tuple[list[te.ReduceAxis], Callable[[Sequence[PrimExpr], int], tuple[PrimExpr, PrimExpr]]]:
    """Return the reduction variables and (begin, end) functions of bins that divide axes into
    `shape`.
    """
    sizes = [data.shape[a] for a in axes]
    # ceil((i + 1) s / n) - floor(i s / n) is at most ceil(s / n) + 1.
    longest = [
        simplify_dim(ceil_div(s, known_int(shape[a]) or 1) + 1)
        for s, a in zip(sizes, axes, strict=True)
    ]
    taps = [te.reduce_axis((0, d), f"k{n}") for n, d in enumerate(longest)]

    def bin_bounds(i: Sequence[PrimExpr], n: int) -> tuple[PrimExpr, PrimExpr]:
        index, extent = i[axes[n]], shape[axes[n]]
        return index * sizes[n] // extent, ((index + 1) * sizes[n] + extent - 1) // extent

    return taps, bin_bounds


def _reduce_bins(
    data: Tensor,
    shape: Shape,
    axes: Sequence[int],
    otherwise: PrimExpr,
    reducer: Reducer,
    name: str,
) -> Tensor:
    """Return `reducer` over the elements of each bin."""
    taps, bounds = _adaptive_bins(data, shape, axes)

    def reduce_bin(*i: Var) -> PrimExpr:
        """Reduce over the longest bin's extent; elements after a bin's end count as `otherwise`."""
        indices, conditions = list[PrimExpr](i), []
        for n, axis in enumerate(axes):
            begin, end = bounds(i, n)
            indices[axis] = begin + taps[n]
            conditions.append(indices[axis] < end)
        value = guarded_load(data, indices, conditions, cast(otherwise, data.dtype))
        return reducer(cast(value, otherwise.dtype), taps)

    return te.compute(shape, reduce_bin, name=name, tag="pool", attrs={"axes": tuple(axes)})


def adaptive_avg_pool(data: Tensor, shape: Shape, axes: Sequence[int]) -> Tensor:
    """Return the mean over windows that divide the data into `shape` and differ by at most one in
    extent.
    """
    wide = accumulator_dtype(data.dtype)
    _, bounds = _adaptive_bins(data, shape, axes)

    def bin_mean(*i: Var) -> PrimExpr:
        """Return a bin's sum divided by its number of elements."""
        count: PrimExpr = const(1, "int64")
        for n in range(len(axes)):
            begin, end = bounds(i, n)
            count = count * (end - begin)
        return cast(total[i] / cast(count, wide), data.dtype)

    total = _reduce_bins(data, shape, axes, const(0, wide), te.sum, "adaptive_sum")
    return te.compute(shape, bin_mean, name="adaptive_avg_pool", tag="elemwise")


def adaptive_max_pool(data: Tensor, shape: Shape, axes: Sequence[int]) -> Tensor:
    """Return the maximum over the windows of `adaptive_avg_pool`."""
    lowest = te.identity("max", data.dtype)
    return _reduce_bins(data, shape, axes, lowest, te.max, "adaptive_max_pool")


Ints = int | Sequence[int]


def _require_pool_type(name: str, pool_type: str) -> None:
    if pool_type not in ("max", "avg"):
        raise ValueError(f"{name}: pool_type must be 'max' or 'avg', got {pool_type!r}")


def _pool(
    name: str,
    data: Tensor,
    kernel: Ints,
    stride: Ints,
    dilation: Ints,
    padding: Padding,
    pool_type: str,
    ceil_mode: bool,
    layout: str,
    count_include_pad: bool,
) -> Tensor:
    """Pool over the spatial axes of a layout."""
    _require_pool_type(name, pool_type)
    axes = spatial_axis_indices(layout)
    rank = len(axes)
    sizes, strides = as_tuple_of(kernel, rank, "kernel"), as_tuple_of(stride, rank, "stride")
    steps = as_tuple_of(dilation, rank, "dilation")
    around = normalize_padding(padding, [as_dim(k) for k in sizes], steps)
    extent = window_extent_ceil if ceil_mode else window_extent
    shape: Shape = data.shape
    for n, position in enumerate(axes):
        count = extent(shape[position], sizes[n], strides[n], around[n], around[n + rank], steps[n])
        shape = replace_dim(shape, position, count)
    window = PoolWindow(data, shape, axes, sizes, strides, steps, around, ceil_mode)
    return max_pool(window) if pool_type == "max" else avg_pool(window, count_include_pad)


def pool1d(
    data: Tensor,
    kernel: Ints,
    stride: Ints,
    dilation: Ints,
    padding: Padding,
    pool_type: str,
    ceil_mode: bool = False,
    layout: str = "NCW",
    count_include_pad: bool = True,
) -> Tensor:
    """Return the maximum ("max") or mean ("avg") of windows over one axis. `ceil_mode` rounds their
    number up, without windows that would begin in the padding after; padding counts in a mean
    only with `count_include_pad`.
    """
    return _pool("pool1d", data, kernel, stride, dilation, padding, pool_type, ceil_mode, layout,
                 count_include_pad)  # fmt: skip


def pool2d(
    data: Tensor,
    kernel: Ints,
    stride: Ints,
    dilation: Ints,
    padding: Padding,
    pool_type: str,
    ceil_mode: bool = False,
    layout: str = "NCHW",
    count_include_pad: bool = True,
) -> Tensor:
    """Pool as `pool1d`, over two axes."""
    return _pool("pool2d", data, kernel, stride, dilation, padding, pool_type, ceil_mode, layout,
                 count_include_pad)  # fmt: skip


def pool3d(
    data: Tensor,
    kernel: Ints,
    stride: Ints,
    dilation: Ints,
    padding: Padding,
    pool_type: str,
    ceil_mode: bool = False,
    layout: str = "NCDHW",
    count_include_pad: bool = True,
) -> Tensor:
    """Pool as `pool1d`, over three axes."""
    return _pool("pool3d", data, kernel, stride, dilation, padding, pool_type, ceil_mode, layout,
                 count_include_pad)  # fmt: skip


def global_pool(data: Tensor, pool_type: str, layout: str = "NCHW") -> Tensor:
    """Return the maximum or mean over all spatial axes, which become 1."""
    _require_pool_type("global_pool", pool_type)
    return (reduce.max if pool_type == "max" else reduce.mean)(
        data, spatial_axis_indices(layout), True
    )


def _adaptive_pool(
    name: str, data: Tensor, output_size: Dim | Sequence[Dim], pool_type: str, layout: str
) -> Tensor:
    """Pool adaptively; an empty `output_size` keeps the data's extents."""
    _require_pool_type(name, pool_type)
    if len(data.shape) != (rank := len(parse_layout(layout))):
        raise ValueError(f"{name}: 'data' must have {rank} dimensions, got {len(data.shape)}")
    axes = spatial_axis_indices(layout)
    extents = (output_size,) * len(axes) if isinstance(output_size, Dim) else output_size
    shape: Shape = data.shape
    extents = extents or [shape[position] for position in axes]
    for position, extent in zip(axes, as_shape(extents), strict=True):
        shape = replace_dim(shape, position, extent)
    return (adaptive_max_pool if pool_type == "max" else adaptive_avg_pool)(data, shape, axes)


def adaptive_pool(
    data: Tensor, output_size: Dim | Sequence[Dim], pool_type: str, layout: str = "NCHW"
) -> Tensor:
    """Return the maximum or mean of windows that divide two axes into `output_size`."""
    return _adaptive_pool("adaptive_pool", data, output_size, pool_type, layout)


def adaptive_pool1d(
    data: Tensor, output_size: Dim | Sequence[Dim], pool_type: str, layout: str = "NCW"
) -> Tensor:
    """Pool as `adaptive_pool`, over one axis."""
    return _adaptive_pool("adaptive_pool1d", data, output_size, pool_type, layout)


def adaptive_pool3d(
    data: Tensor, output_size: Dim | Sequence[Dim], pool_type: str, layout: str = "NCDHW"
) -> Tensor:
    """Pool as `adaptive_pool`, over three axes."""
    return _adaptive_pool("adaptive_pool3d", data, output_size, pool_type, layout)


def pool_grad(
    grads: Tensor,
    data: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Padding,
    pool_type: str,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: str = "NCHW",
) -> Tensor:
    """Return the gradient of pool2d with respect to its data: each element sums the gradients of
    the windows whose first maximum it is, or its share of the windows' means.
    """
    _require_pool_type("pool_grad", pool_type)
    axes, rank = spatial_axis_indices(layout), len(spatial_axis_indices(layout))
    sizes, strides = as_tuple_of(kernel, rank, "kernel"), as_tuple_of(stride, rank, "stride")
    around = normalize_padding(padding, [as_dim(k) for k in sizes], (1,) * rank)
    window = PoolWindow(data, grads.shape, axes, sizes, strides, (1,) * rank, around, ceil_mode)
    # At most ceil(kernel / stride) windows cover an element along an axis.
    covering = [
        te.reduce_axis((0, ceil_div(as_dim(k), s)), f"w{n}")
        for n, (k, s) in enumerate(zip(sizes, strides, strict=True))
    ]
    # Only the first maximum of a window receives its gradient, as in ONNX and PyTorch.
    first = _argmax_taps(window) if pool_type == "max" else None
    zero = const(0, grads.dtype)

    def sum_window_gradients(*i: Var) -> PrimExpr:
        """Sum over the windows that cover an element: its share of their gradient, or the whole
        gradient where the window's first maximum is this tap.
        """
        indices, conditions, taps = list[PrimExpr](i), [], []
        for n, axis in enumerate(axes):
            # Window w covers this element if its tap (position - w * stride) is in [0, kernel).
            position = i[axis] + around[n]
            indices[axis] = position // strides[n] - covering[n]
            tap = position - indices[axis] * strides[n]
            taps.append(tap)
            conditions += [indices[axis] >= 0, indices[axis] < grads.shape[axis], tap < sizes[n]]
        inside_all = functools.reduce(logical_and, conditions)
        if first is None:
            count = window.num_counted_taps(indices, count_include_pad)
            share = cast(grads[indices] / cast(count, grads.dtype), grads.dtype)
            return te.sum(if_then_else(inside_all, share, zero), covering)
        flat: PrimExpr = as_dim(0)
        for size, tap in zip(sizes, taps, strict=True):
            flat = flat * size + tap
        chosen = if_then_else(
            inside_all, Select(first[indices].equal(flat), grads[indices], zero, zero.dtype), zero
        )
        return te.sum(chosen, covering)

    return te.compute(data.shape, sum_window_gradients, name="pool_grad", tag="pool_grad")


def _argmax_taps(window: PoolWindow) -> Tensor:
    """Return the flat index of the first maximum of each window."""
    lowest = te.identity("max", window.data.dtype)
    highest = max_pool(window)
    taps = reduce_axes(as_shape(window.pool_size), range(len(window.pool_size)))
    count = functools.reduce(operator.mul, window.pool_size)

    def first_max_tap(*i: Var) -> PrimExpr:
        """Return the smallest flat tap whose value is the maximum."""
        flat: PrimExpr = as_dim(0)
        for size, tap in zip(window.pool_size, taps, strict=True):
            flat = flat * size + tap
        same = window.load_tap(i, taps, lowest).equal(highest[i])
        return te.min(Select(same, flat, as_dim(count), "int64"), taps)

    return te.compute(window.shape, first_max_tap, name="first_maximum", tag="reduce")


__all__ = [
    "adaptive_pool", "adaptive_pool1d", "adaptive_pool3d", "global_pool", "pool1d", "pool2d",
    "pool3d", "pool_grad",
]  # fmt: skip
