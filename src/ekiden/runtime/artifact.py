"""The frame of an .eki file: header, sections, constants. docs/artifact-format.md specifies it."""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np

from ekiden.runtime import environment, mapped
from ekiden.runtime._core import Executable, Tensor, empty, get_global_func, tensor
from ekiden.runtime.late import Late
from ekiden.runtime.late_methods import dataclass
from ekiden.runtime.layout import Section
from ekiden.runtime.metadata import read_metadata

if TYPE_CHECKING:
    from concurrent import futures
else:
    futures = Late("concurrent.futures")

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

Bytes = bytes | memoryview
Piece = Bytes | np.ndarray
"""Arrays may lie in memory as they like: they are written as C has them."""
Pieces = list[Piece]
LARGE = 1 << 20
"""Bytes of a piece that are worth a thread, and of a constant that may stand apart."""
PART = 1 << 23
"""Bytes that a thread takes at a time."""


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


def write_sections(parts: Iterable[Part]) -> memoryview:
    """The file of sections, of each variant of each kind at most one."""
    ordered = sorted(parts, key=lambda part: (part.variant, part.kind))
    at = _aligned(_HEADER.size + len(ordered) * _ENTRY.size)
    pieces: Pieces = [bytes(at)]  # which the head takes when checksums are known
    places = []
    for part in ordered:
        payload = part.payload_at(at)
        length = sum(map(_size, payload))
        places.append((part.variant << VARIANT_BITS | part.kind, at, length))
        pieces += [*payload, bytes(-length % ALIGNMENT)]
        at += _aligned(length)
    if ordered:
        at -= _size(pieces.pop())  # nothing follows the last section
    made = _joined(pieces)
    rows = [(kind, checksum(made[start : start + n]), start, n) for kind, start, n in places]
    head = _head([_ENTRY.pack(*row) for row in rows], at)
    made[: len(head)] = head
    return made


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
    _put_all([(f.reinterpret("uint8", (f.nbytes,)).numpy(), a) for f, a in copied])
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
        data += [stored, b"" if is_last else bytes(-_size(stored) % ALIGNMENT)]
        at += _aligned(_size(stored))
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


def with_constants(data: bytes, constants: Sequence[Constant]) -> memoryview:
    """The same file with other data of its constants, or without that of some."""
    return write_sections(
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


def _head(entries: Sequence[bytes], size: int) -> bytes:
    """Header, section table and the zeros up to the first section."""
    table = b"".join(entries)
    header = _HEADER.pack(MAGIC, VERSION, BYTE_ORDER, size, len(entries), crc32(table))
    return header + table + bytes(-len(header + table) % ALIGNMENT)


def _joined(pieces: Pieces) -> memoryview:
    """One after the other, in the memory of a tensor: it has large pages, takes a third of the time
    that joined `bytes` do, and is aligned as constants are, so that `executable_of` need not copy.
    """
    made = empty((sum(map(_size, pieces)),), "uint8").numpy()
    at, places = 0, []
    for piece in pieces:
        end = at + _size(piece)
        places.append((made[at:end], piece))
        at = end
    _put_all(places)
    return made.data


def _put_all(places: Sequence[tuple[np.ndarray, Piece]]) -> None:
    """Copy pieces into as many bytes each, bit for bit, by threads where they are large. What was
    read of a file goes from memory meanwhile."""
    large = [part for place in places if len(place[0]) >= LARGE for part in _parts(*place)]
    jobs = min(len(large), environment.compile_jobs())
    for place in places:
        if len(place[0]) < LARGE:
            _put(*place)
    if jobs < 2:
        list(starmap(_put, large))
        return
    with futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(_put, *zip(*large, strict=True)))


def _parts(place: np.ndarray, piece: Piece) -> Iterator[tuple[np.ndarray, Piece]]:
    """A piece as several of about the size that a thread takes at a time, by its first axis: the
    largest weight of a network may be as large as all others together."""
    array = np.frombuffer(piece, np.uint8) if not isinstance(piece, np.ndarray) else piece
    rows = len(array) if array.ndim else 1
    step = max(1, rows * PART // len(place))
    row = len(place) // rows
    for at in range(0, rows, step):
        end = min(at + step, rows)
        yield place[at * row : end * row], array[at:end] if array.ndim else array


def _put(place: np.ndarray, piece: Piece) -> None:
    """Copy a piece into as many bytes, bit for bit."""
    if not isinstance(piece, np.ndarray):
        place[:] = np.frombuffer(piece, np.uint8)
        return
    kind = np.dtype(f"u{piece.itemsize}") if piece.itemsize in (1, 2, 4, 8) else piece.dtype
    place.view(kind).reshape(piece.shape)[...] = piece.view(kind)
    mapped.drop(piece)


def _size(piece: Piece) -> int:
    return piece.nbytes if isinstance(piece, np.ndarray) else len(piece)


def checksum(data: Bytes) -> int:
    """As sections have it, by the runtime, whose checksums take less than half of zlib's time."""
    found = get_global_func("ek.runtime.crc32")(tensor(np.frombuffer(data, np.uint8)))
    assert isinstance(found, int)
    return found


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
