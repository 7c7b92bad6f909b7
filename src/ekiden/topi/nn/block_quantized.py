"""Matrix products with block-quantised weights (block_formats.py), and row lookups.

plain    weight uint8 [N][blocks][size], as files have it
packed   weight uint8 [panels][blocks][...]: what a block has of the rows of a panel, where a row is
         a lane:

             scales of blocks      float16 [lane]
             offsets of blocks     float16 [lane], if there are offsets
             for each UNIT values  words int32 [lane], as many as a level has bits; then for each
                                   group of these values factors int8 [lane], of scales and then of
                                   offsets, if there are

         in the order in which kernels read it, words by the first value in them: a processor brings
         near what follows (Zen 4 read 9 GB/s of q4_k with all factors before all words, now 23)

In a word of a part of b bits lie the next 32 / b values: four in the lowest b bits of its bytes,
the next four in the next bits. Levels are counted from the least one. Rows of the last panel that
are none have scale 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr, Var, cast, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te import Tensor
from ekiden.te.range_checks import RANGE_CHECKS_ATTR_KEY, index_check, normalize_negative_index
from ekiden.topi.dimensions import as_dim
from ekiden.topi.nn.block_formats import (
    BLOCK_FORMATS_BY_NAME,
    BlockFormat,
    Bytes,
    Floats,
    GroupScale,
    PackedInts,
    read_float16,
    unpack_ints,
)

VALUES_PER_UNIT = 32
"""Values of a packing unit, which shares a data quantisation step."""
BYTES_PER_WORD = 4
BlockIndex = TypeVar("BlockIndex", int, PrimExpr)
ByteLoad = Callable[[PrimExpr], PrimExpr]
"""Function (offset) -> byte of a block as int32."""


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """Layout of a packed block of a panel, as byte offsets."""

    format: BlockFormat
    panel: int

    @property
    def group_scales(self) -> tuple[GroupScale, ...]:
        """Return the scale, and the offset of formats that have one."""
        row = self.format
        return (row.scale,) if row.offset is None else (row.scale, row.offset)

    @property
    def num_factors(self) -> int:
        """Return the number of integer factors of a group."""
        return sum(real.factor is not None for real in self.group_scales)

    @property
    def words_offset(self) -> int:
        """Return the offset of the words of the first unit."""
        return 2 * self.panel * len(self.group_scales)

    @property
    def num_groups(self) -> int:
        """Return the number of groups of a unit."""
        return VALUES_PER_UNIT // self.format.group_size

    @property
    def unit_bytes(self) -> int:
        """Return the bytes of a unit."""
        return self.factors_offset + self.num_groups * self.num_factors * self.panel

    @property
    def factors_offset(self) -> int:
        """Return the offset of the first group's factors in its unit."""
        return self.num_words * BYTES_PER_WORD * self.panel

    @property
    def num_words(self) -> int:
        """Return the number of words of a unit."""
        return self.format.levels.bits

    def word_position(self, field_index: int, number: BlockIndex) -> BlockIndex:
        """Return the position in a unit of a word of one bit field; words are ordered by the first
        value that needs them.
        """
        fields = self.format.levels.bit_fields
        first, position = number * 8 // fields[field_index].bits, number
        for n, bit_field in enumerate(fields):
            if n < field_index:
                position = first * bit_field.bits // 8 + 1 + position
            elif n > field_index:
                position = (first * bit_field.bits + 7) // 8 + position
        return position

    @property
    def word_order(self) -> list[int]:
        """Return the positions of a unit's words, bit field by bit field."""
        fields = self.format.levels.bit_fields
        return [
            self.word_position(n, w)
            for n, bit_field in enumerate(fields)
            for w in range(bit_field.bits)
        ]

    @property
    def num_units(self) -> int:
        """Return the number of units of a block."""
        return self.format.values_per_block // VALUES_PER_UNIT

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a block of all rows of a panel."""
        return self.words_offset + self.num_units * self.unit_bytes


def pack_blocks(weight: Bytes, format: str, panel: int) -> Bytes:
    """Convert plain blocks to packed panels."""
    to = PackedBlock(BLOCK_FORMATS_BY_NAME[format], panel)
    row, missing = to.format, -len(weight) % panel
    scale_panels = [
        _split_into_panels(read_float16(weight, real.byte_offset) * real.sign, missing, panel)
        for real in to.group_scales
    ]
    sections = [
        np.ascontiguousarray(panel_array).astype("<f2").view(np.uint8)
        for panel_array in scale_panels
    ]
    factors = [
        _split_into_panels(
            unpack_ints(real.factor, weight, row.num_groups).astype(np.int8), missing, panel
        )
        for real in to.group_scales
        if real.factor is not None
    ]
    # Counted from the smallest level: unsigned bytes are what u8 * s8 dot products take.
    levels = unpack_ints(row.levels, weight, row.values_per_block) - row.levels.min_value
    values = levels.astype(np.uint8).reshape(*weight.shape[:2], to.num_units, VALUES_PER_UNIT)
    words = _split_into_panels(_pack_words(row.levels, values), missing, panel)
    # Words are stored in the order in which a kernel consumes them, so that its loads are
    # sequential.
    words[..., to.word_order, :, :] = words.copy()
    units = [words.reshape(*words.shape[:3], to.factors_offset)]
    if factors:
        joined = np.stack(factors, axis=3).view(np.uint8)
        units.append(joined.reshape(*units[0].shape[:3], to.unit_bytes - to.factors_offset))
    sections.append(np.concatenate(units, axis=3))
    size = sections[0].shape[:2]
    return np.concatenate([section.reshape(*size, -1) for section in sections], axis=2)


def _split_into_panels(rows: Array, missing: int, panel: int) -> Array:
    """Reshape [rows, blocks, n, ...] to [panels, blocks, n, panel, ...], with `missing` padding
    rows.
    """
    padded = np.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1)))
    split = padded.reshape(-1, panel, *rows.shape[1:])
    if rows.ndim == 3:
        return np.ascontiguousarray(split.transpose(0, 2, 3, 1))
    return np.ascontiguousarray(np.moveaxis(split, 1, 4))


def _pack_words(levels: PackedInts, values: Bytes) -> Bytes:
    """Split levels [..., VALUES_PER_UNIT] into bytes of words [..., words, BYTES_PER_WORD]."""
    words = []
    for bit_field in levels.bit_fields:
        bits = values & np.uint8((1 << bit_field.bits) - 1)
        spread = bits.reshape(
            *values.shape[:-1], bit_field.bits, 8 // bit_field.bits, BYTES_PER_WORD
        )
        shifts = np.arange(8 // bit_field.bits, dtype=np.uint8)[:, None] * np.uint8(bit_field.bits)
        words.append(np.bitwise_or.reduce(spread << shifts, axis=-2))
        values = values >> np.uint8(bit_field.bits)
    return np.concatenate(words, axis=-2)


def unpack_blocks(packed: Bytes, format: str, panel: int) -> Floats:
    """Decode packed weights: [rows of all panels, k]."""
    of = PackedBlock(BLOCK_FORMATS_BY_NAME[format], panel)
    row, shape = of.format, packed.shape[:2]
    units = packed[..., of.words_offset :].reshape(*shape, of.num_units, of.unit_bytes)
    factors = units[..., of.factors_offset :].view(np.int8)
    factors = factors.reshape(*shape, row.num_groups, of.num_factors, panel)
    reals, factor = [], 0
    for n, real in enumerate(of.group_scales):
        raw = np.ascontiguousarray(packed[..., 2 * panel * n : 2 * panel * (n + 1)])
        decoded = raw.view("<f2").astype(np.float32)[:, :, None]
        if real.factor is not None:
            decoded = decoded * factors[..., factor, :]
            factor += 1
        reals.append(np.broadcast_to(decoded, (*shape, row.num_groups, panel))[..., None])
    words = units[..., : of.factors_offset].reshape(
        *shape, of.num_units, of.num_words, panel, BYTES_PER_WORD
    )
    words = words[..., of.word_order, :, :]
    levels = np.zeros((*shape, of.num_units, panel, VALUES_PER_UNIT), np.uint8)
    low = 0
    for bit_field in row.levels.bit_fields:
        field_words = words[..., low : low + bit_field.bits, :, :].swapaxes(
            3, 4
        )  # [..., panel, words, WORD]
        shifts = np.arange(8 // bit_field.bits, dtype=np.uint8)[:, None] * np.uint8(bit_field.bits)
        spread = field_words[..., None, :] >> shifts & np.uint8((1 << bit_field.bits) - 1)
        levels |= spread.reshape(levels.shape) << np.uint8(low)
        low += bit_field.bits
    # Packed levels are unsigned, counted from the smallest one; the bias is added back here.
    whole_levels = levels.astype(np.float32) + np.float32(row.levels.min_value)
    by_row = whole_levels.swapaxes(2, 3).reshape(*shape, panel, row.num_groups, row.group_size)
    decoded = by_row * reals[0].swapaxes(2, 3)
    if len(reals) > 1:
        decoded = decoded + reals[1].swapaxes(2, 3)
    return np.asarray(decoded.transpose(0, 2, 1, 3, 4).reshape(shape[0] * panel, -1), np.float32)


# What loops compute.


def _load_float16(load: ByteLoad, at: PrimExpr) -> PrimExpr:
    """Return the float16 at an offset as float32."""
    bits = _bitwise_or(load(at), _shift_by("left_shift", load(at + 1), const(8, "int32")))
    half = call_intrin("reinterpret", cast(bits, "uint16"), dtype="float16")
    return cast(half, "float32")


def _bitwise_or(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return call_intrin("bitwise_or", a, b, dtype="int32")


def _shift_by(name: str, a: PrimExpr, by: PrimExpr) -> PrimExpr:
    return call_intrin(name, a, cast(by, "int32"), dtype="int32")


def _extract_bits(load: ByteLoad, at: PrimExpr, shift: PrimExpr, bits: int, low: int) -> PrimExpr:
    """Return bits of a byte, shifted up."""
    right = _shift_by("right_shift", load(at), shift)
    alone = call_intrin("bitwise_and", right, const((1 << bits) - 1, "int32"), dtype="int32")
    return _shift_by("left_shift", alone, const(low, "int32")) if low else alone


def _load_packed_int(number: PackedInts, load: ByteLoad, k: PrimExpr) -> PrimExpr:
    """Load integer k of a block: int32."""
    if number.signed:
        return cast(cast(load(number.bit_fields[0].byte_of(k)), "int8"), "int32")
    value, low = const(-number.bias, "int32"), 0
    for bit_field in number.bit_fields:
        value = value + _extract_bits(
            load, bit_field.byte_of(k), bit_field.shift_of(k), bit_field.bits, low
        )
        low += bit_field.bits
    return value


def _decode_value(row: BlockFormat, load: ByteLoad, k: PrimExpr) -> PrimExpr:
    """Decode value k of an unpacked block: float32."""

    def load_scale(number: GroupScale) -> PrimExpr:
        """Return a scale of the block's header: float16, times its group's integer factor if it has
        one.
        """
        scale = _load_float16(load, const(number.byte_offset))
        if number.factor is not None:
            scale = scale * cast(
                _load_packed_int(number.factor, load, k // row.group_size), "float32"
            )
        return scale

    value = cast(_load_packed_int(row.levels, load, k), "float32") * load_scale(row.scale)
    if row.offset is None:
        return value
    return value + load_scale(row.offset) if row.offset.sign > 0 else value - load_scale(row.offset)


def _byte_loader(weight: Tensor, *indices: PrimExpr) -> ByteLoad:
    return lambda byte: cast(weight[(*indices, byte)], "int32")


def dense_blocks(data: Tensor, weight: Tensor, format: str) -> Tensor:
    """Multiply data[..., k] by the transpose of an unpacked block-quantised weight."""
    row = BLOCK_FORMATS_BY_NAME[format]
    k = te.reduce_axis((0, data.shape[-1]), "k")

    def sum_over_k(*i: Var) -> PrimExpr:
        """Multiply a row by a row of blocks, decoded."""
        load = _byte_loader(weight, i[-1], k // row.values_per_block)
        return te.sum(data[(*i[:-1], k)] * _decode_value(row, load, k % row.values_per_block), k)

    return te.compute((*data.shape[:-1], weight.shape[0]), sum_over_k, name="dense_blocks")


def take_blocks(weight: Tensor, indices: Tensor, format: str) -> Tensor:
    """Gather rows of an unpacked block-quantised weight as float32; negative indices count from the
    end.
    """
    row = BLOCK_FORMATS_BY_NAME[format]
    shape = (*indices.shape, weight.shape[1] * row.values_per_block)

    def decode_element(*i: Var) -> PrimExpr:
        """Decode an element of the row at the index."""
        position = normalize_negative_index(indices[i[:-1]], weight.shape[0])
        return _decode_value(
            row,
            _byte_loader(weight, position, i[-1] // row.values_per_block),
            i[-1] % row.values_per_block,
        )

    check = index_check("nn.take_blocks", indices, weight.shape[0], 0)
    return te.compute(
        shape,
        decode_element,
        name="take_blocks",
        tag="injective",
        attrs={RANGE_CHECKS_ATTR_KEY: (check,)},
    )


def dense_blocks_pack(
    data: Tensor, weight: Tensor, format: str, units: int, panel: int, activations: str
) -> Tensor:
    """Multiply data[..., k] by the transpose of a packed block-quantised weight; with `activations`
    "int8", kernels may quantise the data.
    """
    of = PackedBlock(BLOCK_FORMATS_BY_NAME[format], panel)
    k = te.reduce_axis((0, data.shape[-1]), "k")

    def sum_over_k(*i: Var) -> PrimExpr:
        """Return the sum of products with the packed weight."""
        return te.sum(data[(*i[:-1], k)] * decode_packed_value(of, weight, i[-1], k), k)

    attrs = {
        "inputs": (data, weight), "format": format, "panel": panel, "units": units,
        "activations": activations,
    }  # fmt: skip
    shape = (*data.shape[:-1], as_dim(units))
    name = "dense_blocks_pack"
    return te.compute(shape, sum_over_k, name=name, tag=name, attrs=attrs)


def take_blocks_pack(
    weight: Tensor, indices: Tensor, format: str, units: int, panel: int
) -> Tensor:
    """Gather rows of a packed block-quantised weight of `units` rows as float32; negative indices
    count from the end.
    """
    of = PackedBlock(BLOCK_FORMATS_BY_NAME[format], panel)
    shape = (*indices.shape, weight.shape[1] * of.format.values_per_block)

    def decode_element(*i: Var) -> PrimExpr:
        """Decode an element of the packed row at the index."""
        return decode_packed_value(
            of, weight, normalize_negative_index(indices[i[:-1]], as_dim(units)), i[-1]
        )

    name = "take_blocks_pack"
    check = index_check("nn.take_blocks", indices, as_dim(units), 0)
    return te.compute(
        shape, decode_element, name=name, tag="injective", attrs={RANGE_CHECKS_ATTR_KEY: (check,)}
    )


def decode_packed_value(of: PackedBlock, weight: Tensor, number: PrimExpr, k: PrimExpr) -> PrimExpr:
    """Decode value k of a row of a packed weight: level times group scale, plus the offset if there
    is one.
    """
    level = cast(packed_level(of, weight, number, k), "float32")
    scale, *offset = packed_scales(of, weight, number, k)
    return level * scale + offset[0] if offset else level * scale


def packed_scales(of: PackedBlock, weight: Tensor, number: PrimExpr, k: PrimExpr) -> list[PrimExpr]:
    """Return the float32 scale of value k of a row of a packed weight, and the offset of formats
    that have one. A row is a lane of its panel.
    """
    row, panel = of.format, of.panel
    lane, position = number % panel, k % row.values_per_block
    load = _byte_loader(weight, number // panel, k // row.values_per_block)
    inside = position % VALUES_PER_UNIT // row.group_size * (of.num_factors * panel) + lane
    group = (
        position // VALUES_PER_UNIT * of.unit_bytes + inside + (of.words_offset + of.factors_offset)
    )
    reals, factor = [], 0
    for n, real in enumerate(of.group_scales):
        value = _load_float16(load, lane * 2 + 2 * panel * n)
        if real.factor is not None:
            value = value * cast(cast(load(group + factor * panel), "int8"), "float32")
            factor += 1
        reals.append(value)
    return reals


def packed_level(
    of: PackedBlock, weight: Tensor, number: PrimExpr, k: PrimExpr, least: int | None = None
) -> PrimExpr:
    """Return the int32 level of value k of a row of a packed weight; `least`: the value of the
    smallest level, that of the format by default.
    """
    load = _byte_loader(weight, number // of.panel, k // of.format.values_per_block)
    start = of.format.levels.min_value if least is None else least
    return _load_packed_level(of, load, k % of.format.values_per_block, number % of.panel, start)


def _load_packed_level(
    of: PackedBlock, load: ByteLoad, k: PrimExpr, lane: PrimExpr, least: int
) -> PrimExpr:
    """Load the level of value k of a row of a packed panel, counted from `least`."""
    level, low = const(least, "int32"), 0
    unit, inside = k // VALUES_PER_UNIT, k % VALUES_PER_UNIT
    for n, bit_field in enumerate(of.format.levels.bit_fields):
        word = of.word_position(n, inside * bit_field.bits // VALUES_PER_UNIT)
        position = (
            (word * of.panel + lane) * BYTES_PER_WORD
            + inside % BYTES_PER_WORD
            + of.words_offset
            + unit * of.unit_bytes
        )
        shift = inside % (VALUES_PER_UNIT // bit_field.bits) // BYTES_PER_WORD * bit_field.bits
        level = level + _extract_bits(load, position, shift, bit_field.bits, low)
        low += bit_field.bits
    return level


__all__ = ["dense_blocks", "dense_blocks_pack", "take_blocks", "take_blocks_pack"]
