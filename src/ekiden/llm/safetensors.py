"""Reader and writer of the safetensors format: a folder as transformers saves a model in.

A file is the length of its header (uint64), the header as JSON, and the data: the header has for
each tensor its dtype, shape and where it lies in the data. A folder has `config.json`, and either
`model.safetensors` or shards of which `model.safetensors.index.json` says what lies where.

Source: the format of the package `safetensors`. What is wrong is a LoadError that names file and
thing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import UNQUANTIZED_DTYPES, MappedBytes, Weight, tensor_bytes
from ekiden.llm.torch_file import TorchFile
from ekiden.runtime.cached_property import cached_property
from ekiden.runtime.errors import LoadError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["SafetensorsCheckpoint", "SafetensorsFile", "write_safetensors"]

FORMAT_BY_SAFETENSORS_DTYPE: Mapping[str, str] = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
}
"""dtypes of files -> formats."""
RAW_DTYPES: Mapping[str, np.dtype[Any]] = {
    **{dtype: UNQUANTIZED_DTYPES[format] for dtype, format in FORMAT_BY_SAFETENSORS_DTYPE.items()},
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
"""dtypes of files, with those of quantised weights."""
MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
"""Bytes of a header, as the package has it."""
SINGLE_FILE, INDEX_FILE, CONFIG_FILE = (
    "model.safetensors",
    "model.safetensors.index.json",
    "config.json",
)
TORCH_FILE, TORCH_INDEX_FILE = "pytorch_model.bin", "pytorch_model.bin.index.json"
GENERATION_CONFIG_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    """Table entry of a tensor: dtype, shape, and begin and end in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile(Mapping[str, Weight]):
    """Safetensors file: tensors by name, as read-only views of the mapped file, and `metadata`.
    Raises LoadError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._bytes = MappedBytes(self.path, "safetensors")
        self._data = self._bytes.data
        header, begin = _read_header(self.path, self._data)
        metadata = header.pop("__metadata__", {})
        self.metadata: Mapping[str, object] = metadata if isinstance(metadata, dict) else {}
        data_bytes = len(self._data) - begin
        self._tensors = {
            name: _parse_tensor_entry(f"{self.path}: tensor '{name}'", entry, begin, data_bytes)
            for name, entry in header.items()
        }
        _check_tiling(self.path, self._tensors, begin, data_bytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> Weight:
        """Return a tensor. Raises KeyError, and LoadError for an unsupported dtype."""
        tensor = self._tensors[name]
        format = FORMAT_BY_SAFETENSORS_DTYPE.get(tensor.dtype)
        if format is None:
            supported = ", ".join(FORMAT_BY_SAFETENSORS_DTYPE)
            raise LoadError(
                f"{self.path}: tensor '{name}': one of {supported} expected, got {tensor.dtype}"
            )
        return Weight(name, format, tensor.shape, self.array(name))

    def array(self, name: str) -> NDArray[Any]:
        """Return a tensor as stored, quantised weights included. Raises KeyError, and LoadError for
        an unsupported dtype.
        """
        tensor = self._tensors[name]
        where = f"{self.path}: tensor '{name}'"
        dtype = RAW_DTYPES.get(tensor.dtype)
        if dtype is None:
            raise LoadError(f"{where}: one of {', '.join(RAW_DTYPES)} expected, got {tensor.dtype}")
        size = tensor_bytes(tensor.shape, dtype.itemsize, where)
        if size != tensor.end - tensor.begin:
            raise LoadError(
                f"{where}: {size} bytes expected for shape {list(tensor.shape)} of"
                f" {tensor.dtype}, got {tensor.end - tensor.begin}"
            )
        # The file may have been cut since it was mapped.
        self._bytes.check()
        return self._data[tensor.begin : tensor.end].view(dtype).reshape(tensor.shape)

    def check(self) -> None:
        """Raise LoadError if the file has changed since it was opened."""
        self._bytes.check()


def _read_header(path: Path, data: NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    """Return the header, and where the data begin."""
    if len(data) < 8:
        raise LoadError(f"{path}: no safetensors file: it has fewer than 8 bytes")
    length = int(data[:8].view("<u8")[0])
    # The length is untrusted: it must not size an allocation.
    if length > min(MAX_SAFETENSORS_HEADER_BYTES, len(data) - 8):
        raise LoadError(
            f"{path}: the header: {length} bytes expected, the file has {len(data) - 8} more"
        )
    raw = data[8 : 8 + length].tobytes()
    header = _parse_json_object(path, raw, "the header", object_pairs_hook=_unique_keys)
    return header, 8 + length


def _parse_json_object(path: Path, raw: bytes, what: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """Parse a JSON object; `options` are those of `json.loads`. Raises LoadError."""
    try:
        value = json.loads(raw, **options)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: {what}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path}: {what}: an object expected, got {type(value).__name__}")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object from key-value pairs, rejecting duplicate keys. Raises ValueError for a key
    that is there twice.
    """
    fields = dict(pairs)
    if len(fields) != len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"'{key}' is there twice")
    return fields


