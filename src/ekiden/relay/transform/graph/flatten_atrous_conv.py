"""Flatten atrous convolutions: space_to_batch_nd, conv and batch_to_space_nd become one dilated
convolution.

    nn.batch_to_space_nd(nn.conv2d(nn.space_to_batch_nd(%x, [2, 2], [[2, 3], [2, 3]]), %w),
                         [2, 2], [[0, 1], [0, 1]])
    ->  nn.conv2d(%x, %w, dilation=[2, 2], padding=[2, 2, 2, 2])

TensorFlow writes dilated convolutions so, those of one axis with an axis of 1 inserted before the
convolution and removed behind it. A convolution of stride 1 over each position in the blocks is one
over all of them, `block` apart: its padding is that before the rearrangement, plus `block` times
its own, minus what is cropped. Where that is negative, or other values than zeros are padded, or
there is a dilation already, calls are left. Padding to full blocks that is cropped again may depend
on sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import IntImm
from ekiden.ir.transform import Pass
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.nn.window_attrs import Conv2DAttrs
from ekiden.relay.op.reshaping import ExpandDimsAttrs, SqueezeAttrs
from ekiden.relay.transform.graph.call_rewrites import call_pass
from ekiden.relay.transform.graph.fold_scale_axis import op_definition_of, op_name_of
from ekiden.topi.dimensions import as_dim, simplify_dim

if TYPE_CHECKING:
    import ekiden.relay.op.nn.space_to_batch as space
else:
    space = LazyModule("ekiden.relay.op.nn.space_to_batch")

CONV2D_OP_NAME = "nn.conv2d"
SPATIAL_LAYOUTS = ("NHWC",)
"""Layouts whose spatial axes are the second and third."""


def _is_conv2d(call: Call) -> bool:
    """Return whether a call is conv2d or its quantised form."""
    row = op_definition_of(call)
    return row is not None and CONV2D_OP_NAME in (row.name, row.quantizes)


def _pads_zero(blocks: space.SpaceToBatchNDAttrs, conv: Call) -> bool:
    """Return whether space_to_batch_nd pads with the convolution's own padding value: zero, or the
    zero point.
    """
    if op_name_of(conv) == CONV2D_OP_NAME:
        return float(blocks.pad_value) == 0
    point = conv.args[2]
    return isinstance(point, Constant) and bool((point.data == blocks.pad_value).all())


def _dilated_padding(
    attrs: Conv2DAttrs,
    blocks: space.SpaceToBatchNDAttrs,
    crops: space.BatchToSpaceNDAttrs,
    first: int,
) -> tuple[int, ...] | None:
    """Return the padding of the dilated convolution, whose block axes start at `first`; None if no
    padding is equivalent.
    """
    conv_padding = attrs.padding
    sides = [list(conv_padding[:2]), list(conv_padding[2:])]
    for index, block in enumerate(blocks.block_shape):
        pads, cut = blocks.paddings[index], crops.crops[index]
        for i, side in enumerate(sides):
            # One step of the inner convolution is `block` elements of the image.
            size = simplify_dim(as_dim(pads[i]) - as_dim(cut[i]) + block * side[first + index])
            # A negative border would crop, which convolutions cannot.
            if not isinstance(size, IntImm) or size.value < 0:
                return None
            side[first + index] = size.value
    return (*sides[0], *sides[1])


def _flatten_atrous(back: Call) -> RelayExpr | None:
    inner = back.args[0]
    shrunk = _match_call(inner, "squeeze")
    conv = shrunk.args[0] if shrunk is not None else inner
    if not isinstance(conv, Call) or not _is_conv2d(conv):
        return None
    wide = None if shrunk is None else _match_call(conv.args[0], "expand_dims")
    # Convolutions over one axis come with a height of 1 that is added and removed.
    to_batch = _match_call((conv if wide is None else wide).args[0], "nn.space_to_batch_nd")
    if to_batch is None or (wide is None) != (shrunk is None):
        return None
    attrs, blocks, crops = conv.attrs, to_batch.attrs, back.attrs
    assert isinstance(attrs, Conv2DAttrs) and isinstance(blocks, space.SpaceToBatchNDAttrs)
    assert isinstance(crops, space.BatchToSpaceNDAttrs)
    # With a stride, positions of the blocks would not interleave to the full image.
    is_plain = (
        set(attrs.strides) == {1} == set(attrs.dilation) and attrs.data_layout in SPATIAL_LAYOUTS
    )
    if not is_plain or attrs.out_layout not in ("", attrs.data_layout):
        return None
    count = len(blocks.block_shape)
    if tuple(blocks.block_shape) != tuple(crops.block_shape) or not _covers_spatial_axes(
        wide, shrunk, count
    ):
        return None
    padding = _dilated_padding(attrs, blocks, crops, 2 - count)
    if padding is None or not _pads_zero(blocks, conv):
        return None
    # An added height has no blocks.
    dilation = (1,) * (2 - count) + tuple(blocks.block_shape)
    dilated = attrs.with_fields(padding=padding, dilation=dilation)
    data = to_batch.args[0]
    if wide is not None:
        data = Call(wide.op, (data,), wide.attrs, span=wide.span)
    dilated_conv = Call(conv.op, (data, *conv.args[1:]), dilated, span=conv.span)
    return (
        dilated_conv
        if shrunk is None
        else Call(shrunk.op, (dilated_conv,), shrunk.attrs, span=shrunk.span)
    )


def _match_call(expr: RelayExpr, name: str) -> Call | None:
    return expr if isinstance(expr, Call) and op_name_of(expr) == name else None


def _covers_spatial_axes(wide: Call | None, shrunk: Call | None, count: int) -> bool:
    """Return whether the block axes are all spatial axes of the convolution, or its last one.

    The latter where an axis is inserted before the convolution and removed behind it.
    """
    if wide is None or shrunk is None:
        return count == 2
    assert isinstance(wide.attrs, ExpandDimsAttrs) and isinstance(shrunk.attrs, SqueezeAttrs)
    inserted, removed_axes = wide.attrs, tuple(shrunk.attrs.axis or ())
    return (
        count == 1
        and inserted.num_newaxis == 1
        and inserted.axis in (1, -3)
        and removed_axes in ((1,), (-3,))
    )


def FlattenAtrousConv() -> Pass:  # noqa: N802
    """Return a pass that flattens atrous convolutions (TVM's FlattenAtrousConv)."""
    return call_pass("FlattenAtrousConv", 0, lambda: {"nn.batch_to_space_nd": _flatten_atrous})
