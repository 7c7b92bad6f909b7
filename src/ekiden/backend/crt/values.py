"""Values of a program while it is read: leaves, whose storages have no places yet."""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from ekiden.backend.crt.module import Home, Place, Statement
from ekiden.relay.expr import Var
from ekiden.relay.transform.fusion.union_find import Joined
from ekiden.relay.transform.memory.storage_lifetimes import Block, Request
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Offset:
    """Bytes of a storage from an offset on."""

    storage: Var
    bytes: int = 0


@dataclass(eq=False, slots=True)
class Lists(Joined):
    """Lists that have the same room, as one may be the other: at the root, for how many elements;
    None where nothing says it."""

    capacity: int | None = None

    def join(self, other: Lists) -> None:
        """Let both have the same room."""
        mine, its = self.root(), other.root()
        if mine is not its:
            capacities = [c for c in (mine.capacity, its.capacity) if c is not None]
            mine.capacity = max(capacities, default=None)
            its.parent = mine


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """An address of a value.

    home: where that is. storages: those that it may be in; is_whole says whether it is then all of
    one. lists: of the elements of a list. function: of a function, which it is.
    """

    home: Offset | Place
    storages: frozenset[Var] = frozenset()
    is_whole: bool = False
    lists: Lists | None = None
    function: Known | None = None


Value: TypeAlias = tuple[Leaf, ...]
"""The leaves of a value of a type, in the order of its layout."""
NOWHERE = Place(Home.NOWHERE, 0)
ABSENT = Leaf(NOWHERE)
"""A field of another constructor, or a function."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A function whose first parameters are bound."""

    name: str
    captured: tuple[Value, ...] = ()

    def is_same(self, other: Known | None) -> bool:
        """Return whether another one does the same."""
        if other is None or self.name != other.name:
            return False
        pairs = zip(self.captured, other.captured, strict=True)
        return all([leaf.home for leaf in a] == [leaf.home for leaf in b] for a, b in pairs)


@dataclass(frozen=True, slots=True)
class Draft:
    """A statement whose places are leaves."""

    statement: Statement
    leaves: Value


@dataclass(slots=True)
class Move:
    """A copy of the bytes at a leaf into a parameter of a loop or a result, of a number."""

    number: int
    source: Leaf
    size: Request
    """What has as many bytes."""


@dataclass(slots=True)
class Leave:
    """The end of a turn or of the routine: moves that happen at once. `entry` is the function that
    goes on; None where the routine ends."""

    block: Block
    index: int
    position: int
    moves: list[Move] = field(default_factory=list)
    entry: int | None = None


__all__ = [
    "ABSENT", "NOWHERE", "Draft", "Known", "Leaf", "Leave", "Lists", "Move", "Offset", "Value",
]  # fmt: skip
