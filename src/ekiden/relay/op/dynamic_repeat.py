"""broadcast_to and tile with shapes given as tensor arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import te, topi
from ekiden.ir.op import OpPattern, ShapeCheck
from ekiden.ir.prim import PrimExpr, const, maximum
from ekiden.ir.type import TensorType
from ekiden.relay.op._declare import raise_type_error
from ekiden.relay.op.dynamic import (
    Dims,
    DynamicAttrs,
    check_non_negative,
    declare_dynamic_op,
    load_elements,
    shape_vector_length,
    to_int_tuple,
    unknown_tensor_type,
)
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer


def _broadcast_dims(attrs: DynamicAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, shape = buffers
    target_shape = load_elements(shape)
    checks = []
    for axis, extent in enumerate(data.shape):
        target = target_shape[len(target_shape) - len(data.shape) + axis]
        # A product instead of `or`: 0 exactly where the extent is 1 or the target's.
        fits = ((extent - 1) * (extent - target)).equal(0)
        wrong = f"dimension {axis} of data does not broadcast to the shape"
        checks.append(ShapeCheck(fits, wrong, {"it": extent, "the shape there": target}))
    return target_shape, checks


def _broadcast_type(attrs: DynamicAttrs, types: Sequence[TensorType]) -> TensorType:
    rank = shape_vector_length("dyn.broadcast_to", "shape", types[1])
    if rank < len(types[0].shape):
        raise_type_error(
            "dyn.broadcast_to", f"data of rank {len(types[0].shape)} cannot have rank {rank}"
        )
    return unknown_tensor_type(rank, types[0].dtype)


declare_dynamic_op(
    "dyn.broadcast_to",
    ("data", "shape"),
    DynamicAttrs,
    _broadcast_type,
    _broadcast_dims,
    lambda attrs, inputs, out: [topi.broadcast_to(inputs[0], out.shape)],
    lambda attrs, data, shape: np.broadcast_to(data, to_int_tuple(shape)),
    "`shape`",
    pattern=OpPattern.BROADCAST,
)


def _pad_shape_left(data: Sequence[PrimExpr], count: int) -> list[PrimExpr]:
    # NumPy's rule: shapes are aligned at their last axes.
    return [*([const(1)] * (count - len(data))), *data]


def _tile_dims(attrs: DynamicAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, reps = buffers
    times = load_elements(reps)
    rank = max(len(times), len(data.shape))
    pairs = zip(_pad_shape_left(data.shape, rank), _pad_shape_left(times, rank), strict=True)
    return [d * t for d, t in pairs], [
        ShapeCheck(t >= 0, "a repetition is negative", {"it": t}) for t in times
    ]


def _tile_lower(data: Tensor, shape: Sequence[PrimExpr]) -> Tensor:
    skipped = len(shape) - data.ndim
    return te.compute(
        shape,
        lambda *i: data[[n % maximum(d, 1) for n, d in zip(i[skipped:], data.shape, strict=True)]],
        name="tile",
        tag="injective",
    )


declare_dynamic_op(
    "dyn.tile",
    ("data", "reps"),
    DynamicAttrs,
    lambda attrs, types: unknown_tensor_type(
        max(shape_vector_length("dyn.tile", "reps", types[1]), len(types[0].shape)), types[0].dtype
    ),
    _tile_dims,
    lambda attrs, inputs, out: [_tile_lower(inputs[0], out.shape)],
    lambda attrs, data, reps: np.tile(
        data, check_non_negative("dyn.tile", "a repetition", to_int_tuple(reps))
    ),
    "data's dimensions times reps, aligned at the last",
)
