"""Decoder families: logits against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_logits import forward
from families import FAMILIES, SIZES, random_model, randomize, save_family
from tiny_models import Memory, plain

from ekiden import llm
from ekiden.llm.checkpoint import Checkpoint
from ekiden.llm.checkpoint_files import open_checkpoint
from ekiden.llm.decoder_config import read_config
from ekiden.runtime.errors import InputError, UnsupportedError

IDS = np.random.default_rng(1).integers(0, 97, 24)
RELATIVE_ERROR = 1e-5
"""Of the largest logit, in float32."""

pytest.importorskip("transformers", reason="logits are compared with those of transformers")


pytestmark = pytest.mark.filterwarnings("ignore")  # of that package


def check_logits(
    checkpoint: Checkpoint,
    model: Any,  # noqa: ANN401  # of that package
    kind: str = "interpreter",
) -> None:
    import torch

    with torch.no_grad():
        expected = model(torch.tensor([IDS.tolist()])).logits[0].numpy()
    actual = forward(checkpoint, IDS, (16, 1, 7), kind)
    assert np.abs(actual - expected).max() <= RELATIVE_ERROR * np.abs(expected).max()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_a_family_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = save_family(name, tmp_path)
    check_logits(open_checkpoint(tmp_path), model)


@pytest.mark.parametrize("name", ["bloom", "qwen2_moe", "gpt_oss"])
def test_compiled_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = save_family(name, tmp_path)
    check_logits(open_checkpoint(tmp_path), model, "vm")


def test_windows_of_olmo3_turn_without_the_scaling_of_other_layers() -> None:
    # As checkpoints were published, before transformers wrote a rope for each kind of layer.
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config = {**SIZES, "architectures": ["Olmo3ForCausalLM"], "num_hidden_layers": 4,
              "rope_theta": 700000.0}  # fmt: skip
    plain_rope = read_config(config).ropes[0]
    scaled = read_config({**config, "rope_scaling": scaling})
    assert scaled.rope_of == (1, 1, 1, 0) and scaled.windows == (4096, 4096, 4096, 0)
    assert scaled.ropes[1] == plain_rope and scaled.ropes[0] != plain_rope


def test_text_of_a_multimodal_model_is_read(tmp_path: Path) -> None:
    import transformers

    text = {**SIZES, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 16}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
    config = transformers.Gemma3Config(text_config=text, vision_config=vision)
    model = randomize(transformers.Gemma3ForConditionalGeneration(config))
    model.save_pretrained(tmp_path)
    check_logits(open_checkpoint(tmp_path), model)


def test_internlm2_is_a_llama_with_rows_ordered_by_groups() -> None:
    model = random_model("LlamaForCausalLM", {"num_hidden_layers": 1})
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    parts = [tensors.pop(f"model.layers.0.self_attn.{k}_proj.weight") for k in "qkv"]
    query, key, value = (part.reshape(2, -1, 8, 32) for part in parts)
    tensors["model.layers.0.attention.wqkv.weight"] = np.concatenate(
        [query, key, value], axis=1
    ).reshape(-1, 32)
    new_names = {
        "model.embed_tokens": "model.tok_embeddings", "lm_head": "output",
        "self_attn.o_proj": "attention.wo", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
    }  # fmt: skip
    renamed = {}
    for name, value in tensors.items():
        old = next((old for old in new_names if old in name), "")
        renamed[name.replace(old, new_names[old]) if old else name] = value
    config = {**model.config.to_dict(), "architectures": ["InternLM2ForCausalLM"], "bias": False}
    check_logits(Memory(config, {n: plain(n, v) for n, v in renamed.items()}), model)


def test_minicpm_is_a_granite_with_factors_by_its_sizes() -> None:
    factors = {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / 2**0.5,
               "attention_multiplier": 8**-0.5, "logits_scaling": 2.0}  # fmt: skip
    model = random_model("GraniteForCausalLM", {**factors, "tie_word_embeddings": True})
    tensors = {n: plain(n, v.numpy()) for n, v in model.state_dict().items() if "lm_head" not in n}
    config = {**model.config.to_dict(), "architectures": ["MiniCPMForCausalLM"], "scale_emb": 12,
              "scale_depth": 1.4, "dim_model_base": 16}  # fmt: skip
    check_logits(Memory(config, tensors), model)


def test_tensors_without_the_prefix_of_the_model_are_read() -> None:
    model = random_model("GPT2LMHeadModel", FAMILIES["gpt2"][1])
    tensors = {
        name.removeprefix("transformer."): value.numpy()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }
    config = {**model.config.to_dict(), "architectures": ["GPT2LMHeadModel"]}
    check_logits(Memory(config, {n: plain(n, v) for n, v in tensors.items()}), model)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("OPTForCausalLM", "do_layer_norm_before", False),
        ("FalconForCausalLM", "alibi", True),
        ("PhiForCausalLM", "qk_layernorm", True),
    ],
)
def test_variant_that_is_not_served_is_refused_by_its_key(kind: str, key: str, value: bool) -> None:
    message = f"config: '{key}': only {not value!r} is supported, got {value!r}"
    with pytest.raises(UnsupportedError, match=message):
        read_config({**SIZES, "architectures": [kind], key: value})


def test_cache_that_rounds_positions_is_refused() -> None:
    model = random_model("BloomForCausalLM", FAMILIES["bloom"][1])
    tensors = {
        n: plain(n, v.numpy()) for n, v in model.state_dict().items() if n != "lm_head.weight"
    }
    config = {**model.config.to_dict(), "architectures": ["BloomForCausalLM"]}
    with pytest.raises(InputError, match="a cache of int8 cannot hold the positions"):
        llm.load(Memory(config, tensors), cache="int8")
