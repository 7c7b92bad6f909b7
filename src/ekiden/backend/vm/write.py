"""Write an executable: the bytes of an .eki file. docs/artifact-format.md is the specification."""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ekiden.backend.vm.encode import Instruction, dtype_code, encode
from ekiden.ir.pass_context import phase
from ekiden.runtime.artifact import Constant, Pieces, Section, write_constants, write_sections
from ekiden.runtime.errors import InternalError

__all__ = ["CALL_CLOSURE", "Places", "VMFunction", "write_executable"]

CALL_CLOSURE = "call closure"
"""Begins the names of functions by which a caller of the program calls closures that it gave."""


@dataclass(frozen=True, slots=True)
class VMFunction:
    """A function of bytecode. Arguments arrive in registers 0, 1, ...; there are `n_registers`."""

    name: str
    params: tuple[str, ...]
    n_registers: int
    code: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """The devices of an executable, DLPack's (type, id), the host first; and which of them, by
    number, each constant, primitive (-1 for any) and parameter of a function is on.
    """

    devices: tuple[tuple[int, int], ...] = ((1, 0),)
    constants: tuple[int, ...] = ()
    primitives: tuple[int, ...] = ()
    params: tuple[tuple[int, ...], ...] = ()


@phase("write")
def write_executable(
    functions: Sequence[VMFunction],
    constants: Sequence[np.ndarray],
    primitives: Sequence[str],
    image: bytes,
    metadata: dict[str, object],
    places: Places | None = None,
) -> bytes:
    """The file's bytes; the same arguments always give the same bytes.

    Primitives are named by their position, functions too. An empty `image` leaves its section out,
    and so do `places` on the host alone.
    Constants may be of any layout; they are stored contiguous and little-endian.
    """
    arrays = [_contiguous(constant) for constant in constants]
    sections: list[tuple[Section, Callable[[int], Pieces]]] = [
        (Section.GLOBALS, lambda at: [_globals(functions)]),
        (Section.CONSTANTS, lambda at: write_constants(list(map(_constant, arrays)), at)),
        (Section.PRIMITIVES, lambda at: [_strings(primitives)]),
        (Section.CODE, lambda at: [_code(functions)]),
        (Section.IMAGE, lambda at: [image]),
        (Section.METADATA, lambda at: [_json(metadata)]),
    ]
    if places is not None and len(places.devices) > 1:
        sections.append((Section.DEVICES, lambda at: [_places(places)]))
    return write_sections([s for s in sections if image or s[0] is not Section.IMAGE])


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded


def _strings(texts: Sequence[str]) -> bytes:
    return struct.pack("<I", len(texts)) + b"".join(map(_string, texts))


def _globals(functions: Sequence[VMFunction]) -> bytes:
    names = [_string(function.name) + _strings(function.params) for function in functions]
    return struct.pack("<I", len(functions)) + b"".join(names)


def _places(places: Places) -> bytes:
    devices = [number for device in places.devices for number in device]
    numbers = [*places.constants, *(p + 1 for p in places.primitives)]
    numbers += [p for params in places.params for p in params]
    return struct.pack(f"<I{len(devices)}i{len(numbers)}I", len(places.devices), *devices, *numbers)


def _code(functions: Sequence[VMFunction]) -> bytes:
    return struct.pack("<I", len(functions)) + b"".join(map(_function_code, functions))


def _function_code(function: VMFunction) -> bytes:
    words = [word for instruction in function.code for word in encode(instruction)]
    head = struct.pack("<II", function.n_registers, len(words))
    return head + np.asarray(words, dtype="<i4").tobytes()


def _json(metadata: dict[str, object]) -> bytes:
    return json.dumps(metadata, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _constant(array: np.ndarray) -> Constant:
    code, bits, _ = dtype_code(array.dtype.name)
    data = array.reshape(-1).view(np.uint8).data
    return Constant(code, bits, array.shape, array.nbytes, data)


def _contiguous(constant: np.ndarray) -> np.ndarray:
    """The array in the file's layout, copied only where it has another."""
    array = np.asarray(constant)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.dtype.hasobject or array.dtype.kind in "SUMm":
        raise InternalError(f"writing constants: numbers expected, got dtype {array.dtype.name}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
