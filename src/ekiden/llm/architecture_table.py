"""Table of decoder architectures by their name in `config.json`: a row for each family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ekiden.llm.config_validation import read_float, read_integer, read_size
from ekiden.llm.decoder_architecture import (
    CheckpointNames,
    Config,
    DecoderArchitecture,
    ExpertArchitecture,
    ExpertNames,
    StateSpaceArchitecture,
    layer_windows,
)
from ekiden.runtime.errors import ImportModelError

__all__ = ["DECODER_ARCHITECTURES"]

_NAMES = CheckpointNames()
_GEMMA_NAMES = CheckpointNames(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_QK_NORM_NAMES: dict[str, Any] = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
_FUSED_MLP_NAMES = replace(_NAMES, up=("mlp.gate_up_proj",))
_OLMO2_NAMES = replace(
    _NAMES,
    before_attention="",
    after_attention="post_attention_layernorm",
    before_mlp="",
    after_mlp="post_feedforward_layernorm",
    **_QK_NORM_NAMES,
)
_NEOX_NAMES = CheckpointNames(
    prefix="gpt_neox.",
    embedding="gpt_neox.embed_in.weight",
    norm="gpt_neox.final_layer_norm",
    head=("embed_out.weight", "lm_head.weight"),
    layer="gpt_neox.layers.{}.",
    attention=("attention.query_key_value",),
    out="attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)
_GPT2_NAMES = CheckpointNames(
    prefix="transformer.",
    embedding="transformer.wte.weight",
    positions="transformer.wpe.weight",
    norm="transformer.ln_f",
    layer="transformer.h.{}.",
    before_attention="ln_1",
    attention=("attn.c_attn",),
    out="attn.c_proj",
    before_mlp="ln_2",
    up=("mlp.c_fc",),
    down="mlp.c_proj",
)
_GPTJ_NAMES = replace(
    _GPT2_NAMES,
    positions="",
    attention=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    out="attn.out_proj",
    before_mlp="",
    up=("mlp.fc_in",),
    down="mlp.fc_out",
)
_OPT_NAMES = CheckpointNames(
    prefix="model.",
    embedding="model.decoder.embed_tokens.weight",
    positions="model.decoder.embed_positions.weight",
    norm="model.decoder.final_layer_norm",
    layer="model.decoder.layers.{}.",
    before_attention="self_attn_layer_norm",
    out="self_attn.out_proj",
    before_mlp="final_layer_norm",
    up=("fc1",),
    down="fc2",
)
_BLOOM_NAMES = CheckpointNames(
    prefix="transformer.",
    embedding="transformer.word_embeddings.weight",
    embedding_norm="transformer.word_embeddings_layernorm",
    norm="transformer.ln_f",
    layer="transformer.h.{}.",
    attention=("self_attention.query_key_value",),
    out="self_attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)
_PHI_NAMES = replace(
    _NAMES,
    norm="model.final_layernorm",
    out="self_attn.dense",
    before_mlp="",
    up=("mlp.fc1",),
    down="mlp.fc2",
)
_GLM4_NAMES = replace(
    _FUSED_MLP_NAMES, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"
)
_INTERNLM2_NAMES = CheckpointNames(
    embedding="model.tok_embeddings.weight",
    head=("output.weight",),
    before_attention="attention_norm",
    attention=("attention.wqkv",),
    out="attention.wo",
    before_mlp="ffn_norm",
    up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
)
_GPT_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}


def _uniform_windows(config: Config, count: int) -> tuple[int, ...]:
    return layer_windows(config, count, lambda n: True)


def _qwen_windows(config: Config, count: int) -> tuple[int, ...]:
    if not config.get("use_sliding_window"):
        return (0,) * count
    first = read_integer(config, "max_window_layers", 0)
    return layer_windows(config, count, lambda n: n >= first)


def _gemma3_windows(config: Config, count: int) -> tuple[int, ...]:
    every = read_integer(config, "sliding_window_pattern", 6)
    return layer_windows(config, count, lambda n: (n + 1) % every != 0)


def _fourth_full_windows(config: Config, count: int) -> tuple[int, ...]:
    return layer_windows(config, count, lambda n: (n + 1) % 4 != 0)


def _cohere2_windows(config: Config, count: int) -> tuple[int, ...]:
    every = read_integer(config, "sliding_window_pattern", 4)
    return layer_windows(config, count, lambda n: (n + 1) % every != 0)


def _smollm3_windows(config: Config, count: int) -> tuple[int, ...]:
    if not config.get("use_sliding_window"):
        return (0,) * count
    layers_with_rope = _smollm3_rope_layers(config, (0,) * count)
    return layer_windows(config, count, lambda n: layers_with_rope[n])


def _smollm3_rope_layers(config: Config, windows: tuple[int, ...]) -> tuple[bool, ...]:
    """Return which layers apply RoPE: those with a 1 in `no_rope_layers`."""
    flags = config.get("no_rope_layers")
    if flags is None:
        every = read_integer(config, "no_rope_layer_interval", 4)
        flags = [(n + 1) % every != 0 for n in range(len(windows))]
    if not isinstance(flags, (list, tuple)) or len(flags) != len(windows):
        raise ImportModelError(
            f"config: 'no_rope_layers': {len(windows)} numbers expected, got {flags!r}"
        )
    return tuple(map(bool, flags))


def _cohere2_rope_layers(config: Config, windows: tuple[int, ...]) -> tuple[bool, ...]:
    return tuple(map(bool, windows))


def _no_layers(config: Config, windows: tuple[int, ...]) -> tuple[bool, ...]:
    return (False,) * len(windows)


def _even_windows(config: Config, count: int) -> tuple[int, ...]:
    return layer_windows(config, count, lambda n: n % 2 == 0)


def _sparse_layers(config: Config, count: int) -> tuple[bool, ...]:
    """Return the layers that have experts: every so many, and none of those that are listed."""
    step = read_integer(config, "decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or ()
    if not isinstance(dense, (list, tuple)):
        raise ImportModelError(f"config: 'mlp_only_layers': layers expected, got {dense!r}")
    return tuple(n not in dense and (n + 1) % step == 0 for n in range(count))


def _layers_after_dense(config: Config, count: int) -> tuple[bool, ...]:
    """Return the layers that have experts: those after the first ones."""
    return tuple(n >= read_integer(config, "first_k_dense_replace", 0) for n in range(count))


def _deepseek_shared_inner(config: Config) -> int:
    shared = read_integer(config, "n_shared_experts", 0)
    return shared * read_size(config, "moe_intermediate_size")


def _deepseek_score_factor(config: Config, depth: int) -> float:
    """Return the scale of attention scores, which YaRN changes for latent attention."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    factor = 1.0
    if isinstance(settings, Mapping) and settings.get("mscale_all_dim"):
        stretch = read_float(settings, "factor", 1.0)
        if stretch > 1:
            factor += 0.1 * read_float(settings, "mscale_all_dim", 0.0) * math.log(stretch)
    return factor**2 / math.sqrt(depth)


