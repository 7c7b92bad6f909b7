"""Dequantisation of GGUF tensor types that no kernel reads.

    type            numbers of a block   become
    iq4_nl          32 levels of a table of int8        q8_0
    iq4_xs          8 of these with a scale each        q8_0 where float16 holds all scales, float32
    tq1_0, tq2_0    256 of -1, 0 and 1                  q4_0
    mxfp4           32 of E2M1                          q5_0
    iq1, iq2, iq3   points of grids                     float32; tables of the package gguf

What becomes blocks is not rounded (exact_blocks.py). A tensor in float32 takes up to 20 times the
memory of the file's.

Source: ggml-common.h and ggml-quants.c of llama.cpp; decoded numbers are those of the package gguf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import Weight
from ekiden.llm.lossless_blocks import mxfp4_weight, quantized_levels_to_weight
from ekiden.runtime.errors import LoadError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.nn.block_formats import read_float16

__all__ = ["DECODED_TYPES", "DecodedType"]

Bytes = NDArray[np.uint8]
Decoder = Callable[[str, Bytes], Weight]
"""(name, blocks uint8 [..., blocks, bytes]) -> weight. Raises LoadError."""
IQ4_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16
)
TERNARY_DIGITS = 5
"""Digits to the base of 3 in a byte of tq1_0."""
SHORT_BLOCK_VALUES = 32


@dataclass(frozen=True, slots=True)
class DecodedType:
    """GGUF tensor type that is dequantised when it is read: its number, the numbers and bytes of a
    block, and what decodes it.
    """

    name: str
    code: int
    values_per_block: int
    block_bytes: int
    decode: Decoder


def _nibble_halves(packed: Bytes) -> Bytes:
    """Unpack bytes to nibbles [..., 2 * n], all low nibbles before all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _flat(levels: NDArray[np.int16], blocks: Bytes) -> NDArray[np.int16]:
    """Reshape the levels of blocks to rows [..., values]."""
    return levels.reshape(*blocks.shape[:-2], -1)


def _decode_iq4_nl(name: str, blocks: Bytes) -> Weight:
    levels = IQ4_LEVELS[_nibble_halves(blocks[..., 2:])]
    return quantized_levels_to_weight(
        name, "q8_0", _flat(levels, blocks), read_float16(blocks, 0)[..., 0]
    )


def _decode_iq4_xs(name: str, blocks: Bytes) -> Weight:
    """Decode iq4_xs blocks of 8 groups of 32 values: scales of 6 bits, the upper two of
    them apart.
    """
    group = np.arange(8)
    upper_bytes = np.ascontiguousarray(blocks[..., 2:4])
    upper = upper_bytes.view("<u2") >> (2 * group).astype(np.uint16) & 3
    lower = blocks[..., 4 + group // 2] >> (group % 2 * 4).astype(np.uint8) & 15
    # The 6-bit scales are stored with an offset of 32.
    scales = read_float16(blocks, 0) * ((upper << 4 | lower).astype(np.float32) - 32)
    packed = blocks[..., 8:].reshape(*blocks.shape[:-1], 8, 16)
    levels = IQ4_LEVELS[_nibble_halves(packed)]
    flat_scales = scales.reshape(*blocks.shape[:-2], -1).astype(np.float32)
    return quantized_levels_to_weight(name, "q8_0", _flat(levels, blocks), flat_scales)


def _ternary_weight(name: str, digits: NDArray[np.int16], blocks: Bytes, scale_at: int) -> Weight:
    """Return the 256 ternary digits of each block, minus 1, times its scale."""
    # Weights become blocks of 32 values, so the scale of 256 values is repeated.
    short_blocks = digits.shape[-1] // SHORT_BLOCK_VALUES
    scales = np.repeat(read_float16(blocks, scale_at)[..., 0], short_blocks, axis=-1)
    return quantized_levels_to_weight(name, "q4_0", _flat(digits - np.int16(1), blocks), scales)


def _decode_tq1_0(name: str, blocks: Bytes) -> Weight:
    """Decode tq1_0, base-3 digits with the most significant first: a byte is a fraction of 256."""
    parts = []
    # Bytes 48 to 51 hold four digits, not five: 48 * 5 + 4 * 4 = 256 values.
    for begin, end, count in ((0, 32, 5), (32, 48, TERNARY_DIGITS), (48, 52, 4)):
        powers = (3 ** np.arange(count)).astype(np.uint8)[:, None]
        # Bytes wrap: what remains is the fraction behind the digits that were taken.
        fractions = blocks[..., None, begin:end] * powers
        # A byte times 3 exceeds uint8.
        digits = (fractions.astype(np.int16) * 3) >> 8
        parts.append(digits.reshape(*blocks.shape[:-1], -1))
    return _ternary_weight(name, np.concatenate(parts, axis=-1), blocks, 52)


def _decode_tq2_0(name: str, blocks: Bytes) -> Weight:
    """Decode tq2_0, 2-bit digits, four per byte and 32 values apart."""
    halves = blocks[..., :64].reshape(*blocks.shape[:-1], 2, 1, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    digits = (halves >> shifts & 3).astype(np.int16)
    return _ternary_weight(name, digits.reshape(*blocks.shape[:-1], -1), blocks, 64)


def _decode_mxfp4(name: str, blocks: Bytes) -> Weight:
    codes = _nibble_halves(blocks[..., 1:])
    return mxfp4_weight(name, codes.reshape(*blocks.shape[:-2], -1), blocks[..., 0])


def _grid_decoder(type_name: str) -> Decoder:
    """Return the decoder of a type whose groups of values are points of a grid (iq1 to iq3)."""

    def decode(name: str, blocks: Bytes) -> Weight:
        """Decode by the tables of the package gguf. Raises LoadError without it."""
        try:
            quants, constants = import_module("gguf.quants"), import_module("gguf.constants")
        except ModuleNotFoundError as error:
            raise LoadError(
                f"'{name}': the grid of {type_name} is one of the package gguf: pip install gguf"
            ) from error
        kind = getattr(constants.GGMLQuantizationType, type_name.upper())
        rows = blocks.reshape(*blocks.shape[:-2], -1)
        return Weight.of(name, np.asarray(quants.dequantize(rows, kind), np.float32))

    return decode


_GRIDS = (
    ("iq2_xxs", 16, 66), ("iq2_xs", 17, 74), ("iq3_xxs", 18, 98), ("iq1_s", 19, 50),
    ("iq3_s", 21, 110), ("iq2_s", 22, 82), ("iq1_m", 29, 56),
)  # fmt: skip
"""Name, number, and bytes of a block of 256."""
DECODED_TYPES: Mapping[int, DecodedType] = {
    row.code: row
    for row in (
        DecodedType("iq4_nl", 20, 32, 18, _decode_iq4_nl),
        DecodedType("iq4_xs", 23, 256, 136, _decode_iq4_xs),
        DecodedType("tq1_0", 34, 256, 54, _decode_tq1_0),
        DecodedType("tq2_0", 35, 256, 66, _decode_tq2_0),
        DecodedType("mxfp4", 39, 32, 17, _decode_mxfp4),
        *(DecodedType(name, code, 256, size, _grid_decoder(name)) for name, code, size in _GRIDS),
    )
}
