"""The frame of an .eki file: header, sections, constants. docs/artifact-format.md specifies it."""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from ekiden.runtime.artifact.metadata import read_metadata
from ekiden.runtime.artifact.pieces import (
    Bytes,
    Piece,
    Pieces,
    checksum,
    joined,
    parts_of,
    put_all,
    size_of,
)
from ekiden.runtime.binding._core import Executable, Tensor, empty, get_global_func, tensor
from ekiden.runtime.binding.layout import Section
from ekiden.runtime.files import Writer
from ekiden.runtime.lazy_dataclass import dataclass

MAGIC = b"\x89EKIDEN\n"
VERSION = 1
VARIANT_BITS = 16
"""Above so many bits of a section's kind stands the variant that it is of."""
BYTE_ORDER = 0x01020304
ALIGNMENT = 64
"""Of sections and of the data of constants, in the file and so in memory."""

_HEADER = struct.Struct("<8sIIQII")
_ENTRY = struct.Struct("<IIQQ")
_CONSTANT = struct.Struct("<BBHI")


@dataclass(frozen=True, slots=True)
class Part:
    """A section of all variants (0) or of one, by its number: how it is written, as a function from
    where it starts in the file to its bytes in pieces.
    """

    kind: Section
    payload_at: Callable[[int], Pieces]
    variant: int = 0


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant as it stands in the file; a late-bound one has no data, and neither has one that
    is made of others at loading."""

    code: int
    bits: int
    shape: tuple[int, ...]
    nbytes: int
    data: Piece | None
    is_made: bool = False


LATE_BOUND, STORED, MADE_AT_LOAD = 0, 1, 0xFFFF
"""In place of lanes, which are 1: where the data of a constant comes from."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A file whose sections have their places, and whose bytes lie in pieces where they were made:
    they may be read more than once, and are what was given as long as nobody writes it."""

    rows: tuple[tuple[int, int, int], ...]
    """Of each section its kind with the variant, where it begins, its length."""
    sections: tuple[Pieces, ...]
    """The bytes of each, and the zeros behind them."""
    size: int

    def joined(self) -> memoryview:
        """The file in memory."""
        made = joined([bytes(self._begin), *chain(*self.sections)])
        sums = [checksum(made[start : start + length]) for _, start, length in self.rows]
        made[: self._begin] = self._head(sums)
        return made

    def write(self, file: Writer) -> None:
        """The file into another, of which a part is in memory at a time. What it holds at its
        beginning is known when all has been read, which is done once more for that."""
        sums = [
            self._sum(parts_of(pieces), length)
            for pieces, (_, _, length) in zip(self.sections, self.rows, strict=True)
        ]
        file.write(self._head(sums))
        for part in parts_of(chain(*self.sections)):
            file.write(part)

    def write_once(self, file: Seekable) -> None:
        """The same into a file that can go back to its beginning: all is read once."""
        file.write(bytes(self._begin))
        sums = [
            self._sum(_written(parts_of(pieces), file), length)
            for pieces, (_, _, length) in zip(self.sections, self.rows, strict=True)
        ]
        file.seek(0)
        file.write(self._head(sums))
        file.seek(self.size)

    @property
    def _begin(self) -> int:
        return _aligned(_HEADER.size + len(self.rows) * _ENTRY.size)

    def _sum(self, parts: Iterable[memoryview], length: int) -> int:
        """The checksum of so many bytes; behind them stand zeros, which it leaves out."""
        found = 0
        for part in parts:
            if length > 0:
                found = checksum(part[:length], found)
            length -= len(part)
        return found

    def _head(self, sums: Sequence[int]) -> bytes:
        """Header, section table and the zeros up to the first section."""
        rows = zip(self.rows, sums, strict=True)
        table = b"".join(_ENTRY.pack(kind, each, start, n) for (kind, start, n), each in rows)
        header = _HEADER.pack(MAGIC, VERSION, BYTE_ORDER, self.size, len(sums), crc32(table))
        return header + table + bytes(-len(header + table) % ALIGNMENT)


class Seekable(Writer, Protocol):
    """A file of its own from the beginning, which can go back."""

    def seek(self, offset: int, /) -> object:
        """Go to a byte."""


def _written(parts: Iterable[memoryview], file: Writer) -> Iterator[memoryview]:
    """Parts, each when it is written."""
    for part in parts:
        file.write(part)
        yield part


def assemble(parts: Iterable[Part]) -> Assembly:
    """The file of sections, of each variant of each kind at most one."""
    ordered = sorted(parts, key=lambda part: (part.variant, part.kind))
    at = _aligned(_HEADER.size + len(ordered) * _ENTRY.size)
    rows, sections = [], []
    for part in ordered:
        payload = part.payload_at(at)
        length = sum(map(size_of, payload))
        rows.append((part.variant << VARIANT_BITS | part.kind, at, length))
        is_last = part is ordered[-1]  # nothing follows it
        zeros = 0 if is_last else -length % ALIGNMENT
        sections.append([*payload, bytes(zeros)])
        at += length + zeros
    return Assembly(tuple(rows), tuple(sections), at)


def write_sections(parts: Iterable[Part]) -> memoryview:
    """The same in memory."""
    return assemble(parts).joined()


def executable_of(data: Bytes, apart: Mapping[int, np.ndarray] | None = None) -> Executable:
    """The program in the bytes of its file, which must not be written any more: it has their memory
    where that is aligned as constants are, as that of `write_sections` is. `apart` are constants by
    number that the file is without: of each a copy, or it as it is where nobody can write it and it
    lies as a constant does.
    """
    made = get_global_func("ek.executable.of_tensor")(tensor(np.frombuffer(data, np.uint8)))
    assert isinstance(made, Executable)
    if apart:
        bind = get_global_func("ek.executable.bind_constant")
        for number, value in zip(apart, _settled(list(apart.values())), strict=True):
            bind(made, number, value)
    return made


def _settled(arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """Arrays as tensors that stay as they are."""
    found = [
        tensor(np.asarray(a)) if is_settled(a) else empty(a.shape, a.dtype.name) for a in arrays
    ]
    copied = [(f, a) for f, a in zip(found, arrays, strict=True) if not is_settled(a)]
    put_all([(f.reinterpret("uint8", (f.nbytes,)).numpy(), a) for f, a in copied])
    return found


def is_settled(array: np.ndarray) -> bool:
    """Whether an array is memory of a tensor that nobody can write, and lies as constants do.

    One of NumPy's own is not, though it cannot be written: who owns it may allow that again.
    """
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    base: object = owner.base
    is_own = isinstance(base, Tensor)
    is_placed = array.__array_interface__["data"][0] % ALIGNMENT == 0
    is_plain = array.flags.c_contiguous and array.dtype.isnative
    return is_own and not owner.flags.writeable and is_placed and is_plain


def file_of(executable: Executable) -> memoryview:
    """The bytes of an executable's file, which are its memory: late-bound constants are none of
    them."""
    found = get_global_func("ek.executable.file")(executable)
    assert isinstance(found, Tensor)
    return found.numpy().data


def read_sections(data: Bytes) -> list[tuple[Section, int, memoryview]]:
    """The sections of a file that the loader has accepted: kind, variant, bytes."""
    count = _HEADER.unpack_from(data)[4]
    found = []
    for index in range(count):
        kind, _, at, length = _ENTRY.unpack_from(data, _HEADER.size + index * _ENTRY.size)
        variant, kind = divmod(kind, 1 << VARIANT_BITS)
        found.append((Section(kind), variant, memoryview(data)[at : at + length]))
    return found


def write_constants(constants: Sequence[Constant], start: int) -> Pieces:
    """The section that begins at `start` of the file: records, then each constant's data."""
    records_size = 4 + sum(_CONSTANT.size + 8 * len(c.shape) + 16 for c in constants)
    at = start + _aligned(records_size)
    records = [struct.pack("<I", len(constants))]
    data: Pieces = []
    for index, each in enumerate(constants):
        stored = b"" if each.data is None else each.data
        lanes = MADE_AT_LOAD if each.is_made else LATE_BOUND if each.data is None else STORED
        records.append(_CONSTANT.pack(each.code, each.bits, lanes, len(each.shape)))
        records.append(struct.pack(f"<{len(each.shape)}qQQ", *each.shape, each.nbytes, at))
        is_last = index == len(constants) - 1
        data += [stored, b"" if is_last else bytes(-size_of(stored) % ALIGNMENT)]
        at += _aligned(size_of(stored))
    padding = bytes(-records_size % ALIGNMENT) if constants else b""
    return [b"".join(records) + padding, *data]


