"""Small transformers models of every family, as folders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256,
    "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_GPT = {
    "num_key_value_heads": None, "num_hidden_layers": None, "hidden_size": None,
    "intermediate_size": None, "num_attention_heads": None, "max_position_embeddings": None,
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_inner": 40,
}  # fmt: skip
_ALIBI = {
    "num_key_value_heads": None, "num_hidden_layers": None, "num_attention_heads": None,
    "intermediate_size": None, "max_position_embeddings": None, "n_layer": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 2,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1,
}  # fmt: skip
_OWN = {"num_key_value_heads": None, "intermediate_size": None}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MAMBA = {
    "num_attention_heads": None, "num_key_value_heads": None, "intermediate_size": None,
    "max_position_embeddings": None, "state_size": 8,
}  # fmt: skip
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "mamba": ("MambaForCausalLM", {**_MAMBA}),
    "mamba_biases": (
        "MambaForCausalLM",
        {**_MAMBA, "use_bias": True, "use_conv_bias": False, "time_step_rank": 3, "conv_kernel": 3},
    ),
    "falcon_mamba": ("FalconMambaForCausalLM", {**_MAMBA}),
    "mamba2": (
        "Mamba2ForCausalLM",
        {**_MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
    ),
    "rwkv": (
        "RwkvForCausalLM",
        {
            **_MAMBA,
            "state_size": None,
            "rescale_every": 2,
            "num_hidden_layers": 5,
        },
    ),
    "gpt2": ("GPT2LMHeadModel", _GPT),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", {**_GPT, "multi_query": True}),
    "gpt_bigcode_heads": ("GPTBigCodeForCausalLM", {**_GPT, "multi_query": False}),
    "gptj": ("GPTJForCausalLM", {**_GPT, "rotary_dim": 4}),
    "opt": ("OPTForCausalLM", {**_OWN, "ffn_dim": 48}),
    "falcon": ("FalconForCausalLM", {**_OWN}),
    "falcon_heads": (
        "FalconForCausalLM",
        {**_OWN, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "falcon_new": (
        "FalconForCausalLM",
        {**_OWN, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "falcon_11b": (
        "FalconForCausalLM",
        {**_OWN, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "bloom": ("BloomForCausalLM", {**_ALIBI, "n_head": 4}),
    "bloom_six": ("BloomForCausalLM", {**_ALIBI, "n_head": 6, "hidden_size": 48}),
    "phi": ("PhiForCausalLM", {}),
    "stablelm": (
        "StableLmForCausalLM",
        {"use_qkv_bias": True, "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25}},
    ),
    "stablelm_parallel": (
        "StableLmForCausalLM",
        {"use_parallel_residual": True, "hidden_size": 64},
    ),
    "starcoder2": ("Starcoder2ForCausalLM", {"sliding_window": 8}),
    "olmo": ("OlmoForCausalLM", {"clip_qkv": 0.5}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3ForCausalLM", {"sliding_window": 8, "num_hidden_layers": 4}),
    "olmo3_yarn": (
        "Olmo3ForCausalLM",
        {
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 500000.0,
                    "factor": 4.0,
                    "beta_fast": 32,
                    "beta_slow": 1,
                    "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "granite": (
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.5,
        },
    ),
    "cohere": ("CohereForCausalLM", {"logit_scale": 0.3}),
    "cohere_norms": ("CohereForCausalLM", {"use_qk_norm": True}),
    "cohere2": ("Cohere2ForCausalLM", {"sliding_window": 8, "num_hidden_layers": 4}),
    "glm": ("GlmForCausalLM", {"head_dim": 8}),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 8}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "sliding_window": 8}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {**_EXPERTS, "shared_expert_intermediate_size": 20, "mlp_only_layers": [0]},
    ),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**_EXPERTS, "norm_topk_prob": True, "head_dim": 16}),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": 5, "num_experts_per_tok": 2}),
    "gpt_oss": (
        "GptOssForCausalLM",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "head_dim": 16,
            "swiglu_limit": 0.5,
        },
    ),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        {**_LATENT, "q_lora_rank": None, "num_experts_per_tok": 2, "routed_scaling_factor": 1.5},
    ),
    "deepseek_v2_groups": (
        "DeepseekV2ForCausalLM",
        {
            **_LATENT,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {**_LATENT, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3},
    ),
    "deepseek_yarn": (
        "DeepseekV3ForCausalLM",
        {
            **_LATENT,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 10000.0,
                "mscale": 1.0,
                "mscale_all_dim": 0.7,
                "beta_fast": 32,
                "beta_slow": 1,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "smollm3": ("SmolLM3ForCausalLM", {"num_hidden_layers": 4}),
}

CONVERTED = ("InternLM2ForCausalLM", "MiniCPMForCausalLM")
"""Families that transformers has as code of their checkpoints alone: tested as converted Llamas and
Granites.
"""


def save_family(name: str, folder: Path) -> Any:  # noqa: ANN401  # of that package
    """Write a small model with random weights to a folder, and return it."""
    kind, changes = FAMILIES[name]
    model = random_model(kind, changes)
    model.save_pretrained(folder)
    return model


def random_model(kind: str, changes: Mapping[str, Any]) -> Any:  # noqa: ANN401  # of that package
    """A small model of a class of transformers, with normally distributed weights."""
    import transformers

    model_class = getattr(transformers, kind)
    # What is None there is left out: a family may have the size under another name.
    sizes = {k: v for k, v in {**SIZES, **changes}.items() if v is not None or "token" in k}
    config = model_class.config_class(**sizes)
    config._attn_implementation = "eager"
    return randomize(model_class(config))


def randomize(model: Any) -> Any:  # noqa: ANN401  # of that package
    """A model with normally distributed weights, about 1 for those of norms."""
    import torch

    model.eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        corrections = [item for item in model.named_buffers() if "correction" in item[0]]
        for key, parameter in [*model.named_parameters(), *corrections]:
            is_norm = re.search(r"norm|ln_|\bln\d", key) and key.endswith("weight")
            parameter.normal_(0, 0.2, generator=generator).add_(1 if is_norm else 0)
    return model
