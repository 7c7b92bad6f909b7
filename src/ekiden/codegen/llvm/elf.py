"""Reads relocatable ELF objects: as much of the format as compilers write for position-independent
code."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from ekiden.runtime.errors import InternalError

SHT_SYMTAB, SHT_RELA, SHT_NOBITS = 2, 4, 8
SHF_ALLOC, SHF_EXECUTE = 2, 4
UNDEFINED = 0


@dataclass(frozen=True, slots=True)
class Relocation:
    """Put something computed from a symbol and an addend at `offset` of a section."""

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name and where it is: offset `value` in section number `section`, 0 when it is defined
    elsewhere."""

    name: str
    section: int
    value: int
    is_local: bool


@dataclass(slots=True)
class Section:
    """A section that is loaded when the program runs."""

    name: str
    data: bytes
    alignment: int
    executable: bool
    relocations: list[Relocation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ElfObject:
    """A relocatable object: loaded sections by their number in the file, and all symbols."""

    machine: int
    """ELF's number of the architecture."""
    sections: dict[int, Section]
    symbols: list[Symbol]


def read(data: bytes) -> ElfObject:
    """Parse an object. Raises InternalError if it is not a little-endian 64-bit relocatable."""
    if data[:6] != b"\x7fELF\2\1" or struct.unpack_from("<H", data, 16) != (1,):
        raise InternalError("elf: expected a relocatable 64-bit object")
    (machine,) = struct.unpack_from("<H", data, 18)
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]

    def content(i: int) -> bytes:
        header = headers[i]
        return (
            bytes(header[5]) if header[1] == SHT_NOBITS else data[header[4] : header[4] + header[5]]
        )

    names = content(names_at)
    sections: dict[int, Section] = {}
    symbols: list[Symbol] = []
    for i, (name, kind, flags, _, _, _, link, _, alignment, _) in enumerate(headers):
        title = _string(names, name)
        if flags & SHF_ALLOC and not title.startswith(".eh_frame"):
            sections[i] = Section(title, content(i), max(alignment, 1), bool(flags & SHF_EXECUTE))
        if kind == SHT_SYMTAB:
            symbols = _symbols(content(i), content(link))
    for i, header in enumerate(headers):
        if header[1] == SHT_RELA and header[7] in sections:
            sections[header[7]].relocations = _relocations(content(i))
    return ElfObject(machine, sections, symbols)


def _string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def _symbols(table: bytes, names: bytes) -> list[Symbol]:
    rows = struct.iter_unpack("<IBBHQQ", table)
    return [
        Symbol(_string(names, name), section, value, info >> 4 == 0)
        for name, info, _, section, value, _ in rows
    ]


def _relocations(table: bytes) -> list[Relocation]:
    rows = struct.iter_unpack("<QQq", table)
    return [Relocation(at, info & 0xFFFFFFFF, info >> 32, addend) for at, info, addend in rows]
