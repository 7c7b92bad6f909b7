"""Operators on COO sparse tensors, composed of other operators."""

from __future__ import annotations

from ekiden.relay.expr import Expr, Tuple, TupleWrapper, const
from ekiden.relay.op.broadcast import equal, floor_divide, floor_mod, multiply, where
from ekiden.relay.op.create import arange, full, shape_of
from ekiden.relay.op.elementwise import cast
from ekiden.relay.op.index import take
from ekiden.relay.op.join import concatenate
from ekiden.relay.op.reduce import prod
from ekiden.relay.op.reduce import sum as total
from ekiden.relay.op.reshaping import reshape
from ekiden.relay.op.scan import cumprod
from ekiden.relay.op.scatter_ops import scatter_elements
from ekiden.relay.op.shape_like import cast_like
from ekiden.relay.op.slice import strided_slice
from ekiden.relay.op.sorting import argsort, argwhere
from ekiden.relay.op.tensor_math import full_like
from ekiden.topi.dimensions import OPEN_SLICE_END


def sparse_reshape(sparse_indices: Expr, prev_shape: Expr, new_shape: Expr) -> TupleWrapper:
    """Reshape a COO sparse tensor: return the new coordinates [n, rank] and the new shape.

    The new shape may hold one -1. Shapes are vectors of the coordinates' dtype.
    """
    one = cast_like(const(1), new_shape)
    is_free = equal(new_shape, cast_like(const(-1), new_shape))
    # The -1 counts as 1, so that the quotient is its size.
    fixed_product = prod(where(is_free, one, new_shape))
    shape = where(is_free, floor_divide(prod(prev_shape), fixed_product), new_shape)
    # Row-major positions are what both shapes have in common.
    flat = total(multiply(sparse_indices, _row_major_strides(prev_shape)), axis=[1], keepdims=True)
    new_indices = floor_mod(floor_divide(flat, _row_major_strides(shape)), shape)
    return TupleWrapper(Tuple((new_indices, shape)), 2)


def _row_major_strides(shape: Expr) -> Expr:
    """Return the row-major strides of a shape, in elements."""
    backwards = strided_slice(shape, [-1], [-OPEN_SLICE_END], [-1])
    # Row-major strides: the product of all later extents.
    products = cumprod(backwards, 0, exclusive=True)
    return strided_slice(products, [-1], [-OPEN_SLICE_END], [-1])


def sparse_fill_empty_rows(
    sparse_indices: Expr, sparse_values: Expr, dense_shape: Expr, default_value: Expr
) -> TupleWrapper:
    """Fill the empty rows of a COO matrix with a default; return coordinates, values and the
    empty-row mask.

    Every row of a tensor of `dense_shape` has an element in the result: empty ones get
    `default_value` in their first column.
    """
    count = reshape(strided_slice(dense_shape, [0], [1]), ())
    rows = reshape(strided_slice(sparse_indices, [0], [1], axes=[1]), (-1,))
    no_row = full(const(True), reshape(count, (1,)), "bool")
    # Rows that occur are cleared; repeated ones write the same value.
    empty = scatter_elements(no_row, rows, full_like(cast(rows, "bool"), const(False)))
    missing = cast_like(argwhere(empty), sparse_indices)
    rank = reshape(strided_slice(shape_of(sparse_indices, "int64"), [1], [2]), ())
    first = arange(const(0, "int64"), rank, const(1, "int64"), "int64")
    first = cast_like(equal(first, const(0, "int64")), sparse_indices)
    coordinates = concatenate([sparse_indices, multiply(missing, first)], 0)
    flat = cast_like(reshape(missing, (-1,)), default_value)
    defaults = full_like(flat, reshape(default_value, ()))
    values = concatenate([sparse_values, defaults], 0)
    # Stable: elements of one row keep their order.
    order = argsort(
        reshape(strided_slice(coordinates, [0], [1], axes=[1]), (-1,)), 0, True, "int64"
    )
    results = take(coordinates, order, 0), take(values, order, 0), empty
    return TupleWrapper(Tuple(results), 3)


__all__ = ["sparse_fill_empty_rows", "sparse_reshape"]
