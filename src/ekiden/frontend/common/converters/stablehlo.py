"""StableHLO operations, as in JAX programs and TensorFlow Lite models.

Each function takes the specification's attributes as arguments, however a format stores them.
Reduction bodies are named as in `combined`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common import gather_scatter
from ekiden.frontend.common.constant_folding import MAX_FOLDED_ELEMENTS
from ekiden.frontend.common.dynamic_slices import (
    clamp_start,
    dynamic_slice_axis,
    emit_dynamic_update_slice,
)
from ekiden.frontend.common.float_functions import fmod, saturating_cast
from ekiden.frontend.common.gather_scatter import WindowPositions
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.reducers import REDUCTION_OPS, is_reduction_identity
from ekiden.frontend.common.sliding_window import Window, emit_tap_values, pad_and_dilate
from ekiden.frontend.common.value import Value, constant_value
from ekiden.ir.dtype import int_range, is_float, itemsize, to_numpy
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, are_equal_dims, as_dim, product_of_dims, to_attr_dims
from ekiden.topi.dimensions import known_int as number_of

MAX_WINDOW_ELEMENTS = 4096
"""Elements of a window that are combined one after the other."""

# Elements.


def dtype_bits(dtype: str) -> int:
    """Return the width of a dtype in bits."""
    return 8 * itemsize(dtype)


def unsigned_dtype(dtype: str) -> str:
    """Return the unsigned integer dtype of the same width."""
    return dtype if dtype.startswith("uint") else f"u{dtype}"


def emit_sign(x: Expr, dtype: str) -> Expr:
    """Emit the sign; NaN and zeros (with their sign) are returned unchanged, as StableHLO
    requires.
    """
    if not is_float(dtype):
        return op.sign(x)
    return op.where(op.logical_or(op.isnan(x), op.equal(x, const(0, dtype))), x, op.sign(x))


def emit_cbrt(x: Expr, dtype: str) -> Expr:
    """Emit the cube root, sign(x) |x|^(1/3)."""
    root = op.power(op.abs(x), const(1 / 3, dtype))
    return op.where(op.less(x, const(0, dtype)), op.negative(root), root)


def round_half_away(x: Expr, dtype: str) -> Expr:
    """Emit rounding to the nearest integer with ties away from 0 (round_nearest_afz)."""
    truncated = op.trunc(x)
    is_half = op.greater_equal(op.abs(op.subtract(x, truncated)), const(0.5, dtype))
    return op.where(is_half, op.add(truncated, op.sign(x)), truncated)


def emit_clamp(low: Expr, x: Expr, high: Expr) -> Expr:
    """Emit min(max(x, low), high); NaN is propagated."""
    return op.minimum(op.maximum(x, low), high)


def divide(node: Node, x: Expr, y: Expr) -> Expr:
    """Emit the quotient; integers truncate, and an integer division by 0 sets all bits, as
    in XLA.
    """
    dtype = node.dtype(0)
    if is_float(dtype):
        return op.divide(x, y)
    # -1 has all bits set in any integer dtype.
    quotient, ones = op.trunc_divide(x, y), const(np.array(-1).astype(dtype))
    return (
        quotient
        if _is_nonzero_divisor(node)
        else op.where(op.equal(y, const(0, dtype)), ones, quotient)
    )


def remainder(node: Node, x: Expr, y: Expr) -> Expr:
    """Emit the remainder with the dividend's sign; an integer remainder by 0 is the dividend, as in
    XLA.
    """
    dtype = node.dtype(0)
    residue = fmod(x, y, dtype)
    return (
        residue if _is_nonzero_divisor(node) else op.where(op.equal(y, const(0, dtype)), x, residue)
    )


def _is_nonzero_divisor(node: Node) -> bool:
    """Return whether the divisor needs no check for 0: floats, or constants without zeros."""
    divisor = node.value(1).array
    is_known = divisor is not None and divisor.dtype != np.object_
    return is_float(node.dtype(0)) or (is_known and bool(np.all(divisor)))


def emit_shift(
    node: Node, x: Expr, count: Expr, function: Callable[[Expr, Expr], Expr], width: int,
    is_logical: bool = True, keeps_sign: bool = False,
) -> Expr:  # fmt: skip
    """Emit x shifted by `count` bits; StableHLO defines shifts by any count.

    Counts not known to be below `width` are clamped to it; what is beyond is 0, or the sign, which
    the longest shift leaves. width: the bits of x, which a wider dtype may carry.
    """
    dtype, counts = node.dtype(0), node.value(1).array
    plain = unsigned_dtype(dtype) if is_logical else dtype.removeprefix("u")
    if is_logical and width < dtype_bits(dtype):  # the sign fills the carrier of a narrow dtype
        x = op.bitwise_and(x, const((1 << width) - 1, dtype))
    x = x if plain == dtype else op.reinterpret(x, plain)
    # Shifts by the width or more are undefined in C and LLVM, but StableHLO defines them.
    is_inside = counts is not None and bool(np.all((counts >= 0) & (counts < width)))
    held = count
    if not is_inside:  # counts below 0 are large as well
        held = op.minimum(
            op.cast(held, unsigned_dtype(dtype)), const(width - 1, unsigned_dtype(dtype))
        )
    shifted = function(
        x, held if node.scope.tensor_type_of(held).dtype == plain else op.cast(held, plain)
    )
    shifted = shifted if plain == dtype else op.reinterpret(shifted, dtype)
    if is_inside or keeps_sign:
        return shifted
    far = op.greater_equal(
        op.cast(count, unsigned_dtype(dtype)), const(width, unsigned_dtype(dtype))
    )
    return op.where(far, const(0, dtype), shifted)


def convert_dtype(x: Expr, dtype: str, target: str, width: int) -> Expr:
    """Convert x to another dtype; floats saturate at the integer's limits, which may be narrower
    than its carrier dtype.
    """
    if target == "bool":
        return op.not_equal(x, const(0, dtype))
    if not is_float(dtype) or int_range(target) is None:
        return op.cast(x, target)
    if width < dtype_bits(target):
        ends = (
            (0, 2**width - 1) if target == "uint8" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        )
        x = op.where(op.isnan(x), x, op.clip(x, *ends))
    return saturating_cast(x, dtype, target)


# Movement.


def broadcast_in_dim(node: Node, value: Value, axes: Sequence[int], shape: Sequence[Dim]) -> Expr:
    """Emit broadcast_in_dim: axis i of the value becomes axis `axes[i]` of the shape."""
    data, source = node.scope.expr(value), value.type.shape
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    if order != list(range(len(axes))):
        data = op.transpose(data, order)
        source = tuple(source[i] for i in order)
        axes = sorted(axes)
    wide: list[Dim] = [1] * len(shape)
    for axis, dim in zip(axes, source, strict=True):
        wide[axis] = dim
    first = axes[0] if axes else len(shape)
    if list(axes) != list(range(first, len(shape))):  # a broadcast aligns the last axes
        data = op.reshape(data, to_attr_dims(wide[first:]), allowzero=True)
    same = all(are_equal_dims(as_dim(a), as_dim(b)) for a, b in zip(wide, shape, strict=True))
    if same and first == 0:
        return data
    return op.broadcast_to(data, to_attr_dims(shape))


def emit_iota(node: Node, shape: Sequence[Dim], axis: int, dtype: str) -> Value:
    """Emit iota: every element is its index along an axis."""
    extent, numbers = shape[axis], [number_of(d) for d in shape]
    total = math.prod(n or 0 for n in numbers)
    if None not in numbers and total <= MAX_FOLDED_ELEMENTS:
        wide = np.arange(number_of(extent) or 0).reshape([-1] + [1] * (len(shape) - axis - 1))
        return constant_value(
            np.broadcast_to(wide, [n or 0 for n in numbers]).astype(to_numpy(dtype))
        )
    counts = op.arange(0, extent, 1, dtype="int64")
    row = node.bind_shared(counts if dtype == "int64" else op.cast(counts, dtype))
    return node.bind_shared(broadcast_in_dim(node, row, [axis], shape))


def dynamic_slice(node: Node, sizes: Sequence[int]) -> Expr:
    """Convert dynamic_slice: a window of constant extents at run-time starts, clamped so that it
    fits.
    """
    window = node.expr(0)
    for axis, (extent, size) in enumerate(zip(node.shape(0), sizes, strict=True)):
        if are_equal_dims(as_dim(extent), as_dim(size)):
            continue
        start = clamp_start(node, node.value(axis + 1), extent, size)
        if start.array is not None:
            begin = int(start.array)
            window = op.strided_slice(window, (begin,), (begin + size,), axes=(axis,))
        else:
            window = dynamic_slice_axis(window, node.scope.expr(start), size, axis)
    return window


def dynamic_update_slice(node: Node, positions: Sequence[Value]) -> Expr:
    """Convert dynamic_update_slice: replace a window of the first input by the second, at clamped
    starts.
    """
    rows = zip(positions, node.shape(0), node.shape(1), strict=True)
    starts = [clamp_start(node, position, extent, size) for position, extent, size in rows]
    return emit_dynamic_update_slice(node, node.expr(0), node.value(1), starts)


def gather(
    node: Node, vector: int, sizes: Sequence[Dim], collapsed: Sequence[int],
    start_map: Sequence[int], offsets: Sequence[int], batching: Sequence[int] = (),
    index_batching: Sequence[int] = (),
) -> Expr:  # fmt: skip
    """Convert gather by its dimension numbers: windows of input 0 at the start indices of input 1.

    Axis `vector` of the indices holds the positions along the axes of `start_map`.
    """
    position = gather_scatter.decode_window_positions(
        node, 0, 1, vector, sizes, collapsed, batching, index_batching, start_map
    )
    return gather_scatter.gather_windows(
        node, gather_scatter.clamp_positions(node, position), offsets
    )


def scatter_window_positions(
    node: Node, count: int, vector: int, window: Sequence[int], inserted: Sequence[int],
    start_map: Sequence[int], batching: Sequence[int] = (), index_batching: Sequence[int] = (),
) -> WindowPositions:  # fmt: skip
    """Return the window positions that a scatter's dimension numbers describe.

    The node has `count` operands, then indices, then updates, of which `window` are the window
    axes.
    """
    extents = iter(window)
    sizes: list[Dim] = [
        1 if axis in (*inserted, *batching) else node.shape(count + 1)[next(extents)]
        for axis in range(node.rank(0))
    ]
    return gather_scatter.decode_window_positions(
        node, 0, count, vector, sizes, inserted, batching, index_batching, start_map
    )


# Reductions.


def reduce(node: Node, axes: Sequence[int], kind: str) -> Expr:
    """Convert reduce with a single binary operator as body and the second input as initial
    value.
    """
    # The initial value is combined once, and not at all where it is the identity.
    function, both = REDUCTION_OPS[kind]
    total = function(node.expr(0), axis=list(axes), keepdims=False) if axes else node.expr(0)
    return total if is_reduction_identity(node.value(1), kind) else both(total, node.expr(1))


def reduce_window(node: Node, window: Window, kind: str) -> Expr:
    """Convert reduce_window with a single binary operator as body and the second input as initial
    value.

    Unrolled over the window's elements, each for all windows at once.
    """
    wide, both = pad_and_dilate(node, window, node.value(0), node.expr(1)), REDUCTION_OPS[kind][1]
    total, *remaining_taps = emit_tap_values(node, window, wide)
    for tap in remaining_taps:
        total = node.bind_shared(both(node.scope.expr(total), node.scope.expr(tap)))
    reduced = node.scope.expr(total)
    return reduced if is_reduction_identity(node.value(1), kind) else both(reduced, node.expr(1))


# Products.


def dot_general(
    node: Node, lhs: Value, right: Value, lhs_axes: Sequence[Sequence[int]],
    on_right: Sequence[Sequence[int]], dtype: str,
) -> Expr:  # fmt: skip
    """Convert dot_general; the result has the batch axes, then the free axes of the left and right
    operand.

    Axes are grouped by role, never by count: there may be as many free and contracting ones as a
    matrix product has.
    """
    (batch_x, sum_x), (batch_y, sum_y) = lhs_axes, on_right
    shape_x, shape_y = lhs.type.shape, right.type.shape
    for a, b in ((batch_x, batch_y), (sum_x, sum_y)):
        node.scope.require_equal_dims([shape_x[i] for i in a], [shape_y[i] for i in b])
    free_x = [i for i in range(len(shape_x)) if i not in batch_x and i not in sum_x]
    free_y = [i for i in range(len(shape_y)) if i not in batch_y and i not in sum_y]
    out = to_attr_dims((*(shape_x[i] for i in (*batch_x, *free_x)), *(shape_y[i] for i in free_y)))

    def matrix_operand(value: Value, *groups: Sequence[int]) -> Expr:
        """Return an operand with one axis per group, cast to the result's dtype."""
        data = _collapse_axis_groups(node, value, groups)
        return data if value.type.dtype == dtype else op.cast(data, dtype)

    # batch_matmul has exactly one batch axis; several are collapsed and restored.
    if batch_x:
        x, y = (
            matrix_operand(lhs, batch_x, free_x, sum_x),
            matrix_operand(right, batch_y, free_y, sum_y),
        )
        return op.reshape(op.nn.batch_matmul(x, y), out, allowzero=True)
    # nn.dense takes any number of axes before the one that is summed
    lead = [[i] for i in free_x] if len(sum_x) == 1 and free_x else [free_x]
    product_of_matrices = op.nn.dense(
        matrix_operand(lhs, *lead, sum_x), matrix_operand(right, free_y, sum_y)
    )
    if all(len(group) == 1 for group in (*lead, free_y)):
        return product_of_matrices
    return op.reshape(product_of_matrices, out, allowzero=True)


def _collapse_axis_groups(node: Node, value: Value, groups: Sequence[Sequence[int]]) -> Expr:
    """Transpose and reshape a value so that each group of axes becomes one axis; an empty group has
    extent 1.
    """
    order = [axis for group in groups for axis in group]
    if value.array is not None:
        value = constant_value(value.array.transpose(order))
    data = node.scope.expr(value)
    if value.array is None and order != list(range(len(order))):
        data = op.transpose(data, order)
    if all(len(group) == 1 for group in groups):
        return data
    shape = dict(zip(order, node.scope.tensor_type_of(data).shape, strict=True))
    extents = [product_of_dims(shape[axis] for axis in group) for group in groups]
    return op.reshape(data, to_attr_dims(extents), allowzero=True)
