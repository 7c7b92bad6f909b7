"""What convolutions and pools of floats and of quantised tensors have in common: their windows."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.tflite.node import Node
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.shape import known

SAME = 0
"""Of the enum Padding; the other is VALID."""


@dataclass(frozen=True, slots=True)
class Window:
    """How a convolution moves. order: of the axes of the weights, as HWIO."""

    size: tuple[int, int]
    channels: int
    padding: tuple[int, ...]
    dilation: tuple[int, int]
    groups: int
    order: tuple[int, ...]


def strides(node: Node) -> tuple[int, int]:
    """(down, right)."""
    return node.option("StrideH"), node.option("StrideW")


def window_of(node: Node) -> tuple[int, int]:
    """The height and width of a pool."""
    return node.option("FilterHeight"), node.option("FilterWidth")


def padding(node: Node, window: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """(top, left, bottom, right) of a window of two axes."""
    return sides_of(node, node.extents(0, (1, 2)), window, strides(node), dilation)


def sides_of(
    node: Node, extents: Sequence[int | None], window: Sequence[int], steps: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:  # fmt: skip
    """All sides before, then all behind: what SAME adds, the odd one behind.

    Gives up where it depends on extents that are symbolic.
    """
    if node.option("Padding") != SAME:
        return (0,) * 2 * len(window)
    before, behind = [], []
    for extent, size, step, d in zip(extents, window, steps, dilation, strict=True):
        reach = (size - 1) * d + 1
        if extent is None and step > 1:
            node.unsupported(f"padding SAME with strides needs a known extent of {node.ins[0]}")
        total = reach - 1 if extent is None else (-(-extent // step) - 1) * step + reach - extent
        before.append(max(total, 0) // 2)
        behind.append(max(total, 0) - before[-1])
    return (*before, *behind)


def weight_shape(node: Node, index: int) -> tuple[int, ...]:
    """The shape of a weight, which must be known."""
    found = [known(d) for d in node.shape(index)]
    if len(found) != 4 or None in found:
        node.unsupported(f"{node.ins[index]} must have four known extents")
    return tuple(d for d in found if d is not None)


def plain_window(node: Node) -> Window:
    """Of weights (out, height, width, in), where fewer in than the data has make groups."""
    out, height, width, depth = weight_shape(node, 1)
    channels = known(node.shape(0)[3])
    if channels is None or channels % depth:
        node.unsupported(f"{node.ins[0]} must have a multiple of {depth} channels")
    size, dilation = (height, width), dilation_of(node)
    sides = padding(node, size, dilation)
    return Window(size, out, sides, dilation, channels // depth, (1, 2, 3, 0))


def depthwise_window(node: Node) -> Window:
    """Of weights (1, height, width, out): of each channel of the data equally many."""
    _, height, width, out = weight_shape(node, 1)
    channels = known(node.shape(0)[3])
    if channels is None or out % channels:
        node.unsupported(f"{node.ins[0]} must have a divisor of {out} as its channels")
    size, dilation = (height, width), dilation_of(node)
    return Window(size, out, padding(node, size, dilation), dilation, channels, (1, 2, 0, 3))


def dilation_of(node: Node) -> tuple[int, int]:
    """(down, right)."""
    return node.option("DilationHFactor", 1), node.option("DilationWFactor", 1)
