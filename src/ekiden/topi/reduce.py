"""Reductions over axes.

Of narrow types a sum or a product is kept in a wider accumulator (`accumulator`): float16 and
bfloat16 in float32, and cast once. Positions of maxima carry (value, index) through the reduction,
with the smaller index of equal values, or the larger with `select_last_index`, so that the order of
combining does not matter.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.dtype import int_range
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    EQ,
    Or,
    PrimExpr,
    Select,
    cast,
    const,
    fold_binary,
    is_const,
    maximum,
    minimum,
)
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    Dim,
    Shape,
    are_equal_dims,
    as_dim,
    as_shape,
    known_int,
    normalize_axes,
    product_of_dims,
)
from ekiden.topi.elementwise import as_bool, convert_scalar, elementwise

Axes = int | Sequence[int] | None

Reducer = Callable[[PrimExpr, Sequence[te.ReduceAxis]], PrimExpr]


def accumulator_dtype(dtype: str) -> str:
    """Return the dtype in which sums of `dtype` are accumulated."""
    if dtype in ("float16", "bfloat16"):
        return "float32"
    if dtype == "bool":  # they are counted
        return "int64"
    return "int32" if dtype in ("int8", "uint8", "int16", "uint16") else dtype


def reduce_axes(shape: Shape, axes: Sequence[int]) -> list[te.ReduceAxis]:
    """Return a reduction variable per axis."""
    return [te.reduce_axis((0, shape[a]), name=f"k{a}") for a in axes]


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """Return the shape without `axes`, or with 1 there."""
    return tuple(
        as_dim(1) if i in axes else d for i, d in enumerate(shape) if keepdims or i not in axes
    )


def source_indices(
    indices: Sequence[PrimExpr],
    reduced: Sequence[PrimExpr],
    axes: Sequence[int],
    rank: int,
    keepdims: bool,
) -> list[PrimExpr]:
    """Return indices into the data: the result's, with the reduction variables at `axes`."""
    outer = iter(indices)
    inner = dict(zip(axes, reduced, strict=True))
    data_indices = []
    for i in range(rank):
        if i in inner and keepdims:
            next(outer)
        data_indices.append(inner[i] if i in inner else next(outer))
    return data_indices


def reduce_elements(
    x: Tensor,
    axes: Sequence[int],
    keepdims: bool,
    reducer: Reducer,
    name: str,
    load: Callable[[PrimExpr], PrimExpr] = lambda value: value,
) -> Tensor:
    """Return `reducer` over `load` of the elements along `axes`."""
    variables = reduce_axes(x.shape, axes)
    return te.compute(
        reduced_shape(x.shape, axes, keepdims),
        lambda *i: reducer(
            load(x[source_indices(i, variables, axes, x.ndim, keepdims)]), variables
        ),
        name=name,
        tag="reduce",
    )


