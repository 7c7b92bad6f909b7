"""Writer of executable files (.eki). docs/artifact-format.md is the specification."""

import json
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

import numpy as np

from ekiden.backend.vm.type_signatures import encode_signatures
from ekiden.ir.type import Type
from ekiden.runtime.artifact.chunks import ByteSources
from ekiden.runtime.artifact.container_format import (
    ArtifactFile,
    ConstantRecord,
    SectionSource,
    assemble,
    pack_constants_section,
)
from ekiden.runtime.binding.layout import Section
from ekiden.runtime.debug.instructions import Instruction, dtype_code, encode
from ekiden.runtime.errors import InternalError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "DeviceTable",
    "ExecutableProgram",
    "VMFunction",
    "write_executable",
    "write_programs",
]


@dataclass(frozen=True, slots=True)
class VMFunction:
    """Bytecode function with its arguments in registers 0, 1,"""

    name: str
    params: tuple[str, ...]
    n_registers: int
    code: tuple[Instruction, ...]
    types: tuple[Type, ...] = ()
    """Parameter types, checked at calls. None: anything is taken."""


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """Device table of an executable: DLPack (type, id) pairs, the host first, and the device number
    of each constant, primitive (-1: any) and function parameter.
    """

    devices: tuple[tuple[int, int], ...] = ((1, 0),)
    constants: tuple[int, ...] = ()
    primitives: tuple[int, ...] = ()
    params: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutableProgram:
    """Contents of an executable for one target. Primitives and functions are named by their
    position. An empty `image` and a table with the host alone leave their sections out.
    """

    functions: Sequence[VMFunction]
    primitives: Sequence[str]
    image: bytes
    metadata: dict[str, object]
    device_table: DeviceTable = field(default_factory=DeviceTable)
    derived_constants: Sequence[tuple[int, int, tuple[int, ...]]] = ()
    """Constants computed at load time: number, primitive, and operand constants, which precede
    them.
    """
    device_code: bytes = b""
    """Device kernels; if empty, the section is omitted."""
    general_forms: Mapping[str, bytes] = field(default_factory=dict)
    """General forms, by name, of kernels missing from the image; not part of the file."""


def write_executable(
    functions: Sequence[VMFunction],
    constants: Sequence[np.ndarray],
    primitives: Sequence[str],
    image: bytes,
    metadata: dict[str, object],
    device_table: DeviceTable | None = None,
) -> bytes:
    """Return the bytes of a file for one target; see `write_programs`."""
    program = ExecutableProgram(
        functions, primitives, image, metadata, device_table or DeviceTable()
    )
    return bytes(write_programs([program], constants).to_bytes())


def write_programs(
    programs: Sequence[ExecutableProgram],
    constants: Sequence[np.ndarray],
    load_time: Collection[int] = (),
    apart: Collection[int] = (),
) -> ArtifactFile:
    """Write an executable file deterministically. Of several programs, variants of one, the loader
    takes the first whose image its machine can run.

    The programs share one constant table; constants may be of any layout and are stored contiguous
    and little-endian. A program without native code serves every machine. Constants numbered in
    `load_time` have no data: each program that uses one says how it is derived. Those in `apart`
    are passed at load time.
    """
    arrays = [_little_endian(constant) for constant in constants]
    records = [_constant_record(a, n in load_time, n in apart) for n, a in enumerate(arrays)]
    # Without native code a program runs on every machine, so one variant is enough.
    several = programs if all(program.image for program in programs) else programs[:1]
    written = [_encode_sections(program) for program in several]
    kinds = dict.fromkeys(kind for sections in written for kind in sections)
    # Sections that are equal in all variants are stored once.
    common = {k for k in kinds if all(s.get(k) == written[0].get(k) for s in written)}
    file_parts = [SectionSource(Section.CONSTANTS, lambda at: pack_constants_section(records, at))]
    file_parts += [
        SectionSource(kind, _eager_payload(written[0][kind])) for kind in kinds if kind in common
    ]
    for number, sections in enumerate(written, start=1):
        target_sections = {
            kind: payload for kind, payload in sections.items() if kind not in common
        }
        file_parts += [
            SectionSource(kind, _eager_payload(payload), number)
            for kind, payload in target_sections.items()
        ]
    return assemble(file_parts)


