"""Window reductions: pooling, scans, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from jaxlib.mlir import ir

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.converters.stablehlo import MAX_WINDOW_ELEMENTS
from ekiden.frontend.common.converters.window import emit_pool
from ekiden.frontend.common.dynamic_slices import xla_pad
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.reducers import REDUCTION_OPS, is_reduction_identity
from ekiden.frontend.common.sliding_window import Window, emit_tap_values, pad_and_dilate
from ekiden.frontend.common.value import Value
from ekiden.frontend.jax.converters.reduction_bodies import (
    apply_body,
    apply_real_body,
    match_reducer,
)
from ekiden.frontend.jax.node import (
    ComplexPair,
    ComplexRule,
    Converter,
    ImportedValues,
    StablehloNode,
    StablehloRow,
    flatten_parts,
    per_part_rule,
)
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import (
    Dim,
    are_equal_dims,
    as_dim,
    known_int,
    simplify_dim,
    to_attr_dims,
)


def _window_geometry(node: StablehloNode) -> Window:
    rank = len(node.int_array_attribute("window_dimensions"))
    ones = (1,) * rank
    padding = node.int_array_attribute("padding", (0,) * (2 * rank))
    return Window(
        node.int_array_attribute("window_dimensions"),
        node.int_array_attribute("window_strides", ones),
        node.int_array_attribute("window_dilations", ones), padding[::2], padding[1::2],
        tuple(d - 1 for d in node.int_array_attribute("base_dilations", ones)),
    )  # fmt: skip


def _reduce_window(node: StablehloNode) -> Result | ImportedValues:
    return reduce_window(node, _window_geometry(node), len(node.inputs) // 2)


def dynamic_reduce_window(node: StablehloNode) -> Result | ImportedValues:
    """Convert the custom call `stablehlo.dynamic_reduce_window`.

    Behind the tensors and their initial values stand extents, strides, dilations of the tensor and
    of windows, and padding.
    """
    count = (len(node.inputs) - 5) // 2
    position = 2 * count
    inner, dilation = (node.static_dims(node.sizes(position + i), "dilations") for i in (2, 3))
    padding = node.signed_dims(position + 4)
    windows = Window(
        node.sizes(position), node.static_dims(node.sizes(position + 1), "strides"), dilation,
        tuple(padding[::2]), tuple(padding[1::2]), tuple(d - 1 for d in inner),
    )  # fmt: skip
    return reduce_window(node, windows, count)


def _reduce_complex_window(convert: Converter) -> ComplexRule:
    def rule(node: StablehloNode) -> ComplexPair | ImportedValues:
        """Sum each part by itself; other complex window reductions evaluate their bodies."""
        count = len(node.whole) // 2
        if count == 1 and match_reducer(node, node.region_block()) == "add":
            return per_part_rule(convert)(node)
        return _reduce_by_taps(node, _window_geometry(node), count, "")

    return rule


def reduce_window(node: StablehloNode, windows: Window, count: int) -> Result | ImportedValues:
    """Convert a window reduction of `count` tensors, which their initial values follow."""
    block = node.region_block()
    kind = match_reducer(node, block) if count == 1 else ""
    if kind in REDUCTION_OPS and is_reduction_identity(node.value(1), kind):
        special = _scan_by_operator(node, windows, kind) or _match_pooling(node, windows, kind)
        if special is not None:
            return special
    return _reduce_by_taps(node, windows, count, kind)


def _reduce_by_taps(node: StablehloNode, windows: Window, count: int, kind: str) -> ImportedValues:
    """Reduce windows tap by tap: one whole-tensor step per window element."""
    block = node.region_block()
    prefixes = _match_prefix_windows(node, windows)
    if prefixes is not None and known_int(node.shape(0)[prefixes.axis]):
        accumulated = _parallel_prefix_scan(node, prefixes, list(node.whole[:count]), kind)
    elif not windows.has_static_extents or math.prod(windows.static_extents) > MAX_WINDOW_ELEMENTS:
        node.reject("windows of symbolic or large extents of anything but running sums")
    else:
        wide = [_pad_value(node, windows, *node.whole[i::count][:2]) for i in range(count)]
        tap_iterators = [_padded_taps(node, windows, p) for p in wide]
        accumulated = [next(t) for t in tap_iterators]
        while next_taps := [t for t in (next(e, None) for e in tap_iterators) if t is not None]:
            accumulated = _combine_values(node, block, accumulated, next_taps, kind)
    if kind and all(is_reduction_identity(node.value(count + i), kind) for i in range(count)):
        return accumulated
    start = _per_complex_part(node, op.full_like, accumulated, list(node.whole[count:]))
    return _combine_values(node, block, start, accumulated, kind)


def _combine_values(
    node: StablehloNode, block: ir.Block, first: ImportedValues, second: ImportedValues, kind: str
) -> ImportedValues:
    """Combine two tensors by the body, or by its operator if it is a single one."""
    (x, *_), (y, *_) = first, second
    if kind in REDUCTION_OPS and isinstance(x, Value) and isinstance(y, Value):
        return [node.bind_shared(REDUCTION_OPS[kind][1](node.scope.expr(x), node.scope.expr(y)))]
    return apply_body(node, block, first, second)


def _pad_value(
    node: StablehloNode, windows: Window, value: Value | ComplexValue, init: Value | ComplexValue
) -> Value | ComplexValue:
    """Pad a tensor by the window's padding, a complex one part by part."""
    pairs = zip(flatten_parts([value]), flatten_parts([init]), strict=True)
    padded_parts = [
        pad_and_dilate(node, windows, component, node.scope.expr(fill)) for component, fill in pairs
    ]
    return ComplexValue(*padded_parts) if len(padded_parts) > 1 else padded_parts[0]


