"""Convolutions, pools and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.frontend.common.matrices import transposed
from ekiden.frontend.common.products import multiplied
from ekiden.frontend.tflite.converters import hybrid_linear as hybrid
from ekiden.frontend.tflite.converters import integer_linear as integer
from ekiden.frontend.tflite.converters.rows import biased, rows_of, shaped
from ekiden.frontend.tflite.converters.window import (
    SAME,
    Window,
    depthwise_window,
    padding,
    plain_window,
    sides_of,
    strides,
    weight_shape,
    window_of,
)
from ekiden.frontend.tflite.node import Converter, Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.shape import known


def _convolution(window_of: Callable[[Node], Window]) -> Converter:
    def convert(node: Node) -> Expr:
        """The convolution of NHWC data, the weight transposed to HWIO."""
        window = window_of(node)
        made = op.nn.conv2d(
            node.expr(0), op.transpose(node.expr(1), window.order), strides(node), window.padding,
            window.dilation, window.groups, window.channels, window.size, "NHWC", "HWIO",
        )  # fmt: skip
        return biased(node, made)

    return convert


def _transpose_conv(node: Node) -> Expr:
    """(shape of the result, weights (out, height, width, in), data, bias): what a convolution of
    the result would have padded is left out.
    """
    wanted = node.axes(0, "output shape")[1:3]
    return biased(node, _transposed(node, node.expr(2), node.expr(1), wanted, 2), 3)


def _transpose_conv_of_integers(node: Node) -> Expr:
    wanted = node.axes(0, "output shape")[1:3]
    return integer.transpose_conv(node, lambda data, w: _transposed(node, data, w, wanted, 2))


def _transpose_conv_bias(node: Node) -> Expr:
    """MediaPipe's: (data, weights, bias), the shape of the result as the padding implies."""
    raw = node.operation.custom
    if len(raw) < 12:
        node.unsupported("its options are cut short")
    same, width, height = (int.from_bytes(raw[i : i + 4], "little") for i in (0, 4, 8))
    node.stated = {"Padding": 0 if same == 1 else 1, "StrideH": height, "StrideW": width}
    weights = weight_shape(node, 1)
    sizes = node.extents(0, (1, 2))
    if None in sizes:
        node.unsupported(f"{node.ins[0]} must have a known height and width")
    steps = strides(node)
    wanted = [
        (e or 0) * s if same == 1 else ((e or 0) - 1) * s + k
        for e, s, k in zip(sizes, steps, weights[1:3], strict=True)
    ]
    made = _transposed(node, node.expr(0), node.expr(1), wanted, 0)
    return op.add(made, node.expr(2)) if node.optional(2) is not None else made


def _transposed(node: Node, data: Expr, weight: Expr, wanted: Sequence[int], at: int) -> Expr:
    """`at` is the input that is the data."""
    out, height, width, _ = weight_shape(node, 1)
    extents = node.extents(at, (1, 2))
    sides, more = _cut(node, extents, (height, width), strides(node), wanted, at)
    (top, bottom), (left, right) = sides
    made = op.nn.conv2d_transpose(
        op.transpose(data, (0, 3, 1, 2)), op.transpose(weight, (3, 0, 1, 2)),
        strides(node), (top, left, bottom, right), channels=out, kernel_size=(height, width),
        output_padding=tuple(more),
    )  # fmt: skip
    return op.transpose(made, (0, 2, 3, 1))


