"""ONNX pooling over one to three spatial axes.

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
from ekiden.frontend.common.sliding_window import Window, pad_window
from ekiden.frontend.onnx.converters.window import AUTO_PAD_MODES, check_spatial_rank, read_window
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, Shape, known_int, product_of_dims, window_extent_ceil


def _pool_window(node: OnnxNode) -> Window:
    """Return the pooling window of a node."""
    check_spatial_rank(node)
    return read_window(node, node.get_ints("kernel_shape"))


def _max_pool_with_indices(node: OnnxNode) -> Result:
    """Convert MaxPool; output 1 holds the flat index of each maximum."""
    maxima = emit_max_pool(node)
    if not node.is_output_used(1):
        return maxima
    return [maxima, _max_indices(node, _pool_window(node), node.tensor_type_of(maxima).shape[2:])]


def _max_indices(node: OnnxNode, window: Window, counts: Shape) -> Expr:
    """Emit the flat indices of maxima in the data; `counts` are the output extents."""
    extents, rank = node.shape(0)[2:], len(counts)
    axis_positions = shared.max_pool_indices(node, node.expr(0), window, counts)
    # storage_order 1 is column-major: the axes of an image are flattened in reverse.
    order = -1 if node.get_int("storage_order", 0) else 1
    flat = shared.ravel_indices(node, axis_positions[::order], extents[::order])
    planes = op.arange(0, product_of_dims(node.shape(0)[:2]), 1, "int64")
    first = op.multiply(planes, node.scope.emit_dim(product_of_dims(extents)))
    return op.add(flat, op.reshape(first, (*node.shape(0)[:2], *[1] * rank), allowzero=True))


def _has_ceil_mode(node: OnnxNode) -> bool:
    """Return the attribute `ceil_mode`."""
    return bool(node.get_int("ceil_mode", 0))


def _lp_pool(node: OnnxNode) -> Expr:
    """Convert LpPool: the p-norm of each window, from the mean of the powers."""
    window, power, kind = _pool_window(node), _norm_exponent(node), node.dtype(0)
    raised: Expr = op.power(op.abs(node.expr(0)), const(power, kind))
    if _has_ceil_mode(node):
        mean = _full_window_means(node, raised)
    else:
        mean = shared.emit_average_pool(node, raised, window, counts_padding=True)
    # The mean counts the padding, so mean times window size is the sum; zeros add nothing to a
    # p-norm.
    total = op.multiply(mean, const(math.prod(window.static_extents), kind))
    return op.power(total, const(1 / power, kind))


def _norm_exponent(node: OnnxNode) -> int:
    """Return the exponent `p` of a norm."""
    power = node.get_int("p", 2)
    if power < 1:
        node.reject(f"attribute 'p' must be at least 1, got {power}")
    return power


def _global_lp_pool(node: OnnxNode) -> Expr:
    power, kind = _norm_exponent(node), node.dtype(0)
    raised = op.power(op.abs(node.expr(0)), const(power, kind))
    total = op.sum(raised, axis=list(range(2, node.rank(0))), keepdims=True)
    return op.power(total, const(1 / power, kind))


def emit_max_pool(node: OnnxNode) -> Expr:
    """Emit the maxima of MaxPool without their indices."""
    return shared.emit_max_pool(
        node, node.expr(0), _pool_window(node), ceil_mode=_has_ceil_mode(node)
    )


def convert_average_pool(node: OnnxNode) -> Expr:
    """Convert AveragePool."""
    counts_padding = bool(node.get_int("count_include_pad", 0))
    return shared.emit_average_pool(
        node, node.expr(0), _pool_window(node), "", counts_padding, _has_ceil_mode(node)
    )


def convert_full_window_average_pool(node: OnnxNode) -> Expr:
    """Convert QLinearAveragePool, which divides windows beyond the padding by their full size."""
    if not (_has_ceil_mode(node) and node.get_int("count_include_pad", 0)):
        return convert_average_pool(node)
    return _full_window_means(node, node.expr(0))


def _full_window_means(node: OnnxNode, data: Expr) -> Expr:
    """Emit window means with ceil_mode, where positions beyond the padding count as 0."""
    window, extents = _pool_window(node), node.shape(0)[2:]
    before, after = (
        _constant_padding(node, window.padding_before),
        _constant_padding(node, window.padding_after),
    )
    sizes = zip(window.static_extents, window.strides, before, after, window.dilations, strict=True)
    counts = [window_extent_ceil(e, *size) for e, size in zip(extents, sizes, strict=True)]
    # The padding is extended until the last window of ceil_mode fits.
    rounded_window = window.with_trailing_padding(extents, counts)
    wide = pad_window(node, data, rounded_window, 0)
    means = shared.emit_pool("avg", wide, rounded_window.without_padding(), count_include_pad=True)
    axes = list(range(2, 2 + len(counts)))
    return op.strided_slice(means, begin=[0] * len(counts), end=counts, axes=axes)


def _constant_padding(node: OnnxNode, padding: Sequence[Dim]) -> list[int]:
    """Return padding as integers; raise Unsupported where it is symbolic."""
    constants = [known_int(p) for p in padding]
    if None in constants:
        node.reject("'auto_pad' of symbolic sizes with 'ceil_mode' and borders that count")
    return [n for n in constants if n is not None]


def _global_pool_converter(
    images: Callable[[Expr], Expr], reduction: Callable[..., Expr]
) -> Callable[[OnnxNode], Expr]:
    """Return a converter of a global pooling operator."""

    def convert_global_pool(node: OnnxNode) -> Expr:
        """Emit the layout-specific operator for rank 4, a reduction for other ranks."""
        if node.rank(0) == 4:
            return images(node.expr(0))
        return reduction(node.expr(0), axis=list(range(2, node.rank(0))), keepdims=True)

    return convert_global_pool


convert_global_average_pool = _global_pool_converter(op.nn.global_avg_pool2d, op.mean)
"""GlobalAveragePool."""
_AUTO_PAD_VALUES = {"auto_pad": AUTO_PAD_MODES}
_POOL_ATTRIBUTES = "auto_pad ceil_mode dilations kernel_shape pads strides"

# fmt: off
ROWS = (
    OnnxRow("MaxPool",           _max_pool_with_indices,
        attributes=f"{_POOL_ATTRIBUTES} storage_order", supported_values=_AUTO_PAD_VALUES),
    OnnxRow("AveragePool",       convert_average_pool,
        attributes=f"{_POOL_ATTRIBUTES} count_include_pad",
        supported_values=_AUTO_PAD_VALUES),
    OnnxRow("LpPool", _lp_pool, attributes=f"{_POOL_ATTRIBUTES} p",
        supported_values=_AUTO_PAD_VALUES),
    OnnxRow("GlobalLpPool",      _global_lp_pool, attributes="p"),
    OnnxRow("GlobalAveragePool", convert_global_average_pool),
    OnnxRow("GlobalMaxPool",     _global_pool_converter(op.nn.global_max_pool2d, op.max)),
)
# fmt: on
