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
from ekiden.llm.checkpoint import Weight
from ekiden.llm.lora import AdaptedCheckpoint
from ekiden.llm.safetensors import write_safetensors
from ekiden.runtime.errors import ImportModelError, InputError, LoadError, UnsupportedError

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
def test_product_is_added_by_its_scale(
    tmp_path: Path, settings: dict[str, Any], scale: float
) -> None:
    factors, whole = write_adapter(tmp_path, **settings), tiny("llama")
    adapted = AdaptedCheckpoint(whole, tmp_path)
    expected = whole[f"{QUERY}.weight"].data + scale * factors["B"] @ factors["A"]
    np.testing.assert_allclose(adapted[f"{QUERY}.weight"].data, expected, rtol=1e-6, atol=1e-6)
    other = "model.layers.1.self_attn.q_proj.weight"
    assert adapted[other] is whole[other]
    assert set(adapted) == set(whole)


def test_transposed_weights_are_adapted_transposed(tmp_path: Path) -> None:
    factors, whole = write_adapter(tmp_path, fan_in_fan_out=True), tiny("llama")
    expected = whole[f"{QUERY}.weight"].data + 2 * (factors["B"] @ factors["A"]).T
    actual = AdaptedCheckpoint(whole, tmp_path)[f"{QUERY}.weight"].data
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_adapted_block_weights_become_floats(tmp_path: Path) -> None:
    factors, whole = write_adapter(tmp_path), tiny("llama")
    name = f"{QUERY}.weight"
    blocks = Weight.of(name, whole[name].data, "q8_0")
    adapted = AdaptedCheckpoint(Memory(whole.config, {**whole.tensors, name: blocks}), tmp_path)
    assert adapted[name].format == "float32"
    expected = blocks.values() + 2 * factors["B"] @ factors["A"]
    np.testing.assert_allclose(adapted[name].data, expected, rtol=1e-6, atol=1e-6)


def test_model_with_an_adapter_is_the_one_of_merged_weights(tmp_path: Path) -> None:
    write_adapter(tmp_path)
    whole = tiny("llama", num_hidden_layers=1)
    adapted = AdaptedCheckpoint(whole, tmp_path)
    merged = Memory(whole.config, {name: adapted[name] for name in adapted})
    model = llm.load(whole, adapter=tmp_path, page=16, sequences=1)
    expected = Reference(merged).logits([1, 2, 3])
    np.testing.assert_allclose(model.logits([1, 2, 3]), expected, atol=1e-4)


PROJECTIONS = {
    "self_attn.q_proj": (32, 32), "self_attn.v_proj": (32, 16), "self_attn.o_proj": (32, 32),
    "mlp.gate_proj": (32, 48), "mlp.down_proj": (48, 32),
}  # fmt: skip


def write_adapter_of_layers(folder: Path, seed: int, rank: int, layers: int = 2) -> Path:
    """Write an adapter of several products of a small Llama, and return its folder."""
    rng, tensors = np.random.default_rng(seed), {}
    for n in range(layers):
        for name, (inputs, outputs) in PROJECTIONS.items():
            if (n + len(name)) % 2 == seed % 2:
                continue  # adapters differ in what they change
            base = f"base_model.model.model.layers.{n}.{name}"
            for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                tensor = f"{base}.lora_{half}.weight"
                tensors[tensor] = plain(tensor, 0.3 * rng.standard_normal(shape, np.float32))
    folder.mkdir()
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def adapter_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter_of_layers(root / name, seed, rank)
        for name, seed, rank in (("poet", 1, 4), ("clerk", 2, 3))
    }


@pytest.fixture(scope="module")
def several(adapter_folders: dict[str, Path]) -> llm.Model:
    """A small Llama with two adapters."""
    whole = tiny("llama", num_hidden_layers=2)
    return llm.load(whole, adapters=adapter_folders, page=16, sequences=4, cache="float32")


