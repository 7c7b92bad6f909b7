"""Facts about dimensions, inferred by one import attempt and used by the next one (shape inference
by restart).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

from ekiden.ir.prim import PrimExpr, Var
from ekiden.ir.prim_visitor import free_vars, substitute

T = TypeVar("T")
DimLocation = tuple[str, str, int, int]
"""Where a dimension is data: node, value, axis, and how often the same was met before."""


class RestartImport(Exception):  # noqa: N818 - a restart, not an error
    """Exception that restarts an import with a new dimension fact: the import restarts."""


class DimFacts:
    """Dimension facts that nodes of a model imply, carried from one import attempt to the next.

    They are names, numbers and expressions of names alone: each attempt makes its symbols anew, as
    one of an earlier attempt has no value in the next. same: names that are one dimension. known:
    those that can be one number alone. upper: bounds. equal: extents of resized images (by text)
    that must be other extents, over names. failing_branches: node -> its branches after which a
    later node fails, and how it fails.
    """

    def __init__(self) -> None:
        self.same: dict[str, str] = {}
        self.known: dict[str, int] = {}
        self.upper: dict[str, int] = {}
        self.equal: dict[str, PrimExpr] = {}
        self.failing_branches: dict[str, dict[int, str]] = {}
        self._of_data: dict[DimLocation, str] = {}

    def data_dim_name(self, location: DimLocation) -> str:
        """Return the name of a data-dependent dimension; a location has the same name in each
        attempt.
        """
        return self._of_data.setdefault(location, f"dim{len(self._of_data) + 1}")

    def representative(self, name: str) -> str:
        """Return the representative of the dimensions that are equal to this one (union-find)."""
        while name in self.same:
            name = self.same[name]
        return name

    def union_dims(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Record that the dimensions of each pair are equal; restart if that is new."""
        is_new = False
        for name, second_name in pairs:
            representative, merged = self.representative(name), self.representative(second_name)
            if representative != merged:
                self.same[merged] = representative
                is_new = True
        if is_new:
            raise RestartImport

    def fix_extent(self, name: str, number: int) -> NoReturn:
        """Record that a dimension has one possible extent, and restart."""
        self.known[name] = number
        raise RestartImport

    def record_resized_extents(self, required_extents: Mapping[str, PrimExpr]) -> None:
        """Record the extents that resized images must have; restart if one is new."""
        new = {
            key: rename_symbols(expr)
            for key, expr in required_extents.items()
            if key not in self.equal
        }
        self.equal.update(new)
        if new:
            raise RestartImport

    def mark_branch_failing(self, name: str, branch: int, reason: str) -> NoReturn:
        """Record that a branch of a conditional always fails later, and restart the import."""
        self.failing_branches.setdefault(name, {})[branch] = reason
        raise RestartImport


def rename_symbols(expr: PrimExpr) -> PrimExpr:
    """Replace each symbol of an expression by a variable of the same name, valid in any attempt."""
    # Symbols belong to one attempt; their names survive the restart.
    return substitute(expr, {v: Var(v.name, v.dtype) for v in free_vars(expr)})


def import_to_fixpoint(attempt: Callable[[DimFacts], T]) -> T:
    """Import a model again until no node implies a new fact about its dimensions; return the last
    result.

    The attempt restarts with each further fact about a dimension; there are few.
    """
    facts = DimFacts()
    # Terminates: each restart adds a fact, and a model has finitely many dimensions.
    while True:
        try:
            return attempt(facts)
        except RestartImport:
            continue
