"""Cache keys of artifacts: digests of the model, the compile options, and the compiler.

Importing this, and making a key, needs nothing that only compiling does.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.registry import ModelSource
from ekiden.ir.compiler_digest import compiler_digest
from ekiden.ir.digest_cache import file_identity, memoize_on_disk
from ekiden.ir.hashes import sha256
from ekiden.ir.pass_context import BYOC_ENGINE_OPTION, PLACEMENT_COSTS_OPTION, PassContext
from ekiden.ir.user_extensions import has_extensions
from ekiden.runtime import environment
from ekiden.runtime.files import PathName
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import hashlib
    import pathlib
    from concurrent import futures

    from ekiden.target import virtual_device
    from ekiden.target.virtual_device import Targets
else:
    futures = LazyModule("concurrent.futures")
    hashlib = LazyModule("hashlib")
    pathlib = LazyModule("pathlib")
    virtual_device = LazyModule("ekiden.target.virtual_device")

_LEAF_BYTES, _BLOCK_BYTES = 16 << 20, 1 << 20
"""Bytes of a Merkle leaf hashed by one thread, and of the block that is read at once."""


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """Cache request of a compilation: the digest of its inputs, and what is needed to detect later
    changes.

    digest: Function that returns the digest of everything but external weight files. Its first call
    reads the bytes of the model and the compiler, and raises OSError if the model cannot be read.
    path: Path of the model, whose folder contains the external files. created_ns: Time of creation;
    files that changed later do not match the digest. resolved_path: Its target then.
    """

    digest: Callable[[], str]
    path: str | None
    created_ns: int
    resolved_path: str = ""

    def key(self, weight_files: Sequence[str]) -> str:
        """Return the artifact's cache key, given the names of the model's external weight files.
        Raises OSError where one cannot be read, ValueError for weight files of a model without a
        path.
        """
        if not weight_files:
            return self.digest()
        if self.path is None:
            raise ValueError("weights lie beside a model without a path")
        files = (os.path.join(os.path.dirname(self.path), name) for name in weight_files)
        return _sha256([self.digest(), *map(file_digest, files)])

    def is_current(self, weight_files: Sequence[str]) -> bool:
        """Return whether no file has changed since the request was created. Raises OSError."""
        if self.path is None:
            return True
        if self.resolved_path and os.path.realpath(self.path) != self.resolved_path:
            return False
        path = pathlib.Path(self.path)
        inside = path.rglob("*") if path.is_dir() else ()
        states = [
            path_below.stat()
            for path_below in (path, *inside, *(path.parent / n for n in weight_files))
        ]
        # ctime as well, because mtime can be set back by tools that preserve times.
        return all(max(s.st_mtime_ns, s.st_ctime_ns) <= self.created_ns for s in states)


def create_cache_request(source: ModelSource, options: CompileOptions) -> CacheRequest | None:
    """Create the cache request of a compilation; None if it must not be cached (instrumented,
    extended, measured, or without a model file).
    """
    context = PassContext.current()
    is_measured = context.config.get(BYOC_ENGINE_OPTION) or context.config.get(
        PLACEMENT_COSTS_OPTION
    )
    # A hit would skip what the user wants to observe, and an extended compiler has no digest.
    if context.instruments or environment.dump_request() or is_measured or has_extensions():
        return None
    # Taken before the files are read: a change afterwards makes the request stale.
    made_at = time.time_ns()
    try:
        importer, model_digest = _model_digest(source)
        targets = _targets_text(options.targets)
        settings = [
            importer,
            options.executor,
            _to_hashable_data(options.inputs.to_dict()),
            context.opt_level,
            sorted(context.required_pass),
            sorted(context.disabled_pass),
            _to_hashable_data(context.config),
        ]

        @functools.cache
        def options_digest() -> str:
            """Digest the compiler, the model, the targets and the settings, which all files of a
            request share.
            """
            return _sha256([compiler_digest(), model_digest(), targets(), *settings])

        path = source.absolute_path
        return CacheRequest(
            options_digest, path, made_at, "" if path is None else os.path.realpath(path)
        )
    except Exception:  # the compilation reports what is wrong with the arguments
        return None


def _targets_text(target: Targets) -> Callable[[], str]:
    """Return a function that formats targets and devices; this machine's description is computed
    lazily. Raises CompileError.
    """
    machine = _machine_id() if is_this_machine(target) else None
    if machine is not None:
        about = machine
        return lambda: memoize_on_disk(
            f"host {compiler_digest()} {about}", 0, lambda: _resolve_target(None)
        )
    text = _resolve_target(target)
    return lambda: text


def _resolve_target(target: Targets) -> str:
    config = virtual_device.compilation_config(target)
    resolved = (config.primitive_targets, (*config.devices, *config.device_targets))
    return json.dumps([list(map(str, items)) for items in resolved])


def is_this_machine(target: Targets) -> bool:
    """Return whether code is compiled only for this machine: no target is given and none is
    current.
    """
    module = sys.modules.get("ekiden.target.target")
    entered = getattr(module, "TARGET_STACK", None)  # another thread may be importing the module
    return target is None and (entered is None or not entered.get())


def _machine_id() -> str | None:
    """Return an identifier of this machine until its next boot, from the boot id, usable cores and
    /proc/cpuinfo; None where unavailable.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            first = file.read(_CPUINFO_BYTES).partition(b"\n\n")[0].decode("ascii", "replace")
    except OSError:
        return None
    # The clock frequency changes from read to read.
    facts = [line for line in first.splitlines() if not line.startswith("cpu MHz")]
    return f"{boot} {len(os.sched_getaffinity(0))} {facts}"


