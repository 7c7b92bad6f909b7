"""3x3 convolutions by Winograd's method, and the weights they take."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import OpDef, OpPattern, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import agree, attrs_of, call, fail, one_dtype, rank_is, tensors
from ekiden.relay.op._window import WindowAttrs
from ekiden.relay.op.nn._work import product
from ekiden.topi.dimensions import as_dim, ceil_div, tidy
from ekiden.topi.nn.winograd import (
    CHANNELS_PER_STEP,
    INTERPOLATION_POINTS,
    WINOGRAD_TAPS,
    convolve,
    transform_weight,
)

_WEIGHT = "nn.contrib_conv2d_winograd_weight_transform"
_CONV = "nn.contrib_conv2d_winograd_without_weight_transform"


@node("relay.attrs.WinogradWeightAttrs")
class WinogradWeightAttrs(Attrs):
    """The side of an output tile (2 or 4), and the width of a panel of output channels."""

    tile_size: int = 4
    tile: int = 16


@node("relay.attrs.WinogradAttrs")
class WinogradAttrs(WindowAttrs):
    """The side of an output tile, the number of output channels, (top, left, bottom, right)."""

    tile_size: int = 4
    channels: int = 0
    padding: tuple[int, ...] = (0, 0, 0, 0)


def _check_size(name: str, size: int) -> int:
    if size not in INTERPOLATION_POINTS:
        fail(
            name,
            "attribute 'tile_size' must be one of "
            f"{', '.join(map(str, INTERPOLATION_POINTS))}, got {size}",
        )
    return (size + WINOGRAD_TAPS - 1) ** 2


def _weight_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (weight,) = tensors(_WEIGHT, types, 1)
    settings = attrs_of(WinogradWeightAttrs, attrs)
    rank_is(_WEIGHT, weight, 4, "weight")
    products = _check_size(_WEIGHT, settings.tile_size)
    for dim in weight.shape[2:]:
        agree(_WEIGHT, dim, as_dim(WINOGRAD_TAPS), "the kernel size of 'weight' and 3")
    out, channels = weight.shape[:2]
    panels = tidy(ceil_div(out, settings.tile))
    if weight.dtype == "int8":
        words = tidy(ceil_div(channels, CHANNELS_PER_STEP))
        paired = (as_dim(products), panels, words, as_dim(settings.tile), as_dim(CHANNELS_PER_STEP))
        return TensorType(paired, "int16")
    return TensorType((as_dim(products), panels, channels, as_dim(settings.tile)), weight.dtype)


def _conv_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = tensors(_CONV, types, 2)
    settings = attrs_of(WinogradAttrs, attrs)
    rank_is(_CONV, data, 4, "data")
    is_integer = weight.dtype == "int16"
    rank_is(_CONV, weight, 5 if is_integer else 4, "weight")
    if is_integer and data.dtype != "uint8":
        fail(_CONV, f"'data' must be uint8 beside a 'weight' of int16, got {data.dtype}")
    dtype = "int32" if is_integer else one_dtype(_CONV, (data, weight))
    products = as_dim(_check_size(_CONV, settings.tile_size))
    agree(_CONV, products, weight.shape[0], "attribute 'tile_size' and 'weight'")
    depth = tidy(ceil_div(data.shape[3], CHANNELS_PER_STEP)) if is_integer else data.shape[3]
    agree(_CONV, depth, weight.shape[2], "the channels of 'data' and 'weight'")
    top, left_pad, bottom, right = settings.padding
    rows = tidy(data.shape[1] + (top + bottom - WINOGRAD_TAPS + 1))
    columns = tidy(data.shape[2] + (left_pad + right - WINOGRAD_TAPS + 1))
    return TensorType((data.shape[0], rows, columns, as_dim(settings.channels)), dtype)


register_op(
    OpDef(
        name=_WEIGHT,
        arguments=("weight",),
        attrs=WinogradWeightAttrs,
        relation=_weight_relation,
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
        name=_CONV,
        kernels=("winograd_conv2d",),
        arguments=("data", "weight"),
        attrs=WinogradAttrs,
        relation=_conv_relation,
        macs=lambda attrs, shapes, result: product(result) * shapes[0][3] * WINOGRAD_TAPS**2,
        reference=lambda attrs, x, w: convolve(
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
    """Return a constant OIHW weight in the form that the operator below takes."""
    return call(_WEIGHT, weight, attrs=WinogradWeightAttrs(tile_size, tile))


def contrib_conv2d_winograd_without_weight_transform(
    data: Expr, weight: Expr, tile_size: int, channels: int, padding: tuple[int, int, int, int]
) -> Call:
    """Return a 3x3 convolution of NHWC data with a transformed weight."""
    return call(_CONV, data, weight, attrs=WinogradAttrs(tile_size, channels, padding))


__all__ = [
    "contrib_conv2d_winograd_weight_transform",
    "contrib_conv2d_winograd_without_weight_transform",
]
