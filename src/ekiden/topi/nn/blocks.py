"""Products with weights in blocks (block_formats.py), and rows of such weights.

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
from ekiden.te.range_check import CHECKS, from_either_end, index_check
from ekiden.topi.nn.block_formats import (
    BLOCK_FORMATS,
    BlockFormat,
    Bytes,
    Floats,
    Real,
    Whole,
    halves,
    whole,
)
from ekiden.topi.shape import as_dim

UNIT = 32
"""Values whose words lie together, and of which data has a step."""
WORD = 4
Index = TypeVar("Index", int, PrimExpr)
Load = Callable[[PrimExpr], PrimExpr]
"""A byte of a block as int32, from its place."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Where things lie in a packed block: places in bytes from its beginning."""

    format: BlockFormat
    panel: int

    @property
    def scales(self) -> tuple[Real, ...]:
        """Scale, and offset if there is one."""
        row = self.format
        return (row.scale,) if row.offset is None else (row.scale, row.offset)

    @property
    def factors(self) -> int:
        """Factors of a group."""
        return sum(real.factor is not None for real in self.scales)

    @property
    def words_at(self) -> int:
        """The words of the first unit."""
        return 2 * self.panel * len(self.scales)

    @property
    def groups(self) -> int:
        """Of a unit."""
        return UNIT // self.format.group

    @property
    def unit(self) -> int:
        """Bytes of a unit."""
        return self.factors_at + self.groups * self.factors * self.panel

    @property
    def factors_at(self) -> int:
        """The factors of the first group, from the beginning of its unit."""
        return self.words * WORD * self.panel

    @property
    def words(self) -> int:
        """Of a unit."""
        return self.format.levels.bits

    def word(self, part: int, number: Index) -> Index:
        """The place among the words of a unit of one of a part of the levels: behind those of other
        parts whose first value comes before its own."""
        parts = self.format.levels.parts
        first, found = number * 8 // parts[part].bits, number
        for n, other in enumerate(parts):
            if n < part:
                found = first * other.bits // 8 + 1 + found
            elif n > part:
                found = (first * other.bits + 7) // 8 + found
        return found

    @property
    def order(self) -> list[int]:
        """The places of the words of a unit, part after part."""
        parts = self.format.levels.parts
        return [self.word(n, w) for n, part in enumerate(parts) for w in range(part.bits)]

    @property
    def units(self) -> int:
        """Of a block."""
        return self.format.values // UNIT

    @property
    def size(self) -> int:
        """Bytes of a block of all rows of a panel."""
        return self.words_at + self.units * self.unit


def pack_blocks(weight: Bytes, format: str, panel: int) -> Bytes:
    """Plain to packed."""
    to = Packed(BLOCK_FORMATS[format], panel)
    row, missing = to.format, -len(weight) % panel
    parts = [_panels(halves(weight, real.at) * real.sign, missing, panel) for real in to.scales]
    made = [np.ascontiguousarray(part).astype("<f2").view(np.uint8) for part in parts]
    factors = [
        _panels(whole(real.factor, weight, row.groups).astype(np.int8), missing, panel)
        for real in to.scales
        if real.factor is not None
    ]
    levels = whole(row.levels, weight, row.values) - row.levels.least
    values = levels.astype(np.uint8).reshape(*weight.shape[:2], to.units, UNIT)
    words = _panels(_words(row.levels, values), missing, panel)
    words[..., to.order, :, :] = words.copy()
    units = [words.reshape(*words.shape[:3], to.factors_at)]
    if factors:
        joined = np.stack(factors, axis=3).view(np.uint8)
        units.append(joined.reshape(*units[0].shape[:3], to.unit - to.factors_at))
    made.append(np.concatenate(units, axis=3))
    size = made[0].shape[:2]
    return np.concatenate([part.reshape(*size, -1) for part in made], axis=2)


def _panels(rows: Array, missing: int, panel: int) -> Array:
    """[rows, blocks, n, ...] as [panels, blocks, n, panel, ...]."""
    padded = np.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1)))
    split = padded.reshape(-1, panel, *rows.shape[1:])
    if rows.ndim == 3:
        return np.ascontiguousarray(split.transpose(0, 2, 3, 1))
    return np.ascontiguousarray(np.moveaxis(split, 1, 4))


