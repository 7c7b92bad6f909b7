"""Reductions over axes, cumulative reductions, sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.torch.complex_rules import per_part_rule
from ekiden.frontend.torch.dtype import tensor_to_array
from ekiden.frontend.torch.node import Converter, ConverterRow, FxNode
from ekiden.frontend.torch.sympy_conversion import Scalar
from ekiden.ir.dtype import is_float, itemsize, to_numpy
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import known_int, product_of_dims

Axes = Sequence[int] | int | None


def normalize_axes(node: FxNode, x: Value, dim: Axes) -> list[int]:
    """Return the normalized axes that `dim` names; all axes if it names none."""
    rank = len(x.type.shape)
    named = [dim] if isinstance(dim, int) else list(dim or ())
    return sorted({node.axis(a, rank) for a in named}) if named and rank else list(range(rank))


def _emit_reduction(
    node: FxNode, function: Callable[..., Expr], x: Value, data: Expr, dim: Axes, keepdim: bool
) -> Expr:
    axes = normalize_axes(node, x, dim)
    return function(data, axis=axes, keepdims=keepdim) if axes else data


def _reduction_converter(function: Callable[..., Expr]) -> Converter:
    def convert(
        node: FxNode, x: Value, dim: Axes = None, keepdim: bool = False, *, dtype: object = None
    ) -> Expr:
        """Reduce in the result's dtype, to which integers are widened before summation."""
        return _emit_reduction(node, function, x, node.to_expr(x, node.out_dtype), dim, keepdim)

    return convert


def _extremum_converter(function: Callable[..., Expr], truths: Callable[..., Expr]) -> Converter:
    """Return the converter of amax or amin, and of max and min without an axis."""

    def convert(node: FxNode, x: Value, dim: Axes = None, keepdim: bool = False) -> Expr:
        """Emit the extremum; for bools any or all."""
        if x.type.dtype == "bool":
            return _emit_reduction(node, truths, x, node.to_expr(x), dim, keepdim)
        return _emit_reduction(node, function, x, node.to_expr(x), dim, keepdim)

    return convert


def _bool_reduction_converter(function: Callable[..., Expr]) -> Converter:
    def convert(node: FxNode, x: Value, dim: Axes = None, keepdim: bool = False) -> Expr:
        """Emit whether all or any elements differ from 0."""
        data = node.to_expr(x)
        if x.type.dtype != "bool":
            data = op.not_equal(data, const(0, x.type.dtype))
        return _emit_reduction(node, function, x, data, dim, keepdim)

    return convert


def _bool_dims_converter(function: Callable[..., Expr]) -> Converter:
    """Return the converter of any.dims or all.dims, for which an empty list reduces no axis."""

    def convert(
        node: FxNode, x: Value, dim: Sequence[int] | None = None, keepdim: bool = False
    ) -> Result:
        """Emit whether all or any elements along the axes differ from 0; over all axes if dim is
        None.
        """
        if dim is not None and not dim:
            return op.cast(node.to_expr(x), "bool")
        return _bool_reduction_converter(function)(node, x, dim, keepdim)  # type: ignore[return-value]

    return convert


def _arg_converter(function: Callable[..., Expr]) -> Converter:
    def convert(node: FxNode, x: Value, dim: int | None = None, keepdim: bool = False) -> Result:
        return _arg_extremum(node, function, x, dim, keepdim)

    return convert


def _bool_to_uint8(node: FxNode, x: Value) -> Expr:
    return node.to_expr(x, "uint8" if x.type.dtype == "bool" else x.type.dtype)


def _arg_extremum(
    node: FxNode, function: Callable[..., Expr], x: Value, dim: int | None, keepdim: bool
) -> Result:
    rank = len(x.type.shape)
    if not rank:
        return constant_value(np.zeros((), np.int64))
    data = _bool_to_uint8(node, x)
    if dim is None:
        flat = op.reshape(data, (product_of_dims(x.type.shape),), allowzero=True)
        index = op.cast(function(flat, axis=0, keepdims=False), "int64")
        return op.reshape(index, (1,) * rank) if keepdim else index
    return op.cast(function(data, axis=node.axis(dim, rank), keepdims=keepdim), "int64")