def _encode_sections(program: ExecutableProgram) -> dict[Section, bytes]:
    """Return the bytes of all sections but CONSTANTS."""
    payloads = {
        Section.GLOBALS: _encode_globals(program.functions),
        Section.PRIMITIVES: _encode_strings(program.primitives),
        Section.CODE: _encode_code(program.functions),
        Section.METADATA: _encode_json(program.metadata),
    }
    if program.image:
        payloads[Section.IMAGE] = program.image
    if any(function.types for function in program.functions):
        payloads[Section.TYPES] = encode_signatures([f.types for f in program.functions])
    if program.derived_constants:
        payloads[Section.DERIVED] = _encode_derived(program.derived_constants)
    # Without a table everything is on the host.
    if len(program.device_table.devices) > 1:
        payloads[Section.DEVICES] = _encode_device_table(program.device_table)
    if program.device_code:
        payloads[Section.DEVICE_CODE] = program.device_code
    return payloads


def _eager_payload(payload: bytes) -> Callable[[int], ByteSources]:
    return lambda at: [payload]


def _encode_string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded


def _encode_strings(texts: Sequence[str]) -> bytes:
    return struct.pack("<I", len(texts)) + b"".join(map(_encode_string, texts))


def _encode_globals(functions: Sequence[VMFunction]) -> bytes:
    names = [
        _encode_string(function.name) + _encode_strings(function.params) for function in functions
    ]
    return struct.pack("<I", len(functions)) + b"".join(names)


def _encode_device_table(table: DeviceTable) -> bytes:
    devices = [number for device in table.devices for number in device]
    numbers = [*table.constants, *(p + 1 for p in table.primitives)]
    numbers += [p for params in table.params for p in params]
    return struct.pack(f"<I{len(devices)}i{len(numbers)}I", len(table.devices), *devices, *numbers)


def _encode_derived(rows: Sequence[tuple[int, int, tuple[int, ...]]]) -> bytes:
    numbers = [n for constant_index, by, of in rows for n in (constant_index, by, len(of), *of)]
    return struct.pack(f"<{1 + len(numbers)}I", len(rows), *numbers)


def _encode_code(functions: Sequence[VMFunction]) -> bytes:
    return struct.pack("<I", len(functions)) + b"".join(map(_encode_function, functions))


def _encode_function(function: VMFunction) -> bytes:
    words = [word for instruction in function.code for word in encode(instruction)]
    head = struct.pack("<II", function.n_registers, len(words))
    return head + np.asarray(words, dtype="<i4").tobytes()


def _encode_json(metadata: dict[str, object]) -> bytes:
    return json.dumps(metadata, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _constant_record(array: np.ndarray, is_made: bool, is_apart: bool) -> ConstantRecord:
    code, bits, _ = dtype_code(array.dtype.name)
    stored = _pack_bits(array, bits) if bits < _BITS_PER_BYTE else array
    data = None if is_made or is_apart else stored
    return ConstantRecord(code, bits, array.shape, stored.nbytes, data, is_made)


_BITS_PER_BYTE = 8
"""Bits of the smallest addressable element."""


def _pack_bits(array: np.ndarray, bits: int) -> np.ndarray:
    """Pack elements narrower than a byte without gaps, low bits first, as tensors store them; NumPy
    gives each a byte.
    """
    codes = np.ascontiguousarray(array).view(np.uint8).reshape(-1, 1)
    single = np.unpackbits(codes, axis=1, count=bits, bitorder="little")
    return np.packbits(single, bitorder="little")


def _little_endian(constant: np.ndarray) -> np.ndarray:
    """Return the array in the file's byte order, copied only where it differs. Raises InternalError
    for arrays that are not numeric.
    """
    array = np.asarray(constant)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    # Strings, dates and objects have no meaning for kernels.
    if array.dtype.hasobject or array.dtype.kind in "SUMm":
        raise InternalError(f"writing constants: numbers expected, got dtype {array.dtype.name}")
    return array
