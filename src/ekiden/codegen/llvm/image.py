"""Native code images: object files linked into one position-independent blob that needs no linker
to load.

Layout (the loader is runtime/src/ek_image.c; runtime.h has the specification):

    0     "EKIMG\\0\\0\\1", u32 exports, u32 imports, u64 text size, u64 offset of exports, u64
    offset of imports, u64 size 4096  text: code, then read-only data, then a stub `jmp *slot(%rip)`
    per import ...   export table {u32 length, name, u64 offset in text}, import table {u32 length,
    name}

In memory a table of addresses, one slot per import, follows the text on the next page.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ekiden.codegen.llvm import elf
from ekiden.runtime.errors import InternalError, LoadError

MAGIC = b"EKIMG\0\0\1"
PAGE = 4096
HEADER = struct.Struct("<8sIIQQQQ")
SERVICES = (
    "ek_call_packed",
    "ek_kernel_error",
    "ek_parallel_for",
    "ek_value_drop",
    "ek_workspace_alloc",
    "ek_workspace_free",
    "memcpy",
    "memmove",
    "memset",
)
"""What the runtime gives to compiled code, beside a call site for each name behind CALL_SITE."""
CALL_SITE = "packed:"

# relocation types of the x86-64 psABI
PC32, PLT32, GOTPCREL, GOTPCRELX, REX_GOTPCRELX, PC64 = 2, 4, 9, 41, 42, 24
STUB_SIZE = 8


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What is in an image: offsets of exports in the text, names of imports, the text itself."""

    exports: dict[str, int]
    imports: tuple[str, ...]
    text: bytes


def link(objects: Sequence[bytes], exports: Sequence[str]) -> bytes:
    """Link objects into an image that exports the named functions, in that order.

    The same objects give the same bytes. Raises InternalError if code needs what the runtime does
    not provide, if an export is missing, or if two objects define one name.
    """
    linker = _Linker([elf.read(data) for data in objects])
    text = linker.text()
    table = [_entry(name) + struct.pack("<Q", linker.exported(name)) for name in exports]
    exports_at = PAGE + len(text)
    imports_at = exports_at + sum(len(row) for row in table)
    tail = b"".join([*table, *(_entry(name) for name in linker.imports)])
    total = exports_at + len(tail)
    header = HEADER.pack(
        MAGIC, len(exports), len(linker.imports), len(text), exports_at, imports_at, total
    )
    return header.ljust(PAGE, b"\0") + text + tail