def _adapt_deepseek_v2(row: DecoderArchitecture, config: Config) -> DecoderArchitecture:
    """Return the row of a DeepSeek-V2: the smaller ones choose experts without groups."""
    assert row.experts is not None
    grouped = config.get("topk_method") == "group_limited_greedy"
    return replace(row, experts=replace(row.experts, grouped=grouped))


def _gemma_embedding_factor(config: Config) -> float:
    return math.sqrt(read_size(config, "hidden_size"))


def _gemma_score_factor(config: Config, depth: int) -> float:
    return 1 / math.sqrt(read_float(config, "query_pre_attn_scalar", depth) or depth)


def _minicpm_residual_factor(config: Config) -> float:
    depth = read_float(config, "scale_depth", 1.0)
    return depth / math.sqrt(read_size(config, "num_hidden_layers"))


def _minicpm_logit_factor(config: Config) -> float:
    hidden = read_size(config, "hidden_size")
    return read_integer(config, "dim_model_base", hidden) / hidden


def _adapt_falcon(row: DecoderArchitecture, config: Config) -> DecoderArchitecture:
    """Return the row of a Falcon: the first ones have other norms than those that group queries."""
    is_new = bool(config.get("new_decoder_architecture"))
    heads = read_size(config, "num_attention_heads")
    groups = heads
    if is_new:
        groups = read_integer(config, "num_kv_heads", heads)
    elif config.get("multi_query", True):
        groups = 1
    names = row.names
    if is_new and (config.get("num_ln_in_parallel_attn") or 2) == 2:
        names = replace(names, before_attention="ln_attn", before_mlp="ln_mlp")
    elif is_new or config.get("parallel_attn", True):
        names = replace(names, before_mlp="")
    return replace(
        row,
        names=names,
        parallel=True if is_new else "parallel_attn",
        defaults={**row.defaults, "num_key_value_heads": groups},
    )


