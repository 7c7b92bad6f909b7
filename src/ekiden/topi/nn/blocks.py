"""Matrix products with block-quantised weights (block_formats.py), and gathers of their rows.

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
from ekiden.te.range_checks import CHECKS_ATTR, from_either_end, index_check
from ekiden.topi.dimensions import as_dim
from ekiden.topi.nn.block_formats import (
    BLOCK_FORMATS,
    BlockFormat,
    Bytes,
    Floats,
    GroupScale,
    PackedInts,
    halves,
    unpack_ints,
)

UNIT_VALUES = 32
"""Values whose words lie together, and of which data has a step."""
WORD_BYTES = 4
BlockIndex = TypeVar("BlockIndex", int, PrimExpr)
ByteLoad = Callable[[PrimExpr], PrimExpr]
"""A byte of a block as int32, from its place."""


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """Layout of a packed block: byte offsets from its beginning."""

    format: BlockFormat
    panel: int

    @property
    def scales(self) -> tuple[GroupScale, ...]:
        """Scale, and offset if there is one."""
        row = self.format
        return (row.scale,) if row.offset is None else (row.scale, row.offset)

    @property
    def factors(self) -> int:
        """Factors of a group."""
        return sum(real.factor is not None for real in self.scales)

    @property
    def words_at(self) -> int:
        """Return the offset of the words of the first unit."""
        return 2 * self.panel * len(self.scales)

    @property
    def groups(self) -> int:
        """Return the number of groups of a unit."""
        return UNIT_VALUES // self.format.group

    @property
    def unit(self) -> int:
        """Bytes of a unit."""
        return self.factors_at + self.groups * self.factors * self.panel

    @property
    def factors_at(self) -> int:
        """Return the offset of the first group's factors in its unit."""
        return self.words * WORD_BYTES * self.panel

    @property
    def words(self) -> int:
        """Return the number of words of a unit."""
        return self.format.levels.bits

    def word(self, field_index: int, number: BlockIndex) -> BlockIndex:
        """Return the position in a unit of a word of one bit field: after the words of other fields
        whose first value precedes its own.
        """
        fields = self.format.levels.parts
        first, position = number * 8 // fields[field_index].bits, number
        for n, bit_field in enumerate(fields):
            if n < field_index:
                position = first * bit_field.bits // 8 + 1 + position
            elif n > field_index:
                position = (first * bit_field.bits + 7) // 8 + position
        return position

    @property
    def order(self) -> list[int]:
        """Return the positions of a unit's words, bit field by bit field."""
        fields = self.format.levels.parts
        return [
            self.word(n, w) for n, bit_field in enumerate(fields) for w in range(bit_field.bits)
        ]

    @property
    def units(self) -> int:
        """Return the number of units of a block."""
        return self.format.values // UNIT_VALUES

    @property
    def size(self) -> int:
        """Bytes of a block of all rows of a panel."""
        return self.words_at + self.units * self.unit


def pack_blocks(weight: Bytes, format: str, panel: int) -> Bytes:
    """Convert plain blocks to packed panels."""
    to = PackedBlock(BLOCK_FORMATS[format], panel)
    row, missing = to.format, -len(weight) % panel
    scale_panels = [
        _panels(halves(weight, real.at) * real.sign, missing, panel) for real in to.scales
    ]
    sections = [
        np.ascontiguousarray(panel_array).astype("<f2").view(np.uint8)
        for panel_array in scale_panels
    ]
    factors = [
        _panels(unpack_ints(real.factor, weight, row.groups).astype(np.int8), missing, panel)
        for real in to.scales
        if real.factor is not None
    ]
    levels = unpack_ints(row.levels, weight, row.values) - row.levels.least
    values = levels.astype(np.uint8).reshape(*weight.shape[:2], to.units, UNIT_VALUES)
    words = _panels(_words(row.levels, values), missing, panel)
    words[..., to.order, :, :] = words.copy()
    units = [words.reshape(*words.shape[:3], to.factors_at)]
    if factors:
        joined = np.stack(factors, axis=3).view(np.uint8)
        units.append(joined.reshape(*units[0].shape[:3], to.unit - to.factors_at))
    sections.append(np.concatenate(units, axis=3))
    size = sections[0].shape[:2]
    return np.concatenate([section.reshape(*size, -1) for section in sections], axis=2)


def _panels(rows: Array, missing: int, panel: int) -> Array:
    """Reshape [rows, blocks, n, ...] to [panels, blocks, n, panel, ...]."""
    padded = np.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1)))
    split = padded.reshape(-1, panel, *rows.shape[1:])
    if rows.ndim == 3:
        return np.ascontiguousarray(split.transpose(0, 2, 3, 1))
    return np.ascontiguousarray(np.moveaxis(split, 1, 4))


