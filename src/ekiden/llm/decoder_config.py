"""Hyperparameters of a decoder, read from `config.json`: a row of the table of architectures read
together with the checkpoint's `config.json`.

What that says of sizes has the names of transformers' Llama in most families, and the row has those
of others. `DecoderConfig` is all that the builder (decoder.py) looks at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ekiden.llm.architecture_table import DECODER_ARCHITECTURES
from ekiden.llm.config_validation import read_float, read_integer, read_size
from ekiden.llm.decoder_architecture import (
    CheckpointNames,
    DecoderArchitecture,
    ExpertArchitecture,
    ExpertNames,
)
from ekiden.llm.rope import RopeParameters, read_rope
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "ALIBI_DEPTH",
    "DECODER_ARCHITECTURES",
    "DecoderArchitecture",
    "DecoderConfig",
    "alibi_slopes",
    "read_config",
    "text_config",
]

TEXT_MODELS: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
}
"""Multimodal models -> the decoder of their texts, whose sizes are in `text_config`."""
ALIBI_DEPTH = 8
"""Numbers of a key that say its position: two, and zeros up to whole vectors."""
ACTIVATION_NAMES = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_tanh": "gelu_tanh",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """Mixture-of-experts hyperparameters of a decoder: sizes, and how a token chooses."""

    names: ExpertNames
    count: int
    chosen: int
    """Experts of a token."""
    inner: int
    shared_inner: int
    """Of the expert of all tokens, 0 for none."""
    scoring: str
    normalised: bool
    factor: float
    groups: int
    chosen_groups: int
    scores_of_group: int
    layers: tuple[bool, ...]
    """Which layers have experts."""
    biased: bool = False
    """Whether routers and experts have biases."""
    limit: float = 0.0
    """Bound of both halves of a clamped SwiGLU, 0 for a plain gated product."""
    slope: float = 1.0
    """Factor in the sigmoid of a clamped SwiGLU."""


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Sizes of multi-head latent attention (MLA): ranks of the products of queries, 0 for one of
    full rank, and of keys and values; numbers of a key that turn, and of a value.
    """

    query_rank: int
    key_rank: int
    rope_depth: int
    value: int


@dataclass(frozen=True, slots=True)
class StateSpaceConfig:
    """Sizes of state-space layers (Mamba)."""

    inner: int
    """Numbers of a token between the products."""
    size: int
    """Numbers of the state of each of them."""
    kernel: int
    """Tokens that a convolution sees."""
    convolved: int
    """Numbers of a token that are convolved."""
    groups: int
    """Parts that share what goes into their states and out of them."""
    heads: int
    """Parts that share a rate of decay; 0 for a rate of each number of a state."""
    step_rank: int
    """Rank of the product that makes steps; 0 where heads have them directly."""
    step_limits: tuple[float, float]
    has_convolution_bias: bool
    norm_epsilon: float
    """Of norms of steps, inputs and outputs; 0 for none."""


