"""Import blocks, which collect the let-bindings and run-time checks of `main`, a branch or a
function body.

Most expressions need no scope: they are a graph, evaluated where their uses need them. A scope is
needed by a name for dimensions known only at run time (a `Let` whose variable's type says them) and
by a condition that must hold before anything after it is computed.
"""

from __future__ import annotations

from ekiden.ir import prim
from ekiden.ir.prim import SizeVar
from ekiden.ir.span import Span
from ekiden.relay.expr import Expr, If, Let, Match, Tuple, Var
from ekiden.runtime.lazy_dataclass import dataclass


def emit_failure(reason: str) -> Expr:
    """Emit an expression of any type that ends the run with an error stating the reason."""
    # A match without clauses has any type (bottom), so that it can stand in either branch of an If.
    return Match(Tuple(()), (), complete=False, span=Span(reason))


@dataclass(frozen=True, slots=True)
class _RuntimeCheck:
    """Run-time check: a bool condition, and the error message where it does not hold."""

    condition: Expr
    message: str
    span: Span


class ImportBlock:
    """Ordered let-bindings and run-time checks of one scope of an import."""

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
        self._items: list[tuple[Var, Expr] | _RuntimeCheck] = []
        self._required: set[str] = set()

    def bind(self, var: Var, value: Expr) -> None:
        """Bind a variable to a value."""
        self._items.append((var, value))

    def mark_required(self, condition: str) -> bool:
        """Record that a condition, identified by its text, is required; return whether it is
        new.
        """
        is_new = condition not in self._required
        self._required.add(condition)
        return is_new

    def add_runtime_check(self, condition: Expr, text: str, span: Span) -> None:
        """Add a run-time check that ends the run with this message where a condition does not
        hold.
        """
        self._items.append(_RuntimeCheck(condition, text, span))

    def wrap_result(self, result: Expr) -> Expr:
        """Wrap a result in all bindings and checks; the first becomes the outermost."""
        # Built from the innermost outwards, so that each check precedes the bindings that rely on
        # it.
        for item in reversed(self._items):
            if isinstance(item, _RuntimeCheck):
                stop = emit_failure(item.message)
                result = If(item.condition, result, stop, span=item.span)
            else:
                var, value = item
                result = Let(var, value, result, span=value.span)
        return result
