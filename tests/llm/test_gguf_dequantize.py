"""GGUF types without a kernel: values of the package gguf."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ekiden.llm import gguf_dequantize, gguf_file
from ekiden.llm.checkpoint import Weight
from ekiden.llm.gguf_dequantize import DECODED_TYPES, DecodedType
from ekiden.llm.gguf_file import GGUFFile, write_gguf
from ekiden.runtime.errors import LoadError

gguf = pytest.importorskip("gguf", reason="numbers are compared with those of the package gguf")
EXACT = {"iq4_nl": "q8_0", "tq1_0": "q4_0", "tq2_0": "q4_0", "mxfp4": "q5_0"}
"""Types that become blocks."""
HALF_SCALES = {"iq4_nl": 0, "iq4_xs": 0, "tq1_0": 52, "tq2_0": 64}
"""Type -> where a block has its float16."""


def random_blocks(row: DecodedType, rows: int, blocks: int) -> np.ndarray:
    """Blocks of random bits whose scales are finite."""
    rng = np.random.default_rng(row.code)
    data = rng.integers(0, 256, (rows, blocks, row.block_bytes), np.uint8)
    scales = rng.uniform(-2, 2, (rows, blocks)).astype("<f2")[..., None].view(np.uint8)
    if row.name == "mxfp4":
        data[..., 0] = rng.integers(110, 140, (rows, blocks))
    elif row.name == "iq1_m":  # four bits of the scale in each of four bytes
        data[..., 49:56:2] &= 0x0F
        data[..., 55] |= 0x30
    else:
        at = HALF_SCALES.get(row.name, 0)
        data[..., at : at + 2] = scales
    return data


@pytest.mark.parametrize("row", DECODED_TYPES.values(), ids=lambda row: row.name)
def test_numbers_are_those_of_the_package(row: DecodedType) -> None:
    data = random_blocks(row, 3, 4)
    kind = getattr(gguf.GGMLQuantizationType, row.name.upper())
    expected = gguf.quants.dequantize(data.reshape(3, -1), kind)
    weight = row.decode("w", data)
    assert np.isfinite(expected).all() and np.abs(expected).max() > 0
    np.testing.assert_array_equal(weight.values(), expected)
    assert weight.shape == (3, 4 * row.values_per_block)
    assert weight.format == EXACT.get(row.name, "float32")
    sizes = gguf.constants.GGML_QUANT_SIZES[kind]
    assert (row.code, row.values_per_block, row.block_bytes) == (kind.value, *sizes)


def test_file_with_such_types_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = DECODED_TYPES[23]
    data = random_blocks(row, 2, 1)
    # The writer writes formats that kernels read: here it takes the bytes of another.
    monkeypatch.setitem(gguf_file.CODE_BY_FORMAT, row.name, row.code)
    path = tmp_path / "a.gguf"
    write_gguf(path, {}, [Weight("w", row.name, (2, 256), data)])
    np.testing.assert_array_equal(GGUFFile(path)["w"].values(), row.decode("w", data).values())
    write_gguf(path, {}, [Weight("w", row.name, (2, 250), data)])
    with pytest.raises(LoadError, match=r"shape \(2, 250\): no whole blocks of 256 of iq4_xs"):
        GGUFFile(path)["w"]


@pytest.mark.parametrize("code", [2, 16, 39])
def test_tensors_without_blocks_are_refused_and_without_rows_are_empty(
    tmp_path: Path, code: int
) -> None:
    def read(*shape: int) -> Weight:
        extents = struct.pack("<QQ", *reversed(shape))
        head = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + struct.pack("<Q1sI", 1, b"w", 2)
        (tmp_path / "a.gguf").write_bytes(head + extents + struct.pack("<IQ", code, 0) + bytes(64))
        return GGUFFile(tmp_path / "a.gguf")["w"]

    for shape in ((2, 0), (0, 0)):
        with pytest.raises(LoadError, match="no whole blocks"):
            read(*shape)
    assert read(0, 256).shape == (0, 256)


def test_grid_without_its_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_package(name: str) -> None:
        raise ModuleNotFoundError(name)

    row = DECODED_TYPES[16]
    monkeypatch.setattr(gguf_dequantize, "import_module", no_package)
    with pytest.raises(LoadError, match="'w': the grid of iq2_xxs .*: pip install gguf"):
        row.decode("w", random_blocks(row, 1, 1))
