"""Window geometry of ONNX convolution and pooling: explicit and automatic padding."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.sliding_window import Window, same_padding_window
from ekiden.frontend.onnx.node import OnnxNode
from ekiden.topi.dimensions import Dim, known_int, windows_fit_condition

AUTO_PAD_MODES = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "")
"""What `auto_pad` may be; nothing is NOTSET, as ONNX Runtime reads it."""


def auto_pad(node: OnnxNode) -> str:
    """Return the attribute `auto_pad`, NOTSET where it is absent or empty."""
    return node.get_string("auto_pad", "NOTSET") or "NOTSET"


def check_spatial_rank(node: OnnxNode) -> None:
    """Raise Unsupported unless input 0 has one to three spatial axes."""
    if node.rank(0) not in (3, 4, 5):
        node.reject(f"expected an input of rank 3, 4 or 5, got {node.rank(0)}")


def read_window(node: OnnxNode, kernel: Sequence[Dim]) -> Window:
    """Return the window of a node over the spatial axes of input 0."""
    rank, extents = len(kernel), node.shape(0)[2:]
    if node.rank(0) != rank + 2:
        node.reject(
            f"the kernel has {rank} axes; expected {node.rank(0) - 2} "
            f"for an input of rank {node.rank(0)}"
        )
    strides, dilations = (node.get_ints(n, (1,) * rank) for n in ("strides", "dilations"))
    auto = auto_pad(node)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return same_padding_window(extents, kernel, strides, dilations, auto == "SAME_LOWER")
    pads = node.get_ints("pads", (0,) * 2 * rank) if auto == "NOTSET" else (0,) * 2 * rank
    window = Window(tuple(kernel), strides, dilations, pads[:rank], pads[rank:])
    _require_fit(node, window, pads)
    return window


def _require_fit(node: OnnxNode, window: Window, pads: Sequence[int]) -> None:
    """Require symbolic extents to be at least as large as the window."""
    rounds_up, rank = node.get_int("ceil_mode", 0), len(window.strides)
    for i, extent in enumerate(node.shape(0)[2:]):
        if known_int(extent) is None or known_int(window.extents[i]) is None:
            stride = window.strides[i]
            slack = 2 * stride - 1 if rounds_up else stride
            fits = windows_fit_condition(
                extent, window.dilated_extents[i], slack, pads[i], pads[i + rank]
            )
            node.scope.require_condition(fits)
