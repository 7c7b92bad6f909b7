"""Table of the block-quantised number formats of GGUF files.

A block stands for `values_per_block` neighbours of a row, in groups of `group_size`. Number k of it
is

    scale[k // group] * level[k] + offset[k // group]

of levels that are whole numbers. A scale, and an offset, is a float16 of the block, where there is
a factor times a whole number of the group. Where the bits of whole numbers lie is said by `Part`s;
decoding, encoding, loops over blocks and the layouts of kernels are made of them.

Source: ggml-common.h and ggml-quants.c of llama.cpp; decoded bits are those of its package `gguf`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ekiden.runtime.lazy_dataclass import dataclass

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
IndexMap: TypeAlias = Callable[[Any], Any]
"""Integer function of an index, on NumPy arrays and on expressions."""


@dataclass(frozen=True, slots=True)
class BitField:
    """Bit field of value k: `bits` bits of byte `byte_of(k)` of the block, from bit `shift_of(k)`
    on.
    """

    bits: int
    byte_of: IndexMap
    shift_of: IndexMap


@dataclass(frozen=True, slots=True)
class PackedInts:
    """Integers in bit fields, least significant first, minus a bias; 8-bit integers may be signed
    instead.
    """

    bit_fields: tuple[BitField, ...]
    bias: int = 0
    signed: bool = False

    @property
    def bits(self) -> int:
        """Return the bits per integer."""
        return sum(bit_field.bits for bit_field in self.bit_fields)

    @property
    def min_value(self) -> int:
        """Return the smallest representable integer."""
        return -(1 << (self.bits - 1)) if self.signed else -self.bias

    @property
    def max_value(self) -> int:
        """Return the largest representable integer."""
        return self.min_value + (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class GroupScale:
    """Scale of a group: the float16 at a byte offset of the block, times the group's integer factor
    and the sign.
    """

    byte_offset: int
    factor: PackedInts | None = None
    sign: int = 1


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Block-quantised format: its name, its GGUF type number, values, bytes and group size of a
    block, and the encoding of levels, scales and offsets.
    """

    name: str
    gguf_type: int
    values_per_block: int
    block_bytes: int
    group_size: int
    levels: PackedInts
    scale: GroupScale
    offset: GroupScale | None = None

    @property
    def num_groups(self) -> int:
        """Return the number of groups of a block."""
        return self.values_per_block // self.group_size

    @property
    def bits_per_value(self) -> float:
        """Return the bits per value, scales included."""
        return 8 * self.block_bytes / self.values_per_block

    def decode(self, blocks: Bytes) -> Floats:
        """Decode uint8 [..., blocks, size] to float32 [..., blocks * values]."""
        levels = unpack_ints(self.levels, blocks, self.values_per_block).astype(np.float32)
        grouped = levels.reshape(*blocks.shape[:-1], self.num_groups, self.group_size)
        with np.errstate(all="ignore"):  # scales may be anything
            decoded = grouped * read_group_scales(self.scale, blocks, self.num_groups)[..., None]
            if self.offset is not None:
                decoded = (
                    decoded + read_group_scales(self.offset, blocks, self.num_groups)[..., None]
                )
        shape = *blocks.shape[:-2], blocks.shape[-2] * self.values_per_block
        return np.asarray(decoded, np.float32).reshape(shape)

    def encode(self, numbers: Floats) -> Bytes:
        """Encode float32 [..., n * values] as uint8 [..., n, size] by round-to-nearest; bit-equal
        to `gguf.quantize` for formats without integer factors. Raises ValueError where the last
        axis is no whole number of blocks.
        """
        if numbers.ndim == 0 or numbers.shape[-1] % self.values_per_block:
            raise ValueError(
                f"{self.name}: rows of a multiple of {self.values_per_block} numbers expected, got"
                f" {numbers.shape}"
            )
        blocks = numbers.shape[-1] // self.values_per_block
        shape = *numbers.shape[:-1], blocks, self.num_groups, self.group_size
        grouped = np.ascontiguousarray(numbers, np.float32).reshape(shape)
        with np.errstate(all="ignore"):
            return _encode_blocks(self, grouped)

    def pack(self, levels: NDArray[np.int16], scales: Floats) -> Bytes:
        """Return levels [..., n * values] and scales [..., n] as uint8 [..., n, size]; scales are
        rounded to float16. For formats of one scale without a factor, and no offset.
        """
        assert self.scale.factor is None and self.offset is None and self.num_groups == 1
        shape = *scales.shape, self.values_per_block
        blocks = np.zeros((*scales.shape, self.block_bytes), np.uint8)
        _write_group_scales(self.scale, blocks, scales[..., None].astype(np.float32))
        pack_ints(self.levels, blocks, levels.reshape(shape))
        return blocks


