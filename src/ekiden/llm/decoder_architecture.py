"""Schema of the table of decoder architectures: what a family does differently from Llama, and how
its tensors are called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from ekiden.llm.config_validation import read_integer
from ekiden.runtime.errors import ImportModelError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "CheckpointNames",
    "Config",
    "DecoderArchitecture",
    "ExpertArchitecture",
    "ExpertNames",
    "layer_windows",
]

Config = Mapping[str, Any]
"""Contents of a `config.json`."""


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """Tensor names of a checkpoint; `{}` stands for the layer index. A part with several names is
    their rows concatenated, except a head, which is the first name that exists; an empty name means
    no tensor.

    prefix: what all names but the head's begin with; checkpoints of the bare model lack it, and
    those of a multimodal model have another one. positions: learned positions, added to the
    embeddings. embedding_norm: applied to both. before_mlp: without it, the MLP of a parallel block
    reads the input of the attention. sinks: a score of each head that takes a share of its softmax
    (Xiao and others, "Efficient Streaming Language Models with Attention Sinks").
    """

    embedding: str = "model.embed_tokens.weight"
    norm: str = "model.norm"
    head: tuple[str, ...] = ("lm_head.weight",)
    layer: str = "model.layers.{}."
    before_attention: str = "input_layernorm"
    after_attention: str = ""
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = ""
    attention: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    query_norm: str = ""
    key_norm: str = ""
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    prefix: str = "model."
    positions: str = ""
    embedding_norm: str = ""
    sinks: str = ""


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Tensor names of a layer's mixture of experts; `{}` stands for the expert's index, and an
    empty name means no tensor. correction: added to scores where experts are chosen. shared: the
    expert of all tokens, and what its result is gated by.
    """

    router: str = "mlp.gate"
    correction: str = ""
    expert: str = "mlp.experts.{}."
    up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    shared: str = ""
    shared_gate: str = ""


@dataclass(frozen=True, slots=True)
class ExpertArchitecture:
    """Expert routing of an architecture family: keys of its configuration.

    count: of experts, the first key that there is. chosen: how many a token has. inner: size of an
    expert. normalised: whether the shares of a token are divided by their sum, a key or whether.
    scoring: "softmax" or "sigmoid". layers: which layers have experts. shared_inner: size of the
    shared expert. grouped: whether experts are chosen within the best groups, which a group's best
    scores decide, so many as scores_of_group says. factor: the key of what shares are multiplied
    by. biased: whether routers and experts have biases. limit and slope: keys and defaults of a
    clamped SwiGLU, a limit of 0 for a plain gated product.
    """

    names: ExpertNames = field(default_factory=ExpertNames)
    count: tuple[str, ...] = ("num_experts", "num_local_experts", "n_routed_experts")
    chosen: str = "num_experts_per_tok"
    inner: str = "moe_intermediate_size"
    normalised: str | bool = "norm_topk_prob"
    scoring: str = "softmax"
    layers: Callable[[Config, int], tuple[bool, ...]] = lambda c, n: (True,) * n
    shared_inner: Callable[[Config], int] = lambda c: 0
    grouped: bool = False
    scores_of_group: int = 1
    factor: str = ""
    biased: bool = False
    limit: tuple[str, float] = ("swiglu_limit", 0.0)
    slope: tuple[str, float] = ("swiglu_alpha", 1.702)


@dataclass(frozen=True, slots=True)
class StateSpaceArchitecture:
    """State-space layers of an architecture family in the place of attention and MLP.

    has_heads: whether a head has one rate of decay (Mamba 2), else each of its numbers several.
    norm_epsilon: the key and default of what norms of steps, inputs and outputs add to variances,
    without which there are none.
    """

    has_heads: bool = False
    norm_epsilon: tuple[str, float] | None = None


def _uses_rope(config: Config, windows: tuple[int, ...]) -> tuple[bool, ...]:
    return (True,) * len(windows)


