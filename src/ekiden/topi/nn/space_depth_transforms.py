"""Space-to-depth and space-to-batch transforms and their inverses; flattening, dilation, shifting
buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import EQ, PrimExpr, Var, const, fold_binary, logical_and
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    Dim,
    Shape,
    as_dim,
    as_shape,
    known_int,
    normalize_axis,
    product_of_dims,
    replace_dim,
    require_min_extent,
    require_natural,
    require_positive,
    require_shape,
    simplify_dim,
)
from ekiden.topi.layout import permute_values
from ekiden.topi.nn.convolution import guarded_load
from ekiden.topi.transform import unravel

DEPTH_TO_SPACE_MODES = ("DCR", "CRD", "CDR")
"""Depth-to-space modes; the last is TVM's spelling of the one before."""


def depth_to_space(
    data: Tensor, block_size: int, layout: str = "NCHW", mode: str = "DCR"
) -> Tensor:
    """Rearrange channels to blocks of pixels. C / block**2 channels of block times the height and
    width.

    mode "DCR": the block's row and column come first in the channels, "CRD": last. ONNX
    DepthToSpace. Raises ValueError for another mode.
    """
    if mode not in DEPTH_TO_SPACE_MODES:
        raise ValueError(
            f"depth_to_space: mode must be one of {', '.join(DEPTH_TO_SPACE_MODES)}, got {mode!r}"
        )
    n, c, h, w = permute_values(data.shape, layout, "NCHW")
    require_positive("depth_to_space", block_size=block_size)
    if known_int(c) is not None and int(known_int(c) or 0) % (block_size * block_size):
        raise ValueError(
            f"depth_to_space: {known_int(c)} channels are not blocks of {block_size}**2"
        )
    channels = simplify_dim(c // (block_size * block_size))

    def load_from_channel(*i: Var) -> PrimExpr:
        """Return the element whose channel follows from the pixel's position in its block."""
        b, o, y, x = permute_values(i, layout, "NCHW")
        inner = (y % block_size) * block_size + x % block_size
        source = inner * channels + o if mode == "DCR" else o * (block_size * block_size) + inner
        return data[permute_values((b, source, y // block_size, x // block_size), "NCHW", layout)]

    shape = permute_values(
        (n, channels, simplify_dim(h * block_size), simplify_dim(w * block_size)), "NCHW", layout
    )
    return te.compute(shape, load_from_channel, name="depth_to_space", tag="injective")


def space_to_depth(data: Tensor, block_size: int, layout: str = "NCHW") -> Tensor:
    """Rearrange blocks of pixels to channels, the block's row and column first."""
    n, c, h, w = permute_values(data.shape, layout, "NCHW")

    def load_from_block(*i: Var) -> PrimExpr:
        """Return the element whose position in the block follows from the channel."""
        b, o, y, x = permute_values(i, layout, "NCHW")
        inner, channel = o // c, o % c
        row, column = y * block_size + inner // block_size, x * block_size + inner % block_size
        return data[permute_values((b, channel, row, column), "NCHW", layout)]

    counts = (
        simplify_dim(c * block_size * block_size),
        simplify_dim(h // block_size),
        simplify_dim(w // block_size),
    )
    return te.compute(
        permute_values((n, *counts), "NCHW", layout),
        load_from_block,
        name="space_to_depth",
        tag="injective",
    )


def space_to_batch_nd(
    data: Tensor,
    block_shape: Sequence[int],
    pad_before: Sequence[Dim],
    pad_after: Sequence[Dim],
    pad_value: float = 0.0,
) -> Tensor:
    """Rearrange padded blocks of the axes after the batch: positions in a block become batches.
    Raises ValueError for blocks below 1 and padding below 0.
    """
    rank = len(block_shape)
    first, last = as_shape(pad_before), as_shape(pad_after)
    _check_blocks("space_to_batch_nd", block_shape, "paddings", (first, last))
    sizes = [
        simplify_dim((d + a + b) // block)
        for d, a, b, block in zip(data.shape[1:], first, last, block_shape, strict=False)
    ]
    blocks = product_of_dims(as_shape(block_shape))
    batch = data.shape[0]

    def load_padded_element(*i: Var) -> PrimExpr:
        """Return one element of the result: the input element, or the pad value outside of it."""
        inner = unravel(i[0] // batch, as_shape(block_shape))
        indices = [i[1 + n] * block_shape[n] + inner[n] - first[n] for n in range(rank)]
        conditions = [c for n, p in enumerate(indices) for c in (p >= 0, p < data.shape[1 + n])]
        index = (i[0] % batch, *indices, *i[1 + rank :])
        return guarded_load(data, index, conditions, const(pad_value, data.dtype))

    shape = (simplify_dim(batch * blocks), *sizes, *data.shape[1 + rank :])
    return te.compute(shape, load_padded_element, name="space_to_batch_nd", tag="injective")


def _check_blocks(
    name: str, block_shape: Sequence[int], what: str, borders: tuple[Shape, Shape]
) -> None:
    for block in block_shape:
        require_positive(name, block_shape=block)
    for border in borders:
        if len(border) != len(block_shape):
            raise ValueError(f"{name}: {len(block_shape)} {what} expected, got {len(border)}")
        require_natural(name, what, border)


def batch_to_space_nd(
    data: Tensor,
    block_shape: Sequence[int],
    crop_begin_list: Sequence[Dim],
    crop_end_list: Sequence[Dim],
) -> Tensor:
    """Rearrange batches to positions in blocks of the axes after the batch, then crop. Raises
    ValueError for blocks below 1 and crops below 0, which would show elements outside of the data.
    """
    rank = len(block_shape)
    first, last = as_shape(crop_begin_list), as_shape(crop_end_list)
    _check_blocks("batch_to_space_nd", block_shape, "crops", (first, last))
    blocks = product_of_dims(as_shape(block_shape))
    batch = simplify_dim(data.shape[0] // blocks)
    sizes = [
        simplify_dim(d * block - a - b)
        for d, a, b, block in zip(data.shape[1:], first, last, block_shape, strict=False)
    ]

    def load_from_batch(*i: Var) -> PrimExpr:
        """Return the element whose batch follows from the position in the block."""
        indices = [i[1 + n] + first[n] for n in range(rank)]
        inner: PrimExpr = as_dim(0)
        for n, block in enumerate(block_shape):
            inner = inner * block + indices[n] % block
        outer = [p // b for p, b in zip(indices, block_shape, strict=True)]
        return data[(inner * batch + i[0], *outer, *i[1 + rank :])]

    shape = (batch, *sizes, *data.shape[1 + rank :])
    return te.compute(shape, load_from_batch, name="batch_to_space_nd", tag="injective")


def flatten(data: Tensor) -> Tensor:
    """Return the data with two axes: the first, and all others merged."""
    shape = (data.shape[0], product_of_dims(data.shape[1:]))
    return te.compute(
        shape, lambda i, j: data[(i, *unravel(j, data.shape[1:]))], name="flatten", tag="injective"
    )


def dilate(
    data: Tensor,
    strides: Sequence[int],
    dilation_value: float = 0.0,
    name: str = "DilatedInput",
) -> Tensor:
    """Insert values between elements, which are then `strides` apart."""
    if len(strides) != data.ndim:
        raise ValueError(f"dilate: expected {data.ndim} strides, got {tuple(strides)}")
    for step in strides:
        require_positive("dilate", strides=step)
    shape = [simplify_dim((d - 1) * s + 1) for d, s in zip(data.shape, strides, strict=True)]

    def dilate_element(*i: Var) -> PrimExpr:
        """Return an element where every index is a multiple of its stride, else the fill value."""
        exact: PrimExpr = const(True)
        for index, step in zip(i, strides, strict=True):
            if step != 1:
                exact = logical_and(exact, fold_binary(EQ, index % step, 0))
        indices = [index // step for index, step in zip(i, strides, strict=True)]
        return if_then_else(exact, data[indices], const(dilation_value, data.dtype))

    return te.compute(shape, dilate_element, name=name, tag="injective")


def fifo_buffer(data: Tensor, buffer: Tensor, axis: int) -> Tensor:
    """Shift the buffer along an axis by the extent of `data`, which fills its end."""
    axis_index = normalize_axis(axis, buffer.ndim, "fifo_buffer")
    size, extent = buffer.shape[axis_index], data.shape[axis_index]
    require_shape("fifo_buffer", "data", data.shape, replace_dim(buffer.shape, axis_index, extent))
    require_min_extent("fifo_buffer", "buffer", (size,), (extent,))

    def shift_element(*i: Var) -> PrimExpr:
        """Return the shifted buffer's element; after its end, the new data's."""
        old = buffer[replace_dim(i, axis_index, i[axis_index] + extent)]
        new = data[replace_dim(i, axis_index, i[axis_index] + extent - size)]
        return if_then_else(i[axis_index] + extent < size, old, new)

    return te.compute(buffer.shape, shift_element, name="fifo_buffer", tag="injective")


__all__ = [
    "batch_to_space_nd", "depth_to_space", "dilate", "fifo_buffer", "flatten", "space_to_batch_nd",
    "space_to_depth",
]  # fmt: skip
