"""Convolutions as sums over windows. Padding is a guard on the load, so that no padded copy is
made."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import EQ, PrimExpr, Var, binary, cast, const, logical_and
from ekiden.te import Tensor
from ekiden.topi.layout import packed_tile, permute
from ekiden.topi.nn.weights import conv_weight_shape
from ekiden.topi.shape import as_dim, known, tidy, transposed_extent, window_extent


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


def conv2d(
    data: Tensor,
    weight: Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    channels: int | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Tensor:
    """The convolution; its tag names the layouts that have kernels of their own."""
    n, _, h, w = permute(data.shape, data_layout, "NCHW")
    out, per_group, kh, kw = conv_weight_shape(weight.shape, kernel_layout, channels, groups)
    top, left, bottom, right = padding
    rows = window_extent(h, kh, strides[0], top, bottom, dilation[0])
    columns = window_extent(w, kw, strides[1], left, right, dilation[1])
    result, dtype = out_layout or data_layout, out_dtype or data.dtype
    axes = [te.reduce_axis((0, d), name) for d, name in ((kh, "ky"), (kw, "kx"), (per_group, "ci"))]
    ky, kx, ci = axes
    out_per_group = tidy(out // groups)

    def body(*i: Var) -> PrimExpr:
        b, o, y, x = permute(i, result, "NCHW")
        iy, ix = y * strides[0] + ky * dilation[0] - top, x * strides[1] + kx * dilation[1] - left
        channel = ci if groups == 1 else (o // out_per_group) * per_group + ci
        conditions = inside(iy, h, top > 0, bottom > 0) + inside(ix, w, left > 0, right > 0)
        indices = permute((b, channel, iy, ix), "NCHW", data_layout)
        value = guarded(data, indices, conditions, const(0, data.dtype))
        factor = _weight_element(weight, kernel_layout, o, ci, (ky, kx), out_per_group)
        return te.sum(cast(value, dtype) * cast(factor, dtype), axes)

    attrs = {
        "inputs": (data, weight), "strides": tuple(strides), "padding": tuple(padding),
        "dilation": tuple(dilation),
        "groups": groups, "channels": known(out), "kernel_size": (known(kh), known(kw)),
        "tile": packed_tile(kernel_layout), "data_layout": data_layout,
        "kernel_layout": kernel_layout,
        "out_layout": result,
    }  # fmt: skip
    shape = permute((n, out, rows, columns), "NCHW", result)
    return te.compute(
        shape, body, name="conv2d", tag=_tag(data_layout, kernel_layout, groups), attrs=attrs
    )


def conv1d(
    data: Tensor,
    weight: Tensor,
    stride: int,
    padding: Sequence[int],
    dilation: int,
    groups: int = 1,
    data_layout: str = "NCW",
    kernel_layout: str = "OIW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Tensor:
    """The convolution over one axis."""
    n, _, w = permute(data.shape, data_layout, "NCW")
    out, per_group, kw = permute(weight.shape, kernel_layout, "OIW")
    left, right = padding
    columns = window_extent(w, kw, stride, left, right, dilation)
    result, dtype = out_layout or data_layout, out_dtype or data.dtype
    axes = [te.reduce_axis((0, kw), "kx"), te.reduce_axis((0, per_group), "ci")]
    kx, ci = axes
    out_per_group = tidy(out // groups)

    def body(*i: Var) -> PrimExpr:
        b, o, x = permute(i, result, "NCW")
        ix = x * stride + kx * dilation - left
        channel = ci if groups == 1 else (o // out_per_group) * per_group + ci
        indices = permute((b, channel, ix), "NCW", data_layout)
        value = guarded(data, indices, inside(ix, w, left > 0, right > 0), const(0, data.dtype))
        factor = weight[permute((o, ci, kx), "OIW", kernel_layout)]
        return te.sum(cast(value, dtype) * cast(factor, dtype), axes)

    return te.compute(permute((n, out, columns), "NCW", result), body, name="conv1d", tag="conv1d")


def conv2d_transpose(
    data: Tensor,
    weight: Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Tensor:
    """The transposed convolution, gathered: each result pixel sums the taps that reach it."""
    n, c, h, w = permute(data.shape, data_layout, "NCHW")
    _, out_per_group, kh, kw = permute(weight.shape, kernel_layout, "IOHW")
    top, left, bottom, right = padding
    rows = transposed_extent(h, kh, strides[0], top, bottom, dilation[0], output_padding[0])
    columns = transposed_extent(w, kw, strides[1], left, right, dilation[1], output_padding[1])
    per_group = tidy(c // groups)
    result, dtype = out_layout or data_layout, out_dtype or data.dtype
    taps = [_tap_count(k, s, d) for k, s, d in zip((kh, kw), strides, dilation, strict=True)]
    axes = [
        te.reduce_axis((0, d), name)
        for d, name in zip((*taps, per_group), ("ky", "kx", "ci"), strict=True)
    ]
    jy, jx, ci = axes

    def body(*i: Var) -> PrimExpr:
        b, o, y, x = permute(i, result, "NCHW")
        ky, iy, reaches_y = _tap(y + top, jy, kh, h, strides[0], dilation[0])
        kx, ix, reaches_x = _tap(x + left, jx, kw, w, strides[1], dilation[1])
        channel = ci if groups == 1 else (o // out_per_group) * per_group + ci
        within = o if groups == 1 else o % out_per_group
        conditions = reaches_y + reaches_x
        together = conditions[0]
        for each in conditions[1:]:
            together = logical_and(together, each)
        value = data[permute((b, channel, iy, ix), "NCHW", data_layout)]
        factor = weight[permute((channel, within, ky, kx), "IOHW", kernel_layout)]
        return te.sum(
            if_then_else(together, cast(value, dtype) * cast(factor, dtype), const(0, dtype)), axes
        )

    shape = permute((n, out_per_group * groups, rows, columns), "NCHW", result)
    attrs = {
        "inputs": (data, weight), "strides": tuple(strides), "padding": tuple(padding),
        "dilation": tuple(dilation),
        "groups": groups, "data_layout": data_layout, "kernel_layout": kernel_layout,
    }  # fmt: skip
    return te.compute(shape, body, name="conv2d_transpose", tag="conv2d_transpose", attrs=attrs)


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
