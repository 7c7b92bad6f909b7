"""Container format of an .eki file: header, section table, sections. docs/artifact-format.md
specifies it.
"""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from ekiden.runtime.artifact.chunks import (
    Bytes,
    ByteSource,
    ByteSources,
    checksum,
    concatenate_sources,
    copy_sources,
    iter_chunks,
    source_nbytes,
)
from ekiden.runtime.artifact.metadata import read_metadata
from ekiden.runtime.binding._core import Executable, Tensor, empty, get_global_func, tensor
from ekiden.runtime.binding.layout import Section
from ekiden.runtime.files import Writer
from ekiden.runtime.lazy_dataclass import dataclass

ARTIFACT_MAGIC = b"\x89EKIDEN\n"
FORMAT_VERSION = 1
VARIANT_BITS = 16
"""Number of low bits of a section entry's kind field that hold the kind; the bits above hold the
variant."""
BYTE_ORDER_MARK = 0x01020304
SECTION_ALIGNMENT_BYTES = 64
"""Alignment of sections and of the data of constants in the file, and therefore in mapped
memory."""

_HEADER_STRUCT = struct.Struct("<8sIIQII")
_SECTION_ENTRY_STRUCT = struct.Struct("<IIQQ")
_CONSTANT_RECORD_STRUCT = struct.Struct("<BBHI")


@dataclass(frozen=True, slots=True)
class SectionSource:
    """Source of one section of the .eki file, written lazily: kind, variant (0: common to all), and
    a function from the file offset to the bytes in pieces.
    """

    kind: Section
    payload_at: Callable[[int], ByteSources]
    variant: int = 0


@dataclass(frozen=True, slots=True)
class ConstantRecord:
    """Constant record of the file; one that is bound late or computed at load time has no data."""

    code: int
    bits: int
    shape: tuple[int, ...]
    nbytes: int
    data: ByteSource | None
    is_computed_at_load: bool = False


LATE_BOUND, STORED, COMPUTED_AT_LOAD = 0, 1, 0xFFFF
"""Origin of a constant's data, encoded in the lanes field of its dtype, which is 1 for every
constant."""


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """Artifact file with laid-out sections; each section's bytes stay in the pieces in which they
    were computed. The pieces may be read more than once and must not be written.
    """

    rows: tuple[tuple[int, int, int], ...]
    """(kind with variant, file offset, length in bytes) of each section."""
    sections: tuple[ByteSources, ...]
    """Bytes of each section, followed by its zero padding."""
    size: int

    def to_bytes(self) -> memoryview:
        """Return the file in memory."""
        contents = concatenate_sources([bytes(self._first_section_offset), *chain(*self.sections)])
        sums = [checksum(contents[start : start + length]) for _, start, length in self.rows]
        contents[: self._first_section_offset] = self._header_bytes(sums)
        return contents

    def write(self, file: Writer) -> None:
        """Write the file to a stream, a piece at a time. The header holds checksums of all
        sections, so the data is read twice.
        """
        # The header holds the checksums, so a stream without seek needs two passes over the data.
        sums = [
            self._section_checksum(iter_chunks(pieces), length)
            for pieces, (_, _, length) in zip(self.sections, self.rows, strict=True)
        ]
        file.write(self._header_bytes(sums))
        for chunk in iter_chunks(chain(*self.sections)):
            file.write(chunk)

    def write_seekable(self, file: Seekable) -> None:
        """Write the file to a seekable stream: the data is read once and the header
        written last.
        """
        file.write(bytes(self._first_section_offset))
        sums = [
            self._section_checksum(_tee(iter_chunks(pieces), file), length)
            for pieces, (_, _, length) in zip(self.sections, self.rows, strict=True)
        ]
        file.seek(0)
        file.write(self._header_bytes(sums))
        file.seek(self.size)

    @property
    def _first_section_offset(self) -> int:
        return _aligned_size(_HEADER_STRUCT.size + len(self.rows) * _SECTION_ENTRY_STRUCT.size)

    def _section_checksum(self, chunks: Iterable[memoryview], length: int) -> int:
        """Return the checksum of `length` bytes, without the padding after them."""
        crc = 0
        for chunk in chunks:
            # Alignment padding is not part of the checksum.
            if length > 0:
                crc = checksum(chunk[:length], crc)
            length -= len(chunk)
        return crc

    def _header_bytes(self, sums: Sequence[int]) -> bytes:
        """Return header, section table and padding up to the first section."""
        rows = zip(self.rows, sums, strict=True)
        table = b"".join(
            _SECTION_ENTRY_STRUCT.pack(kind, crc, start, n) for (kind, start, n), crc in rows
        )
        header = _HEADER_STRUCT.pack(
            ARTIFACT_MAGIC, FORMAT_VERSION, BYTE_ORDER_MARK, self.size, len(sums), crc32(table)
        )
        return header + table + bytes(-len(header + table) % SECTION_ALIGNMENT_BYTES)


