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

from ekiden.frontend.common.combined import neutral
from ekiden.frontend.common.formulas import append_axes
from ekiden.frontend.common.node import AttributeNode, Node
from ekiden.frontend.common.value import constant
from ekiden.frontend.common.windows import Window, padded, taps
from ekiden.relay import op
from ekiden.relay.expr import Constant, Expr, const
from ekiden.topi.dimensions import Dim, Shape, as_dim, known

LAYOUTS = ("NCW", "NCHW", "NCDHW")
"""Those of Relay's operators over one axis, two and three, which formats have that name none."""
_POOLS: Mapping[str, Sequence[Callable[..., Expr]]] = {
    "max": (op.nn.max_pool1d, op.nn.max_pool2d, op.nn.max_pool3d),
    "avg": (op.nn.avg_pool1d, op.nn.avg_pool2d, op.nn.avg_pool3d),
}
_CONVOLUTIONS = (op.nn.conv2d, op.nn.conv3d)
_TRANSPOSED = (op.nn.conv2d_transpose, op.nn.conv3d_transpose)


def first_of(layout: str) -> int:
    """Return the first spatial axis of a layout."""
    return 1 if layout.endswith("C") else 2


# Pooling.


def pool(kind: str, data: Expr, window: Window, layout: str = "", **options: bool) -> Expr:
    """Return the pooling "max" or "avg" of a window of known padding."""
    rank = len(window.strides)
    assert window.padding is not None, "data have symbolic padding beforehand"
    return _POOLS[kind][rank - 1](
        data, pool_size=window.kernel, strides=window.strides, dilation=window.dilations,
        padding=window.padding, layout=layout or LAYOUTS[rank - 1], **options,
    )  # fmt: skip


def max_pool(
    node: Node, data: Expr, window: Window, layout: str = "", ceil_mode: bool = False
) -> Expr:
    """Return the largest element of each window."""
    if window.padding is None:
        lowest = neutral("maximum", node.typed(data).dtype)
        data = padded(node, data, window, lowest, first_of(layout))
        window = window.unpadded()
    return pool("max", data, window, layout, ceil_mode=ceil_mode)


def average_pool(
    node: Node, data: Expr, window: Window, layout: str = "", counts_padding: bool = False,
    ceil_mode: bool = False,
) -> Expr:  # fmt: skip
    """Return the mean of each window, of its data alone or including padding.

    Means over symbolically padded data are divided by the fraction of each window that is data.
    """
    if window.padding is not None:
        return pool(
            "avg", data, window, layout, ceil_mode=ceil_mode, count_include_pad=counts_padding
        )

    def means(source: Expr) -> Expr:
        wide = padded(node, source, window, 0, first_of(layout))
        return pool("avg", wide, window.unpadded(), layout, count_include_pad=True)

    if counts_padding:
        return means(data)
    kind, first = node.typed(data), first_of(layout)
    axes = range(first, first + len(window.strides))
    extents = [d if axis in axes else 1 for axis, d in enumerate(kind.shape)]
    return op.divide(means(data), means(op.full(const(1, kind.dtype), extents, dtype=kind.dtype)))


def max_positions(
    node: Node, data: Expr, window: Window, counts: Shape, first: int = 2
) -> list[Expr]:
    """Return the index along each axis, from `first` on, of the first largest element of every
    window, as int64.

    A window in which all data are the lowest number yields its first element inside the data.
    `counts` are the numbers of windows along each axis.
    """
    kind, rank = node.typed(data), len(counts)
    extents = kind.shape[first : first + rank]
    window = window.reaching(extents, counts)
    lowest = neutral("maximum", kind.dtype)
    wide = padded(node, data, window, lowest, first)
    stacked = op.stack(list(taps(wide, window, counts, first)), axis=0)
    # argmax returns the first maximum, and taps are stacked in row-major order.
    best = op.cast(op.argmax(stacked, axis=0), "int64")
    numbers = np.array(list(np.ndindex(*window.kernel)), np.int64)  # [taps, axes]
    starts, positions = [], list[Expr]()
    rows = zip(counts, window.strides, window.before, window.dilations, strict=True)
    for axis, (count, stride, before, dilation) in enumerate(rows):
        steps = op.multiply(op.arange(0, count, 1, "int64"), const(stride, "int64"))
        start = append_axes(op.subtract(steps, node.scope.scalar(as_dim(before))), rank - 1 - axis)
        starts.append(start)
        positions.append(op.add(start, op.take(const(numbers[:, axis] * dilation), best, axis=0)))
    if any(known(side) != 0 for side in (*window.before, *window.after)):
        return _inside(node, positions, extents, starts, window)
    return positions


def _inside(
    node: Node, positions: Sequence[Expr], extents: Shape, starts: Sequence[Expr], window: Window
) -> list[Expr]:
    """Return positions inside the data: for a window whose position is in the padding, its first
    data element.
    """
    zero = const(0, "int64")
    inside = reduce(op.logical_and, [
        op.logical_and(op.greater_equal(coordinate, zero), op.less(coordinate,
        node.scope.scalar(extent)))
        for coordinate, extent in zip(positions, extents, strict=True)
    ])  # fmt: skip
    chosen: list[Expr] = []
    rows = zip(positions, starts, window.kernel, window.dilations, strict=True)
    for position, start, size, dilation in rows:
        step = const(dilation, "int64")
        skipped = op.maximum(op.negative(op.floor_divide(start, step)), zero)
        nearest = op.multiply(op.minimum(skipped, const(size - 1, "int64")), step)
        chosen.append(op.where(inside, position, op.add(start, nearest)))
    return chosen


