"""Convolutions and pooling over one to three axes.

A format reads its attributes into a `Window` with resolved padding and names its layout; the
functions here build Relay operators. Symbolic padding becomes a separate pad operator. A
convolution over one axis becomes one over two, of height 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from ekiden.frontend.common.composite_ops import append_unit_axes
from ekiden.frontend.common.node import AttributeNode, Node
from ekiden.frontend.common.reducers import reduction_identity
from ekiden.frontend.common.sliding_window import Window, iter_window_taps, pad_window
from ekiden.frontend.common.value import constant_value
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, const
from ekiden.topi.dimensions import Dim, Shape, as_dim, known_int

DEFAULT_LAYOUTS = ("NCW", "NCHW", "NCDHW")
"""Those of Relay's operators over one axis, two and three, which formats have that name none."""
_POOL_OPS: Mapping[str, Sequence[Callable[..., Expr]]] = {
    "max": (op.nn.max_pool1d, op.nn.max_pool2d, op.nn.max_pool3d),
    "avg": (op.nn.avg_pool1d, op.nn.avg_pool2d, op.nn.avg_pool3d),
}
_CONV_OPS = (op.nn.conv2d, op.nn.conv3d)
_CONV_TRANSPOSE_OPS = (op.nn.conv2d_transpose, op.nn.conv3d_transpose)


def first_spatial_axis(layout: str) -> int:
    """Return the first spatial axis of a layout."""
    return 1 if layout.endswith("C") else 2


# Pooling.


def emit_pool(kind: str, data: Expr, window: Window, layout: str = "", **options: bool) -> Expr:
    """Emit "max" or "avg" pooling over a window of known padding."""
    rank = len(window.strides)
    assert window.padding is not None, "data have symbolic padding beforehand"
    return _POOL_OPS[kind][rank - 1](
        data, pool_size=window.static_extents, strides=window.strides, dilation=window.dilations,
        padding=window.padding, layout=layout or DEFAULT_LAYOUTS[rank - 1], **options,
    )  # fmt: skip


def emit_max_pool(
    node: Node, data: Expr, window: Window, layout: str = "", ceil_mode: bool = False
) -> Expr:
    """Emit max pooling; symbolic padding becomes an explicit pad with the lowest value."""
    if window.padding is None:
        lowest = reduction_identity("maximum", node.tensor_type_of(data).dtype)
        data = pad_window(node, data, window, lowest, first_spatial_axis(layout))
        window = window.without_padding()
    return emit_pool("max", data, window, layout, ceil_mode=ceil_mode)


def emit_average_pool(
    node: Node, data: Expr, window: Window, layout: str = "", counts_padding: bool = False,
    ceil_mode: bool = False,
) -> Expr:  # fmt: skip
    """Emit average pooling, over the data alone or including padding.

    Means over symbolically padded data are divided by the fraction of each window that is data.
    """
    if window.padding is not None:
        return emit_pool(
            "avg", data, window, layout, ceil_mode=ceil_mode, count_include_pad=counts_padding
        )

    def padded_means(source: Expr) -> Expr:
        """Emit the means of the windows of a zero-padded tensor."""
        wide = pad_window(node, source, window, 0, first_spatial_axis(layout))
        return emit_pool("avg", wide, window.without_padding(), layout, count_include_pad=True)

    if counts_padding:
        return padded_means(data)
    kind, first = node.tensor_type_of(data), first_spatial_axis(layout)
    axes = range(first, first + len(window.strides))
    # The count of data elements per window is the mean of ones: both means share the divisor, which
    # cancels.
    extents = [d if axis in axes else 1 for axis, d in enumerate(kind.shape)]
    return op.divide(
        padded_means(data), padded_means(op.full(const(1, kind.dtype), extents, dtype=kind.dtype))
    )


