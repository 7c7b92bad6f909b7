"""Things that are found to be one, step by step: union-find."""

from __future__ import annotations

from dataclasses import field
from typing import Self

from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(eq=False, slots=True)
class Joined:
    """One of them. Setting the parent of its root joins all that are one with it to others."""

    parent: Self | None = field(default=None, kw_only=True)

    def root(self) -> Self:
        """The one that stands for all that are joined."""
        at = self
        while at.parent is not None:
            if at.parent.parent is not None:
                at.parent = at.parent.parent
            at = at.parent
        return at


__all__ = ["Joined"]