def flat_indices(node: Node, positions: Sequence[Expr], extents: Shape) -> Expr:
    """Return positions along axes as flat row-major indices."""
    flat: Expr = const(0, "int64")
    for position, extent in zip(positions, extents, strict=True):
        flat = op.add(op.multiply(flat, node.scope.scalar(extent)), position)
    return flat


# Convolutions.


def convolution(
    node: Node, data: Expr, weight: Expr, window: Window, *, groups: int = 1,
    channels: int | None = None, layouts: tuple[str, str] | None = None, bias: Expr | None = None,
    output_padding: Sequence[int] | None = None, conv2d: Callable[..., Expr] | None = None,
) -> Expr:  # fmt: skip
    """Return a convolution, or with `output_padding` a transposed one.

    Args:
        data: [batch, channels, *spatial], unless layouts say otherwise.
        weight: [channels, inputs / groups, *kernel]; of a transposed one [inputs, ...].
        channels: those of the result; None where the weight says them to the run.
        layouts: of the data and of the weight, over two or three axes.
        bias: added to the channels of the axis 1.
        conv2d: what takes the place of nn.conv2d over one or two axes.
    """
    if window.padding is None:
        data = padded(node, data, window, 0, first_of(layouts[0]) if layouts else 2)
        window = window.unpadded()
    is_line = len(window.strides) == 1
    if is_line:
        window, data = window.with_height(), op.expand_dims(data, axis=2)
        weight = _with_height(weight)
    at, options = len(window.strides) - 2, dict[str, object]()
    function: Callable[..., Expr] = _CONVOLUTIONS[at]
    if conv2d is not None and at == 0:
        function = conv2d
    if output_padding is not None:
        function = _TRANSPOSED[at]
        options["output_padding"] = (0, *output_padding) if is_line else tuple(output_padding)
    if layouts is not None:
        options["data_layout"], options["kernel_layout"] = layouts
    result = function(
        data, weight, strides=window.strides, padding=window.padding, dilation=window.dilations,
        groups=groups, channels=channels, kernel_size=window.kernel if window.is_known else None,
        **options,
    )  # fmt: skip
    result = result if bias is None else op.nn.bias_add(result, bias, axis=1)
    return op.squeeze(result, axis=[2]) if is_line else result


def _with_height(weight: Expr) -> Expr:
    """Return a weight [out, in, width] as [out, in, 1, width]; of a constant a view."""
    if not isinstance(weight, Constant):
        return op.expand_dims(weight, axis=2)
    view = constant(weight.data[:, :, None, :]).expr
    assert view is not None, "a constant has an expression"
    return view


def transposed_convolution(
    node: Node, data: Expr, weight: Expr, window: Window, output_extents: Sequence[Dim], layout:
    str,
    is_same: bool,
) -> Expr:  # fmt: skip
    """Return the transposed convolution whose result has given spatial extents.

    The padding of the corresponding convolution is cropped: that of the window, or with `is_same`
    the excess; what it would not have reached is added behind. weight: [inputs, channels, *kernel].
    Raises Unsupported where extents are symbolic, or the output shape does not follow from the
    input.
    """
    first, rank = first_of(layout), len(window.strides)
    shape = node.typed(data).shape
    extents = [known(d) for d in shape[first : first + rank]]
    sizes, reach = [known(d) for d in output_extents], [known(r) for r in window.reach]
    before, after, output_padding = [], [], []
    for at, (extent, size, span, step) in enumerate(
        zip(extents, sizes, reach, window.strides, strict=True)
    ):
        if extent is None or size is None or span is None:
            node.unsupported("the image and the output must have known extents but for the batch")
        spare = (extent - 1) * step + span - size
        low, high = known(window.before[at]) or 0, known(window.after[at]) or 0
        if is_same:
            low, high = max(spare, 0) // 2, max(spare, 0) - max(spare, 0) // 2
        before.append(low)
        after.append(high)
        output_padding.append(low + high - spare)
    if any(
        not 0 <= extra < step for extra, step in zip(output_padding, window.strides, strict=True)
    ):
        node.unsupported(f"the output shape {tuple(output_extents)} does not follow from the input")
    window = replace(window, before=tuple(before), after=tuple(after))
    is_last, ends = first == 1, rank + 1
    channels = known(node.typed(weight).shape[1])
    result = convolution(
        node, op.transpose(data, (0, ends, *range(1, ends))) if is_last else data, weight, window,
        channels=channels, output_padding=output_padding,
    )  # fmt: skip
    return op.transpose(result, (0, *range(2, ends + 1), 1)) if is_last else result


def weight_extents(node: AttributeNode, index: int, rank: int) -> tuple[int, ...]:
    """Return the shape of a weight. Raises Unsupported where it is open, or of another rank."""
    shape = [known(d) for d in node.shape(index)]
    if len(shape) != rank or None in shape:
        node.unsupported(f"the weight{node.of_input(index)} must have {rank} known extents")
    return tuple(d for d in shape if d is not None)
