"""Convolutions, pooling and matrix products of float tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ekiden.frontend.common.converters import window as shared
from ekiden.frontend.common.matmul import broadcast_matmul
from ekiden.frontend.common.matrices import transpose_matrix
from ekiden.frontend.common.sliding_window import Window
from ekiden.frontend.tflite.converters import hybrid_linear as hybrid
from ekiden.frontend.tflite.converters import integer_linear as integer
from ekiden.frontend.tflite.converters.rows import (
    add_bias_and_activate,
    flatten_rows,
    restore_leading_axes,
)
from ekiden.frontend.tflite.converters.window import (
    PADDING_SAME,
    GeometryReader,
    conv_geometry,
    depthwise_geometry,
    kernel_window,
    pool_window,
)
from ekiden.frontend.tflite.node import Converter, TfliteNode, TfliteRow
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import Dim, known_int, simplify_dim


def _convolution(read: GeometryReader) -> Converter:
    def convert(node: TfliteNode) -> Expr:
        """Convert a convolution of NHWC data; the weight is transposed to HWIO."""
        at = read(node)
        weight = op.transpose(node.expr(1), at.order)
        return add_bias_and_activate(node, shared.convolution(
            node, node.expr(0), weight, at.window, groups=at.groups, channels=at.channels,
            layouts=("NHWC", "HWIO"),
        ))  # fmt: skip

    return convert


def _transpose_conv_of(node: TfliteNode, data: Expr, weight: Expr) -> Expr:
    """Emit TRANSPOSE_CONV (output shape, weights [out, height, width, in], data)."""
    window = kernel_window(node, shared.known_weight_shape(node, 1, 4)[1:3], 2, False)
    return _emit_conv_transpose(node, data, weight, window, node.axes(0, "output shape")[1:3])


def _transpose_conv(node: TfliteNode) -> Expr:
    """Convert TRANSPOSE_CONV (output shape, weights [out, height, width, in], data, bias)."""
    return add_bias_and_activate(node, _transpose_conv_of(node, node.expr(2), node.expr(1)), 3)


def _quantized_transpose_conv(node: TfliteNode) -> Expr:
    return integer.transpose_conv(node, partial(_transpose_conv_of, node))


def _transpose_conv_bias(node: TfliteNode) -> Expr:
    """Convert MediaPipe's Convolution2DTransposeBias (data, weights, bias), whose output shape
    follows from the padding.
    """
    raw = node.operation.custom
    if len(raw) < 12:
        node.unsupported("its options are cut short")
    # TfLiteTransposeConvParams: padding, stride_width, stride_height as little-endian int32.
    same, width, height = (int.from_bytes(raw[i : i + 4], "little") for i in (0, 4, 8))
    node.stated = {"Padding": 0 if same == 1 else 1, "StrideH": height, "StrideW": width}
    window = kernel_window(node, shared.known_weight_shape(node, 1, 4)[1:3], 0, False)
    output_extents = [
        simplify_dim(e * s if same == 1 else (e - 1) * s + reach)
        for e, s, reach in zip(node.shape(0)[1:3], window.strides, window.reach, strict=True)
    ]
    convolved = _emit_conv_transpose(node, node.expr(0), node.expr(1), window, output_extents)
    return op.add(convolved, node.expr(2)) if node.optional(2) is not None else convolved


def _emit_conv_transpose(
    node: TfliteNode, data: Expr, weight: Expr, window: Window, output_extents: Sequence[Dim]
) -> Expr:
    is_same, turned = node.option("Padding") == PADDING_SAME, op.transpose(weight, (3, 0, 1, 2))
    return shared.transposed_convolution(
        node, data, turned, window, output_extents, "NHWC", is_same
    )


def _pool(pool: Callable[..., Expr]) -> Converter:
    def convert(node: TfliteNode) -> Expr:
        """Convert pooling with its fused activation."""
        return node.activated(pool(node, node.expr(0), pool_window(node), "NHWC"))

    return convert


def _l2_pool(node: TfliteNode) -> Expr:
    """Convert L2_POOL_2D: the root mean square of each window."""
    square = op.multiply(node.expr(0), node.expr(0))
    return node.activated(op.sqrt(shared.average_pool(node, square, pool_window(node), "NHWC")))


def _conv3d(node: TfliteNode) -> Expr:
    """Convert CONV_3D of NDHWC data by weights [depth, height, width, in, out]."""
    *kernel, depth, out = shared.known_weight_shape(node, 1, 5)
    channels = known_int(node.shape(0)[4]) or depth
    return add_bias_and_activate(node, shared.convolution(
        node, node.expr(0), node.expr(1), kernel_window(node, kernel), groups=channels // depth,
        channels=out, layouts=("NDHWC", "DHWIO"),
    ))  # fmt: skip


def _conv3d_transpose(node: TfliteNode) -> Expr:
    """Convert CONV_3D_TRANSPOSE (output shape, weights [depth, height, width, out, in], data,
    bias).
    """
    window = kernel_window(node, shared.known_weight_shape(node, 1, 5)[:3], 2)
    weight, output_extents = (
        op.transpose(node.expr(1), (4, 3, 0, 1, 2)),
        node.axes(0, "output shape")[1:4],
    )
    is_same = node.option("Padding") == PADDING_SAME
    convolved = shared.transposed_convolution(
        node, node.expr(2), weight, window, output_extents, "NDHWC", is_same
    )
    return add_bias_and_activate(node, convolved, 3)


def _fully_connected(node: TfliteNode) -> Expr:
    return add_bias_and_activate(
        node, restore_leading_axes(node, op.nn.dense(flatten_rows(node), node.expr(1)))
    )


def _batch_matmul(node: TfliteNode) -> Expr:
    """Convert BATCH_MATMUL over the last two axes with broadcast leading ones; inputs are cast
    to the output's dtype.
    """
    wide = node.outs[0].dtype
    a, b = (op.cast(e, wide) if node.dtype(i) != wide else e for i, e in enumerate(node.exprs()))
    return broadcast_matmul(node, *_matmul_operands(node, a, b))


def _quantized_batch_matmul(node: TfliteNode) -> Expr:
    return integer.quantized_matmul(
        node, lambda a, b: broadcast_matmul(node, *_matmul_operands(node, a, b))
    )


def _hybrid_batch_matmul(node: TfliteNode) -> Expr:
    sides = _matmul_operands(node, node.expr(0), node.expr(1))
    return hybrid.batch_matmul(node, lambda a, b: broadcast_matmul(node, a, b), sides)


def _matmul_operands(node: TfliteNode, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    a = transpose_matrix(a, node.rank(0)) if node.option("AdjX") else a
    return a, transpose_matrix(b, node.rank(1)) if node.option("AdjY") else b


# fmt: off
ROWS = (
    TfliteRow("CONV_2D",           _convolution(conv_geometry),
        integer=lambda node: integer.convolution(node, conv_geometry(node)), is_wide=True,
        hybrid=lambda node: hybrid.conv2d(node, conv_geometry(node))),
    TfliteRow("DEPTHWISE_CONV_2D", _convolution(depthwise_geometry),
        integer=lambda node: integer.convolution(node, depthwise_geometry(node)), is_wide=True,
        hybrid=lambda node: hybrid.convolution(node, depthwise_geometry(node), True)),
    TfliteRow("TRANSPOSE_CONV",    _transpose_conv, integer=_quantized_transpose_conv,
        is_wide=True),
    TfliteRow("CUSTOM Convolution2DTransposeBias", _transpose_conv_bias),
    TfliteRow("AVERAGE_POOL_2D",   _pool(shared.average_pool), integer=integer.average_pool,
        is_wide=True),
    TfliteRow("MAX_POOL_2D",       _pool(shared.max_pool), integer=integer.max_pool, is_wide=True),
    TfliteRow("L2_POOL_2D",        _l2_pool),
    TfliteRow("CONV_3D",           _conv3d),
    TfliteRow("CONV_3D_TRANSPOSE", _conv3d_transpose),
    TfliteRow("FULLY_CONNECTED",   _fully_connected, integer=integer.fully_connected,
        is_wide=True, hybrid=hybrid.fully_connected),
    TfliteRow("BATCH_MATMUL",      _batch_matmul, integer=_quantized_batch_matmul,
        is_wide=True, hybrid=_hybrid_batch_matmul),
)
# fmt: on
