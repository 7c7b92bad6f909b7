"""GGUF files: read and written, named as transformers has it, and refused where they are broken."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ekiden.llm import gguf_file
from ekiden.llm.checkpoint import Weight
from ekiden.llm.generation_config import read_sampling_defaults
from ekiden.llm.gguf import GGUFCheckpoint, GGUFFile, write_gguf
from ekiden.llm.gguf_architectures import ARCHITECTURE_ROWS, GGUFArchitecture
from ekiden.runtime.errors import LoadError
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME
from long_runs import sizes

HEADS, KEYS, HEAD, HIDDEN, INNER, LAYERS = 4, 2, 16, 64, 32, 2
ENTRIES: dict[str, Any] = {
    "u8": np.uint8(200), "i8": np.int8(-3), "u16": np.uint16(60000), "i16": np.int16(-30000),
    "u32": 7, "i32": np.int32(-5), "f32": 0.5, "truth": True, "text": "wörter", "u64": 1 << 60,
    "i64": -7, "f64": np.float64(0.1), "floats": [0.5, 0.25], "texts": ["a", "", "b\udcff"],
    "truths": [True, False], "nested": [["a"], []], "wholes": np.arange(5, dtype=np.uint16),
}  # fmt: skip


def numbers(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def some_file(path: Path, version: int = 3) -> dict[str, Weight]:
    tensors = [
        Weight.of("plain", numbers(3, 5)), Weight.of("half", numbers(2, 3, 4), "float16"),
        Weight.of("brain", numbers(7), "bfloat16"), Weight.of("scalar", numbers()),
        Weight.of("none", numbers(0, 32), "q8_0"),
        *(Weight.of(name, numbers(2, 512), name) for name in BLOCK_FORMATS_BY_NAME),
    ]  # fmt: skip
    write_gguf(path, ENTRIES, tensors, version=version)
    return {t.name: t for t in tensors}


@pytest.mark.parametrize("version", [2, 3])
def test_written_gguf_reads_back(tmp_path: Path, version: int) -> None:
    written = some_file(tmp_path / "a.gguf", version)
    file = GGUFFile(tmp_path / "a.gguf")
    assert list(file) == list(written)
    for name, tensor in written.items():
        result = file[name]
        assert (result.format, result.shape) == (tensor.format, tensor.shape)
        assert result.data.dtype == tensor.data.dtype and not result.data.flags.writeable
        assert result.data.tobytes() == tensor.data.tobytes()
        assert result.values().tobytes() == tensor.values().tobytes()
    assert list(file.metadata) == list(ENTRIES)
    for name, value in ENTRIES.items():
        if name == "nested":
            assert file.metadata[name] == value
        else:
            np.testing.assert_array_equal(file.metadata[name], value)
        if isinstance(value, (bool, int, str)):
            assert type(file.metadata[name]) is type(value)


def test_package_reads_the_same(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the package gguf")
    written = some_file(tmp_path / "a.gguf")
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    assert [t.name for t in reader.tensors] == list(written)
    for tensor in reader.tensors:
        assert tensor.data.tobytes() == written[tensor.name].data.tobytes()
        assert tuple(tensor.shape[::-1]) == (written[tensor.name].shape)
    assert reader.fields["f32"].contents() == 0.5 and reader.fields["i64"].contents() == -7


def test_files_of_the_gguf_package_are_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the package gguf")
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    blocks = gguf.quantize(numbers(4, 64), gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("x", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("y", numbers(5).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "a.gguf")
    assert file.metadata["llama.block_count"] == 3
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
    assert file["x"].shape == (4, 64) and file["x"].data.tobytes() == blocks.tobytes()
    assert file["y"].format == "float16"


# As transformers has it.


def model(path: Path, row: GGUFArchitecture, **more: str | float) -> dict[str, Weight]:
    """A file with every tensor of an architecture, filled with different numbers."""
    sizes = {
        "attn_q": (HEADS * HEAD, HIDDEN), "attn_k": (KEYS * HEAD, HIDDEN),
        "attn_v": (KEYS * HEAD, HIDDEN), "attn_output": (HIDDEN, HEADS * HEAD),
        "attn_qkv": (3 * HEADS * HEAD, HIDDEN), "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER), "token_embd": (11, HIDDEN),
        "output": (11, HIDDEN),
    }  # fmt: skip
    names = [name.format(n) for name in row.tensors for n in range(LAYERS if "{}" in name else 1)]
    tensors = {}
    for n, name in enumerate(names):
        shape = sizes.get(name.split(".")[-1], (HIDDEN,))
        values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + n
        tensors[f"{name}.weight"] = Weight.of(f"{name}.weight", values)
    prefix = row.name
    entries = {
        "general.architecture": prefix, f"{prefix}.context_length": 128,
        f"{prefix}.embedding_length": HIDDEN, f"{prefix}.block_count": LAYERS,
        f"{prefix}.feed_forward_length": INNER, f"{prefix}.attention.head_count": HEADS,
        f"{prefix}.attention.head_count_kv": KEYS, f"{prefix}.attention.key_length": HEAD,
        f"{prefix}.attention.layer_norm_rms_epsilon": 0.5, f"{prefix}.rope.freq_base": 1000.0,
        "tokenizer.ggml.tokens": ["a"] * 11, "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.chat_template": "{{ text }}", **more,
    }  # fmt: skip
    write_gguf(path, entries, list(tensors.values()))
    return tensors


@pytest.mark.parametrize("row", ARCHITECTURE_ROWS, ids=lambda row: row.name)
def test_names_and_sizes_are_those_of_transformers(tmp_path: Path, row: GGUFArchitecture) -> None:
    model(tmp_path / "a.gguf", row)
    checkpoint = GGUFCheckpoint(tmp_path / "a.gguf")
    assert not [name for name in checkpoint if name.startswith(("blk.", "output", "token_embd"))]
    assert all(checkpoint[name].name == name for name in checkpoint)
    config = checkpoint.config
    expected = {
        "architectures": [row.model], "model_type": row.model_type, "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "intermediate_size": INNER, "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS, "head_dim": HEAD, "max_position_embeddings": 128,
        "vocab_size": 11, "eos_token_id": 3, "tie_word_embeddings": False,
    }  # fmt: skip
    assert expected.items() <= config.items()
    assert checkpoint.tokenizer["chat_template"] == "{{ text }}"


def test_ends_and_sampling_defaults(tmp_path: Path) -> None:
    ends = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 4}
    sampling = {"general.sampling.temp": 0.5, "general.sampling.penalty_repeat": 1.25}
    model(tmp_path / "a.gguf", ARCHITECTURE_ROWS[0], **ends, **sampling)
    checkpoint = GGUFCheckpoint(tmp_path / "a.gguf")
    assert checkpoint.config["eos_token_id"] == [3, 5, 4]
    defaults = read_sampling_defaults(checkpoint.generation)
    assert defaults == {"temperature": 0.5, "repetition_penalty": 1.25}


@pytest.mark.parametrize(
    ("generation", "defaults"),
    [
        ({}, {}),
        ({"temperature": None, "eos_token_id": 3}, {}),
        ({"do_sample": False, "temperature": 0.7, "top_k": 5}, {"temperature": 0.0}),
        ({"temperature": 0.7, "top_k": -1, "min_p": 0.1},
         {"temperature": 0.7, "top_k": 0, "min_p": 0.1}),
    ],
)  # fmt: skip
def test_sampling_defaults_are_those_of_the_generation_config(
    generation: dict[str, object], defaults: dict[str, float]
) -> None:
    assert read_sampling_defaults(generation) == defaults
    with pytest.raises(LoadError, match=r"generation_config\.json: temperature: a number from"):
        read_sampling_defaults({"temperature": "hot"})


def test_names_of_a_layer(tmp_path: Path) -> None:
    model(tmp_path / "a.gguf", next(row for row in ARCHITECTURE_ROWS if row.name == "gemma3"))
    result = set(GGUFCheckpoint(tmp_path / "a.gguf"))
    norms = "input", "post_attention", "pre_feedforward", "post_feedforward"
    layer = {f"model.layers.1.{name}_layernorm.weight" for name in norms}
    layer |= {f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
    names = "q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"
    layer |= {f"model.layers.1.self_attn.{name}.weight" for name in names}
    assert {name for name in result if ".1." in name} == layer


def test_permuted_qk_rows_match_transformers(tmp_path: Path) -> None:
    """As convert_hf_to_gguf.py of llama.cpp turns them, turned back, in blocks too."""
    row = ARCHITECTURE_ROWS[0]
    model(tmp_path / "a.gguf", row)
    original = numbers(KEYS * HEAD, HIDDEN)
    turned = original.reshape(KEYS, 2, HEAD // 2, HIDDEN).swapaxes(1, 2).reshape(-1, HIDDEN)
    for format in ("float32", "q4_0"):
        tensors = dict(GGUFFile(tmp_path / "a.gguf"))
        tensors["blk.1.attn_k.weight"] = Weight.of("blk.1.attn_k.weight", turned, format)
        entries = dict(GGUFFile(tmp_path / "a.gguf").metadata)
        write_gguf(tmp_path / "b.gguf", entries, list(tensors.values()))
        actual = GGUFCheckpoint(tmp_path / "b.gguf")["model.layers.1.self_attn.k_proj.weight"]
        expected = Weight.of("", original, format)
        assert actual.format == format
        np.testing.assert_array_equal(actual.values(), expected.values())


def test_fused_qkv_rows_match_transformers(tmp_path: Path) -> None:
    row = next(row for row in ARCHITECTURE_ROWS if row.has_fused_qkv)
    tensors = model(tmp_path / "a.gguf", row)
    result = GGUFCheckpoint(tmp_path / "a.gguf")
    name = "gpt_neox.layers.0.attention.query_key_value.weight"
    parts = tensors["blk.0.attn_qkv.weight"].values().reshape(3, HEADS, HEAD, HIDDEN)
    np.testing.assert_array_equal(
        result[name].values().reshape(HEADS, 3, HEAD, HIDDEN), parts.swapaxes(0, 1)
    )
    assert result.config["rotary_emb_base"] == 1000.0


def test_gemma_norm_weights_are_offset_by_one(tmp_path: Path) -> None:
    row = next(row for row in ARCHITECTURE_ROWS if row.name == "gemma2")
    tensors = model(tmp_path / "a.gguf", row)
    actual = GGUFCheckpoint(tmp_path / "a.gguf")
    name = "model.layers.0.pre_feedforward_layernorm.weight"
    expected = tensors["blk.0.ffn_norm.weight"].values() - 1
    np.testing.assert_array_equal(actual[name].values(), expected)
    assert actual.config["layer_types"] == ["sliding_attention", "full_attention"]
    assert actual.config["query_pre_attn_scalar"] == HEAD


def test_gguf_rope_scaling_is_read(tmp_path: Path) -> None:
    row = ARCHITECTURE_ROWS[0]
    more = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    model(tmp_path / "a.gguf", row, **more)
    scaling = GGUFCheckpoint(tmp_path / "a.gguf").config["rope_scaling"]
    assert scaling == {"rope_type": "yarn", "factor": 4.0}
    more |= {"llama.rope.scaling.yarn_beta_fast": 16.0, "llama.rope.scaling.yarn_beta_slow": 2.0}
    model(tmp_path / "c.gguf", row, **more)
    scaling = GGUFCheckpoint(tmp_path / "c.gguf").config["rope_scaling"]
    assert scaling == {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0}
    model(tmp_path / "c.gguf", row, **more, **{"llama.rope.scaling.attn_factor": 2.0})
    scaling = GGUFCheckpoint(tmp_path / "c.gguf").config["rope_scaling"]
    assert isinstance(scaling, dict)
    assert scaling["attention_factor"] == pytest.approx(
        2 + 0.2 * np.log(4)
    )  # llama.cpp's rope_yarn
    file = GGUFFile(tmp_path / "a.gguf")
    tensors = [*file.values(), Weight.of("rope_freqs.weight", numbers(8))]
    write_gguf(tmp_path / "b.gguf", dict(file.metadata), tensors)
    scaling = GGUFCheckpoint(tmp_path / "b.gguf").config["rope_scaling"]
    assert isinstance(scaling, dict) and scaling["long_factor"] == numbers(8).tolist()


def test_unsupported_gguf_contents_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """But for what says that there is none; an MLP with biases is read."""
    row = ARCHITECTURE_ROWS[0]
    entries = {"llama.expert_count": 0, "llama.attention.value_length": HEAD}
    model(tmp_path / "a.gguf", row, **entries)
    file = GGUFFile(tmp_path / "a.gguf")
    biases = [Weight.of(f"blk.0.ffn_{n}.bias", numbers(4)) for n in ("up", "gate", "down")]
    write_gguf(tmp_path / "b.gguf", dict(file.metadata), [*file.values(), *biases])
    with caplog.at_level("WARNING", "ekiden"):
        assert GGUFCheckpoint(tmp_path / "b.gguf").config["mlp_bias"] is True
        assert not caplog.text
        model(tmp_path / "a.gguf", row, **entries, **{"llama.logit_scale": 0.5})
        assert GGUFCheckpoint(tmp_path / "a.gguf").config["mlp_bias"] is False
    assert "a.gguf: entries that are not read: llama.logit_scale" in caplog.text


# Refused.


def changed(path: Path, at: int, raw: bytes) -> Path:
    data = bytearray(path.read_bytes())
    data[at : at + len(raw)] = raw
    path.write_bytes(data)
    return path


def no_file(path: Path) -> None:
    GGUFFile(path / "missing.gguf")


def empty(path: Path) -> None:
    (path / "e.gguf").touch()
    GGUFFile(path / "e.gguf")


def foreign(path: Path) -> None:
    GGUFFile(changed(path / "a.gguf", 0, b"ONNX"))


def old(path: Path) -> None:
    GGUFFile(changed(path / "a.gguf", 4, struct.pack("<I", 1)))


def big_endian(path: Path) -> None:
    GGUFFile(changed(path / "a.gguf", 4, struct.pack(">I", 3)))


def many_tensors(path: Path) -> None:
    GGUFFile(changed(path / "a.gguf", 8, struct.pack("<Q", 1 << 62)))


def long_name(path: Path) -> None:
    GGUFFile(changed(path / "a.gguf", 24, struct.pack("<Q", 1 << 40)))


def short(path: Path) -> None:
    file = path / "a.gguf"
    file.write_bytes(file.read_bytes()[:-500])
    GGUFFile(file)["q6_k"].values()


def of_another_format(path: Path) -> None:
    file, name = path / "a.gguf", b"q6_k"
    raw = bytearray(file.read_bytes())
    at = raw.index(len(name).to_bytes(8, "little") + name) + 8 + len(name)
    at += 4 + 8 * int.from_bytes(raw[at : at + 4], "little")
    raw[at : at + 4] = (40).to_bytes(4, "little")
    file.write_bytes(raw)
    GGUFFile(file)["q6_k"].values()


def twice(path: Path) -> None:
    write_gguf(path / "a.gguf", {}, [Weight.of("x", numbers(2))] * 2)
    GGUFFile(path / "a.gguf")


def no_architecture(path: Path) -> None:
    GGUFCheckpoint(path / "a.gguf")


def no_layers(path: Path) -> None:
    write_gguf(path / "a.gguf", {"general.architecture": "llama"}, [])
    GGUFCheckpoint(path / "a.gguf").config  # noqa: B018


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (no_file, "missing.gguf: cannot be read: No such file or directory"),
        (empty, "e.gguf: no GGUF file: it is empty"),
        (foreign, "a.gguf: the header: no GGUF file: it begins with b'ONNX'"),
        (old, "a.gguf: the header: version 2 or 3 expected, got 1"),
        (big_endian, "a.gguf: the header: it is big-endian"),
        (many_tensors, r"a.gguf: the header: \d+ tensors do not fit into the \d+ bytes that"),
        (long_name, r"a.gguf: entry 0: \d+ bytes of a string do not fit into the"),
        (short, "a.gguf: tensor 'q6_k': ends at byte"),
        (of_another_format, r"a.gguf: tensor 'q6_k': type 40 \(nvfp4\) is none of float32,"),
        (twice, "a.gguf: tensor 'x': it is there twice"),
        (no_architecture, "a.gguf: entry 'general.architecture': one of llama, .* got None"),
        (no_layers, "a.gguf: entry 'llama.embedding_length': it is not there"),
    ],
)
def test_broken_file_is_refused(
    tmp_path: Path, broken: Callable[[Path], None], message: str
) -> None:
    some_file(tmp_path / "a.gguf")
    with pytest.raises(LoadError, match=message):
        broken(tmp_path)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Says what every file contains: a thousand files take a while."""

    def contain(raw: bytes) -> None:
        held = SimpleNamespace(data=np.frombuffer(raw, np.uint8), check=lambda: None)
        monkeypatch.setattr(gguf_file, "MappedBytes", lambda path, kind: held)

    return contain


