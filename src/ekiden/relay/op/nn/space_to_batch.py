"""Space-to-depth and space-to-batch, mirror padding, adaptive pooling, L2 normalisation, losses.

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
from ekiden.ir.op import OpPattern, PrecisionPolicy
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op, check_out_layout
from ekiden.relay.op._declare_topi import declare_topi_op
from ekiden.te import Tensor
from ekiden.topi.dimensions import Dim, Dims, to_attr_dims


@node("relay.attrs.SubPixelAttrs")
class SubPixelAttrs(Attrs):
    """Attributes of depth_to_space and space_to_depth: block size, layout, mode."""

    block_size: int = 1
    layout: str = "NCHW"
    mode: str = "DCR"


@node("relay.attrs.SpaceToBatchNDAttrs")
class SpaceToBatchNDAttrs(Attrs):
    """Attributes of space_to_batch_nd: block shape, (before, after) paddings, pad value."""

    block_shape: tuple[int, ...] = ()
    paddings: tuple[Dims, ...] = ()
    pad_value: float = 0.0


@node("relay.attrs.BatchToSpaceNDAttrs")
class BatchToSpaceNDAttrs(Attrs):
    """Attributes of batch_to_space_nd: block shape, (before, after) crops."""

    block_shape: tuple[int, ...] = ()
    crops: tuple[Dims, ...] = ()


@node("relay.attrs.DilateAttrs")
class DilateAttrs(Attrs):
    """Attributes of dilate: strides per axis and the fill value."""

    strides: tuple[int, ...] = ()
    dilation_value: float = 0.0


@node("relay.attrs.FIFOBufferAttrs")
class FIFOBufferAttrs(Attrs):
    """Attributes of fifo_buffer: the axis."""

    axis: int = 0


@node("relay.attrs.MirrorPadAttrs")
class MirrorPadAttrs(Attrs):
    """Attributes of mirror_pad: mode ("SYMMETRIC" repeats the edge) and pad widths."""

    mode: str = "SYMMETRIC"
    pad_width: tuple[Dims, ...] = ()


@node("relay.attrs.L2NormalizeAttrs")
class L2NormalizeAttrs(Attrs):
    """Attributes of l2_normalize: epsilon and axes."""

    eps: float = 1e-10
    axis: tuple[int, ...] | None = None


@node("relay.attrs.AdaptivePool1DAttrs")
class AdaptivePool1DAttrs(Attrs):
    """Attributes of 1-D adaptive pooling: output size and layout."""

    output_size: Dims = (1,)
    layout: str = "NCW"
    out_layout: str = ""


@node("relay.attrs.AdaptiveMaxPool2DAttrs")
class AdaptiveMaxPool2DAttrs(Attrs):
    """Attributes of adaptive_max_pool2d: output size and layout."""

    output_size: Dims = (1, 1)
    layout: str = "NCHW"
    out_layout: str = ""


@node("relay.attrs.AdaptivePool3DAttrs")
class AdaptivePool3DAttrs(Attrs):
    """Attributes of 3-D adaptive pooling: output size and layout."""

    output_size: Dims = (1, 1, 1)
    layout: str = "NCDHW"
    out_layout: str = ""


@node("relay.attrs.UpSampling3DAttrs")
class UpSampling3DAttrs(Attrs):
    """Attributes of upsampling3d: factors, layout, method, coordinate transformation."""

    scale_d: float = 1.0
    scale_h: float = 1.0
    scale_w: float = 1.0
    layout: str = "NCDHW"
    method: str = "nearest_neighbor"
    coordinate_transformation_mode: str = "half_pixel"


@node("relay.attrs.NLLLossAttrs")
class NLLLossAttrs(Attrs):
    """Attributes of nll_loss: reduction ("none", "sum", "mean") and ignore_index."""

    reduction: str = "mean"
    ignore_index: int = -100


_INJECTIVE_PATTERN, _OUT_FUSABLE_PATTERN = OpPattern.INJECTIVE, OpPattern.OUT_ELEMWISE_FUSABLE
declare_topi_op(
    "nn.depth_to_space",
    ("data",),
    lambda attrs, data: topi.nn.depth_to_space(data, attrs.block_size, attrs.layout, attrs.mode),
    "block_size**2 times fewer channels, block_size times the extents",
    SubPixelAttrs,
    _INJECTIVE_PATTERN,
    layout="layout",
    precision=PrecisionPolicy.FOLLOW,
)
declare_topi_op(
    "nn.space_to_depth",
    ("data",),
    lambda attrs, data: topi.nn.space_to_depth(data, attrs.block_size, attrs.layout),
    "block_size**2 times the channels, extents divided by block_size",
    SubPixelAttrs,
    _INJECTIVE_PATTERN,
    layout="layout",
    precision=PrecisionPolicy.FOLLOW,
)
declare_topi_op(
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
    _INJECTIVE_PATTERN,
)
declare_topi_op(
    "nn.batch_to_space_nd",
    ("data",),
    lambda attrs, data: topi.nn.batch_to_space_nd(
        data, attrs.block_shape, [c[0] for c in attrs.crops], [c[1] for c in attrs.crops]
    ),
    "the batch divided by the positions of a block, extents times the block's less crops",
    BatchToSpaceNDAttrs,
    _INJECTIVE_PATTERN,
)
declare_topi_op(
    "nn.dilate",
    ("data",),
    lambda attrs, data: topi.nn.dilate(data, attrs.strides, attrs.dilation_value),
    "(extent - 1) * stride + 1 along every axis",
    DilateAttrs,
    _INJECTIVE_PATTERN,
)
declare_topi_op(
    "nn.fifo_buffer",
    ("data", "buffer"),
    lambda attrs, data, buffer: topi.nn.fifo_buffer(data, buffer, attrs.axis),
    "the type of buffer",
    FIFOBufferAttrs,
)
declare_topi_op(
    "nn.mirror_pad",
    ("data",),
    lambda attrs, data: topi.nn.mirror_pad(
        data, [p[0] for p in attrs.pad_width], [p[1] for p in attrs.pad_width], attrs.mode
    ),
    "data's shape plus the widths",
    MirrorPadAttrs,
    _INJECTIVE_PATTERN,
)
declare_topi_op(
    "nn.l2_normalize",
    ("data",),
    lambda attrs, data: topi.nn.l2_normalize(data, attrs.eps, attrs.axis),
    "the type of data",
    L2NormalizeAttrs,
    _OUT_FUSABLE_PATTERN,
    precision=PrecisionPolicy.NEVER,
)


def _declare_adaptive_pool(
    name: str, pool: Callable[..., Tensor], kind: str, attrs: type[Attrs], layout: str = ""
) -> None:
    def compute(attrs: Any, data: Tensor) -> Tensor:  # noqa: ANN401 - one of three classes
        check_out_layout(attrs)
        return pool(data, attrs.output_size, kind, attrs.layout)

    declare_topi_op(
        name,
        ("data",),
        compute,
        "data's shape with `output_size` on the spatial axes",
        attrs,
        _OUT_FUSABLE_PATTERN,
        layout=layout,
    )


_declare_adaptive_pool(
    "nn.adaptive_avg_pool1d", topi.nn.adaptive_pool1d, "avg", AdaptivePool1DAttrs
)
_declare_adaptive_pool(
    "nn.adaptive_max_pool1d", topi.nn.adaptive_pool1d, "max", AdaptivePool1DAttrs
)
_declare_adaptive_pool(
    "nn.adaptive_max_pool2d", topi.nn.adaptive_pool, "max", AdaptiveMaxPool2DAttrs, layout="layout"
)
_declare_adaptive_pool(
    "nn.adaptive_avg_pool3d", topi.nn.adaptive_pool3d, "avg", AdaptivePool3DAttrs
)
_declare_adaptive_pool(
    "nn.adaptive_max_pool3d", topi.nn.adaptive_pool3d, "max", AdaptivePool3DAttrs
)
declare_topi_op(
    "nn.upsampling3d",
    ("data",),
    lambda attrs, data: topi.nn.upsampling3d(
        data, attrs.scale_d, attrs.scale_h, attrs.scale_w, attrs.layout, attrs.method,
        attrs.coordinate_transformation_mode,
    ),
    "data's shape with the spatial axes times the factors",
    UpSampling3DAttrs,
    _INJECTIVE_PATTERN,
)  # fmt: skip
declare_topi_op(
    "nn.nll_loss",
    ("predictions", "targets", "weights"),
    lambda attrs, predictions, targets, weights: topi.nn.nll_loss(
        predictions, targets, weights, attrs.reduction, attrs.ignore_index
    ),
    "the shape of targets (a scalar if reduced), with the dtype of predictions",
    NLLLossAttrs,
    refuses=True,
)
declare_topi_op(
    "nn.cross_entropy",
    ("predictions", "targets"),
    lambda attrs, predictions, targets: topi.nn.cross_entropy(predictions, targets),
    "a scalar with the dtype of predictions",
    takes={"predictions": "floating point"},
    precision=PrecisionPolicy.NEVER,
    reference=lambda attrs, x, y: (-(np.log(x) * y).sum() / x.dtype.type(len(x))).astype(x.dtype),
)
declare_topi_op(
    "nn.cross_entropy_with_logits",
    ("predictions", "targets"),
    lambda attrs, predictions, targets: topi.nn.cross_entropy_with_logits(predictions, targets),
    "a scalar with the dtype of predictions",
    takes={"predictions": "floating point"},
    precision=PrecisionPolicy.NEVER,
    reference=lambda attrs, x, y: (-(x * y).sum() / x.dtype.type(len(x))).astype(x.dtype),
)


def depth_to_space(data: Expr, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> Call:
    """Rearrange channels into blocks of pixels."""
    return call_op("nn.depth_to_space", data, attrs=SubPixelAttrs(block_size, layout, mode))


def space_to_depth(data: Expr, block_size: int, layout: str = "NCHW") -> Call:
    """Rearrange blocks of pixels into channels."""
    return call_op("nn.space_to_depth", data, attrs=SubPixelAttrs(block_size, layout))


def _as_pairs(widths: Sequence[Sequence[Dim]]) -> tuple[Dims, ...]:
    return tuple(to_attr_dims(w) for w in widths)


def space_to_batch_nd(
    data: Expr,
    block_shape: Sequence[int],
    paddings: Sequence[Sequence[Dim]],
    pad_value: float = 0,
) -> Call:
    """Pad spatial axes, and move block positions into the batch."""
    attrs = SpaceToBatchNDAttrs(tuple(block_shape), _as_pairs(paddings), float(pad_value))
    return call_op("nn.space_to_batch_nd", data, attrs=attrs)


def batch_to_space_nd(
    data: Expr, block_shape: Sequence[int], crops: Sequence[Sequence[Dim]]
) -> Call:
    """Move block positions from the batch back into space, and crop."""
    attrs = BatchToSpaceNDAttrs(tuple(block_shape), _as_pairs(crops))
    return call_op("nn.batch_to_space_nd", data, attrs=attrs)


def dilate(data: Expr, strides: Sequence[int], dilation_value: float = 0.0) -> Call:
    """Insert `strides - 1` fill values between neighbouring elements."""
    return call_op("nn.dilate", data, attrs=DilateAttrs(tuple(strides), dilation_value))


def fifo_buffer(data: Expr, buffer: Expr, axis: int) -> Call:
    """Shift a FIFO buffer along an axis, and append `data`."""
    return call_op("nn.fifo_buffer", data, buffer, attrs=FIFOBufferAttrs(axis))


def mirror_pad(data: Expr, pad_width: Sequence[Sequence[Dim]], mode: str = "SYMMETRIC") -> Call:
    """Pad `data` by mirroring its borders."""
    return call_op("nn.mirror_pad", data, attrs=MirrorPadAttrs(mode, _as_pairs(pad_width)))


def l2_normalize(data: Expr, eps: float, axis: Sequence[int] | None = None) -> Call:
    """Divide `data` by its L2 norm along axes, bounded below by sqrt(eps)."""
    attrs = L2NormalizeAttrs(eps, None if axis is None else tuple(axis))
    return call_op("nn.l2_normalize", data, attrs=attrs)


Size = Dim | Sequence[Dim] | None
"""Output size: one extent for all axes, one per axis, or None for the data's."""


