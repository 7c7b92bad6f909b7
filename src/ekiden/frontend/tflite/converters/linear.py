"""Convolutions, pooling and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ekiden.frontend.common.converters import window as shared
from ekiden.frontend.common.matrices import transposed
from ekiden.frontend.common.products import multiplied
from ekiden.frontend.common.windows import Window
from ekiden.frontend.tflite.converters import hybrid_linear as hybrid
from ekiden.frontend.tflite.converters import integer_linear as integer
from ekiden.frontend.tflite.converters.rows import biased, rows_of, shaped
from ekiden.frontend.tflite.converters.window import (
    SAME,
    Reader,
    depthwise,
    plain,
    pool_window,
    window_of,
)
from ekiden.frontend.tflite.node import Converter, Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import Dim, known, tidy


def _convolution(read: Reader) -> Converter:
    def convert(node: Node) -> Expr:
        """Convert the convolution of NHWC data, with the weight transposed to HWIO."""
        at = read(node)
        weight = op.transpose(node.expr(1), at.order)
        return biased(node, shared.convolution(
            node, node.expr(0), weight, at.window, groups=at.groups, channels=at.channels,
            layouts=("NHWC", "HWIO"),
        ))  # fmt: skip

    return convert


def _transposed_of(node: Node, data: Expr, weight: Expr) -> Expr:
    """Convert TRANSPOSE_CONV (output shape, weights (out, height, width, in), data)."""
    window = window_of(node, shared.weight_extents(node, 1, 4)[1:3], 2, False)
    return _transposed(node, data, weight, window, node.axes(0, "output shape")[1:3])


def _transpose_conv(node: Node) -> Expr:
    """Convert TRANSPOSE_CONV of (shape of the result, weights [out, height, width, in], data,
    bias); the padding of a convolution of the result is left out.
    """
    return biased(node, _transposed_of(node, node.expr(2), node.expr(1)), 3)


def _transpose_conv_of_integers(node: Node) -> Expr:
    return integer.transpose_conv(node, partial(_transposed_of, node))


def _transpose_conv_bias(node: Node) -> Expr:
    """Convert MediaPipe's Convolution2DTransposeBias (data, weights, bias), whose output shape
    follows from the padding.
    """
    raw = node.operation.custom
    if len(raw) < 12:
        node.unsupported("its options are cut short")
    # TfLiteTransposeConvParams: padding, stride_width, stride_height as little-endian int32.
    same, width, height = (int.from_bytes(raw[i : i + 4], "little") for i in (0, 4, 8))
    node.stated = {"Padding": 0 if same == 1 else 1, "StrideH": height, "StrideW": width}
    window = window_of(node, shared.weight_extents(node, 1, 4)[1:3], 0, False)
    output_extents = [
        tidy(e * s if same == 1 else (e - 1) * s + reach)
        for e, s, reach in zip(node.shape(0)[1:3], window.strides, window.reach, strict=True)
    ]
    convolved = _transposed(node, node.expr(0), node.expr(1), window, output_extents)
    return op.add(convolved, node.expr(2)) if node.optional(2) is not None else convolved


def _transposed(
    node: Node, data: Expr, weight: Expr, window: Window, output_extents: Sequence[Dim]
) -> Expr:
    is_same, turned = node.option("Padding") == SAME, op.transpose(weight, (3, 0, 1, 2))
    return shared.transposed_convolution(
        node, data, turned, window, output_extents, "NHWC", is_same
    )


def _pool(pool: Callable[..., Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        """Convert the pooling, followed by the fused activation."""
        return node.activated(pool(node, node.expr(0), pool_window(node), "NHWC"))

    return convert


def _l2_pool(node: Node) -> Expr:
    """Convert L2_POOL_2D: the root of each window's mean square."""
    square = op.multiply(node.expr(0), node.expr(0))
    return node.activated(op.sqrt(shared.average_pool(node, square, pool_window(node), "NHWC")))


def _conv3d(node: Node) -> Expr:
    """Convert CONV_3D of NDHWC data by weights (depth, height, width, in, out)."""
    *kernel, depth, out = shared.weight_extents(node, 1, 5)
    channels = known(node.shape(0)[4]) or depth
    return biased(node, shared.convolution(
        node, node.expr(0), node.expr(1), window_of(node, kernel), groups=channels // depth,
        channels=out, layouts=("NDHWC", "DHWIO"),
    ))  # fmt: skip


def _conv3d_transpose(node: Node) -> Expr:
    """Convert CONV_3D_TRANSPOSE (output shape, weights (depth, height, width, out, in), data,
    bias).
    """
    window = window_of(node, shared.weight_extents(node, 1, 5)[:3], 2)
    weight, output_extents = (
        op.transpose(node.expr(1), (4, 3, 0, 1, 2)),
        node.axes(0, "output shape")[1:4],
    )
    is_same = node.option("Padding") == SAME
    convolved = shared.transposed_convolution(
        node, node.expr(2), weight, window, output_extents, "NDHWC", is_same
    )
    return biased(node, convolved, 3)


def _fully_connected(node: Node) -> Expr:
    return biased(node, shaped(node, op.nn.dense(rows_of(node), node.expr(1))))


def _batch_matmul(node: Node) -> Expr:
    """Convert BATCH_MATMUL over the last two axes, leading ones broadcast; bytes are widened where
    the output is wide.
    """
    wide = node.outs[0].dtype
    a, b = (op.cast(e, wide) if node.dtype(i) != wide else e for i, e in enumerate(node.exprs()))
    return multiplied(node, *_sides(node, a, b))


def _batch_matmul_of_integers(node: Node) -> Expr:
    return integer.product(node, lambda a, b: multiplied(node, *_sides(node, a, b)))


def _batch_matmul_of_levels(node: Node) -> Expr:
    sides = _sides(node, node.expr(0), node.expr(1))
    return hybrid.batch_matmul(node, lambda a, b: multiplied(node, a, b), sides)


def _sides(node: Node, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    a = transposed(a, node.rank(0)) if node.option("AdjX") else a
    return a, transposed(b, node.rank(1)) if node.option("AdjY") else b


# fmt: off
ROWS = (
    Row("CONV_2D",           _convolution(plain),
        integer=lambda node: integer.convolution(node, plain(node)), is_wide=True,
        hybrid=lambda node: hybrid.plain_convolution(node, plain(node))),
    Row("DEPTHWISE_CONV_2D", _convolution(depthwise),
        integer=lambda node: integer.convolution(node, depthwise(node)), is_wide=True,
        hybrid=lambda node: hybrid.convolution(node, depthwise(node), True)),
    Row("TRANSPOSE_CONV",    _transpose_conv, integer=_transpose_conv_of_integers,
        is_wide=True),
    Row("CUSTOM Convolution2DTransposeBias", _transpose_conv_bias),
    Row("AVERAGE_POOL_2D",   _pool(shared.average_pool), integer=integer.average_pool,
        is_wide=True),
    Row("MAX_POOL_2D",       _pool(shared.max_pool), integer=integer.max_pool, is_wide=True),
    Row("L2_POOL_2D",        _l2_pool),
    Row("CONV_3D",           _conv3d),
    Row("CONV_3D_TRANSPOSE", _conv3d_transpose),
    Row("FULLY_CONNECTED",   _fully_connected, integer=integer.fully_connected,
        is_wide=True, hybrid=hybrid.fully_connected),
    Row("BATCH_MATMUL",      _batch_matmul, integer=_batch_matmul_of_integers,
        is_wide=True, hybrid=_batch_matmul_of_levels),
)
# fmt: on