def _adapt_stablelm(row: DecoderArchitecture, config: Config) -> DecoderArchitecture:
    """Return the row of a StableLM: blocks that are parallel have one norm."""
    if not config.get("use_parallel_residual"):
        return row
    return replace(row, names=replace(row.names, before_mlp=""), parallel=True)


def _adapt_cohere(row: DecoderArchitecture, config: Config) -> DecoderArchitecture:
    """Return the row of a Command R: the larger ones normalise queries and keys."""
    has_norms = config.get("use_qk_norm")
    return replace(row, names=replace(row.names, **_QK_NORM_NAMES)) if has_norms else row


def _adapt_olmo3(row: DecoderArchitecture, config: Config) -> DecoderArchitecture:
    """Return the row of an OLMo 3: layers with a window turn by the same base, without scaling."""
    base = read_float(config, "rope_theta", row.base)
    return replace(row, defaults={**row.defaults, "rope_local_base_freq": base})


def _adapt_bigcode(row: DecoderArchitecture, config: Config) -> DecoderArchitecture:
    """Return the row of a StarCoder 1, whose queries all share a key, or none."""
    if config.get("multi_query", True):
        return replace(row, defaults={**row.defaults, "num_key_value_heads": 1})
    return replace(row, by_group=True)


_LLAMA_BIASES: Mapping[str, bool | str] = {
    "attention": "attention_bias", "out": "attention_bias", "mlp": "mlp_bias",
}  # fmt: skip
_ATTENTION_BIASES: Mapping[str, bool | str] = {
    "attention": "attention_bias",
    "out": "attention_bias",
}
_ALL_BIASES: Mapping[str, bool | str] = {"attention": True, "out": True, "mlp": True}
_GEMMA_ARCHITECTURE = DecoderArchitecture(
    norm="rms_one",
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    tied=True,
    embedding_factor=_gemma_embedding_factor,
    biases=_ATTENTION_BIASES,
)
_GPT_ARCHITECTURE = DecoderArchitecture(
    norm="layer",
    epsilon=("layer_norm_epsilon", 1e-5),
    activation=("activation_function", "gelu_new"),
    gated=False,
    keys=_GPT_KEYS,
)
_GPT2_ARCHITECTURE = replace(
    _GPT_ARCHITECTURE,
    names=_GPT2_NAMES,
    biases=_ALL_BIASES,
    layers_with_rope=_no_layers,
    tied=True,
    fixed={"scale_attn_weights": True, "add_cross_attention": False},
)
_COHERE_ARCHITECTURE = DecoderArchitecture(
    replace(_NAMES, before_mlp=""),
    norm="layer",
    epsilon=("layer_norm_eps", 1e-5),
    biases=_ATTENTION_BIASES,
    parallel=True,
    interleaved=True,
    tied=True,
    qk_norm="heads",
    adapt=_adapt_cohere,
    logit_factor=lambda c: read_float(c, "logit_scale", 0.0625),
)
_GLM_ARCHITECTURE = DecoderArchitecture(
    _FUSED_MLP_NAMES,
    epsilon=("rms_norm_eps", 1.5625e-7),
    biases={"attention": "attention_bias"},
    interleaved=True,
    defaults={"partial_rotary_factor": 0.5, "attention_bias": True, "head_dim": 128,
              "num_key_value_heads": 2},
)  # fmt: skip
_MAMBA_NAMES = CheckpointNames(
    embedding="backbone.embeddings.weight",
    norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    before_attention="norm",
    prefix="backbone.",
)
_MAMBA_ARCHITECTURE = DecoderArchitecture(
    _MAMBA_NAMES,
    epsilon=("layer_norm_epsilon", 1e-5),
    biases={"mlp": "use_bias"},
    layers_with_rope=_no_layers,
    tied=True,
    # It has no attention and no positions: the first is a size that nothing reads.
    defaults={"num_attention_heads": 1, "max_position_embeddings": 1 << 20},
    fixed={"hidden_act": "silu"},
    state_space=StateSpaceArchitecture(),
)
_RWKV_NAMES = CheckpointNames(
    embedding="rwkv.embeddings.weight",
    embedding_norm="rwkv.blocks.0.pre_ln",
    norm="rwkv.ln_out",
    head=("head.weight",),
    layer="rwkv.blocks.{}.",
    before_attention="ln1",
    before_mlp="ln2",
    prefix="rwkv.",
)
DECODER_ARCHITECTURES: Mapping[str, DecoderArchitecture] = {
    "LlamaForCausalLM": DecoderArchitecture(biases=_LLAMA_BIASES),
    "MistralForCausalLM": DecoderArchitecture(windows=_uniform_windows),
    "Qwen2ForCausalLM": DecoderArchitecture(biases={"attention": True}, windows=_qwen_windows),
    "Qwen3ForCausalLM": DecoderArchitecture(
        replace(_NAMES, **_QK_NORM_NAMES), windows=_qwen_windows, biases=_ATTENTION_BIASES
    ),
    "GemmaForCausalLM": _GEMMA_ARCHITECTURE,
    "Gemma2ForCausalLM": replace(
        _GEMMA_ARCHITECTURE,
        names=_GEMMA_NAMES,
        windows=_even_windows,
        score_factor=_gemma_score_factor,
    ),
    "Gemma3ForCausalLM": replace(
        _GEMMA_ARCHITECTURE,
        names=replace(_GEMMA_NAMES, **_QK_NORM_NAMES),
        windows=_gemma3_windows,
        score_factor=_gemma_score_factor,
        local_rope=True,
        base=1e6,
        defaults={
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        },
    ),
    "Phi3ForCausalLM": DecoderArchitecture(
        CheckpointNames(attention=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
        windows=_uniform_windows,
        epsilon=("rms_norm_eps", 1e-5),
    ),
    "GPTNeoXForCausalLM": DecoderArchitecture(
        _NEOX_NAMES,
        norm="layer",
        epsilon=("layer_norm_eps", 1e-5),
        activation=("hidden_act", "gelu"),
        gated=False,
        biases={"attention": "attention_bias", "out": "attention_bias", "mlp": True},
        parallel="use_parallel_residual",
        by_group=True,
        defaults={"attention_bias": True},
        rotary=("partial_rotary_factor", "rotary_pct"),
    ),
    "GPT2LMHeadModel": replace(
        _GPT2_ARCHITECTURE,
        transposed=True,
        fixed={**_GPT2_ARCHITECTURE.fixed, "scale_attn_by_inverse_layer_idx": False},
    ),
    "GPTBigCodeForCausalLM": replace(
        _GPT2_ARCHITECTURE,
        adapt=_adapt_bigcode,
        activation=("activation_function", "gelu_pytorch_tanh"),
    ),
    "GPTJForCausalLM": replace(
        _GPT_ARCHITECTURE,
        names=_GPTJ_NAMES,
        parallel=True,
        biases={"mlp": True, "head": True},
        interleaved=True,
        rotary_size="rotary_dim",
    ),
    "OPTForCausalLM": DecoderArchitecture(
        _OPT_NAMES,
        norm="layer",
        epsilon=("layer_norm_eps", 1e-5),
        activation=("activation_function", "relu"),
        gated=False,
        biases=dict.fromkeys(_ALL_BIASES, "enable_bias"),
        layers_with_rope=_no_layers,
        tied=True,
        position_offset=2,
        keys={"intermediate_size": "ffn_dim"},
        defaults={"enable_bias": True},
        fixed={
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "layer_norm_elementwise_affine": True,
        },
    ),
    "FalconForCausalLM": DecoderArchitecture(
        replace(_BLOOM_NAMES, embedding_norm=""),
        norm="layer",
        epsilon=("layer_norm_epsilon", 1e-5),
        activation=("activation", "gelu"),
        gated=False,
        biases=dict.fromkeys(_ALL_BIASES, "bias"),
        tied=True,
        by_group=True,
        adapt=_adapt_falcon,
        keys={**_GPT_KEYS, "intermediate_size": "ffn_hidden_size"},
        defaults={"max_position_embeddings": 2048, "parallel_attn": True},
        fixed={"alibi": False},
    ),
    "BloomForCausalLM": DecoderArchitecture(
        _BLOOM_NAMES,
        norm="layer",
        epsilon=("layer_norm_epsilon", 1e-5),
        activation=("hidden_act", "gelu_pytorch_tanh"),
        gated=False,
        biases=_ALL_BIASES,
        tied=True,
        by_group=True,
        alibi=True,
        layers_with_rope=_no_layers,
        keys={**_GPT_KEYS, "max_position_embeddings": "seq_length"},
        defaults={"max_position_embeddings": 2048},
        fixed={"apply_residual_connection_post_layernorm": False},
    ),
    "PhiForCausalLM": DecoderArchitecture(
        _PHI_NAMES,
        norm="layer",
        epsilon=("layer_norm_eps", 1e-5),
        activation=("hidden_act", "gelu_new"),
        gated=False,
        biases={**_ALL_BIASES, "head": True},
        parallel=True,
        defaults={"partial_rotary_factor": 0.5},
        fixed={"qk_layernorm": False},
    ),
    "StableLmForCausalLM": DecoderArchitecture(
        norm="layer",
        epsilon=("layer_norm_eps", 1e-5),
        biases={"attention": "use_qkv_bias"},
        adapt=_adapt_stablelm,
        defaults={"partial_rotary_factor": 0.25},
        fixed={"qk_layernorm": False},
    ),
    "Starcoder2ForCausalLM": DecoderArchitecture(
        replace(_NAMES, up=("mlp.c_fc",), down="mlp.c_proj"),
        norm="layer",
        epsilon=("norm_epsilon", 1e-5),
        activation=("hidden_act", "gelu_pytorch_tanh"),
        gated=False,
        tied=True,
        windows=_uniform_windows,
        biases=dict.fromkeys(_ALL_BIASES, "use_bias"),
        defaults={"use_bias": True},
    ),
    "OlmoForCausalLM": DecoderArchitecture(
        norm="layer_plain", epsilon=("_norm_eps", 1e-5), biases=_ATTENTION_BIASES, clip="clip_qkv"
    ),
    "Olmo2ForCausalLM": DecoderArchitecture(
        _OLMO2_NAMES, epsilon=("rms_norm_eps", 1e-5), biases=_ATTENTION_BIASES, qk_norm="row"
    ),
    "Olmo3ForCausalLM": DecoderArchitecture(
        _OLMO2_NAMES,
        epsilon=("rms_norm_eps", 1e-5),
        biases=_ATTENTION_BIASES,
        qk_norm="row",
        windows=_fourth_full_windows,
        local_rope=True,
        base=500000.0,
        adapt=_adapt_olmo3,
        defaults={"sliding_window": 4096},
    ),
    "GraniteForCausalLM": DecoderArchitecture(
        biases=_LLAMA_BIASES,
        embedding_factor=lambda c: read_float(c, "embedding_multiplier", 1.0),
        residual_factor=lambda c: read_float(c, "residual_multiplier", 1.0),
        score_factor=lambda c, d: read_float(c, "attention_multiplier", 1.0),
        logit_factor=lambda c: 1 / read_float(c, "logits_scaling", 1.0, 1e-30),
    ),
    "MiniCPMForCausalLM": DecoderArchitecture(
        biases=_LLAMA_BIASES,
        tied=True,
        epsilon=("rms_norm_eps", 1e-5),
        embedding_factor=lambda c: read_float(c, "scale_emb", 1.0),
        residual_factor=_minicpm_residual_factor,
        logit_factor=_minicpm_logit_factor,
    ),
    "CohereForCausalLM": _COHERE_ARCHITECTURE,
    "Cohere2ForCausalLM": replace(
        _COHERE_ARCHITECTURE,
        windows=_cohere2_windows,
        layers_with_rope=_cohere2_rope_layers,
        defaults={"sliding_window": 4096},
    ),
    "GlmForCausalLM": _GLM_ARCHITECTURE,
    "Glm4ForCausalLM": replace(_GLM_ARCHITECTURE, names=_GLM4_NAMES),
    "SmolLM3ForCausalLM": DecoderArchitecture(
        biases=_LLAMA_BIASES,
        windows=_smollm3_windows,
        layers_with_rope=_smollm3_rope_layers,
        tied=True,
        base=2e6,
    ),
    "InternLM2ForCausalLM": DecoderArchitecture(
        _INTERNLM2_NAMES, by_group=True, biases={"attention": "bias", "out": "bias"}
    ),
    "MixtralForCausalLM": DecoderArchitecture(
        windows=_uniform_windows,
        epsilon=("rms_norm_eps", 1e-5),
        experts=ExpertArchitecture(
            ExpertNames(
                router="block_sparse_moe.gate",
                expert="block_sparse_moe.experts.{}.",
                up=("w1", "w3"),
                down="w2",
            ),
            inner="intermediate_size",
            normalised=True,
        ),
    ),
    "Qwen2MoeForCausalLM": DecoderArchitecture(
        biases={"attention": "qkv_bias"},
        windows=_qwen_windows,
        defaults={"qkv_bias": True},
        experts=ExpertArchitecture(
            ExpertNames(shared="mlp.shared_expert", shared_gate="mlp.shared_expert_gate"),
            layers=_sparse_layers,
            shared_inner=lambda c: read_size(c, "shared_expert_intermediate_size"),
        ),
    ),
    "Qwen3MoeForCausalLM": DecoderArchitecture(
        replace(_NAMES, **_QK_NORM_NAMES),
        windows=_qwen_windows,
        biases=_ATTENTION_BIASES,
        experts=ExpertArchitecture(layers=_sparse_layers),
    ),
    "GptOssForCausalLM": DecoderArchitecture(
        replace(_NAMES, sinks="self_attn.sinks"),
        epsilon=("rms_norm_eps", 1e-5),
        biases=_ATTENTION_BIASES,
        windows=_even_windows,
        base=150000.0,
        defaults={
            "attention_bias": True,
            "head_dim": 64,
            "num_key_value_heads": 8,
            "sliding_window": 128,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        experts=ExpertArchitecture(
            ExpertNames(router="mlp.router", up=("gate_up_proj",)),
            inner="intermediate_size",
            normalised=True,
            biased=True,
            limit=("swiglu_limit", 7.0),
        ),
    ),
    "OlmoeForCausalLM": DecoderArchitecture(
        replace(_NAMES, **_QK_NORM_NAMES),
        epsilon=("rms_norm_eps", 1e-5),
        biases=_ATTENTION_BIASES,
        qk_norm="row",
        clip="clip_qkv",
        experts=ExpertArchitecture(inner="intermediate_size"),
    ),
    "DeepseekV2ForCausalLM": DecoderArchitecture(
        interleaved=True,
        latent=True,
        score_factor=_deepseek_score_factor,
        adapt=_adapt_deepseek_v2,
        fixed={"attention_bias": False, "mlp_bias": False, "moe_layer_freq": 1},
        experts=ExpertArchitecture(
            ExpertNames(shared="mlp.shared_experts"),
            normalised=False,
            layers=_layers_after_dense,
            shared_inner=_deepseek_shared_inner,
            factor="routed_scaling_factor",
        ),
    ),
    "DeepseekV3ForCausalLM": DecoderArchitecture(
        interleaved=True,
        latent=True,
        score_factor=_deepseek_score_factor,
        defaults={"norm_topk_prob": True, "routed_scaling_factor": 2.5},
        fixed={"attention_bias": False, "moe_layer_freq": 1, "rope_interleave": True},
        experts=ExpertArchitecture(
            ExpertNames(shared="mlp.shared_experts", correction="mlp.gate.e_score_correction_bias"),
            scoring="sigmoid",
            layers=_layers_after_dense,
            shared_inner=_deepseek_shared_inner,
            grouped=True,
            scores_of_group=2,
            factor="routed_scaling_factor",
        ),
    ),
    "MambaForCausalLM": _MAMBA_ARCHITECTURE,
    "FalconMambaForCausalLM": replace(
        _MAMBA_ARCHITECTURE,
        state_space=StateSpaceArchitecture(norm_epsilon=("mixer_rms_eps", 1e-6)),
    ),
    "Mamba2ForCausalLM": replace(
        _MAMBA_ARCHITECTURE,
        tied=False,
        state_space=StateSpaceArchitecture(has_heads=True),
        defaults={
            **_MAMBA_ARCHITECTURE.defaults,
            "num_heads": 128,
            "head_dim": 64,
            "n_groups": 8,
            "state_size": 128,
        },
    ),
    "RwkvForCausalLM": DecoderArchitecture(
        _RWKV_NAMES,
        norm="layer",
        epsilon=("layer_norm_epsilon", 1e-5),
        layers_with_rope=_no_layers,
        # It has no attention and no positions: the first is a size that nothing reads.
        defaults={"num_attention_heads": 1, "max_position_embeddings": 1 << 20},
        rwkv=True,
    ),
}
