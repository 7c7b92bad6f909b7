"""Values of a program while it is read, as leaves whose storages have no memory locations yet."""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from ekiden.backend.crt.micro_module import Location, MemorySpace, Statement
from ekiden.relay.expr import Var
from ekiden.relay.transform.fusion.union_find import UnionFindNode
from ekiden.relay.transform.memory.storage_lifetimes import LifetimeBlock, StorageRequest
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class StorageOffset:
    """Byte offset into a storage."""

    storage: Var
    bytes: int = 0


@dataclass(eq=False, slots=True)
class ListClass(UnionFindNode):
    """Equivalence class of lists that share a capacity, because they may be the same list
    (union-find); the root holds the capacity in elements, None where it is unknown.
    """

    capacity: int | None = None

    def unify(self, second: ListClass) -> None:
        """Unify two classes; the larger capacity holds for both."""
        root, other_root = self.root(), second.root()
        if root is not other_root:
            capacities = [c for c in (root.capacity, other_root.capacity) if c is not None]
            root.capacity = max(capacities, default=None)
            other_root.parent = root


@dataclass(frozen=True, slots=True, eq=False)
class ValueLeaf:
    """Leaf of a value, with its location, its possible storages (`is_whole`: all of one), the class
    of a list, the closure of a function.
    """

    home: StorageOffset | Location
    storages: frozenset[Var] = frozenset()
    is_whole: bool = False
    lists: ListClass | None = None
    function: KnownClosure | None = None


Value: TypeAlias = tuple[ValueLeaf, ...]
"""Leaves of a value, in the order of its type's layout."""
NO_LOCATION = Location(MemorySpace.NOWHERE, 0)
NO_LEAF = ValueLeaf(NO_LOCATION)
"""Leaf without memory: a field of another constructor, or a function."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownClosure:
    """Statically known closure: a function with bound leading parameters."""

    name: str
    captured: tuple[Value, ...] = ()

    def is_same(self, closure: KnownClosure | None) -> bool:
        """Return whether another closure calls the same function with the same captured values."""
        if closure is None or self.name != closure.name:
            return False
        pairs = zip(self.captured, closure.captured, strict=True)
        return all([leaf.home for leaf in a] == [leaf.home for leaf in b] for a, b in pairs)


@dataclass(frozen=True, slots=True)
class UnresolvedStatement:
    """Statement whose operands are value leaves without a memory location yet."""

    statement: Statement
    leaves: Value


@dataclass(slots=True)
class LeafMove:
    """Copy of a leaf's bytes into a numbered loop parameter or result."""

    number: int
    source: ValueLeaf
    size: StorageRequest
    """Storage with the same number of bytes."""


@dataclass(slots=True)
class ParallelMoves:
    """Parallel moves at the end of an iteration or of the routine. `entry` is the function that
    continues; None where the routine ends.
    """

    block: LifetimeBlock
    index: int
    position: int
    moves: list[LeafMove] = field(default_factory=list)
    entry: int | None = None


__all__ = [
    "NO_LEAF",
    "NO_LOCATION",
    "KnownClosure",
    "LeafMove",
    "ListClass",
    "ParallelMoves",
    "StorageOffset",
    "UnresolvedStatement",
    "Value",
    "ValueLeaf",
]  # fmt: skip
