"""Shapes, packing and unpacking of convolution and dense weight layouts.

OIHW, HWIO, ...   plain: out channels, in channels / groups, kernel height, width in any order
OHWI{r}o          packed: [ceil(O/r)][KH][KW][I/groups][r], zero padded (groups = 1)
GOHWI{r}o         packed per group: [G][ceil(O/G/r)][KH][KW][I/G][r]
OHWI{r}o4i        packed, of bytes: [ceil(O/r)][KH][KW][I/4][r][4], as dense_u8s8
GOHWI{r}o4i       the same per group: [G][ceil(O/G/r)][KH][KW][I/G/4][r][4]
OHWI{r}o2i        packed, of bfloat16, of bytes or of bytes widened to int16:
                  [ceil(O/r)][KH][KW][I/2][r][2]
GOHWI{r}o2i       the same of integers per group: [G][ceil(O/G/r)][KH][KW][I/G/2][r][2]
HWOI              depthwise: [KH][KW][C][1]
IOHW, HWIO        transposed convolutions: I in channels, O out channels / groups; packed as
                  above
ODHWI{r}o, ...    the same over three axes
dense {r}         [ceil(N/r)][K][r]
dense_u8s8 {r}    [ceil(N/r)][K/4][r][4]: four neighbours of a row side by side
dense_bf16 {r}    [ceil(N/r)][K/2][r][2]: two of them; dense_u8s16 the same of int16, and
                  dense_u8s8_pairs of bytes that are widened where they are loaded
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr
from ekiden.tir.data_layout import parse_layout
from ekiden.topi.dimensions import as_dim, ceil_div, simplify_dim, unify_dim
from ekiden.topi.layout import packed_tile_size, packed_word_size, permute_values

PACKED_WEIGHT_KINDS = (
    *("dense", "dense_u8s8", "dense_u8s8_pairs", "dense_u8s16", "dense_bf16"),
    *("conv2d", "conv2d_u8s8", "conv2d_u8s8_pairs", "conv2d_u8s16", "conv2d_bf16"),
    *("group_conv2d", "group_conv2d_u8s8", "group_conv2d_u8s8_pairs", "group_conv2d_u8s16"),
)
"""Layer kinds that `pack_weight` supports."""
DOT_WORD_CHANNELS = 4
"""Bytes of a dot-product word, a divisor of K or I."""
INT16_PAIR_SUMS_FACT = "int16_pair_sums"
"""Annotation of blocks whose weight's packer made sure that sums of two adjacent products fit
int16."""
WORD_PAIR_ELEMENTS = 2
"""Elements of a word of int16, or of bytes that are multiplied as int16."""
DOT_WORD_BY_DTYPE = {
    "uint8": DOT_WORD_CHANNELS,
    "int8": DOT_WORD_CHANNELS,
    "int16": WORD_PAIR_ELEMENTS,
    "bfloat16": WORD_PAIR_ELEMENTS,
}
"""Elements of a dot-product word by dtype; panels of int8 may be of words of two instead."""
DOT_WORD_BY_KIND = {
    **dict.fromkeys(("dense_u8s8", "conv2d_u8s8", "group_conv2d_u8s8"), DOT_WORD_CHANNELS),
    **dict.fromkeys(
        (
            *("dense_u8s16", "conv2d_u8s16", "group_conv2d_u8s16"),
            *("dense_u8s8_pairs", "conv2d_u8s8_pairs", "group_conv2d_u8s8_pairs"),
        ),
        WORD_PAIR_ELEMENTS,
    ),
    **dict.fromkeys(("dense_bf16", "conv2d_bf16"), DOT_WORD_BY_DTYPE["bfloat16"]),
}
"""Elements of a dot-product word by layer kind."""


def conv_weight_shape(
    shape: Sequence[PrimExpr], kernel_layout: str, channels: int | None, groups: int
) -> tuple[PrimExpr, ...]:
    """Return (out channels, in channels per group, window extents). Raises ValueError on a rank
    that does not fit.
    """
    if len(parse_layout(kernel_layout)) != len(shape):
        raise ValueError(
            f"'weight' must have {len(parse_layout(kernel_layout))} dimensions ({kernel_layout}),"
            f" got {len(shape)}"
        )
    axes = spatial_letters(kernel_layout)
    if not packed_tile_size(kernel_layout):
        return permute_values(shape, kernel_layout, f"OI{axes}")
    if channels is None:
        raise ValueError(f"a weight in {kernel_layout} needs the attribute 'channels'")
    _require_matching_tiles(shape, kernel_layout, channels, groups)
    if kernel_layout.endswith("i"):
        *window, words = shape[-3 - len(axes) : -2]
        return as_dim(channels), simplify_dim(words * packed_word_size(kernel_layout)), *window
    *window, per_group = shape[-2 - len(axes) : -1]
    return as_dim(channels), per_group, *window


def _require_matching_tiles(
    shape: Sequence[PrimExpr], kernel_layout: str, channels: int, groups: int
) -> None:
    """Raise ValueError where a packed weight's tiles disagree with its layout and number of output
    channels.
    """
    tile, is_grouped = packed_tile_size(kernel_layout), kernel_layout.startswith("G")
    count, columns = shape[is_grouped], shape[-2 if kernel_layout.endswith("i") else -1]
    expected_dims = [(count, -(-(channels // groups if is_grouped else channels) // tile)),
                     (columns, tile), *([(shape[0], groups)] if is_grouped else ())]  # fmt: skip
    if any(unify_dim(d, as_dim(number)) is None for d, number in expected_dims):
        raise ValueError(
            f"a weight in {kernel_layout} of {channels} channels has {expected_dims[0][1]} tiles of"
            f" {tile}, got {format_prim_expr(count)} of {format_prim_expr(columns)}"
        )


def conv_transpose_weight_shape(
    shape: Sequence[PrimExpr], kernel_layout: str, channels: int | None, groups: int
) -> tuple[PrimExpr, ...]:
    """Return (in channels, out channels per group, window extents) of a transposed convolution's
    weight. Raises ValueError for another rank.
    """
    if not packed_tile_size(kernel_layout):
        return permute_values(shape, kernel_layout, f"IO{spatial_letters(kernel_layout)}")
    out, per_group, *window = conv_weight_shape(shape, kernel_layout, channels, groups)
    return simplify_dim(per_group * groups), simplify_dim(out // groups), *window


def spatial_letters(layout: str) -> str:
    """Return the spatial axes of a layout: "HW" of "NHWC"."""
    return "".join(letter for letter in "DHW" if letter in layout)


def pack_weight_shape(
    shape: Sequence[PrimExpr], kind: str, tile: int, groups: int
) -> tuple[PrimExpr, ...]:
    """Return the shape of a packed weight, from [N, K] (dense), OIHW or OIDHW."""
    r = as_dim(tile)
    if kind == "dense":
        n, k = shape
        return simplify_dim(ceil_div(n, tile)), k, r
    if kind.startswith("dense_"):
        word = DOT_WORD_BY_KIND[kind]
        n, k = shape
        return simplify_dim(ceil_div(n, tile)), simplify_dim(k // word), r, as_dim(word)
    out, per_group, *window = shape
    if kind == "conv2d":
        return simplify_dim(ceil_div(out, tile)), *window, per_group, r
    if kind.startswith("conv2d_"):
        word = DOT_WORD_BY_KIND[kind]
        return (
            simplify_dim(ceil_div(out, tile)),
            *window,
            simplify_dim(per_group // word),
            r,
            as_dim(word),
        )
    grouped = as_dim(groups), simplify_dim(ceil_div(out // groups, tile)), *window
    if kind in DOT_WORD_BY_KIND:
        word = DOT_WORD_BY_KIND[kind]
        return *grouped, simplify_dim(per_group // word), r, as_dim(word)
    return *grouped, per_group, r


def pack_weight(weight: Array, kind: str, tile: int, groups: int = 1) -> Array:
    """Pack [N, K] (dense), OIHW or OIDHW, padding the last tile of output channels with zeros."""
    return np.ascontiguousarray(pack_weight_view(weight, kind, tile, groups))


def pack_weight_view(weight: Array, kind: str, tile: int, groups: int = 1) -> Array:
    """Return a packed weight as a view where possible, so that writing the artifact makes the only
    copy.
    """
    if kind == "dense":
        return _pack_rows(weight, tile).transpose(0, 2, 1)
    if kind.startswith("dense_"):
        word = DOT_WORD_BY_KIND[kind]
        rows = _pack_rows(weight, tile)
        words = rows.reshape(len(rows), tile, rows.shape[2] // word, word)
        return words.transpose(0, 2, 1, 3)
    if kind == "conv2d":
        rows = _pack_rows(weight, tile)
        return rows.transpose(0, *range(3, rows.ndim), 2, 1)
    if kind.startswith("conv2d_"):
        plain = pack_weight_view(weight, "conv2d", tile)
        words = plain.reshape(*plain.shape[:-2], -1, DOT_WORD_BY_KIND[kind], tile)
        return words.swapaxes(-1, -2)
    of_group = kind.removeprefix("group_")
    group_panels = [
        pack_weight_view(group, of_group, tile) for group in np.split(weight, groups, axis=0)
    ]
    return np.stack(group_panels)


def _pack_rows(weight: Array, tile: int) -> Array:
    """Reshape [N, ...] to [ceil(N/tile)][tile, ...], zero-padded."""
    count = -(-weight.shape[0] // tile)
    missing = count * tile - weight.shape[0]
    if missing:
        weight = np.pad(weight, ((0, missing), *((0, 0),) * (weight.ndim - 1)))
    return weight.reshape(count, tile, *weight.shape[1:])


def add_residual_words(packed: Array, word_indices: Array | None) -> Array:
    """Return [panels][K/4 + r][columns][4] with its last r rows added to the rows that
    `word_indices` [panels][r] names.
    """
    if word_indices is None:
        return packed
    dense_words = packed.shape[1] - word_indices.shape[1]
    words = packed[:, :dense_words].copy()
    np.add.at(words, (np.arange(len(words))[:, None], word_indices), packed[:, dense_words:])
    return words


def unpack_dense_weight(packed: Array, units: int, word_indices: Array | None = None) -> Array:
    """Unpack [ceil(N/r)][K][r], or [ceil(N/r)][K/word][r][word], to [N, K]; with word indices the
    last words are added to the named ones.
    """
    if packed.ndim == 4:
        packed = add_residual_words(packed, word_indices)
        count, words, tile, word = packed.shape
        return packed.transpose(0, 2, 1, 3).reshape(count * tile, words * word)[:units]
    return packed.transpose(0, 2, 1).reshape(packed.shape[0] * packed.shape[2], packed.shape[1])[
        :units
    ]


def unpack_conv_weight(
    weight: Array, kernel_layout: str, channels: int | None, groups: int
) -> Array:
    """Return a weight in any layout as OIHW or OIDHW."""
    if not packed_tile_size(kernel_layout):
        order = f"OI{spatial_letters(kernel_layout)}"
        return np.transpose(weight, [kernel_layout.index(letter) for letter in order])
    assert channels is not None, "checked by the relation"
    if kernel_layout.endswith("i"):
        *outer, words, tile, word = weight.shape
        weight = weight.swapaxes(-1, -2).reshape(*outer, words * word, tile)
    if kernel_layout.startswith("G"):
        return np.concatenate([_unpack_tiles(group)[: channels // groups] for group in weight])
    return _unpack_tiles(weight)[:channels]


def unpack_conv_transpose_weight(
    weight: Array, kernel_layout: str, channels: int | None, groups: int
) -> Array:
    """Return the weight of a transposed convolution in any layout as IOHW or IODHW."""
    if not packed_tile_size(kernel_layout):
        order = f"IO{spatial_letters(kernel_layout)}"
        return np.transpose(weight, [kernel_layout.index(letter) for letter in order])
    plain = unpack_conv_weight(weight, kernel_layout, channels, groups)
    return np.concatenate([group.swapaxes(0, 1) for group in np.split(plain, groups)])


def _unpack_tiles(packed: Array) -> Array:
    count, *window, per_group, tile = packed.shape
    order = (0, packed.ndim - 1, packed.ndim - 2, *range(1, packed.ndim - 2))
    return packed.transpose(order).reshape(count * tile, per_group, *window)
