"""Rows that are combined by the number of the segment that each belongs to."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ekiden.frontend.common.combined import neutral
from ekiden.frontend.common.formulas import append_axes
from ekiden.frontend.common.node import Node
from ekiden.frontend.common.scattered import MODES
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim, as_attr, as_dim, tidy


def combined_rows(node: Node, kind: str, data: Expr, ids: Expr, count: Dim) -> Expr:
    """[count, ..]: the rows of each segment combined, what changes nothing for one without rows.

    `ids` may have more axes, which are the first ones of `data`; rows with a negative number belong
    to no segment, one of `count` or above is out of range.
    """
    shape, rank = node.typed(data).shape, len(node.typed(ids).shape)
    rest, dtype = shape[rank:], node.typed(data).dtype
    rows = data if rank == 1 else op.reshape(data, (-1, *as_attr(rest)), allowzero=False)
    places = op.cast(ids if rank == 1 else op.reshape(ids, (-1,)), "int64")
    # a row in front takes in what belongs to none
    places = op.add(op.maximum(places, const(-1, "int64")), const(1, "int64"))
    nothing = const(_nothing(kind, dtype), dtype)
    wide = as_attr((tidy(as_dim(count) + 1), *rest))
    start = op.full(nothing, wide, dtype)
    found = op.scatter_nd(start, op.expand_dims(places, 0), rows, MODES[kind])
    return op.strided_slice(found, (1,), (wide[0],), axes=(0,))


def _nothing(kind: str, dtype: str) -> object:
    """What a segment without rows has: the largest or the least number that is finite."""
    found = neutral(kind, dtype)
    return np.clip(found, *_ends(dtype)) if is_float(dtype) else found


def _ends(dtype: str) -> tuple[float, float]:
    ends = ml_dtypes.finfo(dtype)
    return float(ends.min), float(ends.max)


def length_of(node: Node, ids: Expr) -> Dim:
    """One more than the largest number, as a size."""
    wide = op.concatenate([const(np.array([-1])), op.cast(ids, "int64")], axis=0)
    most = op.add(op.max(wide, axis=[0], keepdims=True), const(1, "int64"))
    return node.with_inputs([node.given(most)]).dims(0, "segments")[0]


def counted_rows(node: Node, ids: Expr, count: Dim, dtype: str, rank: int) -> Expr:
    """[count, 1, ..] of that rank: how many rows each segment has."""
    ones = op.ones_like(op.cast(ids, dtype))
    found = combined_rows(node, "add", ones, ids, count)
    return append_axes(found, rank - 1)
