"""Link WebAssembly objects into one module that a host loads into a running runtime.

The module is a dynamic library by the convention that LLVM has for them: its first section,
`dylink.0`, says how much memory and how many places of the table it takes; it imports the memory,
the table, where its data and its places begin, services of the runtime as functions, and addresses
as globals (`GOT.mem`). What an image exports are the first of its places in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from ekiden.runtime.errors import InternalError
from ekiden.runtime.lazy_dataclass import dataclass

WASM_MAGIC = b"\0asm\1\0\0\0"
(
    SECTION_CUSTOM,
    SECTION_TYPE,
    SECTION_IMPORT,
    SECTION_FUNCTION,
    SECTION_ELEMENT,
    SECTION_CODE,
    SECTION_DATA,
) = 0, 1, 2, 3, 9, 10, 11
VALUE_TYPE_I32, GLOBAL_MUTABLE = 0x7F, 1
SYMBOL_FUNCTION, SYMBOL_DATA, SYMBOL_GLOBAL = 0, 1, 2
"""Kinds of symbols; of imports the function is 0 too, the table 1, the memory 2, a global 3."""
SYMBOL_FLAG_UNDEFINED, SYMBOL_FLAG_EXPLICIT_NAME = 0x10, 0x40
LINKING_SEGMENT_INFO, LINKING_SYMBOL_TABLE = 5, 8
(
    R_WASM_FUNCTION_INDEX_LEB,
    R_WASM_TYPE_INDEX_LEB,
    R_WASM_GLOBAL_INDEX_LEB,
    R_WASM_MEMORY_ADDR_REL_SLEB,
    R_WASM_TABLE_INDEX_REL_SLEB,
) = 0, 6, 7, 11, 12
"""The relocations of position-independent code."""
WASM_BASE_GLOBALS = ("__memory_base", "__table_base", "__stack_pointer")


class _WasmReader:
    """Reader of LEB128 numbers and names."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def read_byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def read_unsigned(self) -> int:
        """Read an unsigned LEB128 number."""
        value = shift = 0
        while True:
            byte = self.read_byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def read_signed(self) -> int:
        """Read a signed LEB128 number."""
        start = self.at
        value = self.read_unsigned()
        # The sign is the top bit of the last group of seven.
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def read_bytes(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def read_name(self) -> str:
        return self.read_bytes(self.read_unsigned()).decode()


def encode_leb128(value: int) -> bytes:
    """Encode an unsigned number as LEB128."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def encode_padded_leb128(value: int) -> bytes:
    """Encode a 32-bit number in the five bytes that relocations reserve for it."""
    return bytes((value >> 7 * i & 0x7F) | (0x80 if i < 4 else 0) for i in range(5))


def encode_name(text: str) -> bytes:
    """Encode a name with its length before it."""
    data = text.encode()
    return encode_leb128(len(data)) + data


def encode_vector(items: Sequence[bytes]) -> bytes:
    """Encode items with their count before them."""
    return encode_leb128(len(items)) + b"".join(items)


def encode_section(number: int, content: bytes) -> bytes:
    """Encode a section of a module."""
    return bytes((number,)) + encode_leb128(len(content)) + content


def iter_sections(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the sections of a module: number and content."""
    cursor = _WasmReader(data, len(WASM_MAGIC))
    while cursor.at < len(data):
        number = cursor.read_byte()
        yield number, cursor.read_bytes(cursor.read_unsigned())


@dataclass(frozen=True, slots=True)
class WasmSymbol:
    """Symbol of a function or of data; index -1 if it is defined elsewhere."""

    kind: int
    name: str
    index: int
    offset: int
    is_local: bool


@dataclass(frozen=True, slots=True)
class WasmRelocation:
    """Relocation: patch `offset` of the section with the value of a symbol or type."""

    kind: int
    offset: int
    index: int
    addend: int


@dataclass(slots=True)
class WasmObject:
    """Relocatable WebAssembly object."""

    types: list[bytes] = field(default_factory=list)
    imported_functions: list[tuple[str, int]] = field(default_factory=list)
    """Imported functions: name and type index."""
    globals: list[str] = field(default_factory=list)
    """Names of imported globals."""
    function_types: list[int] = field(default_factory=list)
    """Type indices of the object's own functions."""
    code: bytes = b""
    body_ranges: list[tuple[int, int]] = field(default_factory=list)
    """Range of each function body in the code section."""
    segments: list[bytes] = field(default_factory=list)
    alignments: list[int] = field(default_factory=list)
    symbols: list[WasmSymbol] = field(default_factory=list)
    relocations: list[WasmRelocation] = field(default_factory=list)
    """Relocations of the code section; data has none."""


def parse_wasm(data: bytes) -> WasmObject:
    """Parse an object. Raises InternalError for another file, and for code that is not position
    independent.
    """
    if data[: len(WASM_MAGIC)] != WASM_MAGIC:
        raise InternalError("wasm: expected a relocatable object")
    wasm_object = WasmObject()
    for number, content in iter_sections(data):
        cursor = _WasmReader(content)
        if number == SECTION_TYPE:
            wasm_object.types = [_read_function_type(cursor) for _ in range(cursor.read_unsigned())]
        elif number == SECTION_IMPORT:
            _read_imports(wasm_object, cursor)
        elif number == SECTION_FUNCTION:
            wasm_object.function_types = [
                cursor.read_unsigned() for _ in range(cursor.read_unsigned())
            ]
        elif number == SECTION_CODE:
            wasm_object.code = content
            for _ in range(cursor.read_unsigned()):
                size = cursor.read_unsigned()
                wasm_object.body_ranges.append((cursor.at, cursor.at + size))
                cursor.at += size
        elif number == SECTION_DATA:
            wasm_object.segments = [_read_segment(cursor) for _ in range(cursor.read_unsigned())]
        elif number == SECTION_CUSTOM:
            _read_custom_section(wasm_object, cursor.read_name(), cursor)
    return wasm_object


def _read_function_type(cursor: _WasmReader) -> bytes:
    start = cursor.at
    cursor.read_byte()
    for _ in range(2):
        cursor.read_bytes(cursor.read_unsigned())
    return cursor.data[start : cursor.at]


def _read_imports(wasm_object: WasmObject, cursor: _WasmReader) -> None:
    for _ in range(cursor.read_unsigned()):
        _module, name, kind = cursor.read_name(), cursor.read_name(), cursor.read_byte()
        if kind == 0:
            wasm_object.imported_functions.append((name, cursor.read_unsigned()))
            continue
        if kind == 3:
            wasm_object.globals.append(name)
            cursor.read_bytes(2)
            continue
        # A table's element type comes before its limits; a memory has limits alone.
        if kind == 1:
            cursor.read_byte()
        flags = cursor.read_byte()
        for _ in range(1 + (flags & 1)):
            cursor.read_unsigned()


def _read_segment(cursor: _WasmReader) -> bytes:
    if cursor.read_unsigned() != 0:
        raise InternalError("wasm: an active segment of memory 0 expected")
    cursor.read_byte()
    cursor.read_signed()
    cursor.read_byte()
    return cursor.read_bytes(cursor.read_unsigned())


def _read_custom_section(wasm_object: WasmObject, name: str, cursor: _WasmReader) -> None:
    if name == "linking":
        cursor.read_unsigned()
        while cursor.at < len(cursor.data):
            kind, size = cursor.read_byte(), cursor.read_unsigned()
            subsection = _WasmReader(cursor.read_bytes(size))
            if kind == LINKING_SEGMENT_INFO:
                for _ in range(subsection.read_unsigned()):
                    subsection.read_name()
                    wasm_object.alignments.append(1 << subsection.read_unsigned())
                    subsection.read_unsigned()
            elif kind == LINKING_SYMBOL_TABLE:
                wasm_object.symbols = [
                    _read_symbol(wasm_object, subsection) for _ in range(subsection.read_unsigned())
                ]
    elif name == "reloc.CODE":
        cursor.read_unsigned()
        wasm_object.relocations = [_read_relocation(cursor) for _ in range(cursor.read_unsigned())]
    elif name == "reloc.DATA":
        raise InternalError("wasm: compiled code has data with addresses in it")


def _read_symbol(wasm_object: WasmObject, cursor: _WasmReader) -> WasmSymbol:
    kind, flags = cursor.read_byte(), cursor.read_unsigned()
    outside, local = bool(flags & SYMBOL_FLAG_UNDEFINED), flags & 3 == 2
    if kind == SYMBOL_DATA:
        name = cursor.read_name()
        if outside:
            return WasmSymbol(kind, name, -1, 0, local)
        index, offset = cursor.read_unsigned(), cursor.read_unsigned()
        cursor.read_unsigned()
        return WasmSymbol(kind, name, index, offset, local)
    index = cursor.read_unsigned()
    name = (
        ""
        if outside and not flags & SYMBOL_FLAG_EXPLICIT_NAME
        else cursor.read_name()
        if kind != 3
        else ""
    )
    if kind == SYMBOL_FUNCTION and outside:
        return WasmSymbol(kind, name or wasm_object.imported_functions[index][0], -1, index, local)
    if kind == SYMBOL_GLOBAL and outside:
        name = name or wasm_object.globals[index]
    return WasmSymbol(kind, name, index, 0, local)


def _read_relocation(cursor: _WasmReader) -> WasmRelocation:
    kind, offset, index = cursor.read_byte(), cursor.read_unsigned(), cursor.read_unsigned()
    if kind not in (
        R_WASM_FUNCTION_INDEX_LEB,
        R_WASM_TYPE_INDEX_LEB,
        R_WASM_GLOBAL_INDEX_LEB,
        R_WASM_MEMORY_ADDR_REL_SLEB,
        R_WASM_TABLE_INDEX_REL_SLEB,
    ):
        raise InternalError(f"wasm: relocation {kind} is none of position-independent code")
    return WasmRelocation(
        kind, offset, index, cursor.read_signed() if kind == R_WASM_MEMORY_ADDR_REL_SLEB else 0
    )


class WasmLinker:
    """Linker that numbers the types, functions, globals and data of all objects, then resolves
    relocations.
    """

    header_byte = 3
    """Architecture byte in the image header."""

    def __init__(self, objects: Sequence[bytes], exports: Sequence[str]) -> None:
        self.objects = [parse_wasm(data) for data in objects]
        self.types: dict[bytes, int] = {}
        self.undefined_symbols: dict[str, int | None] = {}
        """Undefined symbols: the type index of a function, None for an address."""
        self.data, self.alignment = bytearray(), 1
        self.segment_offsets: dict[tuple[int, int], int] = {}
        self.defined: dict[str, tuple[int, int]] = {}
        for number, wasm_object in enumerate(self.objects):
            self._add_object(number, wasm_object)
        for name in self.defined:
            self.undefined_symbols.pop(name, None)
        # Imported functions come before a module's own in WebAssembly's index space.
        functions = sorted(
            n for n in self.undefined_symbols if self.undefined_symbols[n] is not None
        )
        addresses = sorted(n for n in self.undefined_symbols if self.undefined_symbols[n] is None)
        self.imports = [*functions, *addresses]
        self.functions = {name: i for i, name in enumerate(functions)}
        self.globals = {name: i for i, name in enumerate((*WASM_BASE_GLOBALS, *addresses))}
        self.function_indices: dict[tuple[int, int], int] = {}
        for number, wasm_object in enumerate(self.objects):
            for index in range(len(wasm_object.function_types)):
                self.function_indices[number, index] = len(functions) + len(self.function_indices)
        self.table: dict[int, int] = {}
        self._export_table_indices = {
            name: self._table_index(self._function_index(name)) for name in exports
        }

    def _add_object(self, number: int, wasm_object: WasmObject) -> None:
        kinds = [self.types.setdefault(t, len(self.types)) for t in wasm_object.types]
        for index, segment in enumerate(wasm_object.segments):
            alignment = wasm_object.alignments[index]
            self.alignment = max(self.alignment, alignment)
            self.data += bytes(-len(self.data) % alignment)
            self.segment_offsets[number, index] = len(self.data)
            self.data += segment
        for symbol in wasm_object.symbols:
            if symbol.kind == SYMBOL_FUNCTION and symbol.index >= 0 and not symbol.is_local:
                if symbol.name in self.defined:
                    raise InternalError(f"image: {symbol.name!r} is defined twice")
                self.defined[symbol.name] = (
                    number,
                    symbol.index - len(wasm_object.imported_functions),
                )
            elif symbol.kind == SYMBOL_FUNCTION and symbol.index < 0:
                self.undefined_symbols[symbol.name] = kinds[
                    wasm_object.imported_functions[symbol.offset][1]
                ]
            elif symbol.kind == SYMBOL_DATA and symbol.index < 0:
                self.undefined_symbols[symbol.name] = None

    def _function_index(self, name: str) -> int:
        if name in self.functions:
            return self.functions[name]
        if name not in self.defined:
            raise InternalError(f"image: no object defines {name!r}")
        return self.function_indices[self.defined[name]]

    def _table_index(self, function: int) -> int:
        """Return the table index of a function, relative to the module's table base."""
        return self.table.setdefault(function, len(self.table))

    def exported(self, name: str) -> int:
        """Return the table index of an exported function."""
        return self._export_table_indices[name]

    def _relocation_value(self, number: int, r: WasmRelocation) -> int:
        """Return the value that a relocation writes into the code."""
        wasm_object = self.objects[number]
        if r.kind == R_WASM_TYPE_INDEX_LEB:
            return self.types[wasm_object.types[r.index]]
        symbol = wasm_object.symbols[r.index]
        if r.kind == R_WASM_GLOBAL_INDEX_LEB:
            return self.globals[symbol.name]
        if r.kind == R_WASM_MEMORY_ADDR_REL_SLEB:
            return self.segment_offsets[number, symbol.index] + symbol.offset + r.addend
        if symbol.index < 0:
            function = self._function_index(symbol.name)
        else:
            function = self.function_indices[
                number, symbol.index - len(wasm_object.imported_functions)
            ]
        return function if r.kind == R_WASM_FUNCTION_INDEX_LEB else self._table_index(function)

    def _relocated_code(self) -> list[bytes]:
        bodies: list[bytes] = []
        for number, wasm_object in enumerate(self.objects):
            code = bytearray(wasm_object.code)
            for r in wasm_object.relocations:
                code[r.offset : r.offset + 5] = encode_padded_leb128(
                    self._relocation_value(number, r)
                )
            bodies += [
                encode_leb128(end - start) + bytes(code[start:end])
                for start, end in wasm_object.body_ranges
            ]
        return bodies

    def text(self) -> bytes:
        """Return the linked module."""
        bodies = self._relocated_code()
        kinds = [
            encode_leb128(self.types[wasm_object.types[kind]])
            for wasm_object in self.objects
            for kind in wasm_object.function_types
        ]
        memory, table_size = len(self.data), len(self.table)
        room = b"".join(
            map(encode_leb128, (memory, self.alignment.bit_length() - 1, table_size, 0))
        )
        base = bytes((0x23, 0, 0x0B)), bytes((0x23, 1, 0x0B))  # global.get, end
        encoded_sections = [
            WASM_MAGIC,
            encode_section(
                SECTION_CUSTOM, encode_name("dylink.0") + b"\1" + encode_leb128(len(room)) + room
            ),
            encode_section(SECTION_TYPE, encode_vector(list(self.types))),
            encode_section(SECTION_IMPORT, encode_vector(self._encode_imports())),
            encode_section(SECTION_FUNCTION, encode_vector(kinds)),
            encode_section(
                SECTION_ELEMENT,
                encode_vector(
                    [b"\0" + base[1] + encode_vector(list(map(encode_leb128, self.table)))]
                ),
            ),
            encode_section(SECTION_CODE, encode_vector(bodies)),
        ]
        if self.data:
            content = encode_leb128(memory) + bytes(self.data)
            encoded_sections.append(
                encode_section(SECTION_DATA, encode_vector([b"\0" + base[0] + content]))
            )
        return b"".join(encoded_sections)

    def _encode_imports(self) -> list[bytes]:
        """Return the imports: memory, table, bases and stack, then those of the image's import
        table, functions first.
        """
        table = b"\1\x70\0\0"
        own = [
            encode_name("env") + encode_name("memory") + b"\2\0\0",
            encode_name("env") + encode_name("__indirect_function_table") + table,
            *(
                encode_name("env")
                + encode_name(n)
                + bytes((3, VALUE_TYPE_I32, n == "__stack_pointer"))
                for n in WASM_BASE_GLOBALS
            ),
        ]
        addresses = [n for n in self.globals if n not in WASM_BASE_GLOBALS]
        return [
            *own,
            *(
                encode_name("env")
                + encode_name(n)
                + b"\0"
                + encode_leb128(self.undefined_symbols[n] or 0)
                for n in self.functions
            ),
            *(
                encode_name("GOT.mem") + encode_name(n) + bytes((3, VALUE_TYPE_I32, GLOBAL_MUTABLE))
                for n in addresses
            ),
        ]


__all__ = ["WasmLinker", "WasmObject", "iter_sections", "parse_wasm"]
