"""The disk cache of compiled kernels: object code by a digest of the function, the target and the
compiler itself.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import platformdirs

from ekiden.ir.compiler_digest import compiler_digest
from ekiden.ir.node import Node
from ekiden.ir.pass_context import PassContext
from ekiden.ir.structural import structural_digest
from ekiden.runtime import environment
from ekiden.runtime.files import write_whole
from ekiden.target import Target


def kernel_key(function: Node, target: Target, *extra: str) -> str:
    """The name under which the code of a function is cached.

    `extra` is what the code depends on beyond the function's meaning and what the current
    PassContext says of lowering: names in messages, options.
    """
    said = " ".join([*extra, *PassContext.current().of_lowering()])
    parts = f"{structural_digest(function)} {target} {compiler_digest()} {said}"
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


DIGEST_SIZE = 8


def _digest(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=DIGEST_SIZE).digest()


class KernelCache:
    """A folder of object files, each behind a digest of its bytes. A file that cannot be read or
    written, or that is damaged, is a miss, never an error.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @staticmethod
    def default() -> KernelCache:
        """The user's cache folder, unless the environment says otherwise."""
        return KernelCache(
            environment.cache_dir(Path(platformdirs.user_cache_dir("ekiden")) / "kernels")
        )

    def _path(self, key: str) -> Path | None:
        return None if self.folder is None else self.folder / key[:2] / f"{key}.o"

    def get(self, key: str) -> bytes | None:
        """The object code of a kernel, None if it is not there."""
        path = self._path(key)
        try:
            kept = path.read_bytes() if path is not None else b""
        except OSError:
            return None
        digest, code = kept[:DIGEST_SIZE], kept[DIGEST_SIZE:]
        return code if digest == _digest(code) else None

    def put(self, key: str, code: bytes) -> None:
        """Keep object code; readers in other processes see all of it or none."""
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lambda file: file.write(_digest(code) + code))
        except OSError:
            return
