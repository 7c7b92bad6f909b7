"""Write an executable: the bytes of an .eki file. docs/artifact-format.md is the specification."""

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ekiden.backend.vm.encode import Instruction, dtype_code, encode
from ekiden.runtime.errors import InternalError

__all__ = ["CALL_CLOSURE", "Section", "VMFunction", "write_executable"]

CALL_CLOSURE = "call closure"
"""Begins the names of functions by which a caller of the program calls closures that it gave."""

MAGIC = b"\x89EKIDEN\n"
VERSION = 1
BYTE_ORDER = 0x01020304
ALIGNMENT = 64
"""Of sections and of the data of constants, in the file and so in memory."""

_HEADER = struct.Struct("<8sIIQII")
_ENTRY = struct.Struct("<IIQQ")
_CONSTANT = struct.Struct("<BBHI")


class Section(IntEnum):
    """What a section holds; they stand in the file in this order."""

    GLOBALS = 1
    CONSTANTS = 2
    PRIMITIVES = 3
    CODE = 4
    IMAGE = 5
    METADATA = 6


@dataclass(frozen=True, slots=True)
class VMFunction:
    """A function of bytecode. Arguments arrive in registers 0, 1, ...; there are `n_registers`."""

    name: str
    params: tuple[str, ...]
    n_registers: int
    code: tuple[Instruction, ...]


def write_executable(
    functions: Sequence[VMFunction],
    constants: Sequence[np.ndarray],
    primitives: Sequence[str],
    image: bytes,
    metadata: dict[str, object],
) -> bytes:
    """The file's bytes; the same arguments always give the same bytes.

    Primitives are named by their position, functions too. An empty `image` leaves its section out.
    Constants may be of any layout; they are stored contiguous and little-endian.
    """
    sections: list[tuple[Section, list[bytes | memoryview]]] = [
        (Section.GLOBALS, [_globals(functions)]),
        (Section.CONSTANTS, []),
        (Section.PRIMITIVES, [_strings(primitives)]),
        (Section.CODE, [_code(functions)]),
        (Section.IMAGE, [image]),
        (Section.METADATA, [_json(metadata)]),
    ]
    if not image:
        sections = [each for each in sections if each[0] != Section.IMAGE]
    at = _aligned(_HEADER.size + len(sections) * _ENTRY.size)
    entries, pieces = [], []
    for kind, payload in sections:
        if kind == Section.CONSTANTS:
            payload = _constants(constants, at)
        length = sum(len(piece) for piece in payload)
        entries.append(_ENTRY.pack(kind, _checksum(payload), at, length))
        pieces += [*payload, bytes(-length % ALIGNMENT)]
        at += _aligned(length)
    at -= len(pieces.pop())  # nothing follows the last section
    return b"".join([_head(entries, at), *pieces])


def _head(entries: Sequence[bytes], size: int) -> bytes:
    """Header, section table and the zeros up to the first section."""
    table = b"".join(entries)
    header = _HEADER.pack(MAGIC, VERSION, BYTE_ORDER, size, len(entries), zlib.crc32(table))
    return header + table + bytes(-len(header + table) % ALIGNMENT)


def _checksum(payload: Iterable[bytes | memoryview]) -> int:
    crc = 0
    for piece in payload:
        crc = zlib.crc32(piece, crc)
    return crc


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded


def _strings(texts: Sequence[str]) -> bytes:
    return struct.pack("<I", len(texts)) + b"".join(map(_string, texts))


def _globals(functions: Sequence[VMFunction]) -> bytes:
    names = [_string(function.name) + _strings(function.params) for function in functions]
    return struct.pack("<I", len(functions)) + b"".join(names)


def _code(functions: Sequence[VMFunction]) -> bytes:
    return struct.pack("<I", len(functions)) + b"".join(map(_function_code, functions))


def _function_code(function: VMFunction) -> bytes:
    words = [word for instruction in function.code for word in encode(instruction)]
    head = struct.pack("<II", function.n_registers, len(words))
    return head + np.asarray(words, dtype="<i4").tobytes()


def _json(metadata: dict[str, object]) -> bytes:
    return json.dumps(metadata, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _constants(constants: Sequence[np.ndarray], start: int) -> list[bytes | memoryview]:
    """The section that begins at `start` of the file: records, then each constant's data."""
    arrays = [_contiguous(constant) for constant in constants]
    records_size = 4 + sum(_CONSTANT.size + 8 * array.ndim + 16 for array in arrays)
    at = start + _aligned(records_size)
    records = [struct.pack("<I", len(arrays))]
    data: list[bytes | memoryview] = []
    for index, array in enumerate(arrays):
        code, bits, lanes = dtype_code(array.dtype.name)
        records.append(_CONSTANT.pack(code, bits, lanes, array.ndim))
        records.append(struct.pack(f"<{array.ndim}qQQ", *array.shape, array.nbytes, at))
        data.append(array.reshape(-1).view(np.uint8).data)
        is_last = index == len(arrays) - 1
        data.append(b"" if is_last else bytes(-array.nbytes % ALIGNMENT))
        at += _aligned(array.nbytes)
    padding = bytes(-records_size % ALIGNMENT) if arrays else b""
    return [b"".join(records) + padding, *data]


def _contiguous(constant: np.ndarray) -> np.ndarray:
    """The array in the file's layout, copied only where it has another."""
    array = np.asarray(constant)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype.hasobject or array.dtype.kind in "SUMm":
        raise InternalError(f"writing constants: numbers expected, got dtype {array.dtype.name}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