class Seekable(Writer, Protocol):
    """Stream that starts at its beginning and can seek back."""

    def seek(self, offset: int, /) -> object:
        """Go to a byte."""


def _tee(chunks: Iterable[memoryview], file: Writer) -> Iterator[memoryview]:
    """Yield chunks after writing each to a stream."""
    for chunk in chunks:
        file.write(chunk)
        yield chunk


def assemble(sources: Iterable[SectionSource]) -> ArtifactFile:
    """Lay out the sections of a file, at most one of each kind per variant."""
    # A canonical order makes equal programs equal files, which caches and tests rely on.
    ordered = sorted(sources, key=lambda source_key: (source_key.variant, source_key.kind))
    position = _aligned_size(_HEADER_STRUCT.size + len(ordered) * _SECTION_ENTRY_STRUCT.size)
    rows, sections = [], []
    for source in ordered:
        # The constants section stores absolute file offsets, so it must know its own.
        payload = source.payload_at(position)
        length = sum(map(source_nbytes, payload))
        rows.append((source.variant << VARIANT_BITS | source.kind, position, length))
        is_last = source is ordered[-1]  # nothing follows it
        zeros = 0 if is_last else -length % SECTION_ALIGNMENT_BYTES
        sections.append([*payload, bytes(zeros)])
        position += length + zeros
    return ArtifactFile(tuple(rows), tuple(sections), position)


def assemble_in_memory(sources: Iterable[SectionSource]) -> memoryview:
    """Assemble sections into the bytes of a container file."""
    return assemble(sources).to_bytes()


def load_executable(
    data: Bytes, external_constants: Mapping[int, np.ndarray] | None = None
) -> Executable:
    """Load the program in a file's bytes. They must not change any more: constants share the memory
    where it is aligned as `assemble_in_memory` aligns it. `external_constants` are constants by
    number that the file does not have; they are copied, or used in place if immutable and aligned.
    """
    executable = get_global_func("ek.executable.of_tensor")(tensor(np.frombuffer(data, np.uint8)))
    assert isinstance(executable, Executable)
    if external_constants:
        bind = get_global_func("ek.executable.bind_constant")
        for number, value in zip(
            external_constants, _as_constant_tensors(list(external_constants.values())), strict=True
        ):
            bind(executable, number, value)
    return executable


