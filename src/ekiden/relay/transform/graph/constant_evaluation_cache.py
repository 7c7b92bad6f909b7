"""Process-wide cache of constant-folding results for large constants.

A model that is edited is compiled again and again, and its weights are scaled and packed as before.

    with cache_results():  cached((fn, attrs), arrays, make)  ->  make(), or its earlier result

A result is identified by what was computed, by the identity of large arrays and the content of
small ones. It is stored from the second time on, so that compiling a model once holds nothing; as
long as all arrays that it was made of are alive; and while there is room. Arrays that were changed
in place are detected by their checksums.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from itertools import count
from typing import TypeAlias

import numpy as np

from ekiden.ir.op import Array
from ekiden.ir.pass_context import WEIGHT_SIZE_OPTION, PassContext
from ekiden.relay.expr import ConstantData
from ekiden.runtime.artifact.chunks import checksum
from ekiden.runtime.lazy_dataclass import dataclass

EvaluationResult: TypeAlias = Array | tuple[Array, ...]
MIN_CACHED_BYTES = 1 << 16
"""Minimum bytes of arrays identified by identity; results of smaller ones are not cached."""
MAX_CACHE_BYTES = 1 << 28
"""Maximum bytes of the cache."""


@dataclass(slots=True, eq=False)
class _CachedResult:
    """Cache entry: the result (None after a single request), and its source arrays with their
    checksums.
    """

    sources: tuple[weakref.ref[Array], ...]
    value: EvaluationResult | None = None
    checksums: tuple[int, ...] = ()
    last_compilation: int = 0
    """Last compilation that used the result."""

    @property
    def nbytes(self) -> int:
        """Return the size of the result in bytes."""
        return sum(array.nbytes for array in _result_arrays(self.value))


@dataclass(slots=True, eq=False)
class _EvaluationCache:
    # no lock: an entry is taken out whenever an array dies, in the middle of anything
    """Process-wide cache of evaluation results, evicted by compilation."""

    entries: dict[Hashable, _CachedResult] = field(default_factory=dict)
    compilation_ids: Iterator[int] = field(default_factory=lambda: count(1))

    def contains_any(self, arrays: Sequence[Array]) -> bool:
        """Return whether one of the arrays is itself a cached result, so that values derived from
        it recur as well.
        """
        # A copy of the list: entries may be removed while it is walked.
        results = {
            id(a) for entry in list(self.entries.values()) for a in _result_arrays(entry.value)
        }
        return any(id(array) in results for array in arrays)

    def make_room(self, size: int, compilation: int) -> bool:
        """Evict results that only earlier compilations used; return whether `size` bytes
        fit now.
        """
        stored = [entry for entry in list(self.entries.values()) if entry.value is not None]
        free_bytes = MAX_CACHE_BYTES - sum(used_entry.nbytes for used_entry in stored) - size
        # Least recently used compilations first; the current one is never evicted.
        for victim in sorted(stored, key=lambda candidate: candidate.last_compilation):
            if free_bytes >= 0 or victim.last_compilation == compilation:
                break
            free_bytes += victim.nbytes
            victim.value = None
        return free_bytes >= 0


_CACHE = _EvaluationCache()
_COMPILATION_ID: ContextVar[int] = ContextVar("turn", default=0)
"""Id of the current compilation, 0 outside of any."""


@contextmanager
def cache_results() -> Iterator[None]:
    """Enable the cache within a context in which nobody writes to the program's arrays.

    Not where arrays are to record what they were made of, which differs for each.
    """
    # For small artifacts constants note how they are made, which a cached array does not.
    is_small = PassContext.current().option(WEIGHT_SIZE_OPTION) == "small"
    token = _COMPILATION_ID.set(0 if is_small else next(_CACHE.compilation_ids))
    try:
        yield
    finally:
        _COMPILATION_ID.reset(token)


def lookup_result(what: Hashable, arrays: Sequence[Array]) -> EvaluationResult | None:
    """Return the cached result for the key and the arrays, or None."""
    entry = _CACHE.entries.get(_cache_key(what, arrays)) if _COMPILATION_ID.get() else None
    if entry is None or entry.value is None:
        return None
    # The identity of an array says nothing of writes to it.
    if entry.checksums != _checksums(arrays):
        entry.value = None
        return None
    entry.last_compilation = _COMPILATION_ID.get()
    return entry.value


def store_result(
    what: Hashable, arrays: Sequence[Array], value: EvaluationResult
) -> EvaluationResult:
    """Cache a result that was requested before, if there is room; return it.

    Arrays become constants, so that they are identified themselves. A view of a source is not
    cached, as it would keep the source alive.
    """
    compilation = _COMPILATION_ID.get()
    # Small arrays are recomputed faster than they are looked up.
    if not compilation or not any(map(_is_large, arrays)) or any(map(_is_object, arrays)):
        return value
    # Entries die with their sources; a result that is a view would prevent that.
    if any(np.may_share_memory(a, b) for a in arrays for b in _result_arrays(value)):
        return value
    key = _cache_key(what, arrays)
    entry = _CACHE.entries.get(key)
    # The first request only registers the key: most constants are folded once per process.
    if entry is None:
        forget = _make_eviction_callback(key)
        refs = tuple(weakref.ref(source, forget) for source in arrays if _is_large(source))
        entry = _CACHE.entries[key] = _CachedResult(refs)
        if not _CACHE.contains_any(arrays):
            return value
    size = sum(array.nbytes for array in _result_arrays(value))
    if not _CACHE.make_room(size, compilation):
        return value
    # Viewed as the data of constants, which the constants of the program then share.
    constants = tuple(result_array.view(ConstantData) for result_array in _result_arrays(value))
    entry.checksums, entry.last_compilation = _checksums(arrays), compilation
    entry.value = constants if isinstance(value, tuple) else constants[0]
    return entry.value


def cached_evaluation(
    what: Hashable, arrays: Sequence[Array], make: Callable[[], EvaluationResult]
) -> EvaluationResult:
    """Return the cached result, or compute and store it."""
    result = lookup_result(what, arrays)
    return store_result(what, arrays, make()) if result is None else result


def _make_eviction_callback(key: Hashable) -> Callable[[object], None]:
    def evict(_: object) -> None:
        _CACHE.entries.pop(key, None)

    return evict


def _cache_key(what: Hashable, arrays: Sequence[Array]) -> Hashable:
    # Large arrays are keyed by identity, since hashing their contents would cost as much as
    # evaluation.
    return what, *map(_array_key, arrays)


def _array_key(array: Array) -> Hashable:
    if _is_large(array):
        return id(array)
    # Small arrays are compared by content.
    return str(array.dtype), array.shape, array.tobytes()


def _is_large(array: Array) -> bool:
    return array.nbytes >= MIN_CACHED_BYTES


def _is_object(array: Array) -> bool:
    return array.dtype.hasobject


def _result_arrays(value: EvaluationResult | None) -> tuple[Array, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _checksums(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Return the checksums of the large arrays; non-contiguous ones are copied first."""
    plain = [np.ascontiguousarray(array).reshape(-1) for array in arrays if _is_large(array)]
    return tuple(checksum(flat.view(np.uint8).data) for flat in plain)


__all__ = ["cache_results", "cached_evaluation", "lookup_result", "store_result"]
