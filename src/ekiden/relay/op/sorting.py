"""Sorting and searching.

Sorts are stable, in both directions: equal elements keep their order, descending ones too. NaN is
greater than all numbers, as in NumPy. Positions are int32 unless `dtype` says otherwise (TVM's
argsort says float32). topk gives k of each row in order, of equal elements those that come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, register_op
from ekiden.ir.prim import AnyDim, IntImm
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call, tensors
from ekiden.relay.op._inventory import declare
from ekiden.relay.op.dynamic import constant_of, dynamic
from ekiden.relay.op.dynamic_select import DynTopKAttrs
from ekiden.topi.dimensions import Dim, as_dim, as_ints


@node("relay.attrs.ArgsortAttrs")
class ArgsortAttrs(Attrs):
    """The axis, the direction, and the dtype of positions."""

    axis: int = -1
    is_ascend: bool = True
    dtype: str = "int32"


@node("relay.attrs.TopkAttrs")
class TopKAttrs(Attrs):
    """How many elements (below 1: all), along which axis, what of them ("both", "values",
    "indices"), the direction, and the dtype of positions."""

    k: Dim = 1
    axis: int = -1
    ret_type: str = "both"
    is_ascend: bool = False
    dtype: str = "int32"


@node("relay.attrs.SearchSortedAttrs")
class SearchSortedAttrs(Attrs):
    """Whether to insert after equal elements, and the dtype of positions."""

    right: bool = False
    dtype: str = "int32"


def _order(data: Array, axis: int, ascending: bool) -> Array:
    """Positions in order; equal elements keep theirs, what is not a number is the largest."""
    if ascending:
        return np.argsort(data, axis, kind="stable")
    backwards = np.flip(np.argsort(np.flip(data, axis), axis, kind="stable"), axis)
    return np.asarray(data.shape[axis] - 1 - backwards)


def _sort(attrs: ArgsortAttrs, data: Array) -> Array:
    return np.take_along_axis(data, _order(data, attrs.axis, attrs.is_ascend), attrs.axis)


def _topk(attrs: TopKAttrs, data: Array) -> tuple[Array, ...] | Array:
    (k,) = as_ints((attrs.k,))
    order = _order(data, attrs.axis, attrs.is_ascend)
    is_all = k < 1 and not isinstance(attrs.k, IntImm)  # a symbol that comes to 0 is 0
    order = order.take(range(data.shape[attrs.axis] if is_all else k), attrs.axis)
    values = np.take_along_axis(data, order, attrs.axis)
    positions = order.astype(to_numpy(attrs.dtype))
    return {"values": values, "indices": positions}.get(attrs.ret_type, (values, positions))


def _searchsorted(attrs: SearchSortedAttrs, rows: Array, values: Array) -> Array:
    side: Literal["left", "right"] = "right" if attrs.right else "left"
    positions = np.empty(values.shape, to_numpy(attrs.dtype))
    for at in np.ndindex(values.shape[:-1]):
        positions[at] = np.searchsorted(rows if rows.ndim == 1 else rows[at], values[at], side)
    return positions


declare(
    "sort",
    ("data",),
    lambda attrs, data: topi.sort(data, attrs.axis, attrs.is_ascend),
    "the type of data",
    ArgsortAttrs,
    reference=_sort,
)
declare(
    "argsort",
    ("data",),
    lambda attrs, data: topi.argsort(data, None, attrs.axis, attrs.is_ascend, attrs.dtype),
    "data's shape, with `dtype`",
    ArgsortAttrs,
    reference=lambda attrs, data: _order(data, attrs.axis, attrs.is_ascend).astype(
        to_numpy(attrs.dtype)
    ),
)
declare(
    "topk",
    ("data",),
    lambda attrs, data: topi.topk(
        data, attrs.k, attrs.axis, attrs.ret_type, attrs.is_ascend, attrs.dtype
    ),
    "data's shape with `k` along the axis: values, indices, or a tuple of both",
    TopKAttrs,
    reference=_topk,
    fields=lambda attrs: 2,
)
declare(
    "row_ranks",
    ("data",),
    lambda attrs, data: topi.row_ranks(data),
    "int64 [n]: how many rows stand before each one of [n, m]",
    reference=lambda attrs, data: np.array(
        [sum(tuple(rival) < tuple(row) for rival in data) for row in data], np.int64
    ),
)
declare(
    "searchsorted",
    ("sorted_sequence", "values"),
    lambda attrs, rows, values: topi.searchsorted(rows, values, attrs.right, attrs.dtype),
    "the shape of values, with `dtype`",
    SearchSortedAttrs,
    reference=_searchsorted,
)


@node("relay.attrs.UniqueAttrs")
class UniqueAttrs(Attrs):
    """Whether the elements come in order, not as they occur, and whether counts are wanted."""

    sorted: bool = True
    return_counts: bool = False


declare(
    "unique",
    ("data",),
    lambda attrs, data: topi.unique(data, attrs.sorted, attrs.return_counts),
    "a tuple: the distinct elements, where each occurs first, which of them each element is, how"
    " many there are, and how often each occurs; but for their number as long as data, with 0",
    UniqueAttrs,
    fields=lambda attrs: 5 if getattr(attrs, "return_counts", False) else 4,
)
declare(
    "argwhere_padded",
    ("condition",),
    lambda attrs, condition: topi.argwhere(condition),
    "a tuple: the coordinates of argwhere and then rows of 0, and the number of coordinates",
    fields=2,
)


def _argwhere_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (condition,) = tensors("argwhere", types, 1)
    return TensorType((AnyDim(), as_dim(len(condition.shape))), "int32")


register_op(
    OpDef(
        name="argwhere",
        arguments=("condition",),
        relation=_argwhere_relation,
        reference=lambda attrs, condition: np.argwhere(condition).astype(np.int32),
        padded="argwhere_padded",
        result="(number of elements that are not 0, rank of condition), int32",
    )
)


def argwhere(condition: Expr) -> Call:
    """Return the coordinates of the elements that are not 0, in order; as many rows as
    there are.
    """
    return call("argwhere", condition)


def argwhere_padded(condition: Expr) -> Call:
    """Return the coordinates of the elements that are not 0 and then rows of 0, and their number.

    There is one row for each element.
    """
    return call("argwhere_padded", condition)


def unique(data: Expr, is_sorted: bool = True, return_counts: bool = False) -> Call:
    """Return a tuple (distinct elements of a vector, first positions, indices, number, counts).

    The indices are those of the distinct element of each element. Counts are present if asked for.
    All are padded with 0 to the length of the vector.
    """
    return call("unique", data, attrs=UniqueAttrs(is_sorted, return_counts))


def sort(data: Expr, axis: int = -1, is_ascend: bool = True) -> Call:
    """Return elements in order along an axis."""
    return call("sort", data, attrs=ArgsortAttrs(axis, bool(is_ascend)))


def row_ranks(data: Expr) -> Call:
    """Return how many rows of [n, m] come before each row in order: int64 [n]; see
    topi.row_ranks.
    """
    return call("row_ranks", data)


def argsort(data: Expr, axis: int = -1, is_ascend: bool = True, dtype: str = "int32") -> Call:
    """Return positions of the elements in order along an axis; equal elements keep their order."""
    return call("argsort", data, attrs=ArgsortAttrs(axis, bool(is_ascend), dtype))


def topk(
    data: Expr,
    k: Dim | Expr = 1,
    axis: int = -1,
    ret_type: str = "both",
    is_ascend: bool = False,
    dtype: str = "int32",
) -> Call:
    """Return the k largest (or smallest) elements along an axis and their positions, in order."""
    if (number := constant_of(k)) is None:
        assert isinstance(k, Expr)
        attrs = DynTopKAttrs(axis, ret_type, bool(is_ascend), dtype)
        return dynamic("topk", data, k, attrs=attrs)
    number = number[0] if isinstance(number, list) else number
    return call("topk", data, attrs=TopKAttrs(number, axis, ret_type, bool(is_ascend), dtype))


def searchsorted(
    sorted_sequence: Expr, values: Expr, right: bool = False, dtype: str = "int32"
) -> Call:
    """Return the positions at which to insert values to keep a vector, or each of several rows,
    sorted.
    """
    return call("searchsorted", sorted_sequence, values, attrs=SearchSortedAttrs(right, dtype))


__all__ = [
    "argsort", "argwhere", "argwhere_padded", "row_ranks", "searchsorted", "sort", "topk", "unique",
]  # fmt: skip
