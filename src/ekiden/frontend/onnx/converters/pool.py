"""Pooling, over one to three axes.

auto_pad SAME_UPPER and SAME_LOWER make as many windows as extent / stride, rounded up, with the odd
row of padding behind or before; of symbolic extents that padding is an expression, for which the
data are padded beforehand. MaxPool's second output counts places in the flattened input, across
batches and channels, row-major, or with storage_order 1 column-major within an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product as every

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.onnx.converters.window import AUTO_PADS, Window, padded, read_window
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr, maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim, Shape, as_dim, known, product, tidy, window_extent_ceil

_MAX: Mapping[int, Callable[..., Expr]] = {
    1: op.nn.max_pool1d,
    2: op.nn.max_pool2d,
    3: op.nn.max_pool3d,
}
_AVERAGE: Mapping[int, Callable[..., Expr]] = {
    1: op.nn.avg_pool1d,
    2: op.nn.avg_pool2d,
    3: op.nn.avg_pool3d,
}
"""By the number of spatial axes."""


def _window(node: Node) -> Window:
    if node.rank(0) not in (3, 4, 5):
        node.unsupported(f"expected an input of rank 3, 4 or 5, got {node.rank(0)}")
    return read_window(node, node.get_ints("kernel_shape"))


def _with_places(node: Node) -> Result:
    """MaxPool, and where each maximum lies in the flattened data."""
    found = max_pool(node)
    if not node.wants(1):
        return found
    return [found, _places(node, _window(node), node.typed(found).shape[2:])]


def _places(node: Node, window: Window, counts: Shape) -> Expr:
    """Positions of maxima: the taps of every window side by side, the first of the largest.
    `counts` are how many windows each axis has.
    """
    extents, rank, kind = node.shape(0)[2:], len(counts), node.dtype(0)
    low = -np.inf if is_float(kind) else int(np.iinfo(kind).min)
    whole = _reaching(window, extents, counts)
    chosen = _first_taps(padded(node, node.expr(0), whole, low), whole, counts)
    starts = [
        _along(i, rank, _starts(node, c, s, b))
        for i, (c, s, b) in enumerate(zip(counts, whole.strides, whole.before, strict=True))
    ]
    taps = _taps(window)
    places: list[Expr] = [
        op.add(first, op.take(const(taps[:, i] * window.dilations[i]), chosen, axis=0))
        for i, first in enumerate(starts)
    ]
    limits = [node.scope.scalar(e) for e in extents]
    if any(known(p) != 0 for p in (*whole.before, *whole.after)):
        # Of a window that holds nothing but the lowest value the first place is one of the border.
        places = _where_inside(places, limits, starts, window)
    order = list(range(rank))
    if node.get_int("storage_order", 0):
        order.reverse()
    flat: Expr = const(0, "int64")
    for axis in order:
        flat = op.add(op.multiply(flat, limits[axis]), places[axis])
    planes = op.arange(0, product(node.shape(0)[:2]), 1, "int64")
    first = op.multiply(planes, node.scope.scalar(product(extents)))
    return op.add(flat, op.reshape(first, (*node.shape(0)[:2], *[1] * rank), allowzero=True))


def _taps(window: Window) -> Array:
    """(taps, axes): where each tap of a window lies, in order."""
    return np.array(list(every(*(range(k) for k in window.kernel))), np.int64)


def _first_taps(data: Expr, window: Window, counts: Shape) -> Expr:
    """For each window over padded data, which tap has the first of its largest elements."""
    steps = list(zip(window.strides, window.dilations, counts, strict=True))
    shifted = [
        op.strided_slice(
            data,
            begin=[int(t * d) for t, (_, d, _) in zip(tap, steps, strict=True)],
            end=[tidy((c - 1) * s + int(t * d) + 1)
                 for t, (s, d, c) in zip(tap, steps, strict=True)],
            strides=list(window.strides),
            axes=list(range(2, 2 + len(steps))),
        )
        for tap in _taps(window)
    ]  # fmt: skip
    return op.cast(op.argmax(op.stack(shifted, axis=0), axis=0), "int64")


def _starts(node: Node, count: PrimExpr, stride: int, before: Dim) -> Expr:
    """Where the windows along an axis begin, in the data without padding."""
    steps = op.multiply(op.arange(0, count, 1, "int64"), const(stride, "int64"))
    return op.subtract(steps, node.scope.scalar(as_dim(before)))


def _along(axis: int, rank: int, row: Expr) -> Expr:
    """A vector along a spatial axis of (batch, channels, ...)."""
    after = rank - 1 - axis
    return op.expand_dims(row, axis=1, num_newaxis=after) if after else row


def _where_inside(
    places: Sequence[Expr], limits: Sequence[Expr], starts: Sequence[Expr], window: Window
) -> list[Expr]:
    """Places of the data: of a window whose place is none, the first that it has."""
    zero = const(0, "int64")
    inside = reduce(op.logical_and, [
        op.logical_and(op.greater_equal(p, zero), op.less(p, e))
        for p, e in zip(places, limits, strict=True)
    ])  # fmt: skip
    found: list[Expr] = []
    for place, start, kernel, dilation in zip(
        places, starts, window.kernel, window.dilations, strict=True
    ):
        step = const(dilation, "int64")
        skipped = op.maximum(op.negative(op.floor_divide(start, step)), zero)
        first = op.add(start, op.multiply(op.minimum(skipped, const(kernel - 1, "int64")), step))
        found.append(op.where(inside, place, first))
    return found


def _lp_pool(node: Node) -> Expr:
    """The p-norm of each window: from the mean of the powers."""
    window, power = _window(node), _power(node)
    kind = node.dtype(0)
    raised: Expr = op.power(op.abs(node.expr(0)), const(power, kind))
    padding = window.padding
    if node.get_int("ceil_mode", 0):
        mean = _of_whole_windows(node, raised)
    elif padding is None:
        none = (0,) * 2 * len(window.kernel)
        mean = _averages(padded(node, raised, window, 0.0), window, none)
    else:
        mean = _averages(raised, window, padding)
    total = op.multiply(mean, const(math.prod(map(int, window.kernel)), kind))
    return op.power(total, const(1 / power, kind))


def _power(node: Node) -> int:
    """Return the exponent of a norm."""
    power = node.get_int("p", 2)
    if power < 1:
        node.unsupported(f"attribute 'p' must be at least 1, got {power}")
    return power


def _global_lp_pool(node: Node) -> Expr:
    power, kind = _power(node), node.dtype(0)
    raised = op.power(op.abs(node.expr(0)), const(power, kind))
    total = op.sum(raised, axis=list(range(2, node.rank(0))), keepdims=True)
    return op.power(total, const(1 / power, kind))


def max_pool(node: Node) -> Expr:
    """MaxPool, its maxima alone."""
    window = _window(node)
    data, padding = node.expr(0), window.padding
    if padding is None:
        lowest = -np.inf if is_float(node.dtype(0)) else int(np.iinfo(node.dtype(0)).min)
        data, padding = padded(node, data, window, lowest), (0,) * 2 * len(window.kernel)
    pool = _MAX[len(window.kernel)]
    ceil = bool(node.get_int("ceil_mode", 0))
    return pool(
        data,
        pool_size=window.kernel,
        strides=window.strides,
        dilation=window.dilations,
        padding=padding,
        ceil_mode=ceil,
    )


def average_pool(node: Node) -> Expr:
    """AveragePool. Where padding is symbolic, the sums of padded data are divided by how much of
    each window is data.
    """
    window, data = _window(node), node.expr(0)
    counts_padding = bool(node.get_int("count_include_pad", 0))
    if window.padding is not None:
        ceil = bool(node.get_int("ceil_mode", 0))
        return _averages(data, window, window.padding, counts_padding, ceil)
    none = (0,) * 2 * len(window.kernel)
    found = _averages(padded(node, data, window, 0.0), window, none)
    if counts_padding:
        return found
    kind = node.dtype(0)
    ones = op.full(const(1, kind), (1, 1, *node.shape(0)[2:]), dtype=kind)
    return op.divide(found, _averages(padded(node, ones, window, 0.0), window, none))


def average_of_whole_windows(node: Node) -> Expr:
    """QLinearAveragePool, which differs from AveragePool where windows are rounded up and borders
    counted: a window that reaches beyond the padding is divided by its whole size too.
    """
    if not (node.get_int("ceil_mode", 0) and node.get_int("count_include_pad", 0)):
        return average_pool(node)
    return _of_whole_windows(node, node.expr(0))


def _of_whole_windows(node: Node, data: Expr) -> Expr:
    """Means of `data`, which has the extents of the first input, over windows that are rounded up:
    what is not there is 0, and counted.
    """
    window, extents = _window(node), node.shape(0)[2:]
    before, after = _known(node, window.before), _known(node, window.after)
    sizes = zip(window.kernel, window.strides, before, after, window.dilations, strict=True)
    counts = [window_extent_ceil(e, *size) for e, size in zip(extents, sizes, strict=True)]
    whole = _reaching(window, extents, counts)
    found = _averages(padded(node, data, whole, 0.0), whole, (0,) * 2 * len(counts))
    axes = list(range(2, 2 + len(counts)))
    return op.strided_slice(found, begin=[0] * len(counts), end=counts, axes=axes)


def _reaching(window: Window, extents: Shape, counts: Sequence[PrimExpr]) -> Window:
    """A window with as much padding behind as the last of `counts` windows reaches, at least."""
    rows = zip(
        counts, extents, window.kernel, window.strides, window.dilations, window.before,
        window.after, strict=True,
    )  # fmt: skip
    missing = [
        tidy(maximum((n - 1) * s + (k - 1) * d + 1 - e - b, a)) for n, e, k, s, d, b, a in rows
    ]
    return replace(window, after=tuple(missing))


def _known(node: Node, padding: Sequence[Dim]) -> list[int]:
    """Padding that is the same for all sizes."""
    found = [known(p) for p in padding]
    if None in found:
        node.unsupported("'auto_pad' of symbolic sizes with 'ceil_mode' and borders that count")
    return [n for n in found if n is not None]


def _averages(
    data: Expr,
    window: Window,
    padding: tuple[int, ...],
    counts_padding: bool = True,
    ceil: bool = False,
) -> Expr:
    return _AVERAGE[len(window.kernel)](
        data,
        pool_size=window.kernel,
        strides=window.strides,
        dilation=window.dilations,
        padding=padding,
        ceil_mode=ceil,
        count_include_pad=counts_padding,
    )


def _global(images: Callable[[Expr], Expr], other: Callable[..., Expr]) -> Callable[[Node], Expr]:
    def convert(node: Node) -> Expr:
        """Of images the pooling that has kernels for their layouts, of other ranks a reduction."""
        if node.rank(0) == 4:
            return images(node.expr(0))
        return other(node.expr(0), axis=list(range(2, node.rank(0))), keepdims=True)

    return convert


global_average_pool = _global(op.nn.global_avg_pool2d, op.mean)
"""GlobalAveragePool."""
_AUTO = {"auto_pad": AUTO_PADS}
_ATTRIBUTES = "auto_pad ceil_mode dilations kernel_shape pads strides"

# fmt: off
ROWS = (
    Row("MaxPool",           _with_places, attributes=f"{_ATTRIBUTES} storage_order", values=_AUTO),
    Row("AveragePool",       average_pool, attributes=f"{_ATTRIBUTES} count_include_pad",
        values=_AUTO),
    Row("LpPool",            _lp_pool, attributes=f"{_ATTRIBUTES} p", values=_AUTO),
    Row("GlobalLpPool",      _global_lp_pool, attributes="p"),
    Row("GlobalAveragePool", global_average_pool),
    Row("GlobalMaxPool",     _global(op.nn.global_max_pool2d, op.max)),
)
# fmt: on
