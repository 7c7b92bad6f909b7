"""Window geometry (kernel, strides, padding, dilation) of convolutions and pooling, read from an
operator's options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.frontend.common.converters.window import channel_groups, static_weight_shape
from ekiden.frontend.common.sliding_window import Window, same_padding_window
from ekiden.frontend.tflite.node import TfliteNode
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, known_int

PADDING_SAME = 0
"""Of the enum Padding; the other is VALID."""


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """Geometry of a convolution: window, channels, groups and the weight's transposition
    to HWIO.
    """

    window: Window
    channels: int
    groups: int
    weight_permutation: tuple[int, ...]


GeometryReader = Callable[[TfliteNode], ConvGeometry]
"""Reads the geometry of a node."""


def axis_options(
    node: TfliteNode, start: str, axes: str, end: str = "", default: int = 1
) -> tuple[int, ...]:
    """Return an option of each axis of "HW" or "DHW": for H "StrideH"."""
    return tuple(int(node.read_option(f"{start}{axis}{end}", default)) for axis in axes)


def make_kernel_window(
    node: TfliteNode, kernel: Sequence[Dim], data: int = 0, is_dilated: bool = True
) -> Window:
    """Return the window of a kernel over input `data`."""
    axes = "DHW"[-len(kernel) :]
    strides, gaps = axis_options(node, "Stride", axes), (1,) * len(kernel)
    gaps = axis_options(node, "Dilation", axes, "Factor") if is_dilated else gaps
    if node.read_option("Padding") == PADDING_SAME:
        return same_padding_window(node.shape(data)[1 : 1 + len(kernel)], kernel, strides, gaps)
    none = (0,) * len(kernel)
    return Window(tuple(kernel), strides, gaps, none, none)


def read_pool_window(node: TfliteNode) -> Window:
    """Return the window of a pooling operator."""
    return make_kernel_window(
        node, (node.read_option("FilterHeight"), node.read_option("FilterWidth")), 0, False
    )


def require_static_padding(node: TfliteNode, window: Window) -> tuple[int, ...]:
    """Return the padding (top, left, bottom, right). Raises UnsupportedError where it depends on
    symbolic extents: no operator pads with zero points by symbolic amounts.
    """
    if window.padding is None:
        node.reject(f"padding SAME with strides needs a known extent of {node.ins[0]}")
    return window.padding


def read_conv_geometry(node: TfliteNode) -> ConvGeometry:
    """Return the geometry of CONV_2D weights [out, height, width, in]; fewer inputs than data
    channels make groups.
    """
    out, height, width, depth = static_weight_shape(node, 1, 4)
    window = make_kernel_window(node, (height, width))
    return ConvGeometry(window, out, channel_groups(node, 3, depth), (1, 2, 3, 0))


def read_depthwise_geometry(node: TfliteNode) -> ConvGeometry:
    """Return the geometry of depthwise weights [1, height, width, out]."""
    _, height, width, out = static_weight_shape(node, 1, 4)
    channels = known_int(node.shape(0)[3])
    if channels is None or out % channels:
        node.reject(f"{node.ins[0]} must have a divisor of {out} as its channels")
    # The weight is [1, height, width, out]: axis 0 becomes the one input channel of each group.
    return ConvGeometry(make_kernel_window(node, (height, width)), out, channels, (1, 2, 0, 3))