def _extremum_with_indices_converter(
    largest: Callable[..., Expr], argument: Callable[..., Expr]
) -> Converter:
    """Return the converter of max.dim or min.dim: values and indices."""

    def convert(
        node: FxNode, x: Value, dim: int, keepdim: bool = False
    ) -> list[Expr | Value | None]:
        """Emit values and indices; a tensor of rank 0 is its own extremum, at index 0."""
        if not x.type.shape:
            return [x, constant_value(np.zeros((), np.int64))]
        axis = node.axis(dim, len(x.type.shape))
        values = largest(_bool_to_uint8(node, x), axis=axis, keepdims=keepdim)
        indices = _arg_extremum(node, argument, x, axis, keepdim)
        assert isinstance(indices, Expr)
        return [values, indices]

    return convert


def _variance(
    node: FxNode, x: Value, dim: Axes = None, correction: object = 1, keepdim: bool = False
) -> Expr:
    return _variance_and_mean(node, x, dim, correction, keepdim)[0]


def _var_mean(
    node: FxNode, x: Value, dim: Axes = None, correction: object = 1, keepdim: bool = False
) -> list[Expr | Value | None]:
    return list(_variance_and_mean(node, x, dim, correction, keepdim))


def _variance_and_mean(
    node: FxNode, x: Value, dim: Axes, correction: object, keepdim: bool
) -> tuple[Expr, Expr]:
    """Emit variance and mean; the variance divides by n - correction.

    Dtypes of 16 bits compute in float32, as such sums and counts exceed their range.
    """
    dtype = "float32" if itemsize(node.out_dtype) < 4 else node.out_dtype
    if isinstance(dim, bool):  # var.default(x, unbiased)
        dim, correction = None, dim
    if isinstance(correction, bool):
        correction = int(correction)
    correction = 1 if correction is None else correction
    assert isinstance(correction, (int, float))
    axes, data = normalize_axes(node, x, dim), node.to_expr(x, dtype)
    count = product_of_dims([x.type.shape[a] for a in axes])
    mean = op.mean(data, axis=axes, keepdims=True) if axes else data
    centred = op.subtract(data, mean)
    squares = op.multiply(centred, centred)
    total = op.sum(squares, axis=axes, keepdims=keepdim) if axes else squares
    number = known_int(count)
    if number is not None:
        # Not negative: with n <= correction the quotient is inf or NaN, as in PyTorch.
        below: Expr = const(max(number - correction, 0), dtype)
    else:
        wide = op.cast(node.scope.emit_dim(count), dtype)
        below = op.maximum(op.subtract(wide, const(correction, dtype)), const(0, dtype))
    mean_out = mean if keepdim or not axes else op.squeeze(mean, axis=axes)
    return op.divide(total, below), mean_out


def _cumulative_converter(function: Callable[..., Expr]) -> Converter:
    def convert(node: FxNode, x: Value, dim: int, *, dtype: object = None) -> Expr:
        """Accumulate in the result's dtype; a tensor of rank 0 is its own total."""
        data = node.to_expr(x, node.out_dtype)
        if not x.type.shape:
            return data
        return function(data, axis=node.axis(dim, len(x.type.shape)))

    return convert


def _sort(
    node: FxNode,
    x: Value,
    *args: object,
    dim: int = -1,
    descending: bool = False,
    stable: object = None,
) -> list[Expr | Value | None]:
    """Convert sort.default(x, dim, descending) and sort.stable(x, *, stable, dim, descending)."""
    if args and isinstance(args[0], int) and not isinstance(args[0], bool):
        dim, descending = args[0], bool(args[1]) if len(args) > 1 else descending
    if not x.type.shape:
        return [x, constant_value(np.zeros((), np.int64))]
    axis = node.axis(dim, len(x.type.shape))
    data = _bool_to_uint8(node, x)
    indices = op.argsort(data, axis=axis, is_ascend=not descending, dtype="int64")
    return [op.gather(data, axis, indices), indices]


def _topk(
    node: FxNode, x: Value, k: Scalar, dim: int = -1, largest: bool = True, is_sorted: bool = True
) -> list[Expr | Value | None]:
    if not x.type.shape:
        return [x, constant_value(np.zeros((), np.int64))]
    axis = node.axis(dim, len(x.type.shape))
    largest_k = op.topk(
        _bool_to_uint8(node, x), k=node.to_dim(k), axis=axis, ret_type="both",
        is_ascend=not largest,
        dtype="int64",
    )  # fmt: skip
    return [TupleGetItem(largest_k, 0), TupleGetItem(largest_k, 1)]


