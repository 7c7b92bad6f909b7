"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable

from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.node import Converter, Node, Row
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr

Reduce = Callable[[Expr, tuple[int, ...], bool], Expr]


def reduced_axes(node: Node) -> tuple[int, ...] | None:
    """Axes from the attribute or the second input, from the front; None for a node that reduces
    nothing.
    """
    rank = node.rank(0)
    if node.has("axes"):
        axes = node.get_ints("axes")
    else:
        axes = () if node.optional(1) is None else node.axes(1)
    if axes:
        return tuple(node.axis(a, rank) for a in axes)
    return None if node.get_int("noop_with_empty_axes", 0) else tuple(range(rank))


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
        axes = reduced_axes(node)
        if axes is None and prepare is None and finish is None:
            return node.value(0)
        kind = node.dtype(0)
        is_cut = (floats or finish is not None) and not is_float(kind)
        data = op.cast(node.expr(0), "float64") if is_cut and floats else node.expr(0)
        data = data if prepare is None else prepare(data)
        if axes is not None:
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
    Row("ReduceSum",       _reduce(_simple(op.sum)),           attributes=_ATTRIBUTES),
    Row("ReduceMean",      _reduce(_simple(op.mean)),          attributes=_ATTRIBUTES),
    Row("ReduceMax",       _reduce(_simple(op.max)),           attributes=_ATTRIBUTES),
    Row("ReduceMin",       _reduce(_simple(op.min)),           attributes=_ATTRIBUTES),
    Row("ReduceProd",      _reduce(_simple(op.prod)),          attributes=_ATTRIBUTES),
    Row("ReduceL1",        _reduce(_simple(op.sum), op.abs),   attributes=_ATTRIBUTES),
    Row("ReduceL2",        _reduce(_simple(op.sum), _square, op.sqrt), attributes=_ATTRIBUTES),
    Row("ReduceSumSquare", _reduce(_simple(op.sum), _square),  attributes=_ATTRIBUTES),
    Row("ReduceLogSum",    _reduce(_simple(op.sum), None, op.log), attributes=_ATTRIBUTES),
    Row("ReduceLogSumExp", _reduce(_log_sum_exp, floats=True), attributes=_ATTRIBUTES),
    Row("ArgMax",          _arg(op.argmax), attributes="axis keepdims select_last_index"),
    Row("ArgMin",          _arg(op.argmin), attributes="axis keepdims select_last_index"),
)
# fmt: on
