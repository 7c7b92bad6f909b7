"""Weights that other libraries quantised, as folders: values are those of the formats' rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from ekiden.llm.checkpoint import Checkpoint
from ekiden.llm.checkpoint_files import open_checkpoint
from ekiden.runtime.errors import LoadError, UnsupportedError

ROWS, COLUMNS, GROUP = 16, 128, 64
CODES = {
    "float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "float8_e4m3fn": "F8_E4M3",
    "bfloat16": "BF16",
}  # fmt: skip


def write_folder(
    folder: Path, tensors: Mapping[str, NDArray[Any]], settings: Mapping[str, object]
) -> Checkpoint:
    """A folder of one file of safetensors."""
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {
            "dtype": CODES[values.dtype.name], "shape": list(values.shape),
            "data_offsets": [at, at := at + values.nbytes],
        }  # fmt: skip
    raw = json.dumps(header).encode()
    content = b"".join(np.ascontiguousarray(v).tobytes() for v in tensors.values())
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + content)
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
    return open_checkpoint(folder)


def pack(levels: NDArray[Any], bits: int, order: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Integers [n, m] packed into int32 along the last axis, one after the other."""
    count = 32 // bits
    packed = np.zeros((len(levels), levels.shape[1] // count), np.uint32)
    for column in range(levels.shape[1]):
        lane = column % count if order is None else order[column % count]
        packed[:, column // count] |= levels[:, column].astype(np.uint32) << np.uint32(bits * lane)
    return packed.view(np.int32)


def random_groups(
    bits: int, is_symmetric: bool = False
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Levels [ROWS, COLUMNS], and scales and zero points [ROWS, groups]."""
    rng = np.random.default_rng(0)
    top = 1 << bits
    levels = rng.integers(0, top, (ROWS, COLUMNS))
    # Powers of two: offsets are float16, so that blocks are exact.
    scales = 2.0 ** rng.integers(-6, -2, (ROWS, COLUMNS // GROUP))
    zeros = rng.integers(1, top, scales.shape)
    return (
        levels,
        scales.astype(np.float16),
        np.full_like(zeros, top // 2) if is_symmetric else zeros,
    )


def decoded(
    levels: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any], groups: NDArray[Any]
) -> NDArray[Any]:
    return (levels - zeros[:, groups]) * scales[:, groups].astype(np.float32)


PLAIN_GROUPS = np.arange(COLUMNS) // GROUP


@pytest.mark.parametrize(
    ("bits", "is_symmetric", "is_ordered", "version", "format"),
    [
        (4, True, False, "gptq", "q4_0"),
        (4, False, False, "gptq", "q4_1"),
        (4, False, False, "gptq_v2", "q4_1"),
        (4, False, True, "gptq", "float32"),
        (8, True, False, "gptq", "float32"),
        (2, False, False, "gptq", "float32"),
    ],
)
def test_gptq(
    tmp_path: Path, bits: int, is_symmetric: bool, is_ordered: bool, version: str, format: str
) -> None:
    levels, scales, zeros = random_groups(bits, is_symmetric)
    groups = np.random.default_rng(1).permutation(PLAIN_GROUPS) if is_ordered else PLAIN_GROUPS
    checkpoint = write_folder(
        tmp_path,
        {
            "a.qweight": pack(levels, bits).T,
            "a.qzeros": pack((zeros - (version == "gptq")).T, bits),
            "a.scales": scales.T, "a.g_idx": groups.astype(np.int32),
            "norm.weight": np.ones(3, np.float32),
        },
        {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "checkpoint_format": version},
    )  # fmt: skip
    assert sorted(checkpoint) == ["a.weight", "norm.weight"]
    weight = checkpoint["a.weight"]
    assert weight.format == format
    np.testing.assert_array_equal(weight.values(), decoded(levels, scales, zeros, groups))


def test_awq(tmp_path: Path) -> None:
    levels, scales, zeros = random_groups(4)
    order = (0, 4, 1, 5, 2, 6, 3, 7)
    checkpoint = write_folder(
        tmp_path,
        {"a.qweight": pack(levels.T, 4, order), "a.qzeros": pack(zeros.T, 4, order),
         "a.scales": scales.T},
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
    )  # fmt: skip
    weight = checkpoint["a.weight"]
    assert weight.format == "q4_1"
    np.testing.assert_array_equal(weight.values(), decoded(levels, scales, zeros, PLAIN_GROUPS))


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_packed_compressed_tensors(tmp_path: Path, is_symmetric: bool) -> None:
    levels, scales, zeros = random_groups(4, is_symmetric)
    tensors = {
        "a.weight_packed": pack(levels, 4), "a.weight_scale": scales,
        "a.weight_shape": np.array([ROWS, COLUMNS], np.int64),
    }  # fmt: skip
    if not is_symmetric:
        tensors["a.weight_zero_point"] = pack(zeros.T, 4).T
    weights = {"num_bits": 4, "type": "int", "symmetric": is_symmetric, "strategy": "group"}
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": weights}}}  # fmt: skip
    weight = write_folder(tmp_path, tensors, settings)["a.weight"]
    assert weight.format == ("q4_0" if is_symmetric else "q4_1")
    np.testing.assert_array_equal(weight.values(), decoded(levels, scales, zeros, PLAIN_GROUPS))


def test_compressed_tensors_of_fp8_have_a_scale_for_each_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4, 6)).astype(ml_dtypes.float8_e4m3fn)
    scales = rng.random((4, 1)).astype(np.float32)
    checkpoint = write_folder(
        tmp_path, {"a.weight": values, "a.weight_scale": scales},
        {"quant_method": "compressed-tensors", "format": "float-quantized"},
    )  # fmt: skip
    np.testing.assert_array_equal(
        checkpoint["a.weight"].values(), values.astype(np.float32) * scales
    )


def test_plain_integers_with_zero_points_are_refused(tmp_path: Path) -> None:
    tensors = {
        "a.weight": np.ones((4, 6), np.float32),
        "a.weight_scale": np.ones((4, 1), np.float32),
        "a.weight_zero_point": np.ones((4, 1), np.int32),
    }
    checkpoint = write_folder(tmp_path, tensors, {"quant_method": "compressed-tensors"})
    with pytest.raises(UnsupportedError, match="'a.weight': zero points beside plain integers"):
        checkpoint["a.weight"]


def test_fp8_has_a_scale_for_each_block(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((5, 6)).astype(ml_dtypes.float8_e4m3fn)
    scales = rng.random((2, 3)).astype(np.float32)
    checkpoint = write_folder(
        tmp_path, {"a.weight": values, "a.weight_scale_inv": scales},
        {"quant_method": "fp8", "weight_block_size": [4, 2]},
    )  # fmt: skip
    expected = values.astype(np.float32)
    for row, column in np.ndindex(expected.shape):
        expected[row, column] *= scales[row // 4, column // 2]
    np.testing.assert_array_equal(checkpoint["a.weight"].values(), expected)


def test_unknown_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'quantization_config': 'hqq' is none of gptq, awq"):
        write_folder(tmp_path, {"a": np.ones(1, np.float32)}, {"quant_method": "hqq"})


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    levels, scales, zeros = random_groups(4)
    tensors = {
        "a.qweight": pack(levels, 4).T, "a.qzeros": pack(zeros.T, 4), "a.scales": scales.T,
        "a.g_idx": PLAIN_GROUPS.astype(np.int32) + 1,
    }  # fmt: skip
    settings = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(LoadError, match="'a.weight': integers .16, 128., scales .* do not fit"):
        write_folder(tmp_path, tensors, settings)["a.weight"]
    with pytest.raises(LoadError, match="'a.weight': no tensor 'a.g_idx'"):
        write_folder(tmp_path, {**dict(list(tensors.items())[:3])}, settings)["a.weight"]
    settings["bits"] = 3
    with pytest.raises(UnsupportedError, match="'bits' must be one of"):
        write_folder(tmp_path, tensors, settings)["a.weight"]


SOUND: Mapping[str, tuple[dict[str, object], dict[str, NDArray[Any]]]] = {
    "gptq": (
        {"bits": 4},
        {"qweight": np.zeros((8, 16), np.int32), "qzeros": np.zeros((2, 2), np.int32),
         "scales": np.ones((2, 16), np.float16), "g_idx": np.zeros(64, np.int32)},
    ),
    "awq": (
        {"bits": 4},
        {"qweight": np.zeros((64, 2), np.int32), "qzeros": np.zeros((2, 2), np.int32),
         "scales": np.ones((2, 16), np.float16)},
    ),
    "compressed-tensors": (
        {"config_groups": {"g": {"weights": {"num_bits": 4}}}},
        {"weight_packed": np.zeros((8, 8), np.int32), "weight_scale": np.ones((8, 2), np.float16),
         "weight_shape": np.array([8, 64], np.int64)},
    ),
    "fp8": (
        {"weight_block_size": [8, 8]},
        {"weight": np.zeros((8, 16), ml_dtypes.float8_e4m3fn),
         "weight_scale_inv": np.ones((1, 2), np.float32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("method", SOUND)
def test_tensors_of_other_axes_or_dtypes_are_refused(tmp_path: Path, method: str) -> None:
    """Every tensor of a weight, each in turn: a LoadError, or a weight, and no other error."""
    settings, tensors = SOUND[method]
    settings = {"quant_method": method, **settings}
    named = {f"a.{end}": values for end, values in tensors.items()}
    assert write_folder(tmp_path, named, settings)["a.weight"].values().ndim == 2
    refused = 0
    for name, values in named.items():
        for other in (
            values[:0], values[:, :0] if values.ndim > 1 else values[:1], values[None],
            values.reshape(-1), values[0], values[:1], values.astype(np.float32),
            np.concatenate([values, values]), -np.ones_like(values),
        ):  # fmt: skip
            checkpoint = write_folder(tmp_path, {**named, name: np.asarray(other)}, settings)
            try:
                checkpoint["a.weight"].values()
            except LoadError:
                refused += 1
    assert refused >= 4 * len(named)


@pytest.mark.parametrize("shape", [[8, -1], [8, 65], [0, 64], [2**62, 64], [8, 64, 1]])
def test_wrong_packed_shape_is_refused(tmp_path: Path, shape: list[int]) -> None:
    settings, tensors = SOUND["compressed-tensors"]
    changed = {**tensors, "weight_shape": np.array(shape, np.int64)}
    checkpoint = write_folder(
        tmp_path,
        {f"a.{end}": values for end, values in changed.items()},
        {"quant_method": "compressed-tensors", **settings},
    )
    with pytest.raises(LoadError, match="do not fit 'weight_shape'"):
        checkpoint["a.weight"]


def test_block_that_is_larger_than_its_weight_takes_no_memory(tmp_path: Path) -> None:
    checkpoint = write_folder(
        tmp_path,
        {"a.weight": np.ones((8, 16), ml_dtypes.float8_e4m3fn),
         "a.weight_scale_inv": np.full((1, 1), 2, np.float32)},
        {"quant_method": "fp8", "weight_block_size": [2**40, 2**40]},
    )  # fmt: skip
    np.testing.assert_array_equal(checkpoint["a.weight"].values(), np.full((8, 16), 2))