def max_pool_indices(
    node: Node, data: Expr, window: Window, counts: Shape, first: int = 2
) -> list[Expr]:
    """Emit, per axis from `first` on, the int64 index of the first maximum of every window.

    A window in which all data are the lowest number yields its first element inside the data.
    `counts` are the numbers of windows along each axis.
    """
    kind, rank = node.tensor_type_of(data), len(counts)
    extents = kind.shape[first : first + rank]
    window = window.with_trailing_padding(extents, counts)
    lowest = reduction_identity("maximum", kind.dtype)
    wide = pad_window(node, data, window, lowest, first)
    stacked = op.stack(list(iter_window_taps(wide, window, counts, first)), axis=0)
    # argmax returns the first maximum, and taps are stacked in row-major order.
    best = op.cast(op.argmax(stacked, axis=0), "int64")
    numbers = np.array(list(np.ndindex(*window.static_extents)), np.int64)  # [taps, axes]
    starts, positions = [], list[Expr]()
    rows = zip(counts, window.strides, window.padding_before, window.dilations, strict=True)
    for axis, (count, stride, before, dilation) in enumerate(rows):
        steps = op.multiply(op.arange(0, count, 1, "int64"), const(stride, "int64"))
        start = append_unit_axes(
            op.subtract(steps, node.scope.emit_dim(as_dim(before))), rank - 1 - axis
        )
        starts.append(start)
        positions.append(op.add(start, op.take(const(numbers[:, axis] * dilation), best, axis=0)))
    if any(known_int(side) != 0 for side in (*window.padding_before, *window.padding_after)):
        return _clamp_into_data(node, positions, extents, starts, window)
    return positions


def _clamp_into_data(
    node: Node, positions: Sequence[Expr], extents: Shape, starts: Sequence[Expr], window: Window
) -> list[Expr]:
    """Move positions that fall into padding to the first data element of their window."""
    zero = const(0, "int64")
    inside = reduce(op.logical_and, [
        op.logical_and(op.greater_equal(coordinate, zero), op.less(coordinate,
        node.scope.emit_dim(extent)))
        for coordinate, extent in zip(positions, extents, strict=True)
    ])  # fmt: skip
    chosen: list[Expr] = []
    rows = zip(positions, starts, window.static_extents, window.dilations, strict=True)
    for position, start, size, dilation in rows:
        step = const(dilation, "int64")
        skipped = op.maximum(op.negative(op.floor_divide(start, step)), zero)
        nearest = op.multiply(op.minimum(skipped, const(size - 1, "int64")), step)
        chosen.append(op.where(inside, position, op.add(start, nearest)))
    return chosen


def ravel_indices(node: Node, positions: Sequence[Expr], extents: Shape) -> Expr:
    """Emit row-major flat indices from per-axis positions."""
    flat: Expr = const(0, "int64")
    for position, extent in zip(positions, extents, strict=True):
        flat = op.add(op.multiply(flat, node.scope.emit_dim(extent)), position)
    return flat


# Convolutions.


def emit_convolution(
    node: Node, data: Expr, weight: Expr, window: Window, *, groups: int = 1,
    channels: int | None = None, layouts: tuple[str, str] | None = None, bias: Expr | None = None,
    output_padding: Sequence[int] | None = None, conv2d: Callable[..., Expr] | None = None,
) -> Expr:  # fmt: skip
    """Emit a convolution, or with `output_padding` a transposed one.

    Args:
        data: [batch, channels, *spatial], unless layouts say otherwise.
        weight: [channels, inputs / groups, *kernel]; of a transposed one [inputs, ...].
        channels: those of the result; None where the weight says them to the run.
        layouts: of the data and of the weight, over two or three axes.
        bias: added to the channels of the axis 1.
        conv2d: what takes the place of nn.conv2d over one or two axes.
    """
    if window.padding is None:
        data = pad_window(node, data, window, 0, first_spatial_axis(layouts[0]) if layouts else 2)
        window = window.without_padding()
    is_line = len(window.strides) == 1
    if is_line:
        window, data = window.unsqueeze_height(), op.expand_dims(data, axis=2)
        weight = _unsqueeze_weight(weight)
    position, options = len(window.strides) - 2, dict[str, object]()
    function: Callable[..., Expr] = _CONV_OPS[position]
    if conv2d is not None and position == 0:
        function = conv2d
    if output_padding is not None:
        function = _CONV_TRANSPOSE_OPS[position]
        options["output_padding"] = (0, *output_padding) if is_line else tuple(output_padding)
    if layouts is not None:
        options["data_layout"], options["kernel_layout"] = layouts
    result = function(
        data, weight, strides=window.strides, padding=window.padding, dilation=window.dilations,
        groups=groups, channels=channels,
        kernel_size=window.static_extents if window.has_static_extents else None,
        **options,
    )  # fmt: skip
    result = result if bias is None else op.nn.bias_add(result, bias, axis=1)
    return op.squeeze(result, axis=[2]) if is_line else result


