r"""Native code images: linker and reader; object files linked into one position-independent blob
that needs no linker to load.

Layout (the loader is runtime/src/ek_image.c; runtime.h has the specification):

       0  "EKIMG\0", architecture, 1, u32 exports, u32 imports, u64 text size,
          u64 offset of exports, u64 offset of imports, u64 size, what it needs
    4096  text: code, then read-only data, then a stub per import that jumps to the address in its
          slot
     ...  export table {u32 length, name, u64 offset in text}, import table {u32 length, name}

In memory a table of addresses, one slot per import, follows the text on the next page. Of
WebAssembly the text is a module (wasm.py), and an export's offset is its place in the table.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ekiden.codegen.llvm import elf, wasm
from ekiden.codegen.llvm.relocation import (
    IMAGE_ARCHITECTURES,
    LINK_ARCHITECTURES,
    X86_64,
    X86_64_WINDOWS,
    LinkArchitecture,
    ResolvedReference,
)
from ekiden.runtime.binding.layout import ABI_SERVICES, SERVICES
from ekiden.runtime.binding.opcodes import OPCODES
from ekiden.runtime.errors import InternalError, LoadError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.target.triple import system_of

IMAGE_MAGIC = b"EKIMG\0"
IMAGE_VERSION = 1
PAGE_BYTES = 4096
IMAGE_HEADER = struct.Struct("<6sBBIIQQQQ")
CALL_SITE_PREFIX = "packed:"
"""Symbol prefix of call sites of runtime functions."""
EXTERN_PREFIX = "ek_extern_"
"""Symbol prefix of C functions that the program itself declares (`call_extern`), resolved in the
library, program or process that loads the code.
"""
VM_HELPERS = frozenset(f"ek_op_{opcode.name}" for opcode in OPCODES)
"""Virtual-machine helpers available to native code, besides the runtime's services."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Contents of an image: offsets of exports in the text, names of imports, and the text."""

    exports: dict[str, int]
    imports: tuple[str, ...]
    text: bytes
    required_cpu_flags: tuple[str, ...] = ()
    """Target processor, followed by the /proc/cpuinfo flags that the code requires."""


def link_image(
    objects: Sequence[bytes], exports: Sequence[str], target: Target | None = None
) -> bytes:
    """Link objects into an image that exports the named functions, in that order. The same objects
    give the same bytes.

    Args:
        objects: relocatable objects of one architecture.
        exports: names of the exported functions.
        target: the image requires this target's features at load time; without one, it loads on any
            machine of its architecture.

    Raises:
        InternalError: if code needs what the runtime does not provide, an export is missing, or two
            objects define one name.
    """
    linker = _create_linker(objects, exports, target)
    provided = VM_HELPERS.union(SERVICES, ABI_SERVICES)
    prefixes = CALL_SITE_PREFIX, EXTERN_PREFIX
    # The loader resolves only these names; anything else would fail in the user's process.
    unknown = [n for n in linker.imports if n not in provided and not n.startswith(prefixes)]
    if unknown:
        raise InternalError(
            f"image: compiled code calls {', '.join(unknown)}; there are {', '.join(SERVICES)}"
        )
    text = linker.text()
    table = [_encode_name(name) + struct.pack("<Q", linker.exported(name)) for name in exports]
    exports_at = PAGE_BYTES + len(text)
    imports_at = exports_at + sum(len(row) for row in table)
    tail = b"".join([*table, *(_encode_name(name) for name in linker.imports)])
    total = exports_at + len(tail)
    counts = len(exports), len(linker.imports)
    mark = linker.header_byte
    header = IMAGE_HEADER.pack(
        IMAGE_MAGIC, mark, IMAGE_VERSION, *counts, len(text), exports_at, imports_at, total
    )
    needs = " ".join((target.cpu, *target.needs)) if target is not None else ""
    return (header + needs.encode()).ljust(PAGE_BYTES, b"\0") + text + tail


def _encode_name(name: str) -> bytes:
    data = name.encode()
    return struct.pack("<I", len(data)) + data


