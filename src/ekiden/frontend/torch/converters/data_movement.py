"""Data movement operators: views, concatenation, slices, padding."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from ekiden.frontend.common.composite_ops import append_unit_axes
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.torch.complex_rules import per_part_rule
from ekiden.frontend.torch.node import Converter, ConverterRow, FxNode, Operand
from ekiden.frontend.torch.sympy_conversion import Scalar
from ekiden.ir import prim
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, Shape, are_equal_dims, as_dim, known_int, simplify_dim

ConverterResults = list[Expr | Value | None]


def reshape_to(node: FxNode, x: Value, shape: Sequence[PrimExpr]) -> Result:
    """Reshape elements; return `x` itself if its shape is unchanged."""
    if x.array is not None and all(known_int(d) is not None for d in shape):
        return constant_value(x.array.reshape([known_int(d) or 0 for d in shape]))
    have = x.type.shape
    if len(have) == len(shape) and all(
        are_equal_dims(a, b) for a, b in zip(have, shape, strict=True)
    ):
        return x
    return op.reshape(node.to_expr(x), tuple(shape), allowzero=True)


def _view(node: FxNode, x: Value, size: Sequence[object]) -> Result:
    """Convert a view; PyTorch's inferred shape resolves a size of -1."""
    del size
    return reshape_to(node, x, node.out_shape)


def _reshape_to_output(node: FxNode, x: Value, *_: object, **__: object) -> Result:
    """Convert an operator that only reshapes: squeeze, unsqueeze, flatten."""
    return reshape_to(node, x, node.out_shape)


def _permute(node: FxNode, x: Value, dims: Sequence[int]) -> Result:
    axes = [node.axis(d, len(x.type.shape)) for d in dims]
    return permute_axes(node, x, axes)


def permute_axes(node: FxNode, x: Value, axes: Sequence[int]) -> Result:
    """Permute axes; a constant is viewed."""
    if list(axes) == list(range(len(axes))):
        return x
    if x.array is not None:
        return constant_value(x.array.transpose(list(axes)))
    return op.transpose(node.to_expr(x), axes=list(axes))


def _transpose(node: FxNode, x: Value, a: int, b: int) -> Result:
    rank = len(x.type.shape)
    if not rank:
        return x
    axes = list(range(rank))
    i, j = node.axis(a, rank), node.axis(b, rank)
    axes[i], axes[j] = axes[j], axes[i]
    return permute_axes(node, x, axes)


def _transpose_all(node: FxNode, x: Value) -> Result:
    return permute_axes(node, x, list(reversed(range(len(x.type.shape)))))


def _expand(node: FxNode, x: Value, size: Sequence[object], *, implicit: bool = False) -> Result:
    shape = node.out_shape
    have = x.type.shape
    if len(have) == len(shape) and all(
        are_equal_dims(a, b) for a, b in zip(have, shape, strict=True)
    ):
        return x
    return op.broadcast_to(node.to_expr(x), shape)


def _cat(node: FxNode, tensors: Sequence[Value], dim: int = 0) -> Result:
    # aten::cat ignores legacy empty tensors of shape (0,), whatever the rank of the others.
    operands = [
        t for t in tensors if not (len(t.type.shape) == 1 and known_int(t.type.shape[0]) == 0)
    ]
    operands = operands or list(tensors[:1])
    if len(operands) == 1:
        return operands[0]
    axis = node.axis(dim, len(operands[0].type.shape))
    other_extents = [d for operand in operands[1:] for d in _drop_axis(operand.type.shape, axis)]
    node.scope.require_equal_dims(
        _drop_axis(operands[0].type.shape, axis) * (len(operands) - 1), other_extents
    )
    return op.concatenate([node.to_expr(t, node.out_dtype) for t in operands], axis=axis)


