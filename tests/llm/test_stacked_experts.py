"""Experts stacked in one tensor, in floats and in MXFP4, under a name for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES, SIZES, randomize, save_family
from tiny_models import Memory, plain

from ekiden import llm
from ekiden.llm.checkpoint_files import open_checkpoint
from ekiden.llm.lossless_blocks import mxfp4_weight
from ekiden.llm.stacked_experts import StackedExperts
from ekiden.runtime.errors import LoadError

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.mark.parametrize(("exponents", "format"), [((104, 142), "q5_0"), ((0, 250), "float32")])
def test_numbers_of_mxfp4_are_exact(exponents: tuple[int, int], format: str) -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), (3, 4))
    stored = np.array([exponents] * 3, np.uint8)
    weight = mxfp4_weight("w", codes, stored)
    scales = np.repeat(2.0 ** (stored.astype(int) - 127), 32, axis=-1)
    expected = (E2M1[codes] * scales).astype(np.float32)
    np.testing.assert_array_equal(weight.values(), expected)
    assert weight.format == format


def test_interleaved_rows_are_separated() -> None:
    stacked = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {name: plain(name, stacked), f"{name}_bias": plain(f"{name}_bias", stacked[:, 0])}
    checkpoint = StackedExperts(Memory({"num_local_experts": 2}, tensors))
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    prefix = "model.layers.0.mlp.experts.1.gate_up_proj"
    np.testing.assert_array_equal(checkpoint[f"{prefix}.weight"].data, stacked[1].T[order])
    np.testing.assert_array_equal(checkpoint[f"{prefix}.bias"].data, stacked[1, 0][order])
    assert len(checkpoint) == 4
    with pytest.raises(LoadError, match="3 experts expected"):
        StackedExperts(Memory({"num_local_experts": 3}, tensors))[f"{prefix}.weight"]


def test_number_of_experts_that_no_file_has_is_refused() -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {name: plain(name, np.zeros((2, 3, 8), np.float32))}
    with pytest.raises(LoadError, match="'num_local_experts': 4294967297 experts of 1 tensors"):
        StackedExperts(Memory({"num_local_experts": 2**32 + 1}, tensors))


def test_stacked_tensors_of_other_axes_are_refused() -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    for shape in ((), (2,), (2, 3), (2, 3, 4, 5)):
        tensors = {name: plain(name, np.zeros(shape, np.float32))}
        checkpoint = StackedExperts(Memory({"num_local_experts": 2}, tensors))
        with pytest.raises(LoadError, match="3 axes, 2 experts expected"):
            checkpoint["model.layers.0.mlp.experts.1.gate_up_proj.weight"]


def test_scales_that_are_missing_are_named(tmp_path: Path) -> None:
    name = "m.experts.gate_up_proj_blocks"
    header = {name: {"dtype": "U8", "shape": [2, 4, 1, 16], "data_offsets": [0, 128]}}
    raw = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(128))
    config = {"architectures": ["GptOssForCausalLM"], "num_local_experts": 2,
              "quantization_config": {"quant_method": "mxfp4"}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(LoadError, match="no tensor 'm.experts.gate_up_proj_scales'"):
        checkpoint["m.experts.0.gate_up_proj.weight"]


@pytest.mark.parametrize("architectures", [[[]], [{"x": 1}], {"x": 1}, 3, None])
def test_architectures_that_are_no_names_have_no_experts(
    tmp_path: Path, architectures: object
) -> None:
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))
    assert not isinstance(open_checkpoint(tmp_path), StackedExperts)


def write_mxfp4(folder: Path) -> Any:  # noqa: ANN401  # of transformers
    """Write a small gpt-oss whose experts are of MXFP4, and return the model of their numbers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from safetensors.numpy import load_file, save_file

    # Sizes are multiples of 32, as blocks need.
    sizes = {**SIZES, **FAMILIES["gpt_oss"][1], "hidden_size": 64, "intermediate_size": 32}
    config = transformers.GptOssConfig(**sizes)
    config._attn_implementation = "eager"
    model = randomize(transformers.GptOssForCausalLM(config))
    model.save_pretrained(folder)
    rng, path = np.random.default_rng(0), folder / "model.safetensors"
    tensors = load_file(path)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, rows = tensors.pop(name).shape
        blocks = rng.integers(0, 256, (experts, rows, inputs // 32, 16), np.uint8)
        scales = rng.integers(121, 125, (experts, rows, inputs // 32), np.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(experts, rows, -1, 32)
        numbers = E2M1[codes] * 2.0 ** (scales[..., None].astype(int) - 127)
        state = torch.tensor(numbers.reshape(experts, rows, inputs), dtype=torch.float32)
        model.get_parameter(name).data = state.transpose(1, 2).contiguous()
    save_file(tensors, path)
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(settings))
    return model


@pytest.mark.filterwarnings("ignore")
def test_folder_of_mxfp4_is_the_model_of_its_numbers(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = write_mxfp4(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    for name, parameter in model.named_parameters():
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        for expert, values in enumerate(parameter.detach().numpy()):
            prefix, _, part = name.rpartition(".")
            actual = checkpoint[f"{prefix}.{expert}.{part}.weight"].values()
            order = [*range(0, 64, 2), *range(1, 64, 2)] if part == "gate_up_proj" else slice(None)
            rows = values.T[order]
            np.testing.assert_array_equal(actual, rows)
    loaded = llm.load(tmp_path, page=16, sequences=1)
    tokens = [1, 2, 3, 4, 5, 6]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    # Products with q5_0 round the data to 8 bits.
    assert np.abs(loaded.logits(tokens) - expected).max() < 0.02 * np.abs(expected).max()


def test_blocks_that_do_not_fit_their_scales_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from safetensors.numpy import load_file, save_file

    save_family("gpt_oss", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.experts.down_proj"
    del tensors[name]
    tensors |= {f"{name}_blocks": np.zeros((4, 32, 2, 16), np.uint8),
                f"{name}_scales": np.zeros((4, 32, 1), np.uint8)}  # fmt: skip
    save_file(tensors, path)
    with pytest.raises(LoadError, match=r"blocks \(4, 32, 2, 16\), scales \(4, 32, 1\) do not fit"):
        open_checkpoint(tmp_path)["model.layers.0.mlp.experts.0.down_proj.weight"]
