"""LoRA adapters: weights are the checkpoint's with the product of the adapter added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_decoder import Reference
from tiny_models import Memory, plain, tiny

from ekiden import llm
from ekiden.llm.lora import AdaptedCheckpoint
from ekiden.llm.safetensors import write_safetensors
from ekiden.llm.weights import Weight
from ekiden.runtime.errors import ImportModelError, LoadError, UnsupportedError

QUERY = "model.layers.0.self_attn.q_proj"


def write_adapter(folder: Path, base: str = QUERY, **settings: Any) -> dict[str, Any]:  # noqa: ANN401
    """A folder of an adapter of rank 4 of the query's weight [32, 32]."""
    rng = np.random.default_rng(0)
    factors = {half: rng.standard_normal(shape, np.float32)
               for half, shape in (("A", (4, 32)), ("B", (32, 4)))}  # fmt: skip
    tensors = {
        name: plain(name, values)
        for half, values in factors.items()
        for name in [f"base_model.model.{base}.lora_{half}.weight"]
    }
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return factors


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 12}}, 3.0),
        ({"alpha_pattern": {"layers.1.self_attn.q_proj": 12}}, 2.0),
    ],
)
def test_the_product_is_added_by_its_scale(
    tmp_path: Path, settings: dict[str, Any], scale: float
) -> None:
    factors, whole = write_adapter(tmp_path, **settings), tiny("llama")
    adapted = AdaptedCheckpoint(whole, tmp_path)
    expected = whole[f"{QUERY}.weight"].data + scale * factors["B"] @ factors["A"]
    np.testing.assert_allclose(adapted[f"{QUERY}.weight"].data, expected, rtol=1e-6, atol=1e-6)
    other = "model.layers.1.self_attn.q_proj.weight"
    assert adapted[other] is whole[other]
    assert set(adapted) == set(whole)


def test_weights_stored_as_inputs_by_outputs_are_changed_so(tmp_path: Path) -> None:
    factors, whole = write_adapter(tmp_path, fan_in_fan_out=True), tiny("llama")
    expected = whole[f"{QUERY}.weight"].data + 2 * (factors["B"] @ factors["A"]).T
    actual = AdaptedCheckpoint(whole, tmp_path)[f"{QUERY}.weight"].data
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_blocks_become_floats_where_an_adapter_changes_them(tmp_path: Path) -> None:
    factors, whole = write_adapter(tmp_path), tiny("llama")
    name = f"{QUERY}.weight"
    blocks = Weight.of(name, whole[name].data, "q8_0")
    adapted = AdaptedCheckpoint(Memory(whole.config, {**whole.tensors, name: blocks}), tmp_path)
    assert adapted[name].format == "float32"
    expected = blocks.values() + 2 * factors["B"] @ factors["A"]
    np.testing.assert_allclose(adapted[name].data, expected, rtol=1e-6, atol=1e-6)


def test_a_model_with_an_adapter_is_the_one_of_merged_weights(tmp_path: Path) -> None:
    write_adapter(tmp_path)
    whole = tiny("llama", num_hidden_layers=1)
    adapted = AdaptedCheckpoint(whole, tmp_path)
    merged = Memory(whole.config, {name: adapted[name] for name in adapted})
    model = llm.load(whole, adapter=tmp_path, page=16, sequences=1)
    expected = Reference(merged).logits([1, 2, 3])
    np.testing.assert_allclose(model.logits([1, 2, 3]), expected, atol=1e-4)


def test_what_an_adapter_cannot_be_added_to_is_named(tmp_path: Path) -> None:
    whole = tiny("llama")
    with pytest.raises(LoadError, match=r"adapter_config.json: cannot be read"):
        AdaptedCheckpoint(whole, tmp_path)
    write_adapter(tmp_path, "model.layers.7.mlp.up_proj")
    with pytest.raises(ImportModelError, match="has no tensor 'model.layers.7.mlp.up_proj.weight'"):
        AdaptedCheckpoint(whole, tmp_path)
    write_adapter(tmp_path, "model.layers.0.mlp.up_proj")
    with pytest.raises(ImportModelError, match=r"must be \(48, 32\), the adapter's is \(32, 32\)"):
        AdaptedCheckpoint(whole, tmp_path)["model.layers.0.mlp.up_proj.weight"]
    for settings, message in (
        ({"use_dora": True}, "'use_dora': only False is supported, got True"),
        ({"bias": "all"}, "'bias': only 'none' is supported, got 'all'"),
        ({"alpha_pattern": {"(a+)+": 1}}, "'alpha_pattern': names of modules are read"),
        ({"peft_type": "IA3"}, "an adapter of 'peft_type' LORA expected"),
    ):
        write_adapter(tmp_path, **settings)
        with pytest.raises(UnsupportedError, match=message):
            AdaptedCheckpoint(whole, tmp_path)[f"{QUERY}.weight"]
