"""Reductions over axes.

Axes that come at run time make of each axis two, one that is kept and one that is reduced, of which
one is 1 long. So the data are reshaped, and axes that are known are reduced:

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
from ekiden.topi.shape import Dim, as_dim, known

Reduce = Callable[[Expr, tuple[int, ...], bool], Expr]


def reduced_axes(node: Node) -> tuple[int, ...] | None:
    """Axes from the attribute or the second input, from the front; None for a node that reduces
    nothing.
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
    """Whether which axes are reduced is only known at run time."""
    return not node.has("axes") and is_data(node, 1) and known(node.shape(1)[0]) != 0


def _mask(node: Node) -> Expr:
    """Which axes are reduced at run time, as numbers (rank,) of int64; all where there are none,
    unless nothing is reduced then."""
    rank = node.rank(0)
    axes = op.expand_dims(axes_by_data(node, 1), axis=0)
    among = op.equal(axes, const(np.arange(rank)[:, None]))
    found = op.cast(op.any(among, axis=[1]), "int64")
    if known(node.shape(1)[0]) is not None or node.get_int("noop_with_empty_axes", 0):
        return found
    count = op.sum(found, axis=[0], keepdims=True)
    return op.where(op.equal(count, const(0, "int64")), op.ones_like(found), found)


def _extents(node: Node, numbers: Expr) -> tuple[Dim, ...]:
    """A vector of known length, as dimensions that have names from here on."""
    found = dims(node.scope, node.value_of(numbers))
    assert found is not None, "a vector of known length"
    return found


def _left(node: Node, mask: Expr, extents: Expr) -> tuple[Dim, ...]:
    """The extents of the axes that are not reduced, of a known number of axes that are."""
    count = known(node.shape(1)[0])
    if count is None:
        node.needs(1, "without 'keepdims' the number of 'axes' must be known")
    if count > 1:
        (found,) = _extents(node, op.sum(mask, axis=[0], keepdims=True))
        condition = binary(EQ, as_dim(found), count)
        node.scope.require(condition, " (without 'keepdims' each axis must be named once)")
    kept = op.subtract(const(np.ones(node.rank(0), np.int64)), mask)
    place = op.multiply(op.cumsum(kept, axis=0), kept)  # from 1 on, 0 of those that go
    wanted = const(np.arange(1, node.rank(0) - count + 1)[:, None])
    chosen = op.cast(op.equal(op.expand_dims(place, axis=0), wanted), "int64")
    return _extents(node, op.sum(op.multiply(chosen, extents), axis=[1]))


def _reduced_by_data(node: Node, function: Reduce, data: Expr) -> Expr:
    """`data`, of the shape of the first input, over the axes of the second, as above."""
    rank, mask = node.rank(0), node.given(_mask(node)).expr
    assert mask is not None
    extents, one = op.shape_of(node.expr(0), "int64"), const(np.ones(node.rank(0), np.int64))
    is_reduced = op.cast(mask, "bool")
    pairs = [op.where(is_reduced, one, extents), op.where(is_reduced, extents, one)]
    split = _extents(node, op.reshape(op.stack(pairs, axis=1), (2 * rank,)))
    whole = op.reshape(data, split, allowzero=True)
    found = function(whole, tuple(range(1, 2 * rank, 2)), False)
    if node.get_int("keepdims", 1):
        return found
    return op.reshape(found, _left(node, mask, extents), allowzero=True)


def _reduce(
    function: Reduce,
    prepare: Callable[[Expr], Expr] | None = None,
    finish: Callable[[Expr], Expr] | None = None,
    floats: bool = False,
) -> Converter:
    """`prepare` is done to each element before, `finish` to each result: also where no axis is
    reduced. floats: of integers the whole is computed with floats, which are cut off at the end.
    """

    def convert(node: Node) -> Expr | Value:
        """The reduction; without axes to reduce, each element prepared."""
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
        found = data if finish is None else finish(data)
        return op.cast(found, kind) if is_cut else found

    return convert


def _simple(function: Callable[..., Expr]) -> Reduce:
    return lambda data, axes, keepdims: function(data, axis=axes, keepdims=keepdims)


def _square(data: Expr) -> Expr:
    return op.multiply(data, data)


def _log_sum_exp(data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    """max + log(sum(exp(x - max))), so that nothing overflows. An infinite maximum is not taken
    off, as inf - inf is NaN: the sum is 0 or inf by itself, whose logarithms are -inf and inf."""
    largest = op.max(data, axis=axes, keepdims=True)
    largest = op.where(op.isfinite(largest), largest, op.zeros_like(largest))
    total = op.add(
        largest, op.log(op.sum(op.exp(op.subtract(data, largest)), axis=axes, keepdims=True))
    )
    return total if keepdims else op.squeeze(total, axis=axes)


def _arg(function: Callable[..., Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        """The position as int64, as ONNX has it; the first of equals without
        `select_last_index`."""
        axis = node.axis(node.get_int("axis", 0), node.rank(0))
        last = bool(node.get_int("select_last_index", 0))
        found = function(
            node.expr(0),
            axis=axis,
            keepdims=bool(node.get_int("keepdims", 1)),
            select_last_index=last,
        )
        return op.cast(found, "int64")

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