@dataclass(frozen=True, slots=True)
class DecoderArchitecture:
    """Row of the table of decoder architectures: how a family of decoders differs from Llama.

    norm: "rms", "rms_one" (the weight is what is added to 1), "layer" or "layer_plain" (neither
    weight nor bias); epsilon: the key of the configuration for what is added to variances, and its
    default. activation: the key of the configuration, and its default. gated: whether the MLP
    multiplies two projections. biases: parts that have one: "attention", "out", "mlp", "head"; a
    string is a key of the configuration that says so. parallel: attention and MLP read the same
    input; a key of the configuration, or whether. tied: whether the head is the embedding where the
    configuration does not say. by_group: rows of the attention's projection are ordered by groups:
    the queries that share a key, their key and value. windows: which layers see a window of keys
    alone. rotary: the keys of the rotated share of a head, rotary_size the one that says how
    many of its numbers. interleaved: rotated pairs are adjacent. layers_with_rope: whether each
    layer has a rope. qk_norm: queries and keys are normalised by a weight that all heads share
    ("head"), by one per head ("heads"), or as one "row" of all heads. local_rope: layers with a
    window have another rope. base: of the rope, where the configuration does not say. alibi: scores
    have biases by distance (Press and others, "Train Short, Test Long"). position_offset: of
    learned positions. transposed: weights of products are stored as [inputs, outputs].

    keys: names of transformers -> those of the family's configuration. defaults: what transformers
    takes where a configuration does not say. fixed: the only value that is served of a key.
    adapt: what of the row depends on the configuration. The factors multiply embeddings, what a
    block adds, scores and logits. clip: the key of the bound of queries, keys and values. experts:
    what the MLP of some layers is. latent: whether queries, keys and values go through latent
    vectors. state_space: the layers that stand in the place of attention and MLP. rwkv: whether
    those of RWKV do.
    """

    names: CheckpointNames = field(default_factory=CheckpointNames)
    norm: str = "rms"
    epsilon: tuple[str, float] = ("rms_norm_eps", 1e-6)
    activation: tuple[str, str] = ("hidden_act", "silu")
    gated: bool = True
    biases: Mapping[str, bool | str] = field(default_factory=dict)
    parallel: str | bool = False
    tied: bool = False
    by_group: bool = False
    windows: Callable[[Config, int], tuple[int, ...]] = lambda c, n: (0,) * n
    rotary: tuple[str, ...] = ("partial_rotary_factor",)
    rotary_size: str = ""
    interleaved: bool = False
    layers_with_rope: Callable[[Config, tuple[int, ...]], tuple[bool, ...]] = _uses_rope
    qk_norm: str = "head"
    local_rope: bool = False
    base: float = 10000.0
    alibi: bool = False
    position_offset: int = 0
    transposed: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    adapt: Callable[[DecoderArchitecture, Config], DecoderArchitecture] = lambda row, c: row
    embedding_factor: Callable[[Config], float] = lambda c: 1.0
    residual_factor: Callable[[Config], float] = lambda c: 1.0
    score_factor: Callable[[Config, int], float] = lambda c, depth: 1 / math.sqrt(depth)
    logit_factor: Callable[[Config], float] = lambda c: 1.0
    clip: str = ""
    experts: ExpertArchitecture | None = None
    latent: bool = False
    state_space: StateSpaceArchitecture | None = None
    rwkv: bool = False


def layer_windows(config: Config, count: int, default: Callable[[int], bool]) -> tuple[int, ...]:
    """Return the sliding-window size of each layer (0 for full attention), by `layer_types` or,
    without it, for the layers that `default` selects.

    Args:
        config: The configuration.
        count: The number of layers.
        default: Whether a layer has a window, by its number.

    Returns:
        The window of each layer, 0 for none.

    Raises:
        ImportModelError: `layer_types` has not a kind for each layer.
    """
    window = read_integer(config, "sliding_window", 0)
    kinds = config.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, (list, tuple)) or len(kinds) != count:
            raise ImportModelError(f"config: 'layer_types': {count} kinds expected, got {kinds!r}")
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    return tuple(window if default(n) else 0 for n in range(count))