def sum(data: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the sum over axes."""
    return _reduce_in_accumulator(data, axis, keepdims, te.sum, "sum")


def _reduce_in_accumulator(
    data: Tensor, axis: Axes, keepdims: bool, reducer: Reducer, name: str
) -> Tensor:
    """Reduce in the accumulator dtype, rounded once at the end."""
    wide = accumulator_dtype(data.dtype)
    axes = normalize_axes(axis, data.ndim, name)
    total = reduce_elements(data, axes, keepdims, reducer, name, lambda v: cast(v, wide))
    return round_accumulated(total, data.dtype)


def round_accumulated(total: Tensor, dtype: str) -> Tensor:
    """Round an accumulated total once to its dtype."""
    return total if total.dtype == dtype else elementwise(total, lambda v: cast(v, dtype), "cast")


def prod(data: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the product over axes."""
    return _reduce_in_accumulator(data, axis, keepdims, te.prod, "prod")


def max(data: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the maximum over axes."""
    return reduce_elements(data, normalize_axes(axis, data.ndim, "max"), keepdims, te.max, "max")


def min(data: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the minimum over axes."""
    return reduce_elements(data, normalize_axes(axis, data.ndim, "min"), keepdims, te.min, "min")


def _mean_accumulator_dtype(dtype: str, count: PrimExpr) -> str:
    """Return the accumulator dtype of a mean; wide enough for integer sums not to wrap."""
    wide = accumulator_dtype(dtype)
    ends, room = int_range(dtype), int_range(wide)
    if dtype == "bool" or ends is None or room is None:
        return wide
    number = known_int(count)
    fits = number is not None and number * builtins.max(map(builtins.abs, ends)) <= room[1]
    return wide if fits or wide == "uint64" else "int64"


def mean(data: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the sum divided by the number of elements; integers divide as in C."""
    axes = normalize_axes(axis, data.ndim, "mean")
    count = product_of_dims([data.shape[a] for a in axes])
    wide = _mean_accumulator_dtype(data.dtype, count)
    total = reduce_elements(data, axes, keepdims, te.sum, "sum", lambda v: cast(v, wide))
    # An integer division by 0 would trap; of floats an empty mean is NaN.
    if not dt.is_float(data.dtype):
        count = maximum(count, 1)
    return elementwise(total, lambda v: cast(v / cast(count, wide), data.dtype), "mean")


def _reduce_truth(x: Tensor, axis: Axes, keepdims: bool, reducer: Reducer, name: str) -> Tensor:
    axes = normalize_axes(axis, x.ndim, name)
    bits = reduce_elements(
        x, axes, keepdims, reducer, name, lambda v: convert_scalar(as_bool(v), "uint8")
    )
    return elementwise(bits, as_bool, name)


def all(data: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return whether no element is 0."""
    return _reduce_truth(data, axis, keepdims, te.min, "all")


def any(data: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return whether some element is not 0."""
    return _reduce_truth(data, axis, keepdims, te.max, "any")


def _flat_index(variables: Sequence[te.ReduceAxis]) -> PrimExpr:
    """Return the flat position along several axes."""
    flat: PrimExpr = as_dim(0)
    for variable in variables:
        flat = flat * variable.extent + variable
    return flat


def _arg_reduce(
    x: Tensor, axis: Axes, keepdims: bool, reducer: Reducer, last: bool, name: str
) -> Tensor:
    """Return the position of the extreme element: first its value, then the first (or last)
    position that has it.
    """
    axes = normalize_axes(axis, x.ndim, name)
    extreme = reduce_elements(x, axes, keepdims, reducer, f"{name}_value")
    variables = reduce_axes(x.shape, axes)
    count = product_of_dims([x.shape[a] for a in axes])
    # Beyond every position on the losing side, so that any match wins.
    missing = as_dim(-1) if last else count

    def first_extreme_position(*i: PrimExpr) -> PrimExpr:
        """Return the smallest (or largest) position whose value is the extreme or NaN."""
        value = x[source_indices(i, variables, axes, x.ndim, keepdims)]
        is_match = fold_binary(EQ, value, extreme[i])
        if dt.is_float(x.dtype):
            is_match = fold_binary(Or, is_match, call_intrin("isnan", value))
        position = Select(is_match, _flat_index(variables), missing, "int64")
        return te.max(position, variables) if last else te.min(position, variables)

    positions = te.compute(
        extreme.shape, first_extreme_position, name=f"{name}_position", tag="reduce"
    )

    def clamp_position(position: PrimExpr) -> PrimExpr:
        return cast(maximum(position, 0) if last else minimum(position, count - 1), "int32")

    return elementwise(positions, clamp_position, name)


def argmax(
    data: Tensor, axis: Axes = None, keepdims: bool = False, select_last_index: bool = False
) -> Tensor:
    """Return the position (int32) of the largest element, or of the first NaN."""
    return _arg_reduce(data, axis, keepdims, te.max, select_last_index, "argmax")


def argmin(
    data: Tensor, axis: Axes = None, keepdims: bool = False, select_last_index: bool = False
) -> Tensor:
    """Return the position (int32) of the smallest element, or of the first NaN."""
    return _arg_reduce(data, axis, keepdims, te.min, select_last_index, "argmin")


def variance(
    data: Tensor, axis: Axes = None, keepdims: bool = False, unbiased: bool = False
) -> Tensor:
    """Return the mean of squared deviations; `unbiased` divides by one less."""
    axes = normalize_axes(axis, data.ndim, "variance")
    wide = accumulator_dtype(data.dtype)
    count = cast(product_of_dims([data.shape[a] for a in axes]), wide)
    total = reduce_elements(data, axes, True, te.sum, "row_sum", lambda v: cast(v, wide))
    variables = reduce_axes(data.shape, axes)

    def squared_deviation(*i: PrimExpr) -> PrimExpr:
        """Return the squared deviations from the mean, in a second pass; a difference of squares
        would cancel.
        """
        indices = source_indices(i, variables, axes, data.ndim, keepdims)
        row = [as_dim(0) if n in axes else index for n, index in enumerate(indices)]
        distance = cast(data[indices], wide) - total[row] / count
        return te.sum(distance * distance, variables)

    shape = reduced_shape(data.shape, axes, keepdims)
    squares = te.compute(shape, squared_deviation, name="row_squares", tag="reduce")
    # Without elements the divisor is 0 and the result NaN, not a quotient by -1.
    divisor = te.max(count - const(1, wide), const(0, wide)) if unbiased else count
    return elementwise(squares, lambda v: cast(v / divisor, data.dtype), "variance")


def collapse_sum(data: Tensor, target_shape: Sequence[Dim]) -> Tensor:
    """Return the sum over the axes along which `target_shape` broadcasts to the shape of `data`, in
    the accumulator dtype. Raises ValueError if it does not broadcast.
    """
    result_shape = as_shape(target_shape)
    extra = data.ndim - len(result_shape)
    if extra < 0:
        raise ValueError(f"collapse_sum: {result_shape} has more axes than the data, {data.shape}")
    axes = list(range(extra))
    for index, (dim, result_dim) in enumerate(zip(data.shape[extra:], result_shape, strict=True)):
        if not are_equal_dims(dim, result_dim):
            if not is_const(result_dim, 1):
                raise ValueError(f"collapse_sum: {result_shape} does not broadcast to {data.shape}")
            axes.append(extra + index)
    variables, wide = reduce_axes(data.shape, axes), accumulator_dtype(data.dtype)

    def sum_broadcast_axes(*i: PrimExpr) -> PrimExpr:
        """Sum over the axes that were broadcast."""
        indices = source_indices((*[as_dim(0)] * extra, *i), variables, axes, data.ndim, True)
        return te.sum(cast(data[indices], wide), variables)

    total = te.compute(result_shape, sum_broadcast_axes, name="collapse_sum", tag="reduce")
    return round_accumulated(total, data.dtype)


__all__ = [
    "all", "any", "argmax", "argmin", "collapse_sum", "max", "mean", "min", "prod", "sum",
    "variance",
]  # fmt: skip
