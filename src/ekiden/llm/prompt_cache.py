"""Prompt cache on disk: pages of keys and values by content, for later processes.

    <folder>/prompt-pages/<digest of the model>/<prefix key of the page>.page

A page depends on the model and on its tokens with those before them, which are its key
(`page_allocator`), so that a file is right as long as it is whole. Files are written by one thread
behind the engine, each beside its name and then renamed; readers and writers may be any processes
of one user, who alone can read the folder. A file that others may have written, a link and a
damaged one are skipped, and the page is computed. The least recently used ones make
room for others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekiden.compiler.cache.cache_keys import file_digest
from ekiden.llm.checkpoint import Checkpoint
from ekiden.llm.page_allocator import Key
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import (
    check_trusted,
    evict_least_recent,
    log_skipped_cache_file,
    make_private_folder,
    write_atomic,
)
from ekiden.runtime.lazy_logger import LazyLogger

__all__ = ["DEFAULT_PROMPT_CACHE_BYTES", "PromptCache", "prompt_model_digest"]

DEFAULT_PROMPT_CACHE_BYTES = 4 << 30
"""Of all files of a folder, where nobody says."""
PAGES_FOLDER = "prompt-pages"
MAGIC = b"ekiden prompt page 1\n"
CHECKSUM_BYTES = 32
MAX_PENDING_BYTES = 256 << 20
"""Of pages that wait to be written, and of those that are read ahead of their texts; further ones
are left out."""
EVICTION_SHARE = 16
"""A folder is swept after so many bytes as this part of its limit were written."""
_LOG = LazyLogger("ekiden")


def prompt_model_digest(
    sources: Sequence[str | os.PathLike[str] | Checkpoint | None], settings: Sequence[object]
) -> str:
    """Return a digest of what keys and values depend on besides tokens.

    Args:
        sources: The checkpoint and what is added to it: files, folders, or tensors in memory.
        settings: Further values: the context, the layout of the cache.

    Raises OSError for a file that cannot be read.
    """
    hasher = sha256(repr(settings).encode())
    for source in sources:
        hasher.update(b"\n")  # an adapter and a draft of the same files differ
        if source is None or isinstance(source, (str, os.PathLike)):
            hasher.update("\n".join(_file_digests(source)).encode())
            continue
        hasher.update(repr(sorted(source.config.items())).encode())
        for name in sorted(source):
            weight = source[name]
            hasher.update(f"{name} {weight.format} {weight.shape}\n".encode())
            hasher.update(np.ascontiguousarray(weight.data).tobytes())
    return hasher.hexdigest()[:32]


def _file_digests(source: str | os.PathLike[str] | None) -> list[str]:
    """Return the digest of a file, or those of the files of a folder."""
    if source is None:
        return [""]
    path = Path(source)
    if not path.is_dir():
        return [file_digest(path)]
    # The order of a folder's entries differs between file systems.
    files = sorted(entry for entry in path.iterdir() if entry.is_file())
    return [f"{entry.name} {file_digest(entry)}" for entry in files]


class PromptCache:
    """Prompt cache of one model in a folder that models and processes share. Its methods are
    thread-safe; what fails to be read or written is a page that is computed.
    """

    def __init__(
        self, folder: str | os.PathLike[str], digest: str, limit: int = DEFAULT_PROMPT_CACHE_BYTES
    ) -> None:
        """Open the cache of a model, whose digest is `digest`, in a folder of at most `limit`
        bytes. Raises InputError for a limit that is none, a folder that cannot be made, or that
        others may write to.
        """
        if type(limit) is not int or limit < 1:
            raise InputError(f"prompt cache: a number of bytes from 1 on expected, got {limit!r}")
        # A folder of its own: all files below it count, and the oldest of them are removed.
        self._root, self._limit = Path(folder, PAGES_FOLDER), limit
        self.folder = self._root / digest
        try:
            # Nothing is made, changed or removed where a link of another user may lead.
            make_private_folder(folder)
            if not self._root.is_symlink():
                make_private_folder(self._root)
            check_trusted(self._root)
            make_private_folder(self.folder)
            check_trusted(self.folder)
            # Pages say what prompts said: nobody else may read them either.
            os.chmod(self._root, 0o700)
        except OSError as error:
            raise InputError(
                f"prompt cache: '{folder}' cannot be used: {error.strerror or error}"
            ) from error
        self._lock = threading.Lock()
        self._pending = self._unswept = 0
        self._stored: set[Key] = set()
        self._writer = ThreadPoolExecutor(1, "prompt cache")
        self.counts: dict[str, int] = dict.fromkeys(("read", "written", "damaged", "skipped"), 0)
        """Pages by what became of them; "skipped" ones had no place among those to be written."""
        # Short programs, each of which writes little, fill a folder too.
        self._writer.submit(self._sweep)

    def _path(self, key: Key) -> Path:
        return self.folder / f"{key.hex()}.page"

    def read(self, keys: Sequence[Key], page_bytes: int) -> dict[Key, bytes]:
        """Return the pages of the first keys that there are files of, up to the first miss."""
        pages: dict[Key, bytes] = {}
        for key in keys[: max(MAX_PENDING_BYTES // page_bytes, 1)]:
            data = self._read_page(key, page_bytes)
            if data is None:
                break
            pages[key] = data
        return pages

    def _read_page(self, key: Key, page_bytes: int) -> bytes | None:
        path = self._path(key)
        size = len(MAGIC) + CHECKSUM_BYTES + page_bytes
        try:
            check_trusted(path)
            with open(path, "rb", buffering=0, opener=_open_plain) as file:
                # One byte above the size shows that the file is too long.
                content = file.read(size + 1)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            log_skipped_cache_file(error)
            return None
        except OSError:
            return None
        head, data = content[: len(MAGIC) + CHECKSUM_BYTES], content[len(MAGIC) + CHECKSUM_BYTES :]
        # The checksum includes the key, so that a renamed page counts as damaged.
        if len(content) != size or head != MAGIC + sha256(key + data).digest():
            self._count("damaged")
            _LOG.warning("prompt cache: '%s' is damaged; it is removed", path)
            with suppress(OSError):
                path.unlink()
            return None
        self._count("read")
        with self._lock:
            self._stored.add(key)
        with suppress(OSError):
            os.utime(path)  # what was used last stays longest
        return data

    def has(self, key: Key) -> bool:
        """Return whether this process has read or written a page."""
        return key in self._stored

    def write(self, key: Key, data: bytes) -> None:
        """Write a page behind the caller, unless too much waits."""
        with self._lock:
            if self._pending + len(data) > MAX_PENDING_BYTES:
                self.counts["skipped"] += 1
                return
            self._stored.add(key)
            self._pending += len(data)
        with suppress(RuntimeError):  # the program ends
            self._writer.submit(self._write_page, key, data)

    def _write_page(self, key: Key, data: bytes) -> None:
        try:
            content = b"".join((MAGIC, sha256(key + data).digest(), data))
            write_atomic(self._path(key), lambda file: file.write(content), is_owners=True)
            self._count("written")
            self._unswept += len(content)
            if self._unswept * EVICTION_SHARE >= self._limit:
                self._unswept = 0
                self._sweep()
        except OSError as error:
            _LOG.warning("prompt cache: %s; the page is not kept", error)
        finally:
            with self._lock:
                self._pending -= len(data)

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _sweep(self) -> None:
        """Remove the least recently used files beyond the folder's limit."""
        with suppress(OSError):
            evict_least_recent(self._root, self._limit)

    def flush(self) -> None:
        """Wait until all pages are written, and the folder is within its limit."""
        self._writer.submit(self._sweep).result()


