"""Union-find: disjoint sets that are merged step by step."""

from __future__ import annotations

from dataclasses import field
from typing import Self

from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(eq=False, slots=True)
class UnionFindNode:
    """Member of a set. Setting the parent of its root merges its set into another."""

    parent: Self | None = field(default=None, kw_only=True)

    def root(self) -> Self:
        """Return the representative of the set, and halve the path to it."""
        at = self
        while at.parent is not None:
            if at.parent.parent is not None:
                # Path halving: amortized nearly constant without a second walk (Tarjan and van
                # Leeuwen 1984).
                at.parent = at.parent.parent
            at = at.parent
        return at


__all__ = ["UnionFindNode"]