def _padded_taps(
    node: StablehloNode, windows: Window, wide: Value | ComplexValue
) -> Iterator[Value | ComplexValue]:
    """Yield the taps of a padded tensor, complex ones part by part."""
    for tap_parts in zip(
        *(emit_tap_values(node, windows, component) for component in flatten_parts([wide])),
        strict=True,
    ):
        yield ComplexValue(*tap_parts) if len(tap_parts) > 1 else tap_parts[0]


def _per_complex_part(
    node: StablehloNode,
    function: Callable[[Expr, Expr], Expr],
    first: ImportedValues,
    second: ImportedValues,
) -> ImportedValues:
    """Apply a function to pairs of tensors, to complex ones part by part."""
    results: ImportedValues = []
    for pair in zip(first, second, strict=True):
        parts = zip(*(map(node.scope.expr, flatten_parts([value])) for value in pair), strict=True)
        values = [node.bind_shared(function(x, y)) for x, y in parts]
        results.append(ComplexValue(*values) if len(values) > 1 else values[0])
    return results


# Scans.


@dataclass(frozen=True, slots=True)
class _PrefixWindows:
    """Prefix windows: as long as an axis, and ending (forward) or beginning at each of its
    elements.
    """

    axis: int
    is_forward: bool


def _match_prefix_windows(node: StablehloNode, windows: Window) -> _PrefixWindows | None:
    """Match windows that are prefixes or suffixes of an axis; return None for other windows."""
    if any(windows.base_dilations) or any(s != 1 for s in (*windows.strides, *windows.dilations)):
        return None
    shape = node.shape(0)
    wide = [i for i, w in enumerate(windows.extents) if known_int(as_dim(w)) != 1]
    if len(wide) != 1:
        return None
    (axis,) = wide
    before, behind = as_dim(windows.padding_before[axis]), as_dim(windows.padding_after[axis])
    other_axes = [i for i in range(len(shape)) if i != axis]
    if any(
        known_int(as_dim(p[i])) != 0
        for p in (windows.padding_before, windows.padding_after)
        for i in other_axes
    ):
        return None
    if not are_equal_dims(as_dim(windows.extents[axis]), shape[axis]):
        return None
    padding_extent = simplify_dim(shape[axis] - 1)
    is_forward = are_equal_dims(before, padding_extent) and known_int(behind) == 0
    if not is_forward and not (are_equal_dims(behind, padding_extent) and known_int(before) == 0):
        return None
    return _PrefixWindows(axis, is_forward)


_SCAN_OPS: Mapping[str, Callable[..., Expr]] = {
    "add": op.cumsum,
    "multiply": op.cumprod,
    "maximum": op.cummax,
    "minimum": op.cummin,
    "and": op.cummin,
    "or": op.cummax,
}
"""What a body is -> the operator of its prefixes; those of booleans are extremes."""


def _scan_by_operator(node: StablehloNode, windows: Window, kind: str) -> Expr | None:
    """Convert prefix windows to the cumulative operator of their kind; return None for other
    windows.
    """
    prefixes = _match_prefix_windows(node, windows)
    if prefixes is None:
        return None
    data, axis = node.expr(0), prefixes.axis
    if prefixes.is_forward:
        return _SCAN_OPS[kind](data, axis=axis)
    return op.reverse(_SCAN_OPS[kind](op.reverse(data, axis), axis=axis), axis)


