"""Tensor creation operators: constants, ranges, grids."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.prim import (
    EQ,
    ExprLike,
    FloatImm,
    IntImm,
    PrimExpr,
    Select,
    Var,
    cast,
    const,
    convert,
    fold_binary,
    is_const,
    maximum,
)
from ekiden.te import Tensor
from ekiden.topi.dimensions import Dim, as_dim, as_shape, product_of_dims, simplify_dim
from ekiden.topi.elementwise import convert_scalar


def full(shape: Sequence[Dim], dtype: str, fill_value: Tensor | ExprLike) -> Tensor:
    """Return a tensor of one value, given as a number or a tensor of rank 0."""
    value = fill_value[()] if isinstance(fill_value, Tensor) else convert(fill_value)
    return te.compute(
        as_shape(shape), lambda *i: convert_scalar(value, dtype), name="full", tag="elemwise"
    )


def constant(
    value: int | float, shape: Sequence[Dim], dtype: str, name: str = "constant"
) -> Tensor:
    """Return a tensor of one number."""
    return te.compute(as_shape(shape), lambda *i: const(value, dtype), name=name, tag="elemwise")


def zeros(shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Return a tensor of zeros."""
    return constant(0, shape, dtype, "zeros")


def ones(shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Return a tensor of ones."""
    return constant(1, shape, dtype, "ones")


def arithmetic_sequence(start: ExprLike, step: ExprLike, extent: PrimExpr, dtype: str) -> Tensor:
    """Return start + n * step for n < extent, accumulated in float64 or int64."""
    exact = "float64" if dt.is_float(dtype) else "int64"
    first, by = cast(convert(start), exact), cast(convert(step), exact)
    return te.compute(
        (extent,),
        lambda i: cast(first + cast(i, exact) * by, dtype),
        name="arange",
        tag="injective",
    )


def arange(
    start: ExprLike, stop: ExprLike | None = None, step: ExprLike = 1, dtype: str = "float32"
) -> Tensor:
    """Return the half-open range start, start + step, ... below stop.

    Bounds may be integer expressions, of which the step's sign must be known. Raises ValueError for
    step 0.
    """
    first, last = (0, start) if stop is None else (start, stop)
    return arithmetic_sequence(first, step, arange_extent(first, last, step), dtype)


def arange_extent(start: ExprLike, stop: ExprLike, step: ExprLike) -> PrimExpr:
    """Return the number of elements of an arange. Raises ValueError for a step of 0, and for
    symbolic bounds unless they are integers with a constant step.
    """
    begin, end, by = convert(start), convert(stop), convert(step)
    if is_const(by, 0):
        raise ValueError("arange: step must not be 0")
    numbers = [e.value for e in (begin, end, by) if isinstance(e, (IntImm, FloatImm))]
    if len(numbers) == 3:
        return as_dim(max(0, math.ceil((numbers[1] - numbers[0]) / numbers[2])))
    if not isinstance(by, IntImm) or not dt.is_int(begin.dtype) or not dt.is_int(end.dtype):
        raise ValueError("arange: symbolic bounds must be integers, with a number as step")
    span = end - begin if by.value > 0 else begin - end
    size = abs(by.value)
    return simplify_dim(maximum((span + (size - 1)) // size, 0))


def _select_by_index(values: Sequence[PrimExpr], index: Var) -> PrimExpr:
    """Return values[index] for a dynamic index, as a chain of selects."""
    chosen = values[-1]
    for n in range(len(values) - 2, -1, -1):
        chosen = Select(fold_binary(EQ, index, n), values[n], chosen, chosen.dtype)
    return chosen


def shape(array: Tensor, dtype: str = "int32") -> Tensor:
    """Return the dimensions of `array` as a vector."""
    if array.ndim == 0:
        return constant(0, (0,), dtype, "shape_of")
    return te.compute(
        (array.ndim,),
        lambda i: cast(_select_by_index(array.shape, i), dtype),
        name="shape_of",
        tag="injective",
    )


def ndarray_size(array: Tensor, dtype: str = "int32") -> Tensor:
    """Return the number of elements of `array`."""
    return te.compute(
        (), lambda: cast(product_of_dims(array.shape), dtype), name="ndarray_size", tag="injective"
    )


def meshgrid(a_tuple: Sequence[Tensor], indexing: str = "ij") -> list[Tensor]:
    """Return the coordinates of a grid from those of its axes (vectors or scalars), as NumPy's
    meshgrid.
    """
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid: indexing must be 'ij' or 'xy', got {indexing!r}")
    extents = [t.shape[0] if t.ndim else as_dim(1) for t in a_tuple]
    order = list(range(len(a_tuple)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    dims = [extents[n] for n in order]

    def coordinates_along(n: int) -> Tensor:
        """Return the coordinates along axis n of the grid; a scalar is an axis of one."""
        source, position = a_tuple[n], order.index(n)
        return te.compute(
            dims, lambda *i: source[i[position]] if source.ndim else source[()], name="meshgrid",
            tag="injective",
        )  # fmt: skip

    return [coordinates_along(n) for n in range(len(a_tuple))]


__all__ = ["arange", "constant", "full", "meshgrid", "ndarray_size", "ones", "shape", "zeros"]
