"""ONNX reductions over axes, which may be run-time inputs.

For run-time axes, each axis is split in two, one that is kept and one that is reduced, one of which
has extent 1. The data are reshaped so, and the reduced axes are then static:

    x [a, b], axes     ->  reshape(x, [a', a'', b', b'']), reduced over the second and the fourth
                           a', a'' = 1, a where the first is among the axes, else a, 1
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekiden.frontend.common.converters.reduction import reduction_rows
from ekiden.frontend.common.data_dependent_dims import to_named_dims
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.converters.runtime_axes import is_runtime_input, normalize_runtime_axes
from ekiden.frontend.onnx.node import Converter, OnnxNode, OnnxRow
from ekiden.ir.dtype import is_float
from ekiden.ir.prim import EQ, fold_binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, as_dim, known_int

ReduceFunction = Callable[[Expr, tuple[int, ...], bool], Expr]


def constant_reduced_axes(node: OnnxNode) -> tuple[int, ...] | None:
    """Return the reduced axes counted from the front; None for a node that reduces nothing."""
    rank = node.rank(0)
    if node.has("axes"):
        axes = node.get_ints("axes")
    else:
        is_empty = node.optional_value(1) is None or known_int(node.shape(1)[0]) == 0
        axes = () if is_empty else node.constant_ints(1)
    if axes:
        return tuple(node.axis(a, rank) for a in axes)
    # Without axes ONNX reduces all of them, unless the attribute says none.
    return None if node.get_int("noop_with_empty_axes", 0) else tuple(range(rank))


def _has_runtime_axes(node: OnnxNode) -> bool:
    """Return whether the reduced axes are run-time data."""
    return not node.has("axes") and is_runtime_input(node, 1) and known_int(node.shape(1)[0]) != 0


def _reduced_axes_mask(node: OnnxNode) -> Expr:
    """Emit which axes are reduced, int64 [rank] of 0 and 1."""
    rank = node.rank(0)
    axes = op.expand_dims(normalize_runtime_axes(node, 1), axis=0)
    among = op.equal(axes, const(np.arange(rank)[:, None]))
    mask = op.cast(op.any(among, axis=[1]), "int64")
    if known_int(node.shape(1)[0]) is not None or node.get_int("noop_with_empty_axes", 0):
        return mask
    count = op.sum(mask, axis=[0], keepdims=True)
    return op.where(op.equal(count, const(0, "int64")), op.ones_like(mask), mask)


def _vector_dims(node: OnnxNode, numbers: Expr) -> tuple[Dim, ...]:
    """Return a vector of known length as dimensions with new symbolic names."""
    extents = to_named_dims(node.scope, node.as_value(numbers))
    assert extents is not None, "a vector of known length"
    return extents


def _remaining_extents(node: OnnxNode, mask: Expr, extents: Expr) -> tuple[Dim, ...]:
    """Return the extents of the axes that remain, where their number is known."""
    count = known_int(node.shape(1)[0])
    if count is None:
        node.reject_dynamic_input(1, "without 'keepdims' the number of 'axes' must be known")
    if count > 1:
        (distinct_count,) = _vector_dims(node, op.sum(mask, axis=[0], keepdims=True))
        condition = fold_binary(EQ, as_dim(distinct_count), count)
        node.scope.require_condition(
            condition, " (without 'keepdims' each axis must be named once)"
        )
    is_kept = op.subtract(const(np.ones(node.rank(0), np.int64)), mask)
    position = op.multiply(op.cumsum(is_kept, axis=0), is_kept)  # from 1 on, 0 of those that go
    positions = const(np.arange(1, node.rank(0) - count + 1)[:, None])
    chosen = op.cast(op.equal(op.expand_dims(position, axis=0), positions), "int64")
    return _vector_dims(node, op.sum(op.multiply(chosen, extents), axis=[1]))


def _reduce_runtime_axes(node: OnnxNode, function: ReduceFunction, data: Expr) -> Expr:
    """Emit the reduction of `data` over run-time axes."""
    rank, mask = node.rank(0), node.bind_shared(_reduced_axes_mask(node)).expr
    assert mask is not None
    extents, one = op.shape_of(node.expr(0), "int64"), const(np.ones(node.rank(0), np.int64))
    is_reduced = op.cast(mask, "bool")
    pairs = [op.where(is_reduced, one, extents), op.where(is_reduced, extents, one)]
    # Each axis becomes (kept, reduced), one of which is 1: a static reduction over odd axes then
    # serves every mask.
    split = _vector_dims(node, op.reshape(op.stack(pairs, axis=1), (2 * rank,)))
    paired = op.reshape(data, split, allowzero=True)
    reduced = function(paired, tuple(range(1, 2 * rank, 2)), False)
    if node.get_int("keepdims", 1):
        return reduced
    return op.reshape(reduced, _remaining_extents(node, mask, extents), allowzero=True)


def _reduction_converter(
    function: ReduceFunction,
    prepare: Callable[[Expr], Expr] | None = None,
    finish: Callable[[Expr], Expr] | None = None,
    floats: bool = False,
) -> Converter:
    """Return a converter of a reduction with optional elementwise steps before and after.

    `prepare` is applied to each element before, `finish` to each result, also where no axis is
    reduced. floats: integers are computed in float64 throughout and truncated at the end.
    """

    def convert_reduction(node: OnnxNode) -> Expr | Value:
        """Emit the reduction between its elementwise steps."""
        is_by_data = _has_runtime_axes(node)
        axes = None if is_by_data else constant_reduced_axes(node)
        if not is_by_data and axes is None and prepare is None and finish is None:
            return node.value(0)
        kind = node.dtype(0)
        is_cut = (floats or finish is not None) and not is_float(kind)
        data = op.cast(node.expr(0), "float64") if is_cut and floats else node.expr(0)
        data = data if prepare is None else prepare(data)
        if is_by_data:
            data = _reduce_runtime_axes(node, function, data)
        elif axes is not None:
            data = function(data, axes, bool(node.get_int("keepdims", 1)))
        if is_cut and not floats:
            data = op.cast(data, "float64")
        result = data if finish is None else finish(data)
        return op.cast(result, kind) if is_cut else result

    return convert_reduction


def _plain_reduction(function: Callable[..., Expr]) -> ReduceFunction:
    """Return a reduction operator as a function (data, axes, keepdims)."""
    return lambda data, axes, keepdims: function(data, axis=axes, keepdims=keepdims)


def _square(data: Expr) -> Expr:
    return op.multiply(data, data)


def _log_sum_exp(data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    """Emit max + log(sum(exp(x - max))), which cannot overflow. An infinite maximum is not
    subtracted, as inf - inf is NaN: the sum is then 0 or inf, whose logarithms are -inf and inf.
    """
    largest = op.max(data, axis=axes, keepdims=True)
    # inf - inf would be NaN: an infinite maximum is not subtracted.
    largest = op.where(op.isfinite(largest), largest, op.zeros_like(largest))
    total = op.add(
        largest, op.log(op.sum(op.exp(op.subtract(data, largest)), axis=axes, keepdims=True))
    )
    return total if keepdims else op.squeeze(total, axis=axes)


def _arg_reduction_converter(function: Callable[..., Expr]) -> Converter:
    """Return a converter of ArgMax or ArgMin."""

    def convert_arg_reduction(node: OnnxNode) -> Expr:
        """Emit the int64 position of the extreme, of equal ones the first unless
        `select_last_index`.
        """
        axis = node.axis(node.get_int("axis", 0), node.rank(0))
        last = bool(node.get_int("select_last_index", 0))
        positions = function(
            node.expr(0),
            axis=axis,
            keepdims=bool(node.get_int("keepdims", 1)),
            select_last_index=last,
        )
        return op.cast(positions, "int64")

    return convert_arg_reduction


_REDUCTION_ATTRIBUTES = "axes keepdims noop_with_empty_axes"

# fmt: off
ROWS = (
    *(OnnxRow(name, _reduction_converter(_plain_reduction(row.function)),
              attributes=_REDUCTION_ATTRIBUTES)
      for name, row in reduction_rows("onnx")),
    OnnxRow("ReduceL1",        _reduction_converter(_plain_reduction(op.sum), op.abs),
        attributes=_REDUCTION_ATTRIBUTES),
    OnnxRow("ReduceL2",        _reduction_converter(_plain_reduction(op.sum), _square, op.sqrt),
        attributes=_REDUCTION_ATTRIBUTES),
    OnnxRow("ReduceSumSquare", _reduction_converter(_plain_reduction(op.sum), _square),
        attributes=_REDUCTION_ATTRIBUTES),
    OnnxRow("ReduceLogSum",    _reduction_converter(_plain_reduction(op.sum), None, op.log),
        attributes=_REDUCTION_ATTRIBUTES),
    OnnxRow("ReduceLogSumExp", _reduction_converter(_log_sum_exp, floats=True),
        attributes=_REDUCTION_ATTRIBUTES),
    OnnxRow("ArgMax",          _arg_reduction_converter(op.argmax),
        attributes="axis keepdims select_last_index"),
    OnnxRow("ArgMin",          _arg_reduction_converter(op.argmin),
        attributes="axis keepdims select_last_index"),
)
# fmt: on
