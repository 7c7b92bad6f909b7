"""Table of GGUF architectures: one row each, with the tensor names of transformers.

A row says what the tensors of a layer are called, what hyperparameters there are beside those of
all, what transformers takes as given, and how tensors differ from those of transformers:

    permuted    rows of queries and keys of a head in pairs (0, n / 2, 1, n / 2 + 1, ...)
    joined      rows of queries, keys and values of all heads, one after the other; in transformers
                those of a head stand together
    raised      norms' weights are 1 greater

Source: convert_hf_to_gguf.py and src/llama-model.cpp of llama.cpp.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from ekiden.llm.checkpoint import Weight
from ekiden.llm.gguf_file import GGUFFile
from ekiden.runtime.errors import LoadError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "GGUF_ARCHITECTURES",
    "GGUFArchitecture",
    "architecture_of",
    "read_gguf_config",
    "to_transformers_name",
    "to_transformers_weight",
]

Config = dict[str, object]
_LOG = logging.getLogger("ekiden")


@dataclass(frozen=True, slots=True)
class GGUFArchitecture:
    """Row of the table of GGUF architectures.

    name: in GGUF files. model_type, model: in config.json. tensors: GGUF name -> transformers';
    "blk.{}" stands for a layer. given: hyperparameters that files do not have. keys: those that
    they have beside KEYS. finish: adds what follows from others, given the layers.
    """

    name: str
    model_type: str
    model: str
    tensors: Mapping[str, str]
    default_hyperparameters: Mapping[str, object] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    derive_config: Callable[[Config], None] = lambda config: None
    has_permuted_qk: bool = False
    has_fused_qkv: bool = False
    has_offset_norms: bool = False


COMMON_CONFIG_KEYS: Mapping[str, str] = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
"""Hyperparameters of all: GGUF name behind that of the architecture -> transformers'."""
ORIGINAL_LENGTH_KEY = "rope.scaling.original_context_length"
EXTRA_CONFIG_KEYS = (
    "attention.value_length", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned", ORIGINAL_LENGTH_KEY,
)  # fmt: skip
"""Further ones that are read, follow from the shapes of tensors, or say nothing of a result."""
REQUIRED_CONFIG_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
)
TOKEN_CONFIG_KEYS: Mapping[str, str] = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}
END_TOKEN_KEYS = (
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
)
"""Tokens that end a text, a turn and a message: an answer ends at each."""

_GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ATTENTION_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_MLP_NAMES = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_NORM_NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_FOUR_NORM_NAMES = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _tensor_names(
    outer: Mapping[str, str], prefix: str, *tables: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the full tensor name table from the per-layer ones."""
    inner = {k: v for table in tables for k, v in table.items()}
    return {**outer, **{f"blk.{{}}.{k}": f"{prefix}.{{}}.{v}" for k, v in inner.items()}}


_LLAMA_NAMES = _tensor_names(
    _GLOBAL_NAMES, "model.layers", _ATTENTION_NAMES, _MLP_NAMES, _NORM_NAMES
)
_GEMMA_NAMES = _tensor_names(
    _GLOBAL_NAMES, "model.layers", _ATTENTION_NAMES, _MLP_NAMES, _FOUR_NORM_NAMES
)
_SILU_CONFIG = {"hidden_act": "silu"}
_GELU_CONFIG = {"hidden_activation": "gelu_pytorch_tanh"}
_WINDOW_KEYS = {"attention.sliding_window": "sliding_window"}
_SOFTCAP_KEYS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def _config_integer(config: Config, name: str) -> int:
    """Return an integer of a configuration."""
    value = config[name]
    assert isinstance(value, int), name
    return value


def _set_layer_types(config: Config, period: int, full_layer: int) -> None:
    """Set the layer types: one layer in `period`, with remainder `full_layer`, has full
    attention.
    """
    layers = range(_config_integer(config, "num_hidden_layers"))
    kinds = ("sliding_attention", "full_attention")
    config["layer_types"] = [kinds[n % period == full_layer] for n in layers]


def _set_query_scale(config: Config, layers: int) -> None:
    """Set the scale of queries: 1 / sqrt(head size), or in the largest model (with `layers` layers)
    1 / sqrt(hidden size / heads).
    """
    shared = _config_integer(config, "hidden_size") // _config_integer(
        config, "num_attention_heads"
    )
    is_large = config["num_hidden_layers"] == layers
    config["query_pre_attn_scalar"] = shared if is_large else config["head_dim"]


def _derive_gemma2(config: Config) -> None:
    _set_layer_types(config, 2, 1)
    _set_query_scale(config, 46)


def _derive_gemma3(config: Config) -> None:
    _set_layer_types(config, 6, 5)
    _set_query_scale(config, 62)


def _derive_gptneox(config: Config) -> None:
    config["rotary_pct"] = config.pop("partial_rotary_factor", 1.0)
    config["rotary_emb_base"] = config.pop("rope_theta")


# fmt: off
ARCHITECTURE_ROWS = (
    GGUFArchitecture("llama",    "llama",       "LlamaForCausalLM",   _LLAMA_NAMES, _SILU_CONFIG,
        has_permuted_qk=True),
    GGUFArchitecture("mistral3", "mistral",     "MistralForCausalLM", _LLAMA_NAMES, _SILU_CONFIG,
        has_permuted_qk=True),
    GGUFArchitecture("qwen2",    "qwen2",       "Qwen2ForCausalLM",   _LLAMA_NAMES, _SILU_CONFIG),
    GGUFArchitecture("qwen3",    "qwen3",       "Qwen3ForCausalLM",   _LLAMA_NAMES, _SILU_CONFIG),
    GGUFArchitecture("gemma",    "gemma",       "GemmaForCausalLM",   _LLAMA_NAMES, _GELU_CONFIG,
        has_offset_norms=True),
    GGUFArchitecture("gemma2",   "gemma2",      "Gemma2ForCausalLM",  _GEMMA_NAMES, _GELU_CONFIG,
        {**_WINDOW_KEYS, **_SOFTCAP_KEYS}, _derive_gemma2, has_offset_norms=True),
    GGUFArchitecture("gemma3",   "gemma3_text", "Gemma3ForCausalLM",  _GEMMA_NAMES,
        {**_GELU_CONFIG, "rope_local_base_freq": 10000.0},
        {**_WINDOW_KEYS, **_SOFTCAP_KEYS, "rope.freq_base_swa": "rope_local_base_freq"},
        _derive_gemma3, has_offset_norms=True),
    GGUFArchitecture("phi3",     "phi3",        "Phi3ForCausalLM",
        _tensor_names(_GLOBAL_NAMES, "model.layers", _ATTENTION_NAMES, _NORM_NAMES,
                      {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj",
                       "ffn_down": "mlp.down_proj"}), _SILU_CONFIG,
        {**_WINDOW_KEYS,
         "rope.scaling.original_context_length": "original_max_position_embeddings"}),
    GGUFArchitecture("gptneox",  "gpt_neox",    "GPTNeoXForCausalLM",
        _tensor_names({"token_embd": "gpt_neox.embed_in",
                       "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
                      "gpt_neox.layers", _NORM_NAMES,
                      {"attn_qkv": "attention.query_key_value",
                       "attn_output": "attention.dense", "ffn_up": "mlp.dense_h_to_4h",
                       "ffn_down": "mlp.dense_4h_to_h"}), {"hidden_act": "gelu"},
        {"attention.layer_norm_epsilon": "layer_norm_eps",
         "use_parallel_residual": "use_parallel_residual"}, _derive_gptneox, has_fused_qkv=True),
)
# fmt: on
GGUF_ARCHITECTURES: Mapping[str, GGUFArchitecture] = {row.name: row for row in ARCHITECTURE_ROWS}
"""By name. Models of Mistral are "llama" in files; those of its third generation have a name."""


def architecture_of(path: Path, metadata: Mapping[str, object]) -> GGUFArchitecture:
    """Return the row of a file's architecture. Raises LoadError."""
    name = metadata.get("general.architecture")
    row = GGUF_ARCHITECTURES.get(name) if isinstance(name, str) else None
    if row is None:
        known_names = ", ".join(GGUF_ARCHITECTURES)
        raise LoadError(
            f"{path}: entry 'general.architecture': one of {known_names} expected, got {name!r}"
        )
    return row


_NAME_PATTERN = re.compile(r"(?P<base>.*?)(?P<end>\.weight|\.bias)?")
_LAYER_PATTERN = re.compile(r"blk\.(\d+)\.")


def to_transformers_name(row: GGUFArchitecture, name: str) -> str:
    """Return a tensor's name in transformers, or its own name if there is none."""
    match = _NAME_PATTERN.fullmatch(name)
    assert match is not None
    base, end = match["base"], match["end"] or ""
    layer = _LAYER_PATTERN.match(base)
    new_name = row.tensors.get(_LAYER_PATTERN.sub("blk.{}.", base, count=1) if layer else base)
    if new_name is None:
        return name
    return (new_name.format(layer[1]) if layer else new_name) + end


def to_transformers_weight(row: GGUFArchitecture, file: GGUFFile, name: str, new: str) -> Weight:
    """Return a tensor in transformers' layout, undoing GGUF's conversions."""
    weight = replace(file[name], name=new)
    base = _LAYER_PATTERN.sub("", name.removesuffix(".weight").removesuffix(".bias"))
    # llama.cpp stores Gemma's norm weights with 1 added.
    if row.has_offset_norms and base.endswith("norm"):
        return Weight(new, "float32", weight.shape, weight.values() - np.float32(1))
    # llama.cpp interleaves the rotary halves of query and key rows.
    if row.has_permuted_qk and base in ("attn_q", "attn_k"):
        heads = "num_attention_heads" if base == "attn_q" else "num_key_value_heads"
        return _unpermute_rows(row, file, name, weight, heads, 2, inner=True)
    if row.has_fused_qkv and base == "attn_qkv":
        return _unpermute_rows(row, file, name, weight, "num_attention_heads", 3, inner=False)
    return weight


def _unpermute_rows(
    row: GGUFArchitecture,
    file: GGUFFile,
    name: str,
    weight: Weight,
    heads: str,
    group_size: int,
    inner: bool,
) -> Weight:
    """Reorder rows [heads, n, parts] to [heads, parts, n], or [parts, heads, n] to [heads, parts,
    n].
    """
    count = _uniform_integer(file, f"{row.name}.attention.head_count")
    if heads == "num_key_value_heads":
        count = _uniform_integer(file, f"{row.name}.attention.head_count_kv", count)
    rows = weight.data.shape[0] if weight.data.ndim else 0
    if count < 1 or rows % (count * group_size):
        raise LoadError(
            f"{file.path}: tensor '{name}': rows of {count} heads in {group_size} parts "
            "expected, got"
            f" {rows}"
        )
    size = rows // (count * group_size)
    shape = (count, size, group_size) if inner else (group_size, count, size)
    axes = (1, 2) if inner else (0, 1)
    trailing_shape = weight.data.shape[1:]
    transposed = weight.data.reshape(*shape, *trailing_shape).swapaxes(*axes)
    return replace(weight, data=np.ascontiguousarray(transposed).reshape(rows, *trailing_shape))


def _uniform_integer(file: GGUFFile, key: str, default: int | None = None) -> int:
    """Return an integer entry; of an array, the value all its elements share. Raises LoadError."""
    value = file.metadata.get(key, default)
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        value = value[0].item()
    if type(value) is not int:
        raise LoadError(f"{file.path}: entry '{key}': a whole number expected, got {value!r}")
    return value


# Hyperparameters.


def read_gguf_config(row: GGUFArchitecture, file: GGUFFile) -> Config:
    """Return a file's configuration as `config.json`. Raises LoadError for missing or invalid
    entries.
    """
    config: Config = {
        "architectures": [row.model],
        "model_type": row.model_type,
        **row.default_hyperparameters,
    }
    for key, name in {**COMMON_CONFIG_KEYS, **row.keys}.items():
        if (value := _entry_value(file, f"{row.name}.{key}")) is not None:
            config[name] = value
    for key, name in TOKEN_CONFIG_KEYS.items():
        if key in file.metadata:
            config[name] = _uniform_integer(file, key)
    ends = [_uniform_integer(file, key) for key in END_TOKEN_KEYS if key in file.metadata]
    if ends:
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    for key, name in COMMON_CONFIG_KEYS.items():
        if name in REQUIRED_CONFIG_KEYS and not isinstance(config.get(name), (int, list)):
            raise LoadError(f"{file.path}: entry '{row.name}.{key}': it is not there")
    _derive_missing(row, file, config)
    row.derive_config(config)
    known_keys = {
        f"{row.name}.{key}" for key in (*COMMON_CONFIG_KEYS, *row.keys, *EXTRA_CONFIG_KEYS)
    }
    if ignored := [key_name for key_name in file.metadata if key_name.startswith(f"{row.name}.")
                and key_name not in known_keys and _is_set(file.metadata[key_name])]:  # fmt: skip
        _LOG.warning("%s: entries that are not read: %s", file.path, ", ".join(ignored))
    return config


def _is_set(value: object) -> bool:
    """Return whether an entry is set: non-zero and non-empty. Dense models have 0 experts."""
    return not isinstance(value, (int, float, str)) or bool(value)


def _entry_value(file: GGUFFile, key: str) -> object:
    """Return a number, or an array as a list unless all its values are equal; None if it is
    missing.
    """
    value = file.metadata.get(key)
    if isinstance(value, np.ndarray):
        same = value.size and (value == value[0]).all()
        return value[0].item() if same else value.tolist()
    if value is not None and not isinstance(value, (int, float)):
        raise LoadError(f"{file.path}: entry '{key}': a number expected, got {value!r}")
    return value


def _derive_missing(row: GGUFArchitecture, file: GGUFFile, config: Config) -> None:
    """Derive the settings that follow from tensors, tokens and other hyperparameters."""
    key = f"{row.name}.attention.head_count"
    heads, hidden = (
        _uniform_integer(file, key),
        _uniform_integer(file, f"{row.name}.embedding_length"),
    )
    layers = _uniform_integer(file, f"{row.name}.block_count")
    if heads < 1 or layers > len(file):
        raise LoadError(f"{file.path}: {heads} heads and {layers} layers of {len(file)} tensors")
    config.setdefault("num_key_value_heads", heads)
    head_dim = _uniform_integer(file, f"{row.name}.attention.key_length", hidden // heads)
    config["head_dim"] = head_dim
    config.setdefault("rope_theta", 10000.0)
    if "vocab_size" not in config and "tokenizer.ggml.tokens" in file.metadata:
        tokens = file.metadata["tokenizer.ggml.tokens"]
        config["vocab_size"] = len(tokens) if isinstance(tokens, list) else 0
    rotary_dim = _uniform_integer(file, f"{row.name}.rope.dimension_count", head_dim)
    if rotary_dim != head_dim and head_dim > 0:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    # Tied models store no output matrix.
    config["tie_word_embeddings"] = "output.weight" not in file
    config["attention_bias"] = "blk.0.attn_q.bias" in file or "blk.0.attn_qkv.bias" in file
    config["mlp_bias"] = "blk.0.ffn_up.bias" in file
    if (scaling := _rope_scaling(row, file, config)) is not None:
        config["rope_scaling"] = scaling


def _rope_scaling(row: GGUFArchitecture, file: GGUFFile, config: Config) -> Config | None:
    """Return the rope scaling. Frequency factors given as tensors are expressed as "longrope",
    which has them for short and long texts, without changing the attention factor.
    """
    prefix = f"{row.name}.rope.scaling."
    original = _entry_value(file, f"{row.name}.{ORIGINAL_LENGTH_KEY}")
    if "rope_factors_long.weight" in file and "rope_factors_short.weight" in file:
        long, short = (
            _frequency_factors(file, f"rope_factors_{n}.weight") for n in ("long", "short")
        )
        scaling: Config = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        attention = _entry_value(file, f"{prefix}attn_factor")
        return scaling if attention is None else {**scaling, "attention_factor": attention}
    if "rope_freqs.weight" in file:
        # Llama 3's scaling is stored as one divisor per frequency.
        factors = _frequency_factors(file, "rope_freqs.weight")
        scaling = {"rope_type": "longrope", "long_factor": factors, "short_factor": factors}
        length = original or config.get("max_position_embeddings", 0)
        return {
            **scaling, "attention_factor": 1.0, "original_max_position_embeddings": length
        }  # fmt: skip
    kind = file.metadata.get(f"{prefix}type", "none")
    if not isinstance(kind, str):
        raise LoadError(f"{file.path}: entry '{prefix}type': text expected, got {kind!r}")
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": _entry_value(file, f"{prefix}factor")}
    more = {
        "original_max_position_embeddings": original,
        "beta_fast": _entry_value(file, f"{prefix}yarn_beta_fast"),
        "beta_slow": _entry_value(file, f"{prefix}yarn_beta_slow"),
    }
    by, factor = _entry_value(file, f"{prefix}attn_factor"), scaling["factor"]
    if kind == "yarn" and isinstance(by, float) and isinstance(factor, (int, float)) and factor > 1:
        # YaRN's 0.1 ln(factor) + 1, which files leave out of attn_factor.
        more["attention_factor"] = by * (1 + 0.1 * math.log(factor))
    return {**scaling, **{name: value for name, value in more.items() if value is not None}}


def _frequency_factors(file: GGUFFile, name: str) -> list[float]:
    """Return a tensor of frequency factors as a list."""
    values: list[float] = file[name].values().reshape(-1).tolist()
    return values
