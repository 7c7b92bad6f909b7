"""Facts about dimensions learnt from a failed or unfinished import attempt, used by the
next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

from ekiden.ir.prim import PrimExpr, Var
from ekiden.ir.prim_visitor import free_vars, substitute

T = TypeVar("T")
Place = tuple[str, str, int, int]
"""Where a dimension is data: node, value, axis, and how often the same was met before."""


class Learned(Exception):  # noqa: N818 - a restart, not an error
    """Signal that a node implies a fact about dimensions that earlier nodes should have known: the
    import restarts with it.
    """


class Facts:
    """Facts that the nodes of a model imply about its dimensions, stored between import attempts.

    They are names, numbers and expressions of names alone: each attempt makes its symbols anew, as
    one of an earlier attempt has no value in the next. same: names that are one dimension. known:
    those that can be one number alone. upper: bounds. equal: extents of resized images (by text)
    that must be other extents, over names. doomed: node -> its branches after which a later node
    fails, and how it fails.
    """

    def __init__(self) -> None:
        self.same: dict[str, str] = {}
        self.known: dict[str, int] = {}
        self.upper: dict[str, int] = {}
        self.equal: dict[str, PrimExpr] = {}
        self.doomed: dict[str, dict[int, str]] = {}
        self._of_data: dict[Place, str] = {}

    def name_at(self, location: Place) -> str:
        """Return the name of a dimension that is data: the same in each attempt."""
        return self._of_data.setdefault(location, f"dim{len(self._of_data) + 1}")

    def first(self, name: str) -> str:
        """Return the name that stands for all that are one dimension with this one."""
        while name in self.same:
            name = self.same[name]
        return name

    def unite(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Note that the names of each pair are one dimension. Raises Learned where that is new."""
        is_new = False
        for name, second_name in pairs:
            representative, merged = self.first(name), self.first(second_name)
            if representative != merged:
                self.same[merged] = representative
                is_new = True
        if is_new:
            raise Learned

    def settle(self, name: str, number: int) -> NoReturn:
        """Record that a dimension can only be that number. Raises Learned."""
        self.known[name] = number
        raise Learned

    def equate(self, required_extents: Mapping[str, PrimExpr]) -> None:
        """Note what resized extents must be. Raises Learned where that is new."""
        new = {
            key: over_names(expr) for key, expr in required_extents.items() if key not in self.equal
        }
        self.equal.update(new)
        if new:
            raise Learned

    def doom(self, name: str, branch: int, reason: str) -> NoReturn:
        """Note that a branch of a node cannot be taken. Raises Learned."""
        self.doomed.setdefault(name, {})[branch] = reason
        raise Learned


def over_names(expr: PrimExpr) -> PrimExpr:
    """Return an expression with a name in the place of each symbol."""
    return substitute(expr, {v: Var(v.name, v.dtype) for v in free_vars(expr)})


def settled(attempt: Callable[[Facts], T]) -> T:
    """Return what an import yields once all facts that its nodes imply are known.

    The attempt restarts with each further fact about a dimension; there are few.
    """
    facts = Facts()
    # Terminates: each restart adds a fact, and a model has finitely many dimensions.
    while True:
        try:
            return attempt(facts)
        except Learned:
            continue
