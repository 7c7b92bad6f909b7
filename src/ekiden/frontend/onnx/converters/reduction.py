"""Reductions over axes.

For run-time axes, each axis is split in two, one that is kept and one that is reduced, one of which
has extent 1. The data are reshaped so, and the reduced axes are then static:

    x [a, b], axes     ->  reshape(x, [a', a'', b', b'']), reduced over the second and the fourth
                           a', a'' = 1, a where the first is among the axes, else a, 1
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekiden.frontend.common.converters.reduction import rows_of
from ekiden.frontend.common.sizes import dims
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.axis import axes_by_data, is_data
from ekiden.frontend.onnx.node import Converter, Node, Row
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import EQ, binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, as_dim, known

Reduce = Callable[[Expr, tuple[int, ...], bool], Expr]


def reduced_axes(node: Node) -> tuple[int, ...] | None:
    """Return the reduced axes, from the attribute or the second input, counted from the front; None
    for a node that reduces nothing.
    """
    rank = node.rank(0)
    if node.has("axes"):
        axes = node.get_ints("axes")
    else:
        is_empty = node.optional(1) is None or known(node.shape(1)[0]) == 0
        axes = () if is_empty else node.axes(1)
    if axes:
        return tuple(node.axis(a, rank) for a in axes)
    return None if node.get_int("noop_with_empty_axes", 0) else tuple(range(rank))


def _is_by_data(node: Node) -> bool:
    """Return whether the reduced axes are run-time data."""
    return not node.has("axes") and is_data(node, 1) and known(node.shape(1)[0]) != 0


def _mask(node: Node) -> Expr:
    """Return which axes are reduced at run time, as int64 (rank,) of 0 and 1; all where the list is
    empty, unless `noop_with_empty_axes`.
    """
    rank = node.rank(0)
    axes = op.expand_dims(axes_by_data(node, 1), axis=0)
    among = op.equal(axes, const(np.arange(rank)[:, None]))
    mask = op.cast(op.any(among, axis=[1]), "int64")
    if known(node.shape(1)[0]) is not None or node.get_int("noop_with_empty_axes", 0):
        return mask
    count = op.sum(mask, axis=[0], keepdims=True)
    return op.where(op.equal(count, const(0, "int64")), op.ones_like(mask), mask)


def _extents(node: Node, numbers: Expr) -> tuple[Dim, ...]:
    """Return a vector of known length as dimensions, with symbolic names from here on."""
    extents = dims(node.scope, node.value_of(numbers))
    assert extents is not None, "a vector of known length"
    return extents


def _left(node: Node, mask: Expr, extents: Expr) -> tuple[Dim, ...]:
    """Return the extents of the axes that are not reduced, where the number of reduced axes is
    known.
    """
    count = known(node.shape(1)[0])
    if count is None:
        node.needs(1, "without 'keepdims' the number of 'axes' must be known")
    if count > 1:
        (distinct_count,) = _extents(node, op.sum(mask, axis=[0], keepdims=True))
        condition = binary(EQ, as_dim(distinct_count), count)
        node.scope.require(condition, " (without 'keepdims' each axis must be named once)")
    is_kept = op.subtract(const(np.ones(node.rank(0), np.int64)), mask)
    position = op.multiply(op.cumsum(is_kept, axis=0), is_kept)  # from 1 on, 0 of those that go
    positions = const(np.arange(1, node.rank(0) - count + 1)[:, None])
    chosen = op.cast(op.equal(op.expand_dims(position, axis=0), positions), "int64")
    return _extents(node, op.sum(op.multiply(chosen, extents), axis=[1]))


def _reduced_by_data(node: Node, function: Reduce, data: Expr) -> Expr:
    """Reduce `data`, of the shape of the first input, over the run-time axes of the second."""
    rank, mask = node.rank(0), node.given(_mask(node)).expr
    assert mask is not None
    extents, one = op.shape_of(node.expr(0), "int64"), const(np.ones(node.rank(0), np.int64))
    is_reduced = op.cast(mask, "bool")
    pairs = [op.where(is_reduced, one, extents), op.where(is_reduced, extents, one)]
    # Each axis becomes (kept, reduced), one of which is 1: a static reduction over odd axes then
    # serves every mask.
    split = _extents(node, op.reshape(op.stack(pairs, axis=1), (2 * rank,)))
    paired = op.reshape(data, split, allowzero=True)
    reduced = function(paired, tuple(range(1, 2 * rank, 2)), False)
    if node.get_int("keepdims", 1):
        return reduced
    return op.reshape(reduced, _left(node, mask, extents), allowzero=True)


def _reduce(
    function: Reduce,
    prepare: Callable[[Expr], Expr] | None = None,
    finish: Callable[[Expr], Expr] | None = None,
    floats: bool = False,
) -> Converter:
    """Return a converter of a reduction.

    `prepare` is applied to each element before, `finish` to each result, also where no axis is
    reduced. floats: integers are computed in float64 throughout and truncated at the end.
    """

    def convert(node: Node) -> Expr | Value:
        """Reduce the input; without axes to reduce, only prepare and finish each element."""
        is_by_data = _is_by_data(node)
        axes = None if is_by_data else reduced_axes(node)
        if not is_by_data and axes is None and prepare is None and finish is None:
            return node.value(0)
        kind = node.dtype(0)
        is_cut = (floats or finish is not None) and not is_float(kind)
        data = op.cast(node.expr(0), "float64") if is_cut and floats else node.expr(0)
        data = data if prepare is None else prepare(data)
        if is_by_data:
            data = _reduced_by_data(node, function, data)
        elif axes is not None:
            data = function(data, axes, bool(node.get_int("keepdims", 1)))
        if is_cut and not floats:
            data = op.cast(data, "float64")
        result = data if finish is None else finish(data)
        return op.cast(result, kind) if is_cut else result

    return convert


def _simple(function: Callable[..., Expr]) -> Reduce:
    return lambda data, axes, keepdims: function(data, axis=axes, keepdims=keepdims)


def _square(data: Expr) -> Expr:
    return op.multiply(data, data)


def _log_sum_exp(data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    """Return max + log(sum(exp(x - max))), which cannot overflow. An infinite maximum is not
    subtracted, as inf - inf is NaN: the sum is then 0 or inf, whose logarithms are -inf and inf.
    """
    largest = op.max(data, axis=axes, keepdims=True)
    largest = op.where(op.isfinite(largest), largest, op.zeros_like(largest))
    total = op.add(
        largest, op.log(op.sum(op.exp(op.subtract(data, largest)), axis=axes, keepdims=True))
    )
    return total if keepdims else op.squeeze(total, axis=axes)


def _arg(function: Callable[..., Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        """Return the position as int64; the first of equal ones without `select_last_index`."""
        axis = node.axis(node.get_int("axis", 0), node.rank(0))
        last = bool(node.get_int("select_last_index", 0))
        positions = function(
            node.expr(0),
            axis=axis,
            keepdims=bool(node.get_int("keepdims", 1)),
            select_last_index=last,
        )
        return op.cast(positions, "int64")

    return convert


_ATTRIBUTES = "axes keepdims noop_with_empty_axes"

# fmt: off
ROWS = (
    *(Row(name, _reduce(_simple(row.function)), attributes=_ATTRIBUTES)
      for name, row in rows_of("onnx")),
    Row("ReduceL1",        _reduce(_simple(op.sum), op.abs),   attributes=_ATTRIBUTES),
    Row("ReduceL2",        _reduce(_simple(op.sum), _square, op.sqrt), attributes=_ATTRIBUTES),
    Row("ReduceSumSquare", _reduce(_simple(op.sum), _square),  attributes=_ATTRIBUTES),
    Row("ReduceLogSum",    _reduce(_simple(op.sum), None, op.log), attributes=_ATTRIBUTES),
    Row("ReduceLogSumExp", _reduce(_log_sum_exp, floats=True), attributes=_ATTRIBUTES),
    Row("ArgMax",          _arg(op.argmax), attributes="axis keepdims select_last_index"),
    Row("ArgMin",          _arg(op.argmin), attributes="axis keepdims select_last_index"),
)
# fmt: on
