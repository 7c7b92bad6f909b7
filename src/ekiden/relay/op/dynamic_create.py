"""Fill and range operators whose shapes are tensor arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import te, topi
from ekiden.ir.dtype import is_float, to_numpy
from ekiden.ir.op import Array, ShapeCheck
from ekiden.ir.prim import NE, AnyDim, PrimExpr, Select, cast, const, fold_binary, maximum
from ekiden.ir.type import TensorType
from ekiden.relay.op._declare import raise_type_error
from ekiden.relay.op.dynamic import (
    Dims,
    DynamicAttrs,
    declare_dynamic_op,
    dims_from_shape_argument,
    shape_vector_length,
    to_int_tuple,
    unknown_tensor_type,
)
from ekiden.runtime.errors import InputError
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.topi.create import arithmetic_sequence
from ekiden.topi.dimensions import known_int

declare_dynamic_op(
    "dyn.full",
    ("fill_value", "shape"),
    DynamicAttrs,
    lambda attrs, types: unknown_tensor_type(
        shape_vector_length("dyn.full", "shape", types[1]), attrs.dtype or types[0].dtype
    ),
    dims_from_shape_argument,
    lambda attrs, inputs, out: [topi.full(out.shape, out.dtype, inputs[0])],
    lambda attrs, fill, shape: np.full(
        to_int_tuple(shape), fill, to_numpy(attrs.dtype or str(fill.dtype))
    ),
    "`shape`, with `dtype` or that of fill_value",
)


def _declare_fill(name: str, value: int) -> None:
    declare_dynamic_op(
        f"dyn.{name}",
        ("shape",),
        DynamicAttrs,
        lambda attrs, types: unknown_tensor_type(
            shape_vector_length(f"dyn.{name}", "shape", types[0]), attrs.dtype or "float32"
        ),
        dims_from_shape_argument,
        lambda attrs, inputs, out: [topi.create.constant(value, out.shape, out.dtype, name)],
        lambda attrs, shape: np.full(
            to_int_tuple(shape), value, to_numpy(attrs.dtype or "float32")
        ),
        "`shape`, with `dtype`",
    )


def _extents_type(attrs: DynamicAttrs, types: Sequence[TensorType]) -> TensorType:
    nothing, sizes = types
    if tuple(map(known_int, nothing.shape)) != (0,):
        raise_type_error(
            "dyn.extents", f"'nothing' must have the shape (0,), got {list(nothing.shape)}"
        )
    unknown = (AnyDim() for _ in range(shape_vector_length("dyn.extents", "sizes", sizes)))
    return TensorType((const(0), *unknown), nothing.dtype)


declare_dynamic_op(
    "dyn.extents",
    ("nothing", "sizes"),
    DynamicAttrs,
    _extents_type,
    dims_from_shape_argument,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    lambda attrs, nothing, sizes: np.reshape(nothing, (0, *to_int_tuple(sizes))),
    "(0, *sizes)",
    reshape_only=True,
    description="A tensor of no elements whose further dimensions are `sizes`: whoever gives them "
    "names can use the numbers of a vector as dimensions.",
    sizes=(),
)

_declare_fill("zeros", 0)
_declare_fill("ones", 1)


def _arange_dims(attrs: DynamicAttrs, buffers: Sequence[Buffer]) -> Dims:
    # float32 would miscount ranges of more than 2**24 elements.
    dtype = "float64" if any(is_float(b.dtype) for b in buffers) else "int64"
    first = (b[tuple(const(0) for _ in b.shape)] for b in buffers)
    start, stop, step = (cast(v, dtype) for v in first)
    zero = step.equal(0)
    # A step of 0 is refused by the check; the division must be valid until then.
    by = Select(zero, const(1, dtype), step, dtype)
    if dtype == "int64":
        # ceil(x / y) is -((-x) // y) in integers, without a rounding to floats.
        count: PrimExpr = const(0) - (start - stop) // by
    else:
        count = cast(te.ceil((stop - start) / by), "int64")
    return [maximum(count, 0)], [ShapeCheck(fold_binary(NE, step, 0), "step is 0")]


def _load_scalar(x: Tensor) -> PrimExpr:
    """Return the element of a one-element tensor."""
    return x[tuple(0 for _ in x.shape)]


def _arange_reference(attrs: DynamicAttrs, start: Array, stop: Array, step: Array) -> Array:
    exact = "float64" if any(a.dtype.kind == "f" for a in (start, stop, step)) else "int64"
    first, last, by = (a.astype(exact).reshape(-1)[0] for a in (start, stop, step))
    if by == 0:
        raise InputError("run: dyn.arange: the step is 0")
    count = max(0, int(np.ceil((last - first) / by)))
    numbers = np.asarray(first + np.arange(count).astype(exact) * by)
    return numbers.astype(to_numpy(attrs.dtype) if attrs.dtype else start.dtype)


declare_dynamic_op(
    "dyn.arange",
    ("start", "stop", "step"),
    DynamicAttrs,
    lambda attrs, types: unknown_tensor_type(1, attrs.dtype or types[0].dtype),
    _arange_dims,
    lambda attrs, inputs, out: [
        arithmetic_sequence(
            _load_scalar(inputs[0]), _load_scalar(inputs[2]), out.shape[0], out.dtype
        )
    ],
    _arange_reference,
    "(max(0, ceil((stop - start) / step)),)",
    sizes=(0, 1, 2),
)
