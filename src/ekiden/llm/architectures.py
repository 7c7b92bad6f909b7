"""Table of decoder architectures: how each family differs from Llama, and its tensor names.

A row is read together with the checkpoint's `config.json`; what that says of sizes has the same
names in all families. `DecoderConfig` is the two of them put together, and all that the builder
(decoder.py) looks at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from ekiden.llm.config_numbers import read_float, read_integer, read_size
from ekiden.llm.rope import RopeParameters, read_rope
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["DECODER_ARCHITECTURES", "DecoderArchitecture", "DecoderConfig", "read_decoder_config"]


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """Tensor names of a checkpoint; `{}` is the layer number. A part with several names is their
    rows concatenated, except a head, which is the first name that exists; an empty name means no
    tensor.
    """

    embedding: str = "model.embed_tokens.weight"
    norm: str = "model.norm"
    head: tuple[str, ...] = ("lm_head.weight",)
    layer: str = "model.layers.{}."
    pre_attention_norm: str = "input_layernorm"
    post_attention_norm: str = ""
    pre_mlp_norm: str = "post_attention_layernorm"
    post_mlp_norm: str = ""
    attention: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    query_norm: str = ""
    key_norm: str = ""
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"


GEMMA_NAMES = CheckpointNames(
    post_attention_norm="post_attention_layernorm",
    pre_mlp_norm="pre_feedforward_layernorm",
    post_mlp_norm="post_feedforward_layernorm",
)
QK_NORM_NAMES: dict[str, Any] = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
NEOX_NAMES = CheckpointNames(
    embedding="gpt_neox.embed_in.weight",
    norm="gpt_neox.final_layer_norm",
    head=("embed_out.weight", "lm_head.weight"),
    layer="gpt_neox.layers.{}.",
    attention=("attention.query_key_value",),
    out="attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)


@dataclass(frozen=True, slots=True)
class DecoderArchitecture:
    """Row of the table of architectures: how a family of decoders differs from Llama.

    norm: "rms", "rms_one" (the weight is what is added to 1) or "layer"; epsilon: the key of the
    configuration for what is added to variances, and its default. activation: the key of the
    configuration, and its default. has_gated_mlp: whether the MLP multiplies two projections.
    bias_settings: parts
    that have one: "attention", "out", "mlp"; a string is a key of the configuration that says so.
    parallel_residual_key: attention and MLP read the same input; a key of the configuration.
    scales_embedding: embeddings times the root of their size. ties_embeddings: whether the head is
    the embedding where the configuration does not say. has_head_interleaved_qkv: rows of the
    attention's projection are ordered by heads, three parts each. layer_windows: which layers see a
    window of keys alone.
    rotary_fraction_keys: the keys that say what share of a head turns. query_scale_key: the key of
    what scores are divided by the root of, if it is not the depth. has_local_rope: layers with a
    window have a rope of their own.
    rope_base: of the rope, where the configuration does not say.
    """

    names: CheckpointNames = field(default_factory=CheckpointNames)
    norm: str = "rms"
    epsilon: tuple[str, float] = ("rms_norm_eps", 1e-6)
    activation: tuple[str, str] = ("hidden_act", "silu")
    has_gated_mlp: bool = True
    bias_settings: Mapping[str, bool | str] = field(default_factory=dict)
    parallel_residual_key: str = ""
    scales_embedding: bool = False
    ties_embeddings: bool = False
    has_head_interleaved_qkv: bool = False
    layer_windows: Callable[[Mapping[str, Any], int], tuple[int, ...]] = lambda c, n: (0,) * n
    rotary_fraction_keys: tuple[str, ...] = ("partial_rotary_factor",)
    query_scale_key: str = ""
    has_local_rope: bool = False
    rope_base: float = 10000.0


def _layer_windows(
    config: Mapping[str, Any], count: int, default: Callable[[int], bool]
) -> tuple[int, ...]:
    """Return a window for each layer that `layer_types` calls sliding; without it, for those that
    `default` selects.
    """
    window = read_integer(config, "sliding_window", 0)
    kinds = config.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, (list, tuple)) or len(kinds) != count:
            raise ImportModelError(f"config: 'layer_types': {count} kinds expected, got {kinds!r}")
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    return tuple(window if default(n) else 0 for n in range(count))


def _uniform_windows(config: Mapping[str, Any], count: int) -> tuple[int, ...]:
    return _layer_windows(config, count, lambda n: True)


def _qwen_windows(config: Mapping[str, Any], count: int) -> tuple[int, ...]:
    if not config.get("use_sliding_window"):
        return (0,) * count
    first = read_integer(config, "max_window_layers", 0)
    return _layer_windows(config, count, lambda n: n >= first)


def _gemma2_windows(config: Mapping[str, Any], count: int) -> tuple[int, ...]:
    return _layer_windows(config, count, lambda n: n % 2 == 0)


def _gemma3_windows(config: Mapping[str, Any], count: int) -> tuple[int, ...]:
    every = read_integer(config, "sliding_window_pattern", 6)
    return _layer_windows(config, count, lambda n: (n + 1) % every != 0)


_LLAMA_BIASES: Mapping[str, bool | str] = {
    "attention": "attention_bias", "out": "attention_bias", "mlp": "mlp_bias",
}  # fmt: skip
_ATTENTION_BIASES: Mapping[str, bool | str] = {
    "attention": "attention_bias",
    "out": "attention_bias",
}
_GEMMA_ARCHITECTURE = DecoderArchitecture(
    norm="rms_one",
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    ties_embeddings=True,
    scales_embedding=True,
    bias_settings=_ATTENTION_BIASES,
)
# fmt: off
DECODER_ARCHITECTURES: Mapping[str, DecoderArchitecture] = {
    "LlamaForCausalLM":   DecoderArchitecture(bias_settings=_LLAMA_BIASES),
    "MistralForCausalLM": DecoderArchitecture(layer_windows=_uniform_windows),
    "Qwen2ForCausalLM":   DecoderArchitecture(bias_settings={"attention": True},
        layer_windows=_qwen_windows),
    "Qwen3ForCausalLM":   DecoderArchitecture(replace(CheckpointNames(), **QK_NORM_NAMES),
                                              layer_windows=_qwen_windows,
                                              bias_settings=_ATTENTION_BIASES),
    "GemmaForCausalLM":   _GEMMA_ARCHITECTURE,
    "Gemma2ForCausalLM":  replace(_GEMMA_ARCHITECTURE, names=GEMMA_NAMES,
        layer_windows=_gemma2_windows,
                                  query_scale_key="query_pre_attn_scalar"),
    "Gemma3ForCausalLM":  replace(_GEMMA_ARCHITECTURE, names=replace(GEMMA_NAMES, **QK_NORM_NAMES),
                                  layer_windows=_gemma3_windows,
                                  query_scale_key="query_pre_attn_scalar", has_local_rope=True,
                                  rope_base=1e6),
    "Phi3ForCausalLM":    DecoderArchitecture(CheckpointNames(attention=("self_attn.qkv_proj",),
                                                              up=("mlp.gate_up_proj",)),
                                              layer_windows=_uniform_windows,
                                              epsilon=("rms_norm_eps", 1e-5)),
    "GPTNeoXForCausalLM": DecoderArchitecture(NEOX_NAMES, norm="layer",
                                              epsilon=("layer_norm_eps", 1e-5),
                                              activation=("hidden_act", "gelu"),
                                              has_gated_mlp=False,
                                              bias_settings={"attention": "attention_bias",
                                                      "out": "attention_bias", "mlp": True},
                                              parallel_residual_key="use_parallel_residual",
                                              has_head_interleaved_qkv=True,
                                              rotary_fraction_keys=("partial_rotary_factor",
                                                  "rotary_pct")),
}
# fmt: on
_BIAS_DEFAULTS: Mapping[str, Any] = {"attention_bias": {"GPTNeoXForCausalLM": True}}
ACTIVATION_NAMES = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_tanh": "gelu_tanh",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Configuration of a decoder: its sizes, and the variations of its family. Windows and ropes
    are per layer.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Heads of keys and values."""
    head_dim: int
    """Of a head."""
    intermediate_size: int
    """Of the MLP."""
    max_positions: int
    names: CheckpointNames
    norm: str
    epsilon: float
    activation: str
    has_gated_mlp: bool
    biases: frozenset[str]
    has_parallel_residual: bool
    ties_embeddings: bool
    has_head_interleaved_qkv: bool
    embedding_scale: float
    score_scale: float
    score_softcap: float
    logit_softcap: float
    layer_windows: tuple[int, ...]
    ropes: tuple[RopeParameters, ...]
    """Those that there are."""
    rope_index_by_layer: tuple[int, ...]
    """Which of them each layer turns by."""
    end_tokens: tuple[int, ...]
    """Tokens that end a text."""