def _entry(name: str) -> bytes:
    data = name.encode()
    return struct.pack("<I", len(data)) + data


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class _Linker:
    """Places sections of all objects, then resolves relocations against the places."""

    def __init__(self, objects: Sequence[elf.ElfObject]) -> None:
        self.objects = objects
        self.places: dict[tuple[int, int], int] = {}
        self.globals: dict[str, int] = {}
        self.end = 0
        for executable in (True, False):
            for number, each in enumerate(objects):
                self._place(number, each, executable)
        for number, each in enumerate(objects):
            self._define(number, each)
        self.imports = sorted(self._undefined())
        unknown = [n for n in self.imports if n not in SERVICES and not n.startswith(CALL_SITE)]
        if unknown:
            raise InternalError(
                f"image: compiled code calls {', '.join(unknown)}; there are {', '.join(SERVICES)}"
            )
        self.stubs = _align(self.end, STUB_SIZE)
        self.size = self.stubs + STUB_SIZE * len(self.imports)
        self.slots = _align(self.size, PAGE)

    def _place(self, number: int, each: elf.ElfObject, executable: bool) -> None:
        for index, section in each.sections.items():
            if section.executable == executable and section.data:
                self.end = _align(self.end, section.alignment)
                self.places[number, index] = self.end
                self.end += len(section.data)

    def _define(self, number: int, each: elf.ElfObject) -> None:
        for symbol in each.symbols:
            place = self.places.get((number, symbol.section))
            if place is None or symbol.is_local:
                continue
            if symbol.name in self.globals:
                raise InternalError(f"image: {symbol.name!r} is defined twice")
            self.globals[symbol.name] = place + symbol.value

    def _undefined(self) -> set[str]:
        used = (
            each.symbols[r.symbol]
            for each in self.objects
            for s in each.sections.values()
            for r in s.relocations
        )
        return {
            s.name
            for s in used
            if s.section == elf.UNDEFINED and s.name and s.name not in self.globals
        }

    def exported(self, name: str) -> int:
        """Where an exported function starts."""
        if name not in self.globals:
            raise InternalError(f"image: no object defines {name!r}")
        return self.globals[name]

    def text(self) -> bytes:
        """Code, data and stubs with every reference resolved."""
        out = bytearray(b"\xcc" * self.size)
        for (number, index), place in self.places.items():
            section = self.objects[number].sections[index]
            out[place : place + len(section.data)] = section.data
        for i in range(len(self.imports)):
            at = self.stubs + STUB_SIZE * i
            out[at : at + 6] = b"\xff\x25" + struct.pack("<i", self.slots + 8 * i - (at + 6))
        for (number, index), place in self.places.items():
            for relocation in self.objects[number].sections[index].relocations:
                self._relocate(out, number, place, relocation)
        return bytes(out)

    def _relocate(self, out: bytearray, number: int, place: int, r: elf.Relocation) -> None:
        symbol, at = self.objects[number].symbols[r.symbol], place + r.offset
        home = self.places.get((number, symbol.section))
        defined = home + symbol.value if home is not None else self.globals.get(symbol.name)
        if r.kind in (GOTPCREL, GOTPCRELX, REX_GOTPCRELX):
            value = self._slot(out, at, symbol.name, defined)
        elif defined is not None:
            value = defined
        else:
            value = self.stubs + STUB_SIZE * self.imports.index(symbol.name)
        if r.kind == PC64:
            struct.pack_into("<q", out, at, value + r.addend - at)
        elif r.kind in (PC32, PLT32, GOTPCREL, GOTPCRELX, REX_GOTPCRELX):
            struct.pack_into("<i", out, at, value + r.addend - at)
        else:
            raise InternalError(
                f"image: relocation type {r.kind} against {symbol.name!r}"
                " is not position independent"
            )

    def _slot(self, out: bytearray, at: int, name: str, defined: int | None) -> int:
        """A reference through the address table; to something inside the image, `mov` becomes
        `lea`."""
        if defined is None:
            return self.slots + 8 * self.imports.index(name)
        if out[at - 2] != 0x8B:
            raise InternalError(
                f"image: {name!r} is reached through an address table but lies inside the image"
            )
        out[at - 2] = 0x8D
        return defined


def inspect(image: bytes) -> ImageInfo:
    """Take an image apart. Raises LoadError if it is not one."""
    if len(image) < PAGE or image[: len(MAGIC)] != MAGIC:
        raise LoadError("image: not a native code image")
    _, n_exports, n_imports, text_size, exports_at, imports_at, total = HEADER.unpack_from(image)
    if total != len(image) or exports_at != PAGE + text_size or imports_at > total:
        raise LoadError(f"image: header promises {total} bytes, got {len(image)}")
    exports: dict[str, int] = {}
    at = exports_at
    for _ in range(n_exports):
        name, at = _name(image, at)
        (exports[name],) = struct.unpack_from("<Q", image, at)
        at += 8
    imports: list[str] = []
    for _ in range(n_imports):
        name, at = _name(image, at)
        imports.append(name)
    return ImageInfo(exports, tuple(imports), image[PAGE : PAGE + text_size])


def _name(image: bytes, at: int) -> tuple[str, int]:
    if at + 4 > len(image):
        raise LoadError("image: a table is truncated")
    (size,) = struct.unpack_from("<I", image, at)
    if at + 4 + size > len(image):
        raise LoadError("image: a table is truncated")
    return image[at + 4 : at + 4 + size].decode(), at + 4 + size
