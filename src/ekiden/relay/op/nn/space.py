"""Blocks of pixels as channels or batches, mirrored borders, adaptive pooling, losses.

    depth_to_space   [n, c b b, h, w] -> [n, c, h b, w b]: with DCR a pixel's place in its block
                     stands before the channel in the depth, with CRD behind it
    space_to_depth   the inverse
    batch_to_space   the same with the batch, then cropped; space_to_batch pads, then takes apart

Adaptive pooling makes windows [i size / out, ceil((i + 1) size / out)), which overlap where the
sizes do not divide, as PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import OpPattern, Precision
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call, keeps_layout
from ekiden.relay.op._inventory import declare
from ekiden.te import Tensor
from ekiden.topi.dimensions import Dim, Dims, as_attr


@node("relay.attrs.SubPixelAttrs")
class SubPixelAttrs(Attrs):
    """The side of a block, the layout, and where its position stands in the channels."""

    block_size: int = 1
    layout: str = "NCHW"
    mode: str = "DCR"


@node("relay.attrs.SpaceToBatchNDAttrs")
class SpaceToBatchNDAttrs(Attrs):
    """The extents of a block, and (before, after) padding of every axis."""

    block_shape: tuple[int, ...] = ()
    paddings: tuple[Dims, ...] = ()
    pad_value: float = 0.0


@node("relay.attrs.BatchToSpaceNDAttrs")
class BatchToSpaceNDAttrs(Attrs):
    """The extents of a block, and (before, after) what is cut of every axis."""

    block_shape: tuple[int, ...] = ()
    crops: tuple[Dims, ...] = ()


@node("relay.attrs.DilateAttrs")
class DilateAttrs(Attrs):
    """The distance of elements along every axis, and what is between."""

    strides: tuple[int, ...] = ()
    dilation_value: float = 0.0


@node("relay.attrs.FIFOBufferAttrs")
class FIFOBufferAttrs(Attrs):
    """The axis that moves."""

    axis: int = 0


@node("relay.attrs.MirrorPadAttrs")
class MirrorPadAttrs(Attrs):
    """Whether the edge is repeated, and (before, after) widths of every axis."""

    mode: str = "SYMMETRIC"
    pad_width: tuple[Dims, ...] = ()


@node("relay.attrs.L2NormalizeAttrs")
class L2NormalizeAttrs(Attrs):
    """The smallest square of a length, and the axes."""

    eps: float = 1e-10
    axis: tuple[int, ...] | None = None


@node("relay.attrs.AdaptivePool1DAttrs")
class AdaptivePool1DAttrs(Attrs):
    """The extent of the result and the layout."""

    output_size: Dims = (1,)
    layout: str = "NCW"
    out_layout: str = ""


@node("relay.attrs.AdaptiveMaxPool2DAttrs")
class AdaptiveMaxPool2DAttrs(Attrs):
    """The extents of the result and the layout."""

    output_size: Dims = (1, 1)
    layout: str = "NCHW"
    out_layout: str = ""


@node("relay.attrs.AdaptivePool3DAttrs")
class AdaptivePool3DAttrs(Attrs):
    """The extents of the result and the layout."""

    output_size: Dims = (1, 1, 1)
    layout: str = "NCDHW"
    out_layout: str = ""


@node("relay.attrs.UpSampling3DAttrs")
class UpSampling3DAttrs(Attrs):
    """Factors, layout, method and coordinate mode."""

    scale_d: float = 1.0
    scale_h: float = 1.0
    scale_w: float = 1.0
    layout: str = "NCDHW"
    method: str = "nearest_neighbor"
    coordinate_transformation_mode: str = "half_pixel"


@node("relay.attrs.NLLLossAttrs")
class NLLLossAttrs(Attrs):
    """The reduction ("none", "sum", "mean"), and the target that does not count."""

    reduction: str = "mean"
    ignore_index: int = -100


_INJECTIVE, _FUSES = OpPattern.INJECTIVE, OpPattern.OUT_ELEMWISE_FUSABLE
declare(
    "nn.depth_to_space",
    ("data",),
    lambda attrs, data: topi.nn.depth_to_space(data, attrs.block_size, attrs.layout, attrs.mode),
    "block_size**2 times fewer channels, block_size times the extents",
    SubPixelAttrs,
    _INJECTIVE,
    layout="layout",
    precision=Precision.FOLLOW,
)
declare(
    "nn.space_to_depth",
    ("data",),
    lambda attrs, data: topi.nn.space_to_depth(data, attrs.block_size, attrs.layout),
    "block_size**2 times the channels, extents divided by block_size",
    SubPixelAttrs,
    _INJECTIVE,
    layout="layout",
    precision=Precision.FOLLOW,
)
declare(
    "nn.space_to_batch_nd",
    ("data",),
    lambda attrs, data: topi.nn.space_to_batch_nd(
        data,
        attrs.block_shape,
        [p[0] for p in attrs.paddings],
        [p[1] for p in attrs.paddings],
        attrs.pad_value,
    ),
    "the positions of a block times the batch, padded extents divided by the block's",
    SpaceToBatchNDAttrs,
    _INJECTIVE,
)
declare(
    "nn.batch_to_space_nd",
    ("data",),
    lambda attrs, data: topi.nn.batch_to_space_nd(
        data, attrs.block_shape, [c[0] for c in attrs.crops], [c[1] for c in attrs.crops]
    ),
    "the batch divided by the positions of a block, extents times the block's less crops",
    BatchToSpaceNDAttrs,
    _INJECTIVE,
)
declare(
    "nn.dilate",
    ("data",),
    lambda attrs, data: topi.nn.dilate(data, attrs.strides, attrs.dilation_value),
    "(extent - 1) * stride + 1 along every axis",
    DilateAttrs,
    _INJECTIVE,
)
declare(
    "nn.fifo_buffer",
    ("data", "buffer"),
    lambda attrs, data, buffer: topi.nn.fifo_buffer(data, buffer, attrs.axis),
    "the type of buffer",
    FIFOBufferAttrs,
)
declare(
    "nn.mirror_pad",
    ("data",),
    lambda attrs, data: topi.nn.mirror_pad(
        data, [p[0] for p in attrs.pad_width], [p[1] for p in attrs.pad_width], attrs.mode
    ),
    "data's shape plus the widths",
    MirrorPadAttrs,
    _INJECTIVE,
)
declare(
    "nn.l2_normalize",
    ("data",),
    lambda attrs, data: topi.nn.l2_normalize(data, attrs.eps, attrs.axis),
    "the type of data",
    L2NormalizeAttrs,
    _FUSES,
    precision=Precision.NEVER,
)


def _adaptive(
    name: str, pool: Callable[..., Tensor], kind: str, attrs: type[Attrs], layout: str = ""
) -> None:
    def compute(attrs: Any, data: Tensor) -> Tensor:  # noqa: ANN401 - one of three classes
        keeps_layout(attrs)
        return pool(data, attrs.output_size, kind, attrs.layout)

    declare(
        name,
        ("data",),
        compute,
        "data's shape with `output_size` on the spatial axes",
        attrs,
        _FUSES,
        layout=layout,
    )


_adaptive("nn.adaptive_avg_pool1d", topi.nn.adaptive_pool1d, "avg", AdaptivePool1DAttrs)
_adaptive("nn.adaptive_max_pool1d", topi.nn.adaptive_pool1d, "max", AdaptivePool1DAttrs)
_adaptive("nn.adaptive_max_pool2d", topi.nn.adaptive_pool, "max", AdaptiveMaxPool2DAttrs,
          layout="layout")  # fmt: skip
_adaptive("nn.adaptive_avg_pool3d", topi.nn.adaptive_pool3d, "avg", AdaptivePool3DAttrs)
_adaptive("nn.adaptive_max_pool3d", topi.nn.adaptive_pool3d, "max", AdaptivePool3DAttrs)
declare(
    "nn.upsampling3d",
    ("data",),
    lambda attrs, data: topi.nn.upsampling3d(
        data, attrs.scale_d, attrs.scale_h, attrs.scale_w, attrs.layout, attrs.method,
        attrs.coordinate_transformation_mode,
    ),
    "data's shape with the spatial axes times the factors",
    UpSampling3DAttrs,
    _INJECTIVE,
)  # fmt: skip
declare(
    "nn.nll_loss",
    ("predictions", "targets", "weights"),
    lambda attrs, predictions, targets, weights: topi.nn.nll_loss(
        predictions, targets, weights, attrs.reduction, attrs.ignore_index
    ),
    "the shape of targets (a scalar if reduced), with the dtype of predictions",
    NLLLossAttrs,
    refuses=True,
)
declare(
    "nn.cross_entropy",
    ("predictions", "targets"),
    lambda attrs, predictions, targets: topi.nn.cross_entropy(predictions, targets),
    "a scalar with the dtype of predictions",
    takes={"predictions": "floating point"},
    precision=Precision.NEVER,
    reference=lambda attrs, x, y: (-(np.log(x) * y).sum() / x.dtype.type(len(x))).astype(x.dtype),
)
declare(
    "nn.cross_entropy_with_logits",
    ("predictions", "targets"),
    lambda attrs, predictions, targets: topi.nn.cross_entropy_with_logits(predictions, targets),
    "a scalar with the dtype of predictions",
    takes={"predictions": "floating point"},
    precision=Precision.NEVER,
    reference=lambda attrs, x, y: (-(x * y).sum() / x.dtype.type(len(x))).astype(x.dtype),
)


def depth_to_space(data: Expr, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> Call:
    """Return channels as blocks of pixels."""
    return call("nn.depth_to_space", data, attrs=SubPixelAttrs(block_size, layout, mode))


def space_to_depth(data: Expr, block_size: int, layout: str = "NCHW") -> Call:
    """Return blocks of pixels as channels."""
    return call("nn.space_to_depth", data, attrs=SubPixelAttrs(block_size, layout))


def _pairs(widths: Sequence[Sequence[Dim]]) -> tuple[Dims, ...]:
    return tuple(as_attr(w) for w in widths)


def space_to_batch_nd(
    data: Expr,
    block_shape: Sequence[int],
    paddings: Sequence[Sequence[Dim]],
    pad_value: float = 0,
) -> Call:
    """Return padded axes cut into blocks whose positions become batches."""
    attrs = SpaceToBatchNDAttrs(tuple(block_shape), _pairs(paddings), float(pad_value))
    return call("nn.space_to_batch_nd", data, attrs=attrs)


def batch_to_space_nd(
    data: Expr, block_shape: Sequence[int], crops: Sequence[Sequence[Dim]]
) -> Call:
    """Return batches as positions in blocks, then cropped."""
    attrs = BatchToSpaceNDAttrs(tuple(block_shape), _pairs(crops))
    return call("nn.batch_to_space_nd", data, attrs=attrs)


def dilate(data: Expr, strides: Sequence[int], dilation_value: float = 0.0) -> Call:
    """Return elements `strides` apart, with a value between them."""
    return call("nn.dilate", data, attrs=DilateAttrs(tuple(strides), dilation_value))


def fifo_buffer(data: Expr, buffer: Expr, axis: int) -> Call:
    """Return a buffer moved along an axis to take in `data` at its end."""
    return call("nn.fifo_buffer", data, buffer, attrs=FIFOBufferAttrs(axis))


def mirror_pad(data: Expr, pad_width: Sequence[Sequence[Dim]], mode: str = "SYMMETRIC") -> Call:
    """Return `data` with mirrored borders."""
    return call("nn.mirror_pad", data, attrs=MirrorPadAttrs(mode, _pairs(pad_width)))


def l2_normalize(data: Expr, eps: float, axis: Sequence[int] | None = None) -> Call:
    """Return `data` divided by the root of the sum of squares along axes, at least the
    root of eps.
    """
    attrs = L2NormalizeAttrs(eps, None if axis is None else tuple(axis))
    return call("nn.l2_normalize", data, attrs=attrs)


Size = Dim | Sequence[Dim] | None
"""One extent for all axes, one for each, or None for those of the data."""


def _size(output_size: Size, rank: int) -> Dims:
    if output_size is None:
        return ()
    extents = (output_size,) * rank if isinstance(output_size, Dim) else output_size
    return as_attr(extents)


def adaptive_avg_pool1d(data: Expr, output_size: Size = None, layout: str = "NCW") -> Call:
    """Return the mean of windows that divide one axis."""
    attrs = AdaptivePool1DAttrs(_size(output_size, 1), layout)
    return call("nn.adaptive_avg_pool1d", data, attrs=attrs)


def adaptive_max_pool1d(data: Expr, output_size: Size = None, layout: str = "NCW") -> Call:
    """Return the maximum of windows that divide one axis."""
    attrs = AdaptivePool1DAttrs(_size(output_size, 1), layout)
    return call("nn.adaptive_max_pool1d", data, attrs=attrs)


def adaptive_max_pool2d(data: Expr, output_size: Size = None, layout: str = "NCHW") -> Call:
    """Return the maximum of windows that divide two axes."""
    attrs = AdaptiveMaxPool2DAttrs(_size(output_size, 2), layout)
    return call("nn.adaptive_max_pool2d", data, attrs=attrs)


def adaptive_avg_pool3d(data: Expr, output_size: Size = None, layout: str = "NCDHW") -> Call:
    """Return the mean of windows that divide three axes."""
    attrs = AdaptivePool3DAttrs(_size(output_size, 3), layout)
    return call("nn.adaptive_avg_pool3d", data, attrs=attrs)


def adaptive_max_pool3d(data: Expr, output_size: Size = None, layout: str = "NCDHW") -> Call:
    """Return the maximum of windows that divide three axes."""
    attrs = AdaptivePool3DAttrs(_size(output_size, 3), layout)
    return call("nn.adaptive_max_pool3d", data, attrs=attrs)


def nll_loss(
    predictions: Expr,
    targets: Expr,
    weights: Expr,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Call:
    """Return the negative log-likelihood of targets under log-probabilities, weighted by class."""
    attrs = NLLLossAttrs(reduction, ignore_index)
    return call("nn.nll_loss", predictions, targets, weights, attrs=attrs)


def cross_entropy(predictions: Expr, targets: Expr) -> Call:
    """Return -sum(targets * log(predictions)) / batch."""
    return call("nn.cross_entropy", predictions, targets)


def cross_entropy_with_logits(predictions: Expr, targets: Expr) -> Call:
    """Return -sum(targets * predictions) / batch, for log-probabilities."""
    return call("nn.cross_entropy_with_logits", predictions, targets)


__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "batch_to_space_nd", "cross_entropy", "cross_entropy_with_logits",
    "depth_to_space", "dilate", "fifo_buffer", "l2_normalize", "mirror_pad", "nll_loss",
    "space_to_batch_nd", "space_to_depth",
]  # fmt: skip
