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
        at = self
        while at.parent is not None:
            if at.parent.parent is not None:
                # Path halving: amortized nearly constant without a second walk (Tarjan and van
                # Leeuwen 1984).
                at.parent = at.parent.parent
            at = at.parent
        return at


__all__ = ["UnionFindNode"]