def unpack_ints(number: PackedInts, blocks: Bytes, count: int) -> NDArray[np.int16]:
    """Return the first `count` integers of each block: int16 [..., count]."""
    k, low = np.arange(count), 0
    numbers = np.zeros((*blocks.shape[:-1], count), np.uint8)
    for bit_field in number.bit_fields:
        shift = np.broadcast_to(bit_field.shift_of(k), k.shape).astype(np.uint8)
        numbers |= (
            blocks[..., bit_field.byte_of(k)] >> shift & np.uint8((1 << bit_field.bits) - 1)
        ) << low
        low += bit_field.bits
    if number.signed:
        return numbers.view(np.int8).astype(np.int16)
    return numbers.astype(np.int16) - np.int16(number.bias)


def pack_ints(number: PackedInts, blocks: Bytes, numbers: NDArray[np.int16]) -> None:
    """Pack integers [..., count] into the zeroed bit fields of blocks."""
    k = np.arange(numbers.shape[-1])
    stored = (numbers + (0 if number.signed else number.bias)).astype(np.uint8)
    for bit_field in number.bit_fields:
        shifts = np.broadcast_to(bit_field.shift_of(k), k.shape)
        bits = stored & np.uint8((1 << bit_field.bits) - 1)
        for shift in np.unique(shifts):  # no two numbers of one shift lie in the same byte
            chosen = k[shifts == shift]
            blocks[..., bit_field.byte_of(chosen)] |= bits[..., chosen] << np.uint8(shift)
        stored = stored >> np.uint8(bit_field.bits)


def read_float16(blocks: Bytes, at: int) -> Floats:
    """Return the float16 at byte `at` of each block: float32 [..., 1]."""
    pair = np.ascontiguousarray(blocks[..., at : at + 2])
    return pair.view("<f2").astype(np.float32)


def read_group_scales(number: GroupScale, blocks: Bytes, groups: int) -> Floats:
    """Return the scale of each group: float32 [..., groups]."""
    scales = read_float16(blocks, number.byte_offset)
    if number.factor is None:
        scales = np.repeat(scales, groups, axis=-1)
    else:
        scales = scales * unpack_ints(number.factor, blocks, groups).astype(np.float32)
    return scales if number.sign > 0 else -scales


def _encode_blocks(row: BlockFormat, grouped: Floats) -> Bytes:
    """Encode float32 [..., blocks, groups, group] as the bytes of blocks."""
    blocks = np.zeros((*grouped.shape[:-2], row.block_bytes), np.uint8)
    if row.offset is None:
        scale = _scale_of_extreme(grouped, row.levels)
        inverse = _write_group_scales(row.scale, blocks, scale)
        scaled = grouped * inverse[..., None]
    else:
        low = grouped.min(axis=-1)
        if row.offset.factor is not None:  # whole numbers of groups, all of the same sign
            low = np.minimum(low, np.float32(0))
        scale = (grouped.max(axis=-1) - low) / np.float32(row.levels.max_value)
        inverse = _write_group_scales(row.scale, blocks, scale)
        _write_group_scales(row.offset, blocks, low)
        if row.offset.factor is not None:
            low = read_group_scales(row.offset, blocks, row.num_groups)
        scaled = (grouped - low[..., None]) * inverse[..., None]
    levels = _round_to_levels(scaled.reshape(*grouped.shape[:-2], row.values_per_block), row.levels)
    pack_ints(row.levels, blocks, levels)
    return blocks


def _scale_of_extreme(grouped: Floats, levels: PackedInts) -> Floats:
    """Return the scale that maps the value of largest magnitude to the end of the levels."""
    if levels.signed:
        return np.asarray(np.abs(grouped).max(axis=-1) / np.float32(levels.max_value), np.float32)
    # The levels are asymmetric (-8..7): mapping the extreme value to the negative end, with a scale
    # of either sign, uses the whole range.
    axis_index = np.abs(grouped).argmax(axis=-1)[..., None]
    return np.asarray(
        np.take_along_axis(grouped, axis_index, -1)[..., 0] / np.float32(levels.min_value)
    )


def _round_to_levels(scaled: Floats, levels: PackedInts) -> NDArray[np.int16]:
    """Return the nearest levels; ties round up, or away from 0 for signed levels."""
    if levels.signed:
        below = np.floor(np.abs(scaled))
        near = np.copysign(below + np.floor(2 * (np.abs(scaled) - below)), scaled)
    else:  # the sum is rounded to float32, as `gguf` does
        near = np.floor(scaled + np.float32(levels.bias + 0.5)) - np.float32(levels.bias)
    # Casting NaN to an integer is undefined.
    near = np.nan_to_num(near, nan=0.0)
    return np.asarray(near.clip(levels.min_value, levels.max_value).astype(np.int16))


