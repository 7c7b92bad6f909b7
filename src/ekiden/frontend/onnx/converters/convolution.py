"""Convolutions. One-dimensional ones become two-dimensional ones of height 1.

Of ConvTranspose either pads say the result's extent, s (n - 1) + (k - 1) d + 1 + output_padding -
pads, or output_shape says it and pads follow, the odd one behind with SAME_UPPER; an output_shape
that is larger than what the input reaches is more output_padding.
"""

from __future__ import annotations

from ekiden.frontend.common.value import constant
from ekiden.frontend.onnx.converters.byte_products import (
    Convolution,
    dequantized_sides,
    is_convolution,
)
from ekiden.frontend.onnx.converters.window import Window, padded, read_window
from ekiden.frontend.onnx.node import Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.topi.shape import known


def _kernel(node: Node) -> tuple[int, ...]:
    """The kernel's extents: of the attribute, or of the weight."""
    if node.has("kernel_shape"):
        return node.get_ints("kernel_shape")
    return _numbers(node, "the kernel's extents", 2)


def _numbers(node: Node, what: str, first: int) -> tuple[int, ...]:
    numbers = [known(d) for d in node.shape(1)[first:]]
    if None in numbers:
        node.unsupported(f"{what} must be constant")
    return tuple(n for n in numbers if n is not None)


def _check_rank(node: Node) -> None:
    if node.rank(0) not in (3, 4, 5):
        node.unsupported(f"expected an input of rank 3, 4 or 5, got {node.rank(0)}")


def _flat(node: Node, data: Expr, weight: Expr, window: Window) -> tuple[Expr, Expr, Window]:
    """Data, weight and window with at least two spatial axes."""
    if len(window.kernel) >= 2:
        return data, weight, window
    wide = Window(
        (1, *window.kernel),
        (1, *window.strides),
        (1, *window.dilations),
        (0, *window.before),
        (0, *window.after),
    )
    array = node.value(1).array
    kernel = (
        op.expand_dims(weight, axis=2) if array is None else constant(array[:, :, None, :]).expr
    )
    assert kernel is not None
    return op.expand_dims(data, axis=2), kernel, wide


def _finish(node: Node, found: Expr, squeeze: bool) -> Expr:
    """Add the bias, if there is one, and drop the height of a one-dimensional convolution."""
    if node.optional(2) is not None:
        found = op.nn.bias_add(found, node.expr(2), axis=1)
    return op.squeeze(found, axis=[2]) if squeeze else found


def convolve(node: Node, conv2d: Convolution | None = None) -> Expr:
    """Conv, in the dtype of its inputs; `conv2d` multiplies bytes, over one or two axes."""
    _check_rank(node)
    window = read_window(node, _kernel(node))
    data = node.expr(0)
    padding = window.padding
    if padding is None:
        data, padding = padded(node, data, window, 0), (0,) * 2 * len(window.kernel)
        window = Window(
            window.kernel, window.strides, window.dilations, padding[::2], padding[1::2]
        )
    data, weight, flat = _flat(node, data, node.expr(1), window)
    plain = op.nn.conv2d if len(flat.kernel) == 2 else op.nn.conv3d
    found = (conv2d or plain)(
        data,
        weight,
        strides=flat.strides,
        padding=flat.padding or (0,) * 2 * len(flat.kernel),
        dilation=flat.dilations,
        groups=node.get_int("group", 1),
        channels=known(node.shape(1)[0]),
        kernel_size=flat.kernel,
    )
    return _finish(node, found, node.rank(0) == 3)


def _conv(node: Node) -> Expr:
    """Of bytes where both inputs are dequantised just before."""
    sides = dequantized_sides(node, 0)
    if sides is None or not is_convolution(node, *sides):
        return convolve(node)
    inner = node.with_inputs([*(s.value for s in sides), node.optional(2)])
    return convolve(inner, Convolution(node, *sides))


def _conv_transpose(node: Node) -> Expr:
    _check_rank(node)
    kernel = _kernel(node)
    rank, groups = len(kernel), node.get_int("group", 1)
    extra = node.get_ints("output_padding", (0,) * rank)
    window = _transposed_window(node, kernel, extra)
    extra = _with_room(node, kernel, extra)
    data, weight, flat = _flat(node, node.expr(0), node.expr(1), window)
    (columns,) = _numbers(node, "the output channels", 1)[:1]
    found = (op.nn.conv2d_transpose if len(flat.kernel) == 2 else op.nn.conv3d_transpose)(
        data,
        weight,
        strides=flat.strides,
        padding=flat.padding or (0,) * 2 * len(flat.kernel),
        dilation=flat.dilations,
        groups=groups,
        channels=columns * groups,
        kernel_size=flat.kernel,
        output_padding=(0,) * (len(flat.kernel) - rank) + extra,
    )
    return _finish(node, found, rank == 1)


def _with_room(node: Node, kernel: tuple[int, ...], extra: tuple[int, ...]) -> tuple[int, ...]:
    """The padding at the end of the result, with what `output_shape` asks for beyond the input."""
    if not node.has("output_shape"):
        return extra
    rank = len(kernel)
    strides, reach = _reach(node, kernel, extra)
    totals = _totals_for(node, node.get_ints("output_shape")[-rank:], strides, reach)
    return tuple(e + max(-t, 0) for e, t in zip(extra, totals, strict=True))


def _reach(
    node: Node, kernel: tuple[int, ...], extra: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """The strides, and how many results each input reaches."""
    rank = len(kernel)
    dilations = node.get_ints("dilations", (1,) * rank)
    reach = [(k - 1) * d + 1 + e for k, d, e in zip(kernel, dilations, extra, strict=True)]
    return node.get_ints("strides", (1,) * rank), reach


def _transposed_window(node: Node, kernel: tuple[int, ...], extra: tuple[int, ...]) -> Window:
    rank, dilations = len(kernel), node.get_ints("dilations", (1,) * len(kernel))
    strides, reach = _reach(node, kernel, extra)
    auto = node.get_string("auto_pad", "NOTSET")
    pads = node.get_ints("pads", (0,) * 2 * rank)
    before, after = pads[:rank], pads[rank:]
    totals: list[int] | None = None
    if node.has("output_shape"):
        totals = _totals_for(node, node.get_ints("output_shape")[-rank:], strides, reach)
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(r - s, 0) for r, s in zip(reach, strides, strict=True)]
    elif auto == "VALID":
        before = after = (0,) * rank
    if totals is not None:
        totals = [max(t, 0) for t in totals]
        small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
        before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    return Window(kernel, strides, dilations, before, after)


def _totals_for(
    node: Node, wanted: tuple[int, ...], strides: tuple[int, ...], reach: list[int]
) -> list[int]:
    """The padding of each axis that gives the extents in `output_shape`; below 0, the result is
    that much larger than what the input reaches, at its end.
    """
    totals = []
    for extent, size, stride, span in zip(node.shape(0)[2:], wanted, strides, reach, strict=True):
        number = known(extent)
        if number is None:
            node.unsupported("attribute 'output_shape' needs a constant input shape")
        totals.append(stride * (number - 1) + span - size)
    return totals


_PADS = {"auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")}
_ATTRIBUTES = "auto_pad dilations group kernel_shape pads strides"

# fmt: off
ROWS = (
    Row("Conv",          _conv, attributes=_ATTRIBUTES, values=_PADS),
    Row("ConvTranspose", _conv_transpose,
        attributes=f"{_ATTRIBUTES} output_padding output_shape", values=_PADS),
)
# fmt: on