def read_constants(data: Bytes) -> list[Constant]:
    """The constants of a file that the loader has accepted."""
    section = next(p for kind, _, p in read_sections(data) if kind is Section.CONSTANTS)
    (count,) = struct.unpack_from("<I", section)
    at, found = 4, []
    for _ in range(count):
        code, bits, lanes, ndim = _CONSTANT.unpack_from(section, at)
        *shape, nbytes, offset = struct.unpack_from(f"<{ndim}qQQ", section, at + _CONSTANT.size)
        at += _CONSTANT.size + 8 * ndim + 16
        stored = memoryview(data)[offset : offset + nbytes] if lanes == STORED else None
        is_made = lanes == MADE_AT_LOAD
        found.append(Constant(code, bits, tuple(shape), nbytes, stored, is_made))
    return found


def metadata_of(data: Bytes) -> dict[str, object]:
    """The metadata, of the first variant, of a file that the loader accepts, here or elsewhere."""
    section = next(p for kind, _, p in read_sections(data) if kind is Section.METADATA)
    return read_metadata(bytes(section), "executable", None)


def function_names(data: Bytes) -> list[str]:
    """The names of the functions of a file that the loader accepts, here or elsewhere."""
    section = next(p for kind, _, p in read_sections(data) if kind is Section.GLOBALS)
    (count,) = struct.unpack_from("<I", section)
    at, found = 4, []
    for _ in range(count):
        name, at = _string(section, at)
        found.append(name)
        (params,) = struct.unpack_from("<I", section, at)
        at += 4
        for _ in range(params):
            _, at = _string(section, at)
    return found


def _string(section: memoryview, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<I", section, at)
    end = at + 4 + size
    return bytes(section[at + 4 : end]).decode(), end


def with_constants(data: Bytes, constants: Sequence[Constant]) -> Assembly:
    """The same file with other data of its constants, or without that of some."""
    return assemble(
        _constants_part(constants) if kind is Section.CONSTANTS else _same(kind, payload, variant)
        for kind, variant, payload in read_sections(data)
    )


def without_kernels(data: Bytes, variant: int) -> memoryview:
    """The same file without native code, of one variant; 0 where there is but one."""
    constants = _constants_part(read_constants(data))  # their data moves
    kept = [
        _same(kind, payload)
        for kind, of, payload in read_sections(data)
        if kind not in (Section.IMAGE, Section.CONSTANTS) and of in (0, variant)
    ]
    return write_sections([constants, *kept])


def _constants_part(constants: Sequence[Constant]) -> Part:
    return Part(Section.CONSTANTS, lambda at: write_constants(constants, at))


def _same(kind: Section, payload: Bytes, variant: int = 0) -> Part:
    return Part(kind, lambda at: [payload], variant)


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
