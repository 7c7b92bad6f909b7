"""Deformable convolutions, and correlation of two images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    as_dim,
    known_int,
    require_positive,
    require_shape,
    require_small_factor,
    simplify_dim,
    window_extent,
)
from ekiden.topi.layout import permute_values
from ekiden.topi.nn.convolution import Padding, as_tuple_of, guarded_load, normalize_padding
from ekiden.topi.reduce import accumulator_dtype, round_accumulated

Ints = int | Sequence[int]


def bilinear_sample(
    data: Tensor, at: Sequence[PrimExpr], rows: int, columns: int, y: PrimExpr, x: PrimExpr
) -> PrimExpr:
    """Interpolate the data between four pixels of its axes `rows` and `columns`; 0 outside."""
    top, left_column = call_intrin("floor", y), call_intrin("floor", x)
    total: PrimExpr = const(0.0, y.dtype)
    for dy in (0, 1):
        for dx in (0, 1):
            row, column = top + float(dy), left_column + float(dx)
            weight = (1.0 - call_intrin("abs", y - row)) * (1.0 - call_intrin("abs", x - column))
            index = list(at)
            index[rows], index[columns] = cast(row, "int64"), cast(column, "int64")
            # Each of the four pixels is guarded alone: outside pixels count as 0, as in the paper's
            # implementation.
            conditions = [
                index[rows] >= 0, index[rows] < data.shape[rows],
                index[columns] >= 0, index[columns] < data.shape[columns],
            ]  # fmt: skip
            value = guarded_load(data, index, conditions, const(0, data.dtype))
            total = total + cast(value, y.dtype) * weight
    return total


def _bilinear_in_bounds(
    data: Tensor, at: Sequence[PrimExpr], rows: int, columns: int, y: PrimExpr, x: PrimExpr
) -> PrimExpr:
    """Interpolate bilinearly, with 0 before the first pixel as well."""
    ends = cast(data.shape[rows], y.dtype), cast(data.shape[columns], y.dtype)
    inside = te.all(y >= 0.0, x >= 0.0, y < ends[0], x < ends[1])
    return te.if_then_else(
        inside, bilinear_sample(data, at, rows, columns, y, x), const(0.0, y.dtype)
    )


DEFORMABLE_SAMPLERS: Mapping[str, Callable[..., PrimExpr]] = {
    "inside": _bilinear_in_bounds,
    "zeros": bilinear_sample,
}
"""Bilinear samplers by border mode: zeros past the last pixels only (TVM), or on all sides (ONNX
and PyTorch).
"""


def _deformable_conv2d(
    data: Tensor,
    offset: Tensor,
    kernel: Tensor,
    strides: Ints,
    padding: Padding,
    dilation: Ints,
    deformable_groups: int,
    groups: int,
    out_dtype: str | None,
    layout: str,
    kernel_layout: str,
    mask: Tensor | None,
    border: str,
) -> Tensor:
    name = "deformable_conv2d"
    if border not in DEFORMABLE_SAMPLERS:
        raise ValueError(
            f"{name}: border must be {' or '.join(DEFORMABLE_SAMPLERS)}, got {border!r}"
        )
    require_positive(name, groups=groups, deformable_groups=deformable_groups)
    n, c, _, _ = permute_values(data.shape, layout, "NCHW")
    out, per_group, kh, kw = permute_values(kernel.shape, kernel_layout, "OIHW")
    sy, sx = as_tuple_of(strides, 2, "strides")
    dy, dx = as_tuple_of(dilation, 2, "dilation")
    top, pad_left, _, _ = normalize_padding(padding, (kh, kw), (dy, dx))
    sides = [side for side in map(known_int, (as_dim(top), as_dim(pad_left))) if side is not None]
    require_small_factor(name, strides=(sy, sx), dilation=(dy, dx), padding=sides)
    _, _, rows, columns = permute_values(offset.shape, layout, "NCHW")
    require_shape(name, "weight", (per_group, out % groups), (simplify_dim(c // groups), 0))
    require_shape(name, "data", (c % groups, c % deformable_groups), (0, 0))
    taps_of = simplify_dim(kh * kw * deformable_groups)
    expected_shape = permute_values((n, simplify_dim(taps_of * 2), rows, columns), "NCHW", layout)
    require_shape(name, "offset", offset.shape, expected_shape)
    if mask is not None:
        expected_shape = permute_values((n, taps_of, rows, columns), "NCHW", layout)
        require_shape(name, "mask", mask.shape, expected_shape)
    dtype = out_dtype or data.dtype
    wide = accumulator_dtype(dtype)
    y_axis, x_axis = layout.index("H"), layout.index("W")
    sampled_shape = (n, c, kh, kw, rows, columns)
    group_channels = simplify_dim(c // deformable_groups)

    def sample_tap(b: Var, ci: Var, ky: Var, kx: Var, y: Var, x: Var) -> PrimExpr:
        """Sample a tap's pixel at its position plus the learned offset."""
        tap = (ci // group_channels * kh * kw + ky * kw + kx) * 2
        move_y, move_x = (
            offset[permute_values((b, tap + n, y, x), "NCHW", layout)] for n in (0, 1)
        )
        row = cast(y * sy + ky * dy - top, "float32") + cast(move_y, "float32")
        column = cast(x * sx + kx * dx - pad_left, "float32") + cast(move_x, "float32")
        indices = permute_values((b, ci, as_dim(0), as_dim(0)), "NCHW", layout)
        value = DEFORMABLE_SAMPLERS[border](data, indices, y_axis, x_axis, row, column)
        if mask is not None:
            mask_channel = ci // group_channels * kh * kw + ky * kw + kx
            value = value * cast(
                mask[permute_values((b, mask_channel, y, x), "NCHW", layout)], "float32"
            )
        return cast(value, data.dtype)

    # Samples are stored once per tap: every output channel would otherwise interpolate them again.
    sampled = te.compute(sampled_shape, sample_tap, name="deformed", tag="deformable_sample")
    taps = [te.reduce_axis((0, d), a) for d, a in ((kh, "kh"), (kw, "kw"), (per_group, "ci"))]
    ky, kx, ci = taps
    per_out = simplify_dim(out // groups)

    def sum_over_taps(*i: Var) -> PrimExpr:
        """Return the sum over taps and channels of the sampled values."""
        b, o, y, x = permute_values(i, layout, "NCHW")
        channel = ci if groups == 1 else o // per_out * per_group + ci
        factor = kernel[permute_values((o, ci, ky, kx), "OIHW", kernel_layout)]
        return te.sum(cast(sampled[b, channel, ky, kx, y, x], wide) * cast(factor, wide), taps)

    shape = permute_values((n, out, rows, columns), "NCHW", layout)
    total = te.compute(shape, sum_over_taps, name="deformable_conv2d", tag="deformable_conv2d")
    return round_accumulated(total, dtype)


def deformable_conv2d_nchw(
    data: Tensor,
    offset: Tensor,
    kernel: Tensor,
    strides: Ints,
    padding: Padding,
    dilation: Ints,
    deformable_groups: int,
    groups: int,
    out_dtype: str | None = None,
    mask: Tensor | None = None,
    border: str = "inside",
) -> Tensor:
    """Return a convolution whose taps are moved by offsets and sampled bilinearly (Dai et al.
    2017).

    Args:
        data: [N, C, H, W].
        offset: [N, deformable_groups * KH * KW * (y, x), OH, OW].
        kernel: [O, C / groups, KH, KW].
        strides: step of the window.
        padding: see `pads`.
        dilation: distance of taps.
        deformable_groups: number of offset groups.
        groups: number of channel groups.
        out_dtype: dtype of the result.
        mask: [N, deformable_groups * KH * KW, OH, OW], a factor for each tap (Zhu et al. 2018).
        border: values around the image, a key of DEFORMABLE_SAMPLERS.

    Returns:
        [N, O, OH, OW].
    """
    return _deformable_conv2d(
        data, offset, kernel, strides, padding, dilation, deformable_groups, groups, out_dtype,
        "NCHW", "OIHW", mask, border,
    )  # fmt: skip


def deformable_conv2d_nhwc(
    data: Tensor,
    offset: Tensor,
    kernel: Tensor,
    strides: Ints,
    padding: Padding,
    dilation: Ints,
    deformable_groups: int,
    groups: int,
    out_dtype: str | None = None,
    border: str = "inside",
) -> Tensor:
    """Return `deformable_conv2d_nchw` with channels last everywhere: kernel [KH, KW, C / groups,
    O].
    """
    return _deformable_conv2d(
        data, offset, kernel, strides, padding, dilation, deformable_groups, groups, out_dtype,
        "NHWC", "HWIO", None, border,
    )  # fmt: skip


def correlation_nchw(
    data1: Tensor,
    data2: Tensor,
    kernel_size: int,
    max_displacement: int,
    stride1: int,
    stride2: int,
    padding: Ints,
    is_multiply: bool,
) -> Tensor:
    """Return the correlation of patches of two images over displacements: means of products, or of
    absolute differences. Channels of the result are displacements, `stride2` apart (FlowNet's
    correlation layer).
    """
    top, pad_left, bottom, right = normalize_padding(padding, (as_dim(kernel_size),) * 2, (1, 1))
    require_shape("correlation", "data2", data2.shape, data1.shape)
    n, c, h, w = data1.shape
    radius = (kernel_size - 1) // 2
    border = max_displacement + radius
    rows = window_extent(h, 2 * border + 1, stride1, top, bottom)
    columns = window_extent(w, 2 * border + 1, stride1, pad_left, right)
    reach = max_displacement // stride2
    side = 2 * reach + 1
    taps = [
        te.reduce_axis((0, d), a) for d, a in ((c, "c"), (kernel_size, "ky"), (kernel_size, "kx"))
    ]
    channel, ky, kx = taps
    wide = accumulator_dtype(data1.dtype)

    def load_pixel(data: Tensor, b: PrimExpr, y: PrimExpr, x: PrimExpr) -> PrimExpr:
        """Load a pixel, zero outside of the image."""
        conditions = [y >= 0, y < h, x >= 0, x < w]
        return guarded_load(data, (b, channel, y, x), conditions, const(0, data.dtype))

    def sum_over_patch(b: Var, d: Var, i: Var, j: Var) -> PrimExpr:
        """Return the match for displacement d as (row, column) around the centre,
        `stride2` apart.
        """
        y = i * stride1 + max_displacement + ky - top
        x = j * stride1 + max_displacement + kx - pad_left
        a = load_pixel(data1, b, y, x)
        moved = load_pixel(
            data2, b, y + (d // side - reach) * stride2, x + (d % side - reach) * stride2
        )
        difference = a - moved
        apart = Select(difference < 0.0, -difference, difference, a.dtype)
        return te.sum(cast(a, wide) * cast(moved, wide) if is_multiply else cast(apart, wide), taps)

    total = te.compute(
        (n, side * side, rows, columns), sum_over_patch, name="matches", tag="correlation"
    )
    count = cast(c * (kernel_size * kernel_size), wide)
    mean = lambda *i: cast(total[i] / count, data1.dtype)  # noqa: E731
    return te.compute(total.shape, mean, name="correlation", tag="elemwise")


__all__ = ["correlation_nchw", "deformable_conv2d_nchw", "deformable_conv2d_nhwc"]
