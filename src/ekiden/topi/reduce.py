"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import EQ, Or, PrimExpr, Select, binary, cast, maximum, minimum
from ekiden.te import Tensor
from ekiden.topi.elementwise import as_bool, convert_scalar, elementwise
from ekiden.topi.shape import Shape, as_dim, product

Reducer = Callable[[PrimExpr, Sequence[te.ReduceAxis]], PrimExpr]


def accumulator(dtype: str) -> str:
    """The dtype in which sums of `dtype` are made."""
    if dtype in ("float16", "bfloat16"):
        return "float32"
    return "int32" if dtype in ("int8", "uint8", "int16", "uint16") else dtype


def reduce_axes(shape: Shape, axes: Sequence[int]) -> list[te.ReduceAxis]:
    """A reduction variable per axis."""
    return [te.reduce_axis((0, shape[a]), name=f"k{a}") for a in axes]


def kept_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """The shape without `axes`, or with 1 there."""
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
    """Indices into the data: those of the result, with the reduction variables at `axes`."""
    outer = iter(indices)
    inner = dict(zip(axes, reduced, strict=True))
    found = []
    for i in range(rank):
        if i in inner and keepdims:
            next(outer)
        found.append(inner[i] if i in inner else next(outer))
    return found


def reduce(
    x: Tensor,
    axes: Sequence[int],
    keepdims: bool,
    reducer: Reducer,
    name: str,
    load: Callable[[PrimExpr], PrimExpr] = lambda value: value,
) -> Tensor:
    """`reducer` over `load` of the elements along `axes`."""
    variables = reduce_axes(x.shape, axes)
    return te.compute(
        kept_shape(x.shape, axes, keepdims),
        lambda *i: reducer(
            load(x[source_indices(i, variables, axes, x.ndim, keepdims)]), variables
        ),
        name=name,
        tag="reduce",
    )


def sum(x: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
    """The sum."""
    wide = accumulator(x.dtype)
    total = reduce(x, axes, keepdims, te.sum, "sum", lambda v: cast(v, wide))
    return total if wide == x.dtype else elementwise(total, lambda v: cast(v, x.dtype), "cast")


def prod(x: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
    """The product."""
    return reduce(x, axes, keepdims, te.prod, "prod")


def max(x: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
    """The largest."""
    return reduce(x, axes, keepdims, te.max, "max")


def min(x: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
    """The smallest."""
    return reduce(x, axes, keepdims, te.min, "min")


def mean(x: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
    """The sum divided by the number of elements; integers divide as C does."""
    wide = accumulator(x.dtype)
    total = reduce(x, axes, keepdims, te.sum, "sum", lambda v: cast(v, wide))
    count = product([x.shape[a] for a in axes])
    if not dt.is_float(x.dtype):
        count = maximum(count, 1)
    return elementwise(total, lambda v: cast(v / cast(count, wide), x.dtype), "mean")


def _truth(x: Tensor, axes: Sequence[int], keepdims: bool, reducer: Reducer, name: str) -> Tensor:
    bits = reduce(x, axes, keepdims, reducer, name, lambda v: convert_scalar(as_bool(v), "uint8"))
    return elementwise(bits, as_bool, name)


def all(x: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
    """Whether no element is 0."""
    return _truth(x, axes, keepdims, te.min, "all")


def any(x: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
    """Whether some element is not 0."""
    return _truth(x, axes, keepdims, te.max, "any")


def _position(variables: Sequence[te.ReduceAxis]) -> PrimExpr:
    """The flat position along several axes."""
    flat: PrimExpr = as_dim(0)
    for each in variables:
        flat = flat * each.extent + each
    return flat


def _arg_reduce(
    x: Tensor, axes: Sequence[int], keepdims: bool, reducer: Reducer, last: bool, name: str
) -> Tensor:
    """The position of the extreme element: its value first, then the first (or last) position that
    has it."""
    extreme = reduce(x, axes, keepdims, reducer, f"{name}_value")
    variables = reduce_axes(x.shape, axes)
    count = product([x.shape[a] for a in axes])
    missing = as_dim(-1) if last else count

    def body(*i: PrimExpr) -> PrimExpr:
        value = x[source_indices(i, variables, axes, x.ndim, keepdims)]
        found = binary(EQ, value, extreme[i])
        if dt.is_float(x.dtype):
            found = binary(Or, found, call_intrin("isnan", value))
        position = Select(found, _position(variables), missing, "int64")
        return te.max(position, variables) if last else te.min(position, variables)

    found = te.compute(extreme.shape, body, name=f"{name}_position", tag="reduce")

    def bounded(position: PrimExpr) -> PrimExpr:
        return cast(maximum(position, 0) if last else minimum(position, count - 1), "int32")

    return elementwise(found, bounded, name)


def argmax(
    x: Tensor, axes: Sequence[int], keepdims: bool = False, select_last_index: bool = False
) -> Tensor:
    """The position (int32) of the largest element, or of the first that is not a number."""
    return _arg_reduce(x, axes, keepdims, te.max, select_last_index, "argmax")


def argmin(
    x: Tensor, axes: Sequence[int], keepdims: bool = False, select_last_index: bool = False
) -> Tensor:
    """The position (int32) of the smallest element, or of the first that is not a number."""
    return _arg_reduce(x, axes, keepdims, te.min, select_last_index, "argmin")
