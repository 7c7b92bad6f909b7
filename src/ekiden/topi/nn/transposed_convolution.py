"""Transposed convolutions along one to three axes, in gather form; each result sums the taps that
reach it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import EQ, PrimExpr, Var, cast, const, fold_binary, logical_and
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    as_dim,
    known_int,
    require_positive,
    simplify_dim,
    transposed_window_extent,
)
from ekiden.topi.layout import packed_tile_size, permute_values
from ekiden.topi.nn.convolution import (
    Padding,
    as_tuple_of,
    default_kernel_layout,
    normalize_padding,
    weight_element,
)
from ekiden.topi.nn.weight_packing import conv_transpose_weight_shape, spatial_letters

VECTORS_PER_PANEL = 4
"""Vectors per panel of weights."""


def fits_one_panel(channels: int, kernel: Sequence[int], lanes: int) -> bool:
    """Return whether the output channels of all taps fit a panel of weights, and those of one tap
    fill less than half a vector.
    """
    return 2 * channels <= lanes and channels * math.prod(kernel) <= VECTORS_PER_PANEL * lanes


def _conv_transpose_tag(kernel_layout: str, rank: int, is_depthwise: bool) -> str:
    if packed_tile_size(kernel_layout):
        return "conv_transpose_pack"
    if is_depthwise and kernel_layout in ("HWIO", "DHWIO"):
        return "depthwise_conv_transpose"
    return f"conv{rank}d_transpose"


def conv_transpose(
    inp: Tensor,
    filt: Tensor,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    output_padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "",
    out_dtype: str | None = None,
    out_layout: str = "",
    channels: int | None = None,
) -> Tensor:
    """Return the transposed convolution over one to three axes, in gather form: each result sums
    the taps that reach it. The weight is [in channels, out channels / groups, window], or
    packed; `channels` is then the number of output channels.
    """
    axes_of = spatial_letters(data_layout)
    rank, plain = len(axes_of), f"NC{axes_of}"
    layout = kernel_layout or default_kernel_layout(data_layout, True)
    n, c, *sizes = permute_values(inp.shape, data_layout, plain)
    require_positive("conv_transpose", groups=groups)
    _, out_per_group, *kernel = conv_transpose_weight_shape(filt.shape, layout, channels, groups)
    strides, steps = as_tuple_of(stride, rank, "stride"), as_tuple_of(dilation, rank, "dilation")
    around, extra = (
        normalize_padding(padding, kernel, steps),
        as_tuple_of(output_padding, rank, "output_padding"),
    )
    before, after = around[:rank], around[rank:]
    extents = [
        transposed_window_extent(*extent_args)
        for extent_args in zip(sizes, kernel, strides, before, after, steps, extra, strict=True)
    ]
    per_group = simplify_dim(c // groups)
    result, dtype = out_layout or data_layout, out_dtype or inp.dtype
    counts = [_num_taps(k, s, d) for k, s, d in zip(kernel, strides, steps, strict=True)]
    taps = [te.reduce_axis((0, d), f"k{a.lower()}") for d, a in zip(counts, axes_of, strict=True)]
    ci = te.reduce_axis((0, per_group), "ci")

    def sum_over_taps(*i: Var) -> PrimExpr:
        """Return the sum over the taps that contribute to a position."""
        b, o, *positions = permute_values(i, result, plain)
        windows: list[PrimExpr] = []
        data_indices: list[PrimExpr] = []
        conditions: list[PrimExpr] = []
        for axis in range(rank):
            window, position, reaches = _tap_indices(
                positions[axis] + before[axis], taps[axis], kernel[axis], sizes[axis],
                strides[axis], steps[axis],
            )  # fmt: skip
            windows.append(window)
            data_indices.append(position)
            conditions += reaches
        channel = ci if groups == 1 else (o // out_per_group) * per_group + ci
        # Gather form: a result sums the taps that reach it, so that no two iterations write one
        # element.
        together = conditions[0]
        for condition in conditions[1:]:
            together = logical_and(together, condition)
        value = inp[permute_values((b, channel, *data_indices), plain, data_layout)]
        if packed_tile_size(layout):
            factor = weight_element(filt, layout, o, ci, windows, out_per_group)
        else:
            within = o if groups == 1 else o % out_per_group
            factor = filt[permute_values((channel, within, *windows), f"IO{axes_of}", layout)]
        product = cast(value, dtype) * cast(factor, dtype)
        return te.sum(if_then_else(together, product, const(0, dtype)), (*taps, ci))

    shape = permute_values((n, out_per_group * groups, *extents), plain, result)
    attrs = {
        "inputs": (inp, filt),
        "strides": strides,
        "padding": around,
        "dilation": steps,
        "groups": groups,
        "data_layout": data_layout,
        "kernel_layout": layout,
        "out_layout": result,
        "output_padding": extra,
        "kernel_size": tuple(map(known_int, kernel)),
        "channels": known_int(simplify_dim(out_per_group * groups)),
        "tile": packed_tile_size(layout),
    }
    is_depthwise = groups > 1 and known_int(per_group) == known_int(out_per_group) == 1
    tag = _conv_transpose_tag(layout, rank, is_depthwise)
    return te.compute(shape, sum_over_taps, name=f"conv{rank}d_transpose", tag=tag, attrs=attrs)


def _num_taps(kernel: PrimExpr, stride: int, dilation: int) -> PrimExpr:
    """Return the number of taps that can contribute to a result pixel: every stride-th one of
    undilated taps, else all.
    """
    return simplify_dim((kernel + (stride - 1)) // stride) if dilation == 1 else kernel


def _tap_indices(
    position: PrimExpr, j: PrimExpr, kernel: PrimExpr, size: PrimExpr, stride: int, dilation: int
) -> tuple[PrimExpr, PrimExpr, list[PrimExpr]]:
    """Return (kernel index, data index, conditions) of the j-th tap of a position of the uncropped
    result.
    """
    if dilation == 1:
        tap, offset = position % stride + j * stride, position // stride - j
        # If the stride does not divide the kernel, the last tap of some positions is behind it.
        fits = [] if _is_exact_stride(stride, kernel) else [tap < kernel]
        return tap, offset, [*fits, offset >= 0, offset < size]
    start = position - j * dilation
    # Between multiples of the stride there are no data.
    exact = [] if stride == 1 else [fold_binary(EQ, start % stride, as_dim(0))]
    return j, start // stride, [*exact, start >= 0, start // stride < size]


def _is_exact_stride(stride: int, kernel: PrimExpr) -> bool:
    number = known_int(kernel)
    return number is not None and number % stride == 0


__all__ = ["conv_transpose"]
