"""What a failed or unfinished attempt at an import has taught, for the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeGuard, TypeVar

from ekiden.ir.prim import PrimExpr, SizeVar, const
from ekiden.runtime.errors import ImportModelError

T = TypeVar("T")


class Learned(Exception):  # noqa: N818 - a restart, not an error
    """The model implies a fact about its dimensions that earlier nodes should have known: import
    again with it.
    """


class Facts:
    """What the nodes of a model imply about its named dimensions, kept between attempts.

    same: names that are one dimension. known: those that can be one number alone. upper: bounds.
    equal: extents of resized images (by text) that must be other extents. choices: node whose
    branches give values that cannot be one -> the branches not yet seen to fail, the imported one
    first; the other one fails at run time. met: those nodes in the order of this attempt.
    """

    def __init__(self) -> None:
        self.same: dict[str, str] = {}
        self.known: dict[str, int] = {}
        self.upper: dict[str, int] = {}
        self.equal: dict[str, PrimExpr] = {}
        self.choices: dict[str, tuple[int, ...]] = {}
        self.met: list[str] = []
        self._symbols: dict[str, SizeVar] = {}

    def symbol(self, name: str) -> PrimExpr:
        """The dimension of that name, with what is known of it: a number, if all is."""
        name = self._first(name)
        if name in self.known:
            return const(self.known[name])
        found = self._symbols.get(name)
        if found is None or found.upper != self.upper.get(name):
            found = self._symbols[name] = SizeVar(name, upper=self.upper.get(name))
            self.equal.clear()  # written in terms of the old symbol
        return found

    def _first(self, name: str) -> str:
        """The name that stands for all that are one dimension with this one."""
        while name in self.same:
            name = self.same[name]
        return name

    def unite(self, pairs: Sequence[tuple[str, str]]) -> NoReturn:
        """The two names of each pair are one dimension. Raises Learned."""
        for name, other in pairs:
            kept, gone = self._first(name), self._first(other)
            if kept != gone:
                self.same[gone] = kept
        self._begin_anew()

    def settle(self, name: str, number: int) -> NoReturn:
        """A dimension can be that number alone. Raises Learned."""
        self.known[name] = number
        self._begin_anew()

    def _begin_anew(self) -> NoReturn:
        self.equal.clear()  # it may have the symbol that is gone
        raise Learned

    def is_named(self, dim: PrimExpr) -> TypeGuard[SizeVar]:
        """Whether it is a dimension that `symbol` gave."""
        return isinstance(dim, SizeVar) and self._symbols.get(dim.name) is dim

    def choice(self, name: str, order: tuple[int, ...]) -> int:
        """The branch of a node that is imported: the first of this order not seen to fail."""
        self.met.append(name)
        return self.choices.setdefault(name, order)[0]

    def choose_another_since(self, start: int) -> None:
        """After a graph that failed in this attempt: take the other branch at the last choice in it
        that has one left, of those met from `start` on. Raises Learned where there is one.
        """
        for name in reversed(self.met[start:]):
            _, *left = self.choices.pop(name, (0,))
            if left:
                self.choices[name] = tuple(left)
                self._begin_anew()

    def choose_another(self) -> bool:
        """After an import that failed: take the other branch at the last choice that has one left.
        False if none has.
        """
        while self.choices:
            last, (_, *left) = self.choices.popitem()
            if left:
                self.choices[last] = tuple(left)
                return True
        return False


def settled(attempt: Callable[[Facts], T]) -> T:
    """What an import gives once all that its nodes imply is known: it is begun anew with each fact
    more about a dimension, of which there are few, and for the other side of a choice that failed.
    """
    facts = Facts()
    while True:
        facts.met.clear()
        try:
            return attempt(facts)
        except Learned:
            continue
        except ImportModelError:
            if not facts.choose_another():
                raise