@dataclass(frozen=True, slots=True)
class RwkvConfig:
    """Sizes of RWKV layers."""

    inner: int
    """Channels of keys and values."""
    rescale_every: int
    """Layers after which hidden states are halved; 0 for never."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Hyperparameters of a decoder: its sizes, and the variations of its family. Windows and ropes
    are per layer.
    """

    architecture: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    groups: int
    """Heads of keys and values."""
    depth: int
    """Of a head."""
    inner: int
    """Of the MLP."""
    max_positions: int
    names: CheckpointNames
    norm: str
    epsilon: float
    activation: str
    gated: bool
    biases: frozenset[str]
    parallel: bool
    tied: bool
    by_group: bool
    qk_norm: str
    transposed: bool
    alibi: bool
    position_offset: int
    clip: float
    """Bound of queries, keys and values, 0 for none."""
    embedding_scale: float
    residual_scale: float
    score_scale: float
    logit_scale: float
    score_softcap: float
    logit_softcap: float
    windows: tuple[int, ...]
    ropes: tuple[RopeParameters, ...]
    """Those that there are."""
    rope_of: tuple[int | None, ...]
    """Which of them each layer turns by, None where none does."""
    end_tokens: tuple[int, ...]
    """Tokens that end a text."""
    experts: ExpertConfig | None = None
    latent: LatentConfig | None = None
    state_space: StateSpaceConfig | None = None
    rwkv: RwkvConfig | None = None

    @property
    def has_states(self) -> bool:
        """Return whether layers have no attention, so that texts have states and no pages."""
        return self.state_space is not None or self.rwkv is not None

    @property
    def switch_tokens(self) -> int:
        """Return the tokens of a text beyond which a rope has other frequencies, 0 where none
        does.
        """
        return max((rope.switch_tokens for rope in self.ropes), default=0)

    @property
    def value_depth(self) -> int:
        """Return the head dimension of values."""
        return self.latent.value if self.latent else self.depth

    @property
    def cache_depth(self) -> int:
        """Return the head dimension of keys in the KV cache: ALiBi's have their positions too."""
        return self.depth + ALIBI_DEPTH * self.alibi


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return the ALiBi slope of each head (Press and others, "Train Short, Test Long", 2021):
    powers of 2 ** (-8 / n), and for more heads than a power of two n every second one of those of 2
    * n.
    """
    count = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (k + 1) / count) for k in range(count)]
    further = [2.0 ** (-4 * (k + 1) / count) for k in range(0, 2 * (heads - count), 2)]
    return (*slopes, *further)


def read_config(config: Mapping[str, Any], context: int | None = None) -> DecoderConfig:
    """Return the hyperparameters of the decoder that a `config.json` describes. Ropes that depend
    on the context length are those of `context`. Raises UnsupportedError for an unknown
    architecture, activation or rope, and ImportModelError for a missing or invalid size.
    """
    config = text_config(config)
    name = _known_architecture(config)
    row = DECODER_ARCHITECTURES[name]
    config = _with_common_keys(row, config)
    row = row.adapt(row, config)
    config = {**row.defaults, **{key: value for key, value in config.items() if value is not None}}
    _check_fixed(row, config)
    hidden, heads = read_size(config, "hidden_size"), read_size(config, "num_attention_heads")
    groups = read_integer(config, "num_key_value_heads", heads)
    # Grouped-query models may have head_dim * heads unequal to hidden_size.
    depth = read_integer(config, "head_dim", hidden // heads, 1)
    latent = _read_latent(config) if row.latent else None
    rope_depth = depth
    if latent:
        groups, rope_depth = heads, latent.rope_depth
        depth = read_size(config, "qk_nope_head_dim") + latent.rope_depth
    if heads % groups:
        raise ImportModelError(
            f"config: {heads} 'num_attention_heads' are no multiple of {groups}"
            " 'num_key_value_heads'"
        )
    layers = read_size(config, "num_hidden_layers")
    max_positions = read_size(config, "max_position_embeddings")
    windows = row.windows(config, layers)
    layers_with_rope = row.layers_with_rope(config, windows)
    tied = config.get("tie_word_embeddings")
    return DecoderConfig(
        architecture=name,
        vocabulary=read_size(config, "vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        groups=groups,
        depth=depth,
        inner=read_size({"intermediate_size": 4 * hidden, **config}, "intermediate_size"),
        max_positions=max_positions,
        names=row.names,
        norm=row.norm,
        epsilon=read_float(config, *row.epsilon),
        activation=_read_activation(row, config),
        gated=row.gated,
        biases=frozenset(
            part_name
            for part_name, bias_setting in row.biases.items()
            if bias_setting is True or (bias_setting and config.get(bias_setting))
        ),
        parallel=row.parallel
        if isinstance(row.parallel, bool)
        else bool(config.get(row.parallel, True)),
        tied=row.tied if tied is None else bool(tied),
        by_group=row.by_group,
        qk_norm=row.qk_norm,
        transposed=row.transposed,
        alibi=row.alibi,
        position_offset=row.position_offset,
        clip=read_float(config, row.clip, 0.0) if row.clip else 0.0,
        embedding_scale=row.embedding_factor(config),
        residual_scale=row.residual_factor(config),
        score_scale=row.score_factor(config, depth),
        logit_scale=row.logit_factor(config),
        score_softcap=read_float(config, "attn_logit_softcapping", 0.0),
        logit_softcap=read_float(config, "final_logit_softcapping", 0.0),
        windows=windows,
        ropes=_read_ropes(row, config, rope_depth, context or max_positions)
        if any(layers_with_rope)
        else (),
        rope_of=tuple(
            int(row.local_rope and bool(window)) if has_rope else None
            for window, has_rope in zip(windows, layers_with_rope, strict=True)
        ),
        end_tokens=_end_tokens(config),
        latent=latent,
        state_space=None if row.state_space is None else _read_state_space(row, config),
        rwkv=_read_rwkv(config) if row.rwkv else None,
        experts=None if row.experts is None else _read_experts(row.experts, config, layers),
    )


def _read_rwkv(config: Mapping[str, Any]) -> RwkvConfig:
    """Return the sizes of RWKV layers. Raises ImportModelError for sizes that are no numbers."""
    return RwkvConfig(
        inner=read_integer(config, "attention_hidden_size", read_size(config, "hidden_size"), 1),
        # 0 is a setting of its own, which `read_integer` takes for a missing one.
        rescale_every=0
        if config.get("rescale_every") == 0
        else read_integer(config, "rescale_every", 6),
    )


def _read_state_space(row: DecoderArchitecture, config: Mapping[str, Any]) -> StateSpaceConfig:
    """Return the sizes of state-space layers. Raises ImportModelError for sizes that do not fit."""
    kind = row.state_space
    assert kind is not None
    hidden, size = read_size(config, "hidden_size"), read_size(config, "state_size")
    expanded = int(read_float(config, "expand", 2.0) * hidden)
    heads = groups = rank = 0
    if kind.has_heads:
        heads, groups = read_size(config, "num_heads"), read_size(config, "n_groups")
        if heads * read_size(config, "head_dim") != expanded or heads % groups:
            raise ImportModelError(
                f"config: 'num_heads': {heads} of {config['head_dim']} numbers are not the"
                f" {expanded} of 'expand' in {groups} 'n_groups'"
            )
    else:
        is_default = config.get("time_step_rank") in (None, "auto")
        rank = -(-hidden // 16) if is_default else read_size(config, "time_step_rank")
    inner = expanded if kind.has_heads else read_integer(config, "intermediate_size", expanded, 1)
    epsilon = kind.norm_epsilon
    return StateSpaceConfig(
        inner=inner,
        size=size,
        kernel=read_integer(config, "conv_kernel", 4, 2),
        convolved=inner + 2 * groups * size,
        groups=max(groups, 1),
        heads=heads,
        step_rank=rank,
        step_limits=_read_step_limits(config),
        has_convolution_bias=bool(config.get("use_conv_bias", True)),
        norm_epsilon=read_float(config, *epsilon) if epsilon else 0.0,
    )


def _read_step_limits(config: Mapping[str, Any]) -> tuple[float, float]:
    """Return the bounds of steps. Raises ImportModelError for what is no range."""
    limits = config.get("time_step_limit") or (0.0, math.inf)
    try:
        # JSON has no infinity: transformers writes {"__float__": "Infinity"}.
        low, high = (
            float(limit["__float__"] if isinstance(limit, Mapping) else limit) for limit in limits
        )
        is_range = 0 <= low <= high
    except (KeyError, TypeError, ValueError):
        is_range = False
    if not is_range:
        raise ImportModelError(
            f"config: 'time_step_limit': two numbers from 0 on expected, got {limits!r}"
        )
    return low, min(high, float(np.finfo(np.float32).max))


def _read_latent(config: Mapping[str, Any]) -> LatentConfig:
    """Return the sizes of multi-head latent attention. Raises ImportModelError."""
    rope_depth = read_size(config, "qk_rope_head_dim")
    latent = LatentConfig(
        query_rank=read_integer(config, "q_lora_rank", 0),
        key_rank=read_size(config, "kv_lora_rank"),
        rope_depth=rope_depth,
        value=read_size(config, "v_head_dim"),
    )
    if latent.value > read_size(config, "qk_nope_head_dim") + rope_depth:
        raise ImportModelError(
            f"config: 'v_head_dim': at most the sum of 'qk_nope_head_dim' and 'qk_rope_head_dim'"
            f" expected, got {latent.value}"
        )
    return latent


def _read_experts(
    row: ExpertArchitecture, config: Mapping[str, Any], layers: int
) -> ExpertConfig | None:
    """Return the mixture of experts of a configuration, None where no layer has one. Raises
    ImportModelError for sizes that do not fit.
    """
    flags = row.layers(config, layers)
    if not any(flags):
        return None
    count_key = next((key for key in row.count if config.get(key) is not None), row.count[0])
    count, chosen = read_size(config, count_key), read_size(config, row.chosen)
    groups = read_integer(config, "n_group", 1) if row.grouped else 1
    chosen_groups = read_integer(config, "topk_group", groups) if row.grouped else 1
    if chosen > count // groups * chosen_groups or count % groups:
        raise ImportModelError(
            f"config: '{row.chosen}': {chosen} of {count} '{count_key}' in {chosen_groups} of"
            f" {groups} groups cannot be chosen"
        )
    normalised = row.normalised
    return ExpertConfig(
        names=row.names,
        count=count,
        chosen=chosen,
        inner=read_size(config, row.inner),
        shared_inner=row.shared_inner(config),
        scoring=row.scoring,
        normalised=bool(config.get(normalised)) if isinstance(normalised, str) else normalised,
        factor=read_float(config, row.factor, 1.0) if row.factor else 1.0,
        groups=groups,
        chosen_groups=chosen_groups,
        scores_of_group=min(row.scores_of_group, count // groups),
        layers=flags,
        biased=row.biased,
        limit=read_float(config, *row.limit) if row.limit[1] else 0.0,
        slope=read_float(config, *row.slope),
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the decoder's part of a multimodal model's configuration; any other configuration
    unchanged.
    """
    inner = config.get("text_config")
    text_model = next(
        (TEXT_MODELS[n] for n in _architecture_names(config) if n in TEXT_MODELS), None
    )
    if text_model is None or not isinstance(inner, Mapping):
        return config
    # Ends of texts and tied heads are those of the whole model, where it says so.
    outer = {
        key: config[key]
        for key in ("eos_token_id", "tie_word_embeddings", "quantization_config")
        if config.get(key) is not None
    }
    return {**inner, **outer, "architectures": [text_model]}


