"""The place where nodes are imported: `main`, a branch or the body of a function.

Most expressions need no place: they are a graph, and are evaluated where their uses need them. What
does need one is a name for dimensions that are known at run time alone (a `Let` whose variable's
type says them), and a condition that must hold before anything after it is computed.
"""

from __future__ import annotations

from ekiden.ir import prim
from ekiden.ir.prim import SizeVar
from ekiden.ir.span import Span
from ekiden.relay.expr import Expr, If, Let, Match, Tuple, Var
from ekiden.runtime.lazy_dataclass import dataclass


def fail(reason: str) -> Expr:
    """An expression of any type that ends the run; the error names the reason."""
    return Match(Tuple(()), (), complete=False, span=Span(reason))


@dataclass(frozen=True, slots=True)
class _Requirement:
    """What must hold before anything after it is computed, and what is said otherwise."""

    condition: Expr
    text: str
    span: Span


class Block:
    """What a place binds and requires, in order."""

    def __init__(self) -> None:
        self.symbols: set[SizeVar] = set()
        """Dimensions that have their names here."""
        self.sizes: dict[prim.Var, SizeVar] = {}
        """Numbers of the data that have been named here as dimensions."""
        self.captured: dict[Expr, Var] = {}
        """Expression that loops of this block capture -> its name."""
        self.extents: dict[int, SizeVar] = {}
        """Identity of an interned expression of long text -> the symbol that is bound to it here.
        """
        self._items: list[tuple[Var, Expr] | _Requirement] = []
        self._required: set[str] = set()

    def bind(self, var: Var, value: Expr) -> None:
        """Give a value its name."""
        self._items.append((var, value))

    def is_new(self, condition: str) -> bool:
        """Whether a condition, by its text, was not required yet; now it counts as required."""
        is_new = condition not in self._required
        self._required.add(condition)
        return is_new

    def require(self, condition: Expr, text: str, span: Span) -> None:
        """End the run with this text where a condition does not hold."""
        self._items.append(_Requirement(condition, text, span))

    def close(self, result: Expr) -> Expr:
        """Everything around the result, the first item outermost."""
        for item in reversed(self._items):
            if isinstance(item, _Requirement):
                stop = fail(item.text)
                result = If(item.condition, result, stop, span=item.span)
            else:
                var, value = item
                result = Let(var, value, result, span=value.span)
        return result
