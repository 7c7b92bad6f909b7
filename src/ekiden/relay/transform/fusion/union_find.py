"""Union-find (disjoint-set forest) with path halving."""

from __future__ import annotations

from dataclasses import field
from typing import Self

from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(eq=False, slots=True)
class UnionFindNode:
    """Node of a disjoint-set forest. Setting the parent of its root merges its set into another."""

    parent: Self | None = field(default=None, kw_only=True)

    def root(self) -> Self:
        """Return the representative of the set, with path halving."""
        current = self
        while current.parent is not None:
            if current.parent.parent is not None:
                # Path halving: amortized nearly constant without a second walk (Tarjan and van
                # Leeuwen 1984).
                current.parent = current.parent.parent
            current = current.parent
        return current


__all__ = ["UnionFindNode"]
