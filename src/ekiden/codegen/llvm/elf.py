"""Reader of relocatable ELF objects; as much of the format as compilers write for
position-independent code.
"""

from __future__ import annotations

import struct
from dataclasses import field

from ekiden.runtime.errors import InternalError
from ekiden.runtime.lazy_dataclass import dataclass

SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL = 2, 4, 8, 9
SHF_ALLOC, SHF_EXECUTE = 2, 4
UNDEFINED_SECTION = 0
UNWIND_SECTION_PREFIXES = (".eh_frame", ".ARM.ex")
"""Name prefixes of unwind sections, which images do not need."""


@dataclass(frozen=True, slots=True)
class ElfRelocation:
    """ELF relocation: patch `offset` of a section with a value of a symbol and an addend. 32-bit
    objects store the addend in place; it is 0 here.
    """

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class ElfSymbol:
    """ELF symbol: offset `value` in section number `section`, which is 0 if it is defined
    elsewhere.
    """

    name: str
    section: int
    value: int
    is_local: bool


@dataclass(slots=True)
class ElfSection:
    """ELF section that is loaded at run time."""

    name: str
    data: bytes
    alignment: int
    executable: bool
    relocations: list[ElfRelocation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ElfObject:
    """A relocatable object: loaded sections by their number in the file, and all symbols."""

    machine: int
    """ELF machine number of the architecture."""
    sections: dict[int, ElfSection]
    symbols: list[ElfSymbol]


@dataclass(frozen=True, slots=True)
class _ElfLayout:
    """ELF file layout of one word size: where the header stores the section table's offset and
    length, and the struct formats of its rows.
    """

    start: tuple[str, int]
    counts: int
    section: str
    symbol: str
    relocations: int
    relocation: str
    kind_bits: int


_ELF_LAYOUTS = {
    b"\x7fELF\2\1": _ElfLayout(("<Q", 40), 58, "<IIQQQQIIQQ", "<IBBHQQ", SHT_RELA, "<QQq", 32),
    b"\x7fELF\1\1": _ElfLayout(("<I", 32), 46, "<IIIIIIIIII", "<IIIBBH", SHT_REL, "<II", 8),
}


def parse_elf(data: bytes) -> ElfObject:
    """Parse an object. Raises InternalError if it is not a little-endian relocatable."""
    form = _ELF_LAYOUTS.get(data[:6])
    # e_type (offset 16) is 1 for relocatable objects, ET_REL.
    if form is None or struct.unpack_from("<H", data, 16) != (1,):
        raise InternalError("elf: expected a relocatable object")
    (machine,) = struct.unpack_from("<H", data, 18)
    (start,) = struct.unpack_from(form.start[0], data, form.start[1])
    size, count, names_at = struct.unpack_from("<HHH", data, form.counts)
    headers = [struct.unpack_from(form.section, data, start + i * size) for i in range(count)]

    def section_content(i: int) -> bytes:
        """Return the bytes of a section; a SHT_NOBITS section (.bss) is zeros of its size."""
        header = headers[i]
        return (
            bytes(header[5]) if header[1] == SHT_NOBITS else data[header[4] : header[4] + header[5]]
        )

    names = section_content(names_at)
    sections: dict[int, ElfSection] = {}
    symbols: list[ElfSymbol] = []
    for i, (name, kind, flags, _, _, _, link, _, alignment, _) in enumerate(headers):
        title = _read_string(names, name)
        if flags & SHF_ALLOC and not title.startswith(UNWIND_SECTION_PREFIXES):
            # An alignment of 0 means none, as 1 does (sh_addralign in the ELF specification).
            sections[i] = ElfSection(
                title, section_content(i), max(alignment, 1), bool(flags & SHF_EXECUTE)
            )
        if kind == SHT_SYMTAB:
            symbols = _parse_symbols(form, section_content(i), section_content(link))
    for i, header in enumerate(headers):
        # sh_info (field 7) is the number of the section that the relocations apply to.
        if header[1] == form.relocations and header[7] in sections:
            sections[header[7]].relocations = _parse_relocations(form, section_content(i))
    return ElfObject(machine, sections, symbols)


def _read_string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def _parse_symbols(form: _ElfLayout, table: bytes, names: bytes) -> list[ElfSymbol]:
    rows = list(struct.iter_unpack(form.symbol, table))
    # ELF32 and ELF64 store the same fields of a symbol in a different order.
    if form.kind_bits == 8:  # name, value, size, info, other, section
        rows = [
            (name, info, visibility, position, value, size)
            for name, value, size, info, visibility, position in rows
        ]
    # The upper four bits of st_info are the binding, of which 0 is STB_LOCAL.
    return [
        ElfSymbol(_read_string(names, name), section, value, info >> 4 == 0)
        for name, info, _, section, value, _ in rows
    ]


def _parse_relocations(form: _ElfLayout, table: bytes) -> list[ElfRelocation]:
    mask = (1 << form.kind_bits) - 1
    # r_info holds the symbol's number above the type, which has 8 or 32 bits.
    return [
        ElfRelocation(position, info & mask, info >> form.kind_bits, *(addend or (0,)))
        for position, info, *addend in struct.iter_unpack(form.relocation, table)
    ]