@pytest.mark.parametrize("name", ["", "poet", "clerk"])
def test_logits_with_an_adapter_are_those_of_merged_weights(
    several: llm.Model, adapter_folders: dict[str, Path], name: str
) -> None:
    whole = tiny("llama", num_hidden_layers=2)
    if name:
        adapted = AdaptedCheckpoint(whole, adapter_folders[name])
        whole = Memory(whole.config, {key: adapted[key] for key in adapted})
    expected = Reference(whole).logits([5, 6, 7, 8])
    actual = several.logits([5, 6, 7, 8], name)
    # Sums of 48 products and ranks, in float32, of numbers below 10.
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_texts_of_different_adapters_are_made_in_one_batch_as_alone(several: llm.Model) -> None:
    prompts = {"": [1, 2, 3], "poet": [1, 2, 3], "clerk": [4, 5, 6, 7]}
    settings = {name: llm.Sampling(max_tokens=24, adapter=name) for name in prompts}
    alone = {
        name: several.engine.run([prompt], settings[name])[0] for name, prompt in prompts.items()
    }
    assert len({tuple(tokens) for tokens in alone.values()}) == 3
    streams = {name: several.engine.submit(p, settings[name]) for name, p in prompts.items()}
    assert {name: list(stream) for name, stream in streams.items()} == alone


def test_prompts_of_different_adapters_share_no_pages(several: llm.Model) -> None:
    prompt = list(range(40))
    for name, shared in (("poet", 0), ("clerk", 0), ("poet", 32), ("", 0)):
        stream = several.engine.submit(prompt, llm.Sampling(max_tokens=2, adapter=name))
        list(stream)
        assert stream.shared == shared


def test_draft_without_adapters_leaves_adapted_texts_as_they_are(
    several: llm.Model, adapter_folders: dict[str, Path]
) -> None:
    whole = tiny("llama", num_hidden_layers=2)
    fast = llm.load(whole, adapters=adapter_folders, page=16, sequences=2, cache="float32",
                    draft=whole, proposals=3)  # fmt: skip
    settings = llm.Sampling(max_tokens=20, adapter="poet")
    assert fast.engine.run([[1, 2, 3]], settings) == several.engine.run([[1, 2, 3]], settings)


def test_adapter_of_blocks_leaves_them_as_they_are(adapter_folders: dict[str, Path]) -> None:
    whole = tiny("llama", num_hidden_layers=2)
    tensors = {
        name: Weight.of(name, weight.data, "q8_0") if name.endswith("q_proj.weight") else weight
        for name, weight in whole.tensors.items()
    }
    quantized = Memory(whole.config, tensors)
    adapted = AdaptedCheckpoint(quantized, adapter_folders["poet"])
    merged = llm.load(Memory(whole.config, {n: adapted[n] for n in adapted}), sequences=1, page=16)
    model = llm.load(quantized, adapters=adapter_folders, sequences=1, page=16)
    expected, actual = merged.logits([1, 2, 3]), model.logits([1, 2, 3], "poet")
    # Products with q8_0 round the data to 8 bits, products with floats do not.
    assert np.abs(actual - expected).max() < 0.02 * np.abs(expected).max()


def test_adapter_that_a_text_cannot_have_is_named(several: llm.Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="adapter: 'smith' is none of the model's: 'poet', 'cler"):
        several.generate([1], adapter="smith")
    with pytest.raises(InputError, match="adapter: a name expected, got 3"):
        llm.Sampling(adapter=3)  # type: ignore[arg-type]
    write_adapter(tmp_path, "lm_head")
    with pytest.raises(UnsupportedError, match=r"'lm_head.weight': adapters by request change"):
        llm.load(tiny("llama"), adapters={"head": tmp_path})
    write_adapter(tmp_path, "model.layers.0.mlp.up_proj")
    with pytest.raises(ImportModelError, match=r"must be \(48, 32\), the adapter's is \(32, 32\)"):
        llm.load(tiny("llama"), adapters={"up": tmp_path})


def test_unsupported_adapter_targets_are_named(tmp_path: Path) -> None:
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