def _parallel_prefix_scan(
    node: StablehloNode, prefixes: _PrefixWindows, tensors: ImportedValues, kind: str
) -> ImportedValues:
    """Combine all prefixes along an axis of constant extent by an associative body.

    The prefixes of pairs are those that end at odd elements; each of the others is one more
    element: two combinations an element, in as many steps as its logarithm (Blelloch, "Prefix sums
    and their applications", 1990).
    """
    axis, block = prefixes.axis, node.region_block()
    extent = known_int(node.shape(0)[axis])
    assert extent is not None

    def join(earlier: ImportedValues, later: ImportedValues) -> ImportedValues:
        """Combine in the order of the axis: a body need not be commutative."""
        pair = (earlier, later) if prefixes.is_forward else (later, earlier)
        return _combine_values(node, block, *pair, kind)

    def part(values: ImportedValues, begin: int, end: int, stride: int = 1) -> ImportedValues:
        """Return elements [begin, end) along the axis."""

        def slice_axis(expr: Expr) -> Expr:
            return op.strided_slice(expr, [begin], [end], [stride], axes=[axis])

        return [node.map_parts(value, slice_axis) for value in values]

    def reverse(values: ImportedValues) -> ImportedValues:
        """Reverse the axis of values that are scanned from the end."""
        if prefixes.is_forward:
            return values
        return [node.map_parts(value, lambda expr: op.reverse(expr, axis)) for value in values]

    def interleave(even: ImportedValues, odd: ImportedValues, count: int) -> ImportedValues:
        """Return elements of two halves in turn; `even` has one more where `count` is odd."""
        outer, inner = node.shape(0)[:axis], node.shape(0)[axis + 1 :]
        shape: list[Dim] = [*outer, count - count % 2, *inner]

        def interleave_axis(x: Expr, y: Expr) -> Expr:
            return op.reshape(op.stack([x, y], axis + 1), to_attr_dims(map(as_dim, shape)), True)

        pairs = _per_complex_part(node, interleave_axis, part(even, 0, count // 2), odd)
        if count % 2 == 0:
            return pairs
        return concatenate(pairs, part(even, count // 2, count // 2 + 1))

    def concatenate(first: ImportedValues, second: ImportedValues) -> ImportedValues:
        return _per_complex_part(node, lambda x, y: op.concatenate([x, y], axis), first, second)

    levels: list[tuple[ImportedValues, int]] = []
    values = reverse(tensors)
    while extent > 1:
        levels.append((values, extent))
        pairs_end = extent - extent % 2
        values = join(part(values, 0, pairs_end, 2), part(values, 1, pairs_end, 2))
        extent //= 2
    for elements, count in reversed(levels):
        even = part(elements, 0, 1)
        if count > 2:
            later = join(part(values, 0, (count - 1) // 2), part(elements, 2, count, 2))
            even = concatenate(even, later)
        values = interleave(even, values, count)
    return reverse(values)


# Pooling.


def _match_pooling(node: StablehloNode, windows: Window, kind: str) -> Expr | None:
    """Match pooling windows over two of four axes; return the pooling call, or None."""
    if kind not in ("add", "maximum") or len(windows.strides) != 4 or any(windows.base_dilations):
        return None
    # Relay's pooling kernels are float; integer sums must also stay exact.
    if not windows.has_static_extents or windows.padding is None or not is_float(node.dtype(0)):
        return None
    size, low, high = windows.static_extents, windows.padding[:4], windows.padding[4:]
    wide = [i for i in range(4) if size[i] != 1 or windows.strides[i] != 1]
    layouts = [(name, axes) for name, axes in _POOL_LAYOUTS if set(wide) <= set(axes)]
    if not layouts or min(windows.padding) < 0:
        return None
    name, axes = layouts[0]
    if any(low[i] or high[i] for i in range(4) if i not in axes):
        return None
    rows = (size, windows.strides, windows.dilations, low, high)
    window = Window(*(tuple(row[i] for i in axes) for row in rows))
    if kind == "maximum":
        return emit_pool("max", node.expr(0), window, name)
    # Relay has no sum pooling: it is the mean including padding, times the window's size.
    means = emit_pool("avg", node.expr(0), window, name, count_include_pad=True)
    return op.multiply(means, const(float(math.prod(window.static_extents)), node.dtype(0)))


_POOL_LAYOUTS = (("NHWC", (1, 2)), ("NCHW", (2, 3)))


def _select_and_scatter(node: StablehloNode) -> Expr:
    """Convert select_and_scatter (tensor, source, initial value), the gradient of max pooling.

    Each source element is combined, by the second body, with the result's element that the first
    body selects in its window. Padding is never selected.
    """
    windows, chosen = _window_geometry(node), node.region_block(0)
    zero = const(0, node.dtype(0))
    wide = pad_and_dilate(node, windows, node.value(0), zero)
    shape = wide.type.shape
    best, selected_tap = _select_taps(node, windows, chosen, wide, _data_mask(node, windows))
    scattered = _scatter_source(node, windows, best, selected_tap, shape)
    begin = list(windows.padding_before)
    end = to_attr_dims(
        simplify_dim(as_dim(b) + d) for b, d in zip(begin, node.shape(0), strict=True)
    )
    return op.strided_slice(node.scope.expr(scattered), begin, end)


def _data_mask(node: StablehloNode, windows: Window) -> Value | None:
    """Emit the mask of a padded tensor's own elements; None without padding."""
    if all(known_int(as_dim(p)) == 0 for p in (*windows.padding_before, *windows.padding_after)):
        return None
    ones = node.bind_shared(op.ones_like(op.cast(node.expr(0), "int8")))
    return pad_and_dilate(node, windows, ones, const(0, "int8"))


def _select_taps(
    node: StablehloNode, windows: Window, chosen: ir.Block, wide: Value, inside: Value | None
) -> tuple[Value, Value]:
    """Emit the selected element of each window and its tap number, -1 for none."""
    tap_iterator = emit_tap_values(node, windows, wide)
    masks = None if inside is None else emit_tap_values(node, windows, inside)
    best = next(tap_iterator)
    start = op.zeros_like(op.cast(node.scope.expr(best), "int32"))
    if masks is not None:
        start = op.subtract(op.cast(node.scope.expr(next(masks)), "int32"), const(1, "int32"))
    selected_tap = node.bind_shared(start)
    for number, tap in enumerate(tap_iterator, 1):
        (keep,) = apply_real_body(node, chosen, [best], [tap])
        test = node.scope.expr(keep)
        if masks is not None:
            is_first = op.less(node.scope.expr(selected_tap), const(0, "int32"))
            is_pad = op.equal(node.scope.expr(next(masks)), const(0, "int8"))
            test = op.logical_or(is_pad, op.logical_and(op.logical_not(is_first), test))
            test = node.emit_once(test)
        best = node.bind_shared(op.where(test, node.scope.expr(best), node.scope.expr(tap)))
        selected_tap = node.bind_shared(
            op.where(test, node.scope.expr(selected_tap), const(number, "int32"))
        )
    return best, selected_tap


def _scatter_source(
    node: StablehloNode, windows: Window, best: Value, selected_tap: Value, shape: Sequence[Dim]
) -> Value:
    """Scatter the source onto the padded tensor, one tap at a time."""
    block = node.region_block(1)
    zero, dtype = const(0, node.dtype(1)), node.dtype(1)
    is_sum = match_reducer(node, block) == "add"
    counts = windows.output_extents(shape)
    inner = [s - 1 for s in windows.strides]
    total = node.bind_shared(op.full(node.expr(2), to_attr_dims(shape), dtype=dtype))
    for number, tap in enumerate(product(*map(range, windows.static_extents))):
        is_selected = node.emit_once(
            op.equal(node.scope.expr(selected_tap), const(number, "int32"))
        )
        behind = to_attr_dims(
            simplify_dim(as_dim(n) - (as_dim(c) - 1) * s - 1 - t)
            for n, c, s, t in zip(shape, counts, windows.strides, tap, strict=True)
        )
        contribution = node.bind_shared(op.where(is_selected, node.expr(1), zero))
        wide = node.bind_shared(xla_pad(node, contribution, zero, tap, behind, inner))
        if is_sum:
            total = node.bind_shared(op.add(node.scope.expr(total), node.scope.expr(wide)))
            continue
        selected_mask = node.bind_shared(op.cast(is_selected, "int8"))
        mask = xla_pad(node, selected_mask, const(0, "int8"), tap, behind, inner)
        (combined_value,) = apply_real_body(node, block, [total], [wide])
        chosen = op.not_equal(mask, const(0, "int8"))
        total = node.bind_shared(
            op.where(chosen, node.scope.expr(combined_value), node.scope.expr(total))
        )
    return total


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow(
        "stablehlo.reduce_window", _reduce_window, make_complex_rule=_reduce_complex_window
    ),
    StablehloRow("stablehlo.select_and_scatter", _select_and_scatter),
)
