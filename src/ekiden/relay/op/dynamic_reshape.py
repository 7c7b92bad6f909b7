"""reshape, expand_dims and squeeze with shapes or axes given as tensor arguments.

The rank is the length of the shape, so it must be known; its numbers are read where the program
runs: 0 copies an extent unless `allowzero`, one -1 is what is left. That the elements fit is
checked there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, ShapeCheck
from ekiden.ir.prim import NE, Or, PrimExpr, cast, const, fold_binary
from ekiden.ir.type import TensorType
from ekiden.relay.op._declare import call_shape_rule, raise_type_error
from ekiden.relay.op.dynamic import (
    Dims,
    DynamicAttrs,
    declare_dynamic_op,
    load_elements,
    load_scalar,
    select_int64,
    shape_vector_length,
    unknown_tensor_type,
)
from ekiden.tir.expr import Buffer
from ekiden.topi.dimensions import normalize_axis, product_of_dims, require_result_rank


@node("relay.attrs.DynReshapeAttrs")
class DynReshapeAttrs(Attrs):
    """Attributes of dyn.reshape: whether 0 means an empty dimension rather than a copied one."""

    allowzero: bool = False
    symbols: tuple[PrimExpr, ...] = ()


def _reshape_dims(attrs: DynReshapeAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, newshape = buffers
    requested = load_elements(newshape)
    checks = []
    if not attrs.allowzero:
        none = "a 0 stands for a dimension that the data has not"
        checks = [ShapeCheck(fold_binary(NE, w, 0), none) for w in requested[len(data.shape) :]]
        # A 0 copies the dimension at its own position, which only those of the data's rank have.
        copied = data.shape[: len(requested)]
        beyond = requested[len(copied) :]
        pairs = zip(requested, copied, strict=False)
        requested = [*(select_int64(w.equal(0), d, w) for w, d in pairs), *beyond]
    total = product_of_dims(data.shape)
    fixed = product_of_dims([select_int64(w.equal(-1), const(1), w) for w in requested])
    # The -1 dimension; a product of 0 is checked below.
    free = total // select_int64(fixed.equal(0), const(1), fixed)
    dims = [select_int64(w.equal(-1), free, w) for w in requested]
    wrong, result_size = "the data has another number of elements", product_of_dims(dims)
    shown = {"that of the data": total, "that of the new shape": result_size}
    # Two of them would have no unique answer.
    open_ends = sum((select_int64(w.equal(-1), const(1), const(0)) for w in requested), const(0))
    once = ShapeCheck(open_ends <= 1, "-1 may stand once", {"the number of them": open_ends})
    # 0 * x = 0 holds for every x: -1 beside a dimension of 0 is not determined.
    clear = Or(open_ends.equal(0), fold_binary(NE, fixed, 0), "bool")
    unclear = "what is left is not clear beside a dimension of 0"
    return dims, [
        *checks,
        once,
        ShapeCheck(result_size.equal(total), wrong, shown),
        ShapeCheck(clear, unclear),
    ]


def _reshape_reference(attrs: DynReshapeAttrs, data: Array, newshape: Array) -> Array:
    requested = [int(n) for n in newshape]
    if min(requested, default=0) < -1:  # to NumPy, any negative number is what is left
        raise ValueError(
            f"dyn.reshape: a dimension of the result is negative; it is {min(requested)}"
        )
    if not attrs.allowzero:
        if 0 in requested[data.ndim :]:
            raise ValueError("dyn.reshape: a 0 stands for a dimension that the data has not")
        requested = [data.shape[i] if n == 0 else n for i, n in enumerate(requested)]
    return np.reshape(data, requested)


declare_dynamic_op(
    "dyn.reshape",
    ("data", "newshape"),
    DynReshapeAttrs,
    lambda attrs, types: unknown_tensor_type(
        shape_vector_length("dyn.reshape", "newshape", types[1]), types[0].dtype
    ),
    _reshape_dims,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    _reshape_reference,
    "the shape that newshape says: 0 copies a dimension of data, one -1 takes what is left",
    reshape_only=True,
)


@node("relay.attrs.DynExpandDimsAttrs")
class DynExpandDimsAttrs(Attrs):
    """Attributes of dyn.expand_dims: the number of new axes."""

    num_newaxis: int = 1
    symbols: tuple[PrimExpr, ...] = ()


def _expand_dims_dims(attrs: DynExpandDimsAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, axis = buffers
    rank, count = len(data.shape), attrs.num_newaxis
    requested_axis = load_scalar(axis, *(0 for _ in axis.shape))
    position = select_int64(requested_axis < 0, requested_axis + (rank + 1), requested_axis)
    dims = []
    # The axis is data: each dimension of the result is selected from all it may be.
    for i in range(rank + count):
        before = data.shape[i] if i < rank else const(1)
        after = data.shape[i - count] if i >= count else const(1)
        dims.append(
            select_int64(position > i, before, select_int64(position <= i - count, after, const(1)))
        )
    wrong, shown = "axis is out of range", {"it": requested_axis, "the rank": const(rank)}
    return dims, [
        ShapeCheck(position >= 0, wrong, shown),
        ShapeCheck(position <= rank, wrong, shown),
    ]


def _expand_dims_type(attrs: DynExpandDimsAttrs, types: Sequence[TensorType]) -> TensorType:
    if attrs.num_newaxis < 0:
        raise_type_error(
            "dyn.expand_dims", f"num_newaxis must not be negative, got {attrs.num_newaxis}"
        )
    rank = len(types[0].shape) + attrs.num_newaxis
    call_shape_rule("dyn.expand_dims", require_result_rank, rank, "num_newaxis")
    return unknown_tensor_type(rank, types[0].dtype)


def _expand_dims_reference(attrs: DynExpandDimsAttrs, data: Array, axis: Array) -> Array:
    requested_axis = int(axis.reshape(-1)[0])
    axis_index = normalize_axis(requested_axis, data.ndim + 1, "expand_dims")
    return data.reshape(
        *data.shape[:axis_index], *[1] * attrs.num_newaxis, *data.shape[axis_index:]
    )


declare_dynamic_op(
    "dyn.expand_dims",
    ("data", "axis"),
    DynExpandDimsAttrs,
    _expand_dims_type,
    _expand_dims_dims,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    _expand_dims_reference,
    "data's shape with `num_newaxis` ones at the axis",
    reshape_only=True,
)


def _squeeze_dims(attrs: DynamicAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, axis = buffers
    rank = len(data.shape)
    axes = [select_int64(a < 0, a + rank, a) for a in load_elements(axis)]
    position: PrimExpr = const(0)
    dims: list[PrimExpr] = [const(0)] * (rank - len(axes))
    wrong = "axis is out of range"
    shown = [{"it": a, "the rank": const(rank)} for a in axes]
    checks = [ShapeCheck(a >= 0, wrong, s) for a, s in zip(axes, shown, strict=True)]
    checks += [ShapeCheck(a < rank, wrong, s) for a, s in zip(axes, shown, strict=True)]
    for i, extent in enumerate(data.shape):
        # The number of times that the axis is among those to drop.
        dropped = sum((cast(a.equal(i), "int64") for a in axes), const(0))
        for j in range(len(dims)):
            # Of a dropped axis the position is pushed beyond the rank, where no dimension is.
            is_source = (position + dropped * rank).equal(j)
            dims[j] = select_int64(is_source, extent, dims[j])
        checks.append(ShapeCheck(dropped <= 1, f"axis {i} is dropped twice"))
        # Holds for axes that stay, as `dropped` is 0 there.
        one = (dropped * (extent - 1)).equal(0)
        wrong = f"dimension {i} of data is dropped and not 1"
        checks.append(ShapeCheck(one, wrong, {"it": extent}))
        position = position + 1 - dropped
    return dims, checks


declare_dynamic_op(
    "dyn.squeeze",
    ("data", "axis"),
    DynamicAttrs,
    lambda attrs, types: unknown_tensor_type(
        len(types[0].shape) - shape_vector_length("dyn.squeeze", "axis", types[1]), types[0].dtype
    ),
    _squeeze_dims,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    lambda attrs, data, axis: np.squeeze(data, tuple(int(a) for a in axis)),
    "data's shape without the axes, which are 1",
    reshape_only=True,
)


__all__ = ["DynExpandDimsAttrs", "DynReshapeAttrs"]
