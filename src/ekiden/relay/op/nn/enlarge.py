"""Volumes enlarged by factors that may be data, and resized to extents that are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.node import node
from ekiden.ir.op import OPS, Array
from ekiden.ir.prim import AnyDim, PrimExpr
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import attempt, call, fail, rank_is
from ekiden.relay.op.dynamic import constant_of, declare_dynamic, dynamic, not_negative, shape_dims
from ekiden.relay.op.image import scaled_size
from ekiden.relay.op.image_sampling import Resize3DAttrs
from ekiden.relay.op.nn.space import UpSampling3DAttrs
from ekiden.te import Tensor
from ekiden.topi.dimensions import known
from ekiden.topi.layout import parse, spatial


@node("relay.attrs.DynResize3DAttrs")
class DynResize3DAttrs(Resize3DAttrs):
    """As of image.resize3d, whose `size` is an argument."""

    symbols: tuple[PrimExpr, ...] = ()


_NAME = "dyn.image.resize3d"


def _kind(attrs: DynResize3DAttrs, types: Sequence[TensorType]) -> TensorType:
    data, size = types
    if [known(d) for d in size.shape] != [3]:
        fail(_NAME, f"size must be (depth, height, width), got {size.shape}")
    rank_is(_NAME, data, len(attempt(_NAME, parse, attrs.layout)), "data")
    axes = spatial(attrs.layout)
    shape = tuple(AnyDim() if at in axes else d for at, d in enumerate(data.shape))
    return TensorType(shape, attrs.out_dtype or data.dtype)


def _lower(attrs: DynResize3DAttrs, inputs: Sequence[Tensor], out: TensorType) -> list[Tensor]:
    size = [out.shape[axis] for axis in spatial(attrs.layout)]
    resized = topi.image.resize3d(
        inputs[0], attrs.roi or None, size, attrs.layout, attrs.method,
        attrs.coordinate_transformation_mode, attrs.rounding_method, attrs.cubic_alpha,
        attrs.cubic_exclude, attrs.extrapolation_value, attrs.out_dtype or None,
    )  # fmt: skip
    return [resized]


def _reference(attrs: DynResize3DAttrs, data: Array, size: Array) -> Array:
    extents = not_negative(_NAME, "a dimension of the result", tuple(size.tolist()))
    fields = {name: getattr(attrs, name) for name in Resize3DAttrs.__dataclass_fields__}
    reference = OPS["image.resize3d"].reference
    assert reference is not None
    resized = reference(Resize3DAttrs(**{**fields, "size": extents}), data)
    assert isinstance(resized, np.ndarray)
    return resized


declare_dynamic(
    _NAME,
    ("data", "size"),
    DynResize3DAttrs,
    _kind,
    shape_dims,
    _lower,
    _reference,
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
    """Return volumes enlarged by factors, which may be scalars of floating point that are data."""
    scales = (scale_d, scale_h, scale_w)
    factors = [constant_of(scale) for scale in scales]
    mode = coordinate_transformation_mode
    if any(factor is None for factor in factors):
        kind = "linear" if method == "trilinear" else method
        attrs = DynResize3DAttrs((), (), layout, kind, mode)
        return dynamic("image.resize3d", data, scaled_size(data, layout, scales), attrs=attrs)
    depth, height, width = (float(np.asarray(f).reshape(())) for f in factors)
    return call(
        "nn.upsampling3d",
        data,
        attrs=UpSampling3DAttrs(depth, height, width, layout, method, mode),
    )


__all__ = ["upsampling3d"]
