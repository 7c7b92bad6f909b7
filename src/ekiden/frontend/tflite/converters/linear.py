"""Convolutions, pools and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.frontend.tflite.node import Converter, Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.shape import known

SAME = 0
"""Of the enum Padding; the other is VALID."""


def _strides(node: Node) -> tuple[int, int]:
    return node.option("StrideH"), node.option("StrideW")


def _padding(node: Node, window: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """(top, left, bottom, right): what SAME adds, the odd one behind.

    Gives up where it depends on extents that are symbolic.
    """
    if node.option("Padding") != SAME:
        return 0, 0, 0, 0
    sides: list[tuple[int, int]] = []
    for extent, size, step, d in zip(
        node.extents(0, (1, 2)), window, _strides(node), dilation, strict=True
    ):
        reach = (size - 1) * d + 1
        if extent is None and step > 1:
            node.unsupported(f"padding SAME with strides needs a known extent of {node.ins[0]}")
        total = reach - 1 if extent is None else (-(-extent // step) - 1) * step + reach - extent
        sides.append((max(total, 0) // 2, max(total, 0) - max(total, 0) // 2))
    (top, bottom), (left, right) = sides
    return top, left, bottom, right


def _window(node: Node, index: int) -> tuple[int, ...]:
    """The shape of a weight, which must be known."""
    found = [known(d) for d in node.shape(index)]
    if len(found) != 4 or None in found:
        node.unsupported(f"{node.ins[index]} must have four known extents")
    return tuple(d for d in found if d is not None)


def _biased(node: Node, made: Expr, index: int = 2) -> Expr:
    bias = made if node.optional(index) is None else op.add(made, node.expr(index))
    return node.activated(bias)


def _dilation(node: Node) -> tuple[int, int]:
    return node.option("DilationHFactor", 1), node.option("DilationWFactor", 1)


def _conv2d(node: Node) -> Expr:
    """Weights are (out, height, width, in), where fewer in than the data has make groups."""
    out, height, width, depth = _window(node, 1)
    channels = known(node.shape(0)[3])
    if channels is None or channels % depth:
        node.unsupported(f"{node.ins[0]} must have a multiple of {depth} channels")
    dilation = _dilation(node)
    made = op.nn.conv2d(
        node.expr(0), op.transpose(node.expr(1), (1, 2, 3, 0)), _strides(node),
        _padding(node, (height, width), dilation), dilation, channels // depth, out,
        (height, width), "NHWC", "HWIO",
    )  # fmt: skip
    return _biased(node, made)


def _depthwise_conv2d(node: Node) -> Expr:
    """Weights are (1, height, width, out): of each channel of the data equally many."""
    _, height, width, out = _window(node, 1)
    channels = known(node.shape(0)[3])
    if channels is None or out % channels:
        node.unsupported(f"{node.ins[0]} must have a divisor of {out} as its channels")
    dilation = _dilation(node)
    made = op.nn.conv2d(
        node.expr(0), op.transpose(node.expr(1), (1, 2, 0, 3)), _strides(node),
        _padding(node, (height, width), dilation), dilation, channels, out,
        (height, width), "NHWC", "HWIO",
    )  # fmt: skip
    return _biased(node, made)


def _transpose_conv(node: Node) -> Expr:
    """(shape of the result, weights (out, height, width, in), data, bias): what a convolution of
    the result would have padded is left out.
    """
    wanted = node.axes(0, "output shape")[1:3]
    out, height, width, _ = _window(node, 1)
    sides, more = [], []
    for extent, size, step, result in zip(
        node.extents(2, (1, 2)), (height, width), _strides(node), wanted, strict=True
    ):
        if extent is None:
            node.unsupported(f"{node.ins[2]} must have a known height and width")
        whole = (extent - 1) * step + size
        cut = max(whole - result, 0) if node.option("Padding") == SAME else 0
        sides.append((cut // 2, cut - cut // 2))
        more.append(result - whole + cut)
    if any(not 0 <= m < s for m, s in zip(more, _strides(node), strict=True)):
        node.unsupported(f"the output shape {wanted} does not follow from {node.ins[2]}")
    (top, bottom), (left, right) = sides
    made = op.nn.conv2d_transpose(
        op.transpose(node.expr(2), (0, 3, 1, 2)), op.transpose(node.expr(1), (3, 0, 1, 2)),
        _strides(node), (top, left, bottom, right), channels=out, kernel_size=(height, width),
        output_padding=tuple(more),
    )  # fmt: skip
    return _biased(node, op.transpose(made, (0, 2, 3, 1)), 3)


def _pool(function: Callable[..., Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        window = node.option("FilterHeight"), node.option("FilterWidth")
        padding = _padding(node, window, (1, 1))
        made = function(node.expr(0), window, _strides(node), padding=padding, layout="NHWC")
        return node.activated(made)

    return convert


def _fully_connected(node: Node) -> Expr:
    """Weights are (out, in); the data is seen as rows of `in`."""
    if node.option("WeightsFormat"):
        node.unsupported(f"{node.ins[1]} is shuffled")
    depth = known(node.shape(1)[1])
    if depth is None:
        node.unsupported(f"{node.ins[1]} must have known extents")
    rows = op.reshape(node.expr(0), (-1, depth))
    made = op.nn.dense(rows, node.expr(1))
    if node.option("KeepNumDims"):
        made = op.reshape(made, (*node.shape(0)[:-1], node.shape(1)[0]))
    return _biased(node, made)


def _batch_matmul(node: Node) -> Expr:
    """Matrices of the last two axes; those before broadcast."""
    a, b = node.exprs()
    if node.option("AdjX"):
        a = op.transpose(a, _swapped(node.rank(0)))
    if node.option("AdjY"):
        b = op.transpose(b, _swapped(node.rank(1)))
    return op.nn.matmul(a, b) if node.rank(0) == node.rank(1) == 2 else _many(node, a, b)


def _swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _many(node: Node, a: Expr, b: Expr) -> Expr:
    ranks = node.rank(0), node.rank(1)
    if ranks != (3, 3):
        node.unsupported(f"matrices of ranks {ranks} are not supported, (2, 2) and (3, 3) are")
    return op.nn.batch_matmul(a, b, transpose_b=False)


# fmt: off
ROWS = (
    Row("CONV_2D",           _conv2d),
    Row("DEPTHWISE_CONV_2D", _depthwise_conv2d),
    Row("TRANSPOSE_CONV",    _transpose_conv),
    Row("AVERAGE_POOL_2D",   _pool(op.nn.avg_pool2d)),
    Row("MAX_POOL_2D",       _pool(op.nn.max_pool2d)),
    Row("FULLY_CONNECTED",   _fully_connected),
    Row("BATCH_MATMUL",      _batch_matmul),
)
# fmt: on