def _words(levels: PackedInts, values: Bytes) -> Bytes:
    """Split levels [..., UNIT_VALUES] into words [..., words, WORD_BYTES]."""
    words = []
    for bit_field in levels.parts:
        bits = values & np.uint8((1 << bit_field.bits) - 1)
        spread = bits.reshape(*values.shape[:-1], bit_field.bits, 8 // bit_field.bits, WORD_BYTES)
        shifts = np.arange(8 // bit_field.bits, dtype=np.uint8)[:, None] * np.uint8(bit_field.bits)
        words.append(np.bitwise_or.reduce(spread << shifts, axis=-2))
        values = values >> np.uint8(bit_field.bits)
    return np.concatenate(words, axis=-2)


def unpack_blocks(packed: Bytes, format: str, panel: int) -> Floats:
    """Decode packed weights: [rows of all panels, k]."""
    of = PackedBlock(BLOCK_FORMATS[format], panel)
    row, shape = of.format, packed.shape[:2]
    units = packed[..., of.words_at :].reshape(*shape, of.units, of.unit)
    factors = units[..., of.factors_at :].view(np.int8)
    factors = factors.reshape(*shape, row.groups, of.factors, panel)
    reals, factor = [], 0
    for n, real in enumerate(of.scales):
        raw = np.ascontiguousarray(packed[..., 2 * panel * n : 2 * panel * (n + 1)])
        decoded = raw.view("<f2").astype(np.float32)[:, :, None]
        if real.factor is not None:
            decoded = decoded * factors[..., factor, :]
            factor += 1
        reals.append(np.broadcast_to(decoded, (*shape, row.groups, panel))[..., None])
    words = units[..., : of.factors_at].reshape(*shape, of.units, of.words, panel, WORD_BYTES)
    words = words[..., of.order, :, :]
    levels = np.zeros((*shape, of.units, panel, UNIT_VALUES), np.uint8)
    low = 0
    for bit_field in row.levels.parts:
        mine = words[..., low : low + bit_field.bits, :, :].swapaxes(
            3, 4
        )  # [..., panel, words, WORD]
        shifts = np.arange(8 // bit_field.bits, dtype=np.uint8)[:, None] * np.uint8(bit_field.bits)
        spread = mine[..., None, :] >> shifts & np.uint8((1 << bit_field.bits) - 1)
        levels |= spread.reshape(levels.shape) << np.uint8(low)
        low += bit_field.bits
    whole_levels = levels.astype(np.float32) + np.float32(row.levels.least)
    by_row = whole_levels.swapaxes(2, 3).reshape(*shape, panel, row.groups, row.group)
    decoded = by_row * reals[0].swapaxes(2, 3)
    if len(reals) > 1:
        decoded = decoded + reals[1].swapaxes(2, 3)
    return np.asarray(decoded.transpose(0, 2, 1, 3, 4).reshape(shape[0] * panel, -1), np.float32)


# What loops compute.


def _half(load: ByteLoad, at: PrimExpr) -> PrimExpr:
    """Return the float16 at an offset as float32."""
    bits = _or(load(at), _shifted("left_shift", load(at + 1), const(8, "int32")))
    half = call_intrin("reinterpret", cast(bits, "uint16"), dtype="float16")
    return cast(half, "float32")


def _or(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return call_intrin("bitwise_or", a, b, dtype="int32")


def _shifted(name: str, a: PrimExpr, by: PrimExpr) -> PrimExpr:
    return call_intrin(name, a, cast(by, "int32"), dtype="int32")


def _bits(load: ByteLoad, at: PrimExpr, shift: PrimExpr, bits: int, low: int) -> PrimExpr:
    """Return bits of a byte, shifted up."""
    right = _shifted("right_shift", load(at), shift)
    alone = call_intrin("bitwise_and", right, const((1 << bits) - 1, "int32"), dtype="int32")
    return _shifted("left_shift", alone, const(low, "int32")) if low else alone


def _whole(number: PackedInts, load: ByteLoad, k: PrimExpr) -> PrimExpr:
    """Return integer k of a block: int32."""
    if number.signed:
        return cast(cast(load(number.parts[0].byte(k)), "int8"), "int32")
    value, low = const(-number.bias, "int32"), 0
    for bit_field in number.parts:
        value = value + _bits(load, bit_field.byte(k), bit_field.shift(k), bit_field.bits, low)
        low += bit_field.bits
    return value


def _value(row: BlockFormat, load: ByteLoad, k: PrimExpr) -> PrimExpr:
    """Return number k of a plain block: float32."""

    def real(number: GroupScale) -> PrimExpr:
        """Return a scale of the block's header: float16, times its group's integer factor if it has
        one.
        """
        scale = _half(load, const(number.at))
        if number.factor is not None:
            scale = scale * cast(_whole(number.factor, load, k // row.group), "float32")
        return scale

    value = cast(_whole(row.levels, load, k), "float32") * real(row.scale)
    if row.offset is None:
        return value
    return value + real(row.offset) if row.offset.sign > 0 else value - real(row.offset)


def _loader(weight: Tensor, *at: PrimExpr) -> ByteLoad:
    return lambda byte: cast(weight[(*at, byte)], "int32")


def dense_blocks(data: Tensor, weight: Tensor, format: str) -> Tensor:
    """Multiply data[..., k] by the transpose of a plain weight."""
    row = BLOCK_FORMATS[format]
    k = te.reduce_axis((0, data.shape[-1]), "k")

    def body(*i: Var) -> PrimExpr:
        load = _loader(weight, i[-1], k // row.values)
        return te.sum(data[(*i[:-1], k)] * _value(row, load, k % row.values), k)

    return te.compute((*data.shape[:-1], weight.shape[0]), body, name="dense_blocks")


def take_blocks(weight: Tensor, indices: Tensor, format: str) -> Tensor:
    """Gather rows of a plain weight as float32; negative indices count from the end."""
    row = BLOCK_FORMATS[format]
    shape = (*indices.shape, weight.shape[1] * row.values)

    def body(*i: Var) -> PrimExpr:
        at = from_either_end(indices[i[:-1]], weight.shape[0])
        return _value(row, _loader(weight, at, i[-1] // row.values), i[-1] % row.values)

    check = index_check("nn.take_blocks", indices, weight.shape[0], 0)
    return te.compute(
        shape, body, name="take_blocks", tag="injective", attrs={CHECKS_ATTR: (check,)}
    )


def dense_blocks_pack(
    data: Tensor, weight: Tensor, format: str, units: int, panel: int, activations: str
) -> Tensor:
    """Multiply data[..., k] by the transpose of a packed weight; kernels may round the data to
    bytes if `activations` are "int8".
    """
    of = PackedBlock(BLOCK_FORMATS[format], panel)
    k = te.reduce_axis((0, data.shape[-1]), "k")

    def body(*i: Var) -> PrimExpr:
        """Return the sum of products with the packed weight."""
        return te.sum(data[(*i[:-1], k)] * _packed_value(of, weight, i[-1], k), k)

    attrs = {
        "inputs": (data, weight), "format": format, "panel": panel, "units": units,
        "activations": activations,
    }  # fmt: skip
    shape = (*data.shape[:-1], as_dim(units))
    name = "dense_blocks_pack"
    return te.compute(shape, body, name=name, tag=name, attrs=attrs)


def take_blocks_pack(
    weight: Tensor, indices: Tensor, format: str, units: int, panel: int
) -> Tensor:
    """Gather rows of a packed weight of `units` rows as float32; negative indices count from the
    end.
    """
    of = PackedBlock(BLOCK_FORMATS[format], panel)
    shape = (*indices.shape, weight.shape[1] * of.format.values)

    def body(*i: Var) -> PrimExpr:
        return _packed_value(of, weight, from_either_end(indices[i[:-1]], as_dim(units)), i[-1])

    name = "take_blocks_pack"
    check = index_check("nn.take_blocks", indices, as_dim(units), 0)
    return te.compute(shape, body, name=name, tag="injective", attrs={CHECKS_ATTR: (check,)})


def _packed_value(of: PackedBlock, weight: Tensor, number: PrimExpr, k: PrimExpr) -> PrimExpr:
    """Return number k of a row of a packed weight: its level times its group's scale (plus its
    offset). A row is a lane of its panel.
    """
    row, panel = of.format, of.panel
    lane, at = number % panel, k % row.values
    load = _loader(weight, number // panel, k // row.values)
    inside = at % UNIT_VALUES // row.group * (of.factors * panel) + lane
    group = at // UNIT_VALUES * of.unit + inside + (of.words_at + of.factors_at)
    reals = []
    for n, real in enumerate(of.scales):
        number_value = _half(load, lane * 2 + 2 * panel * n)
        if real.factor is not None:
            number_value = number_value * cast(cast(load(group + n * panel), "int8"), "float32")
        reals.append(number_value)
    value = cast(_packed_level(of, load, at, lane), "float32") * reals[0]
    return value + reals[1] if len(reals) > 1 else value


def _packed_level(of: PackedBlock, load: ByteLoad, k: PrimExpr, lane: PrimExpr) -> PrimExpr:
    level, low = const(of.format.levels.least, "int32"), 0
    unit, inside = k // UNIT_VALUES, k % UNIT_VALUES
    for n, bit_field in enumerate(of.format.levels.parts):
        word = of.word(n, inside * bit_field.bits // UNIT_VALUES)
        at = (
            (word * of.panel + lane) * WORD_BYTES
            + inside % WORD_BYTES
            + of.words_at
            + unit * of.unit
        )
        shift = inside % (UNIT_VALUES // bit_field.bits) // WORD_BYTES * bit_field.bits
        level = level + _bits(load, at, shift, bit_field.bits, low)
        low += bit_field.bits
    return level


__all__ = ["dense_blocks", "dense_blocks_pack", "take_blocks", "take_blocks_pack"]
