"""Disk cache of compiled kernels; object code by a digest of the function, the target and the
compiler itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from ekiden.ir.cache_folders import cache_folders, is_nonempty_folder
from ekiden.ir.compiler_digest import compiler_digest
from ekiden.ir.hashes import blake2b
from ekiden.ir.intrinsic_rules import lowering_rules_key
from ekiden.ir.node import Node
from ekiden.ir.pass_context import PassContext
from ekiden.ir.structural import structural_digest
from ekiden.runtime import environment
from ekiden.runtime.files import (
    PathName,
    check_trusted,
    evict_least_recent,
    log_skipped_cache_file,
    make_private_folder,
    write_atomic,
)
from ekiden.target import Target


def kernel_key(function: Node, target: Target, *extra: str) -> str:
    """Return the cache key of a function's code, within the folder of this compiler's version.
    `extra` is what the code depends on beyond the function's structure and the PassContext's
    lowering options, such as names in messages.
    """
    return _format_key(structural_digest(function), target, extra)


def text_key(text: str, target: Target, *extra: str) -> str:
    """Return the cache key of code that is generated from a text, which contains all its names."""
    return _format_key(text, target, extra)


def _format_key(source_digest: str, target: Target, extra: Sequence[str]) -> str:
    rules = lowering_rules_key(target.kind.name)
    settings = " ".join([*extra, *PassContext.current().of_lowering(), *([rules] if rules else [])])
    key_text = f"{source_digest} {target} {settings}"
    return blake2b(key_text.encode(), digest_size=16).hexdigest()


CHECKSUM_BYTES = 8
CACHE_FILE_MAGIC = b"ekiden-1"
"""Version tag in the checksum of cache files, so that files of another format are misses."""
SCANS_PER_CACHE_FILL = 64
"""Expected number of folder scans while the cache fills once."""


def _checksum(code: bytes) -> bytes:
    return blake2b(code, digest_size=CHECKSUM_BYTES, person=CACHE_FILE_MAGIC).digest()


def _should_scan(digest: bytes, size: int, limit: int) -> bool:
    """Decide at random whether to scan the folder for its size limit after writing a kernel of
    `size` bytes: about `SCANS_PER_CACHE_FILL` scans while `limit` bytes are written. Processes
    do not know of each other, and a scan lists every kernel.
    """
    # The digest is uniform in [0, 2**64), so this is true with probability size *
    # SCANS_PER_CACHE_FILL /
    # limit.
    return int.from_bytes(digest) * limit < (size * SCANS_PER_CACHE_FILL) << (8 * CHECKSUM_BYTES)


def verify_checksum(contents: bytes) -> bytes | None:
    """Return the object code in a cache file's bytes, or None if its checksum does not match."""
    digest, code = contents[:CHECKSUM_BYTES], contents[CHECKSUM_BYTES:]
    return code if digest == _checksum(code) else None


def compiler_folder() -> str:
    """Return the name of the subfolder for kernels of this compiler version."""
    return compiler_digest()[:16]


class KernelCache:
    """Layered disk cache of object files, each behind a checksum: the first layer is read and
    written, the others are read only. A file that cannot be read or written, or that is damaged,
    is a miss, never an error. Many processes may read and write at once.

        <folder>/<compiler>/<key>.o
    """

    def __init__(
        self, folder: PathName | None, others: Sequence[PathName] = (), limit: int | None = None
    ) -> None:
        """Open a cache folder.

        Args:
            folder: writable folder, or None for no cache.
            others: read-only folders that are searched after it.
            limit: approximate size limit in bytes; least recently used files are deleted first.
        """
        self.folder, self.others, self.limit = folder, tuple(others), limit

    @staticmethod
    def default() -> KernelCache:
        """Return the cache in the user's cache folder, unless the environment names another."""
        home, fallbacks = cache_folders()
        folder = None if home is None else os.path.join(home, "kernels")
        limit = environment.kernel_cache_limit_bytes()
        return KernelCache(
            folder, [os.path.join(fallback, "kernels") for fallback in fallbacks], limit
        )

    def get(self, key: str) -> bytes | None:
        """Return a kernel's object code, or None if it is not cached."""
        for layer in (self.folder, *self.others):
            if layer is None or not is_nonempty_folder(
                layer
            ):  # nobody has to read the compiler's bytes
                continue
            code = _read_trusted(_layer_path(layer, key), None if layer is self.folder else layer)
            if code is not None:
                return code
        return None

    def put(self, key: str, code: bytes) -> None:
        """Store object code; a failure to write is ignored; readers in other processes see all of
        it or none.
        """
        if self.folder is None:
            return
        digest = _checksum(code)
        path = _layer_path(self.folder, key)
        try:
            make_private_folder(os.path.dirname(path))
            # Written under a temporary name and renamed: readers in other processes see all of it
            # or nothing.
            write_atomic(path, lambda file: file.write(digest + code), is_owners=True)
            if self.limit is not None and _should_scan(digest, len(code), self.limit):
                evict_least_recent(self.folder, self.limit)
        except OSError:
            return


def _layer_path(layer: PathName, key: str) -> str:
    return os.path.join(layer, compiler_folder(), f"{key}.o")


def _read_trusted(path: str, layer: PathName | None) -> bytes | None:
    """Return the code in a file that no other user could have written; None if there is no such
    file.

    `layer` is None for the own layer, whose file is now the one used last.
    """
    try:
        with open(path, "rb") as file:
            check_trusted(path, layer)
            code = verify_checksum(file.read())
    except PermissionError as error:
        log_skipped_cache_file(error)
        return None
    except OSError:
        return None
    # The time of last use is what `shrink` evicts by; shared read-only layers are not touched.
    if layer is None and code is not None:
        with suppress(OSError):
            os.utime(path)
    return code
