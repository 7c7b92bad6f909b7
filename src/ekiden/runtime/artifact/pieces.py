"""Bytes in pieces, which lie where they were made: joined in memory, or one after the other.

    sections of a file     [header, records, array, zeros, array, ...]
      joined(pieces)       the bytes in one row
      for part in parts_of(pieces):  file.write(part)      no more than a few MB of them at once

Arrays may lie in memory as they like, and in mapped files: they come as C has them, and what was
read of a file goes from memory meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.runtime import environment
from ekiden.runtime.artifact import mapped
from ekiden.runtime.binding._core import empty, get_global_func, tensor

if TYPE_CHECKING:
    from concurrent import futures
else:
    futures = LazyModule("concurrent.futures")

Bytes = bytes | memoryview
Piece = Bytes | np.ndarray
Pieces = list[Piece]
LARGE = 1 << 20
"""Bytes of a piece that are worth a thread, and of a constant that may stand apart."""
PART = 1 << 23
"""Bytes that a thread takes at a time."""


def size_of(piece: Piece) -> int:
    """Bytes of a piece."""
    return piece.nbytes if isinstance(piece, np.ndarray) else len(piece)


def joined(pieces: Sequence[Piece]) -> memoryview:
    """One after the other, in the memory of a tensor: it has large pages, takes a third of the time
    that joined `bytes` do, and is aligned as constants are, so that `executable_of` need not copy.
    """
    made = empty((sum(map(size_of, pieces)),), "uint8").numpy()
    at, places = 0, []
    for piece in pieces:
        end = at + size_of(piece)
        places.append((made[at:end], piece))
        at = end
    put_all(places)
    return made.data


def put_all(places: Sequence[tuple[np.ndarray, Piece]]) -> None:
    """Copy pieces into as many bytes each, bit for bit, by threads where they are large."""
    large = [(place[a:b], part) for place, piece in places if len(place) >= LARGE
             for a, b, part in _split(piece, len(place))]  # fmt: skip
    jobs = min(len(large), environment.compile_jobs())
    for place, piece in places:
        if len(place) < LARGE:
            _put(place, piece)
    if jobs < 2:
        list(starmap(_put, large))
        return
    with futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(_put, *zip(*large, strict=True)))


def parts_of(pieces: Iterable[Piece]) -> Iterator[memoryview]:
    """The same bytes, some at a time, none of no bytes: of what lies in a row as it is, of other
    arrays copies, which threads make while those before them are used."""
    for piece in pieces:
        size = size_of(piece)
        if size == 0:
            continue
        row = _row_of(piece)
        if row is not None:
            yield from (row[at : at + PART] for at in range(0, size, PART))
        elif size < LARGE:
            yield _copied(piece, size)
        else:
            yield from _by_threads(piece, size)
        if isinstance(piece, np.ndarray):
            mapped.drop(piece)


def _by_threads(piece: Piece, size: int) -> Iterator[memoryview]:
    """Copies of a piece, in order; of as many parts at once as there are threads."""
    jobs = environment.compile_jobs()
    waiting: deque[futures.Future[memoryview]] = deque()
    with futures.ThreadPoolExecutor(jobs) as pool:
        for begin, end, part in _split(piece, size):
            waiting.append(pool.submit(_copied, part, end - begin))
            if len(waiting) > jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def checksum(data: Bytes, before: int = 0) -> int:
    """As sections have it, by the runtime, whose checksums take less than half of zlib's time;
    `before` is that of the bytes which they follow."""
    given = tensor(np.frombuffer(data, np.uint8))
    found = get_global_func("ek.runtime.crc32")(given, before)
    assert isinstance(found, int)
    return found


def _split(piece: Piece, size: int) -> Iterator[tuple[int, int, Piece]]:
    """A piece of so many bytes as several of about the size that a thread takes at a time, by its
    first axis: the largest weight of a network may be as large as all others together. With each
    where it begins and ends."""
    if size == 0:
        return
    array = np.frombuffer(piece, np.uint8) if not isinstance(piece, np.ndarray) else piece
    rows = len(array) if array.ndim else 1
    step = max(1, rows * PART // size)
    row = size // rows
    for at in range(0, rows, step):
        end = min(at + step, rows)
        yield at * row, end * row, array[at:end] if array.ndim else array


def _row_of(piece: Piece) -> memoryview | None:
    """The bytes of a piece where they lie; None where they are not in a row."""
    if not isinstance(piece, np.ndarray):
        return memoryview(piece)
    return piece.reshape(-1).view(np.uint8).data if piece.flags.c_contiguous else None


def _copied(piece: Piece, size: int) -> memoryview:
    """The bytes of a piece in a row."""
    made = np.empty(size, np.uint8)
    _put(made, piece)
    return made.data


def _put(place: np.ndarray, piece: Piece) -> None:
    """Copy a piece into as many bytes, bit for bit."""
    if not isinstance(piece, np.ndarray):
        place[:] = np.frombuffer(piece, np.uint8)
        return
    kind = np.dtype(f"u{piece.itemsize}") if piece.itemsize in (1, 2, 4, 8) else piece.dtype
    place.view(kind).reshape(piece.shape)[...] = piece.view(kind)
    mapped.drop(piece)


__all__ = [
    "LARGE",
    "Bytes",
    "Piece",
    "Pieces",
    "checksum",
    "joined",
    "parts_of",
    "put_all",
    "size_of",
]
