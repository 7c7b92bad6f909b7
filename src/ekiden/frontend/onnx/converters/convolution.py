"""Convolutions. One-dimensional ones become two-dimensional ones of height 1.

Of ConvTranspose either pads say the result's extent, s (n - 1) + (k - 1) d + 1 + output_padding -
pads, or output_shape says it and pads follow, the odd one behind with SAME_UPPER; an output_shape
that is larger than what the input reaches is more output_padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ekiden.frontend.common.value import constant
from ekiden.frontend.onnx.converters.byte_products import Convolution
from ekiden.frontend.onnx.converters.window import AUTO_PADS, Window, auto_pad, padded, read_window
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.prim import maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim, as_attr, as_dim, known, tidy


def _kernel(node: Node) -> tuple[Dim, ...]:
    """The kernel's extents: of the attribute, or of the weight."""
    if node.has("kernel_shape"):
        kernel: tuple[Dim, ...] = node.get_ints("kernel_shape")
        for axis, extent in enumerate(kernel, 2):
            node.learn(1, axis, extent)
    else:
        kernel = as_attr(node.shape(1)[2:])
    if not len(kernel) == node.rank(1) - 2 == node.rank(0) - 2:
        node.unsupported(
            f"the kernel has {len(kernel)} axes and the weight rank {node.rank(1)}; expected "
            f"{node.rank(0) - 2} and {node.rank(0)} for an input of that rank"
        )
    return kernel


def _size(window: Window) -> tuple[int, ...] | None:
    """The kernel's extents as an attribute; None where the weight says them to the run."""
    return None if any(known(e) is None for e in window.extents) else window.kernel


def _check_rank(node: Node) -> None:
    if node.rank(0) not in (3, 4, 5):
        node.unsupported(f"expected an input of rank 3, 4 or 5, got {node.rank(0)}")


def _flat(node: Node, data: Expr, weight: Expr, window: Window) -> tuple[Expr, Expr, Window]:
    """Data, weight and window with at least two spatial axes."""
    if len(window.extents) >= 2:
        return data, weight, window
    wide = Window(
        (1, *window.extents),
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
        data, padding = padded(node, data, window, 0), (0,) * 2 * len(window.extents)
        window = replace(window, before=padding[::2], after=padding[1::2])
    data, weight, flat = _flat(node, data, node.expr(1), window)
    rank = len(flat.extents)
    plain = op.nn.conv2d if rank == 2 else op.nn.conv3d
    found = (conv2d or plain)(
        data,
        weight,
        strides=flat.strides,
        padding=flat.padding or (0,) * 2 * rank,
        dilation=flat.dilations,
        groups=node.get_int("group", 1),
        channels=known(node.shape(1)[0]),
        kernel_size=_size(flat),
    )
    return _finish(node, found, node.rank(0) == 3)


def _conv_transpose(node: Node) -> Expr:
    _check_rank(node)
    kernel = _kernel(node)
    rank, groups = len(kernel), node.get_int("group", 1)
    extra = node.get_ints("output_padding", (0,) * rank)
    window, room = _transposed_window(node, kernel, extra)
    is_known = window.padding is not None and all(known(r) is not None for r in room)
    whole = window if is_known else replace(window, before=(0,) * rank, after=(0,) * rank)
    if is_known:
        extra = tuple(e + (known(r) or 0) for e, r in zip(extra, room, strict=True))
    data, weight, flat = _flat(node, node.expr(0), node.expr(1), whole)
    columns = known(node.shape(1)[1])
    axes = len(flat.extents)
    found = (op.nn.conv2d_transpose if axes == 2 else op.nn.conv3d_transpose)(
        data,
        weight,
        strides=flat.strides,
        padding=flat.padding or (0,) * 2 * axes,
        dilation=flat.dilations,
        groups=groups,
        channels=None if columns is None else columns * groups,
        kernel_size=_size(flat),
        output_padding=(0,) * (axes - rank) + extra,
    )
    return _finish(node, found if is_known else _cropped(node, found, window, room), rank == 1)


def _cropped(node: Node, found: Expr, window: Window, room: Sequence[Dim]) -> Expr:
    """A result that was computed without padding, with the padding taken off and the room added at
    its end, which the run says."""
    shape = node.typed(found).shape
    first = len(shape) - len(room)
    widths: list[tuple[Dim, Dim]] = [(0, 0)] * first + [(0, r) for r in room]
    wide = op.nn.pad(found, widths, const(0, node.dtype(0)))
    ends = [
        tidy(e + as_dim(r) - as_dim(a))
        for e, r, a in zip(shape[first:], room, window.after, strict=True)
    ]
    axes = list(range(first, len(shape)))
    return op.strided_slice(wide, begin=list(window.before), end=ends, axes=axes)


def _transposed_window(
    node: Node, kernel: tuple[Dim, ...], extra: tuple[int, ...]
) -> tuple[Window, tuple[Dim, ...]]:
    """The window, and how much larger the result is than what the input reaches, at its end."""
    rank = len(kernel)
    strides, dilations = (node.get_ints(n, (1,) * rank) for n in ("strides", "dilations"))
    reach = [(as_dim(k) - 1) * d + 1 + e for k, d, e in zip(kernel, dilations, extra, strict=True)]
    auto = auto_pad(node)
    pads = node.get_ints("pads", (0,) * 2 * rank) if auto != "VALID" else (0,) * 2 * rank
    if node.has("output_shape"):
        rows = zip(
            node.shape(0)[2:], node.get_ints("output_shape")[-rank:], strides, reach, strict=True
        )
        totals = [(extent - 1) * stride + span - size for extent, size, stride, span in rows]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [r - s for r, s in zip(reach, strides, strict=True)]
    else:
        return Window(kernel, strides, dilations, pads[:rank], pads[rank:]), (0,) * rank
    room = as_attr([tidy(maximum(-t, 0)) for t in totals]) if node.has("output_shape") else None
    taken = [tidy(maximum(t, 0)) for t in totals]
    small = as_attr([tidy(t // 2) for t in taken])
    large = as_attr([tidy(t - t // 2) for t in taken])
    before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    return Window(kernel, strides, dilations, before, after), room or (0,) * rank


_PADS = {"auto_pad": AUTO_PADS}
_ATTRIBUTES = "auto_pad dilations group kernel_shape pads strides"

# fmt: off
ROWS = (
    Row("Conv",          convolve, attributes=_ATTRIBUTES, values=_PADS),
    Row("ConvTranspose", _conv_transpose,
        attributes=f"{_ATTRIBUTES} output_padding output_shape", values=_PADS),
)
# fmt: on
