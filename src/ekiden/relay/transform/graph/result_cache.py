"""What was computed of large constants, kept over the compilations of a process: who edits a model
compiles it again and again, and its weights are scaled and packed as before.

    with keeping():  computed((fn, attrs), arrays, make)  ->  make(), or what it gave before

A result is known by what was computed, by the identity of large arrays and the content of small
ones. It is kept from the second time on, so that who compiles a model once holds nothing; as long
as all arrays that it was made of are alive; and while there is room. Arrays that somebody changed
in place are noticed by their checksums.
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
from ekiden.ir.pass_context import SIZE, PassContext
from ekiden.relay.expr import ConstantData
from ekiden.runtime.artifact.pieces import checksum
from ekiden.runtime.lazy_dataclass import dataclass

Result: TypeAlias = Array | tuple[Array, ...]
LARGE = 1 << 16
"""Bytes from which an array is known by identity; a result of smaller ones is not kept."""
ROOM = 1 << 28
"""Bytes of all that is kept."""


@dataclass(slots=True, eq=False)
class _Kept:
    """A result, None where it was asked for but once, and the checksums of what it was made of."""

    sources: tuple[weakref.ref[Array], ...]
    value: Result | None = None
    checksums: tuple[int, ...] = ()
    turn: int = 0
    """The compilation that took it last."""

    @property
    def nbytes(self) -> int:
        """Of the result."""
        return sum(each.nbytes for each in _arrays(self.value))


@dataclass(slots=True, eq=False)
class _Table:
    # no lock: an entry is taken out whenever an array dies, in the middle of anything
    entries: dict[Hashable, _Kept] = field(default_factory=dict)
    turns: Iterator[int] = field(default_factory=lambda: count(1))

    def holds_any(self, arrays: Sequence[Array]) -> bool:
        """Whether one is a result: what is made of it has been asked for as often."""
        results = {id(a) for each in list(self.entries.values()) for a in _arrays(each.value)}
        return any(id(each) in results for each in arrays)

    def make_room(self, size: int, turn: int) -> bool:
        """Whether so many bytes have room, without what earlier compilations took last."""
        kept = [each for each in list(self.entries.values()) if each.value is not None]
        left = ROOM - sum(each.nbytes for each in kept) - size
        for each in sorted(kept, key=lambda each: each.turn):
            if left >= 0 or each.turn == turn:
                break
            left += each.nbytes
            each.value = None
        return left >= 0


_TABLE = _Table()
_TURN: ContextVar[int] = ContextVar("turn", default=0)
"""The number of the compilation that keeps results; 0 outside of any."""


@contextmanager
def keeping() -> Iterator[None]:
    """Results are kept: nobody changes arrays of the program that is compiled inside. Not where
    arrays are to say what they were made of, which is said of each by itself."""
    is_small = PassContext.current().option(SIZE) == "small"
    token = _TURN.set(0 if is_small else next(_TABLE.turns))
    try:
        yield
    finally:
        _TURN.reset(token)


def known(what: Hashable, arrays: Sequence[Array]) -> Result | None:
    """What was computed before, if it is kept."""
    found = _TABLE.entries.get(_key(what, arrays)) if _TURN.get() else None
    if found is None or found.value is None:
        return None
    if found.checksums != _checksums(arrays):
        found.value = None
        return None
    found.turn = _TURN.get()
    return found.value


def kept(what: Hashable, arrays: Sequence[Array], value: Result) -> Result:
    """The result, to be kept if there is room and it was asked for before: as arrays of constants,
    so that they are known by identity themselves. A view of what it was made of would keep that
    alive.
    """
    turn = _TURN.get()
    if not turn or not any(map(_is_large, arrays)) or any(map(_is_object, arrays)):
        return value
    if any(np.may_share_memory(a, b) for a in arrays for b in _arrays(value)):
        return value
    key = _key(what, arrays)
    found = _TABLE.entries.get(key)
    if found is None:
        forget = _forgetting(key)
        refs = tuple(weakref.ref(each, forget) for each in arrays if _is_large(each))
        found = _TABLE.entries[key] = _Kept(refs)
        if not _TABLE.holds_any(arrays):
            return value
    size = sum(each.nbytes for each in _arrays(value))
    if not _TABLE.make_room(size, turn):
        return value
    made = tuple(each.view(ConstantData) for each in _arrays(value))
    found.checksums, found.turn = _checksums(arrays), turn
    found.value = made if isinstance(value, tuple) else made[0]
    return found.value


def computed(what: Hashable, arrays: Sequence[Array], make: Callable[[], Result]) -> Result:
    """What is kept, or is made now."""
    found = known(what, arrays)
    return kept(what, arrays, make()) if found is None else found


def _forgetting(key: Hashable) -> Callable[[object], None]:
    def forget(_: object) -> None:
        _TABLE.entries.pop(key, None)

    return forget


def _key(what: Hashable, arrays: Sequence[Array]) -> Hashable:
    return what, *map(_identity, arrays)


def _identity(array: Array) -> Hashable:
    if _is_large(array):
        return id(array)
    return str(array.dtype), array.shape, array.tobytes()


def _is_large(array: Array) -> bool:
    return array.nbytes >= LARGE


def _is_object(array: Array) -> bool:
    return array.dtype.hasobject


def _arrays(value: Result | None) -> tuple[Array, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _checksums(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Of the large ones; one that lies otherwise than C has it is copied for it."""
    plain = [np.ascontiguousarray(each).reshape(-1) for each in arrays if _is_large(each)]
    return tuple(checksum(each.view(np.uint8).data) for each in plain)


__all__ = ["computed", "keeping", "kept", "known"]