def _with_common_keys(row: DecoderArchitecture, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with the family's own keys copied to the common ones."""
    renamed = {
        common: config[own] for common, own in row.keys.items() if config.get(own) is not None
    }
    return {**config, **renamed}


def _check_fixed(row: DecoderArchitecture, config: Mapping[str, Any]) -> None:
    """Raise UnsupportedError if a key has another value than the supported one."""
    for key, value in row.fixed.items():
        if config.get(key, value) != value:
            raise UnsupportedError(
                f"config: '{key}': only {value!r} is supported, got {config[key]!r}"
            )


def _read_activation(row: DecoderArchitecture, config: Mapping[str, Any]) -> str:
    """Return the name of the activation in the builder's table. Raises UnsupportedError."""
    key, default = row.activation
    activation = str(config.get(key) or config.get("hidden_act") or default)
    if activation not in ACTIVATION_NAMES:
        known_activations = ", ".join(sorted(ACTIVATION_NAMES))
        raise UnsupportedError(f"config: '{key}': {activation!r} is none of {known_activations}")
    return ACTIVATION_NAMES[activation]


def _read_ropes(
    row: DecoderArchitecture, config: Mapping[str, Any], depth: int, context: int
) -> tuple[RopeParameters, ...]:
    """Return the RoPE parameters of the layers, followed by those of sliding-window layers if they
    differ.
    """
    share = next(
        (read_float(config, k, 1.0) for k in row.rotary if config.get(k) is not None), None
    )
    if row.rotary_size and config.get(row.rotary_size):
        share = read_integer(config, row.rotary_size, depth) / depth
    rope_config = {
        "rope_theta": row.base, **config,
        "rope_interleaved": row.interleaved or config.get("rope_interleaved", False),
    }  # fmt: skip
    return tuple(
        read_rope(rope_config, depth, share, context, is_local)
        for is_local in ((False, True) if row.local_rope else (False,))
    )


def _architecture_names(config: Mapping[str, Any]) -> list[str]:
    """Return the architectures that a configuration names."""
    value = config.get("architectures") or ()
    several = value if isinstance(value, (list, tuple)) else [value]
    return [str(entry) for entry in several]


def _known_architecture(config: Mapping[str, Any]) -> str:
    """Return the first known architecture of a configuration. Raises UnsupportedError."""
    names = _architecture_names(config)
    for name in names:
        if name in DECODER_ARCHITECTURES:
            return name
    names_text = ", ".join(map(repr, names)) or "none"
    raise UnsupportedError(
        f"config: no decoder of the architecture {names_text}; "
        f"there are {', '.join(DECODER_ARCHITECTURES)}"
    )


def _end_tokens(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end-of-sequence tokens within the vocabulary; -1, which means none, and larger
    ones never occur.
    """
    value = config.get("eos_token_id")
    several = value if isinstance(value, (list, tuple)) else [value]
    tokens = [entry for entry in several if entry is not None]
    for token in tokens:
        if type(token) is not int:
            raise ImportModelError(f"config: 'eos_token_id': tokens expected, got {value!r}")
    return tuple(token_id for token_id in tokens if 0 <= token_id < read_size(config, "vocab_size"))
