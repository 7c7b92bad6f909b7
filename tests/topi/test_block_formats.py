"""Block-quantisation formats: decoded bit for bit like the package `gguf`, and encoded."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from numpy.typing import NDArray

from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME, GGUF_BLOCK_FORMATS, BlockFormat

Array = NDArray[np.float32]
every_format = pytest.mark.parametrize("row", GGUF_BLOCK_FORMATS, ids=lambda row: row.name)
KEPT = {
    "q4_0": (0x1DC3848E, [-2.25, 1.5, -0.75, 0.0]),
    "q4_1": (0x0807FC51, [12.0, 3.75, 9.75, 10.5]),
    "q5_0": (0xD53A35C5, [6.75, -9.75, 0.75, 1.5]),
    "q5_1": (0x066695B9, [18.75, 22.5, 4.5, 5.25]),
    "q8_0": (0xECCA3A5C, [63.75, 91.5, -33.0, -21.0]),
    "q2_k": (0xA19BB072, [8.25, 16.5, -2.25, -3.0]),
    "q3_k": (0x119F1C3D, [2.25, -3.0, -16.5, 0.0]),
    "q4_k": (0x5A6966C6, [74.25, 190.5, 51.0, -27.0]),
    "q5_k": (0x12EF6F36, [655.5, 27.75, 260.25, -27.0]),
    "q6_k": (0xEA9E595B, [-326.25, 1044.0, -558.0, 1740.0]),
}
"""Of two blocks as `pattern` makes them: the checksum of what gguf 0.19 decodes, and numbers 0, 1,
17 and the last of the first block."""
LARGEST_ERROR = {
    "q4_0": 1 / 8, "q4_1": 1 / 29, "q5_0": 1 / 16, "q5_1": 1 / 61, "q8_0": 1 / 250,
    "q2_k": 1 / 4, "q3_k": 1 / 4, "q4_k": 1 / 20, "q5_k": 1 / 35, "q6_k": 1 / 25,
}  # fmt: skip
"""Of what `encode` keeps, as a part of the extent of a block's numbers."""


def with_halves(row: BlockFormat, blocks: NDArray[np.uint8], numbers: Array) -> None:
    for real in (row.scale, row.offset):
        if real is not None:
            blocks[..., real.byte_offset : real.byte_offset + 2] = numbers.astype("<f2")[
                ..., None
            ].view(np.uint8)


def pattern(row: BlockFormat) -> NDArray[np.uint8]:
    blocks = (np.arange(2 * row.block_bytes) * 37 + 11) % 251
    result = blocks.astype(np.uint8).reshape(2, row.block_bytes)
    with_halves(row, result, np.array([0.75, -0.015], np.float32))
    return result


@every_format
def test_decoding_matches_recorded_values(row: BlockFormat) -> None:
    checksum, numbers = KEPT[row.name]
    result = row.decode(pattern(row))
    assert result.shape == (2 * row.values_per_block,) and result.dtype == np.float32
    assert result[[0, 1, 17, row.values_per_block - 1]].tolist() == numbers
    assert zlib.crc32(result.astype("<f4").tobytes()) == checksum


def test_q4_decoding_matches_hand_computed_values() -> None:
    """Half of a scale of 2; the lower halves of bytes come first, 8 is 0."""
    block = np.zeros((1, 18), np.uint8)
    block[0, :4] = 0x00, 0x40, 0x19, 0x8F
    actual = BLOCK_FORMATS_BY_NAME["q4_0"].decode(block)
    expected = np.full(32, -16.0)
    expected[[0, 1, 16, 17]] = 2.0, 14.0, -14.0, 0.0
    np.testing.assert_array_equal(actual, expected)


@every_format
def test_decoding_matches_gguf(row: BlockFormat) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the package gguf")
    random = np.random.default_rng(row.gguf_type)
    blocks = random.integers(0, 256, (30, 7, row.block_bytes), dtype=np.uint8)
    with_halves(row, blocks, random.standard_normal((30, 7)).astype(np.float32))
    kind = gguf.GGMLQuantizationType(row.gguf_type)
    assert gguf.GGML_QUANT_SIZES[kind] == (row.values_per_block, row.block_bytes)
    expected = gguf.dequantize(blocks.reshape(30, -1), kind)
    assert row.decode(blocks).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_encoding_matches_gguf(name: str) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the package gguf")
    row = BLOCK_FORMATS_BY_NAME[name]
    random = np.random.default_rng(row.gguf_type)
    numbers = random.standard_normal((200, 4 * row.values_per_block)).astype(np.float32)
    numbers[0], numbers[1], numbers[2] = 0, -3, np.abs(numbers[2])
    numbers[3] *= 1e-9
    numbers[4] = np.round(numbers[4] * 4) / 4  # many that lie between two levels
    expected = gguf.quantize(numbers, gguf.GGMLQuantizationType(row.gguf_type))
    assert row.encode(numbers).tobytes() == expected.tobytes()


@every_format
def test_encoding_error_is_bounded(row: BlockFormat) -> None:
    random = np.random.default_rng(3)
    numbers = random.standard_normal((50, 2 * row.values_per_block)).astype(np.float32)
    numbers[0] = 0
    numbers[1] = np.abs(numbers[1])
    blocks = row.encode(numbers)
    assert blocks.shape == (50, 2, row.block_bytes)
    error = np.abs(row.decode(blocks) - numbers).reshape(50, 2, -1).max(-1)
    extent = np.ptp(numbers.reshape(50, 2, -1), axis=-1)
    assert (error[2:] <= extent[2:] * LARGEST_ERROR[row.name]).all()
    assert not row.decode(blocks)[0].any()


@every_format
def test_encoding_what_was_decoded_is_stable(row: BlockFormat) -> None:
    """Numbers that levels meet are kept: where nothing but the scale of a block has to be found."""
    if row.scale.factor is not None or row.offset is not None:
        pytest.skip("scales of groups are searched for")
    levels = (
        np.arange(row.values_per_block) % (row.levels.max_value - row.levels.min_value + 1)
        + row.levels.min_value
    )
    levels[0] = row.levels.max_value if row.levels.signed else row.levels.min_value
    numbers = (levels * 0.5).astype(np.float32)
    np.testing.assert_array_equal(row.decode(row.encode(numbers)), numbers)


def test_rows_of_whole_blocks_are_asked_for() -> None:
    with pytest.raises(ValueError, match="q4_k: rows of a multiple of 256 numbers expected, got"):
        BLOCK_FORMATS_BY_NAME["q4_k"].encode(np.zeros((2, 128), np.float32))
