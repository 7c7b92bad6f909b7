"""Gather and scatter operators at data-dependent positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ekiden.frontend.common.node import Result
from ekiden.frontend.common.reducers import reduction_identity
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.complex_rules import per_part_rule
from ekiden.frontend.torch.node import ConverterRow, FxNode, Operand
from ekiden.frontend.torch.sympy_conversion import Scalar
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import as_dim, broadcast_shape, known_int, product_of_dims

_SCATTER_REDUCTIONS = {"sum": "add", "prod": "mul", "amin": "min", "amax": "max", "add": "add",
                       "multiply": "mul"}  # fmt: skip
"""PyTorch's name of a reduction -> scatter_elements's."""
_REDUCER_NAMES = {"sum": "add", "prod": "multiply", "amin": "minimum", "amax": "maximum"}
"""The same -> the name in `combined`."""


def _embedding(node: FxNode, weight: Value, indices: Value, *_: object) -> Expr:
    return op.take(node.to_expr(weight), node.to_expr(indices), axis=0, mode="raise")


def _index_select(node: FxNode, x: Value, dim: int, index: Value) -> Expr:
    position = node.to_expr(index, "int64")
    if not x.type.shape:
        return node.to_expr(x)
    if not index.type.shape:
        position = op.reshape(position, (1,))
    return op.take(node.to_expr(x), position, axis=node.axis(dim, len(x.type.shape)), mode="raise")


def _gather(node: FxNode, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Expr:
    if not x.type.shape:
        return (
            op.broadcast_to(node.to_expr(x), index.type.shape)
            if index.type.shape
            else node.to_expr(x)
        )
    if any(known_int(extent) == 0 for extent in index.type.shape):  # of any rank, says PyTorch
        return op.zeros(index.type.shape, x.type.dtype)
    data = node.to_expr(x)
    position = node.to_expr(index, "int64")
    if not index.type.shape:
        return op.take(data, position, axis=0, mode="raise")
    axis = node.axis(dim, len(x.type.shape))
    for i, (have, extent) in enumerate(zip(x.type.shape, index.type.shape, strict=True)):
        # torch.gather permits an index smaller than the data in the other axes; gather_elements
        # does not.
        if i != axis and not _same_extent(have, extent):
            data = op.strided_slice(data, [0], [extent], axes=[i])
    return op.gather(data, axis, position)


def _same_extent(a: PrimExpr, b: PrimExpr) -> bool:
    return a is b or (known_int(a) is not None and known_int(a) == known_int(b))


def _scatter(
    node: FxNode, x: Value, dim: int, index: Value, source: Operand, *, reduce: str = ""
) -> Expr:
    return _scatter_elements(node, x, dim, index, source, _SCATTER_REDUCTIONS.get(reduce, "update"))


def _scatter_add(node: FxNode, x: Value, dim: int, index: Value, source: Value) -> Expr:
    return _scatter_elements(node, x, dim, index, source, "add")


def _scatter_elements(
    node: FxNode, x: Value, dim: int, index: Value, source: Operand, reduction: str
) -> Expr:
    dtype = x.type.dtype
    if known_int(product_of_dims(index.type.shape)) == 0:
        return node.to_expr(x)
    data, position = node.to_expr(x), node.to_expr(index, "int64")
    if isinstance(source, Value) and source.type.shape:
        updates = node.to_expr(source, dtype)
        for i, (have, extent) in enumerate(zip(source.type.shape, index.type.shape, strict=False)):
            if not _same_extent(have, extent):
                updates = op.strided_slice(updates, [0], [extent], axes=[i])
    else:
        updates = op.broadcast_to(node.to_expr(source, dtype), index.type.shape)
    if not x.type.shape:
        flat = [op.reshape(e, (1,)) for e in (data, position, updates)]
        scattered = op.scatter_elements(flat[0], flat[1], flat[2], axis=0, reduction=reduction)
        return op.reshape(scattered, ())
    axis = node.axis(dim, len(x.type.shape))
    if dtype == "bool":
        # Booleans scatter as bytes; their sum is a logical or, hence "max".
        wide = op.scatter_elements(
            op.cast(data, "uint8"), position, op.cast(updates, "uint8"), axis=axis,
            reduction="max" if reduction == "add" else reduction,
        )  # fmt: skip
        return op.cast(wide, "bool")
    return op.scatter_elements(data, position, updates, axis=axis, reduction=reduction)


def _scatter_reduce(
    node: FxNode, x: Value, dim: int, index: Value, source: Value, reduce: str, *,
    include_self: bool = True,
) -> Expr:  # fmt: skip
    if reduce == "mean":
        return _scatter_mean(node, x, dim, index, source, include_self)
    if not include_self:
        # include_self=False: the targets start from the neutral element of the reduction.
        start = reduction_identity(_REDUCER_NAMES[reduce], x.type.dtype)
        blank = op.broadcast_to(const(start, x.type.dtype), index.type.shape)
        cleared = _scatter_elements(node, x, dim, index, node.as_value(blank), "update")
        x = node.as_value(node.scope.attach_span(cleared))
    return _scatter_elements(node, x, dim, index, source, _SCATTER_REDUCTIONS[reduce])


def _scatter_mean(
    node: FxNode, x: Value, dim: int, index: Value, source: Value, include_self: bool
) -> Expr:
    """Emit the scattered sum over the number of contributions, at least 1; integers round down."""
    dtype = x.type.dtype
    total = _scatter_reduce(node, x, dim, index, source, "sum", include_self=include_self)
    start = op.full(const(int(include_self), dtype), x.type.shape, dtype=dtype)
    begin = node.as_value(node.scope.attach_span(start))
    # Targets that nothing is scattered to would otherwise be divided by zero.
    count = op.maximum(_scatter_elements(node, begin, dim, index, 1, "add"), const(1, dtype))
    divide = op.divide if is_float(dtype) else op.floor_divide
    return divide(total, count)


def _split_masks(node: FxNode, x: Value, indices: Sequence[Value | None]) -> list[Value | None]:
    """Replace each mask by the index vectors of its true elements, one per axis."""
    expanded: list[Value | None] = []
    for index in indices:
        if index is None or index.type.dtype not in ("bool", "uint8"):
            expanded.append(index)
            continue
        rank = len(index.type.shape)
        mask = node.to_expr(index, "bool")
        if not rank:
            node.reject("a mask without dimensions")
        coordinates = node.scope.bind_named(op.cast(op.argwhere(mask), "int64"), "places")
        for axis in range(rank):
            column = op.take(node.to_expr(coordinates), const(axis, "int64"), axis=1)
            expanded.append(node.as_value(node.scope.attach_span(column)))
    return expanded


def _index(node: FxNode, x: Value, indices: Sequence[Value | None]) -> Result:
    """Convert x[indices]: the indexed axes come first, or stay in place where they are adjacent."""
    expanded = _split_masks(node, x, indices)
    point = [i for i, v in enumerate(expanded) if v is not None]
    tensors = [v for v in expanded if v is not None]
    if not point:
        return x
    rank = len(x.type.shape)
    if len(point) == 1:
        return op.take(
            node.to_expr(x), node.to_expr(tensors[0], "int64"), axis=point[0], mode="raise"
        )
    other_axes = [i for i in range(rank) if i not in point]
    order = [*point, *other_axes]
    data = (
        node.to_expr(x) if order == list(range(rank)) else op.transpose(node.to_expr(x), axes=order)
    )
    joint = _index_broadcast_shape(node, tensors)
    count = len(point)
    stacked = op.stack([_broadcast_index(node, t, joint) for t in tensors], axis=0)
    gathered = op.gather_nd(data, stacked, batch_dims=0, index_rank=count)
    # NumPy's rule: adjacent index tensors put the joint axes in their place, others put them first.
    side_by_side = point == list(range(point[0], point[0] + count))
    if side_by_side and point[0] > 0:
        width = len(joint)
        lead = list(range(width, width + point[0]))
        tail = list(range(width + point[0], width + len(other_axes)))
        gathered = op.transpose(gathered, axes=[*lead, *range(width), *tail])
    return gathered


def _index_broadcast_shape(node: FxNode, tensors: Sequence[Value]) -> tuple[PrimExpr, ...]:
    shape: tuple[PrimExpr, ...] = ()
    for index in tensors:
        node.scope.require_broadcastable(shape, index.type.shape)
        joined = broadcast_shape(shape, index.type.shape)
        if joined is None:
            node.reject("the indices do not broadcast")
        shape = joined
    return shape


def _broadcast_index(node: FxNode, value: Value, shape: tuple[PrimExpr, ...]) -> Expr:
    data = node.to_expr(value, "int64")
    same = len(shape) == len(value.type.shape)
    if same and all(_same_extent(a, b) for a, b in zip(shape, value.type.shape, strict=True)):
        return data
    return op.broadcast_to(data, shape)


def _index_put(
    node: FxNode,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Result:
    """Convert index_put: write or add values at indices, by a transposition that puts indexed axes
    first.
    """
    first = indices[0] if indices else None
    is_mask = len(indices) == 1 and first is not None and first.type.dtype == "bool"
    is_one = not values.type.shape or known_int(product_of_dims(values.type.shape)) == 1
    if is_mask and is_one and first is not None and not accumulate:
        return _index_put_mask(node, x, first, values)
    expanded = _split_masks(node, x, indices)
    point = [i for i, v in enumerate(expanded) if v is not None]
    tensors = [v for v in expanded if v is not None]
    rank = len(x.type.shape)
    if not point:
        node.reject("no index is given")
    other_axes = [i for i in range(rank) if i not in point]
    order = [*point, *other_axes]
    data = (
        node.to_expr(x) if order == list(range(rank)) else op.transpose(node.to_expr(x), axes=order)
    )
    joint = _index_broadcast_shape(node, tensors)
    stacked = op.stack(
        [_wrap_negative(node, x, t, i, joint) for t, i in zip(tensors, point, strict=True)], 0
    )
    tail = tuple(x.type.shape[i] for i in other_axes)
    side_by_side = point == list(range(point[0], point[0] + len(point)))
    updates = node.to_expr(values, x.type.dtype)
    if side_by_side and point[0] > 0:
        lead = point[0]
        # Values broadcast against the shape that indexing gives, which has the joint axes in place.
        full = (*tail[:lead], *joint, *tail[lead:])
        updates = op.broadcast_to(updates, full)
        width = len(joint)
        axes = [*range(lead, lead + width), *range(lead), *range(lead + width, len(full))]
        updates = op.transpose(updates, axes=axes)
    else:
        updates = op.broadcast_to(updates, (*joint, *tail))
    mode = "add" if accumulate else "update"
    if x.type.dtype == "bool":
        scattered = op.cast(
            op.scatter_nd(
                op.cast(data, "uint8"), stacked, op.cast(updates, "uint8"),
                mode="max" if accumulate else mode,
            ),
            "bool",
        )  # fmt: skip
    else:
        scattered = op.scatter_nd(data, stacked, updates, mode=mode)
    if order == list(range(rank)):
        return scattered
    back = [0] * rank
    for position, axis in enumerate(order):
        back[axis] = position
    return op.transpose(scattered, axes=back)


def _wrap_negative(
    node: FxNode, x: Value, index: Value, axis: int, shape: tuple[PrimExpr, ...]
) -> Expr:
    """Emit indices with negative ones counted from the end."""
    position = _broadcast_index(node, index, shape)
    extent = node.to_expr(x.type.shape[axis], "int64")
    # scatter_nd takes no negative indices.
    return op.where(op.less(position, const(0, "int64")), op.add(position, extent), position)


def _index_put_mask(node: FxNode, x: Value, mask: Value, value: Operand) -> Expr:
    where = node.to_expr(mask, "bool")
    extra = len(x.type.shape) - len(mask.type.shape)
    if extra > 0:
        where = op.expand_dims(where, axis=len(mask.type.shape), num_newaxis=extra)
    fill = node.to_expr(value, x.type.dtype)
    if isinstance(value, Value) and value.type.shape:
        fill = op.reshape(fill, ())
    return op.where(where, fill, node.to_expr(x))


def _masked_fill(node: FxNode, x: Value, mask: Value, value: Operand) -> Expr:
    node.scope.require_broadcastable(x.type.shape, mask.type.shape)
    return op.where(node.to_expr(mask, "bool"), node.to_expr(value, x.type.dtype), node.to_expr(x))


def _masked_scatter(node: FxNode, x: Value, mask: Value, source: Value) -> Expr:
    """Convert masked_scatter: the n-th true element of the mask takes the n-th element of the
    source.
    """
    shape = node.out_shape
    where = op.reshape(op.broadcast_to(node.to_expr(mask, "bool"), shape), (-1,))
    # The running count of true elements, less 1, is the position in the source.
    number = op.subtract(op.cumsum(op.cast(where, "int64"), axis=0), const(1, "int64"))
    safe = op.maximum(number, const(0, "int64"))
    flat = op.reshape(node.to_expr(source), (-1,))
    chosen = op.take(flat, safe, axis=0, mode="clip")
    data = op.reshape(op.broadcast_to(node.to_expr(x), shape), (-1,))
    return op.reshape(op.where(where, chosen, data), shape, allowzero=True)


def _nonzero(node: FxNode, x: Value) -> Result:
    data = node.to_expr(x)
    if not x.type.shape:
        coordinates = op.argwhere(op.reshape(data, (1,)))
        return op.strided_slice(op.cast(coordinates, "int64"), [0], [0], axes=[1])
    return op.cast(op.argwhere(data), "int64")


def _unique(
    node: FxNode, x: Value, sorted: bool = True, return_inverse: bool = False,
    return_counts: bool = False,
) -> Result:  # fmt: skip
    """Convert _unique2: sorted distinct elements, inverse indices and counts."""
    flat = op.reshape(node.to_expr(x), (-1,))
    unique = op.unique(flat, is_sorted=True, return_counts=True)
    values, _, which, number, counts = (TupleGetItem(unique, i) for i in range(5))

    def strip_padding(padded: Expr) -> Expr:
        return op.strided_slice(padded, const(np.array([0])), op.cast(number, "int64"), axes=[0])

    where = op.reshape(op.cast(which, "int64"), x.type.shape, allowzero=True)
    return [strip_padding(values), where, op.cast(strip_padding(counts), "int64")]


def _item(node: FxNode, x: Value) -> Scalar:
    """Convert item: a constant number, or a size that is named from here on."""
    meta = node.output_meta
    # An element of a constant is a number: sizes computed from it become static.
    if x.array is not None and node.symbols.bind_number(meta, x.array.item()):
        return node.symbols.to_scalar(meta)
    if not isinstance(meta, torch.SymInt):
        node.reject("a number that is data is supported as a size alone")
    vector = op.reshape(node.to_expr(x, "int64"), (1,))
    value = node.as_value(node.scope.attach_span(vector))
    (dim,) = node.dims_of(value)
    for name in node.symbols.symbol_names(meta):
        node.symbols.known.setdefault(name, as_dim(dim))
    return as_dim(dim)


def _one_hot(node: FxNode, indices: Value, count: int = -1) -> Expr:
    if count < 0:
        node.reject("the number of classes must be given")
    position = node.to_expr(indices, "int64")
    return op.one_hot(position, const(1, "int64"), const(0, "int64"), count, axis=-1, dtype="int64")


def _bucketize(
    node: FxNode, x: Operand, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Expr:
    values = node.to_expr(x)
    shape = x.type.shape if isinstance(x, Value) else ()
    flat = op.reshape(values, (-1,)) if shape else op.reshape(values, (1,))
    buckets = op.searchsorted(node.to_expr(boundaries), flat, right=right, dtype="int64")
    return op.reshape(buckets, shape, allowzero=True)


def _searchsorted(
    node: FxNode, rows: Value, x: Operand, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Value | None = None,
) -> Expr:  # fmt: skip
    table = node.to_expr(rows)
    if sorter is not None:
        table = op.gather(table, len(rows.type.shape) - 1, node.to_expr(sorter, "int64"))
    is_right = right or side == "right"
    if isinstance(x, Value) and x.type.shape:
        return op.searchsorted(table, node.to_expr(x), right=is_right, dtype="int64")
    values = op.reshape(node.to_expr(x), (1,))
    return op.reshape(op.searchsorted(table, values, right=is_right, dtype="int64"), ())


def _repeat_interleave(node: FxNode, repeats: Value, *, output_size: object = None) -> Result:
    """Convert repeat_interleave: the first index whose running total exceeds each position."""
    ends = op.cumsum(node.to_expr(repeats, "int64"), axis=0)
    count = known_int(repeats.type.shape[0])
    if output_size is not None:
        total = node.to_expr(output_size)  # type: ignore[arg-type]
    elif count == 0:
        total = const(0, "int64")
    else:
        total = op.take(ends, const(-1, "int64"), axis=0, mode="wrap")
    positions = op.arange(const(0, "int64"), op.cast(total, "int64"), const(1, "int64"), "int64")
    return op.searchsorted(ends, positions, right=True, dtype="int64")


def _bincount(node: FxNode, x: Value, weights: Value | None = None, minlength: int = 0) -> Result:
    """Convert bincount: the counts of 0 to the maximum, at least `minlength` many; negative
    elements are an error.
    """
    floor = const(np.array([minlength - 1]), "int64")
    data = node.to_expr(x, "int64")
    size = op.add(op.max(op.concatenate([data, floor], axis=0)), const(1, "int64"))
    dtype = node.out_dtype
    # what is below 0 would count from the end: further below it is out of range
    data = op.where(op.less(data, const(0, "int64")), op.subtract(data, size), data)
    # The size is data dependent: the largest element plus 1, or minlength.
    zeros = op.full(const(0, dtype), op.reshape(size, (1,)), dtype=dtype)
    ones = op.ones_like(op.cast(data, dtype)) if weights is None else node.to_expr(weights, dtype)
    return op.scatter_elements(zeros, data, ones, axis=0, reduction="add")


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    ("embedding", _embedding),
    ("index_select", _index_select, per_part_rule),
    ("gather", _gather, per_part_rule),
    ("scatter", _scatter, per_part_rule),
    ("scatter_add", _scatter_add),
    ("scatter_reduce", _scatter_reduce),
    ("index", _index, per_part_rule),
    ("_unsafe_index", _index, per_part_rule),
    ("index_put", _index_put, per_part_rule),
    ("_unsafe_index_put", _index_put, per_part_rule),
    ("masked_fill", _masked_fill, per_part_rule),
    ("masked_scatter", _masked_scatter),
    ("nonzero", _nonzero),
    ("_unique2", _unique),
    ("_local_scalar_dense", _item),
    ("item", _item),
    ("one_hot", _one_hot),
    ("repeat_interleave.Tensor", _repeat_interleave),
    ("bincount", _bincount),
    ("bucketize", _bucketize),
    ("searchsorted", _searchsorted),
)
# fmt: on