def _words(levels: Whole, values: Bytes) -> Bytes:
    """[..., UNIT] as words [..., words, WORD]."""
    made = []
    for part in levels.parts:
        bits = values & np.uint8((1 << part.bits) - 1)
        spread = bits.reshape(*values.shape[:-1], part.bits, 8 // part.bits, WORD)
        shifts = np.arange(8 // part.bits, dtype=np.uint8)[:, None] * np.uint8(part.bits)
        made.append(np.bitwise_or.reduce(spread << shifts, axis=-2))
        values = values >> np.uint8(part.bits)
    return np.concatenate(made, axis=-2)


def unpack_blocks(packed: Bytes, format: str, panel: int) -> Floats:
    """Packed weights as numbers: [rows of all panels, k]."""
    of = Packed(BLOCK_FORMATS[format], panel)
    row, shape = of.format, packed.shape[:2]
    units = packed[..., of.words_at :].reshape(*shape, of.units, of.unit)
    factors = units[..., of.factors_at :].view(np.int8)
    factors = factors.reshape(*shape, row.groups, of.factors, panel)
    reals, factor = [], 0
    for n, real in enumerate(of.scales):
        raw = np.ascontiguousarray(packed[..., 2 * panel * n : 2 * panel * (n + 1)])
        found = raw.view("<f2").astype(np.float32)[:, :, None]
        if real.factor is not None:
            found = found * factors[..., factor, :]
            factor += 1
        reals.append(np.broadcast_to(found, (*shape, row.groups, panel))[..., None])
    words = units[..., : of.factors_at].reshape(*shape, of.units, of.words, panel, WORD)
    words = words[..., of.order, :, :]
    levels = np.zeros((*shape, of.units, panel, UNIT), np.uint8)
    low = 0
    for part in row.levels.parts:
        mine = words[..., low : low + part.bits, :, :].swapaxes(3, 4)  # [..., panel, words, WORD]
        shifts = np.arange(8 // part.bits, dtype=np.uint8)[:, None] * np.uint8(part.bits)
        spread = mine[..., None, :] >> shifts & np.uint8((1 << part.bits) - 1)
        levels |= spread.reshape(levels.shape) << np.uint8(low)
        low += part.bits
    whole_levels = levels.astype(np.float32) + np.float32(row.levels.least)
    by_row = whole_levels.swapaxes(2, 3).reshape(*shape, panel, row.groups, row.group)
    found = by_row * reals[0].swapaxes(2, 3)
    if len(reals) > 1:
        found = found + reals[1].swapaxes(2, 3)
    return np.asarray(found.transpose(0, 2, 1, 3, 4).reshape(shape[0] * panel, -1), np.float32)


# What loops compute.


def _half(load: Load, at: PrimExpr) -> PrimExpr:
    """The float16 at a place."""
    bits = _or(load(at), _shifted("left_shift", load(at + 1), const(8, "int32")))
    half = call_intrin("reinterpret", cast(bits, "uint16"), dtype="float16")
    return cast(half, "float32")


def _or(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return call_intrin("bitwise_or", a, b, dtype="int32")


def _shifted(name: str, a: PrimExpr, by: PrimExpr) -> PrimExpr:
    return call_intrin(name, a, cast(by, "int32"), dtype="int32")


def _bits(load: Load, at: PrimExpr, shift: PrimExpr, bits: int, low: int) -> PrimExpr:
    """Bits of a byte, moved up."""
    right = _shifted("right_shift", load(at), shift)
    alone = call_intrin("bitwise_and", right, const((1 << bits) - 1, "int32"), dtype="int32")
    return _shifted("left_shift", alone, const(low, "int32")) if low else alone


def _whole(number: Whole, load: Load, k: PrimExpr) -> PrimExpr:
    """Whole number k of a block: int32."""
    if number.signed:
        return cast(cast(load(number.parts[0].byte(k)), "int8"), "int32")
    found, low = const(-number.bias, "int32"), 0
    for part in number.parts:
        found = found + _bits(load, part.byte(k), part.shift(k), part.bits, low)
        low += part.bits
    return found


def _value(row: BlockFormat, load: Load, k: PrimExpr) -> PrimExpr:
    """Number k of a plain block: float32."""

    def real(number: Real) -> PrimExpr:
        """A number of the block's head: float16, times its group's whole factor if it has one."""
        found = _half(load, const(number.at))
        if number.factor is not None:
            found = found * cast(_whole(number.factor, load, k // row.group), "float32")
        return found

    found = cast(_whole(row.levels, load, k), "float32") * real(row.scale)
    if row.offset is None:
        return found
    return found + real(row.offset) if row.offset.sign > 0 else found - real(row.offset)


def _loader(weight: Tensor, *at: PrimExpr) -> Load:
    return lambda byte: cast(weight[(*at, byte)], "int32")


def dense_blocks(data: Tensor, weight: Tensor, format: str) -> Tensor:
    """data[..., k] times the transpose of a plain weight."""
    row = BLOCK_FORMATS[format]
    k = te.reduce_axis((0, data.shape[-1]), "k")

    def body(*i: Var) -> PrimExpr:
        load = _loader(weight, i[-1], k // row.values)
        return te.sum(data[(*i[:-1], k)] * _value(row, load, k % row.values), k)

    return te.compute((*data.shape[:-1], weight.shape[0]), body, name="dense_blocks")


def take_blocks(weight: Tensor, indices: Tensor, format: str) -> Tensor:
    """Rows of a plain weight as float32; negative indices count from the end."""
    row = BLOCK_FORMATS[format]
    shape = (*indices.shape, weight.shape[1] * row.values)

    def body(*i: Var) -> PrimExpr:
        at = from_either_end(indices[i[:-1]], weight.shape[0])
        return _value(row, _loader(weight, at, i[-1] // row.values), i[-1] % row.values)

    check = index_check("nn.take_blocks", indices, weight.shape[0], 0)
    return te.compute(shape, body, name="take_blocks", tag="injective", attrs={CHECKS: (check,)})


def dense_blocks_pack(
    data: Tensor, weight: Tensor, format: str, units: int, panel: int, activations: str
) -> Tensor:
    """data[..., k] times the transpose of a packed weight; kernels may round the data to bytes if
    `activations` are "int8"."""
    of = Packed(BLOCK_FORMATS[format], panel)
    k = te.reduce_axis((0, data.shape[-1]), "k")

    def body(*i: Var) -> PrimExpr:
        """The product over the packed weight."""
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
    """Rows of a packed weight of so many `units` as float32; negative indices count from the
    end."""
    of = Packed(BLOCK_FORMATS[format], panel)
    shape = (*indices.shape, weight.shape[1] * of.format.values)

    def body(*i: Var) -> PrimExpr:
        return _packed_value(of, weight, from_either_end(indices[i[:-1]], as_dim(units)), i[-1])

    name = "take_blocks_pack"
    check = index_check("nn.take_blocks", indices, as_dim(units), 0)
    return te.compute(shape, body, name=name, tag="injective", attrs={CHECKS: (check,)})


def _packed_value(of: Packed, weight: Tensor, number: PrimExpr, k: PrimExpr) -> PrimExpr:
    """Number k of a row of a packed weight: its level times its scale (and plus its offset), which
    the format's groups share. A row is a lane of its panel."""
    row, panel = of.format, of.panel
    lane, at = number % panel, k % row.values
    load = _loader(weight, number // panel, k // row.values)
    inside = at % UNIT // row.group * (of.factors * panel) + lane
    group = at // UNIT * of.unit + inside + (of.words_at + of.factors_at)
    reals = []
    for n, real in enumerate(of.scales):
        found = _half(load, lane * 2 + 2 * panel * n)
        if real.factor is not None:
            found = found * cast(cast(load(group + n * panel), "int8"), "float32")
        reals.append(found)
    value = cast(_packed_level(of, load, at, lane), "float32") * reals[0]
    return value + reals[1] if len(reals) > 1 else value


def _packed_level(of: Packed, load: Load, k: PrimExpr, lane: PrimExpr) -> PrimExpr:
    found, low = const(of.format.levels.least, "int32"), 0
    unit, inside = k // UNIT, k % UNIT
    for n, part in enumerate(of.format.levels.parts):
        word = of.word(n, inside * part.bits // UNIT)
        at = (word * of.panel + lane) * WORD + inside % WORD + of.words_at + unit * of.unit
        shift = inside % (UNIT // part.bits) // WORD * part.bits
        found = found + _bits(load, at, shift, part.bits, low)
        low += part.bits
    return found


__all__ = ["dense_blocks", "dense_blocks_pack", "take_blocks", "take_blocks_pack"]