def _as_constant_tensors(arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """Return arrays as immutable tensors."""
    tensors = [
        tensor(np.asarray(a)) if is_constant_memory(a) else empty(a.shape, a.dtype.name)
        for a in arrays
    ]
    copied = [(f, a) for f, a in zip(tensors, arrays, strict=True) if not is_constant_memory(a)]
    copy_sources([(f.reinterpret("uint8", (f.nbytes,)).numpy(), a) for f, a in copied])
    return tensors


def is_constant_memory(array: np.ndarray) -> bool:
    """Return whether an array is immutable memory of a tensor, aligned as constants are. NumPy's
    own arrays are not, even if read-only: their owner may make them writable again.
    """
    owner = array
    # A view may be read-only while the array that owns its memory is not.
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    base: object = owner.base
    is_own = isinstance(base, Tensor)
    is_placed = array.__array_interface__["data"][0] % SECTION_ALIGNMENT_BYTES == 0
    is_plain = array.flags.c_contiguous and array.dtype.isnative
    return is_own and not owner.flags.writeable and is_placed and is_plain


def artifact_bytes(executable: Executable) -> memoryview:
    """Return the bytes of an executable's file, in its memory; late-bound constants are not part of
    them.
    """
    contents = get_global_func("ek.executable.file")(executable)
    assert isinstance(contents, Tensor)
    return contents.numpy().data


def read_sections(data: Bytes) -> list[tuple[Section, int, memoryview]]:
    """Return the sections of a valid file: kind, variant, bytes."""
    count = _HEADER_STRUCT.unpack_from(data)[4]
    sections = []
    for index in range(count):
        kind, _, position, length = _SECTION_ENTRY_STRUCT.unpack_from(
            data, _HEADER_STRUCT.size + index * _SECTION_ENTRY_STRUCT.size
        )
        variant, kind = divmod(kind, 1 << VARIANT_BITS)
        sections.append((Section(kind), variant, memoryview(data)[position : position + length]))
    return sections


def pack_constants_section(constants: Sequence[ConstantRecord], start: int) -> ByteSources:
    """Return the constants section that begins at file offset `start`: records, then each
    constant's data.
    """
    records_size = 4 + sum(_CONSTANT_RECORD_STRUCT.size + 8 * len(c.shape) + 16 for c in constants)
    position = start + _aligned_size(records_size)
    records = [struct.pack("<I", len(constants))]
    data: ByteSources = []
    for index, constant in enumerate(constants):
        stored = b"" if constant.data is None else constant.data
        lanes = (
            COMPUTED_AT_LOAD
            if constant.is_computed_at_load
            else LATE_BOUND
            if constant.data is None
            else STORED
        )
        records.append(
            _CONSTANT_RECORD_STRUCT.pack(constant.code, constant.bits, lanes, len(constant.shape))
        )
        records.append(
            struct.pack(f"<{len(constant.shape)}qQQ", *constant.shape, constant.nbytes, position)
        )
        is_last = index == len(constants) - 1
        data += [
            stored,
            b"" if is_last else bytes(-source_nbytes(stored) % SECTION_ALIGNMENT_BYTES),
        ]
        position += _aligned_size(source_nbytes(stored))
    padding = bytes(-records_size % SECTION_ALIGNMENT_BYTES) if constants else b""
    return [b"".join(records) + padding, *data]


def unpack_constants_section(data: Bytes) -> list[ConstantRecord]:
    """Return the constants of a valid file."""
    section = next(p for kind, _, p in read_sections(data) if kind is Section.CONSTANTS)
    (count,) = struct.unpack_from("<I", section)
    position, constants = 4, []
    for _ in range(count):
        code, bits, lanes, ndim = _CONSTANT_RECORD_STRUCT.unpack_from(section, position)
        *shape, nbytes, offset = struct.unpack_from(
            f"<{ndim}qQQ", section, position + _CONSTANT_RECORD_STRUCT.size
        )
        position += _CONSTANT_RECORD_STRUCT.size + 8 * ndim + 16
        stored = memoryview(data)[offset : offset + nbytes] if lanes == STORED else None
        is_made = lanes == COMPUTED_AT_LOAD
        constants.append(ConstantRecord(code, bits, tuple(shape), nbytes, stored, is_made))
    return constants


def artifact_metadata(data: Bytes) -> dict[str, object]:
    """Return the metadata of the first variant of a valid file."""
    section = next(p for kind, _, p in read_sections(data) if kind is Section.METADATA)
    return read_metadata(bytes(section), "executable", None)


def function_names(data: Bytes) -> list[str]:
    """Return the names of the functions of a valid file."""
    section = next(p for kind, _, p in read_sections(data) if kind is Section.GLOBALS)
    (count,) = struct.unpack_from("<I", section)
    position, names = 4, []
    for _ in range(count):
        name, position = _read_string(section, position)
        names.append(name)
        (params,) = struct.unpack_from("<I", section, position)
        position += 4
        for _ in range(params):
            _, position = _read_string(section, position)
    return names


def _read_string(section: memoryview, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<I", section, at)
    end = at + 4 + size
    return bytes(section[at + 4 : end]).decode(), end


def replace_constants(data: Bytes, constants: Sequence[ConstantRecord]) -> ArtifactFile:
    """Build the file with the data of its constants replaced, or removed for some."""
    return assemble(
        _constants_section(constants)
        if kind is Section.CONSTANTS
        else _copy_section(kind, payload, variant)
        for kind, variant, payload in read_sections(data)
    )


def strip_kernels(data: Bytes, variant: int) -> memoryview:
    """Build the file of one variant without native code; `variant` is 0 where there is only one."""
    # Removing a section moves the constants, whose records hold offsets.
    constants = _constants_section(unpack_constants_section(data))  # their data moves
    sources = [
        _copy_section(kind, payload)
        for kind, of, payload in read_sections(data)
        if kind not in (Section.IMAGE, Section.CONSTANTS) and of in (0, variant)
    ]
    return assemble_in_memory([constants, *sources])


def _constants_section(constants: Sequence[ConstantRecord]) -> SectionSource:
    return SectionSource(Section.CONSTANTS, lambda at: pack_constants_section(constants, at))


def _copy_section(kind: Section, payload: Bytes, variant: int = 0) -> SectionSource:
    return SectionSource(kind, lambda at: [payload], variant)


def _aligned_size(size: int) -> int:
    return size + -size % SECTION_ALIGNMENT_BYTES
