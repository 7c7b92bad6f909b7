"""Byte buffers in chunks, without joining them.

    sections of a file     [header, records, array, zeros, array, ...]
      joined(pieces)       the bytes in one buffer
      for part in complex_parts(pieces):  file.write(part)      no more than a few MB of them at
      once

Arrays may have any layout in memory, and lie in mapped files: they are written in C order, and
pages read of a file are dropped meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.runtime import environment
from ekiden.runtime.artifact import mapped_files
from ekiden.runtime.binding._core import empty, get_global_func, tensor

if TYPE_CHECKING:
    from concurrent import futures
else:
    futures = LazyModule("concurrent.futures")

Bytes = bytes | memoryview
Piece = Bytes | np.ndarray
Pieces = list[Piece]
MIN_THREADED_BYTES = 1 << 20
"""Bytes of a piece that are worth a thread, and of a constant that may stand apart."""
THREAD_CHUNK_BYTES = 1 << 23
"""Bytes that a thread takes at a time."""


def piece_nbytes(piece: Piece) -> int:
    """Return the size of a piece in bytes."""
    return piece.nbytes if isinstance(piece, np.ndarray) else len(piece)


def concatenate_pieces(pieces: Sequence[Piece]) -> memoryview:
    """Concatenate pieces in a tensor's memory, aligned as constants are, so that loading need not
    copy them.
    """
    buffer = empty((sum(map(piece_nbytes, pieces)),), "uint8").numpy()
    at, copies = 0, []
    for piece in pieces:
        end = at + piece_nbytes(piece)
        copies.append((buffer[at:end], piece))
        at = end
    copy_pieces(copies)
    return buffer.data


def copy_pieces(copies: Sequence[tuple[np.ndarray, Piece]]) -> None:
    """Copy pieces to their destinations bit for bit, large ones by several threads."""
    large = [(large_destination[a:b], chunk) for large_destination, piece in copies if
             len(large_destination) >= MIN_THREADED_BYTES
             for a, b, chunk in _split_rows(piece, len(large_destination))]  # fmt: skip
    jobs = min(len(large), environment.num_compile_jobs())
    # Small copies cost less than handing them to a thread.
    for destination, piece in copies:
        if len(destination) < MIN_THREADED_BYTES:
            _copy_piece(destination, piece)
    if jobs < 2:
        list(starmap(_copy_piece, large))
        return
    with futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(_copy_piece, *zip(*large, strict=True)))


def iter_chunks(pieces: Iterable[Piece]) -> Iterator[memoryview]:
    """Yield the bytes of pieces in non-empty chunks: contiguous data without a copy, other arrays
    as copies that threads make ahead.
    """
    for piece in pieces:
        size = piece_nbytes(piece)
        if size == 0:
            continue
        row = _contiguous_bytes(piece)
        if row is not None:
            yield from (
                row[at : at + THREAD_CHUNK_BYTES] for at in range(0, size, THREAD_CHUNK_BYTES)
            )
        elif size < MIN_THREADED_BYTES:
            yield _contiguous_copy(piece, size)
        else:
            yield from _prefetch_copies(piece, size)
        if isinstance(piece, np.ndarray):
            # Without it, weights of the size of main memory would stay resident once they are
            # written.
            mapped_files.advise_dontneed(piece)


def _prefetch_copies(piece: Piece, size: int) -> Iterator[memoryview]:
    """Yield copies of a piece in order, prepared by as many threads as compile jobs."""
    jobs = environment.num_compile_jobs()
    waiting: deque[futures.Future[memoryview]] = deque()
    with futures.ThreadPoolExecutor(jobs) as pool:
        for begin, end, chunk in _split_rows(piece, size):
            waiting.append(pool.submit(_contiguous_copy, chunk, end - begin))
            # At most jobs + 1 copies exist at a time, which bounds the memory of writing.
            if len(waiting) > jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def checksum(data: Bytes, before: int = 0) -> int:
    """Return the CRC-32 of data, continued from `before`; the runtime's takes less than half of
    zlib's time.
    """
    data_tensor = tensor(np.frombuffer(data, np.uint8))
    crc = get_global_func("ek.runtime.crc32")(data_tensor, before)
    assert isinstance(crc, int)
    return crc


def _split_rows(piece: Piece, size: int) -> Iterator[tuple[int, int, Piece]]:
    """Yield (start, end, chunk) of a piece along its first axis, in chunks of about
    THREAD_CHUNK_BYTES: a network's largest weight may be as large as all others together.
    """
    if size == 0:
        return
    array = np.frombuffer(piece, np.uint8) if not isinstance(piece, np.ndarray) else piece
    rows = len(array) if array.ndim else 1
    step = max(1, rows * THREAD_CHUNK_BYTES // size)
    row = size // rows
    for at in range(0, rows, step):
        end = min(at + step, rows)
        yield at * row, end * row, array[at:end] if array.ndim else array


def _contiguous_bytes(piece: Piece) -> memoryview | None:
    """Return a piece's bytes in place, or None if they are not contiguous."""
    if not isinstance(piece, np.ndarray):
        return memoryview(piece)
    return piece.reshape(-1).view(np.uint8).data if piece.flags.c_contiguous else None


def _contiguous_copy(piece: Piece, size: int) -> memoryview:
    """Return a contiguous copy of a piece's bytes."""
    buffer = np.empty(size, np.uint8)
    _copy_piece(buffer, piece)
    return buffer.data


def _copy_piece(destination: np.ndarray, piece: Piece) -> None:
    """Copy a piece bit for bit to a destination of its size."""
    if not isinstance(piece, np.ndarray):
        destination[:] = np.frombuffer(piece, np.uint8)
        return
    # Copied as unsigned integers: a float copy could quieten signalling NaNs.
    kind = np.dtype(f"u{piece.itemsize}") if piece.itemsize in (1, 2, 4, 8) else piece.dtype
    destination.view(kind).reshape(piece.shape)[...] = piece.view(kind)
    mapped_files.advise_dontneed(piece)


__all__ = [
    "MIN_THREADED_BYTES",
    "Bytes",
    "Piece",
    "Pieces",
    "checksum",
    "concatenate_pieces",
    "copy_pieces",
    "iter_chunks",
    "piece_nbytes",
]