def _adaptive_output_size(output_size: Size, rank: int) -> Dims:
    if output_size is None:
        return ()
    extents = (output_size,) * rank if isinstance(output_size, Dim) else output_size
    return to_attr_dims(extents)


def adaptive_avg_pool1d(data: Expr, output_size: Size = None, layout: str = "NCW") -> Call:
    """Return 1-D adaptive average pooling."""
    attrs = AdaptivePool1DAttrs(_adaptive_output_size(output_size, 1), layout)
    return call_op("nn.adaptive_avg_pool1d", data, attrs=attrs)


def adaptive_max_pool1d(data: Expr, output_size: Size = None, layout: str = "NCW") -> Call:
    """Return 1-D adaptive max pooling."""
    attrs = AdaptivePool1DAttrs(_adaptive_output_size(output_size, 1), layout)
    return call_op("nn.adaptive_max_pool1d", data, attrs=attrs)


def adaptive_max_pool2d(data: Expr, output_size: Size = None, layout: str = "NCHW") -> Call:
    """Return 2-D adaptive max pooling."""
    attrs = AdaptiveMaxPool2DAttrs(_adaptive_output_size(output_size, 2), layout)
    return call_op("nn.adaptive_max_pool2d", data, attrs=attrs)


def adaptive_avg_pool3d(data: Expr, output_size: Size = None, layout: str = "NCDHW") -> Call:
    """Return 3-D adaptive average pooling."""
    attrs = AdaptivePool3DAttrs(_adaptive_output_size(output_size, 3), layout)
    return call_op("nn.adaptive_avg_pool3d", data, attrs=attrs)


