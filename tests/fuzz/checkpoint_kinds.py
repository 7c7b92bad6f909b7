"""Checkpoints that others made: configurations, weights that other libraries quantised, adapters,
files of `torch.save`, every type of GGUF; and schemas and compressed bodies of requests."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
from case_kinds import Kind, Loader, case_folder
from mutation import extreme, json_text, mutate_bytes, mutate_json

from ekiden.llm.checkpoint_files import open_checkpoint
from ekiden.llm.decoder_config import read_config
from ekiden.llm.gguf import GGUFCheckpoint
from ekiden.llm.gguf_dequantize import DECODED_TYPES
from ekiden.llm.json_schema import json_schema_pattern
from ekiden.llm.lora import LoraAdapter
from ekiden.llm.torch_file import TorchFile
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME

Tensors = dict[str, tuple[str, list[int]]]
"""Name -> dtype, as safetensors calls it, and shape."""
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "U8": 1, "I8": 1, "F8_E4M3": 1}
MAX_TENSOR_BYTES = 1 << 16


# Weights that other libraries quantised, as folders of safetensors.


def _safetensors(tensors: Tensors, rng: Random, contents: Mapping[str, bytes]) -> bytes:
    header, parts, at = {}, [], 0
    for name, (dtype, shape) in tensors.items():
        size = ITEM_BYTES[dtype] * int(np.prod(shape, dtype=np.int64))
        data = contents.get(name, b"")
        data += rng.randbytes(max(0, size - len(data)))
        parts.append(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at := at + len(data)]}
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"".join(parts)


def _mutate_tensors(tensors: Tensors, rng: Random) -> Tensors:
    """Return tensors of which up to three are gone, or have another name, dtype or shape."""
    changed = {name: (dtype, list(shape)) for name, (dtype, shape) in tensors.items()}
    for _ in range(rng.randrange(4)):
        if not changed:
            break
        name = rng.choice(list(changed))
        dtype, shape = changed.pop(name)
        match rng.randrange(6):
            case 0:
                continue
            case 1:
                dtype = rng.choice(list(ITEM_BYTES))
            case 2 if shape:
                shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2, 3, 7, 8, 16, 33, 64))
            case 3:
                shape.insert(rng.randrange(len(shape) + 1), rng.choice((0, 1, 2, 3)))
            case 4 if shape:
                shape.pop(rng.randrange(len(shape)))
            case _:
                name = rng.choice((name, name + ".weight", "a.weight", "a.scales", "norm.weight"))
        if int(np.prod(shape, dtype=np.int64)) * 8 <= MAX_TENSOR_BYTES:
            changed[name] = (dtype, shape)
    return changed


_PACKED_GROUP = {"weights": {"num_bits": 4, "symmetric": True, "type": "int", "group_size": 32}}
_STATE = {"shape": [8, 64], "blocksize": 64, "quant_type": "nf4", "dtype": "float16",
          "nested_blocksize": 256, "nested_offset": 0.5}  # fmt: skip
QUANTIZED: tuple[tuple[dict[str, Any], Tensors], ...] = (
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"},
     {"a.qweight": ("I32", [8, 16]), "a.qzeros": ("I32", [2, 2]), "a.scales": ("F16", [2, 16]),
      "a.g_idx": ("I32", [64]), "norm.weight": ("F32", [4])}),
    ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
     {"a.qweight": ("I32", [64, 2]), "a.qzeros": ("I32", [2, 2]), "a.scales": ("F16", [2, 16])}),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": _PACKED_GROUP}},
     {"a.weight_packed": ("I32", [8, 8]), "a.weight_scale": ("F16", [8, 2]),
      "a.weight_shape": ("I64", [2]), "a.weight_zero_point": ("I32", [1, 2])}),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": _PACKED_GROUP}},
     {"a.weight": ("F8_E4M3", [8, 16]), "a.weight_scale": ("F32", [8, 1])}),
    ({"quant_method": "fp8", "weight_block_size": [8, 8]},
     {"a.weight": ("F8_E4M3", [8, 16]), "a.weight_scale_inv": ("F32", [1, 2])}),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True},
     {"a.weight": ("U8", [256, 1]), "a.weight.absmax": ("U8", [8]),
      "a.weight.quant_map": ("F32", [16]), "a.weight.nested_absmax": ("F32", [1]),
      "a.weight.nested_quant_map": ("F32", [256])}),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True},
     {"a.weight": ("I8", [8, 16]), "a.SCB": ("F32", [8])}),
    ({"quant_method": "mxfp4"},
     {"m.experts.gate_up_proj_blocks": ("U8", [2, 4, 1, 16]),
      "m.experts.gate_up_proj_scales": ("U8", [2, 4, 1]),
      "m.experts.gate_up_proj_bias": ("F32", [2, 4]), "m.experts.down_proj": ("F32", [2, 4, 4])}),
)  # fmt: skip
"""Settings of a method, and the tensors of one weight."""
STATE_NAME = "a.weight.quant_state.bitsandbytes__nf4"


def _quantized() -> tuple[Any, Loader]:
    folder = case_folder()

    def make(rng: Random) -> tuple[str, bytes]:
        settings, tensors = rng.choice(QUANTIZED)
        contents = {"a.weight_shape": struct.pack("<qq", 8, 64)}
        if rng.random() < 0.2:
            contents["a.weight_shape"] = struct.pack("<qq", extreme(rng), extreme(rng))
        if settings["quant_method"] == "gptq" and rng.random() < 0.7:
            contents["a.g_idx"] = np.repeat(np.arange(2, dtype="<i4"), 32).tobytes()
        if "a.weight.quant_map" in tensors:
            state = mutate_json(_STATE, rng) if rng.random() < 0.5 else _STATE
            contents[STATE_NAME] = json_text(state).encode()
            tensors = {**tensors, STATE_NAME: ("U8", [len(contents[STATE_NAME])])}
        if rng.random() < 0.7:
            tensors = _mutate_tensors(tensors, rng)
        is_stacked = settings["quant_method"] == "mxfp4"
        name = "GptOssForCausalLM" if is_stacked else "LlamaForCausalLM"
        config = {"architectures": [name], "num_local_experts": 2, "quantization_config": settings}
        if rng.random() < 0.4:
            config = mutate_json(config, rng)
        kept = {name: contents[name] for name in contents.keys() & tensors.keys()}
        for name, data in kept.items():
            dtype, shape = tensors[name]
            size = ITEM_BYTES[dtype] * int(np.prod(shape, dtype=np.int64))
            kept[name] = data[:size]
        return json_text(config), _safetensors(tensors, rng, kept)

    def load(case: tuple[str, bytes]) -> None:
        (folder / "config.json").write_text(case[0])
        (folder / "model.safetensors").write_bytes(case[1])
        checkpoint = open_checkpoint(folder)
        with np.errstate(all="ignore"):  # of scales that are no finite numbers
            for name in checkpoint:
                checkpoint[name].values()

    return make, load


# Adapters.

_BASE = "base_model.model.model.layers.0.self_attn.q_proj"
ADAPTER: dict[str, Any] = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_rslora": False, "fan_in_fan_out": False,
    "target_modules": ["q_proj"], "alpha_pattern": {"q_proj": 8}, "rank_pattern": {},
    "bias": "none", "use_dora": False, "modules_to_save": None, "layers_to_transform": None,
}  # fmt: skip
ADAPTER_TENSORS: Tensors = {
    f"{_BASE}.lora_A.weight": ("F32", [2, 8]), f"{_BASE}.lora_B.weight": ("F16", [16, 2]),
}  # fmt: skip


def _adapters() -> tuple[Any, Loader]:
    folder = case_folder()
    names = ["model.layers.0.self_attn.q_proj.weight", "model.norm.weight"]

    def make(rng: Random) -> tuple[str, bytes]:
        settings = mutate_json(ADAPTER, rng) if rng.random() < 0.7 else ADAPTER
        return json_text(settings), _safetensors(_mutate_tensors(ADAPTER_TENSORS, rng), rng, {})

    def load(case: tuple[str, bytes]) -> None:
        (folder / "adapter_config.json").write_text(case[0])
        (folder / "adapter_model.safetensors").write_bytes(case[1])
        adapter = LoraAdapter(folder, names)
        with np.errstate(all="ignore"):  # of factors that are no finite numbers
            for name in adapter.weights:
                adapter.change(name)

    return make, load


# Configurations of decoders.

CONFIGS: tuple[dict[str, Any], ...] = (
    {"architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 16,
     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
     "intermediate_size": 32, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
     "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": [1, 2],
     "rope_theta": 1e4, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
     "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
    {"architectures": ["Gemma2ForCausalLM"], "vocab_size": 64, "hidden_size": 16, "head_dim": 8,
     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
     "intermediate_size": 32, "max_position_embeddings": 64, "sliding_window": 16,
     "query_pre_attn_scalar": 8, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
     "hidden_activation": "gelu_pytorch_tanh"},
    {"architectures": ["MixtralForCausalLM"], "vocab_size": 64, "hidden_size": 16,
     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
     "intermediate_size": 32, "max_position_embeddings": 64, "num_local_experts": 4,
     "num_experts_per_tok": 2},
    {"architectures": ["GptOssForCausalLM"], "vocab_size": 64, "hidden_size": 64, "head_dim": 16,
     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
     "intermediate_size": 64, "max_position_embeddings": 64, "num_local_experts": 4,
     "num_experts_per_tok": 2, "sliding_window": 16, "swiglu_limit": 7.0,
     "layer_types": ["sliding_attention", "full_attention"],
     "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
     "original_max_position_embeddings": 64}},
    {"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 64, "hidden_size": 16,
     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
     "intermediate_size": 32, "moe_intermediate_size": 16, "max_position_embeddings": 64,
     "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
     "v_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
     "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
     "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
     "topk_method": "noaux_tc"},
)  # fmt: skip


def _configs() -> tuple[Any, Loader]:
    def make(rng: Random) -> Any:  # noqa: ANN401
        return mutate_json(rng.choice(CONFIGS), rng)

    def load(case: Any) -> None:  # noqa: ANN401
        if isinstance(case, dict):
            read_config(case)

    return make, load


# Files of torch.save.


def _torch_pickle(rng: Random) -> bytes:
    """Return the pickle of a state dictionary, whose numbers may be extreme."""

    def number(usual: int) -> int:
        return usual if rng.random() < 0.95 else extreme(rng)

    out = io.BytesIO()
    out.write(b"\x80\x02ccollections\nOrderedDict\n)R")
    for name, kind in (("a", "FloatStorage"), ("b", "HalfStorage"), ("c", "BFloat16Storage")):
        shape, strides = (number(2), number(3)), (number(3), number(1))
        out.write(pickle.dumps(name, 2)[2:-1])
        out.write(b"ctorch._utils\n_rebuild_tensor_v2\n(")
        out.write(b"(" + pickle.dumps("storage", 2)[2:-1] + f"ctorch\n{kind}\n".encode())
        for value in ("0", "cpu", number(6)):
            out.write(pickle.dumps(value, 2)[2:-1])
        out.write(b"tQ")
        for value in (number(0), shape, strides, False, None):
            out.write(pickle.dumps(value, 2)[2:-1])
        out.write(b"tRs")
    return out.getvalue() + b"."


def _torch_files() -> tuple[Any, Loader]:
    folder = case_folder()

    def make(rng: Random) -> bytes:
        content = _torch_pickle(rng)
        if rng.random() < 0.2:
            content = mutate_bytes(content, rng)
        out = io.BytesIO()
        compression = zipfile.ZIP_DEFLATED if rng.random() < 0.05 else zipfile.ZIP_STORED
        with zipfile.ZipFile(out, "w", compression) as archive:
            archive.writestr("model/data.pkl", content)
            archive.writestr("model/byteorder", "little")
            archive.writestr("model/data/0", bytes(24))
        whole = out.getvalue()
        return mutate_bytes(whole, rng) if rng.random() < 0.15 else whole

    def load(case: bytes) -> None:
        (folder / "pytorch_model.bin").write_bytes(case)
        file = TorchFile(folder / "pytorch_model.bin")
        for name in file:
            file[name].values()

    return make, load


# Every type of GGUF.

_BLOCKS = {
    **{row.code: (row.values_per_block, row.block_bytes) for row in DECODED_TYPES.values()},
    **{row.gguf_type: (row.values_per_block, row.block_bytes)
       for row in BLOCK_FORMATS_BY_NAME.values()},
}  # fmt: skip
"""Type of a tensor -> numbers and bytes of a block."""


def _gguf_types() -> tuple[Any, Loader]:
    folder = case_folder()

    def make(rng: Random) -> bytes:
        code = rng.choice(list(_BLOCKS))
        values, size = _BLOCKS[code]
        shape = [values * rng.choice((1, 1, 2)), rng.choice((1, 2, 3))]
        blocks = rng.randbytes(size * shape[0] // values * shape[1])
        if rng.random() < 0.3:
            shape[rng.randrange(2)] = abs(extreme(rng))
        if rng.random() < 0.2:
            code = rng.choice((*_BLOCKS, 0, 1, 9, 15, 24, 99, 2**31))
        text = b"general.architecture"
        head = struct.pack("<4sIQQQ", b"GGUF", 3, 1, 1, len(text)) + text
        head += struct.pack("<IQ", 8, 5) + b"llama"
        extents = struct.pack(f"<{len(shape)}Q", *(n % 2**64 for n in shape))
        head += struct.pack("<Q1sI", 1, b"w", len(shape)) + extents + struct.pack("<IQ", code, 0)
        data = head + bytes(-len(head) % 32) + blocks
        return mutate_bytes(data, rng) if rng.random() < 0.3 else data

    def load(case: bytes) -> None:
        (folder / "model.gguf").write_bytes(case)
        checkpoint = GGUFCheckpoint(folder / "model.gguf")
        for name in checkpoint:
            with np.errstate(all="ignore"):  # of scales that are no finite numbers
                checkpoint[name].values()

    return make, load


# Schemas of answers.

SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {
        "a": {"type": "string", "minLength": 1, "maxLength": 5}, "b": {"$ref": "#/$defs/n"},
        "c": {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 500},
              "minItems": 1, "maxItems": 3},
        "d": {"enum": ["x", 1, None]}, "e": {"anyOf": [{"type": "null"}, {"const": {"k": 1}}]},
        "f": {"type": "string", "pattern": "^[a-z]{2}$"}, "g": {"type": ["number", "boolean"]},
        "h": {"type": "string", "format": "date"},
    },
    "required": ["a"], "additionalProperties": False,
    "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}},
                    "additionalProperties": False}},
}  # fmt: skip


def _schemas() -> tuple[Any, Loader]:
    def make(rng: Random) -> Any:  # noqa: ANN401
        return mutate_json(SCHEMA, rng)

    return make, lambda case: json_schema_pattern(case) and None


# Compressed bodies.


def _encodings() -> tuple[Any, Loader]:
    from ekiden.serve.content_encoding import decompress_body  # an extra

    texts = (b"", b"{}" * 50, bytes(3 << 20), bytes(range(256)) * 40)
    corpus = [encode(text) for text in texts for encode in (gzip.compress, zlib.compress)]

    def make(rng: Random) -> tuple[bytes, bytes]:
        body = rng.choice(corpus)
        return (mutate_bytes(body, rng, corpus) if rng.random() < 0.8 else body,
                rng.choice((b"gzip", b"deflate")))  # fmt: skip

    def load(case: tuple[bytes, bytes]) -> None:
        count = 0

        def hold(step: int) -> None:
            nonlocal count
            count += step

        with suppress(StopIteration):
            body = asyncio.run(decompress_body(*case, 1 << 20, hold))
            assert len(body) == count <= 1 << 20

    return make, load


KINDS = (
    Kind("quantized", "checkpoints that other libraries quantised", _quantized),
    Kind("adapter", "LoRA adapters (`LoraAdapter`)", _adapters),
    Kind("config", "configurations of decoders (`config.json`)", _configs),
    Kind("torchfile", "files of `torch.save` (`pytorch_model.bin`)", _torch_files),
    Kind("gguftypes", "GGUF tensors of every type", _gguf_types),
    Kind("schema", "JSON schemas of answers", _schemas),
    Kind("encoding", "compressed bodies of requests", _encodings, ("starlette",)),
)
