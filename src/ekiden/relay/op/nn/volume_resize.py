"""3-D upsampling and resizing with run-time factors or extents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.node import node
from ekiden.ir.op import OPS, Array
from ekiden.ir.prim import AnyDim, PrimExpr
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Expr, const
from ekiden.relay.op._declare import call_op, call_shape_rule, check_rank, raise_type_error
from ekiden.relay.op.broadcast import multiply
from ekiden.relay.op.create import shape_of
from ekiden.relay.op.dynamic import (
    call_dynamic,
    check_non_negative,
    constant_value,
    declare_dynamic_op,
    dims_from_shape_argument,
)
from ekiden.relay.op.elementwise import cast
from ekiden.relay.op.elementwise import round as rounded
from ekiden.relay.op.image_sampling import Resize3DAttrs
from ekiden.relay.op.index import take
from ekiden.relay.op.join import concatenate
from ekiden.relay.op.nn.space_to_batch import UpSampling3DAttrs
from ekiden.relay.op.reshaping import reshape
from ekiden.te import Tensor
from ekiden.tir.data_layout import parse_layout
from ekiden.topi.dimensions import known_int
from ekiden.topi.layout import spatial_axis_indices


@node("relay.attrs.DynResize3DAttrs")
class DynResize3DAttrs(Resize3DAttrs):
    """Attributes of dyn.image.resize3d: those of image.resize3d with the size as an argument."""

    symbols: tuple[PrimExpr, ...] = ()


_DYN_RESIZE3D_OP = "dyn.image.resize3d"


def _dyn_resize3d_type(attrs: DynResize3DAttrs, types: Sequence[TensorType]) -> TensorType:
    data, size = types
    if [known_int(d) for d in size.shape] != [3]:
        raise_type_error(_DYN_RESIZE3D_OP, f"size must be (depth, height, width), got {size.shape}")
    check_rank(
        _DYN_RESIZE3D_OP,
        data,
        len(call_shape_rule(_DYN_RESIZE3D_OP, parse_layout, attrs.layout)),
        "data",
    )
    axes = spatial_axis_indices(attrs.layout)
    shape = tuple(AnyDim() if index in axes else d for index, d in enumerate(data.shape))
    return TensorType(shape, attrs.out_dtype or data.dtype)


def _lower_dyn_resize3d(
    attrs: DynResize3DAttrs, inputs: Sequence[Tensor], out: TensorType
) -> list[Tensor]:
    size = [out.shape[axis] for axis in spatial_axis_indices(attrs.layout)]
    resized = topi.image.resize3d(
        inputs[0], attrs.roi or None, size, attrs.layout, attrs.method,
        attrs.coordinate_transformation_mode, attrs.rounding_method, attrs.cubic_alpha,
        attrs.cubic_exclude, attrs.extrapolation_value, attrs.out_dtype or None,
    )  # fmt: skip
    return [resized]


def _dyn_resize3d_reference(attrs: DynResize3DAttrs, data: Array, size: Array) -> Array:
    extents = check_non_negative(
        _DYN_RESIZE3D_OP, "a dimension of the result", tuple(size.tolist())
    )
    fields = {name: getattr(attrs, name) for name in Resize3DAttrs.__dataclass_fields__}
    reference = OPS["image.resize3d"].reference
    assert reference is not None
    resized = reference(Resize3DAttrs(**{**fields, "size": extents}), data)
    assert isinstance(resized, np.ndarray)
    return resized


declare_dynamic_op(
    _DYN_RESIZE3D_OP,
    ("data", "size"),
    DynResize3DAttrs,
    _dyn_resize3d_type,
    dims_from_shape_argument,
    _lower_dyn_resize3d,
    _dyn_resize3d_reference,
    "data with the extents `size` along D, H and W of its layout; `out_dtype`, if given",
    layout="layout",
)


def upsampling3d(
    data: Expr,
    scale_d: float | Expr = 1,
    scale_h: float | Expr = 1,
    scale_w: float | Expr = 1,
    layout: str = "NCDHW",
    method: str = "nearest_neighbor",
    coordinate_transformation_mode: str = "half_pixel",
) -> Call:
    """Upsample volumes by factors, which may be float scalars given as tensors."""
    scales = (scale_d, scale_h, scale_w)
    factors = [constant_value(scale) for scale in scales]
    mode = coordinate_transformation_mode
    # One factor that is data makes all extents data.
    if any(factor is None for factor in factors):
        kind = "linear" if method == "trilinear" else method
        attrs = DynResize3DAttrs((), (), layout, kind, mode)
        return call_dynamic("image.resize3d", data, _scaled_size(data, layout, scales), attrs=attrs)
    depth, height, width = (float(np.asarray(f).reshape(())) for f in factors)
    return call_op(
        "nn.upsampling3d",
        data,
        attrs=UpSampling3DAttrs(depth, height, width, layout, method, mode),
    )


def _scaled_size(data: Expr, layout: str, scales: Sequence[float | Expr]) -> Expr:
    """Return volume extents times factors, rounded."""
    spatial_axes = const(np.array(spatial_axis_indices(layout), np.int64))
    # float32, as the static form computes the extents.
    extents = cast(take(shape_of(data, "int64"), spatial_axes), "float32")
    scale_exprs = [s if isinstance(s, Expr) else const(np.float32(s)) for s in scales]
    factors = concatenate([reshape(cast(s, "float32"), (1,)) for s in scale_exprs], 0)
    return cast(rounded(multiply(extents, factors)), "int64")


__all__ = ["upsampling3d"]