def test_every_beginning_of_a_file_is_refused(
    tmp_path: Path, in_memory: Callable[[bytes], None]
) -> None:
    model(tmp_path / "a.gguf", ARCHITECTURE_ROWS[0])
    whole = (tmp_path / "a.gguf").read_bytes()
    part = tmp_path / "b.gguf"
    for end in range(0, len(whole), 1 + len(whole) // 300):
        in_memory(whole[:end])
        with pytest.raises(LoadError):
            _use(part)


@sizes("count", 2000, 100_000)
def test_mutated_gguf_files_never_crash(
    tmp_path: Path, in_memory: Callable[[bytes], None], count: int
) -> None:
    """It is read, or refused."""
    random = np.random.default_rng(22)
    some_file(tmp_path / "a.gguf")
    model(tmp_path / "b.gguf", next(row for row in ARCHITECTURE_ROWS if row.name == "gemma3"))
    files = [(tmp_path / name).read_bytes() for name in ("a.gguf", "b.gguf")]
    # What stands before the data is where a change matters.
    ends = [raw.index(b"q6_k") + 40 for raw in files[:1]] + [files[1].index(b"output.weight") + 40]
    refused, path = 0, tmp_path / "c.gguf"
    for n in range(count):
        raw, end = bytearray(files[n % 2]), max(ends[n % 2], 200)
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(0, end))
            kind = random.integers(0, 4)
            if kind == 0:
                raw[at] = random.integers(0, 256)
            elif kind == 1:
                raw[at : at + 8] = struct.pack("<Q", int(random.choice(EXTREME)))
            elif kind == 2:
                del raw[at : at + int(random.integers(1, 9))]
            else:
                raw[at:at] = random.bytes(int(random.integers(1, 9)))
        in_memory(bytes(raw))
        try:
            _use(path)
        except LoadError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 100


EXTREME = np.array([0, 1, 255, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1], "u8")


def _use(path: Path) -> None:
    file = GGUFFile(path)
    for name in file:
        if name not in ("q2_k", "q3_k", "q5_k"):  # decoding takes time
            file[name].values()
    checkpoint = GGUFCheckpoint(path)
    assert checkpoint.config["hidden_size"]
    for name in checkpoint:
        assert checkpoint[name].name == name


# Written.


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"x": None}, "'x': a number, text or a list of them expected, got None"),
        ({"x": [["a"], "b"]}, "'x': values of one type expected"),
        ({"x": 1 << 70}, "'x': a number, text or a list of them expected"),
        ({"general.alignment": 3}, "'general.alignment': a power of 2 expected, got 3"),
    ],
)
def test_unwritable_gguf_contents_are_named(
    tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_gguf(tmp_path / "a.gguf", entries, [])
    assert not (tmp_path / "a.gguf").exists()


def test_unknown_format_is_named() -> None:
    with pytest.raises(
        ValueError, match="'x': one of float32, .*q6_k expected as format, got 'q9'"
    ):
        Weight.of("x", numbers(2), "q9")