def read_decoder_config(config: Mapping[str, Any], context: int | None = None) -> DecoderConfig:
    """Return the decoder that a `config.json` describes. Ropes that depend on the context length
    are those of `context`. Raises UnsupportedError for an unknown architecture, activation or
    rope, and ImportModelError for a missing or invalid size.
    """
    name = _known_architecture(config)
    row = DECODER_ARCHITECTURES[name]
    hidden, heads = read_size(config, "hidden_size"), read_size(config, "num_attention_heads")
    groups = read_integer(config, "num_key_value_heads", heads)
    # Grouped-query models may have head_dim * heads unequal to hidden_size.
    depth = read_integer(config, "head_dim", hidden // heads, 1)
    if heads % groups:
        raise ImportModelError(
            f"config: {heads} 'num_attention_heads' are no multiple of {groups}"
            " 'num_key_value_heads'"
        )
    layers = read_size(config, "num_hidden_layers")
    key, default = row.activation
    activation = str(config.get(key) or config.get("hidden_act") or default)
    if activation not in ACTIVATION_NAMES:
        known_activations = ", ".join(sorted(ACTIVATION_NAMES))
        raise UnsupportedError(f"config: '{key}': {activation!r} is none of {known_activations}")
    max_positions = read_size(config, "max_position_embeddings")
    windows = row.layer_windows(config, layers)
    share = next(
        (read_float(config, k, 1.0) for k in row.rotary_fraction_keys if config.get(k) is not None),
        None,
    )
    rope_config = {"rope_theta": row.rope_base, **config}
    ropes = [
        read_rope(rope_config, depth, share, context or max_positions, is_local)
        for is_local in ((False, True) if row.has_local_rope else (False,))
    ]
    scale = read_float(config, row.query_scale_key, 0.0) if row.query_scale_key else 0.0
    tied = config.get("tie_word_embeddings")
    return DecoderConfig(
        architecture=name,
        vocab_size=read_size(config, "vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=groups,
        head_dim=depth,
        intermediate_size=read_size(config, "intermediate_size"),
        max_positions=max_positions,
        names=row.names,
        norm=row.norm,
        epsilon=read_float(config, *row.epsilon),
        activation=ACTIVATION_NAMES[activation],
        has_gated_mlp=row.has_gated_mlp,
        biases=frozenset(
            part_name
            for part_name, bias_setting in row.bias_settings.items()
            if _has_bias(config, name, bias_setting)
        ),
        has_parallel_residual=bool(row.parallel_residual_key)
        and bool(config.get(row.parallel_residual_key, True)),
        ties_embeddings=row.ties_embeddings if tied is None else bool(tied),
        has_head_interleaved_qkv=row.has_head_interleaved_qkv,
        # Gemma scales embeddings by sqrt(hidden_size).
        embedding_scale=math.sqrt(hidden) if row.scales_embedding else 1.0,
        score_scale=1 / math.sqrt(scale or depth),
        score_softcap=read_float(config, "attn_logit_softcapping", 0.0),
        logit_softcap=read_float(config, "final_logit_softcapping", 0.0),
        layer_windows=windows,
        ropes=tuple(ropes),
        rope_index_by_layer=tuple(int(row.has_local_rope and bool(window)) for window in windows),
        end_tokens=_end_tokens(config),
    )


def _known_architecture(config: Mapping[str, Any]) -> str:
    """Return the first known architecture of a configuration. Raises UnsupportedError."""
    value = config.get("architectures") or ()
    several = value if isinstance(value, (list, tuple)) else [value]
    names = [str(entry) for entry in several]
    for name in names:
        if name in DECODER_ARCHITECTURES:
            return name
    names_text = ", ".join(map(repr, names)) or "none"
    raise UnsupportedError(
        f"config: no decoder of the architecture {names_text}; "
        f"there are {', '.join(DECODER_ARCHITECTURES)}"
    )


def _has_bias(config: Mapping[str, Any], name: str, setting: bool | str) -> bool:
    """Return whether a part has a bias, by the row's setting."""
    if isinstance(setting, bool):
        return setting
    default = _BIAS_DEFAULTS.get(setting, {}).get(name, False)
    return bool(config.get(setting, default))


def _end_tokens(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end tokens within the vocabulary; -1, which means none, and larger ones never
    occur.
    """
    value = config.get("eos_token_id")
    several = value if isinstance(value, (list, tuple)) else [value]
    tokens = [entry for entry in several if entry is not None]
    for token in tokens:
        if type(token) is not int:
            raise ImportModelError(f"config: 'eos_token_id': tokens expected, got {value!r}")
    return tuple(token_id for token_id in tokens if 0 <= token_id < read_size(config, "vocab_size"))