def _write_group_scales(number: GroupScale, blocks: Bytes, scales: Floats) -> Floats:
    """Write the groups' scales as exactly as possible, and return the reciprocals to multiply by:
    of the requested scales where only float16 rounds them.
    """
    if number.factor is None:
        _write_float16(blocks, number.byte_offset, scales * np.float32(number.sign))
        return _reciprocal(scales)
    scales = scales * np.float32(number.sign)
    factor = number.factor
    axis_index = np.abs(scales).argmax(axis=-1)[..., None]
    # Signed factors reach one farther below 0 (-32..31): the extreme scale is mapped there.
    end = factor.min_value if factor.min_value < 0 else factor.max_value
    half = np.take_along_axis(scales, axis_index, -1) / np.float32(end)
    # The integer factors are rounded against the float16 that is stored, not the exact scale: its
    # rounding error is then compensated.
    _write_float16(blocks, number.byte_offset, half)
    pack_ints(
        factor,
        blocks,
        _round_to_levels(scales * _reciprocal(read_float16(blocks, number.byte_offset)), factor),
    )
    return _reciprocal(read_group_scales(number, blocks, scales.shape[-1]))


def _write_float16(blocks: Bytes, at: int, number: Floats) -> None:
    blocks[..., at : at + 2] = number.astype("<f2").view(np.uint8)


def _reciprocal(number: Floats) -> Floats:
    # A group of zeros has scale 0: its levels become 0 instead of NaN.
    return np.where(number == 0, np.float32(0), np.float32(1) / number)


# The table.


def _interleaved_field(at: int, length: int, bits: int, first: int = 0) -> BitField:
    """Return the bit field of values that are interleaved in runs of `length` bytes."""
    deep = (8 - first) // bits
    return BitField(
        bits,
        lambda k: k // (length * deep) * length + k % length + at,
        lambda k: k % (length * deep) // length * bits + first,
    )


def _bytewise_field(at: int, bits: int = 8, first: int = 0) -> BitField:
    """Return the bit field of values stored one per byte."""
    return BitField(bits, lambda k: k + at, lambda k: k * 0 + first)


_K_SCALES = PackedInts(
    (BitField(4, lambda j: j + j // 4 * 4 + 4, lambda j: j * 0), _interleaved_field(4, 4, 2, 4))
)
"""Six-bit scales of the K formats' eight groups, in bytes 4 to 15; the upper bits of the last four
are stored above the first four.
"""
_K_MINIMA = PackedInts(
    (BitField(4, lambda j: j + 8, lambda j: j // 4 * 4), _interleaved_field(8, 4, 2, 4))
)

# fmt: off
GGUF_BLOCK_FORMATS = (
    BlockFormat("q4_0", 2,  32,  18,  32, PackedInts((_interleaved_field(2, 16, 4),), bias=8),
        GroupScale(0)),
    BlockFormat("q4_1", 3,  32,  20,  32, PackedInts((_interleaved_field(4, 16, 4),)),
        GroupScale(0), GroupScale(2)),
    BlockFormat("q5_0", 6,  32,  22,  32,
        PackedInts((_interleaved_field(6, 16, 4), _interleaved_field(2, 1, 1)), bias=16),
        GroupScale(0)),
    BlockFormat("q5_1", 7,  32,  24,  32,
        PackedInts((_interleaved_field(8, 16, 4), _interleaved_field(4, 1, 1))), GroupScale(0),
        GroupScale(2)),
    BlockFormat("q8_0", 8,  32,  34,  32, PackedInts((_bytewise_field(2),), signed=True),
        GroupScale(0)),
    BlockFormat("q2_k", 10, 256, 84,  16, PackedInts((_interleaved_field(16, 32, 2),)),
        GroupScale(80, PackedInts((_bytewise_field(0, 4),))),
        GroupScale(82, PackedInts((_bytewise_field(0, 4, 4),)), -1)),
    BlockFormat("q3_k", 11, 256, 110, 16,
        PackedInts((_interleaved_field(32, 32, 2), _interleaved_field(0, 32, 1)), bias=4),
        GroupScale(108, PackedInts((_interleaved_field(96, 8, 4), _interleaved_field(104, 4, 2)),
                                   bias=32))),
    BlockFormat("q4_k", 12, 256, 144, 32, PackedInts((_interleaved_field(16, 32, 4),)),
        GroupScale(0, _K_SCALES), GroupScale(2, _K_MINIMA, -1)),
    BlockFormat("q5_k", 13, 256, 176, 32,
        PackedInts((_interleaved_field(48, 32, 4), _interleaved_field(16, 32, 1))),
        GroupScale(0, _K_SCALES), GroupScale(2, _K_MINIMA, -1)),
    BlockFormat("q6_k", 14, 256, 210, 16,
        PackedInts((_interleaved_field(0, 64, 4), _interleaved_field(128, 32, 2)), bias=32),
        GroupScale(208, PackedInts((_bytewise_field(192),), signed=True))),
)
# fmt: on
BLOCK_FORMATS_BY_NAME: Mapping[str, BlockFormat] = {row.name: row for row in GGUF_BLOCK_FORMATS}
"""Block formats by name."""

__all__ = [
    "BLOCK_FORMATS_BY_NAME",
    "GGUF_BLOCK_FORMATS",
    "BitField",
    "BlockFormat",
    "GroupScale",
    "PackedInts",
    "read_float16",
    "read_group_scales",
    "unpack_ints",
]
