"""Tensors made out of numbers and shapes."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.prim import EQ, ExprLike, PrimExpr, Select, Var, binary, cast, const, convert
from ekiden.te import Tensor
from ekiden.topi.elementwise import convert_scalar
from ekiden.topi.shape import Shape, as_dim, product


def full(fill_value: Tensor, shape: Shape, dtype: str) -> Tensor:
    """A tensor of one value."""
    return te.compute(
        shape, lambda *i: convert_scalar(fill_value[()], dtype), name="full", tag="elemwise"
    )


def constant(value: int | float, shape: Shape, dtype: str, name: str = "constant") -> Tensor:
    """A tensor of one number."""
    return te.compute(shape, lambda *i: const(value, dtype), name=name, tag="elemwise")


def arange(start: ExprLike, step: ExprLike, extent: PrimExpr, dtype: str) -> Tensor:
    """start + n * step, computed in float64 or int64."""
    exact = "float64" if dt.is_float(dtype) else "int64"
    first, by = cast(convert(start), exact), cast(convert(step), exact)
    return te.compute(
        (extent,),
        lambda i: cast(first + cast(i, exact) * by, dtype),
        name="arange",
        tag="injective",
    )


def _pick(values: Sequence[PrimExpr], index: Var) -> PrimExpr:
    found = values[-1]
    for n in range(len(values) - 2, -1, -1):
        found = Select(binary(EQ, index, n), values[n], found, found.dtype)
    return found


def shape_of(x: Tensor, dtype: str) -> Tensor:
    """The dimensions of `x`."""
    if x.ndim == 0:
        return constant(0, (as_dim(0),), dtype, "shape_of")
    return te.compute(
        (x.ndim,), lambda i: cast(_pick(x.shape, i), dtype), name="shape_of", tag="injective"
    )


def ndarray_size(x: Tensor, dtype: str) -> Tensor:
    """How many elements `x` has."""
    return te.compute(
        (), lambda: cast(product(x.shape), dtype), name="ndarray_size", tag="injective"
    )
