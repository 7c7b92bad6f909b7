"""Window geometry of convolutions and pooling, read from options; for float and quantised
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.frontend.common.converters.window import weight_extents
from ekiden.frontend.common.windows import Window, same_window
from ekiden.frontend.tflite.node import Node
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, known

SAME = 0
"""Of the enum Padding; the other is VALID."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """Geometry of a convolution. order: the transposition of the weights to HWIO."""

    window: Window
    channels: int
    groups: int
    order: tuple[int, ...]


Reader = Callable[[Node], Convolution]
"""Reads the geometry of a node."""


def sizes(node: Node, start: str, axes: str, end: str = "", default: int = 1) -> tuple[int, ...]:
    """Return an option of each axis, "HW" or "DHW": that of H is "StrideH"."""
    return tuple(int(node.option(f"{start}{axis}{end}", default)) for axis in axes)


def window_of(node: Node, kernel: Sequence[Dim], data: int = 0, is_dilated: bool = True) -> Window:
    """Return the window of a kernel over the input `data`."""
    axes = "DHW"[-len(kernel) :]
    strides, gaps = sizes(node, "Stride", axes), (1,) * len(kernel)
    gaps = sizes(node, "Dilation", axes, "Factor") if is_dilated else gaps
    if node.option("Padding") == SAME:
        return same_window(node.shape(data)[1 : 1 + len(kernel)], kernel, strides, gaps)
    none = (0,) * len(kernel)
    return Window(tuple(kernel), strides, gaps, none, none)


def pool_window(node: Node) -> Window:
    """Return the window of a pool."""
    return window_of(node, (node.option("FilterHeight"), node.option("FilterWidth")), 0, False)


def sides_of(node: Node, window: Window) -> tuple[int, ...]:
    """Return (top, left, bottom, right). Raises Unsupported where it depends on extents that are
    symbolic: padding of zero points is no operator of its own.
    """
    if window.padding is None:
        node.unsupported(f"padding SAME with strides needs a known extent of {node.ins[0]}")
    return window.padding


def plain(node: Node) -> Convolution:
    """Read weights (out, height, width, in), where fewer in than the data has make groups."""
    out, height, width, depth = weight_extents(node, 1, 4)
    channels = known(node.shape(0)[3])
    if channels is None or channels % depth:
        node.unsupported(f"{node.ins[0]} must have a multiple of {depth} channels")
    return Convolution(window_of(node, (height, width)), out, channels // depth, (1, 2, 3, 0))


def depthwise(node: Node) -> Convolution:
    """Read weights (1, height, width, out): of each channel of the data equally many."""
    _, height, width, out = weight_extents(node, 1, 4)
    channels = known(node.shape(0)[3])
    if channels is None or out % channels:
        node.unsupported(f"{node.ins[0]} must have a divisor of {out} as its channels")
    return Convolution(window_of(node, (height, width)), out, channels, (1, 2, 0, 3))
