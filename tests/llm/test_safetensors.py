"""Folders of safetensors: read, in one file and in shards, and refused where they are broken."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_models import config_of

from ekiden.llm import safetensors
from ekiden.llm.checkpoint import Weight
from ekiden.llm.decoder_config import read_config
from ekiden.llm.safetensors import SafetensorsCheckpoint, SafetensorsFile, write_safetensors
from ekiden.runtime.errors import LoadError
from long_runs import sizes


def numbers(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def some_tensors() -> dict[str, Weight]:
    inputs = {"a": ("float32", (3, 4)), "b.c": ("float16", (5,)), "d": ("bfloat16", (2, 0, 3))}
    inputs["e"] = ("bfloat16", ())
    return {name: Weight.of(name, numbers(*shape), kind) for name, (kind, shape) in inputs.items()}


def folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"hidden_size": 4}')
    write_safetensors(path / "model.safetensors", some_tensors())
    return path


def test_folder_is_read(tmp_path: Path) -> None:
    checkpoint = SafetensorsCheckpoint(folder(tmp_path / "model"))
    written = some_tensors()
    assert list(checkpoint) == list(written) and checkpoint.config == {"hidden_size": 4}
    for name, tensor in written.items():
        result = checkpoint[name]
        assert (result.name, result.format, result.shape) == (name, tensor.format, tensor.shape)
        assert result.data.tobytes() == tensor.data.tobytes() and not result.data.flags.writeable
        assert result.values().dtype == np.float32
    with pytest.raises(KeyError):
        checkpoint["z"]


def test_end_tokens_come_from_generation_config(tmp_path: Path) -> None:
    """As Llama 3, Gemma 2 and Phi 3 have them: config.json has the first alone."""
    write_safetensors(tmp_path / "model.safetensors", some_tensors())
    config = config_of("llama", eos_token_id=1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    for ends, expected in (
        ({}, (1,)),
        ({"eos_token_id": None}, (1,)),
        ({"eos_token_id": [3, 2]}, (3, 2)),
    ):
        (tmp_path / "generation_config.json").write_text(json.dumps(ends))
        assert read_config(SafetensorsCheckpoint(tmp_path).config).end_tokens == expected
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(LoadError, match=r"generation_config\.json"):
        _ = SafetensorsCheckpoint(tmp_path).config


def test_shards_are_read(tmp_path: Path) -> None:
    tensors = some_tensors()
    for shard, names in (("x.safetensors", ("a", "d")), ("y.safetensors", ("b.c", "e"))):
        write_safetensors(tmp_path / shard, {name: tensors[name] for name in names})
    places = {"a": "x.safetensors", "d": "x.safetensors"}
    places |= {"b.c": "y.safetensors", "e": "y.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert all(checkpoint[n].data.tobytes() == t.data.tobytes() for n, t in tensors.items())
    index.write_text(json.dumps({"weight_map": {"a": "y.safetensors"}}))
    with pytest.raises(LoadError, match=r"y.safetensors: tensor 'a': .* says that it is here"):
        SafetensorsCheckpoint(tmp_path)["a"]
    index.write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(LoadError, match="tensor 'a': a file of the folder expected, got '../x"):
        SafetensorsCheckpoint(tmp_path)


def test_package_agrees(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy", reason="needs the package safetensors")
    inputs = {"x": numbers(2, 3), "y": numbers(4).astype(np.float16)}
    package.save_file(inputs, tmp_path / "a.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "a.safetensors")
    assert file.metadata == {"format": "pt"}
    for name, array in inputs.items():
        np.testing.assert_array_equal(file[name].data, array)
    write_safetensors(tmp_path / "b.safetensors", some_tensors())
    result = package.load_file(tmp_path / "b.safetensors")
    assert result["e"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result["a"], some_tensors()["a"].data)


def written(path: Path, header: object, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "the header: no JSON"),
        (b"[" * 100_000, "the header: no JSON"),
        ([], "the header: an object expected, got list"),
        ({"x": 3}, "tensor 'x': 'dtype', 'shape' and 'data_offsets' expected, got 3"),
        ({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "tensor 'x': 'dtype'"),
        ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 12]}}, r"lies at \[4, 12\] of 8"),
        ({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, r"lies at \[4, 0\] of 8"),
        ({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, "12 bytes expected for"),
        ({"x": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}, "one of F32, F16, BF16"),
    ],
)
def test_broken_file_is_refused(tmp_path: Path, header: object, message: str) -> None:
    path = written(tmp_path / "a.safetensors", header, bytes(8))
    with pytest.raises(LoadError, match=f"a.safetensors: .*{message}"):
        SafetensorsFile(path)["x"]


def test_tensors_that_do_not_tile_the_data_are_refused(tmp_path: Path) -> None:
    """The package safetensors refuses the same files: bytes with two owners, or with none."""
    package = pytest.importorskip("safetensors", reason="needs the package safetensors")

    def entry(begin: int, end: int) -> dict[str, object]:
        return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}

    twice = b'{"x": %s, "x": %s}' % ((json.dumps(entry(0, 8)).encode(),) * 2)
    for header, message in (
        ({"x": entry(0, 8), "y": entry(4, 8)}, "tensor 'y': begins at byte 4 of the data, after 8"),
        ({"x": entry(0, 4), "y": entry(0, 8)}, "tensor 'y': begins at byte 0 of the data, after 4"),
        ({"x": entry(4, 8)}, "tensor 'x': begins at byte 4 of the data, after 0"),
        ({"x": entry(0, 4)}, "4 bytes of data belong to no tensor"),
        ({}, "8 bytes of data belong to no tensor"),
        (twice, "the header: no JSON: 'x' is there twice"),
    ):
        path = written(tmp_path / "a.safetensors", header, bytes(8))
        with pytest.raises(LoadError, match=f"a.safetensors: .*{message}"):
            SafetensorsFile(path)
        if header != twice:  # of which the package reads the last
            with pytest.raises(package.SafetensorError):
                package.deserialize(path.read_bytes())
    tiled = {"y": entry(4, 8), "empty": entry(4, 4), "x": entry(0, 4)}
    assert set(SafetensorsFile(written(tmp_path / "a.safetensors", tiled, bytes(8)))) == set(tiled)


def test_broken_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="a folder with model.safetensors, .* expected"):
        SafetensorsCheckpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    with pytest.raises(LoadError, match="it has fewer than 8 bytes"):
        SafetensorsCheckpoint(tmp_path)
    written(tmp_path / "model.safetensors", {})
    with pytest.raises(LoadError, match=r"config.json: cannot be read: No such file"):
        SafetensorsCheckpoint(tmp_path).config  # noqa: B018


@sizes("count", 2000, 100_000)
def test_mutated_files_do_not_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    random = np.random.default_rng(9)
    write_safetensors(tmp_path / "a.safetensors", some_tensors())
    whole = (tmp_path / "a.safetensors").read_bytes()
    path, refused = tmp_path / "b.safetensors", 0
    for _ in range(count):
        raw = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(0, len(raw)))
            if random.integers(0, 2):
                raw[at] = random.integers(0, 256)
            else:
                del raw[at : at + int(random.integers(1, 20))]
        held = SimpleNamespace(data=np.frombuffer(bytes(raw), np.uint8), check=lambda: None)
        monkeypatch.setattr(safetensors, "MappedBytes", lambda path, kind, held=held: held)
        try:
            file = SafetensorsFile(path)
            for name in file:
                file[name].values()
        except LoadError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 100


def test_blocks_are_not_written(tmp_path: Path) -> None:
    weight = Weight.of("x", numbers(2, 32), "q4_0")
    with pytest.raises(ValueError, match="'x': plain numbers expected, got q4_0"):
        write_safetensors(tmp_path / "a.safetensors", {"x": weight})