def _parse_tensor_entry(where: str, entry: object, begin: int, data_bytes: int) -> _TensorEntry:
    """Validate a header entry; `data_bytes` of data begin at `begin`."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(k) for k in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and _is_size_list(shape) and _is_size_list(offsets)):
        raise LoadError(f"{where}: 'dtype', 'shape' and 'data_offsets' expected, got {entry!r}")
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        raise LoadError(f"{where}: lies at {offsets} of {data_bytes} bytes of data")
    return _TensorEntry(dtype, tuple(shape), begin + offsets[0], begin + offsets[1])


def _check_tiling(
    path: Path, tensors: Mapping[str, _TensorEntry], begin: int, data_bytes: int
) -> None:
    """Raise LoadError unless the tensors tile the `data_bytes` from `begin` on without gaps or
    overlaps.
    """
    # Overlaps and holes carry what other readers of the format do not see (polyglot files).
    position = begin
    # An empty tensor precedes the tensor that begins at the same byte.
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != position:
            raise LoadError(
                f"{path}: tensor '{name}': begins at byte {tensor.begin - begin} of the data, after"
                f" {position - begin} that belong to those before it"
            )
        position = tensor.end
    if position != begin + data_bytes:
        raise LoadError(
            f"{path}: {begin + data_bytes - position} bytes of data belong to no tensor"
        )


def _is_size_list(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


class SafetensorsCheckpoint(Mapping[str, Weight]):
    """Checkpoint folder of safetensors, or of files of torch.save where there are none, with
    `config.json`. A shard is mapped when one of its tensors is first requested. Raises LoadError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._files: dict[str, SafetensorsFile | TorchFile] = {}
        for index, single in ((INDEX_FILE, SINGLE_FILE), (TORCH_INDEX_FILE, TORCH_FILE)):
            self._index_file = index
            if (self.path / index).is_file():
                self._places = self._shard_index()
                return
            if (self.path / single).is_file():
                self._places = dict.fromkeys(self._open_shard(single), single)
                return
        raise LoadError(
            f"{self.path}: a folder with {SINGLE_FILE}, {INDEX_FILE}, {TORCH_FILE} or"
            f" {TORCH_INDEX_FILE} expected"
        )

    @cached_property
    def config(self) -> Mapping[str, object]:
        """Return `config.json`, with the end tokens of `generation_config.json` if it exists.
        Raises LoadError.
        """
        config = self._read_json(CONFIG_FILE)
        # The generation configuration overrides the model's end tokens.
        ends = self.generation.get("eos_token_id")
        return config if ends is None else {**config, "eos_token_id": ends}

    @cached_property
    def generation(self) -> Mapping[str, object]:
        """Return `generation_config.json`, empty if it does not exist. Raises LoadError."""
        exists = (self.path / GENERATION_CONFIG_FILE).is_file()
        return self._read_json(GENERATION_CONFIG_FILE) if exists else {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def array(self, name: str) -> NDArray[Any]:
        """Return a tensor as it is stored. Raises KeyError, and LoadError."""
        file = self._open_shard(self._places[name])
        return file.array(name) if isinstance(file, SafetensorsFile) else file[name].data

    def __getitem__(self, name: str) -> Weight:
        shard = self._places[name]
        file = self._open_shard(shard)
        if name not in file:
            raise LoadError(
                f"{file.path}: tensor '{name}': {self._index_file} says that it is here"
            )
        return file[name]

    def check(self) -> None:
        """Raise LoadError if one of the files has changed since it was opened."""
        for file in self._files.values():
            file.check()

    def _open_shard(self, shard: str) -> SafetensorsFile | TorchFile:
        if shard not in self._files:
            kind = TorchFile if shard.endswith(".bin") else SafetensorsFile
            self._files[shard] = kind(self.path / shard)
        return self._files[shard]

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise LoadError(f"{path}: cannot be read: {error.strerror}") from error
        return _parse_json_object(path, raw, "the file")

    def _shard_index(self) -> dict[str, str]:
        """Return the shard file of each tensor. Raises LoadError."""
        shard_by_tensor = self._read_json(self._index_file).get("weight_map")
        if not isinstance(shard_by_tensor, dict) or not all(
            isinstance(p, str) for p in shard_by_tensor.values()
        ):
            raise LoadError(
                f"{self.path / self._index_file}: 'weight_map' with a file for each tensor expected"
            )
        for name, shard in shard_by_tensor.items():
            # Path traversal: shards lie in the checkpoint's folder.
            if Path(shard).name != shard or shard in (os.curdir, os.pardir):
                raise LoadError(
                    f"{self.path / self._index_file}: tensor '{name}': a file of the folder"
                    f" expected, got '{shard}'"
                )
        return shard_by_tensor


def write_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, Weight]) -> None:
    """Write plain tensors to a file."""
    codes = {format: dtype for dtype, format in FORMAT_BY_SAFETENSORS_DTYPE.items()}
    header: dict[str, object] = {}
    position = 0
    for name, tensor in tensors.items():
        if tensor.format not in codes:
            raise ValueError(f"'{name}': plain numbers expected, got {tensor.format}")
        offsets = [position, position := position + tensor.data.nbytes]
        header[name] = {
            "dtype": codes[tensor.format], "shape": list(tensor.shape), "data_offsets": offsets
        }  # fmt: skip
    raw = json.dumps(header).encode()
    # The header is padded so that tensor data are 8-byte aligned.
    raw += b" " * (-len(raw) % 8)
    with open(path, "wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor.data).tobytes())