def _align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _create_linker(
    objects: Sequence[bytes], exports: Sequence[str], target: Target | None
) -> _ImageLinker | wasm.WasmLinker:
    if any(data[: len(wasm.WASM_MAGIC)] == wasm.WASM_MAGIC for data in objects):
        return wasm.WasmLinker(objects, exports)
    parsed = [elf.parse_elf(data) for data in objects]
    architecture = _link_architecture(parsed, target)
    return _ImageLinker([*parsed, *_called_helpers(parsed, architecture)], architecture)


def _link_architecture(objects: Sequence[elf.ElfObject], target: Target | None) -> LinkArchitecture:
    """Return the conventions of objects: by their machine, for Windows by the target, as the
    objects do not name a system.
    """
    machines = {file.machine for file in objects} or {X86_64.elf_machine}
    if len(machines) != 1 or not machines <= set(LINK_ARCHITECTURES):
        raise InternalError(f"image: objects of one known machine expected, got {machines}")
    if target is not None and system_of(target.triple) == "windows":
        return X86_64_WINDOWS
    return LINK_ARCHITECTURES[machines.pop()]


def _called_helpers(
    objects: Sequence[elf.ElfObject], architecture: LinkArchitecture
) -> list[elf.ElfObject]:
    """Return an object for each helper that the objects call."""
    called = {
        s.name for file in objects for s in file.symbols if s.section == elf.UNDEFINED_SECTION
    }
    return [
        elf.ElfObject(
            architecture.elf_machine,
            {1: elf.ElfSection(".text", code, 16, executable=True)},
            [elf.ElfSymbol(name, section=1, value=0, is_local=False)],
        )
        for name, code in architecture.helpers.items()
        if name in called
    ]


