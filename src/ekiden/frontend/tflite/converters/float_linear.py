"""Convolutions, pooling and matrix products of float tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ekiden.frontend.common.converters import window as shared
from ekiden.frontend.common.linalg import transpose_matrix
from ekiden.frontend.common.matmul import broadcast_matmul
from ekiden.frontend.common.sliding_window import Window
from ekiden.frontend.tflite.converters import hybrid_linear as hybrid
from ekiden.frontend.tflite.converters import integer_linear as integer
from ekiden.frontend.tflite.converters.flatten_leading_axes import (
    add_bias_and_activate,
    flatten_rows,
    restore_leading_axes,
)
from ekiden.frontend.tflite.converters.window_geometry import (
    PADDING_SAME,
    GeometryReader,
    make_kernel_window,
    read_conv_geometry,
    read_depthwise_geometry,
    read_pool_window,
)
from ekiden.frontend.tflite.node import Converter, TfliteNode, TfliteRow
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.dimensions import Dim, known_int, simplify_dim


def _convolution_converter(read: GeometryReader) -> Converter:
    def convert(node: TfliteNode) -> Expr:
        """Convert a convolution of NHWC data; the weight is transposed to HWIO."""
        conv = read(node)
        weight = op.transpose(node.expr(1), conv.weight_permutation)
        return add_bias_and_activate(node, shared.emit_convolution(
            node, node.expr(0), weight, conv.window, groups=conv.groups, channels=conv.channels,
            layouts=("NHWC", "HWIO"),
        ))  # fmt: skip

    return convert


def _emit_transpose_conv(node: TfliteNode, data: Expr, weight: Expr) -> Expr:
    """Emit TRANSPOSE_CONV (output shape, weights [out, height, width, in], data)."""
    window = make_kernel_window(node, shared.static_weight_shape(node, 1, 4)[1:3], 2, False)
    return _emit_conv_transpose(
        node, data, weight, window, node.constant_ints(0, "output shape")[1:3]
    )


def _transpose_conv(node: TfliteNode) -> Expr:
    """Convert TRANSPOSE_CONV (output shape, weights [out, height, width, in], data, bias)."""
    return add_bias_and_activate(node, _emit_transpose_conv(node, node.expr(2), node.expr(1)), 3)


def _quantized_transpose_conv(node: TfliteNode) -> Expr:
    return integer.convert_integer_transpose_conv(node, partial(_emit_transpose_conv, node))


def _transpose_conv_bias(node: TfliteNode) -> Expr:
    """Convert MediaPipe's Convolution2DTransposeBias (data, weights, bias), whose output shape
    follows from the padding.
    """
    raw = node.operation.custom_options
    if len(raw) < 12:
        node.reject("its options are cut short")
    # TfLiteTransposeConvParams: padding, stride_width, stride_height as little-endian int32.
    same, width, height = (int.from_bytes(raw[i : i + 4], "little") for i in (0, 4, 8))
    node.stated = {"Padding": 0 if same == 1 else 1, "StrideH": height, "StrideW": width}
    window = make_kernel_window(node, shared.static_weight_shape(node, 1, 4)[1:3], 0, False)
    output_extents = [
        simplify_dim(e * s if same == 1 else (e - 1) * s + reach)
        for e, s, reach in zip(
            node.shape(0)[1:3], window.strides, window.dilated_extents, strict=True
        )
    ]
    convolved = _emit_conv_transpose(node, node.expr(0), node.expr(1), window, output_extents)
    return op.add(convolved, node.expr(2)) if node.optional_value(2) is not None else convolved


def _emit_conv_transpose(
    node: TfliteNode, data: Expr, weight: Expr, window: Window, output_extents: Sequence[Dim]
) -> Expr:
    is_same, turned = (
        node.read_option("Padding") == PADDING_SAME,
        op.transpose(weight, (3, 0, 1, 2)),
    )
    return shared.emit_transposed_convolution(
        node, data, turned, window, output_extents, "NHWC", is_same
    )


def _pool_converter(pool: Callable[..., Expr]) -> Converter:
    def convert(node: TfliteNode) -> Expr:
        """Convert pooling with its fused activation."""
        return node.apply_activation(pool(node, node.expr(0), read_pool_window(node), "NHWC"))

    return convert


def _l2_pool(node: TfliteNode) -> Expr:
    """Convert L2_POOL_2D: the root mean square of each window."""
    square = op.multiply(node.expr(0), node.expr(0))
    return node.apply_activation(
        op.sqrt(shared.emit_average_pool(node, square, read_pool_window(node), "NHWC"))
    )


def _conv3d(node: TfliteNode) -> Expr:
    """Convert CONV_3D of NDHWC data by weights [depth, height, width, in, out]."""
    *kernel, depth, out = shared.static_weight_shape(node, 1, 5)
    channels = known_int(node.shape(0)[4]) or depth
    return add_bias_and_activate(node, shared.emit_convolution(
        node, node.expr(0), node.expr(1), make_kernel_window(node, kernel),
        groups=channels // depth,
        channels=out, layouts=("NDHWC", "DHWIO"),
    ))  # fmt: skip


def _conv3d_transpose(node: TfliteNode) -> Expr:
    """Convert CONV_3D_TRANSPOSE (output shape, weights [depth, height, width, out, in], data,
    bias).
    """
    window = make_kernel_window(node, shared.static_weight_shape(node, 1, 5)[:3], 2)
    weight, output_extents = (
        op.transpose(node.expr(1), (4, 3, 0, 1, 2)),
        node.constant_ints(0, "output shape")[1:4],
    )
    is_same = node.read_option("Padding") == PADDING_SAME
    convolved = shared.emit_transposed_convolution(
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
    return hybrid.convert_hybrid_batch_matmul(
        node, lambda a, b: broadcast_matmul(node, a, b), sides
    )


def _matmul_operands(node: TfliteNode, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    a = transpose_matrix(a, node.rank(0)) if node.read_option("AdjX") else a
    return a, transpose_matrix(b, node.rank(1)) if node.read_option("AdjY") else b


# fmt: off
ROWS = (
    TfliteRow("CONV_2D",           _convolution_converter(read_conv_geometry),
        integer_converter=lambda node: integer.convert_integer_convolution(node,
            read_conv_geometry(node)), supports_int16=True,
        hybrid_converter=lambda node: hybrid.convert_hybrid_conv2d(node, read_conv_geometry(node))),
    TfliteRow("DEPTHWISE_CONV_2D", _convolution_converter(read_depthwise_geometry),
        integer_converter=lambda node: integer.convert_integer_convolution(node,
            read_depthwise_geometry(node)), supports_int16=True,
        hybrid_converter=lambda node: hybrid.convert_hybrid_convolution(node,
            read_depthwise_geometry(node), True)),
    TfliteRow("TRANSPOSE_CONV",    _transpose_conv, integer_converter=_quantized_transpose_conv,
        supports_int16=True),
    TfliteRow("CUSTOM Convolution2DTransposeBias", _transpose_conv_bias),
    TfliteRow("AVERAGE_POOL_2D",   _pool_converter(shared.emit_average_pool),
        integer_converter=integer.convert_integer_average_pool,
        supports_int16=True),
    TfliteRow("MAX_POOL_2D",       _pool_converter(shared.emit_max_pool),
        integer_converter=integer.convert_integer_max_pool, supports_int16=True),
    TfliteRow("L2_POOL_2D",        _l2_pool),
    TfliteRow("CONV_3D",           _conv3d),
    TfliteRow("CONV_3D_TRANSPOSE", _conv3d_transpose),
    TfliteRow("FULLY_CONNECTED",   _fully_connected,
        integer_converter=integer.convert_integer_fully_connected,
        supports_int16=True, hybrid_converter=hybrid.convert_hybrid_fully_connected),
    TfliteRow("BATCH_MATMUL",      _batch_matmul, integer_converter=_quantized_batch_matmul,
        supports_int16=True, hybrid_converter=_hybrid_batch_matmul),
)
# fmt: on
