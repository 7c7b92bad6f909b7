"""Reshapes to shapes that are data.

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
from ekiden.ir.prim import NE, Or, PrimExpr, binary, cast, const
from ekiden.ir.type import TensorType
from ekiden.relay.op._declare import attempt, fail
from ekiden.relay.op.dynamic import (
    Dims,
    DynamicAttrs,
    choose,
    declare_dynamic,
    element,
    elements,
    length_of,
    unknown_shape,
)
from ekiden.tir.expr import Buffer
from ekiden.topi.dimensions import expect_result_rank, normalize_axis, product


@node("relay.attrs.DynReshapeAttrs")
class DynReshapeAttrs(Attrs):
    """Whether a 0 is a dimension of 0 and not a copy of the data's."""

    allowzero: bool = False
    symbols: tuple[PrimExpr, ...] = ()


def _reshape_dims(attrs: DynReshapeAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, newshape = buffers
    requested = elements(newshape)
    checks = []
    if not attrs.allowzero:
        none = "a 0 stands for a dimension that the data has not"
        checks = [ShapeCheck(binary(NE, w, 0), none) for w in requested[len(data.shape) :]]
        copied = data.shape[: len(requested)]
        beyond = requested[len(copied) :]
        pairs = zip(requested, copied, strict=False)
        requested = [*(choose(w.equal(0), d, w) for w, d in pairs), *beyond]
    total = product(data.shape)
    fixed = product([choose(w.equal(-1), const(1), w) for w in requested])
    # The -1 dimension; a product of 0 is checked below.
    free = total // choose(fixed.equal(0), const(1), fixed)
    dims = [choose(w.equal(-1), free, w) for w in requested]
    wrong, result_size = "the data has another number of elements", product(dims)
    shown = {"that of the data": total, "that of the new shape": result_size}
    open_ends = sum((choose(w.equal(-1), const(1), const(0)) for w in requested), const(0))
    once = ShapeCheck(open_ends <= 1, "-1 may stand once", {"the number of them": open_ends})
    clear = Or(open_ends.equal(0), binary(NE, fixed, 0), "bool")
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


declare_dynamic(
    "dyn.reshape",
    ("data", "newshape"),
    DynReshapeAttrs,
    lambda attrs, types: unknown_shape(
        length_of("dyn.reshape", "newshape", types[1]), types[0].dtype
    ),
    _reshape_dims,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    _reshape_reference,
    "the shape that newshape says: 0 copies a dimension of data, one -1 takes what is left",
    reshape_only=True,
)


@node("relay.attrs.DynExpandDimsAttrs")
class DynExpandDimsAttrs(Attrs):
    """How many axes are new."""

    num_newaxis: int = 1
    symbols: tuple[PrimExpr, ...] = ()


def _expanded_dims(attrs: DynExpandDimsAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, axis = buffers
    rank, count = len(data.shape), attrs.num_newaxis
    requested_axis = element(axis, *(0 for _ in axis.shape))
    at = choose(requested_axis < 0, requested_axis + (rank + 1), requested_axis)
    dims = []
    for i in range(rank + count):
        before = data.shape[i] if i < rank else const(1)
        after = data.shape[i - count] if i >= count else const(1)
        dims.append(choose(at > i, before, choose(at <= i - count, after, const(1))))
    wrong, shown = "axis is out of range", {"it": requested_axis, "the rank": const(rank)}
    return dims, [ShapeCheck(at >= 0, wrong, shown), ShapeCheck(at <= rank, wrong, shown)]


def _expanded_type(attrs: DynExpandDimsAttrs, types: Sequence[TensorType]) -> TensorType:
    if attrs.num_newaxis < 0:
        fail("dyn.expand_dims", f"num_newaxis must not be negative, got {attrs.num_newaxis}")
    rank = len(types[0].shape) + attrs.num_newaxis
    attempt("dyn.expand_dims", expect_result_rank, rank, "num_newaxis")
    return unknown_shape(rank, types[0].dtype)


def _expanded(attrs: DynExpandDimsAttrs, data: Array, axis: Array) -> Array:
    requested_axis = int(axis.reshape(-1)[0])
    at = normalize_axis(requested_axis, data.ndim + 1, "expand_dims")
    return data.reshape(*data.shape[:at], *[1] * attrs.num_newaxis, *data.shape[at:])


declare_dynamic(
    "dyn.expand_dims",
    ("data", "axis"),
    DynExpandDimsAttrs,
    _expanded_type,
    _expanded_dims,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    _expanded,
    "data's shape with `num_newaxis` ones at the axis",
    reshape_only=True,
)


def _squeezed_dims(attrs: DynamicAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, axis = buffers
    rank = len(data.shape)
    axes = [choose(a < 0, a + rank, a) for a in elements(axis)]
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
            is_source = (position + dropped * rank).equal(j)
            dims[j] = choose(is_source, extent, dims[j])
        checks.append(ShapeCheck(dropped <= 1, f"axis {i} is dropped twice"))
        one = (dropped * (extent - 1)).equal(0)
        wrong = f"dimension {i} of data is dropped and not 1"
        checks.append(ShapeCheck(one, wrong, {"it": extent}))
        position = position + 1 - dropped
    return dims, checks


declare_dynamic(
    "dyn.squeeze",
    ("data", "axis"),
    DynamicAttrs,
    lambda attrs, types: unknown_shape(
        len(types[0].shape) - length_of("dyn.squeeze", "axis", types[1]), types[0].dtype
    ),
    _squeezed_dims,
    lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
    lambda attrs, data, axis: np.squeeze(data, tuple(int(a) for a in axis)),
    "data's shape without the axes, which are 1",
    reshape_only=True,
)


__all__ = ["DynExpandDimsAttrs", "DynReshapeAttrs"]