def _unsqueeze_weight(weight: Expr) -> Expr:
    """Reshape a weight [out, in, width] to [out, in, 1, width]; a constant is viewed, not
    copied.
    """
    if not isinstance(weight, Constant):
        return op.expand_dims(weight, axis=2)
    view = constant_value(weight.data[:, :, None, :]).expr
    assert view is not None, "a constant has an expression"
    return view


def emit_transposed_convolution(
    node: Node, data: Expr, weight: Expr, window: Window, output_extents: Sequence[Dim], layout:
    str,
    is_same: bool,
) -> Expr:  # fmt: skip
    """Emit the transposed convolution whose result has the given spatial extents.

    The padding of the corresponding convolution is cropped: that of the window, or with `is_same`
    the excess; what it would not have reached is added behind. weight: [inputs, channels, *kernel].
    Raises Unsupported where extents are symbolic, or the output shape does not follow from the
    input.
    """
    first, rank = first_spatial_axis(layout), len(window.strides)
    shape = node.tensor_type_of(data).shape
    extents = [known_int(d) for d in shape[first : first + rank]]
    sizes, reach = (
        [known_int(d) for d in output_extents],
        [known_int(r) for r in window.dilated_extents],
    )
    before, after, output_padding = [], [], []
    for index, (extent, size, span, step) in enumerate(
        zip(extents, sizes, reach, window.strides, strict=True)
    ):
        if extent is None or size is None or span is None:
            node.reject("the image and the output must have known extents but for the batch")
        # The full transposed convolution has (extent - 1) * stride + span elements; spare ones are
        # cropped as padding.
        spare = (extent - 1) * step + span - size
        low, high = (
            known_int(window.padding_before[index]) or 0,
            known_int(window.padding_after[index]) or 0,
        )
        if is_same:
            low, high = max(spare, 0) // 2, max(spare, 0) - max(spare, 0) // 2
        before.append(low)
        after.append(high)
        output_padding.append(low + high - spare)
    if any(
        not 0 <= extra < step for extra, step in zip(output_padding, window.strides, strict=True)
    ):
        node.reject(f"the output shape {tuple(output_extents)} does not follow from the input")
    window = replace(window, padding_before=tuple(before), padding_after=tuple(after))
    is_last, ends = first == 1, rank + 1
    channels = known_int(node.tensor_type_of(weight).shape[1])
    result = emit_convolution(
        node, op.transpose(data, (0, ends, *range(1, ends))) if is_last else data, weight, window,
        channels=channels, output_padding=output_padding,
    )  # fmt: skip
    return op.transpose(result, (0, *range(2, ends + 1), 1)) if is_last else result


def static_weight_shape(node: AttributeNode, index: int, rank: int) -> tuple[int, ...]:
    """Return the shape of a weight; reject one with unknown extents or another rank."""
    shape = [known_int(d) for d in node.shape(index)]
    if len(shape) != rank or None in shape:
        node.reject(f"the weight{node.input_label(index)} must have {rank} known extents")
    return tuple(d for d in shape if d is not None)


def channel_groups(node: AttributeNode, axis: int, depth: int) -> int:
    """Return the number of groups: the channels of input 0 by the weight's input channels `depth`.

    Raises Unsupported unless the channels, along `axis`, are a known multiple.
    """
    channels = known_int(node.shape(0)[axis])
    if channels is None or channels % depth:
        node.reject(f"the data{node.input_label(0)} must have a multiple of {depth} channels")
    return channels // depth
