"""GGUF file format: named tensors, unquantized or in quantization blocks, with metadata.

    "GGUF", version uint32, tensors uint64, entries uint64
    entries    name string, type uint32, value;  a string is a uint64 of bytes and these, an array
               the type of its values uint32, their number uint64 and these
    tensors    name string, axes uint32, extents uint64 (innermost first), type uint32,
               offset uint64
    data       from the next multiple of "general.alignment" (32) on; offsets count from there

Source: docs/gguf.md of ggml; versions 2 and 3, little-endian. Nothing is allocated by a number of
the file that the file is too short for; what is wrong is a LoadError that names file and thing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import UNQUANTIZED_DTYPES, MappedBytes, Weight, tensor_bytes
from ekiden.llm.gguf_dequantize import DECODED_TYPES
from ekiden.runtime.errors import LoadError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME

__all__ = ["Entry", "GGUFFile", "write_gguf"]

Entry: TypeAlias = "int | float | bool | str | NDArray[Any] | list[Any]"
GGUF_MAGIC = b"GGUF"
GGUF_VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
MAX_TENSOR_AXES = 8
MAX_ARRAY_DEPTH = 4
"""Arrays in arrays."""
BOOL_TYPE, STRING_TYPE, ARRAY_TYPE = 7, 8, 9
NUMBER_TYPES: Mapping[int, np.dtype[Any]] = {
    0: np.dtype("u1"), 1: np.dtype("i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"),
    4: np.dtype("<u4"), 5: np.dtype("<i4"), 6: np.dtype("<f4"), BOOL_TYPE: np.dtype("?"),
    10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8"),
}  # fmt: skip
"""Types of entries that have a fixed size."""
PLAIN_CODES = {0: "float32", 1: "float16", 30: "bfloat16"}
FORMAT_BY_CODE = {
    **PLAIN_CODES,
    **{row.gguf_type: row.name for row in BLOCK_FORMATS_BY_NAME.values()},
}
"""Types of tensors -> formats."""
UNSUPPORTED_FORMATS = {
    9: "q8_1", 15: "q8_k", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64",
    40: "nvfp4", 41: "q1_0",
}  # fmt: skip
"""What files call those that are not read, for messages."""
CODE_BY_FORMAT = {name: code for code, name in FORMAT_BY_CODE.items()}


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    """Table entry of a tensor: its shape, type code and file offset."""

    shape: tuple[int, ...]
    code: int
    at: int


class _GGUFReader:
    """Reader that advances through a GGUF file."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self.path, self.data, self.at = path, data, 0
        self.what = "the header"

    def load_error(self, message: str) -> LoadError:
        return LoadError(f"{self.path}: {self.what}: {message}")

    @property
    def remaining_bytes(self) -> int:
        return len(self.data) - self.at

    def read_bytes(self, count: int) -> NDArray[np.uint8]:
        """Return the next bytes as a view of the file. Raises what `fail` creates at the end of the
        file.
        """
        if count > self.remaining_bytes:
            raise self.load_error(
                f"{count} bytes expected at {self.at}, the file has {self.remaining_bytes} more"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def read_number(self, dtype: np.dtype[Any]) -> int | float | bool:
        """Return the next little-endian number. Raises what `fail` creates for an invalid
        boolean.
        """
        raw = self.read_bytes(dtype.itemsize)
        if dtype.kind == "b" and raw[0] > 1:
            raise self.load_error(
                f"0 or 1 expected for a truth value at {self.at - 1}, got {raw[0]}"
            )
        value: int | float | bool = raw.view(dtype)[0].item()
        return value

    def read_uint32(self) -> int:
        return int(self.read_number(NUMBER_TYPES[4]))

    def read_count(self, min_bytes: int, of: str) -> int:
        """Return a count of items of at least `min_bytes` each, checked against the remaining
        bytes.
        """
        count = int(self.read_number(NUMBER_TYPES[10]))
        # Refuses forged counts before anything of that size is allocated.
        if count * min_bytes > self.remaining_bytes:
            raise self.load_error(
                f"{count} {of} do not fit into the {self.remaining_bytes} bytes that follow"
            )
        return count

    def read_string(self, errors: str = "strict") -> str:
        """Return a string; in metadata values any bytes are accepted, because tokens may be parts
        of characters.
        """
        raw = self.read_bytes(self.read_count(1, "bytes of a string")).tobytes()
        try:
            return raw.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise self.load_error(f"text in UTF-8 expected, got {raw[:40]!r}") from error

    def read_value(self, code: int, depth: int = 0) -> Entry:
        """Return a value of a type code; text need not be UTF-8. Raises what `fail` creates for an
        unknown code.
        """
        if code in NUMBER_TYPES:
            return self.read_number(NUMBER_TYPES[code])
        if code == STRING_TYPE:
            return self.read_string("surrogateescape")
        if code != ARRAY_TYPE:
            raise self.load_error(f"a type from 0 to 12 expected at {self.at - 4}, got {code}")
        return self.read_array(depth)

    def read_array(self, depth: int) -> Entry:
        """Return an array: numbers as a view of the file, text and nested arrays as a list. Raises
        what `fail` creates for nesting deeper than MAX_ARRAY_DEPTH, since a tiny file could
        request any depth.
        """
        if depth == MAX_ARRAY_DEPTH:
            raise self.load_error(f"arrays more than {MAX_ARRAY_DEPTH} deep")
        code = self.read_uint32()
        if code in NUMBER_TYPES:
            dtype = NUMBER_TYPES[code]
            count = self.read_count(dtype.itemsize, "values of an array")
            raw = self.read_bytes(count * dtype.itemsize)
            if code == BOOL_TYPE and raw.max(initial=0) > 1:
                raise self.load_error("0 or 1 expected for truth values")
            return raw.view(dtype)
        if code not in (STRING_TYPE, ARRAY_TYPE):
            raise self.load_error(f"a type from 0 to 12 expected at {self.at - 4}, got {code}")
        min_bytes = 8 if code == STRING_TYPE else 12
        return [
            self.read_value(code, depth + 1) for _ in range(self.read_count(min_bytes, "values"))
        ]


class GGUFFile(Mapping[str, Weight]):
    """GGUF file under its own names: tensors by name, and `metadata`. The file is mapped: tensors
    are read-only views of it. Raises LoadError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._bytes = MappedBytes(self.path, "GGUF")
        cursor = _GGUFReader(self.path, self._bytes.data)
        tensors, entries = _read_header(cursor)
        self.metadata: Mapping[str, Entry] = _read_entries(cursor, entries)
        relative_tensors = _read_tensor_entries(cursor, tensors)
        self._data, self._tensors = (
            cursor.data,
            _resolve_offsets(cursor, relative_tensors, self.metadata),
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> Weight:
        """Return a tensor. Raises KeyError, and LoadError for an unsupported format or data outside
        the file.
        """
        tensor = self._tensors[name]
        where = f"{self.path}: tensor '{name}'"
        decoded = DECODED_TYPES.get(tensor.code)
        format = FORMAT_BY_CODE.get(tensor.code)
        if decoded is not None:
            row_shape = decoded.values_per_block, decoded.block_bytes
            shape, dtype = _block_layout(tensor.shape, decoded.name, *row_shape, where)
        elif format is not None:
            shape, dtype = _storage_layout(tensor.shape, format, where)
        else:
            decoded_names = (row.name for row in DECODED_TYPES.values())
            supported = ", ".join((*FORMAT_BY_CODE.values(), *decoded_names))
            name_of_type = UNSUPPORTED_FORMATS.get(tensor.code)
            shown = "" if name_of_type is None else f" ({name_of_type})"
            raise LoadError(f"{where}: type {tensor.code}{shown} is none of {supported}")
        size = tensor_bytes(shape, dtype.itemsize, where)
        if tensor.at + size > len(self._data):
            raise LoadError(f"{where}: ends at byte {tensor.at + size} of {len(self._data)}")
        self._bytes.check()
        stored = self._data[tensor.at : tensor.at + size].view(dtype).reshape(shape)
        if decoded is not None:
            if not stored.size:  # reshapes of the decoders infer an extent, which 0 leaves open
                return Weight.of(name, np.empty(tensor.shape, np.float32))
            return decoded.decode(name, stored)
        assert format is not None
        return Weight(name, format, tensor.shape, stored)

    def check(self) -> None:
        """Raise LoadError if the file has changed since it was opened."""
        self._bytes.check()


def _storage_layout(
    shape: tuple[int, ...], format: str, where: str
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the stored shape and dtype of a tensor's data."""
    if format in UNQUANTIZED_DTYPES:
        return shape, UNQUANTIZED_DTYPES[format]
    row = BLOCK_FORMATS_BY_NAME[format]
    return _block_layout(shape, format, row.values_per_block, row.block_bytes, where)


def _block_layout(
    shape: tuple[int, ...], format: str, values: int, block_bytes: int, where: str
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the stored shape and dtype of blocks. Raises LoadError for rows of broken ones."""
    if not shape or not shape[-1] or shape[-1] % values:
        raise LoadError(f"{where}: shape {shape}: no whole blocks of {values} of {format}")
    return (*shape[:-1], shape[-1] // values, block_bytes), np.dtype("u1")


def _read_header(cursor: _GGUFReader) -> tuple[int, int]:
    """Return the number of tensors and of entries."""
    if (magic := cursor.read_bytes(min(4, cursor.remaining_bytes)).tobytes()) != GGUF_MAGIC:
        raise cursor.load_error(f"no GGUF file: it begins with {magic!r}")
    version = cursor.read_uint32()
    if version not in GGUF_VERSIONS:
        # GGUF 3 may be big-endian without a flag: only the version number reveals it.
        is_big = int.from_bytes(version.to_bytes(4, "little"), "big") in GGUF_VERSIONS
        why = "it is big-endian" if is_big else f"version 2 or 3 expected, got {version}"
        raise cursor.load_error(why)
    return cursor.read_count(24, "tensors"), cursor.read_count(13, "entries")


def _read_entries(cursor: _GGUFReader, count: int) -> dict[str, Entry]:
    """Parse the metadata entries by name."""
    entries: dict[str, Entry] = {}
    for n in range(count):
        cursor.what = f"entry {n}"
        name = cursor.read_string()
        cursor.what = f"entry '{name}'"
        if name in entries:
            raise cursor.load_error("it is there twice")
        entries[name] = cursor.read_value(cursor.read_uint32())
    return entries


def _read_tensor_entries(cursor: _GGUFReader, count: int) -> dict[str, _TensorEntry]:
    """Parse the tensors by name; their offsets are still relative to the data section."""
    tensors: dict[str, _TensorEntry] = {}
    for n in range(count):
        cursor.what = f"tensor {n}"
        name = cursor.read_string()
        cursor.what = f"tensor '{name}'"
        if name in tensors:
            raise cursor.load_error("it is there twice")
        axes = cursor.read_uint32()
        if axes > MAX_TENSOR_AXES:
            raise cursor.load_error(f"at most {MAX_TENSOR_AXES} axes expected, got {axes}")
        # GGUF lists extents fastest-varying first.
        shape = tuple(int(d) for d in cursor.read_bytes(8 * axes).view("<u8")[::-1])
        code, position = cursor.read_uint32(), int(cursor.read_number(NUMBER_TYPES[10]))
        tensors[name] = _TensorEntry(shape, code, position)
    return tensors


def _resolve_offsets(
    cursor: _GGUFReader, tensors: Mapping[str, _TensorEntry], metadata: Mapping[str, Entry]
) -> dict[str, _TensorEntry]:
    """Convert the tensors' offsets to absolute ones."""
    step = metadata.get(ALIGNMENT_KEY, 32)
    cursor.what = f"entry '{ALIGNMENT_KEY}'"
    if type(step) is not int or step < 1 or step & (step - 1):
        raise cursor.load_error(f"a power of 2 expected, got {step!r}")
    # Offsets of tensors count from the aligned end of the header.
    begin = -(-cursor.at // step) * step
    placed = {}
    for name, tensor in tensors.items():
        cursor.what = f"tensor '{name}'"
        if tensor.at % step:
            raise cursor.load_error(f"a multiple of {step} expected as offset, got {tensor.at}")
        if begin + tensor.at > len(cursor.data):
            size = len(cursor.data)
            raise cursor.load_error(f"begins at byte {begin + tensor.at} of {size}")
        placed[name] = _TensorEntry(tensor.shape, tensor.code, begin + tensor.at)
    return placed


# Writing.


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Entry],
    tensors: Sequence[Weight],
    version: int = 3,
) -> None:
    """Write tensors to a GGUF file under their own names. Integers become the first of uint32,
    int64 and uint64 that holds them, floats float32; NumPy values keep their dtype. Raises
    ValueError for what cannot be written.
    """
    if version not in GGUF_VERSIONS:
        raise ValueError(f"version 2 or 3 expected, got {version}")
    step = metadata.get(ALIGNMENT_KEY, 32)
    if type(step) is not int or step < 1 or step & (step - 1):
        raise ValueError(f"'{ALIGNMENT_KEY}': a power of 2 expected, got {step!r}")
    entries = [(name, *_encode_entry(name, value)) for name, value in metadata.items()]
    with open(path, "wb") as file:
        file.write(struct.pack("<4sIQQ", GGUF_MAGIC, version, len(tensors), len(metadata)))
        for name, code, raw in entries:
            file.write(_encode_text(name) + struct.pack("<I", code) + raw)
        position = 0
        for tensor in tensors:
            axes = [struct.pack("<Q", extent) for extent in reversed(tensor.shape)]
            tensor_location = struct.pack("<IQ", CODE_BY_FORMAT[tensor.format], position)
            file.write(
                _encode_text(tensor.name)
                + struct.pack("<I", len(axes))
                + b"".join(axes)
                + tensor_location
            )
            position += -(-tensor.data.nbytes // step) * step
        for tensor in tensors:
            # Tensor data start at multiples of general.alignment.
            _write_padding(file, step)
            file.write(np.ascontiguousarray(tensor.data).tobytes())
        _write_padding(file, step)


def _write_padding(file: BinaryIO, step: int) -> None:
    file.write(bytes(-file.tell() % step))


def _encode_text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _encode_entry(name: str, value: object) -> tuple[int, bytes]:
    """Return an entry's type code and bytes."""
    if isinstance(value, str):
        return STRING_TYPE, _encode_text(value)
    if isinstance(value, (list, tuple)) and (not value or isinstance(value[0], (str, list, tuple))):
        elements = [_encode_entry(name, element) for element in value]
        codes = {code for code, _ in elements} or {STRING_TYPE}
        if len(codes) > 1:
            raise ValueError(f"'{name}': values of one type expected, got {value!r}")
        return ARRAY_TYPE, struct.pack("<IQ", *codes, len(elements)) + b"".join(
            raw for _, raw in elements
        )
    is_array = isinstance(value, (list, tuple, np.ndarray))
    array = _encode_numbers(name, value)
    codes_of = {dtype: code for code, dtype in NUMBER_TYPES.items()}
    code = codes_of.get(array.dtype.newbyteorder("<"))
    if code is None or array.ndim != is_array:
        raise ValueError(f"'{name}': a number, text or a list of them expected, got {value!r}")
    raw = array.astype(NUMBER_TYPES[code]).tobytes()
    return (ARRAY_TYPE, struct.pack("<IQ", code, array.size) + raw) if is_array else (code, raw)


def _encode_numbers(name: str, value: object) -> NDArray[Any]:
    """Convert values to an array of the dtype to write. Raises ValueError."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"'{name}': {error}") from error
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind == "i" and array.min(initial=0) >= 0 and array.max(initial=0) < 1 << 32:
        return array.astype(np.uint32)
    return array