def adaptive_max_pool3d(data: Expr, output_size: Size = None, layout: str = "NCDHW") -> Call:
    """Return 3-D adaptive max pooling."""
    attrs = AdaptivePool3DAttrs(_adaptive_output_size(output_size, 3), layout)
    return call_op("nn.adaptive_max_pool3d", data, attrs=attrs)


def nll_loss(
    predictions: Expr,
    targets: Expr,
    weights: Expr,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Call:
    """Return the negative log-likelihood loss of log-probabilities, weighted by class."""
    attrs = NLLLossAttrs(reduction, ignore_index)
    return call_op("nn.nll_loss", predictions, targets, weights, attrs=attrs)


def cross_entropy(predictions: Expr, targets: Expr) -> Call:
    """Return the cross entropy -sum(targets * log(predictions)) / batch."""
    return call_op("nn.cross_entropy", predictions, targets)


def cross_entropy_with_logits(predictions: Expr, targets: Expr) -> Call:
    """Return the cross entropy -sum(targets * predictions) / batch of log-probabilities."""
    return call_op("nn.cross_entropy_with_logits", predictions, targets)


__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "batch_to_space_nd", "cross_entropy", "cross_entropy_with_logits",
    "depth_to_space", "dilate", "fifo_buffer", "l2_normalize", "mirror_pad", "nll_loss",
    "space_to_batch_nd", "space_to_depth",
]  # fmt: skip