# Two passes, as every linker's: first all sections of all objects get places, code before data,
# then references can be computed. The order is that of the objects, imports are sorted: one
# content, one image, as its digest is a key of caches.
class _ImageLinker:
    """Linker that lays out the sections of all objects, then resolves relocations against their
    offsets.
    """

    def __init__(self, objects: Sequence[elf.ElfObject], architecture: LinkArchitecture) -> None:
        self.objects = objects
        self.architecture = architecture
        self.header_byte = architecture.header_byte
        self.section_offsets: dict[tuple[int, int], int] = {}
        self.global_symbols: dict[str, int] = {}
        self.num_bytes = 0
        # Code first, so that the executable pages of the image are contiguous.
        for executable in (True, False):
            for number, elf_object in enumerate(objects):
                self._layout_sections(number, elf_object, executable)
        for number, elf_object in enumerate(objects):
            self._define_symbols(number, elf_object)
        # Sorted, because the same objects must give the same bytes.
        self.imports = sorted(self._undefined_symbols())
        self.stubs = _align_up(self.num_bytes, 8)
        self.size = self._stub_offset(len(self.imports))
        # The address table is on pages of its own: it is written at load, the text is mapped
        # read-only.
        self.address_table_offset = _align_up(self.size, PAGE_BYTES)

    def _layout_sections(self, number: int, elf_object: elf.ElfObject, executable: bool) -> None:
        for index, section in elf_object.sections.items():
            if section.executable == executable and section.data:
                self.num_bytes = _align_up(self.num_bytes, section.alignment)
                self.section_offsets[number, index] = self.num_bytes
                self.num_bytes += len(section.data)

    def _define_symbols(self, number: int, elf_object: elf.ElfObject) -> None:
        for symbol in elf_object.symbols:
            section_offset = self.section_offsets.get((number, symbol.section))
            # Local symbols are resolved within their object; other objects may use the same names.
            if section_offset is None or symbol.is_local:
                continue
            if symbol.name in self.global_symbols:
                raise InternalError(f"image: {symbol.name!r} is defined twice")
            self.global_symbols[symbol.name] = section_offset + symbol.value

    def _undefined_symbols(self) -> set[str]:
        used = (
            elf_object.symbols[r.symbol]
            for elf_object in self.objects
            for s in elf_object.sections.values()
            for r in s.relocations
        )
        return {
            s.name
            for s in used
            if s.section == elf.UNDEFINED_SECTION and s.name and s.name not in self.global_symbols
        }

    def exported(self, name: str) -> int:
        """Return the offset of an exported function."""
        if name not in self.global_symbols:
            raise InternalError(f"image: no object defines {name!r}")
        return self.global_symbols[name]

    def _stub_offset(self, number: int) -> int:
        return self.stubs + self.architecture.stub_size * number

    def text(self) -> bytes:
        """Return code, data and stubs with every reference resolved."""
        # Gaps between sections hold trapping instructions: a wild jump fails at once.
        filler = self.architecture.trap_instruction
        out = bytearray(filler * -(-self.size // len(filler)))[: self.size]
        for (number, index), section_offset in self.section_offsets.items():
            section = self.objects[number].sections[index]
            out[section_offset : section_offset + len(section.data)] = section.data
        for i in range(len(self.imports)):
            position = self._stub_offset(i)
            code = self.architecture.encode_stub(
                position, self.address_table_offset + self.architecture.slot_bytes * i
            )
            out[position : position + len(code)] = code
        references = [
            self._resolve_reference(number, base, relocation)
            for (number, index), base in self.section_offsets.items()
            for relocation in self.objects[number].sections[index].relocations
        ]
        for reference in self.architecture.pair_relocations(references):
            self.architecture.apply_relocation(out, reference)
        return bytes(out)

    # A call of something outside goes to a stub that jumps through the slot; a load of its address,
    # which the compiler wrote as one through a table, reads the slot itself.
    def _resolve_reference(
        self, number: int, section_offset: int, r: elf.ElfRelocation
    ) -> ResolvedReference:
        """Return what a relocation of an object refers to: an offset in the text, an address-table
        slot, or a stub.
        """
        symbol, position = self.objects[number].symbols[r.symbol], section_offset + r.offset
        home = self.section_offsets.get((number, symbol.section))
        target = home + symbol.value if home is not None else self.global_symbols.get(symbol.name)
        # An import is reached through a slot of the address table where the relocation allows it
        # (GOTPCREL and its like), else through a stub.
        is_slot = target is None and r.kind in self.architecture.table_relocations
        if target is None:
            imported = self.imports.index(symbol.name)
            slot = self.address_table_offset + self.architecture.slot_bytes * imported
            target = slot if is_slot else self._stub_offset(imported)
        return ResolvedReference(r.kind, position, target + r.addend, is_slot, symbol.name)


def parse_image(image: bytes) -> ImageInfo:
    """Parse an image into its parts. Raises LoadError if it is not one."""
    if len(image) < PAGE_BYTES or image[: len(IMAGE_MAGIC)] != IMAGE_MAGIC:
        raise LoadError("image: not a native code image")
    _, _, _, n_exports, n_imports, text_size, exports_at, imports_at, total = (
        IMAGE_HEADER.unpack_from(image)
    )
    # Bounds are checked before any table is read: images come from files.
    if total != len(image) or exports_at != PAGE_BYTES + text_size or imports_at > total:
        raise LoadError(f"image: header promises {total} bytes, got {len(image)}")
    exports: dict[str, int] = {}
    position = exports_at
    for _ in range(n_exports):
        name, position = _decode_name(image, position)
        (exports[name],) = struct.unpack_from("<Q", image, position)
        position += 8
    imports: list[str] = []
    for _ in range(n_imports):
        name, position = _decode_name(image, position)
        imports.append(name)
    needs = image[IMAGE_HEADER.size : PAGE_BYTES].rstrip(b"\0").decode()
    return ImageInfo(
        exports, tuple(imports), image[PAGE_BYTES : PAGE_BYTES + text_size], tuple(needs.split())
    )


def architecture_of(image: bytes) -> str:
    """Return the architecture that an image runs on, by the compilers' name. Raises LoadError for
    data that is not an image or of an unknown architecture.
    """
    names = [
        architecture.name
        for architecture in IMAGE_ARCHITECTURES
        if architecture.header_byte == image[6]
    ]
    if image[: len(IMAGE_MAGIC)] != IMAGE_MAGIC or not names:
        raise LoadError("image: not a native code image of a known machine")
    return names[0]


def _decode_name(image: bytes, at: int) -> tuple[str, int]:
    if at + 4 > len(image):
        raise LoadError("image: a table is truncated")
    (size,) = struct.unpack_from("<I", image, at)
    if at + 4 + size > len(image):
        raise LoadError("image: a table is truncated")
    return image[at + 4 : at + 4 + size].decode(), at + 4 + size
