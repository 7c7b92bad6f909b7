"""Convolutions as sums over windows, over one to three axes. Padding is a guard on the load, so
that no padded copy is made."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import EQ, PrimExpr, Var, binary, cast, const, logical_and
from ekiden.te import Tensor
from ekiden.topi.layout import packed_tile, permute
from ekiden.topi.nn.weights import WORD, conv_weight_shape
from ekiden.topi.shape import as_dim, as_ints, known, tidy, transposed_extent, window_extent

Padding = int | Sequence[int] | str


def _tag(data_layout: str, kernel_layout: str, groups: int) -> str:
    if packed_tile(kernel_layout):
        return "group_conv2d_nhwc_pack" if kernel_layout.startswith("G") else "conv2d_nhwc_pack"
    if (data_layout, kernel_layout) == ("NHWC", "HWOI") and groups > 1:
        return "depthwise_conv2d_nhwc"
    return "conv2d"


def _weight_element(
    weight: Tensor,
    layout: str,
    out: PrimExpr,
    channel: PrimExpr,
    window: Sequence[PrimExpr],
    out_per_group: PrimExpr,
) -> PrimExpr:
    """The weight of an output channel, an input channel of its group and a position, whatever the
    layout."""
    tile = packed_tile(layout)
    if not tile:
        return weight[permute((out, channel, *window), "OIHW", layout)]
    if layout.startswith("G"):
        group, within = out // out_per_group, out % out_per_group
        return weight[(group, within // tile, *window, channel, within % tile)]
    if layout.endswith("i"):
        return weight[(out // tile, *window, channel // WORD, out % tile, channel % WORD)]
    return weight[(out // tile, *window, channel, out % tile)]


def guarded(
    x: Tensor, indices: Sequence[PrimExpr], conditions: Sequence[PrimExpr], otherwise: PrimExpr
) -> PrimExpr:
    """`x[indices]` where all conditions hold, without reading it elsewhere."""
    if not conditions:
        return x[indices]
    together = conditions[0]
    for each in conditions[1:]:
        together = logical_and(together, each)
    return if_then_else(together, x[indices], otherwise)


def inside(index: PrimExpr, size: PrimExpr, before: bool, after: bool) -> list[PrimExpr]:
    """What must hold for an index to be in range, if it can leave it before or after."""
    return ([index >= 0] if before else []) + ([index < size] if after else [])


def letters(layout: str) -> str:
    """The spatial axes of a data layout: "HW" of "NHWC"."""
    return "".join(each for each in "DHW" if each in layout)


def default_kernel_layout(data_layout: str, transposed: bool = False) -> str:
    """The weight layout that goes with a data layout: OIHW with NCHW, HWIO with the others."""
    spatial, pair = letters(data_layout), "IO" if transposed else "OI"
    return pair + spatial if data_layout.startswith("NC") else spatial + pair[::-1]


def ntuple(value: int | Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """One number per spatial axis. Raises ValueError for another number of them."""
    many = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(many) != rank:
        raise ValueError(f"{what} must be a number or {rank} of them, got {value!r}")
    return many


def pads(padding: Padding, kernel: Sequence[PrimExpr], dilation: Sequence[int]) -> tuple[int, ...]:
    """Padding before every spatial axis, then after every one.

    A number, one per axis (both sides), two per axis, "VALID" (none) or "SAME" (as much as keeps
    the extent at stride 1, for windows of known size).
    """
    rank = len(kernel)
    if padding == "VALID":
        return (0,) * (2 * rank)
    if padding == "SAME":
        reach = [(k - 1) * d for k, d in zip(as_ints(kernel), dilation, strict=True)]
        before = [(r + 1) // 2 for r in reach]
        return (*before, *(r - b for r, b in zip(reach, before, strict=True)))
    if isinstance(padding, str):
        raise ValueError(f"padding must be numbers, 'SAME' or 'VALID', got {padding!r}")
    many = (padding,) * rank if isinstance(padding, int) else tuple(padding)
    if len(many) == rank:
        many = many * 2
    if len(many) != 2 * rank:
        raise ValueError(f"padding must be 1, {rank} or {2 * rank} numbers, got {padding!r}")
    return many


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
    """The convolution over the spatial axes (one to three) of `data_layout`.

        data[n, c, y, x], weight[o, c / groups, ky, kx]
        out[n, o, y, x] = sum data[n, group(o) + c, y * stride + ky * dilation - pad, ...] * weight

    Its tag names the layouts that have kernels of their own. `channels` is the number of results,
    where the weight is packed.
    """
    axes_of = letters(data_layout)
    rank, plain = len(axes_of), f"NC{axes_of}"
    layout = kernel_layout or default_kernel_layout(data_layout)
    n, _, *sizes = permute(inp.shape, data_layout, plain)
    if rank == 2:
        out, per_group, *kernel = conv_weight_shape(filt.shape, layout, channels, groups)
    else:
        out, per_group, *kernel = permute(filt.shape, layout, f"OI{axes_of}")
    strides, steps = ntuple(stride, rank, "stride"), ntuple(dilation, rank, "dilation")
    around = pads(padding, kernel, steps)
    before, after = around[:rank], around[rank:]
    extents = [
        window_extent(*each)
        for each in zip(sizes, kernel, strides, before, after, steps, strict=True)
    ]
    result, dtype = out_layout or data_layout, out_dtype or inp.dtype
    taps = [te.reduce_axis((0, d), f"k{a.lower()}") for d, a in zip(kernel, axes_of, strict=True)]
    ci = te.reduce_axis((0, per_group), "ci")
    out_per_group = tidy(out // groups)

    def body(*i: Var) -> PrimExpr:
        b, o, *positions = permute(i, result, plain)
        at = [
            p * s + k * d - f
            for p, s, k, d, f in zip(positions, strides, taps, steps, before, strict=True)
        ]
        conditions = []
        for index, size, first, last in zip(at, sizes, before, after, strict=True):
            conditions += inside(index, size, first > 0, last > 0)
        channel = ci if groups == 1 else (o // out_per_group) * per_group + ci
        indices = permute((b, channel, *at), plain, data_layout)
        value = guarded(inp, indices, conditions, const(0, inp.dtype))
        if rank == 2:
            factor = _weight_element(filt, layout, o, ci, taps, out_per_group)
        else:
            factor = filt[permute((o, ci, *taps), f"OI{axes_of}", layout)]
        return te.sum(cast(value, dtype) * cast(factor, dtype), (*taps, ci))

    attrs = {
        "inputs": (inp, filt), "strides": strides, "padding": around, "dilation": steps,
        "groups": groups, "channels": known(out), "kernel_size": tuple(map(known, kernel)),
        "tile": packed_tile(layout), "data_layout": data_layout, "kernel_layout": layout,
        "out_layout": result,
    }  # fmt: skip
    tag = _tag(data_layout, layout, groups) if rank == 2 else f"conv{rank}d"
    shape = permute((n, out, *extents), plain, result)
    return te.compute(shape, body, name=f"conv{rank}d", tag=tag, attrs=attrs)


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
) -> Tensor:
    """The transposed convolution over one to three axes, gathered: each result sums the taps that
    reach it. The weight is [in channels, out channels / groups, window].
    """
    axes_of = letters(data_layout)
    rank, plain, weight_plain = len(axes_of), f"NC{axes_of}", f"IO{axes_of}"
    layout = kernel_layout or default_kernel_layout(data_layout, True)
    n, c, *sizes = permute(inp.shape, data_layout, plain)
    _, out_per_group, *kernel = permute(filt.shape, layout, weight_plain)
    strides, steps = ntuple(stride, rank, "stride"), ntuple(dilation, rank, "dilation")
    around, extra = pads(padding, kernel, steps), ntuple(output_padding, rank, "output_padding")
    before, after = around[:rank], around[rank:]
    extents = [
        transposed_extent(*each)
        for each in zip(sizes, kernel, strides, before, after, steps, extra, strict=True)
    ]
    per_group = tidy(c // groups)
    result, dtype = out_layout or data_layout, out_dtype or inp.dtype
    counts = [_tap_count(k, s, d) for k, s, d in zip(kernel, strides, steps, strict=True)]
    taps = [te.reduce_axis((0, d), f"k{a.lower()}") for d, a in zip(counts, axes_of, strict=True)]
    ci = te.reduce_axis((0, per_group), "ci")

    def body(*i: Var) -> PrimExpr:
        b, o, *positions = permute(i, result, plain)
        windows: list[PrimExpr] = []
        places: list[PrimExpr] = []
        conditions: list[PrimExpr] = []
        for axis in range(rank):
            window, at, reaches = _tap(
                positions[axis] + before[axis], taps[axis], kernel[axis], sizes[axis],
                strides[axis], steps[axis],
            )  # fmt: skip
            windows.append(window)
            places.append(at)
            conditions += reaches
        channel = ci if groups == 1 else (o // out_per_group) * per_group + ci
        within = o if groups == 1 else o % out_per_group
        together = conditions[0]
        for each in conditions[1:]:
            together = logical_and(together, each)
        value = inp[permute((b, channel, *places), plain, data_layout)]
        factor = filt[permute((channel, within, *windows), weight_plain, layout)]
        product = cast(value, dtype) * cast(factor, dtype)
        return te.sum(if_then_else(together, product, const(0, dtype)), (*taps, ci))

    shape = permute((n, out_per_group * groups, *extents), plain, result)
    attrs = {
        "inputs": (inp, filt), "strides": strides, "padding": around, "dilation": steps,
        "groups": groups, "data_layout": data_layout, "kernel_layout": layout,
    }  # fmt: skip
    name = f"conv{rank}d_transpose"
    return te.compute(shape, body, name=name, tag=name, attrs=attrs)


def _tap_count(kernel: PrimExpr, stride: int, dilation: int) -> PrimExpr:
    """How many taps can reach a result pixel: every stride-th one where taps are dense, else all
    are tried."""
    return tidy((kernel + (stride - 1)) // stride) if dilation == 1 else kernel


def _tap(
    position: PrimExpr, j: PrimExpr, kernel: PrimExpr, size: PrimExpr, stride: int, dilation: int
) -> tuple[PrimExpr, PrimExpr, list[PrimExpr]]:
    """(kernel index, data index, what must hold) of the j-th tap of a position of the uncropped
    result.

    position = data index * stride + kernel index * dilation.
    """
    if dilation == 1:
        tap, at = position % stride + j * stride, position // stride - j
        fits = [] if _divides(stride, kernel) else [tap < kernel]
        return tap, at, [*fits, at >= 0, at < size]
    start = position - j * dilation
    exact = [] if stride == 1 else [binary(EQ, start % stride, as_dim(0))]
    return j, start // stride, [*exact, start >= 0, start // stride < size]


def _divides(stride: int, kernel: PrimExpr) -> bool:
    number = known(kernel)
    return number is not None and number % stride == 0


__all__ = ["conv", "conv_transpose"]
