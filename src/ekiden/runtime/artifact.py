"""The frame of an .eki file: header, sections, constants. docs/artifact-format.md specifies it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"\x89EKIDEN\n"
VERSION = 1
BYTE_ORDER = 0x01020304
ALIGNMENT = 64
"""Of sections and of the data of constants, in the file and so in memory."""

_HEADER = struct.Struct("<8sIIQII")
_ENTRY = struct.Struct("<IIQQ")
_CONSTANT = struct.Struct("<BBHI")

Bytes = bytes | memoryview
Pieces = list[Bytes]


class Section(IntEnum):
    """What a section holds; they stand in the file in this order."""

    GLOBALS = 1
    CONSTANTS = 2
    PRIMITIVES = 3
    CODE = 4
    IMAGE = 5
    METADATA = 6
    DEVICES = 7


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant as it stands in the file; a late-bound one has no data."""

    code: int
    bits: int
    shape: tuple[int, ...]
    nbytes: int
    data: Bytes | None


def write_sections(sections: Sequence[tuple[Section, Callable[[int], Pieces]]]) -> bytes:
    """The file of sections, each a function from where it starts to its bytes in pieces."""
    at = _aligned(_HEADER.size + len(sections) * _ENTRY.size)
    entries, pieces = [], []
    for kind, payload_at in sections:
        payload = payload_at(at)
        length = sum(len(piece) for piece in payload)
        entries.append(_ENTRY.pack(kind, _checksum(payload), at, length))
        pieces += [*payload, bytes(-length % ALIGNMENT)]
        at += _aligned(length)
    at -= len(pieces.pop())  # nothing follows the last section
    return b"".join([_head(entries, at), *pieces])


def read_sections(data: bytes) -> list[tuple[Section, memoryview]]:
    """The sections of a file that the loader has accepted."""
    count = _HEADER.unpack_from(data)[4]
    found = []
    for index in range(count):
        kind, _, at, length = _ENTRY.unpack_from(data, _HEADER.size + index * _ENTRY.size)
        found.append((Section(kind), memoryview(data)[at : at + length]))
    return found


def write_constants(constants: Sequence[Constant], start: int) -> Pieces:
    """The section that begins at `start` of the file: records, then each constant's data."""
    records_size = 4 + sum(_CONSTANT.size + 8 * len(c.shape) + 16 for c in constants)
    at = start + _aligned(records_size)
    records = [struct.pack("<I", len(constants))]
    data: Pieces = []
    for index, each in enumerate(constants):
        stored = b"" if each.data is None else each.data
        lanes = 0 if each.data is None else 1
        records.append(_CONSTANT.pack(each.code, each.bits, lanes, len(each.shape)))
        records.append(struct.pack(f"<{len(each.shape)}qQQ", *each.shape, each.nbytes, at))
        is_last = index == len(constants) - 1
        data += [stored, b"" if is_last else bytes(-len(stored) % ALIGNMENT)]
        at += _aligned(len(stored))
    padding = bytes(-records_size % ALIGNMENT) if constants else b""
    return [b"".join(records) + padding, *data]


def read_constants(data: bytes) -> list[Constant]:
    """The constants of a file that the loader has accepted."""
    section = dict(read_sections(data))[Section.CONSTANTS]
    (count,) = struct.unpack_from("<I", section)
    at, found = 4, []
    for _ in range(count):
        code, bits, lanes, ndim = _CONSTANT.unpack_from(section, at)
        *shape, nbytes, offset = struct.unpack_from(f"<{ndim}qQQ", section, at + _CONSTANT.size)
        at += _CONSTANT.size + 8 * ndim + 16
        stored = memoryview(data)[offset : offset + nbytes] if lanes else None
        found.append(Constant(code, bits, tuple(shape), nbytes, stored))
    return found


def with_constants(data: bytes, constants: Sequence[Constant]) -> bytes:
    """The same file with other data of its constants, or without that of some."""
    return write_sections(
        [
            (kind, lambda at: write_constants(constants, at))
            if kind is Section.CONSTANTS
            else (kind, _same(payload))
            for kind, payload in read_sections(data)
        ]
    )


def without_kernels(data: bytes) -> bytes:
    """The same file without its native code."""
    kept = [(kind, _same(p)) for kind, p in read_sections(data) if kind is not Section.IMAGE]
    return write_sections(kept)


def _same(payload: Bytes) -> Callable[[int], Pieces]:
    return lambda at: [payload]


def _head(entries: Sequence[bytes], size: int) -> bytes:
    """Header, section table and the zeros up to the first section."""
    table = b"".join(entries)
    header = _HEADER.pack(MAGIC, VERSION, BYTE_ORDER, size, len(entries), zlib.crc32(table))
    return header + table + bytes(-len(header + table) % ALIGNMENT)


def _checksum(payload: Iterable[Bytes]) -> int:
    crc = 0
    for piece in payload:
        crc = zlib.crc32(piece, crc)
    return crc


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