def _pool(function: Callable[..., Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        """The pooling with the activation behind it."""
        window = window_of(node)
        sides = padding(node, window, (1, 1))
        made = function(node.expr(0), window, strides(node), padding=sides, layout="NHWC")
        return node.activated(made)

    return convert


def _l2_pool(node: Node) -> Expr:
    """The roots of the means of squares."""
    window = window_of(node)
    sides = padding(node, window, (1, 1))
    square = op.multiply(node.expr(0), node.expr(0))
    made = op.nn.avg_pool2d(square, window, strides(node), padding=sides, layout="NHWC")
    return node.activated(op.sqrt(made))


_DEEP = "DHW"


def _of_each(node: Node, start: str, end: str, default: int = 1) -> tuple[int, ...]:
    """An option of all three axes."""
    return tuple(int(node.option(f"{start}{axis}{end}", default)) for axis in _DEEP)


def _deep_weight(node: Node) -> tuple[int, ...]:
    found = [known(d) for d in node.shape(1)]
    if len(found) != 5 or None in found:
        node.unsupported(f"{node.ins[1]} must have five known extents")
    return tuple(d for d in found if d is not None)


def _conv3d(node: Node) -> Expr:
    """Of NDHWC data by weights (depth, height, width, in, out)."""
    *window, depth, out = _deep_weight(node)
    steps, apart = _of_each(node, "Stride", ""), _of_each(node, "Dilation", "Factor")
    sides = sides_of(node, node.extents(0, (1, 2, 3)), window, steps, apart)
    channels = known(node.shape(0)[4]) or depth
    made = op.nn.conv3d(
        node.expr(0), node.expr(1), steps, sides, apart, channels // depth, out,
        tuple(window), "NDHWC", "DHWIO",
    )  # fmt: skip
    return biased(node, made)


def _conv3d_transpose(node: Node) -> Expr:
    """(shape of the result, weights (depth, height, width, out, in), data, bias)"""
    *window, out, _ = _deep_weight(node)
    steps, apart = _of_each(node, "Stride", ""), _of_each(node, "Dilation", "Factor")
    reach = [(size - 1) * d + 1 for size, d in zip(window, apart, strict=True)]
    wanted = node.axes(0, "output shape")[1:4]
    sides, more = _cut(node, node.extents(2, (1, 2, 3)), reach, steps, wanted, 2)
    made = op.nn.conv3d_transpose(
        op.transpose(node.expr(2), (0, 4, 1, 2, 3)), op.transpose(node.expr(1), (4, 3, 0, 1, 2)),
        steps, (*(b for b, _ in sides), *(a for _, a in sides)), apart, channels=out,
        kernel_size=tuple(window), output_padding=tuple(more),
    )  # fmt: skip
    return biased(node, op.transpose(made, (0, 2, 3, 4, 1)), 3)


def _cut(
    node: Node, extents: Sequence[int | None], reach: Sequence[int], steps: Sequence[int],
    wanted: Sequence[int], at: int,
) -> tuple[list[tuple[int, int]], list[int]]:  # fmt: skip
    """What a transposed convolution leaves out on both sides of each axis, and adds behind."""
    sides, more = [], []
    for extent, size, step, result in zip(extents, reach, steps, wanted, strict=True):
        if extent is None:
            node.unsupported(f"{node.ins[at]} must have known extents but for the batch")
        whole = (extent - 1) * step + size
        cut = max(whole - result, 0) if node.option("Padding") == SAME else 0
        sides.append((cut // 2, cut - cut // 2))
        more.append(result - whole + cut)
    if any(not 0 <= m < s for m, s in zip(more, steps, strict=True)):
        node.unsupported(f"the output shape {wanted} does not follow from {node.ins[at]}")
    return sides, more


def _fully_connected(node: Node) -> Expr:
    return biased(node, shaped(node, op.nn.dense(rows_of(node), node.expr(1))))


def _batch_matmul(node: Node) -> Expr:
    """Matrices of the last two axes; those before broadcast. Bytes give wide sums where the output
    is wide.
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
    Row("CONV_2D",           _convolution(plain_window),
        integer=lambda node: integer.convolution(node, plain_window(node)), is_wide=True,
        hybrid=lambda node: hybrid.plain_convolution(node, plain_window(node))),
    Row("DEPTHWISE_CONV_2D", _convolution(depthwise_window),
        integer=lambda node: integer.convolution(node, depthwise_window(node)), is_wide=True,
        hybrid=lambda node: hybrid.convolution(node, depthwise_window(node), True)),
    Row("TRANSPOSE_CONV",    _transpose_conv, integer=_transpose_conv_of_integers,
        is_wide=True),
    Row("CUSTOM Convolution2DTransposeBias", _transpose_conv_bias),
    Row("AVERAGE_POOL_2D",   _pool(op.nn.avg_pool2d), integer=integer.average_pool,
        is_wide=True),
    Row("MAX_POOL_2D",       _pool(op.nn.max_pool2d), integer=integer.max_pool, is_wide=True),
    Row("L2_POOL_2D",        _l2_pool),
    Row("CONV_3D",           _conv3d),
    Row("CONV_3D_TRANSPOSE", _conv3d_transpose),
    Row("FULLY_CONNECTED",   _fully_connected, integer=integer.fully_connected,
        is_wide=True, hybrid=hybrid.fully_connected),
    Row("BATCH_MATMUL",      _batch_matmul, integer=_batch_matmul_of_integers,
        is_wide=True, hybrid=_batch_matmul_of_levels),
)
# fmt: on
