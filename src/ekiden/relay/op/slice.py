"""Strided slices with static or symbolic bounds.

As NumPy's: negative bounds count from the end, and bounds beyond an axis are moved to its ends,
which of symbols are expressions (min(n, 5)); a stride below 0 goes backwards from `begin`, which is
included, to `end`, which is not. slice_mode "size" takes `end` for extents, -1 for all that is
left, and no strides (TVM's). An extent is max(0, ceil((end - begin) / stride)).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, PrecisionPolicy, TransposeRule, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Constant, Expr, const
from ekiden.relay.op._declare import call_op, call_shape_rule, check_attrs, check_tensors
from ekiden.relay.op.create import ones_like
from ekiden.relay.op.dynamic import call_dynamic, constant_value
from ekiden.relay.op.dynamic_slice import DynStridedSliceAttrs
from ekiden.topi.dimensions import Dim, Dims, Shape, as_ints, as_shape, to_attr_dims
from ekiden.topi.slice import slice_by_ranges, slice_ranges


@node("relay.attrs.StridedSliceAttrs")
class StridedSliceAttrs(Attrs):
    """Attributes of strided_slice: begin:end:stride per axis as in NumPy; axes None means the
    leading ones.

    Bounds may be symbolic, strides are numbers. A bound of at least 2**31 - 1 in size means "to the
    end" of an axis of unknown extent.
    """

    begin: Dims = ()
    end: Dims = ()
    strides: tuple[int, ...] = ()
    slice_mode: str = "end"
    axes: tuple[int, ...] | None = None


def normalize_slice(attrs: StridedSliceAttrs, shape: Shape) -> list[tuple[PrimExpr, int, PrimExpr]]:
    """Return the normalised (begin, stride, extent) of every axis.

    Raises:
        ValueError: An axis is out of range, or a stride is 0.
    """
    return slice_ranges(shape, attrs.begin, attrs.end, attrs.strides, attrs.axes, attrs.slice_mode)


def _strided_slice_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("strided_slice", types, 1)
    ranges = call_shape_rule(
        "strided_slice", normalize_slice, check_attrs(StridedSliceAttrs, attrs), data.shape
    )
    return TensorType(tuple(extent for _, _, extent in ranges), data.dtype)


def _strided_slice_reference(attrs: StridedSliceAttrs, data: Array) -> Array:
    for index, (first, stride, extent) in enumerate(normalize_slice(attrs, as_shape(data.shape))):
        begin, count = as_ints((first, extent))
        # NumPy's slices cannot end before the first element with a negative stride.
        data = np.take(data, begin + stride * np.arange(count), axis=index)
    return data


register_op(
    OpDef(
        name="strided_slice",
        transpose_rule=TransposeRule.BOX,
        precision=PrecisionPolicy.FOLLOW,
        arguments=("data",),
        attrs=StridedSliceAttrs,
        relation=_strided_slice_relation,
        reference=_strided_slice_reference,
        lower=lambda attrs, inputs, out: [
            slice_by_ranges(inputs[0], normalize_slice(attrs, inputs[0].shape))
        ],
        pattern=OpPattern.INJECTIVE,
        boxes=lambda attrs, shape: [normalize_slice(attrs, tuple(shape))],
        result="per axis, ceil((end - begin) / stride) clipped to data's extent",
    )
)


def _build_dynamic_slice(
    data: Expr,
    bounds: Sequence[Sequence[Dim] | Expr | None],
    axes: tuple[int, ...] | None,
    slice_mode: str,
) -> Call:
    begin, end, strides = (
        b if b is None or isinstance(b, Expr) else const(np.array(as_ints(b), np.int64))
        for b in bounds
    )
    assert begin is not None and end is not None
    steps = ones_like(begin) if strides is None else strides
    attrs = DynStridedSliceAttrs(slice_mode, axes)
    return call_dynamic("strided_slice", data, begin, end, steps, attrs=attrs)


def strided_slice(
    data: Expr,
    begin: Sequence[Dim] | Expr,
    end: Sequence[Dim] | Expr,
    strides: Sequence[int] | Expr | None = None,
    axes: Sequence[int] | None = None,
    slice_mode: str = "end",
) -> Call:
    """Slice each axis; see StridedSliceAttrs.

    If bounds are expressions that are no constants, the result's shape is data.
    """
    bounds = begin, end, strides
    # One bound that is data makes all of them data.
    if any(isinstance(b, Expr) and not isinstance(b, Constant) for b in bounds):
        return _build_dynamic_slice(data, bounds, None if axes is None else tuple(axes), slice_mode)
    first, last, by = map(constant_value, bounds)
    steps = (1,) * len(first) if by is None else tuple(by)
    chosen = None if axes is None else tuple(axes)
    attrs = StridedSliceAttrs(to_attr_dims(first), to_attr_dims(last), steps, slice_mode, chosen)
    return call_op("strided_slice", data, attrs=attrs)


__all__ = ["strided_slice"]
