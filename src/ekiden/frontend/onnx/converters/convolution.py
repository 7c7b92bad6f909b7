"""Conv and ConvTranspose.

For ConvTranspose either the pads determine the result's extent, s (n - 1) + (k - 1) d + 1 +
output_padding - pads, or output_shape is given and determines the pads, with the odd one at the end
for SAME_UPPER. An output_shape beyond what the input reaches adds output_padding.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.converters.window import emit_convolution
from ekiden.frontend.common.sliding_window import Window
from ekiden.frontend.onnx.converters.int8_products import QuantizedConv2d
from ekiden.frontend.onnx.converters.window import (
    AUTO_PAD_MODES,
    auto_pad,
    check_spatial_rank,
    read_window,
)
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.prim import maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, as_dim, known_int, simplify_dim, to_attr_dims


def _kernel_extents(node: OnnxNode) -> tuple[Dim, ...]:
    """Return the kernel's extents from the attribute, otherwise from the weight's shape."""
    if node.has("kernel_shape"):
        kernel: tuple[Dim, ...] = node.get_ints("kernel_shape")
        for axis, extent in enumerate(kernel, 2):
            # The attribute fixes weight extents that the model leaves symbolic.
            node.constrain_extent(1, axis, extent)
    else:
        kernel = to_attr_dims(node.shape(1)[2:])
    if not len(kernel) == node.rank(1) - 2 == node.rank(0) - 2:
        node.reject(
            f"the kernel has {len(kernel)} axes and the weight rank {node.rank(1)}; expected "
            f"{node.rank(0) - 2} and {node.rank(0)} for an input of that rank"
        )
    return kernel


def _optional_bias(node: OnnxNode) -> Expr | None:
    return None if node.optional_value(2) is None else node.expr(2)


def convert_conv(node: OnnxNode, conv2d: QuantizedConv2d | None = None) -> Expr:
    """Convert Conv; `conv2d` replaces nn.conv2d for quantised operands."""
    # nn.conv1d to conv3d cover one to three spatial axes.
    check_spatial_rank(node)
    window = read_window(node, _kernel_extents(node))
    return emit_convolution(
        node, node.expr(0), node.expr(1), window, groups=node.get_int("group", 1),
        channels=known_int(node.shape(1)[0]), bias=_optional_bias(node), conv2d=conv2d,
    )  # fmt: skip


def _conv_transpose(node: OnnxNode) -> Expr:
    """Convert ConvTranspose. Where its padding or its extra output extent is symbolic, the result
    is cropped or extended before the bias is added.
    """
    check_spatial_rank(node)
    kernel = _kernel_extents(node)
    rank, groups = len(kernel), node.get_int("group", 1)
    extra = node.get_ints("output_padding", (0,) * rank)
    window, room = _transposed_window(node, kernel, extra)
    is_known = window.padding is not None and all(known_int(r) is not None for r in room)
    if is_known:
        extra = tuple(e + (known_int(r) or 0) for e, r in zip(extra, room, strict=True))
    # The weight is [in channels, out channels / groups, ...]: axis 1 counts the outputs of one
    # group.
    columns = known_int(node.shape(1)[1])
    convolved = emit_convolution(
        node, node.expr(0), node.expr(1), window if is_known else window.without_padding(),
        groups=groups,
        channels=None if columns is None else columns * groups, output_padding=extra,
        bias=_optional_bias(node) if is_known else None,
    )  # fmt: skip
    if is_known:
        return convolved
    convolved = _crop_padding(node, convolved, window, room)
    return (
        convolved
        if _optional_bias(node) is None
        else op.nn.bias_add(convolved, node.expr(2), axis=1)
    )


def _crop_padding(node: OnnxNode, unpadded: Expr, window: Window, room: Sequence[Dim]) -> Expr:
    """Emit an unpadded result cropped by its symbolic padding and extended by `room` at the end of
    each axis.
    """
    shape = node.tensor_type_of(unpadded).shape
    first = len(shape) - len(room)
    widths: list[tuple[Dim, Dim]] = [(0, 0)] * first + [(0, r) for r in room]
    wide = op.nn.pad(unpadded, widths, const(0, node.dtype(0)))
    ends = [
        simplify_dim(e + as_dim(r) - as_dim(a))
        for e, r, a in zip(shape[first:], room, window.padding_after, strict=True)
    ]
    axes = list(range(first, len(shape)))
    return op.strided_slice(wide, begin=list(window.padding_before), end=ends, axes=axes)


def _transposed_window(
    node: OnnxNode, kernel: tuple[Dim, ...], extra: tuple[int, ...]
) -> tuple[Window, tuple[Dim, ...]]:
    """Return the window of ConvTranspose, and the trailing elements of each axis that no input
    reaches.
    """
    rank = len(kernel)
    strides, dilations = (node.get_ints(n, (1,) * rank) for n in ("strides", "dilations"))
    reach = [(as_dim(k) - 1) * d + 1 + e for k, d, e in zip(kernel, dilations, extra, strict=True)]
    auto = auto_pad(node)
    pads = node.get_ints("pads", (0,) * 2 * rank) if auto != "VALID" else (0,) * 2 * rank
    if node.has("output_shape"):
        rows = zip(
            node.shape(0)[2:], node.get_ints("output_shape")[-rank:], strides, reach, strict=True
        )
        # ONNX ConvTranspose: total_padding = stride * (input - 1) + output_padding + ((kernel - 1)
        # * dilation + 1) - output_shape.
        totals = [(extent - 1) * stride + span - size for extent, size, stride, span in rows]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [r - s for r, s in zip(reach, strides, strict=True)]
    else:
        return Window(kernel, strides, dilations, pads[:rank], pads[rank:]), (0,) * rank
    room = (
        to_attr_dims([simplify_dim(maximum(-t, 0)) for t in totals])
        if node.has("output_shape")
        else None
    )
    total_pads = [simplify_dim(maximum(t, 0)) for t in totals]
    small = to_attr_dims([simplify_dim(t // 2) for t in total_pads])
    large = to_attr_dims([simplify_dim(t - t // 2) for t in total_pads])
    # The odd element of padding goes to the end for SAME_UPPER only.
    before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    return Window(kernel, strides, dilations, before, after), room or (0,) * rank


_AUTO_PAD_VALUES = {"auto_pad": AUTO_PAD_MODES}
_CONV_ATTRIBUTES = "auto_pad dilations group kernel_shape pads strides"

# fmt: off
ROWS = (
    OnnxRow("Conv",          convert_conv, attributes=_CONV_ATTRIBUTES,
        supported_values=_AUTO_PAD_VALUES),
    OnnxRow("ConvTranspose", _conv_transpose,
        attributes=f"{_CONV_ATTRIBUTES} output_padding output_shape",
        supported_values=_AUTO_PAD_VALUES),
)
# fmt: on