_CPUINFO_BYTES = 1 << 13
"""Bytes read of /proc/cpuinfo, enough for the first processor."""


def _model_digest(source: ModelSource) -> tuple[list[str], Callable[[], str]]:
    """Return the importer's identity, and a function that digests the model's bytes when called.
    Raises TypeError for a model without bytes, OSError where there is no such file.
    """
    frontend, model = source.frontend, source.model
    importer = [frontend.name, *(package.installed_version() for package in frontend.packages)]
    path = source.absolute_path
    if path is not None:
        if os.path.isdir(path):
            return importer, lambda: _folder_digest(path)
        _check_regular(path)
        return importer, lambda: file_digest(path)
    if not isinstance(model, bytes):
        if frontend.serialize is None:
            raise TypeError(f"{frontend.model_noun} has no bytes")
        model = frontend.serialize(model)
    view = memoryview(model)
    text = _merkle_digest(len(view), lambda at: hashlib.sha256(view[at : at + _LEAF_BYTES]))
    return importer, lambda: text


def _folder_digest(folder: str) -> str:
    """Return a digest of all files of a folder and their names. Raises OSError."""
    path = pathlib.Path(folder)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return _sha256([[p.relative_to(path).as_posix(), file_digest(p)] for p in files])


def file_digest(path: PathName) -> str:
    """Return a digest of a file's bytes. Raises OSError, also for pipes and devices. The file is
    read rather than mapped, since it may be truncated meanwhile.
    """
    _check_regular(path)
    with open(path, "rb", buffering=0) as file:
        state = os.fstat(file.fileno())  # of the open file: the path may be replaced meanwhile
        changed = max(state.st_mtime_ns, state.st_ctime_ns)

        def hash_file() -> str:
            """Return the digest of the tree of hashes over the file's leaves."""
            return _merkle_digest(state.st_size, lambda at: _hash_leaf(file.fileno(), at))

        return memoize_on_disk(f"file {file_identity(state)}", changed, hash_file)


def _check_regular(path: PathName) -> None:
    """Raise OSError unless a path is a regular file."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(f"'{path}' is no regular file")


def _hash_leaf(handle: int, start: int) -> hashlib._Hash:
    hasher, block = hashlib.sha256(), memoryview(bytearray(_BLOCK_BYTES))
    for at in range(start, start + _LEAF_BYTES, _BLOCK_BYTES):
        hasher.update(block[: os.preadv(handle, [block], at)])
    return hasher


def _merkle_digest(size: int, leaf: Callable[[int], hashlib._Hash]) -> str:
    """Return the SHA-256 digest over the digests of fixed-size leaves (two-level Merkle tree),
    hashed in parallel.
    """
    starts = range(0, size, _LEAF_BYTES)
    if len(starts) <= 1:
        return sha256(b"".join(leaf(at).digest() for at in starts)).hexdigest()
    # hashlib releases the interpreter lock, so leaves are hashed in parallel.
    with futures.ThreadPoolExecutor(max(1, min(len(starts), os.cpu_count() or 1))) as pool:
        leaves = [leaf_hash.digest() for leaf_hash in pool.map(leaf, starts)]
    return sha256(b"".join(leaves)).hexdigest()


def _sha256(content: object) -> str:
    return sha256(json.dumps(content).encode()).hexdigest()


def _to_hashable_data(value: object) -> object:
    """Convert a value to lists, numbers and strings for hashing. Raises TypeError for a value made
    of anything else.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return sorted([key, _to_hashable_data(item)] for key, item in value.items())
    if isinstance(value, Sequence):
        return list(map(_to_hashable_data, value))
    return operator.index(value)  # type: ignore[arg-type]  # raises TypeError
