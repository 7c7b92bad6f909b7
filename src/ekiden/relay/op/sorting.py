"""Sorting and searching operators.

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
from ekiden.relay.op._declare import call_op, check_tensors
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.relay.op.dynamic import call_dynamic, constant_value
from ekiden.relay.op.dynamic_select import DynTopKAttrs
from ekiden.topi.dimensions import Dim, as_dim, as_ints


@node("relay.attrs.ArgsortAttrs")
class ArgsortAttrs(Attrs):
    """Attributes of argsort: axis, direction, index dtype."""

    axis: int = -1
    is_ascend: bool = True
    dtype: str = "int32"


@node("relay.attrs.TopkAttrs")
class TopKAttrs(Attrs):
    """Attributes of topk: k (below 1: all), axis, ret_type ("both", "values", "indices"),
    direction, index dtype.
    """

    k: Dim = 1
    axis: int = -1
    ret_type: str = "both"
    is_ascend: bool = False
    dtype: str = "int32"


@node("relay.attrs.SearchSortedAttrs")
class SearchSortedAttrs(Attrs):
    """Attributes of searchsorted: insertion side and index dtype."""

    right: bool = False
    dtype: str = "int32"


def _argsort_reference(data: Array, axis: int, ascending: bool) -> Array:
    """Return sorting indices; the sort is stable, and NaN is the largest value."""
    if ascending:
        return np.argsort(data, axis, kind="stable")
    # Sorted from the end, and reversed: equal elements keep their order in a descending sort.
    backwards = np.flip(np.argsort(np.flip(data, axis), axis, kind="stable"), axis)
    return np.asarray(data.shape[axis] - 1 - backwards)


def _sort_reference(attrs: ArgsortAttrs, data: Array) -> Array:
    return np.take_along_axis(
        data, _argsort_reference(data, attrs.axis, attrs.is_ascend), attrs.axis
    )


def _topk_reference(attrs: TopKAttrs, data: Array) -> tuple[Array, ...] | Array:
    (k,) = as_ints((attrs.k,))
    order = _argsort_reference(data, attrs.axis, attrs.is_ascend)
    is_all = k < 1 and not isinstance(attrs.k, IntImm)  # a symbol that comes to 0 is 0
    # TVM's rule: k below 1 means all elements.
    order = order.take(range(data.shape[attrs.axis] if is_all else k), attrs.axis)
    values = np.take_along_axis(data, order, attrs.axis)
    positions = order.astype(to_numpy(attrs.dtype))
    return {"values": values, "indices": positions}.get(attrs.ret_type, (values, positions))


def _searchsorted_reference(attrs: SearchSortedAttrs, rows: Array, values: Array) -> Array:
    side: Literal["left", "right"] = "right" if attrs.right else "left"
    positions = np.empty(values.shape, to_numpy(attrs.dtype))
    # One vector serves all rows of values, several serve one each.
    for position in np.ndindex(values.shape[:-1]):
        positions[position] = np.searchsorted(
            rows if rows.ndim == 1 else rows[position], values[position], side
        )
    return positions


declare_topi_op(
    "sort",
    ("data",),
    lambda attrs, data: topi.sort(data, attrs.axis, attrs.is_ascend),
    "the type of data",
    ArgsortAttrs,
    reference=_sort_reference,
)
declare_topi_op(
    "argsort",
    ("data",),
    lambda attrs, data: topi.argsort(data, None, attrs.axis, attrs.is_ascend, attrs.dtype),
    "data's shape, with `dtype`",
    ArgsortAttrs,
    reference=lambda attrs, data: _argsort_reference(data, attrs.axis, attrs.is_ascend).astype(
        to_numpy(attrs.dtype)
    ),
)
declare_topi_op(
    "topk",
    ("data",),
    lambda attrs, data: topi.topk(
        data, attrs.k, attrs.axis, attrs.ret_type, attrs.is_ascend, attrs.dtype
    ),
    "data's shape with `k` along the axis: values, indices, or a tuple of both",
    TopKAttrs,
    reference=_topk_reference,
    fields=lambda attrs: 2,
)
declare_topi_op(
    "row_ranks",
    ("data",),
    lambda attrs, data: topi.row_ranks(data),
    "int64 [n]: how many rows stand before each one of [n, m]",
    reference=lambda attrs, data: np.array(
        [sum(tuple(rival) < tuple(row) for rival in data) for row in data], np.int64
    ),
)
declare_topi_op(
    "searchsorted",
    ("sorted_sequence", "values"),
    lambda attrs, rows, values: topi.searchsorted(rows, values, attrs.right, attrs.dtype),
    "the shape of values, with `dtype`",
    SearchSortedAttrs,
    reference=_searchsorted_reference,
)


@node("relay.attrs.UniqueAttrs")
class UniqueAttrs(Attrs):
    """Attributes of unique: whether the result is sorted, and whether counts are returned."""

    sorted: bool = True
    return_counts: bool = False


declare_topi_op(
    "unique",
    ("data",),
    lambda attrs, data: topi.unique(data, attrs.sorted, attrs.return_counts),
    "a tuple: the distinct elements, where each occurs first, which of them each element is, how"
    " many there are, and how often each occurs; but for their number as long as data, with 0",
    UniqueAttrs,
    fields=lambda attrs: 5 if getattr(attrs, "return_counts", False) else 4,
)
declare_topi_op(
    "argwhere_padded",
    ("condition",),
    lambda attrs, condition: topi.argwhere(condition),
    "a tuple: the coordinates of argwhere and then rows of 0, and the number of coordinates",
    fields=2,
)


def _argwhere_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (condition,) = check_tensors("argwhere", types, 1)
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
    """Return the coordinates of non-zero elements, one row per element."""
    return call_op("argwhere", condition)


def argwhere_padded(condition: Expr) -> Call:
    """Return the coordinates of non-zero elements padded with zero rows, and their number.

    There is one row for each element.
    """
    return call_op("argwhere_padded", condition)


def unique(data: Expr, is_sorted: bool = True, return_counts: bool = False) -> Call:
    """Return (distinct elements, first indices, inverse indices, number, counts) of a vector.

    The indices are those of the distinct element of each element. Counts are present if asked for.
    All are padded with 0 to the length of the vector.
    """
    return call_op("unique", data, attrs=UniqueAttrs(is_sorted, return_counts))


def sort(data: Expr, axis: int = -1, is_ascend: bool = True) -> Call:
    """Sort along an axis."""
    return call_op("sort", data, attrs=ArgsortAttrs(axis, bool(is_ascend)))


def row_ranks(data: Expr) -> Call:
    """Return the lexicographic rank of each row of [n, m]: int64 [n]; see topi.row_ranks."""
    return call_op("row_ranks", data)


def argsort(data: Expr, axis: int = -1, is_ascend: bool = True, dtype: str = "int32") -> Call:
    """Return the indices that sort along an axis (stable)."""
    return call_op("argsort", data, attrs=ArgsortAttrs(axis, bool(is_ascend), dtype))


def topk(
    data: Expr,
    k: Dim | Expr = 1,
    axis: int = -1,
    ret_type: str = "both",
    is_ascend: bool = False,
    dtype: str = "int32",
) -> Call:
    """Return the k largest (or smallest) elements along an axis and their indices, sorted."""
    if (number := constant_value(k)) is None:
        assert isinstance(k, Expr)
        attrs = DynTopKAttrs(axis, ret_type, bool(is_ascend), dtype)
        return call_dynamic("topk", data, k, attrs=attrs)
    # A constant of one element stands for a number.
    number = number[0] if isinstance(number, list) else number
    return call_op("topk", data, attrs=TopKAttrs(number, axis, ret_type, bool(is_ascend), dtype))


def searchsorted(
    sorted_sequence: Expr, values: Expr, right: bool = False, dtype: str = "int32"
) -> Call:
    """Return the insertion indices that keep a vector, or each row, sorted."""
    return call_op("searchsorted", sorted_sequence, values, attrs=SearchSortedAttrs(right, dtype))


__all__ = [
    "argsort", "argwhere", "argwhere_padded", "row_ranks", "searchsorted", "sort", "topk", "unique",
]  # fmt: skip
