"""Pooling over windows of spatial axes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from itertools import product

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var, cast, const, maximum, minimum
from ekiden.te import Tensor
from ekiden.topi.nn.conv import guarded, inside
from ekiden.topi.reduce import accumulator
from ekiden.topi.shape import Shape, as_dim, ceil_div, known, tidy


class Window:
    """The windows of a pooling: where each starts, and which of its taps lie in the data."""

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

    def taps(self) -> list[te.ReduceAxis]:
        """A reduction variable per spatial axis."""
        return [te.reduce_axis((0, size), f"k{n}") for n, size in enumerate(self.pool_size)]

    def start(self, indices: Sequence[PrimExpr], n: int) -> PrimExpr:
        """The first position of a window on the n-th spatial axis; negative in the padding."""
        return indices[self.axes[n]] * self.strides[n] - self.before[n]

    def load(
        self, indices: Sequence[PrimExpr], taps: Sequence[PrimExpr], otherwise: PrimExpr
    ) -> PrimExpr:
        """The data at a tap of a window, `otherwise` in the padding."""
        at, conditions = list(indices), []
        for n, axis in enumerate(self.axes):
            at[axis] = self.start(indices, n) + taps[n] * self.dilation[n]
            beyond = self.after[n] > 0 or self.ceil_mode
            conditions += inside(at[axis], self.data.shape[axis], self.before[n] > 0, beyond)
        return guarded(self.data, at, conditions, otherwise)

    def nearest(self, indices: Sequence[PrimExpr], taps: Sequence[PrimExpr]) -> PrimExpr:
        """The data at a tap of a window, moved to the nearest element of the data."""
        at = list(indices)
        for n, axis in enumerate(self.axes):
            position = self.start(indices, n) + taps[n]
            if self.after[n] > 0 or self.ceil_mode:
                position = minimum(position, self.data.shape[axis] - 1)
            at[axis] = maximum(position, 0) if self.before[n] > 0 else position
        return self.data[at]

    @property
    def holds_its_nearest(self) -> bool:
        """Whether that element is in the window anyway, and reading it keeps vectors whole."""
        dense = all(d == 1 for d in self.dilation)
        inner = self.data.ndim - 1 in self.axes
        return dense and not inner and all(known(self.data.shape[a]) for a in self.axes)

    def count(self, indices: Sequence[PrimExpr], include_pad: bool) -> PrimExpr:
        """How many taps of a window count."""
        total: PrimExpr = const(1, "int64")
        for n, axis in enumerate(self.axes):
            total = total * self._count_axis(
                self.start(indices, n), self.data.shape[axis], n, include_pad
            )
        return total

    def _count_axis(self, start: PrimExpr, size: PrimExpr, n: int, include_pad: bool) -> PrimExpr:
        """The taps k with low <= start + k * dilation < high."""
        taps, step = const(self.pool_size[n], "int64"), self.dilation[n]
        if not self.ceil_mode and (include_pad or (self.before[n] == 0 and self.after[n] == 0)):
            return taps
        high = size + self.after[n] if include_pad else size
        last = minimum(taps, ceil_div(high - start, step))
        return (
            last
            if include_pad or self.before[n] == 0
            else last - maximum(ceil_div(const(0) - start, step), 0)
        )


UNROLLED = 32
"""Windows of at most this many taps are written out, so that taps cost a load and an operation."""


def _combine(
    window: Window,
    name: str,
    reducer: Callable[[PrimExpr, Sequence[te.ReduceAxis]], PrimExpr],
    operation: Callable[[PrimExpr, PrimExpr], PrimExpr],
    load: Callable[[Sequence[PrimExpr], Sequence[PrimExpr]], PrimExpr],
) -> Tensor:
    """The taps of each window, `load`ed at (indices, taps), combined."""
    variables = window.taps()
    every_tap = list(product(*(range(size) for size in window.pool_size)))

    def body(*i: Var) -> PrimExpr:
        if len(every_tap) > UNROLLED:
            return reducer(load(i, variables), variables)
        values = (load(i, [as_dim(k) for k in taps]) for taps in every_tap)
        return functools.reduce(operation, values)

    attrs = {"axes": tuple(window.axes)}
    return te.compute(window.shape, body, name=name, tag="pool", attrs=attrs)


def max_pool(window: Window) -> Tensor:
    """The maximum of each window."""
    lowest = te.identity("max", window.data.dtype)

    def load(indices: Sequence[PrimExpr], taps: Sequence[PrimExpr]) -> PrimExpr:
        if window.holds_its_nearest:
            return window.nearest(indices, taps)
        return window.load(indices, taps, lowest)

    return _combine(window, "max_pool", te.max, maximum, load)


def avg_pool(window: Window, count_include_pad: bool) -> Tensor:
    """The mean of each window."""
    dtype = window.data.dtype
    wide, zero = accumulator(dtype), const(0, dtype)

    def load(indices: Sequence[PrimExpr], taps: Sequence[PrimExpr]) -> PrimExpr:
        return cast(window.load(indices, taps, zero), wide)

    total = _combine(window, "pool_sum", te.sum, operator.add, load)
    return te.compute(
        window.shape,
        lambda *i: _mean(total[i], window.count(i, count_include_pad), dtype),
        name="avg_pool",
        tag="elemwise",
    )


def _mean(total: PrimExpr, count: PrimExpr, dtype: str) -> PrimExpr:
    number = known(count)
    if number is not None and dt.is_float(total.dtype):
        return cast(total * const(1 / number, total.dtype), dtype)
    return cast(total / cast(count, total.dtype), dtype)


def adaptive_avg_pool(data: Tensor, shape: Shape, axes: Sequence[int]) -> Tensor:
    """The mean over windows that divide the data into `shape`; windows differ by at most one in
    extent."""
    sizes = [data.shape[a] for a in axes]
    longest = [
        tidy(ceil_div(s, known(shape[a]) or 1) + 1) for s, a in zip(sizes, axes, strict=True)
    ]
    taps = [te.reduce_axis((0, d), f"k{n}") for n, d in enumerate(longest)]
    wide = accumulator(data.dtype)

    def bounds(i: Sequence[PrimExpr], n: int) -> tuple[PrimExpr, PrimExpr]:
        index, extent = i[axes[n]], shape[axes[n]]
        return index * sizes[n] // extent, ((index + 1) * sizes[n] + extent - 1) // extent

    def body(*i: Var) -> PrimExpr:
        at, conditions = list[PrimExpr](i), []
        for n, axis in enumerate(axes):
            begin, end = bounds(i, n)
            at[axis] = begin + taps[n]
            conditions.append(at[axis] < end)
        return te.sum(cast(guarded(data, at, conditions, const(0, data.dtype)), wide), taps)

    def mean(*i: Var) -> PrimExpr:
        count: PrimExpr = const(1, "int64")
        for n in range(len(axes)):
            begin, end = bounds(i, n)
            count = count * (end - begin)
        return cast(total[i] / cast(count, wide), data.dtype)

    total = te.compute(shape, body, name="adaptive_sum", tag="pool", attrs={"axes": tuple(axes)})
    return te.compute(shape, mean, name="adaptive_avg_pool", tag="elemwise")
