"""Pooling over one to three axes.

auto_pad SAME_UPPER and SAME_LOWER make ceil(extent / stride) windows, with the odd row of padding
at the end or at the beginning; for symbolic extents the padding is an expression, and the data are
padded beforehand. MaxPool's second output counts positions in the flattened input, across batches
and channels, row-major, or with storage_order 1 column-major within an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ekiden.frontend.common.converters import window as shared
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.windows import Window, padded
from ekiden.frontend.onnx.converters.window import AUTO_PADS, check_rank, read_window
from ekiden.frontend.onnx.node import Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, Shape, known, product, window_extent_ceil


def _window(node: Node) -> Window:
    check_rank(node)
    return read_window(node, node.get_ints("kernel_shape"))


def _with_places(node: Node) -> Result:
    """Convert MaxPool, with the flat position of each maximum in the data as second output."""
    maxima = max_pool(node)
    if not node.wants(1):
        return maxima
    return [maxima, _places(node, _window(node), node.typed(maxima).shape[2:])]


def _places(node: Node, window: Window, counts: Shape) -> Expr:
    """Return the flat positions of maxima; `counts` are the numbers of windows along each axis."""
    extents, rank = node.shape(0)[2:], len(counts)
    axis_positions = shared.max_positions(node, node.expr(0), window, counts)
    # storage_order 1 is column-major: the axes of an image are flattened in reverse.
    order = -1 if node.get_int("storage_order", 0) else 1
    flat = shared.flat_indices(node, axis_positions[::order], extents[::order])
    planes = op.arange(0, product(node.shape(0)[:2]), 1, "int64")
    first = op.multiply(planes, node.scope.scalar(product(extents)))
    return op.add(flat, op.reshape(first, (*node.shape(0)[:2], *[1] * rank), allowzero=True))


def _is_rounded_up(node: Node) -> bool:
    return bool(node.get_int("ceil_mode", 0))


def _lp_pool(node: Node) -> Expr:
    """Return the p-norm of each window, computed from the mean of the powers."""
    window, power, kind = _window(node), _power(node), node.dtype(0)
    raised: Expr = op.power(op.abs(node.expr(0)), const(power, kind))
    if _is_rounded_up(node):
        mean = _of_whole_windows(node, raised)
    else:
        mean = shared.average_pool(node, raised, window, counts_padding=True)
    # The mean counts the padding, so mean times window size is the sum; zeros add nothing to a
    # p-norm.
    total = op.multiply(mean, const(math.prod(window.kernel), kind))
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
    """Return the maxima of MaxPool, without their positions."""
    return shared.max_pool(node, node.expr(0), _window(node), ceil_mode=_is_rounded_up(node))


def average_pool(node: Node) -> Expr:
    """Convert AveragePool."""
    counts_padding = bool(node.get_int("count_include_pad", 0))
    return shared.average_pool(
        node, node.expr(0), _window(node), "", counts_padding, _is_rounded_up(node)
    )


def average_of_whole_windows(node: Node) -> Expr:
    """Convert QLinearAveragePool, which differs from AveragePool with ceil_mode and
    count_include_pad: a window that reaches beyond the padding is divided by its whole size too.
    """
    if not (_is_rounded_up(node) and node.get_int("count_include_pad", 0)):
        return average_pool(node)
    return _of_whole_windows(node, node.expr(0))


def _of_whole_windows(node: Node, data: Expr) -> Expr:
    """Return means of `data`, which has the extents of the first input, with ceil_mode: positions
    beyond the padding are 0 and counted.
    """
    window, extents = _window(node), node.shape(0)[2:]
    before, after = _known(node, window.before), _known(node, window.after)
    sizes = zip(window.kernel, window.strides, before, after, window.dilations, strict=True)
    counts = [window_extent_ceil(e, *size) for e, size in zip(extents, sizes, strict=True)]
    rounded_window = window.reaching(extents, counts)
    wide = padded(node, data, rounded_window, 0)
    means = shared.pool("avg", wide, rounded_window.unpadded(), count_include_pad=True)
    axes = list(range(2, 2 + len(counts)))
    return op.strided_slice(means, begin=[0] * len(counts), end=counts, axes=axes)


def _known(node: Node, padding: Sequence[Dim]) -> list[int]:
    """Return padding that is constant. Raises Unsupported for symbolic padding."""
    constants = [known(p) for p in padding]
    if None in constants:
        node.unsupported("'auto_pad' of symbolic sizes with 'ceil_mode' and borders that count")
    return [n for n in constants if n is not None]


def _global(
    images: Callable[[Expr], Expr], reduction: Callable[..., Expr]
) -> Callable[[Node], Expr]:
    def convert(node: Node) -> Expr:
        """Pool images of rank 4 by the operator with layout-specific kernels, other ranks by a
        reduction.
        """
        if node.rank(0) == 4:
            return images(node.expr(0))
        return reduction(node.expr(0), axis=list(range(2, node.rank(0))), keepdims=True)

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
