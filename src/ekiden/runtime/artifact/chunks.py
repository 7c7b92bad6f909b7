"""Byte buffers in chunks, without joining them.

    sections of a file: [header, records, array, zeros, array, ...]
      concatenate_sources(sources)                                      all bytes in one buffer
      for chunk in iter_chunks(sources): file.write(chunk)              a few MB at a time

Arrays may have any layout in memory, and may be views of mapped files: they are written in C
order, and resident pages of a file are released once they are written.
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
ByteSource = Bytes | np.ndarray
ByteSources = list[ByteSource]
MIN_THREADED_BYTES = 1 << 20
"""Minimum bytes that are copied by several threads, and of a constant outside of the file."""
THREAD_CHUNK_BYTES = 1 << 23
"""Bytes that a thread copies at a time."""


def source_nbytes(source: ByteSource) -> int:
    """Return the size of a source in bytes."""
    return source.nbytes if isinstance(source, np.ndarray) else len(source)


def concatenate_sources(sources: Sequence[ByteSource]) -> memoryview:
    """Concatenate sources in a tensor's memory, aligned as constants are, so that loading need
    not copy them.
    """
    buffer = empty((sum(map(source_nbytes, sources)),), "uint8").numpy()
    position, copies = 0, []
    for source in sources:
        end = position + source_nbytes(source)
        copies.append((buffer[position:end], source))
        position = end
    copy_sources(copies)
    return buffer.data


def copy_sources(copies: Sequence[tuple[np.ndarray, ByteSource]]) -> None:
    """Copy sources to their destinations bit for bit, large ones by several threads."""
    large = [(large_destination[a:b], chunk) for large_destination, source in copies if
             len(large_destination) >= MIN_THREADED_BYTES
             for a, b, chunk in _split_rows(source, len(large_destination))]  # fmt: skip
    jobs = min(len(large), environment.num_compile_jobs())
    # Small copies cost less than handing them to a thread.
    for destination, source in copies:
        if len(destination) < MIN_THREADED_BYTES:
            _copy_source(destination, source)
    if jobs < 2:
        list(starmap(_copy_source, large))
        return
    with futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(_copy_source, *zip(*large, strict=True)))


def iter_chunks(sources: Iterable[ByteSource]) -> Iterator[memoryview]:
    """Yield the bytes of sources in non-empty chunks: contiguous data without a copy, other arrays
    as copies that threads make ahead.
    """
    for source in sources:
        size = source_nbytes(source)
        if size == 0:
            continue
        row = _contiguous_bytes(source)
        if row is not None:
            yield from (
                row[position : position + THREAD_CHUNK_BYTES]
                for position in range(0, size, THREAD_CHUNK_BYTES)
            )
        elif size < MIN_THREADED_BYTES:
            yield _contiguous_copy(source, size)
        else:
            yield from _prefetch_copies(source, size)
        if isinstance(source, np.ndarray):
            # Without it, weights of the size of main memory would stay resident once they are
            # written.
            mapped_files.advise_dontneed(source)


def _prefetch_copies(source: ByteSource, size: int) -> Iterator[memoryview]:
    """Yield copies of a source in order, prepared by as many threads as compile jobs."""
    jobs = environment.num_compile_jobs()
    waiting: deque[futures.Future[memoryview]] = deque()
    with futures.ThreadPoolExecutor(jobs) as pool:
        for begin, end, chunk in _split_rows(source, size):
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


def _split_rows(source: ByteSource, size: int) -> Iterator[tuple[int, int, ByteSource]]:
    """Yield (start, end, chunk) of a source along its first axis, in chunks of about
    THREAD_CHUNK_BYTES: a network's largest weight may be as large as all others together.
    """
    if size == 0:
        return
    array = np.frombuffer(source, np.uint8) if not isinstance(source, np.ndarray) else source
    rows = len(array) if array.ndim else 1
    step = max(1, rows * THREAD_CHUNK_BYTES // size)
    row = size // rows
    for position in range(0, rows, step):
        end = min(position + step, rows)
        yield position * row, end * row, array[position:end] if array.ndim else array


def _contiguous_bytes(source: ByteSource) -> memoryview | None:
    """Return a source's bytes in place, or None if they are not contiguous."""
    if not isinstance(source, np.ndarray):
        return memoryview(source)
    return source.reshape(-1).view(np.uint8).data if source.flags.c_contiguous else None


def _contiguous_copy(source: ByteSource, size: int) -> memoryview:
    """Return a contiguous copy of a source's bytes."""
    buffer = np.empty(size, np.uint8)
    _copy_source(buffer, source)
    return buffer.data


def _copy_source(destination: np.ndarray, source: ByteSource) -> None:
    """Copy a source bit for bit to a destination of its size."""
    if not isinstance(source, np.ndarray):
        destination[:] = np.frombuffer(source, np.uint8)
        return
    # Copied as unsigned integers: a float copy could quieten signalling NaNs.
    kind = np.dtype(f"u{source.itemsize}") if source.itemsize in (1, 2, 4, 8) else source.dtype
    destination.view(kind).reshape(source.shape)[...] = source.view(kind)
    mapped_files.advise_dontneed(source)


__all__ = [
    "MIN_THREADED_BYTES",
    "ByteSource",
    "ByteSources",
    "Bytes",
    "checksum",
    "concatenate_sources",
    "copy_sources",
    "iter_chunks",
    "source_nbytes",
]
