"""Small decoders with random weights, one per architecture, as in-memory checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import Weight

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256,
    "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_SCALED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip
# fmt: off
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama":     {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False},
    "llama3":    {"architectures": ["LlamaForCausalLM"], "rope_scaling": _SCALED,
                  "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "yarn":      {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False,
                  "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
                                   "original_max_position_embeddings": 64}},
    "linear":    {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False,
                  "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    "dynamic":   {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False,
                  "rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
    "mistral":   {"architectures": ["MistralForCausalLM"], "sliding_window": 8, "head_dim": 12},
    "qwen2":     {"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "qwen3":     {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
    "gemma":     {"architectures": ["GemmaForCausalLM"], "head_dim": 8},
    "gemma2":    {"architectures": ["Gemma2ForCausalLM"], "head_dim": 8, "sliding_window": 8,
                  "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
                  "query_pre_attn_scalar": 16},
    "gemma3":    {"architectures": ["Gemma3ForCausalLM"], "head_dim": 8, "sliding_window": 8,
                  "query_pre_attn_scalar": 16, "sliding_window_pattern": 3,
                  "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
    "phi3":      {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.5,
                  "sliding_window": None},
    "longrope":  {"architectures": ["Phi3ForCausalLM"], "sliding_window": None,
                  "original_max_position_embeddings": 64,
                  "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3],
                                   "long_factor": [1.5, 2.0, 2.5, 3.0], "rope_theta": 10000.0}},
    "neox":      {"architectures": ["GPTNeoXForCausalLM"], "rotary_pct": 0.5,
                  "num_key_value_heads": 4, "use_parallel_residual": True},
    "serial":    {"architectures": ["GPTNeoXForCausalLM"], "rotary_pct": 1.0,
                  "num_key_value_heads": 4, "use_parallel_residual": False},
}
# fmt: on


@dataclass(frozen=True)
class Memory:
    """A checkpoint of arrays."""

    config: Mapping[str, object]
    tensors: Mapping[str, Weight]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __getitem__(self, name: str) -> Weight:
        return self.tensors[name]


def config_of(name: str, **changes: object) -> dict[str, Any]:
    """The configuration of a small decoder."""
    return {**SIZES, **CONFIGS[name], **changes}


def plain(name: str, values: NDArray[Any]) -> Weight:
    """A tensor of floats."""
    return Weight(name, "float32", values.shape, values.astype(np.float32))


def shapes_of(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors that a checkpoint of this configuration has."""
    from ekiden.llm.decoder_config import read_config

    c = read_config(config)
    names, width = c.names, c.heads * c.depth
    total = (c.heads + 2 * c.groups) * c.depth
    result: dict[str, tuple[int, ...]] = {names.embedding: (c.vocabulary, c.hidden)}
    if not c.tied:
        result[names.head[-1]] = (c.vocabulary, c.hidden)
    norms = {names.norm: c.hidden}
    for n in range(c.layers):
        at = names.layer.format(n)
        sizes = (total,) if len(names.attention) == 1 else (width, *(c.groups * c.depth,) * 2)
        inner = c.inner * (2 if c.gated and len(names.up) == 1 else 1)
        linear = [(item, (size, c.hidden), "attention")
                  for item, size in zip(names.attention, sizes, strict=True)]  # fmt: skip
        linear.append((names.out, (c.hidden, width), "out"))
        linear += [(item, (inner, c.hidden), "mlp") for item in names.up]
        linear.append((names.down, (c.hidden, c.inner), "mlp"))
        for item, shape, part in linear:
            result[f"{at}{item}.weight"] = shape
            if part in c.biases:
                result[f"{at}{item}.bias"] = shape[:1]
        for item in (names.before_attention, names.after_attention, names.before_mlp,
                     names.after_mlp):  # fmt: skip
            if item:
                norms[at + item] = c.hidden
        for item in (names.query_norm, names.key_norm):
            if item:
                norms[at + item] = c.depth
    for item, size in norms.items():
        result[f"{item}.weight"] = (size,)
        if c.norm == "layer":
            result[f"{item}.bias"] = (size,)
    return result


def tiny(name: str, seed: int = 0, **changes: object) -> Memory:
    """A small decoder with random weights."""
    return random_checkpoint(config_of(name, **changes), seed)


def random_checkpoint(config: Mapping[str, Any], seed: int = 0, scale: float = 0.2) -> Memory:
    """A checkpoint of normally distributed weights; those of norms are about 1."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes_of(config).items():
        is_norm = "norm" in name and name.endswith("weight")
        values = rng.standard_normal(shape, np.float32) * np.float32(scale)
        tensors[name] = plain(name, values + 1 if is_norm else values)
    return Memory(config, tensors)
