"""Write a convolution between rearrangements of blocks as the dilated one that it is.

    nn.batch_to_space_nd(nn.conv2d(nn.space_to_batch_nd(%x, [2, 2], [[2, 3], [2, 3]]), %w),
                         [2, 2], [[0, 1], [0, 1]])
->  nn.conv2d(%x, %w, dilation=[2, 2], padding=[2, 2, 2, 2])

TensorFlow writes dilated convolutions so. A convolution of stride 1 over each position in the
blocks is one over all of them, `block` apart: its padding is that before the rearrangement, plus
`block` times its own, minus what is cropped. Where that is negative, or other values than zeros are
padded, or there is a dilation already, calls are left.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import IntImm
from ekiden.ir.transform import Pass
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.nn.geometry import Conv2DAttrs
from ekiden.relay.op.nn.space import BatchToSpaceNDAttrs, SpaceToBatchNDAttrs
from ekiden.relay.transform.calls import call_pass
from ekiden.relay.transform.fold_scale_axis import op_of, row_of

CONV = "nn.conv2d"
SPATIAL = ("NHWC",)
"""Layouts whose second and third axes are those that are rearranged."""


def _numbers(pairs: Sequence[Sequence[object]]) -> list[tuple[int, int]] | None:
    """Pairs of extents as numbers, None if one is not known."""
    found = [tuple(e.value if isinstance(e, IntImm) else e for e in p) for p in pairs]
    return found if all(isinstance(e, int) for p in found for e in p) else None  # type: ignore[return-value]


def _is_convolution(call: Call) -> bool:
    """Whether a call is one of the convolution, or of that on integers."""
    row = row_of(call)
    return row is not None and CONV in (row.name, row.quantizes)


def _pads_zero(blocks: SpaceToBatchNDAttrs, conv: Call) -> bool:
    """Whether the rearrangement pads what the convolution does: zero, or the zero point."""
    if op_of(conv) == CONV:
        return float(blocks.pad_value) == 0
    point = conv.args[2]
    return isinstance(point, Constant) and bool((point.data == blocks.pad_value).all())


def _padding(
    attrs: Conv2DAttrs, blocks: SpaceToBatchNDAttrs, crops: Sequence[Sequence[object]]
) -> tuple[int, ...] | None:
    """The padding of the dilated convolution; None if there is none."""
    pads, cut = _numbers(blocks.paddings), _numbers(crops)
    if pads is None or cut is None:
        return None
    size, own = blocks.block_shape, attrs.padding
    before = [pads[i][0] + size[i] * own[i] - cut[i][0] for i in (0, 1)]
    after = [pads[i][1] + size[i] * own[i + 2] - cut[i][1] for i in (0, 1)]
    padding = (*before, *after)
    return padding if min(padding) >= 0 else None


def _flatten(back: Call) -> RelayExpr | None:
    conv = back.args[0]
    if not isinstance(conv, Call) or not _is_convolution(conv):
        return None
    there = conv.args[0]
    if op_of(there) != "nn.space_to_batch_nd":
        return None
    assert isinstance(there, Call)
    attrs, blocks, crops = conv.attrs, there.attrs, back.attrs
    assert isinstance(attrs, Conv2DAttrs) and isinstance(blocks, SpaceToBatchNDAttrs)
    assert isinstance(crops, BatchToSpaceNDAttrs)
    is_plain = set(attrs.strides) == {1} == set(attrs.dilation) and attrs.data_layout in SPATIAL
    if not is_plain or attrs.out_layout not in ("", attrs.data_layout):
        return None
    if tuple(blocks.block_shape) != tuple(crops.block_shape) or len(blocks.block_shape) != 2:
        return None
    padding = _padding(attrs, blocks, crops.crops)
    if padding is None or not _pads_zero(blocks, conv):
        return None
    dilated = attrs.with_fields(padding=padding, dilation=tuple(blocks.block_shape))
    return Call(conv.op, (there.args[0], *conv.args[1:]), dilated, span=conv.span)


def FlattenAtrousConv() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return call_pass("FlattenAtrousConv", 0, lambda: {"nn.batch_to_space_nd": _flatten})
