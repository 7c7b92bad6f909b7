"""Convolutions as sums over windows, along one to three axes.

This says what is computed, and the tag and attributes of the tensor which convolution it is; how, a
family of kernels says: register tiles of NHWC with packed weights, Winograd, depthwise, or the
default rule for what none of them takes (layouts with channels first, weights that come at run time
unpacked).
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, cast, const, logical_and
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    as_ints,
    known_int,
    require_positive,
    require_shape,
    simplify_dim,
    window_extent,
)
from ekiden.topi.layout import packed_tile_size, packed_word_size, permute_values
from ekiden.topi.nn.weight_packing import conv_weight_shape, spatial_letters

Padding = int | Sequence[int] | str


def _conv_tag(data_layout: str, kernel_layout: str, is_depthwise: bool) -> str:
    if packed_tile_size(kernel_layout):
        return "conv_nhwc_pack"
    if (data_layout, kernel_layout) in (("NHWC", "HWOI"), ("NDHWC", "DHWOI")) and is_depthwise:
        return "depthwise_conv_nhwc"
    return f"conv{len(spatial_letters(data_layout))}d"


def weight_element(
    weight: Tensor,
    layout: str,
    out: PrimExpr,
    channel: PrimExpr,
    window: Sequence[PrimExpr],
    out_per_group: PrimExpr,
) -> PrimExpr:
    """Return the weight of an output channel, an input channel of its group and a tap, in any
    layout.
    """
    tile = packed_tile_size(layout)
    if not tile:
        return weight[
            permute_values((out, channel, *window), f"OI{spatial_letters(layout)}", layout)
        ]
    group: tuple[PrimExpr, ...] = ()
    if layout.startswith("G"):
        group, out = (out // out_per_group,), out % out_per_group
    if layout.endswith("i"):
        word = packed_word_size(layout)
        return weight[(*group, out // tile, *window, channel // word, out % tile, channel % word)]
    return weight[(*group, out // tile, *window, channel, out % tile)]


def guarded_load(
    x: Tensor, indices: Sequence[PrimExpr], conditions: Sequence[PrimExpr], otherwise: PrimExpr
) -> PrimExpr:
    """Load `x[indices]` where all conditions hold, without an access elsewhere."""
    if not conditions:
        return x[indices]
    together = conditions[0]
    for condition in conditions[1:]:
        together = logical_and(together, condition)
    return if_then_else(together, x[indices], otherwise)


def in_range_conditions(
    index: PrimExpr, size: PrimExpr, before: bool, after: bool
) -> list[PrimExpr]:
    """Return the range conditions of an index, for the sides that it can leave."""
    return ([index >= 0] if before else []) + ([index < size] if after else [])


def default_kernel_layout(data_layout: str, transposed: bool = False) -> str:
    """Return the default weight layout of a data layout: OIHW for NCHW, HWIO for others."""
    spatial, pair = spatial_letters(data_layout), "IO" if transposed else "OI"
    return pair + spatial if data_layout.startswith("NC") else spatial + pair[::-1]


def as_tuple_of(value: int | Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """Return one number per spatial axis. Raises ValueError for another count."""
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank:
        raise ValueError(f"{what} must be a number or {rank} of them, got {value!r}")
    return values


def normalize_padding(
    padding: Padding, kernel: Sequence[PrimExpr], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Return the padding before every spatial axis, followed by the padding after every one.
    Accepted are a number, one per axis (both sides), two per axis, "VALID" (none) and "SAME" (keeps
    the extent at stride 1, for windows of known size). Raises ValueError for anything else.
    """
    rank = len(kernel)
    if padding == "VALID":
        return (0,) * (2 * rank)
    if padding == "SAME":
        reach = [(k - 1) * d for k, d in zip(as_ints(kernel), dilation, strict=True)]
        # TVM's convention for "SAME": an odd remainder pads the beginning, unlike TensorFlow's.
        before = [(r + 1) // 2 for r in reach]
        return (*before, *(r - b for r, b in zip(reach, before, strict=True)))
    if isinstance(padding, str):
        raise ValueError(f"padding must be numbers, 'SAME' or 'VALID', got {padding!r}")
    values = (padding,) * rank if isinstance(padding, int) else tuple(padding)
    if len(values) == rank:
        values = values * 2
    if len(values) != 2 * rank:
        raise ValueError(f"padding must be 1, {rank} or {2 * rank} numbers, got {padding!r}")
    return values


def conv(
    inp: Tensor,
    filt: Tensor,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "",
    out_dtype: str | None = None,
    channels: int | None = None,
    out_layout: str = "",
) -> Tensor:
    """Return the convolution over the spatial axes (one to three) of `data_layout`:

    out[n, o, y, x] = sum data[n, group(o) + c, y * stride + ky * dilation - pad, ...] * weight[o,
    c, ky, kx]

    The weight is [o, c / groups, ky, kx]. The stage's tag names the layouts that have kernels of
    their own.

    Args:
        inp: the data.
        filt: the weight.
        stride: step of the window.
        padding: see `pads`.
        dilation: distance of taps.
        groups: number of channel groups.
        data_layout: layout of the data.
        kernel_layout: layout of the weight.
        out_dtype: dtype of the result.
        out_layout: layout of the result.
        channels: number of output channels where the weight is packed.

    Returns:
        The result.
    """
    axes_of = spatial_letters(data_layout)
    rank, plain = len(axes_of), f"NC{axes_of}"
    layout = kernel_layout or default_kernel_layout(data_layout)
    n, in_channels, *sizes = permute_values(inp.shape, data_layout, plain)
    out, per_group, *kernel = conv_weight_shape(filt.shape, layout, channels, groups)
    name = f"conv{rank}d"
    require_positive(name, groups=groups)
    if layout.isalpha():  # tiles are filled up
        require_shape(
            name, "weight", (per_group, out % groups), (simplify_dim(in_channels // groups), 0)
        )
    strides, steps = as_tuple_of(stride, rank, "stride"), as_tuple_of(dilation, rank, "dilation")
    around = normalize_padding(padding, kernel, steps)
    before, after = around[:rank], around[rank:]
    extents = [
        window_extent(*window_args)
        for window_args in zip(sizes, kernel, strides, before, after, steps, strict=True)
    ]
    result, dtype = out_layout or data_layout, out_dtype or inp.dtype
    taps = [te.reduce_axis((0, d), f"k{a.lower()}") for d, a in zip(kernel, axes_of, strict=True)]
    ci = te.reduce_axis((0, per_group), "ci")
    out_per_group = simplify_dim(out // groups)

    def sum_over_taps(*i: Var) -> PrimExpr:
        """Return the sum over taps and the channels of one group; the data are 0 outside."""
        b, o, *positions = permute_values(i, result, plain)
        point = [
            p * s + k * d - f
            for p, s, k, d, f in zip(positions, strides, taps, steps, before, strict=True)
        ]
        conditions = []
        for index, size, first, last in zip(point, sizes, before, after, strict=True):
            conditions += in_range_conditions(index, size, first > 0, last > 0)
        channel = ci if groups == 1 else (o // out_per_group) * per_group + ci
        indices = permute_values((b, channel, *point), plain, data_layout)
        value = guarded_load(inp, indices, conditions, const(0, inp.dtype))
        factor = weight_element(filt, layout, o, ci, taps, out_per_group)
        return te.sum(cast(value, dtype) * cast(factor, dtype), (*taps, ci))

    attrs = {
        "inputs": (inp, filt), "strides": strides, "padding": around, "dilation": steps,
        "groups": groups, "channels": known_int(out), "kernel_size": tuple(map(known_int, kernel)),
        "tile": packed_tile_size(layout), "data_layout": data_layout, "kernel_layout": layout,
        "out_layout": result,
    }  # fmt: skip
    # its kernel is for sums of float32, of one channel each
    is_depthwise = groups > 1 and dtype == filt.dtype == "float32" and known_int(per_group) == 1
    tag = _conv_tag(data_layout, layout, is_depthwise)
    shape = permute_values((n, out, *extents), plain, result)
    return te.compute(shape, sum_over_taps, name=f"conv{rank}d", tag=tag, attrs=attrs)


__all__ = ["conv"]
