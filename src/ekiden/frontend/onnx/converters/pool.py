"""Pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ekiden.frontend.onnx.converters.window import Window, padded, read_window
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr

_MAX: Mapping[int, Callable[..., Expr]] = {
    1: op.nn.max_pool1d,
    2: op.nn.max_pool2d,
    3: op.nn.max_pool3d,
}
_AVERAGE: Mapping[int, Callable[..., Expr]] = {
    1: op.nn.avg_pool1d,
    2: op.nn.avg_pool2d,
    3: op.nn.avg_pool3d,
}
"""By the number of spatial axes."""


def _window(node: Node) -> Window:
    if node.rank(0) not in (3, 4, 5):
        node.unsupported(f"expected an input of rank 3, 4 or 5, got {node.rank(0)}")
    return read_window(node, node.get_ints("kernel_shape"))


def _max_pool(node: Node) -> Expr:
    window = _window(node)
    data, padding = node.expr(0), window.padding
    if padding is None:
        lowest = -np.inf if is_float(node.dtype(0)) else int(np.iinfo(node.dtype(0)).min)
        data, padding = padded(node, data, window, lowest), (0,) * 2 * len(window.kernel)
    pool = _MAX[len(window.kernel)]
    ceil = bool(node.get_int("ceil_mode", 0))
    return pool(
        data,
        pool_size=window.kernel,
        strides=window.strides,
        dilation=window.dilations,
        padding=padding,
        ceil_mode=ceil,
    )


def _average_pool(node: Node) -> Expr:
    window = _window(node)
    padding = window.padding
    if padding is None:
        node.unsupported("attribute 'auto_pad' with strides above 1 needs a constant input shape")
    pool = _AVERAGE[len(window.kernel)]
    return pool(
        node.expr(0),
        pool_size=window.kernel,
        strides=window.strides,
        dilation=window.dilations,
        padding=padding,
        ceil_mode=bool(node.get_int("ceil_mode", 0)),
        count_include_pad=bool(node.get_int("count_include_pad", 0)),
    )


def _global(images: Callable[[Expr], Expr], other: Callable[..., Expr]) -> Callable[[Node], Expr]:
    def convert(node: Node) -> Expr:
        if node.rank(0) == 4:
            return images(node.expr(0))
        return other(node.expr(0), axis=list(range(2, node.rank(0))), keepdims=True)

    return convert


_AUTO = {"auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")}
_ATTRIBUTES = "auto_pad ceil_mode dilations kernel_shape pads strides"

# fmt: off
ROWS = (
    Row("MaxPool",           _max_pool, attributes=f"{_ATTRIBUTES} storage_order", values=_AUTO),
    Row("AveragePool",       _average_pool, attributes=f"{_ATTRIBUTES} count_include_pad",
        values=_AUTO),
    Row("GlobalAveragePool", _global(op.nn.global_avg_pool2d, op.mean)),
    Row("GlobalMaxPool",     _global(op.nn.global_max_pool2d, op.max)),
)
# fmt: on
