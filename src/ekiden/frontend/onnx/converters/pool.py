"""Pooling, over one to three axes.

auto_pad SAME_UPPER and SAME_LOWER make as many windows as extent / stride, rounded up, with the odd
row of padding behind or before; of symbolic extents that padding is an expression, for which the
data are padded beforehand. MaxPool's second output counts places in the flattened input, across
batches and channels, row-major, or with storage_order 1 column-major within an image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product as every

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.onnx.converters.window import Window, padded, read_window
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.dtype import is_float
from ekiden.ir.op import Array
from ekiden.ir.prim import maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim, as_ints, known, product, tidy, window_extent_ceil

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
    return [found, _places(node, _window(node))] if node.wants(1) else found


def _places(node: Node, window: Window) -> Expr:
    """Positions of maxima: the taps of every window side by side, the first of the largest."""
    if any(known(e) is None for e in node.shape(0)[2:]):
        node.unsupported(
            f"output 1 (the places of maxima) needs data of a size that is known, got "
            f"{node.shape(0)}; give the size as 'shape'"
        )
    extents, padding = as_ints(node.shape(0)[2:]), window.padding
    rank = len(extents)
    if padding is None or node.get_int("ceil_mode", 0):
        node.unsupported("output 1 needs constant padding, and 'ceil_mode' 0")
    kind = node.dtype(0)
    low = -np.inf if is_float(kind) else int(np.iinfo(kind).min)
    widths = [(0, 0), (0, 0), *zip(padding[:rank], padding[rank:], strict=True)]
    data = op.nn.pad(node.expr(0), widths, const(low, kind))
    steps = list(zip(window.kernel, window.strides, window.dilations, strict=True))
    counts = [
        (e + padding[i] + padding[i + rank] - (k - 1) * d - 1) // s + 1
        for i, (e, (k, s, d)) in enumerate(zip(extents, steps, strict=True))
    ]
    taps = np.array(list(every(*(range(k) for k in window.kernel))))
    shifted = [
        op.strided_slice(
            data,
            begin=[int(t * d) for t, (_, _, d) in zip(tap, steps, strict=True)],
            end=[int(t * d) + (c - 1) * s + 1
                 for t, (_, s, d), c in zip(tap, steps, counts, strict=True)],
            strides=list(window.strides),
            axes=list(range(2, 2 + rank)),
        )
        for tap in taps
    ]  # fmt: skip
    chosen = op.cast(op.argmax(op.stack(shifted, axis=0), axis=0), "int64")
    order = list(range(rank))
    if node.get_int("storage_order", 0):
        order.reverse()
    places, firsts = [], []
    for axis, (kernel, stride, dilation) in enumerate(steps):
        starts = np.arange(counts[axis]) * stride - padding[axis]
        shape = [1] * (2 + rank)
        shape[2 + axis] = counts[axis]
        offsets = const((taps[:, axis] * dilation).astype(np.int64))
        places.append(op.add(const(starts.reshape(shape)), op.take(offsets, chosen, axis=0)))
        firsts.append(_first_inside(starts, kernel, dilation).reshape(shape))
    if any(padding):  # of a window that is -inf alone the first place is one of the border
        inside = reduce(op.logical_and, [
            op.logical_and(op.greater_equal(p, const(0, "int64")), op.less(p, const(e, "int64")))
            for p, e in zip(places, extents, strict=True)
        ])  # fmt: skip
        places = [op.where(inside, p, const(f)) for p, f in zip(places, firsts, strict=True)]
    flat: Expr = const(0, "int64")
    for axis in order:
        flat = op.add(op.multiply(flat, const(extents[axis], "int64")), places[axis])
    planes = product(node.shape(0)[:2])
    first = op.multiply(op.arange(0, planes, 1, "int64"), const(int(np.prod(extents)), "int64"))
    return op.add(flat, op.reshape(first, (*node.shape(0)[:2], *[1] * rank), allowzero=True))


def _first_inside(starts: Array, kernel: int, dilation: int) -> Array:
    """The first element of each window along an axis that is no padding before it."""
    skipped = np.maximum(-(starts // dilation), 0)
    return np.asarray(starts + np.minimum(skipped, kernel - 1) * dilation)


def _lp_pool(node: Node) -> Expr:
    """The p-norm of each window: from the mean of the powers."""
    window, power = _window(node), node.get_int("p", 2)
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
    total = op.multiply(mean, const(int(np.prod(window.kernel)), kind))
    return op.power(total, const(1 / power, kind))


def _global_lp_pool(node: Node) -> Expr:
    power, kind = node.get_int("p", 2), node.dtype(0)
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
    sizes = list(zip(window.kernel, window.strides, before, after, window.dilations, strict=True))
    counts = [window_extent_ceil(e, *size) for e, size in zip(extents, sizes, strict=True)]
    missing = [
        tidy(maximum((n - 1) * s + (k - 1) * d + 1 - e - b, a))
        for n, e, (k, s, b, a, d) in zip(counts, extents, sizes, strict=True)
    ]
    whole = replace(window, after=tuple(missing))
    found = _averages(padded(node, data, whole, 0.0), whole, (0,) * 2 * len(counts))
    axes = list(range(2, 2 + len(counts)))
    return op.strided_slice(found, begin=[0] * len(counts), end=counts, axes=axes)


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
_AUTO = {"auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")}
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