def _drop_axis(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _stack(node: FxNode, tensors: Sequence[Value], dim: int = 0) -> Expr:
    axis = node.axis(dim, len(tensors[0].type.shape) + 1)
    return op.stack([node.to_expr(t, node.out_dtype) for t in tensors], axis=axis)


_NO_END = 2**62


def normalize_slice_bounds(extent: PrimExpr, start: object, end: object) -> tuple[Dim, Dim]:
    """Return a slice's bounds as strided_slice expects them; None is the axis's start or end."""
    return _slice_bound(extent, start, 0), _slice_bound(extent, end, _NO_END)


def _slice_bound(extent: PrimExpr, bound: object, default: int) -> Dim:
    if bound is None:
        return default
    if isinstance(bound, PrimExpr):
        return bound
    assert isinstance(bound, int)
    return _NO_END if bound >= sys.maxsize // 2 else max(bound, -_NO_END)


def _slice(
    node: FxNode,
    x: Value,
    dim: int = 0,
    start: object = None,
    end: object = None,
    step: int = 1,
) -> Result:
    axis = node.axis(dim, len(x.type.shape))
    first, last = normalize_slice_bounds(x.type.shape[axis], start, end)
    if known_int(first) == 0 and known_int(last) == _NO_END and step == 1:
        return x
    data = node.to_expr(x)
    return op.strided_slice(data, [first], [last], strides=[int(step)], axes=[axis])


def _select(node: FxNode, x: Value, dim: int, index: Operand) -> Result:
    rank = len(x.type.shape)
    axis = node.axis(dim, rank)
    if isinstance(index, int):
        if x.array is not None:
            return constant_value(x.array.take(index, axis=axis))
        # For index -1 the slice [-1, 0) would be empty: it must run to the end.
        if index >= 0 or index < -1:
            last = index + 1
            piece = op.strided_slice(node.to_expr(x), [index], [last], axes=[axis])
        else:
            piece = op.strided_slice(node.to_expr(x), [index], [_NO_END], axes=[axis])
        return op.squeeze(piece, axis=[axis])
    return op.take(node.to_expr(x), node.to_expr(index, "int64"), axis=axis, mode="raise")


def _split_sizes(node: FxNode, x: Value, sizes: Sequence[object], dim: int = 0) -> ConverterResults:
    axis = node.axis(dim, len(x.type.shape))
    pieces: ConverterResults = []
    first: PrimExpr = as_dim(0)
    for size in sizes:
        end = simplify_dim(first + as_dim(node.to_dim(size)))
        pieces.append(op.strided_slice(node.to_expr(x), [first], [end], axes=[axis]))
        first = end
    return pieces


def _split(node: FxNode, x: Value, size: int, dim: int = 0) -> ConverterResults:
    meta = node.output_meta
    assert isinstance(meta, (list, tuple))
    axis = node.axis(dim, len(x.type.shape))
    # The last piece may be shorter: the inferred outputs have the extents.
    return _split_sizes(node, x, [node.symbols.to_scalar(m.shape[axis]) for m in meta], dim)


def _flip(node: FxNode, x: Value, dims: Sequence[int]) -> Result:
    flipped: Expr = node.to_expr(x)
    for axis in {node.axis(d, len(x.type.shape)) for d in dims} if x.type.shape else ():
        flipped = op.reverse(flipped, axis=axis)
    return flipped


def _roll(node: FxNode, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Result:
    if not dims:
        flat = op.reshape(node.to_expr(x), (-1,))
        return op.reshape(_roll_axis(node, flat, shifts[0], 0), x.type.shape, allowzero=True)
    rolled = node.to_expr(x)
    for shift, dim in zip(shifts, dims, strict=True):
        rolled = _roll_axis(node, rolled, shift, node.axis(dim, len(x.type.shape)))
    return rolled


def _roll_axis(node: FxNode, x: Expr, shift: Scalar, axis: int) -> Expr:
    extent = node.tensor_type_of(x).shape[axis]
    if known_int(extent) == 0:
        return x
    # The shift modulo the extent, from the end: a roll is a swap of the two pieces.
    cut = simplify_dim(as_dim(extent) - as_dim(shift) % extent)
    back = op.strided_slice(x, [cut], [_NO_END], axes=[axis])
    return op.concatenate([back, op.strided_slice(x, [0], [cut], axes=[axis])], axis=axis)


def _repeat(node: FxNode, x: Value, repeats: Sequence[object]) -> Result:
    extra = len(repeats) - len(x.type.shape)
    data = node.to_expr(x)
    if extra:
        data = op.reshape(data, ((1,) * extra) + tuple(x.type.shape), allowzero=True)
    return op.tile(data, node.to_dims(repeats)) if repeats else data


def _pad(node: FxNode, x: Value, pad: Sequence[object], value: Operand = 0) -> Result:
    widths = to_padding_pairs(node, len(x.type.shape), pad)
    data, grown = _crop(node.to_expr(x), widths), _nonnegative_widths(widths)
    if all(known_int(w) == 0 for pair in grown for w in pair):
        return data
    return op.nn.pad(data, grown, node.to_expr(value, x.type.dtype))


def _crop(data: Expr, widths: Sequence[tuple[Dim, Dim]]) -> Expr:
    """Crop the data by negative padding widths."""
    cut = [(max(-(known_int(a) or 0), 0), max(-(known_int(b) or 0), 0)) for a, b in widths]
    if not any(a or b for a, b in cut):
        return data
    ends = [_NO_END if not b else -b for _, b in cut]
    return op.strided_slice(data, [a for a, _ in cut], ends, axes=list(range(len(cut))))


def _nonnegative_widths(widths: Sequence[tuple[Dim, Dim]]) -> list[tuple[Dim, Dim]]:
    """Return the padding widths with negative ones set to 0."""

    def clip_width(width: Dim) -> Dim:
        return 0 if isinstance(width, int) and width < 0 else width

    return [(clip_width(a), clip_width(b)) for a, b in widths]


def to_padding_pairs(node: FxNode, rank: int, pad: Sequence[object]) -> list[tuple[Dim, Dim]]:
    """Return PyTorch's padding, last axis first, as (before, after) per axis."""
    widths = node.to_dims(pad)
    pairs: list[tuple[Dim, Dim]] = [(0, 0)] * rank
    for i in range(0, len(widths), 2):
        pairs[rank - 1 - i // 2] = (widths[i], widths[i + 1])
    return pairs


def _border_pad_converter(mode: str) -> Converter:
    def convert(node: FxNode, x: Value, pad: Sequence[object]) -> Result:
        """Pad in this mode, then crop by negative widths."""
        widths = to_padding_pairs(node, len(x.type.shape), pad)
        zero = const(0, x.type.dtype)
        # A border mode reads the elements that a negative width cuts off, so padding precedes the
        # cut.
        padded = op.nn.pad(node.to_expr(x), _nonnegative_widths(widths), zero, pad_mode=mode)
        return _crop(padded, widths)  # last: a border is of what is cut off too

    return convert


def _diagonal(node: FxNode, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Expr:
    """Convert diagonal by flat indices: every (columns + 1)-th element of the two axes joined."""
    shape = x.type.shape
    rank = len(shape)
    i, j = node.axis(dim1, rank), node.axis(dim2, rank)
    other_axes = [a for a in range(rank) if a not in (i, j)]
    rows, columns = shape[i], shape[j]
    data = op.transpose(node.to_expr(x), axes=[*other_axes, i, j])
    lead = tuple(shape[a] for a in other_axes)
    flat = op.reshape(data, (*lead, simplify_dim(rows * columns)), allowzero=True)
    count = node.out_shape[-1]
    first: Expr = const(offset, "int64")
    if offset < 0:
        first = op.multiply(const(-offset, "int64"), node.scope.emit_dim(columns))
    step = node.scope.emit_dim(simplify_dim(columns + 1))
    flat_indices = op.add(op.multiply(op.arange(0, count, 1, dtype="int64"), step), first)
    return op.take(flat, flat_indices, axis=len(lead), mode="raise")


def _unfold(node: FxNode, x: Value, dim: int, size: int, step: int) -> Expr:
    """Convert unfold: windows along an axis, whose elements become the last axis."""
    rank = len(x.type.shape)
    if not rank:
        return op.reshape(node.to_expr(x), (size,))
    axis = node.axis(dim, rank)
    count = node.out_shape[axis]
    starts = op.multiply(op.arange(0, count, 1, dtype="int64"), const(step, "int64"))
    inside = op.arange(0, size, 1, dtype="int64")
    positions = op.add(op.expand_dims(starts, axis=1), op.expand_dims(inside, axis=0))
    windows = op.take(node.to_expr(x), positions, axis=axis, mode="raise")
    order = [a for a in range(rank + 1) if a != axis + 1]
    return op.transpose(windows, axes=[*order, axis + 1])


def _memory_layout(node: FxNode, rank: int) -> tuple[list[int], int]:
    """Return the axes of the first input from slowest to fastest in memory, and its storage offset.

    Raises:
        Unsupported: The input does not cover its storage without gaps, or its offset is symbolic.
    """
    source = node.fx.args[0]
    meta = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    if not isinstance(meta, torch.Tensor):
        return list(range(rank)), 0
    begin = meta.storage_offset()
    if not isinstance(begin, int):
        node.reject("as_strided of a view that begins at a symbolic place")
    if meta.is_contiguous():
        return list(range(rank)), begin
    steps = [int(step) for step in meta.stride()]
    order = sorted(range(rank), key=lambda axis: -steps[axis])
    if not meta.permute(order).is_contiguous():
        node.reject("as_strided of a view that has not all elements of its memory")
    return order, begin


def _transpose_to(data: Expr, order: Sequence[int]) -> Expr:
    return data if list(order) == sorted(order) else op.transpose(data, axes=list(order))


def _as_strided(
    node: FxNode, x: Value, size: Sequence[object], stride: Sequence[object], offset: object = None
) -> Expr:
    """Convert as_strided by flat indices into the storage that PyTorch has for the input.

    Without an offset, the view starts where the input does.
    """
    sizes, strides = node.to_dims(size), node.to_dims(stride)
    # as_strided addresses memory, not elements: the data are first put into the order of their
    # storage.
    order, begin = _memory_layout(node, len(x.type.shape))
    flat = op.reshape(_transpose_to(node.to_expr(x), order), (-1,))
    first = 0 if offset is None else simplify_dim(as_dim(node.to_dim(offset)) - begin)
    # Elements before the input's first are not among the data that are passed.
    before = -(known_int(as_dim(first)) or 0)
    if before > 0:
        node.reject(f"as_strided looks at memory {before} elements before its input")
    indices: Expr = node.to_expr(first, "int64")
    for index, (extent, step) in enumerate(zip(sizes, strides, strict=True)):
        steps = op.multiply(op.arange(0, extent, 1, dtype="int64"), node.to_expr(step, "int64"))
        after = len(sizes) - 1 - index
        indices = op.add(indices, append_unit_axes(steps, after))
    return op.take(flat, op.broadcast_to(indices, tuple(map(as_dim, sizes))), axis=0, mode="raise")


def _slice_scatter(
    node: FxNode,
    x: Value,
    source: Value,
    dim: int = 0,
    start: object = None,
    end: object = None,
    step: int = 1,
) -> Result:
    """Convert slice_scatter: a slice of an axis replaced by the source."""
    shape = x.type.shape
    axis = node.axis(dim, len(shape))
    extent = shape[axis]
    first, last = normalize_slice_bounds(extent, start, end)
    low = _clamp_bound(first, extent)
    if known_int(low) == 0 and known_int(last) == _NO_END and step == 1:
        return source
    position = op.arange(0, extent, 1, dtype="int64")
    begin = node.to_expr(low, "int64")
    shifted = op.subtract(position, begin)
    inside = op.greater_equal(shifted, const(0, "int64"))
    if known_int(last) != _NO_END:
        stop = node.to_expr(_clamp_bound(last, extent), "int64")
        inside = op.logical_and(inside, op.less(position, stop))
    positions = shifted
    if step != 1:
        by = const(int(step), "int64")
        inside = op.logical_and(inside, op.equal(op.floor_mod(shifted, by), const(0, "int64")))
        positions = op.floor_divide(shifted, by)
    if known_int(source.type.shape[axis]) == 0:
        return x
    # Positions outside the slice read element 0, which the mask discards.
    safe = op.where(inside, positions, const(0, "int64"))
    chosen = op.take(node.to_expr(source), safe, axis=axis, mode="clip")
    mask = append_unit_axes(inside, len(shape) - axis - 1)
    return op.where(mask, chosen, node.to_expr(x))


def _clamp_bound(bound: Dim, extent: PrimExpr) -> Dim:
    """Return a slice bound counted from the front and clamped to the axis."""
    number = known_int(bound)
    if number is not None and number >= 0 and known_int(extent) is None:
        return simplify_dim(prim.minimum(as_dim(number), extent)) if number else 0
    value = as_dim(bound)
    if number is not None and number < 0:
        value = simplify_dim(extent + number)
    return simplify_dim(prim.minimum(prim.maximum(value, 0), extent))


def _select_scatter(node: FxNode, x: Value, source: Value, dim: int, index: Scalar) -> Expr:
    shape = x.type.shape
    axis = node.axis(dim, len(shape))
    axis_index = op.arange(0, shape[axis], 1, dtype="int64")
    position = node.to_expr(index, "int64")
    if isinstance(index, int) and index < 0:
        position = node.to_expr(simplify_dim(shape[axis] + index), "int64")
    mask = append_unit_axes(op.equal(axis_index, position), len(shape) - axis - 1)
    return op.where(mask, op.expand_dims(node.to_expr(source), axis=axis), node.to_expr(x))


def _diagonal_scatter(
    node: FxNode, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Expr:
    """Convert diagonal_scatter: the diagonal column - row = offset replaced by the source."""
    shape = x.type.shape
    rank = len(shape)
    i, j = node.axis(dim1, rank), node.axis(dim2, rank)
    other_axes = [a for a in range(rank) if a not in (i, j)]
    row = op.expand_dims(op.arange(0, shape[i], 1, dtype="int64"), axis=1)
    column = op.expand_dims(op.arange(0, shape[j], 1, dtype="int64"), axis=0)
    on = op.equal(op.subtract(column, row), const(offset, "int64"))
    position = op.add(row, const(min(offset, 0), "int64"))
    zero = const(0, "int64")
    position = op.broadcast_to(op.where(on, position, zero), (shape[i], shape[j]))
    if known_int(source.type.shape[-1]) == 0:
        return node.to_expr(x)
    chosen = op.take(node.to_expr(source), position, axis=len(other_axes), mode="clip")
    data = op.transpose(node.to_expr(x), axes=[*other_axes, i, j])
    written = op.where(on, chosen, data)
    back = [0] * rank
    for index, axis in enumerate([*other_axes, i, j]):
        back[axis] = index
    return op.transpose(written, axes=back)


def _triangle_converter(upper: bool) -> Converter:
    def convert(node: FxNode, x: Value, diagonal: int = 0) -> Expr:
        k = const(int(diagonal), "int64")
        return op.trilu(node.to_expr(x), k, upper=upper)

    return convert


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    *((name, _view, per_part_rule) for name in ("view", "_unsafe_view", "reshape", "view_copy")),
    *((name, _reshape_to_output, per_part_rule) for name in (
        "squeeze", "unsqueeze", "flatten", "unflatten", "squeeze_copy", "unsqueeze_copy")),
    ("permute", _permute, per_part_rule),
    ("transpose", _transpose, per_part_rule),
    ("t", _transpose_all, per_part_rule),
    ("expand", _expand, per_part_rule),
    ("cat", _cat, per_part_rule),
    ("stack", _stack, per_part_rule),
    ("slice", _slice, per_part_rule),
    ("select", _select, per_part_rule),
    ("split_with_sizes", _split_sizes, per_part_rule),
    ("split", _split, per_part_rule),
    ("flip", _flip, per_part_rule),
    ("roll", _roll, per_part_rule),
    ("repeat", _repeat, per_part_rule),
    ("constant_pad_nd", _pad, per_part_rule),
    *((f"reflection_pad{n}d", _border_pad_converter("reflect")) for n in (1, 2, 3)),
    *((f"replication_pad{n}d", _border_pad_converter("edge")) for n in (1, 2, 3)),
    ("diagonal", _diagonal, per_part_rule),
    ("unfold", _unfold, per_part_rule),
    ("as_strided", _as_strided, per_part_rule),
    ("slice_scatter", _slice_scatter, per_part_rule),
    ("select_scatter", _select_scatter, per_part_rule),
    ("diagonal_scatter", _diagonal_scatter),
    ("triu", _triangle_converter(True), per_part_rule),
    ("tril", _triangle_converter(False), per_part_rule),
)
# fmt: on