def _open_plain(path: str, flags: int) -> int:
    """Open a file that is no link, without waiting for a pipe's other end."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def page_bytes(caches: Sequence[NDArray[Any]], pages_per_block: int) -> int:
    """Return the bytes of a page in all caches, those of a draft model included."""
    return sum(cache[0].nbytes // pages_per_block for cache in caches)


def read_page(caches: Sequence[NDArray[Any]], page: int, pages_per_block: int) -> bytes:
    """Return the contents of a page of all caches [blocks, layers, 2, heads, a block of pages]."""
    parts = (_page_view(cache, page, pages_per_block) for cache in caches)
    return b"".join(part.tobytes() for part in parts)


def write_page(
    caches: Sequence[NDArray[Any]], page: int, pages_per_block: int, data: bytes
) -> None:
    """Set the contents of a page of all caches."""
    first = 0
    for cache in caches:
        view = _page_view(cache, page, pages_per_block)
        end = first + view.size * view.itemsize
        view[...] = np.frombuffer(data[first:end], view.dtype).reshape(view.shape)
        first = end


def _page_view(cache: NDArray[Any], page: int, pages_per_block: int) -> NDArray[Any]:
    """Return the keys and values [layers, 2, heads, size] of a page."""
    block, inside = divmod(page, pages_per_block)
    size = cache.shape[-1] // pages_per_block
    return cache[block, ..., inside * size : (inside + 1) * size]
