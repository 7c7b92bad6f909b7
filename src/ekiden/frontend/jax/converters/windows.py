"""Reductions over windows: pooling, running sums, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from ekiden.frontend.common.combined import REDUCE, is_neutral, neutral
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.slices import pad
from ekiden.frontend.common.value import Value
from ekiden.frontend.common.windows import Windows, padded, taps
from ekiden.frontend.jax.converters.bodies import combined, kind_of
from ekiden.frontend.jax.converters.movement import iota
from ekiden.frontend.jax.node import Node, Row
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim, as_attr, as_dim, equal, known, tidy

MOST = 4096
"""The most elements of a window that are combined one after the other."""


def _static_windows(node: Node) -> Windows:
    rank = len(node.ints("window_dimensions"))
    ones = (1,) * rank
    padding = node.ints("padding", (0,) * (2 * rank))
    return Windows(
        node.ints("window_dimensions"),
        node.ints("window_strides", ones),
        [d - 1 for d in node.ints("base_dilations", ones)],
        node.ints("window_dilations", ones),
        padding[::2],
        padding[1::2],
    )


def _reduce_window(node: Node) -> Result:
    return reduce_window(node, _static_windows(node), len(node.inputs) // 2)


def dynamic_reduce_window(node: Node) -> Result:
    """The function `stablehlo.dynamic_reduce_window`: behind the tensors and their initial values
    stand extents, strides, dilations of the tensor and of windows, and padding.
    """
    count = (len(node.inputs) - 5) // 2
    at = 2 * count
    inner, dilation = (node.static(node.sizes(at + i), "dilations") for i in (2, 3))
    padding = _signed(node, at + 4)
    windows = Windows(
        node.sizes(at),
        node.static(node.sizes(at + 1), "strides"),
        [d - 1 for d in inner],
        dilation,
        padding[::2],
        padding[1::2],
    )
    return reduce_window(node, windows, count)


def _signed(node: Node, index: int) -> list[Dim]:
    """The elements of an input, which may be negative."""
    (values,) = (node.value(index),)
    if not values.is_known:
        node.needs(index, "padding must follow from shapes")
    return list(as_attr(as_dim(e if hasattr(e, "dtype") and not isinstance(e, np.generic)
                               else int(e)) for e in values.elements.ravel()))  # fmt: skip


def reduce_window(node: Node, windows: Windows, count: int) -> Result:
    """`count` tensors, then their initial values."""
    block = node.region()
    kind = kind_of(node, block) if count == 1 else ""
    if kind in REDUCE and is_neutral(node.value(1), kind):
        special = _running(node, windows, kind) or _pooled(node, windows, kind)
        if special is not None:
            return special
    size = windows.numbers()
    if size is None or math.prod(map(int, size)) > MOST:
        node.unsupported("windows of symbolic or large extents of anything but running sums")
    wide = [padded(node, windows, node.value(i), node.expr(count + i)) for i in range(count)]
    pairs = [node.scope.typed(node.scope.expr(p)).shape for p in wide]
    each = [taps(node, windows, p, s) for p, s in zip(wide, pairs, strict=True)]
    made = [next(t) for t in each]
    while others := [t for t in (next(e, None) for e in each) if t is not None]:
        if kind in REDUCE:
            both = REDUCE[kind][1](node.scope.expr(made[0]), node.scope.expr(others[0]))
            made = [node.given(both)]
        else:
            made = combined(node, block, made, others)
    if all(is_neutral(node.value(count + i), kind) for i in range(count)):
        return made
    start = [
        node.given(op.full_like(node.scope.expr(m), node.expr(count + i)))
        for i, m in enumerate(made)
    ]
    return combined(node, block, start, made)


# Running sums.


def _running(node: Node, windows: Windows, kind: str) -> Expr | None:
    """Windows as long as an axis that end, or begin, at each of its elements."""
    if any(windows.inner) or any(s != 1 for s in (*windows.strides, *windows.dilation)):
        return None
    shape = node.shape(0)
    wide = [i for i, w in enumerate(windows.size) if known(as_dim(w)) != 1]
    if len(wide) != 1:
        return None
    (axis,) = wide
    before, behind = as_dim(windows.low[axis]), as_dim(windows.high[axis])
    others = [i for i in range(len(shape)) if i != axis]
    if any(known(as_dim(p[i])) != 0 for p in (windows.low, windows.high) for i in others):
        return None
    if not equal(as_dim(windows.size[axis]), shape[axis]):
        return None
    rest = tidy(shape[axis] - 1)
    is_forward = equal(before, rest) and known(behind) == 0
    if not is_forward and not (equal(behind, rest) and known(before) == 0):
        return None
    data = node.expr(0) if is_forward else op.reverse(node.expr(0), axis)
    found = _scan(node, data, axis, kind)
    return found if is_forward else op.reverse(found, axis)


_SCANS: Mapping[str, Callable[..., Expr]] = {"add": op.cumsum, "multiply": op.cumprod}


def _scan(node: Node, data: Expr, axis: int, kind: str) -> Expr:
    if kind in _SCANS:
        return _SCANS[kind](data, axis=axis)
    # Of each element all up to it: there is no operator that runs a maximum along an axis.
    shape, dtype = node.shape(0), node.dtype(0)
    extent = shape[axis]
    first = node.scope.expr(_value(node, iota(node, (extent, 1), 0, "int64")))
    second = node.scope.expr(_value(node, iota(node, (1, extent), 1, "int64")))
    seen = op.less_equal(second, first)
    rest = (1,) * (len(shape) - axis - 1)
    mask = op.reshape(seen, as_attr((extent, extent, *rest)), allowzero=True)
    wide = op.where(mask, op.expand_dims(data, axis=axis), const(neutral(kind, dtype), dtype))
    return REDUCE[kind][0](wide, axis=[axis + 1], keepdims=False)


def _value(node: Node, made: Result) -> Value:
    if isinstance(made, Value):
        return made
    assert isinstance(made, Expr)
    return node.given(made)


# Pooling.


def _pooled(node: Node, windows: Windows, kind: str) -> Expr | None:
    """Two axes of four: the operators of pooling."""
    size = windows.numbers()
    if kind not in ("add", "maximum") or size is None or len(size) != 4 or any(windows.inner):
        return None
    wide = [i for i in range(4) if size[i] != 1 or windows.strides[i] != 1]
    padding = [known(as_dim(p)) for p in (*windows.low, *windows.high)]
    low, high = padding[:4], padding[4:]
    layouts = [(name, axes) for name, axes in _LAYOUTS if set(wide) <= set(axes)]
    if not layouts or not is_float(node.dtype(0)) or None in padding:
        return None
    name, axes = layouts[0]
    others = [i for i in range(4) if i not in axes]
    if any(low[i] or high[i] for i in others) or any((p or 0) < 0 for p in padding):
        return None
    options = {
        "pool_size": tuple(size[i] for i in axes),
        "strides": tuple(windows.strides[i] for i in axes),
        "dilation": tuple(windows.dilation[i] for i in axes),
        "padding": (*(low[i] for i in axes), *(high[i] for i in axes)),
        "layout": name,
    }
    if kind == "maximum":
        return op.nn.max_pool2d(node.expr(0), **options)  # type: ignore[arg-type]
    count = const(float(size[axes[0]] * size[axes[1]]), node.dtype(0))
    found = op.nn.avg_pool2d(node.expr(0), count_include_pad=True, **options)  # type: ignore[arg-type]
    return op.multiply(found, count)


_LAYOUTS = (("NHWC", (1, 2)), ("NCHW", (2, 3)))


def _select_and_scatter(node: Node) -> Expr:
    """(tensor, source, initial value): each element of the source is added where its window has the
    element that is chosen.
    """
    windows, chosen = _static_windows(node), node.region(0)
    if kind_of(node, node.region(1)) != "add":
        node.unsupported("what is scattered can be added only")
    size = windows.numbers()
    assert size is not None, "the extents of windows are attributes"
    fill = const(neutral("maximum", node.dtype(0)), node.dtype(0))
    wide = padded(node, windows, node.value(0), fill)
    shape = wide.type.shape
    each = taps(node, windows, wide, shape)
    best = next(each)
    place = node.given(op.zeros_like(op.cast(node.scope.expr(best), "int32")))
    for number, tap in enumerate(each, 1):
        (keep,) = combined(node, chosen, [best], [tap])
        test = node.scope.expr(keep)
        best = node.given(op.where(test, node.scope.expr(best), node.scope.expr(tap)))
        kept = op.where(test, node.scope.expr(place), const(number, "int32"))
        place = node.given(kept)
    whole = _spread_back(node, windows, place, shape)
    begin = list(windows.low)
    end = as_attr(tidy(as_dim(b) + d) for b, d in zip(begin, node.shape(0), strict=True))
    found = op.strided_slice(node.scope.expr(whole), begin, end)
    return found if is_neutral(node.value(2), "add") else op.add(found, node.expr(2))


def _spread_back(node: Node, windows: Windows, place: Value, shape: Sequence[Dim]) -> Value:
    """The source on the padded tensor, element by element of a window."""
    size = windows.numbers()
    assert size is not None, "the extents of windows are attributes"
    zero = const(0, node.dtype(1))
    counts = windows.counts(shape)
    inner = [s - 1 for s in windows.strides]
    total: Value | None = None
    for number, tap in enumerate(product(*map(range, size))):
        mine = op.equal(node.scope.expr(place), const(number, "int32"))
        part = node.given(op.where(mine, node.expr(1), zero))
        behind = as_attr(
            tidy(as_dim(n) - (as_dim(c) - 1) * s - 1 - t)
            for n, c, s, t in zip(shape, counts, windows.strides, tap, strict=True)
        )
        wide = pad(node, part, zero, tap, behind, inner)
        total = node.given(wide if total is None else op.add(node.scope.expr(total), wide))
    assert total is not None, "a window has an element"
    return total


ROWS: tuple[Row, ...] = (
    Row("stablehlo.reduce_window", _reduce_window),
    Row("stablehlo.select_and_scatter", _select_and_scatter),
)
