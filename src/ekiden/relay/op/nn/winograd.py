"""Winograd convolution F(2x2, 3x3) and F(4x4, 3x3), and its weight transform."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import OpDef, OpPattern, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    call_op,
    check_attrs,
    check_rank,
    check_same_dtype,
    check_tensors,
    raise_type_error,
    unify_dims,
)
from ekiden.relay.op._window import WindowAttrs
from ekiden.relay.op.nn._macs import multiply_dims
from ekiden.topi.dimensions import as_dim, ceil_div, simplify_dim
from ekiden.topi.nn.winograd import (
    CHANNELS_PER_PAIR,
    INTERPOLATION_POINTS,
    WINOGRAD_TAPS,
    reference_conv2d,
    transform_weight,
)

_WEIGHT_TRANSFORM_OP = "nn.contrib_conv2d_winograd_weight_transform"
_WINOGRAD_CONV_OP = "nn.contrib_conv2d_winograd_without_weight_transform"


@node("relay.attrs.WinogradWeightAttrs")
class WinogradWeightAttrs(Attrs):
    """Attributes of the Winograd weight transform: output tile size (2 or 4), panel width."""

    tile_size: int = 4
    tile: int = 16


@node("relay.attrs.WinogradAttrs")
class WinogradAttrs(WindowAttrs):
    """Attributes of the Winograd convolution: output tile size, channels, padding (top, left,
    bottom, right).
    """

    tile_size: int = 4
    channels: int = 0
    padding: tuple[int, ...] = (0, 0, 0, 0)


def _transformed_size(name: str, size: int) -> int:
    if size not in INTERPOLATION_POINTS:
        raise_type_error(
            name,
            "attribute 'tile_size' must be one of "
            f"{', '.join(map(str, INTERPOLATION_POINTS))}, got {size}",
        )
    # F(m, 3) multiplies (m + 2)^2 transformed elements for m^2 results.
    return (size + WINOGRAD_TAPS - 1) ** 2


def _weight_transform_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (weight,) = check_tensors(_WEIGHT_TRANSFORM_OP, types, 1)
    settings = check_attrs(WinogradWeightAttrs, attrs)
    check_rank(_WEIGHT_TRANSFORM_OP, weight, 4, "weight")
    products = _transformed_size(_WEIGHT_TRANSFORM_OP, settings.tile_size)
    for dim in weight.shape[2:]:
        unify_dims(
            _WEIGHT_TRANSFORM_OP, dim, as_dim(WINOGRAD_TAPS), "the kernel size of 'weight' and 3"
        )
    out, channels = weight.shape[:2]
    panels = simplify_dim(ceil_div(out, settings.tile))
    if weight.dtype == "int8":
        # int16 products are summed in pairs (pmaddwd): input channels are filled up to whole pairs.
        words = simplify_dim(ceil_div(channels, CHANNELS_PER_PAIR))
        paired = (as_dim(products), panels, words, as_dim(settings.tile), as_dim(CHANNELS_PER_PAIR))
        return TensorType(paired, "int16")
    return TensorType((as_dim(products), panels, channels, as_dim(settings.tile)), weight.dtype)


def _winograd_conv_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = check_tensors(_WINOGRAD_CONV_OP, types, 2)
    settings = check_attrs(WinogradAttrs, attrs)
    check_rank(_WINOGRAD_CONV_OP, data, 4, "data")
    is_integer = weight.dtype == "int16"
    check_rank(_WINOGRAD_CONV_OP, weight, 5 if is_integer else 4, "weight")
    if is_integer and data.dtype != "uint8":
        raise_type_error(
            _WINOGRAD_CONV_OP, f"'data' must be uint8 beside a 'weight' of int16, got {data.dtype}"
        )
    dtype = "int32" if is_integer else check_same_dtype(_WINOGRAD_CONV_OP, (data, weight))
    products = as_dim(_transformed_size(_WINOGRAD_CONV_OP, settings.tile_size))
    unify_dims(_WINOGRAD_CONV_OP, products, weight.shape[0], "attribute 'tile_size' and 'weight'")
    depth = (
        simplify_dim(ceil_div(data.shape[3], CHANNELS_PER_PAIR)) if is_integer else data.shape[3]
    )
    unify_dims(_WINOGRAD_CONV_OP, depth, weight.shape[2], "the channels of 'data' and 'weight'")
    top, left_pad, bottom, right = settings.padding
    # Without strides, a window of 3 taps shortens each axis by 2.
    rows = simplify_dim(data.shape[1] + (top + bottom - WINOGRAD_TAPS + 1))
    columns = simplify_dim(data.shape[2] + (left_pad + right - WINOGRAD_TAPS + 1))
    return TensorType((data.shape[0], rows, columns, as_dim(settings.channels)), dtype)


register_op(
    OpDef(
        name=_WEIGHT_TRANSFORM_OP,
        arguments=("weight",),
        attrs=WinogradWeightAttrs,
        relation=_weight_transform_relation,
        reference=lambda attrs, w: transform_weight(w, attrs.tile_size, attrs.tile),
        lower=lambda attrs, inputs, out: [
            topi.nn.winograd_weight(inputs[0], attrs.tile_size, attrs.tile)
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="the shape of the transformed weight",
        description="A 3x3 weight (OIHW) as the products of Winograd's method take it; of int8 as"
        " int16, two input channels side by side.",
    )
)
register_op(
    OpDef(
        name=_WINOGRAD_CONV_OP,
        kernels=("winograd_conv2d",),
        arguments=("data", "weight"),
        attrs=WinogradAttrs,
        relation=_winograd_conv_relation,
        macs=lambda attrs, shapes, result: multiply_dims(result) * shapes[0][3] * WINOGRAD_TAPS**2,
        reference=lambda attrs, x, w: reference_conv2d(
            x, w, attrs.tile_size, attrs.channels, attrs.padding
        ),
        lower=lambda attrs, inputs, out: [
            topi.nn.winograd_conv2d(
                inputs[0], inputs[1], attrs.tile_size, attrs.channels, attrs.padding
            )
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(n, h, w, channels), as nn.conv2d",
        description="A 3x3 convolution of NHWC data without strides, by Winograd's method. Sums of"
        " uint8 with a weight that was int8 are exact below 2^25 (2^29 for tiles of 2x2).",
    )
)


def contrib_conv2d_winograd_weight_transform(weight: Expr, tile_size: int, tile: int) -> Call:
    """Transform a constant OIHW weight to the Winograd domain."""
    return call_op(_WEIGHT_TRANSFORM_OP, weight, attrs=WinogradWeightAttrs(tile_size, tile))


def contrib_conv2d_winograd_without_weight_transform(
    data: Expr, weight: Expr, tile_size: int, channels: int, padding: tuple[int, int, int, int]
) -> Call:
    """Return a 3x3 convolution of NHWC data with a Winograd-transformed weight."""
    return call_op(
        _WINOGRAD_CONV_OP, data, weight, attrs=WinogradAttrs(tile_size, channels, padding)
    )


__all__ = [
    "contrib_conv2d_winograd_weight_transform",
    "contrib_conv2d_winograd_without_weight_transform",
]