def _cumulative_extremum_converter(scan: Callable[..., Expr]) -> Converter:
    """Return the converter of a running extreme and its last index."""

    def convert(node: FxNode, x: Value, dim: int) -> list[Expr | Value | None]:
        """Return the extremes of all prefixes and where they are: the last element that is equal to
        the extreme up to it. A NaN is the extreme of every prefix that contains one.
        """
        if not x.type.shape:
            return [x, constant_value(np.zeros((), np.int64))]
        axis = node.axis(dim, len(x.type.shape))
        data = node.scope.attach_span(_bool_to_uint8(node, x))
        is_extreme = op.equal(data, scan(data, axis=axis))
        if is_float(x.type.dtype):
            is_extreme = op.logical_or(is_extreme, op.isnan(data))
        numbers: Expr = op.arange(0, x.type.shape[axis], 1, dtype="int64")
        behind = len(x.type.shape) - axis - 1
        if behind:
            numbers = op.expand_dims(numbers, axis=1, num_newaxis=behind)
        positions = op.where(is_extreme, numbers, const(0, "int64"))
        indices = node.scope.attach_span(op.cummax(positions, axis=axis))
        return [op.gather(data, axis, indices), indices]

    return convert


def _histc(
    node: FxNode,
    x: Value,
    bins: int = 100,
    min: Scalar = 0,
    max: Scalar = 0,
) -> Expr:
    """Convert histc: the number of elements between evenly spaced edges, the last one inclusive."""
    low, high, dtype = (
        node.constant_number(min, "min"),
        node.constant_number(max, "max"),
        node.out_dtype,
    )
    if not low < high:
        node.reject("'min' must be below 'max': edges that are data are not supported")
    # torch.linspace itself, so that the edges are rounded as PyTorch's.
    edges = tensor_to_array(torch.linspace(low, high, bins + 1))
    data = op.reshape(node.to_expr(x, "float32"), (-1,))
    bin_index = op.subtract(
        op.searchsorted(const(edges), data, right=True, dtype="int64"), const(1, "int64")
    )
    bin_index = op.where(op.equal(data, const(edges[-1])), const(bins - 1, "int64"), bin_index)
    inside = op.logical_and(
        op.greater_equal(data, const(edges[0])), op.less_equal(data, const(edges[-1]))
    )
    index = op.where(inside, bin_index, const(0, "int64"))
    return op.scatter_nd(
        const(np.zeros(bins, to_numpy(dtype))),
        op.expand_dims(index, axis=0),
        op.cast(inside, dtype),
        "add",
    )


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    ("sum", _reduction_converter(op.sum), per_part_rule),
    ("mean", _reduction_converter(op.mean), per_part_rule),
    ("prod", _reduction_converter(op.prod)),
    ("amax", _extremum_converter(op.max, op.any)),
    ("amin", _extremum_converter(op.min, op.all)),
    ("max.default", _extremum_converter(op.max, op.any)),
    ("min.default", _extremum_converter(op.min, op.all)),
    ("max.dim", _extremum_with_indices_converter(op.max, op.argmax)),
    ("min.dim", _extremum_with_indices_converter(op.min, op.argmin)),
    ("any", _bool_reduction_converter(op.any)),
    ("all", _bool_reduction_converter(op.all)),
    ("any.dims", _bool_dims_converter(op.any)),
    ("all.dims", _bool_dims_converter(op.all)),
    ("argmax", _arg_converter(op.argmax)),
    ("argmin", _arg_converter(op.argmin)),
    ("var", _variance),
    ("var_mean", _var_mean),
    ("cumsum", _cumulative_converter(op.cumsum), per_part_rule),
    ("cumprod", _cumulative_converter(op.cumprod)),
    ("cummax", _cumulative_extremum_converter(op.cummax)),
    ("cummin", _cumulative_extremum_converter(op.cummin)),
    ("sort", _sort),
    ("topk", _topk),
    ("histc", _histc),
)
# fmt: on
